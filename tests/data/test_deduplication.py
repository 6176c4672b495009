import hashlib
import json
from itertools import pairwise

import numpy as np
import pytest
from helpers.corpora import Texts
from helpers.recipe_runs import recipe

from bert_hf.data.corpus import shards
from bert_hf.data.text.deduplication import SHINGLE, document_rows, find_duplicates, minhash_signatures
from bert_hf.data.text.readers import Piece, cut_pieces


def text_of(rng, words=200):
    return " ".join(f"w{word}" for word in rng.integers(0, 20_000, words))


def changed(text, similarity):
    """A text of about this Jaccard similarity: words at even distances are others."""
    words = text.split()
    shared = 2 * similarity / (1 + similarity)  # of the shingles of either
    count = round((1 - shared) * (len(words) - SHINGLE + 1) / SHINGLE)
    for place in np.linspace(SHINGLE, len(words) - SHINGLE, count).astype(int):
        words[place] = f"other{place}"
    return " ".join(words)


def jaccard(*texts):
    sets = []
    for words in map(str.split, texts):
        sets.append({tuple(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1))})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@pytest.fixture
def planted(rng):
    """Three inputs of 20 documents and some copies of them."""
    texts = [text_of(rng, 80 + 5 * number) for number in range(60)]
    copies = [changed(text, 0.93) for text in texts[::7]] + [f" {text}\n" for text in texts[::11]]
    return [Texts((*texts[:20], *copies[:5])), Texts((*texts[20:40], "", *copies[5:])), Texts(tuple(texts[40:]))]


def test_equal_documents_but_for_white_space_are_found_and_the_first_is_kept():
    texts = Texts(("One text.", "Another.", " One\ttext.\n", "one text.", "Another.", "One text"))
    found = find_duplicates([texts], "exact")
    assert found == {0: {2, 4}}
    assert (found.documents, found.exact, found.near) == (6, 2, 0)


def test_near_duplicates_at_nine_tenths_are_found_and_at_a_half_are_not(rng):
    texts = [text_of(rng) for _ in range(20)]
    near, far = [changed(text, 0.9) for text in texts], [changed(text, 0.5) for text in texts]
    assert all(jaccard(*pair) == pytest.approx(0.9, abs=0.03) for pair in zip(texts, near, strict=True))
    assert all(jaccard(*pair) == pytest.approx(0.5, abs=0.05) for pair in zip(texts, far, strict=True))
    found = find_duplicates([Texts((*texts, *near, *far, *map(str.upper, texts)))], "near")
    assert found == {0: {*range(20, 40), *range(60, 80)}}
    assert (found.documents, found.exact, found.near) == (80, 0, 40)


def test_a_document_like_only_left_out_ones_is_kept(rng):
    """A chain: each nearly equals the one before, and the ends are unlike."""
    words = [text_of(rng, 1000).split()]
    for step in range(1, 12):  # other words at another place each time
        words.append([f"new{i}" if 80 * step <= i < 80 * step + 60 else word for i, word in enumerate(words[-1])])
    texts = [" ".join(chain) for chain in words]
    assert all(jaccard(*pair) > 0.85 for pair in pairwise(texts))
    (gone,) = find_duplicates([Texts(tuple(texts))], "near").values()
    stay = [number for number in range(12) if number not in gone]
    assert stay[0] == 0
    assert 2 <= len(stay) <= 6
    assert all(max(jaccard(texts[number], texts[other]) for other in stay if other < number) > 0.7 for number in gone)


def test_copies_are_found_across_inputs_and_in_a_crowd(rng):
    text = text_of(rng)
    crowd = [changed(text, 0.95) + f" end{number}" for number in range(100)]
    found = find_duplicates([Texts((text_of(rng), text)), Texts(()), Texts((*crowd, text, "Alone."))], "near")
    assert found == {2: set(range(101))}


def test_empty_documents_are_counted_by_number_but_are_no_duplicates():
    for kind in ("exact", "near"):
        found = find_duplicates([Texts(("", " \n", "", "Text here.", "\u00a0", "Text here."))], kind)
        assert (found, found.documents) == ({0: {5}}, 2)
        assert find_duplicates([Texts(()), Texts(("",))], kind) == {}


def test_short_documents_are_alike_when_all_their_words_are():
    found = find_duplicates([Texts(("Yes", "yes", "No", "one two three four", "One two three  FOUR", "two"))], "near")
    assert found == {0: {1, 4}}


def test_in_scripts_without_spaces_a_character_is_a_word(rng):
    text = "".join(map(chr, rng.integers(0x4E00, 0x9FFF, 400)))
    assert find_duplicates([Texts((text, text[:200] + "新" + text[200:], text[:200]))], "near") == {0: {1}}


class Cut(Texts):
    """The same documents in pieces of thirty characters at most."""

    def read(self):
        for text in self.texts:
            yield from cut_pieces(text, 30)


def test_pieces_are_as_the_whole(planted):
    whole = find_duplicates(planted, "exact")
    assert whole[1]
    cut = find_duplicates([Cut(source.texts) for source in planted], "exact")
    assert (cut, vars(cut)) == (whole, vars(whole))
    hard = [Piece(letter, False) for letter in "Über 中文 one two three"] + [Piece("", True)]

    class Letters(Texts):
        def read(self):
            yield from [Piece("Über 中文 one two three"), *hard, Piece("Über 中文 one two thre")]

    assert find_duplicates([Letters(())], "exact") == {0: {1}}


def test_near_duplicates_in_several_pieces_are_found(rng):
    """Only the sequences of words across the borders are left out, so the pieces are long."""
    text, other = text_of(rng, 4000), text_of(rng, 4000)

    class Long(Texts):
        def read(self):
            for text in self.texts:
                yield from cut_pieces(text, 5000)

    assert find_duplicates([Long((text, changed(text, 0.9), other))], "near") == {0: {1}}


def test_two_processes_find_the_same(planted):
    one, two = find_duplicates(planted, "near"), find_duplicates(planted, "near", num_proc=2)
    assert (one, vars(one)) == (two, vars(two))
    assert one.exact == 6
    assert one.near == 9


def test_signatures_stay_what_they_are():
    """Duplicates decide the content of a corpus: a change is a line in the changelog."""
    rows = document_rows(Texts(("One two three four five six. Über 中文", "Two")), near=True)
    assert hashlib.sha256(rows).hexdigest()[:16] == "444571d500c3f6b2"


def test_signatures_of_texts_are_those_of_documents():
    texts = ["One two three four five six. Über 中文", "Two"]
    assert minhash_signatures(texts).astype(np.uint8).tobytes() == b"".join(
        bytes(row[8:]) for row in np.split(np.array(document_rows(Texts(tuple(texts)), near=True)), 2)
    )
    of_three = minhash_signatures(["a b c d e f", "A b c D e f", "a b c d e g", ""], shingle=3, values=4000)
    agreement = (of_three[:1] == of_three).mean(axis=1)
    assert agreement == pytest.approx([1, 1, 3 / 5, 0], abs=0.03)


# ---- the recipe

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
    assert main([*command, "--deduplicate", "near"]) == 0
    printed = capsys.readouterr().out
    assert "left out: 15 of 75 documents (exact 6, near 9)\n" in printed
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["documents"], manifest["empty_documents"]) == (60, 1)
    assert [shard["documents"] for shard in manifest["shards"]] == [22, 23, 15]
    assert manifest["made_from"]["deduplicate"] == "near"

    # The same command again encodes nothing; another kind is another corpus.
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    monkeypatch.setattr("bert_hf.data.corpus.shards.encode_group", None)
    assert main([*command, "--deduplicate", "near"]) == 0
    assert "left out: 15 of 75 documents (exact 6, near 9)\n" in capsys.readouterr().out
    assert before == {path: path.read_bytes() for path in before}
    for other in (["--deduplicate", "exact"], []):
        assert main([*command, *other]) == 2
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

    assert encoded("--deduplicate", "exact") == 3
    assert json.loads((tmp_path / "out/manifest.json").read_text())["made_from"]["deduplicate"] == "exact"
