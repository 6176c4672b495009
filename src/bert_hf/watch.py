"""What may end a run from outside: a signal, the launcher's death, a rank that died, a step that never comes.

Signals belong to the process, so what is known of them stands in this module and not in an object. A signal ends a
command at once; inside `deferring()` (a training run) it is only noted, and the run ends itself at the end of a step.
"""

import contextlib
import ctypes
import faulthandler
import os
import signal
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import psutil

from bert_hf.errors import STOPPED, UNAVAILABLE, EarlyEnd, tell

_SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")
_PR_SET_PDEATHSIG = 1  # Linux, sys/prctl.h

_asked: str | None = None  # by what this process was asked to end
_times = 0  # how often
_deferred = False
_parent: int | None = None  # inside `obeying_signals`


# ---- signals


@contextlib.contextmanager
def obeying_signals() -> Iterator[None]:
    """SIGTERM, SIGINT, SIGUSR1 and SIGHUP end what runs inside by `EarlyEnd`; so does the launcher's death (Linux).

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
        raise EarlyEnd(f"{_asked}, while no step was made; the same command goes on from what is saved", STOPPED)


def _follow_the_launcher() -> None:
    if sys.platform != "linux" or not ("ACCELERATE_MIXED_PRECISION" in os.environ or "LOCAL_RANK" in os.environ):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    with contextlib.suppress(OSError):  # it may have died before that call, and left us to process 1
        if os.getppid() == 1 and b"accelerate" not in Path("/proc/1/cmdline").read_bytes():
            raise EarlyEnd("its launcher is gone; the same command goes on from what is saved", STOPPED)


def asked() -> str | None:
    """By what this process was asked to end, if it was."""
    return _asked


@contextlib.contextmanager
def deferring() -> Iterator[None]:
    """Inside, a signal is only noted: whoever asks for it by `asked()` ends in good order.

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


QUIET = 50.0  # seconds without a step that are waited for, at least


class Watchdog:
    """A thread that ends a training process in which nothing moves any more, with one line.

    Where no command is run (a notebook, a program of somebody else's) and there is one rank, it only says so.

    Patience is max(50 s, 18 × the median step), which leaves room for the end itself within the promised
    max(60 s, 20 × the median). A rank of this machine that died is noticed at once. Before the first step (building,
    compiling) and while a checkpoint is written it waits half an hour.

    Args:
        rank: of this process.
        ranks: process number of each rank on this machine, this one included.
        folder: where the stacks are written of what did not move.
        quiet: seconds without progress that are waited for, at least (a shard may have to be fetched from afar).
    """

    steps, unhurried_quiet = 18, 1800.0  # medians, seconds
    interval, grace = 0.5, 5.0  # seconds: between two looks; for a dead rank's peers to end by themselves

    def __init__(self, rank: int, ranks: dict[int, int], folder: Path, quiet: float = QUIET):
        self.rank, self.ranks, self.folder, self.quiet = rank, ranks, folder, quiet
        self.last_step = 0
        self._durations: deque[float] = deque(maxlen=101)
        self._begun: float | None = None
        self._turn = float(min(rank, 8))  # seconds: the first that gives up speaks, and ends the others
        self._moved, self._unhurried = True, 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._end.set()
        self._thread.join()

    def tick(self) -> None:
        """Something moved."""
        self._moved = True

    def step(self, number: int) -> None:
        """An optimizer step ended."""
        now = time.perf_counter()
        if self._begun is not None:
            self._durations.append(now - self._begun)
        self._begun, self.last_step, self._moved = now, number, True

    @contextlib.contextmanager
    def unhurried(self) -> Iterator[None]:
        """Inside, half an hour may pass without a step."""
        self._unhurried += 1
        try:
            yield
        finally:
            self._unhurried -= 1
            self._begun, self._moved = time.perf_counter(), True  # that belongs to no step

    def patience(self) -> float:
        """Seconds without progress after which the run is given up."""
        if self._unhurried or not self._durations:
            return self.unhurried_quiet
        return max(self.quiet, self.steps * statistics.median(self._durations)) + self._turn

    def _watch(self) -> None:
        # Its own looks are counted, and not the clock: a process that was stopped and goes on has lost nothing.
        still = since_death = since_stop = 0.0
        while not self._end.wait(self.interval):
            still, self._moved = (0.0 if self._moved else still + self.interval), False
            dead = [rank for rank, pid in self.ranks.items() if _state(pid) in ("", "Z", "X")]
            stopped = [rank for rank, pid in self.ranks.items() if _state(pid) == "T"]
            since_death = since_death + self.interval if dead else 0.0
            since_stop = since_stop + self.interval if stopped else 0.0
            if since_death > self.grace + self._turn:
                self._give_up(f"rank {dead[0]} died")
            elif since_stop > self.quiet + self._turn:  # whatever the others are waiting for
                self._give_up(f"rank {stopped[0]} is stopped, and nothing moved for {since_stop:.0f} s")
            elif still > self.patience():
                self._give_up(f"nothing moved for {still:.0f} s")

    def speaks(self) -> bool:
        """True for the lowest rank of this machine that is still there."""
        return self.rank == min(rank for rank, pid in self.ranks.items() if _state(pid) not in ("", "Z", "X", "T"))

    def _give_up(self, reason: str) -> None:
        if _parent is None and len(self.ranks) == 1:
            tell(f"warning: {reason} after step {self.last_step}")
            self._end.set()
            return
        stacks = self.folder / f"stacks-rank{self.rank}.txt"
        with contextlib.suppress(OSError), open(stacks, "w") as file:
            faulthandler.dump_traceback(file)
        tell(f"error: {reason} after step {self.last_step} (stacks: {stacks}); the same command goes on from the "
             "newest checkpoint")  # fmt: skip
        for pid in self.ranks.values():  # else the launcher waits for them, who wait for each other
            if pid != os.getpid():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        os._exit(UNAVAILABLE)


def _state(pid: int) -> str:
    """The kernel's letter for a process (R, S, T, Z …); empty: there is none; "?" where it cannot be known."""
    try:
        if sys.platform == "linux":
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        os.kill(pid, 0)
        return "?"
    except (ProcessLookupError, FileNotFoundError):
        return ""
    except OSError:
        return "?"
