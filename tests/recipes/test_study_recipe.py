"""recipes/study.py over the classification recipe: cells in one process, and a study that is killed three times."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from helpers.recipe_runs import ROOT, recipe
from tiny import PIECES, save_tiny_bert

from bert_hf.analysis import study


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two folds of rows whose second word tells their class, and checkpoints of two widths."""
    folder = tmp_path_factory.mktemp("study")
    rng = np.random.default_rng(0)
    for fold in range(2):
        (folder / f"folds/fold-{fold}").mkdir(parents=True)
        for part, count in (("train", 48), ("validation", 24), ("test", 24)):
            lines = []
            for number in range(count):
                argv = [*rng.choice(PIECES[:60], 2), f"w{10 + number % 2}", *rng.choice(PIECES[:60], 6)]
                lines.append(json.dumps({"text": " ".join(argv), "label": ("ham", "spam")[number % 2]}) + "\n")
            (folder / f"folds/fold-{fold}/{part}.jsonl").write_text("".join(lines))

    save_tiny_bert(folder / "narrow")
    save_tiny_bert(folder / "wide", hidden_size=64)
    return folder


def argv(place, output, *others, models=("narrow", "wide"), steps=4):
    named = [f"{name}={place / name}" for name in models]
    data = ["--folds_dir", str(place / "folds"), "--output_dir", str(place / output)]
    run = ["--max_seq_length", "32", "--use_cpu", "--bf16", "false", "--num_train_epochs", "1"]
    return ["--models", *named, *data, *run, "--disable_tqdm", "true", "--min_steps", str(steps), *others]


def table(folder: Path) -> list[dict[str, str]]:
    with open(folder / "study.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_cell_after_others_equals_the_same_cell_alone(place, capsys, monkeypatch):
    """Weights and metrics of a model that runs after one of another width in the same process."""
    call, weights = study.Study._run_recipe, {}

    def kept(self, cell, *others):  # the study removes the weights after a cell
        code = call(self, cell, *others)
        for path in (self.folder(cell) / "run").glob("model.safetensors"):
            weights[path.relative_to(place)] = path.read_bytes()
        return code

    monkeypatch.setattr(study.Study, "_run_recipe", kept)
    (place / "one-fold").mkdir()
    (place / "one-fold/fold-0").symlink_to(place / "folds/fold-0")
    plan = ("--train_sizes", "20", "--seeds", "1", "--folds_dir", str(place / "one-fold"))
    assert recipe("study")(argv(place, "both", *plan)) == 0
    said = capsys.readouterr().out
    assert "2 of 2: wide/fold-0/size-20/seed-1: test_f1" in said
    assert "step " not in said  # the recipe's own lines are in the cells' logs
    assert recipe("study")(argv(place, "alone", *plan, models=("wide",))) == 0

    cell = "cells/wide/fold-0/size-20/seed-1/run/model.safetensors"
    assert weights[Path("both", cell)] == weights[Path("alone", cell)]
    assert table(place / "both")[1:] == table(place / "alone")
    assert "rows" in (place / "both/cells/wide/fold-0/size-20/seed-1/log.txt").read_text()


def test_check_asks_the_recipe_and_writes_nothing(place, capsys):
    assert recipe("study")(argv(place, "checked", "--train_sizes", "20", "--check", "true")) == 0
    said = capsys.readouterr().out
    assert "12 cells: models 2 × sizes 1 × folds 2 × seeds 3" in said
    assert said.count("  run: ") == 2  # the recipe's check, once for each model
    assert not (place / "checked").exists()


@pytest.mark.slow
def test_killed_three_times_it_ends_with_the_same_bytes(place):
    """SIGKILL, SIGTERM (with exit code 143) and SIGKILL, each while a cell trains."""
    plan = ("--seeds", "1", "2", "--train_sizes", "20", "all", "--save_steps", "10", "--logging_steps", "5")
    size = {"models": ("narrow",), "steps": 60}
    assert recipe("study")(argv(place, "undisturbed", *plan, **size)) == 0

    folder = place / "killed"
    command = [sys.executable, str(ROOT / "recipes/study.py"), *argv(place, "killed", *plan, **size)]
    for number, kind in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=dict(os.environ))
        wait_for_checkpoint(folder, unfinished_after=2 * number + 1, process=process)
        process.send_signal(kind)
        _, said = process.communicate()
        if kind == signal.SIGTERM:
            assert process.returncode == 143
            assert said.startswith(b"SIGTERM") or b"stopped: cell " in said

    assert not (folder / "study.md").exists()
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0
    for name in ("study.csv", "study.md"):
        assert (folder / name).read_bytes() == (place / "undisturbed" / name).read_bytes()
    logs = [path.read_text() for path in folder.rglob("log.txt")]
    assert sum("resuming from" in log for log in logs) == 3


def wait_for_checkpoint(folder: Path, unfinished_after: int, process) -> None:
    """Waits until so many cells are finished and the next one has saved a checkpoint."""
    while process.poll() is None:
        finished = len(list(folder.glob("cells/*/*/*/*/run/all_results.json")))
        running = [path for path in folder.glob("cells/*/*/*/*/run/checkpoint-*") if not finished_run(path.parent)]
        if finished >= unfinished_after and running:
            return
        time.sleep(0.02)
    pytest.fail(f"it ended before, with {process.returncode}")


def finished_run(run: Path) -> bool:
    return (run / "all_results.json").is_file()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_cells(place, monkeypatch):
    """After the first six cells, 24 further ones add less than 20 MB, and no threads or open files."""
    process, seen = psutil.Process(), []
    run = study.Study._run_cell

    def measured(self, cell):
        code = run(self, cell)
        seen.append((process.memory_info().rss / 1e6, process.num_threads(), process.num_fds()))
        return code

    monkeypatch.setattr(study.Study, "_run_cell", measured)
    seeds = [str(seed) for seed in range(15)]
    assert recipe("study")(argv(place, "many", "--train_sizes", "10", "--seeds", *seeds, models=("narrow",))) == 0
    assert len(seen) == 30
    assert seen[-1][0] - seen[5][0] < 20
    assert seen[-1][1:] == seen[5][1:]
