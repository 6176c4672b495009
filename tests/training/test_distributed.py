"""One model, trained in several layouts: the same gradient, the same twenty steps (invariant 2).

Starts two launchers with two ranks each; what runs in them is tests/layout_worker.py.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """All 64 sequences in one batch, in this process."""
    import layout_worker

    folder = tmp_path_factory.mktemp("single")
    layout_worker.main(str(folder), "64", "1")
    return load_file(folder / "result.safetensors")


def launch(folder, machine: str) -> dict[str, torch.Tensor]:
    """Two ranks of 32 sequences each."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "--config_file", f"configs/accelerate/{machine}.yaml",
        "--main_process_port", "0", "tests/layout_worker.py", str(folder), "32", "1",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(folder / "result.safetensors")


SMALL_ULP = 2**-23 / 0.05  # last place of a weight near 1, as an update (divided by the learning rate)


def compare(got: dict, expected: dict) -> None:
    for part in ("gradient", "update"):
        names = [name for name in expected if name.startswith(f"{part}/")]
        total = torch.cat([expected[name].flatten() for name in names]).double().norm()
        difference = torch.cat([(got[name] - expected[name]).flatten() for name in names]).double().norm()
        assert difference <= 1e-5 * total, part
        for name in names:
            bound = 1e-5 * expected[name].double().norm() + 1e-8 * total
            if part == "update" and name.endswith("LayerNorm.weight"):  # weights near 1: an update of 20 small steps
                bound += SMALL_ULP * expected[name].numel() ** 0.5  # is known to their last place, and no better
            assert (got[name] - expected[name]).double().norm() <= bound, name
        losses = f"losses/{part}"
        torch.testing.assert_close(got[losses], expected[losses], rtol=1e-6, atol=0)


def compare_muon(got: dict, expected: dict) -> None:
    """Orthogonalisation lifts small singular values, and their rounding, up to 500 times: 1e-4 in place of 1e-5."""
    updates = {name: value for name, value in expected.items() if name.startswith("muon/") and ".layer." in name}
    matrices = [name for name, value in updates.items() if value.ndim == 2]
    assert len(matrices) == 12
    total = torch.cat([expected[name].flatten() for name in matrices]).double().norm()
    difference = torch.cat([(got[name] - expected[name]).flatten() for name in matrices]).double().norm()
    assert difference <= 1e-4 * total
    torch.testing.assert_close(got["losses/muon"], expected["losses/muon"], rtol=1e-5, atol=0)


def test_two_data_parallel_ranks(single, tmp_path):
    got = launch(tmp_path, "cpu_ddp")
    compare(got, single)
    compare_muon(got, single)
    assert (tmp_path / "run-20/checkpoint-20/checkpoint_manifest.json").is_file()


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler: DeepSpeed cannot build its CPU operator")
def test_two_ranks_under_deepspeed_zero_2(single, tmp_path):
    pytest.importorskip("deepspeed")
    compare(launch(tmp_path, "cpu_zero2"), single)
    saved = load_file(tmp_path / "run-20/checkpoint-20/model.safetensors")
    assert saved.keys() >= {"bert.pooler.dense.weight", "cls.seq_relationship.weight"}
    assert any((tmp_path / "run-20/checkpoint-20/global_step20").iterdir())
