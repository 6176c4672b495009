"""Finds the columns of a table that hold the text, the second text of a pair, and the label.

A column that is named by the user is taken. Else a column is taken where its name or its values leave one choice, and
the user is asked where they leave more: a table of two texts is never read as one of single texts.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from bert_hf.data.text.table_header import LABEL_NAMES, OTHER_LABEL_NAMES, PAIR_NAMES, TEXT_NAMES
from bert_hf.errors import InputError, did_you_mean

_SAMPLE = 2000  # values from which it is told whether a column holds text
_FEW_ROWS = 20  # up to so many rows any number of different labels is believed

REGRESSION, CLASSES = "regression", "single_label_classification"  # values of `BertConfig.problem_type`


class _Missing:
    """The value of a column that a row does not have at all."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


@dataclass(frozen=True)
class NamedColumns:
    """The columns that the user named; None: to be found.

    Attributes:
        problem_type: "regression": labels are numbers; "single_label_classification": they are names of classes; None:
            names of classes, unless they look like measured numbers.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    problem_type: str | None = None

    def names(self) -> tuple[str, ...]:
        """Those that are named."""
        return tuple(name for name in (self.text, self.pair, self.label) if name is not None)


@dataclass(frozen=True)
class Columns:
    """The columns that are read.

    Attributes:
        text, pair, label: their names; None: there is no second text, or no label.
        header: whether the names are the file's; otherwise they are column_1, column_2, …
        unread: names of other columns that hold texts.
    """

    text: str
    pair: str | None
    label: str | None
    header: bool = True
    unread: tuple[str, ...] = ()

    def __str__(self) -> str:
        """`text: sentence1, pair: sentence2, label: score`."""
        parts = {"text": self.text, "pair": self.pair, "label": self.label}
        said = ", ".join(f"{part}: {name}" for part, name in parts.items() if name is not None)
        return said if self.header else f"{said} (no header)"


class _Column:
    """A column and what its values look like."""

    def __init__(self, name: str, values: Sequence):
        self.name = name
        self.values = values
        self.sample = values[:: -(-len(values) // _SAMPLE) or 1]

    @property
    def name_and_value(self) -> str:
        """The name and the first value, for a table without a header."""
        value = " ".join(str(self.values[0]).split())
        return f"{self.name} ({value[:20]}…)" if len(value) > 20 else f"{self.name} ({value})"

    @cached_property
    def holds_strings(self) -> bool:
        """Whether it holds strings, and other values at most where a row has none."""
        found = [value for value in self.sample if value is not None and value is not MISSING]
        return any(isinstance(value, str) for value in found) and self.holds_scalars

    @cached_property
    def holds_text(self) -> bool:
        """Whether half of its values or more are texts, and more than a tenth of them differ."""
        if not self.holds_strings:
            return False
        texts = [value for value in self.sample if isinstance(value, str) and _is_text(value)]
        return 2 * len(texts) >= len(self.sample) and len(set(texts)) > len(texts) / 10

    @cached_property
    def length(self) -> float:
        """Mean number of characters."""
        return sum(len(value) for value in self.sample if isinstance(value, str)) / max(1, len(self.sample))

    @cached_property
    def distinct(self) -> int:
        """Number of different values."""
        return len({str(value) for value in self.values})

    @property
    def repeats(self) -> bool:
        """Whether its values come again, as labels do: half as many different values as rows, or fewer."""
        few = len(self.values) <= _FEW_ROWS
        return self.distinct < len(self.values) if few else 2 * self.distinct <= len(self.values)

    @property
    def holds_scalars(self) -> bool:
        """Whether it holds strings and numbers alone."""
        return not any(isinstance(value, list | dict) for value in self.sample)

    @property
    def may_be_label(self) -> bool:
        """Whether it could be the label by its values alone."""
        empty = sum(value is None or value is MISSING or not str(value).strip() for value in self.sample)
        return self.holds_scalars and self.distinct > 1 and self.repeats and 2 * empty < len(self.sample)

    @cached_property
    def mostly_numbers(self) -> bool:
        """Whether half of its values or more are numbers."""
        return 2 * sum(as_number(value) is not None for value in self.sample) >= len(self.sample)

    @cached_property
    def measured(self) -> str | None:
        """A value that is no whole number, where all values are numbers: such labels were measured."""
        numbers = [as_number(value) for value in self.values if value is not None and str(value).strip()]
        if any(number is None for number in numbers):
            return None
        broken = (value for value, number in zip(self.values, numbers, strict=False) if number != round(number or 0))
        return next(map(str, islice(broken, 1)), None)


def as_number(value: object) -> float | None:
    """A finite number, or the one that a string says; None for anything else."""
    try:
        number = float(value)  # pyright: ignore[reportArgumentType] - what is no number raises
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _is_text(value: str) -> bool:
    """Three words or more, or a string of another script without spaces; letters for the most part."""
    words = value[:1000].split()
    letters = sum(character.isalpha() for word in words for character in word)
    long = len(words) >= 3 or (len(value) >= 8 and not value.isascii())
    return long and 2 * letters > sum(map(len, words))


# ---- the choice


def find_columns(
    columns: dict[str, list],
    where: str,
    named: NamedColumns,
    *,
    line: int | None = 1,
    header: bool = True,
    needs_label: bool = True,
) -> Columns:
    """The columns of text, second text and label.

    Args:
        columns: the values of each column, by name.
        line: for errors.
        header: whether the names are the file's.
        needs_label: False: a table without a label is accepted.

    Raises:
        InputError: a named column is not there, or more than one column could be meant.
    """
    _check_named(columns, where, line, named)
    table = [_Column(name, values) for name, values in columns.items()]
    ask = _Question(where, line, table, header)

    label = _named(table, named.label) or (_label_by_name(table, named) if header else None)
    free = [column for column in table if column is not label]
    text, pair = _texts(free, named, _pairs(free) if header else [], ask)
    if label is None:
        free = [column for column in table if column not in (text, pair)]
        label = _label_by_values(free, named, text, needs_label, ask)
    if text is None:
        text = _remaining_text([column for column in table if column not in (pair, label)], ask)
    if label is None and needs_label:
        raise ask.label()

    if label is not None:
        _check_label(label, named, ask)
    used = (text, pair, label)
    unread = tuple(column.name for column in table if column not in used and column.holds_text)
    return Columns(text.name, pair and pair.name, label and label.name, header, unread)


def _check_named(columns: dict[str, list], where: str, line: int | None, named: NamedColumns) -> None:
    for name in named.names():
        if name not in columns:
            remedy = f"{did_you_mean(name, columns)}its columns: {', '.join(columns)}"
            raise InputError(f"no column {name!r}", where=where, line=line, remedy=remedy)
    if len(set(named.names())) < len(named.names()):
        options = "--text_column, --text_pair_column, --label_column"
        raise InputError("one column is named twice", where=options, remedy="name a column for each")


def _named(table: list[_Column], name: str | None) -> _Column | None:
    return next((column for column in table if column.name == name), None)


class _Question:
    """The errors that ask the user which column is meant."""

    def __init__(self, where: str, line: int | None, table: list[_Column], header: bool):
        self.where, self.line = where, line
        self.names = ", ".join(column.name if header else column.name_and_value for column in table)

    def label(self) -> InputError:
        """There is no column, or more than one, that could be the label."""
        return self._asked("which column holds the label?", f"--label_column, one of: {self.names}")

    def texts(self, found: Sequence[_Column]) -> InputError:
        """There are several columns of texts that no usual names tell apart."""
        names = [column.name for column in found]
        remedy = f"--text_column {names[0]} --text_pair_column {names[1]} for pairs, or --text_column alone"
        return self._asked(f"which of the texts are meant: {', '.join(names)}?", remedy)

    def second_text(self, named: str) -> InputError:
        """The second text is named and the first is not."""
        return self._asked(f"to which text does {named!r} belong?", f"--text_column, one of: {self.names}")

    def no_text(self) -> InputError:
        """No column is left."""
        return self._asked("no column is left for the text", "give a file of two columns")

    def many_labels(self, column: _Column) -> InputError:
        """The column with the name of a label has about as many values as rows."""
        what = f"column {column.name!r} has {column.distinct:,} different values in {len(column.values):,} rows"
        remedy = f"--label_column {column.name}, if they are classes, or another of: {self.names}"
        return self._asked(what, remedy)

    def measured(self, column: _Column) -> InputError:
        """The labels are numbers that are no whole numbers."""
        what = f"the label column {column.name!r} holds numbers such as {column.measured}"
        return self._asked(what, f"--problem_type {REGRESSION}, or --problem_type {CLASSES} if they are classes")

    def _asked(self, what: str, remedy: str) -> InputError:
        return InputError(what, where=self.where, line=self.line, remedy=remedy)


# ---- the label


def _label_by_name(table: list[_Column], named: NamedColumns) -> _Column | None:
    """The only column with a usual name: `label`; then one such as `gold_label`; then one such as `rating`."""
    free = [column for column in table if column.name not in (named.text, named.pair)]
    if named.problem_type == REGRESSION:
        free = [column for column in free if column.mostly_numbers]

    exact = [column for column in free if column.name.lower() in LABEL_NAMES]
    rest = [column for column in free if column.holds_scalars and not column.holds_text]
    partly = [column for column in rest if _words(column.name) & set(LABEL_NAMES)]
    other = [column for column in rest if _words(column.name) & set(OTHER_LABEL_NAMES)]
    for found in (exact, partly, other):
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _words(name: str) -> set[str]:
    """A name and the words in it: {"gold_label", "gold", "label"}."""
    return {name.lower(), *re.split(r"[^a-z0-9]+", name.lower())}


def _label_by_values(
    free: list[_Column], named: NamedColumns, text: _Column | None, needed: bool, ask: _Question
) -> _Column | None:
    """The only column whose values come again; or, for a regression, the only one of measured numbers.

    Of two columns, which are the text and the label, the label has fewer different values, or else shorter ones.
    """
    found = [column for column in free if column.may_be_label]
    if named.problem_type == REGRESSION:
        found = [column for column in free if column.measured is not None]
    if text is None and len(found) == len(free) == 2:
        return min(found, key=lambda column: (column.distinct, column.length))
    if len(found) > 1 and needed:
        raise ask.label()
    return found[0] if len(found) == 1 else None


def _check_label(label: _Column, named: NamedColumns, ask: _Question) -> None:
    if named.problem_type is None and label.measured is not None:
        raise ask.measured(label)
    many = len(label.values) > _FEW_ROWS and not label.repeats
    if many and named.label is None and named.problem_type != REGRESSION:
        raise ask.many_labels(label)


# ---- the texts


def _texts(
    free: list[_Column], named: NamedColumns, pairs: list[tuple[_Column, _Column]], ask: _Question
) -> tuple[_Column | None, _Column | None]:
    """(text, second text); no text where no column is plainly one.

    Args:
        free: all columns but the label. pairs: those of them that are pairs by their names.
    """
    if named.text is not None:
        return _named(free, named.text), _named(free, named.pair)

    texts = [column for column in free if column.holds_text]
    if named.pair is not None:
        firsts = [one for one, other in pairs if other.name == named.pair]
        firsts = firsts or [column for column in texts if column.name != named.pair]
        if len(firsts) != 1:
            raise ask.second_text(named.pair)
        return firsts[0], _named(free, named.pair)

    of_texts = [pair for pair in pairs if pair[0] in texts and pair[1] in texts]
    if len(of_texts) == 1:
        return of_texts[0]
    if of_texts or (texts and pairs and not _is_only(texts, pairs)):
        raise ask.texts(list(dict.fromkeys(column for pair in of_texts or pairs for column in pair)))
    if len(pairs) == 1 and not texts:
        return pairs[0]

    usual = [column for column in free if column.name.lower() in TEXT_NAMES and column.holds_strings]
    found = list(dict.fromkeys([*texts, *usual]))
    if len(found) > 1:
        raise ask.texts(found)
    return (found[0] if found else None), None


def _is_only(texts: list[_Column], pairs: list[tuple[_Column, _Column]]) -> bool:
    """Whether no text belongs to a pair of which the other column does not look like text."""
    paired = [column for pair in pairs for column in pair]
    return not any(column in paired for column in texts)


def _pairs(free: list[_Column]) -> list[tuple[_Column, _Column]]:
    """Pairs of columns by their names: sentence1 and sentence2, text_a and text_b, premise and hypothesis, …"""
    strings = [column for column in free if column.holds_strings]
    by_name = {re.sub(r"[^a-z0-9]", "", column.name.lower()): column for column in strings}
    found = []
    for name, column in by_name.items():
        others = [other for one, other in PAIR_NAMES if name == one]
        found += [(column, by_name[other]) for other in others if other in by_name]

        # Numbered names such as v1 and v2 may also be those of a label and a text
        numbered = [by_name[other] for other in _numbered_two(name) if other in by_name]
        found += [(column, other) for other in numbered if not _label_and_text(column, other)]
    return found


def _numbered_two(name: str) -> list[str]:
    """The names that would be the second to a first one: sentence2 to sentence1."""
    names = [name[:-1] + second for first, second in (("1", "2"), ("a", "b")) if name.endswith(first)]
    return [*names, "2" + name[1:]] if name.startswith("1") else names


def _label_and_text(one: _Column, other: _Column) -> bool:
    label = next((column for column in (one, other) if not column.holds_text), None)
    return label is not None and label.may_be_label and (one.holds_text or other.holds_text)


def _remaining_text(free: list[_Column], ask: _Question) -> _Column:
    """The column of the longest strings, where none looks like text."""
    strings = [column for column in free if column.holds_strings]
    if not strings:
        raise ask.no_text()
    return max(strings, key=lambda column: column.length)
