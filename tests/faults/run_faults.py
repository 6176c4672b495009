"""What a run survives: kills, damaged checkpoints, signals, full disks, other world sizes, dying ranks.

    make torture                                         # all of it: about an hour on 2 cores
    python benchmarks/torture.py --small                 # a little of each: minutes
    python benchmarks/torture.py --only kills --kills 1000 --seed 7

Every case is "a tiny run under faults, the same command again, the bytes of the uninterrupted run". Prints a table,
then one JSON line; a failure prints the command that plays it again. Exits with 1 where something of ours failed.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "src"), str(ROOT / "tests")]
# kind: (points in full size, points in small size, what it is)
SIZES = {
    "enumerated": (None, 12, "kill -9 at every file-system call of a save and of the end"),
    "kills": (200, 8, "kill -9 at random, runs forked"),
    "marathon": (100, 6, "kill -9, one single run"),
    "launched": (100, 2, "kill -9 through `accelerate launch`"),
    "corruptions": (520, 60, "damaged checkpoints found, the next one taken"),
    "fallbacks": (30, 4, "damaged checkpoints, end to end"),
    "loads": (1000, 100, "good checkpoints loaded without an alarm"),
    "signals": (108, 8, "SIGTERM, SIGINT, SIGUSR1 in every phase"),
    "launched_signals": (27, 2, "the same through `accelerate launch`, one process and two ranks"),
    "disk": (64, 6, "a full or broken disk at a call that needs it"),
    "layouts": (12, 1, "other world sizes, accumulations, loaders: the same examples and losses"),
    "ranks": (20, 4, "a rank killed, stopped or failing; a loader; two jobs; no folder"),
    "inputs": (None, None, "bad inputs, one line each"),
    "stock": (30, 4, "for comparison: kill -9, stock Trainer"),
}
WITHOUT_CALLS = {"launched", "corruptions", "loads", "layouts", "inputs"}  # what needs no C compiler
COMPARISON = {"stock"}  # what fails there is no fault of ours
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "RANK": "0"}


def words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="a little of each kind")
    parser.add_argument("--only", help=f"kinds, with commas between: {', '.join(SIZES)}")
    parser.add_argument("--case", help="of those kinds only the case of this name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--work", type=Path, help="folder to work in; what failed stays in it")
    for kind, (full, _, what) in SIZES.items():
        parser.add_argument(f"--{kind}", type=int, help=f"{what} (points: {full or 'all'})")
    return parser.parse_args()


def makers() -> dict[str, Callable]:
    """kind → (bench, points) → cases."""
    from faults import corruptions, disk, inputs, kills, layouts, ranks, signals, stock

    return {
        "enumerated": kills.enumerated, "kills": kills.scattered, "marathon": kills.marathon,
        "launched": kills.launched, "corruptions": corruptions.detected, "fallbacks": corruptions.fallbacks,
        "loads": corruptions.good_loads, "signals": signals.signals, "launched_signals": signals.launched_signals,
        "disk": disk.full, "layouts": layouts.layouts, "ranks": ranks.ranks, "inputs": inputs.inputs,
        "stock": stock.stock,
    }  # fmt: skip


def stand_behind_the_calls(work: Path) -> None:
    """Starts this program anew with calls.c in front of libc, where a C compiler is at hand."""
    from faults.runs import build_calls, can_count

    if can_count() or os.environ.get("TORTURE_CALLS"):
        return
    library = build_calls(work)
    if library is None:
        print("no C compiler is at hand: what needs file-system calls to fail is left out", flush=True)
    paths = os.pathsep.join([*sys.path[:3], *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **ENVIRONMENT, "TORTURE_CALLS": str(library), "PYTHONPATH": paths}
    if library:
        environment["LD_PRELOAD"] = str(library)
    arguments = [sys.executable, *sys.argv]
    if "--work" not in sys.argv:
        arguments += ["--work", str(work)]
    os.execve(sys.executable, arguments, environment)


def play_all(bench, cases: list, jobs: int) -> list[dict]:
    """Plays the cases, `jobs` at a time; a row each."""
    global _CASES, _BENCH
    _CASES, _BENCH = cases, bench  # forked lanes inherit them
    rows = []
    with multiprocessing.get_context("fork").Pool(jobs) as lanes:
        for number, outcome, seconds in lanes.imap_unordered(_play, range(len(cases))):
            case = cases[number]
            rows.append({"kind": case.kind, "name": case.name, "seconds": seconds, **vars(outcome)})
            if outcome.fault and case.kind not in COMPARISON:
                print(f"FAILED {case.kind} {case.name}: {outcome.fault}", flush=True)
                print(f"  again: python benchmarks/torture.py --seed {bench.seed} --only {case.kind} "
                      f"--case {case.name}{_sizes()}", flush=True)  # fmt: skip
    return rows


def _play(number: int):
    return number, *_BENCH.play(_CASES[number])


def _sizes() -> str:
    """The flags of this command that decide which cases there are."""
    given = [word for word in sys.argv[1:] if word == "--small"]
    for flag, value in zip(sys.argv, sys.argv[1:], strict=False):
        if flag.removeprefix("--") in SIZES:
            given += [flag, value]
    return "".join(f" {word}" for word in given)


def report(rows: list[dict], walls: dict[str, float], seed: int) -> dict:
    """Prints the table; returns what the JSON line holds."""
    kinds = {}
    print("\n| fault | points | passed | failed | seconds |\n|---|---:|---:|---:|---:|")
    for kind, (_, _, what) in SIZES.items():
        mine = [row for row in rows if row["kind"] == kind]
        if not mine:
            continue
        points, failed = sum(row["points"] for row in mine), sum(row["points"] for row in mine if row["fault"])
        notes: dict[str, int] = {}
        for row in mine:
            for name, count in row["notes"].items():
                notes[name] = notes.get(name, 0) + count
        said = "".join(f"; {name}: {count}" for name, count in notes.items())
        print(f"| {what}{said} | {points:,} | {points - failed:,} | {failed:,} | {walls[kind]:.0f} |")
        kinds[kind] = {"points": points, "failed": failed, "seconds": round(walls[kind], 1), **notes}
    ours = [row for row in rows if row["fault"] and row["kind"] not in COMPARISON]
    faults = [{key: row[key] for key in ("kind", "name", "fault")} for row in ours]
    return {"seed": seed, "kinds": kinds, "faults": faults}


def main() -> int:
    args = words()
    work = (args.work or Path(tempfile.mkdtemp(prefix="torture-"))).absolute()
    work.mkdir(parents=True, exist_ok=True)
    stand_behind_the_calls(work)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs are told to ignore

    from faults.cases import Bench
    from faults.runs import can_count, warm
    from faults.subject import Subject

    subject = Subject(work)
    subject.prepare()
    (work / "warm").mkdir(exist_ok=True)
    warm(subject.plan(work / "warm", max_steps=6))
    bench = Bench(subject, args.seed, work)
    subject.oracle()
    rows, walls = [], {}
    for kind in args.only.split(",") if args.only else SIZES:
        if not can_count() and kind not in WITHOUT_CALLS:
            continue
        full, small, _ = SIZES[kind]
        points = getattr(args, kind)
        begin = time.perf_counter()
        try:
            cases = makers()[kind](bench, points if points is not None else small if args.small else full)
            rows += play_all(bench, [case for case in cases if args.case in (None, case.name)], args.jobs)
        except RuntimeError as error:  # the runs that the others are compared with do not end
            print(f"FAILED {kind}: {error}", flush=True)
            rows.append({"kind": kind, "name": "preparation", "points": 1, "fault": str(error)[-300:], "notes": {}})
        walls[kind] = time.perf_counter() - begin
        print(f"{kind}: {sum(row['points'] for row in rows if row['kind'] == kind)} points, "
              f"{walls[kind]:.0f} s", flush=True)  # fmt: skip
    result = report(rows, walls, args.seed)
    print(json.dumps(result))
    return int(bool(result["faults"]))


if __name__ == "__main__":
    sys.exit(main())
