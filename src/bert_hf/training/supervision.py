"""Ends a training run that was asked to end, in which nothing makes progress, or that lost one of its processes."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch.distributed as dist
from transformers import TrainerCallback, TrainingArguments

from bert_hf import progress
from bert_hf.console import logger
from bert_hf.errors import BAD_INPUT, STOPPED, UNAVAILABLE, RunInterrupted, error_line, first_line
from bert_hf.training import preemption
from bert_hf.training.distributed import Ranks
from bert_hf.training.watchdog import HANG_RECORD, STALL_TIMEOUT, Watchdog


class EvaluationInterrupted(Exception):
    """Leaves an evaluation during which the run was asked to end; it is repeated when the run resumes."""


class TrainerEvents(TrainerCallback):
    """Calls back when training begins and after each batch of an evaluation; remembers whether the epoch has ended.

    Args:
        on_begin: called when everything is built and no step has been made.
        after_evaluation_batch: called after each batch of an evaluation.
    """

    def __init__(self, on_begin: Callable[[], None], after_evaluation_batch: Callable[[], None]):
        self.on_begin = on_begin
        self.after_evaluation_batch = after_evaluation_batch
        self.epoch_is_over = False

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.on_begin()

    def on_prediction_step(self, args, state, control, **kwargs) -> None:
        self.after_evaluation_batch()

    def on_epoch_begin(self, args, state, control, **kwargs) -> None:
        self.epoch_is_over = False

    def on_epoch_end(self, args, state, control, **kwargs) -> None:
        self.epoch_is_over = True


class Supervisor:
    """Watches over a training run.

    Signals are deferred to the end of a step, a watchdog ends a run without progress, and the loss of a worker process
    or of a connection between ranks becomes one line.

    Args:
        folder: the run's output folder.
        current_step: number of finished optimizer steps.
    """

    def __init__(self, args: TrainingArguments, folder: Path, ranks: Ranks, current_step: Callable[[], int]):
        self._args = args
        self._folder = folder
        self._ranks = ranks
        self._current_step = current_step
        self._watchdog: Watchdog | None = None  # while the run trains
        self.worker_progress: tuple | None = None  # where data loader workers count their progress

    @contextlib.contextmanager
    def supervise(self) -> Iterator[None]:
        """Inside, a run trains. Entered by all ranks."""
        watchdog = self._make_watchdog()
        try:
            with preemption.defer_signals(), self.explain_errors(), progress.compiling_counts(), watchdog:
                self._watchdog = watchdog
                yield
        finally:
            self._watchdog = self.worker_progress = None

        if self._ranks.rank == 0:  # an earlier hang no longer matters
            (self._folder / HANG_RECORD).unlink(missing_ok=True)

    def _make_watchdog(self) -> Watchdog:
        folder = self._folder
        timeout = getattr(self._args, "hang_timeout", STALL_TIMEOUT)
        watchdog = Watchdog(self._ranks.rank, self._ranks.processes_here(), folder, timeout, self._ranks.count)

        if watchdog.hangs.factor > 1:
            step, now = watchdog.hangs.step, watchdog.stall_timeout
            logger.info(f"{folder}: hung after step {step}; --hang_timeout is {now:g} s, not {timeout:g} s")
        self.worker_progress = progress.share(watchdog.slow_operation_timeout)
        return watchdog

    # ---- progress, and requests to end

    def tick(self) -> None:
        """Something made progress."""
        if self._watchdog is not None:
            self._watchdog.tick()

    @contextlib.contextmanager
    def end_of_step(self) -> Iterator[None]:
        """Inside, what follows an optimizer step may take its time: metrics, callbacks, checkpoints."""
        if self._watchdog is None:
            yield
            return
        self._watchdog.step(self._current_step())
        with self._watchdog.allow_slow_operation():
            yield

    def set_last_step(self, step: int) -> None:
        """The step that a resumed run starts from, for the watchdog's line."""
        if self._watchdog is not None:
            self._watchdog.last_step = step

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
        elif step:
            then = f"after step {step}, which is not saved; the same command resumes from the newest checkpoint"
        else:
            then = "before the first step; the same command starts from the beginning"
        return RunInterrupted(f"{reason}, {then}", STOPPED)

    def check_evaluation(self) -> None:
        """Called after each batch of an evaluation.

        Raises:
            EvaluationInterrupted: the run trains, and was asked to end.
        """
        if self._watchdog is not None:
            self._watchdog.tick()
            if self.shutdown_requested():
                raise EvaluationInterrupted

    # ---- errors

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
            return RunInterrupted(
                f"a process that makes batches was killed (out of memory?), {resumes}", UNAVAILABLE, report=True
            )

        if self._ranks.count > 1 and step and _is_lost_connection(error):
            time.sleep(1)  # until a rank that is dying is seen as dead
            return RunInterrupted(
                f"rank {rank} lost its connection to another rank ({first_line(error)[:200]}), {resumes}",
                UNAVAILABLE,
                report=self._watchdog is None or self._watchdog.is_reporter(),
            )
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
