"""Restarts by torchelastic: a killed rank comes back at once; what would fail again is not tried."""

from pathlib import Path

import pytest
from helpers.child_processes import accelerate_launch
from helpers.recipe_runs import ROOT

from bert_hf.errors import (
    BAD_INPUT,
    NOT_FINITE,
    STOPPED,
    UNAVAILABLE,
    InputError,
    RunInterrupted,
    end_repeated_attempt,
    one_line_errors,
)


def launch(folder: Path, *words: str) -> tuple[int, str]:
    """Ranks that may be restarted three times; returns exit code and output."""
    machine = ["--config_file", str(ROOT / "configs/accelerate/cpu_ddp.yaml"), "--main_process_port", "0"]
    command = [*machine, "--max_restarts", "3", *words]
    done = accelerate_launch(command, folder / "log", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    return done, (folder / "log").read_text()


def test_a_killed_rank_is_back_at_the_first_restart(tmp_path):
    """Three ranks: the sum of two numbers does not depend on their order."""
    done, log = launch(tmp_path, "--num_processes", "3", str(ROOT / "tests/restart_worker.py"), str(tmp_path))
    assert done == 0, log[-3000:]
    assert [log.count(f"attempt {number}\n") for number in range(3)] == [3, 3, 0]
    whole, killed = (tmp_path / run / "checkpoint-8/model.safetensors" for run in ("whole", "killed"))
    assert whole.read_bytes() == killed.read_bytes()


def test_bad_input_is_not_tried_again(tmp_path):
    done, log = launch(tmp_path, str(ROOT / "recipes/pretrain.py"), "--train_file", str(tmp_path / "missing.txt"))
    assert done != 0
    assert log.count("error: ") == 1
    assert "exitcode  : 2" in log  # of the last attempt


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """The environment of a rank; its launcher's folder."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "attempt_0/0/error.json"))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    return tmp_path


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("a", remedy="b"), BAD_INPUT),
        (RunInterrupted("step 3: loss nan", NOT_FINITE), NOT_FINITE),
        (RunInterrupted("SIGUSR1, after step 3", STOPPED), STOPPED),
        (RunInterrupted("SIGTERM outside training", STOPPED, restart=True), None),
        (RunInterrupted("rank 0 lost its connection", UNAVAILABLE), None),
    ],
)
def test_what_ends_all_attempts(launcher, error, code):
    @one_line_errors
    def main() -> int:
        raise error

    main()
    if code is None:
        end_repeated_attempt()  # does nothing
        return
    with pytest.raises(SystemExit) as end:
        end_repeated_attempt()
    assert end.value.code == code
