"""Splits labelled rows into training, validation and test rows, near-duplicates in the same part."""

import numpy as np

from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.errors import InputError, did_you_mean
from bert_hf.finetuning.datasets import LabelledTexts, read_hub, read_labelled
from bert_hf.finetuning.near_duplicates import near_duplicate_groups
from bert_hf.finetuning.stratification import STAYS, class_strata, deal, number_strata
from bert_hf.finetuning.tasks import TASKS, Task, order_labels

# ---- rows to parts


def row_groups(rows: LabelledTexts) -> np.ndarray:
    """(N,) numbers of near-duplicate groups: of the texts, or of both texts of a pair together."""
    if rows.pairs is None:
        return near_duplicate_groups(rows.texts)
    return near_duplicate_groups([f"{text}\n{pair}" for text, pair in zip(rows.texts, rows.pairs, strict=True)])


def row_strata(rows: LabelledTexts, regression: bool = False) -> np.ndarray:
    """(N,) by what a split is stratified: the class, or the bin of a number; all 0 for rows without labels."""
    if not rows.labels:
        return np.zeros(len(rows), np.int64)
    return number_strata(np.array(rows.labels, float)) if regression else class_strata(rows.labels)


def held_out(groups: np.ndarray, strata: np.ndarray, percentage: float, seed: int) -> np.ndarray:
    """(N,) whether a row is held out: `percentage` % of each stratum, whole groups, equal for equal seeds.

    Groups of more than half of a stratum's held-out rows stay in training, and so do strata of fewer groups than
    100 / percentage (see `stratification`): the percentage is of the other rows.
    """
    stays = np.isin(groups, groups[_of_few_groups(groups, strata, _least(percentage))])
    others = np.flatnonzero(~stays)
    share = percentage / 100
    result = np.zeros(len(groups), bool)
    result[others] = deal(groups[others], strata[others], (1 - share, share), seed) == 1
    return result


def _least(percentage: float) -> int:
    """Groups of a class, of which `percentage` % are one."""
    return max(2, round(100 / percentage))


def _different(groups: np.ndarray, strata: np.ndarray) -> np.ndarray:
    """(strata,) how many groups have a row of each stratum."""
    pairs = np.unique(np.stack([strata, groups]), axis=1)
    return np.bincount(pairs[0])


def _of_few_groups(groups: np.ndarray, strata: np.ndarray, least: int) -> np.ndarray:
    """(N,) whether a row's stratum has fewer than `least` groups."""
    return (_different(groups, strata) < least)[strata]


def split_off(
    rows: LabelledTexts, percentage: float, seed: int, regression: bool = False
) -> tuple[LabelledTexts, LabelledTexts]:
    """(rest, part of `percentage` %): see `held_out`. Regression is stratified by bins of the numbers.

    Raises:
        InputError: there are too few rows of a class that are no near-duplicates, unless two other classes have
            enough, in which case its rows stay in the rest.
    """
    held = _held_out_rows(rows, row_groups(rows), percentage, seed, regression)
    return rows.take(np.flatnonzero(~held)), rows.take(np.flatnonzero(held))


def _held_out_rows(
    rows: LabelledTexts, groups: np.ndarray, percentage: float, seed: int, regression: bool
) -> np.ndarray:
    """(N,) whether a row is held out, checked: see `split_off`."""
    strata = row_strata(rows, regression)
    held = held_out(groups, strata, percentage, seed)

    if len(np.unique(strata[held])) < min(2, strata.max(initial=0) + 1):
        of_stratum = _different(groups, strata)
        fewest = int(of_stratum.argmin())
        label = "" if regression or not rows.labels else f" of label {rows.labels[int(np.argmax(strata == fewest))]!r}"
        raise InputError(
            f"too few texts{label} differ in their words ({of_stratum[fewest]}) to hold {percentage:g} % of them out",
            where=_file_of(rows, "--train_file"),
            remedy="give more rows, or --validation_file and --test_file",
        )
    return held


def three_parts(
    rows: LabelledTexts,
    validation_percentage: float,
    test_percentage: float,
    seed: int,
    regression: bool = False,
    groups: np.ndarray | None = None,
) -> dict[str, LabelledTexts]:
    """`train`, `validation` and `test`, of these shares of all rows: see `split_off`.

    Args:
        groups: (N,) of near-duplicates; None: they are searched for.
    """
    groups = row_groups(rows) if groups is None else groups
    held = _held_out_rows(rows, groups, test_percentage, seed, regression)
    rest, test = rows.take(np.flatnonzero(~held)), rows.take(np.flatnonzero(held))

    share = validation_percentage * 100 / (100 - test_percentage)
    held = _held_out_rows(rest, groups[~held], share, seed, regression)
    train, validation = rest.take(np.flatnonzero(~held)), rest.take(np.flatnonzero(held))
    return {"train": train, "validation": validation, "test": test}


def folds(
    rows: LabelledTexts,
    count: int,
    seed: int,
    validation_percentage: float = 10.0,
    regression: bool = False,
    groups: np.ndarray | None = None,
) -> list[dict[str, LabelledTexts]]:
    """Cross-validation: `train`, `validation` and `test` of each fold; each row is a test row of one fold.

    Near-duplicates are in the same part. Rows of a group of more than half of a class's rows in a test part are
    training rows in every fold.

    Args:
        count: two folds or more.
        validation_percentage: of all rows; the test rows are 100 / count %.
        groups: (N,) of near-duplicates; None: they are searched for.

    Raises:
        InputError: a class has fewer rows than folds, or too few that are no near-duplicates.
    """
    groups = row_groups(rows) if groups is None else groups
    strata = row_strata(rows, regression)
    parts = deal(groups, strata, [1 / count] * count, seed)
    _check_folds(rows, groups, strata, parts, count)

    result = []
    share = validation_percentage / (100 - 100 / count)
    for fold in range(count):
        rest, test = np.flatnonzero(parts != fold), np.flatnonzero(parts == fold)
        validation = deal(groups[rest], strata[rest], (1 - share, share), (seed, fold)) == 1
        result.append({"train": rest[~validation], "validation": rest[validation], "test": test})
    return [{name: rows.take(numbers) for name, numbers in fold.items()} for fold in result]


def _check_folds(rows: LabelledTexts, groups: np.ndarray, strata: np.ndarray, parts: np.ndarray, count: int) -> None:
    """Refuses a stratum that has no row in some fold."""
    remedy = "give more rows of it, remove it, or give fewer --folds"
    for stratum, total in enumerate(np.bincount(strata)):
        own = strata == stratum
        if len(np.unique(parts[own & (parts != STAYS)])) == count:
            continue

        label = f"label {rows.labels[int(np.argmax(own))]!r}" if rows.labels else "the file"
        what = f"{label} has {total} rows, fewer than {count} folds"
        if total >= count:
            different = len(np.unique(groups[own]))
            what = f"{label} has {different} texts that differ in their words, too few for {count} folds"
        raise InputError(what, where=_file_of(rows, "--train_file"), remedy=remedy)


# ---- what is said about them


def describe_groups(groups: np.ndarray) -> str:
    """One line about groups of near-duplicates."""
    sizes = np.bincount(groups)
    several = sizes[sizes > 1]
    if not len(several):
        return "near-duplicates: none"
    return f"near-duplicates: {several.sum():,} rows in {len(several):,} groups, the largest of {several.max():,} rows"


def describe_overlap(train: LabelledTexts, given: dict[str, LabelledTexts]) -> str:
    """One line: how many rows of other files are near-duplicates of training rows.

    Args:
        given: the rows of each other part, by name.
    """
    groups = np.split(
        row_groups(_joined([train, *given.values()])), np.cumsum([len(train), *map(len, given.values())])
    )
    counts = [
        f"{np.isin(own, groups[0]).sum():,} of {len(own):,} {name} rows"
        for name, own in zip(given, groups[1:], strict=False)
    ]
    return f"near-duplicates of training rows: {', '.join(counts)}"


def _joined(several: list[LabelledTexts]) -> LabelledTexts:
    """The texts of all of them, without labels."""
    texts = [text for rows in several for text in rows.texts]
    pairs = [pair for rows in several for pair in rows.pairs or ()]
    return LabelledTexts(texts, [], pairs=pairs or None)


# ---- data of a task


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
    train = splits["train"]
    regression = args.problem_type == "regression"

    percentages = (args.validation_split_percentage, args.test_split_percentage)
    if "test" not in splits and "validation" not in splits:
        splits = three_parts(train, *percentages, args.split_seed, regression)
    elif "test" not in splits:
        splits["train"], splits["test"] = split_off(train, percentages[1], args.split_seed, regression)
    elif "validation" not in splits:
        splits["train"], splits["validation"] = split_off(train, percentages[0], args.split_seed, regression)
    return splits, labels
