"""Splits rows into training, validation and test rows: near-duplicates in the same part, classes in proportion.

Uses scikit-learn's `StratifiedGroupKFold`: 10 % of the rows are one of ten folds. Folds are written as JSON lines:
`fold-0/train.jsonl`, `validation.jsonl`, `test.jsonl`, and so on. Each row has `text`, `label` and, where it is a
pair, `text_pair`. `split.json` marks the folder as one of ours, and has the options.
"""

import functools
import json
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedGroupKFold

from bert_hf.config.arguments import OutputArguments
from bert_hf.config.files import check_writable, write_durably
from bert_hf.config.finetuning_arguments import SplitArguments
from bert_hf.errors import InputError
from bert_hf.finetuning.heads.classification import ClassificationHead
from bert_hf.finetuning.heads.head import rows_of_files
from bert_hf.finetuning.rows.labelled_texts import REGRESSION, LabelledTexts, as_number, names_of
from bert_hf.training.output_folder import LOCK, claim_output_dir, release_lock, take_lock

_MAX_FOLDS = 20  # of which some are held out: 15 % are three of them
_MAX_BINS, _ROWS_PER_BIN = 10, 20  # of the numbers of a regression
_MAX_BUNDLES = 200  # per class

MANIFEST = "split.json"
FOLD_FILES = (MANIFEST, "fold-*/train.jsonl", "fold-*/validation.jsonl", "fold-*/test.jsonl")

# ---- strata


def row_strata(rows: LabelledTexts, regression: bool = False) -> np.ndarray:
    """Return (N,) the class of each row: [1, 0, 1] of "spam", "ham", "spam".

    Of several labels per row: the one that the fewest rows have. Of a regression: its quantile bin, of at most ten, of
    20 rows or more; equal numbers share a bin.
    """
    labels = rows.required_labels()
    counts = Counter(name for label in labels for name in names_of(label))
    rarest = [min(names_of(label), key=lambda name: (counts[name], name), default="") for label in labels]
    values = np.array(rarest)
    if regression:
        numbers = rows.numbers()
        bins = int(np.clip(len(numbers) // _ROWS_PER_BIN, 1, _MAX_BINS))
        values = np.searchsorted(np.quantile(numbers, np.arange(1, bins) / bins), numbers)
    return np.unique(values, return_inverse=True)[1]


# ---- rows held out


def hold_out(groups: np.ndarray, percentage: float, seed: int, strata: np.ndarray, parts: int = 2) -> np.ndarray:
    """Return (N,) bool, true where a row is held out: `percentage` % of the rows, whole groups, classes in proportion.

    A group that is much larger than the share stays in the rest. A class of fewer groups than `parts` does, too; of
    every other class at least one group is held out, and one is not. No row is held out where all are in one group.

    Args:
        strata: (N,) class numbers 0, 1, ….
        parts: that will have rows of every class: 3 where the rest will be split again.
    """
    # The rows held out are some of several equal folds: 10 % are one of ten, 15 % three of twenty
    share = Fraction(percentage / 100).limit_denominator(_MAX_FOLDS)
    if percentage < 100 / _MAX_FOLDS:
        share = Fraction(1, round(100 / percentage))
    most_folds = min(len(np.unique(groups)), int(np.bincount(strata).max()))  # a group and a row of a class in each
    folds = min(share.denominator, most_folds)
    if folds < 2:
        return np.zeros(len(groups), bool)

    fold_of_row = _assign_folds(groups, strata, folds, seed)
    counts = np.zeros((folds, strata.max() + 1))  # rows of each class in each fold
    np.add.at(counts, (fold_of_row, strata), 1)

    # The folds that together come closest to the share of each class, one after the other
    chosen: list[int] = []
    for number in range(1, max(1, round(folds * share)) + 1):
        target = counts.sum(axis=0) * number / folds
        distances = np.abs(counts[chosen].sum(axis=0) + counts - target).sum(axis=1)
        distances[chosen] = np.inf
        chosen.append(int(distances.argmin()))
    return _balance_rare_classes(np.isin(fold_of_row, chosen), groups, strata, parts)


def _assign_folds(groups: np.ndarray, strata: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """Return (N,) the number of each row's fold, by StratifiedGroupKFold over `_bundles`."""
    state = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))
    bundles = _bundles(groups, strata, state)
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=state)
    fold_of_row = np.zeros(len(groups), np.int64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)  # callers handle rare classes
        for fold, (_, rows) in enumerate(splitter.split(strata, strata, bundles)):
            fold_of_row[rows] = fold
    return fold_of_row


def _bundles(groups: np.ndarray, strata: np.ndarray, state: np.random.RandomState) -> np.ndarray:
    """Return (N,) group numbers, where rows without near-duplicates form at most about 200 bundles of each class.

    StratifiedGroupKFold places one group after the other, which takes minutes for 100,000 rows.
    """
    alone = np.bincount(groups)[groups] == 1
    bundles = groups.copy()
    for stratum in range(strata.max() + 1):
        rows = state.permutation(np.flatnonzero(alone & (strata == stratum)))
        size = max(1, len(rows) // _MAX_BUNDLES)
        bundles[rows] = groups[rows][np.arange(len(rows)) // size * size]  # the number of its first row's group
    return bundles


def _balance_rare_classes(held_out: np.ndarray, groups: np.ndarray, strata: np.ndarray, parts: int) -> np.ndarray:
    """Return `held_out` with each class of `parts` groups or more on both sides, a rarer class not held out at all."""
    held_out = held_out.copy()
    sizes = np.bincount(groups)
    for stratum in np.argsort(-np.bincount(strata), kind="stable"):  # the rarest last
        class_groups = np.unique(groups[strata == stratum])
        sides = held_out[strata == stratum]
        smallest = class_groups[sizes[class_groups].argmin()]
        if len(class_groups) < parts:
            held_out[np.isin(groups, class_groups)] = False
        elif not sides.any() or sides.all():  # the class is on one side: its smallest group changes sides
            held_out[groups == smallest] = not sides.any()
    return held_out


# ---- parts


def take(rows: Any, numbers: np.ndarray) -> Any:
    """Select rows by index: of a list, or of an object with a method `take`."""
    if isinstance(rows, Sequence):
        return [rows[number] for number in numbers]
    return rows.take(numbers)


def split_rows(
    rows: Any,
    groups: np.ndarray,
    percentages: dict[str, float],
    seed: int,
    where: str,
    strata_of: Callable[[Any], np.ndarray],
) -> dict[str, Any]:
    """Return `train` and the parts of these percentages of all rows, held out one after the other (`hold_out`).

    `strata_of` gives the strata of the rows that are left, `where` is their source for error messages.
    """
    parts = {}
    left = 100.0
    for number, (name, percentage) in enumerate(percentages.items()):
        strata = strata_of(rows)
        remaining = len(percentages) - number + 1  # parts: this one, those after it, and `train`
        held_out = hold_out(groups, percentage * 100 / left, seed, strata, remaining)
        if len(np.unique(strata[held_out])) < min(2, strata.max(initial=0) + 1):
            what = f"too few rows differ in their words to hold out {percentage:.3g} %"
            raise InputError(what, where=where, remedy="give more rows, or --validation_file and --test_file")

        parts[name] = take(rows, np.flatnonzero(held_out))
        rows = take(rows, np.flatnonzero(~held_out))
        groups = np.unique(groups[~held_out], return_inverse=True)[1]
        left -= percentage
    return {"train": rows, **{name: parts[name] for name in reversed(percentages)}}


def cross_validation_folds(
    rows: LabelledTexts, groups: np.ndarray, count: int, seed: int, validation_percentage: float, regression: bool
) -> list[dict[str, LabelledTexts]]:
    """Return `train`, `validation` and `test` of each fold; each row is a test row of one fold.

    The validation rows are `validation_percentage` % of all rows, the test rows 100 / count %.
    """
    strata = row_strata(rows, regression)
    for stratum in range(strata.max(initial=0) + 1):
        in_class = strata == stratum
        if (different := len(np.unique(groups[in_class]))) < count:
            label = "the file" if regression else f"label {rows.required_labels()[int(in_class.argmax())]!r}"
            what = f"{label} has {different} rows that differ in their words, too few for {count} folds"
            raise InputError(what, where=rows.file(), remedy="give more rows, or fewer --folds")

    fold_of_row = _assign_folds(groups, strata, count, seed)
    percentage = validation_percentage / (1 - 1 / count)  # of the rows beside the test rows
    folds = []
    for fold in range(count):
        rest, test = np.flatnonzero(fold_of_row != fold), np.flatnonzero(fold_of_row == fold)
        rest_groups = np.unique(groups[rest], return_inverse=True)[1]
        validation = hold_out(rest_groups, percentage, seed + fold, strata[rest])
        parts = {"train": rest[~validation], "validation": rest[validation], "test": test}
        folds.append({name: rows.take(indices) for name, indices in parts.items()})
    return folds


# ---- files of folds


def read_rows_to_split(split_args: SplitArguments) -> LabelledTexts:
    """Return the rows that are to be split; labels that cannot be trained on are an error here already."""
    head = ClassificationHead(None, vars(split_args))
    rows = head.read(list(rows_of_files(head, split_args.train_file or [], split_args.encoding)))
    if split_args.problem_type == REGRESSION:
        rows.numbers()  # raises if a label is not a number
    else:
        rows.check_classes(split_args.problem_type is not None)
    return rows


def read_inputs(split_args: SplitArguments, output_args: OutputArguments) -> Iterator[str]:
    """Try the folder and read the rows, as `split.py` does at its start; yield lines for `--check`."""
    yield check_writable(str(output_args.output_dir))
    yield f"rows: {len(read_rows_to_split(split_args)):,}"


def make_folds(rows: LabelledTexts, groups: np.ndarray, split_args: SplitArguments) -> list[dict[str, LabelledTexts]]:
    """Return the parts of each of --folds, or of a single split; `groups` (N,): near-duplicates."""
    seed, validation = split_args.split_seed, split_args.validation_split_percentage
    regression = split_args.problem_type == REGRESSION
    if split_args.folds > 1:
        return cross_validation_folds(rows, groups, split_args.folds, seed, validation, regression)
    percentages = {"test": split_args.test_split_percentage, "validation": validation}
    strata_of = functools.partial(row_strata, regression=regression)
    return [split_rows(rows, groups, percentages, seed, rows.file(), strata_of)]


def write_folds(
    output_dir: str | None, folds: list[dict[str, LabelledTexts]], split_args: SplitArguments, overwrite: bool = False
) -> None:
    """Write all folds, with `overwrite` in place of an earlier split. Of two processes only one succeeds."""
    folder = claim_output_dir(output_dir, overwrite=False, ours=FOLD_FILES, resumable=overwrite)  # removes nothing yet
    folder.mkdir(parents=True, exist_ok=True)
    take_lock(folder)
    claim_output_dir(str(folder), overwrite, ours=FOLD_FILES)  # again: another process may have written before
    for old in folder.glob("fold-*"):
        shutil.rmtree(old)
    write_durably(folder / MANIFEST, json.dumps(asdict(split_args), indent=1, ensure_ascii=False) + "\n")

    for number, parts in enumerate(folds):
        fold = folder / f"fold-{number}"
        fold.mkdir()
        for name, rows in parts.items():
            lines = [_json_line(rows, row, split_args.problem_type == REGRESSION) for row in range(len(rows))]
            (fold / f"{name}.jsonl").write_bytes(b"".join(lines))
    (folder / LOCK).unlink()
    release_lock()


def _json_line(rows: LabelledTexts, number: int, regression: bool) -> bytes:
    row: dict = {"text": rows.texts[number]}
    if rows.pairs is not None:
        row["text_pair"] = rows.pairs[number]
    label = rows.required_labels()[number]
    row["label"] = as_number(label) if regression else label
    return (json.dumps(row, ensure_ascii=False) + "\n").encode()
