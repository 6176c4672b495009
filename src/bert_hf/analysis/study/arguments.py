"""Declares the options of `recipes/study.py`; the others of its command line are those of the recipe that it runs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

from bert_hf.analysis.study.recipe_options import config_of
from bert_hf.config.arguments import option
from bert_hf.config.files import yaml_options
from bert_hf.config.parser import expand_home
from bert_hf.errors import InputError

CLASSIFICATION = "finetune_classification"  # the recipe that is run by default

# Options of the recipe that the study sets for each cell, and the option of the study that decides them
_SET_BY_STUDY = {
    "seed": "--seeds",
    "model_name_or_path": "--models",
    "from_scratch": "--models NAME=PATH:from_scratch",
    "evaluate_test": "--grid",
    "overwrite_output_dir": "another --output_dir",
    "resume_from_checkpoint": "the same command again: a cell that was cut off resumes",
}
_NOT_IN_CONFIG = ("evaluate_test", "overwrite_output_dir", "resume_from_checkpoint")  # no cell overrides them
# Options that decide which rows validate and test
_DECIDE_ROWS = (
    "task", "problem_type", "data_dir", "dataset_name", "dataset_config_name", "validation_file", "test_file",
    "validation_split_percentage", "test_split_percentage", "split_seed", "max_eval_samples", "drop_rare",
)  # fmt: skip
_SET_BY_FOLDS = ("train_file", "validation_file", "test_file", "dataset_name")


@dataclass
class StudyArguments:
    """Which cells a study has, and which metrics are compared."""

    models: list[str] | None = option(
        None,
        "NAME=PATH or NAME=PATH:from_scratch (its shape with random weights), …; {fold}: the fold's number. "
        "'NAME=PATH --OPTION VALUE': with options of its own.",
    )
    recipe: str = option(CLASSIFICATION, "The recipe that is run for each cell.")
    folds_dir: str | None = option(
        None,
        "Folder made by split.py: fold-N/{train,validation,test}.jsonl. Without it the recipe's options name data.",
    )
    seeds: list[int] | None = option(None, "Seeds, a cell each. By default 1 2 3.")
    train_sizes: list[str] | None = option(None, "Training rows, a cell each: 10 50 100 500 all. By default all.")
    grid: list[str] | None = option(
        None, "KEY=V1,V2 …: options of the recipe. All combinations are tried; validation rows choose, then test rows."
    )
    metrics: list[str] | None = option(
        None,
        "Metrics to compare, as f1 average_precision; a grid is chosen by the first. By default the usual ones.",
    )
    reference: str | None = option(
        None, "Model (or baseline) that the others are compared with. By default the first one of random weights."
    )
    label_column: str | None = option(
        None,
        "Column of the label in the folds' files, by which subsets are stratified (ner_tags, answers: they are not); "
        "finetune_classification is told, too.",
    )
    subset_seed: int = option(0, "Seed by which the subsets of the training rows are drawn.")
    keep_models: bool = option(False, "Keep the weights of finished cells; else only their metrics are kept.")
    check: bool = option(False, "Only check the plan and, with the recipe's own checks, what its cells would read.")
    output_dir: str = option("runs/study", "Where the study writes.")

    def __post_init__(self):
        self.seeds = list(dict.fromkeys(self.seeds or (1, 2, 3)))
        self.train_sizes = list(dict.fromkeys(self.train_sizes or ("all",)))
        if any(not 0 <= seed < 2**32 for seed in [*self.seeds, self.subset_seed]):
            raise ValueError("--seeds and --subset_seed must be from 0 to 2³² − 1")


def split_argv(argv: list[str]) -> tuple[list[str], list[str]]:
    """Divides a command line into the words for the study and those for its recipe.

    >>> split_argv(["--seeds", "1", "2", "--learning_rate", "1e-4", "--keep_models"])
    (['--seeds', '1', '2', '--keep_models'], ['--learning_rate', '1e-4'])
    """
    names = {field.name for field in fields(StudyArguments)} | {"help"}
    ours: list[str] = []
    others: list[str] = []

    current = ours
    for word in map(expand_home, argv):
        if word.startswith("--"):
            current = ours if word[2:].partition("=")[0] in names else others
        current.append(word)
    return ours, others


def refuse_set_options(argv: Sequence[str], keys: list[str], folds: bool) -> None:
    """Refuses options for the recipe that the study sets itself.

    Args:
        argv: options of all cells, or of a model's.
        keys: of the grid.
        folds: the study gives the files.

    Raises:
        InputError: names the option and what to give in its place.
    """
    instead = {field.name: "it outside of --models" for field in fields(StudyArguments)} | _SET_BY_STUDY
    instead["output_dir"] = "it outside of --models"
    instead |= dict.fromkeys(keys, "one of both")
    in_config = {name: instead[name] for name in _NOT_IN_CONFIG}
    if folds:
        instead |= dict.fromkeys(_SET_BY_FOLDS, "it without --folds_dir")
        instead["max_train_samples"] = in_config["max_train_samples"] = "--train_sizes"

    given = [match[1] for word in argv if (match := re.match(r"--([^=]+)", word))]
    for name in given:
        if name in instead:
            raise InputError("the study sets it for each cell", where=f"--{name}", remedy=f"give {instead[name]}")

    config = config_of(argv)
    for name, line, _ in yaml_options(config) if config is not None else ():
        if name in in_config:
            what, remedy = f"the study sets {name} for each cell", f"remove it; give {in_config[name]}"
            raise InputError(what, where=config, line=line, remedy=remedy)

    for key in keys:
        if key in (*_SET_BY_STUDY, *_SET_BY_FOLDS, *_DECIDE_ROWS, "output_dir", "config"):
            raise InputError(f"{key} is not a setting to choose", where="--grid", remedy="leave it out")


def refuse_other_rows(options: dict[str, dict[str, list[str]]], subsets: bool) -> None:
    """Refuses options by which metrics that are compared would be those of different rows.

    Args:
        options: for the recipe, of each model by name (`recipe_options`).
        subsets: the study draws some.

    Raises:
        InputError: models differ in such an option; or rare classes are left out, which are others in a subset.
    """
    (first, expected), *others = options.items()
    if subsets and "drop_rare" in expected:
        what = "in a subset other classes are rare, and its test rows would be others"
        raise InputError(what, where="--drop_rare", remedy="leave it out, and rare classes out of the folds")

    # Training files may differ, unless the other rows are split off them
    given = {"validation_file", "test_file"} <= expected.keys()
    for name in _DECIDE_ROWS if given else (*_DECIDE_ROWS, "train_file"):
        for other, own in others:
            if own.get(name) != expected.get(name):
                what = f"with another one {other} would be compared with {first} on other rows"
                raise InputError(what, where=f"--{name}", remedy="give it outside of --models")
