"""Reads and writes CoNLL files: one word per line, its labels in further columns, a blank line between sentences.

The first lines decide which columns are read, unless they are given:

    1  Anna   NNP  B-PER      a column that numbers the words is skipped: the next one has the words
    2  sings  VBZ  O          the last column of entity labels is read (of two with the same types, the first)

Without entity labels the last column is read that is not the same in every line; of CoNLL-U the parts of speech.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bert_hf.config.files import write_durably
from bert_hf.console import logger
from bert_hf.data.text.readers import read_lines
from bert_hf.data.text.tables import Row
from bert_hf.errors import InputError
from bert_hf.finetuning.metrics.entities import is_tag, split_tag

DOCUMENT_START = "-DOCSTART-"
_FIRST_LINES = 1000
_CONLL_U, _PARTS_OF_SPEECH = 10, 3  # the number of its columns; UPOS
_NO_WORD = re.compile(r"\d+[-.]\d+")  # in place of a number, in CoNLL-U: a contraction, or a word that is not written


class Layout(NamedTuple):
    """How the lines of a CoNLL file are read.

    Attributes:
        tabs: tabs separate the columns, else spaces.
        width: number of columns.
        numbered: the first column numbers the words of each sentence.
        word, label: the columns that are read, from 0; of a file without labels `label` is -1.
        values: the labels in the first lines.
    """

    tabs: bool
    width: int
    numbered: bool
    word: int
    label: int
    values: frozenset[str]

    def is_comment(self, line: str) -> bool:
        """Return whether a line before a sentence is a comment: `# text = …`, `# newdoc`; `# O` is a word."""
        if line[:2] not in ("# ", "#\t"):
            return False
        fields = _fields(line, self.tabs)
        if len(fields) != self.width:
            return True
        return self.label >= 0 and not is_tag(fields[self.label]) and fields[self.label] not in self.values


# ---- columns


def find_layout(
    path: str, encoding: str | None = None, word: str | None = None, label: str | None = None
) -> Layout | None:
    """Return the layout of a file by its first lines; None where it has no line with a word.

    Args:
        word, label: numbers of the columns, from 1, as the user gives them; None: found.
    """
    head = [line for _, line in itertools.islice(read_lines(path, encoding), _FIRST_LINES)]
    lines = ["" if line.startswith(DOCUMENT_START) or not line.strip() else line for line in head]
    if any(line and not line.startswith("#") for line in lines):  # else each sentence is the word #
        lines = [line for line in lines if not line.startswith("#")]
    filled = list(filter(None, lines))
    tabs = 2 * sum("\t" in line for line in filled) > len(filled)

    rows = [_fields(line, tabs) if line else [] for line in lines]
    width = Counter(map(len, filter(None, rows))).most_common(1)[0][0] if filled else 0
    rows = [row for row in rows if not row or (len(row) == width and not _NO_WORD.fullmatch(row[0]))]
    columns = list(zip(*filter(None, rows), strict=True))
    if not columns:
        return None

    numbered = width > 1 and _numbers_words([row[0] if row else "" for row in rows])
    at_word = _given_column(word, width, path, "text")
    at_label = _given_column(label, width, path, "label")
    free = [number for number in range(int(numbered), width) if number != at_word]
    if at_label is None:
        enough = len(free) > (at_word is None)
        at_label = _label_column({number: columns[number] for number in free}, width) if enough else -1
    if at_word is None:
        at_word = next((number for number in free if number != at_label), 0)
    values = frozenset(columns[at_label]) if at_label >= 0 else frozenset()
    return Layout(tabs, width, numbered, at_word, at_label, values)


def _fields(line: str, tabs: bool) -> list[str]:
    """Return the fields of a line. Not `str.split()`: a no-break space is part of a word."""
    if tabs:
        return [field.strip(" ") for field in line.split("\t")]
    return [field for field in line.split(" ") if field]


def _given_column(number: str | None, width: int, path: str, name: str) -> int | None:
    if number is None:
        return None
    if not number.isdecimal() or int(number) not in range(1, width + 1):
        remedy = f"pass a number from 1 to {width} as --{name}_column"
        raise InputError(f"no column {number!r}", where=path, remedy=remedy)
    return int(number) - 1


def _numbers_words(column: Sequence[str]) -> bool:
    """Return whether the values are 0, 1, 2, … or 1, 2, 3, … in each sentence; "" separates sentences.

    The numbers may go on in the next sentence, and a sentence may begin without a blank line before it.
    """
    steps = 0
    previous = None
    for value in column:
        if value and not value.isdecimal():
            return False
        number = int(value) if value else None
        if number is not None and previous is not None:
            if number != previous + 1 and not (number in (0, 1) and number < previous):
                return False
            steps += 1
        previous = number
    return steps > 0


def _label_column(columns: dict[int, Sequence[str]], width: int) -> int:
    """Return the column of the labels, of several."""
    tagged = [number for number, values in columns.items() if all(map(is_tag, values))]
    kinds = {number: {split_tag(tag)[1] for tag in columns[number]} - {""} for number in tagged}
    with_entities = [number for number in tagged if kinds[number]]
    if with_entities:
        return next(number for number in with_entities if kinds[number] & kinds[with_entities[-1]])
    if tagged:
        return tagged[-1]
    if width == _CONLL_U and _PARTS_OF_SPEECH in columns:
        return _PARTS_OF_SPEECH
    varied = [number for number, values in columns.items() if len(set(values)) > 1]
    return [*columns, *varied][-1]


# ---- sentences


def read_conll(path: str, layout: Layout, encoding: str | None = None) -> Iterator[Row]:
    """Yield a row of `tokens` and `tags` for each sentence; without labels of `tokens`."""
    if layout.width > 2 or layout.word or layout.label != 1:
        label = f", label: column {layout.label + 1}" if layout.label >= 0 else ", no labels"
        logger.info(f"{path}: word: column {layout.word + 1}{label}")

    names = ("tokens", "tags") if layout.label >= 0 else ("tokens",)
    read: list[tuple[str, ...]] = []
    begin, document, number_before = 0, 0, -1
    used = False  # the present document has sentences

    # The last sentence may have no blank line after it
    for number, line in itertools.chain(read_lines(path, encoding), [(0, "")]):
        starts_document = line.startswith(DOCUMENT_START)
        if not starts_document and not read and layout.is_comment(line):
            continue
        fields = [] if starts_document or not line.strip() else _checked(layout, line, path, number)
        if fields and layout.numbered and _NO_WORD.fullmatch(fields[0]):
            continue

        begins_again = bool(fields) and layout.numbered and int(fields[0]) <= number_before
        if read and (not fields or begins_again):
            yield Row(dict(zip(names, map(list, zip(*read, strict=True)), strict=True)), path, begin, str(document))
            read, used = [], True
        if starts_document and used:
            document, used = document + 1, False
        if fields:
            begin = begin if read else number
            number_before = int(fields[0]) if layout.numbered else -1
            read.append((fields[layout.word], fields[layout.label])[: len(names)])


def _checked(layout: Layout, line: str, path: str, number: int) -> list[str]:
    """Return the fields of a line, which have to be those of the file."""
    fields = _fields(line, layout.tabs)
    what = ""
    if len(fields) != layout.width:
        what = f"{len(fields)} columns instead of {layout.width}"
    elif layout.numbered and not fields[0].isdecimal() and not _NO_WORD.fullmatch(fields[0]):
        what = f"{fields[0]!r} in the column that numbers the words"
    elif not fields[layout.word] or (layout.label >= 0 and not fields[layout.label]):
        what = f"the {'label' if fields[layout.word] else 'word'} is blank"
    if what:
        raise InputError(what, where=path, line=number, remedy="fix the line; a blank line ends a sentence")
    return fields


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
