"""Answers `--help` and a mistyped option at once: the options are declared beside torch, whose import takes seconds.

recipes/help/ has a page per recipe: the options that are used most, with their defaults. A recipe that trains also
takes the fields of `TrainingArguments`, whose names are read from the source. `--help all` prints every option.
"""

import importlib.util
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from bert_hf.config.package_files import CONSOLE_COMMANDS, RECIPES
from bert_hf.errors import InputError, did_you_mean, end_repeated_attempt, one_line_errors

_TRAINING = ("pretrain", "finetune_", "estimate", "study")  # recipes that take the options of a training run


def answer_at_once(script: str) -> None:
    """Ends the process where its command line asks for help, or has an unknown option, or a restart is in vain."""
    end_repeated_attempt()
    _look_beside_script_last(script)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported, after this
    if code := answer(Path(script).stem, sys.argv[1:]):
        sys.exit(code)


def _look_beside_script_last(script: str) -> None:
    """Find installed packages first: recipes/evaluate.py has the name of a library, and Python looks there first."""
    if os.path.realpath(sys.path[0]) == os.path.realpath(os.path.dirname(script)):
        sys.path.append(sys.path.pop(0))


@one_line_errors
def answer(recipe: str, words: list[str]) -> int:
    """Prints the page of a recipe and exits, as argparse does, or rejects a mistyped option; 0: the recipe can run."""
    page = help_page(recipe)
    if {"--help", "-h"} & set(words) and "all" not in words:
        print(page, end="")
        sys.exit(0)

    names = option_names(page) | {"help"}
    if recipe.startswith(_TRAINING):
        names |= _names_of_training()
    for word in words:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if word.startswith("--") and name.removeprefix("no_") not in names:
            raise unknown_option(name, names)
    return 0


def help_page(recipe: str) -> str:
    """Usage, description, examples, and a line per option."""
    command = next(name for name, script in CONSOLE_COMMANDS.items() if script == recipe)
    pages = [recipe, "finetune"] if recipe.startswith("finetune_") else [recipe]
    text = "".join((RECIPES / "help" / f"{page}.txt").read_text(encoding="utf-8") for page in pages)
    return f"usage: bert-hf {command} [--OPTION VALUE ...]\n\n{first_line(recipe)}\n\n{text}"


def first_line(recipe: str) -> str:
    """The first line of a recipe's docstring: what it does."""
    with open(RECIPES / f"{recipe}.py", encoding="utf-8") as file:
        return file.readline().strip().strip('"')


def option_names(page: str) -> set[str]:
    """The options that a page has a line for."""
    return set(re.findall(r"^  --(\w+)", page, re.MULTILINE))


def _names_of_training() -> set[str]:
    """The fields of the option classes of bert_hf and of transformers' `TrainingArguments`; nothing is imported."""
    transformers: Any = importlib.util.find_spec("transformers")
    sources = [*Path(__file__).parent.glob("*arguments.py"), Path(transformers.origin).with_name("training_args.py")]

    text = "\n".join(source.read_text(encoding="utf-8") for source in sources)
    return {"config", "check", "help", *re.findall(r"^    (\w+): ", text, re.MULTILINE)}


def unknown_option(
    name: str, names: Collection[str], where: str | Path = "command line", line: int | None = None
) -> InputError:
    """The error of an unknown option, with the most similar one as the remedy."""
    remedy = did_you_mean(name, names).strip() or "--help lists the options"
    return InputError(f"unknown option {name!r}", where=where, line=line, remedy=remedy)
