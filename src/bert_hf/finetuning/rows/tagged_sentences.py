"""Reads and writes sentences of labelled words: CoNLL files, rows of tables or Hub datasets, plain text."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bert_hf.config.files import write_durably
from bert_hf.console import logger
from bert_hf.data.text.input_files import kind_of
from bert_hf.data.text.readers import read_lines
from bert_hf.data.text.tables import Row, choose_column, list_cell, read_rows, text_of
from bert_hf.errors import InputError, did_you_mean, mask_secrets
from bert_hf.finetuning.metrics.entities import is_iob1, is_tag, to_iob2
from bert_hf.finetuning.rows.labelled_texts import unknown_label

DOCUMENT_START = "-DOCSTART-"
WORD_COLUMNS = ("tokens", "words")
TAG_COLUMNS = ("ner_tags", "tags", "labels")
DOCUMENT_COLUMNS = ("document_id", "doc_id", "document")
_REMEDY = "fix or remove it"
_CONLL = (".conll", ".bio", ".iob")
_FIRST_LINES = 50  # of a text, by which it is known whether each line is a word

Splitter = Callable[[str], tuple[list[str], list[tuple[int, int]]]]


@dataclass
class TaggedSentences:
    """Sentences of words with a tag each, in the order of the data; entry n of each list belongs to sentence n.

        Anna  B-person        words      [["Anna", "sleeps"], …]
        sleeps  O             tags       [["B-person", "O"], …]
                              documents  [0, …]
        …                     places     [("train.conll", 1, True), …]

    Attributes:
        words: the words of each sentence.
        tags: a tag for each word; None: the sentences have no labels.
        documents: the number of each sentence's document; sentences of a document follow each other.
        places: file (or Hub dataset) and line of each sentence, and whether each word has a line of its own.
        spans: begin and end of each word in characters, if the sentence was read as a text; else [].
    """

    words: list[list[str]] = field(default_factory=list)
    tags: list[list[str]] | None = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    places: list[tuple[str, int | None, bool]] = field(default_factory=list)
    spans: list[list[tuple[int, int]]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.words)

    def labels(self) -> list[list[str]]:
        """Return the labels of the words; an error where the sentences have none."""
        if self.tags is None:
            remedy = "give CoNLL files, or rows of tokens and ner_tags"
            raise InputError("the rows have no labels", where=self.places[0][0], remedy=remedy)
        return self.tags

    def take(self, rows: Iterable[int] | np.ndarray) -> "TaggedSentences":
        """Return some of the sentences, by ascending number; a document ends where the next sentence is missing.

        Of sentences 0 to 4, of the documents 0 0 0 0 1, 0 1 3 4 are of the documents 0 0 3 4 (their first sentences).
        """
        subset = TaggedSentences(tags=None if self.tags is None else [])
        document, previous = -1, -2
        for row in map(int, rows):
            if row != previous + 1 or self.documents[row] != self.documents[previous]:
                document = row
            subset.words.append(self.words[row])
            subset.documents.append(document)
            subset.places.append(self.places[row])
            subset.spans.append(self.spans[row])
            if self.tags is not None and subset.tags is not None:
                subset.tags.append(self.tags[row])
            previous = row
        return subset

    def place(self, sentence: int, word: int) -> tuple[str, int | None]:
        """Return file and line of a word, for an error line; the line is None where it is not known."""
        where, line, by_word = self.places[sentence]
        return where, line + word if by_word and line is not None else line


# ---- files


def read_tagged_file(
    path: str, labels: Sequence[str] = (), encoding: str | None = None, separator: str | None = None
) -> Iterator[Row]:
    """Yield a sentence per row: `tokens` and `tags` of CoNLL files, `text` of plain text, the columns of a table.

    CoNLL: one word per line, in two or more columns (the word first, its tag last), which tabs separate where the line
    has one, else spaces; a blank line ends a sentence, a line that begins with `-DOCSTART-` starts a document.

    Args:
        labels: of a finished model, which also reads text without labels: then a file with another ending is
            CoNLL if its first line ends with one of them; else each line is a text, or a word if all lines are.
    """
    kind = kind_of(path)
    if kind in (".jsonl", ".json", ".parquet", ".csv"):
        yield from read_rows(path, encoding, separator=separator)
    elif not labels or kind in _CONLL or _ends_with_label(path, labels, encoding):
        yield from _read_conll(path, encoding)
    elif kind == ".tsv":
        yield from read_rows(path, encoding, separator=separator)
    elif _has_word_per_line(path, encoding):
        yield from _read_conll(path, encoding, labelled=False)
    else:
        yield from (Row({"text": line}, path, number) for number, line in read_lines(path, encoding))


def _ends_with_label(path: str, labels: Sequence[str], encoding: str | None) -> bool:
    lines = (line for _, line in read_lines(path, encoding))
    first = next((line for line in lines if line.strip() and not line.startswith((DOCUMENT_START, "# "))), "")
    columns = first.split()
    return len(columns) > 1 and columns[-1] in labels


def _has_word_per_line(path: str, encoding: str | None) -> bool:
    """Return whether the first lines are single words, and sentences of two or more of them end with a blank line."""
    first = [line.split() for _, line in itertools.islice(read_lines(path, encoding), _FIRST_LINES)]
    words = [len(line) for line in first]
    blank = words.index(0) if 0 in words else 0
    return max(words, default=0) == 1 and (blank > 1 or any(ends == ["."] for ends in first))


def _read_conll(path: str, encoding: str | None, labelled: bool = True) -> Iterator[Row]:
    words: list[str] = []
    tags: list[str] = []
    begin = 0
    document = 0
    used = False  # the present document has sentences
    columns = 0 if labelled else 1  # of the file's first word

    # The last sentence may have no blank line after it
    for number, line in itertools.chain(read_lines(path, encoding), [(0, "")]):
        starts_document = line.startswith(DOCUMENT_START)
        if starts_document or not line.strip():
            if words:
                values = {"tokens": words, "tags": tags} if labelled else {"tokens": words}
                yield Row(values, path, begin, str(document))
                words, tags, used = [], [], True
            if starts_document and used:
                document, used = document + 1, False
            continue

        fields = _columns(line)
        if line.startswith("# ") and not words and not (len(fields) == (columns or 2) and is_tag(fields[-1])):
            continue  # a comment before a sentence: `# text = …`, `# newdoc`, `# id …` with tabs; `# O` is a word
        if len(fields) < 1 + labelled or len(fields) != (columns or len(fields)) or not fields[0] or not fields[-1]:
            what = f"{len(fields)} columns instead of {columns or 2}: a word first, its label last"
            raise InputError(what, where=path, line=number, remedy="fix the line; a blank line ends a sentence")

        columns = len(fields)
        begin = begin if words else number
        words.append(fields[0])
        tags.append(fields[-1])


def _columns(line: str) -> list[str]:
    """Return the fields of a line. Not `str.split()`: a no-break space is part of a word."""
    if "\t" in line:
        return [column.strip(" ") for column in line.split("\t")]
    return [column for column in line.split(" ") if column]


# ---- rows


def tagged_sentences(rows: Sequence[Row], labelled: bool, text_column: str | None, split: Splitter) -> TaggedSentences:
    """Return the sentences of rows; of labelled ones those that have words, and how many have none is logged.

    Args:
        text_column: of the words, or of a text; None: a usual name.
        split: cuts a text into words, and gives their begin and end in characters.
    """
    sentences = TaggedSentences(tags=[] if labelled else None)
    word_column = text_column or next((name for name in WORD_COLUMNS if name in rows[0].values), None)
    tag_column = _column(rows[0], TAG_COLUMNS) if labelled else None
    if word_column is None:
        word_column = _column(rows[0], WORD_COLUMNS) if labelled else choose_column(rows[0])
    document_column = next((name for name in DOCUMENT_COLUMNS if name in rows[0].values), "")

    numbers = itertools.count()
    document, previous = next(numbers), None
    empty = 0
    for row in rows:
        present = row.where, row.document, row.values.get(document_column)
        if previous is not None and present != previous:
            document = next(numbers)
        previous = present

        words, spans = _words(row, word_column, split)
        tags = _tags(row, tag_column, words) if tag_column is not None else []
        empty += not words
        if labelled and not words:
            continue
        sentences.words.append(words)
        sentences.documents.append(document)
        sentences.places.append((row.where, row.line, row.document is not None))
        sentences.spans.append(spans)
        if sentences.tags is not None:
            sentences.tags.append(tags)

    if labelled and empty:
        logger.info(f"{rows[0].where}: {empty:,} rows have no words and are left out")
    if not len(sentences):
        raise InputError("contains no sentences", where=rows[0].where, remedy="give a file of tagged words")
    _check_tags(sentences)
    return sentences


def unify_schemes(parts: Mapping[str, TaggedSentences]) -> None:
    """Turn IOB1 into IOB2, if the tags of all parts together follow IOB1: one decision for training and metrics."""
    if is_iob1(tags for rows in parts.values() for tags in rows.tags or ()):
        logger.info("IOB1 labels, turned into IOB2: every entity begins with B-")
        for rows in parts.values():
            rows.tags = [to_iob2(tags) for tags in rows.labels()]


def _check_tags(sentences: TaggedSentences) -> None:
    for number, tags in enumerate(sentences.tags or ()):
        for word, tag in enumerate(tags):
            if not is_tag(tag):
                what = f"label {tag!r} is not O, B-TYPE, I-TYPE, E-TYPE or S-TYPE"
                where, line = sentences.place(number, word)
                raise InputError(what, where=mask_secrets(where), line=line, remedy=_REMEDY)


def _column(row: Row, usual: tuple[str, ...]) -> str:
    for name in usual:
        if name in row.values:
            return name
    remedy = f"{did_you_mean(usual[0], row.values)}its columns: {', '.join(row.values)}"
    raise row.error(f"the row has no {usual[0]!r}", remedy)


def _words(row: Row, column: str, split: Splitter) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the words of a row, and their characters where they are cut out of a text."""
    value = row.values.get(column)
    words = list_cell(value)
    if words is None and isinstance(value, str):
        return split(text_of(row, column) or "")
    if (words is None and value is not None) or not all(isinstance(word, str) for word in words or ()):
        raise row.error(f"{column} is neither a list of words nor a text", _REMEDY)
    return words or [], []


def _tags(row: Row, column: str, words: list[str]) -> list[str]:
    """Return the names of the tags of a row."""
    tags = list_cell(row.values.get(column)) or []
    if len(words) != len(tags):
        what = f"{len(words)} words and {len(tags)} labels: lists of the same length are needed"
        raise row.error(what, _REMEDY)
    for tag in tags:
        if not isinstance(tag, str):
            raise row.error(f"label {tag!r} has no name", "write names such as O and B-person")
    return [" ".join(tag.split()) for tag in tags]  # a label on one line


# ---- labels


def label_names(tags: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the label names by id: `O`, then the others by type, `B-` before `I-`."""
    tags_in_data = {tag for sentence in tags for tag in sentence}
    return tuple(sorted(tags_in_data, key=lambda tag: (tag != "O", tag.partition("-")[2], tag)))


def check_labels(rows: TaggedSentences, labels: tuple[str, ...]) -> None:
    """Check that each label is one of these."""
    training_labels = set(labels)
    for sentence, tags in enumerate(rows.tags or ()):
        for word, tag in enumerate(tags):
            if tag not in training_labels:
                where, line = rows.place(sentence, word)
                raise unknown_label(tag, labels, where, line)


# ---- writing


def write_tagged(path: Path, words: Sequence[Sequence[str]], *columns: Sequence[Sequence[str]]) -> None:
    """Write a CoNLL file: the word and further columns, separated by tabs, a blank line after each sentence.

    A space, tab or line end within a word is written as `_`, so that each line has the same columns for any reader.
    """
    lines: list[str] = []
    for sentence in zip(words, *columns, strict=True):
        first = [re.sub(r"[ \t\r\n]", "_", word) or "_" for word in sentence[0]]
        lines += ["\t".join(fields) for fields in zip(first, *sentence[1:], strict=True)]
        lines.append("")
    write_durably(path, "\n".join([*lines, ""]) if lines else "")
