"""For every head the metrics of a run are those of `evaluate`, of a run without training, and of the predictions."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.choice_rows import save_checkpoint, swag_lines
from helpers.questions import write_questions
from helpers.recipe_runs import recipe
from helpers.tagged_words import write_checkpoint, write_parts
from scipy.stats import pearsonr, spearmanr
from sklearn import metrics as sklearn
from tiny import save_tiny_bert

from bert_hf.finetuning.heads import frozen_features
from bert_hf.finetuning.metrics.entities import entities
from bert_hf.finetuning.metrics.squad import exact_and_f1

TIMED = ("_runtime", "_per_second", "_preparation_time", "epoch")
QUICK = [
    "--max_steps", "40", "--learning_rate", "3e-3", "--per_device_train_batch_size", "8", "--eval_strategy", "no",
    "--use_cpu", "true", "--bf16", "false", "--disable_tqdm", "true",
]  # fmt: skip
SEVERAL = ("x", "y", "z")
PARTS = ("train", "validation", "test")


def labelled(label, pairs: bool = False):
    def write(folder: Path) -> dict[str, Path]:
        save_tiny_bert(folder / "bert")
        for part, begin, count in zip(PARTS, (0, 60, 100), (60, 20, 30), strict=True):
            numbers = [n % 59 for n in range(begin, begin + count)]
            rows = [{"text": f"w{n} w{n * 7 % 59} w{n * 3 % 59}", "label": label(n)} for n in numbers]
            if pairs:
                rows = [{**row, "text_pair": f"{row['text']} w2 w3 w4"} for row in rows]
            (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {part: folder / f"{part}.jsonl" for part in PARTS}

    return write


def questions(unanswerable: float):
    def write(folder: Path) -> dict[str, Path]:
        save_tiny_bert(folder / "bert")
        files = [write_questions(folder / f"{number}.json", 24, number, unanswerable) for number in range(3)]
        return dict(zip(PARTS, files, strict=True))

    return write


def tagged(folder: Path) -> dict[str, Path]:
    write_checkpoint(folder / "bert")
    return {name.removesuffix("_file"): Path(files[0]) for name, files in write_parts(folder).items()}


def choices(folder: Path) -> dict[str, Path]:
    save_checkpoint(folder / "bert")
    for part in PARTS:
        (folder / f"{part}.jsonl").write_text(swag_lines())
    return {part: folder / f"{part}.jsonl" for part in PARTS}


def of_classes(rows, test_file) -> dict[str, float]:
    gold, said = [row["label"] for row in rows], [row["prediction"] for row in rows]
    two = set(gold) == {"ham", "spam"}
    average = {"average": "binary", "pos_label": "spam"} if two else {"average": "macro"}
    metrics = {
        "accuracy": sklearn.accuracy_score(gold, said),
        "f1": sklearn.f1_score(gold, said, **average),
        "matthews_correlation": sklearn.matthews_corrcoef(gold, said),
    }
    if two:
        positive = [row["score"] if row["prediction"] == "spam" else 1 - row["score"] for row in rows]
        metrics["average_precision"] = sklearn.average_precision_score(gold, positive, pos_label="spam")
        metrics["loss"] = sklearn.log_loss(gold, positive)
        metrics["recall"] = sklearn.recall_score(gold, said, pos_label="spam")
    return metrics


def of_numbers(rows, test_file) -> dict[str, float]:
    gold, said = [row["label"] for row in rows], [row["score"] for row in rows]
    loss = sklearn.mean_squared_error(gold, said)
    return {"pearson": pearsonr(gold, said)[0], "spearmanr": spearmanr(gold, said)[0], "loss": loss, "rmse": loss**0.5}


def of_several(rows, test_file) -> dict[str, float]:
    gold = np.array([[name in row["label"] for name in SEVERAL] for row in rows])
    said = np.array([[name in row["labels"] for name in SEVERAL] for row in rows])
    scores = np.array([[row["scores"][name] for name in SEVERAL] for row in rows])
    return {
        "micro_f1": sklearn.f1_score(gold, said, average="micro"),
        "macro_f1": sklearn.f1_score(gold, said, average="macro"),
        "accuracy": sklearn.accuracy_score(gold, said),
        "f1_y": sklearn.f1_score(gold[:, 1], said[:, 1]),
        "loss": np.mean([sklearn.log_loss(gold[:, label], scores[:, label]) for label in range(3)]),
    }


def of_answers(rows, test_file) -> dict[str, float]:
    paragraphs = [one for article in json.loads(test_file.read_text())["data"] for one in article["paragraphs"]]
    gold = [[answer["text"] for answer in each["qas"][0]["answers"]] for each in paragraphs]
    pairs = [exact_and_f1(row["answer"], texts) for row, texts in zip(rows, gold, strict=True)]
    return dict(zip(("exact", "f1"), 100 * np.mean(pairs, axis=0), strict=True))


def of_words(rows, test_file) -> dict[str, float]:
    """The files of the run have the same labels."""
    gold, said = ([row[name] for row in rows] for name in ("tags", "labels"))
    written = (test_file.parent / "run/test_predictions.jsonl").read_text().splitlines()
    assert said == [json.loads(line)["labels"] for line in written]
    assert len({label for labels in said for label in labels}) > 1
    found = [{(n, *entity) for n, tags in enumerate(each) for entity in entities(tags)} for each in (gold, said)]
    hits = len(found[0] & found[1])
    return {
        "precision": hits / max(1, len(found[1])),
        "recall": hits / len(found[0]),
        "f1": 2 * hits / (len(found[0]) + len(found[1])),
        "accuracy": sklearn.accuracy_score(np.concatenate(gold), np.concatenate(said)),
    }


def of_choices(rows, test_file) -> dict[str, float]:
    return {"accuracy": sklearn.accuracy_score([row["label"] for row in rows], [row["choice"] for row in rows])}


SHORT = ["--max_seq_length", "16"]
SQUAD = ["--max_seq_length", "32", "--doc_stride", "12"]
WORDS = ["--max_seq_length", "24", "--learning_rate", "1e-2"]
FROZEN = [*WORDS, "--feature_based", "last", "--document_context", "true", "--max_steps", "150"]


@pytest.mark.parametrize(
    ("name", "write", "options", "compute"),
    [
        ("classification", labelled(lambda n: ("ham", "spam")[n % 3 == 0]), [*SHORT, "--best_f1_threshold", "true"],
         of_classes),
        ("classification", labelled(lambda n: "abc"[n % 3], pairs=True),
         ["--max_seq_length", "8", "--long_texts", "windows"], of_classes),
        ("classification", labelled(lambda n: n % 2),
         [*SHORT, "--problem_type", "regression", "--max_steps", "80"], of_numbers),
        ("classification", labelled(lambda n: [name for bit, name in enumerate(SEVERAL) if n >> bit & 1]),
         [*SHORT, "--best_f1_threshold", "true"], of_several),
        ("question_answering", questions(0.0), SQUAD, of_answers),
        ("question_answering", questions(0.5), SQUAD, of_answers),
        ("token_classification", tagged, [*WORDS, "--document_context", "false"], of_words),
        ("token_classification", tagged, [*WORDS, "--document_context", "true"], of_words),
        ("token_classification", tagged, FROZEN, of_words),
        ("multiple_choice", choices, ["--max_seq_length", "48"], of_choices),
    ],
    ids=["two", "pairs", "numbers", "several", "squad1", "squad2", "words", "context", "frozen", "choices"],
)  # fmt: skip
def test_metrics_are_the_same_everywhere(tmp_path, monkeypatch, name, write, options, compute):
    monkeypatch.setattr(frozen_features, "LSTM_HIDDEN_SIZE", 32)
    files = write(tmp_path)
    words = [*QUICK, *options, *(word for part in PARTS for word in (f"--{part}_file", str(files[part])))]
    test = ["--test_file", str(files["test"])]
    run, again, without = (str(tmp_path / output) for output in ("run", "again", "without"))
    assert (
        recipe(f"finetune_{name}")(["--model_name_or_path", str(tmp_path / "bert"), "--output_dir", run, *words]) == 0
    )
    assert recipe("evaluate")([run, *test, "--output_dir", again]) == 0
    assert recipe("predict")([run, str(files["test"]), "--output", str(tmp_path / "out.jsonl")]) == 0
    expected, found = results(run), results(again)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)

    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    computed = {f"test_{metric}": value for metric, value in compute(rows, files["test"]).items()}
    assert computed == pytest.approx({metric: expected[metric] for metric in computed}, rel=1e-6, abs=1e-6)

    # Without training, the options that are not given are those of the training
    if "--feature_based" not in options:  # the stock class does not load it
        kept = [word for word in ("--problem_type", "regression") if word in options]
        data = [word for part in PARTS for word in (f"--{part}_file", str(files[part]))]
        model = ["--do_train", "false", "--model_name_or_path", run, "--output_dir", without]
        model += ["--write_predictions", "true"]  # of rows and their columns, which the model does not decide
        assert recipe(f"finetune_{name}")([*model, *QUICK, *data, *kept]) == 0
        assert results(without) == pytest.approx(expected, rel=1e-6, abs=1e-6)
        shared = results(without, "eval")
        assert shared == pytest.approx({each: results(run, "eval")[each] for each in shared}, rel=1e-6, abs=1e-6)


def results(folder: str, part: str = "test") -> dict[str, float]:
    metrics = json.loads(Path(folder, f"{part}_results.json").read_text())
    return {name: value for name, value in metrics.items() if not name.endswith(TIMED)}


def test_thresholds_of_answers(tmp_path):
    """A given one wins over the one that was decided; stock's is 0, ours answers every question without one."""
    files = questions(0.5)(tmp_path)
    words = [*QUICK, *SQUAD, *(word for part in PARTS for word in (f"--{part}_file", str(files[part])))]
    run = str(tmp_path / "run")
    tune = recipe("finetune_question_answering")
    assert tune(["--model_name_or_path", str(tmp_path / "bert"), "--output_dir", run, *words]) == 0
    given = ["--do_train", "false", "--model_name_or_path", run, "--output_dir", str(tmp_path / "given")]
    assert tune([*given, *words, "--null_score_diff_threshold=-1000"]) == 0
    assert results(str(tmp_path / "given"))["test_NoAns_exact"] == 100

    path = tmp_path / "run/config.json"
    config, found = {**json.loads(path.read_text()), "trained_on": None}, []
    for changes in ({}, {"null_score_diff_threshold": 0.0}, {"trained_on": {"doc_stride": 12}}):
        path.write_text(json.dumps({**config, "null_score_diff_threshold": None, **changes}))
        assert recipe("evaluate")([run, "--test_file", str(files["test"]), "--output_dir", run]) == 0
        found.append(results(run))
    assert found[0] == found[1]
    assert found[2]["test_NoAns_exact"] == 0 < found[0]["test_NoAns_exact"]
