"""Compares checkpoints by fine-tuning them: every model on every fold, with several seeds and training sizes.

One run of a fine-tuning recipe is a cell. Cells run one after the other in this process, each in its own folder below
`cells/`; a study that was interrupted continues with the cell in which it stopped.
"""

import contextlib
import gc
import importlib
import itertools
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bert_hf.analysis.study_report import (
    Row,
    cell_metrics,
    check_metrics,
    check_reference,
    format_metrics,
    write_report,
    write_table,
)
from bert_hf.config.arguments import option
from bert_hf.config.files import check_input_file, read_json_object, write_durably
from bert_hf.data.corpus.checksums import file_checksum
from bert_hf.errors import InputError, check_known, error_context, mask_secrets
from bert_hf.training.output_folder import RUN_RECORD, refuse_foreign_files

STUDY = "study.json"  # marks a folder as a study's; what was asked
CELL, LOG, RUN = "cell.json", "log.txt", "run"  # a cell's command and inputs, its output, the recipe's output folder
PARTS = ("train", "validation", "test")

_FROM_SCRATCH = ":from_scratch"
_MIN_PER_CLASS = 2  # rows of each class in every subset, where the class has as many

# Set by the study for each cell
_SET_BY_STUDY = ("seed", "model_name_or_path", "from_scratch", "overwrite_output_dir", "resume_from_checkpoint")
_SET_BY_FOLDS = ("train_file", "validation_file", "test_file", "dataset_name", "max_train_samples")
# A cell that trains on a subset trains for all of its steps and keeps the last weights: no rows select anything
_NO_SELECTION = ["--eval_strategy", "no", "--load_best_model_at_end", "false"]
_SELECTION = ("eval_strategy", "eval_steps", "load_best_model_at_end", "metric_for_best_model", "greater_is_better")

# Removed from a finished cell, unless its model is kept
_MODEL_FILES = ("*.safetensors", "*.safetensors.index.json", "tokenizer*.json", "vocab.txt", "checkpoint-*")

Main = Callable[[list[str]], int]  # a recipe's `main`


@dataclass
class StudyArguments:
    """Which cells a study has, and which metrics are compared."""

    models: list[str] | None = option(
        None,
        "NAME=PATH or NAME=PATH:from_scratch (its shape with random weights), …; {fold} in a path is the fold's "
        "number. 'NAME=PATH --OPTION VALUE' adds options for this model.",
    )
    recipe: str = option("finetune_classification", "The fine-tuning recipe.")
    folds_dir: str | None = option(
        None,
        "Folder made by split.py: fold-N/{train,validation,test}.jsonl. Without it the recipe's options name data.",
    )
    seeds: list[int] | None = option(None, "Seeds; one run each. By default 1 2 3.")
    train_sizes: list[str] | None = option(None, "Numbers of training rows, such as 50 500 all. By default all.")
    metrics: list[str] | None = option(None, "Metrics to compare, such as f1. By default the usual ones of the task.")
    reference: str | None = option(
        None, "Model or baseline that the others are compared with. By default the first model with random weights."
    )
    keep_models: bool = option(False, "Keep the weights of finished cells.")
    check: bool = option(False, "Only check the options and the files that the cells would read.")
    output_dir: str = option("runs/study", "Where the study writes.")

    def __post_init__(self):
        self.seeds = list(dict.fromkeys(self.seeds or (1, 2, 3)))
        self.train_sizes = list(dict.fromkeys(self.train_sizes or ("all",)))


def split_argv(argv: list[str]) -> tuple[list[str], list[str]]:
    """Divides a command line into the words for the study and those for its recipe.

    >>> split_argv(["--seeds", "1", "2", "--learning_rate", "1e-4", "--keep_models"])
    (['--seeds', '1', '2', '--keep_models'], ['--learning_rate', '1e-4'])
    """
    names = {field.name for field in fields(StudyArguments)} | {"help"}
    ours: list[str] = []
    others: list[str] = []
    current = ours
    for word in argv:
        if word.startswith("--"):
            current = ours if word[2:].partition("=")[0] in names else others
        current.append(word)
    return ours, others


def recipe_main(folder: Path, name: str) -> Main:
    """`main` of a fine-tuning recipe in the folder of the recipes."""
    names = sorted(path.stem for path in folder.glob("finetune_*.py"))
    check_known(name, names, f"no fine-tuning recipe {name!r}", "--recipe")
    if str(folder) not in sys.path:  # it is there where a recipe runs as a script
        sys.path.append(str(folder))
    return importlib.import_module(name).main


# ---- what a study consists of


@dataclass(frozen=True)
class Model:
    """A checkpoint (`path`: folder or Hub id, may hold `{fold}`), and the options that only its cells get."""

    name: str
    path: str
    from_scratch: bool = False
    argv: tuple[str, ...] = ()

    def path_of(self, fold: int) -> str:
        return self.path.replace("{fold}", str(fold))


@dataclass(frozen=True)
class Cell:
    """One run of the recipe; `size` is its number of training rows, None for all of them."""

    model: Model
    fold: int
    size: int | None
    seed: int

    @property
    def size_name(self) -> str:
        return "all" if self.size is None else str(self.size)

    def __str__(self) -> str:
        return f"{self.model.name}/fold-{self.fold}/size-{self.size_name}/seed-{self.seed}"


class CellFailed(Exception):
    """The recipe of a cell ended with this exit code, after it had printed why."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


class Study:
    """A study and its output folder.

    Args:
        recipe_argv: options that every cell's recipe gets.
        main: of the recipe.
        report: prints a line.

    Raises:
        InputError: a model, size or fold is malformed, missing or given twice.
    """

    def __init__(self, study_args: StudyArguments, recipe_argv: list[str], main: Main, report: Callable = print):
        self.args, self.recipe_argv, self.main, self.report = study_args, recipe_argv, main, report
        self.root = Path(study_args.output_dir)
        self.models = parse_models(study_args.models or [])
        self.sizes = parse_sizes(study_args.train_sizes or [])
        self.folds = find_folds(study_args.folds_dir)
        self.rows: list[Row] = []  # of the finished cells

        if study_args.folds_dir is None and self.sizes != (None,):
            hint = "give --folds_dir, a folder made by split.py (--folds 1 makes one split)"
            raise InputError("subsets are drawn from the training rows of a fold", where="--train_sizes", remedy=hint)
        for argv in (recipe_argv, *(model.argv for model in self.models)):
            self._refuse_set_options(argv)
        if study_args.reference is not None and not study_args.reference.startswith("baseline"):
            check_reference(study_args.reference, [model.name for model in self.models])

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells, in the order of the tables."""
        order = itertools.product(self.models, self.sizes, self.folds, self.args.seeds or ())
        return [Cell(model, fold, size, seed) for model, size, fold, seed in order]

    def _refuse_set_options(self, argv: Iterable[str]) -> None:
        taken = {*_SET_BY_STUDY, *(_SET_BY_FOLDS if self.args.folds_dir else ())}
        for word in argv:
            name = word[2:].partition("=")[0]
            if word.startswith("--") and name in taken:
                hint = "use --seeds, --models, --train_sizes and --folds_dir"
                raise InputError("the study sets it for each cell", where=f"--{name}", remedy=hint)

    # ---- running

    def check(self) -> int:
        """Lets the recipe check the first cell of each model, and prints what it reports; returns its exit code."""
        self._refuse_foreign_folder()
        self.report(self._size())
        try:
            self._check_models()
        except CellFailed as failure:
            return failure.code
        return 0

    def run(self) -> int:
        """Runs the cells that are not finished, then writes `study.csv`, `study.md` and `learning_curve.png`.

        Returns:
            0; or the exit code of the cell that failed or was stopped. The same command continues there.

        Raises:
            InputError: the output folder is not a study's, or a cell was run with other files.
        """
        try:
            self._begin()
            for number, cell in enumerate(self.cells, 1):
                begin = time.perf_counter()
                called = self._run_cell(cell)
                self.rows.append(
                    Row(cell, self._training_rows(cell), cell_metrics(self.folder(cell) / RUN, cell.size is None))
                )
                if number == 1:
                    check_metrics(self.args.metrics or [], self.rows)
                if called:
                    results = format_metrics(self.rows[-1], self.args.metrics)
                    seconds = time.perf_counter() - begin
                    self.report(f"{number} of {len(self.cells)}: {cell}: {results} ({seconds:.0f} s)")
                    write_table(self.root, self.rows)
        except CellFailed as failure:
            return failure.code

        write_table(self.root, self.rows)
        for line in write_report(self.root, self.rows, self.args.metrics, self._reference(), self._description()):
            self.report(line)
        return 0

    def _begin(self) -> None:
        """Creates the output folder, after the recipe has accepted its options: a refused study leaves nothing."""
        if not (self.root / STUDY).is_file():
            self._refuse_foreign_folder()
            with contextlib.redirect_stdout(None):
                self._check_models()
        self.root.mkdir(parents=True, exist_ok=True)

        asked = {**vars(self.args), "passed_on": self.recipe_argv}
        text = json.dumps({"bert_hf": version("bert-hf"), "asked": asked}, indent=2)
        write_durably(self.root / STUDY, mask_secrets(text) + "\n")
        self.report(self._size())

    def _refuse_foreign_folder(self) -> None:
        if not (self.root / STUDY).is_file():
            refuse_foreign_files(self.root, overwrite=False, known_by=STUDY)

    def _check_models(self) -> None:
        """Subsets are not written yet, so a cell on all rows of the first fold is checked."""
        for model in self.models:
            cell = Cell(model, self.folds[0], None, (self.args.seeds or [1])[0])
            argv = [*self.argv(cell), "--output_dir", str(self.folder(cell) / RUN), "--check", "true"]
            with error_context(f"cell {cell}"):
                code = self.main(argv)
            if code:
                raise CellFailed(code)

    def _run_cell(self, cell: Cell) -> bool:
        """Runs a cell unless it is finished; True if the recipe was called.

        Raises:
            CellFailed: with the recipe's exit code.
            InputError: the cell was run before on other files.
        """
        if cell.size is not None:
            self._write_subset(cell)
        folder = self.folder(cell)
        argv = self.argv(cell)
        record = {"argv": list(map(mask_secrets, argv)), "inputs": self._inputs(cell)}
        before = read_json_object(folder / CELL)
        if before is not None and before.get("inputs") != record["inputs"]:
            hint = "give another --output_dir, or remove this folder"
            raise InputError("the cell was run with other files", where=folder, remedy=hint)
        if before == record and is_finished(folder / RUN):
            return False

        # Where the command has changed, the recipe itself decides whether it is the same run
        folder.mkdir(parents=True, exist_ok=True)
        if before is None:
            write_durably(folder / CELL, json.dumps(record, indent=2) + "\n")
        code = self._call([*argv, "--output_dir", str(folder / RUN)], cell)
        if code:
            raise CellFailed(code)

        write_durably(folder / CELL, json.dumps(record, indent=2) + "\n")
        if not self.args.keep_models:
            _remove_model(folder / RUN)
        return True

    def _call(self, argv: list[str], cell: Cell) -> int:
        with open(self.folder(cell) / LOG, "a", encoding="utf-8", buffering=1) as log:
            try:
                with contextlib.redirect_stdout(log), error_context(f"cell {cell}"):
                    return self.main(argv)
            finally:
                gc.collect()  # a Trainer and its callbacks refer to each other

    # ---- the command and the files of a cell

    def folder(self, cell: Cell) -> Path:
        return self.root / "cells" / str(cell)

    def argv(self, cell: Cell) -> list[str]:
        """The command line of a cell, without its output folder."""
        argv = [*self.recipe_argv, *cell.model.argv]
        if cell.size is not None:
            argv = [*without_options(argv, _SELECTION), *_NO_SELECTION]
        argv += [word for part, path in self.files(cell).items() for word in (f"--{part}_file", str(path))]
        argv += ["--model_name_or_path", cell.model.path_of(cell.fold)]
        return [*argv, "--from_scratch", str(cell.model.from_scratch).lower(), "--seed", str(cell.seed)]

    def files(self, cell: Cell) -> dict[str, Path]:
        """The data files of a cell by part; none where the recipe's own options name the data."""
        if self.args.folds_dir is None:
            return {}
        files = {part: Path(self.args.folds_dir, f"fold-{cell.fold}", f"{part}.jsonl") for part in PARTS}
        if cell.size is not None:
            subset = self.root / f"subsets/fold-{cell.fold}/{cell.size}.jsonl"
            files |= {"train": subset, "validation": subset}  # the recipe asks for validation rows; nothing uses them
        return files

    def _inputs(self, cell: Cell) -> dict[str, Any]:
        """Checksums of the data and of the checkpoint. (A run compares its data itself, but not its checkpoint.)"""
        checksums: dict[str, Any] = {part: file_checksum(path) for part, path in self.files(cell).items()}
        checkpoint = Path(cell.model.path_of(cell.fold))
        names = ("config.json", "tokenizer.json", "vocab.txt")
        paths = [checkpoint / name for name in names]
        if not cell.model.from_scratch:
            paths += sorted(checkpoint.glob("*.safetensors"))
        return {**checksums, "model": [file_checksum(path) for path in paths if path.is_file()]}

    def _training_rows(self, cell: Cell) -> int | None:
        """Rows that a cell trains on; None where only the recipe knows."""
        if cell.size is not None or self.args.folds_dir is None:
            return cell.size
        return len(_lines(self.files(cell)["train"]))

    def _write_subset(self, cell: Cell) -> None:
        """A smaller subset is part of a larger one, and all models and seeds of a fold get the same rows."""
        assert cell.size is not None
        source = Path(str(self.args.folds_dir), f"fold-{cell.fold}", "train.jsonl")
        lines = _lines(source)
        if not cell.size <= len(lines):
            hint = f"give at most {len(lines)}, or all"
            raise InputError(f"--train_sizes {cell.size}, but the file has fewer rows", where=source, remedy=hint)

        order = nested_order(classes_of(lines), cell.size, (0, cell.fold))
        text = "".join(lines[row] for row in np.sort(order))
        path = self.files(cell)["train"]
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, text)

    # ---- description

    def _size(self) -> str:
        factors = {"models": self.models, "sizes": self.sizes, "folds": self.folds, "seeds": self.args.seeds or ()}
        return f"{len(self.cells)} cells: {' × '.join(f'{len(values)} {name}' for name, values in factors.items())}"

    def _reference(self) -> str | None:
        scratch = (model.name for model in self.models if model.from_scratch)
        return self.args.reference or next(scratch, None)

    def _description(self) -> list[str]:
        data = f"the folds in `{self.args.folds_dir}`" if self.args.folds_dir else "the data that its options name"
        options = mask_secrets(" ".join(self.recipe_argv)) or "none"
        lines = [f"- recipe `{self.args.recipe}` on {data}; options for every cell: `{options}`"]
        for model in self.models:
            kind = f"the shape of `{model.path}` with random weights" if model.from_scratch else f"`{model.path}`"
            own = f", `{mask_secrets(' '.join(model.argv))}`" if model.argv else ""
            lines.append(f"- {model.name}: {kind}{own}")
        if self.sizes != (None,):
            lines.append(
                "- A subset of the training rows is the same for all models and seeds of a fold. Models train on it "
                "for all steps, and no rows select weights; the baselines get the same rows."
            )
        return lines


def parse_models(entries: list[str]) -> tuple[Model, ...]:
    """The models of `--models`.

    Raises:
        InputError: an entry is not NAME=PATH, or a name is given twice.
    """
    models: dict[str, Model] = {}
    for entry in entries:
        named, *argv = shlex.split(entry) or [""]
        name, _, path = named.partition("=")
        folder = os.path.expanduser(path.removesuffix(_FROM_SCRATCH))
        if not folder or not re.fullmatch(r"\w[\w.-]*", name) or name in models or name.startswith("baseline"):
            hint = "give each model as NAME=PATH, with a name of its own that does not begin with 'baseline'"
            raise InputError(f"invalid model {entry!r}", where="--models", remedy=hint)
        models[name] = Model(name, folder, path.endswith(_FROM_SCRATCH), tuple(argv))

    if not models:
        raise InputError("missing", where="--models", remedy="give NAME=PATH, such as mini=runs/mini")
    return tuple(models.values())


def parse_sizes(entries: list[str]) -> tuple[int | None, ...]:
    """The sizes in ascending order, `all` (None) last."""
    for entry in entries:
        if entry != "all" and not re.fullmatch(r"[1-9]\d{0,9}", entry):
            hint = "give numbers of training rows, or all"
            raise InputError(f"invalid size {entry!r}", where="--train_sizes", remedy=hint)
    numbers: list[int | None] = [*sorted({int(entry) for entry in entries if entry != "all"})]
    return (*numbers, None) if "all" in entries else tuple(numbers)


def find_folds(folds_dir: str | None) -> tuple[int, ...]:
    """The numbers of the folds in a folder; 0 without one.

    Raises:
        InputError: there are none, or a file of one is missing.
    """
    if folds_dir is None:
        return (0,)

    hint = "give a folder made by split.py: fold-0/train.jsonl, …"
    numbers = sorted(int(path.name[5:]) for path in Path(folds_dir).glob("fold-*") if path.name[5:].isdigit())
    if not numbers:
        raise InputError("no folds found", where=folds_dir, remedy=hint)
    for number, part in itertools.product(numbers, PARTS):
        check_input_file(Path(folds_dir, f"fold-{number}", f"{part}.jsonl"), hint)
    return tuple(numbers)


def without_options(argv: Iterable[str], names: Iterable[str]) -> list[str]:
    """The words of a command line without some options and their values.

    >>> without_options(["--eval_steps", "5", "--seed=1", "--fp16"], ["eval_steps"])
    ['--seed=1', '--fp16']
    """
    dropped = set(names)
    kept: list[str] = []
    keeps = True
    for word in argv:
        if word.startswith("--"):
            keeps = word[2:].partition("=")[0] not in dropped
        if keeps:
            kept.append(word)
    return kept


def is_finished(run: Path) -> bool:
    """Whether a recipe's output folder holds a finished run."""
    record = read_json_object(run / RUN_RECORD) or {}
    return record.get("finished") is True and (run / "all_results.json").is_file()


def _remove_model(run: Path) -> None:
    for path in itertools.chain.from_iterable(run.glob(pattern) for pattern in _MODEL_FILES):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _lines(path: Path) -> list[str]:
    """The rows of a fold's file, each with its line end."""
    return [line.rstrip("\n") + "\n" for line in path.read_text(encoding="utf-8").splitlines(True) if line.strip()]


# ---- subsets of the training rows


def classes_of(lines: Iterable[str]) -> np.ndarray:
    """(N,) number of the class of each JSON row; all 0 where the labels are not classes (lists, fractions, none)."""
    labels = [json.loads(line).get("label") for line in lines]
    if any(not isinstance(label, str | int) for label in labels):
        return np.zeros(len(labels), dtype=np.int64)
    return np.unique([str(label) for label in labels], return_inverse=True)[1]


def nested_order(classes: np.ndarray, length: int, key: tuple[int, ...]) -> np.ndarray:
    """(length,) rows in the order in which subsets take them up.

    The rows of a class are shuffled. First come `_MIN_PER_CLASS` rows of each class, then always one of the class that
    is furthest below its share. With classes a a a a a a b b:

        a b a b | a a a a      the first four rows hold two of each class; from then on a, until 6 : 2 is reached

    Args:
        classes: (N,) class numbers from 0.
        key: seeds.
    """
    counts = np.bincount(classes)
    shuffled = np.random.default_rng(key).permutation(len(classes))
    waiting = [iter(shuffled[classes[shuffled] == number]) for number in range(len(counts))]

    # The class of each place of the order
    turns = [int(number) for turn in range(_MIN_PER_CLASS) for number in np.flatnonzero(counts > turn)]
    taken = np.bincount(turns, minlength=len(counts))
    for place in range(len(turns), length):
        missing = np.where(taken < counts, counts * ((place + 1) / len(classes)) - taken, -np.inf)
        number = int(np.argmax(missing))
        taken[number] += 1
        turns.append(number)

    return np.array([next(waiting[number]) for number in turns[:length]])
