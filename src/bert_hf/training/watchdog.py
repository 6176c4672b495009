"""Detects a training run that makes no progress any more, and ends it with one line."""

import contextlib
import faulthandler
import json
import os
import signal
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from bert_hf import progress
from bert_hf.errors import UNAVAILABLE, print_to_stderr
from bert_hf.training import preemption

# Seconds without progress after which a run counts as hanging, at least: the default of --hang_timeout
STALL_TIMEOUT = 50.0
SLOW_FACTOR = 36  # planning, compiling, evaluating and saving may take so many times as long: half an hour by default
HANG_RECORD = "watchdog.json"  # in the run's folder: where it hung
_DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)  # states of a process


class Hangs(NamedTuple):
    """Where a run hung last, as `watchdog.json` in its folder records it."""

    step: int = -1  # the last step that ended
    times: int = 0  # hangs in succession at this step
    factor: int = 1  # --hang_timeout is multiplied by it

    def after(self, step: int) -> "Hangs":
        """The record after one more hang. The second one at the same step, and each further one, doubles the factor.

        So a run that only needs more time is not ended at the same step for ever. The factor is at most 64 (53 minutes
        by default).
        """
        if step != self.step:
            return Hangs(step, 1, self.factor)
        return Hangs(step, self.times + 1, min(64, 2 * self.factor))

    @classmethod
    def read(cls, folder: Path) -> "Hangs":
        """The record of a run's folder; an empty one where there is none that can be read."""
        try:
            content = json.loads((folder / HANG_RECORD).read_text(encoding="utf-8"))
            found = cls(**{name: int(content[name]) for name in cls._fields})
        except (OSError, ValueError, KeyError, TypeError):
            return cls()
        return found._replace(factor=min(64, max(1, found.factor)))

    def write(self, folder: Path) -> None:
        """Writes the record; errors of the disk are ignored, because the run is ending anyway."""
        temporary = folder / f".{HANG_RECORD}.{os.getpid()}.tmp"
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(self._asdict()) + "\n", encoding="utf-8")
            os.replace(temporary, folder / HANG_RECORD)


class Watchdog:
    """A thread that ends a training process that makes no progress any more, with one line.

    Outside a command of ours (a notebook, another program) with one rank, it only warns.

    It waits max(50 s, 18 × the median step), which leaves time for ending the run within the promised
    max(60 s, 20 × the median). Progress is a step, a micro-batch, and what `progress` counts: examples that are read,
    and planning, fetching and compiling for up to half an hour each. Before the first step (building, compiling) and
    while a checkpoint is written it waits half an hour. A rank of this machine that died is noticed at once.

    A rank may wait for another one that plans or compiles. So each rank whose step takes long writes its count of
    progress into a file, `.progress-rankN`, and a waiting rank reads the others' files before it ends the run.

    Args:
        rank: of this process.
        ranks: process number of each rank on this machine, this one included.
        folder: the run's; the stacks of a process that hangs are written there.
        stall_timeout: seconds without progress after which the run counts as hanging, at least (`--hang_timeout`).
        world_size: number of ranks on all machines; by default those of this one.
    """

    steps = 18  # median steps that are waited for
    interval = 0.5  # seconds between two checks
    grace = 5.0  # seconds in which the other ranks may end after one has died

    def __init__(
        self,
        rank: int,
        ranks: dict[int, int],
        folder: Path,
        stall_timeout: float = STALL_TIMEOUT,
        world_size: int | None = None,
    ):
        self.rank = rank
        self.ranks = ranks
        self.folder = folder
        self.world_size = len(ranks) if world_size is None else world_size
        self.hangs = Hangs.read(folder)
        self.stall_timeout = stall_timeout * self.hangs.factor
        self.last_step = 0

        self._durations: deque[float] = deque(maxlen=101)
        self._step_began: float | None = None
        self._report_delay = float(min(rank, 8))  # seconds: one rank reports a hang first, and ends the others

        self._progressed = True
        self._slow_operations = 0  # that are running
        self._beats = progress.beats()

        # Counts that ranks exchange: see `_check_progress`
        self._since_step = 0.0  # seconds since the last step, as counted by the checks
        self._written = 0  # how often this rank's count of progress was written
        self._others: list[str] | None = None  # the last contents of the other ranks' files

        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._write_progress()  # the file exists from the start: a network disk may show a new one late
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._end.set()
        self._thread.join()
        if self.world_size > 1:
            self._progress_file(self.rank).unlink(missing_ok=True)

    def tick(self) -> None:
        """Reports progress within a step."""
        self._progressed = True

    def step(self, number: int) -> None:
        """Reports the end of an optimizer step."""
        now = time.perf_counter()
        if self._step_began is not None:
            self._durations.append(now - self._step_began)
        self._step_began = now
        self.last_step = number
        self._progressed = True
        self._since_step = 0.0

    @contextlib.contextmanager
    def allow_slow_operation(self) -> Iterator[None]:
        """Inside, half an hour may pass without progress."""
        self._slow_operations += 1
        try:
            yield
        finally:
            self._slow_operations -= 1
            self._step_began = time.perf_counter()  # the operation is not part of a step
            self._progressed = True

    @property
    def slow_operation_timeout(self) -> float:
        """Seconds that a slow operation may take."""
        return SLOW_FACTOR * self.stall_timeout

    def patience(self) -> float:
        """Seconds without progress after which the run counts as hanging."""
        if self._slow_operations or not self._durations:
            return self.slow_operation_timeout
        steps = self.hangs.factor * self.steps * statistics.median(self._durations)
        return max(self.stall_timeout, steps) + self._report_delay

    def _watch(self) -> None:
        # Checks are counted instead of clock time: time in which this process was suspended does not count.
        stalled = since_death = since_stop = 0.0
        while not self._end.wait(self.interval):
            stalled = 0.0 if self._check_progress(stalled) else stalled + self.interval

            states = {rank: _state(pid) for rank, pid in self.ranks.items()}
            dead = [rank for rank, state in states.items() if state in _DEAD]
            stopped = [rank for rank, state in states.items() if state == psutil.STATUS_STOPPED]
            since_death = since_death + self.interval if dead else 0.0
            since_stop = since_stop + self.interval if stopped else 0.0

            if since_death > self.grace + self._report_delay:
                self._abort(f"rank {dead[0]} died")
            elif since_stop > self.stall_timeout + self._report_delay:  # whether or not the other ranks make progress
                self._abort(f"rank {stopped[0]} is stopped, no progress for {since_stop:.0f} s")
            elif stalled > self.patience():
                self._abort(f"no progress for {stalled:.0f} s", hang=True)

    # ---- progress of this rank, and of the others
    def _check_progress(self, stalled: float) -> bool:
        """Whether there was progress since the last check. `stalled`: seconds without it until then."""
        beats = progress.beats()
        progressed = self._progressed or beats != self._beats
        self._progressed = False
        self._beats = beats
        self._since_step += self.interval
        if self.world_size == 1:
            return progressed

        # Files are written or read eight times per patience: most steps have ended before the first time.
        patience = self.patience()
        file_is_due = round(self._since_step / self.interval) % max(1, round(patience / 8 / self.interval)) == 0
        if progressed:
            self._others = None
            if file_is_due:
                self._write_progress()
        elif stalled > patience / 2 and file_is_due:
            before = self._others
            self._others = self._read_progress()
            return before is not None and before != self._others
        return progressed

    def _progress_file(self, rank: int) -> Path:
        return self.folder / f".progress-rank{rank}"

    def _write_progress(self) -> None:
        if self.world_size > 1:
            self._written += 1
            with contextlib.suppress(OSError):
                self._progress_file(self.rank).write_text(str(self._written))

    def _read_progress(self) -> list[str]:
        """The other ranks' files: their contents, since a network disk may show old times of change."""
        contents = []
        for rank in range(self.world_size):
            with contextlib.suppress(OSError):
                contents.append("" if rank == self.rank else self._progress_file(rank).read_text())
        return contents

    # ---- the end
    def is_reporter(self) -> bool:
        """True for the lowest rank of this machine that is running."""
        return self.rank == min(
            rank for rank, pid in self.ranks.items() if _state(pid) not in (*_DEAD, psutil.STATUS_STOPPED)
        )

    def _abort(self, reason: str, hang: bool = False) -> None:
        """Reports the reason and the stacks, kills the other ranks of this machine and exits."""
        if not preemption.signals_are_handled() and len(self.ranks) == 1:
            print_to_stderr(f"warning: {reason} after step {self.last_step}")
            self._end.set()
            return

        stacks = self.folder / f"stacks-rank{self.rank}.txt"
        with contextlib.suppress(OSError), open(stacks, "w") as file:
            faulthandler.dump_traceback(file)

        remedy = "the same command resumes from the newest checkpoint"
        if hang:
            record = self.hangs.after(self.last_step)
            record.write(self.folder)
            if record.factor > self.hangs.factor:
                remedy += f" and waits {record.factor / self.hangs.factor:.0f} times as long"
        print_to_stderr(f"error: {reason} after step {self.last_step} (stacks: {stacks}); {remedy}")

        for pid in self.ranks.values():  # else the launcher waits for ranks that wait for each other
            if pid != os.getpid():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        os._exit(UNAVAILABLE)


def _state(pid: int) -> str:
    """The state of a process by psutil's names; that of a dead one where there is none, "" where it is not known."""
    try:
        return psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_DEAD
    except psutil.Error:
        return ""
