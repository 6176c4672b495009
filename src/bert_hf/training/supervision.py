"""Ends a training run that was asked to end, or that lost one of its processes, with one line.

Hangs are the engine's business: torch's timeouts (`--ddp_timeout`), torchelastic, and the job scheduler.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch.distributed as dist
from transformers import TrainerCallback, TrainingArguments

from bert_hf.errors import BAD_INPUT, STOPPED, UNAVAILABLE, RunInterrupted, error_line, first_line
from bert_hf.training import preemption
from bert_hf.training.distributed import Ranks


class TrainerEvents(TrainerCallback):
    """Calls back when training begins; remembers whether the end of the epoch was reported.

    Args:
        on_begin: called when everything is built and no step has been made.
    """

    def __init__(self, on_begin: Callable[[], None]):
        self.on_begin = on_begin
        self.epoch_is_over = False

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.on_begin()

    def on_epoch_begin(self, args, state, control, **kwargs) -> None:
        self.epoch_is_over = False

    def on_epoch_end(self, args, state, control, **kwargs) -> None:
        self.epoch_is_over = True


class Supervisor:
    """Defers signals to the end of a step, and turns the loss of a process into one line.

    Args:
        folder: the run's output folder.
        current_step: number of finished optimizer steps.
    """

    def __init__(self, args: TrainingArguments, folder: Path, ranks: Ranks, current_step: Callable[[], int]):
        self._args = args
        self._folder = folder
        self._ranks = ranks
        self._current_step = current_step

    @contextlib.contextmanager
    def supervise(self) -> Iterator[None]:
        """Inside, a run trains. Entered by all ranks."""
        with preemption.defer_signals(), self.explain_errors():
            yield

    def shutdown_requested(self) -> bool:
        """True on all ranks where one of them was asked to end. Called by all of them."""
        return self._ranks.any(preemption.shutdown_requested() is not None)

    def interruption(self, saved: bool) -> RunInterrupted:
        """The exception that ends a run after the current step. `saved`: that step is in a checkpoint."""
        reason = preemption.shutdown_requested() or "another rank was asked to"
        step = self._current_step()

        if saved:
            then = f"after step {step}, which is saved in {self._folder}/checkpoint-{step}; "
            then += "the same command resumes from it"
        else:
            then = "before the first step; the same command starts from the beginning"
        return RunInterrupted(f"{reason}, {then}", STOPPED)

    @contextlib.contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Turns a lost worker process, a lost rank, and any error that has a line of its own on another rank than 0,
        into `RunInterrupted`."""
        try:
            yield
        except Exception as error:
            explained = self._explain(error)
            if explained is None:
                raise
            raise explained from None

    def _explain(self, error: Exception) -> RunInterrupted | None:
        rank, step = self._ranks.rank, self._current_step()
        resumes = f"after step {step}; the same command resumes from the newest checkpoint"

        line = error_line(error)
        if rank and line is not None:  # rank 0 prints the line of its own errors
            return RunInterrupted(f"rank {rank}: {line}", BAD_INPUT, report=True)
        if _is_lost_worker(error, self._args.dataloader_num_workers):
            text = f"a DataLoader worker was killed (out of memory?), {resumes}"
            return RunInterrupted(text, UNAVAILABLE, report=True)
        if self._ranks.count > 1 and step and _is_lost_connection(error):
            text = f"rank {rank} lost its connection to another rank ({first_line(error)[:200]}), {resumes}"
            return RunInterrupted(text, UNAVAILABLE, report=True)
        return None


def _is_lost_worker(error: Exception, workers: int) -> bool:
    """True where a data loader's worker died: torch noticed it, or the pipe to the worker is broken."""
    text = str(error)
    noticed = "DataLoader worker" in text and ("exited unexpectedly" in text or "killed by signal" in text)
    return noticed or (workers > 0 and isinstance(error, ConnectionError | EOFError))


def _is_lost_connection(error: Exception) -> bool:
    text = str(error)
    named = any(word in text for word in ("gloo", "Connection", "NCCL"))
    return isinstance(error, RuntimeError) and (named or isinstance(error, dist.DistError))
