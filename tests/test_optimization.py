import pytest
import torch

from bert_hf import BertForPreTraining
from bert_hf.optimization import BertAdam, linear_from_step_zero, make_optimizer, parameter_groups


def test_layer_norm_and_biases_are_not_decayed(config):
    model = BertForPreTraining(config)
    decayed, spared = parameter_groups(model, 0.01)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert decayed["weight_decay"] == 0.01
    assert spared["weight_decay"] == 0.0
    assert all(names[id(p)].endswith("weight") and "LayerNorm" not in names[id(p)] for p in decayed["params"])
    assert all(names[id(p)].endswith("bias") or "LayerNorm" in names[id(p)] for p in spared["params"])
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))


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


@pytest.mark.parametrize(("correction", "kind"), [(True, torch.optim.AdamW), (False, BertAdam)])
def test_bias_correction_is_a_choice(config, correction, kind):
    optimizer = make_optimizer(BertForPreTraining(config), lr=1e-4, bias_correction=correction)
    assert type(optimizer) is kind


def test_the_2018_decay_counts_from_step_zero():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = linear_from_step_zero(optimizer, 10, 100)
    rates = []
    for _ in range(101):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:3] == [0.0, 0.1, 0.2]
    assert rates[10] == pytest.approx(0.9)  # not 1.0: the decay did not wait
    assert rates[100] == 0.0
