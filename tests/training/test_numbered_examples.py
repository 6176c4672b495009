"""Positions in a run over numbered examples."""

from types import SimpleNamespace

import pytest

from bert_hf.data.examples.samplers import Phase, RunSampler
from bert_hf.training.numbered_examples import describe_rows, has_reached, length_at

PHASES = (Phase(32, 100), Phase(64, None))


def test_the_worked_example():
    """Rank 1 of 2, micro-batches of 4 rows, a step that begins at position 100."""
    sampler = RunSampler((Phase(32, None),), lambda phase, epoch, window: 1000 if window == 0 else None, 200, seed=5)
    numbers = [number.index for number in sampler]
    args = SimpleNamespace(per_device_train_batch_size=4, world_size=2, process_index=1)
    line = describe_rows(sampler, args, begin=100, first=2, count=4)
    expected = ", ".join(str(numbers[position]) for position in (106, 107, 112, 113))
    assert line == f"examples {expected} (phase 0, epoch 0, window 0)"


@pytest.mark.parametrize(("position", "length"), [(0, 32), (99, 32), (100, 64), (10**9, 64)])
def test_the_length_at_a_position(position, length):
    assert length_at(PHASES, position) == length


@pytest.mark.parametrize(
    ("length", "position", "reached"), [(32, 0, True), (64, 99, False), (64, 100, True), (128, 10**9, False)]
)
def test_whether_a_length_is_reached(length, position, reached):
    assert has_reached(PHASES, length, position) is reached
