"""The benchmarks run, and measure the same thing on every side. What they find is printed, not tested."""

import json
from random import Random

import corpus_preparation
import pytest
from corpus_preparation import Task, alone, datasets_map, encode_batch_fast, original_2018, ours, tfrecord_bytes
from original_2018 import Instance

from bert_hf.tokenization import save_tokenizer, train_tokenizer


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


def test_a_row_in_its_own_process(task, tmp_path):
    task.folder = str(tmp_path)
    measured = alone("encode_batch_fast", task)
    assert measured["tokens"] == encode_batch_fast(task)["tokens"]
    assert measured["peak"] > 10e6
    assert not list(tmp_path.iterdir())


def test_the_report(task, capsys):
    flags = ["--train_file", *task.files, "--tokenizer_name", task.tokenizer, "--repeats", "1", "--num_proc", "1"]
    corpus_preparation.main([*flags, "--rows", "encode_batch_fast", "ours"])
    table, last = capsys.readouterr().out.rstrip().rsplit("\n", 1)
    assert "ours, 1 process" in table
    result = json.loads(last)
    assert result["ours_over_encode_batch_fast"] > 0
    assert result["ours_over_2018"] is None
    assert set(result["rows"]) == {"encode_batch_fast", "ours"}


def test_size_of_a_record():
    """By hand: the name and the numbers of each feature, a tag and a length (2 bytes) for each of five levels."""
    instance = Instance([2, 300, 7, 3], [0, 0, 0, 1], True, [1], [300])
    numbers = {"input_ids": 9, "input_mask": 8, "segment_ids": 8, "masked_lm_positions": 20, "masked_lm_ids": 21}
    numbers |= {"masked_lm_weights": 80, "next_sentence_labels": 1}
    entries = sum(5 * 2 + len(name) + size for name, size in numbers.items())
    assert tfrecord_bytes(instance, 8) == 16 + 3 + entries  # checksums and length; tag and longer length
