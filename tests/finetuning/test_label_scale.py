"""Regression: trained on standardized labels, and everything outside in the units of the labels."""

import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers.recipe_runs import cut_off
from tiny import save_tiny_bert
from transformers import pipeline

from bert_hf import FineTuner, predict
from bert_hf.config.training_arguments import FineTuningArguments

RNG = np.random.default_rng(0)
ROWS = [
    {"text": " ".join(f"w{word}" for word in words), "label": 1000.0 + 40 * float(np.mean(words < 20))}
    for words in RNG.integers(0, 40, (80, 4))
]
TEXTS = [row["text"] for row in ROWS]
LABELS = np.array([row["label"] for row in ROWS])


def tuner(folder, model="bert", output="run", steps=40, **options) -> FineTuner:
    args = FineTuningArguments(
        str(folder / output), max_steps=steps, learning_rate=3e-3, per_device_train_batch_size=16, bf16=False,
        use_cpu=True, disable_tqdm=True, eval_strategy="steps", eval_steps=20, save_steps=20, save_minutes=0,
        **options,
    )  # fmt: skip
    rows = Dataset.from_list(ROWS)
    named = {"problem_type": "regression", "max_seq_length": 16}
    return FineTuner(str(folder / model), args, train_dataset=rows, eval_dataset=rows, **named)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished training and its folder."""
    folder = tmp_path_factory.mktemp("regression")
    save_tiny_bert(folder / "bert", dropout=0.0)
    made = tuner(folder)
    made.train()
    made.save_model(str(folder / "model"))
    return folder, made


def scores(where) -> np.ndarray:
    return np.array([row["score"] for row in predict(str(where), TEXTS)])


def test_far_numbers_are_learned_and_the_stock_pipeline_returns_them(finished):
    folder, made = finished
    error = np.sqrt(np.mean((scores(folder / "model") - LABELS) ** 2))
    assert error < 0.7 * LABELS.std()
    stock = pipeline("text-classification", str(folder / "model"), function_to_apply="none")(TEXTS)
    np.testing.assert_allclose([each["score"] for each in stock], scores(folder / "model"), rtol=1e-6)
    assert "label_scale" not in (folder / "model/config.json").read_text()
    assert made.validation_metrics["eval_rmse"] == pytest.approx(error, rel=1e-4)
    assert made.validation_metrics["eval_loss"] == pytest.approx(error**2, rel=1e-4)


def test_evaluations_and_checkpoints_along_the_way_are_in_the_units_of_the_labels(finished):
    folder, made = finished
    logged = {log["step"]: log["eval_rmse"] for log in made.state.log_history if "eval_rmse" in log}
    for step, rmse in logged.items():
        checkpoint = folder / f"run/checkpoint-{step}"
        assert json.loads((checkpoint / "config.json").read_text())["trained_on"]["label_scale"][0] == LABELS.mean()
        assert rmse == pytest.approx(np.sqrt(np.mean((scores(checkpoint) - LABELS) ** 2)), rel=1e-4)
    assert max(logged.values()) < 2 * LABELS.std()


def test_a_finished_model_is_trained_further_from_its_own_predictions(finished):
    folder, _ = finished
    again = tuner(folder, "model", "again", steps=1)
    again.args.learning_rate = 0.0
    again.train()
    again.save_model(str(folder / "further"))
    np.testing.assert_allclose(scores(folder / "further"), scores(folder / "model"), rtol=1e-6)
    from_checkpoint = tuner(folder, "run/checkpoint-20", "third", steps=1)
    from_checkpoint.args.learning_rate = 0.0
    from_checkpoint.train()
    from_checkpoint.save_model(str(folder / "third-model"))
    np.testing.assert_allclose(scores(folder / "third-model"), scores(folder / "run/checkpoint-20"), rtol=1e-6)


def test_a_resumed_training_ends_with_the_same_weights(finished):
    folder, made = finished
    with cut_off(FineTuner, 20):
        tuner(folder, output="cut").train()
    resumed = tuner(folder, output="cut")
    resumed.train(resume_from_checkpoint=str(folder / "cut/checkpoint-20"))
    for name, weight in made.network.state_dict().items():
        assert torch.equal(weight, resumed.network.state_dict()[name]), name


def test_constant_predictions_get_a_line(finished):
    _, made = finished
    kept = made.kept["validation"]
    assert made.task._constant_predictions_line("validation", kept) == []
    [line] = made.task._constant_predictions_line("validation", kept * 0 + 1017)
    assert line.startswith("! the predictions are nearly constant (deviation 0, of the labels")


def test_the_scale_of_resumed_weights_is_the_checkpoints(finished):
    """Rows that were added have another mean: the checkpoint's predictions do not move by it."""
    folder, _ = finished
    options = {"output": "more", "steps": 21}
    more = tuner(folder, **options)
    encoded = more.task.encoded("train")
    moved = encoded.features.map(lambda row: {"labels": row["labels"] + 500.0})
    more.task._encoded["train"] = encoded._replace(features=moved)
    more.train(resume_from_checkpoint=str(folder / "run/checkpoint-20"))
    assert more.head.label_scale is None
    more.save_model(str(folder / "moved"))
    before = scores(folder / "run/checkpoint-20")
    assert np.abs(scores(folder / "moved") - before).max() < 50
