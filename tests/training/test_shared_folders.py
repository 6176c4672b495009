"""Checkpoints of two ranks on a file system that shows what the other one wrote late, or never."""

import time

import pytest
from helpers.child_processes import ROOT, launch_ranks

from bert_hf.training.checkpoints import checkpoint_files

WORKER = ROOT / "tests/late_files_worker.py"


@pytest.mark.parametrize("seconds", ["2", pytest.param("40", marks=pytest.mark.slow)])
def test_the_manifest_waits_for_the_files_of_other_ranks(tmp_path, seconds):
    began = time.monotonic()
    code, log = launch_ranks(tmp_path / "log", WORKER, tmp_path / "run", seconds)
    assert code == 0, log
    assert time.monotonic() - began > float(seconds)

    checkpoint = tmp_path / "run/checkpoint-2"
    manifest = checkpoint_files.verify(checkpoint)
    assert {path.name for path in checkpoint.iterdir()} == {*manifest["files"], checkpoint_files.MANIFEST}
    assert {"rank_0.safetensors", "rank_1.safetensors"} <= manifest["files"].keys()


def test_a_file_that_stays_invisible_is_named_and_makes_no_checkpoint(tmp_path):
    code, log = launch_ranks(tmp_path / "log", WORKER, tmp_path / "run", "1000", "1")
    errors = [line for line in log.splitlines() if line.startswith("error: ")]
    assert code != 0
    assert len(errors) == 1
    assert "rank_1.safetensors" in errors[0]
    assert "all hosts share" in errors[0]
    assert not list((tmp_path / "run").glob("checkpoint-*"))
