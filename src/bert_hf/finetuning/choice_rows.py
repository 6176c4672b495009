"""Reads multiple-choice rows (a context, several continuations or answers, the right one), and splits them."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bert_hf.config.finetuning_arguments import TaskArguments
from bert_hf.data.text.input_files import expand, kind_of
from bert_hf.data.text.readers import TABLES, read_rows, read_separated, whole_text
from bert_hf.data.text.sources import load_hub
from bert_hf.errors import InputError
from bert_hf.finetuning.near_duplicates import near_duplicate_groups
from bert_hf.finetuning.splits import held_out

PARTS = ("train", "validation", "test")
_CONTEXTS = ("sent1", "context")  # SWAG's name of the column, and the general one
_QUESTIONS = ("sent2", "question")
_NUMBERED = ("ending", "choice")  # ending0, ending1, …
_COLUMNS = "give sent1, sent2, ending0, ending1, … and label; or context, question, choices and label"


class ChoiceRow(NamedTuple):
    """A context and the choices, one of which fits it.

    Attributes:
        question: about the context, or the beginning of the sentence that each choice ends (SWAG's sent2); may be "".
        label: number of the right choice; None where it is not known.
        where, line: file (or Hub dataset) and line of the row, for messages.
    """

    context: str
    question: str
    choices: tuple[str, ...]
    label: int | None = None
    where: str = ""
    line: int | None = None

    def texts(self) -> tuple[str, list[str]]:
        """The first text of the network's input, which all choices share, and the second one of each choice.

        ("A ball", "It", ("rolls.", "reads.")) → "A ball", ["It rolls.", "It reads."]. Without a context the question
        is the first text.
        """
        if not self.context:
            return self.question, list(self.choices)
        return self.context, [f"{self.question} {choice}".strip() for choice in self.choices]


# ---- all rows


def read_parts(task_args: TaskArguments, source: str | None) -> dict[str, list[ChoiceRow]]:
    """`train`, `validation` and `test`; those that are not given are split off the training rows.

    Args:
        source: the Hub dataset, where no files are given.

    Raises:
        InputError: with file and line.
    """
    if source is None:
        parts = {part: _file_rows(files) for part, files in task_args.files().items()}
    else:
        parts = _hub_rows(source, task_args.dataset_config_name)
    _check(parts)

    rest = 100.0
    for part, share in (
        ("test", task_args.test_split_percentage),
        ("validation", task_args.validation_split_percentage),
    ):
        if part not in parts:
            parts["train"], parts[part] = split_off(parts["train"], share * 100 / rest, task_args.split_seed)
            rest -= share
    return {part: parts[part] for part in PARTS}


def _check(parts: dict[str, list[ChoiceRow]]) -> None:
    """Refuses rows without a label outside the test part, and rows of other numbers of choices."""
    first = parts["train"][0]
    for part, rows in parts.items():
        for row in rows:
            if row.label is None and part != "test":
                remedy = "label it or remove it (test rows need no labels)"
                raise InputError("the row has no label", where=row.where, line=row.line, remedy=remedy)
            if len(row.choices) != len(first.choices):
                what = f"{len(row.choices)} choices, and {len(first.choices)} in the first training row"
                raise InputError(what, where=row.where, line=row.line, remedy="give each row the same number")


def split_off(rows: list[ChoiceRow], percentage: float, seed: int) -> tuple[list[ChoiceRow], list[ChoiceRow]]:
    """(rest, about `percentage` % of the rows), near-duplicate contexts in one of the two, equal for equal seeds.

    Not stratified, since the number of the right choice says nothing; so that ten rows can be split, too.

    Raises:
        InputError: too few contexts differ.
    """
    groups = near_duplicate_groups([row.context or row.question for row in rows])
    out = held_out(groups, percentage, seed)
    if not out.any():
        what = f"too few contexts differ ({groups.max() + 1}) to hold {percentage:.3g} % of {len(rows)} rows out"
        remedy = "give more rows, or --validation_file and --test_file"
        raise InputError(what, where=rows[0].where, remedy=remedy)
    return [rows[n] for n in np.flatnonzero(~out)], [rows[n] for n in np.flatnonzero(out)]


# ---- files and Hub


def _file_rows(files: list[str]) -> list[ChoiceRow]:
    found: list[ChoiceRow] = []
    for path in expand(files):
        before = len(found)
        found += (parse_row(row, path, line) for line, row in _read(path))
        if len(found) == before:
            raise InputError("no rows in it", where=path, remedy=_COLUMNS)
    return found


def _read(path: str) -> Iterator[tuple[int, dict]]:
    kind = kind_of(path)
    if kind in (".jsonl", ".json"):
        return read_rows(path)
    if kind in TABLES:
        return read_separated(path, TABLES[kind])
    raise InputError(f"unknown kind {kind!r}", where=path, remedy="use .csv, .tsv or .jsonl, also .gz or .xz")


def _hub_rows(name: str, config: str | None) -> dict[str, list[ChoiceRow]]:
    splits = load_hub(name, config)
    return {part: [parse_row(row, name, None) for row in splits[part]] for part in PARTS if part in splits}


# ---- one row


def _first_filled(row: dict[str, Any], names: Iterable[str]) -> Any:
    """The first of these columns that holds something; "" where none does."""
    return next((row[name] for name in names if row.get(name)), "")


def parse_row(row: dict[str, Any], where: str, line: int | None) -> ChoiceRow:
    """A row of SWAG (sent1, sent2, ending0, …, label) or a general one (context, question, choices, label).

    `choices` is a list, or columns choice0, choice1, …; the label is an index from 0 or a letter from A. No label, an
    empty one and -1 (as in SWAG's test rows) mean that it is not known.

    Raises:
        InputError: with file and line.
    """

    def fault(what: str, remedy: str) -> InputError:
        return InputError(what, where=where, line=line, remedy=remedy)

    choices = _choices(row)
    if choices is None:
        raise fault(f"no choices in the columns {', '.join(map(str, row))}", _COLUMNS)
    if len(choices) < 2:
        raise fault(f"{len(choices)} choices", "give two or more")
    for number, choice in enumerate(choices):
        if not isinstance(choice, str) or not choice.strip():
            raise fault(f"choice {number} is empty, or no text", "correct or remove the row")

    texts = [_first_filled(row, names) for names in (_CONTEXTS, _QUESTIONS)]
    if not all(isinstance(text, str) for text in texts) or not "".join(texts).strip():
        raise fault("the row has no context and no question", _COLUMNS)

    has_label = row.get("label") not in (None, "", -1, "-1")
    label = _label(row["label"], len(choices)) if has_label else None
    if has_label and label is None:
        what = f"label {row['label']!r} is none of the {len(choices)} choices"
        raise fault(what, f"give 0 to {len(choices) - 1}, or A to {chr(ord('A') + len(choices) - 1)}")

    context, question = (whole_text(text).strip() for text in texts)
    return ChoiceRow(context, question, tuple(whole_text(choice).strip() for choice in choices), label, where, line)


def _choices(row: dict[str, Any]) -> list | None:
    """The choices of a row, unchecked; None where no column is one of choices."""
    if isinstance(row.get("choices"), list):
        return row["choices"]
    for name in _NUMBERED:
        if f"{name}0" in row:
            count = next(number for number in range(len(row) + 1) if f"{name}{number}" not in row)
            return [row[f"{name}{number}"] for number in range(count)]
    return None


def _label(value: Any, choices: int) -> int | None:
    """Number of the choice that an index or a letter names; None where it names none."""
    text = "" if isinstance(value, bool) else str(value).strip()
    if text.isascii() and text.isdigit():
        number = int(text[:9])
    elif text.isascii() and len(text) == 1:
        number = ord(text.upper()) - ord("A")
    else:
        return None
    return number if 0 <= number < choices else None
