"""Splits labelled rows into training, validation and test rows, near-duplicates in the same part."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from sklearn.model_selection import StratifiedGroupKFold

from bert_hf.config.arguments import ClassificationArguments
from bert_hf.errors import InputError, did_you_mean
from bert_hf.finetuning.columns import NamedColumns
from bert_hf.finetuning.datasets import read_hub, read_parts
from bert_hf.finetuning.folders import files_of_parts
from bert_hf.finetuning.labelled_texts import LabelledTexts
from bert_hf.finetuning.tasks import TASKS, Task, order_labels

_FREQUENT = 50  # a three-word sequence of more texts than this does not tell which texts are alike


# ---- near-duplicates


def near_duplicate_groups(texts: list[str]) -> np.ndarray:
    """(N,) group numbers: near-duplicates have the same one. Groups are numbered by their first text.

    Near-duplicates: equal but for case, digits and signs; or half of their three-word sequences in common (Jaccard ≥
    0.5); or linked by such texts.
    """
    words = [re.findall(r"[^\W\d_]+", text.lower()) for text in texts]

    # Each text is linked to the first one of the same words, and those to similar ones
    first: dict[str, int] = {}
    links = [(first.setdefault(" ".join(words[row]) or texts[row], row), row) for row in range(len(texts))]
    links += _similar(words, list(first.values()))

    rows, others = np.array(links).T
    graph = coo_matrix((np.ones(len(links)), (rows, others)), shape=(len(texts), len(texts)))
    return connected_components(graph, directed=False)[1]


def _similar(words: list[list[str]], rows: list[int]) -> Iterator[tuple[int, int]]:
    """Pairs of these rows that have half of their three-word sequences in common."""
    shingles = {row: set(zip(words[row], words[row][1:], words[row][2:], strict=False)) for row in rows}
    rows_with: dict[tuple, list[int]] = defaultdict(list)
    for row in rows:
        for shingle in shingles[row]:
            rows_with[shingle].append(row)

    shared: Counter[tuple[int, int]] = Counter()
    for holders in rows_with.values():
        if len(holders) <= _FREQUENT:
            shared.update(combinations(holders, 2))

    for (one, other), count in shared.items():
        if count >= 0.5 * len(shingles[one] | shingles[other]):
            yield one, other


# ---- splits


def split_off(rows: LabelledTexts, percentage: float, seed: int) -> tuple[LabelledTexts, LabelledTexts]:
    """(rest, part of `percentage` %), stratified by label, near-duplicates in one of the two, equal for equal seeds.

    Raises:
        InputError: there are too few rows of a label, or too few that are no near-duplicates.
    """
    folds = max(2, round(100 / percentage))
    groups = near_duplicate_groups(rows.joined())
    labels = rows.class_names()
    fewest = min(Counter(labels).values())
    different = int(groups.max()) + 1
    if min(fewest, different) < folds:
        few = f"there are {different} texts that differ in their words"
        if fewest < folds:
            few = f"a label has {fewest} rows"
        raise InputError(
            f"{few}, too few to hold {percentage:g} % of them out",
            where=rows.file(),
            remedy="give more rows, or --validation_file and --test_file",
        )

    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    rest, part = next(splitter.split(rows.texts, labels, groups))
    return rows.take(rest), rows.take(part)


def read_splits(args: ClassificationArguments) -> tuple[dict[str, LabelledTexts], tuple[str, ...]]:
    """Those of `train`, `validation` and `test` that are given, and the label names by id.

    Raises:
        InputError: no data named, unknown task, one label only, or a label that training does not have.
    """
    if args.task is not None and args.task not in TASKS:
        raise InputError(f"unknown task {args.task!r}", where="--task", remedy=f"one of: {', '.join(TASKS)}")
    splits = _given_splits(args)

    train = splits["train"]
    labels = order_labels(set(train.class_names()), args.task)
    if len(set(train.class_names())) < 2:
        remedy = "give rows of two labels or more"
        raise InputError(f"only one label: {labels[0]}", where=train.file("train"), remedy=remedy)
    for name, rows in splits.items():
        _check_labels(rows, labels, name)
    return splits, labels


def _given_splits(args: ClassificationArguments) -> dict[str, LabelledTexts]:
    if args.train_file:
        given = files_of_parts(args.train_file, args.validation_file, args.test_file)
        return read_parts(given, NamedColumns(text=args.text_column, label=args.label_column))

    if not (args.dataset_name or args.task):
        remedy = "give --train_file, --dataset_name or --task"
        raise InputError("no data are named", where="--train_file", remedy=remedy)
    task = TASKS[args.task] if args.task else Task(str(args.dataset_name), None, None, ())
    named = NamedColumns(text=args.text_column or task.text, label=args.label_column or task.label)
    splits = read_hub(args.dataset_name or task.hub_id, args.dataset_config_name, named)
    return {name: rows for name, rows in splits.items() if name in ("train", "validation", "test")}


def _check_labels(rows: LabelledTexts, labels: tuple[str, ...], name: str) -> None:
    """Refuses a label that training does not have."""
    for number, label in enumerate(rows.class_names()):
        if label not in labels:
            where, line = rows.places[number] if rows.places else (name, None)
            near = did_you_mean(label, labels) or f"the labels there: {', '.join(labels[:10])}; "
            remedy = f"{near}correct or remove the row"
            raise InputError(f"label {label!r} is not in the training rows", where=where, line=line, remedy=remedy)


def load_splits(args: ClassificationArguments) -> tuple[dict[str, LabelledTexts], tuple[str, ...]]:
    """`train`, `validation` and `test`, the missing ones split off; and the label names by id.

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
