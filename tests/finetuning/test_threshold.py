"""The threshold of a two-class model: chosen on validation rows, saved in the model, used by all that label rows."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.classified_rows import classify, write_classified
from helpers.recipe_runs import recipe
from scipy.special import expit
from scipy.stats import beta

import bert_hf
from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.errors import InputError
from bert_hf.finetuning.decisions.thresholds import (
    check_threshold,
    choose_threshold,
    describe_threshold,
    few_negatives_line,
)
from bert_hf.finetuning.metrics.classification import classification_metrics, positive_scores, predicted_classes

RULES = [("max_false_positive_rate", 0.1), ("max_false_positive_rate", 0.004), ("best_f1_threshold", True)]


def asked(option: str = "", value: float = 0.0) -> SimpleNamespace:
    options = {"max_false_positive_rate": None, "best_f1_threshold": False}
    options |= {"validates_on_training_rows": False}
    return SimpleNamespace(**(options | ({option: value} if option else {})))


def drawn(seed: int, rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Logits and targets; many scores are equal."""
    random = np.random.default_rng(seed)
    targets = random.integers(0, 2, rows)
    margins = np.round(random.normal(2.0 * targets, 1.5), 1)
    return np.stack([np.zeros(rows), margins], 1).astype(np.float32), targets


def counts(logits, targets, threshold: float) -> tuple[int, int]:
    """True and false positives."""
    predicted = expit(logits[:, 1].astype(np.float64)) >= threshold
    return int(predicted[targets == 1].sum()), int(predicted[targets == 0].sum())


@pytest.mark.parametrize(("option", "value"), RULES)
@pytest.mark.parametrize("seed", range(5))
def test_no_other_threshold_is_better(option, value, seed):
    logits, targets = drawn(seed)
    positives, negatives = int(targets.sum()), int((targets == 0).sum())
    scores = np.unique(expit(logits[:, 1].astype(np.float64)))
    every = [counts(logits, targets, each) for each in [*scores, 1.0]]
    hits, alarms = counts(logits, targets, choose_threshold(positive_scores(logits), targets, asked(option, value)))

    if option == "max_false_positive_rate":
        assert (hits, alarms) == max((pair for pair in every if pair[1] / negatives <= value), key=lambda pair: pair)
    else:
        f1 = {pair: 2 * pair[0] / (sum(pair) + positives) for pair in every}
        assert f1[hits, alarms] == max(f1.values())


def test_it_lies_between_two_scores():
    scores = np.array([0.9, 0.8, 0.7, 0.4, 0.2])
    targets = np.array([1, 1, 0, 1, 0])
    assert choose_threshold(scores, targets, asked("max_false_positive_rate", 0.5)) == pytest.approx(0.3)
    assert choose_threshold(scores, targets, asked("max_false_positive_rate", 0.4)) == pytest.approx(0.75)
    assert choose_threshold(scores, 1 - targets, asked("max_false_positive_rate", 0.1)) == pytest.approx(0.95)


def test_the_rates_and_their_exact_intervals():
    logits, targets = drawn(7)
    metrics = classification_metrics(predicted_classes(logits, 0.6), targets, logits, with_rates=True)
    hits, alarms = counts(logits, targets, 0.6)
    negatives = int((targets == 0).sum())
    assert metrics["recall"] == hits / targets.sum()
    assert metrics["false_positive_rate"] == alarms / negatives
    assert metrics["precision"] == hits / (hits + alarms)

    low, high = beta.ppf([0.025, 0.975], [alarms, alarms + 1], [negatives - alarms + 1, negatives - alarms])
    line = describe_threshold(logits, targets, 0.6, ("ham", "spam"))
    assert f"{alarms:,} of {negatives:,}; {low:.4f} to {high:.4f}" in line
    assert "no such rows" in describe_threshold(logits, np.ones(200, int), 0.6, ("ham", "spam"))


def test_a_rate_that_the_rows_cannot_show():
    targets, labels = np.repeat([0, 1], [99, 50]), ("ham", "spam")
    assert "! 99 validation rows of 'ham'" in few_negatives_line(0.01, targets, labels)
    assert not few_negatives_line(0.02, targets, labels)
    assert not few_negatives_line(None, targets[:9], labels)
    with pytest.raises(InputError, match="rows have 1"):
        check_threshold(asked("best_f1_threshold", True), targets[:9], labels)


@pytest.mark.parametrize("labels", [("a", "b", "c"), ()])
def test_three_classes_or_numbers_have_no_threshold(labels):
    check_threshold(asked(), np.arange(3), labels)
    with pytest.raises(InputError, match="two classes"):
        check_threshold(asked("best_f1_threshold", True), np.arange(3), labels)


def test_training_rows_choose_nothing():
    task_args = ClassificationArguments(
        "checkpoint", train_file=["a.csv"], validation_file=["a.csv"], max_false_positive_rate=0.1
    )
    with pytest.raises(InputError, match="are the training rows"):
        check_threshold(task_args, np.arange(2).repeat(9), ("ham", "spam"))
    rows: Any = [{"text": "a", "label": "ham"}]
    for given in (
        {"train_file": ["a.csv"], "validation_file": ["./a.csv"]},
        {"dataset_name": {"train": rows, "validation": rows}},
    ):
        assert ClassificationArguments("checkpoint", **given).validates_on_training_rows
    assert not ClassificationArguments("checkpoint", dataset_name={"train": rows}).validates_on_training_rows


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = write_classified(tmp_path_factory.mktemp("threshold"), ("ham", "spam"))
    assert classify(folder, "run", "--write_predictions", "true", "--max_false_positive_rate", "0.05") == 0
    return folder


def results(folder) -> dict:
    return json.loads((folder / "test_results.json").read_text())


def test_the_run_saves_what_it_decided(run):
    threshold = json.loads((run / "run/config.json").read_text())["decision_threshold"]
    assert 0 < threshold < 1
    assert threshold != 0.5
    metrics = json.loads((run / "run/all_results.json").read_text())
    assert metrics["eval_false_positive_rate"] <= 0.05
    assert {"test_recall", "baseline_characters_recall"} <= metrics.keys()
    assert f"from a probability of {threshold:.4f}" in (run / "run/README.md").read_text()


def test_a_rule_that_is_given_without_training_decides(run):
    assert classify(run, "other", "--do_train", "false", "--max_false_positive_rate", "0.9", model="run") == 0
    other, own = results(run / "other"), results(run / "run")
    assert other["test_recall"] > own["test_recall"]
    assert other["test_false_positive_rate"] > own["test_false_positive_rate"]


def test_another_rule_is_another_run(run, capsys):
    assert classify(run, "run", "--best_f1_threshold", "true") == 2
    assert "threshold" in capsys.readouterr().err


def test_rows_that_were_trained_on_are_not_split_off_for_an_evaluation(run, capsys):
    words = ["--model_name_or_path", str(run / "run"), "--output_dir", str(run / "fourth"), "--do_train", "false"]
    messages = Path(bert_hf.__file__).parent / "finetuning/messages/spam.tsv"
    words += ["--train_file", str(messages), "--test_file", str(run / "test.csv"), "--use_cpu", "true"]
    assert recipe("finetune_classification")(words) == 2
    assert "validation rows would be split off" in capsys.readouterr().err
