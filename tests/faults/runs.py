"""Starts runs of a recipe with injected faults: forked from a process that has imported everything, or launched.

A forked run saves seven seconds of imports. Before `main(argv)` it arms faults of file-system calls (calls.c) and of
the Trainer's events (hooks.py).
"""

import contextlib
import ctypes
import importlib.util
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
HUNG = "hung"  # in place of an exit code
PATIENCE = 120.0  # seconds after which a run hangs
KINDS = {
    "open": 1, "write": 2, "flush": 4, "move": 8, "remove": 16, "make": 32, "cut": 64, "close": 128, "mode": 256,
}  # fmt: skip
ALL_KINDS = sum(KINDS.values())
NEEDS_SPACE = sum(KINDS[name] for name in ("open", "write", "flush", "make", "cut"))  # may fail on a full disk
ACTIONS = ("count", "kill before", "kill after", "kill half", "fail", "fail on", "short", "short on", "raise")


@dataclass
class Call:
    """A fault at the k-th file-system call below a folder.

    Args:
        action: one of `ACTIONS`; `… on`: at each later call, too. `short`: half of a write, without an error.
        code: errno of a failure, or number of the signal that is raised.
        needle: only calls whose path contains this text count.
        kinds: only these kinds of calls count (a sum of `KINDS`).
        trace: file to which a line is written for each counted call.
    """

    folder: Path
    k: int = 0
    action: str = "count"
    code: int = 0
    needle: str = ""
    kinds: int = ALL_KINDS
    trace: Path | None = None

    def arm(self) -> None:
        trace = os.open(self.trace, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) if self.trace else -1
        library = ctypes.CDLL(None)
        folder, part = os.fsencode(self.folder.absolute()), self.needle.encode()
        number = ctypes.c_long(self.k)
        library.faults_arm(folder, part, number, ACTIONS.index(self.action), self.code, self.kinds, trace)


def can_count() -> bool:
    """True in a process that was started with calls.c preloaded."""
    return hasattr(ctypes.CDLL(None), "faults_arm")


def build_calls(folder: Path) -> Path | None:
    """Compiles calls.c into `folder`; None if there is no C compiler."""
    library = folder / "calls.so"
    source = Path(__file__).with_name("calls.c")
    for compiler in ("cc", "gcc", "clang"):
        command = [compiler, "-O1", "-fPIC", "-shared", "-w", "-o", str(library), str(source), "-ldl"]
        try:
            subprocess.run(command, check=True, capture_output=True)
            return library
        except (FileNotFoundError, subprocess.CalledProcessError):
            continue
    return None


@dataclass
class Event:
    """A fault at an event of the Trainer: a signal to this process, its group or its parent; an exception.

    Args:
        name: step_begin, step_end, prediction_step, evaluate or save: the Trainer's events.
        step: steps finished when the fault is triggered (0: in the first step), or more at a later event.
        action: number of a signal; "raise" for an exception.
        target: self, group or parent.
        times: how often the signal is sent.
        rank: the rank on which it is triggered.
    """

    name: str
    step: int
    action: int | str
    target: str = "self"
    times: int = 1
    rank: int = 0

    def trigger(self) -> None:
        if self.action == "raise":
            raise RuntimeError("injected: this rank fails")
        for _ in range(self.times):
            if self.target == "group":
                os.killpg(0, int(self.action))
            else:
                os.kill(os.getppid() if self.target == "parent" else os.getpid(), int(self.action))


@dataclass
class Plan:
    """A run to start: the recipe's flags, and its faults."""

    words: Sequence[str]
    log: Path
    recipe: str = "pretrain"
    call: Call | None = None
    events: tuple[Event, ...] = ()
    steps: Path | None = None  # file for the number of each finished step
    batches: Path | None = None  # file for each step's example numbers
    environment: dict[str, str] = field(default_factory=dict)


def recipe_module(name: str):
    """A recipe as a module, imported once."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / f"recipes/{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


class Running:
    """A started process whose output is a file."""

    def __init__(self, pid: int, log: Path, popen: subprocess.Popen | None = None):
        self.pid, self.log, self.popen = pid, log, popen
        self.code: int | str | None = None
        self.ended = 0.0  # when its end was noticed; time.monotonic() is the same clock in all processes

    def poll(self) -> int | str | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self.code is None:
            if self.popen:
                self.code = self.popen.poll()
            else:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.code = os.waitstatus_to_exitcode(status) if pid else None
            self.ended = time.monotonic()
        return self.code

    def wait(self, seconds: float = PATIENCE) -> int | str:
        """Its exit code; kills it and returns `HUNG` if it takes longer."""
        end = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                self.kill()
                self.code = HUNG
            time.sleep(0.002)
        return code

    def kill(self, number: int = signal.SIGKILL, whole_group: bool = True) -> None:
        """Signals its process group (it leads one), or only it; after SIGKILL waits for its end."""
        try:
            (os.killpg if whole_group else os.kill)(self.pid, number)
        except ProcessLookupError:
            return
        if number == signal.SIGKILL:
            while self.poll() is None:
                time.sleep(0.002)

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def left(self, seconds: float = 0) -> list[int]:
        """Processes of its session, and torchrun's ranks, that are still alive after so many seconds."""
        end = time.monotonic() + seconds
        while (found := sorted({*group_members(self.pid), *writers(self.log)})) and time.monotonic() < end:
            time.sleep(0.02)
        return found


def group_members(group: int) -> list[int]:
    """Live processes of a session, read from /proc: each of our runs starts a session."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = place.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == group and state not in "ZX":
            found.append(int(place.parent.name))
    return found


def writers(log: Path) -> list[int]:
    """Live processes whose standard output is this file: torchrun starts a new session for each rank."""
    found = []
    for place in Path("/proc").glob("[0-9]*/fd/1"):
        with contextlib.suppress(OSError):
            if os.readlink(place) == str(log) and int(place.parts[2]) != os.getpid():
                found.append(int(place.parts[2]))
    return found


def fork(plan: Plan) -> Running:
    """Starts a run in a fork of this process, as the leader of a new session."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Running(pid, plan.log)

    code = 1
    try:
        code = _in_the_child(plan)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _in_the_child(plan: Plan) -> int:
    os.setsid()
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG: no run outlives the harness
    for name in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(name, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)

    output = os.open(plan.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - until the end
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115

    os.environ.update(plan.environment)
    # A loader may start workers only in a process that is not a daemon.
    multiprocessing.current_process()._config["daemon"] = False  # pyright: ignore[reportAttributeAccessIssue] - private
    module = recipe_module(plan.recipe)
    sys.argv = [f"recipes/{plan.recipe}.py", *plan.words]

    if plan.events or plan.steps or plan.batches:
        from faults.hooks import install

        install(plan.events, plan.steps, plan.batches)
    if plan.call:
        plan.call.arm()
    return module.main(list(plan.words))


def fork_ranks(plans: Sequence[Plan]) -> list[Running]:
    """Starts the ranks of one run, each in a fork of this process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    ranks = []
    for rank, plan in enumerate(plans):
        plan.environment.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(len(plans)), LOCAL_WORLD_SIZE=str(len(plans)),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
        )  # fmt: skip
        ranks.append(fork(plan))
    return ranks


def complete(plan: Plan, seconds: float = PATIENCE) -> tuple[int | str, str]:
    """Runs to its end in a fork: exit code and output."""
    running = fork(plan)
    return running.wait(seconds), running.output


def launch(words: Iterable[str], log: Path, ranks: int = 1, launcher: bool = True) -> Running:
    """The real command line: `accelerate launch … recipes/pretrain.py …`, or plain `python`."""
    machine = ROOT / ("configs/accelerate/cpu_ddp.yaml" if ranks == 2 else "accelerate_config.yaml")
    front = ["-m", "accelerate.commands.launch", "--config_file", str(machine)]
    command = [sys.executable, *(front if launcher else []), str(ROOT / "recipes/pretrain.py"), *words]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    with open(log, "ab") as output:
        popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    return Running(popen.pid, log, popen)


def warm(plan: Plan) -> None:
    """Imports here all modules that a run imports, so that no fork has to: one run lists them."""
    recipe_module(plan.recipe)
    listing = plan.log.with_suffix(".modules")
    before = set(sys.modules)
    pid = os.fork()
    if not pid:
        try:
            _in_the_child(plan)
            listing.write_text("\n".join(set(sys.modules) - before))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)

    for name in listing.read_text().split() if listing.exists() else ():
        try:
            importlib.import_module(name)
        except Exception:
            continue  # a module that exists only in that run
