"""Help is made from the declared options, agrees with what the recipes parse, and needs no torch."""

import argparse
import os
import subprocess
import sys
from dataclasses import fields

import pytest
from helpers.recipe_runs import ROOT, recipe
from transformers import TrainingArguments

from bert_hf.config import parser
from bert_hf.config.commands import COMMANDS
from bert_hf.config.options import declarations
from bert_hf.config.package_files import RECIPES
from bert_hf.config.short_help import answer_at_once, answer_help, help_classes, help_page


class ParserMade(Exception):
    pass


@pytest.fixture
def options(monkeypatch):
    """Return a function: the actions of the parser that a command's recipe makes, by name."""

    def capture(made, *_):
        raise ParserMade(made)

    monkeypatch.setattr(parser, "_read_values", capture)

    def of(name):
        with pytest.raises(ParserMade) as raised:
            recipe(COMMANDS[name].recipe)(["--folds_dir", "folds"])
        actions = raised.value.args[0]._actions
        return {action.dest: action for action in actions if not isinstance(action, argparse._StoreFalseAction)}

    return of


@pytest.mark.parametrize("name", COMMANDS)
def test_the_declared_options_are_those_that_the_recipe_parses(name, options):
    """The classes of a training run are mixed with the stock class, so a command names others than its recipe."""
    command, parsed = COMMANDS[name], options(name)
    others = () if name == "study" else command.others  # a study passes them on
    shown = [entry for cls in (*help_classes(command), *others) for entry in declarations(cls)]

    launched = {"num_processes", "accelerate_config"}  # `bert-hf` takes them before the recipe runs
    assert {field.name for field, _ in shown} - launched == parsed.keys() - {"help"} - (
        {field.name for field in fields(TrainingArguments)} - {field.name for field, _ in shown}
    )
    for field, declared in shown:
        if field.name not in launched:
            assert parsed[field.name].default == field.default, field.name
            assert parsed[field.name].help == declared["help"], field.name


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_a_line_for_each_common_option(name):
    page = help_page(name)
    assert len(page.splitlines()) <= 90
    assert max(map(len, page.splitlines())) <= 119
    for cls in help_classes(COMMANDS[name]):
        for field, declared in declarations(cls):
            assert page.count(f"\n  --{field.name} ") == declared["common"], field.name
    assert page.count("\nbert-hf ") >= 2  # examples


def test_a_line_shows_the_default_or_what_is_taken():
    page = " ".join(help_page("classify").split())
    for line in (
        "--max_seq_length 128 Maximum tokens",
        "--train_file FILE ... Training rows",
        "--bf16 true|false Use bf16",
        "--from_scratch Train",
        "--max_steps N Optimizer steps",
        "--per_device_train_batch_size 32 ",
    ):
        assert line in page
    assert "--max_seq_length 384 Maximum tokens" in " ".join(help_page("answer").split())


@pytest.mark.parametrize("command", [["-m", "bert_hf.cli", "pretrain"], [str(RECIPES / "finetune_classification.py")]])
def test_help_needs_no_torch(command, tmp_path):
    for library in ("torch", "transformers", "evaluate"):
        (tmp_path / f"{library}.py").write_text(f"raise SystemExit('{library} is imported')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}

    def run(*words):
        return subprocess.run([sys.executable, *command, *words], env=environment, capture_output=True, text=True)

    shown = run("--train_file", "a.txt", "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "--learning_rate" in shown.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_all_is_left_to_the_recipe(name, capsys, monkeypatch):
    answer_help(name, ["--help", "all"])
    monkeypatch.setattr("sys.argv", ["nowhere/mine.py", "--help"])
    answer_at_once("__main__")  # of a recipe that is no command
    assert capsys.readouterr().out == ""
