"""Cases of fault injection: a case injects one fault or several and reports whether the run recovered."""

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
    """Result of a case: the number of points that it counts, and its fault in one line (None: it passed)."""

    points: int = 1
    fault: str | None = None
    notes: dict[str, int] = field(default_factory=dict)  # counted over all cases of a kind


@dataclass
class Case:
    """A fault to inject. `run(bench, folder, rng)` returns an `Outcome`, or the fault as text, or None."""

    kind: str
    name: str
    run: Callable


@dataclass
class Bench:
    """Shared by all cases: the run under test, the seed, the working folder."""

    subject: Subject
    seed: int
    work: Path

    def rng(self, *key) -> random.Random:
        return random.Random("/".join(map(str, (self.seed, *key))))

    def run(self, case: Case) -> tuple[Outcome, float]:
        """Runs a case in a new folder, which is kept if the case fails; returns outcome and seconds."""
        folder = self.work / "cases" / f"{case.kind}-{case.name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

        begin = time.perf_counter()
        try:
            outcome = case.run(self, folder, self.rng(case.kind, case.name))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            outcome = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
        if not isinstance(outcome, Outcome):
            outcome = Outcome(1, outcome)

        if outcome.fault is None:
            shutil.rmtree(folder, ignore_errors=True)
        return outcome, time.perf_counter() - begin
