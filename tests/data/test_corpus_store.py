import contextlib
import json
import os
import pickle
import socket
import subprocess

import datasets
import numpy as np
import pytest
from helpers.token_stores import encoded, rows, write

from bert_hf.data.corpus import shards as corpus_shards
from bert_hf.data.corpus import store as corpus_store
from bert_hf.data.corpus.shards import ShardWriter, write_manifest
from bert_hf.data.corpus.store import Corpus
from bert_hf.data.text.encoding import Encoded
from bert_hf.errors import InputError


@pytest.fixture
def corpus(tmp_path):
    return write(tmp_path)


def plain(parts: list[Encoded]) -> list[list[list[int]]]:
    """Documents → sentences → ids, the slow way."""
    documents, document, sentence, token = [], [], 0, 0
    for part in parts:
        sentence = token = 0
        for count, ends in zip(part.sentence_counts, part.ends, strict=True):
            for length in part.sentence_lengths[sentence : sentence + count]:
                document.append(part.ids[token : token + length].tolist())
                token += length
            sentence += count
            if ends:
                documents.append(document)
                document = []
    return [document for document in documents if document]


@pytest.mark.parametrize("batch", [1, 50, 10**6])
def test_written_shards_are_read_back(tmp_path, monkeypatch, batch):
    monkeypatch.setattr(corpus_shards, "_BATCH_TOKENS", batch)
    rng = np.random.default_rng(3)
    parts = [encoded(rng, 30, cut=True) for _ in range(4)]
    with ShardWriter(tmp_path / "data-00000.arrow", {"source": "x", "fingerprint": "f"}) as writer:
        for part in parts:
            writer.add(part)
    entry, expected = writer.record, plain(parts)
    write_manifest(tmp_path, {}, [entry])
    window = Corpus(tmp_path).window((0,))
    assert rows(window) == expected
    for document, start, end in zip(expected, window.document_starts, window.document_ends, strict=True):
        assert window.ids(start, end).tolist() == [i for sentence in document for i in sentence]
    assert entry["documents"] == len(expected)
    assert entry["sentences"] == sum(map(len, expected))
    assert entry["tokens"] == sum(len(s) for d in expected for s in d) == window.token_offsets[-1]
    assert entry["one_sentence_documents"] == sum(len(d) == 1 for d in expected)
    assert entry["empty_documents"] == sum(int(part.ends.sum()) for part in parts) - len(expected)
    assert entry["unknown"] == sum(part.unknown for part in parts)
    counted = np.bincount([i for document in expected for sentence in document for i in sentence], minlength=100)
    assert (window.unigram_counts(100) == counted).all()


def test_datasets_opens_the_shards(corpus):
    path = corpus.folder / corpus.manifest["shards"][0]["file"]
    table = datasets.Dataset.from_file(str(path))
    window = corpus.window((0,))
    assert table.num_rows == len(window)
    assert table[3]["input_ids"] == window.ids(window.document_starts[3], window.document_ends[3]).tolist()
    assert window.ids(0, 1).dtype == np.uint16


def test_a_document_without_end_is_ended(tmp_path, monkeypatch):
    """Memory stays bounded: a file without blank lines is one document to the reader."""
    monkeypatch.setattr(corpus_shards, "_BATCH_TOKENS", 40)
    monkeypatch.setattr(corpus_shards, "_MAX_DOCUMENT_TOKENS", 50)
    rng = np.random.default_rng(0)
    parts = [encoded(rng, 4) for _ in range(40)]
    parts = [part._replace(ends=np.zeros(4, bool)) for part in parts]
    with ShardWriter(tmp_path / "data-00000.arrow", {"fingerprint": "0"}) as writer:
        for part in parts:
            writer.add(part)
            assert writer._size < 50
    write_manifest(tmp_path, {}, [writer.record])
    window = Corpus(tmp_path).window((0,))
    assert 5 < len(window) < 40
    assert window.token_counts.max() < 50 + max(len(part.ids) for part in parts)
    whole = np.concatenate(
        [window.ids(*ends) for ends in zip(window.document_starts, window.document_ends, strict=True)]
    )
    assert (whole == np.concatenate([part.ids for part in parts])).all()


def test_a_window_has_two_documents(tmp_path, monkeypatch):
    """In a window of one document there is no other document to draw NOT_NEXT segments from."""
    monkeypatch.setattr(corpus_store, "WINDOW_TOKENS", 10)
    entries = []
    for number in range(5):
        with ShardWriter(tmp_path / f"data-{number:05d}.arrow", {"fingerprint": f"{number}"}) as writer:
            writer.add(
                Encoded(np.arange(12, dtype=np.uint16), np.full(3, 4, np.int32), np.array([3]), np.array([True]), 0)
            )
        entries.append(writer.record)
    write_manifest(tmp_path, {}, entries)
    assert Corpus(tmp_path).windows() == [(0, 1), (2, 3, 4)]

    # Many small shards: a window ends at their number, long before it has its tokens
    monkeypatch.setattr(corpus_store, "WINDOW_TOKENS", 1_000_000)
    monkeypatch.setattr(corpus_store, "WINDOW_SHARDS", 2)
    assert Corpus(tmp_path).windows() == [(0, 1), (2, 3, 4)]


def test_a_window_has_a_document_of_two_sentences(tmp_path, monkeypatch):
    """Else no sentence of it would have a next one, and the run would fail in the middle."""
    monkeypatch.setattr(corpus_store, "WINDOW_TOKENS", 10)
    entries = []
    for number in range(6):
        one = number in (0, 1, 4, 5)  # shards of one-sentence documents alone
        lengths = np.full(4, 4, np.int32)
        sentences = np.ones(4, np.int64) if one else np.full(2, 2)
        with ShardWriter(tmp_path / f"data-{number:05d}.arrow", {"fingerprint": f"{number}"}) as writer:
            writer.add(Encoded(np.arange(16, dtype=np.uint16), lengths, sentences, np.full(len(sentences), True), 0))
        entries.append(writer.record)
    write_manifest(tmp_path, {}, entries)
    corpus = Corpus(tmp_path)
    assert corpus.windows() == [(0, 1, 2), (3, 4, 5)]
    for seed in range(20):
        for window in map(corpus.window, corpus.windows(np.random.default_rng(seed))):
            assert (window.document_ends - window.document_starts > 1).any()


def test_another_split_is_another_corpus(corpus):
    """Else a run could resume with text that it held out before."""
    parts = [*corpus.split(5), *corpus.split(50)]
    assert len({part.fingerprint for part in [corpus, *parts]}) == 5
    assert [part.fingerprint for part in corpus.split(5)] == [part.fingerprint for part in parts[:2]]
    for part in parts:
        assert part.tokens == corpus.window(corpus.windows()[0]).token_counts.sum() - (corpus.tokens - part.tokens)
        counted = Corpus(part.folder, part.manifest, part.shards, part.documents).tokens
        assert part.tokens == counted


def test_leftovers_of_a_killed_writer_are_removed(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = [
        tmp_path / f".data-00000.arrow.{socket.gethostname()}-{process}.tmp" for process in (dead.pid, os.getppid())
    ]
    for path in left:
        path.write_text("half")
    with ShardWriter(tmp_path / "data-00000.arrow", {"fingerprint": "0"}) as writer:
        assert [path.exists() for path in left] == [False, True]
    assert writer.record["documents"] == 0
    assert datasets.Dataset.from_file(str(writer.path)).num_rows == 0


def test_an_interrupted_writer_leaves_nothing(tmp_path):
    with contextlib.suppress(KeyboardInterrupt), ShardWriter(tmp_path / "data-00000.arrow", {}) as writer:
        writer.add(encoded(np.random.default_rng(0), 5))
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_corpus_that_fits_into_a_window_is_one_window(corpus, monkeypatch):
    assert corpus.windows(np.random.default_rng(0)) == [(0, 1, 2)]


def test_windows_are_bounded_and_hold_every_shard_once(tmp_path, monkeypatch):
    corpus = write(tmp_path, shards=12, documents=20)
    size = corpus.manifest["tokens"] // 4
    monkeypatch.setattr(corpus_store, "WINDOW_TOKENS", size)
    largest = max(entry["tokens"] for entry in corpus.manifest["shards"])
    first, second = (corpus.windows(np.random.default_rng(seed)) for seed in (0, 1))
    for windows in (first, second):
        assert sorted(shard for window in windows for shard in window) == list(range(12))
        tokens = [sum(corpus.manifest["shards"][shard]["tokens"] for shard in window) for window in windows]
        assert max(tokens) <= 1.5 * size + largest
    assert first != second
    assert corpus.windows(np.random.default_rng(0)) == first
    everything = [d for window in first for d in rows(corpus.window(window))]
    assert sorted(everything) == sorted(d for shard in range(12) for d in rows(corpus.window((shard,))))
    assert len(corpus._open) == 2  # memory is that of two windows


def test_parts_keep_documents_whole(corpus):
    train, held_out = corpus.split(20)
    assert len(train) + len(held_out) == len(corpus)
    assert held_out.tokens == pytest.approx(0.2 * corpus.tokens, rel=0.1)
    both = rows(train.window(train.windows()[0])) + rows(held_out.window(held_out.windows()[0]))
    assert sorted(both) == sorted(rows(corpus.window((0, 1, 2))))
    assert rows(corpus.split(20)[1].window((0, 1, 2))) == rows(held_out.window((0, 1, 2)))
    assert train.tokens + held_out.tokens == corpus.tokens
    again, inner = held_out.split(50)
    assert len(again) + len(inner) == len(held_out)
    assert all(row in rows(held_out.window((0, 1, 2))) for row in rows(inner.window(inner.windows()[0])))


@pytest.mark.parametrize(
    ("sizes", "percentage", "seed", "held"),
    [
        ([10] * 4, 5, 0, [0, 2]),
        ([30, 10, 20, 40, 25, 15] * 5, 10, 0, [2, 11, 21, 26]),
        ([30, 10, 20, 40, 25, 15] * 5, 20, 1, [1, 3, 7, 16, 21, 28]),
    ],
)
def test_a_seed_holds_out_the_documents_that_it_always_did(sizes, percentage, seed, held):
    """As version 0.1.0 drew them: else an interrupted run would be another one."""
    assert np.flatnonzero(corpus_store._draw_documents(np.array(sizes), percentage, seed)).tolist() == held


@pytest.mark.parametrize("sizes", [[10, 10, 1000, 10], [10, 900, 30, 10, 20], [10] * 30 + [400, 5000]])
def test_a_huge_document_is_trained_on(sizes):
    sizes = np.array(sizes)
    for seed in range(20):
        held = corpus_store._draw_documents(sizes, 5, seed)
        assert not held[sizes.argmax()]
        assert 2 <= held.sum() <= len(sizes) - 2
        assert sizes[held].sum() <= 0.1 * sizes.sum()


def test_held_out_documents_come_from_the_first_window(tmp_path, monkeypatch):
    corpus = write(tmp_path, shards=6)
    monkeypatch.setattr(corpus_store, "WINDOW_TOKENS", corpus.manifest["tokens"] // 3)
    train, held_out = corpus.split(10)
    assert set(held_out.shards) <= {0, 1, 2}
    assert len(train) + len(held_out) == len(corpus)
    assert len(held_out.windows()) == 1


def test_too_few_documents_to_hold_out(tmp_path):
    with ShardWriter(tmp_path / "data-00000.arrow", {"source": "x", "fingerprint": "f"}) as writer:
        one = np.array([1, 2, 3], np.uint16)
        writer.add(Encoded(one, np.array([1, 1, 1], np.int32), np.array([1, 1, 1]), np.array([True] * 3), 0))
    write_manifest(tmp_path, {}, [writer.record])
    with pytest.raises(InputError, match="too few to hold"):
        Corpus(tmp_path).split(5)


def test_it_can_be_sent_to_a_worker(corpus):
    part = corpus.split(10)[1]
    part.window(part.windows()[0])
    data = pickle.dumps(part)
    assert len(data) < 20_000  # the files are mapped again, not sent
    assert rows(pickle.loads(data).window((0, 1, 2))) == rows(part.window((0, 1, 2)))


@pytest.mark.parametrize("fault", ["no manifest", "garbage", "short shard", "no shard", "format", "traversal"])
def test_a_damaged_corpus_is_named(corpus, fault):
    manifest, shard = corpus.folder / "manifest.json", corpus.folder / "data-00000.arrow"
    content = json.loads(manifest.read_text())
    if fault == "short shard":
        shard.write_bytes(shard.read_bytes()[:-10])
    elif fault == "no shard":
        shard.unlink()
    elif fault == "garbage":
        manifest.write_text("{}")
    elif fault == "format":
        manifest.write_text(json.dumps({**content, "format": 1}))
    elif fault == "traversal":
        content["shards"][0]["file"] = "../data-00000.arrow"
        manifest.write_text(json.dumps(content))
    else:
        manifest.unlink()
    with pytest.raises(InputError, match=r"prepare\.py"):
        Corpus(corpus.folder)


def test_held_out_documents_are_one_window_however_long_their_shards(tmp_path, monkeypatch):
    corpus = write(tmp_path, shards=6)
    sizes = [entry["tokens"] for entry in corpus.manifest["shards"]]
    monkeypatch.setattr(corpus_store, "WINDOW_TOKENS", sizes[0] + sizes[1] + 1)
    monkeypatch.setitem(corpus.manifest["shards"][2], "tokens", 10 * sizes[2])  # the one that fills the first window
    held_out = corpus.split(10)[1]
    assert {held_out.windows(np.random.default_rng(seed))[0] for seed in range(9)} == {(0, 1, 2)}
