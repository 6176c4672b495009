"""The command of a run: one line for its errors, its own line for the card, and the suggested next one."""

import functools
import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch.distributed as dist

from bert_hf.config.hardware import was_launched
from bert_hf.config.package_files import COMMAND_VARIABLE, in_clone
from bert_hf.errors import InputError, one_line_errors
from bert_hf.training.output_folder import release_lock
from bert_hf.training.preemption import explain_start, handle_signals


def command(main: Callable[..., int]) -> Callable[..., int]:
    """Decorate the `main` of a recipe that trains: an error is one line, and a signal ends it with all saved."""

    @functools.wraps(main)
    def guarded(*args, **kwargs) -> int:
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch")  # what libraries call in it
        try:
            with handle_signals():
                # Prints the line before a second signal can end it
                return one_line_errors(explain_start()(main))(*args, **kwargs)
        finally:
            release_lock()
            if dist.is_initialized() and dist.get_backend() == "gloo":  # its threads may abort a process that exits
                dist.destroy_process_group()

    return one_line_errors(guarded)


def command_line() -> str:
    """Return the command that was given. (A launcher does not pass its own options on to the script.)"""
    launcher = ["accelerate", "launch"] if was_launched() else ["python"]
    return os.environ.get(COMMAND_VARIABLE) or shlex.join([*launcher, *sys.argv])


def next_command(name: str, *words: str | Path) -> str:
    """Return a command of `bert-hf` that can be pasted into the shell."""
    return shlex.join([program("bert-hf"), name, *map(str, words)])


def check_installed(extra: str, *packages: str) -> None:
    """Check that the packages of an extra are installed."""
    if missing := [name for name in packages if find_spec(name) is None]:
        what = f"-c constraints.txt -e '.[{extra}]'" if in_clone() else f"'bert-hf[{extra}]'"
        remedy = f"{program('pip')} install {what}"
        raise InputError(f"not installed: {', '.join(missing)}", remedy=remedy)


def program(name: str) -> str:
    """Return a program of this Python for the shell: its name, or its path where the name means another program."""
    beside_python = Path(sys.executable).with_name(name)
    on_path = shutil.which(name)
    if not beside_python.is_file() or (on_path is not None and beside_python.samefile(on_path)):
        return name
    return str(beside_python.relative_to(Path.cwd()) if beside_python.is_relative_to(Path.cwd()) else beside_python)
