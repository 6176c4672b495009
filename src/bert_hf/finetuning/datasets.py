"""Reads labelled texts from any common file or the Hub, and tokenizes them for the Trainer."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from bert_hf.data.input_files import expand, kind_of
from bert_hf.data.readers import TEXT_NAMES, read_rows, read_separated
from bert_hf.errors import InputError, did_you_mean

MOST_LABELS = 50  # a column of more distinct values is no label
_LABEL_NAMES = ("label", "labels", "class", "category", "target")


@dataclass
class LabelledTexts:
    """Texts and their labels by name; rows of files also have their places: file and line.

    Attributes:
        labels: empty where the rows have none (the test rows of a benchmark).
        pairs: the second texts; None where each row has one text.
    """

    texts: list[str]
    labels: list[str]
    places: list[tuple[str, int]] = field(default_factory=list, compare=False)
    pairs: list[str] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: np.ndarray) -> "LabelledTexts":
        """Some of the rows, by number."""
        places = [self.places[row] for row in rows] if self.places else []
        labels = [self.labels[row] for row in rows] if self.labels else []
        pairs = None if self.pairs is None else [self.pairs[row] for row in rows]
        return LabelledTexts([self.texts[row] for row in rows], labels, places, pairs)


# ---- files


def read_labelled(files: list[str], text_column: str | None = None, label_column: str | None = None) -> LabelledTexts:
    """Reads CSV, TSV, JSON lines (also .gz, .xz), and headerless `label<TAB>text` (the SMS Spam Collection).

    Columns that are not named are found: by a usual name, else the label is the column of fewest distinct values and
    the text the one of the longest strings.

    Raises:
        InputError: with file and line.
    """
    found = LabelledTexts([], [], [])
    for path in expand(files):
        rows = list(_rows(path))
        if not rows:
            raise InputError("no rows in it", where=path, remedy="give a file with rows of text and label")

        text, label = _columns([row for _, row in rows], path, text_column, label_column)
        for line, row in rows:
            found.labels.append(_label_of(row, label, path, line))
            if not isinstance(row.get(text), str):
                what = f"the row has no text {text!r}"
                raise InputError(what, where=path, line=line, remedy="correct or remove it")
            found.texts.append(row[text])
            found.places.append((path, line))
    return found


def _rows(path: str) -> Iterator[tuple[int, dict]]:
    kind = kind_of(path)
    if kind in (".jsonl", ".json"):
        yield from read_rows(path)
    elif kind == ".csv":
        yield from read_separated(path, ",")
    elif kind in (".tsv", ".txt", ""):
        yield from read_separated(path, "\t")
    else:
        raise InputError(f"unknown kind {kind!r}", where=path, remedy="use .csv, .tsv or .jsonl, also .gz or .xz")


def _label_of(row: dict, column: str, path: str, line: int) -> str:
    value = row.get(column)
    if value is None or not str(value).strip() or value != value:  # NaN is not equal to itself
        raise InputError(f"the row has no {column!r}", where=path, line=line, remedy="label it or remove it")
    if isinstance(value, list | dict):
        what = f"{column!r} is not a name or a number"
        raise InputError(what, where=path, line=line, remedy="give each row one label")
    return str(value)


# ---- columns


def _columns(rows: list[dict], where: str, text: str | None, label: str | None) -> tuple[str, str]:
    """(text column, label column): the named ones, else those that are found in the rows."""
    names = list(dict.fromkeys(name for row in rows[:1000] for name in row))
    for wanted in (text, label):
        if wanted is not None and wanted not in names:
            remedy = f"{did_you_mean(wanted, names)}its columns: {', '.join(names)}"
            raise InputError(f"no column {wanted!r}", where=where, line=1, remedy=remedy)

    if label is None:
        label = _find_label(rows, [name for name in names if name != text], names, where)
    if text is None:
        text = _find_text(rows, [name for name in names if name != label], where)
    return text, label


def _find_label(rows: list[dict], candidates: list[str], names: list[str], where: str) -> str:
    """The column with a usual name, if there is one such column, else the one of fewest distinct values."""
    distinct = {name: len({str(row.get(name)) for row in rows}) for name in candidates}
    found = [name for name in candidates if name.lower() in _LABEL_NAMES]
    if len(found) != 1:
        found = [name for name, count in distinct.items() if count == min(distinct.values()) and count > 1]
    if len(found) != 1 or distinct[found[0]] > MOST_LABELS:
        remedy = f"--label_column, one of: {', '.join(names)}"
        raise InputError("which column holds the label?", where=where, line=1, remedy=remedy)
    return found[0]


def _find_text(rows: list[dict], candidates: list[str], where: str) -> str:
    """The column with a usual name, if there is one such column, else the one of the longest strings."""
    if not candidates:
        raise InputError("no column is left for the text", where=where, line=1, remedy="give a file of two columns")
    usual = [name for name in candidates if name.lower() in TEXT_NAMES]
    if len(usual) == 1:
        return usual[0]
    return max(candidates, key=lambda name: float(np.mean([len(str(row.get(name, ""))) for row in rows])))


# ---- Hub


def read_hub(name: str, config: str | None, text: str | None, label: str | None) -> dict[str, LabelledTexts]:
    """The splits of a labelled Hub dataset.

    Raises:
        InputError: it cannot be loaded, or its columns are not found.
    """
    try:
        splits = cast(datasets.DatasetDict, datasets.load_dataset(name, config))
    except (OSError, ValueError, RuntimeError) as error:
        what = f"cannot be loaded: {str(error).splitlines()[0]}"
        remedy = "check the id and the network, or give --train_file"
        raise InputError(what, where=name, remedy=remedy) from None

    result = {}
    for split, rows in splits.items():
        first = cast(list[dict], list(rows.select(range(min(1000, len(rows))))))
        text_column, label_column = _columns(first, name, text, label)
        feature = rows.features[label_column]
        labels = rows[label_column]
        names = feature.int2str(list(labels)) if isinstance(feature, datasets.ClassLabel) else map(str, labels)
        result[split] = LabelledTexts([str(value).strip() for value in rows[text_column]], list(names))
    return result


# ---- inputs of the model


def tokenized(
    rows: LabelledTexts, labels: tuple[str, ...], tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> datasets.Dataset:
    """Rows as the Trainer takes them: input_ids and the rest, not padded (the collator pads each batch), and labels.

    Rows of a batch are grouped by `length` (tokens); the Trainer drops that column before the collator.
    """
    encoded = tokenizer(rows.texts, truncation=True, max_length=max_seq_length)
    lengths = [len(ids) for ids in encoded["input_ids"]]
    numbers = [labels.index(label) for label in rows.labels]
    return datasets.Dataset.from_dict({**encoded, "labels": numbers, "length": lengths})
