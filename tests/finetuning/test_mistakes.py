"""What a person looks at before a classifier is used: mistakes, groups of rows, rows of another kind, the SVM."""

import csv
import json

import numpy as np
import pytest
from helpers.classified_rows import classify, write_classified
from helpers.recipe_runs import recipe
from scipy.special import softmax
from tiny import tiny_tokenizer

from bert_hf.finetuning.decisions.mistakes import (
    Judged,
    deciles,
    drift_line,
    length_groups,
    measures,
    write_mistakes,
    write_slices,
)
from bert_hf.finetuning.rows.labelled_texts import LabelledTexts


def table(path) -> list[dict]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def judged() -> Judged:
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.05, 0.95], [0.4, 0.6], [0.7, 0.3]])
    rows = LabelledTexts(list("abcde"), None, [("f.csv", line) for line in range(2, 7)])
    return Judged(rows, probabilities, probabilities.argmax(1), np.array([0, 1, 0, 0, 1]))


def test_mistakes_by_confidence_with_suspected_labels(tmp_path):
    write_mistakes(tmp_path / "mistakes.csv", {"test": judged()}, ("ham", "spam"))
    lines = [list(line.values()) for line in table(tmp_path / "mistakes.csv")]
    # On average, rows labelled spam have 0.55 for spam, rows labelled ham 0.45 for ham
    assert lines == [
        ["test", "f.csv", "4", "ham", "spam", "0.9500", "yes", "c"],
        ["test", "f.csv", "6", "spam", "ham", "0.7000", "yes", "e"],
        ["test", "f.csv", "5", "ham", "spam", "0.6000", "yes", "d"],
    ]


def test_a_class_without_rows_is_never_suspected(tmp_path):
    rows = judged()._replace(targets=np.zeros(5, int))
    said = write_mistakes(tmp_path / "mistakes.csv", {"test": rows}, ("ham", "spam"))
    assert said.endswith("3, 0 of them suspected label errors")


def test_groups_of_rows(tmp_path):
    write_slices(tmp_path / "slices.csv", judged(), {"source": ["x", "y", "x", "y", "y"]})
    rates = {line["group"]: line for line in table(tmp_path / "slices.csv")}
    assert (rates["y"]["rows"], rates["y"]["of_class_1"]) == ("3", "2")
    assert [float(rates["x"][name]) for name in ("accuracy", "false_positive_rate", "recall")] == [0.5, 0.5, 0]
    assert [float(rates["y"][name]) for name in ("accuracy", "precision", "recall")] == [0.3333, 0.5, 0.5]
    expected = ["1: 3 to 3"] * 2 + ["2: 5 to 9"] * 4 + ["4: 12 to 80"] * 2
    assert length_groups(np.array([3, 3, 5, 9, 9, 9, 12, 80])) == expected


def test_only_rows_of_another_kind_are_reported():
    random, tokenizer = np.random.default_rng(0), tiny_tokenizer()
    usual = {"tokens": random.poisson(20, 4000), "unknown words": random.choice([0, 0, 0, 0.1, 0.25], 4000)}
    recorded = {name: deciles(values) for name, values in usual.items()}
    for rows in (1, 10, 100, 4000):  # other rows of the same kind
        drawn = random.permutation(4000)[:rows]
        assert not drift_line({name: values[drawn] for name, values in usual.items()}, recorded)

    assert "tokens" in drift_line(usual | {"tokens": random.poisson(30, 200)}, recorded)
    line = drift_line(usual | {"unknown words": random.choice([0, 0.1, 0.25, 0.5], 200)}, recorded)
    assert "unknown words" in line
    assert "tokens" not in line

    ids = [tokenizer("w1 w2 nonsense")["input_ids"]]
    found = measures({"input_ids": ids, "length": [len(ids[0])]}, np.array([[0.0, 1.0]]), tokenizer)
    known = sum(token in ("[CLS]", "[SEP]", "w1", "w2") for token in tokenizer.convert_ids_to_tokens(ids[0]))
    assert found["unknown words"] == pytest.approx([1 - known / len(ids[0])], abs=1e-4)
    assert found["score"] == pytest.approx(softmax([0.0, 1.0]).max(), abs=1e-4)


# ---- a run on rows whose labels are numbers


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = write_classified(tmp_path_factory.mktemp("mistakes"), ("0", "1"))
    strange = ["text", *[" ".join(f"zz{row}{word}" for word in range(12)) for row in range(100)]]
    (folder / "strange.csv").write_text("\n".join(strange) + "\n")
    words = ["--class_names", "ham", "spam", "--slice_column", "source", "--write_predictions", "true"]
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

    slices = table(run / "run/slices.csv")
    sources = {line["group"]: int(line["rows"]) for line in slices if line["slice"] == "source"}
    assert sources == {name: sum(row["source"] == name for row in test) for name in ("mail", "web")}
    assert sum(int(line["rows"]) for line in slices if line["slice"] == "tokens") == 70


def test_names_are_given_to_numbers(run):
    config = json.loads((run / "run/config.json").read_text())
    assert config["id2label"] == {"0": "ham", "1": "spam"}
    words = [str(run / "run"), "--test_file", str(run / "test.csv"), "--output_dir", str(run / "again")]
    assert recipe("evaluate")(words) == 0  # whose rows have the numbers


def test_strange_rows_are_reported(run, caplog, capsys):
    for name, expected in (("test", False), ("strange", True)):
        assert recipe("predict")([str(run / "run"), str(run / f"{name}.csv"), "--output", str(run / "out.csv")]) == 0
        assert ("unlike those of the training: " in caplog.text + capsys.readouterr().err) == expected


def test_the_lines_of_the_card_load_the_svm(run, monkeypatch):
    card = (run / "run/README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0].partition("import numpy")
    monkeypatch.chdir(run)
    names: dict = {}
    exec(code[1] + code[2], names)
    texts = [row["text"] for row in table(run / "test.csv")]
    scores = names["vectorizer"].transform(texts) @ names["svm"]["coefficients"].T + names["svm"]["intercept"]
    results = json.loads((run / "run/all_results.json").read_text())
    kind = "characters" if "char_wb" in code[2] else "words"
    right = np.mean((np.ravel(scores) > 0) == [row["label"] == "1" for row in table(run / "test.csv")])
    assert right == results[f"baseline_{kind}_accuracy"]
