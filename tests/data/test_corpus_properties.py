"""Properties of corpora: equal inputs give equal bytes, and any bytes are a corpus or one error line.

Hypothesis draws texts and files. The number of examples, and how to try more: conftest.py.
"""

import functools
import gzip
import lzma
import operator
import os
import tempfile
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.corpora import Texts, everything
from helpers.recipe_runs import recipe
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import VOCABULARY
from transformers import BertTokenizer

from bert_hf.data.corpus.prepare import prepare
from bert_hf.data.corpus.store import Corpus
from bert_hf.data.text import encoding, readers
from bert_hf.data.text.encoding import split_sentences
from bert_hf.data.text.readers import cut_pieces, join_pieces
from bert_hf.data.text.sources import TextFile

SPECIALS = 5  # special tokens at the beginning of `VOCABULARY`
WHOLE_FILES = settings(max_examples=max(50, settings.default.max_examples // 40))

# In memory, if there is such a file system: a disk's fsync would take most of the time.
scratch = functools.partial(tempfile.TemporaryDirectory, dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)

WORDS = st.text(st.sampled_from("ab .!?\n\r\t\x0b\x1c\x85\u2028漢。é😀́"), max_size=60)


@given(WORDS, st.sampled_from(["en", "de", "zh", "xx", None]), st.sampled_from([1, 200]))
def test_sentences_lose_nothing_but_white_space(text, language, times):
    text *= times  # 200: longer than the longest sentence
    assert "".join("".join(split_sentences(text, language)).split()) == "".join(text.split())


@given(WORDS, st.integers(1, 80))
def test_pieces_of_any_size_are_the_document(text, size):
    pieces = list(cut_pieces(text, size))
    assert list(join_pieces(pieces)) == [text]
    assert all(len(piece.text) <= size for piece in pieces)


@WHOLE_FILES
@given(WORDS, st.integers(4, 40))
def test_a_file_read_in_parts_of_any_size_holds_the_same_documents(text, size):
    with scratch() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, "a.txt")
        path.write_bytes(text.encode())
        whole = [document.split() for document in join_pieces(TextFile(str(path)).read())]
        patch.setattr(readers, "PIECE", size)
        pieces = list(TextFile(str(path)).read())
        assert [document.split() for document in join_pieces(pieces)] == whole
        assert all(len(piece.text) <= size for piece in pieces)


class Inputs(NamedTuple):
    """All inputs that decide the bytes of a corpus."""

    files: tuple[tuple[str, ...], ...]
    language: str | None
    tokenizer: str
    without: frozenset

    def prepare(self, folder: Path, **how) -> Corpus | None:
        texts = [Texts(file, f"{number}.txt") for number, file in enumerate(self.files)]
        return prepare(texts, a_tokenizer(self.tokenizer), folder, language=self.language,
                       without={0: self.without}, **how)  # fmt: skip


@functools.cache
def a_tokenizer(name: str) -> BertTokenizer:
    """A tokenizer that differs from the first in the named setting only."""
    pieces = {"vocabulary": [*VOCABULARY[:-1], "##y"], "order": [*VOCABULARY[:SPECIALS], *VOCABULARY[:4:-1]]}
    vocabulary = {piece: index for index, piece in enumerate(pieces.get(name, VOCABULARY))}
    made = BertTokenizer(vocab=vocabulary, do_lower_case=name != "cased", tokenize_chinese_chars=name != "chinese",
                         strip_accents=True if name == "accents" else None)  # fmt: skip
    if name.startswith("added "):
        made.add_tokens([name.removeprefix("added ")])
    return made


TOKENIZERS = ["first", "vocabulary", "order", "cased", "chinese", "accents", "added w1 w2", "added w2 w1"]
DOCUMENTS = st.lists(
    st.sampled_from(["w1 w2. w3 w4x1.", "w5", "", "w6 w7! W8.\nÉw9x2 [MASK] w1 w2", " \n", "漢字。w10? w11."]),
    max_size=5,
).map(tuple)
LAST = ("w1 w2. w3.", "w4. w5.", "w6")  # so that some text remains without the excluded documents
FIELDS = {
    "files": st.lists(DOCUMENTS, max_size=3).map(lambda files: (*files, LAST)),
    "language": st.sampled_from(["en", "de", None]),
    "tokenizer": st.sampled_from(TOKENIZERS),
    "without": st.frozensets(st.integers(0, 2), max_size=1),
}
CORPORA = st.builds(Inputs, **FIELDS)


@pytest.mark.parametrize("divided", ["machines", "files", "groups"])  # joblib starts new processes for each
@WHOLE_FILES
@given(CORPORA, st.integers(1, 3), st.sampled_from([1, 60, encoding.GROUP]), st.randoms())
def test_a_corpus_has_the_same_bytes_by_any_division_of_the_work(divided, inputs, machines, group, random):
    """One process; several machines in any order; two processes, for a file or a group of documents each."""
    with scratch() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        if divided == "groups":
            inputs = inputs._replace(files=(sum(inputs.files, ()),))
        if divided == "files":
            inputs = inputs._replace(files=(*inputs.files, LAST))  # two at least
        inputs.prepare(folder / "one")
        patch.setattr(encoding, "GROUP", group)
        if divided == "machines":
            for part in random.sample(range(machines), machines):
                done = inputs.prepare(folder / "other", shard=(part, machines))
        else:
            done = inputs.prepare(folder / "other", num_proc=2)
        assert done is not None
        assert everything(folder / "one") == everything(folder / "other")


NEARLY = [("w1 w2. w3. ", *LAST[1:]), ("w1 w2.", "w3.", *LAST[1:]), LAST[::-1]]


@WHOLE_FILES
@given(CORPORA, st.data())
def test_equal_fingerprints_are_equal_bytes(inputs, data):
    """A change of any one input changes the fingerprint; a second run in the same folder changes nothing."""
    others = {
        **FIELDS,
        "files": FIELDS["files"] | st.sampled_from(NEARLY).map(lambda last: (*inputs.files[:-1], last)),
    }
    with scratch() as name:
        folder = Path(name)
        fingerprint, first = inputs.prepare(folder / "first").fingerprint, everything(folder / "first")
        for where in ("first", "again"):
            assert inputs.prepare(folder / where).fingerprint == fingerprint
            assert everything(folder / where) == first
        for field, values in others.items():
            value = data.draw(values.filter(functools.partial(operator.ne, getattr(inputs, field))), field)
            other = inputs._replace(**{field: value}).prepare(folder / field)
            assert other.fingerprint != fingerprint
            assert everything(folder / field) != first


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("a.jsonl", b'{"text": "\\ud800 w1"}\n', 0),
        ("a.txt", b"w1 w2\x00\r w3\xe2\x80\xa8w4" + b"w" * 3000, 0),
        ("a.jsonl", b'{"text": "w1", "text": "w2", "x": NaN}\n', 0),
        ("a.jsonl", b'{"text": ' + b"[" * 9000, 2),
        ("a.jsonl", b'{"text": "w1"}\n{"text": \n', 2),
        ("a.jsonl", b'{"text": null}\n', 2),
        ("a.json", b"[1]\n", 2),
        ("a.txt", b"\xff\xfe", 2),
        ("a.txt.gz", gzip.compress(b"w1", mtime=0)[:10] + b"\xff" * 9, 2),
        ("a.parquet", b"PAR1", 2),
    ],
)
def test_any_bytes_are_a_corpus_or_one_line(tmp_path, capsys, name, data, code):
    """No incomplete file is left, and the same command repeats its result. (5,000 files: test_fuzzed_files.py.)"""
    (tmp_path / name).write_bytes(data)
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    argv = ["--train_file", name, "--tokenizer_name", "vocab.txt", "--output_dir", "out", "--cache_dir", "cache"]
    argv = [str(tmp_path / word) if "--" not in word else word for word in argv]
    for _ in range(2):
        assert recipe("prepare")(argv) == code
        left = everything(tmp_path / "out")
        assert {path.name for path in tmp_path.rglob(".*")} <= {".lock.tmp"}
        assert ("manifest.json" in left) == (code == 0)
        stderr = capsys.readouterr().err
        assert stderr.count("\n") == (code == 2)
        assert stderr.startswith("error: ") == (code == 2)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_line_without_an_end_is_read_in_bounded_memory(tmp_path, pack):
    """64 MB that were compressed to a few KB."""
    path = tmp_path / f"a.txt.{'gz' if pack is gzip.compress else 'xz'}"
    path.write_bytes(pack(b"\x00" * 2**26))
    tracemalloc.start()
    try:
        assert sum(len(piece.text) for piece in TextFile(str(path)).read()) == 2**26
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
