"""Benchmarks run, and all their sides do the same work. Their figures are not tested."""

import json
from pathlib import Path
from random import Random

import checkpoint_pieces
import equal_loss
import finetuning_parity
import numpy as np
import pretraining_throughput
import pytest
import torch
import transformers
import worth
from corpus_preparation import Task, datasets_map, encode_batch_fast, original_2018, ours
from helpers.choice_rows import swag_lines
from helpers.questions import write_questions
from helpers.tagged_words import sentences, write_conll
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from tiny import PIECES, save_tiny_bert, tiny_config

from bert_hf.analysis import study
from bert_hf.data.text.tokenization import save_tokenizer, train_tokenizer
from bert_hf.finetuning.trainer import load_task_model


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """200 kB of words in documents of several lines, and a vocabulary for them."""
    folder, rng = tmp_path_factory.mktemp("benchmark"), Random(0)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 9))) for _ in range(2000)]
    lines = [" ".join(rng.choices(words, k=12)).capitalize() + "." for _ in range(2500)]
    texts = ["\n".join(lines[at : at + 10]) for at in range(0, len(lines), 10)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    save_tokenizer(train_tokenizer(texts, vocab_size=500), folder / "tokenizer")
    return Task([str(folder / "text.jsonl")], str(folder / "work"), str(folder / "tokenizer"), slice_bytes=3e4)


def test_rows_work_on_the_same_tokens(task, tmp_path):
    task.folder = str(tmp_path)
    reference, here, stock, old = (row(task) for row in (encode_batch_fast, ours, datasets_map, original_2018))
    assert reference["tokens"] == here["tokens"] > 50_000
    specials = 2 * 250  # [CLS] and [SEP] of a document; what does not fill a sequence is dropped, once in a batch
    assert here["tokens"] + specials - 128 < stock["tokens"] <= here["tokens"] + specials
    assert here["disk"] < stock["disk"] < stock["disk_all"]
    assert old["sentences_as_ours"] == old["sentences"] > 100
    assert 3e4 <= old["text"] < 3.5e4
    assert old["tokens"] < old["disk"]
    assert all(row["seconds"] > 0 for row in (reference, here, stock, old))


@pytest.fixture
def words(task, tmp_path):
    """Flags of a benchmark on the text, with a tiny model."""
    tiny_config(vocab_size=500).to_json_file(tmp_path / "model.json")
    text = ["--train_file", *task.files, "--tokenizer_name", task.tokenizer, "--cache_dir", str(tmp_path / "cache")]
    return [*text, "--config_name", str(tmp_path / "model.json"), "--max_seq_length", "32", "--batch_size", "8"]


def last_line(capsys) -> dict:
    return json.loads(capsys.readouterr().out.rstrip().rsplit("\n", 1)[1])


@pytest.mark.slow
def test_pretraining_sides_see_the_same_batches(words, monkeypatch, capsys):
    monkeypatch.setattr(pretraining_throughput, "stock_memory", lambda: None)
    seen = {}

    class Remembered(pretraining_throughput.Side):
        def turn(self):
            collate = self.collator
            batches = seen.setdefault(self.name, [])
            self.collator = lambda features: batches.append(collate(features)) or batches[-1]
            super().turn()
            self.collator = collate

    monkeypatch.setattr(pretraining_throughput, "Side", Remembered)
    assert pretraining_throughput.main([*words, "--pairs", "1", "--profile", "true"]) == 0
    result = last_line(capsys)
    names = (pretraining_throughput.STOCK, pretraining_throughput.PAPER, pretraining_throughput.FAST)
    for batches in zip(*(seen[name] for name in names), strict=True):
        for other in batches[1:]:
            assert all(torch.equal(batches[0][name], other[name]) for name in batches[0])
    for name in names:
        assert result[name]["tokens_per_second"] > 0
        assert 0 < result[name]["mfu"] < 1
        assert sum(result["milliseconds"][name].values()) > 0
        assert result[name]["padding"] == result[names[0]]["padding"]


@pytest.mark.parametrize("way", pretraining_throughput.WAYS)
def test_each_way_that_ablate_takes_away_exists(way):
    owners = [owner for owner, name, _ in pretraining_throughput.WAYS[way] if hasattr(owner, name)]
    assert len(owners) == len(pretraining_throughput.WAYS[way])


def rows_of(task: str, folder) -> list[str]:
    """Flags with small training and validation files."""
    if task == "spam":
        rows = "".join(f"{label}\tw{n} w{n + 1}{' w3' * n}\n" for n in range(1, 25) for label in ("ham", "spam"))
        files = [folder / "train.tsv", folder / "validation.tsv"]
        for file in files:
            file.write_text(rows)
    elif task == "ner":
        files = [write_conll(folder / f"{seed}.conll", sentences(40, seed)) for seed in (0, 1)]
    elif task == "squad":
        files = [write_questions(folder / f"{seed}.json", 40, seed) for seed in (0, 1)]
    else:
        files = [folder / "train.jsonl", folder / "validation.jsonl"]
        for file in files:
            file.write_text(swag_lines())
    return ["--train_file", str(files[0]), "--validation_file", str(files[1])]


@pytest.mark.parametrize("task", ["spam", "ner", "squad", "swag"])
def test_finetuning_sides_end_in_the_same_weights(task, tmp_path, monkeypatch, capsys):
    """A tokenization, label, loss or argument that differs would show."""
    monkeypatch.setattr(finetuning_parity.logger, "setLevel", lambda level: None)  # later tests read the log
    networks = []

    def load_and_remember(*args):
        networks.append(load_task_model(*args))
        return networks[-1]

    monkeypatch.setattr(finetuning_parity, "load_task_model", load_and_remember)
    save_tiny_bert(tmp_path / "model", 0.0)
    flags = ["--model_name_or_path", str(tmp_path / "model"), "--seeds", "1", "--num_train_epochs", "2"]
    sizes = ["--per_device_train_batch_size", "8", "--max_seq_length", "64", "--doc_stride", "16"]
    assert finetuning_parity.main(["--task", task, *flags, *sizes, *rows_of(task, tmp_path)]) == 0
    stock, longest, ours = (network.state_dict() for network, _ in networks)
    for name, weight in longest.items():
        if name == "qa_outputs.bias":  # which softmax over the positions removes: its gradient is rounding alone
            continue
        torch.testing.assert_close(ours[name], weight, atol=1e-5, rtol=0)
        if task != "squad":  # whose stock loss depends on the padding
            torch.testing.assert_close(stock[name], weight, atol=1e-5, rtol=0)

    result = last_line(capsys)
    assert result[finetuning_parity.LONGEST][0][0] == pytest.approx(result[finetuning_parity.OURS][0][0])


@pytest.mark.slow
def test_loss_curves(words, capsys):
    assert equal_loss.main([*words, "--steps", "10"]) == 0
    result = last_line(capsys)
    assert {len(curve) for curve in result["curves"].values()} == {10}
    exact, drawn, _ = result["distances"].values()
    assert exact["largest"] < 1e-4 < drawn["largest"]


def test_a_checkpoint_in_pieces_is_joined_again(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_pieces, "_PIECE", 10_000)
    save_tiny_bert(tmp_path / "whole")
    assert checkpoint_pieces.main(["split", str(tmp_path / "whole"), str(tmp_path / "pieces")]) == 0
    pieces = list((tmp_path / "pieces").glob("model.safetensors.*"))
    assert len(pieces) > 2
    assert max(piece.stat().st_size for piece in pieces) <= 10_000
    assert checkpoint_pieces.main(["join", str(tmp_path / "pieces"), str(tmp_path / "joined")]) == 0
    whole, joined = (transformers.BertForPreTraining.from_pretrained(tmp_path / name) for name in ("whole", "joined"))
    for name, tensor in whole.state_dict().items():
        assert torch.equal(joined.state_dict()[name], tensor.bfloat16().float()), name


def recipe_of_few_steps(calls: list[list[str]]):
    """A recipe that only writes what a run would have: its F1 is the number of the draw."""

    def main(argv: list[str]) -> int:
        if "--check" not in argv:
            calls.append(argv)
            folder = Path(argv[argv.index("--output_dir") + 1])
            folder.mkdir(parents=True)
            value = float(folder.parts[-4].removeprefix("fold-"))
            kinds = ("test", "baseline_words", "baseline_characters")
            metrics = {f"{kind}_{name}": value for kind in kinds for name in ("f1", "accuracy")}
            (folder / "all_results.json").write_text(json.dumps({"train_samples": 8, **metrics}))
        return 0

    return main


@pytest.mark.parametrize("columns", [["text"], ["text", "text_pair"]], ids=["texts", "pairs"])
def test_cells_of_a_published_encoder(columns, tmp_path, monkeypatch, capsys):
    """Each cell runs once; the logistic regression is that on the stock encoder's mean states."""
    calls = []
    monkeypatch.setattr(study, "recipe_main", lambda name: recipe_of_few_steps(calls))
    save_tiny_bert(tmp_path / "model", max_position_embeddings=128)
    rng = Random(0)
    texts = [
        # Unknown words tell near-duplicates, which are compared by letters, apart
        [
            " ".join([*rng.choices(PIECES, k=6), *("".join(rng.choices("abcdefghij", k=5)) for _ in "123")])
            for _ in columns
        ]
        for _ in range(90)
    ]
    rows = [{**dict(zip(columns, row, strict=True)), "label": rng.choice(("ham", "spam"))} for row in texts]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    measured = '{"eval_mlm_loss": 4.5, "unigram_mlm_loss": 6.2, "eval_nsp_accuracy": 0.7, "majority_nsp_accuracy": 0.5'
    (tmp_path / "model/all_results.json").write_text(measured + ', "train_runtime": 5400}')
    flags = ["--model_name_or_path", str(tmp_path / "model"), "--pretrained", str(tmp_path / "model"), "--folds", "2"]
    flags += ["--train_file", str(file), "--output_dir", str(tmp_path / "out"), "--train_sizes"]
    assert worth.main([*flags, "20"]) == 0
    assert "model 1.50 4.500 (6.200) 0.700 (0.500)" in " ".join(capsys.readouterr().out.split())
    assert worth.main([*flags, "20", "all"]) == 0
    assert len(calls) == 2 * 3 * 2  # draws, models, sizes

    found = {(cell["method"], cell["train_size"]): cell for cell in last_line(capsys)}
    assert found["published", "20"]["f1"] == found["baseline_words", "all"]["f1"] == [0, 1]
    tokenizer, model = (
        kind.from_pretrained(tmp_path / "model") for kind in (transformers.AutoTokenizer, transformers.AutoModel)
    )

    def features(file: Path) -> tuple[np.ndarray, list[str]]:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        with torch.no_grad():
            states = [
                np.stack([model(**tokenizer(row[name], return_tensors="pt"))[0][0].mean(0).numpy() for row in rows])
                for name in columns
            ]
        if len(states) == 2:
            states += [abs(states[0] - states[1]), states[0] * states[1]]
        return np.hstack(states), [row["label"] for row in rows]

    fold = tmp_path / "out/folds/fold-1"
    (train, train_labels), (test, test_labels) = features(fold / "train.jsonl"), features(fold / "test.jsonl")
    scaler = StandardScaler().fit(train)
    regression = LogisticRegression(C=0.1, class_weight="balanced", max_iter=2000)
    accuracy = regression.fit(scaler.transform(train), train_labels).score(scaler.transform(test), test_labels)
    assert found["embeddings", "all"]["accuracy"][1] == pytest.approx(accuracy)
