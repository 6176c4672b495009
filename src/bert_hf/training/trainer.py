"""transformers' Trainer for BERT's two pre-training losses, exact for any layout of the global batch.

`PreTrainer` adds to `ResumableTrainer` what pre-training needs: a loss that is the mean over the whole global batch;
examples addressed by number; evaluation that keeps counts and not logits; speed and model FLOPs utilisation (MFU) in
the log.
"""

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import BertForPreTraining as StockForPreTraining
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from bert_hf.config.training_options import NUMBERED, PRETRAINER, check_options, defaults_of
from bert_hf.data.examples.samplers import RunSampler
from bert_hf.models.fast_path_check import FastPathCheck
from bert_hf.models.flops import model_matmul_rate, training_flops
from bert_hf.models.functional import IGNORE_INDEX
from bert_hf.models.micro_batches import split_micro_batch
from bert_hf.models.modeling_bert import BertForPreTraining, PreTrainingLosses
from bert_hf.training.exact_backward import check_training_step, exact_training_step, replaced_attributes
from bert_hf.training.log_lines import choose_logging_steps, use_log_lines
from bert_hf.training.numbered_examples import (
    describe_rows,
    epochs_done,
    has_reached,
    length_at,
    read_window_lengths,
)
from bert_hf.training.optimization.optimizers import global_batch_size
from bert_hf.training.pretraining_losses import (
    COUNTS,
    PER_EXAMPLE,
    count_targets,
    counts_per_example,
    losses_of_logits,
    pretraining_metrics,
    row_lengths,
    sum_dtype,
)
from bert_hf.training.resumable_trainer import ResumableTrainer
from bert_hf.training.throughput import Throughput


def is_numbered(dataset: Any) -> bool:
    """True for `PreTrainingExamples`: the run is then one sequence of examples, each addressed by its number."""
    return hasattr(dataset, "window_length")


class PreTrainer(ResumableTrainer):
    """Trainer for `BertForPreTraining`, ours or stock, with the exact loss of the global batch.

    Takes what `Trainer` takes. With a dataset that has `window_length` and `phases` (`PreTrainingExamples`) the run is
    one sequence of numbered examples, which resumes at any position without reading the skipped ones; with any other
    dataset and collator it works as `Trainer` does.

    `longer_eval_datasets` are evaluated in addition to `eval_dataset` once the run trains at their length, and after
    it; their metrics carry their names: `eval_long_mlm_loss` of `{"long": examples}`. The metrics of `eval_dataset`
    always have their plain names, so `metric_for_best_model` compares the same examples at every step.

        >>> trainer = PreTrainer(model, args, DataCollatorForPreTraining(tokenizer), examples, held_out, tokenizer)
        >>> trainer.train()

    The loss of an optimizer step is Σ MLM / masked tokens + Σ NSP / pairs, both counted over accumulation steps and
    ranks. (The usual mean of means weights a token by the number of masked tokens in its micro-batch.)

    Args:
        model: `BertForPreTraining`, ours or stock.
        args: `TrainingArguments`, or `PreTrainingArguments`: the same with the paper's optimizer as default.
        data_collator: makes batches; `DataCollatorForPreTraining` for `PreTrainingExamples`.
        train_dataset, eval_dataset: `PreTrainingExamples`, or whatever the collator takes.
        processing_class: the tokenizer, which is saved with the model.
        callbacks, optimizers, optimizer_cls_and_kwargs, model_init: as for `Trainer`.
        compute_metrics: gets the counts of each example (see `prediction_step`), and no logits; so
            preprocess_logits_for_metrics has no effect, nor has compute_loss_func: the loss is the one above.
        longer_eval_datasets: by name, examples of the longer phases of the run.
        facts: recorded in the manifest of each checkpoint.

    Raises (from `train`, in addition to `ResumableTrainer`):
        InputError: the installed transformers or accelerate runs backward on another loss than that.
    """

    def __init__(
        self,
        model: PreTrainedModel | nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Callable | None = None,
        train_dataset: Dataset | None = None,
        eval_dataset: Dataset | dict[str, Dataset] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        model_init: Callable[..., PreTrainedModel] | None = None,
        compute_loss_func: Callable | None = None,
        compute_metrics: Callable | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple = (None, None),
        optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict] | None = None,
        preprocess_logits_for_metrics: Callable | None = None,
        *,
        longer_eval_datasets: dict[str, Dataset] | None = None,
        facts: dict | None = None,
    ):
        super().__init__(
            model=model, args=args, data_collator=data_collator, train_dataset=train_dataset,
            eval_dataset=eval_dataset, processing_class=processing_class, model_init=model_init,
            compute_loss_func=compute_loss_func, compute_metrics=compute_metrics, callbacks=callbacks,
            optimizers=optimizers, optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics, facts=facts,
        )  # fmt: skip
        self.longer_eval_datasets: dict[str, Any] = dict(longer_eval_datasets or {})
        self._longer_loaders: dict[str, dict] = {name: {} for name in self.longer_eval_datasets}
        self._has_own_losses = "losses_only" in inspect.signature(self.network.forward).parameters
        self._numbered = is_numbered(self.train_dataset)
        self._consumed = 0  # examples of the run, over all ranks, before this process
        self._resolve_options()
        use_log_lines(self)

        # `COUNTS` since the last line of the log: on the device, so that adding to them does not wait for it
        self._log_sums = torch.zeros(len(COUNTS), dtype=sum_dtype(self.args.device), device=self.args.device)

        # Collaborators
        self._throughput = Throughput(self.args.world_size, self._measure_peak_flops)
        self._fast_path = FastPathCheck(
            getattr(self.args, "fast_path", "auto"), self._losses_to_compare, self._ranks.gather,
            half=self.accelerator.mixed_precision != "no",
        )  # fmt: skip

    def _resolve_options(self) -> None:
        """Refuses options without effect here, and sets those that follow from the dataset."""
        refusing = frozenset({PRETRAINER, NUMBERED} if self._numbered else {PRETRAINER})
        check_options(self.args, defaults_of(type(self.args)), refusing)

        raw_rows = getattr(self.data_collator, "needs_all_columns", False)
        if self._numbered or raw_rows or is_numbered(self.eval_dataset):
            self.args.remove_unused_columns = False  # the collator needs columns that the model does not take
        if self._numbered:
            self.args.ignore_data_skip = True  # the sampler starts at the position of the checkpoint
            if self.args.max_steps <= 0:
                examples = self.args.num_train_epochs * self.train_dataset.epoch_length(0, 0)
                self.args.max_steps = max(1, round(examples / self.global_batch))

        default = defaults_of(type(self.args))["logging_steps"]
        if self.args.max_steps > 0 and self.args.logging_steps == default:
            self.args.logging_steps = choose_logging_steps(self.args.max_steps, default)

    @property
    def global_batch(self) -> int:
        """Sequences in an optimizer step, over ranks and accumulation steps."""
        return global_batch_size(self.args)

    @property
    def _position(self) -> int:
        """Examples that the run has trained on, over all ranks."""
        return self.state.global_step * self.global_batch

    # ---- data

    def _validate_args(self) -> None:
        """Hides a numbered dataset from the stock check of its length, which would open text already trained on."""
        dataset = self.train_dataset
        if self.args.max_steps > 0 and is_numbered(dataset):
            self.train_dataset = None
        super()._validate_args()
        self.train_dataset = dataset

    def begin_new_run(self) -> None:
        super().begin_new_run()
        self._consumed = 0
        self._log_sums.zero_()
        self._throughput.reset()

    def begin_at(self, checkpoint: str) -> None:
        if not self._numbered:
            return
        state = json.loads((Path(checkpoint) / "trainer_state.json").read_text())
        self._consumed = state["global_step"] * self.global_batch

        # Known lengths, so that no part of the text is opened only to count its examples
        self.train_dataset.lengths.update(read_window_lengths(checkpoint, self.args.process_index))

    def _get_train_sampler(self, train_dataset=None):
        if not self._numbered:
            return super()._get_train_sampler(train_dataset)
        return self._run_sampler()

    def _run_sampler(self) -> RunSampler:
        dataset = self.train_dataset
        total = self.args.max_steps * self.global_batch
        return RunSampler(dataset.phases, dataset.window_length, total, dataset.seed, self._consumed)

    def is_last_step_of_epoch(self) -> bool:
        if not self._numbered:
            return super().is_last_step_of_epoch()
        return self.state.global_step >= self.state.max_steps  # for Trainer a numbered run is one epoch

    def describe_rows(self, step: int, first: int, count: int) -> str:
        if not self._numbered:
            return super().describe_rows(step, first, count)
        return describe_rows(self._run_sampler(), self.args, (step - 1) * self.global_batch, first, count)

    # ---- training

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, *args, **kwargs):
        self._throughput.start()
        if self.args.ddp_find_unused_parameters is None:
            handler: Any = self.accelerator.ddp_handler
            handler.find_unused_parameters = self._may_leave_weights_unused()
        self._fast_path.begin()
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _may_leave_weights_unused(self) -> bool:
        """True where DDP has to search each graph for weights without a gradient, such as the pooler without pairs.

        Trainer decides by activation checkpointing instead: with it DDP does not search and raises, without it DDP
        needlessly walks the graph of every step. Only reentrant checkpointing forbids the search.
        """
        if (self.args.gradient_checkpointing_kwargs or {}).get("use_reentrant"):
            return False
        both_heads = isinstance(self.accelerator.unwrap_model(self.model), BertForPreTraining | StockForPreTraining)
        pairs = getattr(self.data_collator, "nsp", False) and getattr(self.train_dataset, "nsp", True)
        return not (both_heads and pairs)

    def before_first_step(self) -> None:
        with replaced_attributes(self._fast_path, paused=True):
            check_training_step(self)

    def forward_backward(self, model: nn.Module, inputs: dict, num_items_in_batch=None) -> Tensor:
        """One micro-batch; in the long phase in pieces of as many tokens as a micro-batch of the short one.

        So the global batch and the memory stay the same in both phases. The loss is a sum, so it can be computed in
        pieces.
        """
        run_piece = functools.partial(exact_training_step, self, super().forward_backward, model)
        pieces = self._split(inputs)
        if self._fast_path.is_due("training"):
            self._fast_path.check("training", self.network, self._prepare_inputs(pieces[0]))
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

    def _split(self, inputs: dict) -> list[dict]:
        """Pieces of a micro-batch; the same number on every rank, because it depends on the phase and not the rows."""
        if not self._numbered or "input_ids" not in inputs:
            return [inputs]
        phases = self.train_dataset.phases
        tokens = self.args.per_device_train_batch_size * self.train_dataset.batch_length
        rows = max(1, tokens // length_at(phases, self._position))
        if len(phases) == 1 or rows >= len(inputs["input_ids"]):
            return [inputs]
        return list(split_micro_batch(inputs, rows))

    # ---- loss

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> Tensor:
        """(2,) masked tokens and pairs of the optimizer step, over all micro-batches and ranks."""
        return self.sum_over_ranks(count_targets(batch_samples, device))

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch: Any = None) -> Any:
        """This micro-batch's share of the optimizer step's loss, times the world size: DDP divides gradients by it."""
        if num_items_in_batch is None:
            num_items_in_batch = self._get_num_items_in_batch([inputs], self.args.device)
        losses, targets = self._forward_losses(model, inputs)
        if self.model.training:
            self._add_to_log_sums(inputs, losses, targets)

        counts = num_items_in_batch.clamp(min=1)
        shares = zip((losses.mlm_losses, losses.nsp_losses), counts, self._loss_weights, strict=True)
        loss = sum(weight * (each.sum() / count) for each, count, weight in shares if each is not None)
        loss = loss * self.args.world_size
        return (loss, losses) if return_outputs else loss

    @property
    def _loss_weights(self) -> tuple[float, float]:
        """Factors of the MLM and the NSP loss in the loss that is minimized."""
        return 1.0, getattr(self.args, "nsp_loss_weight", 1.0)

    def _forward_losses(self, model: nn.Module, inputs: dict) -> tuple[PreTrainingLosses, dict[str, Tensor]]:
        """Runs the model on a batch.

        Returns:
            losses: of each predicted token (M,) and of each pair (B,).
            targets: `positions` (M,), indices into the flattened batch; `masked` (M,) and `pairs` (B,): which of them
                have a label, and count.
        """
        inputs = dict(inputs)
        labels = inputs.pop("labels", None)
        next_label = inputs.pop("next_sentence_label", None)
        positions = inputs.pop("masked_positions", None)
        if labels is not None and positions is None:
            positions = (labels.flatten() != IGNORE_INDEX).nonzero().squeeze(1)

        targets = {"positions": positions}
        if labels is not None:
            targets["masked"] = labels.flatten()[positions] != IGNORE_INDEX
        if next_label is not None:
            targets["pairs"] = next_label.flatten() != IGNORE_INDEX

        if self._has_own_losses and positions is not None:
            labelled = {"labels": labels, "next_sentence_label": next_label, "masked_positions": positions}
            return model(**inputs, **labelled, losses_only=True), targets
        inputs.pop("token_positions", None)
        return losses_of_logits(model(**inputs), labels, next_label, positions), targets

    def _losses_to_compare(self, model: nn.Module, inputs: dict) -> PreTrainingLosses:
        """As a step computes them, for the check of the fast path; nothing is counted."""
        with self.compute_loss_context_manager(), self.accelerator.autocast():
            return self._forward_losses(model, inputs)[0]

    @torch.no_grad()
    def _add_to_log_sums(self, inputs: dict, losses: PreTrainingLosses, targets: dict[str, Tensor]) -> None:
        """Losses, correct predictions and lengths of a micro-batch, for the next line of the log."""
        lengths = row_lengths(inputs)
        mlm = [losses.mlm_losses, targets.get("masked"), losses.mlm_correct]
        nsp = [losses.nsp_losses, targets.get("pairs"), losses.nsp_correct]
        zero = self._log_sums.new_zeros(())
        addends = [zero if each is None else each.sum().to(zero.dtype) for each in (*mlm, *nsp, lengths, lengths**2)]
        self._log_sums += torch.stack(addends)

    # ---- evaluation

    def run_evaluation(self, eval_dataset, ignore_keys, metric_key_prefix: str) -> dict[str, float]:
        with self._throughput.paused():
            # First, but logged last: an evaluation that a signal interrupts has logged nothing
            longer = self._evaluate_longer(ignore_keys, metric_key_prefix) if eval_dataset is None else {}
            metrics = super().run_evaluation(eval_dataset, ignore_keys, metric_key_prefix)
            if longer:
                self.log(dict(longer))
            return {**metrics, **longer}

    def _evaluate_longer(self, ignore_keys: list[str] | None, prefix: str) -> dict[str, float]:
        """Losses and accuracies of the longer held-out examples whose length the run has reached."""
        metrics = {}
        for name, examples in self.longer_eval_datasets.items():
            if not self._has_reached(examples.phases[0].max_seq_length):
                continue
            with self._longer_loader(name) as loader:
                output = self.evaluation_loop(loader, "Evaluation", None, ignore_keys, f"{prefix}_{name}")
            found = output.metrics or {}
            metrics |= {key: value for key, value in found.items() if key.endswith(("_loss", "_accuracy"))}
        return metrics

    def _has_reached(self, length: int) -> bool:
        """True after the run, and where it trains or has trained on sequences of that length."""
        if not self.is_in_train or not self._numbered:
            return True
        return has_reached(self.train_dataset.phases, length, self._position)

    @contextlib.contextmanager
    def _longer_loader(self, name: str) -> Iterator[DataLoader]:
        """Batches of longer held-out examples, of as many tokens as a batch of the usual ones."""
        examples = self.longer_eval_datasets[name]
        size = self.args.per_device_eval_batch_size
        usual = getattr(self.eval_dataset, "phases", examples.phases)[0].max_seq_length

        # Trainer keeps a loader with persistent workers under one name, whichever dataset it is for
        batch_size = max(1, size * usual // examples.phases[0].max_seq_length)
        with (
            replaced_attributes(self, _eval_dataloaders=self._longer_loaders[name]),
            replaced_attributes(self.args, per_device_eval_batch_size=batch_size),
        ):
            yield self.get_eval_dataloader(examples)

    @torch.no_grad()
    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Counts (B, 6) of each example in place of its logits: `PER_EXAMPLE`.

        Per example, so that what accelerate repeats to fill the last batch of several ranks is dropped exactly.
        """
        inputs = self._prepare_inputs(inputs)
        if self._fast_path.is_due("evaluation"):
            self._fast_path.check("evaluation", self.network, inputs)
        with self.compute_loss_context_manager():
            losses, targets = self._forward_losses(model, inputs)
        counts = counts_per_example(inputs, losses, targets)
        labels = torch.zeros(len(counts), device=counts.device)  # without any Trainer does not call compute_metrics
        return None, counts, labels

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ) -> EvalLoopOutput:
        output = super().evaluation_loop(
            dataloader, description, prediction_loss_only=False, ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )  # fmt: skip
        sums = np.asarray(output.predictions).sum(axis=0, dtype=np.float64)
        metrics = pretraining_metrics(dict(zip(PER_EXAMPLE, sums, strict=True)), self._loss_weights)
        named = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        return output._replace(metrics={**(output.metrics or {}), **named})

    # ---- log

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds both losses, both accuracies, speed and MFU to the training lines, and the true epoch to all."""
        if "loss" in logs:
            logs.update(self._end_log_line())
        elif "train_runtime" in logs:
            self._end_log_line()  # of the steps after the last line
            logs.update(self._throughput.of_whole_run())
        if self._numbered and self.state.global_step:
            self.state.epoch = epochs_done(self.train_dataset, self._position)
        super().log(logs, start_time)

    def _end_log_line(self) -> dict[str, float]:
        """Metrics of the steps since the last line of the log."""
        self._throughput.read_clock()
        counts = dict(zip(COUNTS, self.sum_over_ranks(self._log_sums).tolist(), strict=True))
        self._log_sums.zero_()

        metrics = pretraining_metrics(counts)
        del metrics["loss"]
        flops = training_flops(self.model.config, counts["tokens"], counts["squares"], counts["masked"])
        self.current_flos += flops / self.args.world_size
        return {**metrics, **self._throughput.end_line(counts["tokens"], flops)}

    def floating_point_ops(self, inputs: dict) -> int:
        return 0  # computed from `COUNTS` for each line of the log; the stock method visits all modules every step

    def _measure_peak_flops(self) -> float:
        """FLOP/s of this rank's device in products of this run's precision and shapes."""
        precision = {"bf16": torch.bfloat16, "fp16": torch.float16}
        dtype = precision.get(str(self.accelerator.mixed_precision)) or next(self.model.parameters()).dtype
        longest = self.model.config.max_position_embeddings
        length = self.train_dataset.phases[0].max_seq_length if self._numbered else longest
        tokens = self.args.per_device_train_batch_size * length
        return model_matmul_rate(self.args.device, dtype, self.model.config, tokens)

    # ---- checkpoints

    def _save_checkpoint(self, model: nn.Module, trial) -> None:
        with self._throughput.paused():
            super()._save_checkpoint(model, trial)

    def log_state(self) -> dict:
        state = {
            "counts": self._log_sums.cpu().double(),
            "seconds": self._throughput.seconds,
            "whole": self._throughput.whole_run,
        }
        if self._numbered:
            state["window_lengths"] = [[*key, length] for key, length in self.train_dataset.lengths.items()]
        return {**state, "fast_path": self._fast_path.state(self.network)}

    def restore_log_state(self, logs: list[dict]) -> None:
        counts = torch.stack([log["counts"] for log in logs]).sum(0).to(self._log_sums.dtype)
        holds_sums = len(logs) == 1 or self.args.process_index == 0  # sums of all ranks are kept by the first
        self._log_sums.copy_(counts if holds_sums else torch.zeros_like(counts))
        self._throughput.seconds = logs[0]["seconds"]
        self._throughput.whole_run = logs[0]["whole"]
        self._fast_path.restore(logs[0].get("fast_path"), self.network)
