"""A rank that is killed or fails; a killed loader; two jobs in one folder."""

import os
import random
import time
from pathlib import Path

from faults.cases import Bench, Case
from faults.kills import saved_steps
from faults.layouts import start_ranks
from faults.runs import HUNG, Event, complete, fork
from faults.signals import ranks_oracle, restart_ranks
from faults.subject import last_line

ENDS = 60.0  # seconds after which a run that lost a rank must have ended
FAULTS = {"killed": 9, "exception": "raise"}
UNAVAILABLE = 75


def ranks(bench: Bench, points: int) -> list[Case]:
    """Each fault on each rank, in a step and in an evaluation; then the faults of a single process."""
    ranks_oracle(bench)
    cases = [Case("ranks", "loader-killed", _loader), Case("ranks", "two-jobs", _two_jobs)]
    for what in FAULTS:
        for rank, event in ((1, "step_begin"), (0, "step_begin"), (1, "prediction_step"), (0, "save")):
            cases.append(Case("ranks", f"{what}-{rank}-{event}", _rank(what, rank, event)))
    return cases[:points]


def _rank(what: str, rank: int, event: str):
    def run_case(bench: Bench, folder: Path, rng: random.Random) -> str | None:
        events = (Event(event, rng.randint(10, 50), FAULTS[what], rank=rank),)
        running = start_ranks(bench, folder, 2, events=events)
        other = running[1 - rank]
        while all(one.poll() is None for one in running):
            time.sleep(0.02)

        code = other.wait(ENDS)
        running[rank].wait(10)
        output = "".join(one.output for one in running)
        errors = [line for line in output.splitlines() if line.startswith("error: ")]
        if HUNG in (code, running[rank].code):
            return f"not ended within {ENDS:.0f} s: {[one.code for one in running]}"
        if what == "exception":  # the rank that raised prints its traceback
            output, errors = other.output, errors[:1]
        if code != UNAVAILABLE or len(errors) != 1 or "Traceback" in output:
            return f"exit codes {[one.code for one in running]}, {len(errors)} error lines: {last_line(output)}"
        return restart_ranks(bench, folder)

    return run_case


def _loader(bench: Bench, folder: Path, rng: random.Random) -> str | None:
    plan = bench.subject.plan(folder, dataloader_num_workers=1)
    running = fork(plan)
    while running.poll() is None and running.output.count("tokens/s") < 10:
        time.sleep(0.005)

    workers = [pid for pid in running.left() if pid != running.pid]
    for pid in workers:
        os.kill(pid, 9)
    code, output = running.wait(ENDS), running.output

    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    if code != UNAVAILABLE or len(errors) != 1:  # Python may print torch's notice: "Exception ignored in …"
        return f"exit code {code} after {len(workers)} workers were killed: {last_line(output)}"
    if left := running.left(5):
        return f"processes are left: {left}"
    return bench.subject.restart(folder)


def _two_jobs(bench: Bench, folder: Path, rng: random.Random) -> str | None:
    first = fork(bench.subject.plan(folder))
    while first.poll() is None and not saved_steps(folder / "run"):
        time.sleep(0.005)
    code, output = complete(bench.subject.plan(folder, "log-second"))
    if code != 2 or "error: " not in output or "Traceback" in output:
        return f"the second job exits with {code}: {last_line(output)}"
    if first.wait() != 0:
        return f"the first job exits with {first.code}: {last_line(first.output)}"
    return bench.subject.differs(folder / "run")
