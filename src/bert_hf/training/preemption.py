"""Orderly early end of a run: signals, a dead launcher or process, the time limit.

Signals belong to the process, so their state is kept in this module and not in an object. A signal ends a command at
once; inside `defer_signals()` (a training run) it is only recorded, and the trainer stops at the end of the step.

Hangs are left to the engine: torch's timeouts (`--ddp_timeout`), torchelastic, and the job scheduler.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch.distributed as dist

from bert_hf.config.hardware import was_launched
from bert_hf.errors import BAD_INPUT, STOPPED, UNAVAILABLE, RunInterrupted, error_line, first_line
from bert_hf.training.distributed import Ranks

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # Linux, sys/prctl.h

_requested_by: str | None = None  # the signal that asked this process to end, see `shutdown_reason`
_deferred = False  # inside `defer_signals`
_parent: int | None = None  # process number of the launcher, inside `handle_signals`


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """Context manager: SIGTERM, SIGINT, SIGUSR1, SIGHUP and the launcher's death (Linux) raise `RunInterrupted`.

    `accelerate launch` with one process dies of a signal at once and forwards nothing, so the kernel is asked to
    send SIGTERM at its death. A signal that is ignored (nohup) stays ignored. Outside the main thread nothing changes.
    """
    global _requested_by, _parent, _deferred
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    _requested_by = None
    _deferred = False
    _parent = os.getppid()
    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    handlers_before = {number: signal.signal(number, _on_signal) for number in handled}

    try:
        if sys.platform == "linux" and was_launched():
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        yield
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
        _requested_by = _parent = None
        _deferred = False


def _on_signal(number: int, frame) -> None:
    """Record the first signal, and unless signals are deferred end the command; a second one ends the process."""
    global _requested_by
    if _requested_by is None:  # a later one does not replace it: after Ctrl-C the launcher exits as well
        lost_launcher = _parent is not None and os.getppid() != _parent  # reported as SIGTERM
        _requested_by = "launcher exited" if lost_launcher else signal.Signals(number).name
    elif not _deferred:  # the exception of the first one did not end the process
        os._exit(STOPPED)

    if not _deferred:
        text = f"{_requested_by} outside training; the same command resumes from the newest checkpoint"
        raise RunInterrupted(text, STOPPED)


def shutdown_reason() -> str | None:
    """Return what asked this process to end: the name of a signal, or `launcher exited`; None without a request."""
    return _requested_by


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Context manager: only record signals; the caller polls `shutdown_reason()` and ends when its state is saved.

    After an exception they remain deferred: torchrun signals the other ranks as soon as the first one has ended.
    """
    global _deferred
    before = _deferred
    _deferred = True
    yield
    _deferred = before


_began = time.monotonic()


def seconds_running() -> float:
    """Return the seconds since this process began (imported this module)."""
    return time.monotonic() - _began


class TimeLimit:
    """The hours that a run may take, in all of its processes and without the pauses between them."""

    def __init__(self, hours: float | None):
        self._allowed = hours
        self.hours_before = 0.0  # in earlier processes of the run
        self.evaluation_seconds = 0.0  # of the latest evaluation

    def begin(self, hours_before: float = 0.0) -> None:
        """Begin to count, after `hours_before` in earlier processes: in a command from its start on, else from now."""
        self.hours_before = hours_before
        if _parent is None:  # not inside `handle_signals`: a program of one's own
            self.hours_before -= seconds_running() / 3600

    def hours_spent(self) -> float:
        """Return the hours that the run has taken in all of its processes."""
        return self.hours_before + seconds_running() / 3600

    def is_over(self) -> bool:
        """Return True if the time left only suffices for the final evaluation and saving; False without a limit."""
        reserved = (1.2 * self.evaluation_seconds + 10) / 3600  # a fifth more than the last one; ten seconds to save
        return self._allowed is not None and self.hours_spent() + reserved >= self._allowed


def interruption(step: int, folder: Path) -> RunInterrupted:
    """Return the exception that ends a run after a signal; the checkpoint of `step` is saved in `folder`."""
    reason = shutdown_reason() or "another rank was asked to"
    where = f"after step {step}, which is saved in {folder}/checkpoint-{step}"
    return RunInterrupted(f"{reason}, {where}; the same command resumes from it", STOPPED)


@contextlib.contextmanager
def explain_lost_connection() -> Iterator[None]:
    """Context manager of a command: turn a lost connection to another rank, before training, into `RunInterrupted`."""
    try:
        yield
    except Exception as error:
        if "WORLD_SIZE" in os.environ and _is_lost_connection(error):
            text = f"lost another rank in the start ({first_line(error)[:200]}); start the same command again"
            raise RunInterrupted(text, UNAVAILABLE) from None
        raise


@contextlib.contextmanager
def explain_errors(ranks: Ranks, workers: int, current_step: Callable[[], int]) -> Iterator[None]:
    """Context manager: turn a lost worker, a lost rank, and errors of ranks other than 0 into `RunInterrupted`."""
    try:
        yield
    except Exception as error:
        if workers and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else torch's handler for workers may raise another error
        hint = f"after step {current_step()}; the same command resumes from the newest checkpoint"
        line = error_line(error)  # None for a bug, which keeps its traceback

        if ranks.rank and line is not None:  # rank 0 prints the line of its own errors
            raise RunInterrupted(f"rank {ranks.rank}: {line}", BAD_INPUT, any_rank_prints=True) from None
        if _is_lost_worker(error, workers):
            text = f"a DataLoader worker was killed (out of memory?), {hint}"
            raise RunInterrupted(text, UNAVAILABLE, any_rank_prints=True) from None
        if ranks.count > 1 and current_step() and _is_lost_connection(error):
            text = f"rank {ranks.rank} lost its connection to another rank ({first_line(error)[:200]}), {hint}"
            raise RunInterrupted(text, UNAVAILABLE, any_rank_prints=True) from None
        raise


def _is_lost_worker(error: Exception, workers: int) -> bool:
    """Return True where torch noticed that a data loader's worker died, or the pipe to the worker is broken."""
    text = str(error)
    noticed = "DataLoader worker" in text and ("exited unexpectedly" in text or "killed by signal" in text)
    return noticed or (workers > 0 and isinstance(error, ConnectionError | EOFError))


def _is_lost_connection(error: Exception) -> bool:
    """Return True for an error of torch's communication between ranks; most are told by their text only."""
    text = str(error)
    mentions_network = any(word in text for word in ("gloo", "Connection", "NCCL"))
    return isinstance(error, RuntimeError) and (mentions_network or isinstance(error, dist.DistError))
