"""Fills the dataclasses of options from a YAML file and from the command line, which wins."""

import argparse
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVarTuple, cast

import yaml
from transformers import HfArgumentParser

from bert_hf.config.arguments import CheckArguments, ConfigArguments
from bert_hf.config.files import read_input_text
from bert_hf.config.options import check_ranges, declarations
from bert_hf.config.package_files import find_config
from bert_hf.errors import ChecksPassed, InputError, did_you_mean, first_line

# Options of transformers' run_mlm.py, run_glue.py, run_ner.py and run_qa.py that do not resemble their name here
_COUNTERPARTS = {
    "line_by_line": "sentence_per_line",
    "block_size": "max_seq_length",
    "model_type": "config_name",
    "preprocessing_num_workers": "num_proc",
    "max_predict_samples": "max_eval_samples",
}

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

Options = TypeVarTuple("Options")  # the dataclasses that are filled, as `check` takes them


def parse(
    classes: tuple[type, ...],
    argv: list[str] | None = None,
    default_config: str | None = None,
    check: Callable[[*Options], Iterable[str]] | None = None,
    dry_run: Callable[[*Options], Iterable[str]] | None = None,
    required: Iterable[str] = (),
) -> tuple[*Options]:
    """Fill dataclasses from `--config FILE.yaml` and the command line, which wins.

    Args:
        default_config: the YAML that is used if there is neither `--config` nor any other flag.
        check: gets the dataclasses, checks what would waste long work, and yields one line per successful check.
        dry_run: the same for what the command reads at its start anyway: only with the flag `--check`, which prints
            all lines and ends the command (`ChecksPassed`), unless one of the dataclasses declares that flag itself.
        required: names of options that must have a value.

    Returns:
        The dataclasses; one that declares `from_command_line` has the names of the given options there.
    """
    own_check = any(field.name == "check" for cls in classes for field in fields(cls))
    adds_check = (check or dry_run) is not None and not own_check
    parser = _Parser((*classes, CheckArguments if adds_check else ConfigArguments))
    values, from_command_line = _read_values(parser, _command_line_words(argv), default_config)

    # Options of the command line that are set: `--bf16 false` has no effect to check
    declared = {field.name: declaration for cls in classes for field, declaration in declarations(cls)}
    switched_on = {name: declaration for name, declaration in declared.items() if from_command_line.get(name)}
    _check_effects(parser, values, switched_on)
    filled = _fill(classes, values)
    for each in filled:
        check_ranges(each)
        if hasattr(each, "from_command_line"):
            vars(each)["from_command_line"] = frozenset(from_command_line)  # the class has an empty one

    for name in required:
        if getattr(values, name) is None:
            raise InputError("missing option", where=f"--{name}", remedy="--help shows an example")

    checking = getattr(values, "check", False)
    for run_check in filter(None, (check, dry_run if checking else None)):
        for line in run_check(*cast(tuple[*Options], filled)):
            if checking and os.environ.get("RANK", "0") == "0":
                print(f"  {line}", flush=True)
    if adds_check and checking:
        raise ChecksPassed
    return cast(tuple[*Options], filled)


def _fill(classes: tuple[type, ...], values: argparse.Namespace) -> tuple[Any, ...]:
    """Return an instance of each dataclass; a missing package and an error of their checks become an `InputError`."""
    try:
        return tuple(cls(**{f.name: getattr(values, f.name) for f in fields(cls) if f.init}) for cls in classes)
    except ImportError as error:
        problem, remedy = first_line(error), "install the package, or leave the option out"
        if "deepspeed" in problem:
            problem, remedy = "the package deepspeed is not installed", 'pip install "bert-hf[deepspeed]"'
        raise InputError(problem, where="arguments", remedy=remedy) from None
    except ValueError as error:
        raise InputError(str(error), where="arguments", remedy="fix the option") from None


class _Parser(HfArgumentParser):
    """The parser of transformers, which raises `InputError`s and knows inherited declarations."""

    def __init__(self, classes: tuple[type, ...]):
        for cls in classes:
            for field, declared in declarations(cls):
                field.metadata = declared  # pyright: ignore[reportAttributeAccessIssue] - the parent class reads it there
        usage = "%(prog)s [--config FILE.yaml] [--OPTION VALUE ...]"
        super().__init__(list[Any](classes), allow_abbrev=False, usage=usage)

    def add_argument(self, *names, common=True, range=None, only_with=(), not_with=(), **kwargs) -> argparse.Action:
        """Add an option, without the entries of its declaration that argparse does not know."""
        return super().add_argument(*names, **kwargs)

    def error(self, message: str):
        message = re.sub(r"^argument (--\w+)/--[\w-]+", r"argument \1", message)  # the first of its two spellings
        raise InputError(message, where="command line", remedy="--help lists the options")

    def reject_unknown(self, flags: list[str], where: str | Path = "command line", line: int | None = None) -> None:
        """Raise an `InputError` for the first of the unknown flags, if there are any."""
        if flags:
            names = [flag.removeprefix("--") for flag in self._option_string_actions]
            name = flags[0].partition("=")[0].removeprefix("--")
            counterpart = _COUNTERPARTS.get(name, re.sub("_names?$", "", name))  # --task_name is --task here
            near = f"did you mean {counterpart!r}?" if counterpart in names else did_you_mean(name, names).strip()
            raise InputError(f"unknown option {name!r}", where=where, line=line, remedy=near or "--help lists them")


def with_flags(words: list[str], first: str, others: str) -> list[str]:
    """Put flags before the first words of a command line, which have none: `M A B` → `--first M --others A B`."""
    values = list(itertools.takewhile(lambda word: not word.startswith("--"), words))
    flags = [f"--{first}", values[0]] if values else []
    if len(values) > 1:
        flags += [f"--{others}", *values[1:]]
    return flags + words[len(values) :]


def _command_line_words(argv: list[str] | None) -> list[str]:
    """Return the words of a command line (None: of this process), `~` expanded; an `InputError` for an empty value."""
    words = [expand_home(word) for word in (sys.argv[1:] if argv is None else argv)]
    for previous, word in zip(["", *words], words, strict=False):
        if not word or re.fullmatch(r"--[\w-]+=", word):  # such as "$FILE" of a shell that has no such variable
            where = word.rstrip("=") or previous
            raise InputError("empty value", where=where, remedy="give a value, or leave the option out")
    return words


def expand_home(word: str) -> str:
    """Expand a leading `~` of a word, or of the value in `--name=~/path`, which shells do not expand."""
    if not word.startswith("--"):
        return os.path.expanduser(word)
    flag, equals, value = word.partition("=")
    return flag + equals + os.path.expanduser(value)


def _read_values(
    parser: _Parser, words: list[str], default_config: str | None
) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Return the values of all options, and a dict of those that the command line gives."""
    values, unknown = parser.parse_known_args(words)
    parser.reject_unknown(unknown)
    names = {word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    from_command_line = {name: getattr(values, name) for name in names if hasattr(values, name)}

    config = values.config or (None if words else default_config)
    if config is not None:
        from_file = _read_yaml(parser, find_config(config, "pretrain", "finetune"), from_command_line)
        values = parser.parse_args(words, from_file)  # the file's values in place of the defaults
    return values, from_command_line


def _read_yaml(parser: _Parser, path: Path, from_command_line: Collection[str]) -> argparse.Namespace:
    """Return the values of a YAML file, without those that options of the command line replace (`_REPLACED_BY`)."""
    values = argparse.Namespace()
    for name, line, words in yaml_entries(path):  # one by one, so that an error has its line
        if f"--{name}" not in parser._option_string_actions or name in ("help", "config"):
            parser.reject_unknown([f"--{name}"], where=path, line=line)

        is_replaced = not _REPLACED_BY.get(name, set()).isdisjoint(from_command_line)
        try:
            parser.parse_args([*map(expand_home, words)], None if is_replaced else values)  # None: only checked
        except InputError as error:
            raise InputError(error.what, where=path, line=line, remedy="fix this line") from None
    return values


class _Loader(yaml.SafeLoader):
    """Loads YAML; in a mapping 1e-5 is a number, by the resolver below: YAML 1.1 reads it as a string."""


_EXPONENT = re.compile(r"[-+]?\d+\.?\d*[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


def yaml_entries(path: Path) -> Iterator[tuple[str, int, list[str]]]:
    """Yield (name, line, words of a command line) of each entry of a flat YAML file; an empty value has no words.

    A scalar is taken as it is written, for the option's own type to convert: YAML 1.1 reads 32:0.2 as a number of
    base 60, 010 as 8 and the language `no` as false.
    """
    text = read_input_text(path, "give --config the path of a YAML file")
    try:
        node = yaml.compose(text, Loader=_Loader)
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
            problem = f"duplicate key {key.value!r}, first in line {seen[key.value]}"
            raise InputError(problem, where=path, line=line, remedy="remove one of them")
        seen[key.value] = line
        yield key.value, line, _words_of_entry(key.value, value)


def _words_of_entry(name: str, node: yaml.Node) -> list[str]:
    """Return an entry of a YAML file as words of a command line: a mapping as JSON; no words for an empty value."""
    if isinstance(node, yaml.MappingNode):
        return [f"--{name}={json.dumps(yaml.SafeLoader('').construct_document(node))}"]
    if isinstance(node, yaml.SequenceNode):
        return [f"--{name}", *(str(item.value) for item in node.value)]
    return [] if node.tag.endswith(":null") else [f"--{name}={node.value}"]


def _check_effects(parser: _Parser, values: argparse.Namespace, declared: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise an `InputError` for an option (name → declaration) without effect by its `not_with` and `only_with`.

    (A YAML file serves many runs: options of it that have no effect are ignored.)
    """

    def is_set(condition: str) -> bool:  # NAME: the option differs from its default; NAME=VALUE: it has this value
        name, _, value = condition.partition("=")
        current = getattr(values, name, None)
        if value:
            return str(getattr(current, "value", current)) == value  # options of transformers may be enums
        return current not in (None, False, parser.get_default(name))

    for name, declaration in declared.items():
        for other in filter(is_set, declaration.get("not_with", ())):
            problem = f"no effect with --{other.replace('=', ' ')}"
            raise InputError(problem, where=f"--{name}", remedy="use one or the other")

        needed = declaration.get("only_with", ())
        if needed and not any(map(is_set, needed)):
            problem = f"no effect without --{needed[0].replace('=', ' ')}"
            raise InputError(problem, where=f"--{name}", remedy="leave it out, or give both")
