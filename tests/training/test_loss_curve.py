"""Which loss curves cause a warning, and when; a healthy one causes none."""

import logging
from types import SimpleNamespace

import pytest

from bert_hf.training.loss_curve import CurveReader, logger


@pytest.fixture
def lines(monkeypatch):
    found = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


def read(mlm: list[float], nsp: list[float] | None = None, steps: int = 1000, main: bool = True) -> None:
    """A log line every `steps / len(mlm)` steps of 32 pairs; unigram frequencies have 7 nats."""
    reader = CurveReader(7.0, 32)
    every = steps // len(mlm)
    for number, loss in enumerate(mlm):
        state = SimpleNamespace(global_step=(number + 1) * every, max_steps=steps, is_world_process_zero=main)
        logs = {"mlm_loss": loss, **({"nsp_accuracy": nsp[number]} if nsp else {})}
        reader.on_log(None, state, None, logs=logs)
        reader.on_log(None, state, None, logs={"eval_loss": 1.0})  # not a training line


def falling(count: int = 40, last: float = 4.5) -> list[float]:
    return [9.0 - (9.0 - last) * number / (count - 1) for number in range(count)]


def test_a_healthy_run_gets_no_line(lines):
    read(falling(), [0.5] * 15 + [0.7] * 25)
    assert lines == []


def test_the_plateau_is_named_once(lines):
    read([8.0, 7.0, 6.6, *[6.4] * 37], [0.7] * 40)
    assert len(lines) == 1
    assert "step 275 (28% of the run)" in lines[0]
    assert "unigram frequencies (7.00)" in lines[0]


def test_next_sentences_at_chance(lines):
    read(falling(), [0.5] * 40)
    assert len(lines) == 1
    assert "next-sentence accuracy is 0.500" in lines[0]


def test_a_spike(lines):
    curve = falling()
    curve[30] += 3.0
    read(curve, [0.7] * 40)
    assert len(lines) == 1
    assert "rose from" in lines[0]


def test_other_ranks_are_quiet(lines):
    read([6.9] * 40, [0.5] * 40, main=False)
    assert lines == []
