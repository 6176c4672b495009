"""Restarts by torchelastic: a killed rank comes back at once; what would fail again is not tried."""

import pytest
from helpers.child_processes import ROOT, launch_ranks

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

RESTARTED = ("--max_restarts", "3")


def test_a_killed_rank_is_back_at_the_first_restart(tmp_path):
    """Three ranks: the sum of two numbers does not depend on their order."""
    done, log = launch_ranks(
        tmp_path / "log", *RESTARTED, "--num_processes", "3", ROOT / "tests/restart_worker.py", tmp_path
    )
    assert done == 0, log[-3000:]
    assert [log.count(f"attempt {number}\n") for number in range(3)] == [3, 3, 0]
    whole, killed = (tmp_path / run / "checkpoint-8/model.safetensors" for run in ("whole", "killed"))
    assert whole.read_bytes() == killed.read_bytes()


def test_bad_input_is_not_tried_again(tmp_path):
    done, log = launch_ranks(
        tmp_path / "log", *RESTARTED, ROOT / "recipes/pretrain.py", "--train_file", tmp_path / "missing.txt"
    )
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
