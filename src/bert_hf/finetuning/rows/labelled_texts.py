"""Reads labelled texts or text pairs from tables, folders and the Hub.

    rows = labelled_rows(list(file_texts("comments.csv")), Columns())
    print(rows.describe())  # text: CONTENT, label: CLASS, 1,956 rows; spam 1,005, ham 951

A folder has a subfolder for each class: mail/spam/1.txt, mail/ham/2.txt.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from bert_hf.console import logger, shorten_list
from bert_hf.data.text.input_files import MAILS, kind_of
from bert_hf.data.text.readers import KINDS, read_documents, read_lines
from bert_hf.data.text.tables import (
    LABEL_NAMES,
    Row,
    choose_column,
    is_index,
    list_cell,
    read_rows,
    text_of,
    usual_column,
    without_rejected,
)
from bert_hf.errors import InputError, did_you_mean

# Values of `BertConfig.problem_type`
REGRESSION, CLASSES, MULTIPLE = "regression", "single_label_classification", "multi_label_classification"
Label = Any  # a name, or a number as it is written in the file; where a row may have several labels, a tuple of names
_PAIR_NAMES = (
    ("text", "text_pair"), ("text", "textpair"), ("text_a", "text_b"), ("text1", "text2"), ("sentence1", "sentence2"),
    ("sentence_a", "sentence_b"), ("question1", "question2"), ("premise", "hypothesis"), ("question", "sentence"),
    ("question", "answer"), ("question", "context"), ("query", "document"), ("claim", "evidence"),
)  # fmt: skip
_TABLES = tuple(set(KINDS) - {".txt", ".tsv"})
_THOUSANDS = re.compile("[+-]?[1-9][0-9]{0,2},[0-9]{3}")  # as in 1,234, which is 1.234 where commas are decimal
_MISSING = ("nan", "na", "n/a", "#n/a", "none", "null", "\\n", "-")  # labels that may say that there is none
_OTHER_LABELS = ("sentiment", "stance", "rating", "stars", "score", "polarity", "emotion", "intent")  # unlike `type`
_MOST_COUNTED = 10  # classes, up to which `LabelledTexts.describe` counts the rows of each


class Columns(NamedTuple):
    """The columns of labelled rows: as the user named them (None: found by their names), or as they are read.

    `labels`: --label_columns, where each column says by 0 or 1 whether a row has the label of that name.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the columns as text: `text: sentence1, pair: sentence2, label: score`."""
        columns = {"text": self.text, "pair": self.pair, "label": self.label}
        columns["labels"] = f"{len(self.labels)} columns" if self.labels else None
        return ", ".join(f"{part}: {name}" for part, name in columns.items() if name is not None)


@dataclass
class LabelledTexts:
    """Rows: N texts or pairs of texts, and their labels by name."""

    texts: list[str]  # of pairs the first ones
    labels: list[Label] | None  # None: the rows have no labels
    places: list[tuple[str, int | None]] = field(default_factory=list, compare=False)  # file or Hub dataset, line
    pairs: list[str] | None = None  # the second texts; None: the rows are single texts
    columns: Columns = field(default=Columns(), compare=False)

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Sequence[int] | np.ndarray) -> "LabelledTexts":
        """Return the rows of these indices."""
        lists = {name: getattr(self, name) for name in ("texts", "labels", "places", "pairs")}
        taken = {name: [values[row] for row in rows] for name, values in lists.items() if values}
        return replace(self, **taken)

    def with_names(self, names: Sequence[str]) -> "LabelledTexts":
        """Return the rows with the names of labels that are ids: "spam" for "1" of ("ham", "spam")."""
        if self.labels is None or any(as_number(name) is not None for name in names):  # "1" is a name itself
            return self
        by_number = {str(number): name for number, name in enumerate(names)}

        def named(label: Label) -> Label:
            return tuple(map(named, label)) if isinstance(label, tuple) else by_number.get(label, label)

        return replace(self, labels=list(map(named, self.labels)))

    def joined(self) -> list[str]:
        """Return (N,) one string per row, for counting words: the two texts of a pair on two lines."""
        if self.pairs is None:
            return self.texts
        return [f"{one}\n{other}" for one, other in zip(self.texts, self.pairs, strict=True)]

    def required_labels(self) -> list[Label]:
        """Return (N,) the labels; an error where the rows have none."""
        if self.labels is None:
            remedy = "label the rows, or pass --label_column"
            raise InputError("the rows have no labels", where=self.file(), remedy=remedy)
        return self.labels

    def check_classes(self, may_be_numbers: bool) -> None:
        """Check that there are two classes (a label, if rows have several), no measured numbers; log doubtful ones."""
        labels = {name for label in self.required_labels() for name in names_of(label)}
        if any(isinstance(label, tuple) for label in self.required_labels()):
            if not labels:
                raise InputError("no row has a label", where=self.file(), remedy="check the column of the labels")
            return
        if len(labels) < 2:
            raise InputError(f"only one label: {min(labels)}", where=self.file(), remedy="give rows of two labels")
        self._log_doubtful_classes(labels)

        numbers = [number for number in map(as_number, labels) if number is not None]
        have_fractions = any(number != round(number) for number in numbers)
        if not may_be_numbers and have_fractions and len(numbers) > 0.9 * len(labels):
            remedy = f"pass --problem_type {REGRESSION}, or --problem_type {CLASSES} if they are classes"
            raise InputError("the labels look like measured numbers", where=self.file(), remedy=remedy)

    def _log_doubtful_classes(self, labels: set[str]) -> None:
        """Log labels that differ only in case, that may stand for a missing one, or that are nearly all different."""
        first_spelling: dict[str, str] = {}
        for row, label in enumerate(self.required_labels()):
            other = first_spelling.setdefault(label.casefold(), label)
            if label != other:
                place = ":".join(map(str, filter(None, self.places[row])))
                logger.info(f"! {place}: label {label!r} is another class than {other!r}; make them equal in the file")
                break

        for name in filter(lambda name: name.casefold() in _MISSING, labels):
            count = self.required_labels().count(name)
            logger.info(f"! {count:,} rows have the label {name!r}: remove them if it says none")
        if len(self) >= _MOST_COUNTED and len(labels) > len(self) / 2:
            logger.info(f"! {len(labels):,} classes of {len(self):,} rows: is {self.columns.label!r} the label?")

    def check_labels(self, names: Sequence[str]) -> None:
        """Check that each label is one of these."""
        known = set(names)
        for row, label in enumerate(self.labels or ()):
            for name in names_of(label):
                if name not in known:
                    raise unknown_label_error(name, names, *self.places[row])

    def numbers(self) -> np.ndarray:
        """Return (N,) the labels of a regression, in float64; no number, or an unclear decimal mark, is an error."""
        numbers = [as_number(label) for label in self.required_labels()]
        if None in numbers:
            row = numbers.index(None)
            what = f"label {self.required_labels()[row]!r} is not a number"
            where, line = self.places[row]
            remedy = f"fix it; a training on class names is --problem_type {CLASSES}"
            raise InputError(what, where=where, line=line, remedy=remedy)
        self._check_decimal_marks()
        return np.array(numbers, np.float64)

    def _check_decimal_marks(self) -> None:
        """Check that a comma or point is a decimal mark in all labels: 1,234 and 1.5 cannot both be."""
        labels = list(map(str, self.required_labels()))
        commas = [label for label in labels if "," in label]
        points = [label for label in labels if "." in label and _THOUSANDS.fullmatch(label.replace(".", ","))]
        if commas and all(map(_THOUSANDS.fullmatch, commas)):
            what = f"label {commas[0]!r} has a decimal comma, or one of thousands"
            raise InputError(what, where=self.file(), remedy=f"write {commas[0].replace(',', '')} or a decimal point")
        if commas and points:
            what = f"labels {commas[0]!r} and {points[0]!r}: the point is decimal, or of thousands"
            raise InputError(what, where=self.file(), remedy="write all numbers with a decimal point")

    def targets(self, names: Sequence[str]) -> np.ndarray:
        """Return (N,) class ids, where `names` are the classes by id; without names the numbers of a regression.

        Of rows with several labels: (N, C) float32, 1 for each label of a row and 0 for the others.
        """
        if not names:
            return self.numbers()
        ids = {name: number for number, name in enumerate(names)}
        if any(isinstance(label, tuple) for label in self.required_labels()):
            targets = np.zeros((len(self), len(names)), np.float32)
            for row, label in enumerate(self.required_labels()):
                targets[row, [ids[name] for name in label]] = 1
            return targets
        return np.array([ids[label] for label in self.required_labels()])

    def file(self) -> str:
        """Return the first source file, for error messages."""
        return self.places[0][0]

    def describe(self, problem_type: str | None = None) -> str:
        """Return one line about the rows: columns, number, classes or the range of numbers.

        text: CONTENT, label: CLASS, 1,956 rows; spam 1,005, ham 951
        """
        parts = [", ".join(filter(None, [str(self.columns), f"{len(self):,} rows"]))]
        if self.labels is None:
            parts.append("no labels")
        elif problem_type == REGRESSION:
            numbers = self.numbers()
            parts.append(f"from {numbers.min():g} to {numbers.max():g}, mean {numbers.mean():.3g}")
        else:
            parts.append(describe_classes(self.labels))
        return "; ".join(parts)


def names_of(label: Label) -> tuple[str, ...]:
    """Return the names of a label: of several, or of one."""
    return label if isinstance(label, tuple) else (label,)


def describe_classes(labels: Sequence[Label]) -> str:
    """Return `spam 1,005, ham 951`, or `151 classes of 30 to 100 rows`; names that are numbers are quoted."""
    counts = Counter(name for label in labels for name in names_of(label))
    if len(counts) > _MOST_COUNTED:
        return f"{len(counts):,} classes of {min(counts.values()):,} to {max(counts.values()):,} rows"
    quoted = {name: name if as_number(name) is None else repr(name) for name in counts}
    return ", ".join(f"{quoted[name]} {count:,}" for name, count in counts.most_common())


def unknown_label_error(label: str, labels: Sequence[str], where: str, line: int | None) -> InputError:
    """Return the error about a label that no training row has."""
    near = did_you_mean(label, labels) or f"the known ones: {', '.join(labels[:10])}; "
    return InputError(f"unknown label {label!r}", where=where, line=line, remedy=f"{near}fix or remove the row")


def as_number(value: Any) -> float | None:
    """Return a finite number, also of a string that holds one, such as "1.3" or "1,3"; None for anything else."""
    if isinstance(value, str) and value.count(",") == 1 and "." not in value:
        value = value.replace(",", ".")
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


# ---- files and folders


def file_texts(
    path: str,
    encoding: str | None = None,
    whole: bool = False,
    separator: str | None = None,
    columns: Sequence[str] = (),
) -> Iterator[Row]:
    """Yield the rows of a table, the lines of a plain text, or the texts of a folder's files; each mail is a text.

    Args:
        whole: a plain text is one row, as each file of a folder is.
        separator, columns: of a table, see `read_rows`; a tab in the first line makes a text one, too.
    """
    if Path(path).is_dir():
        yield from _folder_rows(Path(path), encoding)
        return
    kind = kind_of(path)
    is_table = kind in (*_TABLES, ".tsv")
    if whole and not is_table:
        yield from _whole_file(Path(path), encoding)
    elif is_table or kind in MAILS or separator or "\t" in next((line for _, line in read_lines(path, encoding)), ""):
        yield from read_rows(path, encoding, separator=separator, columns=columns)
    else:
        yield from (Row({"text": line}, path, number) for number, line in read_lines(path, encoding))


def _folder_rows(folder: Path, encoding: str | None) -> Iterator[Row]:
    """Yield the text of each file of a folder but tables and hidden files; a subfolder's name is the label in it."""
    is_empty = True
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        names = file.relative_to(folder).parts
        if any(name.startswith(".") for name in names) or kind_of(str(file)) in _TABLES:
            continue
        is_empty = False
        label = {"label": names[0]} if len(names) > 1 else {}
        yield from (row._replace(values=row.values | label) for row in _whole_file(file, encoding))
    if is_empty:
        remedy = f"name the files, e.g. '{folder}/*.csv', or give each class a subfolder of .txt files"
        raise InputError("contains no texts", where=folder, remedy=remedy)


def _whole_file(file: Path, encoding: str | None) -> Iterator[Row]:
    """Yield the text of a file as one row, or each of its mails."""
    return (Row({"file": str(file), "text": text}, str(file), 1) for text in read_documents(str(file), encoding))


# ---- rows


def labelled_rows(
    rows: list[Row],
    named: Columns,
    labels_are: Literal["needed", "optional", "ignored"] = "needed",
    separator: str | None = None,
    problem_type: str | None = None,
) -> LabelledTexts:
    """Return texts and labels of rows; their columns are named, or found by their usual names.

    A row has several labels where its cell is a list, `separator` is given, or each label has a column of its own.
    """
    are_read = labels_are != "ignored"
    if are_read:
        rows = _without_files_beside_folders(rows)
    # A column `answer` that the user did not name holds Prodigy's decision on each row
    if are_read and "answer" not in (named.text, named.pair, named.label):
        rows = without_rejected(rows)
    columns = find_columns(rows[0], named, labels_are)
    labels = _labels_of_rows(rows, columns, labels_are == "optional", separator, problem_type) if are_read else None
    return LabelledTexts(
        texts=_texts(rows, str(columns.text)),
        labels=labels,
        places=[(row.where, row.line) for row in rows],
        pairs=None if columns.pair is None else _texts(rows, columns.pair),
        columns=columns,
    )


def _labels_of_rows(
    rows: list[Row], columns: Columns, optional: bool, separator: str | None, problem_type: str | None
) -> list[Label] | None:
    """Return the label of each row, or a tuple of labels; None without a column of labels, or if all are blank."""
    if columns.labels:
        cells = (_one_line(row.values[column]) for row in rows for column in columns.labels)
        return None if optional and not any(cells) else [_marked_columns(row, columns.labels) for row in rows]
    if columns.label is None:
        return None

    if problem_type == MULTIPLE or separator or list_cell(rows[0].values.get(columns.label)) is not None:
        labels: list[Label] = [_several_labels(row, columns.label, separator) for row in rows]
        if not separator:
            labels = _multi_hot_labels([row.values.get(columns.label) for row in rows]) or labels
    else:
        labels = [_label_name(row, columns.label) for row in rows]
        if all(re.fullmatch(r"-?[0-9]+\.0|", label) for label in labels):
            labels = [label.removesuffix(".0") for label in labels]  # pandas writes them so beside an empty cell
    if optional and (not any(labels) or set(labels) == {"-1"}):  # -1 marks them in GLUE's test rows
        return None
    if "" in labels:
        raise _missing_labels_error(rows, labels, columns.label)
    return labels


def _without_files_beside_folders(rows: list[Row]) -> list[Row]:
    """Return the rows of a folder without files beside the folders of the classes, such as a README; log how many."""
    in_folders = [row for row in rows if row.values.keys() == {"file", "text", "label"}]
    beside = [row for row in rows if row.values.keys() == {"file", "text"}]
    if not in_folders or not beside:
        return rows
    logger.info(f"{beside[0].where}: {len(beside):,} files beside the folders of classes are left out")
    return [row for row in rows if row.values.keys() != {"file", "text"}]


def _missing_labels_error(rows: list[Row], labels: list[Label], column: str) -> InputError:
    missing = [row for row, label in zip(rows, labels, strict=True) if not label]
    lines = shorten_list([f"line {row.line}" for row in missing if row.line])
    what = f"{len(missing):,} of {len(rows):,} rows have no {column!r}: {lines}"
    return missing[0].error(what.removesuffix(": "), "label them or remove them")


def _texts(rows: list[Row], column: str) -> list[str]:
    """Return the texts in a column without white space at their ends; "" for null."""
    return [(text_of(row, column) or "").strip() for row in rows]


def find_columns(row: Row, named: Columns, labels_are: str = "needed") -> Columns:
    """Return the columns of text, second text and label, by the first row: as named (checked), else by usual names."""
    needs_label = labels_are == "needed"
    columns = tuple(row.values)
    flags = [("--text_column", named.text), ("--text_pair_column", named.pair)]
    if needs_label:
        flags += [("--label_column", named.label), *(("--label_columns", name) for name in named.labels)]
    for flag, name in flags:
        if name is not None and name not in columns:
            remedy = f"{did_you_mean(name, columns)}pass {flag}, one of: {', '.join(columns)}"
            raise row.header_error(f"no column {name!r}", remedy)

    # Labels; beside a column such as `stars`, one such as `type` need not be the label
    text, pair = named.text, named.pair
    label = named.label or usual_column([name for name in columns if name not in (text, pair)], LABEL_NAMES)
    rivals = [name for name in columns if name.lower() in _OTHER_LABELS and name not in (text, pair)]
    is_doubtful = named.label is None and rivals and label not in LABEL_NAMES[:2]
    if label not in columns or named.labels or is_doubtful:
        label = None
    labels = named.labels if all(name in columns for name in named.labels) else ()
    if label is None and needs_label and not labels:
        remedy = f"pass --label_column, one of: {', '.join(columns)}"
        if row.values.keys() <= {"file", "text"}:
            remedy = "give a table (--separator: between its fields), or a folder with a subfolder for each class"
        raise row.header_error("label column not recognised", remedy)

    # Texts, among the other columns: a usual pair, else the only column beside the label, else one with a usual name
    others = {name: value for name, value in row.values.items() if name not in (label, pair, *labels)}
    by_lower_case = {name.lower(): name for name in others}
    pairs = [names for names in _PAIR_NAMES if by_lower_case.keys() >= set(names)]
    if text is None and pair is None and len(pairs) == 1:
        text, pair = (by_lower_case[name] for name in pairs[0])
    candidates = [name for name in others if not is_index(name)]
    only = candidates[0] if len(candidates) == 1 and label else None
    text = text or only or choose_column(row._replace(values=others), by_type=False)
    return Columns(text, pair, label, labels)


def _label_name(row: Row, column: str) -> str:
    """Return the name of a row's label on one line, as cards and predictions need it; "" for none."""
    value = row.values.get(column)
    if isinstance(value, list | dict):
        remedy = "give each row one label, or every row a list of labels"
        raise row.error(f"{column!r} is neither a name nor a number", remedy)
    return _one_line(value)


def _one_line(value: Any) -> str:
    """Return a value on one line: "1" for 1, 1.0 and " 1"; "a b" for "a\\n\\n b"; "" for null, NaN and blanks."""
    if value is None or value != value:  # NaN is not equal to itself
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return " ".join(str(value).split())


def _several_labels(row: Row, column: str, separator: str | None) -> tuple[str, ...]:
    """Return the labels of a row, each once: of a list, or of a text between separators; none for null."""
    value = row.values.get(column)
    parts = list_cell(value)
    if parts is None:
        if isinstance(value, dict):
            raise row.error(f"{column!r} is not a list of labels", "give each row a list, or pass --label_separator")
        parts = str(value).split(separator) if separator and value is not None else [value]
    return tuple(dict.fromkeys(filter(None, map(_one_line, parts))))


_FLAGS = {"0": False, "1": True, "false": False, "true": True, "": False}


def _flag(value: Any) -> bool | None:
    """Return True for a cell of 1 or true, False for 0, false or an empty one; None for any other."""
    return _FLAGS.get(_one_line(value).lower().removesuffix(".0"))  # as pandas writes 1 beside an empty cell


def _multi_hot_labels(values: list[Any]) -> list[tuple[str, ...]] | None:
    """Return the positions of the ones, as names, where all cells are multi-hot vectors of one length; else None.

    [[0, 1, 1], [1, 0, 0]] → [("1", "2"), ("0",)]
    """
    cells = [(list_cell(value) or []) if _one_line(value) else None for value in values]  # None: a missing one
    vectors = [cell for cell in cells if cell is not None]
    if len(set(map(len, vectors))) != 1 or len(vectors[0]) < 2:
        return None
    flags = [[_flag(value) for value in cell or ()] for cell in cells]
    if any(flag is None for row in flags for flag in row):
        return None
    return [tuple(str(number) for number, flag in enumerate(row) if flag) for row in flags]


def _marked_columns(row: Row, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns that hold 1 or true; a cell that says neither yes nor no is an error."""
    flags = {column: _flag(row.values.get(column)) for column in columns}
    for column, flag in flags.items():
        if flag is None:
            value = row.values.get(column)
            raise row.error(f"{value!r} in label column {column!r} is neither 0 nor 1", "fix or remove the row")
    return tuple(column for column, flag in flags.items() if flag)


def leave_out_empty(rows: LabelledTexts) -> LabelledTexts:
    """Leave out labelled rows without a text (or one of a pair), and log how many. Rows to predict all stay."""
    complete = [row for row, text in enumerate(rows.texts) if text and (rows.pairs is None or rows.pairs[row])]
    empty = len(rows) - len(complete)
    if not complete:
        raise InputError("all texts are empty", where=rows.file(), remedy="pass another --text_column")
    if empty:
        end = "" if rows.labels is None else " and are left out"
        logger.info(f"{empty:,} of {len(rows):,} rows have no text{end}")
    return rows if rows.labels is None else rows.take(complete)
