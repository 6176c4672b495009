import torch
from helpers.trainer_runs import make
from torch.optim.lr_scheduler import LambdaLR
from transformers import DistilBertConfig, DistilBertModel

from bert_hf import BertForPreTraining
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.training.optimization.optimizers import (
    OPTIMIZERS,
    SCHEDULES,
    BertAdam,
    OptimizerEntry,
    optimizer_identity,
    parameter_groups,
)


def arguments(folder, name):
    return PreTrainingArguments(str(folder), optim=name, learning_rate=1e-2, use_cpu=True, bf16=False)


def test_layer_norm_and_biases_are_not_decayed(config):
    model = BertForPreTraining(config)
    decayed, spared = parameter_groups(model, 0.01)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert decayed["weight_decay"] == 0.01
    assert spared["weight_decay"] == 0.0
    assert all(names[id(p)].endswith("weight") and "LayerNorm" not in names[id(p)] for p in decayed["params"])
    assert all(names[id(p)].endswith("bias") or "LayerNorm" in names[id(p)] for p in spared["params"])
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))


def test_norms_of_other_models_are_not_decayed():
    """DistilBERT calls them `sa_layer_norm` and `output_layer_norm`."""
    config = DistilBertConfig(vocab_size=50, dim=16, n_layers=1, n_heads=2, hidden_dim=16)
    model = DistilBertModel(config)
    decayed, _ = parameter_groups(model, 0.01)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert not [names[id(parameter)] for parameter in decayed["params"] if parameter.ndim == 1]
    assert len(decayed["params"]) == 8  # two embeddings and six matrices


def test_bert_adam_is_the_2018_update():
    """Three steps against the formula of google-research/bert@eedf571, number by number, in float64."""
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    optimizer = BertAdam([weight], lr=0.1, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01)
    expected, m, v = weight.detach().clone(), torch.zeros(3).double(), torch.zeros(3).double()
    for step in range(3):
        gradient = torch.tensor([0.3, -0.1, 2.0], dtype=torch.float64) * (step + 1)
        weight.grad = gradient.clone()
        optimizer.step()
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        expected = expected - 0.1 * (m / (v.sqrt() + 1e-6) + 0.01 * expected)
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=0)
    assert optimizer.state[weight].keys() == {"exp_avg", "exp_avg_sq"}


def test_an_optimizer_and_a_schedule_are_one_entry_each(tmp_path, tokenizer, monkeypatch):
    """Nothing else names them: neither the options, nor the identity of a run, nor the card."""
    entry = OptimizerEntry(
        lambda model, args: torch.optim.SGD(parameter_groups(model, 0.0), lr=args.learning_rate),
        options=("adam_beta1",),
    )
    monkeypatch.setitem(OPTIMIZERS, "mine", entry)
    monkeypatch.setitem(SCHEDULES, "halved", lambda optimizer, *_: LambdaLR(optimizer, lambda step: 0.5))

    trainer = make(tmp_path, tokenizer, steps=2, optim="mine", lr_scheduler_type="halved", logging_steps=1)
    trainer.train()
    assert type(trainer.optimizer.optimizer) is torch.optim.SGD
    assert [row["learning_rate"] for row in trainer.state.log_history if "loss" in row] == [0.5e-4] * 2
    assert optimizer_identity(trainer.args)["adam_beta1"] == 0.9
