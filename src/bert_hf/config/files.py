"""Checks paths that the user named, reads text, JSON and YAML, and writes small files atomically."""

import errno
import json
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.reader import ReaderError

from bert_hf.errors import InputError, first_line

MAX_INPUT_FILE_BYTES = 64_000_000  # bytes of a file that is read whole: a configuration, a vocabulary


def check_input_file(path: str | Path, remedy: str = "check the path") -> Path:
    """Checks a file named by the user without opening it: opening a pipe would wait for a writer.

    Raises:
        InputError: it is missing, not a regular file, or may not be read.
    """
    path = Path(path)

    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise InputError("no such file", where=path, remedy=remedy) from None
    except (OSError, ValueError) as error:  # too long a name, a loop of links, a folder that may not be entered
        what = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be opened: {what}", where=path, remedy=remedy) from None

    if stat.S_ISDIR(mode):
        raise InputError("a folder, and not a file", where=path, remedy="name a file in it")
    if not stat.S_ISREG(mode):
        raise InputError("not a regular file", where=path, remedy="give a file that can be read twice")
    if not os.access(path, os.R_OK):
        raise InputError("it may not be read", where=path, remedy="change its rights")
    return path


def check_writable(output_dir: str, option: str = "--output_dir") -> str:
    """Writes and flushes a temporary file in the folder, or in the part of its path that exists.

    Raises:
        InputError: a file is in the way, or the disk or its permissions refuse.
    """
    place = Path(output_dir).expanduser().absolute()
    remedy = f"give another {option}"
    try:
        for part in place.parts:
            if len(os.fsencode(part)) > 255:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))

        # The part that exists
        while not os.path.lexists(place):
            place = place.parent
        if not place.is_dir():
            raise InputError("is a file, and not a folder", where=_short(place, output_dir), remedy=remedy)

        with tempfile.TemporaryFile(dir=place) as file:  # it has no name, so a killed process leaves nothing
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be written: {reason}", where=output_dir, remedy=remedy) from None
    return f"output: {output_dir} can be written"


def _short(place: Path, given: str) -> Path:
    """A parent of the path in the user's spelling."""
    for path in (Path(given), *Path(given).parents):
        if path.expanduser().absolute() == place:
            return path
    return place


def read_input_text(path: str | Path, remedy: str = "check the path") -> str:
    """The text of a small file named by the user.

    Raises:
        InputError: see `check_input_file`; or it is larger than `MAX_INPUT_FILE_BYTES`; or not UTF-8 (with line and
            column).
    """
    path = check_input_file(path, remedy)
    with open(path, "rb") as file:
        raw = file.read(MAX_INPUT_FILE_BYTES + 1)
    if len(raw) > MAX_INPUT_FILE_BYTES:
        raise InputError(f"larger than {MAX_INPUT_FILE_BYTES // 10**6} MB", where=path, remedy=remedy)

    return decode_utf8(raw, path).removeprefix("\ufeff")


def decode_utf8(raw: bytes, where: str | Path, line: int = 1, column: int = 0) -> str:
    """The text of bytes that begin in a line of a file, after `column` bytes of it.

    Raises:
        InputError: they are not UTF-8; with line and column.
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        raise InputError(
            f"byte 0x{raw[error.start]:02x} is not UTF-8",
            where=where,
            line=line + before.count(b"\n"),
            column=column + error.start - before.rfind(b"\n"),
            remedy="convert the file, e.g. with iconv -t UTF-8",
        ) from None


def parse_json(
    text: str,
    where: str | Path,
    remedy: str,
    *,
    line: int | None = None,
    otherwise: str | None = None,
    parse: Callable[..., Any] = json.loads,
    **options,
) -> Any:
    """The value of a JSON text.

    Args:
        line: in which the text, or the item of it that is parsed, begins; None: the text is a whole file.
        otherwise: remedy for JSON that Python does not take: nested too deeply, a number of too many digits.
        options: of `parse`.

    Raises:
        InputError: it is not JSON; with line and column.
    """
    try:
        return parse(text, **options)
    except json.JSONDecodeError as error:
        line = max(line or 1, error.lineno)  # of an item in a longer text the fault may be further down
        raise InputError(f"not JSON: {error.msg}", where=where, line=line, column=error.colno, remedy=remedy) from None
    except (RecursionError, ValueError) as error:
        reason = str(error).split(";")[0]
        raise InputError(f"not JSON: {reason}", where=where, line=line, remedy=otherwise or remedy) from None


def write_durably(path: Path, text: str) -> None:
    """Writes a small file atomically: after a crash its content is the old one or the new one.

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
    """The object in a JSON file; None where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def flush_to_disk(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Loader(yaml.SafeLoader):
    """Plain YAML without aliases, which can expand a few lines to gigabytes."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise ComposerError(None, None, "an alias is not taken", self.peek_event().start_mark)
        return super().compose_node(parent, index)


def yaml_options(path: str | Path) -> Iterator[tuple[str, int, list[str]]]:
    """(name, line, words of a command line) of each entry of a flat YAML file; an empty value has no words.

    Raises:
        InputError: it cannot be read, is not YAML or not flat, or has a key twice (with the line).
    """
    text = read_input_text(path, "give --config the path of a YAML file")

    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise _not_yaml(error, path, text) from None
    except RecursionError:
        raise InputError("nested too deeply", where=path, remedy="write one option a line") from None
    if node is not None and not isinstance(node, yaml.MappingNode):
        raise InputError("holds no `key: value` lines", where=path, line=1, remedy="write one option a line")

    seen: dict[str, int] = {}
    for key, value in node.value if node is not None else ():
        line = key.start_mark.line + 1
        name = key.value if isinstance(key, yaml.ScalarNode) else "?"
        if name in seen:
            what = f"{name!r} is given twice, first in line {seen[name]}"
            raise InputError(what, where=path, line=line, remedy="remove one of them")
        seen[name] = line

        try:
            yield name, line, _words(name, value)
        except yaml.YAMLError as error:
            raise _not_yaml(error, path, text) from None
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{name}: {error}", where=path, line=line, remedy="correct this line") from None


def _not_yaml(error: yaml.YAMLError, path: str | Path, text: str) -> InputError:
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark else None
    if isinstance(error, ReaderError):
        line = text.count("\n", 0, error.position) + 1

    reasons = [getattr(error, name, None) for name in ("context", "problem")]
    reason = ", ".join(filter(None, reasons)) or first_line(error)
    return InputError(f"not readable as YAML: {reason}", where=path, line=line, remedy="correct the file")


# Tags of scalars whose text is taken as it is, for the option's own type to convert. (YAML 1.1 reads 32:0.2 as a
# number of base 60, 010 as 8 and the language `no` as false.)
_TEXT_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "timestamp")}


def _words(name: str, node: yaml.Node) -> list[str]:
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [f"--{name}", *map(_word, node.value)]
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
        return []
    if isinstance(node, yaml.MappingNode):
        return [f"--{name}={json.dumps(_construct(node))}"]
    return [f"--{name}={_word(node)}"]


def _word(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode) and node.tag in _TEXT_TAGS:
        return node.value
    raise TypeError(f"a {type(_construct(node)).__name__} is neither text nor a number")


def _construct(node: yaml.Node) -> Any:
    """The value of a node; a tag of Python's own is an error."""
    return yaml.SafeLoader("").construct_object(node, deep=True)
