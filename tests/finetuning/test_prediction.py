"""Predictions of each head against stock code, and the files that they are written into."""

import builtins
import csv
import itertools
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator

import datasets
import numpy as np
import pandas
import pytest
import torch
import transformers
from tiny import save_random

from bert_hf.config.checkpoint_arguments import PredictionArguments
from bert_hf.data.text.tables import Row
from bert_hf.errors import InputError
from bert_hf.finetuning import predict as prediction
from bert_hf.finetuning.heads.classification import ClassificationHead
from bert_hf.finetuning.predict import (
    check_prediction,
    load_by_options,
    load_predictor,
    predict,
    predicted_windows,
    rows_of_texts,
    write_predictions,
)

RNG = np.random.default_rng(0)
TEXTS = [" ".join(f"w{RNG.integers(60)}" for _ in range(RNG.integers(1, 40))) for _ in range(30)]


def write(folder, files, output, **options):
    args = PredictionArguments(str(folder), [str(file) for file in files], output=str(output), **options)
    list(check_prediction(args))
    return write_predictions(load_by_options(args), args)


def as_csv(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def as_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# ---- heads


def test_labels_are_those_of_the_stock_pipeline(tmp_path):
    save_random(tmp_path / "model", num_labels=3, id2label={0: "a", 1: "b", 2: "c"})
    stock = transformers.pipeline("text-classification", str(tmp_path / "model"))
    expected = stock(TEXTS, truncation=True)
    found = predict(str(tmp_path / "model"), TEXTS)
    assert [row["label"] for row in found] == [row["label"] for row in expected]
    assert np.allclose([row["score"] for row in found], [row["score"] for row in expected], atol=1e-5)
    assert len({row["label"] for row in found}) > 1


def test_pairs_and_numbers_are_those_of_a_stock_forward(tmp_path):
    model, tokenizer = save_random(tmp_path / "model", num_labels=1, problem_type="regression")
    pairs = list(zip(TEXTS[:10], TEXTS[10:20], strict=True))
    inputs = tokenizer(
        *map(list, zip(*pairs, strict=True)), truncation="longest_first", padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        expected = model(**inputs).logits[:, 0].tolist()
    found = predict(model, pairs, tokenizer)
    assert np.allclose([row["score"] for row in found], expected, atol=1e-5)
    assert found[0].keys() == {"score"}


def test_several_labels_are_those_of_a_stock_forward(tmp_path):
    names = {0: "a", 1: "b", 2: "c"}
    model, tokenizer = save_random(
        tmp_path / "model", num_labels=3, id2label=names, problem_type="multi_label_classification"
    )
    inputs = tokenizer(TEXTS, truncation=True, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model(**inputs).logits.sigmoid().numpy()
    found = predict(tmp_path / "model", TEXTS)
    assert np.allclose([list(row["scores"].values()) for row in found], expected, atol=1e-5)
    assert [row["labels"] for row in found] == [[names[n] for n in range(3) if own[n] >= 0.5] for own in expected]
    assert len({len(row["labels"]) for row in found}) > 1


def test_tags_are_those_of_the_first_pieces(tmp_path):
    model, tokenizer = save_random(tmp_path / "model", "TokenClassification", num_labels=4)
    sentences = [text.split()[:12] for text in TEXTS]
    found = predict(model, sentences, tokenizer)
    for words, row in zip(sentences, found, strict=True):
        inputs = tokenizer([words], is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            best = model(**inputs).logits[0].argmax(-1).tolist()
        firsts = [inputs.word_ids().index(number) for number in range(len(words))]
        assert row["labels"] == [model.config.id2label[best[first]] for first in firsts]


def test_choices_are_those_of_a_stock_forward(tmp_path):
    model, tokenizer = save_random(tmp_path / "model", "MultipleChoice")
    rows = [{"context": TEXTS[n], "choices": TEXTS[n + 1 : n + 3 + n % 2], "label": 0} for n in range(6)]
    found = predict(model, rows, tokenizer)
    for row, own in zip(rows, found, strict=True):
        choices = [" ".join(choice.split()[:8]) for choice in row["choices"]]
        [again] = predict(model, [{**row, "choices": choices, "context": "w1 w2"}], tokenizer)
        inputs = tokenizer(["w1 w2"] * len(choices), choices, padding=True, return_tensors="pt")
        with torch.no_grad():
            scores = model(**{name: value[None] for name, value in inputs.items()}).logits[0].softmax(0)
        assert again["choice"] == int(scores.argmax())
        assert again["score"] == pytest.approx(float(scores.max()), abs=1e-5)
        assert own.keys() == {"choice", "score"}


def test_words_for_masks_are_those_of_the_stock_pipeline(tmp_path):
    model, tokenizer = save_random(tmp_path / "model", "PreTraining")
    stock = transformers.pipeline("fill-mask", str(tmp_path / "model"))
    found = predict(tmp_path / "model", ["w1 [MASK] w3", "w4", "[MASK] [MASK]"])
    [best, *_] = stock("w1 [MASK] w3")
    assert found[0]["words"] == [best["token_str"]]
    assert found[0]["scores"] == [pytest.approx(best["score"], abs=1e-5)]
    assert [len(row["words"]) for row in found] == [1, 0, 2]
    [in_memory] = predict(model, ["w1 [MASK] w3"], tokenizer)  # with the head for pairs
    assert in_memory["words"] == found[0]["words"]


# ---- columns


def test_columns_of_the_training_are_read_where_the_file_has_them(tmp_path):
    trained = {"text_column": "tweet", "text_pair_column": None, "long_texts": "windows"}
    model, tokenizer = save_random(tmp_path / "model", num_labels=3, trained_on=trained)
    plain = predict(model, TEXTS[:4], tokenizer)
    assert predict(model, [{"tweet": text, "text": "w1"} for text in TEXTS[:4]], tokenizer) == plain
    assert predict(model, [{"message": text, "other": "w1"} for text in TEXTS[:4]], tokenizer) == plain
    assert predict(model, [{"x": text, "tweet": "w1"} for text in TEXTS[:4]], tokenizer, text_column="x") == plain
    assert predict(model, TEXTS, tokenizer) != predict(model, TEXTS, tokenizer, long_texts="head")


def test_a_model_of_pairs_refuses_single_texts(tmp_path):
    trained = {"text_column": "one", "text_pair_column": "two", "long_texts": "head"}
    model, tokenizer = save_random(tmp_path / "model", num_labels=2, trained_on=trained)
    rows = [{"one": "w1", "two": "w2"}]
    assert predict(model, rows, tokenizer) == predict(model, [("w1", "w2")], tokenizer)
    with pytest.raises(InputError, match="trained on pairs"):
        predict(model, ["w1"], tokenizer)
    model.config.trained_on = {**trained, "text_column": "text", "text_pair_column": None}
    with pytest.raises(InputError, match=r"on single texts, not on pairs \(sentence1 and sentence2\); pass"):
        predict(model, [{"sentence1": "w1", "sentence2": "w2"}], tokenizer)


def test_columns_pass_through_in_order(tmp_path):
    save_random(tmp_path / "model", num_labels=3)
    rows = [{"id": str(n), "text": text, "label": "x"} for n, text in enumerate(TEXTS)]
    source = as_csv(tmp_path / "rows.csv", rows)
    for kind in (".csv", ".jsonl"):
        output = tmp_path / f"out{kind}"
        assert write(tmp_path / "model", [source, source.with_name("rows.csv")], output) == len(rows)
        if kind == ".csv":
            written = list(csv.DictReader(output.read_text().splitlines()))
        else:
            written = [json.loads(line) for line in output.read_text().splitlines()]
        assert list(written[0]) == ["id", "text", "label", "prediction", "score"]
        assert [{name: row[name] for name in rows[0]} for row in written] == rows
        assert [row["prediction"] for row in written] == [row["label"] for row in predict(tmp_path / "model", TEXTS)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out.csv", "out.jsonl", "rows.csv"]


def test_row_numbers_of_pandas_pass_through(tmp_path):
    save_random(tmp_path / "model", num_labels=3)
    (tmp_path / "rows.csv").write_text(",text\n1000,w1\n1001,w2\n")
    write(tmp_path / "model", [tmp_path / "rows.csv"], tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in lines] == [["", "text"], ["1000", "w1"], ["1001", "w2"]]


def test_rows_without_a_text_are_counted_and_kept(tmp_path, caplog):
    save_random(tmp_path / "model", num_labels=2)
    source = as_csv(tmp_path / "rows.csv", [{"n": n, "text": text} for n, text in enumerate(["w1", "", "w2", " "])])
    assert write(tmp_path / "model", [source], tmp_path / "out.csv") == 4
    assert "! 2 rows have no text" in caplog.text
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert len(lines) == 5
    assert max(len(line.rpartition(",")[2]) for line in lines) <= len("0.1234567")


def test_a_run_that_is_not_finished(tmp_path):
    (tmp_path / "run/checkpoint-5").mkdir(parents=True)
    with pytest.raises(InputError, match=r"run: no config.json: .* not finished; .*checkpoint-N"):
        load_predictor(tmp_path / "run")


def test_numbers_of_classes_stay_numbers(tmp_path):
    save_random(tmp_path / "model", num_labels=2)
    rows = datasets.Dataset.from_dict({"text": TEXTS[:2], "kind": [1, -1]})
    rows.cast_column("kind", datasets.ClassLabel(names=["a", "b"])).to_parquet(tmp_path / "rows.parquet")
    write(tmp_path / "model", [tmp_path / "rows.parquet"], tmp_path / "out.jsonl")
    assert [json.loads(line)["kind"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [1, -1]


@pytest.mark.parametrize("texts", ["One text.", {"text": "One text."}, pandas.DataFrame({"text": ["One text."]})])
def test_a_single_text_is_not_a_list(texts):
    """Its characters, or the names of its columns, would be predicted."""
    with pytest.raises(InputError, match="is not a list of texts; pass a list"):
        rows_of_texts(texts)


def test_a_first_text_without_words(tmp_path):
    save_random(tmp_path, "TokenClassification", num_labels=2)
    [empty, _] = predict(tmp_path, ["", "w1 w2"])
    assert empty == {"labels": [], "tokens": []}
    assert predict(tmp_path, ["", "\u200b"]) == [empty] * 2  # no text has a word
    table = as_csv(tmp_path / "a.csv", [{"id": "1", "text": ""}, {"id": "2", "text": "w1 w2"}])
    assert write(tmp_path, [table], tmp_path / "o.jsonl") == 2


def test_a_taken_name_is_refused(tmp_path):
    save_random(tmp_path / "model", num_labels=2)
    source = as_lines(tmp_path / "rows.jsonl", [{"text": "w1", "score": 1}])
    with pytest.raises(InputError, match="'score' already"):
        write(tmp_path / "model", [source], tmp_path / "out.jsonl")


def test_rows_in_python_form_the_documents_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(prediction, "WINDOW", 8)  # sentences have neighbours in the windows beside theirs, too
    save_random(tmp_path / "model", "TokenClassification", num_labels=4, trained_on={"document_context": True})
    rows = [{"tokens": text.split()[:4], "document_id": number // 3} for number, text in enumerate(TEXTS)]
    for given in (rows, [{"tokens": row["tokens"]} for row in rows]):
        source = as_lines(tmp_path / "rows.jsonl", given)
        write(tmp_path / "model", [source], tmp_path / "out.jsonl")
        written = [json.loads(line)["labels"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert [row["labels"] for row in predict(tmp_path / "model", given)] == written
        assert [predict(tmp_path / "model", [row])[0]["labels"] for row in given] != written


# ---- one pass


@pytest.mark.parametrize("kind", [".csv", ".jsonl"])
def test_killed_and_started_again(tmp_path, kind):
    """No half output is ever there under its name, and the same command begins again."""
    save_random(tmp_path / "model", num_labels=3)
    source = as_csv(tmp_path / "rows.csv", [{"text": text, "n": n} for n, text in enumerate(TEXTS)])
    whole, output = tmp_path / f"whole{kind}", tmp_path / f"out{kind}"
    write(tmp_path / "model", [source], whole)

    child = multiprocessing.get_context("fork").Process(target=killed, args=(tmp_path, source, output))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert not output.exists()

    before = b"of an older run"
    output.write_bytes(before)
    with pytest.MonkeyPatch.context() as patch:
        broken_after(3, patch, lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write(tmp_path / "model", [source], output)
    assert output.read_bytes() == before

    write(tmp_path / "model", [source], output)
    assert output.read_bytes() == whole.read_bytes()


def broken_after(windows: int, patch: pytest.MonkeyPatch, action: Callable) -> None:
    """Reads four rows at a time, and calls `action` in place of a window's prediction."""
    calls = itertools.count()
    decode = ClassificationHead.decode
    patch.setattr(prediction, "WINDOW", 4)
    patch.setattr(ClassificationHead, "decode", lambda *args: action() if next(calls) == windows else decode(*args))


def killed(folder, source, output) -> None:
    torch.set_num_threads(1)
    broken_after(3, pytest.MonkeyPatch(), lambda: os.kill(os.getpid(), signal.SIGKILL))
    write(folder / "model", [source], output)


@pytest.mark.parametrize("columns", [("text", "by"), ("text", "by", "n")])
def test_a_table_is_opened_twice_and_read_once(tmp_path, monkeypatch, columns):
    """The first opening tells the kind of the file."""
    save_random(tmp_path / "model", num_labels=3)
    monkeypatch.setattr(prediction, "WINDOW", 4)
    opened = []
    stock_open = builtins.open

    def counted(file, *args, **named):
        opened.append(str(file))
        return stock_open(file, *args, **named)

    monkeypatch.setattr(builtins, "open", counted)
    for kind in (".csv", ".jsonl"):
        source = as_csv(tmp_path / f"rows{kind}.csv", [dict.fromkeys(columns, text) for text in TEXTS])
        opened.clear()
        write(tmp_path / "model", [source], tmp_path / f"out{kind}")
        assert opened.count(str(source)) == 2


@pytest.mark.parametrize("context", [False, True])
def test_rows_are_read_window_by_window(tmp_path, monkeypatch, context):
    monkeypatch.setattr(prediction, "WINDOW", 8)
    save_random(tmp_path / "model", "TokenClassification", num_labels=4, trained_on={"document_context": context})
    predictor = load_predictor(tmp_path / "model")
    ahead, written = 0, 0

    def endless() -> Iterator[Row]:
        nonlocal ahead
        for number in itertools.count(1):
            ahead = max(ahead, number - written)
            yield Row({"tokens": ["w1", "w2"]}, "rows.jsonl", number)

    for window in itertools.islice(predicted_windows(predictor, endless()), 20):
        written += len(window)
    assert written == 160
    assert ahead <= 2 * 8  # a window, and the one after it


@pytest.mark.parametrize("window", [1, 2, 4096])
def test_columns_that_only_later_rows_have(tmp_path, monkeypatch, window):
    save_random(tmp_path / "model", num_labels=3)
    monkeypatch.setattr(prediction, "WINDOW", window)
    rows = [{"text": "w1"}, {"text": 'a "b",\nc'}, {"text": "w2", "id": 3}, {"text": "w3", "id": 2.5, "by": "x"}]
    source = as_lines(tmp_path / "rows.jsonl", rows)
    assert write(tmp_path / "model", [source], tmp_path / "out.csv") == 4
    with open(tmp_path / "out.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["text"] for row in written] == [row["text"] for row in rows]
    assert [row["id"] for row in written] == ["", "", "3", "2.5"]
    assert [row["by"] for row in written] == ["", "", "", "x"]
    labels = [row["label"] for row in predict(tmp_path / "model", rows)]
    assert [row["label"] for row in written] == labels
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out.csv", "rows.jsonl"]


@pytest.mark.parametrize("kind", [".csv", ".jsonl"])
def test_half_a_surrogate_pair_in_any_column(tmp_path, kind):
    save_random(tmp_path / "model", "TokenClassification", num_labels=2)
    (tmp_path / "a.jsonl").write_text('{"tokens": ["w1", "\\ud83d"], "by": "b\\uD83D"}\n')
    assert write(tmp_path / "model", [tmp_path / "a.jsonl"], tmp_path / f"o{kind}") == 1
    assert "b\ufffd".encode() in (tmp_path / f"o{kind}").read_bytes()


def test_the_output_is_no_input(tmp_path):
    source = as_lines(tmp_path / "rows.jsonl", [{"text": "w1"}])
    with pytest.raises(InputError, match="one of the inputs"):
        list(check_prediction(PredictionArguments("model", [str(source)], output=str(source))))
