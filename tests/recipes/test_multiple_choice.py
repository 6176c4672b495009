"""recipes/finetune_multiple_choice.py: trains, predicts, resumes, and its model loads in the stock class."""

import json

import numpy as np
import pytest
import torch
from helpers.choice_rows import save_checkpoint, swag_lines
from helpers.recipe_runs import recipe
from transformers import AutoModelForMultipleChoice, AutoTokenizer

QUICK = [
    "--max_seq_length", "48", "--max_steps", "6", "--per_device_train_batch_size", "4", "--eval_strategy", "no",
    "--save_steps", "2", "--write_predictions", "true", "--use_cpu", "true", "--bf16", "false",
    "--disable_tqdm", "true",
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("choices")
    save_checkpoint(folder / "bert")
    (folder / "rows.jsonl").write_text(swag_lines())
    (folder / "test.jsonl").write_text(swag_lines())
    (folder / "unlabelled.jsonl").write_text(swag_lines(label=-1))
    return folder


def tune(place, output, *words, file="rows.jsonl"):
    given = ["--model_name_or_path", str(place / "bert"), "--train_file", str(place / file)]
    return recipe("finetune_multiple_choice")([*given, "--output_dir", str(output), *QUICK, *words])


def test_trains_predicts_and_loads_in_the_stock_class(place, tmp_path, capsys):
    given = ("--validation_file", str(place / "rows.jsonl"), "--test_file", str(place / "test.jsonl"))
    assert tune(place, tmp_path / "run", *given) == 0
    said = capsys.readouterr().out
    assert "validation: 10 rows" in said
    assert "test_accuracy" in said
    metrics = json.loads((tmp_path / "run/all_results.json").read_text())
    assert {"eval_accuracy", "eval_loss", "test_accuracy", "baseline_accuracy"} <= metrics.keys()

    # The stock class, on inputs that the stock tokenizer makes, gives the predictions and figures of the run
    model = AutoModelForMultipleChoice.from_pretrained(tmp_path / "run")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    chosen, losses = [], []
    rows = [json.loads(line) for line in swag_lines().splitlines()]
    for row in rows:
        choices = [f"{row['sent2']} {row[f'ending{number}']}" for number in range(4)]
        options = {"truncation": "only_first", "max_length": 48, "padding": True, "return_tensors": "pt"}
        inputs = tokenizer([row["sent1"]] * 4, choices, **options)
        with torch.no_grad():
            labels = torch.tensor([row["label"]])
            output = model(**{name: value[None] for name, value in inputs.items()}, labels=labels)
        chosen.append(int(output.logits.argmax()))
        losses.append(output.loss.item())
    written = (tmp_path / "run/test_predictions.tsv").read_text().splitlines()[1:]
    assert [int(line.split("\t")[1]) for line in written] == chosen
    assert metrics["test_accuracy"] == np.mean(
        [choice == row["label"] for choice, row in zip(chosen, rows, strict=True)]
    )
    assert metrics["test_loss"] == pytest.approx(np.mean(losses), abs=1e-5)


def test_rows_without_labels_are_predicted(place, tmp_path):
    assert tune(place, tmp_path / "run", "--test_file", str(place / "unlabelled.jsonl")) == 0
    written = (tmp_path / "run/test_predictions.tsv").read_text().splitlines()
    assert len(written) == 11
    metrics = json.loads((tmp_path / "run/all_results.json").read_text())
    assert not {"test_accuracy", "test_loss", "baseline_accuracy"} & metrics.keys()
