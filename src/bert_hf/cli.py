"""Runs a recipe from any directory, in this process or on several ranks: the console command `bert-hf`.

    bert-hf pretrain --config bert-mini-cpu --train_file 'corpus/*.txt'
    bert-hf classify --accelerate_config ddp --num_processes 8 --model_name_or_path runs/pretrain --train_file rows.csv

Several ranks are started by accelerate's own launcher, inside this process, so that the error of a rank stays the last
line and its exit code the command's (`trl sft` calls the launcher in the same way).
"""

import argparse
import logging
import os
import platform
import shlex
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import get_args

from bert_hf.config.arguments import LaunchArguments
from bert_hf.config.commands import COMMANDS
from bert_hf.config.package_files import COMMAND_VARIABLE, RECIPES, find_machine, recipe_main
from bert_hf.config.short_help import answer_help, description, set_environment
from bert_hf.errors import STOPPED, InputError, did_you_mean, one_line_errors


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run `bert-hf` with the words of its command line; return the exit code."""
    set_environment()
    words = list(sys.argv[1:] if argv is None else argv)
    name = words.pop(0) if words else "--help"
    if name in ("--help", "-h", "help"):
        print(_help())
        return 0
    if name in ("env", "--version"):
        print(environment())
        return 0
    if name not in COMMANDS:
        hint = did_you_mean(name, [*COMMANDS, "env"]) or "`bert-hf --help` lists them"
        raise InputError(f"unknown command {name!r}", remedy=hint.strip())

    os.environ[COMMAND_VARIABLE] = shlex.join(["bert-hf", name, *words])  # for the card and for started ranks
    try:
        return _run(name, words)
    finally:
        del os.environ[COMMAND_VARIABLE]


def _help() -> str:
    """Return the usage and one line per command: the first line of its description."""
    commands = "\n".join(f"  {name:10} {description(name).splitlines()[0]}" for name in COMMANDS)
    return f"""usage: bert-hf COMMAND [--config NAME|FILE.yaml] [--OPTION VALUE ...]

{commands}
  env        Print versions and device, for a bug report.

`bert-hf COMMAND --help` lists the options that are used most, and `--help all` every one."""


def _run(name: str, words: list[str]) -> int:
    """Run a recipe in this process, or on several ranks where they are asked for or the machine has several GPUs."""
    answer_help(name, words)  # for `--help` it ends the process here

    script = RECIPES / f"{COMMANDS[name].recipe}.py"
    if COMMANDS[name].trains and not {"--help", "-h"} & set(words):
        launch_args, words = _split_launch_options(words)
        machine, processes = launch_args.accelerate_config, launch_args.num_processes
        if processes is None:
            processes = _default_processes(machine)
        if machine is not None or processes > 1:
            return launch(script, words, find_machine(machine or "ddp"), processes)

    sys.argv[0] = f"bert-hf {name}"  # in the usage of `--help all`
    return recipe_main(script.stem)(words)


def _split_launch_options(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the `LaunchArguments` among the words of a command line, and the other words, which the recipe reads."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for field in fields(LaunchArguments):
        parser.add_argument(f"--{field.name}", type=get_args(field.type)[0])  # `int` of `int | None`
    try:
        return parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise InputError(str(error), where="command line", remedy="`bert-hf --help` shows an example") from None


def _default_processes(machine: str | None) -> int:
    """Return how many ranks to start: one per GPU, or 0 (as the file says) if `machine` is a file of the user."""
    if machine is not None and Path(machine).suffix:
        return 0

    import torch  # two seconds: not for `--help` and misspelled commands

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def launch(script: Path, words: Sequence[str], machine: Path, processes: int) -> int:
    """Run a script on ranks (0: as many as the machine's file says); return 0 or the code of the first that failed."""
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    options = ["--config_file", str(machine), *_deepspeed_option(machine)]
    options += ["--num_processes", str(processes)] if processes else []
    logging.disable(logging.ERROR)  # the failing rank has printed its error: the agent's report would follow it
    try:
        with warnings.catch_warnings(action="ignore"):
            launch_command(launch_command_parser().parse_args([*options, str(script), *words]))
    except (SignalException, KeyboardInterrupt):
        return STOPPED  # the ranks have saved, and said so
    except ChildFailedError as error:
        return abs(error.get_first_failure()[1].exitcode)
    except subprocess.CalledProcessError as error:
        return abs(error.returncode)
    finally:
        logging.disable(logging.NOTSET)
    return 0


def _deepspeed_option(machine: Path) -> list[str]:
    """Return the launcher's option for a DeepSpeed file that is named relative to our repository; [] if none is."""
    import yaml

    settings = yaml.safe_load(machine.read_text()) or {}
    name = (settings.get("deepspeed_config") or {}).get("deepspeed_config_file")
    if name is None or Path(name).is_file():
        return []
    return ["--deepspeed_config_file", str(machine.parents[1] / "deepspeed" / Path(name).name)]


def environment() -> str:
    """Return the versions of packages and system and the devices, one per line, for a bug report."""
    import torch

    from bert_hf.config.hardware import device_name

    names = "bert-hf torch transformers accelerate datasets tokenizers huggingface_hub deepspeed".split()
    versions = {package.name: package.version for package in metadata.distributions()}
    lines = [f"{name}: {versions.get(name, 'not installed')}" for name in names]
    devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())] or [torch.device("cpu")]
    lines.append(f"devices: {', '.join(map(device_name, devices))}")
    return "\n".join([*lines, f"python: {platform.python_version()}", f"system: {platform.platform()}"])


if __name__ == "__main__":
    sys.exit(main())
