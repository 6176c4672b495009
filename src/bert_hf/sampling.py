"""The order of examples: a position in the run → (phase, epoch, index), and the random generator that is theirs.

An example is a function of (seed, epoch, index) and of nothing else: not of batch, worker, rank, prefetch or resume.
Everything random about it is drawn from `generator(seed, …)`, a counter-based generator (Philox; Salmon et al. 2011,
"Parallel random numbers: as easy as 1, 2, 3") that needs no history.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from torch.utils.data import Sampler

# What a generator is for. A purpose is part of its key, so that no two draws share a stream.
ORDER, PLAN, MASK = 1, 2, 3


class ExampleNumber(NamedTuple):
    """Names one example of a run."""

    phase: int  # which sequence length: an index into the run's phases
    epoch: int  # pass over the corpus within the phase
    index: int  # which example of that epoch


class Phase(NamedTuple):
    """A stretch of the run at one sequence length."""

    max_seq_length: int  # tokens
    end: int | None  # position (examples from the start of the run) where the next phase begins; None: never


def generator(seed: int, purpose: int, phase: int, epoch: int, index: int = 0) -> np.random.Generator:
    """The random generator keyed by its arguments: equal arguments, equal draws, on any machine."""
    key = (np.uint64(seed & 0xFFFFFFFFFFFFFFFF), np.uint64((purpose << 56) | (phase << 48) | epoch))
    # The counter's two upper words hold the index: 2^64 blocks of draws lie between neighbouring examples.
    return np.random.Generator(np.random.Philox(key=np.array(key), counter=np.array([0, 0, index, 0], np.uint64)))


def two_phases(max_seq_length: int, long_seq_length: int | None, boundary: int | None) -> tuple[Phase, ...]:
    """The paper's two lengths (A.2: 128 for 90 % of the steps, then 512), or one where there is no second."""
    if long_seq_length is None or boundary is None:
        return (Phase(max_seq_length, None),)
    return (Phase(max_seq_length, boundary), Phase(long_seq_length, None))


class RunSampler(Sampler[ExampleNumber]):
    """All examples of a run in order, starting anywhere.

    Its length is that of the whole run and does not shrink when it starts late: transformers' Trainer then sees one
    epoch of `total` examples, and going on from position N costs no skipping.

    Args:
        phases: the run's phases; only the last has no end.
        epoch_length: (phase, epoch) → number of examples. It may depend on the run's seed, and on nothing else.
        total: examples in the run.
        seed: seed of the run.
        start: examples already consumed by the whole run (all ranks).
    """

    def __init__(
        self,
        phases: tuple[Phase, ...],
        epoch_length: Callable[[int, int], int],
        total: int,
        seed: int,
        start: int = 0,
    ):
        self.phases, self.epoch_length, self.total, self.seed, self.start = phases, epoch_length, total, seed, start

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[ExampleNumber]:
        position, begin = self.start, 0
        for number, phase in enumerate(self.phases):
            end = self.total if phase.end is None else min(phase.end, self.total)
            epoch_begin, epoch = begin, 0
            while position < end:
                length = self.epoch_length(number, epoch)
                if position < epoch_begin + length:
                    order = generator(self.seed, ORDER, number, epoch).permutation(length)
                    for index in order[position - epoch_begin : end - epoch_begin].tolist():
                        yield ExampleNumber(number, epoch, index)
                    position = min(end, epoch_begin + length)
                epoch_begin, epoch = epoch_begin + length, epoch + 1
            begin = end
