"""Reads the texts (or pairs of texts) whose features are asked for, one after the other, from files of any size."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import NamedTuple

from bert_hf.data.corpus.checksums import text_checksum
from bert_hf.data.text.input_files import access_errors, expand, is_url, kind_of
from bert_hf.data.text.readers import (
    KINDS,
    TABLES,
    choose_column,
    no_column,
    open_parquet,
    read_lines,
    read_rows,
    read_separated,
    whole_text,
)
from bert_hf.data.text.sources import TextFile
from bert_hf.data.text.table_header import PLAIN_TEXT_NAMES
from bert_hf.errors import InputError

_SEPARATOR = " ||| "  # between the texts of a pair in a line (extract_features.py of google-research/bert)

_FLAGS = ("--text_column", "--text_pair_column", "--id_column")  # of the fields of `Columns`


class Columns(NamedTuple):
    """The columns of a row that are read; None: the text's is found, and there is no other."""

    text: str | None = None
    pair: str | None = None
    id: str | None = None


class Text(NamedTuple):
    """A text; of a pair, also the second one; the id where a column holds one.

    A pair whose second text is empty is a single text, as in the 2018 code and the stock tokenizer.
    """

    text: str
    pair: str | None = None
    id: str | None = None

    @property
    def empty(self) -> bool:
        """Whether it holds nothing but white space."""
        return not (self.text.strip() or (self.pair or "").strip())


def checksum(patterns: list[str]) -> str:
    """SHA-256 of the content of files; of URLs, of what identifies their content."""
    return text_checksum(" ".join(TextFile(path).checksum() for path in expand(patterns)))


def read_all(patterns: list[str], columns: Columns) -> Iterator[Text]:
    """The texts of all files that paths, URLs and globs name; see `read_texts`.

    Raises:
        InputError: also where there is no text in any of them.
    """
    files = expand(patterns)
    count = 0
    for path in files:
        for text in read_texts(path, columns):
            count += 1
            yield text
    if not count:
        raise InputError("no texts in it", where=files[0], remedy="give files that hold text")


def read_texts(path: str, columns: Columns) -> Iterator[Text]:
    """The texts of a file, in its order: every line of plain text, every row of another file, empty ones included.
    A blank line of a table is no row.

    In plain text ` ||| ` separates the two texts of a pair, as in the 2018 code. A null is an empty text.

    Args:
        path: .txt, .jsonl, .json (lines), .csv, .tsv or .parquet, also .gz or .xz; or the URL of one.

    Raises:
        InputError: with file and line.
    """
    with access_errors(path) if is_url(path) else nullcontext():
        kind = kind_of(path)
        if kind in (".txt", ""):
            yield from _plain_texts(path, columns)
        elif kind in (".jsonl", ".json"):
            yield from _row_texts(read_rows(path), path, columns)
        elif kind in TABLES:
            named = tuple(column for column in columns if column is not None)
            yield from _row_texts(read_separated(path, TABLES[kind], named), path, columns)
        elif kind == ".parquet":
            yield from _parquet_texts(path, columns)
        else:
            raise InputError(f"unknown kind {kind!r}", where=path, remedy=f"use {' '.join(KINDS)}, also .gz or .xz")


def _plain_texts(path: str, columns: Columns) -> Iterator[Text]:
    for flag, column in zip(_FLAGS, columns, strict=True):
        if column is not None:
            what = f"plain text has no columns, and {flag} names one"
            raise InputError(what, where=path, remedy=f"leave {flag} out, or give .jsonl, .csv, .tsv or .parquet")

    for _, line in read_lines(path):
        text, separator, pair = line.rpartition(_SEPARATOR)  # the last one, as that code's greedy expression
        yield Text(text, pair) if separator else Text(line)


# ---- rows


def _row_texts(rows: Iterator[tuple[int | None, dict]], path: str, columns: Columns) -> Iterator[Text]:
    """The texts of (line number, row). The first row decides which column holds the text; a null there may be one."""
    text_column = columns.text
    for line, row in rows:
        if text_column is None:
            strings = [name for name, value in row.items() if isinstance(value, str | None)]
            text_column = _find_text(list(row), strings, columns, path, line)

        text = _value(row, text_column, "--text_column", path, line)
        pair = None
        if columns.pair is not None:
            pair = _value(row, columns.pair, "--text_pair_column", path, line)
        name = None
        if columns.id is not None:
            name = _value(row, columns.id, "--id_column", path, line, (str, int))
        yield Text(text, pair, name)


def _find_text(names: list[str], strings: list[str], columns: Columns, path: str, line: int | None = None) -> str:
    """The column that plainly holds the text: the only one with a usual name, `text`, or the only one of strings."""
    strings = [name for name in strings if name not in (columns.pair, columns.id)]
    usual = [name for name in strings if name.lower() in PLAIN_TEXT_NAMES]
    return usual[0] if len(usual) == 1 else choose_column(names, strings, path, line)


def _value(
    row: dict, column: str, flag: str, path: str, line: int | None, kinds: type | tuple[type, ...] = str
) -> str:
    """The text in a column of a row.

    Raises:
        InputError: the row has no such column, or it holds something else.
    """
    if column not in row:
        raise no_column(column, list(row), flag, path, line)

    value = row[column]
    if value is None and kinds is str:
        return ""
    if not isinstance(value, kinds) or isinstance(value, bool):
        remedy = f"correct the row, or name another column by {flag}"
        raise InputError(f"column {column!r} is not text", where=path, line=line, remedy=remedy)
    return whole_text(str(value))


def _parquet_texts(path: str, columns: Columns) -> Iterator[Text]:
    """The texts of a Parquet file, of which no other column is read."""
    with open_parquet(path) as (file, names, strings):
        if columns.text is None:
            columns = columns._replace(text=_find_text(names, strings, columns, path))
        for flag, column in zip(_FLAGS, columns, strict=True):
            if column is not None and column not in names:
                raise no_column(column, names, flag, path)

        wanted = [column for column in columns if column is not None]
        for batch in file.iter_batches(batch_size=256, columns=wanted):
            yield from _row_texts(((None, row) for row in batch.to_pylist()), path, columns)
