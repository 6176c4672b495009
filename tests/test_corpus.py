import json
import pickle

import datasets
import numpy as np
import pytest

from bert_hf.arguments import CorpusArguments, TokenizerArguments
from bert_hf.corpus import Corpus, corpus_for, prepare, sample, split_for, split_sentences, tokenizer_for
from bert_hf.errors import InputError
from bert_hf.tokenization import train_tokenizer


@pytest.fixture(scope="module")
def words():
    text = [f"Document {d} says in sentence {s} that item{d} follows item{s}." for d in range(20) for s in range(6)]
    return train_tokenizer(text, vocab_size=200)


@pytest.fixture
def corpus(documents, words, tmp_path):
    return prepare(documents, words, tmp_path / "corpus", made_from={"by": "test"})


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("en", "It was Dr. Smith. He left.", ["It was Dr. Smith.", "He left."]),
        ("de", "Das ist z. B. gut. Er kam am 3. Mai.", ["Das ist z. B. gut.", "Er kam am 3. Mai."]),
        ("zh", "今天天气很好。我们去公园吧！", ["今天天气很好。", "我们去公园吧！"]),
        ("xx", "No such language. It still works.", ["No such language.", "It still works."]),
        ("en", "one a line\n\nand another\r\n", ["one a line", "and another"]),
        ("en", "\n \n", []),
    ],
)
def test_sentences(language, text, sentences):
    assert split_sentences(text, language) == sentences


def test_text_without_full_stops_is_cut_at_white_space():
    text = " ".join(["word"] * 1000)
    sentences = split_sentences(text)
    assert len(sentences) > 1
    assert max(map(len, sentences)) <= 1000
    assert " ".join(sentences) == text
    assert "".join(split_sentences("x" * 2500)) == "x" * 2500


def test_ids_are_the_tokenizer_s(documents, corpus, words):
    assert corpus.manifest["documents"] == len(corpus) == 20
    for number, document in enumerate(documents):
        start, end = corpus.document_starts[number], corpus.document_ends[number]
        sentences = split_sentences(document)
        assert end - start == len(sentences)
        for offset, sentence in enumerate(sentences):
            expected = words(sentence, add_special_tokens=False)["input_ids"]
            assert corpus.ids(start + offset, start + offset + 1).tolist() == expected
    assert corpus.manifest["tokens"] == corpus.token_offsets[-1] == corpus.tokens
    assert corpus.manifest["sentences"] == corpus.document_ends[-1]


def test_datasets_opens_the_shards(corpus):
    rows = datasets.Dataset.from_file(str(corpus.folder / corpus.manifest["shards"][0]["file"]))
    assert rows.num_rows == 20
    assert rows[3]["input_ids"] == corpus.ids(corpus.document_starts[3], corpus.document_ends[3]).tolist()
    assert corpus.ids(0, 1).dtype == np.uint16


def test_prepared_twice_is_the_same_bytes(documents, words, tmp_path):
    both = [prepare(documents, words, tmp_path / name, made_from={}) for name in "ab"]
    assert both[0].fingerprint == both[1].fingerprint
    assert both[0].manifest["shards"] == both[1].manifest["shards"]
    other = prepare(documents, words, tmp_path / "c", made_from={}, language="de")
    assert other.fingerprint != both[0].fingerprint


def test_empty_and_one_sentence_documents_are_counted(words, tmp_path):
    corpus = prepare(["", "  \n", "One sentence.", "Two of them. Here."], words, tmp_path / "c")
    assert corpus.manifest["documents"] == 2
    assert corpus.manifest["empty_documents"] == 2
    assert corpus.manifest["one_sentence_documents"] == 1


def test_no_text_leaves_nothing_behind(words, tmp_path):
    with pytest.raises(InputError, match="no text in it"):
        prepare(["", " "], words, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_preparation_leaves_nothing(words, tmp_path):
    def failing():
        yield "A document. With text."
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(failing(), words, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_subsets_and_splits_keep_documents_whole(corpus):
    train, held_out = corpus.split(20)
    assert len(train) + len(held_out) == 20
    assert len(held_out) >= 2
    assert not set(train.document_starts) & set(held_out.document_starts)
    again = corpus.split(20)[1]
    assert (again.document_starts == held_out.document_starts).all()
    inner = held_out.subset(np.array([1]))
    assert inner.document_starts.tolist() == [held_out.document_starts[1]]
    assert train.tokens + held_out.tokens == corpus.tokens


def test_unigram_counts(corpus, words):
    counts = corpus.unigram_counts(len(words))
    assert counts.sum() == corpus.tokens
    assert counts[words.convert_tokens_to_ids(".")] == corpus.manifest["sentences"]


def test_it_travels_to_a_worker(corpus):
    copy = pickle.loads(pickle.dumps(corpus.subset(np.array([2, 5]))))
    assert len(copy) == 2
    assert copy.ids(0, 3).tolist() == corpus.ids(0, 3).tolist()


@pytest.mark.parametrize("fault", ["no manifest", "garbage", "short shard"])
def test_a_damaged_corpus_is_named(corpus, fault):
    if fault == "short shard":
        shard = corpus.folder / "data-00000.arrow"
        shard.write_bytes(shard.read_bytes()[:-10])
    elif fault == "garbage":
        (corpus.folder / "manifest.json").write_text("{}")
    else:
        (corpus.folder / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"prepare\.py"):
        Corpus.open(corpus.folder)


def test_raw_text_is_prepared_once(documents, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("\n\n".join(documents))
    args = CorpusArguments(train_file=[str(tmp_path / "a.txt")], cache_dir=str(tmp_path / "cache"))
    tokenizer = tokenizer_for(TokenizerArguments(vocab_size=150), args)
    first = corpus_for(args, tokenizer, args.train_file)
    monkeypatch.setattr("bert_hf.corpus.prepare", None)
    monkeypatch.setattr("bert_hf.corpus.train_tokenizer", None)
    assert tokenizer_for(TokenizerArguments(vocab_size=150), args).get_vocab() == tokenizer.get_vocab()
    assert corpus_for(args, tokenizer, args.train_file).folder == first.folder
    train, held_out = split_for(args, tokenizer)
    assert len(train) + len(held_out) == 20


def test_another_tokenizer_than_the_corpus_was_made_with(corpus, tokenizer):
    args = CorpusArguments(train_file=[str(corpus.folder)])
    with pytest.raises(InputError, match="another tokenizer"):
        corpus_for(args, tokenizer, args.train_file)


def test_too_few_documents_to_hold_out(words, tmp_path):
    corpus = prepare(["A b. C d.", "E f. G h."], words, tmp_path / "c")
    with pytest.raises(InputError, match="too few to hold"):
        corpus.split(5)


def test_a_sample_is_bounded_and_spread():
    documents = [f"{i:010d}" for i in range(1000)]
    taken = sample(documents, 1000)
    assert 50 <= len(taken) <= 100
    steps = np.diff([int(text) for text in taken])
    assert set(steps.tolist()) == {steps[0]}  # evenly over all
    assert sample(documents[:5], 1000) == documents[:5]


def test_the_manifest_says_what_made_it(corpus):
    manifest = json.loads((corpus.folder / "manifest.json").read_text())
    assert {"documents", "sentences", "tokens", "fingerprint", "shards"} <= manifest.keys()
    assert manifest["made_from"] == {"by": "test"}
    assert {"file", "bytes", "sha256", "documents"} <= manifest["shards"][0].keys()
