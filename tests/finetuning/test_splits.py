"""Splits of labelled rows: near-duplicates on one side, classes in proportion, folds, and what is said about them."""

from collections import Counter
from pathlib import Path

import fsspec
import numpy as np
import pytest

from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.config.split_arguments import SplitArguments
from bert_hf.errors import InputError
from bert_hf.finetuning.labelled_parts import class_names, read_all_parts
from bert_hf.finetuning.labelled_texts import LabelledTexts
from bert_hf.finetuning.splitting import fold_files
from bert_hf.finetuning.splitting.splits import (
    describe_groups,
    describe_overlap,
    folds,
    held_out,
    row_groups,
    row_strata,
    split_off,
    three_parts,
)

PARTS = ("train", "validation", "test")
MESSAGES = Path(__file__).parents[2] / "src/bert_hf/finetuning/messages/spam.tsv"


def distinct_texts(rng, count):
    return [" ".join(f"word{chr(97 + c)}{chr(97 + d)}" for c, d in rng.integers(0, 26, (8, 2))) for _ in range(count)]


def rows_of(rng, counts):
    """Rows of texts that differ, by class."""
    labels = [label for label, count in counts.items() for _ in range(count)]
    return LabelledTexts(distinct_texts(rng, len(labels)), labels)


def test_a_fold_is_stratified_and_each_row_is_tested_once(rng):
    rows = rows_of(rng, {"ham": 200, "spam": 50})
    made = folds(rows, 5, seed=0)
    assert sorted(text for parts in made for text in parts["test"].texts) == sorted(rows.texts)
    for parts in made:
        assert sorted(text for name in PARTS for text in parts[name].texts) == sorted(rows.texts)
        counts = [Counter(parts[name].labels) for name in PARTS]
        assert counts == [{"ham": 140, "spam": 35}, {"ham": 20, "spam": 5}, {"ham": 40, "spam": 10}]


def test_near_duplicates_are_in_one_part_of_each_fold(rng):
    rows = rows_of(rng, {"ham": 200, "spam": 50})
    copies = [f"{text.upper()} {number}!" for number, text in enumerate(rows.texts[::4])]
    everything = LabelledTexts([*rows.texts, *copies], [*rows.labels, *rows.labels[::4]])
    for parts in folds(everything, 5, seed=0):
        words = [{text.lower().rstrip("0123456789! ") for text in parts[name].texts} for name in PARTS]
        assert sum(map(len, words)) == 250


def test_equal_seeds_split_equally_and_others_do_not(rng):
    rows = rows_of(rng, {"ham": 60, "spam": 40})
    assert folds(rows, 3, seed=1) == folds(rows, 3, seed=1) != folds(rows, 3, seed=2)
    assert three_parts(rows, 10, 20, seed=1) == three_parts(rows, 10, 20, seed=1) != three_parts(rows, 10, 20, seed=2)


def test_a_giant_group_stays_in_training(rng):
    """60 % of the rows are copies of one message: no part of a fold but training has one."""
    rows = rows_of(rng, {"ham": 200, "spam": 200})
    campaign = [f"Call {number} now, you have won a prize and a holiday" for number in range(600)]
    everything = LabelledTexts([*campaign, *rows.texts], ["spam"] * 600 + rows.labels)
    rest, part = split_off(everything, 20, seed=0)
    assert Counter(part.labels) == {"ham": 40, "spam": 40}
    for parts in [*folds(everything, 5, seed=0), three_parts(everything, 10, 20, seed=0)]:
        assert sum(text.startswith("Call") for text in parts["train"].texts) == 600
        assert Counter(parts["test"].labels) == {"ham": 40, "spam": 40}
        assert Counter(parts["validation"].labels) == {"ham": 20, "spam": 20} or len(parts["validation"]) == 40
    assert len(rest) == 920


def test_percentages_are_of_all_rows(rng):
    parts = three_parts(rows_of(rng, {"ham": 300, "spam": 100}), 15, 30, seed=0)
    assert {name: Counter(rows.labels) for name, rows in parts.items()} == {
        "train": {"ham": 165, "spam": 55},
        "validation": {"ham": 45, "spam": 15},
        "test": {"ham": 90, "spam": 30},
    }


def test_both_texts_of_a_pair_decide(rng):
    """The same premise with other hypotheses is no near-duplicate, unless most words are the same."""
    first, second, third, fourth = distinct_texts(rng, 4)
    rows = LabelledTexts([first, first, first.upper(), third], ["a"] * 4, pairs=[second, third, second, fourth])
    assert row_groups(rows).tolist() == [0, 1, 0, 2]


def test_pairs_are_split_with_their_texts(rng):
    rows = rows_of(rng, {"no": 30, "yes": 30})
    rows.pairs = [f"pair of {text}" for text in rows.texts]
    for parts in folds(rows, 3, seed=0):
        for own in parts.values():
            assert own.pairs == [f"pair of {text}" for text in own.texts]


def test_rare_classes_stay_in_training(rng):
    rows = rows_of(rng, {"a": 100, "b": 100, "c": 4, "d": 1})
    rest, part = split_off(rows, 20, seed=0)
    assert Counter(part.labels) == {"a": 20, "b": 20}
    assert Counter(rest.labels) == {"a": 80, "b": 80, "c": 4, "d": 1}


def test_numbers_are_split_by_bins(rng):
    rows = LabelledTexts(distinct_texts(rng, 400), [str(number) for number in rng.gamma(1.0, 1.0, 400)])
    assert row_strata(rows, regression=True).max() == 9
    _, part = split_off(rows, 20, seed=0, regression=True)
    assert len(part) == 80
    all_numbers, part_numbers = np.array(rows.labels, float), np.array(part.labels, float)
    for share in (0.25, 0.5, 0.75):
        assert np.mean(part_numbers <= np.quantile(all_numbers, share)) == pytest.approx(share, abs=0.05)


def test_rows_without_labels_are_split(rng):
    _, part = split_off(LabelledTexts(distinct_texts(rng, 50), None), 20, seed=0)
    assert len(part) == 10


def test_arrays_of_other_tasks_are_split():
    """Questions of one document are a group; there are no classes."""
    held = held_out(np.repeat(np.arange(50), 2), np.zeros(100, int), 10, seed=0)
    assert held.sum() == 10
    assert (held[::2] == held[1::2]).all()


# ---- errors


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"ham": 20, "spam": 4}, "label 'spam' has 4 rows, fewer than 5 folds; give more rows of it, remove it, or"),
        ({"ham": 20, "eggs": 20, "spam": 1}, "label 'spam' has 1 rows, fewer than 5 folds"),
    ],
)
def test_a_class_of_fewer_rows_than_folds_is_named(rng, counts, message):
    with pytest.raises(InputError) as caught:
        folds(rows_of(rng, counts), 5, seed=0)
    assert message in str(caught.value)


def test_near_duplicates_do_not_make_up_for_rows(rng):
    rows = rows_of(rng, {"ham": 40})
    copies = LabelledTexts(
        [*rows.texts, *[f"win {number} now and here" for number in range(9)]], rows.labels + ["spam"] * 9
    )
    with pytest.raises(InputError, match="label 'spam' has 1 texts that differ in their words, too few for 5 folds"):
        folds(copies, 5, seed=0)
    with pytest.raises(InputError, match=r"too few texts of label 'spam' differ in their words \(1\) to hold 20 %"):
        split_off(copies, 20, seed=0)


# ---- what is said


def test_groups_are_described():
    assert describe_groups(np.array([0, 1, 0, 2, 2, 0])) == (
        "near-duplicates: 5 rows in 2 groups, the largest of 3 rows"
    )
    assert describe_groups(np.arange(3)) == "near-duplicates: none"


def test_rows_of_other_files_that_equal_training_rows_are_counted(rng):
    train = rows_of(rng, {"ham": 10, "spam": 10})
    copies = [text.upper() for text in train.texts[:3]]
    validation = LabelledTexts([*copies, *distinct_texts(rng, 4)], ["ham"] * 7)
    test = LabelledTexts(distinct_texts(rng, 5), None)
    assert describe_overlap(train.joined(), {"validation": validation.joined(), "test": test.joined()}) == (
        "near-duplicates of training rows: 3 of 7 validation rows, 0 of 5 test rows"
    )


def test_near_duplicates_of_training_rows_in_given_files_are_noted(tmp_path):
    (tmp_path / "train.tsv").write_text("".join(f"ham\tsee you at {i}\nspam\tprize number {i}\n" for i in range(9)))
    (tmp_path / "test.tsv").write_text("ham\tSee you at 77!\nspam\tquite another prize\n")
    files = {f"{name}_file": [str(tmp_path / f"{name}.tsv")] for name in ("train", "test")}
    parts = read_all_parts(ClassificationArguments(validation_file=files["test_file"], **files))
    line = "near-duplicates of training rows: 1 of 2 validation rows, 1 of 2 test rows"
    assert line in parts["train"].line()


def test_the_messages_of_the_project():
    """384 of them, none a near-duplicate of another."""
    task_args = ClassificationArguments(task="spam", train_file=[str(MESSAGES)])
    parts = read_all_parts(task_args)
    assert class_names(parts, task_args) == ("ham", "spam")
    labels = Counter(label for rows in parts.values() for label in rows.class_names())
    assert labels == {"ham": 228, "spam": 156}
    assert len(set(row_groups(LabelledTexts([t for rows in parts.values() for t in rows.texts], None)))) == 384


def test_the_manifest_of_a_split_names_no_secret_of_a_url(tmp_path, rng):
    made = [three_parts(rows_of(rng, {"ham": 60, "spam": 40}), 10, 20, seed=0)]
    with fsspec.open("memory://rows/a.csv?token=s3cr3t", "wb") as file:
        file.write(b"text,label\n")
    fold_files.write_folds(tmp_path, made, SplitArguments(train_file=["memory://rows/a.csv?token=s3cr3t"], folds=1))
    text = (tmp_path / "split.json").read_text()
    assert "a.csv?token=(token)" in text
    assert "s3cr3t" not in text
