"""transformers' Trainer with verified checkpoints, exact resume and graceful shutdown.

The call chain of one optimizer step. Unmarked methods are ours (`PreTrainer` and `FineTuner` override those named in
parentheses), `Trainer.…` is transformers/trainer.py:

    train                               chooses the checkpoint, defers signals
      Trainer.train                     the loop over epochs
        _run_epoch → Trainer._run_epoch     the loop over steps
          get_batch_samples             the micro-batches of the step; counts its labels (count_items)
          training_step                 for each micro-batch (PreTrainer: long examples in several pieces)
            Trainer.training_step
              _recorded_loss → compute_loss   the loss (PreTrainer, FineTuner) of the outputs of `forward`
              accelerator.backward            the gradient
          _get_grad_norm                stops the run before an update that is not finite
          optimizer.step, lr_scheduler.step
          _maybe_log_save_evaluate      logs, evaluates (evaluate), saves (_save_checkpoint), ends the run

`tests/training/test_transformers_hooks.py` lists the private methods of Trainer that are overridden or called.
"""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn

import torch
import transformers
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainerCallback

from bert_hf.config.precision import keep_fp32_outputs, resolve_precision
from bert_hf.config.training_arguments import RunArguments, check_supported, resolve_by_width
from bert_hf.console import logger
from bert_hf.data.examples.samplers import set_epoch
from bert_hf.training import preemption
from bert_hf.training.checkpoints import trainer_state
from bert_hf.training.checkpoints.checkpoint_files import RunCheckpoints
from bert_hf.training.distributed import Ranks, arrange_buckets, checked_engine, seed_of_rank, shard_on_cpu
from bert_hf.training.nonfinite import NonFiniteGuard
from bert_hf.training.optimization.optimizers import check_optimizer, make_optimizer, make_schedule
from bert_hf.training.patching import replaced_attributes
from bert_hf.training.preemption import TimeLimit


class ResumableTrainer(Trainer):
    """Trainer with verified checkpoints, exact resume, and an orderly end on a signal, a dead rank or a full disk.

    State is saved as safetensors and JSON, never as a pickle (DeepSpeed's own files excepted). Within an epoch resume
    is exact if examples depend on their index; what a collator draws from a global generator is not restored.

    A subclass may override any method of `Trainer`, and those under "What a subclass may add"; losses and gradients
    are checked in any case.

    Args:
        args: may also have `save_minutes` (between checkpoints, at most) and `max_hours` (the run ends in that time).
        facts: JSON entries for each checkpoint's manifest, for example the run's identity.

    Raises (from `train`):
        RunInterrupted: stopped by a signal after a checkpoint; a rank or worker died; loss or gradient not finite.
    """

    # transformers declares their types before training; `args` has more fields here
    args: Any
    model: Any
    model_wrapped: Any
    processing_class: Any
    optimizer: Any
    lr_scheduler: Any
    train_dataset: Any
    eval_dataset: Any

    def __init__(
        self, model: nn.Module | None = None, args: Any = None, *more: Any, facts: dict | None = None, **named
    ):
        if args is not None:  # settled before Trainer reads them
            if not isinstance(args, RunArguments):  # they have checked themselves
                check_supported(args)
            hidden_size = getattr(getattr(model, "config", None), "hidden_size", None)
            resolve_precision(args, hidden_size)
            resolve_by_width(args, hidden_size)
            shard_on_cpu(args)
        super().__init__(model, args, *more, **named)
        keep_fp32_outputs(self.accelerator.state)
        if self.optimizer is None and self.optimizer_cls_and_kwargs is None:
            check_optimizer(self.args)

        folder = Path(self.args.output_dir)
        self._ranks = Ranks(self.args.process_index, self.args.world_size, self.args.ddp_timeout)
        self._checkpoints = RunCheckpoints(folder, self._ranks)
        self._finite = NonFiniteGuard(self._ranks)
        self._time_limit = TimeLimit(getattr(self.args, "max_hours", None))
        self.add_callback(_AtBeginning(self._begin_training))

        self.facts = facts or {}
        self._saved_step = 0
        self._resumed_from: str | None = None

    @property
    def network(self) -> nn.Module:
        """Return the model itself, without its wrappers for ranks or compilation."""
        unwrapped: Any = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        return unwrapped

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over all ranks, on each of them."""
        summed: Any = self.accelerator.reduce(values, "sum") if self.args.world_size > 1 else values
        return summed

    def on_device(self, batch: dict) -> dict[str, Any]:
        """Return a batch with its tensors on this rank's device, without waiting for a GPU."""
        return {name: self.to_device(x) if isinstance(x, Tensor) else x for name, x in batch.items()}

    def to_device(self, tensor: Tensor) -> Tensor:
        """Return a tensor on this rank's device, without waiting for a GPU: by way of pinned memory."""
        if tensor.device.type == "cpu" and self.args.device.type == "cuda":
            pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
            return pinned.to(self.args.device, non_blocking=True)
        return tensor.to(self.args.device)

    # ---- What a subclass may add

    def begin(self, checkpoint: str | None) -> None:
        """Prepare `train` from a checkpoint, or step 0 (None), before data loaders are made; overrides call it."""
        if checkpoint is None:  # else `_restore_resume_state` sets both, when Trainer has read the step
            self._saved_step = 0
            self._time_limit.begin()

    def count_items(self, batches: list[dict]) -> Tensor | None:
        """Return the number of items that the loss of a step is the mean of; None leaves the count to `Trainer`."""
        return None

    def log_state(self) -> dict:
        """Return what a subclass adds to this rank's state in a checkpoint: sums since the last line of the log, …"""
        return {}

    def restore_log_state(self, logs: list[dict]) -> None:
        """Restore what `log_state` returned on this rank, or on all if their number has changed; `rank`: on which."""

    # ---- train

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, *args, **kwargs):
        """Train from step 0 or a verified checkpoint; return Trainer's output. A signal raises `RunInterrupted`."""
        checkpoint = self._checkpoints.choose(resume_from_checkpoint)
        self._resumed_from = checkpoint
        self.begin(checkpoint)
        self._saved_at = time.monotonic()
        eval_on_start = self.args.eval_on_start and checkpoint is None  # not again in a resumed run
        with (
            preemption.defer_signals(),
            self._explain_errors(),
            replaced_attributes(self.args, eval_on_start=eval_on_start),
        ):
            result = super().train(checkpoint, *args, **kwargs)
            if self._ranks.any(preemption.shutdown_reason() is not None):  # a signal after the last step
                self._save_and_end()
        return result

    def _explain_errors(self) -> AbstractContextManager:
        """Return the context that turns lost workers, lost ranks and errors of other ranks into `RunInterrupted`."""
        return preemption.explain_errors(self._ranks, self.args.dataloader_num_workers, lambda: self.state.global_step)

    def _begin_training(self) -> None:
        """Do what needs the wrapped model: check its engine, arrange DDP's buckets, restore the checkpoint's state.

        Also seed each rank differently: Trainer seeded all alike, and dropout would draw the same masks on each.
        """
        engine = checked_engine(self.model_wrapped, self.args.world_size)
        if engine != "none":
            logger.info(f"engine: {engine}, {self.args.world_size} ranks")
        arrange_buckets(self.model_wrapped)
        if self.args.process_index:
            transformers.set_seed(seed_of_rank(self.args.seed, self.args.process_index))
        self._finite.forget()
        self._finished_step = -1  # the step of the last call of `_maybe_log_save_evaluate`
        if self._resumed_from is not None:
            self._restore_resume_state(self._resumed_from)

    def _prepare_for_training(self, *args, **kwargs):
        """Prepare as Trainer does, but under FSDP2 keep the tied embeddings in the model's group of parameters.

        accelerate would put them in a separate group, and leaves the bias that the output shares with BERT's
        masked-LM head in another: torch then refuses the first step.
        """
        if not self.accelerator.is_fsdp2:
            return super()._prepare_for_training(*args, **kwargs)
        no_embeddings: dict[str, Any] = dict.fromkeys(("get_input_embeddings", "get_output_embeddings"), lambda: None)
        with replaced_attributes(self.model, **no_embeddings):
            return super()._prepare_for_training(*args, **kwargs)

    def _run_epoch(self, model, epoch, train_dataloader, *args, **kwargs) -> None:
        """Run an epoch as Trainer does, with the sampler set to it; nothing if the checkpoint was the last step's."""
        if not self.control.should_training_stop:
            set_epoch(train_dataloader.batch_sampler, epoch)
            super()._run_epoch(model, epoch, train_dataloader, *args, **kwargs)

    def _finalize_training(self, trial, num_train_samples, start_time):
        """Finish as Trainer does, but report the training loss of all ranks and steps, and delete no checkpoint."""
        self._finite.settle()
        self._tr_loss = self.sum_over_ranks(self._tr_loss) / self.args.world_size  # Trainer adds this rank's only
        with replaced_attributes(self.args, save_total_limit=None):  # the run ends when its metrics are written
            output = super()._finalize_training(trial, num_train_samples, start_time)
        return output._replace(training_loss=output.metrics["train_loss"])  # of the whole run, see `log`

    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        if self.optimizer is None and self.optimizer_cls_and_kwargs is None:
            self.optimizer = make_optimizer(self.model if model is None else model, self.args)
        return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        if self.lr_scheduler is None:
            self.lr_scheduler = make_schedule(self.args, optimizer or self.optimizer, num_training_steps)
            self._created_lr_scheduler = True  # the next `train` makes its own, as with the stock method
        return self.lr_scheduler

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> Any:
        """Return the micro-batches of a step and the number of items in them.

        Ranks begin the only agreement of the step here, and read it after the step, so no rank waits for the others.
        """
        self._agreed_requests = self._ranks.begin_agreement(self._requests)
        batches, count = super().get_batch_samples(epoch_iterator, num_batches, device)
        items = self.count_items(batches)
        return batches, count if items is None else items

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager:
        """Return 16-bit autocast under FSDP2, the only engine under which accelerate does not apply it itself."""
        if self.accelerator.is_fsdp2:
            return self.accelerator.autocast()
        return super().autocast_smart_context_manager(cache_enabled)

    # ---- losses and gradients that are not finite

    def training_step(self, model: nn.Module, inputs: dict, num_items_in_batch=None) -> Tensor:
        """Run forward and backward of one micro-batch as Trainer does, with `_recorded_loss` around `compute_loss`."""
        with replaced_attributes(self, compute_loss=functools.partial(self._recorded_loss, self.compute_loss)):
            return super().training_step(model, self.on_device(inputs), num_items_in_batch)

    def _recorded_loss(self, compute_loss: Callable, model, inputs: dict, *args, **kwargs) -> Tensor:
        """Return the loss of `compute_loss`, recorded for the check that it is finite; DeepSpeed's is checked here."""
        loss = self._finite.record_loss(compute_loss(model, inputs, *args, **kwargs))

        # DeepSpeed updates the weights within the last backward of a step, so all ranks check before it
        updates = self.is_deepspeed_enabled and self.accelerator.sync_gradients
        if updates and self._finite.has_bad_loss():
            self._finite.abort(self.state.global_step + 1)
        return loss

    def _get_grad_norm(self, model, grad_norm=None):
        """Return the norm of a step's gradient; one that is not finite ends the run."""
        norm = super()._get_grad_norm(model, grad_norm)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()  # FSDP2's is distributed over the ranks
        self._finite.check_norm(norm, self.state.global_step + 1, self.accelerator.scaler)
        return norm

    # ---- the end of a step

    def _maybe_log_save_evaluate(self, *args, **kwargs) -> None:
        """Log, evaluate and save as Trainer does, and end the run where a rank has asked for it (`_requests`).

        After the last step of an epoch Trainer calls it twice: before and after it reports the end of the epoch, which
        may ask for an evaluation. Saving and ending wait for the second call.
        """
        finish_step = functools.partial(super()._maybe_log_save_evaluate, *args, **kwargs)
        step, max_steps = self.state.global_step, self.state.max_steps
        shutdown, save_is_due, out_of_time = map(bool, self._agreed_requests())
        if out_of_time and not self.control.should_training_stop:
            hours = self.args.max_hours
            logger.info(f"time limit (--max_hours {hours}) reached: stopping after step {step:,} of {max_steps:,}")
            self.control.should_training_stop = self.control.should_save = True

        # The first of the two calls
        ends_run = self.control.should_training_stop or step >= max_steps
        ends_epoch = ends_run or (bool(self.state.epoch) and float(self.state.epoch).is_integer())  # not at epoch 0
        is_second_call = self._finished_step == step
        self._finished_step = step
        if ends_epoch and not is_second_call:
            should_save = self.control.should_save
            self.control.should_save = False
            finish_step()
            self.control.should_save = should_save
            return

        saves_last_step = getattr(self.args, "save_minutes", 0) and step >= max_steps
        if (shutdown or save_is_due or saves_last_step) and self._saved_step != step:
            self.control.should_save = True
        finish_step()

        # A single rank ends at once if the signal came during evaluation or saving, several after the next step
        if shutdown or (self._ranks.count == 1 and preemption.shutdown_reason()):
            self._save_and_end()

    def _requests(self) -> tuple[bool, ...]:
        """Return what this rank asks of all: (stop because of a signal, save, stop because the time is over)."""
        save_minutes = getattr(self.args, "save_minutes", 0)
        minutes_since_save = (time.monotonic() - self._saved_at) / 60
        save_is_due = bool(save_minutes) and minutes_since_save >= save_minutes
        return preemption.shutdown_reason() is not None, save_is_due, self._time_limit.is_over()

    def _save_and_end(self) -> NoReturn:
        """Save the step if that is not done yet, and end the run after a signal to any rank. Called by all of them."""
        if self._saved_step != self.state.global_step:
            self._save_checkpoint(self.model_wrapped, self._trial)
        raise preemption.interruption(self.state.global_step, self._checkpoints.folder)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as Trainer does, but `train_loss` is the mean over the whole run, not since it was resumed."""
        self._finite.settle()
        if "train_loss" in logs:
            logs["train_loss"] = self._total_loss_scalar / max(1, self.state.global_step)
        super().log(logs, start_time)

    # ---- evaluation

    def _determine_best_metric(self, metrics: dict[str, float], trial) -> bool:
        """Return True for the best evaluation so far; its weights are then saved regardless of --save_steps."""
        is_best = super()._determine_best_metric(metrics, trial)
        self.control.should_save |= is_best and self.args.load_best_model_at_end
        return is_best

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Evaluate as Trainer does, and record the time, which `--max_hours` leaves for the last evaluation."""
        began = time.monotonic()
        self._finite.settle()
        with self._explain_errors():
            metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        self._time_limit.evaluation_seconds = time.monotonic() - began
        return metrics

    # ---- writing a checkpoint

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save weights, configuration and tokenizer; push if asked. The stock method also pickles args and token."""
        self._save_model(Path(output_dir or self.args.output_dir), self._gather_weights())
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save_model(self, folder: Path, weights: dict[str, Tensor]) -> None:
        """Write gathered weights, configuration and tokenizer, on the rank that writes files."""
        if self.args.should_save:
            tokenizer = self.processing_class or getattr(self.data_collator, "tokenizer", None)
            trainer_state.save_model(self.network, weights, tokenizer, folder, self.state.global_step)

    def _gather_weights(self) -> Any:
        """Return all weights, on rank 0 at least. Called by all ranks, to gather sharded ones."""
        if self.is_deepspeed_enabled:  # of a 16-bit model accelerate takes the 16-bit copies that it computes with
            return trainer_state.fp32_weights(self.network) or self.accelerator.get_state_dict(self.model_wrapped)
        if self.is_fsdp_enabled:
            return self.accelerator.get_state_dict(self.model)
        return self.network.state_dict()

    def _save_checkpoint(self, model: nn.Module, trial) -> None:
        """Write a checkpoint: rank 0 the states of all ranks, and DeepSpeed its own files. Called by all ranks."""
        self._finite.settle()
        self.store_flos()

        run = Path(self._get_output_dir(trial))
        final = run / f"checkpoint-{self.state.global_step}"
        best = run / f"checkpoint-{self.state.best_global_step}"
        if best == final or best.is_dir():  # it may have been deleted
            self.state.best_model_checkpoint = str(best)
        weights = self._gather_weights()
        states = self._gather_states()

        def write_files(folder: Path) -> None:
            self._save_model(folder, weights)
            if self.args.should_save:
                trainer_state.save_progress(self, folder)
                for name, state in states.items():
                    trainer_state.save_state(state, folder / name)
            if self.is_deepspeed_enabled:
                self.model_wrapped.save_checkpoint(str(folder))

        facts = {"step": self.state.global_step, **trainer_state.process_facts(self.args), **self.facts}
        keep, spared = self.args.save_total_limit, self.state.best_model_checkpoint
        self._checkpoints.write(final, write_files, facts, keep, spared)
        self._saved_step = self.state.global_step
        self._saved_at = time.monotonic()

    def _gather_states(self) -> dict[str, Any]:
        """Return by file name the states that a checkpoint has beside the weights. Called by all ranks."""
        states = {trainer_state.SCHEDULER: self.lr_scheduler.state_dict()}
        if not self.is_deepspeed_enabled:  # which writes its own
            optimizer = trainer_state.optimizer_state(self.model, self.optimizer, self.is_fsdp_enabled)
            states[trainer_state.OPTIMIZER] = optimizer
        if self.accelerator.scaler is not None:
            states[trainer_state.SCALER] = self.accelerator.scaler.state_dict()

        rank_states = self._ranks.gather(trainer_state.rank_state(self._resume_state()))
        return states | {trainer_state.rank_file("", rank).name: state for rank, state in enumerate(rank_states)}

    def _resume_state(self) -> dict:
        """Return what this rank needs to continue and Trainer does not save: see `_restore_resume_state`."""
        return {
            "loss": self._tr_loss.cpu(),  # since the last line of the log
            "total": self._total_loss_scalar,  # of the steps before it
            "logged": self._globalstep_last_logged,
            "hours": self._time_limit.hours_spent(),
            "stops": self.control.should_training_stop and self.state.global_step < self.state.max_steps,  # early
            **self.log_state(),
        }

    # ---- reading a checkpoint

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load weights from safetensors; the stock method also takes a pickle, or any file that an index names."""
        target = self.model if model is None else model
        trainer_state.load_model(target, Path(resume_from_checkpoint), self.is_fsdp_enabled)

    def _load_best_model(self) -> None:
        """Load the best checkpoint from this run's folder: the run may have been moved since its path was recorded."""
        best = Path(self._get_output_dir(self._trial)) / Path(self.state.best_model_checkpoint or "").name
        self._checkpoints.verify_unless_known(best)
        if self.is_deepspeed_enabled:
            super()._load_best_model()
        else:
            self._load_from_checkpoint(str(best))

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        folder = Path(checkpoint)
        self.lr_scheduler.load_state_dict(trainer_state.load_state(folder / trainer_state.SCHEDULER))
        if not self.is_deepspeed_enabled:
            trainer_state.load_optimizer(self.model, self.optimizer, folder, self.is_fsdp_enabled)

    def _load_scaler(self, checkpoint: Any) -> None:
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(trainer_state.load_state(Path(checkpoint) / trainer_state.SCALER))

    def _load_rng_state(self, checkpoint: Any) -> None:
        trainer_state.load_generators(checkpoint, self.args.process_index, self.args.seed)

    def _restore_resume_state(self, checkpoint: str) -> None:
        """Restore what `_resume_state` returned, the step of the last checkpoint and the path of the best one."""
        rank_states = trainer_state.load_resume_states(checkpoint, self._ranks)
        self._tr_loss = torch.stack([each["loss"] for each in rank_states]).mean(0).to(self.args.device)
        self.restore_log_state(rank_states)
        saved = rank_states[0]  # the rest may be of any rank
        self._total_loss_scalar = saved["total"]
        self._globalstep_last_logged = saved["logged"]
        self._time_limit.begin(saved["hours"])

        state = self.state
        self._saved_step = state.global_step
        state.compute_steps(self.args, state.max_steps)  # intervals may change; Trainer keeps the old ones
        if state.best_global_step and not state.best_model_checkpoint:  # the run was moved
            best = self._checkpoints.folder / f"checkpoint-{state.best_global_step}"
            state.best_model_checkpoint = str(best) if best.is_dir() else None
        self.control.should_training_stop = saved["stops"] or state.global_step >= state.max_steps

    # ---- data loaders

    def get_train_dataloader(self):
        # A shuffled dataset's order is drawn from the global generator, which differs between ranks
        several = self.args.world_size > 1
        with torch.random.fork_rng(devices=[], enabled=several):
            if several:
                torch.default_generator.manual_seed(self.args.seed)
            return _make_reproducible(super().get_train_dataloader(), self.args.seed)

    def get_eval_dataloader(self, eval_dataset=None):
        # With persistent workers Trainer would return the first loader for any other dataset, too
        is_name = isinstance(eval_dataset, str)  # of one of the trainer's datasets
        is_own = is_name or eval_dataset is None or eval_dataset is self.eval_dataset
        get_loader: Any = super().get_eval_dataloader if is_own else super().get_test_dataloader
        return _make_reproducible(get_loader(eval_dataset), self.args.seed)


class _AtBeginning(TrainerCallback):
    """Call a function when training begins: when Trainer has wrapped the model, and before the first step."""

    def __init__(self, action: Callable[[], None]):
        self.action = action

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.action()


def _make_reproducible(loader: Any, seed: int) -> Any:
    """Give a DataLoader its own generator, leave its batches in host memory, and return it.

    A loader draws a seed whenever an iterator is asked for. From the global generator, an evaluation would change
    everything drawn after it; and on resume, Trainer restores that generator *before* it asks for the iterator.
    """
    inner = getattr(loader, "base_dataloader", loader)  # accelerate wraps the loader whose generator is used
    inner.generator = torch.Generator().manual_seed(seed)
    loader.device = None  # splitting and counting a batch on the host waits for no device
    return loader
