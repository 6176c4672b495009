"""Where raw text comes from: files of any common kind, a Hub dataset, or the English documentation on this machine.

Everything here yields documents as plain strings, one at a time.
"""

import ast
import contextlib
import functools
import glob
import gzip
import importlib.metadata
import importlib.util
import inspect
import json
import lzma
import platform
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from bert_hf.errors import InputError

KINDS = (".txt", ".jsonl", ".json", ".parquet")
_OPENERS = {".gz": gzip.open, ".xz": lzma.open}


def expand(patterns: list[str]) -> list[Path]:
    """The files that paths and globs mean, in the order given, a glob's files sorted.

    Raises:
        InputError: a path or a glob that names no file, or an empty file.
    """
    files = []
    for pattern in patterns:
        found = [Path(pattern)] if Path(pattern).exists() else [Path(name) for name in sorted(glob.glob(pattern))]
        if not found:
            raise InputError("no such file", where=pattern, remedy="check the path (globs need quotes)")
        for path in found:
            if path.is_dir():
                raise InputError(
                    "a folder, and not one made by prepare.py", where=path, remedy=f"name files, e.g. '{path}/*.txt'"
                )
            if path.stat().st_size == 0:
                raise InputError("the file is empty", where=path, remedy="give a file that holds text")
        files += found
    return files


def describe(patterns: list[str]) -> list[list]:
    """[path, bytes, time of change] of each file: enough to notice that a source is another one."""
    stats = [(path, path.stat()) for path in expand(patterns)]
    return [[str(path.resolve()), stat.st_size, stat.st_mtime_ns] for path, stat in stats]


def kind_of(path: Path) -> str:
    """The suffix below a compression suffix: `.txt`, `.jsonl`, …"""
    return Path(path.stem).suffix.lower() if path.suffix.lower() in _OPENERS else path.suffix.lower()


def open_bytes(path: Path) -> BinaryIO:
    """Opens a file for reading, decompressed."""
    return _OPENERS.get(path.suffix.lower(), open)(path, "rb")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, line without its end) of a UTF-8 text file, compressed or not.

    Raises:
        InputError: bytes that are not UTF-8 (with line and column), or a damaged compressed file.
    """
    with open_bytes(path) as file:
        number = 0
        try:
            for number, raw in enumerate(file, start=1):
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")  # byte-order mark
                yield number, raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(
                f"byte 0x{error.object[error.start]:02x} is not UTF-8",
                where=path,
                line=number,
                column=error.start + 1,
                remedy="convert the file, e.g. with iconv -t UTF-8",
            ) from None
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise InputError(
                f"cannot be decompressed: {error}", where=path, line=number + 1, remedy="fetch the file again"
            ) from None


def read_documents(patterns: list[str], text_column: str | None = None) -> Iterator[str]:
    """The documents of files (.txt, .jsonl, .json lines, .parquet; each also .gz or .xz).

    In plain text blank lines stand between documents; elsewhere a row is a document. `text_column` defaults to
    "text", or to the only column that holds strings.
    """
    for path in expand(patterns):
        kind = kind_of(path)
        if kind == ".parquet":
            yield from _read_parquet(path, text_column)
        elif kind in (".jsonl", ".json"):
            yield from _read_json_lines(path, text_column)
        elif kind in (".txt", ""):
            yield from _read_plain(path)
        else:
            raise InputError(f"unknown kind {kind!r}", where=path, remedy=f"use {' '.join(KINDS)}, also .gz or .xz")


def _read_plain(path: Path) -> Iterator[str]:
    lines: list[str] = []
    for _, line in read_lines(path):
        if line.strip():
            lines.append(line)
        elif lines:
            yield "\n".join(lines)
            lines = []
    if lines:
        yield "\n".join(lines)


def read_rows(path: Path) -> Iterator[tuple[int, dict]]:
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
        if not isinstance(row, dict):
            raise InputError("not a JSON object", where=path, line=number, remedy="write one object a line")
        yield number, row


def _read_json_lines(path: Path, text_column: str | None) -> Iterator[str]:
    for number, row in read_rows(path):
        strings = [name for name, value in row.items() if isinstance(value, str)]
        text_column = text_column or choose_column(list(row), strings, path, number)
        text = row.get(text_column)
        if not isinstance(text, str):
            what = f"column {text_column!r} is not text" if text_column in row else f"no column {text_column!r}"
            columns = ", ".join(row)
            raise InputError(what, where=path, line=number, remedy=f"--text_column, one of: {columns}")
        yield text


def _read_parquet(path: Path, text_column: str | None) -> Iterator[str]:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"not a Parquet file: {error}", where=path, remedy="fetch it again") from None
    schema = file.schema_arrow
    strings = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
    column = text_column or choose_column(schema.names, strings, path)
    if column not in strings:
        what = f"column {column!r} is not text" if column in schema.names else f"no column {column!r}"
        raise InputError(what, where=path, remedy=f"--text_column, one of: {', '.join(strings) or 'none is text'}")
    for batch in file.iter_batches(batch_size=256, columns=[column]):
        yield from (text for text in batch.column(0).to_pylist() if text is not None)


def choose_column(columns: list[str], strings: list[str], where: Path | str, line: int | None = None) -> str:
    """The column that plainly holds the text: `text`, or the only one of strings."""
    if "text" in strings:
        return "text"
    if len(strings) == 1:
        return strings[0]
    names = ", ".join(columns)
    raise InputError("which column holds the text?", where=where, line=line, remedy=f"--text_column, one of: {names}")


def read_hub(name: str, config: str | None = None, text_column: str | None = None, split: str = "train"):
    """The documents of a Hub dataset (streamed; no script of it is run)."""
    import datasets

    try:
        rows = datasets.load_dataset(name, config, split=split, streaming=True)
        for row in rows:
            strings = [column for column, value in row.items() if isinstance(value, str)]
            text_column = text_column or choose_column(list(row), strings, name)
            if text_column not in row:
                raise InputError(
                    f"no column {text_column!r}", where=name, remedy=f"--text_column, one of: {', '.join(row)}"
                )
            if row[text_column]:
                yield row[text_column]
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"cannot be loaded: {str(error).splitlines()[0]}",
            where=name,
            remedy="check the id, --dataset_config_name and the network, or give --train_file",
        ) from None


# ---- the embedded default: English documentation that is on the machine already

# In this order: the standard library, then packages that come with this project. Of each no more than a share, so
# that the text has many subjects: a stranger from the same package is hard to tell from the next sentence.
DEFAULT_PACKAGES = (
    "numpy scipy sklearn pandas matplotlib sympy networkx torch huggingface_hub fontTools datasets accelerate aiohttp "
    "PIL jinja2 joblib"
).split()
DEFAULT_SHARE = 1_000_000  # characters of one package
_SKIPPED = {"tests", "test", "testing", "idlelib", "lib2to3", "site-packages", "_vendor", "_inductor", "_dynamo"}
_PROSE = re.compile(r"[A-Z`*\"'(].*[.!?:)]$", re.DOTALL)


def default_versions() -> dict[str, str]:
    """What decides the default text: versions of Python and of the packages it is read from."""
    versions = {"python": platform.python_version(), "share": str(DEFAULT_SHARE)}
    for name in DEFAULT_PACKAGES:
        distribution = {"sklearn": "scikit-learn", "PIL": "pillow"}.get(name, name)
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(distribution)
    return versions


@functools.cache  # asked for twice, by the vocabulary and by the corpus, and half a minute's work
def default_documents() -> tuple[str, ...]:
    """Documentation found on this machine, as documents: each help topic of Python, each module's docstrings.

    Docstrings are read with `ast`: no module is imported, nothing is downloaded. Only prose is kept, paragraph by
    paragraph, and a paragraph that begins or reads like an earlier one is dropped, so that held-out modules are not
    copies of others. About 9 MB.
    """
    seen: set[str] = set()
    documents = []
    for modules in _default_modules():
        size = 0
        for module in modules:
            paragraphs = [text for text in _prose(module) if _is_new(text, seen)]
            if sum(map(len, paragraphs)) >= 200 and len(paragraphs) >= 2:
                documents.append("\n".join(paragraphs))
                size += len(documents[-1])
            if size >= DEFAULT_SHARE:
                break
    return tuple(documents)


def _default_modules() -> Iterator[Iterator[list[str]]]:
    """Package by package, the docstrings of one module (or one help topic) after the other."""
    library = Path(sysconfig.get_path("stdlib"))
    topics = library / "pydoc_data" / "topics.py"
    if topics.is_file():
        nodes = ast.walk(ast.parse(topics.read_text(encoding="utf-8")))
        strings = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
        yield ([text] for text in strings if len(text) > 400)
    roots = [library]
    for name in DEFAULT_PACKAGES:
        spec = importlib.util.find_spec(name)  # finds a top-level package without importing it
        if spec is not None and spec.submodule_search_locations:
            roots.append(Path(next(iter(spec.submodule_search_locations))))
    for root in roots:
        paths = (path for path in sorted(root.rglob("*.py")) if not _SKIPPED & set(path.relative_to(root).parts[:-1]))
        yield map(_docstrings, paths)


def _docstrings(path: Path) -> list[str]:
    try:
        source = path.read_bytes()
        if source.count(b'"""') < 4:  # two docstrings make no document: not worth parsing
            return []
        tree = ast.parse(source)
    except (SyntaxError, ValueError, OSError, RecursionError):
        return []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [text for node in ast.walk(tree) if isinstance(node, documented) and (text := ast.get_docstring(node))]


def _prose(texts: list[str]) -> Iterator[str]:
    """The paragraphs that are prose: no examples, tables, headings, parameter lists."""
    for text in texts:
        for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
            lines = [line.strip() for line in block.splitlines()]
            if any(line.startswith((">>>", "...", "..", "|", "+-", "$", "#")) for line in lines):
                continue
            if len(lines) > 1 and re.match(r"^[\w, *`]+ ?: ", lines[0]):  # "axis : int" begins a parameter
                lines = lines[1:]
            lines = [line for line in lines if not re.fullmatch(r"[-=~^*_+ ]{3,}", line)]
            paragraph = " ".join(lines)
            letters = sum(character.isalpha() or character == " " for character in paragraph)
            if len(paragraph.split()) >= 8 and letters > 0.85 * len(paragraph) and _PROSE.match(paragraph):
                yield paragraph


def _is_new(paragraph: str, seen: set[str]) -> bool:
    """False for a paragraph that equals an earlier one but for case, digits and signs, or begins or ends like one."""
    words = re.findall(r"[a-z]+", paragraph.lower())
    keys = {" ".join(words), " ".join(words[:10]), " ".join(words[-10:])}
    if keys & seen:
        return False
    seen |= keys
    return True
