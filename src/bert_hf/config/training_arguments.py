"""Options of a training run: `TrainingArguments` with our defaults; they also select device, threads and precision."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from transformers import SchedulerType, TrainingArguments
from transformers.training_args import OptimizerNames

from bert_hf.config import hardware
from bert_hf.config.finetuning_arguments import MIN_STEPS
from bert_hf.config.options import check_ranges
from bert_hf.config.precision import choose_on_gpu
from bert_hf.config.training_options import FineTuningOptions, PreTrainingOptions, RunOptions
from bert_hf.console import logger
from bert_hf.errors import InputError

# Fields of `TrainingArguments` that would break what a run promises (exact loss, exact resume, no pickle) or silently
# give a wrong result, each with the reason. All others pass through to Trainer.
REFUSED = {
    "auto_find_batch_size": "the global batch is part of the run; lower --per_device_train_batch_size and raise "
    "--gradient_accumulation_steps",
    "bf16_full_eval": "it casts the weights, which are saved after the evaluation; give --bf16",
    "fp16_full_eval": "it casts the weights, which are saved after the evaluation; give --fp16",
    "logging_nan_inf_filter": "it hides a loss that is not finite; leave it out",
    "save_only_model": "a run cannot resume from such a checkpoint; leave it out",
    "save_on_each_node": "a run cannot resume from such checkpoints; leave it out",
    "enable_jit_checkpoint": "a signal already ends a run with a checkpoint; leave it out",
    "ignore_data_skip": "a resumed run must see exactly the remaining examples; leave it out",
    "dataloader_drop_last": "rows would be missing from the metrics; leave it out",
    "dataloader_in_order": "the order of the examples is part of the run; leave it out",
    "hub_token": "a token on the command line is visible to others; set HF_TOKEN or run `hf auth login`",
    "hub_strategy": "the finished run is pushed once, at the end; leave it out",
    "optim_args": "the optimizers of --optim take no others; leave it out",
    "fsdp": "sharding is set in the machine's file; see configs/accelerate/fsdp2.yaml",
    "fsdp_config": "sharding is set in the machine's file; see configs/accelerate/fsdp2.yaml",
}
REFUSED_IN_PRETRAINING = {
    "label_smoothing_factor": "the losses of pre-training are not smoothed; leave it out",
    "neftune_noise_alpha": "its noise depends on the length of a padded row; leave it out",
}
# Peak learning rate and epochs by hidden size, up to and including: docs/fine_tuning.md, "Defaults".
_BY_WIDTH = ((128, 1e-3, 4.0), (256, 3e-4, 4.0), (512, 1e-4, 4.0), (math.inf, 5e-5, 3.0))
_FEW_EVALUATIONS = 10  # a run of more epochs than this is evaluated this often


def check_supported(args: TrainingArguments, refused: Mapping[str, str] = REFUSED) -> None:
    """Raise an `InputError` for the first field that is refused and does not have its default.

    In Python, a Trainer may get stock `TrainingArguments`; both defaults, theirs and `RunArguments`', are allowed.
    """
    for name, reason in refused.items():
        # The class attributes are the defaults; None, "" and [] all mean: not set
        usual = [getattr(cls, name) or None for cls in (type(args), RunArguments)]
        if (getattr(args, name) or None) not in usual:
            problem, _, remedy = reason.rpartition("; ")
            raise InputError(problem, where=f"--{name}", remedy=remedy)


def check_no_epochs(args: TrainingArguments) -> None:
    """Raise an `InputError` for actions after each epoch: to Trainer, all examples of pre-training are one epoch."""
    for name in ("logging_strategy", "eval_strategy", "save_strategy"):
        if getattr(args, name) == "epoch":
            raise InputError("epoch is not supported in pre-training", where=f"--{name}", remedy="use steps")


@dataclass
class RunArguments(RunOptions, TrainingArguments):  # pyright: ignore[reportIncompatibleVariableOverride] - None until chosen
    """`TrainingArguments` that select device, threads and precision themselves."""

    hub_strategy: str = "end"
    logging_nan_inf_filter: bool = False

    def __post_init__(self):
        check_supported(self)
        check_ranges(self)

        # Before the stock class: it takes a device, joins the ranks and checks strategies by these fields
        chosen_actions = self._choose_actions()  # now, as the stock class sets do_eval
        self._resolve_strategies()
        if not torch.accelerator.is_available():
            self.use_cpu = True
        self._set_early_precision()

        if self.use_cpu:
            torch.set_num_threads(hardware.cpu_threads())
            hardware.keep_freed_memory()

        self._join_ranks()
        self._init_stock_class()
        self._check_batches()

        # After it: fields that it has set otherwise
        for name, value in chosen_actions.items():
            setattr(self, name, value)
        if self.bf16 is False and not self.fp16:  # --bf16 false; the stock class takes the launcher's precision
            self.mixed_precision = "no"
        if self.n_gpu > 1:  # plain `python` on several GPUs: stock Trainer would wrap the model in nn.DataParallel
            logger.info(f"using one of {self.n_gpu} devices; `accelerate launch` uses them all")
            self._n_gpu = 1

    def _join_ranks(self) -> None:
        """Make the process group of CPU ranks; Trainer, which makes the group of GPUs, would omit `--ddp_timeout`."""
        if self.use_cpu and int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
            dist.init_process_group(self.ddp_backend or "gloo", timeout=timedelta(seconds=self.ddp_timeout))

    def _init_stock_class(self) -> None:
        """Call the stock class with known names in place of our optimizers and schedules, which it would reject."""
        own_names = {}
        stand_ins = {"optim": (OptimizerNames, "adamw_torch_fused"), "lr_scheduler_type": (SchedulerType, "linear")}
        for field, (stock_names, stand_in) in stand_ins.items():
            if getattr(self, field) not in [member.value for member in stock_names]:
                own_names[field] = getattr(self, field)
                setattr(self, field, stand_in)

        super().__post_init__()
        for field, name in own_names.items():
            setattr(self, field, name)

    def _check_batches(self) -> None:
        """Raise an error for options that change which examples are in a batch, or are left for a resumed run."""
        if self.train_sampling_strategy == "group_by_length":
            remedy = "leave it out; padding costs nothing here"
            raise InputError("group_by_length cannot be resumed", where="--train_sampling_strategy", remedy=remedy)
        batches: Any = self.accelerator_config
        changed = batches.split_batches or batches.dispatch_batches is not None or not batches.even_batches
        if changed or batches.gradient_accumulation_kwargs:
            raise ValueError("--accelerator_config: only non_blocking is supported, other keys change the batches")

    def _choose_actions(self) -> dict[str, bool]:
        """Return `do_train`, `do_eval` and `do_predict`: all three, unless the options select or exclude some."""
        only_others = bool(self.do_eval or self.do_predict)
        train = not only_others if self.do_train is None else self.do_train
        default = train or not only_others
        evaluate = default if self.do_eval is None else self.do_eval
        predict = default if self.do_predict is None else self.do_predict
        return {"do_train": train, "do_eval": evaluate, "do_predict": predict}

    def _resolve_strategies(self) -> None:
        """Choose when to save and evaluate, where not given; raise an error for best weights without evaluations."""
        if self.save_strategy == "no":
            self.save_minutes = 0.0
        if self.save_strategy is None:
            strategy = "no" if self.save_steps is None else "steps"
            self.save_strategy = strategy  # pyright: ignore[reportIncompatibleVariableOverride] - None if not given
        self.save_steps = 500 if self.save_steps is None else self.save_steps  # the stock class needs a number
        if self.eval_strategy is None:
            strategy = "no" if self.eval_steps is None else "steps"
            self.eval_strategy = strategy  # pyright: ignore[reportIncompatibleVariableOverride] - None if not given
        if self.eval_strategy == "no" and (self.load_best_model_at_end or self.save_strategy == "best"):
            raise ValueError("the best weights need evaluations: pass --eval_strategy or --eval_steps")

    def _set_early_precision(self) -> None:
        """Set the precision by `--fp16`, the launcher or DeepSpeed's needs; else `bf16` stays None for now."""
        if self.bf16 is not None:
            return

        launcher = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        if self.fp16 or launcher == "fp16":
            self.bf16, self.fp16 = False, True
        elif launcher == "bf16":
            self.bf16 = True
        elif hardware.engine(self) == "deepspeed":
            # Its engine needs the precision now. On a CPU, its bf16 optimizer computes other numbers: only if asked.
            bf16 = not self.use_cpu and torch.cuda.is_available() and choose_on_gpu().bf16
            self.bf16 = bf16  # pyright: ignore[reportIncompatibleVariableOverride] - None until it is chosen


@dataclass
class PreTrainingArguments(PreTrainingOptions, RunArguments):
    """Arguments of a pre-training run; by default the paper's optimizer and schedule (Devlin et al. 2019, A.2)."""

    def __post_init__(self):
        # All of this before the parent class, which reads the fields and fills in its own defaults where they are None
        check_supported(self, REFUSED_IN_PRETRAINING)
        check_no_epochs(self)
        if self.data_seed is None:
            self.data_seed = self.seed
        if self.dataloader_num_workers is None:
            accelerator = torch.accelerator.is_available() and not self.use_cpu
            self.dataloader_num_workers = min(4, hardware.cores_of_rank() - 1) if accelerator else 0

        super().__post_init__()


@dataclass
class FineTuningArguments(FineTuningOptions, RunArguments):  # pyright: ignore[reportIncompatibleVariableOverride] - None until chosen
    """Arguments of a fine-tuning run; some defaults depend on the model's width or the number of features."""

    def __post_init__(self):
        self.best_metric_is_given = self.metric_for_best_model is not None  # all three before they are filled in
        self.direction_is_given = self.greater_is_better is not None
        self.epochs_are_given = self.num_train_epochs is not None
        super().__post_init__()

    def _resolve_strategies(self) -> None:
        """Evaluate and save each epoch by default, or at the steps given, and keep the best weights if possible."""
        self.eval_strategy_is_given = self.eval_strategy is not None
        if self.eval_steps is None and self.eval_strategy in (None, "steps"):
            self.eval_steps = self.save_steps  # evaluate where it is saved; None if neither is given
        if self.eval_steps is None and self.eval_strategy == "steps":
            self.eval_steps = self.logging_steps  # the default of the stock class
        evaluates = "epoch" if self.eval_steps is None else "steps"
        self.eval_strategy = self.eval_strategy or evaluates

        if self.load_best_model_at_end is None:
            can_keep_best = self.eval_strategy != "no" and self.save_strategy in (None, self.eval_strategy)
            self.load_best_model_at_end = can_keep_best  # pyright: ignore[reportIncompatibleVariableOverride] - None until here
        if self.load_best_model_at_end and self.save_strategy is None:  # only saved weights can be kept
            self.save_strategy = self.eval_strategy
            if self.save_steps is None and self.eval_steps is not None:
                self.save_steps = self.eval_steps

        super()._resolve_strategies()


def resolve_by_width(args: TrainingArguments, hidden_size: int | None) -> None:
    """Set learning rate and epochs, where not given, by hidden size; a network without one gets the values of base."""
    width = math.inf if hidden_size is None else hidden_size
    rate, epochs = next((rate, epochs) for largest, rate, epochs in _BY_WIDTH if width <= largest)
    if args.learning_rate is None:
        args.learning_rate = rate
    if args.num_train_epochs is None:
        args.num_train_epochs = epochs


def resolve_by_features(args: FineTuningArguments, features: int, min_steps: int | None) -> None:
    """Raise the epochs to reach `min_steps` optimizer steps; evaluate and save a run of many epochs only a few times.

    `features`: number of inputs of an epoch, over all ranks. `min_steps` None: `MIN_STEPS`, 0 if epochs are given.
    """
    if min_steps is None:
        min_steps = 0 if args.epochs_are_given else MIN_STEPS

    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    steps_per_epoch = max(1, math.ceil(features / batch))
    epochs = args.max_steps / steps_per_epoch
    if args.max_steps <= 0:
        epochs = args.num_train_epochs or 0.0  # set by `resolve_by_width`
        if steps_per_epoch * epochs < min_steps:
            epochs = args.num_train_epochs = float(math.ceil(min_steps / steps_per_epoch))
    if epochs > _FEW_EVALUATIONS and args.eval_strategy == "epoch" and not args.eval_strategy_is_given:
        # The strategies are enums of transformers by now; steps below 1 are a share of all steps
        args.eval_strategy, args.eval_steps = type(args.eval_strategy)("steps"), 1 / _FEW_EVALUATIONS
        if args.save_strategy == "epoch":  # the best weights need a checkpoint of each evaluation
            args.save_strategy, args.save_steps = type(args.save_strategy)("steps"), 1 / _FEW_EVALUATIONS
