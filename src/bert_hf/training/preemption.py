"""What may end a run from outside: a signal, the launcher's death, a rank that died, a step that never comes.

Signals belong to the process, so what is known of them stands in this module and not in an object. A signal ends a
command at once; inside `defer_signals()` (a training run) it is only recorded, and the run ends at the end of a step.
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

from bert_hf.errors import STOPPED, RunInterrupted

_SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")
_PR_SET_PDEATHSIG = 1  # Linux, sys/prctl.h

_asked: str | None = None  # by what this process was asked to end
_times = 0  # how often
_deferred = False
_parent: int | None = None  # inside `handle_signals`


# ---- signals


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """SIGTERM, SIGINT, SIGUSR1, SIGHUP and the launcher's death (Linux) raise `RunInterrupted` inside.

    `accelerate launch` with one process dies of a signal at once and forwards nothing: the kernel is asked to tell us.
    A signal that is ignored (nohup) stays so. Outside the main thread nothing is changed.
    """
    global _asked, _times, _parent, _deferred
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _asked, _times, _parent, _deferred = None, 0, os.getppid(), False
    numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, _note)
    try:
        _follow_the_launcher()
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _asked, _parent, _deferred = None, None, False


def _note(number: int, frame) -> None:
    global _asked, _times
    _times += 1
    if _times > 1 and not _deferred:  # again, and still not gone
        os._exit(STOPPED)
    orphan = _parent is not None and os.getppid() != _parent
    _asked = "its launcher is gone" if orphan else signal.Signals(number).name
    if _deferred and _times == 1 and os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):  # not `print`: the signal may have come in the middle of one
            os.write(2, f"{_asked}: the run is saved and ends after this step\n".encode())
    if not _deferred:
        raise RunInterrupted(f"{_asked}, while no step was made; the same command goes on from what is saved", STOPPED)


def _follow_the_launcher() -> None:
    if sys.platform != "linux" or not ("ACCELERATE_MIXED_PRECISION" in os.environ or "LOCAL_RANK" in os.environ):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    with contextlib.suppress(OSError):  # it may have died before that call, and left us to process 1
        if os.getppid() == 1 and b"accelerate" not in Path("/proc/1/cmdline").read_bytes():
            raise RunInterrupted("its launcher is gone; the same command goes on from what is saved", STOPPED)


def signals_are_handled() -> bool:
    """True inside `handle_signals`: this process runs a command of ours."""
    return _parent is not None


def shutdown_requested() -> str | None:
    """By what this process was asked to end, if it was."""
    return _asked


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Inside, a signal is only noted: whoever asks for it by `shutdown_requested()` ends in good order.

    What is left by an exception is ending already, and stays undisturbed: torchrun signals the ranks that have not
    ended yet when the first one has.
    """
    global _deferred
    before, _deferred = _deferred, True
    yield
    _deferred = before


# ---- time

_began = time.monotonic() - (time.time() - psutil.Process().create_time())  # of this process


def seconds_running() -> float:
    """Seconds since this process began."""
    return time.monotonic() - _began


# ---- progress
