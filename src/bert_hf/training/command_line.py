"""Builds shell commands: the run's own command, for its card, and the suggested next one."""

import os
import shlex
import shutil
import sys
from pathlib import Path

from bert_hf.config.hardware import was_launched
from bert_hf.config.package_files import COMMAND_VARIABLE


def command_line() -> str:
    """The command that was given. (A launcher does not pass its own options on to the script.)"""
    launcher = ["accelerate", "launch"] if was_launched() else ["python"]
    return os.environ.get(COMMAND_VARIABLE) or shlex.join([*launcher, *sys.argv])


def program(name: str) -> str:
    """A program of this Python installation for the shell: its name, or its path where the name means another one."""
    beside_python = Path(sys.executable).with_name(name)
    on_path = shutil.which(name)
    if not beside_python.is_file() or (on_path is not None and beside_python.samefile(on_path)):
        return name
    return str(beside_python.relative_to(Path.cwd()) if beside_python.is_relative_to(Path.cwd()) else beside_python)


def next_command(name: str, *words: str | Path) -> str:
    """A command of `bert-hf` that can be pasted into the shell."""
    return shlex.join([program("bert-hf"), name, *map(str, words)])
