"""SIGTERM, SIGINT, SIGUSR1 at any moment, to any process: a checkpoint after the step, no process left."""

import itertools
import os
import random
import signal
import time
from pathlib import Path

from faults.cases import Bench, Case, Outcome
from faults.kills import saved_steps
from faults.layouts import start_ranks, wait_for_ranks
from faults.runs import Call, Event, Running, fork, launch
from faults.subject import EVERY, last_line

STOPPED = 143
PROMPT = 10.0  # seconds: a step and a save of the tiny run take 0.1, and the machine may be busy
NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
PHASES = ("preparing", "first evaluation", "first step", "step", "evaluating", "saving", "ending", "any time")
TARGETS = (("self", 1), ("group", 1), ("self", 2))


def signals(bench: Bench, points: int) -> list[Case]:
    """To forked runs: each phase × each signal × the process, its group, or the process twice."""
    every = list(itertools.product(PHASES, NUMBERS, TARGETS))
    chosen = [every[number % len(every)] for number in range(max(points, len(every)))]
    if points < len(every):
        chosen = bench.rng("signals").sample(every, points)

    if any(phase == "preparing" for phase, _, _ in chosen):
        bench.subject.oracle("raw", **_raw(bench, bench.work / "raw-cache"))

    cases = []
    for number, (phase, what, (target, times)) in enumerate(chosen):
        name = f"{number}-{phase.replace(' ', '_')}-{what.name}-{target}-{times}"
        cases.append(Case("signals", name, _stop(phase, what, target, times)))
    return cases


def _raw(bench: Bench, cache: Path) -> dict:
    """Flags of a run on raw text, which prepares its corpus first."""
    return {"train_file": bench.subject.text, "cache_dir": cache, "vocab_size": 400}


def _stop(phase: str, number: signal.Signals, target: str, times: int):
    def run_case(bench: Bench, folder: Path, rng: random.Random) -> str | None:
        raw = _raw(bench, folder / "cache") if phase == "preparing" else {}
        plan = bench.subject.plan(folder, **raw)
        plan.steps = folder / "steps"
        step = rng.randrange(1, 50)
        if phase == "preparing":
            plan.call = Call(folder / "cache", rng.randint(1, 20), "raise", number)
        elif phase == "saving":
            plan.call = Call(folder / "run", rng.randint(1, 200), "raise", number, needle="saving-")
        elif phase == "ending":
            plan.call = Call(folder / "run", rng.randint(1, 4), "raise", number, needle="_results.json")
        elif phase != "any time":
            name = "prediction_step" if "evaluati" in phase else rng.choice(("step_begin", "step_end"))
            name = "step_begin" if phase == "first step" else name
            step = {"first evaluation": 0, "first step": 0, "evaluating": step + -step % EVERY}.get(phase, step)
            plan.events = (Event(name, step, int(number), target, times),)

        running = fork(plan)
        if phase == "any time":
            time.sleep(rng.uniform(0.3, 2.0))
            for _ in range(times):
                running.kill(number, whole_group=target == "group")
        code = running.wait()

        fault = _shutdown_fault(running, code, folder)
        name = "raw" if phase == "preparing" else "forked"
        return fault or bench.subject.restart(folder, name, **raw)

    return run_case


def _shutdown_fault(running: Running, code: int | str, folder: Path) -> str | None:
    """A fault of the shutdown after a signal, or None."""
    output = running.output
    if left := running.left(2):
        running.kill()
        return f"processes are left: {left}"
    if code != STOPPED:
        return f"exit code {code}: {last_line(output)}"
    lines = [line for line in output.splitlines() if line.startswith("stopped: ")]
    if len(lines) != 1 or "Traceback" in output:
        return f"{len(lines)} lines report the signal; last: {last_line(output)}"

    steps = (folder / "steps").read_text().split("\n") if (folder / "steps").exists() else []
    finished = [int(line) for line in steps if line.isdigit()]
    saved = saved_steps(folder / "run")
    if finished and (not saved or saved[-1] < finished[-1]):
        return f"step {finished[-1]} was finished, and {saved[-1:]} is saved: {lines[0]}"

    sent = [float(line.split()[1]) for line in steps if line.startswith("fault ")]
    if sent and running.ended - sent[0] > PROMPT:
        return f"it took {running.ended - sent[0]:.1f} s to stop"
    return None


LAUNCHED = (
    "script", "group", "launcher", "launcher twice", "imports", "torchrun", "torchrun group", "one rank", "preparing",
)  # fmt: skip


def launched(bench: Bench, points: int) -> list[Case]:
    """`accelerate launch` with one process and with two ranks: to the launcher, to all processes, to one."""
    ranks_oracle(bench)
    bench.subject.oracle("raw", **_raw(bench, bench.work / "raw-cache"))
    every = list(itertools.product(LAUNCHED, NUMBERS))
    chosen = [every[number % len(every)] for number in range(points)]
    if points < len(every):
        chosen = bench.rng("launched").sample(every, points)

    cases = []
    for number, (target, what) in enumerate(chosen):
        name = f"{number}-{target.replace(' ', '_')}-{what.name}"
        cases.append(Case("launched", name, _stop_launched(target, what)))
    return cases


def ranks_oracle(bench: Bench) -> None:
    """Fingerprint of an uninterrupted run on two ranks."""
    from faults.subject import fingerprint

    if "ranks" not in bench.subject.oracles:
        folder = bench.work / "oracle-ranks"
        folder.mkdir(exist_ok=True)
        codes = wait_for_ranks(start_ranks(bench, folder, 2))
        if codes != [0, 0]:
            raise RuntimeError(f"two ranks exit with {codes}: {(folder / 'log-0').read_text()[-2000:]}")
        bench.subject.oracles["ranks"] = fingerprint(folder / "run")


def restart_ranks(bench: Bench, folder: Path) -> str | None:
    """Repeats the command of two ranks and compares with an uninterrupted run."""
    ranks = start_ranks(bench, folder, 2, log="restart")
    codes = wait_for_ranks(ranks)
    if codes != [0, 0]:
        return f"the repeated ranks exit with {codes}: {last_line(ranks[0].output)}"
    return bench.subject.differs(folder / "run", "ranks")


def _stop_launched(target: str, number: signal.Signals):
    two = target in ("torchrun", "torchrun group", "one rank")

    def run_case(bench: Bench, folder: Path, rng: random.Random) -> str | Outcome | None:
        raw = _raw(bench, folder / "cache") if target == "preparing" else {}
        words = bench.subject.words(folder / "run", **raw)
        running = launch(words, folder / "log", ranks=2 if two else 1)
        end, wanted = time.monotonic() + 90, rng.randint(1, 40)
        if target == "imports":
            time.sleep(rng.uniform(0.5, 4))
        elif target == "preparing":
            while not (folder / "cache").exists() and running.poll() is None and time.monotonic() < end:
                time.sleep(0.005)
        else:
            while running.output.count("\nstep ") < wanted and running.poll() is None and time.monotonic() < end:
                time.sleep(0.005)

        _send(running, target, number, rng)
        running.wait(40)
        if left := running.left(20):
            running.kill()
            return f"processes are left: {left}"
        return _launched_fault(running, folder, target) or (
            restart_ranks(bench, folder) if two else bench.subject.restart(folder, "raw" if raw else "forked", **raw)
        )

    return run_case


def _send(running: Running, target: str, number: signal.Signals, rng: random.Random) -> None:
    if target in ("group", "torchrun group"):
        running.kill(number)
    elif target in ("script", "one rank"):
        members = [pid for pid in running.left() if _runs_recipe(pid)]
        if members:
            os.kill(rng.choice(members), number)
    else:
        for _ in range(2 if "twice" in target else 1):
            running.kill(number, whole_group=False)


def _runs_recipe(pid: int) -> bool:
    """True for a rank, False for its launcher: a rank's command line begins with the interpreter and the recipe."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return False
    return any(word.endswith("recipes/pretrain.py") for word in words[:3])


def _launched_fault(running: Running, folder: Path, target: str) -> str | None:
    lines = [line for line in running.output.splitlines() if line.startswith("stopped: ")]
    if target == "imports":
        return None
    if len(lines) != 1:
        return f"{len(lines)} lines report the signal; last: {last_line(running.output)}"
    finished, saved = running.output.count("\nstep "), saved_steps(folder / "run")
    if finished and (not saved or saved[-1] < finished):
        return f"step {finished} was finished, and {saved[-1:]} is saved"
    return None
