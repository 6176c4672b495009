"""Runs that change world size, accumulation and loader: the same examples in the same order, the same losses."""

import json
import random
import time
from pathlib import Path

from faults.cases import Bench, Case
from faults.runs import HUNG, PATIENCE, Event, Running, fork, fork_ranks
from faults.subject import EVERY, last_line

CHANGES = (EVERY, EVERY + 54)  # steps after which the layout changes
STEPS = CHANGES[1] + 54
AGREE = 50  # so many steps after a change the losses are compared
TOLERANCE = 1e-6  # relative, fp32
# (ranks, sequences in a micro-batch, micro-batches in a step, loader workers): always 16 sequences in a step
ONE, BIG, SMALL, WORKERS = (1, 8, 2, 0), (1, 16, 1, 0), (1, 4, 4, 0), (1, 8, 2, 2)
TWO, TWO_SMALL, TWO_WORKERS = (2, 8, 1, 0), (2, 4, 2, 0), (2, 8, 1, 2)
SEQUENCES = (
    (ONE, TWO, ONE), (TWO, ONE, TWO), (ONE, BIG, SMALL), (ONE, WORKERS, ONE), (WORKERS, ONE, WORKERS),
    (ONE, TWO_SMALL, BIG), (TWO_SMALL, SMALL, TWO), (TWO, TWO_WORKERS, TWO), (SMALL, TWO_WORKERS, WORKERS),
    (BIG, ONE, TWO_SMALL), (WORKERS, TWO, BIG), (TWO_WORKERS, TWO_SMALL, ONE),
)  # fmt: skip


def start_ranks(bench: Bench, folder: Path, ranks: int, log: str = "log", events=(), **changes) -> list[Running]:
    """Starts the ranks of a run in `folder`/run; their outputs are files in `folder`."""
    plans = []
    for rank in range(ranks):
        plan = bench.subject.plan(folder, f"{log}-{rank}", **changes)
        plan.events, plan.batches = events, folder / "batches"
        plans.append(plan)
    return fork_ranks(plans) if ranks > 1 else [fork(plans[0])]


def wait_for_ranks(ranks: list[Running], seconds: float = PATIENCE) -> list[int | str | None]:
    """Waits for all ranks and returns their exit codes; after one is killed, kills the others."""
    end = time.monotonic() + seconds
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() == -9 for rank in ranks) or time.monotonic() > end:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                    rank.code = HUNG if time.monotonic() > end else -9
        time.sleep(0.005)
    return [rank.code for rank in ranks]


def layouts(bench: Bench, points: int) -> list[Case]:
    """Runs that change their layout twice, compared with one that does not."""
    folder = bench.work / "layouts"
    if not folder.exists():
        folder.mkdir()
        codes = wait_for_ranks(_part(bench, folder, ONE))
        if codes != [0]:
            output = (folder / "log-0").read_text()[-2000:]
            raise RuntimeError(f"the run without a change exits with {codes}: {output}")
    return [Case("layouts", _name(sequence), _change(sequence)) for sequence in SEQUENCES[:points]]


def _name(sequence: tuple) -> str:
    """`1x8x2x0-2x8x1x0` for one rank, then two."""
    return "-".join("x".join(map(str, layout)) for layout in sequence)


def _part(bench: Bench, folder: Path, layout: tuple, log: str = "log", until: int | None = None) -> list[Running]:
    ranks, micro, accumulated, workers = layout
    events = () if until is None else tuple(Event("save", until, 9, rank=rank) for rank in range(ranks))
    return start_ranks(
        bench, folder, ranks, log, events, max_steps=STEPS, dropout=0, per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulated, dataloader_num_workers=workers,
    )  # fmt: skip


def _change(sequence: tuple):
    def run_case(bench: Bench, folder: Path, rng: random.Random) -> str | None:
        for number, (layout, until) in enumerate(zip(sequence, (*CHANGES, None), strict=True)):
            ranks = _part(bench, folder, layout, f"log-{number}", until)
            codes = wait_for_ranks(ranks)
            if set(codes) != {0 if until is None else -9}:
                return f"part {number} exits with {codes}: {last_line(ranks[0].output)}"

        expected, found = examples(bench.work / "layouts"), examples(folder)
        wrong = [step for step in expected if found.get(step) != expected[step]]
        if wrong or len(expected) != STEPS:
            return f"other examples or another order in steps {wrong[:5]} of {len(expected)}"
        return _compare(losses(bench.work / "layouts"), losses(folder))

    return run_case


def examples(folder: Path) -> dict[int, list]:
    """For each step its examples (numbers, digest) in the order of the run, over all micro-batches and ranks."""
    parts: dict[int, dict] = {}
    for path in folder.glob("batches.*"):
        for line in path.read_text().splitlines():
            step, batches = json.loads(line)
            for place, (numbers, contents) in enumerate(batches):
                rows = list(zip(map(tuple, numbers), contents, strict=True))
                parts.setdefault(step, {})[place, int(path.suffix[1:])] = rows
    return {step: [row for _, rows in sorted(places.items()) for row in rows] for step, places in parts.items()}


def losses(folder: Path) -> dict[int, list[float]]:
    history = json.loads((folder / "run/trainer_state.json").read_text())["log_history"]
    return {row["step"]: [row[name] for name in ("loss", "mlm_loss", "nsp_loss")] for row in history if "loss" in row}


def _compare(expected: dict, found: dict) -> str | None:
    worst, where = 0.0, None
    for change in CHANGES:
        for step in range(change + 1, change + AGREE + 1):
            for a, b in zip(expected[step], found[step], strict=True):
                if abs(a - b) > worst * abs(a):
                    worst, where = abs(a - b) / abs(a), step
    return f"losses differ by {worst:.1e} in step {where}" if worst > TOLERANCE else None
