"""Collects the embedded default corpus: English documentation found on every machine with this project.

`pydoc_data.topics` and docstrings, read with `ast` and never imported; nothing is downloaded or shipped.
"""

import ast
import contextlib
import functools
import importlib.metadata
import importlib.util
import inspect
import platform
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bert_hf.config.files import json_checksum
from bert_hf.data.text.readers import Piece, cut_pieces

# In this order: the standard library, then packages that come with this project. Of each no more than a share, so
# that the text has many subjects: a NOT_NEXT segment from the same package is hard to tell from the next sentence.
DEFAULT_PACKAGES = (
    "numpy scipy sklearn pandas matplotlib sympy networkx torch huggingface_hub fontTools datasets accelerate aiohttp "
    "PIL jinja2 joblib"
).split()
DEFAULT_SHARE = 1_000_000  # characters that one package may contribute
_SKIPPED_FOLDERS = set("tests test testing idlelib lib2to3 site-packages _vendor _inductor _dynamo".split())
_WHOLE_SENTENCES = re.compile(r"[A-Z`*\"'(].*[.!?:)]$", re.DOTALL)  # a text that begins and ends as they do


@dataclass(frozen=True)
class Documentation:
    """The embedded default corpus as a source (see `sources`)."""

    name: str = "documentation"

    def checksum(self) -> str:
        """Return the SHA-256 of what decides the text: versions of Python and the packages, and `DEFAULT_SHARE`."""
        versions = {"python": platform.python_version(), "share": str(DEFAULT_SHARE)}
        for name in DEFAULT_PACKAGES:
            distribution = {"sklearn": "scikit-learn", "PIL": "pillow"}.get(name, name)
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[name] = importlib.metadata.version(distribution)
        return json_checksum(versions)

    def read(self) -> Iterator[Piece]:
        """Yield the documents in pieces."""
        for text in default_documents():
            yield from cut_pieces(text)


@functools.cache  # asked for twice, by the vocabulary and by the corpus, and half a minute's work
def default_documents() -> tuple[str, ...]:
    """Return documentation found on this machine: a document is a help topic of Python or a module's docstrings.

    Only prose is kept, paragraph by paragraph, and a paragraph that begins or ends like an earlier one is dropped, so
    that held-out modules are not copies of others. About 9 MB, at most about `DEFAULT_SHARE` of each package.
    """
    seen = set()
    documents = []
    library = Path(sysconfig.get_path("stdlib"))
    packages = [_help_topics(library), *map(_docstrings_of_modules, [library, *_package_folders()])]
    for package in packages:  # a generator that reads one module after the other
        size = 0  # characters
        for texts in package:  # those of one document
            paragraphs = [paragraph for paragraph in _prose_paragraphs(texts) if _add_if_new(paragraph, seen)]
            if sum(map(len, paragraphs)) >= 200 and len(paragraphs) >= 2:  # else hardly a sentence pair
                documents.append("\n".join(paragraphs))
                size += len(documents[-1])
            if size >= DEFAULT_SHARE:
                break
    return tuple(documents)


def _help_topics(library: Path) -> Iterator[list[str]]:
    """Yield each long topic of Python's `help()`, as a list of one text, from the folder of the standard library."""
    topics = library / "pydoc_data" / "topics.py"
    if topics.is_file():
        for node in ast.walk(ast.parse(topics.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) > 400:  # no title
                yield [node.value]


def _package_folders() -> Iterator[Path]:
    """Yield the folder of each of `DEFAULT_PACKAGES` that is installed."""
    for name in DEFAULT_PACKAGES:
        spec = importlib.util.find_spec(name)  # finds a top-level package without importing it
        if spec is not None and spec.submodule_search_locations:
            yield Path(next(iter(spec.submodule_search_locations)))


def _docstrings_of_modules(package: Path) -> Iterator[list[str]]:
    """Yield the docstrings of each module of a package, one list per module, in the order of their paths."""
    for path in sorted(package.rglob("*.py")):
        if _SKIPPED_FOLDERS.isdisjoint(path.relative_to(package).parts):
            yield _docstrings(path)


def _docstrings(path: Path) -> list[str]:
    """Return the docstrings of a Python file; none if it cannot be parsed, or has too few for a document."""
    try:
        source = path.read_bytes()
        if source.count(b'"""') < 4:  # not even two
            return []
        tree = ast.parse(source)
    except (SyntaxError, ValueError, OSError, RecursionError):
        return []

    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [text for node in ast.walk(tree) if isinstance(node, documented) and (text := ast.get_docstring(node))]


def _prose_paragraphs(texts: list[str]) -> Iterator[str]:
    """Yield the paragraphs of docstrings or help topics that read as prose: no examples or tables.

    Of a list of parameters only the first line, a name and its type, is left out; a heading directly above text stays.
    """
    for text in texts:
        for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
            lines = [line.strip() for line in block.splitlines()]
            if any(line.startswith((">>>", "...", "..", "|", "+-", "$", "#")) for line in lines):
                continue

            # Without the line "axis : int" of a parameter, and lines of dashes, which underline a heading
            if len(lines) > 1 and re.match(r"^[\w, *`]+ ?: ", lines[0]):
                lines = lines[1:]
            lines = [line for line in lines if not re.fullmatch(r"[-=~^*_+ ]{3,}", line)]

            paragraph = " ".join(lines)
            letters = sum(character.isalpha() or character == " " for character in paragraph)
            if len(paragraph.split()) >= 8 and letters > 0.85 * len(paragraph) and _WHOLE_SENTENCES.match(paragraph):
                yield paragraph


def _add_if_new(paragraph: str, seen: set[str]) -> bool:
    """Return False if its words, or the first or last ten of them, are in `seen`; else add them and return True."""
    words = re.findall(r"[a-z]+", paragraph.lower())
    keys = {" ".join(words), " ".join(words[:10]), " ".join(words[-10:])}
    if keys & seen:
        return False
    seen |= keys
    return True
