"""Turns signals and the launcher's death into an orderly end of the run.

Signals belong to the process, so their state is kept in this module and not in an object. A signal ends a command at
once; inside `defer_signals()` (a training run) it is only recorded, and the trainer stops at the end of the step.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from bert_hf.config.hardware import was_launched
from bert_hf.errors import STOPPED, RunInterrupted

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # Linux, sys/prctl.h

_requested_by: str | None = None  # the signal that asked this process to end
_deferred = False
_parent: int | None = None  # process number of the launcher, inside `handle_signals`


# ---- signals


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """SIGTERM, SIGINT, SIGUSR1, SIGHUP and the launcher's death (Linux) raise `RunInterrupted` inside.

    `accelerate launch` with one process dies of a signal at once and forwards nothing, so the kernel is asked to
    report its death. A signal that is ignored (nohup) stays ignored. Outside the main thread nothing is changed.
    """
    global _requested_by, _parent, _deferred
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    _requested_by = None
    _deferred = False
    _parent = os.getppid()

    before = {
        number: handler for number in _SIGNALS if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)
    }
    for number in before:
        signal.signal(number, _on_signal)

    try:
        _report_launcher_death()
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _requested_by = _parent = None
        _deferred = False


def _on_signal(number: int, frame) -> None:
    global _requested_by
    is_first = _requested_by is None
    if not is_first and not _deferred:  # the first one did not end the process
        os._exit(STOPPED)

    orphan = _parent is not None and os.getppid() != _parent
    _requested_by = "its launcher is gone" if orphan else signal.Signals(number).name
    if not _deferred:
        raise RunInterrupted(
            f"{_requested_by}, while no step was made; the same command resumes from the newest checkpoint", STOPPED
        )

    if is_first and os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):  # not `print`: the signal may interrupt one
            os.write(2, f"{_requested_by}: the run is saved and ends after this step\n".encode())


def _report_launcher_death() -> None:
    """Asks the kernel for a SIGTERM when the launcher dies."""
    if sys.platform != "linux" or not was_launched():
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    with contextlib.suppress(OSError):  # it may have died before that call: then our parent is process 1
        if os.getppid() == 1 and b"accelerate" not in Path("/proc/1/cmdline").read_bytes():
            raise RunInterrupted("its launcher is gone; the same command resumes from the newest checkpoint", STOPPED)


def signals_are_handled() -> bool:
    """True inside `handle_signals`: this process runs one of our commands."""
    return _parent is not None


def shutdown_requested() -> str | None:
    """The signal that asked this process to end, or None."""
    return _requested_by


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Inside, a signal is only recorded; the caller polls `shutdown_requested()` and ends when its state is saved.

    After an exception signals remain deferred, because the process is ending already: torchrun signals the remaining
    ranks as soon as the first one has ended.
    """
    global _deferred
    before = _deferred
    _deferred = True
    yield
    _deferred = before


# ---- time

_began = time.monotonic() - (time.time() - psutil.Process().create_time())  # of this process


def seconds_running() -> float:
    """Seconds since this process began."""
    return time.monotonic() - _began
