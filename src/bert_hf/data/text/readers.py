"""Reads the lines of text files, and plain text as documents.

A document is one `Piece` or several, of at most `PIECE` characters each, however long the document is.
"""

import codecs
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bert_hf.config.files import decode_utf8
from bert_hf.data.text.input_files import ARTICLES, DAMAGED, MAILS, compression, kind_of, open_bytes
from bert_hf.data.text.mails import mail_text, split_mbox
from bert_hf.errors import InputError

KINDS = (".txt", ".jsonl", ".json", ".parquet", ".csv", ".tsv")
PIECE = 1 << 20  # characters (of a line of plain text: bytes)


class Piece(NamedTuple):
    """A document, or a part of one that is too long to be held in memory at once."""

    text: str
    ends: bool = True  # the document ends with it


def cut_pieces(text: str, longest: int = PIECE) -> Iterator[Piece]:
    """Yield a document in pieces of at most `longest` characters, cut after a line, else a space, else anywhere."""
    begin = 0
    while len(text) - begin > longest:
        at = text.rfind("\n", begin, begin + longest)
        if at <= begin:
            at = text.rfind(" ", begin, begin + longest)
        end = at + 1 if at > begin else begin + longest
        yield Piece(text[begin:end], False)
        begin = end
    yield Piece(text[begin:])


def join_pieces(pieces: Iterable[Piece]) -> Iterator[str]:
    """Yield each document as one string, joined from its pieces; for documents that are known to be small."""
    pending = []
    for piece in pieces:
        pending.append(piece.text)
        if piece.ends:
            yield "".join(pending)
            pending = []


def first_pieces(pieces: Iterable[Piece], characters: int) -> Iterator[Piece]:
    """Yield pieces until they have more than `characters` characters together."""
    size = 0
    for piece in pieces:
        yield piece
        size += len(piece.text)
        if size > characters:
            break


def read_lines(path: str | Path, encoding: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a text file, compressed or not; by default UTF-8."""
    if encoding is None:  # errors name the line and column of a byte that is not UTF-8
        for number, _, raw, _ in _raw_lines(path):
            yield number, _decode_line(raw, path, number).removesuffix("\n")
        return

    try:
        with open_bytes(path) as raw, io.TextIOWrapper(raw, encoding, newline="\n") as file:
            for number, line in enumerate(file, 1):
                yield number, line.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")
    except (LookupError, UnicodeError, *DAMAGED) as error:
        raise InputError(f"cannot be read: {error}", where=path, remedy="check the file and --encoding") from None


def _raw_lines(path: str | Path, longest: int = -1) -> Iterator[tuple[int, int, bytes, bool]]:
    """Yield (line number from 1, offset in the line, bytes, whether the line is known to end with them).

    A line of more than `longest` bytes comes in parts, cut after a space or else between characters. With 8:

        b"a long line\\nnext"   →   (1, 0, b"a long ", False), (1, 7, b"line\\n", True), (2, 0, b"next", False)
    """
    number, column = 1, 0
    rest = b""  # read but not yet yielded
    try:
        with open_bytes(path) as file:
            while raw := file.readline(longest - len(rest) if longest > 0 else -1):
                if number == 1 and column == 0 and not rest:
                    raw = raw.removeprefix(codecs.BOM_UTF8)

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
        remedy = "download the file again"
        raise InputError(f"cannot be {what}: {error}", where=path, line=number, remedy=remedy) from None


def _decode_line(raw: bytes, path: str | Path, number: int, column: int = 0) -> str:
    """Return a line, or its part after `column` bytes, as text, an end "\\r\\n" as "\\n"; only UTF-8 is allowed."""
    text = decode_utf8(raw, path, number, column)
    return text[:-2] + "\n" if text.endswith("\r\n") else text


def read_documents(path: str, encoding: str | None = None) -> Iterator[str]:
    """Yield the text of each mail in a file of mails, or of any other file as a whole."""
    if kind_of(path) not in MAILS:
        yield "\n".join(line for _, line in read_lines(path, encoding))
        return
    try:
        with open_bytes(path) as file:
            lines = (line.removeprefix(codecs.BOM_UTF8) for line in file)
            mails = split_mbox(lines) if kind_of(path) == ".mbox" else [b"".join(lines)]
            for raw in mails:
                if b"\0" in raw[:8]:  # UTF-16
                    remedy = "convert the file: iconv -f utf-16 -t utf-8"
                    raise InputError("not a mail: it begins with zero bytes", where=path, remedy=remedy)
                yield mail_text(raw)
    except DAMAGED as error:
        raise InputError(f"cannot be read: {error}", where=path, remedy="check the file") from None


def read_plain(path: str) -> Iterator[Piece]:
    """Yield the pieces of documents, which blank lines separate or, in a file of WikiExtractor, its <doc …> lines."""
    has_doc_lines = kind_of(path) == ARTICLES
    pending = []  # parts of the current document that are not yielded yet
    size = 0  # characters pending
    begun = False  # the current document has text, pending or yielded
    blank = True  # the current line, so far

    for number, column, raw, ends in _raw_lines(path, PIECE):
        part = _decode_line(raw, path, number, column)
        is_doc_line = has_doc_lines and column == 0 and part.startswith(("<doc ", "<doc>", "</doc>"))
        if has_doc_lines and not is_doc_line and not part.strip():
            continue  # blank lines separate nothing here

        blank = is_doc_line or (blank and not part.strip())
        if not blank:
            if size + len(part) > PIECE and pending:
                yield Piece("".join(pending), False)
                pending, size = [], 0
            pending.append(part)
            size += len(part)
            begun = True
        elif ends and begun:
            yield Piece("".join(pending).rstrip("\n"))
            pending, size, begun = [], 0, False
        blank = blank or ends  # the next line has no text so far

    if begun:
        yield Piece("".join(pending).rstrip("\n"))
