import json
from pathlib import Path

import numpy as np
import pytest

from bert_hf.config.arguments import ClassificationArguments
from bert_hf.errors import InputError
from bert_hf.finetuning.baselines import baseline_predictions
from bert_hf.finetuning.datasets import LabelledTexts, read_labelled, tokenized
from bert_hf.finetuning.splits import load_splits, near_duplicate_groups, split_off

MESSAGES = Path(__file__).parents[2] / "src/bert_hf/finetuning/messages/spam.tsv"


def write(tmp_path, name, content):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return [str(tmp_path / name)]


ROWS = [("ham", 'He said "hi, you'), ("spam", "WIN now"), ("ham", "ok")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "".join(f"{label}\t{text}\n" for label, text in ROWS)),
        ("a.tsv", "label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in ROWS)),
        ("a.csv", 'body,kind\n"He said ""hi, you",ham\nWIN now,spam\nok,ham\n'),
        ("a.jsonl", "".join(json.dumps({"kind": label, "body": text}) + "\n" for label, text in ROWS)),
        ("a.txt", "".join(f"{label}\t{text}\n" for label, text in ROWS)),
    ],
)
def test_files_of_any_kind_and_column_names(tmp_path, name, content):
    rows = read_labelled(write(tmp_path, name, content))
    assert list(zip(rows.labels, rows.texts, strict=True)) == ROWS


def test_columns_can_be_named(tmp_path):
    files = write(tmp_path, "a.csv", "one,two,three\nx,y,z\nu,v,w\n")
    assert read_labelled(files, "three", "one") == LabelledTexts(["z", "w"], ["x", "u"])


@pytest.mark.parametrize(
    ("name", "content", "options", "expected"),
    [
        ("a.csv", "text,label\nx,1\ny\n", {}, "a.csv:3: 1 fields instead of 2"),
        ("a.csv", 'text,label\n"x,1\n', {}, "a.csv:2: not CSV"),
        ("a.tsv", "text\tlabel\nx\t1\ny\t\n", {}, "a.tsv:3: the row has no 'label'"),
        ("a.tsv", b"text\tlabel\nx\xe9\t1\n", {}, "a.tsv:2:2: byte 0xe9 is not UTF-8"),
        ("a.jsonl", '{"text": "x", "label": 1}\nnope\n', {}, "a.jsonl:2:1: not JSON"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"label": 0}\n', {}, "a.jsonl:2: the row has no text"),
        (
            "a.tsv",
            "text\tlabel\nx\t1\n",
            {"text_column": "body"},
            "a.tsv:1: no column 'body'; its columns: text, label",
        ),
        ("a.csv", "a,b\nx,y\nu,v\n", {}, "a.csv:1: which column holds the label?; --label_column, one of: a, b"),
        ("a.csv", "text,label\n", {}, "a.csv: no rows in it"),
        ("a.xml", "<a/>", {}, "a.xml: unknown kind"),
    ],
)
def test_every_error_names_its_place(tmp_path, monkeypatch, name, content, options, expected):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, name, content)
    with pytest.raises(InputError) as caught:
        read_labelled([name], **options)
    assert str(caught.value).startswith(expected)


def test_near_duplicates_share_a_group():
    texts = [
        "Call 0900 111 now to claim your prize of 500!",
        "call 0800 222 NOW to claim your prize of 900",  # digits, case, signs
        "Hello! Call 0900 333 now to claim your prize of 100 pounds",  # most three-word sequences
        "See you at the station at noon",
        "See you there",
        "12 34",
        "56 78",
    ]
    groups = near_duplicate_groups(texts)
    assert groups[0] == groups[1] == groups[2]
    assert len({groups[0], *groups[3:].tolist()}) == 5


def test_a_split_is_stratified_without_leaks_and_repeatable():
    rng = np.random.default_rng(0)
    texts = [" ".join(f"word{chr(97 + c)}" for c in rng.integers(0, 26, 8)) for _ in range(400)]
    texts += [text.upper() + "!" for text in texts[:100]]  # a hundred near-duplicates
    rows = LabelledTexts(texts, ["spam" if i % 5 == 0 else "ham" for i in range(len(texts))])
    rows.labels[400:] = rows.labels[:100]
    rest, part = split_off(rows, 20, seed=1)
    fold = lambda items: {text.lower().rstrip("!") for text in items}  # noqa: E731
    assert not fold(rest.texts) & fold(part.texts)
    assert len(rest) + len(part) == 500
    assert 0.15 < len(part) / 500 < 0.25
    assert 0.15 < part.labels.count("spam") / len(part) < 0.25
    assert split_off(rows, 20, seed=1)[1] == part
    assert split_off(rows, 20, seed=2)[1] != part


def test_groups_are_numbered_by_their_first_member():
    """So that the split is the same in every process, whatever Python's hash seed does to the order of sets."""
    texts = ["a b c d e f", "x y z", "a b c d e g", "u v w", "a b c d e h"]
    assert near_duplicate_groups(texts).tolist() == [0, 1, 0, 2, 0]
    assert near_duplicate_groups(texts[::-1]).tolist() == [0, 1, 0, 2, 0]


def test_too_few_rows_of_a_label():
    rows = LabelledTexts([f"text number {i}" for i in range(20)], ["spam"] + ["ham"] * 19)
    with pytest.raises(InputError, match="too few texts of label 'ham' differ in their words"):
        split_off(rows, 20, 0)


def test_labels_of_a_task_have_fixed_ids():
    splits, labels = load_splits(ClassificationArguments(task="spam", train_file=[str(MESSAGES)]))
    assert labels == ("ham", "spam")
    assert sum(map(len, splits.values())) == len(MESSAGES.read_text().splitlines())
    assert set(splits) == {"train", "validation", "test"}


@pytest.mark.parametrize(
    ("options", "content", "expected"),
    [
        ({"task": "spim"}, "", "--task: unknown task 'spim'; one of: spam"),
        ({}, None, "--train_file: no data are named"),
        ({}, "ham\tx\nham\ty\n", "a.tsv: only one label: ham"),
    ],
)
def test_wrong_requests(tmp_path, options, content, expected):
    files = None if content is None else write(tmp_path, "a.tsv", content or "ham\tx\nspam\ty\n")
    with pytest.raises(InputError) as caught:
        load_splits(ClassificationArguments(train_file=files, label_column="label" if content else None, **options))
    assert expected in str(caught.value)


def test_a_label_unknown_to_training(tmp_path):
    train = write(tmp_path, "a.tsv", "ham\tx one\nspam\ty two\n" * 20)
    test = write(tmp_path, "b.tsv", "ham\tx\neggs\ty\nham\tz\n")
    with pytest.raises(InputError, match=r"b\.tsv:2: label 'eggs' is not in the training rows"):
        load_splits(ClassificationArguments(train_file=train, validation_file=train, test_file=test))


def test_rows_become_ids_without_padding(tokenizer):
    rows = LabelledTexts(["w1 w2 w3", "w4"], ["spam", "ham"])
    data = tokenized(rows, ("ham", "spam"), tokenizer, max_seq_length=4)
    assert data["input_ids"] == [[2, 6, 7, 3], [2, 9, 3]]
    assert data["labels"] == [1, 0]


def test_the_baseline_beats_the_majority():
    splits, _ = load_splits(ClassificationArguments(task="spam", train_file=[str(MESSAGES)]))
    guesses = baseline_predictions(splits["train"], splits["validation"], splits["test"])
    labels = splits["test"].labels
    right = sum(guess == label for guess, label in zip(guesses, labels, strict=True))
    assert right > max(labels.count("ham"), labels.count("spam"))
