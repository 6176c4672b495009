"""Reads and writes sentences of tagged words: CoNLL files, rows of JSON lines or Parquet, Hub datasets."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert_hf.config.files import write_durably
from bert_hf.console import logger
from bert_hf.data.text.input_files import expand, kind_of
from bert_hf.data.text.readers import read_lines
from bert_hf.data.text.sources import hub_rows
from bert_hf.data.text.tables import Row, file_rows
from bert_hf.errors import InputError, did_you_mean, mask_secrets
from bert_hf.finetuning.labelled_texts import unknown_label
from bert_hf.finetuning.tagging.entities import is_iob1, is_tag, to_iob2

DOCUMENT_START = "-DOCSTART-"
WORD_COLUMNS = ("tokens", "words")
TAG_COLUMNS = ("ner_tags", "tags", "labels")
DOCUMENT_COLUMNS = ("document_id", "doc_id", "document")
_REMEDY = "fix or remove it"


@dataclass
class TaggedSentences:
    """Sentences in the order of the data.

    Attributes:
        words, tags: of each sentence, of equal length.
        documents: the number of each sentence's document; sentences of a document follow each other.
        files: the file of each sentence, or the Hub dataset.
        lines: the line of each word (of a row: of its sentence); empty for a Hub dataset.
    """

    words: list[list[str]] = field(default_factory=list)
    tags: list[list[str]] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    lines: list[list[int]] = field(default_factory=list)

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
        """Some of the sentences, by ascending number; a document ends where the next sentence is not among them.

        Of sentences 0 to 4, of the documents 0 0 0 0 1, 0 1 3 4 are of the documents 0 0 3 4 (their first sentences).
        """
        subset = TaggedSentences()
        document, previous = -1, -2
        for row in map(int, rows):
            if row != previous + 1 or self.documents[row] != self.documents[previous]:
                document = row
            subset.add(self.words[row], self.tags[row], document, self.files[row], self.lines[row])
            previous = row
        return subset

    def place(self, sentence: int, word: int) -> tuple[str, int | None]:
        """(file, line) of a word, for an error line; the line is None where the data are not from a file."""
        lines = self.lines[sentence]
        return self.files[sentence], lines[word] if lines else None


# ---- files


_Sentence = tuple[list[str], list[str], int, list[int]]  # words, tags, number of the document, line of each word


def read_tagged(files: list[str]) -> TaggedSentences:
    """Reads CoNLL files (.conll, .txt, .tsv, .bio, …) and rows (.jsonl, .json, .parquet), also .gz or .xz.

    CoNLL: one word per line, in two or more columns (the word first, its tag last), which tabs separate where the line
    has one, else spaces; a blank line ends a sentence, a line that begins with `-DOCSTART-` starts a document. Rows:
    one sentence each, `tokens` and `ner_tags`, which are names; optionally `document_id`.
    """
    tagged = TaggedSentences()
    for path in expand(files):
        is_table = kind_of(path) in (".jsonl", ".json", ".parquet")
        _add(tagged, path, _sentences_of_rows(file_rows([path])) if is_table else _read_conll(path))
    return tagged


def read_tagged_hub(name: Any, config: str | None) -> dict[str, TaggedSentences]:
    """The splits train, validation and test, those that exist, of a tagged Hub dataset or a folder of its files."""
    parts = {}
    for split, rows in hub_rows(name, config).items():
        parts[split] = TaggedSentences()
        _add(parts[split], rows[0].where, _sentences_of_rows(rows))
    return parts


def _add(tagged: TaggedSentences, where: str, sentences: Iterator[_Sentence]) -> None:
    """Appends the sentences of a file (or Hub split) and checks their tags."""
    begin, where = len(tagged), mask_secrets(where)
    offset = tagged.documents[-1] + 1 if begin else 0

    for words, tags, document, lines in sentences:
        for word, tag in enumerate(tags):
            if not is_tag(tag):
                what = f"label {tag!r} is not O, B-TYPE, I-TYPE, E-TYPE or S-TYPE"
                line = lines[word] if lines else None
                raise InputError(what, where=where, line=line, remedy=_REMEDY)
        tagged.add(words, tags, offset + document, where, lines)

    if len(tagged) == begin:
        raise InputError("contains no sentences", where=where, remedy="give a file of tagged words")


def unify_schemes(parts: dict[str, TaggedSentences]) -> None:
    """Turns IOB1 into IOB2, if the tags of all parts together follow IOB1: one decision for training and metrics."""
    if is_iob1(tags for rows in parts.values() for tags in rows.tags):
        logger.info("IOB1 labels, turned into IOB2: every entity begins with B-")
        for rows in parts.values():
            rows.tags = [to_iob2(tags) for tags in rows.tags]


def _read_conll(path: str) -> Iterator[_Sentence]:
    words: list[str] = []
    tags: list[str] = []
    lines: list[int] = []
    document = 0
    used = False  # the present document has sentences
    columns = 0  # of the file's first word

    # The last sentence may have no blank line after it
    for number, line in itertools.chain(read_lines(path), [(0, "")]):
        starts_document = line.startswith(DOCUMENT_START)
        if starts_document or not line.strip():
            if words:
                yield words, tags, document, lines
                words, tags, lines, used = [], [], [], True
            if starts_document and used:
                document, used = document + 1, False
            continue

        fields = _columns(line)
        if line.startswith("# ") and not words and not (len(fields) == (columns or 2) and is_tag(fields[-1])):
            continue  # a comment before a sentence: `# text = …`, `# newdoc`, `# id …` with tabs; `# O` is a word
        if len(fields) < 2 or len(fields) != (columns or len(fields)) or not fields[0] or not fields[-1]:
            what = f"{len(fields)} columns instead of {columns or 2}: a word first, its label last"
            raise InputError(what, where=path, line=number, remedy="fix the line; a blank line ends a sentence")

        columns = len(fields)
        words.append(fields[0])
        tags.append(fields[-1])
        lines.append(number)


def _columns(line: str) -> list[str]:
    """Fields of a line. Not `str.split()`: a no-break space is part of a word."""
    if "\t" in line:
        return [column.strip(" ") for column in line.split("\t")]
    return [column for column in line.split(" ") if column]


# ---- rows


def _sentences_of_rows(rows: list[Row]) -> Iterator[_Sentence]:
    """The sentences of rows that have words; how many have none is logged."""
    word_column = _column(rows[0], WORD_COLUMNS)
    tag_column = _column(rows[0], TAG_COLUMNS)
    document_column = next((column for column in DOCUMENT_COLUMNS if column in rows[0].values), "")

    document, empty = 0, 0
    previous = rows[0].values.get(document_column)
    for row in rows:
        present = row.values.get(document_column)
        document, previous = document + (present != previous), present
        words, tags = _words_and_tags(row, word_column, tag_column)
        empty += not words
        if words:
            yield words, tags, document, [] if row.line is None else [row.line] * len(words)
    if empty:
        logger.info(f"{rows[0].where}: {empty:,} rows have no words and are left out")


def _column(row: Row, usual: tuple[str, ...]) -> str:
    for name in usual:
        if name in row.values:
            return name
    remedy = f"{did_you_mean(usual[0], row.values)}its columns: {', '.join(row.values)}"
    raise row.error(f"the row has no {usual[0]!r}", remedy)


def _words_and_tags(row: Row, word_column: str, tag_column: str) -> tuple[list[str], list[str]]:
    """Words and tag names of a row."""
    words, tags = row.values.get(word_column) or [], row.values.get(tag_column) or []
    are_lists = isinstance(words, list) and isinstance(tags, list) and all(isinstance(word, str) for word in words)
    if not are_lists or len(words) != len(tags):
        what = f"{word_column} and {tag_column} are not lists of words and labels of the same length"
        raise row.error(what, _REMEDY)

    for tag in tags:
        if not isinstance(tag, str):
            raise row.error(f"label {tag!r} has no name", "write names such as O and B-person")
    return words, [" ".join(tag.split()) for tag in tags]  # a label on one line


# ---- labels


def label_names(tags: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Label names by id: `O`, then the others by type, `B-` before `I-`."""
    tags_in_data = {tag for sentence in tags for tag in sentence}
    return tuple(sorted(tags_in_data, key=lambda tag: (tag != "O", tag.partition("-")[2], tag)))


def check_labels(rows: TaggedSentences, labels: tuple[str, ...]) -> None:
    """Checks that the training rows have every label."""
    training_labels = set(labels)
    for sentence, tags in enumerate(rows.tags):
        for word, tag in enumerate(tags):
            if tag not in training_labels:
                where, line = rows.place(sentence, word)
                raise unknown_label(tag, labels, where, line)


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
