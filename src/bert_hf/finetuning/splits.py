"""Splits labelled rows into training, validation and test rows, near-duplicates in the same part."""

from collections import Counter

from sklearn.model_selection import StratifiedGroupKFold

from bert_hf.config.arguments import ClassificationArguments
from bert_hf.errors import InputError, did_you_mean
from bert_hf.finetuning.datasets import LabelledTexts, read_hub, read_labelled
from bert_hf.finetuning.near_duplicates import near_duplicate_groups
from bert_hf.finetuning.tasks import TASKS, Task, order_labels

# ---- splits


def split_off(rows: LabelledTexts, percentage: float, seed: int) -> tuple[LabelledTexts, LabelledTexts]:
    """(rest, part of `percentage` %), stratified by label, near-duplicates in one of the two, equal for equal seeds.

    Raises:
        InputError: there are too few rows of a label, or too few that are no near-duplicates.
    """
    folds = max(2, round(100 / percentage))
    groups = near_duplicate_groups(rows.texts)
    fewest = min(Counter(rows.labels).values())
    different = int(groups.max()) + 1
    if min(fewest, different) < folds:
        few = f"there are {different} texts that differ in their words"
        if fewest < folds:
            few = f"a label has {fewest} rows"
        raise InputError(
            f"{few}, too few to hold {percentage:g} % of them out",
            where=_file_of(rows, "--train_file"),
            remedy="give more rows, or --validation_file and --test_file",
        )

    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    rest, part = next(splitter.split(rows.texts, rows.labels, groups))
    return rows.take(rest), rows.take(part)


def _file_of(rows: LabelledTexts, otherwise: str) -> str:
    return rows.places[0][0] if rows.places else otherwise


def read_splits(args: ClassificationArguments) -> tuple[dict[str, LabelledTexts], tuple[str, ...]]:
    """Those of `train`, `validation` and `test` that are given, and the label names by id.

    Raises:
        InputError: no data named, unknown task, one label only, or a label that training does not have.
    """
    if args.task is not None and args.task not in TASKS:
        raise InputError(f"unknown task {args.task!r}", where="--task", remedy=f"one of: {', '.join(TASKS)}")
    splits = _given_splits(args)

    train = splits["train"]
    labels = order_labels(set(train.labels), args.task)
    if len(set(train.labels)) < 2:
        remedy = "give rows of two labels or more"
        raise InputError(f"only one label: {labels[0]}", where=_file_of(train, "train"), remedy=remedy)
    for name, rows in splits.items():
        _check_labels(rows, labels, name)
    return splits, labels


def _given_splits(args: ClassificationArguments) -> dict[str, LabelledTexts]:
    if args.train_file:
        given = {"train": args.train_file, "validation": args.validation_file, "test": args.test_file}
        columns = (args.text_column, args.label_column)
        return {name: read_labelled(files, *columns) for name, files in given.items() if files}

    if not (args.dataset_name or args.task):
        remedy = "give --train_file, --dataset_name or --task"
        raise InputError("no data are named", where="--train_file", remedy=remedy)
    task = TASKS[args.task] if args.task else Task(str(args.dataset_name), None, None, ())
    text, label = args.text_column or task.text, args.label_column or task.label
    splits = read_hub(args.dataset_name or task.hub_id, args.dataset_config_name, text, label)
    return {name: rows for name, rows in splits.items() if name in ("train", "validation", "test")}


def _check_labels(rows: LabelledTexts, labels: tuple[str, ...], name: str) -> None:
    """Refuses a label that training does not have."""
    for number, label in enumerate(rows.labels):
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
