"""transformers' Trainer, with checkpoints that are transactions without pickles, and with BERT's two losses exact.

`SafeTrainer` is the stock Trainer with another way to save; the fine-tuning recipes use it. `PreTrainer` adds what
pre-training needs: a loss that is the mean over the whole global batch, whatever its layout; examples addressed by
number; evaluation that keeps counts and not logits; speed and model FLOPs utilisation (MFU) in the log.
"""

import inspect
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer
from transformers.trainer_callback import ExportableState
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import EvalLoopOutput

from bert_hf import checkpointing
from bert_hf.cost import matrix_product_rate, training_flops
from bert_hf.kernels import IGNORED, token_losses
from bert_hf.modeling import PreTrainingLosses
from bert_hf.optimization import linear_from_step_zero, make_optimizer
from bert_hf.pretrained import load_weights, read_weights
from bert_hf.sampling import LengthGroups, RunSampler, walk

OPTIMIZER, SCHEDULER, SCALER = "optimizer.safetensors", "scheduler.safetensors", "scaler.safetensors"
# What is counted, over tokens and pairs. Sums in nats.
COUNTS = ("mlm_sum", "masked", "mlm_correct", "nsp_sum", "pairs", "nsp_correct", "tokens", "squares")


class SafeTrainer(Trainer):
    """The stock Trainer, but a checkpoint is a verified transaction, and no file that holds a pickle is written.

    Takes what `Trainer` takes. `facts` (dict) is recorded in each checkpoint's manifest.
    """

    def __init__(self, *args, facts: dict | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self.facts = facts or {}

    # ---- writing
    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """Model, configuration and tokenizer; the stock method also pickles the arguments, a token included."""
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        if not isinstance(model, PreTrainedModel):
            raise TypeError(f"only a PreTrainedModel can be saved, not {type(model).__name__}")
        model.save_pretrained(folder, state_dict=state_dict)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)

    def _save_checkpoint(self, model: nn.Module, trial) -> None:
        self.store_flos()
        run, name = Path(self._get_output_dir(trial)), f"checkpoint-{self.state.global_step}"
        temporary, final = run / (checkpointing.TEMPORARY + name), run / name
        self.save_model(str(temporary), _internal_call=True)
        if self.state.best_global_step:
            best = run / f"checkpoint-{self.state.best_global_step}"
            if best == final or best.is_dir():
                self.state.best_model_checkpoint = str(best)
        self._barrier()  # rank 0 has made the folder
        if not self.args.save_only_model:
            self._save_optimizer_and_scheduler(str(temporary))
            self._save_scaler(str(temporary))
            self._save_rng_state(str(temporary))
        if self.args.should_save:
            self._export_callbacks()
            self.state.save_to_json(str(temporary / "trainer_state.json"))
        self._barrier()  # all ranks have written
        if self.args.should_save:
            facts = {"step": self.state.global_step, "world_size": self.args.world_size, **_versions(), **self.facts}
            checkpointing.commit(temporary, final, facts)
            best = self.state.best_model_checkpoint
            checkpointing.rotate(run, self.args.save_total_limit, spared=best)
        self._barrier()  # nobody goes on before the checkpoint stands

    def _export_callbacks(self) -> None:
        """Brings the state of the stateful callbacks into `self.state`, as the stock method does."""
        for callback in [*self.callback_handler.callbacks, self.control]:
            if isinstance(callback, ExportableState):
                name, state = type(callback).__name__, callback.state()
                if isinstance(self.state.stateful_callbacks.get(name), list):
                    self.state.stateful_callbacks[name].append(state)
                else:
                    self.state.stateful_callbacks[name] = state

    def _barrier(self) -> None:
        if dist.is_initialized():
            self.accelerator.wait_for_everyone()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        folder = Path(output_dir)
        if self.is_deepspeed_enabled:  # DeepSpeed's own files: the documented exception (they hold pickles)
            self.model_wrapped.save_checkpoint(output_dir)
        else:
            state = self._optimizer_state()
            if self.args.should_save:
                checkpointing.save_state(folder / OPTIMIZER, state)
        if self.args.should_save:
            checkpointing.save_state(folder / SCHEDULER, self.lr_scheduler.state_dict())

    def _optimizer_state(self) -> dict:
        if not self.is_fsdp_enabled:
            return self.optimizer.state_dict()
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_optimizer_state_dict(self.model, self.optimizer.optimizer, options=whole)

    def _save_scaler(self, output_dir: str) -> None:
        scaler = getattr(self.accelerator, "scaler", None)
        if scaler is not None and self.args.should_save:
            checkpointing.save_state(Path(output_dir) / SCALER, scaler.state_dict())

    def _rank_file(self, folder: str) -> Path:
        return Path(folder) / f"rank_{self.args.process_index}.safetensors"

    def _save_rng_state(self, output_dir: str) -> None:
        generators = {
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "torch": torch.random.get_rng_state(),
        }
        if torch.cuda.is_available():
            generators["cuda"] = torch.cuda.random.get_rng_state()
        checkpointing.save_state(self._rank_file(output_dir), {"generators": generators, "log": self._log_state()})

    def _log_state(self) -> dict:
        """What the next line of the log needs of the steps before the checkpoint."""
        return {"loss": self._tr_loss, "total": self._total_loss_scalar, "logged": self._globalstep_last_logged}

    # ---- reading
    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Weights, from safetensors alone; the stock method also takes a pickle, or what any index names."""
        model, folder = self.model if model is None else model, Path(resume_from_checkpoint)
        if not self.is_fsdp_enabled:
            return load_weights(model, folder)
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        whole = StateDictOptions(full_state_dict=True, strict=False)  # tied weights stand in the file once
        set_model_state_dict(model, read_weights(folder), options=whole)

    def _load_best_model(self) -> None:
        """From this run's folder: `trainer_state.json` may name any, and the run may have been moved."""
        name = Path(self.state.best_model_checkpoint).name
        if self.is_deepspeed_enabled:
            super()._load_best_model()
        else:
            self._load_from_checkpoint(str(Path(self.args.output_dir) / name))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        self.lr_scheduler.load_state_dict(checkpointing.load_state(folder / SCHEDULER))
        if self.is_deepspeed_enabled:
            return
        state = checkpointing.load_state(folder / OPTIMIZER)
        if self.is_fsdp_enabled:
            from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

            whole = StateDictOptions(full_state_dict=True)
            set_optimizer_state_dict(self.model, self.optimizer.optimizer, state, options=whole)
        else:
            self.optimizer.load_state_dict(state)

    def _load_scaler(self, checkpoint: str | None) -> None:
        scaler = getattr(self.accelerator, "scaler", None)
        if checkpoint is not None and scaler is not None:
            scaler.load_state_dict(checkpointing.load_state(Path(checkpoint) / SCALER))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        path = self._rank_file(checkpoint)
        if not path.is_file():
            print(f"{path.name} is not in the checkpoint (it was written by fewer ranks): dropout differs", flush=True)
            return
        state = checkpointing.load_state(path)
        generators = state["generators"]
        random.setstate(generators["python"])
        np.random.set_state(generators["numpy"])
        torch.random.set_rng_state(generators["torch"])
        if torch.cuda.is_available() and "cuda" in generators:
            torch.cuda.random.set_rng_state(generators["cuda"])
        self._restore_log(state["log"])

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "train_loss" in logs and self.state.global_step:  # of the whole run, and not since it was resumed
            logs["train_loss"] = self._total_loss_scalar / self.state.global_step
        super().log(logs, start_time)

    def _restore_log(self, log: dict) -> None:
        self._tr_loss = log["loss"].to(self.args.device)
        self._total_loss_scalar, self._globalstep_last_logged = log["total"], log["logged"]

    def _get_train_sampler(self, train_dataset=None):
        sampler = super()._get_train_sampler(train_dataset)
        if type(sampler) is LengthGroupedSampler:
            return LengthGroups(sampler.batch_size, sampler.lengths, self.args.seed)
        return sampler

    def get_train_dataloader(self):
        """The stock loader with a generator of its own: on resume Trainer restores the global one *before* it asks
        the loader for an iterator, which draws a seed, and dropout would go on from another place."""
        loader = super().get_train_dataloader()
        inner = getattr(loader, "base_dataloader", loader)  # accelerate wraps the one that is asked
        inner.generator = torch.Generator().manual_seed(self.args.seed)
        return loader


class PreTrainer(SafeTrainer):
    """Trainer for `BertForPreTraining`, ours or stock, with the exact loss of the global batch.

    Takes what `Trainer` takes. With a dataset that has `window_length` and `phases` (`PreTrainingExamples`) the run is
    one sequence of numbered examples, which resumes at any position without reading the skipped ones; with any other
    dataset and collator it works as `Trainer` does.

    The loss of an optimizer step is Σ MLM / masked tokens + Σ NSP / pairs, both counted over accumulation steps and
    ranks. (The mean of means that others use weights a token by how many were masked beside it.)
    """

    loss_is_scaled_for_ga = True  # told to the stock training_step: do not divide by accumulation steps again

    def __init__(self, model=None, args=None, *positional, **kwargs):
        super().__init__(model, args, *positional, **kwargs)
        forward = inspect.signature(self.accelerator.unwrap_model(self.model).forward).parameters
        self._ours = "losses_only" in forward
        self._numbered = hasattr(self.train_dataset, "window_length")
        if self._numbered or hasattr(self.eval_dataset, "window_length"):
            self.args.remove_unused_columns = False  # the collator needs what the model does not take
        if self._numbered:
            self.args.ignore_data_skip = True  # the sampler starts where the run stopped
            if self.args.max_steps <= 0:
                examples = self.args.num_train_epochs * self.train_dataset.epoch_length(0, 0)
                self.args.max_steps = max(1, round(examples / self.global_batch))
        self._consumed = 0
        self._counts = torch.zeros(len(COUNTS), dtype=torch.float64, device=self.args.device)
        self._seconds = self._peak = 0.0
        self._whole = {"seconds": 0.0, "tokens": 0.0, "flops": 0.0}
        self._tick: float | None = None

    def _validate_args(self) -> None:
        """The stock method asks a dataset for its length, which would open text that a resumed run has behind it."""
        dataset = self.train_dataset
        self.train_dataset = None if self.args.max_steps > 0 and hasattr(dataset, "window_length") else dataset
        super()._validate_args()
        self.train_dataset = dataset

    @property
    def global_batch(self) -> int:
        """Sequences in an optimizer step, over ranks and accumulation steps."""
        return self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size

    # ---- data
    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs):
        if isinstance(resume_from_checkpoint, str) and self._numbered:
            state = json.loads((Path(resume_from_checkpoint) / "trainer_state.json").read_text())
            self._consumed = state["global_step"] * self.global_batch
            files = [self._rank_file(resume_from_checkpoint), Path(resume_from_checkpoint) / "rank_0.safetensors"]
            if there := [file for file in files if file.is_file()]:  # all ranks know the same lengths
                log = checkpointing.load_state(there[0])["log"]
                known = {tuple(key): length for *key, length in log["window_lengths"]}
                self.train_dataset.lengths.update(known)  # so that no part of the text is opened only to be counted
        self._tick = time.perf_counter()
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

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

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Share of this micro-batch in the loss of the optimizer step, times the ranks that average gradients."""
        if num_items_in_batch is None:
            num_items_in_batch = self._get_num_items_in_batch([inputs], self.args.device)
        losses, counted = self._losses(model, inputs)
        shares = zip((losses.mlm_losses, losses.nsp_losses), num_items_in_batch.clamp(min=1), strict=True)
        loss = sum(each.sum() / count for each, count in shares if each is not None) * self.args.world_size
        if self.model.training:
            self._count(inputs, losses, counted)
        return (loss, losses) if return_outputs else loss

    @torch.no_grad()
    def _count(self, inputs: dict, losses: PreTrainingLosses, counted: dict) -> None:
        lengths = _row_lengths(inputs)
        row = (losses.mlm_losses, counted.get("masked"), losses.mlm_correct)
        row += (losses.nsp_losses, counted.get("pairs"), losses.nsp_correct, lengths, lengths**2)
        nothing = torch.zeros((), dtype=torch.float64, device=self.args.device)
        self._counts += torch.stack([nothing if x is None else x.sum().double() for x in row])

    def training_step(self, model: nn.Module, inputs: dict, num_items_in_batch=None) -> Tensor:
        """One micro-batch; in the long phase in pieces of as many tokens as a micro-batch of the short one.

        So the global batch stays the same in both phases, and so does the memory. A sum of shares is the same sum in
        pieces.
        """
        pieces = list(self._pieces(inputs))
        if len(pieces) == 1:
            return super().training_step(model, inputs, num_items_in_batch)
        gradients = self.accelerator.gradient_state
        last, total = gradients.sync_gradients, 0.0
        for piece in pieces[:-1]:
            gradients._set_sync_gradients(False)
            with self.accelerator.no_sync(model) if not self.is_deepspeed_enabled else torch.enable_grad():
                total = total + super().training_step(model, piece, num_items_in_batch)
        gradients._set_sync_gradients(last)
        return total + super().training_step(model, pieces[-1], num_items_in_batch)

    def _pieces(self, inputs: dict) -> Iterator[dict]:
        rows, width = inputs["input_ids"].shape if "input_ids" in inputs else (1, 1)
        if not self._numbered or len(self.train_dataset.phases) == 1:
            yield inputs
            return
        budget = self.args.per_device_train_batch_size * self.train_dataset.phases[0].max_seq_length
        size = max(1, budget // width)
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
            self.optimizer = make_optimizer(
                self.model if model is None else model,
                lr=self.args.learning_rate,
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon,
                weight_decay=self.args.weight_decay,
                bias_correction=self.args.adam_bias_correction,
            )
        return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        if self.lr_scheduler is None and getattr(self.args, "decay_from_step_zero", False):
            warmup = self.args.get_warmup_steps(num_training_steps)
            self.lr_scheduler = linear_from_step_zero(optimizer or self.optimizer, warmup, num_training_steps)
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    # ---- evaluation
    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        self._stop_clock()
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self._tick = time.perf_counter() if self.is_in_train else None

    @torch.no_grad()
    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Counts (B, 6) of each example in the order of `COUNTS`, in place of its logits.

        Per example, so that what accelerate repeats to fill the last batch of several ranks is dropped exactly.
        """
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            losses, counted = self._losses(model, inputs)
        rows, device = len(inputs["input_ids"]), self.args.device
        counts = torch.zeros(rows, 6, dtype=torch.float64, device=device)
        if losses.mlm_losses is not None:
            columns = torch.stack([x.double() for x in (losses.mlm_losses, counted["masked"], losses.mlm_correct)], 1)
            counts[:, :3].index_add_(0, counted["positions"] // inputs["labels"].shape[1], columns)
        if losses.nsp_losses is not None:
            columns = (losses.nsp_losses, counted["pairs"], losses.nsp_correct)
            counts[:, 3:] = torch.stack([x.double() for x in columns], 1)
        return None, counts, torch.zeros(rows, device=device)

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ) -> EvalLoopOutput:
        output = super().evaluation_loop(dataloader, description, False, ignore_keys, metric_key_prefix)
        figures = pretraining_figures(dict(zip(COUNTS, np.asarray(output.predictions).sum(axis=0), strict=False)))
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
        speed = {"counts": self._counts, "seconds": self._seconds, "whole": self._whole}
        if self._numbered:
            speed["window_lengths"] = [[*key, length] for key, length in self.train_dataset.lengths.items()]
        return {**super()._log_state(), **speed}

    def _restore_log(self, log: dict) -> None:
        super()._restore_log(log)
        self._counts = log["counts"].to(self.args.device)
        self._seconds, self._whole = log["seconds"], log["whole"]

    def floating_point_ops(self, inputs: dict) -> float:
        return 0.0  # counted from `COUNTS` when a line is logged; the stock method walks all modules each micro-step

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds both losses, both accuracies, speed and MFU to the training lines, and the true epoch to all."""
        if "loss" in logs:
            self._stop_clock()
            counts = self.accelerator.reduce(self._counts, "sum") if self.args.world_size > 1 else self._counts
            counts = dict(zip(COUNTS, counts.tolist(), strict=True))
            figures = pretraining_figures(counts)
            figures.pop("loss")
            logs.update(figures)
            flops = training_flops(self.model.config, counts["tokens"], counts["squares"], counts["masked"])
            self.current_flos += flops / self.args.world_size
            for name, value in (("seconds", self._seconds), ("tokens", counts["tokens"]), ("flops", flops)):
                self._whole[name] += value
            logs.update(self._speed(self._seconds, counts["tokens"], flops))
            self._counts.zero_()
            self._seconds = 0.0
        elif "train_runtime" in logs:
            logs.update(self._speed(**self._whole))
        if self._numbered and self.state.global_step:
            self.state.epoch = self._epochs_done()
        super().log(logs, start_time)

    def _epochs_done(self) -> float:
        """Passes over the text; Trainer's own count restarts when a run does."""
        data, done = self.train_dataset, self.state.global_step * self.global_batch
        windows = walk(data.phases, data.window_length, done)
        return sum(taken / length / data.window_count(*place[:2]) for place, taken, length in windows)

    def _speed(self, seconds: float, tokens: float, flops: float) -> dict[str, float]:
        if not self._peak:
            self._peak = matrix_product_rate(self.args.device, torch.bfloat16 if self.args.bf16 else torch.float32)
        seconds = max(seconds, 1e-9)
        share = flops / seconds / (self._peak * self.args.world_size)
        return {"train_tokens_per_second": round(tokens / seconds, 1), "train_mfu": round(share, 4)}


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
        return inputs["attention_mask"].sum(1).double()
    rows, width = inputs["input_ids"].shape
    return torch.full((rows,), float(width), dtype=torch.float64, device=inputs["input_ids"].device)


def _versions() -> dict[str, str]:
    return {"torch": torch.__version__, "transformers": transformers.__version__}
