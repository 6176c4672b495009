"""Reads rows of multiple choice: the columns of SWAG and of other public data sets."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bert_hf.data.text.tables import Row, parsed_cell

# Usual names of the columns; the first one that is filled is read
_CONTEXT_COLUMNS = ("sent1", "context", "article", "passage", "ctx", "premise", "sentence")
_QUESTION_COLUMNS = ("sent2", "question", "question_stem", "stem", "goal", "query", "prompt")
_CHOICE_COLUMNS = ("choices", "options", "endings", "answers")
_LABEL_COLUMNS = ("label", "answerKey", "answer", "labels", "gold")
_KEY_COLUMNS = ("answerKey", "answer")  # "2" there names `option2`; a `label` of 2 is the third choice
_NUMBERED = re.compile("((?i:ending|choice|option|answer|sol)|)(_?[0-9]+|_?[A-Z]|_[a-z])")
_REMEDY = "give sent1, sent2, ending0, ending1, … and label; or context, question, choices and label"


class ChoiceRow(NamedTuple):
    """A context and choices: one choice fits."""

    context: str
    question: str  # or the beginning of the sentence that each choice ends (SWAG's sent2); may be ""
    choices: tuple[str, ...]
    label: int | None = None  # number of the right choice; None where it is not known
    where: str = ""  # file or Hub dataset
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
    """Parse a row of SWAG (sent1, sent2, ending0, …, label), or a general one (context, question, choices, label).

    Choices are a list, columns with numbers or letters (`option1`, `answerA`, `A`), `{"A": "It rolls.", …}`, or texts
    with keys, as in ARC: `{"label": ["A", "B"], "text": ["It rolls.", "It reads."]}`, and `answerKey`. A label is the
    key of a choice, a letter, the number from 0, or the text. No label, an empty one and -1 (as in SWAG's test rows)
    mean that it is not known.
    """
    values = row.values
    question = parsed_cell(values.get("question"))
    if isinstance(question, dict):  # ARC as it is published: stem and choices in one object
        values = {**values, "question": None, **question}
    label_column = next((name for name in _LABEL_COLUMNS if name in values), "label")
    keys, choices = _keys_and_choices(values, numbers_are_keys=label_column in _KEY_COLUMNS)
    texts = [_first_filled(values, names) for names in (_CONTEXT_COLUMNS, _QUESTION_COLUMNS)]
    are_texts = all(isinstance(text, str) for text in (*texts, *choices))
    are_filled = are_texts and all(map(str.strip, ("".join(texts), *choices)))  # context or question, and choices
    if len(choices) < 2 or not are_filled:
        raise row.error(f"not a context with two or more choices (columns: {', '.join(values)})", _REMEDY)

    label = None
    if with_label and values.get(label_column) not in (None, "", -1, "-1"):
        name = str(values[label_column]).strip()
        if name not in choices:
            name = name.removesuffix(".0")  # as pandas writes numbers beside an empty cell
        may_be_text = label_column in _KEY_COLUMNS and not isinstance(values[label_column], int)
        label = _choice_index(name, keys, choices, may_be_text)
        if label is None:
            what = f"label {values[label_column]!r} is not one of the {len(choices)} choices"
            raise row.error(what, f"give 0 to {len(choices) - 1}, or A to {chr(ord('A') + len(choices) - 1)}")

    context, question, *choices = map(str.strip, (*texts, *choices))
    return ChoiceRow(context, question, tuple(choices), label, row.where, row.line)


def _first_filled(values: Mapping[str, Any], names: Iterable[str]) -> Any:
    """Return the value of the first of these columns that is filled; "" where none is."""
    return next((values[name] for name in names if values.get(name)), "")


def _keys_and_choices(values: Mapping[str, Any], numbers_are_keys: bool) -> tuple[list[str], list]:
    """Return the keys by which labels name the choices ("2" for `option2` if `numbers_are_keys`), and the choices."""
    for name in _CHOICE_COLUMNS:
        choices = parsed_cell(values.get(name))
        if isinstance(choices, dict) and isinstance(choices.get("text"), list):  # ARC on the Hub
            return list(map(str, choices.get("label") or ())), choices["text"]
        if isinstance(choices, dict):
            return list(choices), list(choices.values())
        if isinstance(choices, list) and choices and all(isinstance(choice, dict) for choice in choices):  # ARC's JSON
            return [str(choice.get("label")) for choice in choices], [choice.get("text") for choice in choices]
        if isinstance(choices, list):
            return [], choices

    numbered: dict[str, dict[str, Any]] = {}  # choices by the name before the number
    for name, value in values.items():
        if match := _NUMBERED.fullmatch(name):
            numbered.setdefault(match[1], {})[match[2].removeprefix("_")] = value
    choices = max(numbered.values(), key=len, default={})
    keys = sorted(choices, key=lambda key: (len(key), key))
    while keys and choices[keys[-1]] in (None, ""):  # a table has empty cells where a row has fewer choices
        keys.pop()
    return keys if numbers_are_keys else [], [choices[key] for key in keys]


def _choice_index(label: str, keys: list[str], choices: list[str], may_be_text: bool) -> int | None:
    """Return the index of the choice that a label names: by key, number from 0, text or letter; None: it names none.

    A label "2" is the number of the third choice or, if `may_be_text`, names the only choice with the text 2.
    """
    if label in keys:
        return keys.index(label)
    number = -1
    if label.isdecimal() and not (may_be_text and choices.count(label) == 1):
        number = int(label)
    elif choices.count(label) == 1:
        number = choices.index(label)
    elif re.fullmatch("[A-Za-z]", label):
        number = ord(label.upper()) - ord("A")
    return number if number in range(len(choices)) else None
