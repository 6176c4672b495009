"""What a person looks at before a classifier is used: mistakes, groups of rows, rows of another kind."""

import csv
import json

import numpy as np
import pytest
from helpers.classified_rows import classify, write_classified
from helpers.recipe_runs import recipe
from tiny import tiny_tokenizer

from bert_hf.finetuning.decisions.drift import drift_line, typical_values
from bert_hf.finetuning.rows.labelled_texts import LabelledTexts
from bert_hf.finetuning.tasks.classification import PredictedRows, write_mistakes


def table(path) -> list[dict]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def judged() -> PredictedRows:
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.05, 0.95], [0.4, 0.6], [0.7, 0.3]])
    rows = LabelledTexts(list("abcde"), None, [("f.csv", line) for line in range(2, 7)])
    return PredictedRows(rows, probabilities, probabilities.argmax(1), np.array([0, 1, 0, 0, 1]))


def test_mistakes_by_confidence_with_suspected_labels(tmp_path):
    write_mistakes(tmp_path / "mistakes.csv", {"test": judged()}, ("ham", "spam"))
    lines = [list(line.values()) for line in table(tmp_path / "mistakes.csv")]
    # On average, rows predicted as spam have 0.783 for it, rows predicted as ham have 0.8
    assert lines == [
        ["test", "f.csv", "4", "ham", "spam", "0.9500", "yes", "c"],
        ["test", "f.csv", "6", "spam", "ham", "0.7000", "no", "e"],
        ["test", "f.csv", "5", "ham", "spam", "0.6000", "no", "d"],
    ]


def test_flipped_labels_are_suspected_and_hard_rows_are_not(tmp_path):
    """300 rows that are easy or hard to tell apart; the label of every 25th of them is wrong."""
    random = np.random.default_rng(0)
    truth, hard = random.integers(0, 2, 300), np.arange(300) % 3 == 0
    evidence = np.where(hard, 0.5, 3.0) * (2 * truth - 1) + random.normal(0, np.where(hard, 0.7, 0.5))
    spam = 1 / (1 + np.exp(-evidence))
    flipped = np.arange(300) % 25 == 7
    rows = LabelledTexts(["a"] * 300, None, [("f.csv", line) for line in range(300)])
    both = np.stack([1 - spam, spam], 1)
    said = PredictedRows(rows, both, both.argmax(1), np.where(flipped, 1 - truth, truth))
    write_mistakes(tmp_path / "mistakes.csv", {"test": said}, ("ham", "spam"))
    lines = table(tmp_path / "mistakes.csv")
    suspects = {int(line["line"]) for line in lines if line["suspected_label_error"] == "yes"}
    easy = set(np.flatnonzero(flipped & ~hard))
    assert len(suspects - set(np.flatnonzero(flipped))) <= 1
    assert len(suspects & easy) >= 0.7 * len(easy)
    assert len(suspects) < 0.4 * len(lines)


def test_a_model_that_knows_only_the_frequencies_suspects_nothing(tmp_path):
    ham = np.random.default_rng(0).normal(0.8, 0.01, 200)
    rows = LabelledTexts(["a"] * 200, None, [("f.csv", line) for line in range(200)])
    said = PredictedRows(rows, np.stack([ham, 1 - ham], 1), np.zeros(200, int), (np.arange(200) % 5 == 0).astype(int))
    assert write_mistakes(tmp_path / "mistakes.csv", {"test": said}, ("ham", "spam")) == (
        "mistakes.csv: 40 wrong predictions in test rows, 0 of them confident (check their labels)"
    )


def test_only_rows_of_another_kind_are_reported():
    random, tokenizer = np.random.default_rng(0), tiny_tokenizer()
    words, parts, unknown = (tokenizer.convert_tokens_to_ids(token) for token in ("w1", "##x0", "[UNK]"))

    def rows_of(count: int, tokens: int = 20, share: float = 0.1) -> dict[str, list]:
        lengths = 1 + random.poisson(tokens - 1, count)
        ids = [np.where(random.random(length) < share, random.choice([parts, unknown]), words) for length in lengths]
        return {"input_ids": [own.tolist() for own in ids], "length": lengths.tolist()}

    usual = rows_of(4000)
    typical = typical_values(usual, tokenizer)
    shares = [np.mean(np.array(ids) != words) for ids in usual["input_ids"]]
    assert typical["tokens"] == pytest.approx((np.mean(usual["length"]), np.std(usual["length"])), abs=1e-4)
    assert typical["share of unknown words"] == pytest.approx((np.mean(shares), np.std(shares)), abs=1e-4)

    for count in (1, 10, 100, 4000):  # other rows of the same kind
        assert not drift_line(rows_of(count), tokenizer, typical)
    long = drift_line(rows_of(200, tokens=30), tokenizer, typical)
    assert long.startswith("! the rows differ from the training rows: tokens ")
    assert "unknown" not in long
    strange = drift_line(rows_of(200, share=0.4), tokenizer, typical)
    assert "share of unknown words" in strange
    assert "tokens" not in strange


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = write_classified(tmp_path_factory.mktemp("mistakes"), ("0", "1"))
    strange = ["text", *[" ".join(f"zz{row}{word}" for word in range(12)) for row in range(100)]]
    (folder / "strange.csv").write_text("\n".join(strange) + "\n")
    words = ["--class_names", "ham", "spam", "--write_predictions", "true"]
    assert classify(folder, "run", *words) == 0
    return folder


def test_the_files_of_a_run(run):
    test = table(run / "test.csv")
    wrong = [line for line in table(run / "run/mistakes.csv") if line["part"] == "test"]
    metrics = json.loads((run / "run/test_results.json").read_text())
    assert len(wrong) == pytest.approx((1 - metrics["test_accuracy"]) * 70)
    for line in wrong:
        row = test[int(line["line"]) - 2]
        assert line["text"] == row["text"]
        assert line["label"] == ["ham", "spam"][int(row["label"])] != line["prediction"]


def test_names_are_given_to_numbers(run):
    config = json.loads((run / "run/config.json").read_text())
    assert config["id2label"] == {"0": "ham", "1": "spam"}
    words = [str(run / "run"), "--test_file", str(run / "test.csv"), "--output_dir", str(run / "again")]
    assert recipe("evaluate")(words) == 0  # whose rows have the numbers


def test_strange_rows_are_reported(run, caplog, capsys):
    for name, expected in (("test", False), ("strange", True)):
        assert recipe("predict")([str(run / "run"), str(run / f"{name}.csv"), "--output", str(run / "out.csv")]) == 0
        assert ("! the rows differ from the training rows: " in caplog.text + capsys.readouterr().err) == expected
    # Without training, the present training rows are not those that the model was trained on
    rows = [f"{line},{n % 2}\n" for n, line in enumerate((run / "strange.csv").read_text().splitlines()[1:])]
    (run / "train.csv").write_text("".join(["text,label\n", *rows]))
    assert classify(run, "later", "--do_train", "false", "--class_names", "ham", "spam", model="run") == 0
    assert "the rows differ" not in capsys.readouterr().out
