"""Reads CoNLL files: one word per line, its labels in further columns, a blank line between sentences.

The first lines decide which columns are read, unless they are given:

    1  Anna   NNP  B-PER      the column that numbers the words is skipped: the next one has the words
    2  sings  VBZ  O          the last column of entity labels is read (of two with the same types, the first)

A column with few values, such as the name of a document, has no words. Without entity labels the last column is read
that is not the same in every line; of CoNLL-U the parts of speech.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bert_hf.console import logger
from bert_hf.data.text.readers import read_lines
from bert_hf.data.text.tables import Row
from bert_hf.errors import InputError
from bert_hf.finetuning.metrics.entities import is_tag, split_tag

DOCUMENT_START = "-DOCSTART-"
_FIRST_LINES = 20_000  # labels of entities may be rare
_CONLL_U, _PARTS_OF_SPEECH = 10, 3  # the number of its columns; UPOS
_NO_WORD = re.compile(r"\d+[-.]\d+")  # in place of a number, in CoNLL-U: a contraction, or a word that is not written


class Layout(NamedTuple):
    """How the lines of a CoNLL file are read; columns are counted from 0, -1: there is none."""

    tabs: bool  # separate the columns, else spaces
    width: int  # number of columns
    number: int  # column of the numbers of the words in each sentence
    word: int
    label: int
    label_values: frozenset[str]  # in the first lines
    prefix: str = ""  # of every word: its language, as in WikiANN's `en:Anna`


class Word(NamedTuple):
    """A word of a file, its label, and where it is."""

    word: str
    label: str
    line: int | None
    document: str


def find_layout(
    path: str, encoding: str | None = None, word_column: str | None = None, label_column: str | None = None
) -> Layout | None:
    """Return the layout of a file by its first lines; None where it has no line with a word.

    The user may give the numbers of both columns, from 1; one that the file does not have is an error.
    """
    lines = _first_lines(path, encoding)
    filled = list(filter(None, lines))
    tabs = 2 * sum("\t" in line for line in filled) > len(filled)  # in most lines

    # Lines with an unusual number of columns are reported later, with their line number
    rows = [_fields(line, tabs) if line else [] for line in lines]
    width = Counter(map(len, filter(None, rows))).most_common(1)[0][0] if filled else 0
    rows = [row for row in rows if not row or (len(row) == width and not _NO_WORD.fullmatch(row[0]))]
    columns = list(zip(*filter(None, rows), strict=True))
    if not columns:
        return None

    at_number = -1
    if width > 1:  # a single column holds words, not their numbers
        with_gaps = ([row[at] if row else "" for row in rows] for at in range(width))  # "" between sentences
        at_number = next((at for at, column in enumerate(with_gaps) if _is_numbering(column)), -1)
    at_word = _given_column(word_column, width, path, "text")
    at_label = _given_column(label_column, width, path, "label")

    # The words are among the other columns, unless the user gave theirs
    others = {at: columns[at] for at in range(width) if at not in (at_number, at_word)}
    if at_label is None:
        has_labels = len(others) > (1 if at_word is None else 0)
        at_label = _label_column(others, width, has_words=at_word is None) if has_labels else -1
    if at_word is None:
        at_word = _word_column({at: column for at, column in others.items() if at != at_label})
    labels = frozenset(columns[at_label]) if at_label >= 0 else frozenset()
    language = re.match(r"[a-z-]+:(?=.)", columns[at_word][0])
    prefix = language[0] if language and all(word.startswith(language[0]) for word in columns[at_word]) else ""
    return Layout(tabs, width, at_number, at_word, at_label, labels, prefix)


def _first_lines(path: str, encoding: str | None) -> list[str]:
    """Return the first lines without comments; "" for a blank line and for the start of a document."""
    first_lines = [line for _, line in itertools.islice(read_lines(path, encoding), _FIRST_LINES)]
    lines = ["" if line.startswith(DOCUMENT_START) or not line.strip() else line for line in first_lines]
    words_and_blanks = [line for line in lines if not line.startswith("#")]
    return words_and_blanks if any(words_and_blanks) else lines  # else # is the only word, no comment


def _fields(line: str, tabs: bool) -> list[str]:
    """Return the fields of a line. Not `str.split()`: a no-break space is part of a word."""
    if tabs:
        return [field.strip(" ") for field in line.split("\t")]
    return [field for field in line.split(" ") if field]


def _given_column(number: str | None, width: int, path: str, name: str) -> int | None:
    """Return the index of the column that --`name`_column gives by its number, from 1; None if it is not given."""
    if number is None:
        return None
    if not number.isdecimal() or int(number) not in range(1, width + 1):
        remedy = f"pass a number from 1 to {width} as --{name}_column"
        raise InputError(f"no column {number!r}", where=path, remedy=remedy)
    return int(number) - 1


def _is_numbering(column: Sequence[str]) -> bool:
    """Return whether a column numbers the words: 0, 1, 2, … or 1, 2, 3, … in each sentence; "" separates sentences.

    The numbers may go on in the next sentence, a sentence may begin without a blank line before it, and a few
    numbers may be missing or damaged.
    """
    steps = pairs = 0
    for before, after in itertools.pairwise(column):
        if before and after:
            are_numbers = before.isdecimal() and after.isdecimal()
            steps += are_numbers and (int(after) == int(before) + 1 or int(after) < min(2, int(before)))
            pairs += 1
    return steps > 10 * (pairs - steps)


def _word_column(columns: Mapping[int, Sequence[str]]) -> int:
    """Return the first column with over a fifth of the most varied one's distinct values; numbers are no words."""
    distinct = {at: len(set(column)) for at, column in columns.items() if not all(map(str.isdecimal, column))}
    return next((at for at, count in distinct.items() if 5 * count > max(distinct.values())), 0)


def _label_column(columns: Mapping[int, Sequence[str]], width: int, has_words: bool) -> int:
    """Return the column of entities, else of tags, of CoNLL-U's parts of speech, or the last one that varies."""
    tagged = [at for at, values in columns.items() if all(map(is_tag, values))]
    types = {at: {split_tag(tag)[1] for tag in columns[at]} - {""} for at in tagged}
    with_entities = [at for at in tagged if types[at]]
    if with_entities:  # the last one, or the first that shares a type with it
        return next(at for at in with_entities if types[at] & types[with_entities[-1]])
    if tagged:
        return tagged[-1]
    if width == _CONLL_U and _PARTS_OF_SPEECH in columns:
        return _PARTS_OF_SPEECH
    varied = [at for at, values in columns.items() if len(set(values)) > 1]
    candidates = varied[1:] if has_words else varied  # the first one that varies holds the words
    return candidates[-1] if candidates else list(columns)[-1]


def read_conll(path: str, layout: Layout, encoding: str | None = None) -> Iterator[Row]:
    """Yield a row of `tokens` and, with a column of labels, `tags` for each sentence; log the columns."""
    if layout.width > 2 or layout.word or layout.label != 1:  # not simply a word and its label
        label = f", label: column {layout.label + 1}" if layout.label >= 0 else ", no labels"
        logger.info(f"{path}: word: column {layout.word + 1}{label}")

    yield from join_words(_words_of_file(path, layout, encoding), path, layout.label >= 0)


def join_words(words: Iterable[Word | None], where: str, labelled: bool) -> Iterator[Row]:
    """Yield a row of `tokens` and, if they are labelled, `tags` for each sentence; a None in `words` ends one."""
    for ends, group in itertools.groupby(words, key=lambda word: word is None):
        if not ends:
            sentence = [word for word in group if word is not None]
            values = {"tokens": [word.word for word in sentence]}
            if labelled:
                values["tags"] = [word.label for word in sentence]
            yield Row(values, where, sentence[0].line, sentence[0].document)


def _words_of_file(path: str, layout: Layout, encoding: str | None) -> Iterator[Word | None]:
    """Yield the words of a file, and None where a sentence ends; without labels the last field is yielded as one."""
    documents, previous_number = 0, 0
    begins = True  # a sentence; comments are before it
    for number, line in read_lines(path, encoding):
        fields = _fields(line, layout.tabs)
        if line.startswith(DOCUMENT_START) or not line.strip():
            documents += line.startswith(DOCUMENT_START)
            begins = True
            yield None
        elif not (begins and _is_comment(line, fields, layout)):
            _check_fields(layout, fields, path, number)
            word_number = fields[layout.number] if layout.number >= 0 else ""
            if _NO_WORD.fullmatch(word_number):
                continue
            if word_number and int(word_number) <= previous_number:  # a sentence without a blank line before it
                yield None
            previous_number = int(word_number or 0)
            begins = False
            yield Word(fields[layout.word].removeprefix(layout.prefix), fields[layout.label], number, str(documents))


def _is_comment(line: str, fields: list[str], layout: Layout) -> bool:
    """Return whether a line before a sentence is a comment: `# text = …`, `#begin document`; `# O` is a word."""
    if line[:2] not in ("# ", "#\t"):
        return line.startswith(("#begin ", "#end "))
    label = fields[layout.label] if len(fields) == layout.width else None  # the O of `# O`
    return label is None or (layout.label >= 0 and not is_tag(label) and label not in layout.label_values)


def _check_fields(layout: Layout, fields: list[str], path: str, line: int) -> None:
    """Check that a line has the columns of the file, and that none of those that are read is blank."""
    if len(fields) != layout.width:
        what = f"{len(fields)} columns instead of {layout.width}"
    elif layout.number >= 0 and not re.fullmatch(f"[0-9]+|{_NO_WORD.pattern}", fields[layout.number]):
        what = f"{fields[layout.number]!r} in the column that numbers the words"
    elif not fields[layout.word] or (layout.label >= 0 and not fields[layout.label]):
        what = f"the {'label' if fields[layout.word] else 'word'} is blank"
    else:
        return
    raise InputError(what, where=path, line=line, remedy="fix the line; a blank line ends a sentence")
