"""Fault injection: runs under kills, damaged checkpoints, signals, full disks, other world sizes and failing ranks.

    make faults                                          # all kinds: about 45 minutes on 2 cores
    python tests/faults/run_faults.py --small            # a sample of each kind: minutes
    python tests/faults/run_faults.py --only kills --kills 1000 --seed 7

Every case starts a tiny run, injects a fault, repeats the command, and compares the bytes with those of an
uninterrupted run. Prints a table, then one JSON line; a failed case prints the command that repeats it. The exit code
is 1 if a case failed.
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

ROOT = Path(__file__).parents[2]
PATHS = [str(ROOT / "tests"), str(ROOT / "src")]
if __name__ == "__main__":
    sys.path[:1] = PATHS  # in place of this folder, whose modules are imported as faults.…

# kind: (points, points with --small, description)
SIZES = {
    "enumerated": (None, 12, "kill -9 at every file-system call of a save and of the end"),
    "kills": (200, 8, "kill -9 at random, runs forked"),
    "corruptions": (300, 60, "damaged checkpoints detected, the previous one used"),
    "fallbacks": (30, 4, "damaged checkpoints, end to end"),
    "signals": (108, 8, "SIGTERM, SIGINT, SIGUSR1 in every phase"),
    "launched": (27, 2, "the same through `accelerate launch`, one process and two ranks"),
    "disk": (64, 6, "a full or failing disk at a call that writes"),
    "layouts": (12, 1, "other world sizes, accumulations, loaders: the same examples and losses"),
    "ranks": (10, 4, "a rank killed or failing; a killed loader; two jobs"),
}
WITHOUT_CALLS = {"corruptions", "layouts"}  # need no C compiler
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "RANK": "0"}


def parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--small", action="store_true", help="a sample of each kind")
    parser.add_argument("--only", help=f"kinds, separated by commas: {', '.join(SIZES)}")
    parser.add_argument("--case", help="only the case of this name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--work", type=Path, help="working folder; keeps the files of failed cases")
    for kind, (full, _, description) in SIZES.items():
        parser.add_argument(f"--{kind}", type=int, help=f"{description} (points: {full or 'all'})")
    return parser.parse_args()


def case_factories() -> dict[str, Callable]:
    """For each kind the function (bench, points) that returns its cases."""
    from faults import corruptions, disk, kills, layouts, ranks, signals

    return {
        "enumerated": kills.enumerated, "kills": kills.scattered, "corruptions": corruptions.detected,
        "fallbacks": corruptions.fallbacks, "signals": signals.signals, "launched": signals.launched,
        "disk": disk.full, "layouts": layouts.layouts, "ranks": ranks.ranks,
    }  # fmt: skip


def restart_with_preload(work: Path) -> None:
    """Restarts this program with calls.c loaded before libc, if there is a C compiler."""
    from faults.runs import build_calls, can_count

    if can_count() or os.environ.get("FAULTS_CALLS"):
        return

    library = build_calls(work)
    if library is None:
        print("no C compiler: cases that need failing file-system calls are skipped", flush=True)

    paths = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **ENVIRONMENT, "FAULTS_CALLS": str(library), "PYTHONPATH": paths}
    environment["TMPDIR"] = str(work)  # a killed run leaves the plans of its windows
    if library:
        environment["LD_PRELOAD"] = str(library)

    arguments = [sys.executable, *sys.argv]
    if "--work" not in sys.argv:
        arguments += ["--work", str(work)]
    os.execve(sys.executable, arguments, environment)


def run_all(bench, cases: list, jobs: int) -> list[dict]:
    """Runs the cases, `jobs` at a time; returns a row for each."""
    global _CASES, _BENCH
    _CASES, _BENCH = cases, bench  # inherited by the forked workers

    rows = []
    with multiprocessing.get_context("fork").Pool(jobs) as workers:
        for number, outcome, seconds in workers.imap_unordered(_run, range(len(cases))):
            case = cases[number]
            rows.append({"kind": case.kind, "name": case.name, "seconds": seconds, **vars(outcome)})
            if outcome.fault:
                print(f"FAILED {case.kind} {case.name}: {outcome.fault}", flush=True)
                flags = f"--seed {bench.seed} --only {case.kind} --case {case.name}{_size_flags()}"
                print(f"  repeat: python tests/faults/run_faults.py {flags}", flush=True)
    return rows


def _run(number: int):
    return number, *_BENCH.run(_CASES[number])


def _size_flags() -> str:
    """Those flags of this command that decide which cases are created."""
    given = [word for word in sys.argv[1:] if word == "--small"]
    for flag, value in zip(sys.argv, sys.argv[1:], strict=False):
        if flag.removeprefix("--") in SIZES:
            given += [flag, value]
    return "".join(f" {word}" for word in given)


def report(rows: list[dict], walls: dict[str, float], seed: int) -> dict:
    """Prints the table; returns the content of the JSON line."""
    kinds = {}
    print("\n| fault | points | passed | failed | seconds |\n|---|---:|---:|---:|---:|")
    for kind, (_, _, description) in SIZES.items():
        mine = [row for row in rows if row["kind"] == kind]
        if not mine:
            continue

        points = sum(row["points"] for row in mine)
        failed = sum(row["points"] for row in mine if row["fault"])
        notes: dict[str, int] = {}
        for row in mine:
            for name, count in row["notes"].items():
                notes[name] = notes.get(name, 0) + count

        counts = "".join(f"; {name}: {count}" for name, count in notes.items())
        print(f"| {description}{counts} | {points:,} | {points - failed:,} | {failed:,} | {walls[kind]:.0f} |")
        kinds[kind] = {"points": points, "failed": failed, "seconds": round(walls[kind], 1), **notes}

    ours = [row for row in rows if row["fault"]]
    faults = [{key: row[key] for key in ("kind", "name", "fault")} for row in ours]
    return {"seed": seed, "kinds": kinds, "faults": faults}


def main() -> int:
    args = parse_flags()
    work = (args.work or Path(tempfile.mkdtemp(prefix="faults-"))).absolute()
    work.mkdir(parents=True, exist_ok=True)
    restart_with_preload(work)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

    from helpers.many_runs import prepare_for_many_runs

    from faults.cases import Bench
    from faults.runs import can_count, recipe_module, warm
    from faults.subject import Subject

    recipe_module("pretrain")  # imports before the first fork what every fork needs
    subject = Subject(work)
    subject.prepare()
    (work / "warm").mkdir(exist_ok=True)
    warm(subject.plan(work / "warm", max_steps=6))
    prepare_for_many_runs()
    bench = Bench(subject, args.seed, work)
    subject.oracle()

    rows, walls = [], {}
    for kind in args.only.split(",") if args.only else SIZES:
        if not can_count() and kind not in WITHOUT_CALLS:
            continue
        full, small, _ = SIZES[kind]
        points = getattr(args, kind)
        if points is None:
            points = small if args.small else full

        begin = time.perf_counter()
        try:
            cases = case_factories()[kind](bench, points)
            rows += run_all(bench, [case for case in cases if args.case in (None, case.name)], args.jobs)
        except RuntimeError as error:  # an uninterrupted run, to compare with, failed
            print(f"FAILED {kind}: {error}", flush=True)
            rows.append({"kind": kind, "name": "preparation", "points": 1, "fault": str(error)[-300:], "notes": {}})
        walls[kind] = time.perf_counter() - begin
        points = sum(row["points"] for row in rows if row["kind"] == kind)
        print(f"{kind}: {points} points, {walls[kind]:.0f} s", flush=True)

    result = report(rows, walls, args.seed)
    print(json.dumps(result))
    return int(bool(result["faults"]))


if __name__ == "__main__":
    sys.exit(main())
