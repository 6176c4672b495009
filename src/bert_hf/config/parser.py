"""Fills the dataclasses of options from a YAML file and from the command line, which wins.

An option is declared once: a dataclass field `name: type = option(default, help, …)`. `parse` reads the rest of the
declaration: the interval of a number, and the other options without which, or with which, it has no effect.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVarTuple, cast

import yaml
from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from bert_hf.config.files import read_input_text
from bert_hf.config.package_files import find_config
from bert_hf.config.short_help import unknown_option
from bert_hf.errors import InputError, first_line

# A key of a YAML file → options of the command line that replace it: both name data, network, schedule or length
_REPLACED_BY = {
    "dataset_name": {"train_file"},
    "dataset_config_name": {"train_file"},
    "train_file": {"dataset_name"},
    "model_name_or_path": {"config_name"},
    "lr_scheduler_kwargs": {"lr_scheduler_type"},
    "max_steps": {"max_hours", "num_train_epochs"},
    "max_hours": {"max_steps", "num_train_epochs"},
}


# ---- declaration


class Limits(NamedTuple):
    """Constraints of an option, checked by `parse`; see `option`."""

    range: str | None
    only_with: tuple[str, ...]
    not_with: tuple[str, ...]


def option(
    default: Any,
    help: str,
    choices: Iterable | None = None,
    *,
    range: str | None = None,
    only_with: str | tuple[str, ...] = (),
    not_with: str | tuple[str, ...] = (),
) -> Any:
    """Declares an option: a dataclass field with its help text and the limits that `parse` checks.

    Args:
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
            raise InputError(f"{number} is out of range", where=f"--{name}", remedy=f"must be in {interval}")


# ---- command line and YAML

Options = TypeVarTuple("Options")  # the dataclasses that are filled, as `check` takes them


def parse(
    classes: tuple[type, ...],
    argv: list[str] | None = None,
    default_config: str | None = None,
    check: Callable[[*Options], Iterable[str]] | None = None,
    dry_run: Callable[[*Options], Iterable[str]] | None = None,
    required: Iterable[str] = (),
) -> tuple[*Options] | None:
    """Fills dataclasses from `--config FILE.yaml` and the command line, which wins.

    Args:
        classes: dataclasses with distinct field names.
        argv: the words of the command line without the program's name; `sys.argv[1:]` if None.
        default_config: the YAML that is used if there is neither `--config` nor any other flag.
        check: gets the dataclasses, checks what would waste long work, and yields one line per successful check.
        dry_run: the same for what the command reads at its start anyway: only with the flag `--check`, which prints
            all lines and ends the command. There is this flag with either function.

    Returns:
        The dataclasses (one that declares `from_command_line` has the names of the given options there); None after
        `--check true`, unless one of the dataclasses has an option `check` itself.

    Raises:
        InputError: an unknown key or flag, a value of the wrong type or out of range, a missing or malformed file, an
            option of the command line that has no effect with the others; or `check` fails.
    """
    checks_only = (check or dry_run) is not None and "check" not in (f.name for cls in classes for f in fields(cls))
    parser = _Parser(classes, checks_only)
    values, names = _read_values(parser, _words(argv), default_config)

    _check_limits(parser, values, names)
    try:
        built = tuple(cls(**{f.name: getattr(values, f.name) for f in fields(cls) if f.init}) for cls in classes)
    except ImportError as error:
        what, remedy = first_line(error), "install the package, or leave the option out"
        if "deepspeed" in what:
            what, remedy = "the package deepspeed is not installed", 'pip install "bert-hf[deepspeed]"'
        raise InputError(what, where="arguments", remedy=remedy) from None
    except ValueError as error:
        raise InputError(str(error), where="arguments", remedy="fix the option") from None
    for each in built:
        if hasattr(each, "from_command_line"):
            vars(each)["from_command_line"] = frozenset(names)

    for name in required:
        if getattr(values, name) is None:
            raise InputError("missing option", where=f"--{name}", remedy="--help shows an example")

    checking = getattr(values, "check", False)
    for function in filter(None, (check, dry_run if checking else None)):
        for line in function(*cast(tuple[*Options], built)):
            if checking and os.environ.get("RANK", "0") == "0":
                print(f"  {line}", flush=True)
    return None if checks_only and checking else cast(tuple[*Options], built)


class _Parser(HfArgumentParser):
    """argparse whose errors are `InputError`s, and which knows the declaration of each option."""

    def __init__(self, classes: tuple[type, ...], with_check: bool):
        self.limits: dict[str, Limits] = {}
        for cls in classes:
            _inherit_declarations(cls)
        usage = "%(prog)s [--config FILE.yaml] [--OPTION VALUE ...]"
        super().__init__(list[Any](classes), allow_abbrev=False, usage=usage)

        # To each flag that is true by default, the parent class adds `--no_FLAG` with the help text of the flag
        for action in self._actions:
            if isinstance(action, argparse._StoreFalseAction):
                action.help = f"The same as --{action.dest} false."
                action.default = argparse.SUPPRESS  # the default of the flag applies, and its help prints it

        # Options that are always refused are not listed
        refused = set().union(*(getattr(cls, "refused", ()) for cls in classes))
        for action in self._actions:
            if action.dest in refused:
                action.help = argparse.SUPPRESS

        self.add_argument("--config", default=None, help="YAML file of the run, or its name in configs/.")
        if with_check:
            text = "Only check the files that the run would read, and where it would write."
            self.add_argument("--check", type=string_to_bool, default=False, const=True, nargs="?", help=text)

    def add_argument(self, *names, limits: Limits | None = None, **kwargs) -> argparse.Action:
        """Adds an option; the parent class hands the whole metadata of a field over."""
        action = super().add_argument(*names, **kwargs)
        if limits is not None:
            self.limits[action.dest] = limits
        return action

    def error(self, message: str):
        message = re.sub(r"^argument (--\w+)/--[\w-]+", r"argument \1", message)  # one of its two names
        raise InputError(message, where="command line", remedy="--help lists the options")

    def check_known(self, flags: list[str], where: str | Path = "command line", line: int | None = None) -> None:
        """Raises an `InputError` for the first of some unknown flags."""
        if flags:
            names = [flag.removeprefix("--") for flag in self._option_string_actions]
            raise unknown_option(flags[0].partition("=")[0].removeprefix("--"), names, where, line)


def _inherit_declarations(cls: type) -> None:
    """Gives a field that only has another default, as `max_seq_length: int = 384`, the declaration of its parent's."""
    for f in fields(cls):
        parents = (parent.__dataclass_fields__.get(f.name) for parent in cls.__mro__ if is_dataclass(parent))
        f.metadata = next((parent.metadata for parent in parents if parent and parent.metadata), f.metadata)


def with_flags(words: list[str], first: str, others: str) -> list[str]:
    """Adds the flags that the first words of a command line lack: `M A B --x y` → `--first M --others A B --x y`."""
    count = next((place for place, word in enumerate(words) if word.startswith("--")), len(words))
    flags = [f"--{first}", *words[:1]] if count else []
    return flags + ([f"--{others}", *words[1:count]] if count > 1 else []) + words[count:]


def _words(argv: list[str] | None) -> list[str]:
    words = [expand_home(word) for word in (sys.argv[1:] if argv is None else argv)]
    for flag, word in zip(["", *words], words, strict=False):
        if not word or re.fullmatch(r"--[\w-]+=", word):  # such as "$FILE" of a shell that has no such variable
            where = word.rstrip("=") or flag
            raise InputError("empty value", where=where, remedy="give a value, or leave the option out")
    return words


def expand_home(word: str) -> str:
    """Expands `~` in `--name=~/path`, which shells leave alone."""
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return flag + equals + (os.path.expanduser(value) if value.startswith("~") else value)


def _read_values(
    parser: _Parser, words: list[str], default_config: str | None
) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The values of all options, and those that the command line gives, by name."""
    values, unknown = parser.parse_known_args(words)
    parser.check_known(unknown)
    names = {word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    from_command_line = {name: getattr(values, name) for name in names if hasattr(values, name)}

    config = values.config or (None if words else default_config)
    if config is not None:
        path = find_config(config, "pretrain", "finetune")
        values = parser.parse_args(_words_of_yaml(parser, path, from_command_line) + words)
    return values, from_command_line


def _words_of_yaml(parser: _Parser, path: Path, named: dict[str, Any]) -> list[str]:
    """The entries of a YAML file as words of a command line, parsed one by one so that an error has its line.

    Args:
        named: options of the command line, which replace others of the file unless they are switched off.
    """
    replacing = {name for name, value in named.items() if value is not False}
    words: list[str] = []
    for name, line, entry in yaml_entries(path):
        if f"--{name}" not in parser._option_string_actions or name in ("help", "config"):
            parser.check_known([f"--{name}"], where=path, line=line)

        try:
            parser.parse_args(entry)
        except InputError as error:
            raise InputError(error.what, where=path, line=line, remedy="fix this line") from None

        if not _REPLACED_BY.get(name, set()) & replacing:
            words += map(expand_home, entry)
    return words


def yaml_entries(path: Path) -> Iterator[tuple[str, int, list[str]]]:
    """(name, line, words of a command line) of each entry of a flat YAML file; an empty value has no words.

    A scalar is taken as it is written, for the option's own type to convert: YAML 1.1 reads 32:0.2 as a number of
    base 60, 010 as 8 and the language `no` as false.
    """
    text = read_input_text(path, "give --config the path of a YAML file")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or "invalid character"
        line = mark.line + 1 if mark else None
        raise InputError(f"invalid YAML: {reason}", where=path, line=line, remedy="fix the file") from None
    if not isinstance(node, yaml.MappingNode | None):
        raise InputError("not a mapping", where=path, line=1, remedy="write one `key: value` per line")

    seen: dict[str, int] = {}
    for key, value in node.value if node is not None else ():
        line = key.start_mark.line + 1
        if key.value in seen:
            what = f"duplicate key {key.value!r}, first in line {seen[key.value]}"
            raise InputError(what, where=path, line=line, remedy="remove one of them")
        seen[key.value] = line
        yield key.value, line, _words_of_entry(key.value, value)


def _words_of_entry(name: str, node: yaml.Node) -> list[str]:
    if isinstance(node, yaml.MappingNode):
        return [f"--{name}={json.dumps(yaml.SafeLoader('').construct_document(node))}"]
    if isinstance(node, yaml.SequenceNode):
        return [f"--{name}", *(str(item.value) for item in node.value)]
    return [] if node.tag.endswith(":null") else [f"--{name}={node.value}"]


# ---- checks of declarations


def _check_limits(parser: _Parser, values: argparse.Namespace, named: dict[str, Any]) -> None:
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
        if not named.get(name):
            continue

        for other in filter(applies, limits.not_with):
            what = f"no effect with --{other.replace('=', ' ')}"
            raise InputError(what, where=f"--{name}", remedy="use one or the other")

        needed = limits.only_with
        if needed and not any(map(applies, needed)):
            what = f"no effect without --{needed[0].replace('=', ' ')}"
            raise InputError(what, where=f"--{name}", remedy="leave it out, or give both")
