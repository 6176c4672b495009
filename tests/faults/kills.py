"""kill -9: at each file-system call of a save, and at random."""

import random
import re
import time
from pathlib import Path

from faults.cases import Bench, Case, Outcome
from faults.runs import Call, Event, complete, fork
from faults.subject import EVERY, STEPS, last_line

KILLED = -9
LATE = STEPS - EVERY  # calls are enumerated from the save of this step to the end


def saved_steps(run: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in run.glob("checkpoint-*"))


def enumerated(bench: Bench, limit: int | None = None) -> list[Case]:
    """Before and after each call from the beginning of a save to the end of the run, and in the middle of writes."""
    cases = []
    for k, line in enumerate(late_calls(bench), 1):
        actions = ["before", "after"] + (["half"] if " write " in line or "sendfile" in line else [])
        for action in actions:
            cases.append(Case("enumerated", f"{k}-{action}", kill_at(k, f"kill {action}")))
    return cases if limit is None else bench.rng("enumerated").sample(cases, min(limit, len(cases)))


def late_calls(bench: Bench) -> list[str]:
    """The calls below the run folder from the save of step `LATE` on: one line each, in order."""
    folder = bench.work / "late"
    trace = folder / "trace"
    if not trace.exists():
        folder.mkdir()
        bench.subject.copied(folder, bench.subject.snapshot(LATE))
        plan = bench.subject.plan(folder)
        plan.call = Call(folder / "run", needle="", trace=trace)
        code, output = complete(plan)
        if code != 0 or bench.subject.differs(folder / "run"):
            raise RuntimeError(f"a resumed run exits with {code}: {last_line(output)}")
    return trace.read_text().splitlines()


def kill_at(k: int, action: str):
    def run_case(bench: Bench, folder: Path, rng: random.Random) -> Outcome:
        subject = bench.subject
        subject.copied(folder, subject.snapshot(LATE))
        plan = subject.plan(folder)
        plan.call = Call(folder / "run", k, action)
        code, output = complete(plan)
        if code != KILLED:
            # The order of a removal depends on temporary names, so the k-th call may come after the end of the run.
            return Outcome(1, f"not killed at call {k}, exit code {code}: {last_line(output)}")

        inside = {"inside a save": int("checkpoint-" in late_calls(bench)[k - 1])}
        fault = subject.restart(folder)
        restarted = (folder / "log-restart").read_text()
        resumed = re.search(r"resuming from .*checkpoint-(\d+)", restarted)
        complete_before = re.search("finished|complete", restarted)
        if not fault and not complete_before and (not resumed or int(resumed[1]) < LATE - EVERY):
            fault = "more than one save interval was lost"
        return Outcome(1, fault, inside)

    return run_case


def scattered(bench: Bench, kills: int, chain: int = 4) -> list[Case]:
    """New runs, each killed `chain` times: after a random time, in a step, at a call."""
    firsts = enumerate(range(0, kills, chain))
    return [Case("kills", str(number), chained(min(chain, kills - first))) for number, first in firsts]


def chained(kills: int):
    def run_case(bench: Bench, folder: Path, rng: random.Random) -> Outcome:
        done = 0
        while done < kills:
            if not killed_somewhere(bench, folder, rng, rng.choice(("clock", "step", "call"))):
                break  # it ended before the kill
            done += 1
        return Outcome(done, bench.subject.restart(folder))

    return run_case


def killed_somewhere(bench: Bench, folder: Path, rng: random.Random, how: str) -> bool:
    """Starts a run and kills it; returns False if it ended before.

    Raises:
        RuntimeError: it exited with an error.
    """
    plan = bench.subject.plan(folder)
    newest = max(saved_steps(folder / "run"), default=0)

    if how == "step":
        name = rng.choice(("step_begin", "step_end", "prediction_step", "evaluate", "save"))
        step = newest + rng.randint(1, max(1, STEPS - newest))
        step += -step % EVERY if name in ("prediction_step", "evaluate", "save") else 0
        plan.events = (Event(name, step, 9),)
    elif how == "call":
        whole = rng.randrange(3) == 0
        action = rng.choice(("kill before", "kill after", "kill half"))
        plan.call = Call(folder / "run", rng.randint(1, 60), action, needle="" if whole else "checkpoint-")

    running = fork(plan)
    if how == "clock":
        time.sleep(rng.uniform(0, 2))
        running.kill()
    code = running.wait()
    if code not in (0, KILLED):
        raise RuntimeError(f"an attempt exits with {code}: {last_line(running.output)}")
    return code == KILLED
