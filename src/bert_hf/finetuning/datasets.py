"""Task rows → inputs: labelled texts from any common file, a split without leaks, token ids, and a baseline."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from bert_hf.data.readers import TEXT_NAMES, expand, kind_of, read_rows, read_separated
from bert_hf.errors import InputError, did_you_mean

MOST_LABELS = 50  # a column of more distinct values is no label
_LABEL_NAMES = ("label", "labels", "class", "category", "target")


@dataclass
class LabelledTexts:
    """Texts and their labels by name; of rows of files also where they stand: file and line."""

    texts: list[str]
    labels: list[str]
    places: list[tuple[str, int]] = field(default_factory=list, compare=False)

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: np.ndarray) -> "LabelledTexts":
        places = [self.places[row] for row in rows] if self.places else []
        return LabelledTexts([self.texts[row] for row in rows], [self.labels[row] for row in rows], places)


# ---- reading


def read_labelled(files: list[str], text_column: str | None = None, label_column: str | None = None) -> LabelledTexts:
    """Reads CSV, TSV, JSON lines (also .gz, .xz), and headerless `label<TAB>text` as the SMS Spam Collection ships it.

    Columns that are not named are found: by a usual name, else the label is the column of fewest distinct values and
    the text the one of the longest strings.

    Raises:
        InputError: with file and line.
    """
    texts, labels, places = [], [], []
    for path in expand(files):
        rows = list(_rows(path))
        if not rows:
            raise InputError("no rows in it", where=path, remedy="give a file with rows of text and label")
        text, label = _columns([row for _, row in rows], path, text_column, label_column)
        for line, row in rows:
            value = row.get(label)
            if value is None or not str(value).strip() or value != value:  # NaN is not itself
                raise InputError(f"the row has no {label!r}", where=path, line=line, remedy="label it or remove it")
            if isinstance(value, list | dict):
                what = f"{label!r} is not a name or a number"
                raise InputError(what, where=path, line=line, remedy="give each row one label")
            if not isinstance(row.get(text), str):
                raise InputError(f"the row has no text {text!r}", where=path, line=line, remedy="mend or remove it")
            texts.append(row[text])
            labels.append(str(value))
            places.append((path, line))
    return LabelledTexts(texts, labels, places)


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


def _columns(rows: list[dict], path: Path, text: str | None, label: str | None) -> tuple[str, str]:
    names = list(dict.fromkeys(name for row in rows[:1000] for name in row))
    for wanted in (text, label):
        if wanted is not None and wanted not in names:
            remedy = f"{did_you_mean(wanted, names)}its columns: {', '.join(names)}"
            raise InputError(f"no column {wanted!r}", where=path, line=1, remedy=remedy)
    if label is None:
        usual = [name for name in names if name.lower() in _LABEL_NAMES and name != text]
        distinct = {name: len({str(row.get(name)) for row in rows}) for name in names if name != text}
        fewest = [name for name, count in distinct.items() if count == min(distinct.values()) and count > 1]
        label = usual[0] if len(usual) == 1 else fewest[0] if len(fewest) == 1 else None
        if label is None or distinct[label] > MOST_LABELS:
            raise InputError(
                "which column holds the label?",
                where=path,
                line=1,
                remedy=f"--label_column, one of: {', '.join(names)}",
            )
    if text is None:
        length = {name: np.mean([len(str(row.get(name, ""))) for row in rows]) for name in names if name != label}
        usual = [name for name in length if name.lower() in TEXT_NAMES]
        if not length:
            raise InputError("no column is left for the text", where=path, line=1, remedy="give a file of two columns")
        text = usual[0] if len(usual) == 1 else max(length, key=length.get)
    return text, label


def read_hub(name: str, config: str | None, text: str | None, label: str | None) -> dict[str, LabelledTexts]:
    """The splits of a labelled Hub dataset."""
    try:
        splits = datasets.load_dataset(name, config)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"cannot be loaded: {str(error).splitlines()[0]}",
            where=name,
            remedy="check the id and the network, or give --train_file",
        ) from None
    result = {}
    for split, rows in splits.items():
        chosen_text, chosen_label = _columns(list(rows.select(range(min(1000, len(rows))))), Path(name), text, label)
        feature = rows.features[chosen_label]
        labels = rows[chosen_label]
        named = feature.int2str(list(labels)) if isinstance(feature, datasets.ClassLabel) else map(str, labels)
        result[split] = LabelledTexts([str(value).strip() for value in rows[chosen_text]], list(named))
    return result


# ---- splitting


# ---- inputs and baseline


def tokenized(
    rows: LabelledTexts, labels: tuple[str, ...], tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> datasets.Dataset:
    """Rows as Trainer takes them: input_ids and the rest, not padded (the collator pads each batch), and labels.

    `length` (tokens) is what rows of a batch are grouped by; Trainer drops the column before the collator.
    """
    encoded = tokenizer(rows.texts, truncation=True, max_length=max_seq_length)
    lengths = [len(ids) for ids in encoded["input_ids"]]
    numbers = [labels.index(label) for label in rows.labels]
    return datasets.Dataset.from_dict({**encoded, "labels": numbers, "length": lengths})
