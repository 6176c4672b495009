"""Checks paths given by the user, reads text and JSON, writes small files atomically, and computes checksums."""

import hashlib
import json
import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import Any

from bert_hf.errors import InputError

MAX_INPUT_FILE_BYTES = 64_000_000  # bytes of a file that is read whole: a configuration, a vocabulary


def check_input_file(path: str | Path, remedy: str = "check the path") -> Path:
    """Return the path of a file named by the user; an `InputError` if it is missing or not a regular file."""
    path = Path(path)
    try:
        mode = path.stat().st_mode  # not opened: opening a pipe would wait for a writer
    except (FileNotFoundError, NotADirectoryError):
        raise InputError("no such file", where=path, remedy=remedy) from None
    except (OSError, ValueError) as error:  # too long a name, a loop of links, a folder that may not be entered
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be opened: {reason}", where=path, remedy=remedy) from None

    if stat.S_ISDIR(mode):
        raise InputError("is a directory, expected a file", where=path, remedy="name a file in it")
    if not stat.S_ISREG(mode):
        raise InputError("not a regular file", where=path, remedy="give a regular file")
    return path


def check_writable(output_dir: str, option: str = "--output_dir") -> str:
    """Try by a temporary file whether a folder can be written, else raise; return the line of `--check` about it."""
    folder = Path(output_dir).expanduser().absolute()
    try:
        while not folder.exists():  # a new folder: the one in which it will be made
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder) as file:  # it has no name, so a killed process leaves nothing
            file.write(b"x" * 4096)  # a block, for which a full disk has no space
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise InputError(problem, where=output_dir, remedy=f"give another {option}") from None
    return f"output: {output_dir} can be written"


def read_input_text(path: str | Path, remedy: str = "check the path") -> str:
    """Return the text of a UTF-8 file named by the user, at most 64 MB, without a byte order mark."""
    path = check_input_file(path, remedy)
    with open(path, "rb") as file:
        raw = file.read(MAX_INPUT_FILE_BYTES + 1)
    if len(raw) > MAX_INPUT_FILE_BYTES:
        raise InputError(f"larger than {MAX_INPUT_FILE_BYTES // 10**6} MB", where=path, remedy=remedy)

    return decode_utf8(raw, path).removeprefix("\ufeff")


def decode_utf8(raw: bytes, where: str | Path, line: int = 1, column: int = 0) -> str:
    """Decode UTF-8; an error names the bad byte's place in the file (`raw` begins in `line`, after `column` bytes)."""
    try:
        if line == 1 and column == 0 and raw[:2].count(0) == 1:  # UTF-16 without a mark, which could be read as UTF-8
            raise UnicodeDecodeError("utf-8", raw, raw.index(0), 2, "")
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        remedy = "convert a Windows file: iconv -f cp1252 -t utf-8; where rows are read, pass --encoding cp1252"
        if b"\0" in raw[:4]:
            remedy = "convert the file: iconv -f utf-16 -t utf-8; where rows are read, --encoding utf-16"
        raise InputError(
            f"byte 0x{raw[error.start]:02x} is not UTF-8",
            where=where,
            line=line + before.count(b"\n"),
            column=column + error.start - before.rfind(b"\n"),
            remedy=remedy,
        ) from None


def join_surrogates(text: str) -> str:
    """Join the surrogate pairs that JSON escapes left in a text; a lone half, which no tokenizer takes, is U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def parse_json(text: str, where: str | Path, remedy: str, *, line: int | None = None) -> Any:
    """Parse JSON, with `join_surrogates` of its strings; an error names `line`, or without it the line in the text."""
    try:
        value = json.loads(text)
        if "\\ud" not in text.lower():  # no escapes of surrogates
            return value
        return json.loads(join_surrogates(json.dumps(value, ensure_ascii=False)))
    except json.JSONDecodeError as error:
        line = line or error.lineno
        raise InputError(f"not JSON: {error.msg}", where=where, line=line, column=error.colno, remedy=remedy) from None
    except (RecursionError, ValueError) as error:  # nested too deep, a number of too many digits
        reason = str(error).split(";")[0]
        raise InputError(f"not JSON: {reason}", where=where, line=line, remedy=remedy) from None


def write_durably(path: Path, text: str) -> None:
    """Write a small file atomically: after a crash its content is the old one or the new one.

    Several processes, also of several machines, may write the same file: the last one wins.
    """
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    flush_to_disk(path.parent)


def read_json_object(path: Path) -> dict | None:
    """Return the object in a JSON file; None if the file cannot be read or holds anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def flush_to_disk(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def text_checksum(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def json_checksum(content: Any) -> str:
    """Return the SHA-256 of a JSON value, independent of key order."""
    return text_checksum(json.dumps(content, sort_keys=True))


def file_checksum(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
