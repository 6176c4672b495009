"""kill -9 on the stock Trainer, for comparison: how often the result has other bytes, how often resuming crashes."""

import hashlib
import random
import time
from pathlib import Path

from faults.cases import Bench, Case, Outcome
from faults.kills import KILLED
from faults.runs import Call, Plan, complete, fork
from faults.subject import last_line

KILLS = "stock"


def stock(bench: Bench, points: int) -> list[Case]:
    """One kill in each run, every second one inside a save; then the same command once more."""
    folder = bench.work / "oracle-stock"
    if not folder.exists():
        folder.mkdir()
        seconds = time.perf_counter()
        code, output = complete(_plan(bench, folder))
        if code != 0:
            raise RuntimeError(f"the uninterrupted stock run exits with {code}: {output[-2000:]}")
        (folder / "seconds").write_text(str(time.perf_counter() - seconds))

        again = bench.work / "oracle-stock-again"
        again.mkdir()
        complete(_plan(bench, again))
        if _model(again) != _model(folder):
            raise RuntimeError("two uninterrupted stock runs differ: there is nothing to compare with")
    return [Case(KILLS, f"{number}-{'saving' if number % 2 else 'training'}", _killed(number % 2 == 1))
            for number in range(points)]  # fmt: skip


def _plan(bench: Bench, folder: Path, log: str = "log") -> Plan:
    return Plan(bench.subject.words(folder / "run"), folder / log, recipe="stock_pretrain")


def _model(folder: Path) -> str:
    return hashlib.sha256((folder / "run/model.safetensors").read_bytes()).hexdigest()


def _killed(saving: bool):
    def run_case(bench: Bench, folder: Path, rng: random.Random) -> Outcome:
        oracle = bench.work / "oracle-stock"
        plan = _plan(bench, folder)
        if saving:
            plan.call = Call(folder / "run", rng.randint(1, 300), "kill half", needle="checkpoint-")
        running = fork(plan)
        if not saving:
            time.sleep(rng.uniform(0.3, 0.9) * float((oracle / "seconds").read_text()))
            running.kill()

        if running.wait() != KILLED:
            return Outcome(0)  # it had finished
        code, output = complete(_plan(bench, folder, "log-restart"))
        if code != 0:
            return Outcome(1, f"crashed: {last_line(output)}", {"crashed at resume": 1})
        same = _model(folder) == _model(oracle)
        return Outcome(1, None if same else "other bytes", {"ended in other bytes": int(not same)})

    return run_case
