import hashlib
import json

import numpy as np
import pytest
from helpers.corpora import Texts
from helpers.recipe_runs import recipe

from bert_hf.data.corpus import shards
from bert_hf.data.text.deduplication import find_duplicates, minhash_signatures
from bert_hf.data.text.readers import Piece, cut_pieces


def text_of(rng, words=200):
    return " ".join(f"w{word}" for word in rng.integers(0, 20_000, words))


@pytest.fixture
def planted(rng):
    """Three inputs of 20 documents and some copies of them."""
    texts = [text_of(rng, 80 + 5 * number) for number in range(60)]
    copies = [f" {text}\n" for text in texts[::11]]
    return [Texts((*texts[:20], *copies[:2])), Texts((*texts[20:40], "", *copies[2:])), Texts(tuple(texts[40:]))]


def test_equal_documents_but_for_white_space_are_found_and_the_first_is_kept():
    texts = Texts(("One text.", "Another.", " One\ttext.\n", "one text.", "Another.", "One text"))
    assert find_duplicates([texts]) == ({0: {2, 4}}, 6)


def test_empty_documents_are_counted_by_number_but_are_no_duplicates():
    assert find_duplicates([Texts(("", " \n", "", "Text here.", "\u00a0", "Text here."))]) == ({0: {5}}, 2)
    assert find_duplicates([Texts(()), Texts(("",))]) == ({}, 0)


class Cut(Texts):
    """The same documents in pieces of thirty characters at most."""

    def read(self):
        for text in self.texts:
            yield from cut_pieces(text, 30)


def test_pieces_are_as_the_whole(planted):
    whole = find_duplicates(planted)
    assert whole[0][1]
    assert find_duplicates([Cut(source.texts) for source in planted]) == whole
    hard = [Piece(letter, False) for letter in "Über 中文 one two three"] + [Piece("", True)]

    class Letters(Texts):
        def read(self):
            yield from [Piece("Über 中文 one two three"), *hard, Piece("Über 中文 one two thre")]

    assert find_duplicates([Letters(())]) == ({0: {1}}, 3)


def test_two_processes_find_the_same(planted):
    one = find_duplicates(planted)
    assert one == find_duplicates(planted, num_proc=2)
    assert sum(map(len, one[0].values())) == 6


def test_signatures_of_texts():
    """They decide the splits of rows: a change is a line in the changelog."""
    texts = ["One two three four five six. Über 中文", "Two"]
    digest = hashlib.sha256(minhash_signatures(texts, shingle=5, values=256).astype(np.uint8).tobytes())
    assert digest.hexdigest()[:16] == "492f0a49357f2876"
    of_three = minhash_signatures(["a b c d e f", "A b c D e f", "a b c d e g", ""], shingle=3, values=4000)
    agreement = (of_three[:1] == of_three).mean(axis=1)
    assert agreement == pytest.approx([1, 1, 3 / 5, 0], abs=0.03)


main = recipe("prepare")


@pytest.fixture
def command(planted, tmp_path):
    files = []
    for number, source in enumerate(planted):
        files.append(tmp_path / f"{number}.jsonl")
        files[-1].write_text("".join(json.dumps({"text": text}) + "\n" for text in source.texts))
    words = ["--vocab_size", "200", "--output_dir", tmp_path / "out", "--cache_dir", tmp_path / "cache"]
    return [*map(str, ["--train_file", *files, *words])]


def test_the_recipe_leaves_them_out(command, planted, tmp_path, capsys, monkeypatch):
    assert main([*command, "--deduplicate"]) == 0
    printed = capsys.readouterr().out
    assert "left out: 6 of 66 documents\n" in printed
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["documents"], manifest["empty_documents"]) == (60, 1)
    assert [shard["documents"] for shard in manifest["shards"]] == [20, 22, 18]
    assert manifest["made_from"]["deduplicate"] == "exact"

    # The same command again encodes nothing; with the duplicates it is another corpus
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    monkeypatch.setattr("bert_hf.data.corpus.shards.encode_group", None)
    assert main([*command, "--deduplicate"]) == 0
    assert "left out: 6 of 66 documents\n" in capsys.readouterr().out
    assert before == {path: path.read_bytes() for path in before}
    assert main(command) == 2
    assert "different deduplicate" in capsys.readouterr().err


def test_overwriting_continues_the_same_corpus_and_removes_another(command, tmp_path, monkeypatch):
    made, encode = [], shards.encode_group
    monkeypatch.setattr(shards, "encode_group", lambda group, **how: made.append(group) or encode(group, **how))

    def encoded(*words):
        made.clear()
        assert main([*command, "--overwrite_output_dir", *words]) == 0
        return len(made)

    assert [encoded(), encoded()] == [3, 0]
    for name in ("manifest.json", "data-00002.arrow"):  # as if it was killed
        (tmp_path / "out" / name).unlink()
    assert encoded() == 1

    assert encoded("--deduplicate") == 3
    assert json.loads((tmp_path / "out/manifest.json").read_text())["made_from"]["deduplicate"] == "exact"
