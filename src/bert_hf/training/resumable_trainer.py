"""transformers' Trainer with verified checkpoints, exact resume and graceful shutdown.

Whatever interrupts a run (a signal, a dead rank, a full disk, a loss that is not finite), no finished
checkpoint is lost, one line tells why, and the same command resumes with the same numbers.

What a checkpoint holds is in `trainer_state.py`, how it becomes a directory in `checkpointing.py`, signals and the
watchdog in `supervision.py`, the non-finite guard in `nonfinite.py`, and agreement of ranks in `distributed.py`.
The private methods of Trainer that are overridden or called are listed in `tests/training/test_transformers_hooks.py`.
"""

import functools
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import Trainer

from bert_hf.config.finetuning_arguments import resolve_by_width
from bert_hf.config.precision import keep_fp32_outputs, resolve_precision
from bert_hf.config.training_options import TRAINER, check_options, defaults_of
from bert_hf.training import preemption
from bert_hf.training.checkpoints import state_file, trainer_state
from bert_hf.training.checkpoints.run_checkpoints import RunCheckpoints
from bert_hf.training.data_loaders import same_order_on_all_ranks, with_own_generator, with_own_order
from bert_hf.training.distributed import Ranks, seed_of_rank
from bert_hf.training.exact_backward import replaced_attributes
from bert_hf.training.nonfinite import NonFiniteGuard
from bert_hf.training.optimization import schedules
from bert_hf.training.optimization.optimizers import check_optimizer
from bert_hf.training.supervision import Supervisor, TrainerEvents


class ResumableTrainer(Trainer):
    """Trainer with verified checkpoints, exact resume, and an orderly end on a signal, a dead rank or a full disk.

    State is saved as safetensors and JSON, never as a pickle (DeepSpeed's own files excepted). Within an epoch resume
    is exact if examples depend on their index; what a collator draws from a global generator is not restored.

    Args:
        model, args: as `Trainer`'s, and so are all others. `args` may also have

            - `save_minutes`: a checkpoint is saved at least that often;
            - `max_hours`: the run ends, evaluated and saved, within that time;
            - `skip_bad_steps`: how many updates may be left out because a loss or a gradient is not finite.
        facts: JSON entries for each checkpoint's manifest, for example the run's identity.

    A subclass may override any method of `Trainer`, and those under "What a subclass may add": the checks of losses
    are made around its methods.

    Raises (from `train`):
        RunInterrupted: stopped by a signal after a checkpoint; a rank or worker died; loss or gradient not finite.
    """

    # transformers declares these as what they may be before training; `args` has more fields here
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
        if args is not None:
            check_options(args, defaults_of(type(args)), frozenset({TRAINER}))
            hidden_size = getattr(getattr(model, "config", None), "hidden_size", None)
            if args.bf16 is None:
                resolve_precision(args, hidden_size)
            if args.learning_rate is None or args.num_train_epochs is None:
                resolve_by_width(args, hidden_size)
        super().__init__(model, args, *more, **named)
        keep_fp32_outputs(self.accelerator.state)
        if self.optimizer is None and self.optimizer_cls_and_kwargs is None:
            check_optimizer(self.args, defaults_of(type(self.args)))

        # Collaborators
        folder = Path(self.args.output_dir)
        self._ranks = Ranks(self.args.process_index, self.args.world_size, self.args.ddp_timeout)
        self.supervisor = Supervisor(self.args, folder, self._ranks, lambda: self.state.global_step)
        self._checkpoints = RunCheckpoints(folder, self._ranks, self.args.should_save)
        self._finite = NonFiniteGuard(self._ranks, getattr(self.args, "skip_bad_steps", 0), self.describe_rows)
        self._events = TrainerEvents(self.begin_training)
        self.add_callback(self._events)

        # Checkpoints
        self.facts = facts or {}
        self._saved_step = 0
        self._saved_at = time.monotonic()

        # Of the current step and run
        self._resumed_from: str | None = None  # until its pending work is done
        self._epoch_end_log: dict[str, float | None] = {}  # gradient norm and rate of the last step of an epoch
        self._line_begin = 0  # step of the log line before the one that is written next
        self._hours_allowed = getattr(self.args, "max_hours", None) or math.inf
        self._hours_before = 0.0  # in earlier processes of the run
        self._evaluation_seconds = 0.0

    @property
    def network(self) -> nn.Module:
        """The model itself, without what wraps it for ranks or compilation."""
        unwrapped: Any = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        return unwrapped

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """Sums of a tensor over all ranks, on each of them."""
        summed: Any = self.accelerator.reduce(values, "sum") if self.args.world_size > 1 else values
        return summed

    # ---- What a subclass may add

    def begin_at(self, checkpoint: str) -> None:
        """Before data loaders are made: reads what a subclass has to know of the checkpoint."""

    def begin_new_run(self) -> None:
        """Before a run that starts at its first step: forgets what an earlier `train` of this trainer has left."""
        self._finite.left_out = []
        self._resumed_from = None
        self._saved_step = 0
        self._hours_before = 0.0
        self._events.epoch_is_over = False

    def before_first_step(self) -> None:
        """When everything is built and no step has been made."""

    def forward_backward(self, model: nn.Module, inputs: dict, num_items_in_batch=None) -> Tensor:
        """Loss and gradient of one micro-batch."""
        return super().training_step(model, inputs, num_items_in_batch)

    def run_evaluation(self, eval_dataset, ignore_keys, metric_key_prefix: str) -> dict[str, float]:
        """Metrics of `evaluate`."""
        return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def step_sums(self) -> list[Tensor]:
        """Sums to which a step adds, and which are restored if its update is left out."""
        return []

    def describe_rows(self, step: int, first: int, count: int) -> str:
        """Names rows of this rank's share of a step, for an error line."""
        return f"rows {first} to {first + count - 1} of its share of the batch"

    def is_last_step_of_epoch(self) -> bool:
        return self.state.global_step >= self.state.max_steps or float(self.state.epoch or 0.5).is_integer()

    def log_state(self) -> dict:
        """Entries for a checkpoint of what the next line of the log needs."""
        return {}

    def restore_log_state(self, logs: list[dict]) -> None:
        """Restores `log_state`: of this rank, or of all ranks that wrote the checkpoint."""

    # ---- train

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, *args, **kwargs):
        eval_on_start = self.args.eval_on_start
        checkpoint = self._checkpoints.choose(resume_from_checkpoint)
        if checkpoint is None:
            self.begin_new_run()
        else:
            self._resumed_from = checkpoint
            self.args.eval_on_start = True  # makes Trainer call `_evaluate` before the first step
            self.begin_at(checkpoint)

        self._check_shared_folder()
        self._saved_at = time.monotonic()
        try:
            with self.supervisor.supervise():
                result = super().train(checkpoint, *args, **kwargs)
                if self.supervisor.shutdown_requested():
                    raise self.supervisor.interruption(self._is_saved())
        finally:
            self.args.eval_on_start = eval_on_start
        return result

    def _check_shared_folder(self) -> None:
        self._ranks.check_shared_folder(self._checkpoints.folder)

    def begin_training(self) -> None:
        """Called by Trainer's event before the first step.

        Gives each rank but the first random numbers of its own: Trainer seeds all alike, so that dropout drew the same
        masks on each. A resumed run restores the generators of its checkpoint after that.
        """
        if self.args.process_index:
            transformers.set_seed(seed_of_rank(self.args.seed, self.args.process_index))
        self.before_first_step()
        self._finite.forget()

    def _run_epoch(self, *args, **kwargs) -> None:
        if not self.control.should_training_stop:  # set by pending work of the checkpoint
            super()._run_epoch(*args, **kwargs)

    def _finalize_training(self, trial, num_train_samples, start_time):
        """Keeps the last checkpoint, which Trainer may delete: the run ends only when its metrics are written."""
        with replaced_attributes(self.args, save_total_limit=None):
            return super()._finalize_training(trial, num_train_samples, start_time)

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        kwargs = schedules.with_decay_steps(self.args, num_training_steps)
        with replaced_attributes(self.args, lr_scheduler_kwargs=kwargs):
            return super().create_scheduler(num_training_steps, optimizer)

    # ---- losses and gradients that are not finite

    def training_step(self, model: nn.Module, inputs: dict, num_items_in_batch=None) -> Tensor:
        """One micro-batch of Trainer's loop, with the loss of `compute_loss` recorded.

        The calls: training_step → forward_backward (where a subclass may split the rows or replace backward) →
        Trainer.training_step → _recorded_loss → compute_loss of the subclass → backward. After the last micro-batch
        of a step, `_get_grad_norm` decides whether its update is left out.
        """
        self._finite.begin([self._tr_loss, *self.step_sums()])
        with replaced_attributes(self, compute_loss=functools.partial(self._recorded_loss, self.compute_loss)):
            return self.forward_backward(model, inputs, num_items_in_batch)

    def _recorded_loss(self, compute_loss: Callable, model, inputs: dict, *args, **kwargs):
        """Calls `compute_loss`, whichever class defines it, and records its loss.

        A loss that is not finite makes its gradient not finite, which `_get_grad_norm` detects.
        """
        rows = next(len(value) for value in inputs.values() if value is not None)
        result = compute_loss(model, inputs, *args, **kwargs)
        loss, *outputs = result if isinstance(result, tuple) else (result,)
        loss = self._finite.record_loss(loss, rows)

        # DeepSpeed updates the weights within its backward, so all ranks check before it
        if self.is_deepspeed_enabled and self._ranks.any(self._finite.has_bad_loss()):
            self._finite.refuse(self.state.global_step + 1)
        return (loss, *outputs) if outputs else loss

    def _get_grad_norm(self, model, grad_norm=None):
        norm = super()._get_grad_norm(model, grad_norm)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()  # FSDP's is distributed over the ranks
        if self._finite.check_norm(
            norm, self.state.global_step + 1,
            scaler=getattr(self.accelerator, "scaler", None), updated=self.is_deepspeed_enabled,
        ):  # fmt: skip
            model.zero_grad(set_to_none=True)  # an optimizer skips parameters without a gradient
        return norm

    # ---- the end of a step

    def _maybe_log_save_evaluate(
        self, tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval, start_time, learning_rate=None
    ) -> None:
        """Logs, evaluates and saves as Trainer does; all ranks agree on whether the run ends here."""
        finish_step = functools.partial(
            super()._maybe_log_save_evaluate,
            tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval, start_time, learning_rate,
        )  # fmt: skip

        # After `on_epoch_end` Trainer writes another line of the log, which a resumed run needs these for
        epoch_ends = self._epoch_ends()
        self._epoch_end_log = {}
        if epoch_ends:
            norm = None if grad_norm is None else float(grad_norm)
            self._epoch_end_log = {"grad_norm": norm, "learning_rate": learning_rate}

        self._line_begin = self._globalstep_last_logged  # Trainer sets it to this step before it calls `log`
        interrupted = self._plan_end_of_step(epoch_ends)
        finish_step()

        # Asked to end during evaluation or saving
        if not interrupted and not epoch_ends and self.supervisor.shutdown_requested():
            interrupted = True
        if interrupted:
            if not self._is_saved():
                self._save_checkpoint(model, trial)
            raise self.supervisor.interruption(self._is_saved())

    def _plan_end_of_step(self, epoch_ends: bool) -> bool:
        """Decides on all ranks whether this step is saved and whether the run ends; True where it is interrupted."""
        requested = preemption.shutdown_requested() is not None
        shutdown, save, out_of_time = map(
            bool, self._ranks.all_reduce_max(requested, self._save_is_due(), self._is_out_of_time())
        )

        # At the end of an epoch Trainer calls `_maybe_log_save_evaluate` once more, after its epoch's evaluation
        interrupted = shutdown and not epoch_ends
        if out_of_time and not self.control.should_training_stop:
            self._end_early()
        if interrupted or (save and not self._is_saved()):
            self.control.should_save = True
        return interrupted

    def _end_early(self) -> None:
        """Ends the run after this step, as if it were the last one: its hours are over."""
        if self.is_world_process_zero():
            done, planned = self.state.global_step, self.state.max_steps
            print(f"--max_hours {self.args.max_hours} are over: ends after step {done:,} of {planned:,}", flush=True)
        self.control.should_training_stop = self.control.should_save = True

    def _hours_spent(self) -> float:
        """Hours that all processes of the run have taken so far, without the pauses between them."""
        return self._hours_before + preemption.seconds_running() / 3600

    def _is_out_of_time(self) -> bool:
        """True where only the final evaluation and saving still fit into --max_hours."""
        reserved = (1.2 * self._evaluation_seconds + 10) / 3600
        return self._hours_spent() + reserved >= self._hours_allowed

    def _save_is_due(self) -> bool:
        minutes = getattr(self.args, "save_minutes", 0)
        waited = (time.monotonic() - self._saved_at) / 60
        return bool(minutes) and (waited >= minutes or self.state.global_step >= self.state.max_steps)

    def _is_saved(self) -> bool:
        return self._saved_step == self.state.global_step

    def _epoch_ends(self) -> bool:
        """True after the last step of an epoch, until Trainer has called `on_epoch_end`."""
        return not self._events.epoch_is_over and self.is_last_step_of_epoch()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Makes the losses means over the steps whose update was made: the others add nothing to Trainer's sums."""
        step = self.state.global_step
        left_out = self._finite.left_out
        missing = sum(number > self._line_begin for number in left_out)
        if "loss" in logs and missing:
            steps = step - self._line_begin
            if steps > missing:
                logs["loss"] *= steps / (steps - missing)
            else:
                del logs["loss"]

        if "train_loss" in logs and step > len(left_out):  # of the whole run, not of the steps since it was resumed
            logs["train_loss"] = self._total_loss_scalar / (step - len(left_out))
        super().log(logs, start_time)

    # ---- evaluation, and what the step of a checkpoint still had to do

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        begun = time.monotonic()
        with self.supervisor.explain_errors():
            metrics = self.run_evaluation(eval_dataset, ignore_keys, metric_key_prefix)
        self._evaluation_seconds = time.monotonic() - begun
        return metrics

    def _evaluate(self, trial, ignore_keys_for_eval, skip_scheduler=False) -> dict[str, float]:
        if skip_scheduler and self._resumed_from:  # Trainer's call for eval_on_start, which `train` has set
            checkpoint, self._resumed_from = self._resumed_from, None
            self._finish_pending_work(checkpoint, trial, ignore_keys_for_eval)
            return {}
        return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)

    def _finish_pending_work(self, checkpoint: str, trial, ignore_keys_for_eval) -> None:
        """Restores the log, then does what was pending when the checkpoint was written."""
        pending = self._restore_resume_state(checkpoint)
        self._events.epoch_is_over = pending["over"]
        self._saved_step = self.state.global_step
        self.state.compute_steps(self.args, self.state.max_steps)  # intervals may change; Trainer keeps the old ones
        if (best := self.state.best_global_step) and not self.state.best_model_checkpoint:  # the run was moved
            found = self._checkpoints.find(f"checkpoint-{best}")
            self.state.best_model_checkpoint = None if found is None else str(found)

        def finish_step() -> None:
            start_time: Any = None  # then Trainer adds no speed of its own
            self._maybe_log_save_evaluate(
                self._tr_loss, pending["grad_norm"], self.model_wrapped, trial, 0, ignore_keys_for_eval, start_time,
                pending["learning_rate"],
            )  # fmt: skip

        if pending["ends"]:
            self._load_rng_state(checkpoint)
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            finish_step()
        self.control.should_training_stop = self.control.should_training_stop or pending["stops"]

    # ---- writing a checkpoint

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager:
        """16-bit autocast under FSDP2: accelerate wraps the forward pass in it under every other engine alone."""
        if self.accelerator.is_fsdp2:
            return self.accelerator.autocast()
        return super().autocast_smart_context_manager(cache_enabled)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Weights are fp32, whatever an engine computes in: the stock method saves DeepSpeed's 16-bit copies."""
        weights = trainer_state.fp32_weights(self.network) if self.is_deepspeed_enabled else None
        if weights is None:
            super().save_model(output_dir, _internal_call)
        else:
            self._save(output_dir, weights)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """Model, configuration and tokenizer; the stock method also pickles the arguments, a token included."""
        tokenizer = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if self.args.should_save:
            trainer_state.save_model(
                self.network, Path(output_dir or self.args.output_dir), step=self.state.global_step,
                state_dict=state_dict, tokenizer=tokenizer,
            )  # fmt: skip

    def _save_checkpoint(self, model: nn.Module, trial) -> None:
        self.store_flos()

        run = Path(self._get_output_dir(trial))
        final = run / f"checkpoint-{self.state.global_step}"
        if self.state.best_global_step:
            best = run / f"checkpoint-{self.state.best_global_step}"
            if best == final or best.is_dir():
                self.state.best_model_checkpoint = str(best)

        state = [self._save_optimizer_and_scheduler, self._save_scaler, self._save_rng_state]
        weights = functools.partial(self.save_model, _internal_call=True)
        parts = [weights, *([] if self.args.save_only_model else state), self._write_state]
        self._checkpoints.write(
            final, parts, facts={"step": self.state.global_step, **trainer_state.layout(self.args), **self.facts},
            keep=self.args.save_total_limit, spared=self.state.best_model_checkpoint,
        )  # fmt: skip

        self._saved_step = self.state.global_step
        self._saved_at = time.monotonic()

    def _write_state(self, folder: str) -> None:
        if self.args.should_save:
            trainer_state.export_callbacks(self.state, [*self.callback_handler.callbacks, self.control])
            self.state.save_to_json(str(Path(folder) / "trainer_state.json"))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        folder = Path(output_dir)
        if self.is_deepspeed_enabled:  # writes its own files, which hold pickles: the documented exception
            self.model_wrapped.save_checkpoint(output_dir)
        else:
            state = trainer_state.optimizer_state(self.model, self.optimizer, self.is_fsdp_enabled)
            if self.args.should_save:
                state_file.save_state(folder / trainer_state.OPTIMIZER, state)
        if self.args.should_save:
            state_file.save_state(folder / trainer_state.SCHEDULER, self.lr_scheduler.state_dict())

    def _save_scaler(self, output_dir: str) -> None:
        scaler = getattr(self.accelerator, "scaler", None)
        if scaler is not None and self.args.should_save:
            state_file.save_state(Path(output_dir) / trainer_state.SCALER, scaler.state_dict())

    def _save_rng_state(self, output_dir: str) -> None:
        trainer_state.save_rank(output_dir, self.args.process_index, self._resume_state())

    def _resume_state(self) -> dict:
        """A rank file but for its random numbers: sums since the last line of the log, and the pending work."""
        pending = {
            "ends": self._epoch_ends(),  # it was the last step of its epoch, whose end had not been reported
            "over": self._events.epoch_is_over,  # the end of the epoch had been reported
            "stops": self.control.should_training_stop and self.state.global_step < self.state.max_steps,
            "grad_norm": None,  # for the line of the log that is written at the end of the epoch
            "learning_rate": None,
            **self._epoch_end_log,
        }
        log = {"loss": self._tr_loss, "total": self._total_loss_scalar, "logged": self._globalstep_last_logged}
        if self._hours_allowed < math.inf:
            log["hours"] = self._hours_spent()
        return {**log, "left_out": self._finite.left_out, "due": pending, **self.log_state()}

    # ---- reading a checkpoint

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Weights, from safetensors alone; the stock method also takes a pickle, or what any index names."""
        target = self.model if model is None else model
        trainer_state.load_model(target, Path(resume_from_checkpoint), self.is_fsdp_enabled)

    def _load_best_model(self) -> None:
        """From this run's folder: `trainer_state.json` may name any, and the run may have been moved."""
        best = self._checkpoints.find_verified(Path(self.state.best_model_checkpoint or "").name)
        if self.is_deepspeed_enabled:
            super()._load_best_model()
        else:
            self._load_from_checkpoint(str(best))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        self.lr_scheduler.load_state_dict(state_file.load_state(folder / trainer_state.SCHEDULER))
        if not self.is_deepspeed_enabled:
            trainer_state.load_optimizer(self.model, self.optimizer, folder, self.is_fsdp_enabled)

    def _load_scaler(self, checkpoint: str | None) -> None:
        scaler = getattr(self.accelerator, "scaler", None)
        if checkpoint is not None and scaler is not None:
            scaler.load_state_dict(state_file.load_state(Path(checkpoint) / trainer_state.SCALER))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            trainer_state.load_generators(checkpoint, self.args.process_index, self.args.seed)

    def _restore_resume_state(self, checkpoint: str) -> dict:
        """Restores `_resume_state` of this rank, and returns its pending work.

        Sums of another number of ranks are added up.
        """
        logs = trainer_state.load_logs(checkpoint, self._ranks)
        log = logs[0]
        self._tr_loss = torch.stack([each["loss"] for each in logs]).mean(0).to(self.args.device)
        self._total_loss_scalar = log["total"]
        self._globalstep_last_logged = log["logged"]
        self._finite.left_out = list(log["left_out"])
        self._hours_before = log.get("hours", 0.0)
        self.restore_log_state(logs)
        return log["due"]

    # ---- data loaders

    def _get_train_sampler(self, train_dataset=None):
        return with_own_order(super()._get_train_sampler(train_dataset), self.args)

    def get_train_dataloader(self):
        with same_order_on_all_ranks(self.args.seed, self.args.world_size):
            loader = super().get_train_dataloader()
            return with_own_generator(loader, self.args.seed)

    def get_eval_dataloader(self, eval_dataset=None):
        loader = super().get_eval_dataloader(eval_dataset)
        return with_own_generator(loader, self.args.seed)
