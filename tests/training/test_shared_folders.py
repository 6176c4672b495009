"""Checkpoints of two ranks on a file system that shows what the other one wrote late, or never."""

import time
from pathlib import Path

import pytest
from helpers.child_processes import accelerate_launch

from bert_hf.training.checkpoints import checkpoint_files

ROOT = Path(__file__).parents[2]


def run(folder: Path, *words: str) -> tuple[int, str]:
    """Exit code of tests/late_files_worker.py on two ranks, and what they print."""
    machine = ["--config_file", str(ROOT / "configs/accelerate/cpu_ddp.yaml"), "--main_process_port", "0"]
    worker = [str(ROOT / "tests/late_files_worker.py"), str(folder / "run"), *words]
    code = accelerate_launch([*machine, *worker], folder / "log", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    return code, (folder / "log").read_text()


@pytest.mark.parametrize("seconds", ["2", pytest.param("40", marks=pytest.mark.slow)])
def test_the_manifest_waits_for_the_files_of_other_ranks(tmp_path, seconds):
    began = time.monotonic()
    code, log = run(tmp_path, seconds)
    assert code == 0, log
    assert time.monotonic() - began > float(seconds)

    checkpoint = tmp_path / "run/checkpoint-2"
    manifest = checkpoint_files.verify(checkpoint)
    assert {path.name for path in checkpoint.iterdir()} == {*manifest["files"], checkpoint_files.MANIFEST}
    assert {"rank_0.safetensors", "rank_1.safetensors"} <= manifest["files"].keys()


def test_a_file_that_stays_invisible_is_named_and_makes_no_checkpoint(tmp_path):
    code, log = run(tmp_path, "1000", "1")
    errors = [line for line in log.splitlines() if line.startswith("error: ")]
    assert code != 0
    assert len(errors) == 1
    assert "rank_1.safetensors" in errors[0]
    assert "all hosts share" in errors[0]
    assert not list((tmp_path / "run").glob("checkpoint-*"))
