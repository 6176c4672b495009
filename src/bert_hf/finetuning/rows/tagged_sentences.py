"""Reads sentences of labelled words: CoNLL files, rows of tables or Hub datasets, plain text."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bert_hf.console import logger
from bert_hf.data.text.input_files import kind_of
from bert_hf.data.text.readers import read_lines
from bert_hf.data.text.tables import Row, choose_column, list_cell, read_rows, text_of, without_rejected
from bert_hf.errors import InputError, did_you_mean
from bert_hf.finetuning.metrics.entities import OUTSIDE, is_iob1, is_tag, to_iob2
from bert_hf.finetuning.rows.conll import Layout, Word, find_layout, join_words, read_conll
from bert_hf.finetuning.rows.labelled_texts import unknown_label_error

WORD_COLUMN = ("word", "token", "form")  # of tables with a row for each word
WORD_COLUMNS = ("tokens", "words", *WORD_COLUMN)
TAG_COLUMNS = ("ner_tags", "tags", "labels", "ner", "tag", "label", "entities", "spans", "pos_tags", "upos", "pos")
TEXT_COLUMNS = ("text", "data", "sentence", "content")
SENTENCE_COLUMNS = ("sentence #", "sentence_id", "sent_id", "sentence_idx", "sentence", "sent")
DOCUMENT_COLUMNS = ("document_id", "doc_id", "document")
_REMEDY = "fix or remove it"
_TABLES = (".jsonl", ".json", ".parquet", ".csv")
_CONLL = (".conll", ".conllu", ".bio", ".iob", ".iob2", ".bioes")
_FIRST_LINES = 50  # of a text, by which it is known whether each line is a word
_MOST_LABELS = 50  # and a third of the words: more different values are no labels

Splitter = Callable[[str], tuple[list[str], list[tuple[int, int]]]]


@dataclass
class TaggedSentences:
    """Sentences of words with a tag each, in the order of the data; entry n of each list belongs to sentence n."""

    words: list[list[str]] = field(default_factory=list)
    tags: list[list[str]] | None = field(default_factory=list)  # None: the sentences have no labels
    documents: list[int] = field(default_factory=list)  # numbers; sentences of a document follow each other
    # File (or Hub dataset) and first line of each sentence, and whether each of its words has a line of its own
    places: list[tuple[str, int | None, bool]] = field(default_factory=list)
    # Begin and end of each word in characters, if the sentence was read as a text; None if as a list of words
    spans: list[list[tuple[int, int]] | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.words)

    def labels(self) -> list[list[str]]:
        """Return the labels of the words; an error where the sentences have none."""
        if self.tags is None:
            raise _no_labels_error(self.places[0][0])
        return self.tags

    def take(self, rows: Iterable[int] | np.ndarray) -> "TaggedSentences":
        """Return some of the sentences, by ascending number; a document ends where the next sentence is missing.

        Of sentences 0 to 4, of the documents 0 0 0 0 1, 0 1 3 4 are of the documents 0 0 3 4 (their first sentences).
        """
        numbers = [int(row) for row in rows]
        documents: list[int] = []
        for previous, row in zip([-2, *numbers], numbers, strict=False):
            follows = row == previous + 1 and self.documents[row] == self.documents[previous]
            documents.append(documents[-1] if follows else row)

        lists = {name: getattr(self, name) for name in ("words", "tags", "places", "spans")}
        taken: Any = {name: values and [values[row] for row in numbers] for name, values in lists.items()}
        return TaggedSentences(documents=documents, **taken)

    def place(self, sentence: int, word: int) -> tuple[str, int | None]:
        """Return file and line of a word, for an error line; the line is None where it is not known."""
        where, line, has_word_per_line = self.places[sentence]
        return where, line + word if has_word_per_line and line is not None else line


# ---- files


def read_tagged_file(
    path: str,
    labels: Sequence[str] = (),
    encoding: str | None = None,
    separator: str | None = None,
    word_column: str | None = None,
    label_column: str | None = None,
) -> Iterator[Row]:
    """Yield a sentence per row: `tokens` and `tags` of CoNLL files, `text` of plain text, the columns of a table.

    A table may have a row for each word: then its sentences are rows of `tokens` and `tags`, too.

    Args:
        labels: of a finished model, which also reads text without labels: then a file with another ending is CoNLL
            if it has a column of these labels, or one that numbers words; else each line is a text, or a word if all
            lines are.
        word_column, label_column: names of a table's columns, numbers (from 1) of a CoNLL file's; None: found.
    """
    kind = kind_of(path)
    if kind in _TABLES or (kind not in _CONLL and _has_header(path, encoding)):
        rows = read_rows(path, encoding, separator=separator)
        yield from _sentences_of_table(rows, word_column, label_column)
        return
    layout = find_layout(path, encoding, word_column, label_column)
    if layout is None:
        return
    known = len(layout.label_values & set(labels))
    has_known_labels = known > 0 and 2 * known >= len(layout.label_values)
    if not labels or kind in _CONLL or has_known_labels:
        yield from read_conll(path, layout, encoding)
    elif _has_word_per_line(path, encoding, layout) or (layout.number >= 0 and kind != ".tsv"):
        yield from read_conll(path, layout._replace(label=-1), encoding)
    elif kind == ".tsv":
        yield from read_rows(path, encoding, separator=separator)
    else:
        yield from (Row({"text": line}, path, number) for number, line in read_lines(path, encoding))


def _has_header(path: str, encoding: str | None) -> bool:
    """Return whether the first line has usual names of columns, for words or sentences and for labels."""
    _, first = next(iter(read_lines(path, encoding)), (1, ""))
    fields = [name.strip().strip('"').lower() for name in first.split("\t")]
    return any(name in (*WORD_COLUMNS, "text") for name in fields) and any(name in TAG_COLUMNS for name in fields)


def _has_word_per_line(path: str, encoding: str | None, layout: Layout) -> bool:
    """Return whether the first lines are single words, and sentences of two or more end with a blank line or ".".

    With tabs, each line is a word and what is noted on it.
    """
    head = [line for _, line in itertools.islice(read_lines(path, encoding), _FIRST_LINES)]
    rows = [line.split("\t" if layout.tabs and line.strip() else None) for line in head]  # [] for a blank line
    words = [fields[layout.word].split() for fields in rows if fields and len(fields) == layout.width]
    first_blank = rows.index([]) if [] in rows else 0
    are_words = len(words) == len(rows) - rows.count([]) and all(len(word) == 1 for word in words)
    return are_words and (layout.tabs or layout.width == 1) and (first_blank > 1 or ["."] in words)


def _sentences_of_table(rows: Iterator[Row], word_column: str | None, label_column: str | None) -> Iterator[Row]:
    """Yield the rows of a table; if each is a word, as the first one is, a row of `tokens` and `tags` per sentence.

    A sentence begins where the number or the name of the sentence changes (an empty cell repeats the last one), and
    after an empty line or an empty word.
    """
    head = list(itertools.islice(rows, _FIRST_LINES))
    if not head:
        return
    first, rows = head[0], itertools.chain(head, rows)
    label = label_column or _usual_column(first, TAG_COLUMNS)
    has_label = isinstance(first.get(label), str) and list_cell(first.get(label)) is None
    sentence, document = _usual_column(first, SENTENCE_COLUMNS), _usual_column(first, DOCUMENT_COLUMNS)
    usual_names = (*WORD_COLUMNS, "text") if has_label or sentence else WORD_COLUMN
    word = word_column or _usual_column(first, usual_names)

    counts = [(len(str(row.get(word)).split()), len(str(row.get(label)).split())) for row in head]
    are_sentences = any(words == labels > 1 for words, labels in counts)  # the first one may be of one word
    are_sentences |= str(word).lower() == "text" and any(words > 1 for words, _ in counts)
    is_word = isinstance(first.get(word), str) and len(first.get(word).split()) == 1
    if not is_word or (label and not has_label) or are_sentences:
        yield from rows
        return

    words = _words_of_table(rows, word, label, sentence, document)
    yield from join_words(words, first.where, labelled=bool(label))


def _words_of_table(
    rows: Iterable[Row], word: str | None, label: str | None, sentence: str | None, document: str | None
) -> Iterator[Word | None]:
    """Yield the words of a table and None where a sentence ends; the columns are by name, None where there is none."""
    previous_names, previous_line = (None, None), None  # names of document and sentence
    for row in rows:
        cells = row.get(document), row.get(sentence)
        names = tuple(old if cell in (None, "") else cell for cell, old in zip(cells, previous_names, strict=True))
        follows = row.line in (None, previous_line, (previous_line or 0) + 1)  # else lines between them are empty
        is_gap = not sentence and (not row.get(word) or not follows)
        if names != previous_names or is_gap:
            yield None
        previous_names, previous_line = names, row.line
        if row.get(word):
            yield Word(str(row.get(word)), str(row.get(label) or ""), row.line, str(row.get(document)))


# ---- rows


def _no_labels_error(where: str) -> InputError:
    remedy = "give CoNLL files (a tab or space before each label), or rows of tokens and ner_tags"
    return InputError("the words have no labels", where=where, remedy=remedy)


def tagged_sentences(
    rows: Sequence[Row], labelled: bool, split: Splitter, text_column: str | None, label_column: str | None
) -> TaggedSentences:
    """Return the sentences of rows, checked; labelled ones without words are left out, which is logged.

    Args:
        split: cuts a text into words, and gives their begin and end in characters.
        text_column: of the words or of a text; None: a usual name. `label_column`: of their labels, likewise.
    """
    sentences = TaggedSentences(tags=[] if labelled else None)
    rows = without_rejected(list(rows)) if labelled else rows
    word_column, tag_column = _word_and_tag_column(rows[0], labelled, text_column, label_column)
    document_column = _usual_column(rows[0], DOCUMENT_COLUMNS)

    document, previous = 0, None  # number of the document; file and names of the document of the row before
    if labelled:  # the words of a cell may be separated by spaces, as its labels are
        split_columns = word_column, tag_column
        has_spaces = any(" " in str(row.values.get(tag_column)) for row in rows)
    else:
        split_columns = (word_column,)
        has_spaces = word_column.lower() in WORD_COLUMNS  # any other text is split by the tokenizer
    empty = 0
    doubtful: Counter[str] = Counter()  # entities, by what is unusual
    for row in rows:
        current = row.where, row.document, row.get(document_column)
        document += previous is not None and current != previous
        previous = current

        row = _split_cells(row, *split_columns) if has_spaces else row
        words, spans = _words_and_spans(row, word_column, split)
        tags = _tags(row, tag_column, words, spans, doubtful) if labelled else []
        if labelled and not words:
            empty += 1
            continue
        sentences.words.append(words)
        sentences.documents.append(document)
        has_word_per_line = row.document is not None
        sentences.places.append((row.where, row.line, has_word_per_line))
        sentences.spans.append(spans)
        if sentences.tags is not None:
            sentences.tags.append(tags)

    if empty:
        logger.info(f"{rows[0].where}: {empty:,} rows have no words and are left out")
    for what, count in doubtful.items():
        logger.info(f"! {rows[0].where}: {count:,} entities {what}")
    if not len(sentences):
        raise InputError("contains no sentences", where=rows[0].where, remedy="give a file of tagged words")
    _check_tags(sentences)
    return sentences


def _word_and_tag_column(
    row: Row, labelled: bool, text_column: str | None, label_column: str | None
) -> tuple[str, str]:
    """Return the columns of words (or a text) and of tags, by the first row; "" if rows to predict have no tags."""
    if row.document is not None:  # the columns of the file were chosen where it was read
        text_column = label_column = None
    word_column = text_column or _usual_column(_without_objects(row), (*WORD_COLUMNS, *TEXT_COLUMNS))
    tag_column = label_column or _usual_column(row, TAG_COLUMNS)
    for option, name, usual in (("text", word_column, WORD_COLUMNS), ("label", tag_column, TAG_COLUMNS)):
        if name not in row.values and (labelled or (name and option == "text")):
            if len(row.values) == 1:
                raise _no_labels_error(row.where)
            near = did_you_mean(name or usual[0], row.values)
            remedy = f"{near}pass --{option}_column, one of: {', '.join(row.values)}"
            raise row.header_error(f"no column {name or usual[0]!r}", remedy)
    return word_column or choose_column(row), tag_column or ""


def unify_schemes(parts: Mapping[str, TaggedSentences]) -> None:
    """Turn IOB1 into IOB2 (and log it), if all parts together follow IOB1: one decision for training and metrics."""
    if is_iob1(tags for rows in parts.values() for tags in rows.tags or ()):
        logger.info("IOB1 labels, turned into IOB2: every entity begins with B-")
        for rows in parts.values():
            rows.tags = [to_iob2(tags) for tags in rows.labels()]


def _check_tags(sentences: TaggedSentences) -> None:
    """Check that labels are classes of words, either all with the prefixes of entities or all without."""
    values = {tag for tags in sentences.tags or () for tag in tags}
    prefixed = any(is_tag(value) for value in values - {OUTSIDE})
    words = sum(map(len, sentences.words))
    # So many different values are words or numbers, from another column
    if not prefixed and len(values) > max(_MOST_LABELS, words / 3):
        what = f"{len(values):,} different labels of {words:,} words"
        raise InputError(what, where=sentences.places[0][0], remedy="check the file, or pass --label_column")
    for number, tags in enumerate(sentences.tags or ()):
        for word, tag in enumerate(tags):
            if not tag or (prefixed and not is_tag(tag)):
                what = f"label {tag!r} is not O, B-TYPE, I-TYPE, E-TYPE or S-TYPE" if tag else "the label is blank"
                where, line = sentences.place(number, word)
                raise InputError(what, where=where, line=line, remedy=_REMEDY)


def _usual_column(row: Row, names: tuple[str, ...]) -> str | None:
    """Return the column that has the first of these names, whatever its case; None where none has one."""
    by_name = {column.strip().lower(): column for column in reversed(row.values)}
    return next((by_name[name] for name in names if name in by_name), None)


def _without_objects(row: Row) -> Row:
    """Return a row without its lists of objects, such as Prodigy's tokens beside a text."""
    first = {name: value[0] for name, value in row.values.items() if isinstance(value, list) and value}
    values = {name: value for name, value in row.values.items() if not isinstance(first.get(name), dict)}
    return row._replace(values=values)


def _split_cells(row: Row, *columns: str) -> Row:
    """Return a row with these columns split at spaces, if all of them are texts of as many parts: words and labels."""
    cells = [row.values.get(column) for column in columns]
    parts = [cell.split() for cell in cells if isinstance(cell, str) and list_cell(cell) is None]
    if len(parts) < len(columns) or len(set(map(len, parts))) > 1:
        return row
    return row._replace(values={**row.values, **dict(zip(columns, parts, strict=True))})


def _words_and_spans(row: Row, column: str, split: Splitter) -> tuple[list[str], list[tuple[int, int]] | None]:
    """Return the words of a row, and the begin and end of each where they are cut out of a text, else None."""
    value = row.values.get(column)
    is_line = row.values.keys() == {"text"} and isinstance(value, str)  # "[12]" there is a text, not a list
    words = None if is_line else list_cell(value)
    if words is None and isinstance(value, str):
        return split(text_of(row, column) or "")
    if (words is None and value is not None) or not all(isinstance(word, str) for word in words or ()):
        raise row.error(f"{column} is neither a list of words nor a text", _REMEDY)
    return words or [], None


def _tags(
    row: Row, column: str, words: list[str], spans: list[tuple[int, int]] | None, doubtful: Counter[str]
) -> list[str]:
    """Return the tags of a row; words that were cut out of a text have `spans`, and may be tagged by its entities."""
    cell = row.values.get(column)
    tags = list_cell(cell) or []
    if not tags and isinstance(cell, str) and list_cell(cell) is None:
        raise row.error(f"{column} holds {cell!r}, no list of labels", "a file with a word per line needs no header")
    if spans and not any(isinstance(tag, str) for tag in tags):
        return _tags_of_entities(row, column, tags, spans, doubtful)
    if len(words) != len(tags):
        what = f"{len(words)} words and {len(tags)} labels: lists of the same length are needed"
        raise row.error(what, _REMEDY)
    for tag in tags:
        if not isinstance(tag, str):
            raise row.error(f"label {tag!r} has no name", "write names such as O and B-person")
    return [" ".join(tag.split()) for tag in tags]  # a label on one line


def _tags_of_entities(
    row: Row, column: str, entities: list, spans: list[tuple[int, int]], doubtful: Counter[str]
) -> list[str]:
    """Return IOB2 tags of a text's words by the characters of its entities, as doccano exports them.

    An entity is `[0, 4, "PER"]`, or an object with `start`, `end` and `label`. Of two that overlap the first counts.

    Args:
        spans: begin and end of each word.
        doubtful: counts the entities that overlap, or that begin or end inside a word.
    """
    tags = [OUTSIDE] * len(spans)
    for entity in entities:
        begin, end, label = _parsed_entity(row, column, entity)
        inside = [number for number, (first, last) in enumerate(spans) if first < end and last > begin]
        if not inside:
            raise row.error(f"no word at the characters {begin} to {end} of {column}", _REMEDY)
        if (begin, end) != (spans[inside[0]][0], spans[inside[-1]][1]):
            doubtful["begin or end inside a word: check their offsets (characters of the text, from 0)"] += 1
        if any(tags[number] != OUTSIDE for number in inside):
            doubtful["overlap an earlier one and are left out"] += 1
        else:
            for number in inside:
                tags[number] = f"{'B' if number == inside[0] else 'I'}-{label}"
    return tags


def _parsed_entity(row: Row, column: str, entity: Any) -> tuple[int, int, str]:
    """Return (begin, end, label) of an entity: [0, 4, "PER"], or an object; "start_offset" is "start", too."""
    parts = entity if isinstance(entity, list | tuple) else ()
    if isinstance(entity, dict):
        label = next((entity[name] for name in ("label", "labels", "type") if name in entity), None)
        label = label[0] if isinstance(label, list) and len(label) == 1 else label  # as in Label Studio
        parts = [*(entity.get(name, entity.get(f"{name}_offset")) for name in ("start", "end")), label]
    match parts:
        case [int(begin), int(end), str(label)] if 0 <= begin < end:
            return begin, end, label
    what = f"{column} holds {entity!r}, no entity such as [0, 4, 'PER']: begin, end and label"
    raise row.error(what, _REMEDY)


# ---- labels


def label_names(tags: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the label names by id: `O`, then the others by type, `B-` before `I-`."""
    tags_in_data = {tag for sentence in tags for tag in sentence}
    return tuple(sorted(tags_in_data, key=lambda tag: (tag != "O", tag.partition("-")[2], tag)))


def check_labels(rows: TaggedSentences, labels: tuple[str, ...]) -> None:
    """Check that each tag is one of these labels of the training rows."""
    training_labels = set(labels)
    for sentence, tags in enumerate(rows.tags or ()):
        for word, tag in enumerate(tags):
            if tag not in training_labels:
                where, line = rows.place(sentence, word)
                raise unknown_label_error(tag, labels, where, line)
