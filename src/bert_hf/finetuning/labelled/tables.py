"""Reads tables of any common kind: separated fields, JSON lines, JSON arrays and Parquet, in any encoding.

table = read_table("comments.csv")
table.columns["CONTENT"][0], table.lines[0]      # the value of the first row, and its line in the file
"""

import codecs
import functools
import io
import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from bert_hf.config.files import parse_json
from bert_hf.data.text.input_files import access_errors, is_url, kind_of, open_bytes
from bert_hf.data.text.readers import DAMAGED, json_rows, refuse_binary
from bert_hf.errors import InputError, did_you_mean
from bert_hf.finetuning.labelled.columns import MISSING
from bert_hf.finetuning.labelled.separated import read_separated_rows

KINDS = (".csv", ".tsv", ".txt", ".jsonl", ".json", ".parquet")
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins like that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_SPACE = re.compile(r"[ \t\n\r]*")


@dataclass
class Table:
    """A table in memory.

    Attributes:
        where: its file.
        columns: the values of each column, by name; `MISSING` where a JSON row lacks the column.
        lines: of each row: its (first) line in the file, or its number in a Parquet file, from 1.
        header: whether the names are the file's; otherwise they are column_1, column_2, …
    """

    where: str
    columns: dict[str, list]
    lines: list[int]
    header: bool = True

    def __len__(self) -> int:
        return len(self.lines)


def read_table(path: str, encoding: str | None = None, named: tuple[str, ...] = ()) -> Table:
    """Reads a file (.csv, .tsv, .txt, .jsonl, .json, .parquet; each also .gz or .xz), or the URL of one.

    Args:
        encoding: None: UTF-8, or what its byte-order mark says.
        named: columns that the user named: they tell whether a file of separated fields has a header.

    Raises:
        InputError: with file and line.
    """
    kind = kind_of(path)
    if kind not in (*KINDS, ""):
        remedy = f"use {' '.join(KINDS)}, also .gz or .xz"
        raise InputError(f"unknown kind {kind!r}", where=path, remedy=remedy)
    if kind == ".parquet":
        return _read_parquet(path)

    text = read_text(path, encoding)
    if kind in (".jsonl", ".json"):
        return _table_of_objects(path, list(_json_rows(text, path)))

    names, rows, header = read_separated_rows(text, path, kind, named)
    columns = {name: [fields[number] for _, fields in rows] for number, name in enumerate(names)}
    return Table(path, columns, [line for line, _ in rows], header)


# ---- bytes and characters


def read_text(path: str, encoding: str | None = None) -> str:
    """The text of a file or a URL, decompressed and decoded, with "\\n" at the ends of its lines.

    Where lines end with "\\n", a single "\\r" is part of a text and becomes a space.

    Raises:
        InputError: it is damaged, no text, or in another encoding; with line and column.
    """
    text = _decode(_read_bytes(path), path, encoding).removeprefix("\ufeff").replace("\r\n", "\n")
    return text.replace("\r", " " if "\n" in text else "\n")


def _read_bytes(path: str) -> bytes:
    try:
        with access_errors(path) if is_url(path) else nullcontext(), open_bytes(path) as file:
            return file.read()
    except DAMAGED as error:
        raise InputError(f"cannot be read: {error}", where=path, remedy="fetch the file again") from None


def _decode(data: bytes, path: str, encoding: str | None) -> str:
    """The text of the bytes; a byte-order mark decides, also where another encoding is given for all files."""
    marked = next((name for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), None)
    if not marked and _is_utf_8(encoding):
        refuse_binary(data[:16], path)
    try:
        text = data.decode(marked or encoding or "utf-8")
    except UnicodeDecodeError as error:
        raise _undecodable(error, data, path, marked is not None) from None

    if (at := text.find("\0")) >= 0:
        line = text.count("\n", 0, at) + 1
        order = "be" if data[:1] == b"\0" else "le"
        many = text.count("\0") > len(text) / 4
        remedy = f"if it is text, --encoding utf-16-{order}" if many else "remove it"
        raise InputError("a NUL character", where=path, line=line, remedy=remedy)
    return text


def _is_utf_8(encoding: str | None) -> bool:
    """Whether the encoding is UTF-8, which is the default.

    Raises:
        InputError: Python knows no such encoding of text.
    """
    if encoding is None:
        return True
    try:
        "".encode(encoding)
        return codecs.lookup(encoding).name == "utf-8"
    except (LookupError, ValueError):
        known = ("utf-8", "utf-16", "utf-16-le", "utf-16-be", "latin-1", "cp1252", "cp1251", "shift_jis", "gb18030")
        remedy = f"{did_you_mean(encoding, known)}one that Python knows, e.g. {', '.join(known)}"
        raise InputError(f"unknown encoding {encoding!r}", where="--encoding", remedy=remedy) from None


def _undecodable(error: UnicodeDecodeError, data: bytes, path: str, marked: bool) -> InputError:
    """Names the byte, its place, and an encoding that decodes the whole file.

    ISO 8859-1 decodes any byte. In it, 0x80 to 0x9f are control characters; in Windows-1252 they are quotes, dashes, …
    """
    advised = "latin-1"
    if any(0x80 <= byte < 0xA0 for byte in data):
        try:
            data.decode("cp1252")
            advised = "cp1252"
        except UnicodeDecodeError:
            pass

    what = f"byte 0x{data[error.start]:02x} is not {error.encoding.upper()}"
    remedy = (
        "its byte-order mark says so: fetch it again" if marked else f"--encoding {advised}, if that is what it is"
    )
    line = data.count(b"\n", 0, error.start) + 1
    column = error.start - data.rfind(b"\n", 0, error.start)
    return InputError(what, where=path, line=line, column=column, remedy=remedy)


# ---- JSON


def _json_rows(text: str, path: str) -> Iterator[tuple[int, dict]]:
    """(line, object) of JSON lines, or of an array of objects.

    Raises:
        InputError: with line and column.
    """
    remedy = "write one object a line, or an array of objects"
    if text.lstrip()[:1] == "[":
        return _array_items(text, path, remedy)
    return json_rows(enumerate(text.split("\n"), 1), path, remedy)


def _array_items(text: str, path: str, remedy: str) -> Iterator[tuple[int, dict]]:
    """(line, item): `json` alone does not say in which line an item begins."""
    decode = json.JSONDecoder().raw_decode
    skip = functools.partial(_skip, text)
    line, counted = 1, 0
    at = skip(text.index("[") + 1)
    while text[at : at + 1] != "]":
        line += text.count("\n", counted, at)
        counted = at
        item, at = parse_json(text, path, remedy, line=line, parse=decode, idx=at)
        if not isinstance(item, dict):
            raise InputError("not a JSON object", where=path, line=line, remedy=remedy)
        yield line, item

        at = skip(at)
        if text[at : at + 1] == ",":
            at = skip(at + 1)
        elif text[at : at + 1] != "]":
            line = text.count("\n", 0, at) + 1
            raise InputError("not JSON: the array is not closed", where=path, line=line, remedy=remedy)

    if text[at + 1 :].strip():
        line = text.count("\n", 0, skip(at + 1)) + 1
        raise InputError("not JSON: text after the array", where=path, line=line, remedy=remedy)


def _skip(text: str, at: int) -> int:
    """The place of the next character that is no white space."""
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _table_of_objects(path: str, rows: list[tuple[int, dict]]) -> Table:
    names = dict.fromkeys(name for _, row in rows for name in row)
    columns = {name: [row.get(name, MISSING) for _, row in rows] for name in names}
    return Table(path, columns, [line for line, _ in rows])


# ---- Parquet and data sets


def _read_parquet(path: str) -> Table:
    try:
        table = pq.read_table(io.BytesIO(_read_bytes(path)))
        features = datasets.Features.from_arrow_schema(table.schema)
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
    except (pa.ArrowException, UnicodeDecodeError) as error:
        reason = str(error).rpartition("<Buffer>': ")[2].rstrip(".")
        raise InputError(f"not a Parquet file: {reason}", where=path, remedy="fetch it again") from None
    return table_of_features(path, columns, features)


def table_of_features(where: str, columns: dict[str, list], features: datasets.Features) -> Table:
    """A table with the names of classes in place of their numbers; -1, which marks unlabelled rows, is no label."""
    for name, feature in features.items():
        if isinstance(feature, datasets.ClassLabel):
            names = dict(enumerate(feature.names))
            columns[name] = [names.get(value) for value in columns[name]]
    rows = len(next(iter(columns.values()), []))
    return Table(where, columns, list(range(1, rows + 1)))
