"""SIGTERM, SIGINT, SIGUSR1 at any moment, to any process: saved within a step, nothing left, nothing lost."""

import itertools
import os
import random
import signal
import time
from pathlib import Path

from faults.cases import Bench, Case, Outcome
from faults.kills import saved_steps
from faults.layouts import join, start_ranks
from faults.runs import Call, Event, Running, fork, launch
from faults.subject import EVERY, last_line

STOPPED = 143
PROMPT = 10.0  # seconds: a step and a save of the tiny run take 0.1, and the machine may be busy
NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
PHASES = ("preparing", "first evaluation", "first step", "step", "evaluating", "saving", "ending", "any time")
TARGETS = (("self", 1), ("group", 1), ("self", 2))


def signals(bench: Bench, points: int) -> list[Case]:
    """To the script: every phase × every signal × the process, its group, twice in a row; forked runs."""
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
    """Flags of a run on raw text, which has to prepare its corpus."""
    return {"train_file": bench.subject.text, "cache_dir": cache, "vocab_size": 400}


def _stop(phase: str, number: signal.Signals, target: str, times: int):
    def play(bench: Bench, folder: Path, rng: random.Random) -> str | None:
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
            step = {"first evaluation": 0, "first step": 0, "evaluating": step + -step % EVERY}.get(phase, step)
            name = "step_begin" if phase == "first step" else name
            plan.events = (Event(name, step, int(number), target, times),)
        running = fork(plan)
        if phase == "any time":
            time.sleep(rng.uniform(0.3, 2.0))
            for _ in range(times):
                running.kill(number, whole_group=target == "group")
        code = running.wait()
        fault = _badly_stopped(running, code, folder, phase)
        name = "raw" if phase == "preparing" else "forked"
        return fault or bench.subject.restart(folder, name, **raw)

    return play


def _badly_stopped(running: Running, code: int | str, folder: Path, phase: str) -> str | None:
    """What is wrong with how a run ended that was signalled."""
    output = running.output
    if left := running.left(2):
        running.kill()
        return f"processes are left: {left}"
    if code != STOPPED:
        return f"ended with {code}: {last_line(output)}"
    lines = [line for line in output.splitlines() if line.startswith("stopped: ")]
    if len(lines) != 1 or "Traceback" in output:
        return f"{len(lines)} lines say that it stopped; last: {last_line(output)}"
    steps = (folder / "steps").read_text().split("\n") if (folder / "steps").exists() else []
    finished = [int(line) for line in steps if line.isdigit()]
    saved = saved_steps(folder / "run")
    if finished and (not saved or saved[-1] < finished[-1]):
        return f"step {finished[-1]} was finished, and {saved[-1:]} is saved: {lines[0]}"
    sent = [float(line.split()[1]) for line in steps if line.startswith("fault ")]
    if sent and running.ended - sent[0] > PROMPT:
        return f"it took {running.ended - sent[0]:.1f} s to stop"
    return None


# ---- through the launchers


LAUNCHED = (
    "script", "group", "launcher", "launcher twice", "imports", "torchrun", "torchrun group", "one rank", "preparing",
)  # fmt: skip


def launched_signals(bench: Bench, points: int) -> list[Case]:
    """`accelerate launch` of one process and of two ranks: to the launcher, to all, to one."""
    ranks_oracle(bench)
    bench.subject.oracle("raw", **_raw(bench, bench.work / "raw-cache"))
    every = list(itertools.product(LAUNCHED, NUMBERS))
    chosen = [every[number % len(every)] for number in range(points)]
    if points < len(every):
        chosen = bench.rng("launched").sample(every, points)
    return [Case("launched_signals", f"{number}-{target.replace(' ', '_')}-{what.name}", _stop_launched(target, what))
            for number, (target, what) in enumerate(chosen)]  # fmt: skip


def ranks_oracle(bench: Bench) -> None:
    """What two ranks leave that nothing befalls."""
    from faults.subject import fingerprint

    if "ranks" not in bench.subject.oracles:
        folder = bench.work / "oracle-ranks"
        folder.mkdir(exist_ok=True)
        codes = join(start_ranks(bench, folder, 2))
        if codes != [0, 0]:
            raise RuntimeError(f"two ranks end with {codes}: {(folder / 'log-0').read_text()[-2000:]}")
        bench.subject.oracles["ranks"] = fingerprint(folder / "run")


def restart_ranks(bench: Bench, folder: Path) -> str | None:
    """The same two ranks once more, compared with what two ranks leave."""
    ranks = start_ranks(bench, folder, 2, log="restart")
    codes = join(ranks)
    if codes != [0, 0]:
        return f"the restarted ranks end with {codes}: {last_line(ranks[0].output)}"
    return bench.subject.differs(folder / "run", "ranks")


def _stop_launched(target: str, number: signal.Signals):
    two = target in ("torchrun", "torchrun group", "one rank")

    def play(bench: Bench, folder: Path, rng: random.Random) -> str | Outcome | None:
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
            while running.output.count("{'loss'") < wanted and running.poll() is None and time.monotonic() < end:
                time.sleep(0.005)
        _send(running, target, number, rng)
        running.wait(40)
        if left := running.left(20):
            running.kill()
            return f"processes are left: {left}"
        return _badly_stopped_launched(running, folder, target) or (
            restart_ranks(bench, folder) if two else bench.subject.restart(folder, "raw" if raw else "forked", **raw)
        )

    return play


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
    """True for a rank, and not its launcher: its first words are the interpreter and the recipe."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return False
    return any(word.endswith("recipes/pretrain.py") for word in words[:3])


def _badly_stopped_launched(running: Running, folder: Path, target: str) -> str | None:
    lines = [line for line in running.output.splitlines() if line.startswith("stopped: ")]
    if target == "imports":
        return None
    if len(lines) != 1:
        return f"{len(lines)} lines say that it stopped; last: {last_line(running.output)}"
    finished, saved = running.output.count("{'loss'"), saved_steps(folder / "run")
    if finished and (not saved or saved[-1] < finished):
        return f"step {finished} was finished, and {saved[-1:]} is saved"
    return None
