"""Warns during pre-training where the loss curve shows a known problem.

Three problems are detected: a masked-LM loss that stays near that of unigram frequencies, next-sentence prediction
that stays at chance, and a spike of the loss. Each is reported once, with what usually helps.
"""

import math
import statistics
from collections import deque

from transformers import TrainerCallback

from bert_hf.console import logger

# The plateau of configs/README.md: a BERT that has learned little but frequencies is 0.1 to 0.7 nats below unigram.
_PLATEAU_BELOW = 0.8  # nats
_PLATEAU_FALLS = 0.15  # nats, from the first half of the lines to the second: less is flat
_PLATEAU_AFTER = 0.25  # share of the steps within which a run may still be on it
_PLATEAU_LINES = 10  # lines of the log over which the loss is averaged
_CHANCE_AFTER = 0.5  # share of the steps
_CHANCE_ERRORS = 3.0  # standard errors above one half
_SPIKE = 1.0  # nats above the mean of the lines before
_SPIKE_LINES = 5


class CurveReader(TrainerCallback):
    """Warns once for each problem that it finds in the training log.

    Args:
        unigram_mlm_loss: nats a token, of unigram frequencies on the held-out examples.
        global_batch: pairs in an optimizer step.
    """

    def __init__(self, unigram_mlm_loss: float, global_batch: int):
        self.unigram_mlm_loss = unigram_mlm_loss
        self.global_batch = global_batch
        self._mlm: deque[float] = deque(maxlen=_PLATEAU_LINES)
        self._nsp: deque[float] = deque(maxlen=_PLATEAU_LINES)
        self._last_step = 0
        self._pairs = 0  # in each line of the log
        self._reported: set[str] = set()

    def on_log(self, args, state, control, logs: dict | None = None, **kwargs) -> None:
        if not state.is_world_process_zero or not logs or "mlm_loss" not in logs:
            return
        self._pairs = (state.global_step - self._last_step) * self.global_batch
        self._last_step = state.global_step

        self._check_spike(state.global_step, logs["mlm_loss"])
        self._mlm.append(logs["mlm_loss"])
        if "nsp_accuracy" in logs:
            self._nsp.append(logs["nsp_accuracy"])

        done = state.global_step / max(1, state.max_steps)
        self._check_plateau(state.global_step, done)
        self._check_chance(state.global_step, done)

    def _report(self, problem: str, line: str) -> None:
        if problem not in self._reported:
            self._reported.add(problem)
            logger.warning(f"! {line}")

    def _check_spike(self, step: int, loss: float) -> None:
        before = list(self._mlm)[-_SPIKE_LINES:]
        if len(before) < _SPIKE_LINES or not math.isfinite(loss):
            return
        mean = statistics.fmean(before)
        if loss > mean + _SPIKE:
            self._report(
                "spike",
                f"step {step:,}: the MLM loss rose from {mean:.2f} to {loss:.2f}. If it does not come back within "
                "some hundred steps: a lower --learning_rate, a longer --warmup_steps, or an older checkpoint",
            )

    def _check_plateau(self, step: int, done: float) -> None:
        if len(self._mlm) < _PLATEAU_LINES or done < _PLATEAU_AFTER:
            return

        lines = list(self._mlm)
        half = _PLATEAU_LINES // 2
        earlier = statistics.median(lines[:half])  # a spike moves no median
        later = statistics.median(lines[half:])
        if later > self.unigram_mlm_loss - _PLATEAU_BELOW and earlier - later < _PLATEAU_FALLS:
            self._report(
                "plateau",
                f"step {step:,} ({done:.0%} of the run): the MLM loss, {later:.2f}, stays near that of unigram "
                f"frequencies ({self.unigram_mlm_loss:.2f}): hardly any context is used yet. What usually helps: "
                "--optim muon, more steps of smaller batches, shorter sequences first, more tokens",
            )

    def _check_chance(self, step: int, done: float) -> None:
        if len(self._nsp) < _PLATEAU_LINES or done < _CHANCE_AFTER:
            return
        mean = statistics.fmean(self._nsp)
        error = math.sqrt(0.25 / max(1, self._pairs * len(self._nsp)))
        if mean < 0.5 + _CHANCE_ERRORS * error:
            self._report(
                "chance",
                f"step {step:,} ({done:.0%} of the run): next-sentence accuracy is {mean:.3f}, which is chance. "
                "It begins to be learned after the MLM loss leaves its plateau; more tokens help",
            )
