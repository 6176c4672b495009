"""Splits labelled rows into training, validation and test rows, near-duplicates in the same part."""

from collections.abc import Mapping, Sequence

import numpy as np

from bert_hf.errors import InputError
from bert_hf.finetuning.labelled_texts import LabelledTexts
from bert_hf.finetuning.splitting.near_duplicates import near_duplicate_groups
from bert_hf.finetuning.splitting.stratification import STAYS, class_strata, deal, number_strata

# ---- rows to parts


def row_groups(rows: LabelledTexts) -> np.ndarray:
    """(N,) numbers of near-duplicate groups: of the texts, or of both texts of a pair together."""
    return near_duplicate_groups(rows.joined())


def row_strata(rows: LabelledTexts, regression: bool = False) -> np.ndarray:
    """(N,) by what a split is stratified: the class, or the bin of a number; all 0 for rows without labels."""
    if rows.labels is None:
        return np.zeros(len(rows), np.int64)
    return number_strata(rows.numbers()) if regression else class_strata(rows.labels)


def held_out(groups: np.ndarray, strata: np.ndarray, percentage: float, seed: int) -> np.ndarray:
    """(N,) whether a row is held out: `percentage` % of each stratum, whole groups, equal for equal seeds.

    Groups of more than half of a stratum's held-out rows stay in training, and so do strata of fewer groups than
    100 / percentage (see `stratification`): the percentage is of the other rows.
    """
    fewest = max(2, round(100 / percentage))  # groups of which `percentage` % are a whole one: 10 for 10 %
    of_few_groups = (_different(groups, strata) < fewest)[strata]
    stays = np.isin(groups, groups[of_few_groups])
    others = np.flatnonzero(~stays)
    share = percentage / 100
    result = np.zeros(len(groups), bool)
    result[others] = deal(groups[others], strata[others], (1 - share, share), seed) == 1
    return result


def draw_groups(groups: np.ndarray, most: int, seed: int) -> np.ndarray:
    """(N,) whether a row is held out: whole groups in random order, each that still fits into `most` rows."""
    sizes = np.bincount(groups)
    drawn = np.zeros(len(sizes), bool)
    left = most
    for group in np.random.default_rng(seed).permutation(len(sizes)):
        if sizes[group] <= left:
            drawn[group] = True
            left -= int(sizes[group])
    return drawn[groups]


def _different(groups: np.ndarray, strata: np.ndarray) -> np.ndarray:
    """(strata,) how many groups have a row of each stratum."""
    pairs = np.unique(np.stack([strata, groups]), axis=1)
    return np.bincount(pairs[0])


def split_off(
    rows: LabelledTexts, percentage: float, seed: int, regression: bool = False
) -> tuple[LabelledTexts, LabelledTexts]:
    """(rest, part of `percentage` %): see `held_out`. Regression is stratified by bins of the numbers.

    Raises:
        InputError: there are too few rows of a class that are no near-duplicates, unless two other classes have
            enough, in which case its rows stay in the rest.
    """
    held = _held_out_rows(rows, row_groups(rows), percentage, seed, regression)
    return _divided(rows, held)


def _divided(rows: LabelledTexts, held: np.ndarray) -> tuple[LabelledTexts, LabelledTexts]:
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
        label = ""
        if not regression and rows.labels is not None:
            label = f" of label {rows.labels[int(np.argmax(strata == fewest))]!r}"
        raise InputError(
            f"too few texts{label} differ in their words ({of_stratum[fewest]}) to hold {percentage:g} % of them out",
            where=rows.file(),
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
    rest, test = _divided(rows, held)

    share = validation_percentage * 100 / (100 - test_percentage)
    train, validation = _divided(rest, _held_out_rows(rest, groups[~held], share, seed, regression))
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

        label = f"label {rows.labels[int(np.argmax(own))]!r}" if rows.labels is not None else "the file"
        what = f"{label} has {total} rows, fewer than {count} folds"
        if total >= count:
            different = len(np.unique(groups[own]))
            what = f"{label} has {different} texts that differ in their words, too few for {count} folds"
        raise InputError(what, where=rows.file(), remedy=remedy)


# ---- what is said about them


def describe_groups(groups: np.ndarray) -> str:
    """One line about groups of near-duplicates."""
    sizes = np.bincount(groups)
    several = sizes[sizes > 1]
    if not len(several):
        return "near-duplicates: none"
    return f"near-duplicates: {several.sum():,} rows in {len(several):,} groups, the largest of {several.max():,} rows"


def describe_overlap(train: Sequence[str], given: Mapping[str, Sequence[str]]) -> str:
    """One line: how many rows of other parts are near-duplicates of training rows.

    Args:
        train: the text of each row. given: likewise of each other part, by name.
    """
    groups = near_duplicate_groups([*train, *(text for texts in given.values() for text in texts)])
    groups = np.split(groups, np.cumsum([len(train), *map(len, given.values())]))
    counts = [
        f"{np.isin(own, groups[0]).sum():,} of {len(own):,} {name} rows"
        for name, own in zip(given, groups[1:], strict=False)
    ]
    return f"near-duplicates of training rows: {', '.join(counts)}"
