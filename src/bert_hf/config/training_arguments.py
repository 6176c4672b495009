"""Options of a training run: `TrainingArguments` with our defaults; they also select device, threads and precision."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import SchedulerType, TrainingArguments
from transformers.training_args import OptimizerNames

from bert_hf.config import hardware
from bert_hf.config.parser import option
from bert_hf.config.precision import choose_on_gpu
from bert_hf.console import logger
from bert_hf.errors import InputError


@dataclass
class RunArguments(TrainingArguments):
    """`TrainingArguments` that select device, threads and precision themselves."""

    optim: str = option(
        "adamw_torch_fused",
        "adamw_torch_fused, adamw_torch, sgd, adagrad, rmsprop, adafactor, bert_adam (2018); muon in pre-training.",
    )
    lr_scheduler_type: str = option("linear", "Schedule of the learning rate.")  # pyright: ignore[reportIncompatibleVariableOverride] - also names of ours
    bf16: bool | None = option(None, "bf16 autocast. By default where it is faster; a resumed run keeps its own.")
    overwrite_output_dir: bool = option(False, "Remove what an earlier run of ours wrote into the output folder.")
    logging_nan_inf_filter: bool = option(False, "Hides NaN losses and syncs each micro-step (stock default: true).")
    eval_strategy: str | None = option(
        None, "no: not while it trains. steps, epoch: as they say. By default steps where --eval_steps is given."
    )
    hub_strategy: str = option("end", "end: the finished run is pushed, once, by --push_to_hub.")
    save_minutes: float = option(
        15.0, "Minutes between checkpoints, at most; one follows the last step. 0: never by time."
    )
    save_strategy: str | None = option(None, "no: never. steps, epoch, best: in addition to those of save_minutes.")
    save_steps: float = option(None, "Steps between checkpoints, in addition to those of save_minutes.")
    save_total_limit: int | None = option(2, "How many of the newest checkpoints are kept. 0 keeps all.")
    ddp_timeout: int = option(600, "Seconds that a rank waits for the others before the run ends with an error.")

    def __post_init__(self):
        if self.hub_token is not None:  # it would be visible in the process list and in the history of the shell
            remedy = "set HF_TOKEN or `hf auth login`"
            raise InputError("a token is not taken as a flag", where="--hub_token", remedy=remedy)
        if self.save_minutes < 0:
            raise ValueError("--save_minutes must not be negative")

        self._resolve_strategies()
        if not torch.accelerator.is_available():
            self.use_cpu = True
        self._take_given_precision()

        if self.use_cpu:
            torch.set_num_threads(hardware.cpu_threads())
            hardware.keep_freed_memory()

        compiled = self.torch_compile or self.torch_compile_mode or self.torch_compile_backend
        if compiled and self.torch_compile_backend in (None, "inductor") and not hardware.finds_compiler():
            logger.info("no C++ compiler is found: this run is not compiled")
            self.torch_compile, self.torch_compile_mode, self.torch_compile_backend = False, None, None

        self._keep_own_names(super().__post_init__)
        if self.bf16 is False and not self.fp16:  # --bf16 false; the stock class takes the launcher's precision
            self.mixed_precision = "no"
        if self.n_gpu > 1:  # plain `python` on several GPUs: stock Trainer would wrap the model in nn.DataParallel
            logger.info(f"using one of {self.n_gpu} devices; `accelerate launch` uses them all")
            self._n_gpu = 1

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

    def _keep_own_names(self, post_init: Callable[[], None]) -> None:
        """Runs the stock `__post_init__`, which refuses optimizers and schedules that transformers does not have."""
        own = {}
        if self.optim not in [each.value for each in OptimizerNames]:
            own["optim"], self.optim = self.optim, "adamw_torch_fused"
        if self.lr_scheduler_type not in [each.value for each in SchedulerType]:
            own["lr_scheduler_type"], self.lr_scheduler_type = self.lr_scheduler_type, "linear"

        post_init()
        vars(self).update(own)

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

    output_dir: str | None = option("runs/pretrain", "Where the run writes.")
    learning_rate: float = option(1e-4, "Peak learning rate (A.2).")
    adam_beta1: float = option(0.9, "Adam beta 1 (A.2).")
    adam_beta2: float = option(0.999, "Adam beta 2 (A.2).")
    adam_epsilon: float = option(1e-6, "Adam epsilon (2018 code).")
    weight_decay: float = option(0.01, "Decay of all weights but LayerNorm and biases (A.2).")
    warmup_steps: float = option(
        0.01, "Steps of linear warm-up; a number below 1 is a share of the steps (A.2: 10,000 of 1,000,000)."
    )
    max_grad_norm: float = option(1.0, "Gradient clipping (2018 code).")
    max_steps: int = option(-1, "Optimizer steps. Without it num_train_epochs decides.")
    max_hours: float | None = option(
        None, "In place of --max_steps: as many as fit, at a speed measured once; interruptions do not count."
    )
    muon_learning_rate: float = option(3e-3, "With --optim muon: peak rate of the encoder's matrices.")
    nsp_loss_weight: float = option(1.0, "Factor of the next-sentence loss in the sum of both (the paper: 1).")
    data_seed: int | None = option(None, "Seed of pairs, masks and their order. By default --seed.")
    dataloader_num_workers: int = option(
        None, "Processes that make batches. By default up to 4 with an accelerator, none where the CPU trains."
    )
    fast_path: str = option(
        "auto",
        "auto: the first batch is computed without padding and with it, and if they differ the run keeps padding. "
        "on: nothing is compared. off: padding is kept.",
    )

    def __post_init__(self):
        if self.data_seed is None:
            self.data_seed = self.seed

        yaml_words = {"true": "on", "false": "off"}  # YAML 1.1 reads on and off as truth values
        self.fast_path = yaml_words.get(str(self.fast_path).lower(), self.fast_path)
        if self.fast_path not in ("auto", "on", "off"):
            raise ValueError(f"--fast_path must be auto, on or off, not {self.fast_path!r}")

        if self.max_hours is not None and not (self.max_hours > 0 and self.max_steps <= 0):
            raise ValueError("--max_hours must be positive, and excludes --max_steps")

        if self.dataloader_num_workers is None:
            accelerator = torch.accelerator.is_available() and not self.use_cpu
            self.dataloader_num_workers = min(4, hardware.cores_of_rank() - 1) if accelerator else 0

        super().__post_init__()
