"""FineTuner: order of predictions, loss of an evaluation, the best evaluation, few rows, a whole run."""

import copy
import json

import numpy as np
import pytest
import torch
from helpers.downstream import Classes, RandomTask, Tokens, collate, make_finetuner
from tiny import tiny_config
from transformers import AutoTokenizer, BertForSequenceClassification, TrainingArguments, pipeline

from bert_hf import InputError
from bert_hf.config.finetuning_arguments import TaskArguments
from bert_hf.config.training_arguments import FineTuningArguments, resolve_by_features, resolve_by_width
from bert_hf.finetuning import run
from bert_hf.finetuning.losses import count_labels
from bert_hf.finetuning.trainer import FineTuner, load_task_model, resolve_defaults
from bert_hf.training import output_folder


def by_hand(trainer, part):
    """Logits and mean loss of a part, one row at a time."""
    model = trainer.network.eval()
    logits, losses, labels = [], 0.0, 0
    for row in trainer.task.encoded(part).features:
        batch = collate([{name: value for name, value in row.items() if name != "length"}])
        with torch.no_grad():
            outputs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        logits.append(outputs.logits[0].numpy())
        losses += float(trainer.head.losses(batch, outputs).sum())
        labels += int(count_labels(batch["labels"]).sum())
    return logits, losses / labels


@pytest.mark.parametrize("head", [Classes, Tokens])
def test_predictions_and_loss_are_those_of_the_rows_one_by_one(tmp_path, head):
    trainer = make_finetuner(tmp_path, head, per_device_eval_batch_size=4)
    trainer.task.parts["test"].reverse()  # no longer sorted by length
    logits, loss = by_hand(trainer, "test")

    metrics = trainer.predict_part("test", "test")
    assert metrics["test_loss"] == pytest.approx(loss, rel=1e-5)
    for expected, got in zip(logits, trainer.kept["test"], strict=True):
        np.testing.assert_allclose(got[: len(expected)] if head is Tokens else got, expected, atol=1e-5)
    assert "test_share_of_class_0" in metrics


def test_rows_that_are_not_a_part_of_the_task_are_refused(tmp_path):
    """As many rows as the validation part has would be compared with its labels."""
    trainer = make_finetuner(tmp_path)
    other = trainer.get_eval_dataloader(trainer.task.encoded("validation").features)
    with pytest.raises(InputError, match="not rows of the task"):
        trainer.evaluation_loop(other, "evaluation")


class Scripted(RandomTask):
    """Its metric and loss at each evaluation are given."""

    script: tuple = ()

    def metrics(self, part, kept, losses):
        metric, loss = self.script[min(self.evaluations, len(self.script) - 1)]
        self.evaluations += 1
        return {"share_of_class_0": metric, "loss": loss}


def evaluated(folder, script, kind=Scripted, **options):
    strategies = {"eval_strategy": "epoch", "save_strategy": "epoch", **options}
    trainer = make_finetuner(
        folder, kind=kind, num_train_epochs=len(script), load_best_model_at_end=True,
        metric_for_best_model="share_of_class_0", greater_is_better=True, per_device_train_batch_size=18,
        save_total_limit=9, **strategies,
    )  # fmt: skip
    trainer.task.script, trainer.task.evaluations = script, 0
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    ("script", "kept"),
    [
        (((0.5, 1.0), (0.9, 0.25), (0.9, 0.04), (0.8, 0.01)), 3),  # a tie: the lower loss
        (((0.9, 0.04), (0.9, 0.25), (0.9, 0.04)), 1),  # no lower one: the first
        (((0.9, 0.3), (0.9, 0.2), (0.95, 0.9)), 3),
    ],
)
def test_ties_go_to_the_lower_loss(tmp_path, script, kept):
    trainer = evaluated(tmp_path, script)
    assert trainer.state.best_global_step == 2 * kept
    assert run.selected_step_line(trainer) == (
        f"kept: the weights of step {2 * kept} of {2 * len(script)}, by validation share_of_class_0"
    )


class Thresholded(Scripted):
    """Its threshold depends on the weights, as that of questions without an answer does."""

    def metrics(self, part, kept, losses):
        self.head.threshold = float(np.mean(kept))
        return super().metrics(part, kept, losses)


def test_the_threshold_is_that_of_the_weights_that_are_kept(tmp_path):
    trainer = evaluated(tmp_path, ((0.9, 0.1), (0.5, 0.5), (0.4, 0.9)), kind=Thresholded)
    assert trainer.state.best_global_step == 2
    after_training = trainer.head.threshold
    trainer.evaluate()
    assert trainer.head.threshold == after_training


def test_the_best_weights_are_saved_between_two_checkpoints(tmp_path):
    script = ((0.9, 1.0), (0.5, 0.5), (0.8, 0.5), (0.7, 0.6))
    steps = {"eval_steps": 2, "save_steps": 4, "eval_strategy": "steps", "save_strategy": "steps"}
    trainer = evaluated(tmp_path, script, **steps)
    assert trainer.state.best_global_step == 2
    assert (tmp_path / "checkpoint-2").is_dir()


@pytest.mark.parametrize(("rows", "metric"), [(199, "loss"), (200, "share_of_class_0")])
def test_few_validation_rows_are_judged_by_the_loss(tmp_path, rows, metric):
    trainer = make_finetuner(tmp_path)
    trainer.task.parts["validation"] = trainer.task.parts["train"][:1] * rows
    args = FineTuningArguments(str(tmp_path), use_cpu=True, report_to="none", bf16=False)
    resolve_defaults(args, trainer.task, None)
    assert args.metric_for_best_model == metric
    assert args.greater_is_better == (metric != "loss")


def test_errors_of_numbers_are_better_when_they_are_lower(tmp_path):
    trainer, options = make_finetuner(tmp_path), {"use_cpu": True, "metric_for_best_model": "rmse"}
    for args in (
        FineTuningArguments(str(tmp_path), **options),
        FineTuningArguments(str(tmp_path), load_best_model_at_end=False, **options),  # for an EarlyStoppingCallback
        TrainingArguments(str(tmp_path), **options),
    ):
        assert FineTuner(trainer.model, args, task=trainer.task).args.greater_is_better is False

    baselines = {"baseline_mean_rmse": 5.0, "baseline_words_rmse": 3.0, "baseline_characters_rmse": 4.0}
    [line] = run.better_baseline_lines("rmse", 3.5, baselines)
    assert line == "A ridge regression on words is better on the same rows: rmse 3.000, this model 3.500"
    assert run.better_baseline_lines("rmse", 2.5, baselines) == []


@pytest.mark.parametrize(("width", "rate", "epochs"), [(128, 1e-3, 4), (256, 3e-4, 4), (512, 1e-4, 4), (768, 5e-5, 3)])
def test_rate_and_epochs_by_width(tmp_path, width, rate, epochs):
    args = FineTuningArguments(str(tmp_path), use_cpu=True, report_to="none")
    resolve_by_width(args, width)
    assert (args.learning_rate, args.num_train_epochs) == (rate, epochs)
    args = FineTuningArguments(str(tmp_path), use_cpu=True, report_to="none", learning_rate=1.0, num_train_epochs=9)
    resolve_by_width(args, width)
    assert (args.learning_rate, args.num_train_epochs) == (1.0, 9)


@pytest.mark.parametrize(
    ("given", "min_steps", "epochs"),
    [(None, None, 50), (1, None, 1), (4, None, 4), (None, 0, 3), (None, 40, 10), (1, 40, 10), (20, 40, 20)],
)
def test_epochs_that_are_given_are_kept_unless_least_steps_are_given_too(tmp_path, given, min_steps, epochs):
    args = FineTuningArguments(str(tmp_path), use_cpu=True, report_to="none", num_train_epochs=given)
    resolve_by_width(args, 768)
    resolve_by_features(args, features=100, min_steps=min_steps)  # 4 steps an epoch
    assert args.num_train_epochs == epochs


@pytest.mark.parametrize(
    ("options", "kept", "saved"),
    [({}, True, "epoch"), ({"eval_strategy": "no"}, False, "no"), ({"eval_steps": 5}, True, "steps"),
     ({"save_steps": 7}, True, "steps"), ({"eval_strategy": "steps"}, True, "steps"),
     ({"save_strategy": "no"}, False, "no"),
     ({"load_best_model_at_end": False}, False, "no")],
)  # fmt: skip
def test_the_best_weights_are_kept_where_the_run_is_evaluated(tmp_path, options, kept, saved):
    args = FineTuningArguments(str(tmp_path), use_cpu=True, report_to="none", **options)
    assert (args.load_best_model_at_end, args.save_strategy) == (kept, saved)


@pytest.fixture
def checkpoint(tmp_path, tokenizer):
    BertForSequenceClassification(tiny_config()).bert.save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def fine_tune(checkpoint, folder, tokenizer, run_options=None, **options):
    task_args = TaskArguments(
        str(checkpoint), dataset_name="made/up", **{"max_seq_length": 32, "write_predictions": True, **options}
    )
    quiet = {"use_cpu": True, "report_to": "none", "bf16": False, "disable_tqdm": True}
    args = FineTuningArguments(str(folder), **quiet, **(run_options or {}))
    task = RandomTask(task_args, tokenizer, Classes)
    try:
        model, about = load_task_model(task, args.seed)
        begun = run.start_finetuning(task, args, model, about)
        before = copy.copy(begun)
        if not begun.finished:
            run.train_and_finish(FineTuner(model, args, task=task, facts={"identity": begun.identity}), begun)
    finally:
        output_folder.release_lock()
    return before


def test_a_whole_run(checkpoint, tmp_path, tokenizer, capsys):
    assert not fine_tune(checkpoint, tmp_path / "run", tokenizer, min_steps=4).finished
    metrics = json.loads((tmp_path / "run/all_results.json").read_text())
    assert {"eval_loss", "eval_share_of_class_0", "test_loss", "test_share_of_class_0", "train_loss"} <= set(metrics)
    assert metrics["train_samples"] == 36
    assert next(name for name in metrics if name.startswith("eval_")) == "eval_share_of_class_0"  # the main one
    assert len((tmp_path / "run/test.txt").read_text().split()) == 18

    # Each step is evaluated once in the log; all_results.json has the metrics of the weights that are kept
    logs = json.loads((tmp_path / "run/trainer_state.json").read_text())["log_history"]
    by_step = {log["step"]: log["eval_loss"] for log in logs if "eval_loss" in log}
    assert len(by_step) == sum("eval_loss" in log for log in logs) == 4
    assert metrics["eval_loss"] == pytest.approx(min(by_step.values()), rel=1e-5)
    card = (tmp_path / "run/README.md").read_text()
    assert "# run" in card
    assert "Measured on rows held out of the same data:" in card
    assert "datasets:\n- made/up\n" in card
    assert "widget" not in card
    assert f"{'test_loss'.ljust(28)}{metrics['test_loss']:12.4f}" in capsys.readouterr().out

    # A stock pipeline reads no position that was not trained
    assert AutoTokenizer.from_pretrained(tmp_path / "run").model_max_length == 32
    config = json.loads((tmp_path / "run/sentence_bert_config.json").read_text())
    assert config == {"max_seq_length": 32, "do_lower_case": False}
    classify = pipeline("text-classification", model=str(tmp_path / "run"))
    assert classify("w1 " * 300, truncation=True) == classify("w1 " * 30)

    assert fine_tune(checkpoint, tmp_path / "run", tokenizer, min_steps=4).finished
    with pytest.raises(InputError, match="another run: max_seq_length"):
        fine_tune(checkpoint, tmp_path / "run", tokenizer, min_steps=4, max_seq_length=16)


def test_other_evaluations_are_another_run_where_they_choose_the_weights(checkpoint, tmp_path, tokenizer):
    def again(**options):
        return fine_tune(checkpoint, tmp_path / "run", tokenizer, options, min_steps=4).finished

    assert not again()
    assert again(eval_strategy="epoch")  # the default
    with pytest.raises(InputError, match=r"evaluation differ \(eval_delay: 1, was 0\)"):
        again(eval_delay=1)
    with pytest.raises(
        InputError, match=r"evaluation differ \(eval_strategy: \S+STEPS, was \S+EPOCH; eval_steps: 3, "
    ):
        again(eval_steps=3)


def test_other_evaluations_are_the_same_run_where_the_last_weights_are_kept(checkpoint, tmp_path, tokenizer):
    last = {"load_best_model_at_end": False}
    assert not fine_tune(checkpoint, tmp_path / "run", tokenizer, last, min_steps=4).finished
    assert fine_tune(checkpoint, tmp_path / "run", tokenizer, {**last, "eval_strategy": "no"}, min_steps=4).finished


def test_the_test_rows_may_be_left_for_later(checkpoint, tmp_path, tokenizer):
    fine_tune(checkpoint, tmp_path / "run", tokenizer, {"do_predict": False}, min_steps=4)
    metrics = json.loads((tmp_path / "run/all_results.json").read_text())
    assert not [name for name in metrics if name.startswith(("test_", "baseline_"))]
    card = (tmp_path / "run/README.md").read_text()
    assert "Measured on validation rows of the same data, which also chose the weights:" in card


def test_fewer_rows_are_drawn_by_the_split_seed(tokenizer):
    def rows(**options):
        return RandomTask(
            TaskArguments("c", from_scratch=True, max_train_samples=10, max_eval_samples=4, **options),
            tokenizer,
            Classes,
        ).parts

    one = rows()
    assert [len(part) for part in one.values()] == [10, 4, 4]
    assert one == rows()
    assert one["train"] != rows(split_seed=1)["train"]
