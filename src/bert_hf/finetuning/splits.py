"""Splits labelled rows into training, validation and test rows, near-duplicates on one side."""

import re
from collections import Counter, defaultdict
from itertools import combinations

import numpy as np
from sklearn.model_selection import StratifiedGroupKFold

from bert_hf.config.arguments import ClassificationArguments
from bert_hf.errors import InputError, did_you_mean
from bert_hf.finetuning.datasets import LabelledTexts, read_hub, read_labelled
from bert_hf.finetuning.tasks import TASKS, order_labels


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
