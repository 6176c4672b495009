"""Reads and writes sentences of tagged words: CoNLL files, JSON lines, Hub data sets."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np

from bert_hf.config.files import write_durably
from bert_hf.data.text.input_files import expand, kind_of
from bert_hf.data.text.readers import read_lines, read_rows, whole_text
from bert_hf.data.text.sources import load_hub
from bert_hf.errors import InputError, did_you_mean
from bert_hf.finetuning.tagging.entities import begins_with_inside, is_iob1, split_tag, to_iob2

DOCUMENT_START = "-DOCSTART-"
WORD_COLUMNS = ("tokens", "words")
TAG_COLUMNS = ("ner_tags", "tags", "labels")
DOCUMENT_COLUMNS = ("document_id", "doc_id", "document")
_REMEDY = "correct or remove it"


@dataclass
class TaggedSentences:
    """Sentences in the order of the data.

    Attributes:
        words, tags: of each sentence, of equal length.
        documents: the number of each sentence's document; sentences of a document follow each other.
        files: the file of each sentence, or the data set.
        lines: the line of each word (of JSON lines: of its sentence); empty for a data set.
        notes: what the user has to know of how the data were read, a line each.
        held_out: they were split off the training rows.
    """

    words: list[list[str]] = field(default_factory=list)
    tags: list[list[str]] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    lines: list[list[int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    held_out: bool = False

    def __len__(self) -> int:
        return len(self.words)

    def add(self, words: list[str], tags: list[str], document: int, file: str, lines: list[int]) -> None:
        """Appends a sentence."""
        self.words.append(words)
        self.tags.append(tags)
        self.documents.append(document)
        self.files.append(file)
        self.lines.append(lines)

    def take(self, rows: Iterable[int] | np.ndarray) -> "TaggedSentences":
        """Some of the sentences, by number."""
        taken = TaggedSentences(notes=list(self.notes), held_out=self.held_out)
        for row in rows:
            taken.add(self.words[row], self.tags[row], self.documents[row], self.files[row], self.lines[row])
        return taken

    def place(self, sentence: int, word: int) -> tuple[str, int | None]:
        """(file, line) of a word, for an error line; the line is None where the data are not from a file."""
        lines = self.lines[sentence]
        return self.files[sentence], lines[word] if lines else None


# ---- files


def read_tagged(files: list[str], names: Sequence[str] | None = None) -> TaggedSentences:
    """Reads CoNLL files (.conll, .txt, .tsv, .bio, …) and JSON lines (.jsonl, .json), also .gz or .xz.

    CoNLL: a word a line, in two or more columns (the word first, its tag last), which tabs separate where the line has
    one, else spaces; a blank line ends a sentence, a line that begins with `-DOCSTART-` a document. JSON lines: a
    sentence a line, `tokens` and `ner_tags`, which are names, or numbers that `names` explains; optionally
    `document_id`. A file in IOB1 is turned into IOB2.

    Raises:
        InputError: with file and line.
    """
    found = TaggedSentences()
    for path in expand(files):
        if kind_of(path) in (".jsonl", ".json"):
            sentences = _read_json(path, names, found.notes)
        elif kind_of(path) in (".csv", ".parquet"):
            remedy = "use CoNLL (.conll, .txt, .tsv) or JSON lines (.jsonl), also .gz or .xz"
            raise InputError(f"unknown kind {kind_of(path)!r}", where=path, remedy=remedy)
        else:
            sentences = _read_conll(path)

        before = len(found)
        offset = found.documents[-1] + 1 if found.documents else 0
        for words, tags, document, lines in sentences:
            found.add(words, tags, offset + document, path, lines)
        if len(found) == before:
            raise InputError("no sentences in it", where=path, remedy="give a file of tagged words")
        _check_and_convert(found, before)
    return found


def _read_conll(path: str) -> Iterator[tuple[list[str], list[str], int, list[int]]]:
    """(words, tags, number of the document, lines) of each sentence."""
    words: list[str] = []
    tags: list[str] = []
    lines: list[int] = []
    document = 0
    used = False  # the present document has sentences
    columns = 0  # of the file's first word

    for number, line in chain(read_lines(path), [(0, "")]):  # the last sentence may have no blank line after it
        starts_document = line.startswith(DOCUMENT_START)
        if starts_document or not line.strip():
            if words:
                yield words, tags, document, lines
                words, tags, lines, used = [], [], [], True
            if starts_document and used:
                document, used = document + 1, False
            continue

        fields = _columns(line)
        if line.startswith("# ") and not words and not (len(fields) == (columns or 2) and _is_tag(fields[-1])):
            continue  # a comment before a sentence: `# text = …`, `# newdoc`, `# id …` with tabs; `# O` is a word
        if len(fields) < 2 or not fields[0] or not fields[-1]:
            what = "the line has no word and label"
            remedy = "give each line a word first and its label last; a blank line ends a sentence"
            raise InputError(what, where=path, line=number, remedy=remedy)
        if columns and len(fields) != columns:
            what = f"{len(fields)} columns instead of {columns}"
            raise InputError(what, where=path, line=number, remedy="correct the line")

        columns = len(fields)
        words.append(fields[0])
        tags.append(fields[-1])
        lines.append(number)


def _is_tag(text: str) -> bool:
    try:
        split_tag(text)
    except ValueError:
        return False
    return True


def _columns(line: str) -> list[str]:
    """Fields of a line. Not `str.split()`: a no-break space is part of a word."""
    if "\t" in line:
        return [column.strip(" ") for column in line.split("\t")]
    return [column for column in line.split(" ") if column]


def _read_json(
    path: str, names: Sequence[str] | None, notes: list[str]
) -> Iterator[tuple[list[str], list[str], int, list[int]]]:
    """(words, tags, number of the document, lines) of each row that has words; the others are counted in `notes`."""
    numbers: dict = {}  # of documents
    present = None
    empty = 0

    for line, row in read_rows(path):
        words = row.get(_column(row, WORD_COLUMNS, path, line))
        tags = row.get(_column(row, TAG_COLUMNS, path, line))
        words, tags = _checked_row(words, tags, names, path, line)
        if not words:
            empty += 1
            continue

        document = next((json.dumps(row[name]) for name in DOCUMENT_COLUMNS if name in row), None)
        if document in numbers and document != present:
            what = f"document {document} was left and comes again"
            raise InputError(what, where=path, line=line, remedy="put the sentences of a document after each other")
        present = document
        yield words, tags, numbers.setdefault(document, len(numbers)), [line] * len(words)

    if empty:
        notes.append(f"{path}: {empty:,} rows have no words and are left out")


def _column(row: dict, usual: tuple[str, ...], path: str, line: int) -> str:
    for name in usual:
        if name in row:
            return name
    near = did_you_mean(usual[0], row)
    what = f"the row has no {usual[0]!r}"
    raise InputError(what, where=path, line=line, remedy=f"{near}its columns: {', '.join(map(str, row))}")


def _checked_row(words, tags, names: Sequence[str] | None, path: str, line: int) -> tuple[list[str], list[str]]:
    """Words and tag names of a JSON row.

    Raises:
        InputError: no lists of equal length, words that are no strings, numbers as tags without names for them.
    """
    if not isinstance(words, list) or not isinstance(tags, list) or not all(isinstance(w, str) for w in words):
        what = "tokens and ner_tags are not lists of words and labels"
        raise InputError(what, where=path, line=line, remedy=_REMEDY)
    if len(words) != len(tags):
        raise InputError(f"{len(words)} tokens and {len(tags)} ner_tags", where=path, line=line, remedy=_REMEDY)

    named = [_tag_name(tag, names) for tag in tags]
    for tag, name in zip(tags, named, strict=True):
        if name is None:
            what = f"label {json.dumps(tag)} has no name"
            remedy = "write names such as B-person, or list them in the order of the numbers: --tag_names O B-person …"
            raise InputError(what, where=path, line=line, remedy=remedy)
    return [whole_text(word) for word in words], cast(list[str], named)


def _tag_name(tag, names: Sequence[str] | None) -> str | None:
    if isinstance(tag, str):
        return tag
    numbered = isinstance(tag, int) and not isinstance(tag, bool) and names is not None and 0 <= tag < len(names)
    return names[tag] if numbered and names is not None else None


# ---- schemes


def _check_and_convert(rows: TaggedSentences, begin: int) -> None:
    """Checks the tags of the sentences from `begin` on, which are one file, and turns IOB1 into IOB2."""
    for sentence in range(begin, len(rows)):
        for word, tag in enumerate(rows.tags[sentence]):
            try:
                split_tag(tag)
            except ValueError as error:
                where, line = rows.place(sentence, word)
                raise InputError(str(error), where=where, line=line, remedy=_REMEDY) from None

    tags = rows.tags[begin:]
    where = rows.files[begin]
    inside = sum(map(begins_with_inside, tags))
    if inside and is_iob1(tags):
        rows.tags[begin:] = [to_iob2(sentence) for sentence in tags]
        rows.notes.append(f"{where}: IOB1 labels, turned into IOB2: {inside:,} entities that begin with I- get B-")
    elif inside:
        rows.notes.append(f"{where}: {inside:,} entities begin with I-, which is read as conlleval does")


# ---- Hub


def read_tagged_hub(name: str, config: str | None) -> dict[str, TaggedSentences]:
    """The splits train, validation and test, as far as they exist, of a tagged Hub data set or a folder of its files.

    Raises:
        InputError: it cannot be loaded, has no columns of words and tags, or a split has no words.
    """
    splits = load_hub(name, config)
    wanted = [split for split in ("train", "validation", "test") if split in splits]
    return {split: _read_dataset(splits[split], f"{name} ({split})") for split in wanted}


def _read_dataset(rows: datasets.Dataset, where: str) -> TaggedSentences:
    columns = dict.fromkeys(rows.column_names)
    word_column = _column(columns, WORD_COLUMNS, where, 1)
    tag_column = _column(columns, TAG_COLUMNS, where, 1)
    feature: Any = getattr(rows.features[tag_column], "feature", None)
    names = feature.names if isinstance(feature, datasets.ClassLabel) else None
    document_column = next((column for column in DOCUMENT_COLUMNS if column in columns), None)

    found = TaggedSentences()
    previous, document = None, -1
    for number, row in enumerate(rows, 1):
        row = cast(dict, row)
        words, tags = _checked_row(list(row[word_column]), list(row[tag_column]), names, where, number)
        present = row[document_column] if document_column else None
        if document < 0 or present != previous:
            previous, document = present, document + 1
        if words:
            found.add(words, tags, document, where, [])
    if not len(found):
        raise InputError("no sentences in it", where=where, remedy="give --train_file")
    if empty := len(rows) - len(found):
        found.notes.append(f"{where}: {empty:,} rows have no words and are left out")
    _check_and_convert(found, 0)
    return found


# ---- labels


def label_names(tags: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Label names by id: `O`, then the others by type, `B-` before `I-`."""
    found = {tag for sentence in tags for tag in sentence}
    return tuple(sorted(found, key=lambda tag: (tag != "O", tag.partition("-")[2], tag)))


def check_labels(rows: TaggedSentences, labels: tuple[str, ...]) -> None:
    """Refuses a label that training does not have.

    Raises:
        InputError: with file and line of the first one.
    """
    known = set(labels)
    for sentence, tags in enumerate(rows.tags):
        for word, tag in enumerate(tags):
            if tag not in known:
                where, line = rows.place(sentence, word)
                near = did_you_mean(tag, labels) or f"the labels there: {', '.join(labels[:10])}; "
                remedy = f"{near}correct it or remove the sentence"
                raise InputError(f"label {tag!r} is not in the training rows", where=where, line=line, remedy=remedy)


# ---- writing


def write_tagged(path: Path, words: Sequence[Sequence[str]], *columns: Sequence[Sequence[str]]) -> None:
    """Writes a CoNLL file: the word and further columns, separated by tabs, a blank line after each sentence.

    A space, tab or line end within a word is written as `_`, so that each line has the same columns for any reader.
    """
    lines: list[str] = []
    for sentence in zip(words, *columns, strict=True):
        first = [re.sub(r"[ \t\r\n]", "_", word) or "_" for word in sentence[0]]
        lines += ["\t".join(fields) for fields in zip(first, *sentence[1:], strict=True)]
        lines.append("")
    write_durably(path, "\n".join([*lines, ""]) if lines else "")
