"""Deals rows to parts of given shares: each class in proportion, the rows of a group to the same part.

    groups = near_duplicate_groups(texts)
    parts = deal(groups, class_strata(labels), (0.7, 0.1, 0.2), seed=0)      # (N,) 0, 1, 2 or STAYS

Rows that are alone in their group are dealt last and even out what groups of several left uneven. So that there are
enough of them, the size of a group is bounded.
"""

from collections.abc import Sequence

import numpy as np

STAYS = -1  # rows of too large a group, or of too rare a class: they belong into training
MAX_GROUP_SHARE = 0.5  # largest group, as a share of the rows that the smallest part gets of a class
_ROWS_OF_A_BIN = 20  # of measured numbers
_MAX_BINS = 10


def class_strata(labels: Sequence[str]) -> np.ndarray:
    """(N,) a number for each class: [1, 0, 1] of ["spam", "ham", "spam"]."""
    return np.unique(np.array(labels), return_inverse=True)[1]


def number_strata(numbers: np.ndarray) -> np.ndarray:
    """(N,) bins of about equally many rows, at most ten, of 20 rows or more; equal numbers share a bin."""
    bins = int(np.clip(len(numbers) // _ROWS_OF_A_BIN, 1, _MAX_BINS))
    edges = np.quantile(numbers, np.arange(1, bins) / bins)
    return np.unique(np.searchsorted(edges, numbers, side="left"), return_inverse=True)[1]


def deal(
    groups: np.ndarray, strata: np.ndarray, shares_of_parts: Sequence[float], seed: int | Sequence[int]
) -> np.ndarray:
    """(N,) the part of each row, equal for equal seeds; `STAYS` for the rows of too large a group.

    A group is too large where it has more than half of the rows that the smallest part would get of some class (but a
    single row never is). The shares are those of the other rows. Each part gets a row of each class that has as many
    single rows as there are parts.

    Args:
        groups: (N,) numbers; rows of the same one are kept together.
        strata: (N,) class numbers 0, 1, …
        shares_of_parts: their sum is 1.
    """
    rng = np.random.default_rng(seed)
    shares = np.array(shares_of_parts, float)
    group_of_row = np.unique(groups, return_inverse=True)[1]
    single = np.bincount(group_of_row, minlength=1)[group_of_row] == 1
    classes = int(strata.max(initial=0)) + 1

    # Groups of several rows
    parts = np.full(len(groups), STAYS)
    grouped = np.flatnonzero(~single)
    numbers = np.unique(group_of_row[grouped], return_inverse=True)[1]
    counts = np.zeros((int(numbers.max(initial=-1)) + 1, classes), np.int64)  # (groups, classes) rows
    np.add.at(counts, (numbers, strata[grouped]), 1)
    part_of_group = _deal_groups(counts, np.bincount(strata, minlength=classes), shares, rng)
    parts[grouped] = part_of_group[numbers]

    # Single rows fill what each part lacks of each class, the rarest class first
    have = np.zeros((len(shares), classes))
    dealt = parts != STAYS
    np.add.at(have, (parts[dealt], strata[dealt]), 1)
    totals = np.bincount(strata[dealt | single], minlength=classes)
    for number in np.argsort(totals, kind="stable"):
        rows = rng.permutation(np.flatnonzero(single & (strata == number)))
        taken = _apportion(len(rows), shares * totals[number] - have[:, number], have, number, shares)
        parts[rows] = np.repeat(np.arange(len(shares)), taken)
        have[:, number] += taken
    return parts


def _deal_groups(counts: np.ndarray, totals: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(groups,) the part of each group of several rows, the largest groups first; `STAYS` for too large ones.

    Args:
        counts: (groups, classes) rows. totals: (classes,) rows of these groups and single ones.
    """
    stays = _too_large(counts, totals, shares.min())
    lacking = np.outer(shares, counts[~stays].sum(axis=0))  # (parts, classes) of all rows of such groups
    result = np.full(len(counts), STAYS)

    order = rng.permutation(np.flatnonzero(~stays))
    for group in order[np.argsort(-counts[order].sum(axis=1), kind="stable")]:
        part = _draw_part(counts[group], lacking, rng)
        lacking[part] -= counts[group]
        result[group] = part
    return result


def _too_large(counts: np.ndarray, totals: np.ndarray, smallest: float) -> np.ndarray:
    """(groups,) whether a group exceeds the bound, which depends on the rows without such groups.

    Args:
        counts: (groups, classes) rows. totals: (classes,) rows of these groups and single ones.
    """
    stays = np.zeros(len(counts), bool)
    while True:
        dealt = totals - counts[stays].sum(axis=0)
        bound = np.maximum(1, np.floor(MAX_GROUP_SHARE * smallest * dealt))
        more = (counts > bound).any(axis=1) & ~stays
        if not more.any():
            return stays
        stays |= more


def _draw_part(group: np.ndarray, lacking: np.ndarray, rng: np.random.Generator) -> int:
    """A part for a group of several rows: drawn in proportion to what the parts lack of its classes.

    Args:
        group: (classes,) its rows. lacking: (parts, classes); negative where a part has more than its share.
    """
    weights = np.maximum(lacking, 0) @ group
    if not weights.sum():
        return int(np.argmax(lacking @ group))
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def _apportion(rows: int, lacking: np.ndarray, have: np.ndarray, number: int, shares: np.ndarray) -> np.ndarray:
    """(parts,) how many of the rows of a class each part gets: as it lacks, by the largest remainder.

    Args:
        lacking: (parts,) rows of the class. have: (parts, classes) rows dealt so far. number: of the class.
    """
    # A part without any row of the class gets one, where there are enough
    taken = np.zeros(len(lacking), np.int64)
    without = have[:, number] == 0
    if without.sum() <= rows:
        taken += without

    left = rows - taken.sum()
    lacking = np.maximum(lacking - taken, 0)
    if not left or not lacking.sum():
        taken[np.argmax(shares)] += left
        return taken
    exact = lacking * (left / lacking.sum())
    taken += np.floor(exact).astype(np.int64)

    # The rest after rounding goes to the largest remainders, of equal ones the part with the fewest rows for its share
    fullness = (have.sum(axis=1) + taken) / shares
    order = np.lexsort((fullness, -np.round(exact % 1, 9)))
    taken[order[: rows - taken.sum()]] += 1
    return taken
