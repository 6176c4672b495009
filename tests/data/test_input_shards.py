"""`prepare` divides a large input into several shards, with any number of processes, interrupted or not."""

import json
import os

import pytest
from helpers.corpora import Texts, everything, inputs
from helpers.token_stores import rows

from bert_hf.data.corpus import shards as corpus_shards
from bert_hf.data.corpus.prepare import prepare
from bert_hf.data.corpus.shards import InputShards
from bert_hf.data.text import encoding
from bert_hf.data.text.readers import Piece


@pytest.fixture
def small(monkeypatch):
    """Groups of about one document, and shards of a hundred tokens."""
    monkeypatch.setattr(encoding, "GROUP", 200)
    monkeypatch.setattr(corpus_shards, "SHARD_TOKENS", 100)


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.glob("data-*.arrow"))


def test_a_record_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path = tmp_path / "data-00000.json"
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append((os.fstat(descriptor), path.exists())))
    corpus_shards.write_json(path, {"tokens": 7})
    file, named = flushed[0]
    assert (file.st_ino, file.st_size, named) == (path.stat().st_ino, path.stat().st_size, False)


def test_a_large_input_becomes_several_shards_of_bounded_size(documents, words, tmp_path, monkeypatch):
    one = prepare(inputs(documents, 1), words, tmp_path / "one")
    monkeypatch.setattr(encoding, "GROUP", 200)
    monkeypatch.setattr(corpus_shards, "SHARD_TOKENS", 100)
    several = prepare(inputs(documents, 1), words, tmp_path / "several")
    assert names(tmp_path / "one") == ["data-00000.arrow"]
    assert names(tmp_path / "several")[:2] == ["data-00000-00001.arrow", "data-00000-00002.arrow"]
    shards = several.manifest["shards"]
    assert len(shards) >= 5
    assert shards[0]["file"] == "data-00000.arrow"
    before, after = (rows(corpus.window(tuple(corpus.shards))) for corpus in (one, several))
    longest = max(sum(map(len, document)) for document in before)
    assert all(100 <= shard["tokens"] <= 100 + 2 * longest for shard in shards[:-1])
    assert after == before  # no document is cut, lost, or elsewhere
    for name in ("documents", "sentences", "tokens"):
        assert several.manifest[name] == one.manifest[name]
    assert several.fingerprint != one.fingerprint


def test_a_document_without_end_is_cut_into_shards_too(words, small, tmp_path, monkeypatch):
    """A file without blank lines is one document to the reader: `ShardWriter` ends it now and then."""
    monkeypatch.setattr(corpus_shards, "_MAX_DOCUMENT_TOKENS", 60)

    class Endless(Texts):
        def read(self):
            for number in range(30):
                yield Piece(f"Document {number} says in sentence {number} that item{number} follows.", number == 29)

    corpus = prepare([Endless(("x",))], words, tmp_path / "c")
    assert len(corpus.shards) > 2
    assert max(shard["tokens"] for shard in corpus.manifest["shards"]) < 250


class Cut(Texts):
    """Ends after ten documents, as a killed process does."""

    def read(self):
        for number, piece in enumerate(super().read()):
            if number == 10:
                raise KeyboardInterrupt
            yield piece


def test_an_interrupted_input_resumes_after_its_finished_shards(documents, words, small, tmp_path, monkeypatch):
    (whole,) = inputs(documents, 1)
    with pytest.raises(KeyboardInterrupt):
        prepare([Cut(whole.texts, whole.name)], words, tmp_path / "c")
    finished = len(names(tmp_path / "c"))
    assert finished >= 2
    assert not list((tmp_path / "c").glob(".data-*"))
    assert not (tmp_path / "c/manifest.json").exists()
    encoded, encode = [], encoding.encode_group
    monkeypatch.setattr(
        corpus_shards, "encode_group", lambda group, **how: encoded.extend(group) or encode(group, **how)
    )
    monkeypatch.setattr(Cut, "read", Texts.read)
    prepare([Cut(whole.texts, whole.name)], words, tmp_path / "c")
    assert len(encoded) < len(documents) - 5
    prepare([whole], words, tmp_path / "whole")
    assert everything(tmp_path / "c") == everything(tmp_path / "whole")


@pytest.mark.parametrize("damaged", ["data-00000.arrow", "data-00000-00002.arrow", "data-00000-00001.json"])
def test_a_damaged_shard_of_an_input_is_made_again(documents, words, small, tmp_path, damaged):
    prepare(inputs(documents, 1), words, tmp_path / "c")
    before = everything(tmp_path / "c")
    path = tmp_path / "c" / damaged
    path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)
    prepare(inputs(documents, 1), words, tmp_path / "c")
    assert everything(tmp_path / "c") == before


def test_an_input_is_complete_with_its_last_shard(documents, words, small, tmp_path):
    """Not with its first: another machine may check while the others are being written."""
    (source,) = inputs(documents, 1)
    prepare([source], words, tmp_path / "c")
    first = tmp_path / "c/data-00000.arrow"
    recipe = json.loads((tmp_path / "c/recipe.json").read_text())
    shards = InputShards(source, first, {key: value for key, value in recipe.items() if key != "inputs"})
    assert shards.read_all_records()
    last = sorted((tmp_path / "c").glob("data-*.json"))[-2]  # data-00000.json sorts behind data-00000-…
    last.unlink()
    assert not shards.read_all_records()
    shards.verify()
    assert shards.verified_records
    assert not shards.complete
    assert shards.fingerprint == shards.verified_records[0]["fingerprint"]
