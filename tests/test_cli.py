"""The console command, from another directory."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bert_hf import cli
from bert_hf.config.commands import COMMANDS
from bert_hf.config.package_files import COMMAND_VARIABLE, RECIPES, find_accelerate_config, find_config
from bert_hf.errors import InputError
from bert_hf.training.command import command_line, next_command

ROOT = Path(__file__).parents[1]


def bert_hf(folder, *words) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "bert_hf.cli", *map(str, words)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


def test_every_command_runs_a_recipe():
    assert [name for name, command in COMMANDS.items() if not (RECIPES / f"{command.recipe}.py").is_file()] == []


def test_help_and_versions(capsys):
    assert cli.main([]) == 0
    assert cli.main(["env"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)
    assert "transformers: " in shown


def test_a_mistyped_command(capsys):
    assert cli.main(["clasify"]) == 2
    assert capsys.readouterr().err == "error: unknown command 'clasify'; did you mean 'classify'?\n"


def test_configurations_are_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_config("bert-mini-cpu", "pretrain", "finetune") == ROOT / "configs/pretrain/bert-mini-cpu.yaml"
    assert find_config("configs/model/tiny.json", "model") == ROOT / "configs/model/tiny.json"
    assert find_accelerate_config("zero2").name in ("zero2.yaml", "cpu_zero2.yaml")
    with pytest.raises(InputError, match="did you mean 'bert-mini-cpu'"):
        find_config("bert-mini-cup", "pretrain")

    (tmp_path / "tiny").mkdir()
    assert find_config("tiny", "model", suffix=".json") == Path("tiny")


def test_commands_of_a_console_run(monkeypatch):
    monkeypatch.setenv(COMMAND_VARIABLE, "bert-hf pretrain --max_steps 2")
    assert command_line() == "bert-hf pretrain --max_steps 2"
    assert next_command("classify", "--output_dir", "a b").endswith("bert-hf classify --output_dir 'a b'")


def test_a_run_from_another_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bert-hf"])
    words = ["pretrain", "--config", "bert-mini-cpu", "--check", "--train_file", str(RECIPES / "pretrain.py")]
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("error: ")
    assert "configs" not in error  # the configurations were found, and the file is none of text


@pytest.mark.slow
@pytest.mark.parametrize("machine", [("--num_processes", "2"), ("--accelerate_config", "cpu_zero2")])
def test_an_error_of_several_ranks_is_the_last_line(tmp_path, machine):
    words = ("--model_name_or_path", "missing", "--train_file", ROOT / "pyproject.toml")
    run = bert_hf(tmp_path, "classify", *machine, *words)
    assert run.returncode == 2
    assert run.stderr.count("error:") == 1
    assert run.stderr.splitlines()[-1].startswith("error: ")


@pytest.mark.slow
def test_the_wheel_holds_recipes_and_configurations(tmp_path):
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT]
    pytest.importorskip("build")
    subprocess.run(command, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    for folder in ("recipes", "configs"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in (".py", ".yaml", ".json"):
                assert f"bert_hf/{path.relative_to(ROOT)}" in names
