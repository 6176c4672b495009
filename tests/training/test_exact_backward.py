"""Backward runs on the loss that was computed, whatever `Trainer.training_step` makes of it."""

import pytest
import torch
import transformers
from helpers.trainer_runs import make

OPTIONS = {
    "steps": 2,
    "dropout": 0.0,
    "max_grad_norm": 0.0,
    "save_strategy": "no",
    "eval_strategy": "no",
    "short": 0.8,
}


def step_of_5_16(self, model, inputs, num_items_in_batch=None):
    """transformers 5.16 to 5.18: no `loss_is_scaled_for_ga`; the loss is divided unless the model takes the count."""
    model.train()
    inputs = self._prepare_inputs(inputs)
    with self.compute_loss_context_manager():
        loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
    if (not self.model_accepts_loss_kwargs or num_items_in_batch is None) and self.compute_loss_func is None:
        loss = loss / self.current_gradient_accumulation_steps
    kwargs = {"scale_wrt_gas": False} if self.is_deepspeed_enabled else {}
    self.accelerator.backward(loss, **kwargs)
    return loss.detach()


def losses(trainer):
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def test_a_step_before_training(tmp_path, tokenizer):
    """From Python, without `train`: loss and gradient of a plain backward, and no trace in the run that follows."""
    fresh, used = (make(tmp_path / name, tokenizer, logging_steps=1, **OPTIONS) for name in ("fresh", "used"))
    batch = next(iter(used.get_train_dataloader()))
    loss = used.training_step(used.model, batch)
    gradients = [parameter.grad.clone() for parameter in used.model.parameters()]

    used.model.zero_grad()
    expected = used.model(**batch).loss
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    for parameter, gradient in zip(used.model.parameters(), gradients, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-5, atol=1e-7)
    assert losses(used) == losses(fresh)


def test_a_step_that_divides_by_accumulation_steps_changes_nothing(tmp_path, tokenizer, monkeypatch):
    whole = make(tmp_path / "whole", tokenizer, micro=16, accumulation=1, logging_steps=1, **OPTIONS)
    expected = losses(whole)
    monkeypatch.setattr(transformers.Trainer, "training_step", step_of_5_16)
    parts = make(tmp_path / "parts", tokenizer, micro=4, accumulation=4, logging_steps=1, **OPTIONS)
    assert losses(parts) == pytest.approx(expected, rel=1e-6)
    norms = [[row["grad_norm"] for row in run.state.log_history if "loss" in row] for run in (whole, parts)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
