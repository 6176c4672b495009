"""How many steps a run has: as asked, by its epochs, or as many as fit into its hours."""

import copy
import tempfile
import time
from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_utils import IntervalStrategy

from bert_hf.config.arguments import ExampleArguments, ModelArguments
from bert_hf.data.collator import DataCollatorForPreTraining
from bert_hf.data.corpus_store import Corpus
from bert_hf.data.dataset import PreTrainingExamples
from bert_hf.data.remote_shards import RemoteShards
from bert_hf.data.samplers import Phase, phases_of_run
from bert_hf.errors import STOPPED, InputError, RunInterrupted
from bert_hf.training import output_folder, preemption, run
from bert_hf.training.pretraining import make_model
from bert_hf.training.trainer import PreTrainer

_PLANNED = 0.97  # share of the hours that is planned for
_SAVING = 1.02  # saving takes 2 % at most (docs/reliability.md)
_ENDING = 15.0  # seconds for curves, card and the last checkpoint


def resolve_steps(
    args: TrainingArguments, shape: ExampleArguments, corpus: Corpus, network: ModelArguments, tokenizer
) -> tuple[Phase, ...]:
    """Fixes the number of steps (from the hours or epochs, where none is given) and where the long phase begins."""
    if args.max_hours is not None:
        args.max_steps = planned_steps(args, shape, corpus, network, tokenizer)
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    if args.max_steps <= 0:
        one_length = (Phase(shape.max_seq_length, None),)
        drawn = {"nsp": shape.nsp, "short_seq_probability": shape.short_seq_probability}
        if isinstance(corpus.storage, RemoteShards):
            raise InputError(
                "how long an epoch is cannot be known of a corpus that is not here",
                where="--num_train_epochs",
                remedy="give --max_steps",
            )
        epoch = PreTrainingExamples(corpus, one_length, seed=args.data_seed, **drawn).epoch_length(0, 0)
        args.max_steps = max(1, round(args.num_train_epochs * epoch / batch))
    return phases_of_run(shape.lengths(), args.max_steps, batch)


def planned_steps(args, shape: ExampleArguments, corpus: Corpus, network: ModelArguments, tokenizer) -> int:
    """How many steps fit into `args.max_hours`: as the run's record says, or by the speed of a few steps.

    What the run needs beside its steps (start, evaluations, saving) is taken off, and 3 % for what is not known.

    Raises:
        InputError: not even one step fits.
    """
    record = (
        None if args.overwrite_output_dir else output_folder.recorded(Path(args.output_dir), "max_hours", "schedule")
    )
    record = _of_rank_0(record, args)
    if record and record[0] == args.max_hours:
        schedule = record[1]
        return schedule["max_steps"] if isinstance(schedule, dict) else schedule[0]  # a list in earlier records
    step, evaluation = _measured(args, shape, corpus, network, tokenizer)
    in_loop = args.eval_strategy == IntervalStrategy.STEPS and (args.eval_steps or 0) >= 1
    # The longer examples are as many tokens as the usual ones; they are evaluated in their phase, and at the end.
    longer = shape.long_seq_fraction if shape.long_seq_length else 0.0
    beside = preemption.seconds_running() + (3 if longer else 2) * evaluation + _ENDING
    per_step = step * _SAVING + ((1 + longer) * evaluation / args.eval_steps if in_loop else 0.0)
    plan = _of_rank_0(int((args.max_hours * 3600 * _PLANNED - beside) / per_step), args)
    if plan < 1:
        raise InputError(
            f"no step fits: one takes {step:.1f} s, and beginning, evaluating and ending {beside:.0f} s",
            where="--max_hours",
            remedy="give more hours, a smaller batch or a smaller model",
        )
    run.log_rank0(args, f"{plan:,} steps of {step:.3f} s are planned for {args.max_hours} hours")
    return plan


def _of_rank_0(value, args: TrainingArguments):
    """What rank 0 says, on all ranks."""
    told = [value]
    if args.world_size > 1:
        broadcast_object_list(told)
    return told[0]


def _measured(
    args, shape: ExampleArguments, corpus: Corpus, network: ModelArguments, tokenizer
) -> tuple[float, float]:
    """Seconds of a step, both sequence lengths weighed, and of an evaluation (a forward pass is a third of a step).

    A throw-away model makes some steps at each length, in the layout of the run.
    """
    drawn = {"nsp": shape.nsp, "short_seq_probability": shape.short_seq_probability, "seed": args.data_seed}
    collator = DataCollatorForPreTraining(
        tokenizer, mlm_probability=shape.mlm_probability, whole_word_mask=shape.whole_word_mask, nsp=shape.nsp
    )
    lengths, shares = zip(*shape.lengths(), strict=True)
    seconds = []
    for length in lengths:
        # An empty phase of the usual length in front: longer examples are trained in smaller pieces, as in the run.
        phases = (Phase(shape.max_seq_length, 0), Phase(length, None))
        pace, examples = _Pace(), PreTrainingExamples(corpus, phases, batch_length=shape.max_seq_length, **drawn)
        model = make_model(network, shape, tokenizer, args.seed)
        with tempfile.TemporaryDirectory() as nowhere:
            _Trial(model, _trial_arguments(args, nowhere), collator, examples, callbacks=[pace]).train()
        seconds.append(pace.seconds_per_step())
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    usual = seconds[lengths.index(shape.max_seq_length)]
    evaluation = usual / 3 * shape.max_eval_samples / batch
    return sum(share * each for share, each in zip(shares, seconds, strict=True)), evaluation


class _Trial(PreTrainer):
    """A run that leaves nothing behind, however it ends."""

    def _share_folder(self) -> None:
        pass  # each rank has one of its own

    def _save_checkpoint(self, model, trial) -> None:
        raise RunInterrupted("asked to end while speed was measured; the same command begins again", STOPPED)


def _trial_arguments(args: TrainingArguments, folder: str) -> TrainingArguments:
    """The same layout, but nothing is evaluated, logged, saved or reported."""
    trial = copy.copy(args)
    changed = {"output_dir": folder, "load_best_model_at_end": False, "max_steps": 60, "max_hours": None}
    changed |= {"warmup_steps": 0, "save_minutes": 0, "eval_on_start": False}
    never = dict.fromkeys(("save_strategy", "eval_strategy", "logging_strategy"), IntervalStrategy.NO)
    for name, value in {**changed, **never, "report_to": [], "push_to_hub": False}.items():
        setattr(trial, name, value)
    return trial


class _Pace(TrainerCallback):
    """Ends a trial when its speed is known: after 60 steps, or at least three that took 20 s without the first."""

    def __init__(self):
        self.ends: list[float] = []

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if torch.accelerator.is_available() and not args.use_cpu:
            torch.accelerator.synchronize()
        self.ends.append(time.perf_counter())
        known = _of_rank_0(len(self.ends) > 2 and self.ends[-1] - self.ends[0] > 20, args)
        control.should_training_stop = known or control.should_training_stop

    def seconds_per_step(self) -> float:
        skipped = min(len(self.ends) // 6, 5)  # of those the first ones warm up
        return (self.ends[-1] - self.ends[skipped]) / (len(self.ends) - 1 - skipped)
