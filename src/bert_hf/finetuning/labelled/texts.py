"""Holds labelled texts, or pairs of texts, in memory, and says in one line what they are."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bert_hf.errors import InputError
from bert_hf.finetuning.labelled.columns import REGRESSION, Columns, as_number

FEW = 10  # a class of fewer rows is named
_COUNTED = 5  # classes, up to which each is counted; of more, so many of the rarest


@dataclass
class LabelledTexts:
    """Rows: N texts or pairs of texts, and their labels by name.

    Attributes:
        texts: (N,) the texts, or the first ones of pairs.
        labels: (N,) names of classes, or numbers as they are written in the file; None: the rows have no labels.
        places: (N,) file and line of each row; empty where the rows come from elsewhere.
        pairs: (N,) the second texts; None: the rows are single texts.
        columns: the columns that were read; None: there were none, as in a folder.
        notes: remarks for `line`, such as the number of empty texts.
    """

    texts: list[str]
    labels: list[str] | None
    places: list[tuple[str, int]] = field(default_factory=list, compare=False)
    pairs: list[str] | None = None
    columns: Columns | None = field(default=None, compare=False)
    notes: list[str] = field(default_factory=list, compare=False)

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Sequence[int] | np.ndarray) -> "LabelledTexts":
        """Some of the rows, by number, without the remarks on all."""
        return LabelledTexts(
            texts=[self.texts[row] for row in rows],
            labels=None if self.labels is None else [self.labels[row] for row in rows],
            places=[self.places[row] for row in rows] if self.places else [],
            pairs=None if self.pairs is None else [self.pairs[row] for row in rows],
            columns=self.columns,
        )

    def joined(self) -> list[str]:
        """(N,) one string a row, for what counts words: the two texts of a pair on two lines."""
        if self.pairs is None:
            return self.texts
        return [f"{one}\n{other}" for one, other in zip(self.texts, self.pairs, strict=True)]

    def class_names(self) -> list[str]:
        """(N,) the labels.

        Raises:
            InputError: the rows have none.
        """
        if self.labels is None:
            remedy = "label the rows, or name the column by --label_column"
            raise InputError("the rows have no labels", where=self.file(), remedy=remedy)
        return self.labels

    def classes(self) -> set[str]:
        """The labels that occur.

        Raises:
            InputError: the rows have none, or only one.
        """
        labels = set(self.class_names())
        if len(labels) < 2:
            remedy = "give rows of two labels or more"
            raise InputError(f"only one label: {min(labels)}", where=self.file(), remedy=remedy)
        return labels

    def numbers(self) -> np.ndarray:
        """(N,) the labels of a regression, in float64.

        Raises:
            InputError: the rows have no labels, or one is no number.
        """
        labels = self.class_names()
        found = [as_number(label) for label in labels]
        if None in found:
            row = found.index(None)
            where, line = self.places[row] if self.places else (self.file(), None)
            remedy = "correct it, or give --problem_type single_label_classification"
            raise InputError(f"label {labels[row]!r} is not a number", where=where, line=line, remedy=remedy)
        return np.array(found, np.float64)

    def targets(self, names: Sequence[str]) -> np.ndarray:
        """(N,) class ids, where `names` are the classes by id; without names the numbers of a regression.

        Raises:
            InputError: see `class_names` and `numbers`.
        """
        if not names:
            return self.numbers()
        ids = {name: number for number, name in enumerate(names)}
        return np.array([ids[label] for label in self.class_names()])

    def file(self, otherwise: str = "--train_file") -> str:
        """The (first) file that the rows are from, for errors."""
        return self.places[0][0] if self.places else otherwise

    def line(self, problem_type: str | None = None) -> str:
        """One line about the rows: columns, number, classes or the range of numbers, remarks.

        text: CONTENT, label: CLASS, 1,956 rows; spam 1,005, ham 951
        """
        rows = f"{len(self):,} rows"
        parts = [rows if self.columns is None else f"{self.columns}, {rows}"]
        if self.labels is None:
            parts.append("no labels")
        elif problem_type == REGRESSION:
            numbers = self.numbers()
            parts.append(f"from {numbers.min():g} to {numbers.max():g}, mean {numbers.mean():.3g}")
        else:
            parts += _counted(Counter(self.labels))
        if self.columns is not None and self.columns.unread:
            parts.append(f"texts not read: {some(self.columns.unread)}")
        return "; ".join([*parts, *self.notes])


def join_rows(several: Sequence[LabelledTexts]) -> LabelledTexts:
    """The rows of all of them, with labels where all have some."""
    if len(several) == 1:
        return several[0]
    labels = [rows.labels for rows in several]
    pairs = [rows.pairs for rows in several]
    return LabelledTexts(
        texts=[text for rows in several for text in rows.texts],
        labels=None if None in labels else [label for rows in labels for label in rows or ()],
        places=[place for rows in several for place in rows.places],
        pairs=None if None in pairs else [text for rows in pairs for text in rows or ()],
        columns=several[0].columns,
        notes=[f"{rows.file()}: {note}" for rows in several for note in rows.notes],
    )


def _counted(counts: Counter[str]) -> list[str]:
    """`spam 1,005, ham 951`; or the number of classes and the rarest; and which classes have few rows."""
    ordered = counts.most_common()
    parts = [", ".join(f"{_short(name)} {count:,}" for name, count in ordered)]
    if len(ordered) > _COUNTED:
        rarest = ", ".join(f"{_short(name)} {count:,}" for name, count in reversed(ordered[-_COUNTED:]))
        parts = [f"{len(ordered):,} classes, the rarest: {rarest}"]

    few = [name for name, count in ordered if count < FEW]
    if few:
        parts.append(f"fewer than {FEW} rows, kept: {some(few)}")
    return parts


def some(names: Sequence[str], most: int = 10) -> str:
    """The names, or the first of them and the number of the others."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(_short, names[:most])) + more


def _short(name: str, longest: int = 30) -> str:
    """The name, cut if it is long, in quotes if it is a number, which would not be told from a count."""
    name = name if len(name) <= longest else f"{name[:longest]}…"
    return repr(name) if as_number(name) is not None else name
