"""Dealing rows to parts: shares, classes, groups, and the bound on a group."""

import numpy as np
import pytest

from bert_hf.finetuning.splitting.stratification import STAYS, class_strata, deal, number_strata


def table(parts, strata):
    """(parts, classes) rows."""
    return np.array(
        [np.bincount(strata[parts == part], minlength=strata.max() + 1) for part in range(parts.max() + 1)]
    )


def test_single_rows_are_dealt_exactly():
    strata = np.repeat([0, 1, 2], [100, 50, 30])
    parts = deal(np.arange(180), strata, (0.7, 0.1, 0.2), seed=0)
    assert table(parts, strata).tolist() == [[70, 35, 21], [10, 5, 3], [20, 10, 6]]


def test_what_is_left_after_rounding_fills_the_smaller_parts():
    """Thirty classes of seven rows: each part gets one or two of each, and all parts are of equal size."""
    strata = np.repeat(np.arange(30), 7)
    rows = table(deal(np.arange(210), strata, [0.2] * 5, seed=3), strata)
    assert rows.min() == 1
    assert rows.max() == 2
    assert rows.sum(axis=1).tolist() == [42] * 5


@pytest.mark.parametrize("shares", [(0.8, 0.2), (0.7, 0.1, 0.2), (0.2,) * 5])
def test_groups_stay_together_and_parts_are_balanced(rng, shares):
    groups = np.repeat(np.arange(700), rng.choice([1, 1, 1, 1, 2, 3, 8], 700))
    strata = (rng.permutation(700) % 5 == 0).astype(int)[groups]
    parts = deal(groups, strata, shares, seed=1)
    assert all(len(np.unique(parts[groups == group])) == 1 for group in range(700))
    wanted = np.outer(shares, np.bincount(strata))
    assert np.abs(table(parts, strata) - wanted).max() <= 1


def test_equal_seeds_deal_equally_and_others_do_not(rng):
    groups, strata = np.arange(200) // 2, rng.integers(0, 2, 200)
    parts = deal(groups, strata, (0.8, 0.2), seed=5)
    assert (parts == deal(groups, strata, (0.8, 0.2), seed=5)).all()
    assert (parts != deal(groups, strata, (0.8, 0.2), seed=6)).any()


def test_a_giant_group_stays_and_the_others_are_dealt():
    """60 % of 1,000 rows are near-duplicates; the shares are those of the other 400."""
    groups = np.concatenate([np.zeros(600, int), np.arange(1, 401)])
    strata = np.concatenate([np.ones(600, int), np.arange(400) % 2])
    parts = deal(groups, strata, (0.8, 0.2), seed=0)
    assert (parts[:600] == STAYS).all()
    assert table(parts[600:], strata[600:]).tolist() == [[160, 160], [40, 40]]


@pytest.mark.parametrize(("size", "stays"), [(10, False), (11, True)])
def test_the_bound_is_half_of_a_class_in_the_smallest_part(size, stays):
    """100 rows of a class, of which a part of 20 % gets 20: a group of ten is the largest that is dealt."""
    groups = np.concatenate([np.zeros(size, int), np.arange(1, 101 - size), np.arange(1000, 1900)])
    strata = np.repeat([0, 1], [100, 900])
    seen = {int(deal(groups, strata, (0.8, 0.2), seed)[0]) for seed in range(30)}
    assert seen == ({STAYS} if stays else {0, 1})


def test_groups_without_single_rows(rng):
    """Every text has a near-duplicate."""
    groups = np.repeat(np.arange(300), 3)
    strata = rng.integers(0, 2, 900)
    parts = deal(groups, strata, [0.2] * 5, seed=0)
    assert np.abs(table(parts, strata) / np.bincount(strata) - 0.2).max() < 0.05


def test_each_part_gets_a_row_of_a_rare_class():
    strata = np.repeat([0, 1], [1000, 3])
    assert table(deal(np.arange(1003), strata, (0.7, 0.1, 0.2), seed=0), strata)[:, 1].tolist() == [1, 1, 1]


def test_strata():
    assert class_strata(["spam", "ham", "spam", "eggs"]).tolist() == [2, 1, 2, 0]
    assert number_strata(np.arange(60.0)).tolist() == [0] * 20 + [1] * 20 + [2] * 20
    bins = number_strata(np.array([0.0] * 150 + list(range(1, 51))))
    assert (bins[:150] == 0).all()  # equal numbers share a bin
    assert bins.max() >= 1
    assert number_strata(np.array([1.0, 2.0])).tolist() == [0, 0]
