"""Training options: those that are refused, and the effect of those that decide what a run computes."""

import pytest
import torch
import transformers
from helpers.trainer_runs import history, make
from helpers.tuning_runs import tuned
from transformers import TrainerCallback, TrainingArguments, get_scheduler

from bert_hf import PreTrainer
from bert_hf.config.training_arguments import (
    REFUSED,
    REFUSED_IN_PRETRAINING,
    FineTuningArguments,
    PreTrainingArguments,
)
from bert_hf.errors import InputError
from bert_hf.training import preemption
from bert_hf.training.optimization.optimizers import OPTIMIZERS, optimizer_identity

QUIET = {"save_strategy": "no", "save_minutes": 0, "eval_strategy": "no", "phases": False, "warmup_steps": 0}

VALUES = {
    "hub_token": "hf_x",
    "hub_strategy": "checkpoint",
    "dataloader_in_order": False,
    "fsdp_config": {"version": 2},
}
VALUES |= {"label_smoothing_factor": 0.1, "neftune_noise_alpha": 5.0}


@pytest.mark.parametrize("name", [*REFUSED, *REFUSED_IN_PRETRAINING])
def test_refused_options_name_themselves(name, tmp_path):
    common = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    with pytest.raises(InputError, match=f"^--{name}: "):
        PreTrainingArguments(**common, **{name: VALUES.get(name, True)})
    if name in REFUSED_IN_PRETRAINING:
        FineTuningArguments(**common, **{name: VALUES[name]})


def test_trainers_refuse_them_in_stock_arguments_too(tmp_path, tokenizer):
    stock = TrainingArguments(str(tmp_path), use_cpu=True, save_only_model=True)
    with pytest.raises(InputError, match=r"^--save_only_model: "):
        PreTrainer(make(tmp_path, tokenizer).model, stock)


@pytest.mark.parametrize(
    "values",
    [
        {"eval_strategy": "epoch"},
        {"accelerator_config": {"split_batches": True}},
        {"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 4}}},
        {"train_sampling_strategy": "group_by_length"},
        {"learning_rate": float("nan")},
        {"per_device_train_batch_size": 0},
    ],
)
def test_values_that_would_give_another_run_are_refused(values, tmp_path):
    with pytest.raises((InputError, ValueError), match=f"--{next(iter(values))}"):
        PreTrainingArguments(output_dir=str(tmp_path), use_cpu=True, bf16=False, **values)


def test_all_other_fields_pass_through(tmp_path):
    given = {"ddp_bucket_cap_mb": 7, "accelerator_config": {"non_blocking": True}, "logging_first_step": True}
    args = PreTrainingArguments(output_dir=str(tmp_path), use_cpu=True, bf16=False, torch_empty_cache_steps=3, **given)
    assert (args.ddp_bucket_cap_mb, args.torch_empty_cache_steps, args.logging_first_step) == (7, 3, True)
    assert args.accelerator_config.non_blocking


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (True, True, True)),
        ({"do_train": True, "do_eval": True}, (True, True, True)),
        ({"do_train": False}, (False, True, True)),
        ({"do_eval": True}, (False, True, False)),
        ({"do_predict": True}, (False, False, True)),
        ({"do_predict": False}, (True, True, False)),
    ],
)
def test_actions(given, expected, tmp_path):
    args = FineTuningArguments(output_dir=str(tmp_path), use_cpu=True, bf16=False, **given)
    assert (args.do_train, args.do_eval, args.do_predict) == expected


class Seen(TrainerCallback):
    """Learning rate of each step, in the order of steps."""

    def __init__(self):
        self.rates = []

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        self.rates.append(optimizer.param_groups[0]["lr"])


def trained(tmp_path, tokenizer, steps=4, callback=None, **changes):
    trainer = make(tmp_path, tokenizer, steps=steps, **{**QUIET, "logging_steps": 1, **changes})
    if callback is not None:
        trainer.add_callback(callback)
    trainer.train()
    return trainer


def metrics(trainer, name):
    return [row[name] for row in trainer.state.log_history if name in row]


@pytest.fixture(scope="module")
def plain(tmp_path_factory, tokenizer):
    return trained(tmp_path_factory.mktemp("plain"), tokenizer)


def test_epochs_decide_the_steps(tmp_path, tokenizer):
    once, twice = (make(tmp_path, tokenizer, steps=-1, num_train_epochs=n, **QUIET).args.max_steps for n in (1, 2))
    assert twice == pytest.approx(2 * once, abs=1)


def test_in_a_program_hours_count_from_the_training(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(preemption, "_began", preemption._began - 7200)
    assert trained(tmp_path, tokenizer, steps=3, max_hours=1).state.global_step == 3


def test_clipping(tmp_path, tokenizer):
    """One step of plain SGD at rate 1 moves the weights by the norm of the clipped gradient."""
    changes = {"optim": "sgd", "learning_rate": 1.0, "weight_decay": 0.0, "lr_scheduler_type": "constant"}
    trainer = make(tmp_path, tokenizer, steps=1, max_grad_norm=0.25, **{**QUIET, **changes})
    before = {name: value.clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    moved = torch.cat([(value - before[name]).flatten() for name, value in trainer.model.named_parameters()])
    assert moved.norm().item() == pytest.approx(0.25, rel=1e-4)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer_is_the_one_that_is_named(tmp_path, tokenizer, name):
    kinds = {"sgd": torch.optim.SGD, "adafactor": transformers.Adafactor}
    trainer = make(tmp_path, tokenizer, optim=name)
    optimizer = trainer.create_optimizer()
    expected = kinds.get(name, torch.optim.AdamW)
    ours = {"muon": "MuonWithAdamW", "bert_adam": "BertAdam"}
    assert type(optimizer).__name__ == ours.get(name, expected.__name__)
    assert optimizer_identity(trainer.args)["name"] == name
    if name.startswith("adamw"):
        assert bool(optimizer.param_groups[0]["fused"]) is (name == "adamw_torch_fused")
    if name != "muon":
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "adamw_torch_fused"])
def test_optimizers_resume_exactly_and_train_apart(tmp_path, tokenizer, name, plain):
    changes = {**QUIET, "optim": name, "logging_steps": 1, "save_strategy": "steps", "save_steps": 2, "dropout": 0.1}
    whole = make(tmp_path, tokenizer, steps=4, save_total_limit=5, **changes)
    whole.train()
    resumed = make(tmp_path / "again", tokenizer, steps=4, **changes)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for part in ("model", "optimizer"):
        files = [folder / f"checkpoint-4/{part}.safetensors" for folder in (tmp_path, tmp_path / "again")]
        assert files[0].read_bytes() == files[1].read_bytes(), part
    assert history(resumed) == history(whole)
    if name != "adamw_torch":  # which is the fused one up to rounding
        assert metrics(whole, "loss")[-1] != pytest.approx(metrics(plain, "loss")[-1], rel=1e-6)


SCHEDULES = {
    "linear": {}, "cosine": {"num_cycles": 1.0}, "cosine_with_restarts": {"num_cycles": 2}, "constant": {},
    "polynomial": {"lr_end": 1e-5, "power": 2.0}, "constant_with_warmup": {}, "inverse_sqrt": {"timescale": 3},
    "cosine_with_min_lr": {"min_lr": 1e-5}, "cosine_warmup_with_min_lr": {"min_lr": 1e-5},
    "warmup_stable_decay": {"num_decay_steps": 2},
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(tmp_path, tokenizer, name):
    seen = Seen()
    changes = {"lr_scheduler_type": name, "lr_scheduler_kwargs": SCHEDULES[name] or None, "warmup_steps": 2}
    trained(tmp_path, tokenizer, 6, seen, micro=2, accumulation=1, **changes)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-4)
    schedule = get_scheduler(name, optimizer, 2, 6, SCHEDULES[name])
    expected = []
    for _ in range(6):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert seen.rates == expected


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_of_muon_keep_the_ratio_of_both_rates(tmp_path, tokenizer, name):
    changes = {"lr_scheduler_type": name, "lr_scheduler_kwargs": SCHEDULES[name] or None, "warmup_steps": 2}
    trainer = make(tmp_path, tokenizer, steps=6, optim="muon", muon_learning_rate=3e-4, **changes)
    trainer.create_optimizer_and_scheduler(6)
    groups = {"momentum" in group: group for group in trainer.optimizer.param_groups}
    for _ in range(6):
        assert groups[True]["lr"] == pytest.approx(3 * groups[False]["lr"])
        trainer.optimizer.step()
        trainer.lr_scheduler.step()


def evaluated_at(trainer):
    return [row["step"] for row in trainer.state.log_history if "eval_mlm_loss" in row]


def test_when_it_is_evaluated(tmp_path, tokenizer):
    common = {"steps": 6, "micro": 2, "accumulation": 1}
    assert evaluated_at(trained(tmp_path, tokenizer, **common, eval_strategy=None, eval_steps=2)) == [2, 4, 6]
    each = {"eval_strategy": "steps", "eval_steps": None}  # then as often as a line is logged
    assert evaluated_at(trained(tmp_path, tokenizer, **common, **each)) == [1, 2, 3, 4, 5, 6]
    assert evaluated_at(trained(tmp_path, tokenizer, **common, eval_strategy="no", eval_steps=2)) == []
    delayed = trained(tmp_path, tokenizer, **common, eval_strategy="steps", eval_steps=2, eval_delay=4)
    assert evaluated_at(delayed) == [4, 6]
    assert evaluated_at(trained(tmp_path, tokenizer, **common, eval_on_start=True)) == [0]


@pytest.mark.parametrize("greater", [True, False])
def test_the_best_model_is_kept(tmp_path, greater):
    trainer = tuned(tmp_path, metric_for_best_model="loss", greater_is_better=greater, learning_rate=0.05)
    trainer.train()
    losses = metrics(trainer, "eval_loss")
    best = max(losses) if greater else min(losses)
    assert trainer.state.best_metric == best
    assert trainer.evaluate()["eval_loss"] == pytest.approx(best, rel=1e-6)


def test_which_checkpoints_stay(tmp_path, tokenizer):
    def stay(folder, **changes):
        trainer = make(tmp_path / folder, tokenizer, steps=5, micro=2, accumulation=1, **{**QUIET, **changes})
        trainer.train()
        return sorted(path.name for path in (tmp_path / folder).glob("checkpoint-*"))

    assert stay("no") == []
    steps = {"save_strategy": None, "save_steps": 2}
    assert stay("all", **steps, save_total_limit=0) == ["checkpoint-2", "checkpoint-4", "checkpoint-5"]
    assert stay("one", **steps, save_total_limit=1) == ["checkpoint-5"]
    assert stay("time", save_strategy=None, save_minutes=1e-9, save_total_limit=2) == ["checkpoint-4", "checkpoint-5"]


def test_seeds(tmp_path, tokenizer, plain):
    other = trained(tmp_path, tokenizer, steps=2, seed=4)  # the examples have a seed of their own: dropout differs
    assert metrics(other, "loss")[0] != metrics(plain, "loss")[0]
    common = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    assert PreTrainingArguments(seed=5, **common).data_seed == 5
    assert PreTrainingArguments(seed=5, data_seed=6, **common).data_seed == 6
    orders = []
    for seed, data_seed in ((1, None), (1, 7), (2, 7)):
        trainer = tuned(tmp_path, seed=seed, data_seed=data_seed)
        orders.append([row["labels"].tolist() for row in trainer.get_train_dataloader()])
    assert orders[1] == orders[2] != orders[0]


@pytest.mark.parametrize("strategy", ["random", "sequential"])
def test_each_order_resumes_exactly(tmp_path, strategy):
    changes = {"train_sampling_strategy": strategy, "eval_strategy": "no", "save_strategy": "steps", "save_steps": 1}
    changes |= {"load_best_model_at_end": False, "num_train_epochs": 2, "save_total_limit": 0}
    whole = tuned(tmp_path, **changes)
    whole.train()
    middle = whole.state.max_steps // 2 + 2
    resumed = tuned(tmp_path / "again", **changes)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{middle}"))
    assert history(resumed) == history(whole)
