"""Where text comes from: files of any common kind, here or behind a URL, or a Hub dataset.

A source is one input: it has a `name`, a `checksum()` of what it holds, and `read()`, which yields its documents in
order, as `Piece`s that are never longer than `PIECE` characters, whatever stands in the file. Sources travel between
processes.
"""

import contextlib
import csv
import glob
import gzip
import hashlib
import json
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from bert_hf.config.files import named_file
from bert_hf.errors import InputError, did_you_mean

KINDS = (".txt", ".jsonl", ".json", ".parquet", ".csv", ".tsv")
TABLES = {".csv": ",", ".tsv": "\t"}  # their separators
TEXT_NAMES = ("text", "sentence", "message", "sms", "content")  # usual names of the column that holds the text
PIECE = 1 << 20  # characters (of a line of plain text: bytes)
_BEGINNINGS = {
    "gzip": b"\x1f\x8b", "xz": b"\xfd7zXZ\0", "zip": b"PK\x03\x04", "zstandard": b"\x28\xb5\x2f\xfd",
    "bzip2": b"BZh", "Parquet": b"PAR1", "Arrow": b"ARROW1", "PDF": b"%PDF-", "a pickle": b"\x80\x04",
    "UTF-16": b"\xff\xfe", "UTF-16 (big-endian)": b"\xfe\xff",
}  # fmt: skip
_SAID = ("size", "etag", "blobid", "lfs", "versionid", "lastmodified", "lastcommit", "mtime", "created")
_OPENERS = {".gz": gzip.open, ".xz": lzma.open}
_DAMAGED = (OSError, EOFError, lzma.LZMAError, zlib.error)  # what reading a packed file may raise


class Piece(NamedTuple):
    """A document, or a part of one that is too long to be held at once."""

    text: str
    ends: bool = True  # the document ends with it


def cut_pieces(text: str, longest: int = PIECE) -> Iterator[Piece]:
    """A document as pieces of at most `longest` characters, cut at a line's end, else at white space, else there."""
    begin = 0
    while len(text) - begin > longest:
        at = text.rfind("\n", begin, begin + longest)
        at = at if at > begin else text.rfind(" ", begin, begin + longest)
        at = at + 1 if at > begin else begin + longest
        yield Piece(text[begin:at], False)
        begin = at
    yield Piece(text[begin:] if begin else text, True)


def documents(pieces: Iterable[Piece]) -> Iterator[str]:
    """Whole documents again, for texts that are known to be small."""
    held: list[str] = []
    for piece in pieces:
        held.append(piece.text)
        if piece.ends:
            yield "".join(held)
            held = []


# ---- sources


@dataclass(frozen=True)
class Texts:
    """Documents that are in memory already."""

    texts: tuple[str, ...]
    name: str = "texts"

    def checksum(self) -> str:
        """SHA-256 of all that `read` yields."""
        return hashlib.sha256(json.dumps(self.texts).encode()).hexdigest()

    def read(self) -> Iterator[Piece]:
        """The documents."""
        for text in self.texts:
            yield from cut_pieces(text)


@dataclass(frozen=True)
class TextFile:
    """A file (.txt, .jsonl, .json lines, .parquet, .csv, .tsv; each also .gz or .xz), or the URL of one (fsspec).

    In plain text blank lines separate documents; elsewhere a row is a document. `text_column` defaults to "text", in a
    table to the one usual name there is, or to the only column that holds strings.
    """

    path: str
    text_column: str | None = None

    @property
    def name(self) -> str:
        """The last part of its path: the same on every machine."""
        return _plain_path(self.path).name

    def stamp(self) -> list:
        """Enough to notice without reading it that it is another file: path, size, time of change."""
        if is_url(self.path):
            return [self.path, self.checksum()]
        stat = Path(self.path).stat()
        return [str(Path(self.path).resolve()), stat.st_size, stat.st_mtime_ns]

    def checksum(self) -> str:
        """SHA-256 of its bytes; of a URL, of what the server says of it: size and, where it does, version and time."""
        with reading(self.path):
            if is_url(self.path):
                system, path = fsspec.url_to_fs(self.path)
                said = {key.lower().replace("_", ""): str(value) for key, value in system.info(path).items()}
                return hashlib.sha256(json.dumps({key: said.get(key) for key in _SAID}).encode()).hexdigest()
            with open(self.path, "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()

    def read(self) -> Iterator[Piece]:
        """Its documents.

        Raises:
            InputError: what is wrong with it, and in which line.
        """
        with reading(self.path) if is_url(self.path) else contextlib.nullcontext():
            yield from self._read()

    def _read(self) -> Iterator[Piece]:
        kind = kind_of(self.path)
        if kind == ".parquet":
            yield from _read_parquet(self.path, self.text_column)
        elif kind in (".jsonl", ".json"):
            yield from _read_json_lines(self.path, self.text_column)
        elif kind in TABLES:
            yield from _read_table(self.path, TABLES[kind], self.text_column)
        elif kind in (".txt", ""):
            yield from _read_plain(self.path)
        else:
            remedy = f"use {' '.join(KINDS)}, also .gz or .xz"
            raise InputError(f"unknown kind {kind!r}", where=self.path, remedy=remedy)


@dataclass(frozen=True)
class HubShard:
    """One shard of a Hub dataset, streamed; no script of it is run."""

    dataset: str
    config: str | None
    index: int
    shards: int
    text_column: str | None = None
    split: str = "train"

    @property
    def name(self) -> str:
        """Dataset and number of the shard."""
        return f"{self.dataset}-{self.config or 'default'}-{self.split}-{self.index:05d}-of-{self.shards:05d}"

    def stamp(self) -> list:
        """See `TextFile.stamp`."""
        return [self.name, self.checksum()]

    def checksum(self) -> str:
        """SHA-256 of the shard's name and the dataset's revision."""
        import huggingface_hub

        with reading(self.dataset, _HUB):
            revision = huggingface_hub.HfApi().dataset_info(self.dataset).sha
        return hashlib.sha256(f"{self.name} {revision}".encode()).hexdigest()

    def read(self) -> Iterator[Piece]:
        """Its rows, a document each."""
        column = self.text_column
        with reading(self.dataset, _HUB):
            rows = _stream(self.dataset, self.config, self.split).shard(self.shards, self.index)
            for row in rows:
                strings = [name for name, value in row.items() if isinstance(value, str)]
                column = column or choose_column(list(row), strings, self.dataset)
                if not isinstance(row.get(column, 0), str | None):
                    raise _no_text(column, list(row), self.dataset)
                if row[column]:
                    yield from cut_pieces(whole_text(row[column]))


_HUB = "check the id, --dataset_config_name and the network, or give --train_file"


def _stream(dataset: str, config: str | None, split: str):
    import datasets

    return datasets.load_dataset(dataset, config, split=split, streaming=True)


def hub_shards(dataset: str, config: str | None = None, text_column: str | None = None) -> list[HubShard]:
    """The shards of a Hub dataset's `train` split."""
    with reading(dataset, _HUB):
        count = _stream(dataset, config, "train").num_shards
    return [HubShard(dataset, config, index, count, text_column) for index in range(count)]


@contextlib.contextmanager
def reading(where: str | Path, remedy: str = "check the address and the network"):
    """What a server or a file system answers in place of data becomes one line.

    Each protocol has a client of its own, with errors of its own (aiohttp's and httpx's are not even `OSError`s).
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        reason = "not there, or nobody answers" if reason == str(where) else reason  # what fsspec's clients say
        raise InputError(f"cannot be read: {reason}", where=where, remedy=remedy) from None


def is_url(path: str | Path) -> bool:
    """Has it a protocol (s3://, hf://, https://, …)?"""
    return "://" in str(path)


def expand(patterns: list[str]) -> list[str]:
    """The files that paths, URLs and globs mean, in the order given, a glob's files sorted.

    Raises:
        InputError: a path or a glob that names no file, or an empty file.
    """
    files: list[str] = []
    for pattern in patterns:
        files += _expand_url(pattern) if is_url(pattern) else _expand_path(pattern)
    return files


def _expand_path(pattern: str) -> list[str]:
    remedy = "check the path (globs need quotes)"
    there = os.path.lexists(pattern) or not glob.has_magic(pattern)
    found = [pattern] if there else sorted(glob.glob(pattern, recursive=True))
    if not found:
        raise InputError("no such file", where=pattern, remedy=remedy)
    for path in map(Path, found):
        if os.path.isdir(path):
            raise InputError(
                "a folder",
                where=path,
                remedy=f"name files, e.g. '{path}/*.txt' (one that prepare.py made stands alone, for pretrain.py)",
            )
        named_file(path, remedy)
        if path.stat().st_size == 0:
            raise InputError("the file is empty", where=path, remedy="give a file that holds text")
    return found


def _expand_url(pattern: str) -> list[str]:
    with reading(pattern):
        system, path = fsspec.url_to_fs(pattern)
        if not glob.has_magic(path):
            return [pattern]
        found = sorted(system.unstrip_protocol(name) for name in system.glob(path))
    if not found:
        raise InputError("no such file", where=pattern, remedy="check the address")
    return found


def kind_of(path: str | Path) -> str:
    """The suffix below a compression suffix: `.txt`, `.jsonl`, …"""
    path = _plain_path(path)
    return Path(path.stem).suffix.lower() if packing(path) else path.suffix.lower()


def _plain_path(path: str | Path) -> Path:
    """Without the query of a URL, which may hold a signature."""
    return Path(str(path).split("?", 1)[0]) if is_url(path) else Path(path)


def packing(path: str | Path) -> str | None:
    """`.gz`, `.xz` or None."""
    suffix = _plain_path(path).suffix.lower()
    return suffix if suffix in _OPENERS else None


def open_bytes(path: str | Path) -> BinaryIO:
    """Opens a file or a URL for reading, decompressed."""
    opener = _OPENERS.get(packing(path))
    if is_url(path):
        file = fsspec.open(str(path), "rb").open()
        return opener(file, "rb") if opener else file
    return (opener or open)(path, "rb")


def _raw_lines(path: str | Path, longest: int = -1) -> Iterator[tuple[int, int, bytes, bool]]:
    """(line number, column, bytes, whether the line ends with them): lines, in parts of at most `longest` bytes.

    A part ends at a space, or at least between two characters.
    """
    number, column, rest = 1, 0, b""
    try:
        with open_bytes(path) as file:
            while raw := file.readline(longest - len(rest) if longest > 0 else -1):
                if number == 1 and column == 0 and not rest:
                    _refuse_kind(raw, path)
                    raw = raw.removeprefix(b"\xef\xbb\xbf")  # byte-order mark
                raw, rest = rest + raw, b""
                ends = raw.endswith(b"\n")
                if not ends and 0 < longest <= len(raw):
                    cut = raw.rfind(b" ") + 1 or _between_characters(raw)
                    raw, rest = raw[:cut], raw[cut:]
                yield number, column, raw, ends
                number, column = (number + 1, 0) if ends else (number, column + len(raw))
            if rest:
                yield number, column, rest, True
    except _DAMAGED as error:
        packed = packing(path)
        what = f"cannot be decompressed: {error}" if packed else f"cannot be read: {error}"
        raise InputError(what, where=path, line=number, remedy="fetch the file again") from None


def _refuse_kind(raw: bytes, path: str | Path) -> None:
    if kind := next((kind for kind, begin in _BEGINNINGS.items() if raw.startswith(begin)), None):
        what = f"it begins like {kind}, and not like text"
        raise InputError(
            what, where=path, remedy="unpack or convert it, or name it as what it is (.gz, .xz, .parquet)"
        )


def _between_characters(raw: bytes) -> int:
    """The last place at which UTF-8 may be cut."""
    for back in range(1, min(4, len(raw))):
        if raw[-back] & 0xC0 != 0x80:  # a first byte: is its character whole?
            need = 1 if raw[-back] < 0x80 else 2 if raw[-back] < 0xE0 else 3 if raw[-back] < 0xF0 else 4
            return len(raw) if need <= back else max(1, len(raw) - back)
    return len(raw)


def _decode(raw: bytes, path: str | Path, number: int, column: int = 0) -> str:
    """Text of (a part of) a line; Windows' line end becomes Unix'."""
    try:
        text = raw.decode("utf-8")
        return text[:-2] + "\n" if text.endswith("\r\n") else text
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte 0x{error.object[error.start]:02x} is not UTF-8",
            where=path,
            line=number,
            column=column + error.start + 1,
            remedy="convert the file, e.g. with iconv -t UTF-8",
        ) from None


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """(line number, line without its end) of a UTF-8 text file, compressed or not.

    Raises:
        InputError: bytes that are not UTF-8 (with line and column), or a damaged compressed file.
    """
    for number, _, raw, _ in _raw_lines(path):
        yield number, _decode(raw, path, number).removesuffix("\n")


def _read_plain(path: str) -> Iterator[Piece]:
    held: list[str] = []  # of the document that has begun
    size, begun, blank = 0, False, True  # blank: the line so far
    for number, column, raw, ends in _raw_lines(path, PIECE):
        part = _decode(raw, path, number, column)
        blank = blank and not part.strip()
        if not blank:
            if size + len(part) > PIECE and held:
                yield Piece("".join(held), False)
                held, size = [], 0
            held.append(part)
            size, begun = size + len(part), True
        elif ends and begun:
            yield Piece("".join(held).rstrip("\n"), True)
            held, size, begun = [], 0, False
        blank = blank or ends
    if begun:
        yield Piece("".join(held).rstrip("\n"), True)


def read_rows(path: str | Path) -> Iterator[tuple[int, dict]]:
    """(line number, object) of a file of JSON lines; blank lines are passed over."""
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(
                f"not JSON: {error.msg}", where=path, line=number, column=error.colno, remedy="write one object a line"
            ) from None
        except (RecursionError, ValueError) as error:  # nested too deeply; a number of too many digits
            reason = str(error).split(";")[0]
            raise InputError(f"not JSON: {reason}", where=path, line=number, remedy="mend the line") from None
        del line  # it may be of any length
        if not isinstance(row, dict):
            raise InputError("not a JSON object", where=path, line=number, remedy="write one object a line")
        yield number, row


def read_separated(path: str | Path, separator: str) -> Iterator[tuple[int, dict]]:
    """(line number, row by column) of a file with a header, or of headerless label<TAB>text.

    Args:
        separator: a comma; or a tab, where quotes are part of the text.

    Raises:
        InputError: a row with another number of fields than the header, or an open quote.
    """
    quoting = csv.QUOTE_NONE if separator == "\t" else csv.QUOTE_MINIMAL
    lines = (f"{line}\n" for _, line in read_lines(path))
    reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=quoting == csv.QUOTE_MINIMAL)
    try:
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise InputError(f"not CSV: {error}", where=path, line=reader.line_num, remedy="check its quotes") from None
    if not rows:
        return

    # label<TAB>text without a header: the first field of the first row is a label, so it comes again
    header = rows[0][1]
    if len(header) == 2 and any(row[0] == header[0] for _, row in rows[1:]):
        header = ["label", "text"]
    else:
        rows = rows[1:]

    for line, row in rows:
        if len(row) != len(header):
            what = f"{len(row)} fields instead of {len(header)}"
            raise InputError(what, where=path, line=line, remedy="mend the row")
        yield line, dict(zip(header, row, strict=True))


def _read_table(path: str, separator: str, text_column: str | None) -> Iterator[Piece]:
    """The text column of a table, a document a row: a labelled set read as raw text, its labels left out."""
    for number, row in read_separated(path, separator):
        if text_column is None:
            usual = [name for name in row if name.lower() in TEXT_NAMES]
            text_column = usual[0] if len(usual) == 1 else choose_column(list(row), list(row), path, number)
        if text_column not in row:
            raise _no_text(text_column, list(row), path, number)
        if row[text_column].strip():
            yield from cut_pieces(row[text_column])


def whole_text(text: str) -> str:
    """JSON can hold halves of surrogate pairs, which no tokenizer takes: U+FFFD stands for them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _read_json_lines(path: str, text_column: str | None) -> Iterator[Piece]:
    for number, row in read_rows(path):
        strings = [name for name, value in row.items() if isinstance(value, str)]
        text_column = text_column or choose_column(list(row), strings, path, number)
        text = row.get(text_column, 0)
        if text is None:  # as in Parquet: no document
            continue
        if not isinstance(text, str):
            raise _no_text(text_column, list(row), path, number)
        yield from cut_pieces(whole_text(text))


def _read_parquet(path: str, text_column: str | None) -> Iterator[Piece]:
    try:
        file = pq.ParquetFile(open_bytes(path) if is_url(path) or packing(path) else path)
        schema = file.schema_arrow
        strings = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
        column = text_column or choose_column(schema.names, strings, path)
        if column not in strings:
            raise _no_text(column, schema.names, path)
        for batch in file.iter_batches(batch_size=256, columns=[column]):
            for text in batch.column(0).to_pylist():
                if text is not None:
                    yield from cut_pieces(text)
    except (pa.ArrowException, UnicodeDecodeError, *_DAMAGED) as error:
        raise InputError(
            f"not a Parquet file: {str(error).rstrip('.')}", where=path, remedy="fetch it again"
        ) from None


def _no_text(column: str, columns: list[str], where: Path | str, line: int | None = None) -> InputError:
    remedy = f"{did_you_mean(column, columns)}--text_column, one of: {', '.join(columns)}"
    if column in columns:
        what, remedy = f"column {column!r} is not text", "put text there, or name another column by --text_column"
        return InputError(what, where=where, line=line, remedy=remedy)
    return InputError(f"no column {column!r}", where=where, line=line, remedy=remedy)


def choose_column(columns: list[str], strings: list[str], where: Path | str, line: int | None = None) -> str:
    """The column that plainly holds the text: `text`, or the only one of strings."""
    if "text" in columns:
        return "text"
    if len(strings) == 1:
        return strings[0]
    names = ", ".join(columns)
    raise InputError("which column holds the text?", where=where, line=line, remedy=f"--text_column, one of: {names}")
