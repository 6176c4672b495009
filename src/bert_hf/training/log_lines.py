"""Writes the log of a run as plain lines, and the summary at its end."""

import sys
import time

from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback
from transformers.utils import logging

from bert_hf.console import logger

_LINES = 50  # of a run whose --logging_steps is not given


def choose_logging_steps(steps: int, default: float) -> float:
    """Steps between two lines of a run: the default, or less in a run so short that it would have few lines."""
    return min(default, max(1, steps // _LINES))


class LogLines(TrainerCallback):
    """Logs the metrics of a run as plain lines, where Trainer's own callback prints dicts of strings."""

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self._first_step = state.global_step  # of this process
        self._began = time.monotonic()

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:  # those are for the summary
            return
        line = f"step {state.global_step:,} of {state.max_steps:,}: {_metrics(logs)}"
        self.write(f"{line}; {self._time_left(state)}" if "loss" in logs else line)

    def _time_left(self, state) -> str:
        """`about 12 min left`, if the rest is as fast as the steps so far, evaluations included."""
        done = max(1, state.global_step - self._first_step)
        seconds = (time.monotonic() - self._began) / done * (state.max_steps - state.global_step)
        if seconds >= 5400:
            return f"about {seconds / 3600:.1f} h left"
        return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"

    def write(self, line: str) -> None:
        logger.info(line)


class LogLinesAboveBar(LogLines, ProgressCallback):
    """The same lines, written above the progress bar of a terminal."""

    def write(self, line: str) -> None:
        tqdm.write(line)


def _metrics(logs: dict) -> str:
    """`loss 6.512, learning_rate 0.0001, …` without run times."""
    left_out = ("_runtime", "_per_second", "flos")
    return ", ".join(f"{name} {value:.4g}" for name, value in logs.items() if not name.endswith(left_out))


def use_log_lines(trainer: Trainer) -> None:
    """Replaces Trainer's printing callback; progress bars are shown only in a terminal."""
    for kind in (PrinterCallback, ProgressCallback, LogLines):
        trainer.remove_callback(kind)
    bar = sys.stderr.isatty() and not trainer.args.disable_tqdm
    trainer.add_callback(LogLinesAboveBar() if bar else LogLines())
    if not bar:
        logging.disable_progress_bar()  # of transformers: writing and loading shards


def print_summary(trainer: Trainer) -> dict[str, float]:
    """Evaluates a trained model, and prints how long it trained and its held-out metrics.

    Returns:
        the metrics of the evaluation.
    """
    trained = next(row for row in reversed(trainer.state.log_history) if "train_runtime" in row)
    metrics = trainer.evaluate()
    if trainer.is_world_process_zero():
        minutes = trained["train_runtime"] / 60
        speed = trained.get("train_tokens_per_second")
        tokens = f", {speed:,.0f} tokens/s" if speed else ""
        print(f"trained: {trainer.state.global_step:,} steps in {minutes:.1f} min{tokens}")
        print(f"held out: {_metrics(metrics)}", flush=True)
    return metrics
