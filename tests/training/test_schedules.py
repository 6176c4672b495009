from types import SimpleNamespace

import pytest
import torch
from transformers import TrainingArguments, get_scheduler

from bert_hf.errors import InputError
from bert_hf.training.optimization.schedules import linear_from_step_zero, with_decay_steps


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


def stable(decay, steps, warmup=0.1):
    args = TrainingArguments(
        "unused", lr_scheduler_type="warmup_stable_decay", lr_scheduler_kwargs={"num_decay_steps": decay},
        warmup_steps=warmup, report_to=[],
    )  # fmt: skip
    return with_decay_steps(args, steps)


def test_a_decay_below_one_is_a_share_of_the_steps():
    assert stable(0.2, 1500) == {"num_decay_steps": 300}
    assert stable(300, 1500) == {"num_decay_steps": 300}
    assert stable(0.9, 100) == {"num_decay_steps": 90}


def test_warm_up_and_decay_fit_into_the_run():
    """Else transformers begins the decay before its peak, without a word."""
    for decay in (91, 0.91):
        with pytest.raises(InputError, match="num_decay_steps 91 and 10 steps of warm-up are more than the run's 100"):
            stable(decay, 100)


@pytest.mark.parametrize("kwargs", [None, {"power": 2.0}])
def test_the_options_of_other_schedules_are_kept(kwargs):
    args = SimpleNamespace(lr_scheduler_type="polynomial", lr_scheduler_kwargs=kwargs)
    assert with_decay_steps(args, 10) == kwargs


def test_the_rate_stays_at_its_peak_and_falls_to_zero():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    kwargs = stable(0.2, 100)
    schedule = get_scheduler(
        "warmup_stable_decay", optimizer, num_warmup_steps=10, num_training_steps=100, scheduler_specific_kwargs=kwargs
    )
    rates = []
    for _ in range(101):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[5] == 0.5
    assert set(rates[10:81]) == {1.0}
    assert rates[90] == pytest.approx(0.5)
    assert rates[100] == 0.0
