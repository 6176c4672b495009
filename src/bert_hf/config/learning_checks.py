"""Checks whether a planned pre-training run can learn at all: its warm-up, rate, batch, and number of predictions.

Each limit below is a constant with its reason. A value beyond a limit is reported before training and not refused: it
may be intended, as in a quick test of the code or in a run that continues from a good checkpoint.
"""

from collections.abc import Iterator
from typing import NamedTuple

# "Measured" below: version 0.1 of `configs/pretrain/default.yaml` (AdamW) with the option named and fewer steps,
# on 2 cores of an Intel Xeon (Cascade Lake, fp32, torch 2.13.0): held-out MLM loss on 400 pairs, of which token
# frequencies alone (unigram) reach 6.41.

# Published recipes of BERT warm up over 1 to 10 % of the steps. Beyond half, the average rate is below half the peak.
MAX_WARMUP_SHARE = 0.5

# Adam changes a weight by about the rate in a step, whatever its gradient. So a run whose rates sum to less than this
# share of the standard deviation of initial weights stays close to them. Measured: 150 steps at 1e-5 reduce the loss
# from 9.17 to 8.96.
MIN_TOTAL_MOVEMENT = 1.0

# Measured: runs of 150 steps end at 6.49 with a rate of 0.01 and at 6.48 with 0.03; with 0.001 the 150th step of 300
# is at 6.33.
MAX_RATE = 0.01

# Measured, at a rate of 0.001: with one sequence a step the loss is above unigram after 1,500 steps (6.43); with two
# it is below after 800 (6.37), with four and eight earlier.
MIN_BATCH_SIZE = 2

# The output embedding of a token improves only where that token is to be predicted. Measured: no run was better than
# unigram before 2.8 predictions for each entry of the vocabulary (with batches of 2 and 4; at 7 to 9 with 32).
MIN_PREDICTIONS_PER_PIECE = 3

ADAMS = ("adamw_torch", "adamw_torch_fused", "bert_adam", "muon")  # whose step is about the rate
WITHOUT_WARMUP = ("constant", "reduce_lr_on_plateau", "greedy")  # schedules that take no --warmup_steps


class LearningSettings(NamedTuple):
    """The settings that decide whether a run can learn."""

    steps: int
    batch: int  # sequences of the global batch
    warmup_steps: int
    schedule: str  # --lr_scheduler_type
    optimizer: str  # see optimization.optimizer_name
    rate: float  # peak
    predictions: float  # masked tokens of a step, about
    vocabulary: int  # entries
    spread: float  # standard deviation of initial weights
    from_scratch: bool = True


def examine_learning(planned: LearningSettings) -> Iterator[tuple[str, str]]:
    """(finding, remedy) of each check; the remedy is "" if the finding is good."""
    yield _warmup(planned)
    yield _rate(planned)
    yield _batch(planned)
    if planned.from_scratch:
        yield _predictions(planned)


def _warmup(planned: LearningSettings) -> tuple[str, str]:
    if planned.schedule in WITHOUT_WARMUP:
        return f"the schedule {planned.schedule} has no warm-up", ""

    remedy = "give --warmup_steps as a share of the steps, as 0.01 (A.2)"
    if planned.warmup_steps >= planned.steps:
        reached = planned.rate * planned.steps / planned.warmup_steps
        text = f"{planned.warmup_steps:,} steps of warm-up in a run of {planned.steps:,}: the rate never passes "
        return text + f"{reached:.2g} of {planned.rate:.2g}", remedy

    text = f"{planned.warmup_steps:,} of {planned.steps:,} steps are warm-up"
    return text, remedy if planned.warmup_steps > MAX_WARMUP_SHARE * planned.steps else ""


def _rate(planned: LearningSettings) -> tuple[str, str]:
    text = f"the learning rate is {planned.rate:.2g}"
    if planned.rate == 0:
        return f"{text}: no weight changes", "give --learning_rate 1e-4 (A.2), or 1e-3 for a small model"
    if planned.optimizer not in ADAMS:
        return text, ""

    movement = planned.steps * planned.rate
    if planned.from_scratch and movement < MIN_TOTAL_MOVEMENT * planned.spread:
        text += (
            f": {planned.steps:,} steps change a weight by about {movement:.2g} at most, and initial weights have a "
            f"standard deviation of {planned.spread:.2g}"
        )
        return text, "give more steps or a higher --learning_rate"
    remedy = "lower it: token frequencies alone are learned at such a rate" if planned.rate >= MAX_RATE else ""
    return text, remedy


def _batch(planned: LearningSettings) -> tuple[str, str]:
    text = f"the global batch is {planned.batch:,}"
    few = planned.batch < MIN_BATCH_SIZE
    return text, "raise --per_device_train_batch_size or --gradient_accumulation_steps (A.2: 256)" if few else ""


def _predictions(planned: LearningSettings) -> tuple[str, str]:
    each = planned.steps * planned.predictions / planned.vocabulary
    text = f"about {each:,.1f} tokens are predicted for each entry of the vocabulary"
    few = each < MIN_PREDICTIONS_PER_PIECE
    return text, "train for more steps: token frequencies alone take as many" if few else ""
