"""Which training options work and which are refused, with the reason: one table over every field.

An option that would do nothing, or that would break what a run promises (exact loss, exact resume, no pickle), is
refused in one line before anything is built. An option that takes effect only together with another one, as its help
text says (`--hub_model_id` with `--push_to_hub`), works. `tests/config/test_training_options.py` shows the effect of
each option that works, and fails for a field that is not in the table.
"""

import dataclasses
import importlib.util
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig

from bert_hf.errors import InputError

# Which part refuses: each of our Trainers, in Python too; PreTrainer; PreTrainer on examples of a corpus; a recipe.
TRAINER, PRETRAINER, NUMBERED, PRETRAIN, FINETUNE = "trainer", "pretrainer", "numbered", "pretrain", "finetune"

BY_PRETRAINING = frozenset({TRAINER, PRETRAINER, NUMBERED, PRETRAIN})  # all that holds for recipes/pretrain.py
BY_FINETUNING = frozenset({TRAINER, FINETUNE})  # all that holds for recipes/finetune_*.py
_LEAVE_OUT = "leave the option out"


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why an option is refused.

    Args:
        reason: completes "--name: …", without a full stop.
        by: which part refuses it (the constants above).
        when: given all options, whether this one is refused; without it, any value but the default is.
    """

    reason: str
    by: frozenset[str]
    when: Callable[[Any], bool] | None = None
    remedy: str = _LEAVE_OUT


def _refused(reason: str, *by: str, remedy: str = _LEAVE_OUT, when: Callable | None = None) -> tuple[Refusal, ...]:
    """Refusal by the parts named; without any, by each of our Trainers and so by the recipes."""
    return (Refusal(reason, frozenset(by or (TRAINER,)), when, remedy),)


def _in_recipes(reason: str, **more) -> tuple[Refusal, ...]:
    return _refused(reason, PRETRAIN, FINETUNE, **more)


def _without_workers(name: str) -> Callable[[Any], bool]:
    """True if the option is given, but batches are made in the training process."""

    def has_no_effect(args) -> bool:
        workers = args.dataloader_num_workers
        if workers is None:  # the default: none on a CPU
            workers = 0 if args.use_cpu or not torch.accelerator.is_available() else 1
        return bool(getattr(args, name)) and workers == 0

    return has_no_effect


def _by_epochs(name: str) -> tuple[Refusal, ...]:
    return _refused(
        "pre-training is one sequence of numbered examples, which has no epochs that end",
        NUMBERED,
        remedy="give steps",
        when=lambda args: getattr(args, name) == "epoch",
    )


def _accelerator_config(args) -> bool:
    """True if --accelerator_config asks for more than `non_blocking`."""
    given = args.accelerator_config
    if isinstance(given, str):
        given = json.loads(given if given.startswith("{") else Path(given).read_text())
    if isinstance(given, AcceleratorConfig):
        given = dataclasses.asdict(given)

    given = given or {}
    standard = dataclasses.asdict(AcceleratorConfig())
    return any(value != standard.get(name) for name, value in given.items() if name != "non_blocking")


def _other_rank(args) -> bool:
    """True if --local_rank contradicts the launcher."""
    return args.local_rank not in (-1, int(os.environ.get("LOCAL_RANK", "0")))


WORKS: tuple[Refusal, ...] = ()

_SHARDED = "sharding is set in the machine's file"
_COUNTS_ONLY = "an evaluation adds up counts, and gathers neither logits nor inputs"

# name → the parts that refuse it, and why; `WORKS`: none does.
OPTIONS: dict[str, tuple[Refusal, ...]] = {
    # ---- length of the run, batch
    "output_dir": WORKS,
    "overwrite_output_dir": WORKS,
    "per_device_train_batch_size": WORKS,
    "gradient_accumulation_steps": WORKS,
    "num_train_epochs": WORKS,
    "max_steps": WORKS,
    "max_hours": WORKS,
    "auto_find_batch_size": _refused(
        "a smaller batch would be another run: the global batch decides examples, loss and schedule",
        remedy="give a smaller --per_device_train_batch_size and more --gradient_accumulation_steps",
    ),
    # ---- rate, schedule, optimizer (see also optimization.check_optimizer and check_schedule)
    "learning_rate": WORKS,
    "lr_scheduler_type": WORKS,
    "lr_scheduler_kwargs": WORKS,
    "warmup_steps": WORKS,
    "decay_from_step_zero": WORKS,
    "optim": WORKS,
    "optim_args": WORKS,
    "optim_target_modules": _refused("it is for GaLore and APOLLO, which --optim does not offer"),
    "weight_decay": WORKS,
    "adam_beta1": WORKS,
    "adam_beta2": WORKS,
    "adam_epsilon": WORKS,
    "adam_bias_correction": WORKS,
    "muon_learning_rate": WORKS,
    "max_grad_norm": WORKS,
    "skip_bad_steps": WORKS,
    "hang_timeout": WORKS,
    # ---- loss
    "average_tokens_across_devices": _refused(
        "the loss is the mean over the global batch, whatever its layout", PRETRAINER
    )
    + _refused("the loss is a mean over rows: no tokens are counted", FINETUNE),
    "nsp_loss_weight": WORKS,
    "label_smoothing_factor": _refused("the losses of pre-training have no smoothed form here", PRETRAINER),
    "neftune_noise_alpha": _refused("its scale follows the length of a row, and rows are packed", PRETRAINER),
    # ---- precision, compiling, memory
    "bf16": WORKS,
    "fp16": WORKS,
    "tf32": WORKS,
    "bf16_full_eval": _refused("it casts the weights, which are saved after the evaluation", remedy="give --bf16"),
    "fp16_full_eval": _refused("it casts the weights, which are saved after the evaluation", remedy="give --fp16"),
    "activation_checkpointing": WORKS,
    "activation_checkpointing_kwargs": WORKS,
    "gradient_checkpointing": WORKS,
    "gradient_checkpointing_kwargs": WORKS,
    "fast_path": WORKS,
    "torch_compile": WORKS,
    "torch_compile_backend": WORKS,
    "torch_compile_mode": WORKS,
    "torch_empty_cache_steps": WORKS,
    "use_liger_kernel": _refused("Liger has no kernels for BERT"),
    "liger_kernel_config": _refused("Liger has no kernels for BERT"),
    "use_cache": _refused("an encoder has no cache of keys and values"),
    # ---- log
    "logging_strategy": _by_epochs("logging_strategy"),
    "logging_steps": WORKS,
    "logging_first_step": WORKS,
    "logging_nan_inf_filter": _in_recipes(
        "a loss that is not finite is never hidden: it ends the run", remedy="see --skip_bad_steps"
    ),
    "log_on_each_node": WORKS,
    "log_level": WORKS,
    "log_level_replica": WORKS,
    "disable_tqdm": WORKS,
    "include_num_input_tokens_seen": _refused(
        "it is no, all or non_padding",
        remedy="give one of them",
        when=lambda args: args.include_num_input_tokens_seen not in ("no", "all", "non_padding", True, False),
    ),
    "skip_memory_metrics": _in_recipes(
        "figures of memory need the package psutil",
        remedy="install it, or leave the option out",
        when=lambda args: not args.skip_memory_metrics and importlib.util.find_spec("psutil") is None,
    ),
    "debug": _refused("a loss or gradient that is not finite ends the run anyway, and its rows are named"),
    "report_to": WORKS,
    "run_name": WORKS,
    "project": WORKS,
    "trackio_space_id": WORKS,
    "trackio_bucket_id": WORKS,
    "trackio_static_space_id": WORKS,
    # ---- evaluation
    "eval_strategy": _by_epochs("eval_strategy"),
    "eval_steps": WORKS,
    "eval_delay": WORKS,
    "eval_on_start": WORKS,
    "per_device_eval_batch_size": WORKS,
    "eval_accumulation_steps": WORKS,
    "prediction_loss_only": _refused(_COUNTS_ONLY, PRETRAINER)
    + _refused("the figures are computed from the predictions", FINETUNE),
    "eval_do_concat_batches": _refused(_COUNTS_ONLY, PRETRAINER)
    + _refused("the figures are computed from all rows together", FINETUNE),
    "eval_use_gather_object": _refused("what is gathered are tensors", PRETRAINER, FINETUNE),
    "include_for_metrics": _refused(_COUNTS_ONLY, PRETRAINER)
    + _refused("the figures need predictions and labels alone", FINETUNE),
    "batch_eval_metrics": _refused(_COUNTS_ONLY, PRETRAINER)
    + _refused("the figures are computed from all rows together", FINETUNE),
    "load_best_model_at_end": WORKS,
    "metric_for_best_model": WORKS,
    "greater_is_better": WORKS,
    "label_names": _refused("the labels are those that the collator makes", PRETRAINER, FINETUNE),
    # ---- saving and resuming
    "save_strategy": _by_epochs("save_strategy"),
    "save_steps": WORKS,
    "save_minutes": WORKS,
    "save_total_limit": WORKS,
    "save_only_model": _in_recipes("no run can resume from such a checkpoint"),
    "save_on_each_node": _in_recipes("no run can resume from such checkpoints: one folder holds all of a checkpoint"),
    "enable_jit_checkpoint": _refused("a signal already ends a run with a checkpoint"),
    "resume_from_checkpoint": WORKS,
    "ignore_data_skip": _in_recipes("a resumed run sees exactly the examples that are left"),
    "restore_callback_states_from_checkpoint": _in_recipes("the recipes have no callbacks with a state"),
    # ---- Hub (the finished run is pushed once: run.finish)
    "push_to_hub": WORKS,
    "hub_model_id": WORKS,
    "hub_private_repo": WORKS,
    "hub_revision": WORKS,
    "hub_token": _in_recipes("a token is not taken as a flag", remedy="set HF_TOKEN or `hf auth login`"),
    "hub_strategy": _in_recipes(
        "the finished run is pushed, once",
        remedy="leave the option out, or give end",
        when=lambda args: args.hub_strategy != "end",
    ),
    "hub_always_push": _in_recipes("the finished run is pushed, once"),
    # ---- randomness, device
    "seed": WORKS,
    "data_seed": WORKS,
    "full_determinism": WORKS,
    "use_cpu": WORKS,
    "accelerator_config": _refused(
        "only non_blocking may be set: the rest changes which examples a step has",
        when=_accelerator_config,
        remedy="leave the rest out",
    ),
    "parallelism_config": _refused(
        "tensor, context and sequence parallelism are not supported", remedy="see configs/accelerate"
    ),
    # ---- batches
    "dataloader_drop_last": _in_recipes("rows would be left out of the figures: it holds for evaluation as well"),
    "dataloader_num_workers": WORKS,
    "dataloader_pin_memory": WORKS,
    "dataloader_persistent_workers": _in_recipes(
        "there are no workers",
        when=_without_workers("dataloader_persistent_workers"),
        remedy="give --dataloader_num_workers",
    ),
    "dataloader_prefetch_factor": _in_recipes(
        "there are no workers",
        when=_without_workers("dataloader_prefetch_factor"),
        remedy="give --dataloader_num_workers",
    ),
    "dataloader_multiprocessing_context": _in_recipes(
        "there are no workers",
        when=_without_workers("dataloader_multiprocessing_context"),
        remedy="give --dataloader_num_workers",
    ),
    "dataloader_in_order": _refused("the order of the examples is part of the run, and of its resume"),
    "remove_unused_columns": WORKS,
    "train_sampling_strategy": _refused("the order of the examples follows from their numbers", NUMBERED),
    "length_column_name": _in_recipes("lengths are counted"),
    # ---- several ranks
    "ddp_find_unused_parameters": WORKS,
    "ddp_bucket_cap_mb": WORKS,
    "ddp_broadcast_buffers": WORKS,
    "ddp_static_graph": WORKS,
    "ddp_backend": WORKS,
    "ddp_timeout": _in_recipes(
        "Trainer does not pass it on where a CPU trains",
        when=lambda args: args.ddp_timeout != 1800 and (args.use_cpu or not torch.accelerator.is_available()),
    ),
    "fsdp": _in_recipes(_SHARDED, remedy="accelerate launch --config_file configs/accelerate/fsdp2.yaml"),
    "fsdp_config": _in_recipes(_SHARDED, remedy="accelerate launch --config_file configs/accelerate/fsdp2.yaml"),
    "deepspeed": WORKS,
    "local_rank": _in_recipes("the launcher sets it", when=_other_rank),
    # ---- recipes always train and evaluate
    "do_train": WORKS,
    "do_eval": WORKS,
    "do_predict": _refused("pre-training has no test set", PRETRAIN),
}


def defaults_of(kind: type) -> dict[str, Any]:
    """The default of each field of a dataclass."""
    defaults = {}
    for field in dataclasses.fields(kind):
        if field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory()
        else:
            defaults[field.name] = field.default
    return defaults


def check_options(args, defaults: Mapping[str, Any], by: frozenset[str]) -> str:
    """Refuses the first option that does not work.

    Args:
        args: the values, in a `TrainingArguments` or in a namespace before one is built.
        defaults: the default of each field (`defaults_of`).
        by: which refusals apply: `BY_PRETRAINING`, `BY_FINETUNING`, or those of a Trainer.

    Returns:
        A line that says how many options were checked.

    Raises:
        InputError: names the option and the reason.
    """
    fields = [field.name for field in dataclasses.fields(TrainingArguments) if hasattr(args, field.name)]
    for name in fields:
        value, default = getattr(args, name), defaults.get(name)
        changed = value != default and bool(value or default)  # None, "" and [] all mean: not set

        if name not in OPTIONS and changed:
            what = "it is newer than this version of bert_hf, which has not tested it"
            raise InputError(what, where=f"--{name}", remedy=_LEAVE_OUT)

        for refused in OPTIONS.get(name, ()):
            if refused.by & by and (changed if refused.when is None else refused.when(args)):
                raise InputError(refused.reason, where=f"--{name}", remedy=refused.remedy)

    return f"options: {len(fields)} checked"
