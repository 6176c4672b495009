"""Compares checkpoints by fine-tuning them: every model on every fold, with several seeds and training sizes.

One run of a fine-tuning recipe is a cell. Cells run one after the other in this process, each in its own folder below
`cells/`; a study that was interrupted continues with the cell in which it stopped.
"""

import contextlib
import functools
import gc
import io
import itertools
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pandas as pd

from bert_hf import errors
from bert_hf.analysis import study_report
from bert_hf.config.checkpoint_arguments import StudyArguments
from bert_hf.config.files import file_checksum, read_json_object, write_durably
from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.config.package_files import RECIPES, recipe_main
from bert_hf.config.parser import parse
from bert_hf.config.training_arguments import FineTuningArguments
from bert_hf.console import logger, progress
from bert_hf.errors import InputError, check_known
from bert_hf.finetuning.tasks.classification import ClassificationTask
from bert_hf.training.log_lines import TIMES
from bert_hf.training.output_folder import check_no_foreign_files
from bert_hf.training.patching import replaced_attributes

STUDY = "study.json"  # marks a folder as a study's; holds its options
CELL, LOG, RUN = "cell.json", "log.txt", "run"  # a cell's command, its output, the recipe's output folder
PARTS = ("train", "validation", "test")

_FROM_SCRATCH = ":from_scratch"
_MIN_PER_CLASS = 2  # rows of each class in every subset, where the class has as many

# Set by the study for each cell
_SET_BY_STUDY = ("seed", "model_name_or_path", "from_scratch", "overwrite_output_dir", "resume_from_checkpoint")
_SET_BY_FOLDS = ("train_file", "validation_file", "test_file", "dataset_name", "max_train_samples")
# A cell that trains on a subset trains for all of its steps and keeps the last weights: no rows select anything
_NO_SELECTION = ["--eval_strategy", "no", "--load_best_model_at_end", "false"]


def split_argv(argv: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the words of a command line in two lists: a study's options with their values, and all others."""
    names = {"help", *(field.name for field in fields(StudyArguments))}
    ours: list[str] = []
    others: list[str] = []
    current = others
    for word in argv:
        if word.startswith("--"):
            current = ours if word[2:].partition("=")[0] in names else others
        current.append(word)
    return ours, others


@dataclass(frozen=True)
class Model:
    """A checkpoint (`path`: folder or Hub id, may hold `{fold}`), and the options that only its own runs get."""

    name: str
    path: str
    from_scratch: bool = False
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """One run of the recipe; `size` is its number of training rows, None for all of them."""

    model: Model
    fold: int
    size: int | None
    seed: int

    def __str__(self) -> str:
        return f"{self.model.name}/fold-{self.fold}/size-{self.size or 'all'}/seed-{self.seed}"


class Study:
    """A study and its output folder; every cell's recipe gets the options `recipe_argv`."""

    def __init__(self, study_args: StudyArguments, recipe_argv: list[str]):
        names = sorted(path.stem for path in RECIPES.glob("finetune_*.py"))
        check_known(study_args.recipe, names, f"no fine-tuning recipe {study_args.recipe!r}", "--recipe")
        self.args = study_args
        self.recipe_argv = recipe_argv
        self.main = recipe_main(study_args.recipe)
        self.root = Path(study_args.output_dir)
        self.models = parse_models(study_args.models or [])
        self.folds = find_folds(study_args)
        self.sizes = parse_sizes(study_args.train_sizes or ["all"], map(self._train_file, self.folds))
        self.seeds = list(dict.fromkeys(study_args.seeds or (1, 2, 3)))
        self.results: list[dict[str, Any]] = []  # of the finished cells

        order = itertools.product(self.models, self.sizes, self.folds, self.seeds)
        self.cells = [Cell(model, fold, size, seed) for model, size, fold, seed in order]
        set_by_study = {*_SET_BY_STUDY, *(_SET_BY_FOLDS if study_args.folds_dir else ())}
        for word in itertools.chain(recipe_argv, *(model.argv for model in self.models)):
            if word.startswith("--") and word[2:].partition("=")[0] in set_by_study:
                hint = "use --seeds, --models, --train_sizes and --folds_dir"
                raise InputError("set by the study", where=word, remedy=hint)

        counts = f"models {len(self.models)} × sizes {len(self.sizes)} × folds {len(self.folds)}"
        logger.info(f"{len(self.cells)} cells: {counts} × seeds {len(self.seeds)}")

    def run(self) -> int:
        """Run the cells that are not finished, then write `study.csv`, `study.md` and `learning_curve.png`.

        Returns 0, or the exit code of the cell that failed or was stopped. The same command continues there.
        """
        if not (self.root / STUDY).is_file() and (code := self.check()):
            return code  # rather than hours later, at the first cell of that model

        self.root.mkdir(parents=True, exist_ok=True)
        record = {"bert_hf": version("bert-hf"), "options": asdict(self.args), "recipe_argv": self.recipe_argv}
        write_durably(self.root / STUDY, json.dumps(record, indent=2) + "\n")
        for cell in progress(self.cells, "study", "cells"):
            if code := self._run_cell(cell):
                return code

        from_scratch = (model.name for model in self.models if model.from_scratch)
        reference = self.args.reference or next(from_scratch, None)
        for line in study_report.write_report(self.root, self.table, self._reported_metric_names, reference):
            logger.info(line)
        return 0

    def check(self) -> int:
        """Check the folder, and run the recipe's `--check` for each model on all rows; return 0 or its exit code."""
        if not (self.root / STUDY).is_file():
            check_no_foreign_files(self.root, STUDY)
        output = sys.stdout if self.args.check else io.StringIO()  # before a run its lines are not shown
        for model in self.models:
            cell = Cell(model, self.folds[0], None, self.seeds[0])
            if code := self._run_recipe(cell, output, "--check", "true"):
                return code
        return 0

    def _run_cell(self, cell: Cell) -> int:
        """Run and log a cell unless it is finished, and add its results to the table; return 0 or the exit code."""
        begin = time.perf_counter()
        if cell.size is not None:
            self._write_subset(cell)
        run = self.folder(cell) / RUN
        self._record_or_compare(cell)

        # A run with these results is finished: they are the last file but one that it writes
        is_new = not (run / "all_results.json").is_file()
        if is_new:
            with open(self.folder(cell) / LOG, "a", encoding="utf-8", buffering=1) as log:
                code = self._run_recipe(cell, log)
            gc.collect()  # a Trainer and its callbacks refer to each other
            if code:
                return code
            _remove_weights(run)

        self.results.append(table_row(cell, run))
        if len(self.results) == 1:
            self._check_metrics_and_reference()
        study_report.write_table(self.root, self.results)
        if is_new:
            names = [study_report.metric_prefix(self.table) + name for name in self._reported_metric_names]
            metrics = ", ".join(f"{name} {self.results[-1][name]:.4f}" for name in names)
            seconds = time.perf_counter() - begin
            logger.info(f"{len(self.results)} of {len(self.cells)}: {cell}: {metrics} ({seconds:.0f} s)")
        return 0

    @property
    def table(self) -> pd.DataFrame:
        """Return the finished cells, one per row."""
        return pd.DataFrame(self.results)

    @property
    def _reported_metric_names(self) -> list[str]:
        """Return the names in `--metrics`, or the first two of the task besides its loss, without their prefix."""
        return self.args.metrics or [name for name in study_report.metric_names(self.table) if name != "loss"][:2]

    def _record_or_compare(self, cell: Cell) -> None:
        """Write command and checksums of a new cell to `cell.json`; an `InputError` if an old cell's differ."""
        path = self.folder(cell) / CELL
        record = {"argv": self.argv(cell), "files": [file_checksum(file) for file in self.files(cell).values()]}
        before = read_json_object(path)
        if before is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, json.dumps(record, indent=2) + "\n")
        elif before != record:
            remedy = "give another --output_dir, or remove this folder"
            raise InputError("the cell was run with other options or rows", where=path.parent, remedy=remedy)

    def _run_recipe(self, cell: Cell, output: TextIO, *words: str) -> int:
        """Run the recipe with the options of a cell and further words, print to `output`, return the exit code."""
        with contextlib.redirect_stdout(output), replaced_attributes(errors, error_prefix=f"cell {cell}: "):
            return self.main([*self.argv(cell), "--output_dir", str(self.folder(cell) / RUN), *words])

    def _check_metrics_and_reference(self) -> None:
        """Raise an `InputError` if the first finished cell lacks a name in `--metrics` or `--reference`."""
        for name in self.args.metrics or ():
            check_known(name, study_report.metric_names(self.table), f"unknown metric {name!r}", "--metrics")
        if (reference := self.args.reference) is not None:
            names = [*(model.name for model in self.models), *study_report.baseline_names(self.table)]
            check_known(reference, names, f"unknown model or baseline {reference!r}", "--reference")

    def folder(self, cell: Cell) -> Path:
        return self.root / "cells" / str(cell)

    def argv(self, cell: Cell) -> list[str]:
        """Return the command line of a cell, without its output folder."""
        argv = [*self.recipe_argv, *cell.model.argv]
        if cell.size is not None:
            # The last value of an option counts: the user may replace the class names, not `_NO_SELECTION`
            argv = [*self._class_name_options, *argv, *_NO_SELECTION]
        for part, path in self.files(cell).items():
            argv += [f"--{part}_file", str(path)]
        argv += ["--model_name_or_path", cell.model.path.replace("{fold}", str(cell.fold))]
        return [*argv, "--from_scratch", str(cell.model.from_scratch).lower(), "--seed", str(cell.seed)]

    @functools.cached_property
    def _class_name_options(self) -> list[str]:
        """Return `--class_names A B` of the first fold (in a subset the rarer, positive class may differ), or []."""
        if self.args.recipe != "finetune_classification":
            return []
        words = self.argv(Cell(self.models[0], self.folds[0], None, self.seeds[0]))
        task_args, _ = parse((ClassificationArguments, FineTuningArguments), words)
        names = ClassificationTask.label_names(task_args)
        return ["--class_names", *names] if len(names) == 2 else []

    def files(self, cell: Cell) -> dict[str, Path]:
        """Return the data files of a cell by part; none where the recipe's own options name the data."""
        if self.args.folds_dir is None:
            return {}
        files = {part: Path(self.args.folds_dir, f"fold-{cell.fold}", f"{part}.jsonl") for part in PARTS}
        if cell.size is not None:
            subset = self.root / f"subsets/fold-{cell.fold}/{cell.size}.jsonl"
            files |= {"train": subset, "validation": subset}  # the recipe asks for validation rows; nothing uses them
        return files

    def _train_file(self, fold: int) -> Path:
        return Path(str(self.args.folds_dir), f"fold-{fold}", "train.jsonl")

    def _write_subset(self, cell: Cell) -> None:
        """Write a cell's training rows: smaller subsets are part of larger ones, the same for all models and seeds."""
        assert cell.size is not None
        lines = json_lines(self._train_file(cell.fold))
        order = nested_order(classes_of(lines), cell.size, (0, cell.fold))
        text = "".join(lines[row] for row in np.sort(order))

        path = self.files(cell)["train"]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, text)


def _remove_weights(run: Path) -> None:
    """Remove a cell's checkpoints and its model (one file, or shards and their index): a study keeps no weights."""
    for checkpoint in run.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    for path in run.glob("*.safetensors*"):
        path.unlink()


def table_row(cell: Cell, run: Path) -> dict[str, Any]:
    """Return a row of `study.csv`: the place of a cell, and the metrics of its run and baselines, without times.

    A subset has no separate validation rows, so its validation metrics are left out.
    """
    results = json.loads((run / "all_results.json").read_text(encoding="utf-8"))
    prefixes = ("eval_", "test_", "baseline_") if cell.size is None else ("test_", "baseline_")
    metrics = {
        name: value for name, value in results.items() if name.startswith(prefixes) and not name.endswith(TIMES)
    }
    place = {"model": cell.model.name, "train_size": cell.size or "all", "train_rows": results["train_samples"]}
    return {**place, "fold": cell.fold, "seed": cell.seed, **metrics}


def parse_models(entries: list[str]) -> tuple[Model, ...]:
    """Return the models of `--models`: each entry is NAME=PATH or NAME=PATH:from_scratch, and options of its own."""
    models: dict[str, Model] = {}
    for entry in entries or [""]:  # without a model: the error below
        assignment, *argv = shlex.split(entry) or [""]
        name, _, path = assignment.partition("=")
        folder = os.path.expanduser(path.removesuffix(_FROM_SCRATCH))
        if not folder or not re.fullmatch(r"\w[\w.-]*", name) or name in models or name.startswith("baseline"):
            hint = "give NAME=PATH, such as mini=runs/mini, each with its own name (not baseline…)"
            raise InputError(f"invalid model {entry!r}", where="--models", remedy=hint)
        models[name] = Model(name, folder, path.endswith(_FROM_SCRATCH), tuple(argv))
    return tuple(models.values())


def parse_sizes(entries: list[str], train_files: Iterable[Path]) -> tuple[int | None, ...]:
    """Return the numbers of training rows of `--train_sizes` in ascending order, `all` (None) last."""
    numbers = set(entries) - {"all"}  # still texts
    if not numbers:
        return (None,)

    rows = min(len(json_lines(path)) for path in train_files)
    for entry in sorted(numbers):
        if not entry.isdecimal() or not 0 < int(entry) <= rows:
            hint = f"give numbers of training rows up to {rows:,}, or all"
            raise InputError(f"invalid size {entry!r}", where="--train_sizes", remedy=hint)
    sizes = sorted(map(int, numbers))
    return (*sizes, None) if "all" in entries else tuple(sizes)


def find_folds(study_args: StudyArguments) -> tuple[int, ...]:
    """Return the numbers of the folds in `--folds_dir`; (0,) where the recipe's own options name the data."""
    folder = study_args.folds_dir  # needed for numbers of training rows, which are drawn from a fold's file
    if folder is None and set(study_args.train_sizes or ["all"]) == {"all"}:
        return (0,)

    numbers = [int(path.name.removeprefix("fold-")) for path in Path(folder or "").glob("fold-*[0-9]")]
    if folder is None or not numbers:
        hint = "give --folds_dir, a folder made by split.py (--folds 1 makes one split)"
        raise InputError("no folds found", where=folder, remedy=hint)
    return tuple(sorted(numbers))


def json_lines(path: Path) -> list[str]:
    """Return the rows of a fold's JSON lines, each with its line end. (`splitlines` would cut texts at U+2028.)"""
    with open(path, encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n") + "\n" for line in file if line.strip()]


def classes_of(lines: Iterable[str]) -> np.ndarray:
    """Return (N,) the class number of each JSON row; all 0 where a label is no class (a list, a fraction, none)."""
    labels = [json.loads(line).get("label") for line in lines]
    if any(not isinstance(label, str | int) for label in labels):
        return np.zeros(len(labels), dtype=np.int64)
    return np.unique([str(label) for label in labels], return_inverse=True)[1]


def nested_order(classes: np.ndarray, length: int, key: tuple[int, ...]) -> np.ndarray:
    """Return (length,) numbers of rows, in the order in which larger and larger subsets add them.

    `key` shuffles the rows of a class. First come `_MIN_PER_CLASS` rows of each class, then always one of the class
    that is furthest below its share. With classes a a a a a a b b:

        a b a b | a a a a      the first four rows hold two of each class; from then on a, until 6 : 2 is reached
    """
    counts = np.bincount(classes)
    shuffled = np.random.default_rng(key).permutation(len(classes))
    waiting = [iter(shuffled[classes[shuffled] == number]) for number in range(len(counts))]

    # The class at each place of the order: first `_MIN_PER_CLASS` rows of each
    turns = [int(number) for turn in range(_MIN_PER_CLASS) for number in np.flatnonzero(counts > turn)]
    taken = np.bincount(turns, minlength=len(counts))
    for place in range(len(turns), length):
        # Rows of each class that are missing for its share; a class without further rows is not drawn
        missing = np.where(taken < counts, counts * ((place + 1) / len(classes)) - taken, -np.inf)
        number = int(np.argmax(missing))
        taken[number] += 1
        turns.append(number)

    return np.array([next(waiting[number]) for number in turns[:length]])
