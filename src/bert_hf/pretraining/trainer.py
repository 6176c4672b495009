"""transformers' Trainer for BERT's two pre-training losses, exact for any layout of the global batch."""

import contextlib
import copy
import dataclasses
import functools
import inspect
import json
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._triton import has_triton
from torch.utils.data import DataLoader
from transformers import BertConfig, PreTrainedModel, TrainingArguments
from transformers import BertForPreTraining as StockForPreTraining
from transformers.trainer_utils import EvalLoopOutput

from bert_hf.config.hardware import shards_weights
from bert_hf.config.training_arguments import REFUSED_IN_PRETRAINING, check_no_epochs, check_supported
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.objectives import OBJECTIVES, Objective
from bert_hf.data.examples.samplers import RunSampler, epochs_done, length_at
from bert_hf.models import flops
from bert_hf.models.micro_batches import split_micro_batch
from bert_hf.models.modeling_bert import BertForPreTraining, PreTrainingLosses
from bert_hf.pretraining.losses import (
    TaskLosses,
    count_targets,
    losses_by_task,
    losses_of_logits,
    mean_metrics,
    row_lengths,
    sum_dtype,
    with_masked_positions,
)
from bert_hf.pretraining.throughput import Throughput
from bert_hf.training.checkpoints.trainer_state import load_resume_states
from bert_hf.training.log_lines import use_log_lines
from bert_hf.training.optimization.optimizers import global_batch_size
from bert_hf.training.repeated_rows import without_repeated_rows
from bert_hf.training.resumable_trainer import ResumableTrainer

_LOG_LINES = 50  # of a run whose --logging_steps is not given
_COMPILED_FROM = 768  # hidden size: base ran 14 % faster on an H200; for a smaller model it is not known


class PreTrainer(ResumableTrainer):
    """Trainer for `BertForPreTraining`, ours or stock, with the exact loss of the global batch.

    Takes what `Trainer` takes. With `PreTrainingExamples` the run is one sequence of numbered examples, which resumes
    at any position without reading the skipped ones; with any other dataset and collator it works as `Trainer` does.

        >>> trainer = PreTrainer(model, args, DataCollatorForPreTraining(tokenizer), examples, held_out, tokenizer)
        >>> trainer.train()

    The loss of an optimizer step is Σ MLM / masked tokens + Σ NSP / pairs, both counted over accumulation steps and
    ranks. (The usual mean of means weights a token by the number of masked tokens in its micro-batch.)

    Args:
        compute_metrics: gets the counts of each example (see `prediction_step`), and no logits; so
            preprocess_logits_for_metrics has no effect, nor has compute_loss_func: the loss is the one above.
    """

    loss_is_scaled_for_ga = True  # `compute_loss` returns a share of the loss of the global batch

    def __init__(
        self,
        model: PreTrainedModel | nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        *more: Any,
        **named: Any,
    ):
        args = TrainingArguments() if args is None else copy.copy(args)  # another trainer may get the same object
        compilation = _take_over_compilation(args, model)  # before accelerate, made in super(), reads the options
        if getattr(data_collator, "needs_all_columns", False) or args.world_size == 1:
            # It would cut each tensor of an iterable dataset's batch, `masked_positions` too, to the number of rows
            loading: Any = args.accelerator_config
            args.accelerator_config = dataclasses.replace(loading, dispatch_batches=False)

        # Trainer asks a dataset for its length, which would open text that was already trained on
        self._numbered = isinstance(train_dataset, PreTrainingExamples)  # by `ExampleNumber`s, which RunSampler yields
        dataset_with_length = None if self._numbered else train_dataset
        super().__init__(model, args, data_collator, dataset_with_length, *more, **named)
        self.train_dataset = train_dataset
        self.model_accepts_loss_kwargs = False  # `count_items` counts the targets, not Trainer

        if isinstance(self.network, BertForPreTraining):
            self.network.fast_path = self.network.fast_path and getattr(self.args, "fast_path", True)
            if compilation is not None:
                self.network.compile_layers(**compilation)
        self._set_tokenizer_length()
        self._has_losses_only = "losses_only" in inspect.signature(self.network.forward).parameters
        self._begin_position = 0  # examples of the run, over all ranks, before this process
        self._resolve_options()
        use_log_lines(self)

        # (8,) since the last line of the log: `TaskLosses.sums` of both tasks, Σ tokens and Σ tokens² of the rows.
        # On the device, so that adding to them does not wait for it.
        self._log_sums = torch.zeros(8, dtype=sum_dtype(self.args.device), device=self.args.device)
        self._throughput = Throughput(self.args.world_size, self._measure_peak_flops)

    def _set_tokenizer_length(self) -> None:
        """Set `processing_class` to a copy with the model's length, for saving: stock pipelines cut texts to it."""
        config: Any = getattr(self.network, "config", None)
        tokenizer = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if tokenizer is not None and isinstance(config, BertConfig):  # other models reserve positions
            self.processing_class = copy.copy(tokenizer)
            self.processing_class.model_max_length = config.max_position_embeddings

    def _resolve_options(self) -> None:
        """Reject options without effect here, and set those that follow from dataset, collator and number of steps."""
        check_supported(self.args, REFUSED_IN_PRETRAINING)

        all_columns = getattr(self.data_collator, "needs_all_columns", False)
        if self._numbered or all_columns or isinstance(self.eval_dataset, PreTrainingExamples):
            self.args.remove_unused_columns = False  # the collator needs columns that the model does not take
        if self._numbered:
            check_no_epochs(self.args)
            self.args.ignore_data_skip = True  # the sampler starts at the position of the checkpoint
            if self.args.max_steps <= 0:
                examples = self.args.num_train_epochs * self.train_dataset.epoch_length(0, 0)
                self.args.max_steps = max(1, round(examples / global_batch_size(self.args)))

        default = type(self.args).logging_steps  # the same value given by the user counts as not given
        if self.args.max_steps > 0 and self.args.logging_steps == default:
            self.args.logging_steps = min(default, max(1, self.args.max_steps // _LOG_LINES))

    @property
    def _objective(self) -> Objective:
        """Return the objective of the examples; next-sentence prediction for a dataset of ready rows."""
        dataset = self.eval_dataset if self.train_dataset is None else self.train_dataset
        return getattr(dataset, "objective", OBJECTIVES[True])

    @property
    def _examples_done(self) -> int:
        """Return the number of examples that the run has trained on, over all ranks."""
        return self.state.global_step * global_batch_size(self.args)

    # ---- data

    def begin(self, checkpoint: str | None) -> None:
        """Start the clock; set sums and position to the beginning (None), or the position to the checkpoint's."""
        super().begin(checkpoint)
        self._throughput.start_clock()
        if checkpoint is None:
            self._begin_position = 0
            self._log_sums.zero_()
            self._throughput.reset()
        elif self._numbered:
            state = json.loads((Path(checkpoint) / "trainer_state.json").read_text())
            self._begin_position = state["global_step"] * global_batch_size(self.args)
            # Lengths of windows, so that none is opened only to count its examples. All ranks know the same
            lengths = load_resume_states(checkpoint, self._ranks)[0]["window_lengths"]
            self.train_dataset.lengths.update({tuple(key): length for *key, length in lengths})

    def _get_train_sampler(self, train_dataset=None):
        """Return the sampler of numbered examples, which begins where the checkpoint ended."""
        if not self._numbered:
            return super()._get_train_sampler(train_dataset)
        dataset = self.train_dataset
        total = self.args.max_steps * global_batch_size(self.args)
        return RunSampler(
            dataset.phases, dataset.window_length, total, dataset.seed, self._begin_position,
            rank=self.args.process_index, ranks=self.args.world_size, batch_size=self.args.train_batch_size,
        )  # fmt: skip

    def get_train_dataloader(self) -> DataLoader:
        loader = super().get_train_dataloader()
        if self._numbered and self.args.world_size > 1:
            # accelerate would give each rank some of the batches, but `RunSampler` yields only this rank's examples.
            shard: Any = loader.batch_sampler
            shard.num_processes, shard.process_index = 1, 0
        return loader

    # ---- training

    def _prepare_for_training(self, *args, **kwargs):
        """Check the model, which `model_init` may have made; let DDP search for unused weights only if needed."""
        self._objective.check_model(self.network.config)
        if self.args.ddp_find_unused_parameters is None:
            handler: Any = self.accelerator.ddp_handler
            handler.find_unused_parameters = self._needs_search_for_unused()
        return super()._prepare_for_training(*args, **kwargs)

    def _needs_search_for_unused(self) -> bool:
        """Return True if DDP should search for weights without a gradient, such as the pooler's without pairs."""
        if (self.args.gradient_checkpointing_kwargs or {}).get("use_reentrant"):
            return False  # DDP cannot search with reentrant checkpointing
        both_heads = isinstance(self.network, BertForPreTraining | StockForPreTraining)
        pairs = getattr(self.data_collator, "nsp", False) and getattr(self.train_dataset, "nsp", True)
        return not (both_heads and pairs)

    def training_step(self, model: nn.Module, inputs: dict, num_items_in_batch=None) -> Tensor:
        """Run forward and backward of a micro-batch and return its loss; one of longer examples is run in pieces.

        A piece has at most as many tokens as a micro-batch of the short phase, so that memory and batch stay the same.
        """
        run_piece = functools.partial(super().training_step, model)
        pieces = self._split_long_examples(inputs)
        if len(pieces) == 1:
            return run_piece(inputs, num_items_in_batch)

        # Gradients are synchronized with the last piece, if at all
        gradients = self.accelerator.gradient_state
        synchronize = gradients.sync_gradients
        total = torch.zeros((), device=self.args.device)
        for piece in pieces[:-1]:
            gradients._set_sync_gradients(False)
            with contextlib.nullcontext() if self.is_deepspeed_enabled else self.accelerator.no_sync(model):
                total = total + run_piece(piece, num_items_in_batch)
        gradients._set_sync_gradients(synchronize)
        return total + run_piece(pieces[-1], num_items_in_batch)

    def _split_long_examples(self, inputs: dict) -> list[dict]:
        """Return a micro-batch in pieces, one in the short phase. Their number is the same on all ranks."""
        if not self._numbered or "input_ids" not in inputs:
            return [inputs]
        phases = self.train_dataset.phases
        tokens = self.args.per_device_train_batch_size * self.train_dataset.batch_length
        rows = max(1, tokens // length_at(phases, self._examples_done))
        if len(phases) == 1 or rows >= len(inputs["input_ids"]):
            return [inputs]
        return list(split_micro_batch(inputs, rows))

    # ---- loss

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> Any:
        """Return a step's micro-batches, without rows that accelerate repeats to fill the last, and `count_items`."""
        batches = epoch_iterator if self._numbered else without_repeated_rows(self, epoch_iterator)
        return super().get_batch_samples(batches, num_batches, device)

    def count_items(self, batches: list[dict]) -> Tensor:
        """Return (2,) masked tokens and pairs of the optimizer step, over all micro-batches and ranks."""
        return self.sum_over_ranks(self.to_device(count_targets(batches)))

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch: Any = None) -> Any:
        """Return the micro-batch's share of the step's loss × world size (DDP divides by it); add to the log sums."""
        if num_items_in_batch is None:
            num_items_in_batch = self.count_items([inputs])
        inputs = with_masked_positions(inputs)
        losses = self._forward_losses(model, inputs)
        tasks = losses_by_task(inputs, losses)
        if self.model.training:  # here, where each loss is known
            self._add_to_log_sums(inputs, tasks)

        counts = num_items_in_batch.clamp(min=1)
        loss = sum(task.losses.sum() / count for task, count in zip(tasks, counts, strict=True))
        loss = loss * self.args.world_size
        return (loss, losses) if return_outputs else loss

    def _forward_losses(self, model: nn.Module, inputs: dict) -> PreTrainingLosses:
        """Run a model, ours or stock, and return the loss of each masked token and each pair of a batch."""
        if self._has_losses_only and inputs.get("masked_positions") is not None:
            return model(**inputs, losses_only=True)

        # Without the labels, since the model's own loss is not needed, and without names that a stock model rejects
        left_out = ("labels", "next_sentence_label", "masked_positions", "token_positions", "layout")
        outputs = model(**{name: value for name, value in inputs.items() if name not in left_out})
        return losses_of_logits(outputs, inputs, type(self.network).__name__)

    @torch.no_grad()
    def _add_to_log_sums(self, inputs: dict, tasks: list[TaskLosses]) -> None:
        """Add losses, correct predictions and lengths of a micro-batch to the sums for the next line of the log."""
        dtype = self._log_sums.dtype
        lengths = row_lengths(inputs)
        length_sums = torch.stack([lengths.sum(), (lengths**2).sum()])
        self._log_sums += torch.cat([*(task.sums(dtype) for task in tasks), length_sums.to(dtype)])

    # ---- evaluation

    def evaluate(self, *args: Any, **named: Any) -> dict[str, float]:
        self._finite.settle()  # before the clock stops: it waits for a step on a GPU
        with self._throughput.paused():
            return super().evaluate(*args, **named)

    @torch.no_grad()
    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Return (B, 6) sums of each example, three for each task, in place of its logits.

        Per example, so that the rows that accelerate repeats to fill the last batch of several ranks can be dropped.
        """
        inputs = with_masked_positions(self.on_device(inputs))
        with self.compute_loss_context_manager():
            tasks = losses_by_task(inputs, self._forward_losses(model, inputs))

        rows = len(inputs["input_ids"])
        sums = torch.cat([task.sums_of_rows(rows, self._log_sums.dtype) for task in tasks], 1)
        return None, sums, torch.zeros_like(sums[:, 0])  # without labels Trainer does not call compute_metrics

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ) -> EvalLoopOutput:
        """Evaluate as Trainer does; add mean losses and accuracies, from the sums that `prediction_step` returned."""
        output = super().evaluation_loop(dataloader, description, False, ignore_keys, metric_key_prefix)
        sums = np.asarray(output.predictions).sum(axis=0, dtype=np.float64)
        means = mean_metrics(sums, ("mlm", self._objective.prefix))
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in means.items()}
        return output._replace(metrics={**(output.metrics or {}), **metrics})

    # ---- log

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log; add both losses, both accuracies, speed and MFU to training lines, and the run's epoch to all lines."""
        if "loss" in logs:
            logs.update(self._end_log_line())
        elif "train_runtime" in logs:
            self._end_log_line()  # of the steps after the last line
            logs.update(self._throughput.speed(**self._throughput.whole_run))
        if self._numbered and self.state.global_step:
            self.state.epoch = epochs_done(self.train_dataset, self._examples_done)
        super().log(logs)  # with `start_time` the stock method would replace the speed by one that counts padding

    def _end_log_line(self) -> dict[str, float]:
        """Return metrics of the steps since the last line of the log; zero the sums, add FLOPs to `current_flos`."""
        *sums, tokens, squares = self.sum_over_ranks(self._log_sums).tolist()
        self._throughput.read_clock()  # now, because reading the sums waits for the work of a device
        self._log_sums.zero_()

        metrics = mean_metrics(sums, ("mlm", self._objective.prefix))
        del metrics["loss"]
        operations = flops.training_flops(self.model.config, tokens, squares, masked=sums[1])
        self.current_flos += operations / self.args.world_size
        return {**metrics, **self._throughput.end_line(tokens, operations)}

    def floating_point_ops(self, inputs: dict) -> int:
        return 0  # computed from the sums for each line of the log; the stock method visits all modules every step

    def _measure_peak_flops(self) -> float:
        """Measure the FLOP/s of this rank's device in the precision of the run."""
        precision = {"bf16": torch.bfloat16, "fp16": torch.float16}
        dtype = precision.get(str(self.accelerator.mixed_precision)) or next(self.model.parameters()).dtype
        return flops.matmul_rate(self.args.device, dtype)

    # ---- checkpoints

    def _save_checkpoint(self, model: nn.Module, trial) -> None:
        with self._throughput.paused():
            super()._save_checkpoint(model, trial)

    def log_state(self) -> dict:
        """Return this rank's sums for the next line of the log, and the lengths that a resumed run need not count."""
        state = {
            "counts": self._log_sums.cpu().double(),
            "seconds": self._throughput.seconds,
            "whole": self._throughput.whole_run,
        }
        if self._numbered:
            lengths = dict(self.train_dataset.lengths)  # a copy: the sampler's thread adds to it
            state["window_lengths"] = [[*key, length] for key, length in lengths.items()]
        return state

    def restore_log_state(self, logs: list[dict]) -> None:
        """Restore this rank's sums from `log_state`; if the number of ranks has changed, rank 0 gets all of them."""
        self._log_sums.zero_()
        if logs[0]["rank"] == self.args.process_index:
            self._log_sums.copy_(torch.stack([log["counts"] for log in logs]).sum(0))
        self._throughput.seconds = logs[0]["seconds"]
        self._throughput.whole_run = logs[0]["whole"]


def _take_over_compilation(args: TrainingArguments, model: nn.Module | None) -> dict[str, Any] | None:
    """Set `torch_compile` in `args`, and return options for `BertForPreTraining.compile_layers`; None: do not call it.

    On a GPU the layers of our model are compiled one by one: accelerate compiles the whole model, which takes minutes.
    Another model, and ours on a CPU, is left to accelerate.
    """
    ours = isinstance(model, BertForPreTraining) and args.device.type == "cuda"
    if args.torch_compile is None:
        wide = ours and model.config.hidden_size >= _COMPILED_FROM
        args.torch_compile = wide and not shards_weights() and can_compile()
    if not ours or not args.torch_compile:
        return None

    options = {"backend": args.torch_compile_backend or "inductor", "mode": args.torch_compile_mode}
    args.torch_compile_backend = args.torch_compile_mode = None  # accelerate then compiles nothing
    return options


def can_compile() -> bool:
    """Return True if torch.compile can work for a GPU here: Triton, a C compiler and the headers of Python exist."""
    compiler = any(map(shutil.which, ("cc", "gcc", "clang")))
    return has_triton() and compiler and Path(sysconfig.get_path("include"), "Python.h").exists()
