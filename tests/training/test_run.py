"""Lines of a run's log."""

import time
from types import SimpleNamespace

import pytest

from bert_hf.training.run import LogLines, LogLinesAboveBar


@pytest.mark.parametrize(
    ("steps", "seconds_a_step", "ending"),
    [(100, 5, "about 2.5 h left"), (1540, 10, "about 60 min left"), (1840, 1, "about 60 s left")],
)
def test_a_line_of_training_ends_with_the_time_left(steps, seconds_a_step, ending, monkeypatch):
    """By the speed of this process, which resumed at step 40."""
    clock = {"now": 50.0}
    monkeypatch.setattr(time, "monotonic", lambda: clock["now"])
    lines = LogLines()
    written: list[str] = []
    monkeypatch.setattr(lines, "write", written.append)

    state = SimpleNamespace(global_step=40, max_steps=1900, is_world_process_zero=True)
    lines.on_train_begin(None, state, None)
    clock["now"] += (steps - 40) * seconds_a_step
    state.global_step = steps
    lines.on_log(None, state, None, logs={"loss": 6.5, "train_tokens_per_second": 9.0})
    lines.on_log(None, state, None, logs={"eval_loss": 6.25})
    lines.on_log(None, state, None, logs={"train_runtime": 1.0})
    assert written == [
        f"step {steps:,} of 1,900: loss 6.5; {ending}",
        f"step {steps:,} of 1,900: eval_loss 6.25",
    ]


def test_the_line_above_a_bar_is_the_same():
    assert LogLinesAboveBar.on_log is LogLines.on_log
