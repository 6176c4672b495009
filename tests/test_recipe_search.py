"""Recipe search: its arithmetic, its locks, and that the flags of its plan are valid."""

import csv
import fcntl
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import recipe_search
from recipe_search import Run, main, read_plan

from bert_hf.config.arguments import (
    CorpusArguments,
    ExampleArguments,
    ModelArguments,
    PreTrainingArguments,
    TokenizerArguments,
    parse,
)

PLAN = """
tokens: 1_000_000
base: {max_seq_length: 128, per_device_train_batch_size: 32, seed: 1}
stages:
  first:
    one: {}
    two: {seed: 2, tokens: 2_000_000}
  second:
    three: {seq_length_warmup: ["64:0.5"], gradient_accumulation_steps: 2}
"""


@pytest.fixture
def flags(tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN)
    folders = [tmp_path / name for name in ("work", "results")]
    words = ["--plan", tmp_path / "plan.yaml", "--work_dir", folders[0], "--results_dir", folders[1]]
    return [str(word) for word in (*words, "--train_file", "c", "--validation_file", "v", "--tokenizer_name", "t")]


@pytest.fixture
def made(monkeypatch):
    """Replaces a run: records its command line and writes the files that a run writes."""
    calls = []

    def run(words, **kwargs):
        given = dict(zip(words[2::2], words[3::2], strict=False))
        calls.append(given)
        folder = Path(given["--output_dir"])
        folder.mkdir(parents=True)
        metrics = {"eval_mlm_loss": 5.0, "eval_mlm_accuracy": 0.2, "eval_nsp_accuracy": 0.5, "unigram_mlm_loss": 7.0}
        (folder / "all_results.json").write_text(json.dumps(metrics))
        history = [{"step": 100, **metrics}, {"step": 150, "loss": 1.0}]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(recipe_search.subprocess, "run", run)
    return calls


def test_steps_follow_from_tokens():
    """By hand: 32 rows of 128 with 94 % real tokens; then 2 × 32 rows, half of the steps of 64, half of 128."""
    plain = Run("a", "s", 1_000_000, {}, {"max_seq_length": 128, "per_device_train_batch_size": 32})
    assert plain.steps() == 260
    assert plain.tokens_at(130) == 500_531
    both = {"seq_length_warmup": ["64:0.5"], "gradient_accumulation_steps": 2}
    phases = Run("b", "s", 1_000_000, {}, {**plain.flags, **both})
    assert phases.steps() == 173
    assert phases.tokens_at(86) == round(86 * 64 * 64 * 0.94)
    assert phases.tokens_at(173) == pytest.approx(1_000_000, rel=0.01)


def test_each_run_happens_once(flags, made, tmp_path, capsys):
    assert main([*flags, "--only", "t*"]) == 0
    assert [call["--seed"] for call in made] == ["2", "1"]
    assert made[0]["--max_steps"] == "519"
    assert main(flags) == 0
    assert len(made) == 3  # the remaining one; the others are finished

    with open(tmp_path / "results/recipe_search.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["stage"], row["run"], row["tokens"]) for row in rows] == [
        ("first", "one", "1000000"),
        ("first", "two", "2000000"),
        ("second", "three", "1000000"),
    ]
    assert json.loads(rows[1]["changed"]) == {"seed": 2}
    with open(tmp_path / "results/recipe_search_curves.csv", newline="") as file:
        points = list(csv.DictReader(file))
    assert [point["run"] for point in points] == ["one", "two", "three"]
    assert points[0]["tokens"] == str(round(100 * 32 * 128 * 0.94))
    assert (tmp_path / "results/recipe_search.png").is_file()
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"runs": 3}


def test_a_run_of_another_search_is_skipped(flags, made, tmp_path):
    (tmp_path / "work").mkdir()
    with open(tmp_path / "work/one.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(flags) == 0
    assert [Path(call["--output_dir"]).name for call in made] == ["two", "three"]


def test_a_failed_run_names_its_log(flags, monkeypatch, capsys):
    monkeypatch.setattr(recipe_search.subprocess, "run", lambda *args, **kwargs: SimpleNamespace(returncode=3))
    assert main(flags) == 2
    assert "one.log: exit code 3" in capsys.readouterr().err


def test_a_name_is_used_once(tmp_path, flags, capsys):
    (tmp_path / "plan.yaml").write_text(PLAN.replace("three", "one"))
    assert main(flags) == 2
    assert "the name one is used twice" in capsys.readouterr().err


def test_flags_of_the_base_without_effect_are_left_out(tmp_path):
    plan = PLAN.replace("seed: 1}", "seed: 1, optim: muon, muon_learning_rate: 1e-3, config_name: a.json}")
    plan = plan.replace("one: {}", "one: {optim: sgd}").replace("{seed: 2", "{model_name_or_path: b, seed: 2")
    (tmp_path / "plan.yaml").write_text(plan)
    sgd, continued, muon = (run.flags for run in read_plan(tmp_path / "plan.yaml"))
    names = ("muon_learning_rate", "config_name", "model_name_or_path")
    assert [name in sgd for name in names] == [False, True, False]
    assert [name in continued for name in names] == [True, False, True]
    assert [name in muon for name in names] == [True, True, False]


def test_a_run_may_change_its_model(flags, made, tmp_path):
    (tmp_path / "a.json").write_text('{"hidden_size": 8, "initializer_range": 0.02}')
    plan = PLAN.replace("seed: 1}", f"seed: 1, config_name: {tmp_path}/a.json}}")
    (tmp_path / "plan.yaml").write_text(plan.replace("one: {}", "one: {config: {initializer_range: 0.05}}"))
    assert main([*flags, "--only", "*o*"]) == 0

    one, two = (Path(call["--config_name"]) for call in made)
    assert (one, two) == (tmp_path / "work/one.config.json", tmp_path / "a.json")
    assert json.loads(one.read_text()) == {"hidden_size": 8, "initializer_range": 0.05}
    with open(tmp_path / "results/recipe_search.csv", newline="") as file:
        assert json.loads(next(csv.DictReader(file))["changed"]) == {"config": {"initializer_range": 0.05}}


@pytest.mark.parametrize("wrong", ["{config: {hidden_size: 8}}", "{config_name: a.json, config: b.json}"])
def test_a_changed_model_needs_a_model_json(flags, tmp_path, capsys, wrong):
    (tmp_path / "plan.yaml").write_text(PLAN.replace("one: {}", f"one: {wrong}"))
    assert main(flags) == 2
    assert "one: config holds keys of the model JSON in config_name" in capsys.readouterr().err


def test_the_plan_of_the_project_is_valid(tmp_path):
    """Every row's flags are flags of recipes/pretrain.py, with values that it takes."""
    runs = read_plan(recipe_search.HERE / "recipe_search.yaml")
    asked = SimpleNamespace(train_file="c", validation_file="v", tokenizer_name="t")
    classes = (TokenizerArguments, CorpusArguments, ModelArguments, ExampleArguments, PreTrainingArguments)
    for run in runs:
        *_, shape, args = parse(classes, recipe_search.words_of(run, asked, tmp_path / run.name))
        lengths, shares = zip(*shape.lengths(), strict=True)
        expected_lengths, expected_shares = zip(*run.phases(), strict=True)
        assert (lengths, args.max_steps) == (expected_lengths, run.steps()), run.name
        assert shares == pytest.approx(expected_shares), run.name
