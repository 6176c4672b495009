"""One temperature makes the probabilities of a classifier those of its mistakes, for everyone who loads the model."""

import json

import numpy as np
import pytest
from helpers.classified_rows import classify, write_classified
from scipy.special import log_softmax, softmax
from sklearn.metrics import log_loss
from transformers import pipeline

from bert_hf.finetuning.decisions import thresholds
from bert_hf.finetuning.decisions.thresholds import fit_temperature
from bert_hf.training import run as training_run


def drawn(seed: int, rows: int = 400, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and targets that are drawn from their probabilities."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 2, (rows, classes))
    return logits, np.array([random.choice(classes, p=row) for row in softmax(logits, axis=-1)])


def test_the_temperature_of_the_lowest_log_loss():
    logits, targets = drawn(0, rows=4000)
    temperature = fit_temperature(3 * logits, targets)
    assert temperature == pytest.approx(3, rel=0.1)
    grid = np.linspace(0.6, 9, 800)
    losses = [-log_softmax(3 * logits / each, -1)[np.arange(4000), targets].mean() for each in grid]
    assert temperature == pytest.approx(grid[np.argmin(losses)], abs=0.02)


def test_no_temperature_without_a_gain_or_rows():
    assert fit_temperature(*drawn(1)) == 1
    logits, targets = drawn(0, rows=49)
    assert fit_temperature(3 * logits, targets) == 1


def test_rows_without_a_mistake_do_not_make_a_model_certain():
    logits, _ = drawn(2)
    assert fit_temperature(logits, logits.argmax(-1)) == pytest.approx(0.5, abs=0.01)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A third of the labels are wrong, so that the trained model is too certain."""
    return write_classified(tmp_path_factory.mktemp("calibration"), ("no", "yes"), right=0.67)


def train(place, output: str) -> int:
    steps = ["--max_steps", "80", "--save_steps", "80", "--lr_scheduler_type", "constant"]
    return classify(place, output, *steps, "--eval_strategy", "no")


@pytest.fixture(scope="module")
def trained(place):
    """A run, and the temperature that it found."""
    temperatures = []

    def remembered(logits, targets):
        temperatures.append(fit_temperature(logits, targets))
        return temperatures[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thresholds, "fit_temperature", remembered)
        assert train(place, "run") == 0
    return place / "run", temperatures[0]


def test_the_stock_pipeline_gives_the_calibrated_scores(place, trained):
    folder, temperature = trained
    assert temperature > 1.2
    texts = [line.split(",")[2] for line in (place / "test.csv").read_text().splitlines()[1:]]

    def scores(model) -> list[float]:
        found = pipeline("text-classification", model=str(model), top_k=None)(texts)
        return [one["score"] for row in found for one in row if one["label"] == "yes"]

    # The checkpoint has the weights of the training
    logits = np.log(np.array(scores(folder / "checkpoint-80"), np.float64))
    other = np.log1p(-np.exp(logits))
    expected = softmax(np.stack([other, logits], 1) / temperature, axis=-1)[:, 1]
    np.testing.assert_allclose(scores(folder), expected, atol=1e-6)

    # Metrics are those of the saved model
    targets = [line.startswith("yes") for line in (place / "test.csv").read_text().splitlines()[1:]]
    metrics = json.loads((folder / "test_results.json").read_text())
    assert metrics["test_loss"] == pytest.approx(log_loss(targets, scores(folder)), abs=1e-5)
    card = (folder / "README.md").read_text()
    for name in ("loss.png", "confusion.png"):
        assert 1000 < (folder / name).stat().st_size < 60_000
        assert f"]({name})" in card


def test_cut_off_after_saving_it_is_not_divided_twice(place, trained, monkeypatch):
    def cut(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training_run, "write_card", cut)  # the weights are saved before it
        with pytest.raises(KeyboardInterrupt):
            train(place, "cut")
    whole = (trained[0] / "model.safetensors").read_bytes()
    assert (place / "cut/model.safetensors").read_bytes() == whole
    assert train(place, "cut") == 0
    assert (place / "cut/model.safetensors").read_bytes() == whole
    assert train(place, "cut") == 0  # it is finished
    assert (place / "cut/model.safetensors").read_bytes() == whole
