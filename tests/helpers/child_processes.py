"""Child processes, and their exit codes."""

import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[2]


def child(action) -> int:
    """A process that runs `action` and ends with 0."""
    pid = os.fork()
    if pid == 0:
        code = 99
        with contextlib.suppress(BaseException):
            action()
            code = 0
        os._exit(code)
    return pid


def code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def launch_ranks(log: Path, *words: str | Path, machine: str = "cpu_ddp") -> tuple[int, str]:
    """Exit code and output of `accelerate launch` with a file of configs/accelerate: see `start_launcher`."""
    file = ROOT / f"configs/accelerate/{machine}.yaml"
    command = ["--config_file", str(file), "--main_process_port", "0", *map(str, words)]
    done = code(start_launcher(command, log, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=""))
    return done, log.read_text()


def start_launcher(words: list[str], log: Path, **environment: str) -> int:
    """A process of `accelerate launch`, called in a fork of this process; its ranks are forks, too.

    None of them imports everything again: that takes seven seconds, and longer than what a rank of a test computes.

    Args:
        words: its arguments.
        log: file to which it and the processes that it starts print.
    """

    def launch() -> None:
        from accelerate.commands.launch import main
        from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(output, stream)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115 - until the end
        os.environ.update(environment)
        SubprocessHandler._popen = lambda _, command, environment: ForkedRank(command, environment)
        sys.argv = ["accelerate-launch", *words]
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            sys.stdout.flush()
            sys.stderr.flush()

    return child(launch)


class ForkedRank:
    """A rank's process for torchrun: the part of `subprocess.Popen` that it uses, on a fork that runs the script."""

    def __init__(self, command: tuple[str, ...], environment: dict[str, str]):
        script_and_words = list(command[command.index("-u") + 1 :])  # python -u SCRIPT WORD …
        self._process = multiprocessing.get_context("fork").Process(
            target=run_as_a_new_process, args=(script_and_words, environment)
        )
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("a rank", timeout or 0.0)
        return self.poll()


def run_as_a_new_process(script_and_words: list[str], environment: dict[str, str]) -> None:
    """Runs a script in a fork, with what a new interpreter has: environment, signals, warnings, accelerate's state."""
    import torch
    from accelerate.state import AcceleratorState, GradientState

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):  # torchrun handles them
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)

    warnings.resetwarnings()
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))

    sys.argv = script_and_words
    runpy.run_path(script_and_words[0], run_name="__main__")
