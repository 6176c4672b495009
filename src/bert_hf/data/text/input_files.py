"""Finds and opens input files: expands paths, URLs and globs, tells the kind of a file, decompresses it."""

import contextlib
import glob
import gzip
import io
import lzma
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import fsspec

from bert_hf.config.files import check_input_file
from bert_hf.errors import InputError, first_line

_OPENERS = {".gz": gzip.open, ".xz": lzma.open}
_REMEDY = "check the path (globs need quotes)"


@contextlib.contextmanager
def access_errors(where: str | Path, remedy: str = "check the address and the network") -> Iterator[None]:
    """Converts errors of servers and file systems to `InputError`.

    Each protocol has a client with other exception classes (those of aiohttp and httpx are not `OSError`s).
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = first_line(error)
        if isinstance(error, ImportError):  # the client of this protocol
            remedy = 'pip install "bert-hf[streaming]"'
        elif reason == str(where):  # all that fsspec's clients say
            reason = "not found, or the server does not answer"
        raise InputError(f"cannot be read: {reason}", where=where, remedy=remedy) from None


# ---- which files


def is_url(path: str | Path) -> bool:
    """Whether it has a protocol: s3://, hf://, https://, …"""
    return "://" in str(path)


def expand(patterns: list[str], folders: bool = False) -> list[str]:
    """The files that paths, URLs and globs name, each once, in the order given, those of a glob sorted.

    Args:
        folders: folders are accepted, and remain as they are.
    """
    files = []
    for pattern in patterns:
        if folders and os.path.isdir(pattern):
            matches = [pattern]
        else:
            matches = _expand_url(pattern) if is_url(pattern) else _expand_path(pattern)
        if not matches:
            raise InputError("no such file", where=pattern, remedy=_REMEDY)
        files += matches

    # A file that was held out under one name must not be trained on under another
    by_place = {}
    for path in files:
        by_place.setdefault(path if is_url(path) else os.path.realpath(path), path)
    return list(by_place.values())


def check_disjoint(**named: list[str] | None) -> None:
    """Checks that no file is given to two options: its rows would be trained on and tested."""
    options: dict[str, str] = {}
    for option, patterns in named.items():
        for path in expand(patterns or [], folders=True):
            real = path if is_url(path) else os.path.realpath(path)
            if real in options:
                what = f"given to both --{options[real]} and --{option}"
                raise InputError(what, where=path, remedy="give other data to one of them")
            options[real] = option


def _expand_path(pattern: str) -> list[str]:
    paths = [pattern]
    if glob.has_magic(pattern) and not os.path.lexists(pattern):
        paths = sorted(glob.glob(pattern, recursive=True))

    for path in paths:
        check_input_file(path, _REMEDY)
    return paths


def _expand_url(pattern: str) -> list[str]:
    with access_errors(pattern):
        system, path = fsspec.url_to_fs(pattern)
        return sorted(map(system.unstrip_protocol, system.glob(path))) if glob.has_magic(path) else [pattern]


# ---- their kind


def path_without_query(path: str | Path) -> Path:
    """A path, or that of a URL without its query, which may hold a signature."""
    return Path(str(path).split("?", 1)[0]) if is_url(path) else Path(path)


def compression(path: str | Path) -> str | None:
    """`.gz`, `.xz` or None."""
    suffix = path_without_query(path).suffix.lower()
    return suffix if suffix in _OPENERS else None


def kind_of(path: str | Path) -> str:
    """The suffix before that of a compression: `.txt`, `.jsonl`, …"""
    plain = path_without_query(path)
    return (Path(plain.stem) if compression(path) else plain).suffix.lower()


def open_bytes(path: str | Path) -> BinaryIO:
    """Opens a file or a URL for reading, decompressed.

    Raises:
        InputError: the URL cannot be opened. (A file's error stays an `OSError`.)
    """
    opener = _OPENERS.get(compression(path) or "")
    if not is_url(path):
        return (opener or open)(path, "rb")

    with access_errors(path):
        system, place = fsspec.url_to_fs(str(path))
        file = io.BufferedReader(system.open(place, "rb"))  # those of some protocols read no line in parts
    return opener(file, "rb") if opener else file
