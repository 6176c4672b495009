"""Splits of labelled rows: near-duplicates on one side, classes in proportion, folds."""

from collections import Counter

import numpy as np
import pytest

from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.errors import InputError
from bert_hf.finetuning.rows.labelled_texts import LabelledTexts
from bert_hf.finetuning.rows.near_duplicates import near_duplicate_groups
from bert_hf.finetuning.rows.splits import cross_validation_folds, hold_out, row_strata, split_rows
from bert_hf.finetuning.tasks.classification import ClassificationTask

PARTS = ("train", "validation", "test")


def distinct_texts(rng, count):
    return [" ".join(f"word{chr(97 + c)}{chr(97 + d)}" for c, d in rng.integers(0, 26, (8, 2))) for _ in range(count)]


def rows_of(rng, counts):
    """Rows of texts that differ, by class."""
    labels = [label for label, count in counts.items() for _ in range(count)]
    return LabelledTexts(distinct_texts(rng, len(labels)), labels, [("rows.csv", None)] * len(labels))


@pytest.mark.parametrize("percentage", [1, 3, 4, 5, 10, 12.5, 15, 20, 30, 50])
def test_the_share_of_each_class_is_held_out(percentage):
    strata = np.repeat([0, 1, 2], [2000, 600, 200])
    held = hold_out(np.arange(2800), percentage, seed=0, strata=strata)
    expected = np.bincount(strata) * percentage / 100
    assert np.abs(np.bincount(strata[held]) - expected).max() <= 2


def test_groups_stay_together_and_classes_in_proportion(rng):
    groups = np.repeat(np.arange(700), rng.choice([1, 1, 1, 1, 2, 3, 8], 700))
    strata = (rng.permutation(700) % 5 == 0).astype(int)[groups]
    held = hold_out(groups, 20, seed=1, strata=strata)
    assert all(len(np.unique(held[groups == group])) == 1 for group in range(700))
    assert np.bincount(strata[held]) / np.bincount(strata) == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_a_giant_group_stays_in_the_rest(seed):
    """60 % of 1,000 rows are near-duplicates."""
    groups = np.concatenate([np.zeros(600, int), np.arange(1, 401)])
    strata = np.concatenate([np.ones(600, int), np.arange(400) % 2])
    assert not hold_out(groups, 20, seed, strata)[:600].any()


@pytest.mark.parametrize("seed", range(5))
def test_a_class_of_enough_groups_is_on_both_sides(seed):
    strata = np.repeat([0, 1, 2, 3], [1000, 3, 2, 1])
    held = hold_out(np.arange(1006), 10, seed, strata)
    assert np.bincount(strata[held], minlength=4)[1:].tolist() == [1, 1, 0]
    held = hold_out(np.arange(1006), 10, seed, strata, parts=3)
    assert np.bincount(strata[held], minlength=4)[1:].tolist() == [1, 0, 0]


def test_strata(rng):
    assert row_strata(LabelledTexts(list("abcd"), ["spam", "ham", "spam", "eggs"])).tolist() == [2, 1, 2, 0]
    numbers = [list(map(str, own)) for own in (range(60), [0] * 150 + list(range(1, 51)), [1, 2])]
    bins = [row_strata(LabelledTexts(own, own), regression=True) for own in numbers]
    assert bins[0].tolist() == [0] * 20 + [1] * 20 + [2] * 20
    assert (bins[1][:150] == 0).all()  # equal numbers share a bin
    assert bins[2].tolist() == [0, 0]


def three_parts(rows, validation, test, seed=0):
    percentages = {"test": test, "validation": validation}
    return split_rows(rows, near_duplicate_groups(rows.joined()), percentages, seed, "a.csv", row_strata)


def folds_of(rows, count, seed):
    return cross_validation_folds(rows, near_duplicate_groups(rows.joined()), count, seed, 10.0, False)


def test_percentages_are_of_all_rows(rng):
    parts = three_parts(rows_of(rng, {"ham": 300, "spam": 100}), 15, 30)
    assert {name: Counter(rows.labels) for name, rows in parts.items()} == {
        "train": {"ham": 165, "spam": 55},
        "validation": {"ham": 45, "spam": 15},
        "test": {"ham": 90, "spam": 30},
    }


def test_each_row_is_tested_once_and_folds_are_stratified(rng):
    rows = rows_of(rng, {"ham": 200, "spam": 50})
    made = folds_of(rows, 5, seed=0)
    assert sorted(text for parts in made for text in parts["test"].texts) == sorted(rows.texts)
    for parts in made:
        assert sorted(text for name in PARTS for text in parts[name].texts) == sorted(rows.texts)
        counts = [Counter(parts[name].labels) for name in PARTS]
        assert counts == [{"ham": 140, "spam": 35}, {"ham": 20, "spam": 5}, {"ham": 40, "spam": 10}]
    assert made == folds_of(rows, 5, seed=0) != folds_of(rows, 5, seed=1)


def test_near_duplicates_are_in_one_part_of_each_fold(rng):
    rows = rows_of(rng, {"ham": 200, "spam": 50})
    copies = [f"{text.upper()} {number}!" for number, text in enumerate(rows.texts[::4])]
    everything = LabelledTexts([*rows.texts, *copies], [*rows.labels, *rows.labels[::4]])
    for parts in folds_of(everything, 5, seed=0):
        words = [{text.lower().rstrip("0123456789! ") for text in parts[name].texts} for name in PARTS]
        assert sum(map(len, words)) == 250


def test_both_texts_of_a_pair_decide_and_stay_together(rng):
    """The same premise with another hypothesis is not a near-duplicate, unless most words are the same."""
    first, second, third, fourth = distinct_texts(rng, 4)
    rows = LabelledTexts([first, first, first.upper(), third], ["a"] * 4, pairs=[second, third, second, fourth])
    assert near_duplicate_groups(rows.joined()).tolist() == [0, 1, 0, 2]

    rows = rows_of(rng, {"no": 30, "yes": 30})
    rows.pairs = [f"pair of {text}" for text in rows.texts]
    for own in folds_of(rows, 3, seed=0)[0].values():
        assert own.pairs == [f"pair of {text}" for text in own.texts]


def test_too_few_rows_that_differ(rng):
    with pytest.raises(InputError, match="label 'spam' has 4 rows that differ in their words, too few for 5 folds"):
        folds_of(rows_of(rng, {"ham": 20, "spam": 4}), 5, seed=0)

    rows = rows_of(rng, {"ham": 40})
    copies = [f"win {number} now and here" for number in range(9)]
    rows = LabelledTexts([*rows.texts, *copies], rows.labels + ["spam"] * 9)
    with pytest.raises(InputError, match="too few rows differ in their words to hold out 20 %"):
        three_parts(rows, 10, 20)


def test_training_rows_in_given_files_are_noted(tmp_path, caplog):
    (tmp_path / "train.tsv").write_text("".join(f"ham\tsee you at {i}\nspam\tprize number {i}\n" for i in range(9)))
    (tmp_path / "test.tsv").write_text("ham\tSee you at 77!\nspam\tquite another prize\n")
    files = {f"{name}_file": [str(tmp_path / f"{name}.tsv")] for name in ("train", "test")}
    ClassificationTask(ClassificationArguments(validation_file=files["test_file"], **files), None)
    for part in ("validation", "test"):
        assert f"1 of 2 {part} rows have the same words as a training row" in caplog.text
