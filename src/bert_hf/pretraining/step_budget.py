"""Resolves the number of steps: explicit, from epochs, or from --max_hours."""

import copy
import tempfile
import time
from dataclasses import asdict, dataclass

import torch
from transformers import PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_utils import IntervalStrategy

from bert_hf.config.arguments import ExampleArguments, ModelArguments
from bert_hf.config.precision import resolve_precision
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.console import logger
from bert_hf.data.corpus.store import Corpus
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.samplers import Phase, phases_of_run
from bert_hf.errors import STOPPED, InputError, RunInterrupted
from bert_hf.pretraining.examples import training_examples
from bert_hf.pretraining.model import make_model, planned_config
from bert_hf.pretraining.trainer import PreTrainer
from bert_hf.training import preemption
from bert_hf.training.distributed import rank0_value
from bert_hf.training.optimization.optimizers import global_batch_size
from bert_hf.training.output_folder import folder_of
from bert_hf.training.run import identity_in, may_be_same_run, recorded_precision

_PLANNED = 0.97  # share of the hours that is planned for; the rest is for the unexpected
_SAVING = 1.02  # saving takes 2 % at most (docs/reliability.md)
_ENDING = 15.0  # seconds for curves, card and the last checkpoint


@dataclass
class StepBudget:
    """Decide the number of steps of a run, by its options, its text and, for --max_hours, its measured speed."""

    args: PreTrainingArguments
    example_args: ExampleArguments
    corpus: Corpus
    model_args: ModelArguments
    tokenizer: PreTrainedTokenizerBase

    def resolve(self) -> tuple[Phase, ...]:
        """Set precision and number of steps in `args` where the command gives none, and return the run's phases."""
        args = self.args
        # The precision first, because it decides the speed
        resolve_precision(args, planned_config(self.model_args).hidden_size, recorded_precision(args))

        if not args.do_train:
            args.max_steps = 1  # for the phases; no step is made
        elif args.max_hours is not None:
            recorded = self._recorded_steps()
            args.max_steps = self.plan_steps() if recorded is None else recorded
        elif args.max_steps <= 0:
            args.max_steps = self._steps_of_epochs()

        return phases_of_run(self.example_args.lengths(), args.max_steps, global_batch_size(args))

    def _steps_of_epochs(self) -> int:
        """Return the steps of --num_train_epochs; an epoch has fewer examples where they are longer."""
        lengths = self.example_args.lengths()
        phases = tuple(Phase(length, None) for length, _ in lengths)
        examples = training_examples(self.corpus, phases, self.example_args, self.args)
        epoch_lengths = [examples.epoch_length(phase, 0) for phase in range(len(lengths))]
        first = epoch_lengths[0]
        # Epochs that pass while the run trains on as many examples as one epoch has at its first length
        epochs_passed = sum(share * first / count for (_, share), count in zip(lengths, epoch_lengths, strict=True))
        return max(1, round(self.args.num_train_epochs * first / epochs_passed / global_batch_size(self.args)))

    def _recorded_steps(self) -> int | None:
        """Return the steps of the run in the output folder; None without one that was planned for the same work."""
        args, config = self.args, planned_config(self.model_args)
        identity = rank0_value(identity_in(folder_of(args))) or {}
        shape = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
        same_model = all(identity.get("model", {}).get(name) == getattr(config, name) for name in shape)
        same = may_be_same_run(identity, args, max_hours=args.max_hours, examples=asdict(self.example_args))
        return identity["schedule"]["max_steps"] if same_model and same else None

    def plan_steps(self) -> int:
        """Measure the speed at each length; log and return the steps that fit in --max_hours. Called by all ranks."""
        args, example_args = self.args, self.example_args

        # Seconds of a step and of an evaluation: without backward it takes a third of a step per example
        measured = {length: self.measure_step(length) for length, _ in example_args.lengths()}
        step = sum(share * measured[length] for length, share in example_args.lengths())
        per_example = measured[example_args.max_seq_length] / 3 / global_batch_size(args)
        evaluation = per_example * example_args.max_eval_samples

        # Evaluations before and after the steps, and between them: at a fraction of the run, or every N steps
        per_step = step * _SAVING
        fixed = preemption.seconds_running() + 2 * evaluation + _ENDING
        if args.eval_strategy == IntervalStrategy.STEPS and args.eval_steps:
            if args.eval_steps < 1:
                fixed += evaluation / args.eval_steps
            else:
                per_step += evaluation / args.eval_steps

        steps = rank0_value(int(((args.max_hours or 0) * 3600 * _PLANNED - fixed) / per_step))
        if steps < 1:
            what = f"too short for one step ({step:.1f} s) after startup, evaluation and saving ({fixed:.0f} s)"
            raise InputError(what, where="--max_hours", remedy="give more hours, a smaller batch or a smaller model")
        logger.info(f"{steps:,} steps of {step:.3f} s are planned for {args.max_hours} hours")
        return steps

    def measure_step(self, length: int) -> float:
        """Measure the seconds of a step at a length, by training a temporary model. Called by all ranks together."""
        # After an empty phase of `max_seq_length`, longer examples are trained in pieces, as in the run.
        phases = (Phase(self.example_args.max_seq_length, 0), Phase(length, None))
        examples = training_examples(self.corpus, phases, self.example_args, self.args)
        model = make_model(self.model_args, self.example_args, self.tokenizer, self.args.seed)
        collator = DataCollatorForPreTraining(self.tokenizer, **self.example_args.masking_options())

        timer = _StepTimer()
        with tempfile.TemporaryDirectory() as folder:
            _TrialTrainer(model, _trial_arguments(self.args, folder), collator, examples, callbacks=[timer]).train()
        return timer.seconds_per_step()


class _TrialTrainer(PreTrainer):
    """A trainer that writes nothing: it would save only after a signal, which ends the run instead."""

    def _save_checkpoint(self, model, trial) -> None:
        raise RunInterrupted("interrupted while measuring speed; the same command starts from the beginning", STOPPED)


def _trial_arguments(args: PreTrainingArguments, folder: str) -> PreTrainingArguments:
    """Return a copy of the run's arguments for a short training that evaluates, logs, saves and reports nothing."""
    trial = copy.copy(args)
    trial.output_dir = folder
    trial.max_steps = 60  # `_StepTimer` may end it earlier
    trial.max_hours = None
    trial.lr_scheduler_type = "constant"  # the run's may need more steps
    trial.lr_scheduler_kwargs = None
    trial.save_minutes = 0
    trial.eval_on_start = trial.load_best_model_at_end = trial.push_to_hub = False
    trial.save_strategy = trial.eval_strategy = trial.logging_strategy = IntervalStrategy.NO
    trial.report_to = []
    return trial


class _StepTimer(TrainerCallback):
    """Record when steps end, and end a trial once its speed is known: after three or more, 20 s after the first."""

    def __init__(self):
        self.ends: list[float] = []

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if torch.accelerator.is_available() and not args.use_cpu:
            torch.accelerator.synchronize()  # the device works on the step after its launch
        self.ends.append(time.perf_counter())

        enough = rank0_value(len(self.ends) > 2 and self.ends[-1] - self.ends[0] > 20)
        control.should_training_stop = enough or control.should_training_stop

    def seconds_per_step(self) -> float:
        """Return the mean seconds of the steps after the warm-up: the first step, at most the first six."""
        skipped = min(len(self.ends) // 6, 5)
        return (self.ends[-1] - self.ends[skipped]) / (len(self.ends) - 1 - skipped)
