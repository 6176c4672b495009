"""transformers' Trainer, made to survive, with exact resume.

What ends a run from outside (signals, dead or stuck ranks, a full disk, numbers that are not finite) ends it in good
order: nothing good is lost, one line says why, and the same command goes on with the same numbers.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from transformers import TrainerCallback
from transformers.trainer_pt_utils import LengthGroupedSampler

from bert_hf import progress
from bert_hf.config.training_options import TRAINER, check_options, defaults_of
from bert_hf.data.samplers import LengthGroups
from bert_hf.errors import BAD_INPUT, STOPPED, UNAVAILABLE, InputError, RunInterrupted, error_line
from bert_hf.training import checkpointing, preemption, state_file
from bert_hf.training.distributed import seed_of_rank
from bert_hf.training.nonfinite import NonFiniteGuard
from bert_hf.training.optimization import check_optimizer
from bert_hf.training.stored_trainer import StoredTrainer
from bert_hf.training.watchdog import QUIET, RECORD, Watchdog


class _CutOff(Exception):
    """Leaves an evaluation that a signal has cut off; it is made when the run goes on."""


class _Epochs(TrainerCallback):
    """Tells whether `on_epoch_end` of the present epoch has come."""

    over = False

    def on_epoch_begin(self, args, state, control, **kwargs) -> None:
        self.over = False

    def on_epoch_end(self, args, state, control, **kwargs) -> None:
        self.over = True


class _Beginning(TrainerCallback):
    """Calls a function when everything is built and no step has been made."""

    def __init__(self, action: Callable[[], None]):
        self.action = action

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.action()


class SafeTrainer(StoredTrainer):
    """The stock Trainer, but whatever ends it ends it in good order, and what is gone on with is the same run.

    Takes what `Trainer` takes, and `facts` (dict), which each checkpoint's manifest records. `args` may have
    `save_minutes` (a checkpoint at least that often), `max_hours`, `skip_bad_steps` (updates that may be left out
    because a loss or a gradient is not finite), and `hang_timeout` (seconds without progress after which the run is
    ended). Within an epoch resume is exact where examples depend on their index: what a collator draws from a global
    generator is not.

    Raises (from `train`):
        RunInterrupted: stopped by a signal after a checkpoint; a rank or worker died; loss or gradient not finite.
    """

    def __init__(self, *args, **kwargs):
        asked = kwargs.get("args", args[1] if len(args) > 1 else None)
        if asked is not None:
            check_options(asked, defaults_of(type(asked)), frozenset({TRAINER}))
        super().__init__(*args, **kwargs)
        if self.optimizer is None and self.optimizer_cls_and_kwargs is None:
            check_optimizer(self.args, defaults_of(type(self.args)))
        rank = self.args.process_index
        allowed = getattr(self.args, "skip_bad_steps", 0)
        self._finite = NonFiniteGuard(rank, allowed, self._ranks.gather, self._name_rows)
        self._epochs = _Epochs()
        self.add_callback(self._epochs)
        self.add_callback(_Beginning(self._before_first_step))
        self._watchdog: Watchdog | None = None
        self._progress: tuple | None = None  # where loader workers count theirs, while the run trains
        self._hours_before = self._evaluation_seconds = 0.0
        self._hours_allowed = getattr(self.args, "max_hours", None) or math.inf
        self._resumed_from: str | None = None
        self._saved_step, self._saved_at = 0, time.monotonic()
        self._cut_evaluation = False
        self._last_figures: dict[str, float | None] = {"grad_norm": None, "learning_rate": None}

    # ---- what ends a run
    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs):
        asked, checkpoint = self.args.eval_on_start, self._checkpoint(resume_from_checkpoint)
        if checkpoint is not None:
            self._resumed_from = checkpoint
            self._good.add(Path(checkpoint).name)
            self.args.eval_on_start = True  # Trainer's hook in front of the first step: see `_evaluate`
            self._beside = Path(checkpoint).parent
            self._begin_at(checkpoint)
        self._share_folder()
        monitor = self._make_watchdog()
        self._saved_at = time.monotonic()
        try:
            with preemption.defer_signals(), self._explained(), progress.compiling_counts(), monitor as self._watchdog:
                result = super().train(resume_from_checkpoint=checkpoint, **kwargs)
                self._finite.settle()
                if self._ranks.any(preemption.shutdown_requested() is not None):
                    self._stop()
        finally:
            self.args.eval_on_start, self._watchdog, self._progress = asked, None, None
        if self.is_world_process_zero():  # where it hung before is of no interest any more
            (Path(self.args.output_dir) / RECORD).unlink(missing_ok=True)
        return result

    def _make_watchdog(self) -> Watchdog:
        processes, folder = self._ranks.processes_here(), Path(self.args.output_dir)
        quiet = getattr(self.args, "hang_timeout", QUIET)
        watchdog = Watchdog(self.args.process_index, processes, folder, quiet, self.args.world_size)
        if watchdog.hangs.factor > 1 and self.is_world_process_zero():
            step, now = watchdog.hangs.step, watchdog.quiet
            print(f"{folder}: hung after step {step}; --hang_timeout is {now:g} s, not {quiet:g} s", flush=True)
        self._progress = progress.share(watchdog.unhurried_quiet)
        return watchdog

    def _checkpoint(self, asked: str | Path | bool | None) -> str | None:
        """The checkpoint that is gone on from: the named one, or for True the newest good one of the output folder."""
        if asked is True:
            newest: list = [None]
            if self.is_world_process_zero():
                newest = [checkpointing.newest_verified(Path(self.args.output_dir))]
            asked = self._ranks.gather(newest[0])[0]
            if asked is None:
                raise InputError("holds no checkpoint", where=self.args.output_dir, remedy="begin without resuming")
        return str(asked) if asked else None

    def _before_first_step(self) -> None:
        """Gives each rank but the first random numbers of its own: Trainer seeds all alike, so that dropout drew the
        same masks on each. A resumed run then restores the generators of its checkpoint."""
        if self.args.process_index:
            transformers.set_seed(seed_of_rank(self.args.seed, self.args.process_index))

    def _begin_at(self, checkpoint: str) -> None:
        """What a subclass has to know of a checkpoint before its loaders are made."""

    def _share_folder(self) -> None:
        """Makes the output folder, and looks whether every rank sees it."""
        probe = Path(self.args.output_dir) / f".shared-{self._ranks.gather(os.getpid())[0]}.tmp"

        def make() -> None:
            if self.args.process_index == 0:
                probe.parent.mkdir(parents=True, exist_ok=True)
                probe.touch()

        def look() -> None:
            if not probe.exists():
                raise InputError("is not the folder that rank 0 sees", where=self.args.output_dir,
                                 remedy="give an --output_dir on a disk that all machines share")  # fmt: skip

        if self.args.world_size > 1:
            self._ranks.run_on_all_ranks(make)
            try:
                self._ranks.run_on_all_ranks(look)
            finally:
                if self.args.process_index == 0:
                    probe.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """A rank that cannot be reached, or a dead worker process, becomes one line; so does another rank's error."""
        try:
            yield
        except Exception as error:
            if self.args.process_index and (line := error_line(error)) is not None:  # else rank 0 speaks
                raise RunInterrupted(f"rank {self.args.process_index}: {line}", BAD_INPUT, report=True) from None
            text, step = str(error), self.state.global_step
            goes_on = f"after step {step}; the same command goes on from the newest checkpoint"
            loader = "DataLoader worker" in text and ("exited unexpectedly" in text or "killed by signal" in text)
            pipe = isinstance(error, ConnectionError | EOFError) and self.args.dataloader_num_workers > 0
            if loader or pipe:  # by torch's own look at it, or by the pipe to it
                what = f"a process that makes batches was killed (out of memory?), {goes_on}"
                raise RunInterrupted(what, UNAVAILABLE, report=True) from None
            lost = isinstance(error, dist.DistError) or "gloo" in text or "Connection" in text or "NCCL" in text
            if self.args.world_size > 1 and lost and isinstance(error, RuntimeError) and step:
                time.sleep(1)  # so that a rank that is dying is seen as dead
                speaks = self._watchdog is None or self._watchdog.is_reporter()
                rank, reason = self.args.process_index, text.strip().splitlines()[0][:200]
                raise RunInterrupted(f"rank {rank} lost its connection to another rank ({reason}), {goes_on}",
                               UNAVAILABLE, report=speaks) from None  # fmt: skip
            raise

    def _maybe_log_save_evaluate(
        self, tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval, start_time, learning_rate=None
    ) -> None:
        """The end of a step: log, evaluate, save as Trainer does, and what has to be asked of all ranks then."""
        self._watchdog.step(self.state.global_step)
        with self._watchdog.unhurried():  # metrics, callbacks and saves may take their time
            self._end_step(tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval, start_time, learning_rate)

    def _end_step(
        self, tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval, start_time, learning_rate
    ) -> None:
        self._last_figures = {"grad_norm": None if grad_norm is None else float(grad_norm),
                              "learning_rate": learning_rate} if self._epoch_ends() else {}  # fmt: skip
        # what comes after the last step, too, belongs to the hours
        out_of_time = self._hours_spent() + (1.2 * self._evaluation_seconds + 10) / 3600 >= self._hours_allowed
        stop, save, late = self._ranks.all_reduce_max(
            preemption.shutdown_requested() is not None, self._save_is_due(), out_of_time
        )
        stop = bool(stop) and not self._epoch_ends()  # then Trainer calls once more, and what is due comes first
        if stop:
            self._cut_evaluation = self.control.should_evaluate
            self.control.should_evaluate = False
        if late and not self.control.should_training_stop:
            self._end_early()
        if stop or (save and self._saved_step != self.state.global_step):
            self.control.should_save = True
        try:
            super()._maybe_log_save_evaluate(
                tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval, start_time, learning_rate
            )
        except _CutOff:
            self._cut_evaluation = stop = True
            self._save_checkpoint(model, trial)
        if not stop and not self._epoch_ends() and self._ranks.any(preemption.shutdown_requested() is not None):
            stop = True
            if self._saved_step != self.state.global_step:
                self._save_checkpoint(model, trial)
        if stop:
            self._stop()

    def _stop(self) -> None:
        step, why = self.state.global_step, preemption.shutdown_requested() or "another rank was asked to"
        where = f"which is saved in {self.args.output_dir}/checkpoint-{step}; the same command goes on from there"
        if self._saved_step != step:
            where = "which is not saved; the same command goes on from the newest checkpoint"
        raise RunInterrupted(f"{why}, after step {step}, {where}", STOPPED)

    def _end_early(self) -> None:
        """The hours are over before the steps: the run ends here, as if they had been its last."""
        if self.is_world_process_zero():
            done, planned = self.state.global_step, self.state.max_steps
            print(f"--max_hours {self.args.max_hours} are over: ends after step {done:,} of {planned:,}", flush=True)
        self.control.should_training_stop = self.control.should_save = True

    def _hours_spent(self) -> float:
        """Hours that the run has taken so far, in all its processes; pauses between them do not count."""
        return self._hours_before + preemption.seconds_running() / 3600

    def _save_is_due(self) -> bool:
        minutes = getattr(self.args, "save_minutes", 0)
        waited = (time.monotonic() - self._saved_at) / 60
        return bool(minutes) and (waited >= minutes or self.state.global_step >= self.state.max_steps)

    def _epoch_ends(self) -> bool:
        """True after the last step of an epoch, until Trainer has called `on_epoch_end`."""
        return not self._epochs.over and self._last_of_epoch()

    def _last_of_epoch(self) -> bool:
        return self.state.global_step >= self.state.max_steps or float(self.state.epoch or 0.5).is_integer()

    def _evaluate(self, trial, ignore_keys_for_eval, skip_scheduler=False):
        if skip_scheduler and self._resumed_from:
            return self._end_step_again(trial, ignore_keys_for_eval)
        try:
            return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
        except _CutOff:
            if self.state.global_step:
                raise
            why = preemption.shutdown_requested() or "another rank was asked to"
            raise RunInterrupted(f"{why}, before the first step; the same command begins again", STOPPED) from None

    def _end_step_again(self, trial, ignore_keys_for_eval) -> None:
        """What the step of the checkpoint still owed when it was written: an evaluation, the end of its epoch."""
        due = self._load_log_state(self._resumed_from)["due"]
        checkpoint, self._resumed_from = self._resumed_from, None
        self._watchdog.last_step = self.state.global_step
        self._epochs.over, self._saved_step = due["over"], self.state.global_step
        self.state.compute_steps(self.args, self.state.max_steps)  # intervals may change; Trainer keeps the old ones
        if (best := self.state.best_global_step) and not self.state.best_model_checkpoint:  # the run was moved
            places = [place / f"checkpoint-{best}" for place in self._places()]
            there = [str(place) for place in places if place.is_dir()]
            self.state.best_model_checkpoint = there[0] if there else None
        again = (trial, 0, ignore_keys_for_eval, None, due["learning_rate"])
        if due["evaluate"] or due["ends"]:
            self._load_rng_state(checkpoint)
        if due["evaluate"]:
            self.control.should_evaluate, self.control.should_log = True, False
            self.control.should_save = True
            self._maybe_log_save_evaluate(self._tr_loss, due["grad_norm"], self.model_wrapped, *again)
        if due["ends"]:
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            self._maybe_log_save_evaluate(self._tr_loss, due["grad_norm"], self.model_wrapped, *again)
        self.control.should_training_stop = self.control.should_training_stop or due["stops"]

    def _run_epoch(self, **kwargs) -> None:
        if not self.control.should_training_stop:  # asked for by what a checkpoint still owed
            super()._run_epoch(**kwargs)

    def _finalize_training(self, trial, num_train_samples, start_time):
        """As Trainer, but the last checkpoint stays: the run has not ended before its figures are written."""
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            return super()._finalize_training(trial, num_train_samples, start_time)
        finally:
            self.args.save_total_limit = limit

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        begun = time.monotonic()
        with self._explained():
            figures = super().evaluate(*args, **kwargs)
        self._evaluation_seconds = time.monotonic() - begun
        return figures

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        self._may_go_on()
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)

    def _may_go_on(self) -> None:
        """Asked before each batch of an evaluation.

        Raises:
            _CutOff: in a training run that was asked to end.
        """
        if self._watchdog is not None:
            self._watchdog.tick()
            if self._ranks.any(preemption.shutdown_requested() is not None):
                raise _CutOff

    # ---- numbers that are not finite
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training:
            loss = self._checked(loss, inputs)
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: nn.Module, inputs: dict, num_items_in_batch=None) -> Tensor:
        self._finite.begin(self._sums())
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self._watchdog is not None:
            self._watchdog.tick()
        return loss

    def _sums(self) -> list[Tensor]:
        """What a step adds its losses to, and must not have added when its update is left out."""
        return [self._tr_loss]

    def _checked(self, loss: Tensor, inputs: dict) -> Tensor:
        """The same loss, looked at. DeepSpeed steps inside its backward, so there all ranks look before it."""
        loss = self._finite.loss(loss, rows=len(next(iter(inputs.values()))))
        if self.is_deepspeed_enabled and self._ranks.any(self._finite.a_loss_is_bad()):
            self._finite.refuse(self.state.global_step + 1)
        return loss

    def _get_grad_norm(self, model, grad_norm=None):
        norm = super()._get_grad_norm(model, grad_norm)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # FSDP's is spread over the ranks
        step, scaler = self.state.global_step + 1, getattr(self.accelerator, "scaler", None)
        if self._may_defer(norm):
            self._finite.settle()
            self._finite.defer(norm, step, getattr(self.optimizer, "optimizer", self.optimizer))
            return norm
        if scaler is not None and scaler.is_enabled():  # fp16: it leaves out steep updates itself, and is meant to
            bad = self._ranks.any(self._finite.a_loss_is_bad())
        else:
            bad = norm is not None and not math.isfinite(norm)  # the same on all ranks
        if bad and self.is_deepspeed_enabled:  # its update is made already: the newest checkpoint is gone back to
            self._finite.refuse(step)
        if self._finite.step(bad, step):
            model.zero_grad(set_to_none=True)  # an optimizer has nothing to do for what has no gradient
        return norm

    def _may_defer(self, norm) -> bool:
        """True where looking at the norm would keep an accelerator waiting, and the optimizer can look by itself."""
        if not isinstance(norm, Tensor) or norm.device.type == "cpu" or self.is_deepspeed_enabled:
            return False
        fused = all(group.get("fused") for group in self.optimizer.param_groups)
        return fused and not self._finite.allowed and getattr(self.accelerator, "scaler", None) is None

    def _name_rows(self, step: int, first: int, count: int) -> str:
        """Names rows of this rank's share of a step."""
        return f"rows {first} to {first + count - 1} of its share of the batch"

    # ---- what a checkpoint holds beside
    def _save_checkpoint(self, model: nn.Module, trial) -> None:
        self._finite.settle()
        super()._save_checkpoint(model, trial)
        self._saved_step, self._saved_at, self._cut_evaluation = self.state.global_step, time.monotonic(), False

    def _log_state(self) -> dict:
        """What the next line of the log needs of the steps before the checkpoint, and what its step still owes."""
        due = {"evaluate": self._cut_evaluation, "ends": self._epoch_ends(), "over": self._epochs.over}
        due["stops"] = self.control.should_training_stop and self.state.global_step < self.state.max_steps
        due |= {name: self._last_figures.get(name) for name in ("grad_norm", "learning_rate")}
        logged = {"total": self._total_loss_scalar, "logged": self._globalstep_last_logged}
        if self._hours_allowed < math.inf:
            logged["hours"] = self._hours_spent()
        return {"loss": self._tr_loss, **logged, "left_out": self._finite.left_out, "due": due}

    def _load_log_state(self, checkpoint: str) -> dict:
        """Brings the log back to where it stood; written by another number of ranks, their sums are joined."""
        written = len(list(Path(checkpoint).glob("rank_*.safetensors")))
        same = written == self.args.world_size
        ranks = [self.args.process_index] if same else range(max(1, written))
        logs = [state_file.load_state(self._rank_file(checkpoint, rank))["log"] for rank in ranks]
        self._tr_loss = torch.stack([log["loss"] for log in logs]).mean(0).to(self.args.device)
        self._total_loss_scalar, self._globalstep_last_logged = logs[0]["total"], logs[0]["logged"]
        self._finite.left_out = list(logs[0]["left_out"])
        self._hours_before = logs[0].get("hours", 0.0)
        self._restore_log(logs)
        return logs[0]

    def _restore_log(self, logs: list[dict]) -> None:
        """What a subclass keeps in `_log_state`: of this rank, or of all that wrote the checkpoint."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "train_loss" in logs and self.state.global_step:  # of the whole run, and not since it was resumed
            logs["train_loss"] = self._total_loss_scalar / self.state.global_step
        super().log(logs, start_time)

    # ---- loaders
    def _get_train_sampler(self, train_dataset=None):
        sampler = super()._get_train_sampler(train_dataset)
        if type(sampler) is LengthGroupedSampler:
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            return LengthGroups(sampler.batch_size * self.args.world_size, sampler.lengths, seed)
        return sampler

    def get_train_dataloader(self):
        """The stock loader with a generator of its own: on resume Trainer restores the global one *before* it asks
        the loader for an iterator, which draws a seed, and dropout would go on from another place.

        The order of a shuffled dataset is drawn from the global seed, which must be the same on all ranks here also
        in a second `train`, when theirs differ.
        """
        state = torch.random.get_rng_state()
        if self.args.world_size > 1:
            torch.default_generator.manual_seed(self.args.seed)
        try:
            return self._with_generator(super().get_train_dataloader())
        finally:
            if self.args.world_size > 1:
                torch.random.set_rng_state(state)

    def get_eval_dataloader(self, eval_dataset=None):
        """The stock loader with a generator of its own: when an evaluation comes must not change what follows it."""
        return self._with_generator(super().get_eval_dataloader(eval_dataset))

    def _with_generator(self, loader):
        """Gives a loader a generator of its own, and has its workers count progress where the watchdog looks."""
        inner = getattr(loader, "base_dataloader", loader)  # accelerate wraps the one that is asked
        inner.generator = torch.Generator().manual_seed(self.args.seed)
        if self._progress is not None:
            inner.worker_init_fn = progress.WorkerStart(self._progress, inner.worker_init_fn)
        return loader
