"""The pages of recipes/help/ agree with the declared options, and are printed without importing torch."""

import argparse
import os
import re
import subprocess
import sys

import pytest
from helpers.recipe_runs import ROOT, recipe

from bert_hf.config import parser
from bert_hf.config.package_files import CONSOLE_COMMANDS, RECIPES
from bert_hf.config.short_help import answer, help_page, option_names

OF_THE_COMMAND = {"help", "num_processes", "accelerate_config"}  # taken by `bert-hf` before the recipe runs


class ParserMade(Exception):
    pass


@pytest.fixture
def options(monkeypatch):
    """Returns a function: the options that a recipe declares, by name."""

    def capture(made, *_):
        raise ParserMade(made)

    monkeypatch.setattr(parser, "_read_values", capture)

    def of(name):
        with pytest.raises(ParserMade) as raised:
            recipe(name)(["--folds_dir", "folds"])
        actions = raised.value.args[0]._actions
        return {action.dest: action for action in actions if not isinstance(action, argparse._StoreFalseAction)}

    return of


@pytest.mark.parametrize("name", CONSOLE_COMMANDS.values())
def test_a_page_and_the_declared_options_agree(name, options):
    page, declared = help_page(name), options(name)
    assert len(page.splitlines()) <= 90
    assert max(map(len, page.splitlines())) <= 119

    for option in option_names(page) - OF_THE_COMMAND - {"output_dir"}:  # a study keeps that of its cells
        assert declared[option].help != argparse.SUPPRESS, f"{option} is refused"

    # A value in lower case is the default
    defaults = re.findall(r"^  --(\w+) ([a-z\d~][^\s|]*) ", page, re.MULTILINE)
    for option, shown in [entry for entry in defaults if entry != ("help", "all")]:
        default = declared[option].default
        if isinstance(default, int | float) and not isinstance(default, bool):
            assert float(shown) == default, option
        elif default is not None:
            assert shown == str(default).lower(), option


@pytest.mark.parametrize("name", CONSOLE_COMMANDS.values())
def test_no_declared_option_is_taken_for_a_mistyped_one(name, options):
    words = [f"--{option}=1" for option in options(name)]
    words.remove("--help=1")
    if name == "train_tokenizer":
        words.remove("--tokenizer_name=1")  # it had no effect
    assert answer(name, [word.replace("_", "-") for word in words] + words) == 0


@pytest.mark.parametrize("command", [["-m", "bert_hf.cli", "pretrain"], [str(RECIPES / "finetune_classification.py")]])
def test_help_and_a_mistyped_option_need_no_torch(command, tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch is imported')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}

    def run(*words):
        return subprocess.run([sys.executable, *command, *words], env=environment, capture_output=True, text=True)

    shown = run("--train_file", "a.txt", "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "--learning_rate" in shown.stdout
    mistyped = run("--train_file", "a.txt", "--label_smooothing_factor=0.1")
    assert mistyped.returncode == 2
    assert mistyped.stderr.startswith("error: ")
    assert mistyped.stderr.endswith("did you mean 'label_smoothing_factor'?\n")


def test_the_whole_list_leaves_out_what_is_refused(capsys):
    with pytest.raises(SystemExit):
        recipe("pretrain")(["--help", "all"])
    shown = capsys.readouterr().out
    assert "--adam_beta2" in shown
    assert "--hub_token" not in shown


@pytest.mark.parametrize("name", CONSOLE_COMMANDS.values())
def test_help_all_is_left_to_the_recipe(name):
    assert answer(name, ["--help", "all"]) == 0
