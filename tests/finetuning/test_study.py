"""Studies: their plan, subsets, resumption, choice of settings and tables, with a recipe that trains nothing."""

import csv
import gc
import json
import math
import shlex
import statistics
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers.studies import FakeRecipe, Killed, make_study, options, parsed, write_folds
from PIL import Image

from bert_hf.analysis.study import report
from bert_hf.analysis.study.arguments import split_argv
from bert_hf.analysis.study.comparison import paired_difference, summarize
from bert_hf.analysis.study.metrics import (
    _USUAL,
    Row,
    Scores,
    check_metrics,
    choose_settings,
    collect,
    usual_metrics,
)
from bert_hf.analysis.study.picture import draw_study
from bert_hf.analysis.study.plan import Cell, Fold, Model, make_plan
from bert_hf.analysis.study.subsets import inner_part, least_rows, nested_order, strata
from bert_hf.errors import InputError
from bert_hf.finetuning.known_tasks import TASKS
from bert_hf.finetuning.metrics import RANKING_METRICS
from bert_hf.finetuning.squad.metric import official_metrics

MODELS = ["--models", "one=there/one", "random=there/one:from_scratch"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Leaves out what takes long: collecting garbage after each cell, and the picture."""
    monkeypatch.setattr(gc, "collect", lambda: 0)
    monkeypatch.setattr(report, "draw_study", lambda scores, path: None)


@pytest.fixture
def argv(tmp_path):
    """A study of 2 models × 2 sizes × 2 folds × 2 seeds."""
    folds = write_folds(tmp_path / "folds")
    cells = ["--folds_dir", str(folds), "--train_sizes", "12", "all", "--seeds", "1", "2"]
    return [*MODELS, *cells, "--output_dir", str(tmp_path / "out"), "--max_seq_length", "64"]


def table(folder: Path) -> list[dict[str, str]]:
    with open(folder / "study.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# ---- the command line


def test_unknown_options_are_for_the_recipe():
    argv = ["--seeds", "1", "2", "--config", "a.yaml", "--check", "--learning_rate=1e-4", "--grid", "x=1,2", "--no"]
    ours, recipe_argv = split_argv(argv)
    assert ours == ["--seeds", "1", "2", "--check", "--grid", "x=1,2"]
    assert recipe_argv == ["--config", "a.yaml", "--learning_rate=1e-4", "--no"]


def test_a_cell_is_the_recipe_with_the_options_of_its_coordinates(argv, tmp_path):
    recipe = FakeRecipe()
    study, _ = make_study(argv, recipe)
    assert study.run() == 0
    assert len(recipe.calls) == 16
    fold = f"{tmp_path}/folds/fold-0"
    assert recipe.calls[-8] == {
        "max_seq_length": "64",
        "train_file": f"{tmp_path}/out/subsets/fold-0/12.jsonl",
        "validation_file": f"{tmp_path}/out/subsets/fold-0/12.jsonl",  # none of the fold's validation rows
        "test_file": f"{fold}/test.jsonl",
        "eval_strategy": "no",
        "load_best_model_at_end": "false",
        "model_name_or_path": "there/one",
        "from_scratch": "true",
        "seed": "1",
        "output_dir": f"{tmp_path}/out/cells/random/fold-0/size-12/seed-1/run",
    }
    assert recipe.calls[4] == {
        "max_seq_length": "64",
        "train_file": f"{fold}/train.jsonl",
        "validation_file": f"{fold}/validation.jsonl",
        "test_file": f"{fold}/test.jsonl",
        "model_name_or_path": "there/one",
        "from_scratch": "false",
        "seed": "1",
        "output_dir": f"{tmp_path}/out/cells/one/fold-0/size-all/seed-1/run",
    }
    assert (tmp_path / "out/cells/one/fold-0/size-all/seed-1/log.txt").read_text() == "step 1 of 2\n"


def test_a_model_may_have_options_of_its_own(argv, tmp_path):
    recipe = FakeRecipe()
    study, _ = make_study([*argv, "--models", "one=a", "last=a:from_scratch --features last --size 8"], recipe)
    assert study.run() == 0
    assert [call.get("features") for call in recipe.calls] == [None] * 8 + ["last"] * 8
    last = recipe.calls[-1]
    assert (last["model_name_or_path"], last["from_scratch"], last["size"]) == ("a", "true", "8")
    page = (tmp_path / "out/study.md").read_text()
    assert "- last: the shape of `a` with random weights, `--features last --size 8`\n" in page


@pytest.mark.parametrize("recipe", ["finetune_classification", "finetune_token_classification"])
def test_subsets_of_tagged_words_name_a_column_that_their_recipe_does_not_have(tmp_path, recipe):
    folds = write_folds(tmp_path / "folds")
    row = json.dumps({"tokens": ["Anna"], "ner_tags": ["B-person"]}) + "\n"
    (folds / "fold-0/train.jsonl").write_text(row * 10)
    (folds / "fold-1/train.jsonl").write_text(row * 10)
    argv = [*MODELS, "--folds_dir", str(folds), "--label_column", "ner_tags", "--recipe", recipe]

    for sizes in (["5", "all"], ["all"]):
        plan = make_plan(parsed([*argv, "--train_sizes", *sizes]), [])
        told = {"label_column" in options(plan.argv(cell)) for cell in plan.cells_to_check()}
        # Where nothing is drawn, the recipe is told of what it does not have, and says so
        assert told == {recipe == "finetune_classification" or sizes == ["all"]}


def test_an_adapted_model_has_a_checkpoint_for_each_fold(tmp_path):
    folds = write_folds(tmp_path / "folds")
    for fold in range(2):
        (tmp_path / f"adapted-{fold}").mkdir()
    argv = ["--models", f"adapted={tmp_path}/adapted-{{fold}}", "--folds_dir", str(folds), "--seeds", "1"]
    plan = make_plan(parsed(argv), [])
    cells = [cell for group in plan.groups() for cell in plan.final_cells(*group, ())]
    paths = [options(plan.argv(cell))["model_name_or_path"] for cell in cells]
    assert paths == [f"{tmp_path}/adapted-0", f"{tmp_path}/adapted-1"]

    (tmp_path / "adapted-1").rmdir()
    with pytest.raises(InputError, match="no checkpoint of adapted for fold 1"):
        make_plan(parsed(argv), [])


def test_without_folds_the_recipe_is_told_where_its_data_are(tmp_path):
    argv = [*MODELS, "--seeds", "1", "--output_dir", str(tmp_path / "out"), "--task", "mrpc", "--data_dir", "glue"]
    recipe = FakeRecipe()
    study, said = make_study(argv, recipe)
    assert study.run() == 0
    assert [(call["task"], call["data_dir"]) for call in recipe.calls] == [("mrpc", "glue")] * 2
    assert all("train_file" not in call for call in recipe.calls)
    assert "| all | one |" in "\n".join(said)


BAD = [
    ("", "--models: no model is named; give NAME=PATH"),
    ("--models mini", "--models: 'mini' is not NAME=PATH; write NAME=PATH"),
    ("--models a=x a=y", "--models: the name 'a' is taken; give each model a name of its own"),
    ("--models baseline=x", "--models: the name 'baseline' is taken"),
    ("--models 'a=x last'", "--models: 'last' is not an option of a; write 'NAME=PATH --OPTION VALUE'"),
    ('--models "a=it\'s"', "--models: \"a=it's\": No closing quotation"),
    ("--models 'a=x --check true'", "--check: the study sets it for each cell; give it outside of --models"),
    ("--models 'a=x --output_dir y'", "--output_dir: the study sets it for each cell; give it outside of --models"),
    ("--models 'a=x --seed 1'", "--seed: the study sets it for each cell; give --seeds"),
    ("--models a=:from_scratch", "--models: 'a=:from_scratch' is not NAME=PATH"),
    ("--models a=x --train_sizes 1e3", "--train_sizes: '1e3' is not a number of rows"),
    ("--models a=x --train_sizes 10", "--train_sizes: subsets are drawn from a fold's training rows; give"),
    ("--models a=x --folds_dir {folds} --train_sizes 70", "folds/fold-0/train.jsonl: 70 rows cannot be drawn from 60"),
    ("--models a=x --folds_dir {folds} --train_sizes 5", "with 2 of each class; give sizes from 6 to 60, or all"),
    ("--models a=x --folds_dir {folds} --train_sizes 9 --label_column class", "train.jsonl:1: the row has no 'class'"),
    ("--models a=x --folds_dir {folds}/none", "none: no such folder; give a folder made by split.py"),
    ("--models a=x --folds_dir {folds}/fold-0", "fold-0: no folds in it; give a folder made by split.py"),
    ("--models a=x --grid learning_rate", "--grid: 'learning_rate' is not KEY=V1,V2"),
    ("--models a=x --grid seed=1,2", "--grid: seed is not a setting to choose"),
    ("--models a=x --grid a=1 a=2", "--grid: a is given twice"),
    ("--models a=x --grid weight_decay=0,1 --weight_decay 0", "--weight_decay: the study sets it for each cell"),
    ("--models a=x --seed 3", "--seed: the study sets it for each cell; give --seeds"),
    ("--models a=x --folds_dir {folds} --train_file y", "--train_file: the study sets it for each cell; give it"),
    ("--models a=x --folds_dir {folds} --max_train_samples 9", "--max_train_samples: the study sets it for each cell; "
     "give --train_sizes"),
    ("--models a=x 'b=x --split_seed 1'", "--split_seed: with another one b would be compared with a on other rows"),
    ("--models a=x 'b=x --max_eval_samples 9' --max_eval_samples 8", "--max_eval_samples: with another one b would"),
    ("--models a=x 'b=x --train_file other.tsv' --train_file rows.tsv", "--train_file: with another one b would be"),
    ("--models a=x --grid drop_rare=2,9", "--grid: drop_rare is not a setting to choose"),
    ("--models a=x --folds_dir {folds} --train_sizes 9 --drop_rare 4", "--drop_rare: in a subset other classes are"),
    ("--models a=x b=y --reference c", "--reference: no model or baseline 'c'; one of: a, b, baseline_majority, "),
    ("--models a=x --reference baseline_word", "no model or baseline 'baseline_word'; did you mean 'baseline_words'?"),
    ("--models a=x --recipe finetune_question_answering --reference baseline_words",
     "--reference: no model or baseline 'baseline_words'; one of: a"),
    ("--models a=x --seeds -1", "--seeds and --subset_seed must be from 0"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "line"), BAD)
def test_a_bad_plan_is_refused(given, line, tmp_path):
    folds = write_folds(tmp_path / "folds")
    with pytest.raises(InputError) as refused:
        make_study(shlex.split(given.format(folds=folds)), FakeRecipe())
    assert line in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["folds"]


def test_cells_of_subsets_are_not_told_when_to_evaluate(tmp_path):
    words = ["--models", "a=x", "--folds_dir", str(write_folds(tmp_path / "folds")), "--train_sizes", "12", "all"]
    words += ["--eval_steps", "5", "--eval_delay=9", "--metric_for_best_model=f1", "--greater_is_better", "true"]
    plan = make_study([*words, "--logging_steps", "5"], FakeRecipe())[0].plan
    subset, everything = (plan.argv(Cell(plan.models[0], plan.folds[0], size, seed=1)) for size in (12, None))
    words = ("--eval_steps", "--eval_delay=9", "--metric_for_best_model=f1", "--greater_is_better", "--logging_steps")
    assert [word in everything for word in words] == [True] * 5
    assert [word in subset for word in words] == [False] * 4 + [True]


def test_models_may_differ_in_their_training_files_where_the_other_rows_are_given():
    files = "--train_file rows.tsv --validation_file valid.tsv --test_file test.tsv"
    argv = shlex.split(f"--models a=x 'b=x --train_file more.tsv --learning_rate 1e-4' {files}")
    study, _ = make_study(argv, FakeRecipe())
    trained = [options(study.plan.argv(cell))["train_file"] for cell in study.plan.cells_to_check()]
    assert trained == ["rows.tsv", "more.tsv"]


@pytest.mark.parametrize("place", ["--config={file}", "--models 'b=y --config {file}'"])
@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("evaluate_test: false", "--grid"),
        ("overwrite_output_dir: true", "another --output_dir"),
        ("max_train_samples: 9", "--train_sizes"),
    ],
)
def test_a_config_that_no_cell_overrides_is_refused(tmp_path, place, option, instead):
    config = tmp_path / "c.yaml"
    config.write_text(f"num_train_epochs: 1\n{option}\n")
    folds = write_folds(tmp_path / "folds")
    argv = shlex.split(f"--folds_dir {folds} --models a=x {place.removeprefix('--models ').format(file=config)}")
    name = option.split(":")[0]
    with pytest.raises(InputError, match=rf"c.yaml:2: the study sets {name} for each cell; remove it; give {instead}"):
        make_study(argv, FakeRecipe())


def test_a_foreign_folder_is_refused(argv, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").write_text("mine")
    study, _ = make_study(argv, FakeRecipe())
    with pytest.raises(InputError, match="holds files that bert_hf did not write"):
        study.run()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_what_the_recipe_refuses_leaves_nothing(argv, tmp_path):
    recipe = FakeRecipe()
    recipe.checks = []
    study, _ = make_study([*argv, "--num_train_epochs", "many"], recipe)
    with pytest.raises(ValueError, match="many"):
        study.run()
    assert not (tmp_path / "out").exists()
    assert recipe.calls == []


# ---- subsets


def test_order_of_rows_by_hand():
    """Six of class 0 and two of class 1: two of each first, then class 0 until the shares are reached."""
    classes = np.array([0, 0, 0, 0, 0, 0, 1, 1])
    order = nested_order(classes, 8, (0, 0))
    assert classes[order].tolist() == [0, 1, 0, 1, 0, 0, 0, 0]
    assert sorted(order) == list(range(8))


@pytest.mark.parametrize("seed", range(20))
def test_subsets_are_nested_and_stratified(seed):
    """Against the definition: each subset holds two rows of a class, and else its share to within a row."""
    rng = np.random.default_rng(seed)
    classes = rng.choice(4, 300, p=[0.6, 0.25, 0.1, 0.05])
    counts = np.bincount(classes)
    whole = nested_order(classes, 300, (seed, 1))
    assert sorted(whole) == list(range(300))
    for size in (10, 50, 100, 299):
        order = nested_order(classes, size, (seed, 1))
        assert (order == whole[:size]).all()
        taken = np.bincount(classes[order], minlength=4)
        assert (taken >= np.minimum(2, counts)).all()
        surplus = np.maximum(0, 2 - counts * size / 300).sum()  # rows that rare classes have beyond their shares
        assert (np.abs(taken - np.maximum(counts * size / 300, np.minimum(2, counts))) <= 1 + surplus).all()


def test_another_fold_or_seed_draws_other_rows():
    classes = np.zeros(100, dtype=int)
    orders = [nested_order(classes, 20, key).tolist() for key in ((0, 0), (0, 1), (1, 0))]
    assert len({tuple(order) for order in orders}) == 3


def test_labels_that_are_no_classes_are_not_stratified():
    assert strata(["ham", "spam", "ham"]).tolist() == [0, 1, 0]
    assert strata([1, 0, 1.0]).max() > 0
    assert strata(["nan", "inf", "nan"]).tolist() == [1, 0, 1]
    assert strata([0.5, 1, 2]).tolist() == [0, 0, 0]
    assert strata(["3.800", "1.000"]).tolist() == [0, 0]
    assert strata([["B-x", "O"], ["O"]]).tolist() == [0, 0]
    assert least_rows(strata([["O"]] * 9)) == 5


def test_a_fifth_of_a_subset_validates_and_the_rest_trains_on_every_class():
    classes = np.array([2, 0, 0, 1, 2, 1, 0, 0, 0, 0, 1])
    parts = np.array([inner_part(classes, part) for part in range(5)])
    assert (parts.sum(axis=0) == 1).all()  # each row in one part
    assert set(parts.sum(axis=1)) <= {2, 3}
    assert all(set(classes[~part]) == {0, 1, 2} for part in parts)


@pytest.mark.parametrize("counts", [(20, 3, 1), (1, 1, 1, 2), (1, 4, 1)])
def test_the_only_row_of_a_class_never_validates(counts):
    classes = np.repeat(np.arange(len(counts)), counts)
    for part in range(5):
        held_out = inner_part(classes, part)
        assert held_out.any()
        assert set(classes[~held_out]) == set(classes)


def test_files_of_subsets(argv, tmp_path):
    study, _ = make_study([*argv, "--grid", "learning_rate=1e-4,3e-4"], FakeRecipe())
    assert study.run() == 0
    files = {path.name: read(path) for path in (tmp_path / "out/subsets/fold-1").iterdir()}
    assert sorted(files) == ["12-train-1.jsonl", "12-train-2.jsonl", "12-validation-1.jsonl",
                             "12-validation-2.jsonl", "12.jsonl"]  # fmt: skip
    whole = read(tmp_path / "folds/fold-1/train.jsonl")
    assert files["12.jsonl"] == [row for row in whole if row in files["12.jsonl"]]  # in the order of the file
    assert Counter(row["label"] for row in files["12.jsonl"]) == {"a": 4, "b": 6, "c": 2}
    for seed in (1, 2):
        inner = files[f"12-train-{seed}.jsonl"] + files[f"12-validation-{seed}.jsonl"]
        assert sorted(inner, key=str) == sorted(files["12.jsonl"], key=str)


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---- resuming


@pytest.mark.parametrize("grid", [[], ["--grid", "learning_rate=1e-4,3e-4", "weight_decay=0,0.1"]])
def test_killed_three_times_it_ends_with_the_same_bytes(argv, tmp_path, grid):
    study, _ = make_study([*argv, *grid], FakeRecipe())
    assert study.run() == 0
    undisturbed = {name: (tmp_path / "out" / name).read_bytes() for name in ("study.csv", "study.md")}

    argv[argv.index("--output_dir") + 1] = str(tmp_path / "killed")
    calls = []
    for kill in (3, 5, 4):
        recipe = FakeRecipe(kill_at=(kill,))
        study, _ = make_study([*argv, *grid], recipe)
        with pytest.raises(Killed):
            study.run()
        calls += recipe.calls
    recipe = FakeRecipe()
    study, _ = make_study([*argv, *grid], recipe)
    assert study.run() == 0
    calls += recipe.calls

    assert {name: (tmp_path / "killed" / name).read_bytes() for name in undisturbed} == undisturbed
    counts = Counter(call["output_dir"] for call in calls)
    assert sorted(counts.values())[-4:] == [1, 2, 2, 2]  # a finished cell is not called again
    assert len(counts) == len(table(tmp_path / "out"))


def test_a_finished_study_is_only_read(argv, tmp_path):
    make_study(argv, FakeRecipe())[0].run()
    before = (tmp_path / "out/study.csv").read_bytes()
    recipe = FakeRecipe()
    assert make_study(argv, recipe)[0].run() == 0
    assert recipe.calls == recipe.checks == []
    assert (tmp_path / "out/study.csv").read_bytes() == before


def test_a_larger_plan_runs_only_what_is_new(argv):
    make_study(argv, FakeRecipe())[0].run()
    argv[argv.index("--seeds") + 2] = "7"
    recipe = FakeRecipe()
    assert make_study(argv, recipe)[0].run() == 0
    assert {call["seed"] for call in recipe.calls} == {"7"}


def test_with_another_option_the_recipe_decides_whether_it_is_the_same_run(argv, tmp_path, capsys):
    make_study(argv, FakeRecipe())[0].run()
    recipe = FakeRecipe()
    assert make_study([*argv, "--logging_steps", "5"], recipe)[0].run() == 0
    assert len(recipe.calls) == 16
    assert make_study([*argv, "--learning_rate", "1"], FakeRecipe())[0].run() == 2
    line = capsys.readouterr().err
    assert line.startswith("error: cell one/fold-0/size-12/seed-1: ")
    assert "holds another run" in line


def test_a_cell_of_other_files_is_refused(argv, tmp_path):
    make_study(argv, FakeRecipe())[0].run()
    path = tmp_path / "folds/fold-0/test.jsonl"
    path.write_text(path.read_text().replace("test 0 3", "other"))
    with pytest.raises(InputError, match=r"seed-1: the cell was run with other files \(test\)"):
        make_study(argv, FakeRecipe())[0].run()


def test_a_checkpoint_with_other_weights_is_another_model(tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "mini").mkdir(exist_ok=True)
        (tmp_path / "mini" / name).write_text(name)
    models = ["--models", f"mini={tmp_path}/mini", f"random={tmp_path}/mini:from_scratch"]
    argv = [*models, "--seeds", "1", "--output_dir", str(tmp_path / "out")]
    assert make_study(argv, FakeRecipe())[0].run() == 0
    (tmp_path / "mini/model.safetensors").write_text("trained longer")
    with pytest.raises(InputError, match=r"cells/mini/.* other files \(model\)"):
        make_study(argv, FakeRecipe())[0].run()
    argv[1] = argv.pop(2)  # random weights alone
    assert make_study(argv, FakeRecipe())[0].run() == 0


def test_a_cell_in_a_former_order_of_batches_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = [*MODELS, "--seeds", "1", "--output_dir", "out"]
    assert make_study(argv, FakeRecipe())[0].run() == 0
    path = next(Path("out").rglob("run.json"))
    record = json.loads(path.read_text())
    record["identity"]["order"] = "group_by_length"
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"run: the cell was trained by version 0\.2\.0 or before, in another order"):
        make_study(argv, FakeRecipe())[0].run()


@pytest.mark.parametrize("changed", ["a.yaml", "train.tsv", "more-1.tsv", "glue/dev.tsv"])
def test_a_cell_whose_named_files_changed_is_refused(changed, tmp_path, monkeypatch):
    """The file of --config, and files by path, by glob and in a folder, on the command line or in the YAML file."""
    monkeypatch.chdir(tmp_path)
    Path("glue").mkdir()
    for name in ("train.tsv", "more-1.tsv", "glue/dev.tsv"):
        Path(name).write_text("ham\tx\n")
    Path("a.yaml").write_text("learning_rate: 1e-4\ntrain_file: [train.tsv, 'more-*.tsv']\ndata_dir: elsewhere\n")
    argv = [*MODELS, "--seeds", "1", "--output_dir", "out", "--config=a.yaml", "--data_dir", "glue"]
    assert make_study(argv, FakeRecipe())[0].run() == 0
    recipe = FakeRecipe()
    assert make_study(argv, recipe)[0].run() == 0
    assert recipe.calls == []

    with open(changed, "a") as file:
        file.write("\n")
    with pytest.raises(InputError, match=rf"seed-1: the cell was run with other files \({changed}\)"):
        make_study(argv, FakeRecipe())[0].run()


@pytest.mark.parametrize("code", [2, 70, 75, 143])
def test_a_failed_or_stopped_cell_ends_the_study_with_its_code(argv, code, tmp_path, capsys):
    recipe = FakeRecipe(codes={3: code})
    study, said = make_study(argv, recipe)
    assert study.run() == code
    assert len(recipe.calls) == 3
    assert len(table(tmp_path / "out")) == 2  # of the finished cells
    line = "error: cell one/fold-1/size-12/seed-1: rows.jsonl:3: no label; label it\n"
    assert capsys.readouterr().err == (line if code == 2 else "")
    assert not any(text.startswith("##") for text in said)


def test_weights_of_finished_cells_are_removed_unless_they_are_kept(argv, tmp_path):
    make_study([*argv, "--keep_models"], FakeRecipe())[0].run()
    run = tmp_path / "out/cells/one/fold-0/size-all/seed-1/run"
    assert (run / "model.safetensors").is_file()
    make_study(argv, FakeRecipe())[0].run()
    assert sorted(path.name for path in run.iterdir()) == ["all_results.json", "run.json"]


# ---- settings


def test_settings_are_chosen_on_validation_rows_and_only_the_chosen_ones_meet_the_test(argv, tmp_path):
    recipe = FakeRecipe()
    study, said = make_study([*argv, "--grid", "learning_rate=1e-4,3e-4,1e-3"], recipe)
    assert study.run() == 0
    tuning = [call for call in recipe.calls if call["output_dir"].endswith(",search/run")]
    final = [call for call in recipe.calls if call not in tuning]
    assert (len(tuning), len(final)) == (16 * 3, 16)
    assert {call["evaluate_test"] for call in tuning} == {"false"}
    assert all("evaluate_test" not in call for call in final)
    assert {call["learning_rate"] for call in final} == {"3e-4"}

    # With a subset both parts are of it; the chosen cell trains on all of it
    small = [call for call in tuning if "size-12" in call["output_dir"]]
    assert {Path(call["validation_file"]).name for call in small} == {"12-validation-1.jsonl", "12-validation-2.jsonl"}
    rows = table(tmp_path / "out")
    assert all(row["test_f1"] == "" and row["eval_f1"] for row in rows if row["phase"] == "search")
    assert all(row["test_f1"] for row in rows if row["phase"] == "final")
    assert all((row["eval_f1"] == "") == (row["train_size"] == "12") for row in rows if row["phase"] == "final")
    assert "| 12 | one | 1 | learning_rate 3e-4 |" in "\n".join(said)


@pytest.mark.parametrize(
    ("metrics", "validation_rows", "chosen"),
    [
        ({"a": [(0.9, 0.5), (0.5, 0.5)], "b": [(0.8, 0.9), (0.7, 0.9)]}, 500, "b"),  # the mean, not the best seed
        ({"a": [(0.9, 0.5), (0.5, 0.5)], "b": [(0.8, 0.9), (0.7, 0.9)]}, 50, "a"),  # few rows: the loss
        ({"a": [(0.9, 0.5), (0.5, 0.5)], "b": [(0.8, 0.9), (0.7, 0.9)]}, None, "b"),
        ({"a": [(0.8, 0.4)], "b": [(0.8, 0.3)]}, 500, "b"),  # a tie: the lower loss
        ({"a": [(0.8, 0.4)], "b": [(0.8, 0.4)]}, 500, "a"),
    ],
)
def test_choice_by_hand(metrics, validation_rows, chosen):
    rows = [row(settings=(("x", name),), eval_f1=f1, eval_loss=loss, tuning=True)
            for name, pairs in metrics.items() for f1, loss in pairs]  # fmt: skip
    assert choose_settings(rows, "f1", validation_rows) == (("x", chosen),)
    if validation_rows == 500:
        assert choose_settings(rows, "loss", 500) == (("x", min(metrics, key=lambda name: metrics[name][0][1])),)


@pytest.mark.parametrize(("options", "counted"), [([], 300), (["--max_eval_samples", "100"], 100)])
def test_the_rows_that_validate_are_those_that_the_recipe_samples(tmp_path, options, counted):
    folds = write_folds(tmp_path / "folds", rows=600)
    plan = make_plan(parsed([*MODELS, "--folds_dir", str(folds)]), options)
    assert plan.validation_rows(plan.cells_to_check()[0]) == counted


def row(settings=(), tuning=False, model="m", fold=0, size=None, seed=1, **metrics):
    cell = Cell(Model(model, "path"), Fold(fold), size, seed, settings, tuning)
    return Row(cell, size, metrics)


# ---- tables


def test_the_table_has_a_row_for_each_cell_and_no_times(argv, tmp_path):
    make_study(argv, FakeRecipe())[0].run()
    rows = table(tmp_path / "out")
    assert list(rows[0]) == [
        "model", "train_size", "train_rows", "fold", "seed", "phase", "eval_f1", "eval_loss", "test_average_precision",
        "test_f1", "test_loss", "baseline_characters_average_precision", "baseline_characters_f1",
        "baseline_majority_average_precision", "baseline_majority_f1",
    ]  # fmt: skip
    assert [tuple(row[name] for name in ("model", "train_size", "fold", "seed")) for row in rows[:6]] == [
        ("one", "12", "0", "1"), ("one", "12", "0", "2"), ("one", "12", "1", "1"), ("one", "12", "1", "2"),
        ("one", "all", "0", "1"), ("one", "all", "0", "2"),
    ]  # fmt: skip
    assert {row["train_rows"] for row in rows if row["train_size"] == "all"} == {"60"}


def test_the_page_says_what_the_table_holds(argv, tmp_path):
    study, said = make_study([*argv, "--metrics", "f1"], FakeRecipe())
    assert study.run() == 0
    rows = table(tmp_path / "out")
    values = {
        name: [float(row["test_f1"]) for row in rows if row["model"] == name and row["train_size"] == "12"]
        for name in ("one", "random")
    }
    mean, sd = statistics.fmean(values["one"]), statistics.stdev(values["one"])
    folds = [statistics.variance(values["one"][:2]), statistics.variance(values["one"][2:])]
    page = (tmp_path / "out/study.md").read_text()
    assert f"| 12 | one | {mean:.4f} | {sd:.4f} | 4 | {math.sqrt(statistics.fmean(folds)):.4f} |" in page
    difference = mean - statistics.fmean(values["random"])
    assert f"| 12 | one | {difference:+.4f} |" in page
    assert "| all (60) | baseline_characters | 0.4000 | 0.0000 | 2 | – |" in page
    assert "average_precision" not in page
    assert all(line in page for line in said if line.startswith("|"))


def test_a_figure_or_reference_that_is_not_there(argv):
    make_study(argv, FakeRecipe())[0].run()
    with pytest.raises(
        InputError, match="--metrics: the cells have no metric 'f2'; one of: average_precision, f1, loss"
    ):
        make_study([*argv, "--metrics", "f2"], FakeRecipe())[0].run()
    with pytest.raises(InputError, match=r"no model or baseline 'baseline_words'; .*baseline_majority"):
        make_study([*argv, "--reference", "baseline_words"], FakeRecipe())[0].run()
    study, said = make_study([*argv, "--reference", "baseline_characters"], FakeRecipe())
    assert study.run() == 0
    assert "### f1: difference from baseline_characters" in said


@pytest.mark.parametrize(
    ("words", "line"), [("--metrics f2", "no metric 'f2'"), ("--reference baseline_words", "no model or baseline")]
)
def test_an_unknown_name_ends_a_study_after_its_first_cell(argv, words, line):
    recipe = FakeRecipe()
    with pytest.raises(InputError, match=line):
        make_study([*argv, *words.split()], recipe)[0].run()
    assert len(recipe.calls) == 1


@pytest.mark.parametrize("metrics", [["f1", "loss"], ["loss", "f1"]])
def test_a_reference_without_a_figure_has_no_differences_in_it(argv, tmp_path, metrics):
    words = ["--metrics", *metrics, "--reference", "baseline_characters"]
    assert make_study([*argv, *words], FakeRecipe())[0].run() == 0
    page = (tmp_path / "out/study.md").read_text()
    assert "### loss: difference from baseline_characters\n\nbaseline_characters has no loss.\n" in page
    assert "of 2 folds |" in page.split("### f1: difference from baseline_characters")[1].split("##")[0]


def test_a_figure_that_one_cell_lacks_names_the_cell():
    """F1 of a rare entity type is there only where it occurs in the labels or the predictions."""
    rows = [row(seed=1, eval_f1=0.5, eval_f1_rare=0.1, eval_loss=1.0), row(seed=2, eval_f1=0.4, eval_loss=1.0)]
    check_metrics(["f1"], rows, "eval_")
    line = "--metrics: the cell m/fold-0/size-all/seed-2 has no metric 'f1_rare'; one of: f1, loss"
    with pytest.raises(InputError, match=line):
        check_metrics(["f1_rare"], rows, "eval_")
    with pytest.raises(InputError, match=line):
        choose_settings(rows, "f1_rare", None)


@pytest.mark.parametrize(("folds", "interval"), [(4, "–"), (5, "+0.1000 to +0.1000")])
def test_few_folds_have_no_interval(folds, interval):
    models = {
        "one": {None: {fold: [0.6] for fold in range(folds)}},
        "two": {None: {fold: [0.5] for fold in range(folds)}},
    }
    lines = report._differences(Scores("test", "f1", models, {}, {None: None}), "two")
    assert f"| all | one | +0.1000 | {interval} | {folds} of {folds} folds |" in lines


@pytest.mark.parametrize(
    ("options", "names", "expected"),
    [
        ("--task cola", "f1 accuracy matthews_correlation average_precision", ["matthews_correlation", "f1"]),
        ("--config a.yaml", "f1 accuracy matthews_correlation average_precision", ["matthews_correlation", "f1"]),
        ("--config a.yaml --task=mnli", "f1 accuracy matthews_correlation", ["accuracy", "f1"]),
        ("--task mrpc", "f1 accuracy combined_score", ["combined_score", "f1"]),
        ("--task", "spearmanr", ["spearmanr"]),
        ("", "pearson spearmanr combined_score", ["combined_score", "pearson"]),
        ("", " ".join([*official_metrics({"q": ["a"]}, {"q": "a"}), "loss"]), ["f1", "exact"]),
        ("", " ".join([*official_metrics({"q": ["a"]}, {"q": "a"}, {"q": 0.0}), "loss"]), ["best_f1", "best_exact"]),
    ],
)
def test_the_figure_of_the_benchmark_is_compared_first(options, names, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("task: cola\n")
    plan = make_plan(parsed(MODELS), options.split())
    rows = [row(**{f"eval_{name}": 0.5 for name in names.split()})]
    assert usual_metrics(rows, "eval_", plan.task_metric) == expected


def test_the_usual_figures_are_figures_of_the_metrics():
    known = {name for task in TASKS.values() for name in task.metric.metric_names}
    of_answers = official_metrics({"q": ["a"]}, {"q": "a"}, odds={"q": 0.0})
    assert set(_USUAL) <= known | {*RANKING_METRICS, *of_answers}


def test_without_test_labels_validation_figures_are_compared(tmp_path):
    argv = [*MODELS, "--seeds", "1", "--output_dir", str(tmp_path / "out")]
    study, said = make_study(argv, FakeRecipe(test_labels=False))
    assert study.run() == 0
    assert "## Validation f1" in said
    assert "The test rows have no labels." in (tmp_path / "out/study.md").read_text()
    rows = [row(eval_f1=0.5, baseline_words_f1=0.4)]
    assert collect(rows, "f1").baselines == {"baseline_words": {None: {0: [0.4]}}}


def test_a_baseline_belongs_to_the_longest_figure_name():
    metrics = {"test_precision": 0.1, "test_average_precision": 0.2, "test_f1": 0.3}
    baselines = {"baseline_words_average_precision": 0.4, "baseline_words_precision": 0.5, "baseline_f1": 0.6}
    rows = [row(**metrics, **baselines)]
    assert collect(rows, "average_precision").baselines == {"baseline_words": {None: {0: [0.4]}}}
    assert collect(rows, "precision").baselines == {"baseline_words": {None: {0: [0.5]}}}
    assert collect(rows, "f1").baselines == {"baseline": {None: {0: [0.6]}}}


def test_summary_and_difference_by_hand():
    values = {0: [0.8, 0.9], 1: [0.6, 0.8], 2: [0.7, 0.7]}
    found = summarize(values)
    assert found.mean == pytest.approx(0.75)
    assert found.sd == pytest.approx(math.sqrt((0.0025 + 0.0225 + 0.0225 + 0.0025 + 0.0025 + 0.0025) / 5))
    assert found.count == 6
    assert found.sd_of_seeds == pytest.approx(math.sqrt((0.005 + 0.02 + 0.0) / 3))

    # Per fold: 0.85 − 0.7, 0.7 − 0.7, 0.7 − 0.6
    difference = paired_difference(values, {0: [0.7, 0.7], 1: [0.7], 2: [0.5, 0.7]})
    assert difference.mean == pytest.approx((0.15 + 0.0 + 0.1) / 3)
    assert (difference.folds, difference.higher) == (3, 2)
    assert paired_difference({0: [0.5]}, {0: [0.4, 0.2]}).interval is None


def test_the_interval_is_that_of_all_resamples():
    """Against the exact bootstrap distribution: with four folds there are 4⁴ resamples."""
    differences = [0.10, 0.00, 0.04, 0.30]
    found = paired_difference({fold: [value] for fold, value in enumerate(differences)}, {f: [0.0] for f in range(4)})
    grid = np.stack(np.meshgrid(*[differences] * 4), axis=-1).reshape(-1, 4).mean(axis=1)
    low, high = np.quantile(grid, (0.025, 0.975))
    assert found.interval == pytest.approx((low, high), abs=0.006)


@pytest.mark.parametrize("sizes", [(10, 100, None), (None,)])
def test_the_picture_is_drawn(tmp_path, sizes):
    models = {name: {size: {0: [0.8, 0.9], 1: [0.7, 0.8]} for size in sizes} for name in ("one", "two")}
    baselines = {"baseline_majority": {size: {0: [0.0], 1: [0.0]} for size in sizes}}
    rows = {size: None if size is None and len(sizes) == 1 else float(size or 500) for size in sizes}
    draw_study([Scores("test", "f1", models, baselines, rows)], tmp_path / "curve.png")
    with Image.open(tmp_path / "curve.png") as picture:
        assert picture.size[0] > 600
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 100
