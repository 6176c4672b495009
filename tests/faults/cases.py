"""A case of the fault matrix: one fault, or a chain of them, and what is wrong with how it ends."""

import random
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from faults.subject import Subject


@dataclass
class Outcome:
    """What a case showed: how many points it stands for, and its fault in one line (None: it passed)."""

    points: int = 1
    fault: str | None = None
    notes: dict[str, int] = field(default_factory=dict)  # counted over all cases of a kind


@dataclass
class Case:
    """A fault to be tried. `play(bench, folder, rng)` says how it ended: an `Outcome`, or a fault or None."""

    kind: str
    name: str
    play: Callable


@dataclass
class Bench:
    """What all cases share."""

    subject: Subject
    seed: int
    work: Path

    def rng(self, *key) -> random.Random:
        return random.Random("/".join(map(str, (self.seed, *key))))

    def play(self, case: Case) -> tuple[Outcome, float]:
        """Plays a case in a folder of its own, which stays where it failed; outcome and seconds."""
        folder = self.work / "cases" / f"{case.kind}-{case.name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        begin = time.perf_counter()
        try:
            outcome = case.play(self, folder, self.rng(case.kind, case.name))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            outcome = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
        if not isinstance(outcome, Outcome):
            outcome = Outcome(1, outcome)
        if outcome.fault is None:
            shutil.rmtree(folder, ignore_errors=True)
        return outcome, time.perf_counter() - begin
