import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler, prepare_data_loader, skip_first_batches
from torch.utils.data import BatchSampler, DataLoader

from bert_hf.data.examples.samplers import (
    MASK,
    ORDER,
    ExampleNumber,
    Phase,
    RunSampler,
    generator,
    length_at,
    phases_of_run,
    set_epoch,
    windows_of_run,
)


def length(phase: int, epoch: int, window: int) -> int | None:
    """Two windows an epoch, of lengths that change."""
    return 5 + 3 * phase + epoch % 2 + window if window < 2 else None


def sampler(start=0, total=100):
    return RunSampler(phases_of_run([(128, 0.6), (512, 0.4)], 10, 10), length, total, seed=7, start=start)


def test_every_epoch_is_a_permutation():
    numbers = list(sampler())
    assert len(numbers) == 100
    for key in {(n.phase, n.epoch, n.window) for n in numbers}:
        indices = [n.index for n in numbers if (n.phase, n.epoch, n.window) == key]
        assert len(indices) == len(set(indices))
        assert set(indices) <= set(range(length(*key)))
    first, second = ([n for n in numbers if (n.phase, n.epoch) == (0, epoch)] for epoch in (0, 2))
    assert sorted(first) == [ExampleNumber(0, 0, w, i) for w in range(2) for i in range(length(0, 0, w))]
    assert [n.window for n in first] == [0] * 5 + [1] * 6  # one window after the other
    assert [n.index for n in first] != [n.index for n in second]


def test_the_second_phase_begins_at_its_boundary():
    numbers = list(sampler())
    assert [n.phase for n in numbers] == [0] * 60 + [1] * 40


def test_example_of_a_walk():
    def window_length(phase: int, epoch: int, window: int) -> int | None:
        return (4, 2)[window] if window < 2 else None

    assert list(windows_of_run((Phase(128, 7), Phase(512, None)), window_length, 12)) == [
        ((0, 0, 0), 4, 4),
        ((0, 0, 1), 2, 2),
        ((0, 1, 0), 1, 4),
        ((1, 0, 0), 4, 4),
        ((1, 0, 1), 1, 2),
    ]


@pytest.mark.parametrize("start", [1, 10, 59, 60, 61, 99, 100])
def test_a_sampler_that_starts_late_gives_the_same_remainder(start):
    assert list(sampler(start)) == list(sampler())[start:]
    assert len(sampler(start)) == 100  # the length of the run, not of the remainder


@pytest.mark.parametrize("start", [0, 60])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_each_rank_is_given_the_batches_that_accelerate_deals_it(start, ranks):
    total = 60 * ranks
    for rank in range(ranks):
        share = RunSampler(PHASES, length, total, 7, start, rank=rank, ranks=ranks, batch_size=5)
        whole = BatchSampler(RunSampler(PHASES, length, total, 7, start), 5, drop_last=False)
        dealt = BatchSamplerShard(whole, ranks, rank)
        assert list(BatchSampler(share, 5, drop_last=False)) == list(dealt)
        assert len(share) == 5 * len(BatchSamplerShard(BatchSampler(range(total), 5, False), ranks, rank))


def test_a_generator_is_a_function_of_its_key():
    draws = generator(1, MASK, 0, 3, 2, 5).random(4)
    assert (draws == generator(1, MASK, 0, 3, 2, 5).random(4)).all()
    others = [(2, MASK, 0, 3, 2, 5), (1, ORDER, 0, 3, 2, 5), (1, MASK, 1, 3, 2, 5), (1, MASK, 0, 4, 2, 5)]
    others += [(1, MASK, 0, 3, 1, 5), (1, MASK, 0, 3, 2, 6)]
    for other in others:
        assert not np.isin(draws, generator(*other).random(1000)).any()


def test_a_run_may_have_three_phases():
    lengths = [(32, 0.25), (64, 0.5), (128, 0.25)]
    expected = (Phase(32, 20), Phase(64, 60), Phase(128, None))
    assert phases_of_run(lengths, steps=10, global_batch=8) == (Phase(32, 16), Phase(64, 64), Phase(128, None))
    assert phases_of_run(lengths, steps=20, global_batch=4) == expected

    # A share that is too small for one step.
    assert phases_of_run([(32, 0.01), (64, 0.99)], steps=10, global_batch=8) == (Phase(64, None),)


PHASES = (Phase(32, 100), Phase(64, None))


@pytest.mark.parametrize(("position", "length"), [(0, 32), (99, 32), (100, 64), (10**9, 64)])
def test_the_length_at_a_position(position, length):
    assert length_at(PHASES, position) == length


def test_a_run_on_two_ranks_that_is_resumed_within_an_epoch_keeps_its_order():
    def loader():
        sampler = SeedableRandomSampler(data_source=range(80), generator=torch.Generator(), data_seed=1)
        rows = DataLoader(range(80), batch_size=4, sampler=sampler)  # pyright: ignore
        return prepare_data_loader(rows, num_processes=2, process_index=1, put_on_device=False)

    whole, resumed = loader(), loader()
    whole.set_epoch(2)
    set_epoch(resumed.batch_sampler, 2)
    rest = skip_first_batches(resumed, 3)
    rest.set_epoch(2)  # as Trainer does, which reaches no sampler here
    batches = [batch.tolist() for batch in whole]
    assert len(batches) == 10
    assert [batch.tolist() for batch in rest] == batches[3:]
    assert [batch.tolist() for batch in skip_first_batches(loader(), 3)] != batches[3:]  # epoch 0
