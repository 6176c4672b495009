"""The whole way in process: tokenizer → corpus → pre-training → resume → fine-tuning, stock loading at the end."""

import contextlib
import io
import itertools
import json
import os
import shlex
import shutil
import signal
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import yaml
from helpers.recipe_runs import ROOT, cut_off, recipe, write_inputs
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining, pipeline

from bert_hf import PreTrainer
from bert_hf.config.arguments import ExampleArguments, ModelArguments
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.data.corpus.store import Corpus
from bert_hf.data.examples.samplers import epochs_done
from bert_hf.data.text.tokenization import load_tokenizer
from bert_hf.pretraining import step_budget
from bert_hf.pretraining.examples import training_examples
from bert_hf.training import preemption
from bert_hf.training.checkpoints import checkpoint_files
from bert_hf.training.run import EXAMPLES, Run


class Made(NamedTuple):
    """Output folder and standard output of a recipe."""

    folder: Path
    printed: str


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Text, a model shape, and whatever the recipes make of them."""
    return write_inputs(tmp_path_factory.mktemp("end_to_end"))


@pytest.fixture(scope="module")
def vocabulary(place):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert recipe("train_tokenizer")(tokenizer_words(place)) == 0
    return Made(place / "tokenizer", printed.getvalue())


@pytest.fixture(scope="module")
def corpus(place, vocabulary):
    words = ["--train_file", str(place / "text.txt"), "--tokenizer_name", str(vocabulary.folder)]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert recipe("prepare")([*words, "--output_dir", str(place / "corpus")]) == 0
    return Made(place / "corpus", printed.getvalue())


@pytest.fixture(scope="module")
def pretrained(place, corpus):
    """An uninterrupted run."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert pretrain(place) == 0
    return Made(place / "pretrained", printed.getvalue())


def tokenizer_words(place):
    return ["--train_file", str(place / "text.txt"), "--vocab_size", "200", "--output_dir", str(place / "tokenizer")]


def pretrain(place, *words, output="pretrained"):
    model = [] if "--model_name_or_path" in words else ["--config_name", str(place / "tiny.json")]
    held_out = [] if "--validation_file" in words else ["--validation_split_percentage", "20"]
    return recipe("pretrain")(
        [
            *model, "--train_file", str(place / "corpus"), *held_out, "--max_seq_length", "32",
            "--long_seq_length", "64",
            "--max_steps", "8", "--per_device_train_batch_size", "4", "--logging_steps", "2", "--save_steps", "2",
            "--warmup_steps", "2", "--disable_tqdm", "true", "--bf16", "false", "--use_cpu",
            "--output_dir", str(place / output), *words,
        ]
    )  # fmt: skip


def test_tokenizer(place, vocabulary, capsys):
    assert "accents are stripped" in vocabulary.printed
    assert "unknown tokens: 0 of" in vocabulary.printed
    assert recipe("train_tokenizer")(tokenizer_words(place)) == 2  # it is there already
    assert "error:" in capsys.readouterr().err


def test_corpus(corpus):
    assert "60 documents" in corpus.printed
    assert json.loads((corpus.folder / "manifest.json").read_text())["documents"] == 60


def test_pretrain_cut_off_and_resumed_is_the_uninterrupted_run(place, pretrained, capsys):
    assert "held out, before: MLM loss" in pretrained.printed
    assert "held out, after: MLM loss" in pretrained.printed
    with cut_off(PreTrainer):
        pretrain(place, output="cut")
    assert pretrain(place, output="cut") == 0
    assert "resuming from" in capsys.readouterr().out
    first, second = (load_file(place / run / "model.safetensors") for run in ("pretrained", "cut"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    metrics = [json.loads((place / run / "all_results.json").read_text()) for run in ("pretrained", "cut")]
    for name in ("eval_mlm_loss", "eval_nsp_accuracy", "train_loss", "unigram_mlm_loss"):
        assert metrics[0][name] == metrics[1][name]


def test_the_folder_holds_what_is_promised(pretrained):
    folder = pretrained.folder
    promised = "config.json model.safetensors tokenizer.json vocab.txt README.md train_results.json eval_results.json"
    promised += " all_results.json trainer_state.json loss.png log_history.csv"
    assert all((folder / name).is_file() for name in promised.split())
    assert not [path for path in folder.rglob("*") if path.suffix in (".bin", ".pt", ".pth", ".pkl")]
    with Image.open(folder / "loss.png") as picture:
        assert picture.size[0] > 600
    assert checkpoint_files.newest_verified(folder).name == "checkpoint-8"
    metrics = json.loads((folder / "all_results.json").read_text())
    assert {"eval_loss", "eval_mlm_accuracy", "train_tokens_per_second", "train_mfu"} <= metrics.keys()
    card = (folder / "README.md").read_text()
    assert f"{metrics['eval_mlm_loss']:.4f}" in card
    assert "Licence of the model: not stated" in card
    _, loaded = AutoModelForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert not any(loaded.values())


def test_the_demo_and_the_card_ask_for_a_word_of_the_held_out_text(pretrained):
    words = shlex.split(pretrained.printed.split("next: ")[1])
    assert words[1:] == ["demo", str(pretrained.folder)]

    sentences = [text for [text] in json.loads((pretrained.folder / EXAMPLES).read_text())]
    assert len(sentences) > 1
    assert all(text.startswith("topic ") and text.count("[MASK]") == 1 for text in sentences)
    front = yaml.safe_load((pretrained.folder / "README.md").read_text().split("---")[1])
    assert front["widget"][0]["text"] == sentences[0]
    assert Run.read(pretrained.folder).files[EXAMPLES] is False  # it is not pushed


def test_the_same_command_again_says_it_is_finished(place, pretrained, capsys):
    assert pretrain(place) == 0
    assert "already complete" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--seed", "7"], "seed"),
        (["--learning_rate", "1e-3"], "optimizer"),
        (["--mlm_probability", "0.3"], "examples"),
    ],
)
def test_another_run_s_folder_is_refused(place, pretrained, capsys, words, key):
    before = (pretrained.folder / "model.safetensors").read_bytes()
    assert pretrain(place, *words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert f"contains another run: {key} differ" in error
    assert (pretrained.folder / "model.safetensors").read_bytes() == before


def test_overwriting_removes_only_what_is_ours(place, pretrained, capsys):
    shutil.copytree(pretrained.folder, place / "again")
    inside = ["--seed", "7", "--overwrite_output_dir", "--model_name_or_path", str(place / "again")]
    assert pretrain(place, *inside, output="again") == 2
    assert capsys.readouterr().err.startswith("error: --model_name_or_path: ")
    (place / "again/notes.txt").write_text("mine")
    assert pretrain(place, "--seed", "7", "--max_steps", "2", "--overwrite_output_dir", output="again") == 0
    assert (place / "again/notes.txt").read_text() == "mine"
    assert (place / "again/checkpoint-2").exists()
    assert not (place / "again/checkpoint-8").exists()
    (place / "foreign").mkdir()
    (place / "foreign/thesis.txt").write_text("mine")
    assert pretrain(place, "--overwrite_output_dir", output="foreign") == 2
    assert (place / "foreign/thesis.txt").read_text() == "mine"


def test_continue_from_a_checkpoint(place, pretrained, capsys):
    words = ["--model_name_or_path", str(pretrained.folder), "--max_steps", "2"]
    assert pretrain(place, *words, output="adapted") == 0
    assert "newly initialized" not in capsys.readouterr().out
    stock = AutoModelForPreTraining.from_pretrained(pretrained.folder)
    stock.config.trained_on = {"max_seq_length": 8}
    stock.bert.save_pretrained(place / "body")  # an encoder without heads
    words = ["--model_name_or_path", str(place / "body"), "--tokenizer_name", str(place / "tokenizer")]
    assert pretrain(place, *words, "--max_steps", "2", output="adapted2") == 0
    assert "trained_on" not in (place / "adapted2/config.json").read_text()
    assert "newly initialized: cls.predictions" in capsys.readouterr().out


def finetune(place, *words, output="spam"):
    return recipe("finetune_classification")(
        [
            "--config", str(ROOT / "configs/finetune/spam-messages.yaml"),
            "--train_file", str(ROOT / "src/bert_hf/finetuning/messages/spam.tsv"),
            "--model_name_or_path", str(place / "pretrained"), "--num_train_epochs", "1",
            "--min_steps", "0", "--disable_tqdm", "true",
            "--bf16", "false", "--use_cpu", "--output_dir", str(place / output), *words,
        ]
    )  # fmt: skip


def test_finetune(place, pretrained, capsys):
    assert finetune(place) == 0
    said = capsys.readouterr().out
    assert "newly initialized: classifier.bias, classifier.weight" in said  # one new layer and nothing else
    assert "this model  majority  linear SVM on words  linear SVM on characters" in said
    metrics = json.loads((place / "spam/all_results.json").read_text())
    assert set("eval_f1 test_f1 test_accuracy test_average_precision baseline_characters_f1".split()) <= metrics.keys()
    answer = pipeline("text-classification", str(place / "spam"))("You have won a prize!")
    assert answer[0]["label"] in ("ham", "spam")
    assert not [path for path in (place / "spam").rglob("*") if path.suffix in (".bin", ".pt", ".pth", ".pkl")]
    scratch = ["--from_scratch", "true", "--max_steps", "1", "--do_predict", "false"]
    assert finetune(place, *scratch, output="scratch") == 0
    assert "random weights: only the checkpoint" in capsys.readouterr().out


def test_epochs_count_the_examples_of_each_length(place, corpus, tmp_path):
    args = PreTrainingArguments(str(tmp_path), num_train_epochs=4, per_device_train_batch_size=1, use_cpu=True)
    example_args = ExampleArguments(max_seq_length=16, long_seq_length=64, long_seq_fraction=0.5)
    model_args = ModelArguments(config_name=str(place / "tiny.json"))
    text = Corpus(corpus.folder)
    tokenizer = load_tokenizer(text.tokenizer())
    phases = step_budget.StepBudget(args, example_args, text, model_args, tokenizer).resolve()
    examples = training_examples(text, phases, example_args, args)
    assert epochs_done(examples, args.max_steps) == pytest.approx(4, abs=0.2)


def test_hours_are_planned_once_and_kept_with_the_run(place, corpus, capsys, monkeypatch):
    paces = []

    def pace(self):
        paces.append(len(self.ends))
        return 50.0  # seconds a step

    make = step_budget._trial_arguments

    def short_trial(args, folder):
        trial = make(args, folder)
        trial.max_steps = 2  # of 60: `pace` says how long a step takes
        return trial

    monkeypatch.setattr(step_budget, "_trial_arguments", short_trial)
    monkeypatch.setattr(step_budget._StepTimer, "seconds_per_step", pace)
    monkeypatch.setattr(step_budget.preemption, "seconds_running", lambda: 20.0)  # and not since pytest was started
    words = ["--max_steps", "-1", "--max_hours", "0.25", "--max_eval_samples", "4", "--save_minutes", "15"]
    words += ["--lr_scheduler_type", "warmup_stable_decay", "--lr_scheduler_kwargs", '{"num_decay_steps": 5}']
    assert pretrain(place, *words, output="hours") == 0
    said = capsys.readouterr().out
    assert len(paces) == 2  # both sequence lengths were tried
    steps = json.loads((place / "hours/trainer_state.json").read_text())["max_steps"]
    # 97 % of 900 s, without 15 s for the end, two evaluations of a third of 50 s, and what this process has taken.
    assert 1 <= steps <= (900 * 0.97 - 15 - 2 * 50 / 3) / 51
    assert f"{steps} steps of 50.000 s are planned for 0.25 hours" in said
    assert pretrain(place, *words, output="hours") == 0
    assert len(paces) == 2  # not tried again: the run knows
    assert "already complete" in capsys.readouterr().out
    assert pretrain(place, *words[:3], "0.01", *words[4:], output="fewer") == 2
    assert "--max_hours: too short for one step (50.0 s)" in capsys.readouterr().err


def test_evaluations_at_shares_of_the_steps_are_planned_for(tmp_path, monkeypatch):
    """An evaluation takes as long as a step: after each fifth of the steps, or after as many steps."""
    monkeypatch.setattr(step_budget.preemption, "seconds_running", lambda: 20.0)
    monkeypatch.setattr(step_budget.StepBudget, "measure_step", lambda self, length: 50.0)

    def planned(**changes):
        args = PreTrainingArguments(
            str(tmp_path), max_hours=1.0, per_device_train_batch_size=8, use_cpu=True, bf16=False, **changes
        )
        return step_budget.StepBudget(args, ExampleArguments(max_eval_samples=24), None, None, None).plan_steps()

    without = planned(eval_strategy="no")
    shares = planned(eval_strategy="steps", eval_steps=0.2)
    assert without - shares in (4, 5)
    assert abs(shares - planned(eval_strategy="steps", eval_steps=without // 5)) <= 1


def test_a_run_ends_when_its_hours_are_over(place, corpus, capsys, monkeypatch):
    monkeypatch.setattr(step_budget.StepBudget, "plan_steps", lambda self: 8)
    steps = itertools.count(1)
    monkeypatch.setattr(preemption.TimeLimit, "is_over", lambda self: next(steps) >= 5)
    assert pretrain(place, "--max_steps", "-1", "--max_hours", "0.45", output="late") == 0
    assert "time limit (--max_hours 0.45) reached: stopping after step 5 of 8" in capsys.readouterr().out
    checkpoint_files.verify(place / "late/checkpoint-5")
    assert json.loads((place / "late/run.json").read_text())["finished"]


def test_a_signal_while_speed_is_measured_leaves_nothing(place, corpus, capsys, monkeypatch):
    monkeypatch.setattr(
        step_budget._StepTimer, "on_step_end", lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGTERM)
    )
    words = ["--max_steps", "-1", "--max_hours", "0.25"]
    assert pretrain(place, *words, output="measured") == 143
    assert "stopped: interrupted while measuring speed" in capsys.readouterr().err
    assert not (place / "measured").exists()


def test_a_named_checkpoint_is_where_a_run_begins_and_not_where_it_goes_back_to(place, pretrained, capsys):
    named = ["--resume_from_checkpoint", str(pretrained.folder / "checkpoint-6"), "--save_steps", "1"]
    with cut_off(PreTrainer, 7):
        pretrain(place, *named, output="begun")
    capsys.readouterr()
    assert pretrain(place, *named, output="begun") == 0
    assert f"resuming from {place}/begun/checkpoint-7" in capsys.readouterr().out
    first, second = (load_file(place / run / "model.safetensors") for run in ("pretrained", "begun"))
    assert all(torch.equal(first[name], second[name]) for name in first)
