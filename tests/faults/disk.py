"""A full or failing disk at any call that writes: one error line, exit code 2, the last valid checkpoint is kept."""

import errno
import random
from pathlib import Path

from bert_hf.training.checkpoints import checkpoint_files
from faults.cases import Bench, Case
from faults.kills import LATE, late_calls
from faults.runs import NEEDS_SPACE, Call, complete
from faults.subject import EVERY, last_line

FAULTS = (
    ("fail on", errno.ENOSPC), ("short on", errno.ENOSPC), ("fail", errno.EIO), ("fail on", errno.EDQUOT),
    ("short", 0), ("fail on", errno.EROFS), ("fail", errno.ENOSPC), ("short on", errno.EDQUOT),
)  # fmt: skip
WRITING_CALLS = ("open", "openat", "creat", "write", "pwrite", "writev", "sendfile", "fsync", "fdatasync", "mkdir",
             "ftruncate", "posix_fallocate", "link", "symlink")  # fmt: skip


def full(bench: Bench, points: int) -> list[Case]:
    """Faults at writing calls, spread from the save before the last one to the end; every tenth at the first calls."""
    calls = sum(line.split()[1] in WRITING_CALLS for line in late_calls(bench))
    cases = []
    for number in range(points):
        action, code = FAULTS[number % len(FAULTS)]
        k = 1 + (number * calls) // points
        name = f"{k}-{action.replace(' ', '_')}-{errno.errorcode.get(code, 'short')}"
        cases.append(Case("disk", f"{number}-{name}", _fail_at(k, action, code, early=number % 10 == 9)))
    return cases


def _fail_at(k: int, action: str, code: int, early: bool):
    def run_case(bench: Bench, folder: Path, rng: random.Random) -> str | None:
        if not early:
            bench.subject.copied(folder, bench.subject.snapshot(LATE))
        plan = bench.subject.plan(folder)
        plan.call = Call(folder / "run", rng.randint(1, 30) if early else k, action, code, kinds=NEEDS_SPACE)

        code_found, output = complete(plan)
        errors = [line for line in output.splitlines() if line.startswith("error: ")]
        if code_found == 0:  # a short write is completed, and some files are optional
            return bench.subject.differs(folder / "run")
        if code_found != 2 or len(errors) != 1 or "Traceback" in output:
            return f"exit code {code_found}, {len(errors)} error lines: {last_line(output)}"
        if not early and not _has_valid_checkpoint(folder / "run"):
            return "no valid checkpoint is left"
        return bench.subject.restart(folder)

    return run_case


def _has_valid_checkpoint(run: Path) -> bool:
    """True if a checkpoint verifies that is not older than the newest one before the fault."""
    for folder in checkpoint_files.checkpoints(run):
        try:
            return checkpoint_files.verify(folder)["step"] >= LATE - EVERY
        except checkpoint_files.DamagedCheckpoint:
            continue
    return False
