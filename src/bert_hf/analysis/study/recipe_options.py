"""Reads the options that a study passes on to its recipe: those of the command line, and of its YAML file."""

import glob
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from bert_hf.config.files import yaml_options


def recipe_options(argv: Iterable[str]) -> dict[str, list[str]]:
    """Options and their values as the recipe reads them: the command line wins over the file of `--config`.

    >>> recipe_options(["--task", "cola", "--train_file", "a.tsv", "b.tsv", "--fp16", "--seed=1"])
    {'task': ['cola'], 'train_file': ['a.tsv', 'b.tsv'], 'fp16': [], 'seed': ['1']}

    Raises:
        InputError: the YAML file cannot be read.
    """
    given = _values(argv)
    config = config_of(argv)
    if config is None:
        return given
    return _values(word for _, _, entry in yaml_options(config) for word in entry) | given


def config_of(argv: Iterable[str]) -> str | None:
    """The file of `--config`; None where there is none."""
    return (_values(argv).get("config") or [None])[-1]


def without_options(argv: Iterable[str], names: Collection[str]) -> list[str]:
    """The words of a command line without some options and their values.

    >>> without_options(["--eval_steps", "5", "--seed=1", "--fp16"], ["eval_steps"])
    ['--seed=1', '--fp16']
    """
    kept: list[str] = []
    keeps = True
    for word in argv:
        if word.startswith("--"):
            keeps = word[2:].partition("=")[0] not in names
        if keeps:
            kept.append(word)
    return kept


def _values(argv: Iterable[str]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    name = ""
    for word in argv:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            values[name] = [value] if equals else []
        elif name:
            values[name].append(word)
    return values


def files_of_options(options: dict[str, list[str]]) -> list[Path]:
    """The files on this machine that the options name: by path or glob, or as all files of a folder of data.

    Folders of other options are left out: a checkpoint is compared by its weights.
    """
    found: dict[str, None] = {}
    for name, values in options.items():
        for value in values:
            paths = [value]
            if os.path.isdir(value) and (name == "data_dir" or name.endswith("_file")):
                paths = glob.glob(f"{glob.escape(value)}/**", recursive=True)
            elif glob.has_magic(value) and not os.path.lexists(value):
                paths = glob.glob(value, recursive=True)
            found |= dict.fromkeys(path for path in sorted(paths) if os.path.isfile(path))
    return list(map(Path, found))
