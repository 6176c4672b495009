import functools
import json
import multiprocessing
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers.corpora import Texts, everything, inputs
from helpers.killed_reader import KillsItsReader
from helpers.recipe_runs import recipe

from bert_hf.config.arguments import CorpusArguments, TokenizerArguments
from bert_hf.data.corpus import requested_corpus
from bert_hf.data.corpus import shards as corpus_shards
from bert_hf.data.corpus.prepare import OWNED, prepare
from bert_hf.data.corpus.requested_corpus import (
    load_or_prepare_corpus,
    load_or_train_tokenizer,
    load_train_and_held_out,
    prepared_folder,
    sample_inputs,
    sample_pieces,
)
from bert_hf.data.corpus.worker_pool import map_ahead
from bert_hf.data.text.encoding import split_sentences
from bert_hf.data.text.readers import Piece
from bert_hf.data.text.sources import TextFile
from bert_hf.errors import InputError
from bert_hf.training.output_folder import claim_output_dir


@pytest.fixture
def corpus(documents, words, tmp_path):
    return prepare([Texts(tuple(documents))], words, tmp_path / "corpus")


def test_ids_are_the_tokenizer_s(documents, corpus, words):
    assert corpus.manifest["documents"] == len(corpus) == 20
    window = corpus.window((0,))
    for number, document in enumerate(documents):
        start, end = window.document_starts[number], window.document_ends[number]
        sentences = split_sentences(document)
        assert end - start == len(sentences)
        for offset, sentence in enumerate(sentences):
            expected = words(sentence, add_special_tokens=False)["input_ids"]
            assert window.ids(start + offset, start + offset + 1).tolist() == expected
    assert corpus.manifest["tokens"] == window.token_offsets[-1] == corpus.tokens
    assert corpus.manifest["sentences"] == window.document_ends[-1]


def at_once(count: int, work) -> list:
    """Results of `work(number)`, or the errors it raises, in processes that begin at the same moment."""
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(count), context.SimpleQueue()

    def run(number):
        barrier.wait()
        try:
            answers.put(work(number))
        except Exception as error:
            answers.put(error)

    processes = [context.Process(target=run, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    done = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    return done


@pytest.mark.parametrize("attempt", range(6))
def test_parts_that_begin_and_end_at_once_make_the_same_bytes(documents, words, tmp_path, attempt):
    def part(number):
        folder = claim_output_dir(str(tmp_path / "parts"), False, OWNED, resumable=True)
        return prepare(inputs(documents), words, folder, shard=(number % 4, 4)) is not None

    done = at_once(8, part)  # each part twice, as when a scheduler thinks one lost
    assert [answer for answer in done if isinstance(answer, Exception)] == []
    assert any(done)
    prepare(inputs(documents), words, tmp_path / "one")
    assert everything(tmp_path / "parts") == everything(tmp_path / "one")


def test_ranks_that_start_together_prepare_once(documents, tmp_path):
    """The first rank trains and prepares; the others wait for a lock (in no collective) and read the result."""
    (tmp_path / "a.txt").write_text("\n\n".join(documents))
    args = CorpusArguments(train_file=[str(tmp_path / "a.txt")], cache_dir=str(tmp_path / "cache"))

    def rank(_):
        made = []
        for name in ("train_tokenizer", "prepare"):
            slow = functools.partial(noted, getattr(requested_corpus, name), made)
            setattr(requested_corpus, name, slow)
        train, held_out = load_train_and_held_out(
            args, load_or_train_tokenizer(TokenizerArguments(vocab_size=150), args)
        )
        return len(made), train.fingerprint, held_out.fingerprint

    def noted(work, made, *args, **options):
        made.append(work)
        time.sleep(0.5)  # the others arrive meanwhile
        return work(*args, **options)

    done = at_once(3, rank)
    assert sum(made for made, *_ in done) == 2  # the tokenizer and the corpus, each once
    assert len({tuple(prints) for _, *prints in done}) == 1


def test_another_text_column_is_another_corpus(words, tmp_path):
    """The file is the same; it is refused in the folder of the other column, and no run takes one for the other."""
    (tmp_path / "a.jsonl").write_text('{"title": "One. Two.", "body": "Three. Four."}\n')

    def made(column, folder):
        return prepare([TextFile(str(tmp_path / "a.jsonl"), column)], words, tmp_path / folder)

    title, body = made("title", "t"), made("body", "b")
    assert title.fingerprint != body.fingerprint
    assert title.manifest["made_from"]["text_column"] == "title"
    with pytest.raises(InputError, match=r"another corpus \(different text_column\)"):
        made("body", "t")
    assert made("title", "t").fingerprint == title.fingerprint


class Cut(Texts):
    """Ends in the middle, as a killed process does."""

    def read(self):
        yield Piece("One sentence. And two.", True)
        raise KeyboardInterrupt


def test_an_interrupted_preparation_resumes(documents, words, tmp_path, monkeypatch):
    texts = inputs(documents)
    with pytest.raises(KeyboardInterrupt):
        prepare([*texts[:2], Cut(texts[2].texts, "2.txt"), texts[3]], words, tmp_path / "c")
    assert not (tmp_path / "c" / "manifest.json").exists()
    assert sorted(path.name for path in (tmp_path / "c").glob("*data-*")) == [
        f"data-0000{i}.{kind}" for i in range(2) for kind in ("arrow", "json")
    ]
    with pytest.raises(InputError, match="the corpus is incomplete"):
        prepared_folder([str(tmp_path / "c")])
    made, encode = [], corpus_shards.encode_group
    monkeypatch.setattr(corpus_shards, "encode_group", lambda group, **how: made.append(group) or encode(group, **how))
    prepare(texts, words, tmp_path / "c")
    assert len(made) == 2  # the other two were there
    prepare(inputs(documents), words, tmp_path / "whole")
    assert everything(tmp_path / "c") == everything(tmp_path / "whole")


def test_another_corpus_in_the_folder_is_refused(documents, words, tmp_path):
    prepare(inputs(documents), words, tmp_path / "c")
    with pytest.raises(InputError, match=r"different language\).*--overwrite_output_dir"):
        prepare(inputs(documents), words, tmp_path / "c", language="de")
    with pytest.raises(InputError, match="different inputs"):
        prepare(inputs(documents, 3), words, tmp_path / "c")
    with pytest.raises(InputError, match="not the text that was prepared here"):
        prepare(inputs(documents[::-1]), words, tmp_path / "c")
    kept = prepare(inputs(documents), words, tmp_path / "c").fingerprint
    assert prepare(inputs(documents[::-1]), words, tmp_path / "c", overwrite=True).fingerprint != kept


def test_a_killed_worker_is_one_line(words, tmp_path):
    """The process that encodes is killed by the system, as it is when memory runs out."""
    texts = [KillsItsReader(("Some text. More text.",), f"{i}.txt") for i in range(2)]
    with pytest.raises(InputError, match="a worker process was killed"):
        prepare(texts, words, tmp_path / "c", num_proc=2)


def test_workers_import_nothing_heavy():
    """A worker process of `prepare` imports these: half a second, and not ten."""
    modules = "bert_hf.data.text.encoding, bert_hf.data.text.sources, bert_hf.data.corpus.shards"
    code = f"import sys, {modules}; print({{'torch', 'transformers'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_empty_and_one_sentence_documents_are_counted(words, tmp_path):
    texts = Texts(("", "  \n", "One sentence.", "Two of them. Here."))
    corpus = prepare([texts, Texts((" ",), "empty")], words, tmp_path / "c")
    assert corpus.manifest["documents"] == 2
    assert corpus.manifest["empty_documents"] == 3
    assert corpus.manifest["one_sentence_documents"] == 1
    assert corpus.manifest["shards"][1]["documents"] == 0


def test_a_line_is_a_sentence_in_the_format_of_2018(words, tmp_path):
    (tmp_path / "a.txt").write_text("  First. Not a second one.  \nNext line\n\n \n\nAnother document\n")
    args = CorpusArguments(
        train_file=[str(tmp_path / "a.txt")], sentence_per_line=True, cache_dir=str(tmp_path / "cache")
    )
    corpus = load_or_prepare_corpus(args, words, args.train_file)
    window = corpus.window((0,))
    sentences = [words.decode(window.ids(i, i + 1)) for i in range(window.document_ends[-1])]
    assert sentences == [words.decode(words.encode(line, add_special_tokens=False)) for line in (
        "First. Not a second one.", "Next line", "Another document")]  # fmt: skip
    assert (window.document_ends - window.document_starts).tolist() == [2, 1]


def test_raw_text_is_prepared_once(documents, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("\n\n".join(documents))
    args = CorpusArguments(train_file=[str(tmp_path / "a.txt")], cache_dir=str(tmp_path / "cache"))
    tokenizer = load_or_train_tokenizer(TokenizerArguments(vocab_size=150), args)
    first = load_or_prepare_corpus(args, tokenizer, args.train_file)
    monkeypatch.setattr("bert_hf.data.corpus.requested_corpus.prepare", None)
    monkeypatch.setattr("bert_hf.data.corpus.requested_corpus.train_tokenizer", None)
    assert load_or_train_tokenizer(TokenizerArguments(vocab_size=150), args).get_vocab() == tokenizer.get_vocab()
    assert load_or_prepare_corpus(args, tokenizer, args.train_file).folder == first.folder
    train, held_out = load_train_and_held_out(args, tokenizer)
    assert len(train) + len(held_out) == 20


def test_what_is_missing_of_a_cache_is_made_again(documents, tmp_path):
    """Shared disks remove old files one by one."""
    (tmp_path / "a.txt").write_text("\n\n".join(documents))
    args = CorpusArguments(train_file=[str(tmp_path / "a.txt")], cache_dir=str(tmp_path / "cache"))
    size = TokenizerArguments(vocab_size=150)
    vocabulary = load_or_train_tokenizer(size, args).get_vocab()
    next((tmp_path / "cache").glob("tokenizer-*/tokenizer.json")).unlink()
    tokenizer = load_or_train_tokenizer(size, args)
    assert tokenizer.get_vocab() == vocabulary

    corpus = load_or_prepare_corpus(args, tokenizer, args.train_file)
    shard = max(corpus.folder.glob("data-*"), key=lambda path: path.stat().st_size)
    content = shard.read_bytes()
    shard.unlink()
    load_or_prepare_corpus(args, tokenizer, args.train_file)
    assert shard.read_bytes() == content


def test_a_sample_is_bounded_and_spread():
    pieces = [Piece(f"{i:010d}") for i in range(1000)]
    taken = sample_pieces(pieces, 1000)
    assert len(taken) == 100
    steps = np.diff([-1, *(int(piece.text) for piece in taken), 1000])
    assert steps.min() > 0  # in order
    assert steps.max() <= 20  # evenly over all
    assert sample_pieces(pieces[:5], 1000) == pieces[:5]
    assert sample_pieces([Piece("a" * 5000)], 1000) == [Piece("a" * 5000)]


def test_a_sampled_document_stays_whole_unless_a_piece_is_dropped():
    pieces = [Piece("a" * 10, False), Piece("b" * 10, False), Piece("c" * 10), Piece("d" * 10)]
    assert sample_pieces(pieces, 100) == pieces
    assert [(piece.text[0], piece.ends) for piece in sample_pieces(pieces, 20)] == [("a", True), ("c", True)]


def test_a_sample_of_a_large_corpus_does_not_read_it_all(monkeypatch):
    read = []

    class Noted(Texts):
        def read(self):
            read.append(self.name)
            yield from super().read()

    texts = [Noted(("word " * 200,), f"{i}") for i in range(100)]
    assert 0 < len(sample_inputs(texts, 2000)) <= 2
    assert len(read) < 30
    assert sorted(map(int, read)) != list(range(len(read)))  # not the first ones
    with pytest.raises(InputError, match="contains no text"):
        sample_inputs([Texts((" ",))], 1000)


@pytest.mark.parametrize("words", [["--sentence_per_line", "true"], []])
def test_the_manifest_records_the_language_that_was_named(documents, tmp_path, words):
    """The card of a later run says it; English rules, the default, say nothing about the text."""
    (tmp_path / "a.txt").write_text("\n\n".join(documents))
    shared = ["--train_file", str(tmp_path / "a.txt"), "--vocab_size", "150", "--cache_dir", str(tmp_path / "cache")]
    for language in (["--language", "de"], []):
        folder = tmp_path / "-".join(["out", *language])
        assert recipe("prepare")([*shared, *words, *language, "--output_dir", str(folder)]) == 0
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest.get("text_language") == (language[1] if language else None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # joblib's, when it is stopped
def test_results_are_computed_only_a_few_ahead():
    taken = []

    def things():
        for number in range(100):
            taken.append(number)
            yield (number,)

    made = map_ahead(abs, things(), 2)
    assert [next(made) for _ in range(3)] == [0, 1, 2]
    assert len(taken) <= 3 + 8
    made.close()


def test_an_error_in_one_input_ends_the_others_at_once(words, tmp_path):
    """And no half-written file of them stays."""
    (tmp_path / "bad.jsonl").write_text('{"text": "a b."}\n{"text": \n')
    (tmp_path / "long.txt").write_text("".join(f"Document {i} says in sentence {i}.\n" for i in range(400_000)))
    files = [TextFile(str(tmp_path / name)) for name in ("bad.jsonl", "long.txt")]
    with pytest.raises(InputError, match=r"bad.jsonl:2:10: not JSON"):
        prepare(files, words, tmp_path / "out", num_proc=2)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".lock.tmp", "recipe.json", "tokenizer"]
