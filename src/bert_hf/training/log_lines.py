"""Writes the log of a run as plain lines, and the summary at its end."""

import re
import time

from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback
from transformers.utils import logging

from bert_hf.console import logger

TIMES = ("_runtime", "_per_second", "_preparation_time")  # endings of metrics that differ between equal runs


class LogLines(TrainerCallback):
    """Log a run as aligned lines; the learning rate, the gradient norm and the rest are in `log_history.csv`.

    step  500 of 1,500  loss  6.512  MLM accuracy 0.071  NSP accuracy 0.514   3,021 tokens/s  about 4 min left
    eval  500 of 1,500  loss  6.435  MLM loss  5.743  NSP loss  0.692  MLM accuracy 0.083  NSP accuracy 0.521
    """

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self._first_step = state.global_step  # of this process
        self._began = time.monotonic()
        self._training = True

    def on_train_end(self, args, state, control, **kwargs) -> None:
        self._training = False

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        in_training = state.global_step > 0 and self._training  # before and after it the command reports
        if not (in_training and state.is_world_process_zero and logs):
            return
        steps = f"{state.max_steps:,}"
        progress = f"{state.global_step:{len(steps)},} of {steps}"
        if "loss" in logs:
            logger.info(f"step {progress}  {_training_columns(logs)}  about {self._time_left(state)} left")
        elif "train_runtime" not in logs:  # the totals of the run: `trained_line` reports them
            logger.info(f"eval {progress}  {format_metrics(logs)}")

    def _time_left(self, state) -> str:
        """Return the time that the remaining steps take, as `12 min`, at the speed of this process's steps."""
        steps_done = max(1, state.global_step - self._first_step)
        seconds_per_step = (time.monotonic() - self._began) / steps_done
        return _format_duration(seconds_per_step * (state.max_steps - state.global_step))


def _format_duration(seconds: float) -> str:
    """Return a duration as `45 s`, `12 min` or `1.6 h`."""
    if seconds >= 1.5 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _training_columns(logs: dict) -> str:
    """Return the columns of a training line: the loss, the accuracies, and the speed or the epoch."""
    names = [name for name in logs if name == "loss" or name.endswith("accuracy")]
    if (speed := logs.get("train_tokens_per_second")) is not None:
        pace = f"{speed:7,.0f} tokens/s"
    else:
        pace = f"epoch {logs.get('epoch', 0):.2f}"
    return f"{format_metrics({name: logs[name] for name in names})}  {pace}"


def format_metrics(metrics: dict) -> str:
    """Return metrics as `loss  6.435  MLM loss  5.743  MLM accuracy 0.083`: losses first, no times, no epoch."""
    names = [name for name in metrics if not name.endswith((*TIMES, "_tokens_seen", "epoch"))]

    columns = []
    for name in sorted(names, key=lambda name: not name.endswith("loss")):
        width = 6 if name.endswith("loss") else 5  # a loss may be 10 or more
        columns.append(f"{metric_label(name)} {metrics[name]:{width}.3f}")
    return "  ".join(columns)


def metric_label(name: str) -> str:
    """Return the name of a metric in words: `MLM loss` for `eval_mlm_loss`."""
    label = name.removeprefix("eval_").replace("_", " ")
    return re.sub(r"\b(mlm|nsp|f1)\b", lambda match: match[0].upper(), label)


def trained_line(steps: int, trained: dict) -> str:
    """Return `trained: 1,500 steps, 3 min since the last start, 41,000 tokens/s`; `trained`: metrics of `train`."""
    text = f"trained: {steps:,} steps, {_format_duration(trained['train_runtime'])} since the last start"
    if "train_tokens_per_second" in trained:
        text += f", {trained['train_tokens_per_second']:,.0f} tokens/s"
    return text


def use_log_lines(trainer: Trainer) -> None:
    """Replace Trainer's printing callback and progress bar with `LogLines`; disable transformers' other bars."""
    for callback_class in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback_class)
    trainer.add_callback(LogLines())
    logging.disable_progress_bar()  # of writing and loading shards
