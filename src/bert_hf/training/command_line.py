"""Builds shell commands: the run's own command, for its card, and the suggested next one."""

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from bert_hf.config.hardware import was_launched
from bert_hf.config.package_files import COMMAND_VARIABLE, CONSOLE_COMMANDS


def command_line(default_config: Path | None = None) -> str:
    """The command that was given, with the launcher's options.

    Args:
        default_config: the YAML file that the recipe reads where no option is given; it is then named.
    """
    if given := os.environ.get(COMMAND_VARIABLE):  # by `bert-hf`, which finds its files from any directory
        return given
    words = [*_launcher(), *sys.argv]
    if len(sys.argv) == 1 and default_config is not None:
        words += ["--config", os.path.relpath(default_config)]
    return shlex.join(words)


def _launcher() -> list[str]:
    """The words before the script, e.g. `accelerate launch --config_file a.yaml`, from the parent's command line.

    (The launcher does not pass its options on to its child.)
    """
    names = {
        "accelerate": ["accelerate"],
        "accelerate-launch": ["accelerate-launch"],
        "accelerate.commands.launch": ["accelerate", "launch"],
        "torchrun": ["torchrun"],
    }
    words: list[str] = []
    with contextlib.suppress(OSError):  # Linux
        words = Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")

    before = words[: words.index(sys.argv[0])] if sys.argv[0] in words else []
    for place, word in enumerate(before):
        if known := names.get(Path(word).name):
            return known + before[place + 1 :]
    return ["accelerate", "launch"] if was_launched() else ["python"]


def program(name: str) -> str:
    """A program of this Python installation for the shell: its name, or its path where the name means another one."""
    beside_python = Path(sys.executable).with_name(name)
    on_path = shutil.which(name)
    if not beside_python.is_file() or (on_path is not None and beside_python.samefile(on_path)):
        return name
    return str(beside_python.relative_to(Path.cwd()) if beside_python.is_relative_to(Path.cwd()) else beside_python)


def next_command(
    root: Path, recipe: str, config: str | None, *words: str, **paths: str | Path | Sequence[str | Path]
) -> str:
    """A command that can be pasted into the shell: a recipe under `accelerate_config.yaml`, with a run's YAML file.

    In a run of `bert-hf` it is the next `bert-hf` command.

    Args:
        root: the project's folder. recipe, config: name and path in it; None: a recipe that trains no network.
        words: non-path options and their values.
        paths: options whose values are paths.
    """
    script = os.path.relpath(root / "recipes" / f"{recipe}.py")
    if COMMAND_VARIABLE in os.environ:
        names = {script: name for name, script in CONSOLE_COMMANDS.items()}
        command = [program("bert-hf"), names[recipe], *(["--config", Path(config).stem] if config else [])]
    elif config is None:
        command = [program("python"), script]
    else:
        machine = os.path.relpath(root / "accelerate_config.yaml")
        command = [program("accelerate"), "launch", "--config_file", machine, script]
        command += ["--config", os.path.relpath(root / config)]
    command += words

    for option, given in paths.items():
        several = [given] if isinstance(given, str | Path) else given
        command += [f"--{option}", *map(str, several)]
    return shlex.join(command)
