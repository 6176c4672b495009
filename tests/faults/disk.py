"""A disk that is full or broken at any call that needs it: one line, exit code 2, the last good checkpoint stands."""

import errno
import random
from pathlib import Path

from faults.cases import Bench, Case
from faults.kills import LATE, late_calls
from faults.runs import NEEDS_ROOM, Call, complete
from faults.subject import EVERY, last_line

from bert_hf.training import checkpointing

FAULTS = (
    ("fail on", errno.ENOSPC), ("short on", errno.ENOSPC), ("fail", errno.EIO), ("fail on", errno.EDQUOT),
    ("short", 0), ("fail on", errno.EROFS), ("fail", errno.ENOSPC), ("short on", errno.EDQUOT),
)  # fmt: skip
NEED_ROOM = ("open", "openat", "creat", "write", "pwrite", "writev", "sendfile", "fsync", "fdatasync", "mkdir",
             "ftruncate", "posix_fallocate", "link", "symlink")  # fmt: skip


def full(bench: Bench, points: int) -> list[Case]:
    """Spread over all calls that need room from the save before the last one to the end; and in a run's first ones."""
    calls = sum(line.split()[1] in NEED_ROOM for line in late_calls(bench))
    cases = []
    for number in range(points):
        action, code = FAULTS[number % len(FAULTS)]
        k = 1 + (number * calls) // points
        name = f"{k}-{action.replace(' ', '_')}-{errno.errorcode.get(code, 'short')}"
        cases.append(Case("disk", f"{number}-{name}", _refuse(k, action, code, early=number % 10 == 9)))
    return cases


def _refuse(k: int, action: str, code: int, early: bool):
    def play(bench: Bench, folder: Path, rng: random.Random) -> str | None:
        if not early:
            bench.subject.copied(folder, bench.subject.snapshot(LATE))
        plan = bench.subject.plan(folder)
        plan.call = Call(folder / "run", rng.randint(1, 30) if early else k, action, code, kinds=NEEDS_ROOM)
        ended, output = complete(plan)
        said = [line for line in output.splitlines() if line.startswith("error: ")]
        if ended == 0:  # a write may be short, and what a folder can do without may fail
            return bench.subject.differs(folder / "run")
        if ended != 2 or len(said) != 1 or "Traceback" in output:
            return f"ended with {ended}, {len(said)} lines of error: {last_line(output)}"
        if not early and not _good(folder / "run"):
            return "no good checkpoint is left"
        return bench.subject.restart(folder)

    return play


def _good(run: Path) -> bool:
    """True where a checkpoint verifies that is not older than the newest one before the fault."""
    for folder in checkpointing.checkpoints(run):
        try:
            return checkpointing.verify(folder)["step"] >= LATE - EVERY
        except checkpointing.DamagedCheckpoint:
            continue
    return False
