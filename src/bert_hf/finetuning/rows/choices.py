"""Reads rows of multiple choice: SWAG's columns, and general ones."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from bert_hf.data.text.tables import Row, list_cell

_CONTEXTS = ("sent1", "context")  # SWAG's name of the column, and the general one
_QUESTIONS = ("sent2", "question")
_COLUMNS = "give sent1, sent2, ending0, ending1, … and label; or context, question, choices and label"


class ChoiceRow(NamedTuple):
    """A context and choices: one choice fits.

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
        """Return the first text of the network's input, which all choices share, and the second one of each choice.

        ("A ball", "It", ("rolls.", "reads.")) → "A ball", ["It rolls.", "It reads."]. Without a context the question
        is the first text.
        """
        if not self.context:
            return self.question, list(self.choices)
        return self.context, [f"{self.question} {choice}".strip() for choice in self.choices]


def choice_row(row: Row, with_label: bool = True) -> ChoiceRow:
    """Return a row of SWAG (sent1, sent2, ending0, …, label) or a general one (context, question, choices, label).

    The label is an index from 0. No label, an empty one and -1 (as in SWAG's test rows) mean that it is not known.
    """
    values = row.values
    choices = _choices(values)
    texts = [_first_filled(values, names) for names in (_CONTEXTS, _QUESTIONS)]
    are_texts = all(isinstance(text, str) for text in (*texts, *choices))
    if len(choices) < 2 or not are_texts or not all(map(str.strip, ("".join(texts), *choices))):
        raise row.error(f"not a context with two or more choices (columns: {', '.join(values)})", _COLUMNS)

    label = None
    if with_label and values.get("label") not in (None, "", -1, "-1"):
        text = str(values["label"]).strip()
        label = int(text) if text.isdecimal() else -1
        if label not in range(len(choices)):
            what = f"label {values['label']!r} is not one of the {len(choices)} choices"
            raise row.error(what, f"give 0 to {len(choices) - 1}")

    context, question, *choices = map(str.strip, (*texts, *choices))
    return ChoiceRow(context, question, tuple(choices), label, row.where, row.line)


def _first_filled(values: dict[str, Any], names: Iterable[str]) -> Any:
    """Return the first of these columns that holds something; "" where none does."""
    return next((values[name] for name in names if values.get(name)), "")


def _choices(values: dict[str, Any]) -> list:
    """Return the choices of a row, unchecked; [] where no column is one of choices."""
    if (choices := list_cell(values.get("choices"))) is not None:
        return choices
    count = next(number for number in range(len(values) + 1) if f"ending{number}" not in values)
    return [values[f"ending{number}"] for number in range(count)]
