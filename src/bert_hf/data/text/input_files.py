"""Finds and opens input files: expands paths and globs, tells the kind of a file, decompresses it."""

import bz2
import codecs
import contextlib
import csv
import functools
import glob
import gzip
import io
import json
import lzma
import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from bert_hf.config.files import check_input_file
from bert_hf.console import logger, shorten_list
from bert_hf.data.text.mails import is_mail
from bert_hf.errors import InputError


def _open_zstd(file: Any, _: str) -> Any:
    """Open a path or an open file for reading, with the arguments of `gzip.open`; the mode is always "rb"."""
    return io.BufferedReader(pa.input_stream(file, compression="zstd"))


_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open, ".zst": _open_zstd}
_COMPRESSED = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\0": ".xz", b"BZh": ".bz2", b"\x28\xb5\x2f\xfd": ".zst"}  # first bytes
_UNREADABLE = {
    b"PK\x03\x04": "a zip archive, or a document in one (.docx, .xlsx, .odt, .epub)",
    b"%PDF": "a PDF",
    b"\xd0\xcf\x11\xe0": "a document of an old Office",
    b"SQLite format 3": "a database",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!": "a rar archive",
    b"\x89PNG": "a picture",
    b"\x93NUMPY": "an array of numpy",
    b"<!DOCTYPE html": "an HTML page",
    b"<html": "an HTML page",
    b"{\\rtf": "a document in RTF",
    b"#FORMAT=WebAnno": "a TSV of WebAnno or INCEpTION (for words, export CoNLL 2002)",
    b"version https://git-lfs": "a pointer of Git LFS (run git lfs pull)",
}
_HEAD = 1 << 14  # bytes that tell the kind of a file
MAILS = (".eml", ".mbox")  # kinds of files with mails
ARTICLES = ".wiki"  # kind of WikiExtractor's files: <doc …> lines around each article
DAMAGED = (OSError, EOFError, lzma.LZMAError, zlib.error)  # errors that reading a compressed file may raise
TEXT_NAMES = ("text", "sentence", "content", "message", "question", "comment", "body", "review", "sms")
LABEL_NAMES = ("label", "labels", "class", "category", "kind", "type", "target")
_USUAL_NAMES = {*TEXT_NAMES, *LABEL_NAMES, "word", "token", "tokens", "context", "sent1", "premise"}  # of columns
_REMEDY = "check the path (globs need quotes)"


def expand_paths(patterns: list[str], folders: bool = False) -> list[str]:
    """Return the files (with `folders`, folders too) of paths and globs, each file once; no match is an error."""
    by_real_path = {}  # a file that was held out under one name must not be trained on under another
    for pattern in patterns:
        matches = [pattern] if folders and os.path.isdir(pattern) else _expand_path(pattern)
        if not matches:
            raise InputError("no such file", where=pattern, remedy=_REMEDY)
        for path in matches:
            by_real_path.setdefault(os.path.realpath(path), path)
    return list(by_real_path.values())


def check_disjoint(**patterns_of_option: list[str] | None) -> None:
    """Raise an `InputError` if a file is given to two options: its rows would be trained on and tested."""
    option_of_file: dict[str, str] = {}
    for option, patterns in patterns_of_option.items():
        for path in expand_paths(patterns or [], folders=True):
            other = option_of_file.setdefault(os.path.realpath(path), option)
            if other != option:
                what = f"given to both --{other} and --{option}"
                raise InputError(what, where=path, remedy="give other data to one of them")


def _expand_path(pattern: str) -> list[str]:
    """Return the files of a glob in order, or the path itself; a path that is not a regular file is an error."""
    is_glob = glob.has_magic(pattern) and not os.path.lexists(pattern)  # a name may contain [1]
    paths = sorted(glob.glob(pattern, recursive=True)) if is_glob else [pattern]

    remedy = "download it first; a dataset of the Hub is read by --dataset_name" if "://" in pattern else _REMEDY
    for path in paths:
        check_input_file(path, remedy)
    return paths


def compression(path: str | Path) -> str | None:
    """Return `.gz`, `.xz`, `.bz2`, `.zst` or None, by the first bytes of a file."""
    return _compression_and_kind(str(path), os.stat(path).st_mtime_ns)[0] if os.path.isfile(path) else None


def kind_by_name(path: str | Path) -> str:
    """Return the suffix of a file name in lower case, without a suffix of compression: `.txt` for `a.TXT.gz`."""
    name = Path(path)
    return (Path(name.stem) if name.suffix.lower() in _OPENERS else name).suffix.lower()


def kind_of(path: str | Path) -> str:
    """Return the kind of a file as a suffix: by its first kilobytes where they tell it, else by its name."""
    kind = _compression_and_kind(str(path), os.stat(path).st_mtime_ns)[1] if os.path.isfile(path) else None
    return kind or kind_by_name(path)


@functools.lru_cache(maxsize=100_000)  # a file is looked into once, and again when its `mtime` changes
def _compression_and_kind(path: str, mtime: int) -> tuple[str | None, str | None]:
    """Return (compression, kind) of a file, each None if its content does not tell it; reject what cannot be read."""
    with open(path, "rb") as file:
        head = file.read(_HEAD)
        packing = next((suffix for magic, suffix in _COMPRESSED.items() if head.startswith(magic)), None)
        if packing is not None:
            file.seek(0)
            try:
                head = _OPENERS[packing](file, "rb").read(_HEAD)
            except DAMAGED:  # reported where it is read
                return packing, None

    _reject_other_formats(head, path)
    kind = _kind_by_content(head, kind_by_name(path))
    if kind in (".csv", ".tsv") and b"\r" in head and b"\n" not in head:
        remedy = f"convert the file: tr '\\r' '\\n' < {path}"
        raise InputError("its lines end as on an old Mac (CR)", where=path, remedy=remedy)
    return packing, kind


def _reject_other_formats(head: bytes, path: str) -> None:
    """Raise an `InputError` for a file whose first bytes, decompressed, belong to a format that is not read."""
    unreadable = next((kind for magic, kind in _UNREADABLE.items() if head.lower().startswith(magic.lower())), None)
    if head[257:262] == b"ustar":
        unreadable = unreadable or "a tar archive"
    if unreadable:
        raise InputError(f"{unreadable}, not text", where=path, remedy="save its text as a .txt, .csv or .jsonl")


def _kind_by_content(head: bytes, named: str) -> str | None:
    """Return the kind of a file by its first bytes, decompressed; None if the kind by its name (`named`) counts."""
    head = head.removeprefix(codecs.BOM_UTF8)
    text = head.lstrip()
    if head.startswith(b"PAR1"):
        return ".parquet"
    if named in (".json", ".jsonl"):
        return None
    if is_mail(head):
        return ".mbox" if head.startswith(b"From ") else ".eml"
    if text.startswith((b"<doc ", b"<doc>")) and b">" in text.partition(b"\n")[0]:
        return ARTICLES  # as WikiExtractor writes them
    if text.startswith(b"[") and text[1:].lstrip().startswith(b"{"):
        return ".json"
    if text.startswith(b"{") and _are_json_objects(text):
        return ".jsonl"
    return None if named in (".csv", ".tsv") else _kind_of_table(head)


def _are_json_objects(text: bytes) -> bool:
    """Return True if the first lines, up to three, are JSON objects."""
    lines = [line for line in text.split(b"\n")[:4] if line.strip()]
    try:
        values = [json.loads(line) for line in lines[:-1] or lines]  # the last of several lines may be cut off
    except ValueError:
        return False
    return all(isinstance(value, dict) for value in values)


def _kind_of_table(head: bytes) -> str | None:
    """Return `.tsv` or `.csv` if line 1 has a usual name of a column, and 9 of 10 others as many fields; else None.

    Semicolons and |, which are rare in prose, need no usual name where each of at least five rows has as many fields.
    """
    lines = head.decode("utf-8", "replace").splitlines(keepends=True)[:20]
    for separator in "\t;,|":
        names = lines[0].strip().split(separator) if lines else []
        usual = not _USUAL_NAMES.isdisjoint(name.strip('"').lower() for name in names)
        if len(names) == 1 or not (usual or separator in ";|"):
            continue

        with contextlib.suppress(csv.Error):
            rows = list(csv.reader(lines[1:], delimiter=separator))
            of_header_width = sum(len(row) == len(names) for row in rows)
            required = 0.9 * len(rows) if usual else max(len(rows) - 1, 5)  # the last one may be cut off
            if of_header_width >= required > 0:
                return ".tsv" if separator == "\t" else ".csv"
    return None


@functools.cache
def log_misnamed(files: tuple[str, ...]) -> None:
    """Log the files that are read as another kind than their names say; once for the same files, by the cache."""
    misnamed: dict[str, list[str]] = {}
    for path in files:
        suffix = Path(path).suffix.lower()
        by_name = kind_by_name(path) + (suffix if suffix in _OPENERS else "")
        by_content = kind_of(path) + (compression(path) or "")
        if by_content != by_name:
            misnamed.setdefault(by_content, []).append(Path(path).name)
    for kind, names in misnamed.items():
        logger.info(f"{shorten_list(names)}: read as {kind}, as the content shows")


def open_bytes(path: str | Path) -> BinaryIO:
    """Open a file for reading, decompressed."""
    opener = _OPENERS.get(compression(path) or "", open)
    return opener(path, "rb")
