"""recipes/extract_features.py: a row a text in input order; a run that was killed resumes; faults write nothing."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from helpers.corpora import everything
from helpers.recipe_runs import recipe
from tiny import PIECES, tiny_config, tiny_tokenizer
from transformers import AutoModel, AutoTokenizer, BertForPreTraining

from bert_hf.analysis.features.feature_files import FeatureFolder
from bert_hf.data.text.tokenization import save_tokenizer

COUNT = 50


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Texts of words that the tiny tokenizer knows, one of them empty, and a stock checkpoint."""
    folder = tmp_path_factory.mktemp("features")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(PIECES[:60], count)) for count in rng.integers(1, 30, COUNT)]
    texts[7] = ""
    (folder / "texts.txt").write_text("\n".join(texts))
    rows = [{"name": f"row {number}", "text": text} for number, text in enumerate(texts)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    torch.manual_seed(0)
    BertForPreTraining(tiny_config()).save_pretrained(folder / "bert")
    save_tokenizer(tiny_tokenizer(), folder / "bert")
    return folder


def extract(place, output, *words, file="texts.txt"):
    given = ["--model_name_or_path", str(place / "bert"), "--train_file", str(place / file)]
    given += ["--max_seq_length", "20", "--per_device_eval_batch_size", "8", "--output_dir", str(output)]
    return recipe("extract_features")([*given, *words])


def column(table, name):
    return np.stack(table[name].to_numpy())


def test_a_row_a_text_in_input_order(place, tmp_path, capsys):
    assert extract(place, tmp_path / "out", "--layers", "-1", "0") == 0
    said = capsys.readouterr().out
    assert "50 texts, " in said
    assert "1 texts are empty" in said
    assert "were cut at 20 tokens" in said

    table = pq.read_table(tmp_path / "out")
    assert table.schema.names == ["id", "layer_2", "layer_0"]
    assert table["id"].to_pylist() == list(range(COUNT))

    model = AutoModel.from_pretrained(place / "bert").eval()
    tokenizer = AutoTokenizer.from_pretrained(place / "bert")
    last, embeddings = column(table, "layer_2"), column(table, "layer_0")
    assert last.dtype == np.float32
    for number, text in enumerate((place / "texts.txt").read_text().split("\n")):
        inputs = tokenizer(text, truncation=True, max_length=20, return_tensors="pt")
        with torch.no_grad():
            states = model(**inputs, output_hidden_states=True).hidden_states
        np.testing.assert_allclose(last[number], states[-1][0].mean(0), rtol=0, atol=1e-5)
        np.testing.assert_allclose(embeddings[number], states[0][0].mean(0), rtol=0, atol=1e-5)


def test_tokens_and_offsets_without_pooling(place, tmp_path):
    assert extract(place, tmp_path / "out", "--pooling", "none", "--id_column", "name", file="rows.jsonl") == 0
    table = pq.read_table(tmp_path / "out").to_pylist()
    texts = (place / "texts.txt").read_text().split("\n")
    assert list(table[0]) == ["id", "tokens", "offsets", "segments", "layer_2"]
    assert [row["id"] for row in table] == [f"row {number}" for number in range(COUNT)]

    for text, row in zip(texts, table, strict=True):
        assert [row["tokens"][0], row["tokens"][-1]] == ["[CLS]", "[SEP]"]
        words = [text[begin:end] for begin, end in row["offsets"][1:-1]]
        assert words == row["tokens"][1:-1] == text.split()[:18]
        assert {len(row[name]) for name in ("tokens", "offsets", "segments", "layer_2")} == {len(words) + 2}
        assert {len(vector) for vector in row["layer_2"]} == {32}


def test_half_precision(place, tmp_path):
    assert extract(place, tmp_path / "half", "--dtype", "float16") == 0
    assert extract(place, tmp_path / "full") == 0
    half, full = (column(pq.read_table(tmp_path / name), "layer_2") for name in ("half", "full"))
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, full, atol=2e-3)


def test_a_killed_run_resumes_and_ends_with_the_same_bytes(place, tmp_path, capsys, monkeypatch):
    words = ("--texts_per_file", "20")
    assert extract(place, tmp_path / "whole", *words) == 0
    whole = everything(tmp_path / "whole")
    assert sorted(whole) == [".lock", "_features.json", *(f"features-0000{n}.parquet" for n in range(3))]

    save = FeatureFolder.save

    def killed(folder):
        save(folder)
        if len(folder.files) == 2:
            (folder.path / ".features.parquet.tmp").write_bytes(b"half of the third file")
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FeatureFolder, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            extract(place, tmp_path / "killed", *words)
    capsys.readouterr()
    assert extract(place, tmp_path / "killed", *words) == 0
    assert "features-00002" in (said := capsys.readouterr().out)
    assert "features-00001" not in said
    resumed = everything(tmp_path / "killed")
    assert {name: resumed[name] for name in whole if name != ".lock"} == {
        name: content for name, content in whole.items() if name != ".lock"
    }

    # A third time: nothing is computed
    assert extract(place, tmp_path / "killed", *words) == 0
    assert "already complete" in capsys.readouterr().out
    assert everything(tmp_path / "killed") == resumed


def test_a_damaged_file_and_those_after_it_are_written_again(place, tmp_path):
    words = ("--texts_per_file", "20")
    assert extract(place, tmp_path / "out", *words) == 0
    before = everything(tmp_path / "out")
    (tmp_path / "out/features-00001.parquet").write_bytes(b"PAR1")
    assert extract(place, tmp_path / "out", *words) == 0
    assert everything(tmp_path / "out") == before


def test_other_features_and_other_files_are_refused(place, tmp_path, capsys):
    assert extract(place, tmp_path / "out") == 0
    assert extract(place, tmp_path / "out", "--pooling", "max") == 2
    assert "other features: pooling differ (pooling: max, was mean); give another" in capsys.readouterr().err
    assert extract(place, tmp_path / "out", "--pooling", "max", "--overwrite_output_dir", "true") == 0

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("x")
    assert extract(place, tmp_path / "mine", "--overwrite_output_dir", "true") == 2
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_checks_alone_write_nothing(place, tmp_path, capsys):
    assert extract(place, tmp_path / "out", "--check", "true") == 0
    assert "texts: 50 in 1 files" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "words", "line"),
    [
        ('{"text": "x"}\n{"text": 5}\n', [],
            "bad.jsonl:2: column 'text' is not text; correct the row, or name another column by --text_column"),
        ('{"text": "x"}\n', ["--layers", "3"], "--layers: no layer 3 in a network of 2; give numbers from -3 to 2"),
        ('{"text": "x"}\n', ["--max_seq_length", "128"],
            "bert/config.json:18: sequence length 128 is beyond the model's 64 positions; lower --max_seq_length / "
            "--long_seq_length, or raise max_position_embeddings in the model JSON"),
        ('{"text": "x"}\n', ["--pooling", "median"],
            "command line: argument --pooling: invalid choice: 'median'; did you mean 'mean'?"),
        ('{"text": "x"}\n', ["--texts_per_file", "0"],
            "arguments: --texts_per_file must be at least 1, not 0; change the option it names"),
        ("\n", [], "bad.jsonl: no texts in it; give files that hold text"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_writes_nothing(place, tmp_path, monkeypatch, capsys, content, words, line):
    (tmp_path / "bad.jsonl").write_text(content)
    (tmp_path / "bert").symlink_to(place / "bert")
    monkeypatch.chdir(tmp_path)
    given = ["--model_name_or_path", "bert", "--train_file", "bad.jsonl", "--output_dir", "out"]
    lengths = [] if "--max_seq_length" in words else ["--max_seq_length", "20"]
    assert recipe("extract_features")([*given, *lengths, *words]) == 2
    assert capsys.readouterr().err == f"error: {line}\n"
    assert not (tmp_path / "out").exists()
