"""Reads labelled texts, or pairs of texts, from tables, folders and the Hub.

    rows = read_labelled(["comments.csv"])
    print(rows.line())      # text: CONTENT, label: CLASS, 1,956 rows; spam 1,005, ham 951

A folder is read as one of these:

    mail/train.csv       mail/test.csv             a file for each part
    mail/train/spam/1.txt   mail/test/ham/7.txt    a folder for each part, with a subfolder for each class
    mail/spam/1.txt      mail/ham/2.txt            a subfolder for each class
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_hf.data.text.input_files import expand, kind_of
from bert_hf.data.text.readers import KINDS, read_lines, whole_text
from bert_hf.data.text.tables import LABEL_NAMES, Row, choose_column, file_rows, text_of, usual_column
from bert_hf.errors import InputError, did_you_mean

REGRESSION, CLASSES = "regression", "single_label_classification"  # values of `BertConfig.problem_type`
_PAIR_NAMES = (
    ("text", "text_pair"), ("text", "textpair"), ("text_a", "text_b"), ("text1", "text2"), ("sentence1", "sentence2"),
    ("sentence_a", "sentence_b"), ("question1", "question2"), ("premise", "hypothesis"), ("question", "sentence"),
    ("question", "answer"), ("question", "context"), ("query", "document"), ("claim", "evidence"),
)  # fmt: skip
_MOST_COUNTED = 10  # classes, up to which `LabelledTexts.line` counts the rows of each
_PART = re.compile(r"(train|training|validation|valid|val|dev|test)(?![a-z])", re.IGNORECASE)
_PARTS = {"training": "train", "valid": "validation", "val": "validation", "dev": "validation"}


@dataclass(frozen=True)
class NamedColumns:
    """The columns that the user named; None: found by their names.

    Attributes:
        problem_type: "regression": labels are numbers; "single_label_classification": they are names of classes; None:
            names of classes, unless they look like measured numbers.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    problem_type: str | None = None


class Columns(NamedTuple):
    """The columns that are read; `pair` and `label` may be None. `names` are those of all columns."""

    text: str
    pair: str | None
    label: str | None
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        """`text: sentence1, pair: sentence2, label: score`."""
        read = {"text": self.text, "pair": self.pair, "label": self.label}
        return ", ".join(f"{part}: {name}" for part, name in read.items() if name is not None)


@dataclass
class LabelledTexts:
    """Rows: N texts or pairs of texts, and their labels by name.

    Attributes:
        texts: (N,) the texts, or the first ones of pairs.
        labels: (N,) names of classes, or numbers as they are written in the file; None: the rows have no labels.
        places: (N,) file (or Hub dataset) and line of each row; empty where they are not known.
        pairs: (N,) the second texts; None: the rows are single texts.
        columns: that were read.
        notes: remarks for `line`, such as the number of empty texts.
    """

    texts: list[str]
    labels: list[str] | None
    places: list[tuple[str, int | None]] = field(default_factory=list, compare=False)
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
        """(N,) one string per row, for counting words: the two texts of a pair on two lines."""
        if self.pairs is None:
            return self.texts
        return [f"{one}\n{other}" for one, other in zip(self.texts, self.pairs, strict=True)]

    def class_names(self) -> list[str]:
        """(N,) the labels.

        Raises:
            InputError: the rows have none.
        """
        if self.labels is None:
            remedy = "label the rows, or pass --label_column"
            raise InputError("the rows have no labels", where=self.file(), remedy=remedy)
        return self.labels

    def classes(self) -> set[str]:
        """The labels that occur.

        Raises:
            InputError: the rows have none, or only one.
        """
        labels = set(self.class_names())
        if len(labels) < 2:
            raise InputError(f"only one label: {min(labels)}", where=self.file(), remedy="give rows of two labels")
        return labels

    def numbers(self) -> np.ndarray:
        """(N,) the labels of a regression, in float64.

        Raises:
            InputError: the rows have no labels, or one is not a number.
        """
        numbers = [as_number(label) for label in self.class_names()]
        if None in numbers:
            row = numbers.index(None)
            what = f"label {self.class_names()[row]!r} is not a number"
            where, line = self.places[row] if self.places else (self.file(), None)
            raise InputError(what, where=where, line=line, remedy=f"correct it, or pass --problem_type {CLASSES}")
        return np.array(numbers, np.float64)

    def targets(self, names: Sequence[str]) -> np.ndarray:
        """(N,) class ids, where `names` are the classes by id; without names the numbers of a regression.

        Raises:
            InputError: see `class_names` and `numbers`.
        """
        if not names:
            return self.numbers()
        ids = {name: number for number, name in enumerate(names)}
        return np.array([ids[label] for label in self.class_names()])

    def file(self) -> str:
        """The (first) file that the rows are from, for errors."""
        return self.places[0][0] if self.places else "--train_file"

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
            parts.append(_counted(Counter(self.labels)))
        return "; ".join([*parts, *self.notes])


def _counted(counts: Counter[str]) -> str:
    """`spam 1,005, ham 951`, or `151 classes of 30 to 100 rows`; names that are numbers are quoted."""
    if len(counts) > _MOST_COUNTED:
        return f"{len(counts):,} classes of {min(counts.values()):,} to {max(counts.values()):,} rows"
    shown = {name: name if as_number(name) is None else repr(name) for name in counts}
    return ", ".join(f"{shown[name]} {count:,}" for name, count in counts.most_common())


def as_number(value: Any) -> float | None:
    """A finite number, or the one that a string holds; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


# ---- files and folders


def read_labelled(
    files: list[str],
    named: NamedColumns | None = None,
    encoding: str | None = None,
    like: Columns | None = None,
    needs_labels: bool = True,
) -> LabelledTexts:
    """Reads labelled texts from tables and from folders with a subfolder of text files for each class.

    White space at the ends of texts and labels is removed. Rows without a text are left out and counted in `notes`; of
    rows without labels all are kept, so that each gets its prediction.

    Args:
        named: the columns that the user named.
        encoding: None: UTF-8.
        like: the columns of the training rows, which are those of other files too.
        needs_labels: False: files without labels are accepted.

    Raises:
        InputError: with file and line.
    """
    rows: list[Row] = []
    names = like.names if like else ()
    for path in expand(files, folders=True):
        rows += _folder_rows(Path(path), encoding) if Path(path).is_dir() else file_rows([path], encoding, names)
        names = tuple(rows[0].values)
    return without_empty(labelled_rows(rows, named or NamedColumns(), like, needs_labels))


def files_of_parts(files: dict[str, list[str]]) -> dict[str, list[str]]:
    """The files of each part: as they are named, or `train…`, `dev…`, `test…` in the one folder that is named."""
    if list(files) != ["train"] or len(files["train"]) != 1 or not Path(files["train"][0]).is_dir():
        return files

    parts: dict[str, list[str]] = {}
    for path in _visible(Path(files["train"][0])):
        match = _PART.match(path.name)
        if match and (path.is_dir() or kind_of(path) in KINDS):
            name = match[1].lower()
            parts.setdefault(_PARTS.get(name, name), []).append(str(path))
    if "train" not in parts:
        return files
    return {part: parts[part] for part in ("train", "validation", "test") if part in parts}


def _folder_rows(folder: Path, encoding: str | None) -> list[Row]:
    """The text of each file in the subfolders; its label is the name of the subfolder."""
    tables = set(KINDS) - {".txt"}
    classes = [path for path in _visible(folder) if path.is_dir()]
    rows = [
        Row({"text": "\n".join(line for _, line in read_lines(file, encoding)), "label": path.name}, str(file), 1)
        for path in classes
        for file in sorted(path.rglob("*"))
        if file.is_file() and not file.name.startswith(".") and kind_of(file) not in tables
    ]
    if not rows:
        remedy = f"name the files, e.g. '{folder}/*.csv', or give each class a subfolder of .txt files"
        raise InputError("no train file and no subfolders of texts in it", where=folder, remedy=remedy)
    return rows


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


# ---- rows


def labelled_rows(
    rows: list[Row], named: NamedColumns, like: Columns | None = None, needs_labels: bool = True
) -> LabelledTexts:
    """Texts and labels of rows, whose columns are those of `like`, or named, or found by their usual names.

    Raises:
        InputError: a column is missing or cannot be chosen, or a row lacks its label (with its place).
    """
    if like is not None:
        named = NamedColumns(like.text, like.pair, like.label, named.problem_type)
    columns = find_columns(rows[0], named, needs_labels)

    labels = None
    if columns.label is not None:
        labels = [_label_name(row, columns.label) for row in rows]
        if not needs_labels and not any(labels):
            labels = None
        elif "" in labels:
            remedy = "label it or remove it"
            raise rows[labels.index("")].error(f"the row has no {columns.label!r}", remedy)
    if labels is not None and named.problem_type is None:
        _check_not_measured(labels, columns, rows[0])

    return LabelledTexts(
        texts=_texts(rows, columns.text),
        labels=labels,
        places=[(row.where, row.line) for row in rows],
        pairs=None if columns.pair is None else _texts(rows, columns.pair),
        columns=columns,
    )


def _texts(rows: list[Row], column: str) -> list[str]:
    """The texts in a column without white space at their ends; "" for null."""
    return [(text_of(row, column) or "").strip() for row in rows]


def find_columns(row: Row, named: NamedColumns, needs_label: bool = True) -> Columns:
    """The columns of text, second text and label, by the first row.

    Raises:
        InputError: a named column does not exist, or there is not one column with a usual name.
    """
    columns = tuple(row.values)
    flags = {"--text_column": named.text, "--text_pair_column": named.pair, "--label_column": named.label}
    for flag, name in flags.items():
        optional = flag == "--label_column" and not needs_label
        if name is not None and name not in columns and not optional:
            remedy = f"{did_you_mean(name, columns)}pass {flag}, one of: {', '.join(columns)}"
            raise row.header_error(f"no column {name!r}", remedy)

    texts = (named.text, named.pair)
    label = named.label or usual_column([name for name in columns if name not in texts], LABEL_NAMES)
    if label not in columns:
        label = None
    if label is None and needs_label:
        raise row.header_error("which column holds the label?", f"pass --label_column, one of: {', '.join(columns)}")

    free = {name: value for name, value in row.values.items() if name not in (label, named.pair)}
    if named.text is not None:
        return Columns(named.text, named.pair, label, columns)
    by_name = {name.lower(): name for name in free}
    pairs = [(by_name[one], by_name[other]) for one, other in _PAIR_NAMES if one in by_name and other in by_name]
    if named.pair is None and len(pairs) == 1:
        return Columns(*pairs[0], label, columns)
    return Columns(choose_column(row._replace(values=free), only_strings=False), named.pair, label, columns)


def _label_name(row: Row, column: str) -> str:
    """The name of a row's label on one line, as cards and predictions need it.

    "1" for 1, 1.0 and " 1"; "a b" for "a\\n\\n b"; "" for null, NaN and blanks.
    """
    value = row.values.get(column)
    if isinstance(value, list | dict):
        raise row.error(f"{column!r} is neither a name nor a number", "give each row one label")
    if value is None or value != value:  # NaN is not equal to itself
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return " ".join(whole_text(str(value)).split())


def _check_not_measured(labels: list[str], columns: Columns, first: Row) -> None:
    """Refuses labels that are all numbers, not all of them whole, since each would become a class."""
    numbers = [as_number(label) for label in labels]
    if None in numbers or all(number == round(number or 0) for number in numbers):
        return
    remedy = f"pass --problem_type {REGRESSION}, or --problem_type {CLASSES} if they are classes"
    raise first.error(f"the labels in column {columns.label!r} look like measured numbers", remedy)


def without_empty(rows: LabelledTexts) -> LabelledTexts:
    """The rows that have a text, and both texts of a pair; all of them where they have no labels.

    Raises:
        InputError: no row has a text.
    """
    whole = [row for row, text in enumerate(rows.texts) if text and (rows.pairs is None or rows.pairs[row])]
    empty = len(rows) - len(whole)
    if not whole:
        raise InputError("no row has a text", where=rows.file(), remedy="pass another --text_column")
    if not empty:
        return rows
    if rows.labels is None:
        return replace(rows, notes=[*rows.notes, f"{empty:,} without a text"])
    return replace(rows.take(whole), notes=[*rows.notes, f"{empty:,} without a text left out"])
