"""Interruptions of a run in one process: signals, losses that are not finite, saves that fail; and exact resume."""

import contextlib
import errno
import itertools
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from helpers.trainer_runs import history, make
from helpers.tuning_runs import tuned
from transformers import TrainerCallback

from bert_hf import PreTrainer
from bert_hf.data.examples.samplers import RunSampler
from bert_hf.errors import NOT_FINITE, STOPPED, InputError, RunInterrupted
from bert_hf.training import preemption, resumable_trainer
from bert_hf.training.checkpoints import checkpoint_files, trainer_state
from bert_hf.training.command import command


class At(TrainerCallback):
    """Does something at an event of a step."""

    def __init__(self, event, step, action):
        def done(args, state, control, **kwargs):
            if state.global_step == step:
                action()

        setattr(self, event, done)


def interrupted(folder, tokenizer, event, step, number=signal.SIGTERM, **options):
    """The line with which a run ends that got a signal at an event of a step."""
    trainer = make(folder, tokenizer, **options)
    trainer.add_callback(At(event, step, lambda: os.kill(os.getpid(), number)))
    with preemption.handle_signals(), pytest.raises(RunInterrupted) as end:
        trainer.train(resume_from_checkpoint=_newest(folder))
    assert end.value.code == STOPPED
    return str(end.value)


def _newest(folder):
    newest = checkpoint_files.newest_verified(folder)
    return str(newest) if newest else None


def final(folder):
    return {name: (folder / f"checkpoint-12/{name}.safetensors").read_bytes() for name in ("model", "optimizer")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("whole")
    trainer = make(folder, tokenizer)
    trainer.train()
    return final(folder), history(trainer)


@pytest.mark.parametrize(
    ("event", "step", "saved"),
    [
        ("on_step_begin", 4, 5),  # within a step: it is finished
        ("on_substep_end", 4, 5),  # between two micro-batches
        ("on_step_end", 4, 4),
        ("on_log", 5, 5),
        ("on_prediction_step", 6, 6),  # within an evaluation, which is repeated on resume
        ("on_evaluate", 6, 6),
        ("on_save", 6, 6),
        ("on_step_end", 12, 12),  # the last one
        ("on_epoch_end", 12, 12),
    ],
)
def test_a_signal_loses_no_step_and_changes_nothing(tmp_path, tokenizer, whole, event, step, saved):
    line = interrupted(tmp_path, tokenizer, event, step)
    assert line.startswith(f"SIGTERM, after step {saved}, which is saved in {tmp_path}/checkpoint-{saved}")
    resumed = make(tmp_path, tokenizer)
    resumed.train(resume_from_checkpoint=_newest(tmp_path))
    assert final(tmp_path) == whole[0]
    assert history(resumed) == whole[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_other_signals(tmp_path, tokenizer, number):
    assert interrupted(tmp_path, tokenizer, "on_step_end", 2, number).startswith(f"{number.name}, after step 2")


def test_ctrl_c_under_a_launcher_is_one_line(tmp_path, tokenizer, capfd):
    """The launcher exits at once, and the kernel reports its death; the line comes when the step is saved."""

    @command
    def main():
        trainer = make(tmp_path, tokenizer)
        for number in (signal.SIGINT, signal.SIGTERM):
            trainer.add_callback(At("on_step_begin", 2, lambda number=number: os.kill(os.getpid(), number)))
        trainer.train()

    assert main() == STOPPED
    lines = [line for line in capfd.readouterr().err.splitlines() if "SIG" in line]
    assert len(lines) == 1
    assert lines[0].startswith("stopped: SIGINT, after step 3, which is saved")


def test_outside_of_training_a_signal_ends_at_once():
    before = signal.getsignal(signal.SIGTERM)
    with preemption.handle_signals(), pytest.raises(RunInterrupted, match="SIGTERM outside training"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_that_is_ending_is_not_interrupted_again(capsys):
    """torchrun signals a rank that is writing its line, because another one has ended."""

    @command
    def main():
        try:
            with preemption.defer_signals():
                os.kill(os.getpid(), signal.SIGTERM)
                raise RunInterrupted("SIGTERM, after step 7", STOPPED)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    assert main() == STOPPED
    assert capsys.readouterr().err.endswith("stopped: SIGTERM, after step 7\n")


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with preemption.handle_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert preemption.shutdown_reason() is None
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("every", ["steps", "no"])
def test_exact_whatever_the_intervals(tmp_path, tokenizer, every):
    """Cut off at each step in turn, with evaluation and without it."""
    options = {"micro": 4, "steps": 7, "save_steps": 4, "eval_steps": 3, "logging_steps": 2, "eval_strategy": every}
    whole = make(tmp_path / "whole", tokenizer, **options)
    whole.train()
    for step in range(1, 8):
        interrupted(tmp_path / "cut", tokenizer, "on_step_end", step, **options)
    resumed = make(tmp_path / "cut", tokenizer, **options)
    resumed.train(resume_from_checkpoint=_newest(tmp_path / "cut"))
    assert history(resumed) == history(whole)
    for name in ("model", "optimizer", "scheduler"):
        files = [tmp_path / run / f"checkpoint-7/{name}.safetensors" for run in ("whole", "cut")]
        assert files[0].read_bytes() == files[1].read_bytes(), name


# ---- numbers that are not finite


def poisoned(folder, tokenizer, step, value=float("nan"), micro_batch=1, **options):
    """A run in which the loss of one micro-batch is not finite."""
    trainer = make(folder, tokenizer, logging_steps=1, **options)
    original, seen = trainer._finite.record_loss, []

    def loss(loss):
        seen.append(loss)
        bad = trainer.state.global_step + 1 == step and len(seen) == micro_batch + 1
        return original(loss * value if bad else loss)

    trainer._finite.record_loss = loss
    trainer.add_callback(At("on_step_begin", step - 1, seen.clear))  # counts the micro-batches of that step alone
    return trainer


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_loss_ends_the_run_before_it_reaches_the_weights(tmp_path, tokenizer, value):
    trainer = poisoned(tmp_path, tokenizer, 5, value)
    before_step = {}

    def keep():
        before_step.update({name: value.clone() for name, value in trainer.model.state_dict().items()})

    trainer.add_callback(At("on_step_begin", 4, keep))
    with pytest.raises(RunInterrupted) as end:
        trainer.train()
    assert end.value.code == NOT_FINITE
    line = str(end.value)
    assert line.startswith(f"step 5: rank 0: loss {value}")
    for name, value_now in trainer.model.state_dict().items():
        assert torch.equal(value_now, before_step[name]), name
    assert checkpoint_files.newest_verified(tmp_path).name == "checkpoint-3"


def test_a_bad_gradient_of_good_losses(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, max_grad_norm=0.0)
    trainer.model.cls.predictions.bias.register_hook(
        lambda gradient: gradient * float("inf") if trainer.state.global_step == 3 else gradient
    )
    with pytest.raises(RunInterrupted, match=r"^step 4: gradient not finite; "):
        trainer.train()


def test_weights_that_are_not_finite_are_not_saved(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer)
    trainer.model.cls.predictions.bias.data[3] = float("inf")
    with pytest.raises(RunInterrupted, match=r"cls.predictions.* is not finite"):
        trainer.save_model(str(tmp_path / "model"))
    assert not list((tmp_path / "model").glob("*.safetensors"))


# ---- saves


def test_a_save_that_fails_ends_the_run_and_loses_nothing(tmp_path, tokenizer, monkeypatch):
    trainer = make(tmp_path, tokenizer)
    commit = checkpoint_files.commit

    def full(temporary, final, facts):
        if final.name == "checkpoint-6":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(temporary))
        commit(temporary, final, facts)

    monkeypatch.setattr(checkpoint_files, "commit", full)
    with pytest.raises(OSError, match="No space left"):
        trainer.train()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]
    checkpoint_files.verify(tmp_path / "checkpoint-3")


def test_saved_by_time_and_after_the_last_step(tmp_path, tokenizer, monkeypatch):
    clock = itertools.count(0, 30)  # each look at the clock is half a minute later
    monkeypatch.setattr(resumable_trainer.time, "monotonic", lambda: next(clock))
    trainer = make(tmp_path, tokenizer, save_steps=None, save_minutes=2, save_total_limit=0)
    trainer.train()
    steps = [int(path.name.split("-")[1]) for path in checkpoint_files.checkpoints(tmp_path)]
    assert steps[0] == 12
    assert all(2 <= newer - older <= 4 for newer, older in itertools.pairwise(steps[1:])), steps
    assert len(steps) >= 3


# ---- fine-tuning, by epochs


@pytest.mark.parametrize("options", [{}, {"logging_strategy": "epoch", "gradient_accumulation_steps": 2}])
def test_fine_tuning_by_epochs_is_exact_too(tmp_path, options):
    """Cut off within an epoch, at its last step, and within its evaluation; six steps make an epoch."""
    whole = tuned(tmp_path / "whole", **options)
    whole.train()
    events = [("on_step_end", 2), ("on_step_end", 6), ("on_prediction_step", 12)]
    events += [("on_step_end", 14), ("on_prediction_step", 18)]
    if options:
        events = [(event, step // 2) for event, step in events]
    cut = tmp_path / "cut"
    for event, step in events:
        trainer = tuned(cut, **options)
        trainer.add_callback(At(event, step, lambda: os.kill(os.getpid(), signal.SIGTERM)))
        with preemption.handle_signals(), pytest.raises(RunInterrupted, match=f"after step {step}, which is saved"):
            trainer.train(resume_from_checkpoint=_newest(cut))
    resumed = tuned(cut, **options)
    resumed.train(resume_from_checkpoint=_newest(cut))
    assert history(resumed) == history(whole)
    assert resumed.state.best_metric == whole.state.best_metric
    assert resumed.state.best_global_step == whole.state.best_global_step
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_a_signal_before_the_first_step(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, eval_on_start=True)
    trainer.add_callback(At("on_prediction_step", 0, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    with preemption.handle_signals(), pytest.raises(RunInterrupted, match="SIGTERM, after step 1"):
        trainer.train()


# ---- other layouts of the same global batch


def test_another_accumulation_resumes_with_the_same_examples_and_losses(tmp_path, tokenizer):
    options = {"dropout": 0.0, "logging_steps": 1, "steps": 14, "phases": False}
    whole = make(tmp_path / "whole", tokenizer, micro=8, accumulation=2, **options)
    whole.train()
    seen = []
    for stop, micro, accumulation in ((4, 8, 2), (9, 2, 8), (14, 16, 1)):
        trainer = make(tmp_path / "cut", tokenizer, micro=micro, accumulation=accumulation, **options)
        collator = trainer.data_collator
        trainer.data_collator = lambda features, make=collator: seen.extend(f["number"] for f in features) or make(
            features
        )
        if stop < 14:
            trainer.add_callback(At("on_step_end", stop, lambda: os.kill(os.getpid(), signal.SIGTERM)))
            with preemption.handle_signals(), pytest.raises(RunInterrupted):
                trainer.train(resume_from_checkpoint=_newest(tmp_path / "cut"))
        else:
            trainer.train(resume_from_checkpoint=_newest(tmp_path / "cut"))
    losses = [[row["loss"] for row in run.state.log_history if "loss" in row] for run in (whole, trainer)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


@pytest.mark.parametrize(("written", "resuming"), [(1, 2), (2, 2), (3, 2), (1, 1), (2, 1)])
def test_sums_of_the_log_are_counted_once(written, resuming, tmp_path, tokenizer):
    """By all resuming ranks together, whatever the number of ranks that wrote the checkpoint."""
    trainer = make(tmp_path, tokenizer, steps=3)
    for rank in range(written):
        log = {**trainer.log_state(), "counts": torch.full((8,), 10.0**rank, dtype=torch.float64)}
        trainer_state.save_state(trainer_state.rank_state(log), tmp_path / f"rank_{rank}.safetensors")

    total = torch.zeros(8)
    for rank in range(resuming):
        trainer.args = ranks = SimpleNamespace(process_index=rank, rank=rank, count=resuming)
        trainer.restore_log_state(trainer_state.load_resume_states(tmp_path, ranks))
        total += trainer._log_sums
    assert total.tolist() == [sum(10**rank for rank in range(written))] * 8


@pytest.mark.parametrize(
    ("was", "now", "line"),
    [
        (
            {"engine": "deepspeed", "world_size": 2},
            {},
            "saved with deepspeed with world size 2, but this run uses torch with world size 1",
        ),
        ({"engine": "torch", "world_size": 2}, {}, None),
        (
            {"engine": "torch"},
            {"ACCELERATE_USE_DEEPSPEED": "true"},
            "saved with torch with world size 1, but this run uses deepspeed with world size 1",
        ),
        (
            {"engine": "deepspeed", "world_size": 2},
            {"ACCELERATE_USE_DEEPSPEED": "true"},
            "saved with deepspeed with world size 2, but this run uses deepspeed with world size 1",
        ),
    ],
)
def test_a_checkpoint_of_an_incompatible_layout_is_refused(tmp_path, tokenizer, monkeypatch, was, now, line):
    args = make(tmp_path, tokenizer).args
    for name, value in now.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=line) if line else contextlib.nullcontext():
        trainer_state.check_checkpoint_compatible(was, args)


# ---- where a run resumes


def test_a_new_run_of_a_trainer_that_had_resumed_begins_at_its_first_step(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, steps=6)
    loss = trainer.train().training_loss
    tokens = trainer._throughput.whole_run["tokens"]
    assert trainer.train(resume_from_checkpoint=tmp_path / "checkpoint-3").training_loss == loss
    trainer._time_limit.hours_before = 7.0  # as a checkpoint may hold it
    seen = []
    collator = trainer.data_collator
    trainer.data_collator = lambda features: seen.extend(f["number"] for f in features) or collator(features)
    trainer.args.eval_strategy = "no"
    trainer.train()
    assert trainer.state.global_step == 6
    data = trainer.train_dataset
    assert seen == list(RunSampler(data.phases, data.window_length, 6 * 16, data.seed))
    assert trainer._throughput.whole_run["tokens"] == tokens
    assert trainer._time_limit.hours_spent() < 1


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("weights", "checkpoint-3/model.safetensors: content"),
        ("missing", "checkpoint-4: not a checkpoint of bert_hf"),
        ("stock", "checkpoint-3: not a checkpoint of bert_hf"),
    ],
)
def test_a_named_checkpoint_that_cannot_be_used_is_refused(tmp_path, tokenizer, fault, line):
    make(tmp_path, tokenizer, steps=6).train()
    named = tmp_path / ("checkpoint-4" if fault == "missing" else "checkpoint-3")
    if fault == "weights":
        weights = bytearray((named / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (named / "model.safetensors").write_bytes(weights)
    elif fault == "stock":
        (named / checkpoint_files.MANIFEST).unlink()
    with pytest.raises(InputError, match=line):
        make(tmp_path, tokenizer, steps=6).train(resume_from_checkpoint=str(named))


def test_true_without_a_checkpoint_of_ours_is_refused(tmp_path, tokenizer):
    (tmp_path / "checkpoint-500").mkdir()  # as of the stock Trainer
    with pytest.raises(InputError, match="has no complete checkpoint of bert_hf"):
        make(tmp_path, tokenizer).train(resume_from_checkpoint=True)


def test_a_run_that_was_moved_keeps_its_best_model(tmp_path):
    whole = tuned(tmp_path / "whole")
    whole.train()
    trainer = tuned(tmp_path / "there")
    trainer.add_callback(At("on_epoch_end", 18, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    with preemption.handle_signals(), pytest.raises(RunInterrupted):
        trainer.train()
    (tmp_path / "there").rename(tmp_path / "here")
    resumed = tuned(tmp_path / "here")
    resumed.train(resume_from_checkpoint=True)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_a_damaged_best_checkpoint_is_not_loaded(tmp_path):
    trainer = tuned(tmp_path, learning_rate=0.0)  # the first evaluation stays the best
    trainer.train()
    best = tmp_path / f"checkpoint-{trainer.state.best_global_step}"
    assert best.name == "checkpoint-6"
    os.truncate(best / "model.safetensors", 1000)
    again = tuned(tmp_path, learning_rate=0.0)
    with pytest.raises(checkpoint_files.DamagedCheckpoint, match="checkpoint-6/model"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-18"))


def test_every_rank_makes_the_same_number_of_pieces(tmp_path, tokenizer):
    """Also where a batch of the long phase happens to hold short rows only."""
    trainer = make(tmp_path, tokenizer, micro=8)
    trainer.state.global_step = 11  # in the long phase
    for width in (20, 40, 64):
        inputs = {"input_ids": torch.zeros(8, width, dtype=torch.long)}
        assert [len(piece["input_ids"]) for piece in trainer._split_long_examples(inputs)] == [4, 4]


# ---- subclasses


class OwnMethods(PreTrainer):
    """Overrides what a user may override, without `super()`."""

    bad_step = 0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(input_ids=inputs["input_ids"], labels=inputs["labels"])
        loss = outputs.loss * (float("nan") if self.state.global_step + 1 == self.bad_step else 1.0)
        return (loss, outputs) if return_outputs else loss

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        rows = len(inputs["input_ids"])
        return None, torch.ones(rows, 6), torch.zeros(rows)


def test_a_subclass_cannot_lose_the_check_of_its_loss(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, steps=4, eval_strategy="no")
    trainer.__class__ = OwnMethods
    trainer.bad_step = 3
    with pytest.raises(RunInterrupted, match="step 3: rank 0: loss nan; ") as end:
        trainer.train()
    assert end.value.code == NOT_FINITE
