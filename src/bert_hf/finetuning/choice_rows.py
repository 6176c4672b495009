"""Reads multiple-choice rows (a context, several continuations or answers, the right one)."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from bert_hf.config.finetuning_arguments import TaskArguments
from bert_hf.data.text.readers import whole_text
from bert_hf.data.text.sources import hub_rows
from bert_hf.data.text.tables import Row, file_rows
from bert_hf.errors import InputError

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


def read_choices(task_args: TaskArguments) -> dict[str, list[ChoiceRow]]:
    """The parts of a multiple-choice task that files or a Hub dataset hold."""
    if task_args.train_file:
        rows = {part: file_rows(files) for part, files in task_args.files().items()}
    else:
        rows = hub_rows(task_args.dataset_name, task_args.dataset_config_name)
    parts = {part: list(map(choice_row, rows_of_part)) for part, rows_of_part in rows.items()}
    _check_choices(parts)

    return parts


def _check_choices(parts: dict[str, list[ChoiceRow]]) -> None:
    """Checks that rows outside the test part have a label, and that all rows have the same number of choices."""
    count = len(parts["train"][0].choices)
    for part, rows in parts.items():
        for row in rows:
            if row.label is None and part != "test":
                remedy = "add a label, or remove the row (only test rows may lack one)"
                raise InputError("missing label", where=row.where, line=row.line, remedy=remedy)
            if len(row.choices) != count:
                what = f"{len(row.choices)} choices; the first training row has {count}"
                raise InputError(what, where=row.where, line=row.line, remedy="give each row the same number")


def choice_row(row: Row) -> ChoiceRow:
    """A row of SWAG (sent1, sent2, ending0, …, label) or a general one (context, question, choices, label).

    `choices` is a list, or columns choice0, choice1, …; the label is an index from 0 or a letter from A. No label, an
    empty one and -1 (as in SWAG's test rows) mean that it is not known.
    """
    values = row.values
    choices = _choices(values)
    texts = [_first_filled(values, names) for names in (_CONTEXTS, _QUESTIONS)]
    are_texts = all(isinstance(text, str) for text in (*texts, *choices))
    if len(choices) < 2 or not are_texts or not all(map(str.strip, ("".join(texts), *choices))):
        raise row.error(f"not a context with two or more choices (columns: {', '.join(values)})", _COLUMNS)

    label = None
    if values.get("label") not in (None, "", -1, "-1"):
        label = _number_of_choice(values["label"])
        if label not in range(len(choices)):
            remedy = f"give 0 to {len(choices) - 1}, or A to {chr(ord('A') + len(choices) - 1)}"
            raise row.error(f"label {values['label']!r} is not one of the {len(choices)} choices", remedy)

    context, question, *choices = (whole_text(text).strip() for text in (*texts, *choices))
    return ChoiceRow(context, question, tuple(choices), label, row.where, row.line)


def _first_filled(values: dict[str, Any], names: Iterable[str]) -> Any:
    """The first of these columns that holds something; "" where none does."""
    return next((values[name] for name in names if values.get(name)), "")


def _choices(values: dict[str, Any]) -> list:
    """The choices of a row, unchecked; [] where no column is one of choices."""
    if isinstance(values.get("choices"), list):
        return values["choices"]
    for name in _NUMBERED:
        if f"{name}0" in values:
            count = next(number for number in range(len(values) + 1) if f"{name}{number}" not in values)
            return [values[f"{name}{number}"] for number in range(count)]
    return []


def _number_of_choice(value: Any) -> int:
    """2 for 2, "2", "C" and "c"; -1 for anything else."""
    text = str(value).strip().upper()
    if text.isascii() and text.isdigit():
        return int(text[:9])
    return ord(text) - ord("A") if len(text) == 1 and text.isascii() else -1
