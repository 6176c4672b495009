"""Inputs of `predict` other than tables of texts: plain text for a tagger, cells of lists, folders."""

import json

import pandas
import pytest
from helpers.recipe_runs import recipe
from tiny import save_random

from bert_hf import predict
from bert_hf.finetuning.heads.classification import ClassificationHead
from bert_hf.finetuning.metrics.entities import entities

TAGS = ("O", "B-person", "I-person", "B-place")
SENTENCES = [["w1", "w2x3", ",", "w4"], ["w7x1x2", "w8"], ["w5", "w6", "w7", "w9", "."]]


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tagger")
    save_random(folder, "TokenClassification", id2label=dict(enumerate(TAGS)))
    return str(folder)


def run_predict(model, path, folder, output="out.jsonl") -> list[dict]:
    assert recipe("predict")([model, str(path), "--output", str(folder / output)]) == 0
    if output.endswith(".csv"):
        return pandas.read_csv(folder / output).to_dict("records")
    return [json.loads(line) for line in (folder / output).read_text().splitlines()]


def test_a_text_has_the_labels_of_its_words_and_the_characters_of_its_entities(tagger):
    texts = [" ".join(words).replace(" ,", ",").replace(" .", ".") for words in SENTENCES]
    expected = predict(tagger, SENTENCES)
    assert len({label for row in expected for label in row["labels"]}) > 2
    for text, words, row, own in zip(texts, SENTENCES, expected, predict(tagger, texts), strict=True):
        assert own["tokens"] == words
        assert own["labels"] == row["labels"]
        found = [(each["label"], text[each["start"] : each["end"]].replace(" ", "")) for each in own["entities"]]
        assert found == [(kind, "".join(words[first : last + 1])) for kind, first, last in entities(row["labels"])]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "w1 w2x3, w4\nw7x1x2 w8\n"),
        ("a.csv", 'text\n"w1 w2x3, w4"\nw7x1x2 w8\n'),
        ("words.txt", "w1\nw2x3\n,\nw4\n\nw7x1x2\nw8\n"),
        ("words.txt", "w1\tN\nw2x3\tN\n,\tN\nw4\tN\n\nw7x1x2\tN\nw8\tN\n"),  # other labels
        ("words.tsv", "1\tw1\n2\tw2x3\n3\t,\n4\tw4\n\n1\tw7x1x2\n2\tw8\n"),
        ("words.tsv", "-DOCSTART-\tO\n\nw1\tO\nw2x3\tO\n,\tO\nw4\tO\n\nw7x1x2\tO\nw8\tO\n"),
        ("a.conll", "w1\tO\nw2x3\tO\n,\tO\nw4\tO\n\nw7x1x2\tO\nw8\tO\n"),
    ],
)
def test_files_of_texts_and_of_words(tagger, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    rows = run_predict(tagger, tmp_path / name, tmp_path)
    expected = predict(tagger, SENTENCES[:2])
    assert [row["tokens"] for row in rows] == SENTENCES[:2]
    assert [row["labels"] for row in rows] == [row["labels"] for row in expected]


def test_entities_of_two_labels_are_not_called_those_of_a_class(tmp_path, capsys):
    save_random(tmp_path / "model", "TokenClassification", id2label={0: "O", 1: "B-x"})
    (tmp_path / "a.conll").write_text("w1 O\nw2 B-x\n\nw3 B-x\nw4 O\n")
    assert recipe("evaluate")([str(tmp_path / "model"), "--test_file", str(tmp_path / "a.conll")]) == 0
    assert "F1 of" not in capsys.readouterr().out


def test_lists_in_cells_are_read_back(tagger, tmp_path):
    """Also those of a .csv file that `predict` wrote, whose `labels` are then those to compare with."""
    lines = [{"tokens": words} for words in SENTENCES]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    once = run_predict(tagger, tmp_path / "a.jsonl", tmp_path, "once.csv")
    again = run_predict(tagger, tmp_path / "once.csv", tmp_path, "again.csv")
    assert [row["predictions"] for row in again] == [row["labels"] for row in once]
    test = ["--test_file", str(tmp_path / "once.csv"), "--output_dir", str(tmp_path)]
    assert recipe("evaluate")([tagger, *test]) == 0
    assert json.loads((tmp_path / "test_results.json").read_text())["test_accuracy"] == 1.0


def test_a_folder_has_one_row_per_file(tmp_path):
    model = str(tmp_path / "model")
    save_random(model, "SequenceClassification", num_labels=3)
    texts = {"a.txt": "w5 " * 12, "b.txt": "w1 w2\nw3 w4", "c/d.eml": "w9\n"}
    (tmp_path / "mail/c").mkdir(parents=True)
    for name, text in texts.items():
        (tmp_path / "mail" / name).write_text(text)
    rows = run_predict(model, tmp_path / "mail", tmp_path)
    assert [row["file"] for row in rows] == [str(tmp_path / "mail" / name) for name in texts]
    for row, expected in zip(rows, predict(model, list(texts.values())), strict=True):
        assert row["prediction"] == expected["label"]
        assert row["score"] == pytest.approx(expected["score"], abs=1e-6)


def test_files_without_a_header_are_known_by_the_columns_of_the_training(tmp_path):
    model = str(tmp_path / "model")
    save_random(model, "SequenceClassification", num_labels=2)
    config = json.loads((tmp_path / "model/config.json").read_text())
    columns = {"text_column": "text", "text_pair_column": None, "label_column": "label"}
    config["trained_on"] = {**columns, "columns_without_header": ["label", "text"]}
    (tmp_path / "model/config.json").write_text(json.dumps(config))

    (tmp_path / "one.tsv").write_text("ham\tw1 w2 w3\n")
    (tmp_path / "numbered.tsv").write_text("1\tw1 w2 w3\n2\tw4\n3\tw5\n")
    (tmp_path / "named.tsv").write_text("label\ttext\nham\tw1 w2 w3\n")
    expected = predict(model, ["w1 w2 w3", "w4", "w5"])
    for name, count in (("one.tsv", 1), ("numbered.tsv", 3), ("named.tsv", 1)):
        rows = run_predict(model, tmp_path / name, tmp_path)
        assert [row["prediction"] for row in rows] == [each["label"] for each in expected[:count]], name
        assert rows[0]["text"] == "w1 w2 w3"


@pytest.mark.parametrize(("header", "expected"), [("", ("label", "text")), ("label\ttext\n", None)])
def test_a_training_without_a_header_is_recorded(tmp_path, header, expected):
    (tmp_path / "rows.tsv").write_text(header + "ham\tw1\nspam\tw2\nham\tw3\n")
    head = ClassificationHead(None, {"max_seq_length": 16})
    assert len(head.read(list(head.read_file(str(tmp_path / "rows.tsv"))))) == 3
    assert head.record()["trained_on"].get("columns_without_header") == expected
