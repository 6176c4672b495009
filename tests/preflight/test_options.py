"""Checks of the disk."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from bert_hf.errors import InputError
from bert_hf.models.config_file import read_checked_config
from bert_hf.preflight import options

ROOT = Path(__file__).parents[2]


def run(tmp_path, **changes):
    asked = {"save_strategy": "steps", "save_steps": None, "save_minutes": 15.0, "output_dir": str(tmp_path / "out")}
    return SimpleNamespace(**{**asked, **changes})


def test_two_checkpoints_need_space(tmp_path, monkeypatch):
    config = read_checked_config(ROOT / "configs/model/base.json")  # 110 M parameters × 12 bytes
    monkeypatch.setattr(options, "free_disk", lambda folder: 3e9)
    assert list(options.check_disk_space(config, run(tmp_path)))[1] == "disk: 2.64 GB for checkpoints, 3.00 GB free"
    monkeypatch.setattr(options, "free_disk", lambda folder: 2e9)
    with pytest.raises(InputError, match=r"out: two checkpoints take 2\.64 GB, and 2\.00 GB are free"):
        list(options.check_disk_space(config, run(tmp_path)))
    (tmp_path / "out").mkdir()
    (tmp_path / "out/run.json").write_text("{}")  # a resumed run has one already
    assert "1.32 GB" in list(options.check_disk_space(config, run(tmp_path)))[1]
    for never in ({"save_strategy": "no"}, {"save_strategy": None, "save_minutes": 0}):  # the model alone
        assert "0.44 GB" in list(options.check_disk_space(config, run(tmp_path, **never)))[1]
