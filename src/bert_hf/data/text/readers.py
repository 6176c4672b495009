"""Reads files of any common kind, local or behind a URL: their lines, their rows, and their text as documents.

A document is one `Piece` or several, of at most `PIECE` characters each, however long the document is.
"""

import codecs
import contextlib
import csv
import lzma
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bert_hf.config.files import decode_utf8, parse_json
from bert_hf.data.text.input_files import compression, is_url, kind_of, open_bytes
from bert_hf.data.text.table_header import PLAIN_TEXT_NAMES, column_names
from bert_hf.errors import InputError, did_you_mean

KINDS = (".txt", ".jsonl", ".json", ".parquet", ".csv", ".tsv")
TABLES = {".csv": ",", ".tsv": "\t"}  # their separators
PIECE = 1 << 20  # characters (of a line of plain text: bytes)
_MAGIC_BYTES = {
    "gzip": b"\x1f\x8b", "xz": b"\xfd7zXZ\0", "zip": b"PK\x03\x04", "zstandard": b"\x28\xb5\x2f\xfd",
    "bzip2": b"BZh", "Parquet": b"PAR1", "Arrow": b"ARROW1", "PDF": b"%PDF-", "a pickle": b"\x80\x04",
    "UTF-16": b"\xff\xfe", "UTF-16 (big-endian)": b"\xfe\xff",
}  # fmt: skip
DAMAGED = (OSError, EOFError, lzma.LZMAError, zlib.error)  # what reading a compressed file may raise


class Piece(NamedTuple):
    """A document, or a part of one that is too long to be held in memory at once."""

    text: str
    ends: bool = True  # the document ends with it


def cut_pieces(text: str, longest: int = PIECE) -> Iterator[Piece]:
    """A document as pieces of at most `longest` characters, cut after a line, else after a space, else anywhere."""
    begin = 0
    while len(text) - begin > longest:
        at = text.rfind("\n", begin, begin + longest)
        if at <= begin:
            at = text.rfind(" ", begin, begin + longest)
        end = at + 1 if at > begin else begin + longest
        yield Piece(text[begin:end], False)
        begin = end
    yield Piece(text[begin:])


def documents(pieces: Iterable[Piece]) -> Iterator[str]:
    """Whole documents again, for texts that are known to be small."""
    held = []
    for piece in pieces:
        held.append(piece.text)
        if piece.ends:
            yield "".join(held)
            held = []


def read_file(path: str, text_column: str | None) -> Iterator[Piece]:
    """The documents of a file or URL; its kind is known by its name, a name without one is plain text.

    Raises:
        InputError: unknown kind, or content that is not of that kind; with the line.
    """
    kind = kind_of(path)
    if kind == ".parquet":
        yield from _read_parquet(path, text_column)
    elif kind in (".jsonl", ".json"):
        for text in row_texts(read_rows(path), text_column, path):
            yield from cut_pieces(text)
    elif kind in TABLES:
        yield from _read_table(path, TABLES[kind], text_column)
    elif kind in (".txt", ""):
        yield from _read_plain(path)
    else:
        remedy = f"use {' '.join(KINDS)}, also .gz or .xz"
        raise InputError(f"unknown kind {kind!r}", where=path, remedy=remedy)


# ---- lines


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """(line number, line without its end) of a UTF-8 text file, compressed or not.

    Raises:
        InputError: bytes that are not UTF-8 (with line and column), or a damaged compressed file.
    """
    for number, _, raw, _ in _raw_lines(path):
        yield number, _decode(raw, path, number).removesuffix("\n")


def _raw_lines(path: str | Path, longest: int = -1) -> Iterator[tuple[int, int, bytes, bool]]:
    """(line number, column, bytes, whether the line ends with them): lines, in parts of at most `longest` bytes.

    A part ends at a space, or at least between two characters (which take up to four bytes). With `longest` = 8:

        b"a long line\\nnext"   →   (1, 0, b"a long ", False), (1, 7, b"line\\n", True), (2, 0, b"next", False)
    """
    number, column, rest = 1, 0, b""
    try:
        with open_bytes(path) as file:
            while raw := file.readline(longest - len(rest) if longest > 0 else -1):
                if number == 1 and column == 0 and not rest:
                    refuse_binary(raw, path)
                    raw = raw.removeprefix(b"\xef\xbb\xbf")  # byte-order mark

                # The rest of the last part belongs to this one
                raw, rest = rest + raw, b""
                ends = raw.endswith(b"\n")
                if not ends and 0 < longest <= len(raw):
                    cut = raw.rfind(b" ") + 1 or codecs.utf_8_decode(raw, "replace")[1]  # bytes of whole characters
                    raw, rest = raw[:cut], raw[cut:]

                yield number, column, raw, ends
                number, column = (number + 1, 0) if ends else (number, column + len(raw))
            if rest:
                yield number, column, rest, True
    except DAMAGED as error:
        what = "decompressed" if compression(path) else "read"
        remedy = "fetch the file again"
        raise InputError(f"cannot be {what}: {error}", where=path, line=number, remedy=remedy) from None


def refuse_binary(raw: bytes, path: str | Path) -> None:
    """Refuses the beginning of a file that is no UTF-8 text: an archive, Parquet, UTF-16, …

    Raises:
        InputError: with the kind of file that it begins like.
    """
    for kind, magic in _MAGIC_BYTES.items():
        if raw.startswith(magic):
            remedy = "unpack or convert it, or name it as what it is (.gz, .xz, .parquet)"
            raise InputError(f"it begins like {kind}, and not like text", where=path, remedy=remedy)


def _decode(raw: bytes, path: str | Path, number: int, column: int = 0) -> str:
    """Text of (a part of) a line, its end "\\n" also where it is "\\r\\n" in the file."""
    text = decode_utf8(raw, path, number, column)
    return text[:-2] + "\n" if text.endswith("\r\n") else text


def _read_plain(path: str) -> Iterator[Piece]:
    """Documents are separated by blank lines."""
    held = []  # parts of the present document that were not yielded yet
    size = 0  # characters held
    begun = False  # the present document has text, held or yielded
    blank = True  # the present line, so far

    for number, column, raw, ends in _raw_lines(path, PIECE):
        part = _decode(raw, path, number, column)
        blank = blank and not part.strip()
        if not blank:
            if size + len(part) > PIECE and held:
                yield Piece("".join(held), False)
                held, size = [], 0
            held.append(part)
            size += len(part)
            begun = True
        elif ends and begun:
            yield Piece("".join(held).rstrip("\n"))
            held, size, begun = [], 0, False
        blank = blank or ends

    if begun:
        yield Piece("".join(held).rstrip("\n"))


# ---- rows


def read_rows(path: str | Path) -> Iterator[tuple[int, dict]]:
    """(line number, object) of a file of JSON lines; blank lines are skipped.

    Raises:
        InputError: a line that is not a JSON object.
    """
    return json_rows(read_lines(path), path, "write one object a line", "correct the line")


def row_reader(path: str) -> Iterator[tuple[int | None, dict]]:
    """(line number, where there are lines, and row) of JSON lines, a table with a header, or Parquet."""
    kind = kind_of(path)
    if kind in (".jsonl", ".json"):
        yield from read_rows(path)
    elif kind in TABLES:
        yield from read_separated(path, TABLES[kind])
    elif kind == ".parquet":
        with open_parquet(path) as (file, _, _):
            for batch in file.iter_batches(batch_size=256):
                yield from ((None, row) for row in batch.to_pylist())
    else:
        raise InputError(f"unknown kind {kind!r}", where=path, remedy=f"use {' '.join(KINDS)}, also .gz or .xz")


def json_rows(
    lines: Iterable[tuple[int, str]], where: str | Path, remedy: str, otherwise: str | None = None
) -> Iterator[tuple[int, dict]]:
    """The lines that are not blank as objects; see `parse_json` for the remedies."""
    for number, line in lines:
        if not line.strip():
            continue
        row = parse_json(line, where, remedy, line=number, otherwise=otherwise)
        del line  # it may be of any length
        if not isinstance(row, dict):
            raise InputError("not a JSON object", where=where, line=number, remedy=remedy)
        yield number, row


def read_separated(
    path: str | Path, separator: str, named: tuple[str, ...] = ()
) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, row by column) of a file with a header, of headerless label<TAB>text, or of a text a row.

    Args:
        named: the columns that the user named.

    Raises:
        InputError: see `separated_fields`, `column_names` and `by_column`; also where a header has a column twice.
    """
    rows = separated_fields(path, separator)
    line, first = next(rows, (0, []))
    _refuse_other_separator(first, separator, path)
    names, header = column_names(first, (row for _, row in rows), named, path, line)

    rows = separated_fields(path, separator)
    if header:
        _refuse_equal_names(names, path)
        next(rows, None)
    return by_column(rows, names, path)


def separated_fields(path: str | Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of the rows of a table, its header included, but not the empty ones.

    Args:
        separator: a comma; or a tab, where quotes are part of the text.

    Raises:
        InputError: a quote is not closed, or a line holds a CR (a table of lines that end with it is one line).
    """
    quoting = csv.QUOTE_NONE if separator == "\t" else csv.QUOTE_MINIMAL
    lines = (f"{line}\n" for _, line in read_lines(path))
    reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=quoting == csv.QUOTE_MINIMAL)
    csv.field_size_limit(sys.maxsize)  # a text may be of any length; the limit is that of the process
    try:
        yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error as error:
        what, remedy = f"not CSV: {error}", "check its quotes"
        if str(error).startswith("new-line character"):  # a CR, as at the ends of the lines of an old Mac
            what = "a CR within the line"
            remedy = r"if lines end with it, convert them, e.g. tr '\r' '\n'; else remove it"
        raise InputError(what, where=path, line=reader.line_num, remedy=remedy) from None


def _refuse_other_separator(first: list[str], separator: str, path: str | Path) -> None:
    """Refuses a table that is not separated as the name of its file says: labels would become a part of the text."""
    others = {"\t": "a tab", ";": "';'", "|": "'|'"}
    other = next((sign for sign in others if separator == "," and len(first) == 1 and sign in first[0]), None)
    if other is not None:
        remedy = "name the file .tsv" if other == "\t" else "separate the columns by commas"
        remedy += ", or begin a table of texts alone with the line `text`"
        raise InputError(f"the header has one column, and holds {others[other]}", where=path, remedy=remedy)


def _refuse_equal_names(header: list[str], path: str | Path) -> None:
    for name, count in Counter(header).items():
        if name and count > 1:
            raise InputError(f"two columns are called {name!r}", where=path, remedy="rename one of them")


def by_column(
    rows: Iterable[tuple[int, list[str]]], header: list[str], path: str | Path
) -> Iterator[tuple[int, dict]]:
    """(line number, field by column) of (line number, fields).

    Raises:
        InputError: a row has another number of fields than the header.
    """
    for line, row in rows:
        if len(row) != len(header):
            what = f"{len(row)} fields instead of {len(header)}"
            raise InputError(what, where=path, line=line, remedy="correct the row")
        yield line, dict(zip(header, row, strict=True))


def _read_table(path: str, separator: str, text_column: str | None) -> Iterator[Piece]:
    """The text column of a table, a document a row: a labelled data set read as raw text, without its labels."""
    for number, row in read_separated(path, separator, (text_column,) if text_column else ()):
        if text_column is None:
            usual = [name for name in row if name.lower() in PLAIN_TEXT_NAMES]
            text_column = usual[0] if len(usual) == 1 else choose_column(list(row), list(row), path, number)
        if text_column not in row:
            raise _no_text(text_column, list(row), path, number)
        if row[text_column].strip():
            yield from cut_pieces(row[text_column])


def row_texts(rows: Iterable[tuple[int | None, dict]], text_column: str | None, where: str | Path) -> Iterator[str]:
    """The text of each (line number, row); rows whose text is null are skipped."""
    for line, row in rows:
        if text_column is None:
            strings = [name for name, value in row.items() if isinstance(value, str | None)]  # null may be text later
            text_column = choose_column(list(row), strings, where, line)

        text = row.get(text_column, 0)
        if text is None:
            continue
        if not isinstance(text, str):
            raise _no_text(text_column, list(row), where, line)
        yield whole_text(text)


def _read_parquet(path: str, text_column: str | None) -> Iterator[Piece]:
    with open_parquet(path) as (file, names, strings):
        column = text_column or choose_column(names, strings, path)
        if column not in strings:
            raise _no_text(column, names, path)

        for batch in file.iter_batches(batch_size=256, columns=[column]):
            for text in batch.column(0).to_pylist():
                if text is not None:
                    yield from cut_pieces(text)


@contextlib.contextmanager
def open_parquet(path: str) -> Iterator[tuple[pq.ParquetFile, list[str], list[str]]]:
    """(a Parquet file, its columns, those that hold strings); what is wrong with the file is an `InputError`."""
    try:
        source = open_bytes(path) if is_url(path) or compression(path) else path
        file = pq.ParquetFile(source, buffer_size=PIECE, pre_buffer=False)  # else a row group is read as a whole
        schema = file.schema_arrow
        strings = [field.name for field in schema if _is_text(field.type)]
        yield file, schema.names, strings
    except (pa.ArrowException, UnicodeDecodeError, *DAMAGED) as error:
        what = f"not a Parquet file: {str(error).rstrip('.')}"
        raise InputError(what, where=path, remedy="fetch it again") from None


def _is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds strings, in any form that Arrow has for them."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


# ---- the text of a row


def whole_text(text: str) -> str:
    """The text with U+FFFD for halves of surrogate pairs, which JSON can hold and no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def choose_column(columns: list[str], strings: list[str], where: Path | str, line: int | None = None) -> str:
    """The column that plainly holds the text: `text`, or the only one of strings.

    Raises:
        InputError: there is no such column.
    """
    if "text" in columns:
        return "text"
    if len(strings) == 1:
        return strings[0]
    remedy = f"--text_column, one of: {', '.join(columns)}"
    raise InputError("which column holds the text?", where=where, line=line, remedy=remedy)


def _no_text(column: str, columns: list[str], where: Path | str, line: int | None = None) -> InputError:
    if column not in columns:
        return no_column(column, columns, "--text_column", where, line)
    remedy = "put text there, or name another column by --text_column"
    return InputError(f"column {column!r} is not text", where=where, line=line, remedy=remedy)


def no_column(column: str, columns: list[str], flag: str, where: Path | str, line: int | None = None) -> InputError:
    """The error for a column, named by an option, that is not there."""
    remedy = f"{did_you_mean(column, columns)}{flag}, one of: {', '.join(columns)}"
    return InputError(f"no column {column!r}", where=where, line=line, remedy=remedy)
