"""Builds shell commands: the run's own command, for its card, and the suggested next one."""

import contextlib
import os
import shlex
import shutil
import sys
from pathlib import Path

from bert_hf.config.hardware import was_launched
from bert_hf.config.package_files import COMMAND_VARIABLE

_LAUNCHERS = ("accelerate", "accelerate-launch", "torchrun")


def command_line() -> str:
    """The command that was given, with the launcher's options."""
    return os.environ.get(COMMAND_VARIABLE) or shlex.join([*_launcher(), *sys.argv])


def _launcher() -> list[str]:
    """The words before the script, e.g. `accelerate launch --config_file a.yaml`, from the parent's command line.

    (The launcher does not pass its options on to its child.)
    """
    words: list[str] = []
    with contextlib.suppress(OSError):  # Linux
        words = Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")

    before = words[: words.index(sys.argv[0])] if sys.argv[0] in words else []
    for place, word in enumerate(before):
        if (name := Path(word).name) in _LAUNCHERS:
            return [name, *before[place + 1 :]]
    return ["accelerate", "launch"] if was_launched() else ["python"]


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
