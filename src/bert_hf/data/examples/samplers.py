"""Decides the order of a run's examples, and gives each example its own random generator.

An example is a function of the seed and its number only, not of batch, worker, rank, prefetch or resume: its draws
come from a counter-based generator, which needs no history (Philox; Salmon et al. 2011, "Parallel random numbers: as
easy as 1, 2, 3").
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch.utils.data import Sampler

# Purposes of a generator. The purpose is part of its key, so that no two kinds of draws share a stream.
ORDER, PLAN, MASK, WINDOWS = 1, 2, 3, 4

T = TypeVar("T")
WindowAddress = tuple[int, int, int]  # phase, epoch, window
WindowLength = Callable[[int, int, int], int | None]  # (phase, epoch, window) → examples; None: no such window


class ExampleNumber(NamedTuple):
    """Address of one example in a run."""

    phase: int  # which sequence length: an index into the run's phases
    epoch: int  # pass over the corpus within the phase
    window: int  # which of the epoch's windows: the shards that are open together
    index: int  # pyright: ignore[reportIncompatibleMethodOverride] - which example of that window; hides tuple.index


class Phase(NamedTuple):
    """A part of the run whose examples have one sequence length."""

    max_seq_length: int  # tokens, special tokens included
    end: int | None  # examples from the start of the run to the end of this phase; None: to the end of the run


def generator(seed: int, purpose: int, phase: int, epoch: int, window: int = 0, index: int = 0) -> np.random.Generator:
    """Return a counter-based generator keyed by the arguments (`purpose`: `ORDER`, …): the same draws everywhere."""
    # Two words of 64 bits; the upper bits of the second hold purpose and phase, the lower 48 the epoch.
    key = np.array([seed & 0xFFFFFFFFFFFFFFFF, (purpose << 56) | (phase << 48) | epoch], np.uint64)

    # The counter's upper words hold window and index: 2^128 blocks of draws lie between neighbouring examples.
    counter = np.array([0, 0, index, window], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def phases_of_run(lengths: list[tuple[int, float]], steps: int, global_batch: int) -> tuple[Phase, ...]:
    """Return the phases of a run of `steps` optimizer steps; `lengths` are (sequence length, share of the steps).

    The paper trains 90 % of the steps at 128 tokens and the rest at 512 (A.2):

        >>> phases_of_run([(128, 0.9), (512, 0.1)], steps=100, global_batch=8)
        (Phase(max_seq_length=128, end=720), Phase(max_seq_length=512, end=None))

    A phase that gets no step is left out. The global batch is the same in all phases.
    """
    phases = []
    done = 0.0
    begin = 0
    for max_seq_length, share in lengths:
        done += share
        end = round(steps * done)
        if end > begin:
            phases.append(Phase(max_seq_length, end * global_batch))
        begin = end

    return (*phases[:-1], phases[-1]._replace(end=None))


def windows_of_run(
    phases: tuple[Phase, ...], window_length: WindowLength, total: int
) -> Iterator[tuple[WindowAddress, int, int]]:
    """Yield the windows of a run of `total` examples: ((phase, epoch, window), examples taken of it, its length).

    `window_length(phase, epoch, window)` is None where the epoch has no such window: the next epoch begins.

    Example: 12 examples, the first phase ends at 7, and every epoch has two windows, of 4 and 2 examples.
        phase 0, epoch 0: (0, 0, 0) gives 4 of 4 and (0, 0, 1) 2 of 2; there is no window 2
        phase 0, epoch 1: (0, 1, 0) gives 1 of 4, and the phase ends at 7
        phase 1, epoch 0: (1, 0, 0) gives 4 of 4 and (1, 0, 1) 1 of 2, and the run ends at 12
    """
    begin = 0
    for number, phase in enumerate(phases):
        end = total if phase.end is None else min(phase.end, total)
        epoch = window = 0
        while begin < end:
            length = window_length(number, epoch, window)
            if length is None:
                epoch, window = epoch + 1, 0
                continue

            taken = min(length, end - begin)
            yield (number, epoch, window), taken, length
            begin += taken
            window += 1


def length_at(phases: tuple[Phase, ...], position: int) -> int:
    """Return the sequence length after `position` examples of the run, over all ranks."""
    return next(phase.max_seq_length for phase in phases if phase.end is None or position < phase.end)


def epochs_done(examples: Any, position: int) -> float:
    """Return the passes over the text in a run's first `position` examples. (Trainer counts anew after a resume.)"""
    windows = windows_of_run(examples.phases, examples.window_length, position)
    return sum(taken / length / examples.window_count(phase, epoch) for (phase, epoch, _), taken, length in windows)


def set_epoch(batch_sampler: Any, epoch: int) -> None:
    """Pass the number of an epoch to a batch sampler and to all that it wraps.

    accelerate looks three levels deep; on several ranks a run that is resumed within an epoch has a fourth.
    """
    while batch_sampler is not None:
        if hasattr(batch_sampler, "set_epoch"):
            batch_sampler.set_epoch(epoch)
        batch_sampler = getattr(batch_sampler, "batch_sampler", getattr(batch_sampler, "sampler", None))


def one_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield the items of an iterator, none of them None; a thread makes each while the one before it is used."""
    with ThreadPoolExecutor(1) as thread:
        upcoming = thread.submit(next, items, None)
        while (item := upcoming.result()) is not None:
            upcoming = thread.submit(next, items, None)
            yield item


@dataclass(eq=False)
class RunSampler(Sampler[ExampleNumber]):
    """The examples of a run that one rank trains on, in order, starting anywhere.

    Ranks take turns, a micro-batch at a time, and each makes only its own numbers. The next window is prepared in a
    thread. The length counts the whole run, also where it starts late: transformers' Trainer then sees one epoch of
    `total` examples, and resuming at position N reads none of the N examples before it.
    """

    phases: tuple[Phase, ...]
    window_length: WindowLength  # (phase, epoch, window) → examples or None; depends on the run's seed only
    total: int  # examples in the run, over all ranks
    seed: int
    start: int = 0  # examples that the run has consumed, over all ranks
    rank: int = 0
    ranks: int = 1
    batch_size: int = 1  # of a micro-batch

    def __len__(self) -> int:
        return self.total // self.ranks

    def __iter__(self) -> Iterator[ExampleNumber]:
        for (phase, epoch, window), own_indices in one_ahead(self._windows()):
            for index in own_indices:
                yield ExampleNumber(phase, epoch, window, int(index))

    def _windows(self) -> Iterator[tuple[WindowAddress, np.ndarray]]:
        """Yield (phase, epoch, window) of each window from `start` on, and the indices of this rank's examples."""
        begin = 0  # position of the window's first example in the run
        for address, taken, length in windows_of_run(self.phases, self.window_length, self.total):
            end = begin + taken
            if self.start < end:
                order = generator(self.seed, ORDER, *address).permutation(length)
                own_positions = self._own_positions(max(self.start, begin), end)
                yield address, order[own_positions - begin]
            begin = end

    def _own_positions(self, first: int, end: int) -> np.ndarray:
        """Return the positions in [first, end) that this rank trains on.

        Example: rank 1 of 2, micro-batches of 3, a run that starts at 0. In [4, 16) it has 4, 5 and 9, 10, 11 and 15.
        """
        turn = self.batch_size * self.ranks
        turns = np.arange(first - (first - self.start) % turn, end, turn)  # where each turn begins
        own = turns[:, None] + self.rank * self.batch_size + np.arange(self.batch_size)
        return own[(own >= first) & (own < end)]
