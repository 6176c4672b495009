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


def _by_both(pretraining: str, finetuning: str) -> tuple[Refusal, ...]:
    """Refusal by PreTrainer and by the recipes that fine-tune, each for its own reason."""
    return _refused(pretraining, PRETRAINER) + _refused(finetuning, FINETUNE)


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


_COUNTS_ONLY = "an evaluation adds up counts, and gathers neither logits nor inputs"

# No part refuses these (optimization.check_optimizer and schedules.check_schedule check values).
_WORKING = (
    "output_dir overwrite_output_dir per_device_train_batch_size gradient_accumulation_steps num_train_epochs "
    "max_steps max_hours "
    "learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args "
    "weight_decay adam_beta1 adam_beta2 adam_epsilon muon_learning_rate max_grad_norm "
    "ddp_timeout "
    "nsp_loss_weight "
    "bf16 fp16 tf32 activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing "
    "gradient_checkpointing_kwargs fast_path torch_compile torch_compile_backend torch_compile_mode "
    "torch_empty_cache_steps "
    "logging_steps logging_first_step log_on_each_node log_level log_level_replica disable_tqdm report_to "
    "run_name project trackio_space_id trackio_bucket_id trackio_static_space_id "
    "eval_steps eval_delay eval_on_start per_device_eval_batch_size eval_accumulation_steps "
    "load_best_model_at_end metric_for_best_model greater_is_better "
    "save_steps save_minutes save_total_limit resume_from_checkpoint "
    "push_to_hub hub_model_id hub_private_repo hub_revision "
    "seed data_seed full_determinism use_cpu "
    "dataloader_num_workers dataloader_pin_memory remove_unused_columns "
    "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend deepspeed "
    "do_train do_eval"
).split()

# name → the parts that refuse it, and why.
OPTIONS: dict[str, tuple[Refusal, ...]] = {
    **dict.fromkeys(_WORKING, ()),
    # ---- length of the run, batch
    "auto_find_batch_size": _refused(
        "a smaller batch would be another run: the global batch decides examples, loss and schedule",
        remedy="give a smaller --per_device_train_batch_size and more --gradient_accumulation_steps",
    ),
    # ---- rate, schedule, optimizer
    "optim_target_modules": _refused("it is for GaLore and APOLLO, which --optim does not offer"),
    # ---- loss
    "average_tokens_across_devices": _by_both(
        "the loss is the mean over the global batch, whatever its layout",
        "the loss is a mean over rows: no tokens are counted",
    ),
    "label_smoothing_factor": _refused("the losses of pre-training have no smoothed form here", PRETRAINER),
    "neftune_noise_alpha": _refused("its scale follows the length of a row, and rows are packed", PRETRAINER),
    # ---- precision, compiling, memory
    "bf16_full_eval": _refused("it casts the weights, which are saved after the evaluation", remedy="give --bf16"),
    "fp16_full_eval": _refused("it casts the weights, which are saved after the evaluation", remedy="give --fp16"),
    **dict.fromkeys(("use_liger_kernel", "liger_kernel_config"), _refused("Liger has no kernels for BERT")),
    "use_cache": _refused("an encoder has no cache of keys and values"),
    # ---- log
    "logging_strategy": _by_epochs("logging_strategy"),
    "logging_nan_inf_filter": _in_recipes("a loss that is not finite is never hidden: it ends the run"),
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
    # ---- evaluation
    "eval_strategy": _by_epochs("eval_strategy"),
    "prediction_loss_only": _by_both(_COUNTS_ONLY, "the metrics are computed from the predictions"),
    "eval_do_concat_batches": _by_both(_COUNTS_ONLY, "the metrics are computed from all rows together"),
    "eval_use_gather_object": _refused("what is gathered are tensors", PRETRAINER, FINETUNE),
    "include_for_metrics": _by_both(_COUNTS_ONLY, "the metrics need predictions and labels alone"),
    "batch_eval_metrics": _by_both(_COUNTS_ONLY, "the metrics are computed from all rows together"),
    "label_names": _refused("the labels are those that the collator makes", PRETRAINER, FINETUNE),
    # ---- saving and resuming
    "save_strategy": _by_epochs("save_strategy"),
    "save_only_model": _in_recipes("no run can resume from such a checkpoint"),
    "save_on_each_node": _in_recipes("no run can resume from such checkpoints: one folder holds all of a checkpoint"),
    "enable_jit_checkpoint": _refused("a signal already ends a run with a checkpoint"),
    "ignore_data_skip": _in_recipes("a resumed run sees exactly the examples that are left"),
    "restore_callback_states_from_checkpoint": _in_recipes("the recipes have no callbacks with a state"),
    # ---- Hub (the finished run is pushed once: run.finish)
    "hub_token": _in_recipes("a token is not taken as a flag", remedy="set HF_TOKEN or `hf auth login`"),
    "hub_strategy": _in_recipes(
        "the finished run is pushed, once",
        remedy="leave the option out, or give end",
        when=lambda args: args.hub_strategy != "end",
    ),
    "hub_always_push": _in_recipes("the finished run is pushed, once"),
    # ---- randomness, device
    "accelerator_config": _refused(
        "only non_blocking may be set: the rest changes which examples a step has",
        when=_accelerator_config,
        remedy="leave the rest out",
    ),
    "parallelism_config": _refused(
        "tensor, context and sequence parallelism are not supported", remedy="see configs/accelerate"
    ),
    # ---- batches
    "dataloader_drop_last": _in_recipes("rows would be left out of the metrics: it holds for evaluation as well"),
    **{
        name: _in_recipes("there are no workers", when=_without_workers(name), remedy="give --dataloader_num_workers")
        for name in (
            "dataloader_persistent_workers",
            "dataloader_prefetch_factor",
            "dataloader_multiprocessing_context",
        )
    },
    "dataloader_in_order": _refused("the order of the examples is part of the run, and of its resume"),
    "train_sampling_strategy": _refused("the order of the examples follows from their numbers", NUMBERED),
    "length_column_name": _in_recipes("lengths are counted"),
    # ---- several ranks
    **dict.fromkeys(
        ("fsdp", "fsdp_config"),
        _in_recipes(
            "sharding is set in the machine's file",
            remedy="accelerate launch --config_file configs/accelerate/fsdp2.yaml",
        ),
    ),
    "local_rank": _in_recipes("the launcher sets it", when=_other_rank),
    # ---- recipes always train and evaluate
    "do_predict": _refused("pre-training has no test set", PRETRAIN),
}


def defaults_of(kind: type) -> dict[str, Any]:
    """The default of each field of a dataclass."""
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(kind)
    }


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
