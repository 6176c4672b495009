"""Studies of a recipe that trains nothing: its metrics are computed from its command line."""

import hashlib
import json
import random
from pathlib import Path

from bert_hf.analysis.study import Study, split_argv
from bert_hf.config.checkpoint_arguments import StudyArguments
from bert_hf.config.parser import parse
from bert_hf.errors import InputError, one_line_errors


class Killed(BaseException):
    """In place of SIGKILL: nothing may be done after it."""


class FakeRecipe:
    """A recipe's `main`: it writes what a run writes, its metrics depend on the command and the training rows alone.

    Args:
        kill_at: numbers of the calls (from 1) that are killed after the run began.
        codes: exit codes by number of the call.
        test_labels: without them there are no test metrics.
    """

    def __init__(self, kill_at: tuple[int, ...] = (), codes: dict[int, int] | None = None, test_labels: bool = True):
        self.kill_at = kill_at
        self.codes = codes or {}
        self.test_labels = test_labels
        self.calls: list[dict[str, str]] = []
        self.checks: list[dict[str, str]] = []

    def __call__(self, argv: list[str]) -> int:
        return one_line_errors(self._run)(argv)

    def _run(self, argv: list[str]) -> int:
        given = options(argv)
        if "check" in given:
            self.checks.append(given)
            if "num_train_epochs" in given:
                float(given["num_train_epochs"])
            return 0

        self.calls.append(given)
        print("step 1 of 2")
        run = Path(given["output_dir"])
        run.mkdir(parents=True, exist_ok=True)
        number = len(self.calls)
        if number in self.kill_at:
            raise Killed
        if self.codes.get(number) == 2:
            raise InputError("no label", where="rows.jsonl", line=3, remedy="label it")
        if number in self.codes:
            return self.codes[number]

        (run / "model.safetensors").write_text("weights")
        (run / "checkpoint-2").mkdir(exist_ok=True)
        metrics = metrics_of(given)
        if not self.test_labels:
            metrics = {name: value for name, value in metrics.items() if not name.startswith("test_")}
        (run / "all_results.json").write_text(json.dumps(metrics))
        return 0


def options(argv: list[str]) -> dict[str, str]:
    """The command line by option; the last value of each counts."""
    found: dict[str, str] = {}
    name = ""
    for word in argv:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            found[name] = value
        else:
            found[name] = word
    return found


def metrics_of(given: dict[str, str]) -> dict[str, float]:
    """Metrics that look like those of a run."""
    read = [Path(given[name]).read_text() for name in ("train_file", "test_file") if given.get(name)]
    names = ("model_name_or_path", "from_scratch", "seed", "learning_rate")
    key = json.dumps([*read, *(given.get(name) for name in names)])
    draw = random.Random(hashlib.sha256(key.encode()).digest())
    rows = Path(given["train_file"]).read_text().count("\n") if "train_file" in given else 100
    metrics = {"eval_f1": draw.random(), "eval_loss": 0.9, "eval_runtime": draw.random()}
    metrics |= {"train_loss": 0.1, "epoch": 3.0, "train_samples": rows}
    metrics |= {"test_f1": draw.random(), "test_average_precision": draw.random(), "test_runtime": 1.0}
    metrics |= {"test_loss": 0.7}  # which baselines do not have
    metrics |= {"baseline_characters_f1": 0.4, "baseline_characters_average_precision": 0.5}
    metrics |= {"baseline_majority_f1": 0.0, "baseline_majority_average_precision": 0.1}
    return metrics


def write_folds(folder: Path, folds: int = 2, rows: int = 60, labels: str = "aabbbc") -> Path:
    """Folds of rows of these labels in turn: a third of the rows are of class a, half b, the rest c."""
    for fold in range(folds):
        (folder / f"fold-{fold}").mkdir(parents=True)
        for part, share in (("train", 1), ("validation", 2), ("test", 3)):
            lines = [
                json.dumps({"text": f"{part} {fold} {number}", "label": labels[number % len(labels)]}) + "\n"
                for number in range(rows // share)
            ]
            (folder / f"fold-{fold}/{part}.jsonl").write_text("".join(lines))
    return folder


def make_study(argv: list[str], recipe: FakeRecipe) -> Study:
    """A study of a command line."""
    ours, recipe_argv = split_argv(argv)
    (options,) = parse((StudyArguments,), ours)
    study = Study(options, recipe_argv)
    study.main = recipe
    return study
