"""Options of a training run: `TrainingArguments` with our defaults; they also select device, threads and precision."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers import SchedulerType, TrainingArguments
from transformers.training_args import OptimizerNames

from bert_hf.config import hardware
from bert_hf.config.arguments import OutputArguments
from bert_hf.config.parser import check_range, option
from bert_hf.config.precision import choose_on_gpu
from bert_hf.config.rendezvous import join_ranks
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
    "fsdp": "sharding is set in the machine's file; see configs/accelerate/fsdp2.yaml",
    "fsdp_config": "sharding is set in the machine's file; see configs/accelerate/fsdp2.yaml",
}
REFUSED_IN_PRETRAINING = {
    "label_smoothing_factor": "the losses of pre-training are not smoothed; leave it out",
    "neftune_noise_alpha": "its noise depends on the length of a padded row; leave it out",
}
_RANGES = {
    "learning_rate": "[0, inf)",
    "per_device_train_batch_size": "[1, inf)",
    "per_device_eval_batch_size": "[1, inf)",
    "gradient_accumulation_steps": "[1, inf)",
}


def defaults_of(kind: type) -> dict[str, Any]:
    """The default of each field of a dataclass."""
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(kind)
    }


def check_supported(args: TrainingArguments, refused: Mapping[str, str] = REFUSED) -> None:
    """Raises an `InputError` for the first field that is rejected and does not have its default.

    `RunArguments` check themselves; a Trainer that gets other `TrainingArguments` in Python calls this. Those may have
    another default, for example `logging_nan_inf_filter=True`; a value that is the default of `RunArguments` is good.
    """
    own, ours = defaults_of(type(args)), defaults_of(RunArguments)
    for name, reason in refused.items():
        value = getattr(args, name)
        unset = [value == default or not (value or default) for default in (own[name], ours[name])]
        if not any(unset):  # None, "" and [] all mean: not set
            what, _, remedy = reason.rpartition("; ")
            raise InputError(what, where=f"--{name}", remedy=remedy)


def check_no_epochs(args: TrainingArguments) -> None:
    """Checks that nothing is to happen after each epoch: to Trainer, numbered examples are one epoch."""
    for name in ("logging_strategy", "eval_strategy", "save_strategy"):
        if getattr(args, name) == "epoch":
            raise InputError("epoch is not supported in pre-training", where=f"--{name}", remedy="use steps")


@dataclass
class RunArguments(OutputArguments, TrainingArguments):
    """`TrainingArguments` that select device, threads and precision themselves."""

    refused: ClassVar[frozenset[str]] = frozenset(REFUSED)

    adam_epsilon: float = 1e-6  # 2018 code
    weight_decay: float = 0.01  # A.2
    hub_strategy: str = "end"
    logging_nan_inf_filter: bool = False

    do_train: bool = option(None, "Train. Default: true, unless only --do_eval or --do_predict is set.")
    do_eval: bool = option(None, "Evaluate; alone, it means no training. A run that trains evaluates in any case.")
    do_predict: bool = option(
        None, "Predict the test rows of a fine-tuning task. Default: true, unless only --do_eval is set."
    )
    optim: str = option(
        "adamw_torch_fused",
        "adamw_torch_fused, adamw_torch, sgd, adagrad, rmsprop, adafactor, bert_adam (2018); muon in pre-training.",
    )
    bf16: bool | None = option(None, "Use bf16 autocast. Default: where it is faster; a resumed run keeps its dtype.")
    lr_scheduler_type: str = option("linear", "Schedule of the learning rate.")  # pyright: ignore[reportIncompatibleVariableOverride] - also names of ours
    eval_strategy: str | None = option(
        None,
        "When to evaluate during training: no, steps, epoch. Default: steps if --eval_steps is given; otherwise "
        "pre-training does not, and fine-tuning does so each epoch, or ten times in a run of more epochs.",
        ("no", "steps", "epoch"),
    )
    save_minutes: float = option(
        15.0,
        "Save a checkpoint at least every N minutes and after the last step. 0: not by time.",
        range="[0, inf)",
        not_with="save_strategy=no",
    )
    save_strategy: str | None = option(
        None,
        "no: never. steps, epoch, best: in addition to the checkpoints of save_minutes.",
        ("no", "steps", "epoch", "best"),
    )
    save_steps: float = option(
        None, "Steps between checkpoints, in addition to those of save_minutes.", not_with="save_strategy=no"
    )
    save_total_limit: int | None = option(2, "Number of newest checkpoints that are kept; 0 keeps all.")
    ddp_timeout: int = option(600, "Timeout in seconds of collective operations between ranks.")

    def __post_init__(self):
        check_supported(self)
        for name, interval in _RANGES.items():
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), interval)

        actions = self._actions()  # the stock class sets do_eval
        self._resolve_strategies()
        if not torch.accelerator.is_available():
            self.use_cpu = True
        self._take_given_precision()

        if self.use_cpu:
            torch.set_num_threads(hardware.cpu_threads())
            hardware.keep_freed_memory()

        join_ranks(self)
        self._init_stock_class()
        for name, value in actions.items():
            setattr(self, name, value)
        if self.bf16 is False and not self.fp16:  # --bf16 false; the stock class takes the launcher's precision
            self.mixed_precision = "no"
        if self.n_gpu > 1:  # plain `python` on several GPUs: stock Trainer would wrap the model in nn.DataParallel
            logger.info(f"using one of {self.n_gpu} devices; `accelerate launch` uses them all")
            self._n_gpu = 1

    def _init_stock_class(self) -> None:
        """Calls the stock class, which rejects names of optimizers and schedules that transformers does not have."""
        ours = {}
        for name, kind, known in (
            ("optim", OptimizerNames, "adamw_torch_fused"),
            ("lr_scheduler_type", SchedulerType, "linear"),
        ):
            if getattr(self, name) not in [each.value for each in kind]:
                ours[name] = getattr(self, name)
                setattr(self, name, known)

        super().__post_init__()
        for name, value in ours.items():
            setattr(self, name, value)

        batches: Any = self.accelerator_config
        changed = batches.split_batches or batches.dispatch_batches is not None or not batches.even_batches
        if changed or batches.gradient_accumulation_kwargs:
            raise ValueError("--accelerator_config: only non_blocking is supported, other keys change the batches")

    def _actions(self) -> dict[str, bool]:
        """Resolves --do_train, --do_eval and --do_predict."""
        others = {"do_eval": self.do_eval, "do_predict": self.do_predict}
        train = not any(others.values()) if self.do_train is None else self.do_train
        default = train or not any(others.values())
        return {"do_train": train} | {name: default if given is None else given for name, given in others.items()}

    def _resolve_strategies(self) -> None:
        """When to save and evaluate, where --save_strategy and --eval_strategy do not say it."""
        if self.save_strategy == "no":
            self.save_minutes = 0.0
        if self.save_strategy is None:
            strategy = "no" if self.save_steps is None else "steps"
            self.save_strategy = strategy  # pyright: ignore[reportIncompatibleVariableOverride] - None if not given
        self.save_steps = 500 if self.save_steps is None else self.save_steps
        if self.eval_strategy is None:
            strategy = "no" if self.eval_steps is None else "steps"
            self.eval_strategy = strategy  # pyright: ignore[reportIncompatibleVariableOverride] - None if not given
        if self.eval_strategy == "no" and (self.load_best_model_at_end or self.save_strategy == "best"):
            raise ValueError("the best weights need evaluations: pass --eval_strategy or --eval_steps")

    def _take_given_precision(self) -> None:
        """Takes the precision given here or to the launcher. Otherwise `bf16` stays None: see `precision.py`."""
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
class PreTrainingArguments(RunArguments):
    """The paper's optimizer and schedule by default (Devlin et al. 2019, A.2)."""

    refused: ClassVar[frozenset[str]] = frozenset(REFUSED | REFUSED_IN_PRETRAINING)

    output_dir: str | None = "runs/pretrain"
    learning_rate: float = option(1e-4, "Peak learning rate (A.2).")
    warmup_steps: float = option(
        0.01,
        "Steps of linear warm-up; a number below 1 is a share of the steps (A.2: 10,000 of 1,000,000).",
        range="[0, inf)",
        not_with=("lr_scheduler_type=constant", "lr_scheduler_type=reduce_lr_on_plateau"),
    )
    max_hours: float | None = option(
        None,
        "Time budget instead of --max_steps; the speed is measured once, and pauses do not count.",
        range="(0, inf)",
        not_with=("max_steps", "num_train_epochs"),
    )
    muon_learning_rate: float = option(
        3e-3, "Peak rate of the encoder's matrices with --optim muon.", range="[0, inf)", only_with="optim=muon"
    )
    torch_compile: bool = option(
        None, "Compile the model. Default: its layers, on a GPU that can compile and from hidden size 768 on."
    )
    dataloader_num_workers: int = option(None, "DataLoader workers. Default: up to 4 with an accelerator, 0 on a CPU.")
    fast_path: str = option(
        "auto",
        "auto: compare the unpadded and the padded path on the first batch, and fall back to padding if they differ. "
        "on: nothing is compared. off: padding is kept.",
        ("auto", "on", "off"),
    )

    def __post_init__(self):
        check_supported(self, REFUSED_IN_PRETRAINING)
        check_no_epochs(self)
        if self.data_seed is None:
            self.data_seed = self.seed
        if self.dataloader_num_workers is None:
            accelerator = torch.accelerator.is_available() and not self.use_cpu
            self.dataloader_num_workers = min(4, hardware.cores_of_rank() - 1) if accelerator else 0

        super().__post_init__()
