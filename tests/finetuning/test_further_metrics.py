"""Metrics of the evaluate library that a command names, beside those of the head."""

import json
from pathlib import Path

import pytest
from helpers.classified_rows import PARTS, classify, write_classified
from helpers.recipe_runs import recipe

from bert_hf import InputError
from bert_hf.finetuning.heads.classification import ClassificationHead
from bert_hf.finetuning.metrics.evaluated import load_metrics

SCRIPT = """
import datasets
import evaluate


class Missed(evaluate.Metric):
    def _info(self):
        numbers = datasets.Value("int64")
        features = datasets.Features({"predictions": numbers, "references": numbers})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"missed": float(sum(gold and not said for said, gold in zip(predictions, references)))}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = write_classified(tmp_path_factory.mktemp("further"), ("no", "yes"), right=0.7)
    (folder / "missed.py").write_text(SCRIPT)
    (folder / "broken.py").write_text(SCRIPT.replace("Missed", "Broken").replace("zip(", "dict("))
    return folder


def missed_in(folder: Path) -> float:
    return json.loads((folder / "test_results.json").read_text())["test_missed"]


def test_a_metric_of_ones_own_is_reported_and_may_choose_the_weights(place, capsys):
    script = ["--metric_name", str(place / "missed.py")]
    best = ["--metric_for_best_model", "missed", "--greater_is_better", "false", "--save_steps", "5"]
    assert classify(place, "run", *script, *best, "--eval_steps", "5") == 0
    state = json.loads((place / "run/trainer_state.json").read_text())
    by_step = {log["step"]: log["eval_missed"] for log in state["log_history"] if "eval_missed" in log}
    assert state["best_metric"] == min(by_step.values()) == by_step[state["best_global_step"]]
    assert "by validation missed" in capsys.readouterr().out
    assert "| missed |" in (place / "run/README.md").read_text()

    # As counted in the rows that `predict` writes, and by `evaluate`
    assert recipe("predict")([str(place / "run"), str(place / "test.csv"), "--output", str(place / "out.jsonl")]) == 0
    rows = [json.loads(line) for line in (place / "out.jsonl").read_text().splitlines()]
    missed = sum(row["label"] == "yes" and row["prediction"] == "no" for row in rows)
    assert len(rows) == PARTS["test"]
    test = ["--test_file", str(place / "test.csv"), "--output_dir", str(place / "again")]
    assert recipe("evaluate")([str(place / "run"), *test, *script]) == 0
    assert missed_in(place / "run") == missed_in(place / "again") == missed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metric_name", "broken.py"], "broken: fails on these rows: "),
        (["--metric_name", "none.py"], "none.py: metric cannot be loaded: "),
        (
            ["--metric_name", "missed.py", "--metric_for_best_model", "mised"],
            "no metric 'mised'; did you mean 'missed'",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(place, monkeypatch, capsys, words, message):
    monkeypatch.chdir(place)
    assert classify(place, "failed", *words, "--eval_steps", "1", "--overwrite_output_dir", "true") == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert message in errors[0]


def test_a_metric_object_is_taken_as_it_is():
    metric = ClassificationHead(None).metric()
    assert load_metrics([metric]) == [metric]
    assert metric.compute(predictions=[1, 0, 1], references=[1, 0, 0])["f1"] == pytest.approx(2 / 3)
    with pytest.raises(InputError, match="no-such: metric cannot be loaded"):
        load_metrics(["no-such"])
