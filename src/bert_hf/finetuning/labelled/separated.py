"""Reads rows of separated fields: finds the delimiter, whether quotes are quoting, and whether there is a header.

`csv.Sniffer` looks for one quoted field and trusts it, and pandas fills short rows and drops line numbers, so the
three decisions are made here, from all rows. No row is ever left out: one with another number of fields is an error.
"""

import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from bert_hf.config.parser import is_number
from bert_hf.data.text.table_header import (
    ID_NAMES,
    LABEL_NAMES,
    OTHER_LABEL_NAMES,
    PAIR_NAMES,
    TEXT_NAMES,
    may_be_name,
)
from bert_hf.errors import InputError

_USUAL_DELIMITER = {".csv": ",", ".tsv": "\t"}
_DELIMITERS = ("\t", ",", ";", "|")
_RFC_4180 = (",", ";")  # with these, quotes are quoting; with tabs and bars they are mostly text
_SAMPLE = 1 << 18  # characters from which the delimiter is found
_PLAIN = 0.8  # share of rows of equal width, below which a delimiter is taken for a sign of the text
_USUAL_NAMES = {*TEXT_NAMES, *ID_NAMES}
_OTHER_NAMES = {*OTHER_LABEL_NAMES, *(name for pair in PAIR_NAMES for name in pair)}
_NAME_WORDS = 2  # words of it, where the column could be text; "it is plain" is more likely one
_IDENTIFIER = re.compile(r"[A-Za-z]+[0-9]+|[A-Za-z0-9]+(_[A-Za-z0-9]+)+")  # v1, tweet_text
_OFTEN = 10  # rows of each class below a header whose names are not known

Row = tuple[int, list[str]]  # line, fields


class Separated(NamedTuple):
    """Rows of separated fields.

    Attributes:
        names: of the columns: the header's, or column_1, column_2, …
        rows: (line, fields) of each row; all have as many fields as there are names.
        header: whether line 1 holds the names.
    """

    names: list[str]
    rows: list[Row]
    header: bool


def read_separated_rows(text: str, path: str, suffix: str, named: tuple[str, ...] = ()) -> Separated:
    """Rows of a decoded file whose lines end with "\\n".

    Args:
        suffix: of the file; it decides where two delimiters fit equally well.
        named: columns that the user named, which a header has to hold.

    Raises:
        InputError: a quote that is not closed, or a row with another number of fields than the others.
    """
    delimiter = _find_delimiter(text, suffix)
    rows = _find_rows(text, delimiter, path)
    if not rows:
        return Separated([], [], True)

    _check_widths(rows, path)
    header = _has_header([fields for _, fields in rows], named)
    if not header:
        return Separated([f"column_{number}" for number in range(1, len(rows[0][1]) + 1)], rows, False)
    return Separated(_names(rows, path), rows[1:], True)


def _names(rows: list[Row], path: str) -> list[str]:
    """The names in the header; a column without a name is called by its number."""
    line, header = rows[0]
    names = [name.strip() or f"column_{number}" for number, name in enumerate(header, 1)]
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"two columns are called {name!r}", where=path, line=line, remedy="rename one of them")

    for line, fields in rows[1:]:
        if fields == header:
            remedy = "remove the line: files were joined with their headers"
            raise InputError("the header comes again", where=path, line=line, remedy=remedy)
    return names


def unquoted_rows(text: str, delimiter: str = "\t") -> Iterator[Row]:
    """(line, fields) of each line that is not blank; quotes are part of the text."""
    for line, row in enumerate(text.split("\n"), 1):
        if row.strip():
            yield line, row.split(delimiter)


# ---- rows and delimiter


def _quoted_rows(text: str, delimiter: str, escaped: bool = False) -> Iterator[Row]:
    """(first line, fields) of each row by RFC 4180, or with backslashes before quotes inside a field.

    Raises:
        csv.Error: a quote that is not closed, or text after a closing quote; its second argument is the line where the
            row begins.
    """
    reader = csv.reader(
        (f"{line}\n" for line in text.split("\n")),
        delimiter=delimiter,
        doublequote=not escaped,
        escapechar="\\" if escaped else None,
        strict=True,
    )

    csv.field_size_limit(sys.maxsize)  # a text may be of any length; the limit is that of the process
    begin = 1
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                yield begin, fields
            begin = reader.line_num + 1
    except csv.Error as error:
        raise csv.Error(str(error), begin) from None


def _find_delimiter(text: str, suffix: str) -> str:
    """The delimiter that gives most rows of the beginning an equal number of fields, at least two."""
    sample = text[:_SAMPLE]
    if len(text) > _SAMPLE:
        sample = sample[: sample.rfind("\n")]
    usual = _USUAL_DELIMITER.get(suffix, "\t")
    order = [usual, *(delimiter for delimiter in _DELIMITERS if delimiter != usual)]

    def fit(delimiter: str) -> float:
        if delimiter not in sample:
            return 0.0
        plain = [fields for _, fields in unquoted_rows(sample, delimiter)]
        return max(_share_of_usual_width(plain), _fit_of_quoted(sample, delimiter))

    fits = {delimiter: fit(delimiter) for delimiter in order}
    best = max(order, key=lambda delimiter: fits[delimiter])  # the first of equals
    return best if fits[best] >= _PLAIN else usual


def _fit_of_quoted(sample: str, delimiter: str) -> float:
    """Share of quoted rows of the usual width, and of the lines that can be read: the last row may be cut off."""
    rows: list[list[str]] = []
    read = 1.0
    try:
        rows.extend(fields for _, fields in _quoted_rows(sample, delimiter))
    except csv.Error as error:
        read = error.args[1] / (sample.count("\n") + 1)
    return read * _share_of_usual_width(rows)


def _share_of_usual_width(rows: list[list[str]]) -> float:
    """Share of the rows that have the most frequent number of fields; 0 where that is 1."""
    width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
    return count / len(rows) if width > 1 else 0.0


# ---- quotes


def _find_rows(text: str, delimiter: str, path: str) -> list[Row]:
    """The rows, quotes understood as quoting or as text: whichever gives rows of equal width.

    Raises:
        InputError: quotes that are quoting, one of which is not closed.
    """
    plain = list(unquoted_rows(text, delimiter))
    if '"' not in text:
        return _lines_of_text(plain, text, delimiter)

    quoted, failure = _try_quoted(text, delimiter)
    if quoted is None and '\\"' in text:
        quoted, _ = _try_quoted(text, delimiter, escaped=True)

    if quoted is not None:
        if delimiter in _RFC_4180 or not _equal_widths(plain):
            return quoted if _equal_widths(quoted) or not _equal_widths(plain) else plain
        return quoted if _is_quoting(text, delimiter, plain, quoted) else plain

    if delimiter in _RFC_4180 and failure is not None:
        what = f"not CSV: {failure.args[0]}"
        remedy = "check the quotes of the row: inside a quoted field they are doubled"
        raise InputError(what, where=path, line=failure.args[1], remedy=remedy)
    return _lines_of_text(plain, text, delimiter)


def _try_quoted(text: str, delimiter: str, escaped: bool = False) -> tuple[list[Row] | None, csv.Error | None]:
    try:
        return list(_quoted_rows(text, delimiter, escaped)), None
    except csv.Error as error:
        return None, error


def _equal_widths(rows: list[Row]) -> bool:
    return len({len(fields) for _, fields in rows}) <= 1


def _is_quoting(text: str, delimiter: str, plain: list[Row], quoted: list[Row]) -> bool:
    """Whether quotes in a file with tabs or bars are quoting, where both readings give rows of equal width.

    A program that quotes doubles the quotes inside a field, and quotes nothing without need, or else whole columns. So
    the rows of such a file can be written again as they were:

        spam | "He said ""hi"" "      quoting
        spam | "Hello" he said        text
        spam | "Hello"                quoting where every value of the column is like that, else text
    """
    columns = zip(*(fields for _, fields in plain), strict=True)
    if len(plain) == len(quoted) and any(all(map(_is_enclosed, values[1:])) for values in columns):
        return True

    # Without a doubled quote nothing tells quoting from text; quotes that join lines are then taken for text, too
    if not any('"' in field for _, fields in quoted for field in fields):
        return False
    return text.strip("\n") in (_written(quoted, delimiter, all_fields) for all_fields in (False, True))


def _written(rows: list[Row], delimiter: str, all_fields: bool) -> str:
    """The rows as a program writes them that quotes all fields, or only those that need it."""
    file = io.StringIO()
    quoting = csv.QUOTE_ALL if all_fields else csv.QUOTE_MINIMAL
    csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=quoting).writerows(fields for _, fields in rows)
    return file.getvalue().strip("\n")


def _is_enclosed(field: str) -> bool:
    return len(field) > 1 and field[0] == field[-1] == '"'


def _lines_of_text(rows: list[Row], text: str, delimiter: str) -> list[Row]:
    """The rows; or each line as one field, where the first line is one and the others differ in their delimiters."""
    widths = [len(fields) for _, fields in rows]
    if widths and widths[0] == 1 and _share_of_usual_width([fields for _, fields in rows]) < _PLAIN:
        return [(line, [delimiter.join(fields)]) for line, fields in rows]
    return rows


def _check_widths(rows: list[Row], path: str) -> None:
    """Refuses a row that has another number of fields than most rows."""
    counts = Counter(len(fields) for _, fields in rows)
    most = max(counts.values())
    first = len(rows[0][1])
    width = first if counts[first] == most else next(width for width, count in counts.items() if count == most)
    for line, fields in rows:
        if len(fields) != width:
            what = f"{len(fields)} fields instead of {width}"
            raise InputError(what, where=path, line=line, remedy="correct the row")


# ---- header


def _has_header(rows: list[list[str]], named: tuple[str, ...]) -> bool:
    """Whether the first row holds the names of the columns.

    Columns that the user named decide, and a name such as `label`. Otherwise names are short, differ, are no numbers
    (although their columns may be), and come only once in their column: the first row of `ham<TAB>Ok lar`,
    `spam<TAB>Free entry`, … is data, because `ham` comes again. A single column has a header where that is a name such
    as `text`.

    Short cells alone are no header: `thank you<TAB>gratitude` may be the only row of its class. They are one where one
    is a name that is used elsewhere (`topic`, `premise`), where all are written as names are (`v1`, `tweet_text`), or
    where every other value of a column comes many times.
    """
    first = [cell.strip() for cell in rows[0]]
    cells = [cell for cell in first if cell]
    if named and set(named) <= set(first):
        return True

    # The same row again would be a second header, which is refused later
    others = [row for row in rows[1:] if row != rows[0]]
    once = [name for column, name in enumerate(first) if name and all(row[column].strip() != name for row in others)]
    if any(name.lower() in LABEL_NAMES for name in once):
        return True
    if len(once) < len(cells):
        return False
    numbers = any(
        not is_number(name) and others and all(is_number(row[column]) for row in others)
        for column, name in enumerate(first)
    )
    usual = numbers or any(name.lower() in _USUAL_NAMES for name in once)
    if usual and all(map(may_be_name, cells)):
        return True

    if len(first) == 1 or len(set(cells)) < len(cells):
        return False
    if named and set(named) <= {f"column_{number}" for number in range(1, len(first) + 1)}:
        return False
    numbered = [str(number) for number in range(len(first))]  # as pandas numbers columns that have no names
    short = all(may_be_name(cell) and len(cell.split()) <= _NAME_WORDS for cell in cells)
    return bool(cells) and (first == numbered or (short and _are_names(first, cells, others)))


def _are_names(first: list[str], cells: list[str], others: list[list[str]]) -> bool:
    """Whether more than their length tells that short cells are names."""
    if any(cell.lower() in _OTHER_NAMES for cell in cells) or all(map(_IDENTIFIER.fullmatch, cells)):
        return True
    return any(name and _all_come_often([row[column] for row in others]) for column, name in enumerate(first))


def _all_come_often(values: list[str]) -> bool:
    """Whether the values are classes, each of so many rows that one more class of a single row is unlikely."""
    return bool(values) and min(Counter(values).values()) >= _OFTEN
