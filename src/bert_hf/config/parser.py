"""Fills the dataclasses of options from a YAML file and from the command line, which wins.

Unknown keys are errors, and so are values that are invalid for every option (empty, too long, not UTF-8).
"""

import argparse
import difflib
import itertools
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from transformers import HfArgumentParser, TrainingArguments
from transformers.hf_argparser import string_to_bool

from bert_hf.config.effects import refuse_without_effect
from bert_hf.config.files import yaml_options
from bert_hf.config.value_ranges import check_ranges
from bert_hf.errors import InputError, did_you_mean

_MAX_ARGUMENT_LENGTH = 4096  # characters of a word: no path is longer
# An option of the YAML file → options of the command line that replace it: both name data, network, schedule or length
_REPLACED_BY = {
    "dataset_name": {"train_file"},
    "dataset_config_name": {"train_file"},
    "train_file": {"dataset_name"},
    "model_name_or_path": {"config_name"},
    "lr_scheduler_type": {"decay_from_step_zero"},
    "lr_scheduler_kwargs": {"lr_scheduler_type", "decay_from_step_zero"},
    "max_steps": {"max_hours", "num_train_epochs"},
    "max_hours": {"max_steps", "num_train_epochs"},
}


class Limits(NamedTuple):
    """What `parse` checks of an option; see `option`."""

    range: str | None
    only_with: tuple[str, ...]
    not_with: tuple[str, ...]


def option(
    default,
    help: str,
    choices: Iterable | None = None,
    *,
    range: str | None = None,
    only_with: str | tuple[str, ...] = (),
    not_with: str | tuple[str, ...] = (),
):
    """Declares an option: a dataclass field with its help text and the limits that `parse` checks.

    Args:
        choices: the values that it may take.
        range: the interval of its numbers: "[0, 1)" includes 0 and excludes 1; "(0, inf)" is every positive number.
        only_with: it has no effect without this option, or without any of these: "dataset_name", or with the value
            that it needs "optim=muon".
        not_with: it has no effect with any of these.
    """
    metadata: dict[str, Any] = {"help": help.replace("%", "%%")}
    if choices:
        metadata["choices"] = choices
    metadata["limits"] = Limits(range, _tuple(only_with), _tuple(not_with))
    return field(default=default, metadata=metadata)


def _tuple(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def check_range(name: str, value, interval: str) -> None:
    """Raises an `InputError` if a number, or one in a list of numbers, is outside an interval; NaN is in none."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    for number in value if isinstance(value, list) else [value]:
        above = low <= number if interval[0] == "[" else low < number
        below = number <= high if interval[-1] == "]" else number < high
        if not (above and below):
            raise InputError(f"{number} is out of range", where=f"--{name}", remedy=f"it must be in {interval}")


class _Parser(HfArgumentParser):
    """argparse whose errors are `InputError`s."""

    def __init__(self, *args, **kwargs):
        self.limits: dict[str, Limits] = {}
        super().__init__(*args, **kwargs)

        # To each flag that is true by default, the parent class adds `--no_FLAG` with the help text of the flag.
        for action in self._actions:
            if isinstance(action, argparse._StoreFalseAction):
                action.help = f"The same as --{action.dest} false."
                action.default = argparse.SUPPRESS  # the default of the flag applies, and its help prints it

    def add_argument(self, *names, limits: Limits | None = None, **kwargs) -> argparse.Action:
        """Adds an option; the parent class hands the whole metadata of a field over."""
        action = super().add_argument(*names, **kwargs)
        if limits is not None:
            self.limits[action.dest] = limits
        return action

    def error(self, message: str):
        message = re.sub(r"^argument (--\w+)/--[\w-]+", r"argument \1", message.rstrip("."))  # one of its two names
        remedy = "--help lists every flag"

        if found := re.match(r"(argument (--\w+): invalid choice: '?(.*?)'?) \(choose from", message):
            message = found[1]
            choices = [str(choice) for choice in self._option_string_actions[found[2]].choices or ()]
            few = f"one of: {', '.join(choices)}" if len(choices) < 8 else remedy
            remedy = did_you_mean(found[3], choices).strip() or few

        raise InputError(message, where="command line", remedy=remedy)


def parse(
    classes: tuple[type, ...],
    argv: list[str] | None = None,
    default_config: str | None = None,
    preflight: Callable[..., Iterable[str]] | None = None,
    check_given: Callable[[Collection[str], Any], None] | None = None,
) -> tuple | None:
    """Fills dataclasses from `--config FILE.yaml` and the command line, which wins.

    Args:
        classes: dataclasses, of distinct field names.
        argv: the words of the command line without the program's name; `sys.argv[1:]` when None.
        default_config: the YAML used when neither `--config` nor any other flag is given.
        preflight: checks the options (see `bert_hf.preflight`) before a `TrainingArguments` is built, which joins
            the other ranks. It gets what is returned, with plain values in place of a `TrainingArguments`, and yields
            a line for each check that passed. With it there is a flag `--check`, which prints these lines and ends
            the command.
        check_given: gets the names of the options of the command line, and all values; refuses those of the former
            that have no effect, in addition to those of `effects.py`.

    Returns:
        The dataclasses; None after `--check true`, unless one of the dataclasses has an option `check` itself.

    Raises:
        InputError: unknown key or flag, value of the wrong type or out of range, missing or malformed file; or
            preflight refuses it.
    """
    checks_alone = preflight is not None and "check" not in (f.name for cls in classes for f in fields(cls))
    parser = _make_parser(classes, with_check=checks_alone)
    known, given = _read_values(parser, list(argv if argv is not None else sys.argv[1:]), default_config)

    # Plain dataclasses, checks, and then what joins the ranks
    built = {cls: _build(cls, known) for cls in classes if not issubclass(cls, TrainingArguments)}
    plain = [built.get(cls) or SimpleNamespace(**_values(cls, known)) for cls in classes]
    ranges = check_ranges(*plain)
    refuse_without_effect(given, known, parser.get_default)
    _check_limits(parser, known, given)
    if check_given is not None:
        check_given(given, known)
    if preflight is not None:
        for line in itertools.chain([ranges], preflight(*plain)):
            if known.check and os.environ.get("RANK", "0") == "0":
                print(f"  {line}", flush=True)

    if checks_alone and known.check:
        return None
    return tuple(built.get(cls) or _build(cls, known) for cls in classes)


def _make_parser(classes: Iterable[type], with_check: bool) -> _Parser:
    parser = _Parser(list(classes), allow_abbrev=False)
    parser.add_argument("--config", default=None, help="YAML file of the run; the command line wins over it.")
    if with_check:
        text = "Only check the files that the run would read, and where it would write."
        parser.add_argument("--check", type=string_to_bool, default=False, const=True, nargs="?", help=text)
    return parser


def _read_values(parser: _Parser, words: list[str], default_config: str | None) -> tuple[argparse.Namespace, set[str]]:
    """The values of all options, of a YAML file and of the command line, which wins; and the names that it gives."""
    _refuse_words(words)
    words = [expand_home(word) for word in words]
    known, unknown = parser.parse_known_args(words)
    _refuse_unknown(parser, unknown)
    given = {word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}

    config = known.config
    if config is None and not words:
        config = default_config
    if config is None:
        return known, given
    replacing = {name for name in given if getattr(known, name, None) is not False}  # a switch replaces if it is on
    return parser.parse_args(_yaml_words(parser, Path(config), replacing) + words), given


def expand_home(word: str) -> str:
    """A word of a command line with the home folder in place of `~`, which a shell leaves in `--name=~/path`."""
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return option + equals + (os.path.expanduser(value) if value.startswith("~") else value)


def _refuse_words(words: list[str]) -> None:
    """Refuses words that are invalid for every option."""
    for flag, word in zip(["", *words], words, strict=False):
        where = flag if flag.startswith("--") else word.partition("=")[0] or "command line"
        if len(word) > _MAX_ARGUMENT_LENGTH:
            raise InputError(f"a value of {len(word):,} characters", where=where, remedy="shorten it")
        if not word or re.fullmatch(r"--[\w-]+=", word):
            raise InputError("an empty value", where=where, remedy="give a value, or leave the option out")
        if "\0" in word:
            raise InputError("a NUL character", where=where, remedy="remove it")
        try:
            word.encode()
        except UnicodeEncodeError:
            raise InputError("bytes that are not UTF-8", where=where, remedy="rename what it names") from None


def _refuse_unknown(parser: _Parser, unknown: list[str], where: str = "command line", line: int | None = None) -> None:
    if unknown:
        name = unknown[0].split("=")[0]
        near = difflib.get_close_matches(name, parser._option_string_actions, 1)
        remedy = f"did you mean {near[0].lstrip('-')}?" if near else "--help lists every flag"
        raise InputError(f"unknown option {name.lstrip('-')!r}", where=where, line=line, remedy=remedy)


def _yaml_words(parser: _Parser, path: Path, replacing: set[str]) -> list[str]:
    """The entries of a YAML file as words of a command line, checked one by one so that an error names the line.

    Args:
        replacing: the options of the command line that may replace others of the file.
    """
    words: list[str] = []

    for name, line, entry in yaml_options(path):
        if name in ("help", "config"):
            raise InputError(f"{name} is no option of a run", where=path, line=line, remedy="remove this line")
        if f"--{name}" not in parser._option_string_actions:
            _refuse_unknown(parser, [f"--{name}"], where=str(path), line=line)

        try:
            _refuse_words(entry)
            if parser.parse_known_args(entry)[1]:
                raise InputError(f"{name} takes one value", remedy="")
        except InputError as error:
            raise InputError(error.what, where=path, line=line, remedy="correct this line") from None
        if not _REPLACED_BY.get(name, set()) & replacing:
            words += map(expand_home, entry)

    return words


def _check_limits(parser: _Parser, values: argparse.Namespace, names: Collection[str]) -> None:
    """Checks the range of each option, and that each option of the command line has an effect with all others.

    (A YAML file serves many runs: options of it that have no effect are ignored.)
    """

    def applies(entry: str) -> bool:
        name, _, value = entry.partition("=")
        current = getattr(values, name, None)
        if value:
            return str(getattr(current, "value", current)) == value
        return current not in (None, False, parser.get_default(name))

    for name, limits in parser.limits.items():
        value = getattr(values, name)
        if limits.range and value is not None:
            check_range(name, value, limits.range)
        if name not in names or not value:
            continue

        for other in filter(applies, limits.not_with):
            what = f"no effect with --{other.replace('=', ' ')}"
            raise InputError(what, where=f"--{name}", remedy="leave one of the two out")

        needed = limits.only_with
        if needed and not any(map(applies, needed)):
            what = f"no effect without --{needed[0].replace('=', ' ')}"
            raise InputError(what, where=f"--{name}", remedy="leave it out, or give both")


def _values(cls: type, values) -> dict:
    return {f.name: getattr(values, f.name) for f in fields(cls) if f.init}


def _build(cls: type, values):
    try:
        return cls(**_values(cls, values))
    except (ValueError, ImportError) as error:
        raise InputError(str(error), where="arguments", remedy="change the option it names") from None
