"""Plans a study: its models, folds, training sizes, settings, and the command of each cell."""

import itertools
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from bert_hf.analysis.study.arguments import (
    CLASSIFICATION,
    StudyArguments,
    refuse_other_rows,
    refuse_set_options,
)
from bert_hf.analysis.study.recipe_options import recipe_options, without_options
from bert_hf.analysis.study.subsets import TrainingSubsets
from bert_hf.config.files import check_input_file
from bert_hf.data.text.readers import count_rows
from bert_hf.errors import InputError, did_you_mean
from bert_hf.finetuning.known_tasks import TASKS

PARTS = ("train", "validation", "test")
_FROM_SCRATCH = ":from_scratch"

# A subset's cell trains for all of its steps and keeps the last weights: nothing is chosen by validation rows.
_NO_SELECTION = ["--eval_strategy", "no", "--load_best_model_at_end", "false"]
# Options that have no effect then, and are refused
_WITHOUT_EVALUATION = ("eval_steps", "eval_delay", "metric_for_best_model", "greater_is_better")

# The baselines that a recipe may report, as the tables name them
_BASELINES = {
    CLASSIFICATION: ("baseline_majority", "baseline_mean", "baseline_words", "baseline_characters"),
    "finetune_multiple_choice": ("baseline",),
}

Settings = tuple[tuple[str, str], ...]  # options of the recipe and their values, in the order of --grid


@dataclass(frozen=True)
class Model:
    """A checkpoint by the name that it has in the study's tables.

    Attributes:
        path: folder or Hub id; may hold `{fold}`.
        argv: options of the recipe that only this model's cells get.
    """

    name: str
    path: str
    from_scratch: bool = False
    argv: tuple[str, ...] = ()

    def path_of(self, fold: int) -> str:
        """Folder or Hub id of the checkpoint for a fold."""
        return self.path.replace("{fold}", str(fold))


@dataclass(frozen=True)
class Fold:
    """A division into training, validation and test rows; without a folder the recipe's own options name the data."""

    number: int
    folder: Path | None = None

    def file(self, part: str) -> Path:
        """Its file of `train`, `validation` or `test` rows."""
        assert self.folder is not None
        return self.folder / f"{part}.jsonl"


@dataclass(frozen=True)
class Cell:
    """One run of the recipe.

    Attributes:
        size: training rows; None: all.
        settings: of the grid; empty without one.
        tuning: it is evaluated on validation rows alone, in order to choose the settings.
    """

    model: Model
    fold: Fold
    size: int | None
    seed: int
    settings: Settings = ()
    tuning: bool = False

    @property
    def size_name(self) -> str:
        return "all" if self.size is None else str(self.size)

    @property
    def path(self) -> str:
        """The cell's folder below `cells/`, made of its coordinates alone: `mini/fold-0/size-100/seed-1`."""
        settings = [f"{key}={quote(value, safe='')}" for key, value in self.settings]
        last = ",".join([f"seed-{self.seed}", *settings, *(["search"] if self.tuning else [])])
        return f"{self.model.name}/fold-{self.fold.number}/size-{self.size_name}/{last}"

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class Plan:
    """All that a study does.

    Attributes:
        recipe_argv: arguments of the command line that every cell's recipe gets.
        recipe_options: the options that these give, and their values; those of --config included.
        grid: the combinations of settings that are compared; one empty combination without a grid.
        subsets: of each fold's training rows; none where every cell trains on all rows.
    """

    study_args: StudyArguments
    recipe_argv: tuple[str, ...]
    recipe_options: dict[str, list[str]]
    models: tuple[Model, ...]
    folds: tuple[Fold, ...]
    sizes: tuple[int | None, ...]
    seeds: tuple[int, ...]
    grid: tuple[Settings, ...]
    subsets: dict[int, TrainingSubsets]

    @property
    def root(self) -> Path:
        return Path(self.study_args.output_dir)

    @property
    def tunes(self) -> bool:
        """True where there are settings to choose from."""
        return len(self.grid) > 1

    @property
    def task_metric(self) -> str | None:
        """The metric by which the benchmark of `--task` is reported; None without such a task."""
        name = "".join(self.recipe_options.get("task", []))  # it has one value
        task = TASKS.get(name)
        return None if task is None else task.metric.metric_names[0]

    def groups(self) -> Iterator[tuple[Model, int | None, Fold]]:
        """(model, size, fold) in the order of the tables; each chooses its own settings."""
        for model in self.models:
            for size in self.sizes:
                for fold in self.folds:
                    yield model, size, fold

    def tuning_cells(self, model: Model, size: int | None, fold: Fold) -> list[Cell]:
        """The cells that choose the settings of a group; none where there is nothing to choose."""
        if not self.tunes:
            return []
        return [Cell(model, fold, size, seed, settings, tuning=True) for settings in self.grid for seed in self.seeds]

    def final_cells(self, model: Model, size: int | None, fold: Fold, settings: Settings) -> list[Cell]:
        """The cells of a group that are evaluated on test rows, one a seed."""
        return [Cell(model, fold, size, seed, settings) for seed in self.seeds]

    def number_of_cells(self) -> int:
        groups = len(self.models) * len(self.sizes) * len(self.folds)
        compared = len(self.grid) if self.tunes else 0
        return groups * len(self.seeds) * (compared + 1)

    def training_rows(self, fold: Fold, size: int | None) -> int | None:
        """Rows that a cell trains on; None where only the recipe can tell."""
        if size is not None:
            return size
        if fold.folder is None or "drop_rare" in self.recipe_options:
            return None
        return count_rows(fold.file("train"))

    def validation_rows(self, cell: Cell) -> int | None:
        """Rows on which a cell is validated; None where only the recipe can tell."""
        files = self.files(cell)
        if not files:
            return None
        rows = count_rows(files["validation"])
        most = self.recipe_options.get("max_eval_samples")
        return min(rows, int(most[-1])) if most else rows

    # ---- the command of a cell

    def argv(self, cell: Cell) -> list[str]:
        """The command line of a cell, without its output folder."""
        settings = [f"--{key}={value}" for key, value in cell.settings]
        argv = [*self.recipe_argv, *cell.model.argv, *settings]
        if cell.size is not None:
            argv = without_options(argv, _WITHOUT_EVALUATION)
        argv += self._data_argv(cell)
        argv += ["--model_name_or_path", cell.model.path_of(cell.fold.number)]
        argv += ["--from_scratch", str(cell.model.from_scratch).lower(), "--seed", str(cell.seed)]
        if cell.tuning:
            argv += ["--evaluate_test", "false"]
        return argv

    def files(self, cell: Cell) -> dict[str, Path]:
        """The data files of a cell by part; none where the recipe's own options name the data."""
        if cell.fold.folder is None:
            return {}

        # A cell that tunes gets test rows, too, but does not evaluate them: else the recipe would split some off
        files = {part: cell.fold.file(part) for part in PARTS}
        if cell.size is not None:
            subset = self.subsets[cell.fold.number]
            files |= subset.files(self.root, cell.size, cell.seed if cell.tuning else None)
        return files

    def _data_argv(self, cell: Cell) -> list[str]:
        argv = [word for part, path in self.files(cell).items() for word in (f"--{part}_file", str(path))]
        # Subsets of tagged words or questions are drawn by a column, too, which their recipes do not ask for
        if self.study_args.label_column is not None and (self._reads_labels or not self.subsets):
            argv += ["--label_column", self.study_args.label_column]
        return argv + (_NO_SELECTION if cell.size is not None else [])

    @property
    def _reads_labels(self) -> bool:
        """Whether the recipe has an option for the column of the label."""
        return self.study_args.recipe == CLASSIFICATION

    def cells_to_check(self) -> list[Cell]:
        """A cell of each model and one of each combination of settings, on all rows: their files exist already."""
        first = Cell(self.models[0], self.folds[0], None, self.seeds[0], self.grid[0])
        others = [replace(first, model=model) for model in self.models[1:]]
        return [first, *others, *(replace(first, settings=settings) for settings in self.grid[1:])]


# ---- making the plan


def make_plan(study_args: StudyArguments, recipe_argv: list[str]) -> Plan:
    """Checks what was asked, and reads the folds' training rows where subsets of them are to be drawn.

    Raises:
        InputError: a model, size, setting or fold is malformed, missing or given twice; or too few rows.
    """
    assert study_args.seeds is not None
    grid = _grid(study_args.grid or [])
    refuse_set_options(recipe_argv, [key for key, _ in grid[0]], study_args.folds_dir is not None)
    models = _models(study_args.models or [])
    for model in models:
        refuse_set_options(model.argv, [key for key, _ in grid[0]], study_args.folds_dir is not None)
    folds = _folds(study_args.folds_dir)
    sizes = _sizes(study_args.train_sizes or [])
    own = {model.name: recipe_options([*recipe_argv, *model.argv]) for model in models}
    refuse_other_rows(own, subsets=any(size is not None for size in sizes))
    _check_fold_checkpoints(models, folds)
    _check_reference(study_args, models)

    return Plan(
        study_args=study_args,
        recipe_argv=tuple(recipe_argv),
        recipe_options=recipe_options(recipe_argv),
        models=models,
        folds=folds,
        sizes=sizes,
        seeds=tuple(study_args.seeds),
        grid=grid,
        subsets=_draw_subsets(study_args, folds, [size for size in sizes if size is not None]),
    )


def _draw_subsets(
    study_args: StudyArguments, folds: tuple[Fold, ...], numbers: list[int]
) -> dict[int, TrainingSubsets]:
    """Subsets of these numbers of training rows, by the number of the fold."""
    if not numbers:
        return {}
    if study_args.folds_dir is None:
        remedy = "give --folds_dir, a folder made by split.py (--folds 1 makes one split)"
        raise InputError("subsets are drawn from a fold's training rows", where="--train_sizes", remedy=remedy)

    label_column, seed = study_args.label_column, study_args.subset_seed
    return {
        fold.number: TrainingSubsets(fold.file("train"), fold.number, numbers, label_column, (seed, fold.number))
        for fold in folds
    }


def _models(entries: list[str]) -> tuple[Model, ...]:
    models: dict[str, Model] = {}
    for entry in entries:
        try:
            named, *argv = shlex.split(entry) or [""]
        except ValueError as error:
            raise InputError(f"{entry!r}: {error}", where="--models", remedy="close the quotes") from None
        name, equals, path = named.partition("=")
        if not equals or not path.removesuffix(_FROM_SCRATCH) or not re.fullmatch(r"\w[\w.-]*", name):
            remedy = "write NAME=PATH, with a name of letters, digits, '-', '_' and '.'"
            raise InputError(f"{entry!r} is not NAME=PATH", where="--models", remedy=remedy)
        if name in models or name.startswith("baseline"):
            remedy = "give each model a name of its own, which does not begin with 'baseline'"
            raise InputError(f"the name {name!r} is taken", where="--models", remedy=remedy)
        if argv and not argv[0].startswith("--"):
            remedy = "write 'NAME=PATH --OPTION VALUE', and quote a path with blanks twice"
            raise InputError(f"{argv[0]!r} is not an option of {name}", where="--models", remedy=remedy)
        folder = os.path.expanduser(path.removesuffix(_FROM_SCRATCH))
        models[name] = Model(name, folder, path.endswith(_FROM_SCRATCH), tuple(argv))

    if not models:
        raise InputError("no model is named", where="--models", remedy="give NAME=PATH, e.g. mini=runs/mini")
    return tuple(models.values())


def _sizes(entries: list[str]) -> tuple[int | None, ...]:
    """The sizes in ascending order, `all` last."""
    for entry in entries:
        if entry != "all" and not re.fullmatch(r"[1-9]\d{0,9}", entry):
            remedy = "give numbers of training rows, or all"
            raise InputError(f"{entry!r} is not a number of rows", where="--train_sizes", remedy=remedy)
    numbers: list[int | None] = [*sorted({int(entry) for entry in entries if entry != "all"})]
    return (*numbers, None) if "all" in entries else tuple(numbers)


def _grid(entries: list[str]) -> tuple[Settings, ...]:
    """All combinations of settings, the first key's values varying slowest."""
    values: dict[str, list[str]] = {}
    for entry in entries:
        key, equals, listed = entry.partition("=")
        key = key.removeprefix("--")
        if not equals or not re.fullmatch(r"\w+", key) or not all(listed.split(",")):
            remedy = "write KEY=V1,V2, e.g. learning_rate=1e-4,3e-4"
            raise InputError(f"{entry!r} is not KEY=V1,V2", where="--grid", remedy=remedy)
        if key in values:
            raise InputError(f"{key} is given twice", where="--grid", remedy="give all of its values at once")
        values[key] = list(dict.fromkeys(listed.split(",")))
    return tuple(tuple(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values()))


def _folds(folds_dir: str | None) -> tuple[Fold, ...]:
    if folds_dir is None:
        return (Fold(0),)

    remedy = "give a folder made by split.py: fold-0/train.jsonl, …"
    found = {}
    for path in Path(folds_dir).glob("fold-*"):
        if match := re.fullmatch(r"fold-(\d+)", path.name):
            found[int(match[1])] = path
    if not found:
        what = "no folds in it" if Path(folds_dir).is_dir() else "no such folder"
        raise InputError(what, where=folds_dir, remedy=remedy)

    folds = tuple(Fold(number, found[number]) for number in sorted(found))
    for fold in folds:
        for part in PARTS:
            check_input_file(fold.file(part), remedy)
    return folds


def _check_fold_checkpoints(models: tuple[Model, ...], folds: tuple[Fold, ...]) -> None:
    for model in models:
        for fold in folds:
            path = Path(model.path_of(fold.number))
            if "{fold}" in model.path and not path.is_dir():
                remedy = "give each fold a checkpoint of its own, or leave {fold} out"
                raise InputError(f"no checkpoint of {model.name} for fold {fold.number}", where=path, remedy=remedy)


def _check_reference(study_args: StudyArguments, models: tuple[Model, ...]) -> None:
    """Refuses a reference that no cell can have; whether the first cell has it is checked when that is finished."""
    names = [*(model.name for model in models), *_BASELINES.get(study_args.recipe, ())]
    reference = study_args.reference
    if reference is not None and reference not in names:
        remedy = f"{did_you_mean(reference, names)}one of: {', '.join(names)}"
        raise InputError(f"no model or baseline {reference!r}", where="--reference", remedy=remedy)
