"""Rows that may have several labels: how they are given, loss, probabilities and thresholds."""

import json

import pandas
import pytest
import torch
from helpers.classified_rows import read_labelled
from helpers.recipe_runs import recipe
from sklearn.metrics import f1_score
from tiny import save_tiny_bert, tiny_config, tiny_tokenizer
from transformers import AutoModelForSequenceClassification

from bert_hf import InputError, predict
from bert_hf.data.text.tables import Row
from bert_hf.finetuning.heads.classification import ClassificationHead
from bert_hf.finetuning.losses import count_labels
from bert_hf.finetuning.rows.labelled_texts import MULTIPLE

NAMES = ("x", "y", "z")
LABELS = [[name for bit, name in enumerate(NAMES) if n >> bit & 1] for n in range(60)]
ROWS = [{"text": f"w{n % 59} w{n * 7 % 59}", "label": label} for n, label in enumerate(LABELS)]


def test_labels_are_given_in_three_ways(tmp_path):
    (tmp_path / "lists.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    table = pandas.DataFrame(ROWS)
    table.assign(label=table["label"].map(json.dumps)).to_csv(tmp_path / "cells.csv", index=False)
    table.assign(label=table["label"].map(" | ".join)).to_csv(tmp_path / "separated.csv", index=False)
    flags = {name: [int(name in label) for label in LABELS] for name in NAMES}
    table.drop(columns="label").assign(**flags).to_csv(tmp_path / "columns.csv", index=False)

    expected = read_labelled([str(tmp_path / "lists.jsonl")])
    assert expected.labels == list(map(tuple, LABELS))
    assert read_labelled([str(tmp_path / "cells.csv")]) == expected
    assert read_labelled([str(tmp_path / "separated.csv")], label_separator="|") == expected
    assert read_labelled([str(tmp_path / "columns.csv")], label_columns=NAMES) == expected
    for target, label in zip(expected.targets(NAMES), LABELS, strict=True):
        assert target.tolist() == [name in label for name in NAMES]

    (tmp_path / "columns.csv").write_text("text,x,y\nw1,0,1\nw2,1,yes\n")
    with pytest.raises(InputError, match=r"columns\.csv:3: 'yes' in label column 'y' is neither 0 nor 1"):
        read_labelled([str(tmp_path / "columns.csv")], label_columns=("x", "y"))


def test_ones_beside_an_empty_cell():
    """pandas writes them as 1.0; a missing list of flags is no label."""
    rows = [
        Row({"text": "a", "toxic": "1.0", "insult": "0.0"}, "a.csv"),
        Row({"text": "b", "toxic": "", "insult": "1.0"}, "a.csv"),
    ]
    assert ClassificationHead(None, {"label_columns": ["toxic", "insult"]}).read(rows).labels == [
        ("toxic",),
        ("insult",),
    ]
    rows = [Row({"text": "a", "labels": flags}, "a.jsonl") for flags in ([1, 0, 0], None, [0, 0, 1])]
    assert ClassificationHead(None, {}).read(rows).labels == [("0",), (), ("2",)]


def test_test_rows_whose_label_columns_are_empty_have_no_labels():
    """They were rows without any of the labels, and had metrics."""
    head = ClassificationHead(tiny_tokenizer(), {"max_seq_length": 16, "label_columns": NAMES})
    empty = [Row({"text": "w1", "x": "", "y": None, "z": ""}, "a.csv", line) for line in (2, 3)]
    assert head.read(empty, "optional").labels is None
    assert head.read([*empty, Row({"text": "w1", "x": "0", "y": "1", "z": ""}, "a.csv", 4)], "optional").labels == [
        (), (), ("y",)
    ]  # fmt: skip


def test_loss_and_gradient_are_those_of_the_stock_head():
    head = ClassificationHead(tiny_tokenizer(), {"max_seq_length": 16, "class_names": NAMES})
    features = head.encode(head.read([Row(row, "rows") for row in ROWS])).features
    batch = head.collate(list(features.remove_columns("length")))
    model = AutoModelForSequenceClassification.from_config(tiny_config(0.0, **head.config_options()))
    assert model.config.problem_type == MULTIPLE

    found = []
    for loss in (
        head.losses(batch, head.forward(model, batch)).sum() / count_labels(batch["labels"]).sum(),
        model(**batch).loss,  # BCEWithLogitsLoss
    ):
        model.zero_grad()
        loss.backward()
        found.append([loss, *(weight.grad.clone() for weight in model.parameters() if weight.grad is not None)])
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-7)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    save_tiny_bert(folder / "bert")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    files = [word for part in ("train", "validation") for word in (f"--{part}_file", str(folder / "rows.jsonl"))]
    options = ["--max_steps", "40", "--learning_rate", "3e-3", "--best_f1_threshold", "true", "--max_seq_length", "16"]
    quick = ["--use_cpu", "true", "--bf16", "false", "--disable_tqdm", "true", "--eval_strategy", "no"]
    words = ["--model_name_or_path", str(folder / "bert"), "--output_dir", str(folder / "run"), *files]
    (folder / "other.jsonl").write_text((folder / "rows.jsonl").read_text())
    words[-1] = str(folder / "other.jsonl")  # thresholds are not chosen on training rows
    assert recipe("finetune_classification")([*words, *options, *quick]) == 0
    return folder / "run"


def test_each_label_has_the_threshold_of_its_best_f1(run):
    thresholds = json.loads((run / "config.json").read_text())["decision_threshold"]
    rows = predict(run, [row["text"] for row in ROWS])
    for name, threshold in zip(NAMES, thresholds, strict=True):
        gold, scores = [name in label for label in LABELS], [row["scores"][name] for row in rows]
        own = f1_score(gold, [name in row["labels"] for row in rows])
        assert [name in row["labels"] for row in rows] == [score >= threshold for score in scores]
        assert own == pytest.approx(max(f1_score(gold, [score >= least for score in scores]) for least in scores))
