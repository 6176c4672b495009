"""Positions in a run over numbered examples: which examples a rank trains on, which phase it is in, how many epochs.

A position is the number of examples that all ranks of the run have trained on.
"""

import itertools

from transformers import TrainingArguments

from bert_hf.data.examples.samplers import Phase, RunSampler, walk
from bert_hf.training.checkpoints import trainer_state
from bert_hf.training.checkpoints.trainer_state import rank_file


def describe_rows(sampler: RunSampler, args: TrainingArguments, begin: int, first: int, count: int) -> str:
    """Names examples of a rank's share of a step: it gets every `world_size`-th micro-batch of the run's sequence.

    Rank 1 of 2, micro-batches of 4 rows, a step that begins at position 100:

        row of its share   0    1    2    3    4    5  …
        position         104  105  106  107  112  113  …

    Args:
        sampler: of the run; it is moved.
        begin: position at which the step begins.
        first, count: rows of the share.
    """
    size = args.per_device_train_batch_size
    positions = []
    for row in range(first, first + count):
        micro_batch = row // size * args.world_size + args.process_index
        positions.append(begin + micro_batch * size + row % size)

    sampler.start = positions[0]
    numbers = itertools.islice(sampler, positions[-1] - positions[0] + 1)
    by_position = dict(enumerate(numbers, positions[0]))
    indices = ", ".join(str(by_position[position].index) for position in positions)
    phase, epoch, window, _ = by_position[positions[0]]
    return f"examples {indices} (phase {phase}, epoch {epoch}, window {window})"


def read_window_lengths(checkpoint: str, rank: int) -> dict[tuple, int]:
    """Numbers of examples of the windows that a checkpoint knows, which are the same on all ranks."""
    for file in (rank_file(checkpoint, rank), rank_file(checkpoint, 0)):
        if file.is_file():
            log = trainer_state.load_state(file)["log"]
            return {tuple(key): length for *key, length in log["window_lengths"]}
    return {}


def length_at(phases: tuple[Phase, ...], position: int) -> int:
    """Sequence length at a position."""
    return next(phase.max_seq_length for phase in phases if phase.end is None or position < phase.end)


def has_reached(phases: tuple[Phase, ...], length: int, position: int) -> bool:
    """True where the phase at a position or an earlier one has sequences of that length."""
    begins = (0, *(phase.end for phase in phases if phase.end is not None))
    return any(
        phase.max_seq_length >= length and position >= begin for phase, begin in zip(phases, begins, strict=False)
    )


def epochs_done(dataset, position: int) -> float:
    """Passes over the text; Trainer's own count restarts when a run does."""
    windows = walk(dataset.phases, dataset.window_length, position)
    return sum(taken / length / dataset.window_count(*place[:2]) for place, taken, length in windows)
