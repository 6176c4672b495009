"""Lines of a run's log, and its end."""

import contextlib
import time
from types import SimpleNamespace

import pytest

from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.errors import InputError
from bert_hf.training import run
from bert_hf.training.log_lines import LogLines
from bert_hf.training.output_folder import release_lock
from bert_hf.training.publishing.card import Card, write_card


@pytest.mark.parametrize(
    ("steps", "seconds_a_step", "ending"),
    [(100, 5, "about 2.5 h left"), (1540, 10, "about 60 min left"), (1840, 1, "about 60 s left")],
)
def test_a_line_of_training_ends_with_the_time_left(steps, seconds_a_step, ending, monkeypatch, capsys):
    """By the speed of this process, which resumed at step 40."""
    clock = {"now": 50.0}
    monkeypatch.setattr(time, "monotonic", lambda: clock["now"])
    lines = LogLines()

    state = SimpleNamespace(global_step=40, max_steps=1900, is_world_process_zero=True)
    lines.on_train_begin(None, state, None)
    clock["now"] += (steps - 40) * seconds_a_step
    state.global_step = steps
    lines.on_log(None, state, None, logs={"loss": 6.5, "grad_norm": 1.0, "nsp_accuracy": 0.5, "epoch": 2.0})
    lines.on_log(None, state, None, logs={"loss": 16.5, "train_runtime": 3.0, "train_tokens_per_second": 9123.4})
    times = {"eval_model_preparation_time": 0.1, "eval_runtime": 1.0}
    lines.on_log(None, state, None, logs={"eval_nsp_accuracy": 0.125, "eval_loss": 6.25, **times})
    lines.on_log(None, state, None, logs={"train_runtime": 1.0})
    assert capsys.readouterr().out.splitlines() == [
        f"step {steps:5,} of 1,900  loss  6.500  NSP accuracy 0.500  epoch 2.00  {ending}",
        f"step {steps:5,} of 1,900  loss 16.500    9,123 tokens/s  {ending}",
        f"eval {steps:5,} of 1,900  loss  6.250  NSP accuracy 0.125",
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_cannot_be_pushed_is_not_complete(tmp_path, monkeypatch, fails):
    """If the Hub refuses, everything is in the folder."""
    pushed = []

    def push(folder, repo_id, names, **options):
        if fails:
            raise InputError("the push failed", where=repo_id, remedy="check")
        pushed.append((repo_id, sorted(names), options))

    monkeypatch.setattr(run, "push", push)
    args = SimpleNamespace(output_dir=str(tmp_path), hub_private_repo=True, hub_revision="new")
    trainer = SimpleNamespace(
        args=args, state=SimpleNamespace(log_history=[{"step": 1, "loss": 1.0}]), save_model=lambda: None,
        save_state=lambda: None, is_world_process_zero=lambda: True,
    )  # fmt: skip
    card = Card(pipeline_tag="fill-mask", command="c", machine="CPU", usage='load("{}")'.format)
    with pytest.raises(InputError) if fails else contextlib.nullcontext():
        begun = run.Run(tmp_path, {}, push_to="name")
        begun.finish(trainer, {}, card=card, metrics={}, baselines={})
    assert f'\nload("{tmp_path.name}")\n' in (tmp_path / "README.md").read_text()
    assert run.Run.read(tmp_path).finished is not fails
    names = ["README.md", "all_results.json", "log_history.csv", "loss.png", "train_results.json"]
    assert pushed == ([] if fails else [("name", names, {"private": True, "revision": "new"})])


def test_a_complete_run_is_pushed_where_it_is_asked_for_later(tmp_path, monkeypatch):
    pushed = []
    monkeypatch.setattr(run, "push", lambda folder, repo_id, names, **options: pushed.append((repo_id, names)))
    card = Card(pipeline_tag="fill-mask", command="--output_dir mine", machine="CPU")
    with run.Run(tmp_path, {"seed": 1}, finished=True).writing(public=True):
        write_card(tmp_path, card, {})

    def start(name):
        args = PreTrainingArguments(str(tmp_path), push_to_hub=True, hub_model_id=name, use_cpu=True)
        try:
            assert run.start_run(args, {"seed": 1}).finished
        finally:
            release_lock()

    start("name")
    start("other")
    assert pushed == [("name", ["README.md"]), ("other", ["README.md"])]
