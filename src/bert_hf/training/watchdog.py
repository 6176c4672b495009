"""Detects a training run in which nothing makes progress any more, and ends it with one line."""

import contextlib
import faulthandler
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bert_hf import progress
from bert_hf.errors import UNAVAILABLE, tell
from bert_hf.training import preemption

QUIET = 50.0  # seconds without a step that are waited for, at least: the default of --hang_timeout


LONG = 36  # times as long may take what is known to take long: half an hour by default


RECORD = "watchdog.json"  # in the run's folder: where it hung


class Hangs(NamedTuple):
    """Where a run hung last, as `watchdog.json` in its folder records it."""

    step: int = -1  # the last step that ended
    times: int = 0  # one after the other, at this step
    factor: int = 1  # --hang_timeout is multiplied by it

    def after(self, step: int) -> "Hangs":
        """The record after one more hang. The second one at the same step, and each further one, doubles the factor.

        A run that is ended where it only needs more time is so not ended there for ever. 64 is the end of it: by
        default 53 minutes.
        """
        if step != self.step:
            return Hangs(step, 1, self.factor)
        return Hangs(step, self.times + 1, min(64, 2 * self.factor))

    @classmethod
    def read(cls, folder: Path) -> "Hangs":
        """The record of a run's folder; an empty one where there is none, or none that can be understood."""
        try:
            content = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            found = cls(**{name: int(content[name]) for name in cls._fields})
        except (OSError, ValueError, KeyError, TypeError):
            return cls()
        return found._replace(factor=min(64, max(1, found.factor)))

    def write(self, folder: Path) -> None:
        """Writes the record, as far as the disk lets it: the run is ending, and shall."""
        temporary = folder / f".{RECORD}.{os.getpid()}.tmp"
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(self._asdict()) + "\n", encoding="utf-8")
            os.replace(temporary, folder / RECORD)


class Watchdog:
    """A thread that ends a training process in which nothing makes progress any more, with one line.

    Where no command is run (a notebook, another program) and there is one rank, it only warns.

    It waits max(50 s, 18 × the median step), which leaves room for the end itself within the promised
    max(60 s, 20 × the median). Progress is a step, a micro-batch, and what `progress` counts: examples that are read,
    and planning, fetching and compiling for up to half an hour each. Before the first step (building, compiling) and
    while a checkpoint is written it waits half an hour. A rank of this machine that died is noticed at once.

    A rank may wait for another one that plans or compiles. So each rank whose step takes long writes its count of
    progress into a file, `.progress-rankN`, and who waits reads the others' files before it ends the run.

    Args:
        rank: of this process.
        ranks: process number of each rank on this machine, this one included.
        folder: the run's; where the stacks of a process that hangs are written.
        quiet: seconds without progress that are waited for, at least (`--hang_timeout`).
        world_size: number of ranks on all machines; by default those of this one.
    """

    steps = 18  # medians
    interval, grace = 0.5, 5.0  # seconds: between two looks; for a dead rank's peers to end by themselves

    def __init__(
        self,
        rank: int,
        ranks: dict[int, int],
        folder: Path,
        quiet: float = QUIET,
        world_size: int | None = None,
    ):
        self.rank, self.ranks, self.folder = rank, ranks, folder
        self.world_size = len(ranks) if world_size is None else world_size
        self.hangs = Hangs() if folder is None else Hangs.read(folder)
        self.quiet = quiet * self.hangs.factor
        self.last_step = 0
        self._durations: deque[float] = deque(maxlen=101)
        self._begun: float | None = None
        self._turn = float(min(rank, 8))  # seconds: the first one to notice reports it, and ends the others
        self._moved, self._unhurried = True, 0
        self._beats = progress.beats()
        self._slow = 0.0  # seconds since the last step, as counted by the looks
        self._written = 0  # how often this rank's count of progress was written for the others
        self._others: list[str] | None = None  # what the others' files said half-way to the end
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._write_progress()  # the file is there from the start: a network disk may show a new one late
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._end.set()
        self._thread.join()
        if self.world_size > 1:
            self._progress_file(self.rank).unlink(missing_ok=True)

    def tick(self) -> None:
        """Something moved."""
        self._moved = True

    def step(self, number: int) -> None:
        """An optimizer step ended."""
        now = time.perf_counter()
        if self._begun is not None:
            self._durations.append(now - self._begun)
        self._begun, self.last_step, self._moved, self._slow = now, number, True, 0.0

    @contextlib.contextmanager
    def unhurried(self) -> Iterator[None]:
        """Inside, half an hour may pass without a step."""
        self._unhurried += 1
        try:
            yield
        finally:
            self._unhurried -= 1
            self._begun, self._moved = time.perf_counter(), True  # that belongs to no step

    @property
    def unhurried_quiet(self) -> float:
        """Seconds that an operation may take that is known to take long."""
        return LONG * self.quiet

    def patience(self) -> float:
        """Seconds without progress after which the run counts as hanging."""
        if self._unhurried or not self._durations:
            return self.unhurried_quiet
        return max(self.quiet, self.hangs.factor * self.steps * statistics.median(self._durations)) + self._turn

    def _watch(self) -> None:
        # Its own looks are counted, and not the clock: a process that was stopped and goes on has lost nothing.
        still = since_death = since_stop = 0.0
        while not self._end.wait(self.interval):
            still = 0.0 if self._progressed(still) else still + self.interval
            dead = [rank for rank, pid in self.ranks.items() if _state(pid) in ("", "Z", "X")]
            stopped = [rank for rank, pid in self.ranks.items() if _state(pid) == "T"]
            since_death = since_death + self.interval if dead else 0.0
            since_stop = since_stop + self.interval if stopped else 0.0
            if since_death > self.grace + self._turn:
                self._give_up(f"rank {dead[0]} died")
            elif since_stop > self.quiet + self._turn:  # whatever the others are waiting for
                self._give_up(f"rank {stopped[0]} is stopped, and nothing moved for {since_stop:.0f} s")
            elif still > self.patience():
                self._give_up(f"nothing moved for {still:.0f} s", hang=True)

    # ---- progress of this rank, and of the others
    def _progressed(self, still: float) -> bool:
        """Whether there was progress since the last look. `still`: seconds without it until then."""
        beats, patience = progress.beats(), self.patience()
        mine = self._moved or beats != self._beats
        self._moved, self._beats = False, beats
        self._slow += self.interval
        if self.world_size == 1:
            return mine
        # An eighth of the patience lies between two writings, or two readings: a step is usually done by then.
        now_and_then = round(self._slow / self.interval) % max(1, round(patience / 8 / self.interval)) == 0
        if mine:
            self._others = None
            if now_and_then:
                self._write_progress()
        elif still > patience / 2 and now_and_then:
            before, self._others = self._others, self._read_progress()
            return before is not None and before != self._others
        return mine

    def _progress_file(self, rank: int) -> Path:
        return self.folder / f".progress-rank{rank}"

    def _write_progress(self) -> None:
        if self.world_size > 1:
            self._written += 1
            with contextlib.suppress(OSError):
                self._progress_file(self.rank).write_text(str(self._written))

    def _read_progress(self) -> list[str]:
        """What the other ranks wrote: opened and read, since a network disk may show old times of change."""
        said = []
        for rank in range(self.world_size):
            with contextlib.suppress(OSError):
                said.append("" if rank == self.rank else self._progress_file(rank).read_text())
        return said

    # ---- the end
    def is_reporter(self) -> bool:
        """True for the lowest rank of this machine that is still there."""
        return self.rank == min(rank for rank, pid in self.ranks.items() if _state(pid) not in ("", "Z", "X", "T"))

    def _give_up(self, reason: str, hang: bool = False) -> None:
        if not preemption.signals_are_handled() and len(self.ranks) == 1:
            tell(f"warning: {reason} after step {self.last_step}")
            self._end.set()
            return
        stacks = self.folder / f"stacks-rank{self.rank}.txt"
        with contextlib.suppress(OSError), open(stacks, "w") as file:
            faulthandler.dump_traceback(file)
        then = "the same command goes on from the newest checkpoint"
        if hang:
            record = self.hangs.after(self.last_step)
            record.write(self.folder)
            if record.factor > self.hangs.factor:
                then += f" and waits {record.factor / self.hangs.factor:.0f} times as long"
        tell(f"error: {reason} after step {self.last_step} (stacks: {stacks}); {then}")
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
