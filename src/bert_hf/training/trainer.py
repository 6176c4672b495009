"""transformers' Trainer for BERT's two losses, exact.

`PreTrainer` adds to `SafeTrainer` what pre-training needs: a loss that is the mean over the whole global batch,
whatever its layout; examples addressed by number; evaluation that keeps counts and not logits; speed and model FLOPs
utilisation (MFU) in the log.
"""

import contextlib
import functools
import inspect
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import BertForPreTraining as StockForPreTraining
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput
from transformers.utils import logging

from bert_hf.config.arguments import MUON
from bert_hf.config.training_options import NUMBERED, PRETRAINER, check_options, defaults_of
from bert_hf.data.samplers import RunSampler, walk
from bert_hf.models.fast_path_check import FastPathCheck
from bert_hf.models.flops import model_product_rate, training_flops
from bert_hf.models.functional import IGNORED, token_losses
from bert_hf.models.modeling_bert import BertForPreTraining, PreTrainingLosses
from bert_hf.training import state_file
from bert_hf.training.exact_backward import check_training_step, exact_training_step
from bert_hf.training.muon import encoder_matrices
from bert_hf.training.optimization import linear_from_step_zero, optimizer_name, select_optimizer
from bert_hf.training.running_sums import RunningSums, sum_dtype
from bert_hf.training.safe_trainer import SafeTrainer

logger = logging.get_logger(__name__)

# What is counted, over tokens and pairs. Sums in nats.
COUNTS = ("mlm_sum", "masked", "mlm_correct", "nsp_sum", "pairs", "nsp_correct", "tokens", "squares")


class PreTrainer(SafeTrainer):
    """Trainer for `BertForPreTraining`, ours or stock, with the exact loss of the global batch.

    Takes what `Trainer` takes. With a dataset that has `window_length` and `phases` (`PreTrainingExamples`) the run is
    one sequence of numbered examples, which resumes at any position without reading the skipped ones; with any other
    dataset and collator it works as `Trainer` does.

    `longer_eval_datasets` are evaluated beside `eval_dataset` once the run trains at their length, and after it; their
    figures carry their names: `eval_long_mlm_loss` of `{"long": examples}`. What `eval_dataset` yields keeps its plain
    names all along, so `metric_for_best_model` compares the same examples at every step.

        >>> trainer = PreTrainer(model, args, DataCollatorForPreTraining(tokenizer), examples, held_out, tokenizer)
        >>> trainer.train()

    The loss of an optimizer step is Σ MLM / masked tokens + Σ NSP / pairs, both counted over accumulation steps and
    ranks. (The mean of means that others use weights a token by how many were masked beside it.)

    Args:
        model: `BertForPreTraining`, ours or stock.
        args: `TrainingArguments`, or `PreTrainingArguments`: the same with the paper's optimizer as default.
        data_collator: makes batches; `DataCollatorForPreTraining` for `PreTrainingExamples`.
        train_dataset, eval_dataset: `PreTrainingExamples`, or whatever the collator takes.
        processing_class: the tokenizer, which is saved beside the model.
        callbacks, optimizers, optimizer_cls_and_kwargs, model_init: as for `Trainer`.
        compute_metrics: gets the counts of each example (see `prediction_step`), and no logits; with them
        preprocess_logits_for_metrics has nothing to do, and compute_loss_func is not asked: the loss is the one above.
        longer_eval_datasets: by name, examples of the longer phases of the run.
        facts: recorded in the manifest of each checkpoint.

    Raises (from `train`, beside those of `SafeTrainer`):
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
        self.longer_eval_datasets = longer_eval_datasets or {}
        self._longer_loaders: dict[str, dict] = {name: {} for name in self.longer_eval_datasets}
        forward = inspect.signature(self.accelerator.unwrap_model(self.model).forward).parameters
        self._ours = "losses_only" in forward
        self._numbered = hasattr(self.train_dataset, "window_length")
        refusing = {PRETRAINER, NUMBERED} if self._numbered else {PRETRAINER}
        check_options(self.args, defaults_of(type(self.args)), frozenset(refusing))
        raw_rows = getattr(self.data_collator, "needs_all_columns", False)
        if self._numbered or raw_rows or hasattr(self.eval_dataset, "window_length"):
            self.args.remove_unused_columns = False  # the collator needs what the model does not take
        if self._numbered:
            self.args.ignore_data_skip = True  # the sampler starts where the run stopped
            if self.args.max_steps <= 0:
                examples = self.args.num_train_epochs * self.train_dataset.epoch_length(0, 0)
                self.args.max_steps = max(1, round(examples / self.global_batch))
        self._consumed = 0
        self._counts = RunningSums(len(COUNTS), self.args.device)
        self._seconds = self._peak = 0.0
        self._whole = {"seconds": 0.0, "tokens": 0.0, "flops": 0.0}
        self._tick: float | None = None
        self._fast_path = FastPathCheck(
            getattr(self.args, "fast_path", "auto"),
            self._losses_to_compare,
            self._ranks.gather,
            half=self.accelerator.mixed_precision != "no",
        )

    @property
    def _network(self) -> nn.Module:
        """The model itself, without what wraps it for ranks or compilation."""
        return self.accelerator.unwrap_model(self.model, keep_torch_compile=False)

    def _validate_args(self) -> None:
        """The stock method asks a dataset for its length, which would open text that a resumed run has behind it."""
        dataset = self.train_dataset
        self.train_dataset = None if self.args.max_steps > 0 and hasattr(dataset, "window_length") else dataset
        super()._validate_args()
        self.train_dataset = dataset

    def _last_of_epoch(self) -> bool:
        if not self._numbered:
            return super()._last_of_epoch()
        return self.state.global_step >= self.state.max_steps  # to Trainer the run is one epoch

    def _sums(self) -> list[Tensor]:
        return [*super()._sums(), *self._counts.parts()]

    def _name_rows(self, step: int, first: int, count: int) -> str:
        """Numbers of examples: a rank gets every `world_size`-th micro-batch of the run's sequence."""
        if not self._numbered:
            return super()._name_rows(step, first, count)
        size, ranks = self.args.per_device_train_batch_size, self.args.world_size
        positions = []
        for row in range(first, first + count):
            batch = row // size * ranks + self.args.process_index
            positions.append((step - 1) * self.global_batch + batch * size + row % size)
        sampler = self._get_train_sampler()
        sampler.start = positions[0]
        numbers = itertools.islice(sampler, positions[-1] - positions[0] + 1)
        named = dict(enumerate(numbers, positions[0]))
        indices = ", ".join(str(named[position].index) for position in positions)
        phase, epoch, window, _ = named[positions[0]]
        return f"examples {indices} (phase {phase}, epoch {epoch}, window {window})"

    @property
    def global_batch(self) -> int:
        """Sequences in an optimizer step, over ranks and accumulation steps."""
        return self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size

    # ---- data
    def _begin_at(self, checkpoint: str) -> None:
        if self._numbered:
            state = json.loads((Path(checkpoint) / "trainer_state.json").read_text())
            self._consumed = state["global_step"] * self.global_batch
            files = [self._rank_file(checkpoint), self._rank_file(checkpoint, 0)]
            if there := [file for file in files if file.is_file()]:  # all ranks know the same lengths
                log = state_file.load_state(there[0])["log"]
                known = {tuple(key): length for *key, length in log["window_lengths"]}
                self.train_dataset.lengths.update(known)  # so that no part of the text is opened only to be counted

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, **kwargs):
        self._tick = time.perf_counter()
        if self.args.ddp_find_unused_parameters is None:
            self.accelerator.ddp_handler.find_unused_parameters = self._may_leave_weights_out()
        self._fast_path.begin()
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def _may_leave_weights_out(self) -> bool:
        """True where DDP has to look in each graph for weights that get no gradient, as the pooler without pairs.

        Trainer decides by activation checkpointing instead: with it DDP does not look and raises, without it DDP walks
        the graph of every step in vain. Only reentrant checkpointing forbids to look.
        """
        if (self.args.gradient_checkpointing_kwargs or {}).get("use_reentrant"):
            return False
        both_heads = isinstance(self.accelerator.unwrap_model(self.model), BertForPreTraining | StockForPreTraining)
        pairs = getattr(self.data_collator, "nsp", False) and getattr(self.train_dataset, "nsp", True)
        return not (both_heads and pairs)

    def _get_train_sampler(self, train_dataset=None):
        if not self._numbered:
            return super()._get_train_sampler(train_dataset)
        dataset, total = self.train_dataset, self.args.max_steps * self.global_batch
        return RunSampler(dataset.phases, dataset.window_length, total, dataset.seed, self._consumed)

    # ---- loss
    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> Tensor | None:
        """(2,) masked tokens and pairs of the optimizer step, over all micro-batches and ranks."""
        counts = torch.zeros(2, dtype=torch.int64, device=device)
        for batch in batch_samples:
            for place, name in enumerate(("labels", "next_sentence_label")):
                if batch.get(name) is not None:
                    counts[place] += (batch[name].to(device) != IGNORED).sum()
        return self.accelerator.reduce(counts, "sum") if self.args.world_size > 1 else counts

    def _losses(self, model: nn.Module, inputs: dict) -> tuple[PreTrainingLosses, dict[str, Tensor]]:
        """The losses, and of what: `masked` (M,) and `pairs` (B,) that count, `positions` (M,) of the masked."""
        inputs = dict(inputs)
        labels, next_label = inputs.pop("labels", None), inputs.pop("next_sentence_label", None)
        positions = inputs.pop("masked_positions", None)
        if labels is not None and positions is None:
            positions = (labels.flatten() != IGNORED).nonzero().squeeze(1)
        counted = {"positions": positions}
        if labels is not None:
            counted["masked"] = labels.flatten()[positions] != IGNORED
        if next_label is not None:
            counted["pairs"] = next_label.flatten() != IGNORED
        if self._ours and positions is not None:
            given = {"labels": labels, "next_sentence_label": next_label, "masked_positions": positions}
            return model(**inputs, **given, losses_only=True), counted
        inputs.pop("token_positions", None)
        return _losses_of_logits(model(**inputs), labels, next_label, positions), counted

    def _losses_to_compare(self, model: nn.Module, inputs: dict) -> PreTrainingLosses:
        """As a step computes them, for the check of the fast path; nothing is counted."""
        with self.compute_loss_context_manager(), self.accelerator.autocast():
            return self._losses(model, inputs)[0]

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Share of this micro-batch in the loss of the optimizer step, times the ranks that average gradients."""
        if num_items_in_batch is None:
            num_items_in_batch = self._get_num_items_in_batch([inputs], self.args.device)
        losses, counted = self._losses(model, inputs)
        weights = (1.0, getattr(self.args, "nsp_loss_weight", 1.0))
        shares = zip((losses.mlm_losses, losses.nsp_losses), num_items_in_batch.clamp(min=1), weights, strict=True)
        loss = sum(weight * (each.sum() / count) for each, count, weight in shares if each is not None)
        loss = loss * self.args.world_size
        if self.model.training:
            self._count(inputs, losses, counted)
            loss = self._checked(loss, inputs)
        return (loss, losses) if return_outputs else loss

    @torch.no_grad()
    def _count(self, inputs: dict, losses: PreTrainingLosses, counted: dict) -> None:
        lengths = _row_lengths(inputs)
        row = [losses.mlm_losses, counted.get("masked"), losses.mlm_correct]
        row += [losses.nsp_losses, counted.get("pairs"), losses.nsp_correct, lengths, lengths**2]
        self._counts.add(row)

    def _before_first_step(self) -> None:
        super()._before_first_step()
        with self._fast_path.paused():
            check_training_step(self)

    def training_step(self, model: nn.Module, inputs: dict, num_items_in_batch=None) -> Tensor:
        """One micro-batch; in the long phase in pieces of as many tokens as a micro-batch of the short one.

        So the global batch stays the same in both phases, and so does the memory. A sum of shares is the same sum in
        pieces.
        """
        step = functools.partial(exact_training_step, self, super().training_step, model)
        pieces = list(self._pieces(inputs))
        if self._fast_path.is_due("training"):
            self._fast_path.check("training", self._network, self._prepare_inputs(pieces[0]))
        if len(pieces) == 1:
            return step(inputs, num_items_in_batch)
        gradients = self.accelerator.gradient_state
        last, total = gradients.sync_gradients, 0.0
        for piece in pieces[:-1]:
            gradients._set_sync_gradients(False)
            with self.accelerator.no_sync(model) if not self.is_deepspeed_enabled else torch.enable_grad():
                total = total + step(piece, num_items_in_batch)
        gradients._set_sync_gradients(last)
        return total + step(pieces[-1], num_items_in_batch)

    def _pieces(self, inputs: dict) -> Iterator[dict]:
        rows, width = inputs["input_ids"].shape if "input_ids" in inputs else (1, 1)
        if not self._numbered or len(self.train_dataset.phases) == 1:
            yield inputs
            return
        phases, position = self.train_dataset.phases, self.state.global_step * self.global_batch
        longest = next(phase.max_seq_length for phase in phases if phase.end is None or position < phase.end)
        # By the phase's length and not by this batch's: every rank has to make the same number of pieces.
        size = max(1, self.args.per_device_train_batch_size * self.train_dataset.batch_length // longest)
        if size >= rows:
            yield inputs
            return
        # Where each piece's positions begin: one wait for the device, where to look for them would be one a piece.
        begins = range(0, rows, size)
        edges = torch.tensor([*begins, rows], device=inputs["input_ids"].device) * width
        flat = [name for name in ("masked_positions", "token_positions") if name in inputs]
        inputs = {**inputs, **{name: inputs[name].sort().values for name in flat}}
        ends = torch.stack([torch.searchsorted(inputs[name], edges) for name in flat]).tolist() if flat else []
        for number, first in enumerate(begins):
            piece = {name: value[first : first + size] for name, value in inputs.items() if name not in flat}
            for name, end in zip(flat, ends, strict=True):
                piece[name] = inputs[name][end[number] : end[number + 1]] - first * width
            yield piece

    # ---- optimizer and schedule
    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        if self.optimizer is None and hasattr(self.args, "adam_bias_correction") and not self.optimizer_cls_and_kwargs:
            self.optimizer = select_optimizer(self.model if model is None else model, self.args)
            if optimizer_name(self.args) == MUON:
                self._log_muon()
        return super().create_optimizer(model)

    def _log_muon(self) -> None:
        matrices = encoder_matrices(self.model)
        updated = sum(self.model.get_parameter(name).numel() for name in matrices)
        share = updated / self.model.num_parameters()
        logger.info(f"Muon updates {len(matrices)} matrices ({share:.0%} of the parameters): {', '.join(matrices)}")

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        if self.lr_scheduler is None and getattr(self.args, "decay_from_step_zero", False):
            warmup = self.args.get_warmup_steps(num_training_steps)
            self.lr_scheduler = linear_from_step_zero(optimizer or self.optimizer, warmup, num_training_steps)
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    # ---- evaluation
    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        self._stop_clock()
        begun = time.monotonic()
        try:
            # First, and logged last: an evaluation that a signal interrupts has logged nothing.
            longer = self._evaluate_longer(ignore_keys, metric_key_prefix) if eval_dataset is None else {}
            figures = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
            if longer:
                self.log(dict(longer))
            self._evaluation_seconds = time.monotonic() - begun
            return {**figures, **longer}
        finally:
            self._tick = time.perf_counter() if self.is_in_train else None

    def _evaluate_longer(self, ignore_keys: list[str] | None, prefix: str) -> dict[str, float]:
        """Losses and accuracies of the longer held-out examples whose length the run has reached."""
        figures = {}
        for name, examples in self.longer_eval_datasets.items():
            if not self._has_reached(examples.phases[0].max_seq_length):
                continue

            with self._explained(), self._longer_loader(name) as loader:
                output = self.evaluation_loop(loader, "Evaluation", None, ignore_keys, f"{prefix}_{name}")
            figures |= {key: value for key, value in output.metrics.items() if key.endswith(("_loss", "_accuracy"))}
        return figures

    def _has_reached(self, length: int) -> bool:
        """True after the run, and where its present phase or an earlier one has examples of that length."""
        if not self.is_in_train or not self._numbered:
            return True
        position, begin = self.state.global_step * self.global_batch, 0
        for phase in self.train_dataset.phases:
            if phase.max_seq_length >= length:
                return position >= begin
            begin = self.args.max_steps * self.global_batch if phase.end is None else phase.end
        return False

    @contextlib.contextmanager
    def _longer_loader(self, name: str) -> Iterator[DataLoader]:
        """Batches of longer held-out examples, of as many tokens as a batch of the usual ones."""
        examples, size = self.longer_eval_datasets[name], self.args.per_device_eval_batch_size
        usual = getattr(self.eval_dataset, "phases", examples.phases)[0].max_seq_length
        # Trainer keeps a loader with persistent workers under one name, whichever data set it is asked for.
        kept = self.__dict__.get("_eval_dataloaders", {})
        self._eval_dataloaders = self._longer_loaders[name]
        self.args.per_device_eval_batch_size = max(1, size * usual // examples.phases[0].max_seq_length)
        try:
            yield self.get_eval_dataloader(examples)
        finally:
            self._eval_dataloaders, self.args.per_device_eval_batch_size = kept, size

    @torch.no_grad()
    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Counts (B, 6) of each example in the order of `COUNTS`, in place of its logits.

        Per example, so that what accelerate repeats to fill the last batch of several ranks is dropped exactly.
        """
        self._may_go_on()
        inputs = self._prepare_inputs(inputs)
        if self._fast_path.is_due("evaluation"):
            self._fast_path.check("evaluation", self._network, inputs)
        with self.compute_loss_context_manager():
            losses, counted = self._losses(model, inputs)
        rows, device = len(inputs["input_ids"]), self.args.device
        dtype = sum_dtype(device)
        counts = torch.zeros(rows, 6, dtype=dtype, device=device)
        if losses.mlm_losses is not None:
            columns = (losses.mlm_losses, counted["masked"], losses.mlm_correct)
            columns = torch.stack([x.to(dtype) for x in columns], 1)
            counts[:, :3].index_add_(0, counted["positions"] // inputs["labels"].shape[1], columns)
        if losses.nsp_losses is not None:
            columns = (losses.nsp_losses, counted["pairs"], losses.nsp_correct)
            counts[:, 3:] = torch.stack([x.to(dtype) for x in columns], 1)
        return None, counts, torch.zeros(rows, device=device)

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ) -> EvalLoopOutput:
        output = super().evaluation_loop(dataloader, description, False, ignore_keys, metric_key_prefix)
        sums = np.asarray(output.predictions).sum(axis=0, dtype=np.float64)
        figures = pretraining_figures(dict(zip(COUNTS, sums, strict=False)))
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in figures.items()})
        return output

    # ---- log
    def _stop_clock(self) -> None:
        """Adds the time since the last tick to the time spent training (evaluation and saving are not)."""
        if self._tick is not None:
            self._seconds += time.perf_counter() - self._tick
        self._tick = time.perf_counter()

    def _save_checkpoint(self, model: nn.Module, trial) -> None:
        self._stop_clock()
        super()._save_checkpoint(model, trial)
        self._tick = time.perf_counter()

    def _log_state(self) -> dict:
        counts = torch.tensor(self._counts.values(), dtype=torch.float64)
        speed = {"counts": counts, "seconds": self._seconds, "whole": self._whole}
        if self._numbered:
            speed["window_lengths"] = [[*key, length] for key, length in self.train_dataset.lengths.items()]
        return {**super()._log_state(), **speed, "fast_path": self._fast_path.state(self._network)}

    def _restore_log(self, logs: list[dict]) -> None:
        counts = torch.stack([log["counts"] for log in logs]).sum(0)
        mine = len(logs) == 1 or self.args.process_index == 0
        self._counts.set((counts if mine else torch.zeros_like(counts)).tolist())
        self._seconds, self._whole = logs[0]["seconds"], logs[0]["whole"]
        self._fast_path.restore(logs[0].get("fast_path"), self._network)

    def floating_point_ops(self, inputs: dict) -> float:
        return 0.0  # counted from `COUNTS` when a line is logged; the stock method walks all modules each micro-step

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds both losses, both accuracies, speed and MFU to the training lines, and the true epoch to all."""
        if "loss" in logs:
            logs.update(self._tally())
        elif "train_runtime" in logs:
            self._tally()  # of the steps after the last line
            logs.update(self._speed(**self._whole))
        if self._numbered and self.state.global_step:
            self.state.epoch = self._epochs_done()
        super().log(logs, start_time)

    def _tally(self) -> dict[str, float]:
        """Figures of the steps since the last tally, which go over into the sums of the whole run."""
        self._stop_clock()
        join = functools.partial(self.accelerator.reduce, reduction="sum") if self.args.world_size > 1 else None
        counts = dict(zip(COUNTS, self._counts.values(join), strict=True))
        figures = pretraining_figures(counts)
        figures.pop("loss")
        flops = training_flops(self.model.config, counts["tokens"], counts["squares"], counts["masked"])
        self.current_flos += flops / self.args.world_size
        part = {"seconds": self._seconds, "tokens": counts["tokens"], "flops": flops}
        for name, value in part.items():
            self._whole[name] += value
        self._counts.zero()
        self._seconds = 0.0
        return {**figures, **self._speed(**part)}

    def _epochs_done(self) -> float:
        """Passes over the text; Trainer's own count restarts when a run does."""
        data, done = self.train_dataset, self.state.global_step * self.global_batch
        windows = walk(data.phases, data.window_length, done)
        return sum(taken / length / data.window_count(*place[:2]) for place, taken, length in windows)

    def _speed(self, seconds: float, tokens: float, flops: float) -> dict[str, float]:
        seconds = max(seconds, 1e-9)
        rate = flops / seconds / self.args.world_size
        # What a run has reached is possible, so it is never more than all of what is possible.
        self._peak = max(self._peak or self._measured_peak(), rate)
        return {"train_tokens_per_second": round(tokens / seconds, 1), "train_mfu": round(rate / self._peak, 4)}

    def _measured_peak(self) -> float:
        """FLOP/s of this rank's device in products of this run's precision and shapes; the time is not the run's."""
        precision = {"bf16": torch.bfloat16, "fp16": torch.float16}
        dtype = precision.get(self.accelerator.mixed_precision, next(self.model.parameters()).dtype)
        longest = self.model.config.max_position_embeddings
        length = self.train_dataset.phases[0].max_seq_length if self._numbered else longest
        tokens = self.args.per_device_train_batch_size * length

        peak = model_product_rate(self.args.device, dtype, self.model.config, tokens)
        self._tick = time.perf_counter() if self._tick is not None else None
        return peak


def pretraining_figures(counts: dict[str, float]) -> dict[str, float]:
    """Mean losses (nats) and accuracies from sums and counts; what was not counted is left out."""
    figures = {"loss": 0.0}
    for task, number in (("mlm", "masked"), ("nsp", "pairs")):
        if counts[number]:
            figures[f"{task}_loss"] = counts[f"{task}_sum"] / counts[number]
            figures[f"{task}_accuracy"] = counts[f"{task}_correct"] / counts[number]
            figures["loss"] += figures[f"{task}_loss"]
    return {name: float(value) for name, value in figures.items()}


def _losses_of_logits(outputs, labels, next_label, positions) -> PreTrainingLosses:
    """From the logits of a model that is not ours, of the masked positions alone."""
    losses = PreTrainingLosses()
    if labels is not None:
        logits, targets = outputs["prediction_logits"].flatten(0, 1)[positions], labels.flatten()[positions]
        losses.mlm_losses, losses.mlm_correct = token_losses(logits, targets), logits.argmax(-1) == targets
    if next_label is not None:
        logits, targets = outputs["seq_relationship_logits"], next_label.flatten()
        losses.nsp_losses, losses.nsp_correct = token_losses(logits, targets), logits.argmax(-1) == targets
    return losses


def _row_lengths(inputs: dict) -> Tensor:
    """(B,) real tokens of each row."""
    if inputs.get("attention_mask") is not None:
        return inputs["attention_mask"].sum(1)
    rows, width = inputs["input_ids"].shape
    return torch.full((rows,), width, device=inputs["input_ids"].device)
