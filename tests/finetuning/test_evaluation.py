"""The metrics of a finished model are those of its own run, for every head: `evaluate`, and without training."""

import itertools
import json

import pytest
from helpers.choice_rows import save_checkpoint, swag_lines
from helpers.questions import write_questions
from helpers.recipe_runs import recipe
from helpers.tagged_words import sentences, write_checkpoint, write_parts
from tiny import save_tiny_bert

from bert_hf.finetuning import feature_tagging

DATA = ("--train_file", "--validation_file", "--problem_type")
TIMES = ("test_runtime", "test_samples_per_second", "test_steps_per_second", "test_model_preparation_time")
TIMED = ("_runtime", "_per_second", "_preparation_time", "epoch")
QUICK = [
    "--max_steps", "6", "--learning_rate", "3e-3", "--per_device_train_batch_size", "8", "--eval_strategy", "no",
    "--use_cpu", "true", "--bf16", "false", "--disable_tqdm", "true",
]  # fmt: skip


def check(folder, name, test_file, *words):
    """Trains a model, evaluates it on its test rows, and compares the metrics; returns their names."""
    run = folder / "run"
    options = ["--model_name_or_path", str(folder / "bert"), "--output_dir", str(run), *QUICK, *words]
    assert recipe(f"finetune_{name}")([*options, "--test_file", str(test_file)]) == 0
    again = ["--test_file", str(test_file), "--output_dir", str(folder / "again")]
    assert recipe("evaluate")([str(run), *again]) == 0

    results = json.loads((run / "test_results.json").read_text())
    expected = {name: value for name, value in results.items() if name.startswith("test_") and name not in TIMES}
    metrics = json.loads((folder / "again/test_results.json").read_text())
    assert metrics == pytest.approx({name: expected[name] for name in metrics}, abs=1e-5)

    # Without training, the other options are those of the training
    if "--feature_based" in words:  # the stock class does not load it
        return expected.keys() - metrics.keys()
    data = [word for word in zip(words[::2], words[1::2], strict=True) if word[0] in DATA]
    without = ["--do_train", "false", "--model_name_or_path", str(run), "--output_dir", str(folder / "without")]
    without += ["--test_file", str(test_file), *QUICK, *itertools.chain(*data)]
    assert recipe(f"finetune_{name}")(without) == 0
    for file in ("test_results.json", "eval_results.json"):
        own, other = (json.loads((folder / output / file).read_text()) for output in ("run", "without"))
        same = own.keys() & other.keys() - {name for name in own if name.endswith(TIMED)}
        assert len(same) > 1
        assert {name: other[name] for name in same} == pytest.approx({name: own[name] for name in same}, abs=1e-5)
    return expected.keys() - metrics.keys()


def predictions(folder, file) -> list[dict]:
    assert recipe("predict")([str(folder / "run"), str(file), "--output", str(folder / "out.jsonl")]) == 0
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def test_numbers(tmp_path):
    save_tiny_bert(tmp_path / "bert")
    for part, begin, count in (("train", 0, 60), ("validation", 60, 20), ("test", 100, 30)):
        rows = [f"w{n % 59} w{n * 7 % 59} w{n * 3 % 59},{n % 59 % 2}" for n in range(begin, begin + count)]
        (tmp_path / f"{part}.csv").write_text("\n".join(["review,degree", *rows]) + "\n")
    words = ["--problem_type", "regression", "--label_column", "degree", "--train_file", str(tmp_path / "train.csv")]
    words += ["--validation_file", str(tmp_path / "validation.csv"), "--max_seq_length", "16"]
    words += ["--max_steps", "60", "--learning_rate", "3e-3"]
    assert not check(tmp_path, "classification", tmp_path / "test.csv", *words)


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_answers(tmp_path, version):
    save_tiny_bert(tmp_path / "bert")
    share = 0.5 if version == "2.0" else 0.0
    files = [write_questions(tmp_path / f"{n}.json", 24, n, unanswerable=share) for n in range(3)]
    words = ["--train_file", str(files[0]), "--validation_file", str(files[1]), "--max_seq_length", "32"]
    assert not check(tmp_path, "question_answering", files[2], *words, "--doc_stride", "12")

    if version == "2.0":  # a given threshold wins over the one that was decided
        run = ["--model_name_or_path", str(tmp_path / "run"), "--output_dir", str(tmp_path / "given"), *QUICK]
        given = ["--do_train", "false", "--test_file", str(files[2]), "--null_score_diff_threshold=-1000"]
        assert recipe("finetune_question_answering")([*run, *given, *words]) == 0
        assert json.loads((tmp_path / "given/test_results.json").read_text())["test_NoAns_exact"] == 100

    # Without a threshold: 0 for a checkpoint of the stock example; ours then answers every question
    path, rows = tmp_path / "run/config.json", write_questions(tmp_path / "3.json", 24, 3, unanswerable=0.5)
    config, results = {**json.loads(path.read_text()), "trained_on": None}, []
    for changes in ({}, {"null_score_diff_threshold": 0.0}, {"trained_on": {"doc_stride": 12}}):
        path.write_text(json.dumps({**config, "null_score_diff_threshold": None, **changes}))
        where = ["--test_file", str(rows), "--output_dir", str(tmp_path / "again")]
        assert recipe("evaluate")([str(tmp_path / "run"), *where]) == 0
        results.append(json.loads((tmp_path / "again/test_results.json").read_text()))
    assert results[0] == results[1]
    assert results[2]["test_NoAns_exact"] == 0 < results[0]["test_NoAns_exact"]


@pytest.mark.parametrize("context", ["true", "false"])
def test_words(tmp_path, context):
    write_checkpoint(tmp_path / "bert")
    parts = write_parts(tmp_path)
    words = [word for part in ("train", "validation") for word in (f"--{part}_file", *parts[f"{part}_file"])]
    words += ["--max_seq_length", "24", "--document_context", context, "--max_steps", "40", "--learning_rate", "1e-2"]
    assert not check(tmp_path, "token_classification", parts["test_file"][0], *words)

    # `predict` reads the same windows as the run
    rows = predictions(tmp_path, parts["test_file"][0])
    blocks = (tmp_path / "run/predictions.conll").read_text().split("\n\n")[:-1]
    expected = [[line.split("\t")[2] for line in block.splitlines()] for block in blocks]
    assert [row["labels"] for row in rows] == expected
    assert len({label for row in rows for label in row["labels"]}) > 1


def test_words_on_frozen_features(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_tagging, "LSTM_HIDDEN_SIZE", 32)
    write_checkpoint(tmp_path / "bert")
    parts = write_parts(tmp_path)
    words = [word for part in ("train", "validation") for word in (f"--{part}_file", *parts[f"{part}_file"])]
    words += ["--max_seq_length", "24", "--feature_based", "last", "--document_context", "true"]
    assert not check(tmp_path, "token_classification", parts["test_file"][0], *words)

    rows = predictions(tmp_path, parts["test_file"][0])
    assert [len(row["labels"]) for row in rows] == [len(sentence) for sentence in sentences(20, seed=2)]


def test_choices(tmp_path):
    save_checkpoint(tmp_path / "bert")
    (tmp_path / "rows.jsonl").write_text(swag_lines())
    words = ["--train_file", str(tmp_path / "rows.jsonl"), "--max_seq_length", "48"]
    words += ["--validation_file", str(tmp_path / "copy.jsonl")]
    (tmp_path / "copy.jsonl").write_text(swag_lines())
    (tmp_path / "test.jsonl").write_text(swag_lines())
    assert not check(tmp_path, "multiple_choice", tmp_path / "test.jsonl", *words)
