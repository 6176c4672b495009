"""Studies: their cells, subsets, resumption and tables, with a recipe that trains nothing."""

import csv
import gc
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.studies import FakeRecipe, Killed, make_study, write_folds
from PIL import Image

from bert_hf.analysis import study_report
from bert_hf.analysis.study import nested_order, split_argv
from bert_hf.analysis.study_report import draw_learning_curves, metric_values, paired_difference
from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.config.parser import parse
from bert_hf.config.training_arguments import FineTuningArguments
from bert_hf.errors import InputError
from bert_hf.finetuning.tasks.classification import ClassificationTask

MODELS = ["--models", "one=there/one", "random=there/one:from_scratch"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Leaves out what takes long: collecting garbage after each cell, and the picture."""
    monkeypatch.setattr(gc, "collect", lambda: 0)
    monkeypatch.setattr(study_report, "draw_learning_curves", lambda scores, path: None)


@pytest.fixture
def argv(tmp_path):
    """A study of 2 models × 2 sizes × 2 folds × 2 seeds."""
    folds = write_folds(tmp_path / "folds")
    cells = ["--folds_dir", str(folds), "--train_sizes", "12", "all", "--seeds", "1", "2"]
    return [*MODELS, *cells, "--output_dir", str(tmp_path / "out"), "--max_seq_length", "64"]


def table(folder: Path) -> list[dict[str, str]]:
    with open(folder / "study.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_unknown_options_are_for_the_recipe():
    argv = ["--seeds", "1", "2", "--config", "a.yaml", "--check", "--learning_rate=1e-4", "--no"]
    ours, recipe_argv = split_argv(argv)
    assert ours == ["--seeds", "1", "2", "--check"]
    assert recipe_argv == ["--config", "a.yaml", "--learning_rate=1e-4", "--no"]


def test_a_cell_is_the_recipe_with_the_options_of_its_coordinates(argv, tmp_path):
    recipe = FakeRecipe()
    study = make_study([*argv, "--eval_steps", "5"], recipe)
    assert study.run() == 0
    assert len(recipe.calls) == 16

    subset = f"{tmp_path}/out/subsets/fold-0/12.jsonl"
    assert recipe.calls[8] == {
        "max_seq_length": "64",
        "eval_steps": "5",
        "eval_strategy": "no",
        "load_best_model_at_end": "false",
        "train_file": subset,
        "validation_file": subset,  # none of the fold's validation rows
        "test_file": f"{tmp_path}/folds/fold-0/test.jsonl",
        "model_name_or_path": "there/one",
        "from_scratch": "true",
        "seed": "1",
        "output_dir": f"{tmp_path}/out/cells/random/fold-0/size-12/seed-1/run",
    }
    assert {call["from_scratch"] for call in recipe.calls[8:]} == {"true"}
    assert sum(call.get("eval_strategy") == "no" for call in recipe.calls) == 8  # those on subsets


def test_a_model_may_have_options_and_a_checkpoint_for_each_fold(tmp_path):
    folds = write_folds(tmp_path / "folds")
    recipe = FakeRecipe()
    models = ["--models", "a=there/{fold} --learning_rate 3e-4", "b=there/b"]
    study = make_study([*models, "--folds_dir", str(folds), "--seeds", "1", "--output_dir", f"{tmp_path}/o"], recipe)
    assert study.run() == 0
    assert [call["model_name_or_path"] for call in recipe.calls] == ["there/0", "there/1", "there/b", "there/b"]
    assert ["learning_rate" in call for call in recipe.calls] == [True, True, False, False]


def test_without_folds_the_recipe_is_told_where_its_data_are(tmp_path):
    recipe = FakeRecipe()
    source = ["--dataset_source", "https://host/rows.csv"]
    argv = [*MODELS, "--task", "cola", *source, "--seeds", "4", "--output_dir", str(tmp_path / "out")]
    for _ in range(2):  # the second time each cell is finished
        assert make_study(argv, recipe).run() == 0
    assert [(call["task"], call["seed"], call["dataset_source"]) for call in recipe.calls] == [
        ("cola", "4", source[1])
    ] * 2
    assert {row["train_rows"] for row in table(tmp_path / "out")} == {"100"}  # known to the run alone


BAD = {
    "no model": ["--seeds", "1"],
    "a model without a path": ["--models", "one"],
    "a name twice": ["--models", "a=x", "a=y"],
    "a name of a baseline": ["--models", "baseline_words=x"],
    "subsets without folds": [*MODELS, "--train_sizes", "10"],
    "no folds": [*MODELS, "--folds_dir", "nowhere"],
    "an option that the study sets": [*MODELS, "--seed", "1"],
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_plan_is_an_error(name, tmp_path):
    with pytest.raises(InputError):
        make_study([*BAD[name], "--output_dir", str(tmp_path / "out")], FakeRecipe())


@pytest.mark.parametrize("size", ["ten", "0", "61"])
def test_a_size_that_the_folds_do_not_have_is_an_error(argv, size):
    argv[argv.index("12")] = size
    with pytest.raises(InputError, match="up to 60"):
        make_study(argv, FakeRecipe())


def test_a_foreign_folder_and_a_refused_option_leave_nothing(argv, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("keep")
    with pytest.raises(InputError):
        make_study(argv, FakeRecipe()).run()

    argv[argv.index(str(tmp_path / "out"))] = str(tmp_path / "new")
    with pytest.raises(ValueError, match="many"):
        make_study([*argv, "--num_train_epochs", "many"], FakeRecipe()).run()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("seed", range(5))
def test_subsets_are_nested_and_stratified(seed):
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 4, 200)
    order = nested_order(classes, 200, (seed,))
    assert sorted(order) == list(range(200))
    assert sorted(classes[order[:8]]) == [0, 0, 1, 1, 2, 2, 3, 3]
    for size in (40, 100):
        counts = np.bincount(classes[order[:size]], minlength=4)
        assert np.abs(counts - np.bincount(classes) * size / 200).max() < 1.5
    assert (nested_order(classes, 40, (seed,)) == order[:40]).all()
    assert (nested_order(classes, 40, (seed, 1)) != order[:40]).any()


@pytest.mark.parametrize("yaml", ["task: spam", "class_names: [b, a]"])
def test_two_classes_are_in_the_same_order_in_all_cells(tmp_path, yaml):
    """A third of the rows are of class a: it is not the rare one, but in a subset of 10 it would be."""
    (tmp_path / "run.yaml").write_text(yaml)
    folds = write_folds(tmp_path / "folds", rows=54, labels="abb")
    words = ["--train_sizes", "10", "all", "--seeds", "1", "--output_dir", str(tmp_path / "out")]
    study = make_study([*MODELS, "--folds_dir", str(folds), *words, "--config", f"{tmp_path}/run.yaml"], FakeRecipe())
    assert study.run() == 0
    for cell in study.cells:
        task_args, _ = parse((ClassificationArguments, FineTuningArguments), study.argv(cell))
        names = ClassificationTask.label_names(task_args)
        assert names == (("a", "b") if "task" in yaml else ("b", "a"))


def test_killed_three_times_it_ends_with_the_same_bytes(argv, tmp_path):
    assert make_study(argv, FakeRecipe()).run() == 0
    expected = {name: (tmp_path / "out" / name).read_bytes() for name in ("study.csv", "study.md")}

    killed = [str(tmp_path / "killed") if word == str(tmp_path / "out") else word for word in argv]
    recipe = FakeRecipe(kill_at=(2, 5, 11))
    for _ in range(3):
        with pytest.raises(Killed):
            make_study(killed, recipe).run()
    assert make_study(killed, recipe).run() == 0
    assert len(recipe.calls) == 16 + 3
    assert {name: (tmp_path / "killed" / name).read_bytes() for name in expected} == expected


def test_a_finished_study_is_only_read_and_a_larger_one_runs_what_is_new(argv):
    recipe = FakeRecipe()
    assert make_study(argv, recipe).run() == 0
    assert make_study(argv, recipe).run() == 0
    assert len(recipe.calls) == 16

    argv.insert(argv.index("2") + 1, "3")  # a third seed
    assert make_study(argv, recipe).run() == 0
    assert len(recipe.calls) == 24
    with pytest.raises(InputError, match="other options"):
        make_study([*argv, "--learning_rate", "1e-4"], recipe).run()


@pytest.mark.parametrize("code", [2, 70, 143])
def test_a_failed_or_stopped_cell_ends_the_study_with_its_code(argv, code, tmp_path, capsys):
    recipe = FakeRecipe(codes={3: code})
    assert make_study(argv, recipe).run() == code
    assert len(recipe.calls) == 3
    assert not (tmp_path / "out/study.md").exists()
    if code == 2:
        assert capsys.readouterr().err.startswith("error: cell one/fold-1/size-12/seed-1: ")


def test_weights_of_finished_cells_are_removed(argv, tmp_path):
    assert make_study(argv, FakeRecipe()).run() == 0
    assert not list(tmp_path.rglob("out/**/model.safetensors"))
    assert not list(tmp_path.rglob("out/**/checkpoint-2"))


def test_the_table_has_a_row_for_each_cell_and_no_times(argv, tmp_path):
    assert make_study(argv, FakeRecipe()).run() == 0
    rows = table(tmp_path / "out")
    assert len(rows) == 16
    assert rows[0]["train_rows"] == "12"
    assert rows[4]["train_rows"] == "60"
    assert not any(name.endswith("runtime") for name in rows[0])
    assert rows[0]["eval_f1"] == ""  # the validation rows of a subset are its training rows
    assert rows[4]["eval_f1"] != ""


def test_the_page_holds_what_the_table_holds(argv, tmp_path, caplog):
    study = make_study([*argv, "--metrics", "f1"], FakeRecipe())
    assert study.run() == 0
    page = (tmp_path / "out/study.md").read_text()
    of_one = [float(row["test_f1"]) for row in table(tmp_path / "out") if row["model"] == "one"]
    assert f"| 12 | one | {np.mean(of_one[:4]):.4f} | {np.std(of_one[:4], ddof=1):.4f} | 4 |" in page
    assert "| difference from random | 95 % interval | folds higher |" in page
    assert "| 12 | baseline_characters | 0.4000 | 0.0000 | 2 |" in page
    assert "1 of 16: one/fold-0/size-12/seed-1: test_f1 " in caplog.text


@pytest.mark.parametrize("words", [["--metrics", "accuracy"], ["--reference", "three"]])
def test_an_unknown_name_ends_a_study_after_its_first_cell(argv, words):
    recipe = FakeRecipe()
    with pytest.raises(InputError, match=words[1]):
        make_study([*argv, *words], recipe).run()
    assert len(recipe.calls) == 1


def test_a_baseline_may_be_the_reference(argv, tmp_path):
    assert make_study([*argv, "--reference", "baseline_majority"], FakeRecipe()).run() == 0
    page = (tmp_path / "out/study.md").read_text()
    assert "difference from baseline_majority" in page
    assert "| 12 | baseline_characters | 0.4000 | 0.0000 | 2 | +0.4000 | +0.4000 to +0.4000 | 2 of 2 |" in page


def test_a_text_with_a_line_separator_is_one_row(argv, tmp_path):
    """`str.splitlines` would cut at U+2028, which JSON need not escape."""
    path = tmp_path / "folds/fold-0/train.jsonl"
    path.write_text("".join(f'{{"text": "one\u2028two {n}", "label": "{"abc"[n % 3]}"}}\n' for n in range(60)))
    assert make_study(argv, FakeRecipe()).run() == 0


def test_without_test_labels_validation_metrics_are_compared(tmp_path):
    folds = write_folds(tmp_path / "folds")
    argv = [*MODELS, "--folds_dir", str(folds), "--seeds", "1", "--output_dir", str(tmp_path / "out")]
    assert make_study(argv, FakeRecipe(test_labels=False)).run() == 0
    assert "## Validation f1" in (tmp_path / "out/study.md").read_text()


def test_differences_by_hand():
    """Differences 1, 2, 3: mean 2, variance 1; the interval is t(2 degrees) · sqrt(1 · (1/3 + 1/2))."""
    values = pd.DataFrame({"fold": [0, 0, 1, 2], "value": [1.0, 3.0, 3.0, 4.0]})
    reference = pd.DataFrame({"fold": [0, 1, 2], "value": [1.0, 1.0, 1.0]})
    mean, half, higher, folds = paired_difference(values, reference)
    assert (mean, higher, folds) == (2.0, 3, 3)
    assert half == pytest.approx(4.302653 * math.sqrt(5 / 6), rel=1e-6)
    mean, half, higher, folds = paired_difference(values[:2], reference[:1])
    assert (mean, higher, folds) == (1.0, 1, 1)
    assert math.isnan(half)


@pytest.mark.parametrize("sizes", [["12", "all"], ["all"]])
def test_the_picture_is_drawn(argv, tmp_path, sizes):
    start = argv.index("--train_sizes")
    study = make_study([*argv[: start + 1], *sizes, *argv[start + 3 :]], FakeRecipe())
    assert study.run() == 0
    cells = study.table
    cells.loc[cells["train_size"] == 12, "baseline_characters_f1"] = math.nan  # as with training rows of one class
    values = {metric: metric_values(cells, metric) for metric in ("f1", "average_precision")}
    draw_learning_curves(values, tmp_path / "curve.png")
    with Image.open(tmp_path / "curve.png") as picture:
        assert picture.size[0] > 1000


def test_models_that_read_other_texts_have_baselines_of_their_own():
    cells = pd.DataFrame({"model": list("aabb"), "train_size": "all", "fold": [0, 1, 0, 1], "test_f1": 0.9})
    cells = cells.assign(baseline_majority_f1=0.4, baseline_words_f1=[0.5, 0.6, 0.5, 0.7])
    scores = {name: own["value"].tolist() for name, own in metric_values(cells, "f1").groupby("name", sort=False)}
    assert list(scores) == ["a", "b", "baseline_majority", "baseline_words (a)", "baseline_words (b)"]
    assert scores["baseline_words (a)"] == [0.5, 0.6]
    assert scores["baseline_words (b)"] == [0.5, 0.7]
