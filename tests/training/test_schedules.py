import pytest
import torch
from transformers import TrainingArguments

from bert_hf.config.parser import parse
from bert_hf.config.training_arguments import FineTuningArguments, PreTrainingArguments
from bert_hf.errors import InputError
from bert_hf.training.optimization.optimizers import make_schedule


def scheduler(name, steps, kwargs=None, warmup=10):
    """A schedule of a run, by its name, at a peak rate of 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    args = TrainingArguments("unused", warmup_steps=warmup, lr_scheduler_kwargs=kwargs, report_to=[])
    args.lr_scheduler_type = name
    return make_schedule(args, optimizer, steps)


def rates(schedule, steps):
    """The rate of each step, and the one after the last."""
    found = []
    for _ in range(steps + 1):
        found.append(schedule.get_last_lr()[0])
        schedule.optimizer.step()
        schedule.step()
    return found


def test_the_2018_decay_counts_from_step_zero():
    seen = rates(scheduler("bert_linear", 100), 100)
    assert seen[:3] == [0.0, 0.1, 0.2]
    assert seen[10] == pytest.approx(0.9)  # not 1.0: the decay did not wait
    assert seen[100] == 0.0


@pytest.mark.parametrize("decay", [0.2, 20])
def test_the_rate_stays_at_its_peak_and_falls_to_zero(decay):
    """A decay below one is a share of the steps."""
    seen = rates(scheduler("warmup_stable_decay", 100, {"num_decay_steps": decay}), 100)
    assert seen[5] == 0.5
    assert set(seen[10:81]) == {1.0}
    assert seen[90] == pytest.approx(0.5)
    assert seen[100] == 0.0


@pytest.mark.parametrize("decay", [91, 0.91])
def test_warm_up_and_decay_fit_into_the_run(decay):
    """Otherwise transformers begins the decay before the peak, silently."""
    with pytest.raises(InputError, match="num_decay_steps 91 and 10 steps of warm-up are more than the run's 100"):
        scheduler("warmup_stable_decay", 100, {"num_decay_steps": decay})


@pytest.mark.parametrize(("name", "warns"), [("linear", True), ("bert_linear", True), ("constant", False)])
def test_a_warm_up_longer_than_the_run_is_reported(caplog, name, warns):
    with caplog.at_level("WARNING", logger="bert_hf"):
        scheduler(name, 10)
    assert ("never reaches its peak" in caplog.text) is warns


@pytest.mark.parametrize("kind", [PreTrainingArguments, FineTuningArguments])
def test_a_schedule_and_an_optimizer_of_ours_are_options_of_a_command(tmp_path, kind):
    words = ["--lr_scheduler_type", "bert_linear", "--optim", "bert_adam", "--output_dir", str(tmp_path)]
    (args,) = parse((kind,), words)
    assert (args.lr_scheduler_type, args.optim) == ("bert_linear", "bert_adam")
