"""Task rows → inputs: labelled texts from any common file, a split without leaks, token ids, and a baseline."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import datasets
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from transformers import PreTrainedTokenizerBase

from bert_hf.arguments import ClassificationArguments
from bert_hf.errors import InputError, did_you_mean
from bert_hf.sources import TEXT_NAMES, expand, kind_of, read_rows, read_separated
from bert_hf.tasks import TASKS, order_labels

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


def near_duplicate_groups(texts: list[str]) -> np.ndarray:
    """(N,) group numbers: texts that read alike share one, and must stay on one side of a split.

    Alike: equal but for case, digits and signs; or half of their three-word sequences in common (Jaccard ≥ 0.5).
    """
    words = [re.findall(r"[^\W\d_]+", text.lower()) for text in texts]
    leader = list(range(len(texts)))

    def find(node: int) -> int:
        while leader[node] != node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    def unite(one: int, two: int) -> None:
        # The smaller number leads: groups, and with them the split, must not depend on the order of a set.
        small, large = sorted((find(one), find(two)))
        leader[large] = small

    first: dict[str, int] = {}
    for number, sequence in enumerate(words):
        other = first.setdefault(" ".join(sequence) or texts[number], number)
        unite(number, other)
    shingles = [set(zip(sequence, sequence[1:], sequence[2:], strict=False)) for sequence in words]
    holders: dict[tuple, list[int]] = defaultdict(list)
    for number in sorted(set(first.values())):
        for shingle in shingles[number]:
            holders[shingle].append(number)
    shared: Counter = Counter()
    for numbers in holders.values():
        if len(numbers) <= 50:  # a sequence that half the texts share says nothing
            shared.update(combinations(numbers, 2))
    for (one, two), count in shared.items():
        if count >= 0.5 * len(shingles[one] | shingles[two]):
            unite(one, two)
    return np.unique([find(number) for number in range(len(texts))], return_inverse=True)[1]


def split_off(rows: LabelledTexts, percentage: float, seed: int) -> tuple[LabelledTexts, LabelledTexts]:
    """(rest, part of `percentage` %), stratified by label, near-duplicates on one side, the same for equal seeds."""
    folds = max(2, round(100 / percentage))
    groups = near_duplicate_groups(rows.texts)
    fewest = min(Counter(rows.labels).values())
    apart = min(fewest, groups.max() + 1)
    if apart < folds:
        kinds = (
            f"a label has {fewest} rows" if fewest < folds else f"there are {apart} texts that differ in their words"
        )
        raise InputError(
            f"{kinds}, too few to hold {percentage:g} % of them out",
            where=rows.places[0][0] if rows.places else "--train_file",
            remedy="give more rows, or --validation_file and --test_file",
        )
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    rest, part = next(splitter.split(rows.texts, rows.labels, groups))
    return rows.take(rest), rows.take(part)


def read_splits(args: ClassificationArguments) -> tuple[dict[str, LabelledTexts], tuple[str, ...]]:
    """What there is of `train`, `validation` and `test`, and the label names by id.

    Raises:
        InputError: no data named, unknown task, one label only, or a label that training does not have.
    """
    if args.task is not None and args.task not in TASKS:
        raise InputError(f"unknown task {args.task!r}", where="--task", remedy=f"one of: {', '.join(TASKS)}")
    columns = (args.text_column, args.label_column)
    if args.train_file:
        given = {"train": args.train_file, "validation": args.validation_file, "test": args.test_file}
        splits = {name: read_labelled(files, *columns) for name, files in given.items() if files}
    elif args.dataset_name or args.task:
        task = TASKS.get(args.task)
        columns = (args.text_column or (task and task.text), args.label_column or (task and task.label))
        name = args.dataset_name or task.hub_id
        splits = read_hub(name, args.dataset_config_name, *columns)
        splits = {name: rows for name, rows in splits.items() if name in ("train", "validation", "test")}
    else:
        raise InputError(
            "no data are named", where="--train_file", remedy="give --train_file, --dataset_name or --task"
        )
    labels = order_labels(set(splits["train"].labels), args.task)
    if len(set(splits["train"].labels)) < 2:
        raise InputError(
            f"only one label: {labels[0]}",
            where=splits["train"].places[0][0] if splits["train"].places else "train",
            remedy="give rows of two labels or more",
        )
    for name, rows in splits.items():
        for number, label in enumerate(rows.labels):
            if label not in labels:
                where, line = rows.places[number] if rows.places else (name, None)
                near = did_you_mean(label, labels) or f"the labels there: {', '.join(labels[:10])}; "
                remedy = f"{near}correct or remove the row"
                raise InputError(f"label {label!r} is not in the training rows", where=where, line=line, remedy=remedy)
    return splits, labels


def load_splits(args: ClassificationArguments) -> tuple[dict[str, LabelledTexts], tuple[str, ...]]:
    """`train`, `validation` and `test`, of which what is not there is split off; and the label names by id.

    Raises:
        InputError: see `read_splits`; or there are too few rows to split off.
    """
    splits, labels = read_splits(args)
    if "test" not in splits:
        splits["train"], splits["test"] = split_off(splits["train"], args.test_split_percentage, args.split_seed)
    if "validation" not in splits:
        share = args.validation_split_percentage * 100 / (100 - args.test_split_percentage)
        splits["train"], splits["validation"] = split_off(splits["train"], share, args.split_seed)
    return splits, labels


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


def baseline_predictions(train: LabelledTexts, validation: LabelledTexts, test: LabelledTexts) -> list[str]:
    """Labels of the test texts by TF-IDF of words and word pairs with a linear SVM, C chosen on the validation rows.

    A second's work, and hard to beat on short messages: what a fine-tuned model is worth is seen beside it.
    """
    best_score, best = -1.0, None
    for c in (0.1, 1.0, 10.0):
        vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\S+")
        model = make_pipeline(vectors, LinearSVC(C=c, class_weight="balanced", random_state=0))
        score = model.fit(train.texts, train.labels).score(validation.texts, validation.labels)
        if score > best_score:
            best_score, best = score, model
    return list(best.predict(test.texts))
