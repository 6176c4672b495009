"""Our pairs and masks compared with the 2018 algorithm's (google-research/bert@eedf571), on synthetic text.

Statistics that must agree do so within four standard errors of the difference, with documents as the sampling units
(targets are drawn once a document): by chance alone 1 of 16,000 fails, and the seeds are fixed. Intended differences
have the sign and size that benchmarks/README.md states.
"""

import hashlib
import json
from random import Random

import numpy as np
import pytest
from fidelity_2018 import Text, epoch_2018, epoch_here, statistics
from original_2018 import create_instances, predictions
from transformers import BertTokenizer

from bert_hf.config.arguments import ExampleArguments
from bert_hf.data.corpus.prepare import prepare
from bert_hf.data.examples.masking import prediction_count
from bert_hf.data.text.sources import TextFile

AGREE = (  # statistics that carry a standard error
    "documents with a short target",
    "NotNext, chunks of two sentences or more",
    "predicted: [MASK]",
    "predicted: another token",
    "predicted: itself",
)


@pytest.fixture(scope="module")
def text() -> Text:
    """800 documents of 2 to 250 sentences, sentences of 26 tokens on average as in English Wikipedia (lognormal)."""
    rng = np.random.default_rng(1)
    sizes = 2 + np.minimum(rng.lognormal(2.7, 1.0, 800), 248).astype(int)
    lengths = 1 + np.minimum(rng.lognormal(3.1, 0.55, sizes.sum()), 199).astype(int)
    ends = np.cumsum(sizes)
    return Text(rng.integers(5, 3000, lengths.sum()), np.cumsum([0, *lengths]), ends - sizes, ends)


@pytest.fixture(scope="module")
def words() -> BertTokenizer:
    """3,000 pieces, so that a random token is hardly ever the token itself."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(2995))]
    return BertTokenizer(vocab={piece: index for index, piece in enumerate(pieces)})


@pytest.fixture(scope="module")
def epochs(text, words):
    return epoch_2018(text, words, ExampleArguments()), epoch_here(text, words, ExampleArguments())


@pytest.fixture(scope="module")
def both(epochs):
    return tuple(map(statistics, epochs))


def test_the_reference_reproduces_the_2018_file():
    """The digest was made by running that file's own functions on these documents, with this seed."""
    rng = Random(2018)
    documents = [
        [[rng.randrange(5, 1000) for _ in range(rng.randint(1, 60))] for _ in range(rng.randint(1, 30))]
        for _ in range(60)
    ]
    ids = {"vocab_size": 1000, "cls_id": 2, "sep_id": 3, "mask_id": 4}
    instances = create_instances(documents, **ids, dupe_factor=2, rng=Random(12345))
    digest = hashlib.sha256(json.dumps(instances).encode()).hexdigest()
    assert digest == "e0abc7c27c3346b4c55dee735a9627c6d3e3679f386853c8a1d1c9f2347ea0cd"


@pytest.mark.parametrize("name", AGREE)
def test_statistics_that_must_agree(both, name):
    (theirs, error), (ours, our_error) = both[0][name], both[1][name]
    assert abs(theirs - ours) < 4 * np.hypot(error, our_error)


def test_chunks_of_full_target_are_cut_alike(both):
    """Uniformly over the sentence ends. 2018 is up to 0.01 higher: it uses replaced text again (see the table)."""
    name = "A's share, Next inside a document, full target: mean"
    error = 4 * 0.2 * np.sqrt(2 / 1000)  # about 1,000 such pairs in each, a standard deviation of 0.2
    assert -error < both[0][name] - both[1][name] < error + 0.01


def test_not_next_are_half_here_and_more_in_2018(epochs, both):
    theirs, ours = (statistics["NotNext"] for statistics in both)
    single = both[0]["chunks of one sentence"]
    error = 0.5 / np.sqrt(len(epochs[1].not_next))
    assert abs(ours - 0.5) < 4 * error
    assert abs(theirs - (single + (1 - single) / 2)) < 4 * error  # a chunk of one sentence is always NotNext
    assert 0.02 < theirs - ours < 0.08
    assert both[0]["NotNext, chunks of one sentence"] == 1
    assert both[1]["chunks of one sentence"] == 0


def test_each_token_is_gathered_once_here_and_some_twice_in_2018(both):
    """2018 uses replaced text again, so that it makes a third more examples of the same text."""
    theirs, ours = both
    assert ours["corpus tokens used, before truncation"] == theirs["corpus tokens used, before truncation"] == 1
    assert ours["corpus tokens used twice or more, before truncation"] == 0
    assert 0.15 < theirs["corpus tokens used twice or more, before truncation"] < 0.4
    assert 1.2 < theirs["examples"] / ours["examples"] < 1.6
    assert ours["tokens read for each corpus token"] <= 1 < theirs["tokens read for each corpus token"]


def test_lengths_do_not_reveal_the_label(epochs, both):
    """B is as long as the segment it replaces. In 2018 the lengths revealed 0.55 of the labels (chance: 0.54)."""
    chance = 0.5 / np.sqrt(len(epochs[1].not_next) / 2)  # half the examples are predicted
    assert both[1]["label told from the lengths of A and B alone"] < 0.5 + 4 * chance
    difference = both[1]["length, Next: mean"] - both[1]["length, NotNext: mean"]
    assert abs(difference) < 4 * 25 * 2 / np.sqrt(len(epochs[1].not_next))  # a standard deviation of 25 tokens
    assert both[1]["cut off by truncation"] < both[0]["cut off by truncation"] + 0.02


def test_predictions_are_counted_without_the_special_tokens_here():
    """One more in 2018 at most: 0.15 · 3 = 0.45 for the three specials."""
    maskable = np.arange(2, 126)
    theirs = np.array([predictions(n + 3, 0.15, 20) for n in maskable])
    ours = np.array([prediction_count(n, 0.15) for n in maskable])
    assert set((theirs - ours).tolist()) == {0, 1}
    assert 0.4 < (theirs - ours).mean() < 0.5
    assert theirs[-1] == ours[-1] == 19  # full sequences of 128
    assert (predictions(512, 0.15, 77), prediction_count(509, 0.15)) == (77, 76)


def test_predictions_of_whole_epochs(epochs):
    theirs, ours = epochs
    assert (theirs.fates.sum(1) == [predictions(n + 3, 0.15, 20) for n in theirs.maskable]).all()
    assert (ours.fates.sum(1) == [prediction_count(n, 0.15) for n in ours.maskable]).all()


def test_text_in_the_2018_format_gives_the_2018_documents(words, tmp_path):
    """The rule of 2018: strip each line; an empty one begins a new document; a line without tokens is skipped."""
    lines = [
        "", "   ", "w1 w2 w3.", "  w4 w5 w6.  ", "", "\t", "w7 w8.\t", "w9 unknown words.", "\x00\u200b", "w10 w11.",
        " \t ", "", "\u200b", "", "w12.", "w13 w14", "\u3000w15 w16.\u00a0", "", "w17 w18 w19.", "   ", "", "",
    ]  # fmt: skip
    expected = [[]]
    for line in lines:
        if not line.strip():
            expected.append([])
        elif tokens := words.tokenize(line.strip()):
            expected[-1].append(words.convert_tokens_to_ids(tokens))
    expected = [document for document in expected if document]
    for end in ("\n", "\r\n"):
        (tmp_path / "text.txt").write_bytes(end.join(lines).encode())
        corpus = prepare([TextFile(str(tmp_path / "text.txt"))], words, tmp_path / f"{len(end)}", language=None)
        read = Text.first(corpus, None)
        documents = [[read.tokens[span].tolist() for span in document] for document in read.positions()]
        assert documents == expected
    assert [len(document) for document in documents] == [2, 3, 3, 1]
