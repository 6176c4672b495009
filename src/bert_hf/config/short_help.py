"""Answers `--help` at once, from the declared options: importing torch takes seconds.

`--help` lists the options of our declarations but those with `common=False`; `--help all` lists every one.
"""

import argparse
import ast
import functools
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from bert_hf.config.arguments import CheckArguments, ConfigArguments, LaunchArguments
from bert_hf.config.commands import COMMANDS, Command
from bert_hf.config.options import declarations
from bert_hf.config.package_files import RECIPES


def answer_at_once(module: str) -> None:
    """Set import path and environment and answer `--help` if a recipe (`module`: its `__name__`) runs as a script."""
    if module != "__main__":
        return
    # Python looks beside the script last: recipes/evaluate.py has the name of a library
    if os.path.realpath(sys.path[0]) == os.path.realpath(os.path.dirname(sys.argv[0])):
        sys.path.append(sys.path.pop(0))
    set_environment()
    for name, command in COMMANDS.items():
        if command.recipe == Path(sys.argv[0]).stem:  # argparse answers for a recipe that is no command
            answer_help(name, sys.argv[1:])


def set_environment() -> None:
    """Let torch's C++ code log only errors, unless the user has set its level. Called before torch is imported."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def answer_help(name: str, words: list[str]) -> None:
    """Print the help of a command and exit, as argparse does, if its command line asks for it."""
    if {"--help", "-h"} & set(words) and "all" not in words:  # argparse answers `--help all`
        print(help_page(name))
        sys.exit(0)


def help_page(name: str) -> str:
    """Return usage, description, examples and the common options of a command."""
    return f"usage: bert-hf {name} [--OPTION VALUE ...]\n\n{description(name)}\n\n{options_page(name)}"


def description(name: str) -> str:
    """Return the docstring of the command's recipe: purpose and examples."""
    source = (RECIPES / f"{COMMANDS[name].recipe}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)) or ""


def options_page(name: str) -> str:
    """Return the common options of a command, each under the first line of the docstring of its option class."""
    formatter = functools.partial(argparse.HelpFormatter, max_help_position=37, width=119)
    page = argparse.ArgumentParser(add_help=False, usage=argparse.SUPPRESS, formatter_class=formatter)
    sections = {}
    for cls in help_classes(COMMANDS[name]):
        for field, declared in declarations(cls):
            if declared.get("common"):
                heading = (_declaring_class(cls, field.name).__doc__ or "").splitlines()[0].rstrip(".")
                if heading not in sections:
                    sections[heading] = page.add_argument_group(heading)
                shown = _default_or_placeholder(field, declared)
                sections[heading].add_argument(f"--{field.name}", metavar=shown, help=declared["help"])
    return f"{page.format_help()}\n`--help all` lists every option."


def help_classes(command: Command) -> Iterator[type]:
    """Yield the option classes that the help of a command describes: its own, then those that commands share."""
    yield from command.options
    own_check = any(field.name == "check" for cls in command.options for field in fields(cls))
    yield ConfigArguments if own_check else CheckArguments
    if command.trains:
        yield LaunchArguments


def _declaring_class(cls: type, name: str) -> type:
    """Return `cls` or its most general parent that declares the option `name`: its docstring is the heading."""
    return next(parent for parent in reversed(cls.__mro__) if name in getattr(parent, "__annotations__", ()))


def _default_or_placeholder(field: Field, declared: Mapping[str, Any]) -> str:
    """Return what the page shows as an option's value: its default; without one, its choices or a placeholder: `N`."""
    type_name = str(field.type)
    choices = "|".join(map(str, declared.get("choices", ())))
    if "bool" in type_name:  # the flag alone turns on what is off by default
        return {True: "true", False: "", None: "true|false"}[field.default]
    if field.default not in (None, -1):  # -1: not set
        return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
    if 0 < len(choices) < 20:  # they fit into the column
        return choices
    word = "N" if "int" in type_name or "float" in type_name else field.name.rpartition("_")[2].upper()
    return word + (" ..." if "list" in type_name else "")
