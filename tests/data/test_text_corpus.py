import datasets
import numpy as np
import pandas as pd
import pytest
from helpers.corpora import Texts

from bert_hf import InputError, PreTrainingExamples, train_tokenizer
from bert_hf.data.corpus.prepare import prepare
from bert_hf.data.corpus.text_corpus import TextCorpus, open_corpus, texts_of


@pytest.fixture
def trained(documents):
    return train_tokenizer(documents, vocab_size=300)


@pytest.fixture
def texts(documents):
    """With defects of real data sets: empty texts, an unpaired surrogate, a text without a token."""
    return [documents[0], "", *documents[1:], "broken \ud83d half.", "   \n "]


def test_a_corpus_in_memory_equals_the_prepared_one(texts, trained, tmp_path):
    ours = TextCorpus(texts, trained)
    texts = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]
    prepared = prepare([Texts(tuple(texts))], trained, tmp_path / "corpus")
    window = prepared.window(prepared.windows()[0])
    assert (len(ours), ours.tokens) == (len(prepared), prepared.tokens) == (21, prepared.manifest["tokens"])
    for name in ("token_offsets", "document_starts", "document_ends"):
        assert np.array_equal(getattr(ours, name), getattr(window, name)), name
    for start, end in zip(window.document_starts, window.document_ends, strict=True):
        assert np.array_equal(ours.ids(start, end), window.ids(start, end))

    assert len(ours.ids(end, end)) == len(window.ids(end, end)) == 0  # after the last sentence

    first, second = (PreTrainingExamples(corpus, max_seq_length=48) for corpus in (ours, tmp_path / "corpus"))
    assert len(first) == len(second) > 10
    for index in range(len(first)):
        assert first[index].keys() == second[index].keys()
        for name, value in first[index].items():
            assert np.array_equal(value, second[index][name]), name


@pytest.mark.parametrize("kind", ["dataset", "streamed", "named column", "only strings", "texts", "table", "rows"])
def test_texts_of_every_kind(documents, kind):
    rows = {"text": documents, "url": ["u"] * len(documents)}
    given = {
        "dataset": (datasets.Dataset.from_dict(rows), None),
        "streamed": (datasets.Dataset.from_dict(rows).to_iterable_dataset(), None),
        "named column": (datasets.Dataset.from_dict({"title": ["t"] * 20, "body": documents}), "body"),
        "only strings": (datasets.Dataset.from_dict({"body": documents, "id": range(20)}), None),
        "texts": (iter([*documents, None]), None),
        "table": (pd.DataFrame({"text": [*documents, None], "url": "u"}), None),
        "rows": ([{"text": text} for text in [*documents, None]], None),
    }
    assert list(texts_of(*given[kind])) == documents


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (datasets.DatasetDict(train=datasets.Dataset.from_dict({"text": ["a"]})), "one of its splits: train"),
        ([{"input_ids": [1]}], "dataset:1: text column not recognised"),
        ([{"text": b"a b."}], "dataset:1: column 'text' holds bytes"),
        ([{"text": "a b."}, {"text": 7}], "dataset:2: column 'text' holds the number 7"),
        ([{"title": "a", "name": "b"}], "dataset:1: text column not recognised"),
        (["", " "], "contains no text"),
        ("nowhere/at/all", "nowhere/at/all/manifest.json: not a prepared corpus"),
    ],
)
def test_other_sources_are_refused(source, message, trained):
    with pytest.raises(InputError, match=message):
        open_corpus(source, trained, None, "en")


def test_texts_need_a_tokenizer_and_a_folder_needs_its_own(documents, trained, tmp_path):
    with pytest.raises(InputError, match="texts need a tokenizer; pass tokenizer="):
        PreTrainingExamples(documents)
    prepare([Texts(tuple(documents))], trained, tmp_path)
    assert len(open_corpus(str(tmp_path), trained, None, "en")) == 20
    with pytest.raises(InputError, match="prepared with another tokenizer; use the corpus's own, load_tokenizer"):
        PreTrainingExamples(tmp_path, tokenizer=train_tokenizer(documents, do_lower_case=False))
