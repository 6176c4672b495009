"""Each training option: its effect where it works, one line where it is refused. The table: training_options.py."""

import contextlib
import dataclasses
import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from datasets import concatenate_datasets
from helpers.trainer_runs import history, make
from helpers.tuning_runs import tuned
from transformers import TrainerCallback, TrainingArguments, get_scheduler
from transformers.integrations import INTEGRATION_TO_CALLBACK
from transformers.integrations.integration_utils import TrackioCallback

from bert_hf.config.arguments import FineTuningArguments, PreTrainingArguments
from bert_hf.config.training_options import (
    BY_FINETUNING,
    BY_PRETRAINING,
    OPTIONS,
    PRETRAINER,
    TRAINER,
    check_options,
    defaults_of,
)
from bert_hf.errors import InputError
from bert_hf.preflight.options import check_training_options
from bert_hf.training import output_folder, run
from bert_hf.training.optimization.optimizers import OPTIMIZERS, optimizer_identity
from bert_hf.training.optimization.schedules import check_schedule
from bert_hf.training.publishing import push
from bert_hf.training.publishing.card import Card

KINDS = {PreTrainingArguments: BY_PRETRAINING, FineTuningArguments: BY_FINETUNING}
FIELDS = {field.name for kind in (TrainingArguments, *KINDS) for field in dataclasses.fields(kind)}
QUIET = {"save_strategy": "no", "save_minutes": 0, "eval_strategy": "no", "phases": False, "warmup_steps": 0}
QUIET |= {"fast_path": "on"}  # what is checked is then not computed twice in the first step

EFFECTS: set[str] = set()  # options whose effect one of the tests below shows


def shows(*names: str):
    """Marks a test that shows the effect of options."""

    def mark(test):
        EFFECTS.update(names)
        return test

    return mark


def always_refused(name: str, by: frozenset) -> bool:
    """True where nothing but the default is taken."""
    return any(refused.by & by and refused.when is None for refused in OPTIONS[name])


def test_every_field_is_in_the_table():
    assert OPTIONS.keys() >= FIELDS


def test_the_effect_of_every_option_that_works_is_shown():
    working = {name for name in OPTIONS if not all(always_refused(name, by) for by in KINDS.values())}
    assert working - EFFECTS == {"disable_tqdm"}


# ---- what is refused

REFUSED = {  # name → a value that is refused by at least one recipe
    "auto_find_batch_size": True, "optim_target_modules": "all-linear", "average_tokens_across_devices": False,
    "label_smoothing_factor": 0.1, "neftune_noise_alpha": 5.0, "bf16_full_eval": True, "fp16_full_eval": True,
    "use_liger_kernel": True, "liger_kernel_config": {"rope": True}, "use_cache": True, "logging_strategy": "epoch",
    "logging_nan_inf_filter": True, "include_num_input_tokens_seen": "some", "skip_memory_metrics": False,
    "debug": "underflow_overflow", "eval_strategy": "epoch", "prediction_loss_only": True,
    "eval_do_concat_batches": False, "eval_use_gather_object": True, "include_for_metrics": ["inputs"],
    "batch_eval_metrics": True, "label_names": ["labels"], "save_strategy": "epoch", "save_only_model": True,
    "save_on_each_node": True, "enable_jit_checkpoint": True, "ignore_data_skip": True,
    "restore_callback_states_from_checkpoint": True, "hub_token": "hf_x", "hub_strategy": "checkpoint",
    "hub_always_push": True, "accelerator_config": '{"split_batches": true}', "parallelism_config": object(),
    "dataloader_drop_last": True, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 2,
    "dataloader_multiprocessing_context": "spawn", "dataloader_in_order": False,
    "train_sampling_strategy": "sequential", "length_column_name": "size", "ddp_timeout": 60, "fsdp": True,
    "fsdp_config": {"version": 2}, "local_rank": 3, "do_predict": True,
}  # fmt: skip


def asked(kind, **values):
    """Options as a recipe's preflight sees them."""
    defaults = defaults_of(kind) | {"dataloader_num_workers": 0, "use_cpu": True}
    return SimpleNamespace(**{**defaults, **values})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line_that_names_the_option(kind, name, monkeypatch):
    if name == "skip_memory_metrics":
        monkeypatch.setattr("bert_hf.config.training_options.importlib.util.find_spec", lambda package: None)
    if not any(refused.by & KINDS[kind] for refused in OPTIONS[name]):
        check_training_options(asked(kind, **{name: REFUSED[name]}), kind, KINDS[kind])  # it works there
        return
    with pytest.raises(InputError) as caught:
        check_training_options(asked(kind, **{name: REFUSED[name]}), kind, KINDS[kind])
    reasons = [refused.reason for refused in OPTIONS[name] if refused.by & KINDS[kind]]
    assert str(caught.value).startswith(f"--{name}: ")
    assert caught.value.what in reasons
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_defaults_are_accepted(kind):
    assert check_training_options(asked(kind), kind, KINDS[kind]).startswith("options: ")


def test_a_field_that_a_newer_transformers_adds_is_refused_when_it_is_set(monkeypatch):
    monkeypatch.delitem(OPTIONS, "seed")  # as if it were new
    check_options(asked(PreTrainingArguments), defaults_of(PreTrainingArguments), BY_PRETRAINING)
    with pytest.raises(InputError, match="--seed: it is newer than this version of bert_hf"):
        check_options(asked(PreTrainingArguments, seed=7), defaults_of(PreTrainingArguments), BY_PRETRAINING)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"optim": "adamw_torhc"}, "--optim: unknown optimizer: adamw_torhc; did you mean 'adamw_torch'?"),
        ({"optim_args": "momentum=0.9"}, "--optim_args: adamw_torch_fused has no argument 'momentum'"),
        ({"optim": "sgd", "optim_args": "moment=0.9"}, "--optim_args: sgd has no argument 'moment'; it takes m"),
        ({"optim": "sgd", "optim_args": "momentum=-1"}, "--optim sgd: Invalid momentum"),
        ({"lr_scheduler_type": "lineer"}, "--lr_scheduler_type: unknown schedule: lineer"),
        ({"lr_scheduler_kwargs": {"lr_end": 0.1}}, "--lr_scheduler_kwargs: linear: "),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "--lr_scheduler_kwargs: cosine_with_min_lr: "),
    ],
)  # fmt: skip
def test_options_that_contradict_each_other_are_refused(values, line):
    with pytest.raises(InputError) as caught:
        check_training_options(asked(PreTrainingArguments, **values), PreTrainingArguments, BY_PRETRAINING)
    assert str(caught.value).startswith(line)


def test_fine_tuning_evaluates_at_the_steps_of_checkpoints():
    given = {"load_best_model_at_end": True, "save_steps": 20}
    steps = asked(FineTuningArguments, **given, save_strategy="steps")
    assert check_training_options(steps, FineTuningArguments, BY_FINETUNING)
    epochs = asked(FineTuningArguments, **given, save_strategy="epoch")
    with pytest.raises(InputError, match="evaluated with --eval_strategy steps and saved with --save_strategy epoch"):
        check_training_options(epochs, FineTuningArguments, BY_FINETUNING)


@pytest.mark.parametrize(
    "values", [{"label_smoothing_factor": 0.1}, {"auto_find_batch_size": True}, {"eval_strategy": "epoch"}]
)
def test_pre_trainer_refuses_in_python_too(tmp_path, tokenizer, values):
    with pytest.raises(InputError, match=f"--{next(iter(values))}: "):
        make(tmp_path, tokenizer, **values)


def test_stock_arguments_are_checked_as_well(tmp_path):
    stock = TrainingArguments(str(tmp_path), use_cpu=True, enable_jit_checkpoint=True)
    with pytest.raises(InputError, match="--enable_jit_checkpoint: "):
        check_options(stock, defaults_of(TrainingArguments), frozenset({TRAINER, PRETRAINER}))


# ---- length of the run, batch, loss


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


@shows("per_device_train_batch_size", "gradient_accumulation_steps", "max_steps")
def test_rows_of_a_step(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, micro=4, accumulation=3, steps=2, **QUIET)
    collator, sizes = trainer.data_collator, []
    trainer.data_collator = lambda rows: sizes.append(len(rows)) or collator(rows)
    trainer.train()
    assert sizes == [4] * 6  # two steps of three micro-batches


@shows("num_train_epochs")
def test_epochs_decide_the_steps(tmp_path, tokenizer):
    once, twice = (make(tmp_path, tokenizer, steps=-1, num_train_epochs=n, **QUIET).args.max_steps for n in (1, 2))
    assert twice == pytest.approx(2 * once, abs=1)


@shows("max_hours")
def test_hours_end_a_run(tmp_path, tokenizer, capsys):
    assert trained(tmp_path, tokenizer, steps=-1, max_hours=1e-6).state.global_step == 1
    assert "time limit (--max_hours 1e-06) reached" in capsys.readouterr().out


@shows("output_dir", "overwrite_output_dir")
def test_another_run_is_overwritten_only_when_asked(tmp_path):
    output_folder.write_record(tmp_path, {"seed": 1}, finished=True)
    (tmp_path / "README.md").write_text("old")
    common = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    with pytest.raises(InputError, match="holds another run"):
        output_folder.start(PreTrainingArguments(**common), {"seed": 2})
    assert not output_folder.start(PreTrainingArguments(overwrite_output_dir=True, **common), {"seed": 2}).finished
    assert not (tmp_path / "README.md").exists()


@shows("nsp_loss_weight")
def test_weight_of_the_nsp_loss(tmp_path, tokenizer, plain):
    heavy = trained(tmp_path, tokenizer, steps=1, nsp_loss_weight=3.0)
    row = heavy.state.log_history[0]
    assert row["loss"] == pytest.approx(row["mlm_loss"] + 3 * row["nsp_loss"], rel=1e-5)
    assert row["mlm_loss"] == metrics(plain, "mlm_loss")[0]


@shows("label_smoothing_factor")
def test_label_smoothing_in_fine_tuning(tmp_path):
    """Its loss is (1 − ε)·(−log p of the label) + ε·(mean of −log p)."""
    trainer = tuned(tmp_path, label_smoothing_factor=0.4)
    output = trainer.predict(trainer.eval_dataset)
    logs = torch.log_softmax(torch.tensor(output.predictions), -1)
    of_label = -logs.gather(1, torch.tensor(output.label_ids)[:, None]).mean()
    assert output.metrics["test_loss"] == pytest.approx((0.6 * of_label - 0.4 * logs.mean()).item(), rel=1e-3)


@shows("neftune_noise_alpha")
def test_noise_on_the_embeddings_while_fine_tuning(tmp_path):
    losses = []
    for alpha in (None, 5.0):
        trainer = tuned(tmp_path / str(alpha), neftune_noise_alpha=alpha, num_train_epochs=1)
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        losses.append((before, metrics(trainer, "loss")[0]))
        assert not trainer.model.get_input_embeddings()._forward_hooks
    assert losses[0][0] == losses[1][0]  # never in an evaluation
    assert losses[0][1] != losses[1][1]


@shows("max_grad_norm")
def test_clipping(tmp_path, tokenizer):
    """One step of plain SGD at rate 1 moves the weights by the norm of the clipped gradient."""
    changes = {"optim": "sgd", "learning_rate": 1.0, "weight_decay": 0.0, "lr_scheduler_type": "constant"}
    trainer = make(tmp_path, tokenizer, steps=1, max_grad_norm=0.25, **{**QUIET, **changes})
    before = {name: value.clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    moved = torch.cat([(value - before[name]).flatten() for name, value in trainer.model.named_parameters()])
    assert moved.norm().item() == pytest.approx(0.25, rel=1e-4)


# ---- optimizer and schedule


@shows("optim")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer_is_the_one_that_is_named(tmp_path, tokenizer, name):
    kinds = {"adagrad": torch.optim.Adagrad, "rmsprop": torch.optim.RMSprop, "sgd": torch.optim.SGD}
    kinds["adafactor"] = transformers.Adafactor
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


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in ("adamw_torch_fused", "muon")])
def test_optimizers_resume_exactly_and_train_apart(tmp_path, tokenizer, name, plain):
    changes = {**QUIET, "optim": name, "logging_steps": 1, "save_strategy": "steps", "save_steps": 2, "dropout": 0.1}
    if name == "sgd":
        changes["optim_args"] = "momentum=0.9"
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


@shows("optim_args")
@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("sgd", "momentum=0.9,nesterov=true", {"momentum": 0.9, "nesterov": True}),
        ("sgd", "momentum=0.9,dampening=0.1", {"dampening": 0.1}),
        ("adagrad", "lr_decay=0.1, eps=0.01", {"lr_decay": 0.1, "eps": 0.01}),
        ("rmsprop", "alpha=0.9,centered=true,momentum=0.5,eps=1e-3", {"alpha": 0.9, "centered": True, "eps": 1e-3}),
    ],
)
def test_arguments_of_an_optimizer(tmp_path, tokenizer, name, given, expected):
    trainer = make(tmp_path, tokenizer, optim=name, optim_args=given)
    check_training_options(trainer.args, PreTrainingArguments, frozenset())
    group = trainer.create_optimizer().param_groups[0]
    assert {key: group[key] for key in expected} == expected


@shows("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "learning_rate")
@pytest.mark.parametrize("name", ["adamw_torch_fused", "bert_adam"])
def test_settings_of_adam(tmp_path, tokenizer, name):
    settings = {"weight_decay": 0.3, "adam_beta1": 0.5, "adam_beta2": 0.7, "adam_epsilon": 1e-3, "learning_rate": 0.2}
    trainer = make(tmp_path, tokenizer, optim=name, **settings)
    group = trainer.create_optimizer().param_groups[0]
    assert (group["weight_decay"], group["betas"], group["eps"], group["lr"]) == (0.3, (0.5, 0.7), 1e-3, 0.2)


@shows("muon_learning_rate")
def test_rate_of_muon(tmp_path, tokenizer):
    optimizer = make(tmp_path, tokenizer, optim="muon", muon_learning_rate=0.5).create_optimizer()
    assert {group["lr"] for group in optimizer.param_groups} == {1e-4, 0.5}


SCHEDULES = {
    "linear": {}, "cosine": {"num_cycles": 1.0}, "cosine_with_restarts": {"num_cycles": 2}, "constant": {},
    "polynomial": {"lr_end": 1e-5, "power": 2.0}, "constant_with_warmup": {}, "inverse_sqrt": {"timescale": 3},
    "cosine_with_min_lr": {"min_lr": 1e-5}, "cosine_warmup_with_min_lr": {"min_lr": 1e-5},
    "warmup_stable_decay": {"num_decay_steps": 2},
}  # fmt: skip


@shows("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps")
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(tmp_path, tokenizer, name):
    seen = Seen()
    changes = {"lr_scheduler_type": name, "lr_scheduler_kwargs": SCHEDULES[name] or None, "warmup_steps": 2}
    trained(tmp_path, tokenizer, 6, seen, micro=2, accumulation=1, **changes)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-4)
    kwargs = SCHEDULES[name]
    schedule = get_scheduler(
        name, optimizer, num_warmup_steps=2, num_training_steps=6, scheduler_specific_kwargs=kwargs
    )
    expected = []
    for _ in range(6):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert seen.rates == expected


def test_a_share_of_the_steps_decays(tmp_path, tokenizer):
    rates = []
    for decay in (2, 0.34):
        changes = {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": decay}}
        rates.append(Seen())
        trained(tmp_path / str(decay), tokenizer, 6, rates[-1], micro=2, accumulation=1, warmup_steps=2, **changes)
    assert rates[0].rates == rates[1].rates


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


def test_a_schedule_is_checked_with_the_rate_of_the_run():
    """Fine-tuning checks it again when it has chosen its rate by the model's width."""
    args = SimpleNamespace(lr_scheduler_type="polynomial", learning_rate=None)
    check_schedule(args, {"lr_end": 0.01})
    args.learning_rate = 1e-3
    with pytest.raises(InputError, match="must be smaller than initial lr"):
        check_schedule(args, {"lr_end": 0.01})


@pytest.mark.parametrize("name", ["reduce_lr_on_plateau", "greedy"])
def test_schedules_that_look_at_the_evaluation_resume_exactly(tmp_path, tokenizer, name):
    """The loss never falls by half, so that the rate changes; the state of the schedule is in the checkpoint."""
    changes = {
        **QUIET, "lr_scheduler_type": name, "eval_strategy": "steps", "eval_steps": 1, "logging_steps": 1,
        "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5, "threshold": 0.5}, "micro": 2, "accumulation": 1,
        "save_strategy": "steps", "save_steps": 3, "save_total_limit": 9,
    }  # fmt: skip
    whole = make(tmp_path, tokenizer, steps=6, **changes)
    whole.train()
    rates = metrics(whole, "learning_rate")
    assert len(set(rates)) > 1
    resumed = make(tmp_path / "again", tokenizer, steps=6, **changes)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert history(resumed) == history(whole)


def test_bert_linear(tmp_path, tokenizer):
    seen = Seen()
    trained(tmp_path, tokenizer, 4, seen, lr_scheduler_type="bert_linear", warmup_steps=2)
    assert seen.rates == pytest.approx([0.0, 0.5e-4, 0.5e-4, 0.25e-4])


def test_the_default_warm_up_is_one_percent_of_the_run(tmp_path):
    args = PreTrainingArguments(output_dir=str(tmp_path), use_cpu=True, max_steps=1000)
    assert args.get_warmup_steps(1000) == 10
    assert args.get_warmup_steps(1_000_000) == 10_000  # the paper's


# ---- precision, compiling, memory


@shows("bf16", "fp16")
def test_precision(tmp_path, tokenizer):
    seen = []
    for bf16 in (False, True):
        trainer = make(tmp_path, tokenizer, steps=1, **{**QUIET, "bf16": bf16})
        linear = trainer.model.bert.encoder.layer[0].output.dense
        linear.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
        trainer.train()
    assert (seen[0], seen[-1]) == (torch.float32, torch.bfloat16)
    assert PreTrainingArguments(output_dir=str(tmp_path), use_cpu=True, fp16=True).mixed_precision == "fp16"


@shows("tf32")
def test_tf32(tmp_path, monkeypatch):
    switched = []
    monkeypatch.setattr("transformers.training_args.is_torch_tf32_available", lambda: True)
    monkeypatch.setattr("transformers.training_args.enable_tf32", switched.append)
    for value in (True, False, None):
        PreTrainingArguments(output_dir=str(tmp_path), use_cpu=True, tf32=value)
    assert switched == [True, False]


@shows(
    "activation_checkpointing",
    "activation_checkpointing_kwargs",
    "gradient_checkpointing",
    "gradient_checkpointing_kwargs",
)
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing")
def test_activations_are_computed_again(tmp_path, tokenizer, plain):
    """Forward passes of the first layer in a step of one micro-batch; with `every_n_layers` it may be kept."""
    passes = {}
    for name, every in itertools.product(("activation", "gradient"), (1, 3)):
        given = {f"{name}_checkpointing": True}
        given |= {f"{name}_checkpointing_kwargs": {"every_n_layers": every, "use_reentrant": False}}
        trainer = make(
            tmp_path, tokenizer, steps=1, micro=16, accumulation=1, **{**QUIET, "logging_steps": 1, **given}
        )
        calls = []
        for layer in trainer.model.bert.encoder.layer:
            layer.output.dense.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        trainer.train()
        passes[name, every] = len(calls)
        assert metrics(trainer, "loss")[0] == pytest.approx(metrics(plain, "loss")[0], rel=0.2)
    layers = len(trainer.model.bert.encoder.layer)
    assert passes["activation", 1] == passes["gradient", 1] == 2 * layers
    assert passes["activation", 3] == passes["gradient", 3] < 2 * layers


@shows("torch_compile", "torch_compile_backend", "torch_compile_mode")
def test_compiling(tmp_path, tokenizer):
    trainer = trained(tmp_path, tokenizer, steps=1, torch_compile_backend="eager")
    assert hasattr(trainer.model_wrapped, "_orig_mod")
    plugin = make(tmp_path, tokenizer, torch_compile=True).accelerator.state.dynamo_plugin
    assert plugin.backend == "INDUCTOR"
    plugin = make(tmp_path, tokenizer, torch_compile_mode="max-autotune").accelerator.state.dynamo_plugin
    assert plugin.mode == "max-autotune"
    make(tmp_path, tokenizer)  # the state is shared by the process


@shows("torch_empty_cache_steps")
def test_the_cache_is_emptied(tmp_path, tokenizer, monkeypatch):
    trainer = make(tmp_path, tokenizer, steps=5, accumulation=1, torch_empty_cache_steps=2, **QUIET)
    emptied = []
    clear = lambda *_, **__: emptied.append(trainer.state.global_step)  # noqa: E731
    monkeypatch.setattr("transformers.trainer.clear_device_cache", clear)
    trainer.train()
    assert set(emptied) == {0, 2, 4}


@shows("fast_path")
@pytest.mark.parametrize("asked_for", ["on", "off"])
def test_the_fast_path_is_taken_or_not(tmp_path, tokenizer, asked_for):
    trainer = trained(tmp_path, tokenizer, steps=1, fast_path=asked_for)
    assert trainer.model.fast_path is (asked_for == "on")


# ---- log


@shows("logging_strategy", "logging_steps", "logging_first_step")
def test_when_a_line_is_logged(tmp_path, tokenizer):
    def steps(**changes):
        trainer = trained(tmp_path, tokenizer, steps=5, **{"logging_steps": 2, **changes})
        return [row["step"] for row in trainer.state.log_history if "loss" in row]

    assert steps() == [2, 4]
    assert steps(logging_first_step=True) == [1, 2, 4]
    assert steps(logging_strategy="no") == []


@shows("log_level", "log_level_replica", "log_on_each_node")
def test_levels_of_the_log(tmp_path, tokenizer, monkeypatch):
    before = transformers.utils.logging.get_verbosity()
    try:
        args = make(tmp_path, tokenizer, log_level="error", log_level_replica="critical").args
        assert transformers.utils.logging.get_verbosity() == transformers.logging.ERROR
        monkeypatch.setattr(type(args), "process_index", 1)  # the first rank of another machine
        monkeypatch.setattr(type(args), "local_process_index", 0)
        assert args.get_process_log_level() == transformers.logging.ERROR
        args.log_on_each_node = False
        assert args.get_process_log_level() == transformers.logging.CRITICAL
    finally:
        transformers.utils.logging.set_verbosity(before)


@shows("include_num_input_tokens_seen")
def test_tokens_seen(tmp_path, tokenizer, plain):
    everything, real = (
        metrics(trained(tmp_path, tokenizer, steps=2, include_num_input_tokens_seen=which), "num_input_tokens_seen")[1]
        for which in ("all", "non_padding")
    )
    assert 0 < real < everything
    assert metrics(plain, "num_input_tokens_seen") == []


@shows("skip_memory_metrics")
def test_memory_in_the_figures(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, steps=1, skip_memory_metrics=False, **QUIET)
    assert "train_mem_cpu_alloc_delta" in trainer.train().metrics


@shows("report_to")
def test_trackers(tmp_path, tokenizer, monkeypatch):
    class Tracker(TrainerCallback):
        pass

    monkeypatch.setitem(INTEGRATION_TO_CALLBACK, "ours", Tracker)
    assert any(isinstance(c, Tracker) for c in make(tmp_path, tokenizer, report_to="ours").callback_handler.callbacks)


@shows("run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id")
def test_what_trackio_is_told(tmp_path, tokenizer):
    told = {}
    space = SimpleNamespace(get=lambda: "me/space")
    trackio = SimpleNamespace(
        init=lambda **given: told.update(given), freeze=lambda **given: told.update(given), __version__="9",
        config={}, context_vars=SimpleNamespace(current_space_id=space),
    )  # fmt: skip
    trackio.config = type("Config", (dict,), {"update": lambda *_, **__: None})()
    callback = TrackioCallback.__new__(TrackioCallback)
    callback._trackio, callback._static_space_id, callback._initialized = trackio, None, False
    callback._point_model_card_at_space = lambda model: None
    names = {"run_name": "one", "project": "two", "trackio_space_id": "me/space", "trackio_bucket_id": "me/bucket"}
    trainer = make(tmp_path, tokenizer, trackio_static_space_id="me/static", **names)
    callback.setup(trainer.args, trainer.state, trainer.model)
    callback._freeze_space(trainer.args, trainer.model)
    assert (told["name"], told["project"], told["space_id"], told["bucket_id"]) == (
        "one",
        "two",
        "me/space",
        "me/bucket",
    )
    assert told["new_space_id"] == "me/static"


# ---- evaluation


def evaluated_at(trainer):
    return [row["step"] for row in trainer.state.log_history if "eval_mlm_loss" in row]


@shows("eval_strategy", "eval_steps", "eval_delay", "eval_on_start")
def test_when_it_is_evaluated(tmp_path, tokenizer):
    common = {"steps": 6, "micro": 2, "accumulation": 1}
    assert evaluated_at(trained(tmp_path, tokenizer, **common, eval_strategy=None, eval_steps=2)) == [2, 4, 6]
    each = {"eval_strategy": "steps", "eval_steps": None}  # then as often as a line is logged
    assert evaluated_at(trained(tmp_path, tokenizer, **common, **each)) == [1, 2, 3, 4, 5, 6]
    assert evaluated_at(trained(tmp_path, tokenizer, **common, eval_strategy="no", eval_steps=2)) == []
    delayed = trained(tmp_path, tokenizer, **common, eval_strategy="steps", eval_steps=2, eval_delay=4)
    assert evaluated_at(delayed) == [4, 6]
    assert evaluated_at(trained(tmp_path, tokenizer, **common, eval_on_start=True)) == [0]


@shows("per_device_eval_batch_size", "eval_accumulation_steps")
def test_batches_of_an_evaluation(tmp_path, tokenizer, monkeypatch):
    expected = make(tmp_path, tokenizer).evaluate()
    moved = []
    container = transformers.trainer_pt_utils.EvalLoopContainer
    to_cpu = container.to_cpu_and_numpy
    monkeypatch.setattr(container, "to_cpu_and_numpy", lambda self: moved.append(1) or to_cpu(self))
    trainer = make(tmp_path, tokenizer, per_device_eval_batch_size=10, eval_accumulation_steps=2)
    collator, sizes = trainer.data_collator, []
    trainer.data_collator = lambda rows: sizes.append(len(rows)) or collator(rows)
    found = trainer.evaluate()
    assert sizes == [10] * 5
    assert len(moved) >= 2 * 4  # after two of five batches, and after four: four containers
    assert found["eval_mlm_loss"] == pytest.approx(expected["eval_mlm_loss"], rel=1e-6)


@shows("load_best_model_at_end", "metric_for_best_model", "greater_is_better")
@pytest.mark.parametrize("greater", [True, False])
def test_the_best_model_is_kept(tmp_path, greater):
    trainer = tuned(tmp_path, metric_for_best_model="loss", greater_is_better=greater, learning_rate=0.05)
    trainer.train()
    losses = metrics(trainer, "eval_loss")
    best = max(losses) if greater else min(losses)
    assert trainer.state.best_metric == best
    assert trainer.evaluate()["eval_loss"] == pytest.approx(best, rel=1e-6)


# ---- saving, resuming, Hub


@shows("save_strategy", "save_steps", "save_total_limit", "save_minutes")
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


@shows("resume_from_checkpoint")
def test_a_named_checkpoint_is_where_a_run_begins(tmp_path, tokenizer):
    make(tmp_path / "first", tokenizer, steps=3, **{**QUIET, "save_strategy": "steps", "save_steps": 3}).train()
    named = str(tmp_path / "first/checkpoint-3")
    args = make(tmp_path / "second", tokenizer, resume_from_checkpoint=named).args
    (tmp_path / "second").rmdir()
    assert output_folder.start(args, {"seed": 3}).checkpoint == named


@shows("push_to_hub", "hub_model_id", "hub_private_repo", "hub_revision", "hub_strategy")
def test_what_is_pushed(tmp_path, tokenizer, monkeypatch):
    pushed = []
    asked = []
    monkeypatch.setattr(push, "create_repository", lambda folder, name, **given: asked.append(given) or name)
    monkeypatch.setattr(push, "upload", lambda folder, name, **given: pushed.append((folder, name, given)) or "there")
    card = Card("title", "fill-mask", "command", "machine")
    for asked_for in (True, False):
        trainer = make(tmp_path, tokenizer)
        trainer.args.push_to_hub = asked_for
        trainer.args.hub_model_id, trainer.args.hub_private_repo, trainer.args.hub_revision = "me/bert", True, "draft"
        push_to = run.take_over_push(trainer.args)
        run.finish(trainer, {}, identity={}, card=card, push_to=push_to)
    assert asked == [{"private": True, "revision": "draft"}]
    assert pushed == [(tmp_path, "me/bert", {"revision": "draft"})]
    assert trainer.args.hub_strategy == "end"


# ---- randomness, device


@shows("seed", "data_seed")
def test_seeds(tmp_path, tokenizer, plain):
    other = trained(
        tmp_path, tokenizer, steps=2, seed=4
    )  # the examples have a seed of their own here: dropout differs
    assert metrics(other, "loss")[0] != metrics(plain, "loss")[0]
    common = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    assert PreTrainingArguments(seed=5, **common).data_seed == 5
    assert PreTrainingArguments(seed=5, data_seed=6, **common).data_seed == 6
    for strategy in ("group_by_length", "random"):
        orders = []
        for seed, data_seed in ((1, None), (1, 7), (2, 7)):
            trainer = tuned(tmp_path, seed=seed, data_seed=data_seed, train_sampling_strategy=strategy)
            orders.append([row["labels"].tolist() for row in trainer.get_train_dataloader()])
        assert orders[1] == orders[2] != orders[0]


@shows("full_determinism")
def test_deterministic_algorithms(tmp_path, tokenizer):
    before = torch.backends.cudnn.benchmark
    try:
        trainer = make(tmp_path, tokenizer, steps=1, full_determinism=True, **QUIET)
        assert torch.are_deterministic_algorithms_enabled()
        trainer.train()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = before, False


@shows("use_cpu")
def test_the_cpu_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    args = PreTrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    assert args.device.type == "cpu"


@shows("accelerator_config")
def test_copies_may_overlap(tmp_path, tokenizer):
    given = {"non_blocking": True}
    assert make(tmp_path, tokenizer, accelerator_config=given).accelerator.non_blocking
    with pytest.raises(InputError, match="--accelerator_config: only non_blocking"):
        make(tmp_path, tokenizer, accelerator_config={"even_batches": False})


# ---- batches


@shows(
    "dataloader_num_workers",
    "dataloader_prefetch_factor",
    "dataloader_persistent_workers",
    "dataloader_multiprocessing_context",
    "dataloader_pin_memory",
)
def test_loaders(tmp_path, tokenizer):
    given = {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 3, "dataloader_persistent_workers": True}
    trainer = make(tmp_path, tokenizer, dataloader_multiprocessing_context="spawn", **given)
    trainer.args.dataloader_pin_memory = True  # set to False by transformers where a CPU trains
    for loader in (trainer.get_train_dataloader(), trainer.get_eval_dataloader()):
        assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 3, True)
        assert loader.multiprocessing_context.get_start_method() == "spawn"
        assert loader.pin_memory


@shows("remove_unused_columns")
def test_columns_that_the_model_does_not_take(tmp_path):
    seen = {}
    for removed in (True, False):
        trainer = tuned(tmp_path, remove_unused_columns=removed)
        trainer.train_dataset = trainer.train_dataset.add_column("extra", [1] * len(trainer.train_dataset))
        seen[removed] = "extra" in next(iter(trainer.get_train_dataloader()))
    assert seen == {True: False, False: True}


@shows("train_sampling_strategy")
def test_order_of_the_rows_in_fine_tuning(tmp_path):
    def batches(strategy, seed=0, copies=1):
        trainer = tuned(tmp_path, train_sampling_strategy=strategy, data_seed=seed)
        trainer.train_dataset = concatenate_datasets([trainer.train_dataset] * copies)
        return [row["input_ids"].shape for row in trainer.get_train_dataloader()]

    lengths = [len(row["input_ids"]) for row in tuned(tmp_path).train_dataset]
    parts = [lengths[begin : begin + 4] for begin in range(0, len(lengths), 4)]
    assert batches("sequential") == [(len(part), max(part)) for part in parts]
    padded = {
        strategy: sum(rows * width for rows, width in batches(strategy, copies=6))
        for strategy in ("random", "group_by_length")
    }
    assert padded["group_by_length"] < padded["random"]
    assert len({size for size, _ in batches("batch_rebalance")}) > 1  # more short rows than long ones


@pytest.mark.parametrize("strategy", ["random", "sequential", "batch_rebalance"])
def test_each_order_resumes_exactly(tmp_path, strategy):
    changes = {"train_sampling_strategy": strategy, "eval_strategy": "no", "save_strategy": "steps", "save_steps": 1}
    changes |= {"load_best_model_at_end": False, "num_train_epochs": 2, "save_total_limit": 0}
    whole = tuned(tmp_path, **changes)
    whole.train()
    middle = whole.state.max_steps // 2 + 2
    resumed = tuned(tmp_path / "again", **changes)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{middle}"))
    assert history(resumed) == history(whole)


# ---- several ranks


@shows("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph")
def test_what_ddp_is_told(tmp_path, tokenizer):
    given = {"ddp_find_unused_parameters": False, "ddp_bucket_cap_mb": 7, "ddp_broadcast_buffers": False}
    handler = make(tmp_path, tokenizer, ddp_static_graph=True, **given).accelerator.ddp_handler
    assert not handler.find_unused_parameters
    assert (handler.bucket_cap_mb, handler.broadcast_buffers, handler.static_graph) == (7, False, True)


@shows("ddp_backend", "ddp_timeout")
def test_what_the_ranks_are_joined_with(tmp_path, monkeypatch):
    told = []

    def join(**given):
        told.append(given)
        raise InterruptedError

    monkeypatch.setattr("transformers.training_args.PartialState", join)
    with pytest.raises(InterruptedError):
        TrainingArguments(str(tmp_path), ddp_backend="gloo", ddp_timeout=77)
    assert (told[0]["backend"], told[0]["timeout"].total_seconds()) == ("gloo", 77)
    given = asked(PreTrainingArguments, ddp_timeout=77, use_cpu=False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    check_training_options(given, PreTrainingArguments, BY_PRETRAINING)


@shows("deepspeed")
def test_deepspeed_is_started_by_its_file(tmp_path, monkeypatch):
    """(Two ranks under `torchrun` train with it; here the process would have to be one of several.)"""
    started = []
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "false")

    def join(**given):
        started.append(os.environ["ACCELERATE_USE_DEEPSPEED"])
        raise InterruptedError

    monkeypatch.setattr("transformers.training_args.PartialState", join)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    for file in (None, {"zero_optimization": {"stage": 2}}):
        with pytest.raises(InterruptedError):
            TrainingArguments(str(tmp_path), deepspeed=file)
    assert started == ["false", "true"]


@shows("do_train", "do_eval", "do_predict")
def test_recipes_train_evaluate_and_predict():
    """tests/recipes/test_recipe_options.py runs the recipes with these flags and looks for their figures."""
    text = (Path(__file__).parents[1] / "recipes/test_recipe_options.py").read_text()
    assert all(f'"--{name}"' in text for name in ("do_train", "do_eval", "do_predict"))


@shows("local_rank")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    ("launched", "passed", "accepted"),
    [
        ("3", 3, True),  # torch.distributed.launch passes --local_rank and sets LOCAL_RANK
        ("3", -1, True),  # the default
        ("3", 0, False),
        (None, 0, True),  # one process that no launcher started
        (None, 3, False),
    ],
)
def test_local_rank_is_accepted_only_if_it_is_the_launchers(monkeypatch, kind, launched, passed, accepted):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if launched is not None:
        monkeypatch.setenv("LOCAL_RANK", launched)
    refused = contextlib.nullcontext() if accepted else pytest.raises(InputError, match="--local_rank: the launcher")
    with refused:
        check_training_options(asked(kind, local_rank=passed), kind, KINDS[kind])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dataloader_persistent_workers", True),
        ("dataloader_prefetch_factor", 2),
        ("dataloader_multiprocessing_context", "spawn"),
    ],
)
def test_options_of_workers_are_refused_where_the_default_is_none(kind, name, value):
    """--check sees the options before the default number of workers is known: on a CPU it is 0."""
    options = asked(kind, dataloader_num_workers=None, **{name: value})
    with pytest.raises(InputError, match=f"--{name}"):
        check_options(options, defaults_of(kind), frozenset({TRAINER, *BY_PRETRAINING}))
