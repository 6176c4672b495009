"""Can a planned pre-training run learn at all: its warm-up, rate, batch, and number of predicted tokens.

Each limit below is a constant with its reason. What crosses one is reported before training and not refused: a test
of the machinery, or a run that continues from a good checkpoint, may mean it.
"""

from collections.abc import Iterator
from typing import NamedTuple

# Recipes of BERT warm up over 1 to 10 % of the steps. Beyond half, most steps are made at less than half the rate.
WARMUP_MOST = 0.5

# Adam changes a weight by about the rate in a step, whatever its gradient. Fresh weights have a standard deviation of
# 0.02, so a run whose rates sum to less cannot leave its random start.
MOVEMENT_LEAST = 0.02

# At 0.01 half of that standard deviation is one step. Measured with configs/pretrain/default.yaml: after 150 steps the
# held-out MLM loss was 6.49 at 0.01 and 6.48 at 0.03, above the unigram's 6.41, and 6.33 at its own 0.001.
RATE_MOST = 0.01

# The 2018 code trains with 32 sequences by default, the paper with 256 (A.2); its smallest, for fine-tuning, are 16.
BATCH_LEAST = 16

# An output embedding is pulled towards a token only where that token is to be predicted. Measured in the same way: the
# loss passed the unigram's between 100 and 125 steps, at 7 to 9 predictions for each entry of the vocabulary.
PREDICTIONS_LEAST = 7

ADAMS = ("adamw_torch", "adamw_torch_fused", "bert_adam", "muon")  # whose step is about the rate
WITHOUT_WARMUP = ("constant", "reduce_lr_on_plateau", "greedy")  # schedules that take no --warmup_steps


class PlannedLearning(NamedTuple):
    """What decides whether a run can learn."""

    steps: int
    batch: int  # sequences of the global batch
    warmup_steps: int
    schedule: str  # --lr_scheduler_type
    optimizer: str  # see optimization.optimizer_name
    rate: float  # peak
    predictions: float  # masked tokens of a step, about
    vocabulary: int  # entries
    from_scratch: bool


def examine_learning(planned: PlannedLearning) -> Iterator[tuple[str, str]]:
    """(what was seen, what to do about it, "" where nothing is)."""
    yield _warmup(planned)
    yield _rate(planned)
    yield _batch(planned)
    if planned.from_scratch:
        yield _predictions(planned)


def _warmup(planned: PlannedLearning) -> tuple[str, str]:
    if planned.schedule in WITHOUT_WARMUP:
        return f"the schedule {planned.schedule} has no warm-up", ""

    remedy = "give --warmup_steps as a share of the steps, as 0.01 (A.2)"
    if planned.warmup_steps >= planned.steps:
        reached = planned.rate * planned.steps / planned.warmup_steps
        text = f"{planned.warmup_steps:,} steps of warm-up in a run of {planned.steps:,}: the rate never passes "
        return text + f"{reached:.2g} of {planned.rate:.2g}", remedy

    text = f"{planned.warmup_steps:,} of {planned.steps:,} steps are warm-up"
    return text, remedy if planned.warmup_steps > WARMUP_MOST * planned.steps else ""


def _rate(planned: PlannedLearning) -> tuple[str, str]:
    text = f"the learning rate is {planned.rate:.2g}"
    if planned.rate == 0:
        return f"{text}: no weight changes", "give --learning_rate 1e-4 (A.2), or 1e-3 for a small model"
    if planned.optimizer not in ADAMS:
        return text, ""

    movement = planned.steps * planned.rate
    if planned.from_scratch and movement < MOVEMENT_LEAST:
        text += f": {planned.steps:,} steps change a weight by {movement:.2g} at most, and fresh ones spread by 0.02"
        return text, "give more steps or a higher --learning_rate"
    remedy = "lower it: token frequencies alone are learned at such a rate" if planned.rate >= RATE_MOST else ""
    return text, remedy


def _batch(planned: PlannedLearning) -> tuple[str, str]:
    text = f"an optimizer step has {planned.batch:,} sequences"
    few = planned.batch < BATCH_LEAST
    return text, "raise --per_device_train_batch_size or --gradient_accumulation_steps (A.2: 256)" if few else ""


def _predictions(planned: PlannedLearning) -> tuple[str, str]:
    each = planned.steps * planned.predictions / planned.vocabulary
    text = f"about {each:,.1f} tokens are predicted for each entry of the vocabulary"
    few = each < PREDICTIONS_LEAST
    return text, "train for more steps: token frequencies alone take as many" if few else ""
