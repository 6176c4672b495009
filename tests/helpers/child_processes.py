"""Child processes, and their exit codes."""

import contextlib
import os
import sys
import traceback
from pathlib import Path


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


def accelerate_launch(words: list[str], log: Path, **environment: str) -> int:
    """Exit code of `accelerate launch`, called in a fork of this process: it does not import everything again.

    Args:
        words: its arguments.
        log: file to which it and the processes that it starts print.
    """

    def launch() -> None:
        from accelerate.commands.launch import main

        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(output, stream)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115 - until the end
        os.environ.update(environment)
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

    return code(child(launch))
