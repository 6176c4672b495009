"""Runs a recipe's `main` with one-line errors and signals handled; writes command lines; checks installed packages."""

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
from bert_hf.training.preemption import explain_lost_connection, handle_signals


def command(main: Callable[..., int]) -> Callable[..., int]:
    """Decorate the `main` of a recipe that trains: print errors as one line, handle signals, release the lock."""

    @functools.wraps(main)
    def guarded(*args, **kwargs) -> int:
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch")  # deprecated, called by libraries
        try:
            with handle_signals():
                explained_main = explain_lost_connection()(main)
                # Also in here, so that the line is printed before a second signal can end the process
                return one_line_errors(explained_main)(*args, **kwargs)
        finally:
            release_lock()
            if dist.is_initialized() and dist.get_backend() == "gloo":  # its threads may abort a process that exits
                dist.destroy_process_group()

    return one_line_errors(guarded)


def command_line() -> str:
    """Return the command that was given, without the options of its launcher, which this process does not know."""
    launcher = ["accelerate", "launch"] if was_launched() else ["python"]
    return os.environ.get(COMMAND_VARIABLE) or shlex.join([*launcher, *sys.argv])  # `bert-hf` sets the variable


def next_command(name: str, *words: str | Path) -> str:
    """Return the command `bert-hf NAME WORDS`, quoted for the shell."""
    return shlex.join([_how_to_call("bert-hf"), name, *map(str, words)])


def check_installed(extra: str, *packages: str) -> None:
    """Raise an `InputError` with the command of pip if a package of an extra, by its import name, is not installed."""
    if missing := [name for name in packages if find_spec(name) is None]:
        requirement = f"-c constraints.txt -e '.[{extra}]'" if in_clone() else f"'bert-hf[{extra}]'"
        raise InputError(f"not installed: {', '.join(missing)}", remedy=f"{_how_to_call('pip')} install {requirement}")


def _how_to_call(program: str) -> str:
    """Return how to call a program installed beside this Python: by name, or by path unless the shell finds it."""
    beside_python = Path(sys.executable).with_name(program)
    on_path = shutil.which(program)
    if not beside_python.is_file() or (on_path is not None and beside_python.samefile(on_path)):
        return program
    if beside_python.is_relative_to(Path.cwd()):
        beside_python = beside_python.relative_to(Path.cwd())
    return str(beside_python)
