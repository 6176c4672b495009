"""Decides whether the first row of a table names its columns, for tables that are too large to be held in memory.

A first row that is wrongly taken for a header is lost, so where neither names nor values tell, the table is refused.
(The reader of labelled rows, which holds all rows, decides in `finetuning.labelled.separated`, by the same names.)
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from bert_hf.config.parser import is_number
from bert_hf.errors import InputError

PLAIN_TEXT_NAMES = ("text", "sentence", "message", "sms", "content")  # such a column is the text, whatever others hold
TEXT_NAMES = (
    *PLAIN_TEXT_NAMES, "texts", "comment", "review", "tweet", "body", "utterance", "question", "query", "document",
    "headline",
)  # fmt: skip
LABEL_NAMES = ("label", "labels", "class")
OTHER_LABEL_NAMES = (
    "category", "target", "score", "quality", "sentiment", "polarity", "rating", "stars", "intent", "topic",
    "emotion", "stance", "is_duplicate", "similarity",
)  # fmt: skip
PAIR_NAMES = (
    ("premise", "hypothesis"), ("question", "sentence"), ("question", "answer"), ("question", "passage"),
    ("question", "context"), ("query", "passage"), ("query", "document"), ("claim", "evidence"), ("text", "textpair"),
    ("headline", "body"),
)  # fmt: skip
ID_NAMES = ("id", "index", "idx")
_USUAL = {*TEXT_NAMES, *LABEL_NAMES, *OTHER_LABEL_NAMES, *(name for pair in PAIR_NAMES for name in pair), *ID_NAMES}

_NAME_LENGTH = 40  # characters of the name of a column
_NAME_WORDS = 2  # words of it, where the column could be a text
_STOPS = ".!?,;:…。！？，；：、؟،؛।॥"  # no name ends with one
_IDENTIFIER = re.compile(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)+")  # tweet_text
_MOST_CLASSES = 100  # different values of a column of labels
_FEW_ROWS = 20  # up to so many rows any number of classes is believed that is smaller


def column_names(
    first: list[str], rows: Iterable[list[str]], named: Sequence[str], where: str | Path, line: int
) -> tuple[list[str], bool]:
    """(names of the columns, whether the first row holds them).

    Three columns and more have a header. One without is called `text`, and two without are called `label`, `text`:

        text, tweet_text                  a header, as is a column that the user named
        Go home. / It rains again         a text
        Hello / Review Text / 文本        refused: it is either
        text<TAB>label                    a header
        ham<TAB>Ok lar                    a label and a text, where `ham` comes again in a column of few values
        Ok lar<TAB>ham                    refused

    Args:
        rows: those after the first; read as far as needed.
        named: the columns that the user named.
        where, line: of the first row, for the error.

    Raises:
        InputError: the first row may be either.
    """
    if len(first) not in (1, 2) or any(name in first for name in named):
        return first, True
    if len(first) == 1:
        header = _names_one_column(first[0].strip(), named, where, line)
        return (first, True) if header else (["text"], False)

    cells = [cell.strip() for cell in first]
    usual = sum(cell.lower() in _USUAL for cell in cells)
    if usual == 2:
        return first, True

    columns = _Columns(first, rows)
    names = all(may_be_name(cell) for cell in cells if cell)
    if names and usual and not any(columns.again):
        return first, True
    if columns.label_first():
        return ["label", "text"], False
    if names and named:  # the reader says which of the names are not there
        return first, True
    choice = f"--text_column, one of: {', '.join(filter(None, cells))}, if it is; else " if names else ""
    what = "which column holds the text, and is this line a header?"
    raise InputError(what, where=where, line=line, remedy=f"{choice}begin the file with a line such as text,label")


def _names_one_column(cell: str, named: Sequence[str], where: str | Path, line: int) -> bool:
    """Whether the first cell of a table of one column is its name, and not a text."""
    if cell.lower() in _USUAL or _IDENTIFIER.fullmatch(cell):
        return True
    if not _is_name_or_text(cell):
        return False
    if named:  # the reader says that the named column is not there
        return True
    remedy = f"--text_column {cell!r}, if it is the name; else begin the file with the line `text`"
    raise InputError(f"is {cell!r} the name of the column, or a text?", where=where, line=line, remedy=remedy)


class _Columns:
    """How two columns look: hashes of at most `_MOST_CLASSES` + 1 values of each are held.

    Attributes:
        again: whether the first value of each comes again.
    """

    def __init__(self, first: list[str], rows: Iterable[list[str]]):
        self.again = [False, False]
        self._values = [{hash(cell)} for cell in first]
        self._count, self._short = 1, _is_short(first[0])

        for row in rows:
            self._count += 1
            self._short = self._short and _is_short(row[0])
            for number, cell in enumerate(row[:2]):
                self.again[number] = self.again[number] or cell == first[number]
                if len(self._values[number]) <= _MOST_CLASSES:
                    self._values[number].add(hash(cell))

    def label_first(self) -> bool:
        """Whether the first column holds classes: few and short values, fewer than the second has."""
        classes, texts = map(len, self._values)
        few = classes <= _MOST_CLASSES and (2 * classes <= self._count or self._count <= _FEW_ROWS)
        return self.again[0] and self._short and few and classes < texts


# ---- cells


def _is_short(cell: str) -> bool:
    return len(cell) <= _NAME_LENGTH and not cell.rstrip().endswith(tuple(_STOPS))


def may_be_name(cell: str) -> bool:
    """Whether a cell that is not empty may be the name of a column."""
    return _is_short(cell) and not is_number(cell)


def _is_name_or_text(cell: str) -> bool:
    """Whether a cell could be either: `Review Text`, `Hello world`, `文本`."""
    return bool(cell) and may_be_name(cell) and len(cell.split()) <= _NAME_WORDS
