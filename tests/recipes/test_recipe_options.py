"""Options whose effect is a recipe's: --do_*, --data_seed, what is said of it."""

import json
import shutil

import pytest
from helpers.recipe_runs import ROOT, recipe, write_inputs

from bert_hf.data.examples import dataset

SHORT, LONG = 32, 64


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("options"))


def pretrain(place, output, *words):
    return recipe("pretrain")(
        [
            "--config_name", str(place / "tiny.json"), "--train_file", str(place / "text.txt"), "--vocab_size", "200",
            "--cache_dir", str(place / "cache"), "--validation_split_percentage", "20", "--max_seq_length", str(SHORT),
            "--long_seq_length", str(LONG), "--long_seq_fraction", "0.5", "--max_steps", "8", "--eval_steps", "2",
            "--per_device_train_batch_size", "4", "--logging_steps", "2", "--save_minutes", "0",
            "--disable_tqdm", "true", "--bf16", "false", "--use_cpu", "--output_dir", str(place / output), *words,
        ]
    )  # fmt: skip


def metrics(place, output):
    """Logged figures of the evaluations at both lengths, by step; and those of the finished run."""
    history = json.loads((place / output / "trainer_state.json").read_text())["log_history"]
    evaluations = [row for row in history if any(name.startswith("eval_") for name in row)]
    timeless = [
        {name: value for name, value in row.items() if name.endswith(("_loss", "_accuracy", "step"))}
        for row in evaluations
    ]
    return timeless, json.loads((place / output / "all_results.json").read_text())


@pytest.fixture(scope="module")
def whole(place):
    assert pretrain(place, "whole", "--do_train", "--do_eval") == 0
    return metrics(place, "whole")


def evaluate(place, output, *words):
    """Evaluates the run "whole" and writes into another folder."""
    named = ["--model_name_or_path", str(place / "whole"), "--output_dir", str(place / output)]
    return recipe("pretrain")([*named, "--cache_dir", str(place / "cache"), "--bf16", "false", "--use_cpu", *words])


def split_off(place):
    return ["--do_eval", "--train_file", str(place / "text.txt"), "--validation_split_percentage", "20"]


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_without_training_the_finished_run_is_evaluated(place, whole, capsys):
    before = files(place / "whole")
    assert pretrain(place, "whole", "--do_train", "false") == 0
    after = files(place / "whole")
    assert [name for name in before | after if before.get(name) != after.get(name)] == ["eval_results.json"]
    evaluated = json.loads(after["eval_results.json"])
    for name in ("eval_mlm_loss", "eval_nsp_accuracy"):
        assert evaluated[name] == pytest.approx(whole[1][name], rel=1e-6)

    # A checkpoint that is named, and its results elsewhere
    for _ in range(2):  # the same command again, too
        assert evaluate(place, "elsewhere", *split_off(place)) == 0
    assert [path.name for path in (place / "elsewhere").iterdir()] == ["eval_results.json"]
    assert json.loads(files(place / "elsewhere")["eval_results.json"])["eval_mlm_loss"] == evaluated["eval_mlm_loss"]
    assert json.loads(after["tokenizer_config.json"])["model_max_length"] == 64  # positions of the model

    # Other documents would be held out: among them training documents
    text = ["--train_file", str(place / "text.txt"), "--cache_dir", str(place / "cache"), "--do_train", "false"]
    shutil.copytree(place / "whole", place / "checkpoint-8")
    (place / "checkpoint-8/run.json").rename(place / "checkpoint-8/checkpoint_manifest.json")
    for named in ("whole", "checkpoint-8"):
        assert recipe("pretrain")(["--model_name_or_path", str(place / named), "--output_dir", "none", *text]) == 2
        assert "split off text that it may have been trained on" in capsys.readouterr().err
    assert files(place / "whole") == after


def test_held_out_text_may_be_the_only_text_of_an_evaluation(place, whole, tmp_path):
    (tmp_path / "other.txt").write_text("\n\n".join(f"This is text {n}.\nIt goes on.\nIt ends." for n in range(20)))
    results = []
    held_out = ["--validation_file", str(tmp_path / "other.txt")]
    for words in (["--do_eval"], ["--do_train", "false"], ["--do_eval", "--train_file", str(place / "text.txt")]):
        assert evaluate(place, tmp_path / "out", *held_out, *words) == 0
        results.append(json.loads((tmp_path / "out/eval_results.json").read_text())["eval_mlm_loss"])
        shutil.rmtree(tmp_path / "out")
    assert results[0] == results[1] == results[2]


def test_without_training_there_must_be_a_finished_run(place, whole, capsys):
    assert pretrain(place, "nothing", "--do_eval") == 2
    assert "nothing: no finished run to evaluate" in capsys.readouterr().err
    (place / "other").mkdir()
    (place / "other/run.json").write_bytes(files(place / "whole")["run.json"])
    assert evaluate(place, "other", *split_off(place)) == 2
    assert "other: the output folder contains another run" in capsys.readouterr().err


def test_a_run_that_cannot_learn_is_told_so(place, capsys):
    assert pretrain(place, "hopeless", "--warmup_steps", "100", "--learning_rate", "1e-6") == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("! ")]
    assert any("100 steps of warm-up in a run of 8" in line for line in warnings)
    assert any("is not below" in line for line in warnings)


def test_the_data_have_a_seed_of_their_own(place, monkeypatch):
    seeds = []
    make = dataset.PreTrainingExamples.__init__

    def record(self, *args, seed=42, fixed=False, **more):
        if not fixed:
            seeds.append(seed)
        make(self, *args, seed=seed, fixed=fixed, **more)

    monkeypatch.setattr(dataset.PreTrainingExamples, "__init__", record)
    assert pretrain(place, "seeds", "--seed", "5", "--data_seed", "6", "--max_steps", "2") == 0
    assert set(seeds) == {6}
    identity = json.loads((place / "seeds/run.json").read_text())["identity"]
    assert (identity["seed"], identity["data_seed"]) == (5, 6)


def test_fine_tuning_predicts_and_is_evaluated_again(place, whole, capsys):
    words = [
        "--config", str(ROOT / "configs/finetune/spam-messages.yaml"), "--model_name_or_path", str(place / "whole"),
        "--train_file", str(ROOT / "src/bert_hf/finetuning/messages/spam.tsv"), "--num_train_epochs", "1",
        "--min_steps", "0", "--disable_tqdm", "true", "--bf16", "false", "--use_cpu",
        "--output_dir", str(place / "spam"),
    ]  # fmt: skip
    assert recipe("finetune_classification")([*words, "--do_train", "--do_eval", "--do_predict"]) == 0
    results = files(place / "spam")
    for split in ("train", "eval", "test"):
        assert f"{split}_results.json" in results

    # Again without training: the same metrics, and nothing else is written
    assert recipe("finetune_classification")([*words, "--do_predict"]) == 0
    changed = {name for name, content in files(place / "spam").items() if content != results.get(name)}
    assert changed == {"eval_results.json", "test_results.json"}
    again = json.loads(files(place / "spam")["test_results.json"])
    assert again["test_accuracy"] == json.loads(results["test_results.json"])["test_accuracy"]

    # Layers that were never trained are not evaluated
    assert recipe("finetune_classification")([*words[:-2], "--output_dir", str(place / "no"), "--do_eval"]) == 2
    assert "the checkpoint has no layers for classification" in capsys.readouterr().err
