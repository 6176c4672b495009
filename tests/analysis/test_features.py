"""Features equal the hidden states of stock `AutoModel` on each text alone."""

import itertools
import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from helpers.recipe_runs import recipe
from tiny import PIECES, tiny_config, tiny_tokenizer
from transformers import AutoModel, AutoTokenizer, BertForPreTraining

from bert_hf.analysis import features
from bert_hf.analysis.features import pool
from bert_hf.data.text.tokenization import save_tokenizer

LENGTH, COUNT = 20, 50


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Texts of 0 to 30 words, a third of them pairs, and a stock checkpoint of which every parameter is random."""
    folder = tmp_path_factory.mktemp("features")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(PIECES[:60], count)) for count in rng.integers(1, 30, COUNT)]
    texts[7] = ""
    pairs = [texts[-number] if number % 3 == 1 else None for number in range(COUNT)]
    lines = [text if pair is None else f"{text} ||| {pair}" for text, pair in zip(texts, pairs, strict=True)]
    (folder / "texts.txt").write_text("\n".join(lines))
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    torch.manual_seed(0)
    model = BertForPreTraining(tiny_config())
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder / "bert")
    save_tokenizer(tiny_tokenizer(), folder / "bert")
    return folder, texts, pairs


def extract(place, output, *words, file="texts.txt"):
    given = ["--model_name_or_path", str(place[0] / "bert"), "--train_file", str(place[0] / file)]
    given += ["--max_seq_length", str(LENGTH), "--per_device_eval_batch_size", "8", "--output_dir", str(output)]
    return recipe("extract_features")([*given, *words])


POOLED = {"cls": lambda states: states[0], "mean": lambda states: states.mean(0)}


@pytest.mark.parametrize("file", ["texts.txt", "rows.jsonl"])
@pytest.mark.parametrize("pooling", POOLED)
def test_features_equal_the_stock_states_of_each_text_alone(place, tmp_path, pooling, file):
    assert extract(place, tmp_path / "out", "--layers", "-1", "0", "--pooling", pooling, file=file) == 0
    table = pq.read_table(tmp_path / "out")
    assert table.schema.names == ["id", "layer_2", "layer_0"]
    assert table["id"].to_pylist() == list(range(COUNT))

    folder, texts, pairs = place
    pairs = [None] * COUNT if file == "rows.jsonl" else pairs
    model = AutoModel.from_pretrained(folder / "bert").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "bert")
    for number, (text, pair) in enumerate(zip(texts, pairs, strict=True)):
        inputs = tokenizer(text, pair, truncation=True, max_length=LENGTH, return_tensors="pt")
        with torch.no_grad():
            states = model(**inputs, output_hidden_states=True).hidden_states
        for layer in (2, 0):
            found = table[f"layer_{layer}"][number].as_py()
            np.testing.assert_allclose(found, POOLED[pooling](states[layer][0]), rtol=0, atol=1e-5)


def test_tokens_and_offsets_without_pooling(place, tmp_path):
    assert extract(place, tmp_path / "out", "--pooling", "none", "--text_column", "text", file="rows.jsonl") == 0
    table = pq.read_table(tmp_path / "out").to_pylist()
    assert list(table[0]) == ["id", "tokens", "offsets", "segments", "layer_2"]

    for text, row in zip(place[1], table, strict=True):
        assert [row["tokens"][0], row["tokens"][-1]] == ["[CLS]", "[SEP]"]
        words = [text[begin:end] for begin, end in row["offsets"][1:-1]]
        assert words == row["tokens"][1:-1] == text.split()[: LENGTH - 2]
        assert {len(row[name]) for name in ("tokens", "offsets", "segments", "layer_2")} == {len(words) + 2}


def test_pooling_of_a_literal_batch():
    states = torch.tensor([[[1.0, -1.0], [2.0, -2.0], [6.0, -6.0], [9.0, 9.0]], [[5.0, 0.0]] * 4])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    assert pool(states, mask, "cls").tolist() == [[[1.0, -1.0]], [[5.0, 0.0]]]
    assert pool(states, mask, "mean").tolist() == [[[3.0, -3.0]], [[5.0, 0.0]]]
    assert pool(states, mask, "none") is states


def test_many_chunks_are_one_file_and_an_interrupted_one_leaves_none(place, tmp_path, monkeypatch):
    assert extract(place, tmp_path / "whole") == 0
    monkeypatch.setattr(features, "islice", lambda texts, _: itertools.islice(texts, 20))
    assert extract(place, tmp_path / "chunks") == 0
    chunks, whole = (pq.read_table(tmp_path / name) for name in ("chunks", "whole"))
    assert chunks["id"].to_pylist() == list(range(COUNT))
    np.testing.assert_allclose(chunks["layer_2"].to_pylist(), whole["layer_2"].to_pylist(), atol=1e-5)

    def killed(extractor, texts):
        raise KeyboardInterrupt

    monkeypatch.setattr(features.FeatureExtractor, "encode", killed)
    with pytest.raises(KeyboardInterrupt):
        extract(place, tmp_path / "cut")
    assert not list((tmp_path / "cut").glob("*.parquet"))


@pytest.mark.parametrize("entry", ['"pooling_mode_cls_token": true', '"pooling_mode": "cls"'])
def test_the_pooling_of_sentence_transformers_is_read(place, tmp_path, entry):
    folder = shutil.copytree(place[0] / "bert", tmp_path / "bert")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(f'{{{entry}, "include_prompt": true}}')
    assert extract((tmp_path,), tmp_path / "own", "--train_file", str(place[0] / "texts.txt")) == 0
    assert extract(place, tmp_path / "cls", "--pooling", "cls") == 0
    assert pq.read_table(tmp_path / "own").equals(pq.read_table(tmp_path / "cls"))


def test_other_features_and_other_files_are_kept(place, tmp_path):
    assert extract(place, tmp_path / "out") == 0
    assert extract(place, tmp_path / "out", "--pooling", "cls") == 2
    assert extract(place, tmp_path / "out", "--pooling", "cls", "--overwrite_output_dir", "true") == 0

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("x")
    assert extract(place, tmp_path / "mine", "--overwrite_output_dir", "true") == 2
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("padding", [{"length": 40}, {}])
def test_padding_that_the_tokenizer_file_asks_for_is_not_text(padding):
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.enable_padding(**padding)
    extractor = features.FeatureExtractor(BertForPreTraining(tiny_config()), tokenizer, [0], "mean", max_seq_length=16)
    assert [len(each.ids) for each in extractor.encode([("w1", None), ("w1 w2 w3", "w4")])] == [3, 7]
