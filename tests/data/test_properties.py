"""Properties of examples and batches, on texts, seeds and layouts that Hypothesis draws.

The functions behind them are tested in test_masking.py and test_sentence_pairs.py, properties of prepared corpora in
test_corpus_properties.py, that of a saved state in training/test_state_properties.py. The number of examples, and how
to try more: conftest.py. The statistical tests use one large sample, always the same.
"""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import VOCABULARY, TinyStore, tiny_tokenizer
from transformers import BertTokenizer

from bert_hf import DataCollatorForPreTraining, PreTrainingExamples
from bert_hf.data.examples.samplers import ExampleNumber, Phase, RunSampler

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = 5  # ids below it
LONGEST = 25  # tokens of a sentence
POSITIONS = 10 * 50 * LONGEST  # more tokens than any text here has
CONTINUES = np.concatenate([[False] * SPECIAL, np.random.default_rng(0).random(POSITIONS) < 0.5])  # pieces with ##


class NumberedText(TinyStore):
    """Documents in windows, of given numbers of sentences. A token is its position + `SPECIAL`, or a special token."""

    def __init__(self, sizes: list, longest: int, special: float, seed: int):
        rng = np.random.default_rng(seed)
        self.seed = seed
        counts = np.concatenate(sizes)
        self.document_ends = np.cumsum(counts)
        self.document_starts = self.document_ends - counts
        self.token_offsets = np.concatenate([[0], np.cumsum(rng.integers(1, longest + 1, counts.sum()))])

        self.tokens = SPECIAL + np.arange(self.token_offsets[-1])
        replaced = rng.random(len(self.tokens)) < special
        self.tokens[replaced] = rng.choice([UNK, SEP, MASK], replaced.sum())

        cuts = np.cumsum([0, *map(len, sizes)])
        self._parts = [slice(*cut) for cut in itertools.pairwise(cuts.tolist())]

    def windows(self, rng=None) -> list[slice]:
        return self._parts

    def window(self, part) -> TinyStore:
        window = TinyStore.__new__(TinyStore)
        window.__dict__.update(self.__dict__)
        window.document_starts, window.document_ends = self.document_starts[part], self.document_ends[part]
        return window

    def position(self, segment: np.ndarray) -> int | None:
        """The position at which a segment begins; None if it has special tokens only. Checks that the text has it."""
        known = np.flatnonzero(segment >= SPECIAL)
        if len(known) == 0:
            return None
        begin = segment[known[0]] - SPECIAL - known[0]
        assert begin >= 0
        assert np.array_equal(segment, self.tokens[begin : begin + len(segment)])
        return int(begin)

    def document(self, begin: int, length: int) -> int:
        """The one document that contains these positions."""
        ends = self.token_offsets[self.document_ends]
        first, last = np.searchsorted(ends, [begin, begin + length - 1], side="right")
        assert first == last
        return int(first)


@functools.cache
def numbered_tokenizer() -> BertTokenizer:
    """A piece for each position; half of them continue a word."""
    numbered = enumerate(CONTINUES[SPECIAL:])
    pieces = [*VOCABULARY[:SPECIAL], *(f"##x{i}" if inside else f"w{i}" for i, inside in numbered)]
    return BertTokenizer(vocab={piece: index for index, piece in enumerate(pieces)})


@functools.cache
def collator(mlm_probability: float, **options) -> DataCollatorForPreTraining:
    return DataCollatorForPreTraining(numbered_tokenizer(), mlm_probability=mlm_probability, **options)


# Sentences of a document, by a byte: bytes are cheap to draw. One in 32 documents is larger than all others together.
SIZES = np.array([1] * 64 + [2 + size % 11 for size in range(184)] + [50] * 8)
# A window needs two documents, one of them of two sentences.
WINDOWS = (
    st.binary(min_size=2, max_size=10).map(lambda drawn: SIZES[list(drawn)]).filter(lambda sizes: sizes.max() > 1)
)
SEEDS = st.integers(0, 2**32)


@st.composite
def texts(draw, windows: int = 1) -> NumberedText:
    sizes = draw(st.lists(WINDOWS, min_size=1, max_size=windows)) if windows > 1 else [draw(WINDOWS)]
    return NumberedText(sizes, draw(st.integers(1, LONGEST)), draw(st.sampled_from([0, 0.1, 0.9])), draw(SEEDS))


class Batch(NamedTuple):
    text: NumberedText
    features: list[dict]
    made: dict[str, np.ndarray]
    chosen: np.ndarray  # positions that are predicted
    original: np.ndarray  # input_ids with the labels restored
    max_seq_length: int
    mlm_probability: float
    whole_word_mask: bool

    def segments(self):
        """(feature, A, B) of each row, without special tokens."""
        for feature, ids, types, attended in zip(self.features, self.original, self.made["token_type_ids"],
                                                 self.made["attention_mask"], strict=True):  # fmt: skip
            length, b = int(attended.sum()), int(types.sum())
            assert ids[0] == CLS
            assert ids[length - 1] == SEP
            assert b == 0 or ids[length - b - 1] == SEP
            yield feature, ids[1 : length - b - 1], ids[length - b : length - 1]


@st.composite
def batches(draw) -> Batch:
    text, length, nsp = draw(texts()), draw(st.integers(8, 96)), draw(st.booleans())
    probability, whole = draw(st.sampled_from([0.15, 0.2, 0.3, 0.4])), draw(st.booleans())
    options = {"whole_word_mask": whole, "nsp": nsp}
    examples = PreTrainingExamples(text, (Phase(length, None),), nsp=nsp, seed=text.seed)
    first = draw(st.integers(0, len(examples) - 1))
    features = [examples[index] for index in range(first, min(first + 6, len(examples)))]
    made = {name: tensor.numpy() for name, tensor in collator(probability, **options)(features).items()}
    chosen = made["labels"] != -100
    original = np.where(chosen, made["labels"], made["input_ids"])
    return Batch(text, features, made, chosen, original, length, probability, whole)


def special_and_pad_tokens_are_not_predicted(batch: Batch) -> None:
    assert (batch.original[batch.chosen] >= SPECIAL).all()
    assert not batch.chosen[batch.made["attention_mask"] == 0].any()
    replaced = batch.made["input_ids"][batch.chosen]
    assert ((replaced >= SPECIAL) | (replaced == MASK)).all()


def restored_labels_give_the_text(batch: Batch) -> None:
    """Every position: [CLS] A [SEP] B [SEP] and padding, A and B exactly as in the text."""
    for feature, a, b in batch.segments():
        for segment, whole in ((a, feature["segment_a"]), (b, feature["segment_b"])):
            begin, whole_begin = batch.text.position(segment), batch.text.position(np.asarray(whole))
            assert begin is None or whole_begin <= begin <= whole_begin + len(whole) - len(segment)
        kept = min(len(feature["segment_a"]) + len(feature["segment_b"]),
                   batch.max_seq_length - (3 if len(b) else 2))  # fmt: skip
        assert len(a) + len(b) == kept


def the_number_of_predictions_is_correct(batch: Batch) -> None:
    """At least one, if any can be predicted (whole words: if one fits into the budget)."""
    for original, chosen in zip(batch.original, batch.chosen, strict=True):
        maskable = int((original >= SPECIAL).sum())
        budget = max(1, math.floor(batch.mlm_probability * maskable + 0.5)) if maskable else 0
        assert chosen.sum() <= budget if batch.whole_word_mask else chosen.sum() == budget
    positions = np.flatnonzero(batch.chosen)
    assert batch.made["masked_positions"].tolist() == positions.tolist()
    assert (batch.made["labels"].flatten()[positions] == batch.original.flatten()[positions]).all()


def whole_words_are_whole(batch: Batch) -> None:
    """Through the collator: all pieces of a word or none."""
    if not batch.whole_word_mask:
        return
    inside = CONTINUES[batch.original][:, 1:] & (batch.original[:, :-1] >= SPECIAL)
    assert (batch.chosen[:, 1:] == batch.chosen[:, :-1])[inside].all()


def segments_and_labels_agree_with_the_documents(batch: Batch) -> None:
    """Label 0: B begins where A ends; label 1: B is from another document; both before truncation."""
    for feature, *cut in batch.segments():
        whole = [np.asarray(feature[name]) for name in ("segment_a", "segment_b")]
        for segments in (whole, cut):
            begins = [batch.text.position(segment) for segment in segments]
            documents = [batch.text.document(begin, len(segment))
                         for begin, segment in zip(begins, segments, strict=True) if begin is not None]  # fmt: skip
            if len(documents) == 2:
                assert feature["next_sentence_label"] == int(documents[0] != documents[1])
                gap = begins[1] - begins[0] - len(segments[0])
                assert feature["next_sentence_label"] or (gap == 0 if segments is whole else gap >= 0)
    if "next_sentence_label" in batch.made:
        labels = [feature["next_sentence_label"] for feature in batch.features]
        assert batch.made["next_sentence_label"].tolist() == labels


def rows_have_the_layout_of_bert(batch: Batch) -> None:
    """No longer than allowed; padded on the right; token types 0…01…1; attention outside of the padding."""
    made = batch.made
    lengths = made["attention_mask"].sum(1)
    assert lengths.max() <= batch.max_seq_length
    assert made["input_ids"].shape[1] in (lengths.max(), -(-lengths.max() // 8) * 8)
    inside = np.arange(made["input_ids"].shape[1]) < lengths[:, None]
    assert (made["attention_mask"] == inside).all()
    assert (inside == (batch.original != PAD)).all()
    assert (made["token_type_ids"][~inside] == 0).all()
    assert set(np.unique(made["token_type_ids"])) <= {0, 1}
    assert (np.diff(made["token_type_ids"])[inside[:, 1:]] >= 0).all()
    assert (made["token_type_ids"].any(1) == [len(feature["segment_b"]) > 0 for feature in batch.features]).all()


@given(batches())
def test_every_batch_is_correct(batch):
    """All of the above in one test, because drawing a batch takes far longer than checking it."""
    special_and_pad_tokens_are_not_predicted(batch)
    restored_labels_give_the_text(batch)
    the_number_of_predictions_is_correct(batch)
    whole_words_are_whole(batch)
    segments_and_labels_agree_with_the_documents(batch)
    rows_have_the_layout_of_bert(batch)


@given(texts(windows=3), st.integers(8, 96), st.booleans(), st.integers(0, 3))
def test_an_epoch_covers_every_sentence(text, length, nsp, epoch):
    """Read as by a run: through the sampler, window after window."""
    text.tokens = np.arange(len(text.tokens))
    examples = PreTrainingExamples(text, (Phase(length, None),), nsp=nsp, seed=text.seed)
    before = sum(examples.epoch_length(0, earlier) for earlier in range(epoch))
    total = before + examples.epoch_length(0, epoch)
    numbers = list(RunSampler(examples.phases, examples.window_length, total, text.seed, before))
    assert {number.epoch for number in numbers} == {epoch}
    covered = np.zeros(len(text.tokens), dtype=int)
    for number in numbers:
        for name in ("segment_a", "segment_b"):
            covered[examples[number][name]] += 1
    assert covered.all()
    if not nsp:
        assert (covered == 1).all()


@pytest.fixture(scope="module")
def sample() -> dict[str, np.ndarray]:
    """9,600 examples of 20 to 200 tokens, masked at 15 %: a million tokens."""
    rng = np.random.default_rng(14)
    made = []
    for index, length in enumerate(rng.integers(20, 201, 9600)):
        tokens = rng.integers(SPECIAL, len(VOCABULARY), length)
        number = ExampleNumber(0, 0, 0, index)
        feature = {"segment_a": tokens, "segment_b": [], "number": number, "seed": 1, "max_seq_length": 202}
        made.append(tiny_collator().example(feature))
    columns = {name: np.concatenate([example[name] for example in made]) for name in ("input_ids", "labels")}
    return columns


@functools.cache
def tiny_collator() -> DataCollatorForPreTraining:
    return DataCollatorForPreTraining(tiny_tokenizer())


def within(counts, shares) -> None:
    """Asserts that the counts are within four standard errors of these shares."""
    counts, shares = np.asarray(counts), np.asarray(shares)
    error = np.sqrt(counts.sum() * shares * (1 - shares))
    assert (np.abs(counts - counts.sum() * shares) < 4 * error).all()


def test_of_these_80_10_10(sample):
    """A random token is sometimes the token itself; none is special, and all are equally likely."""
    chosen = sample["labels"] != -100
    ids, labels = sample["input_ids"][chosen], sample["labels"][chosen]
    random = len(VOCABULARY) - SPECIAL
    masked, same = ids == MASK, ids == labels
    within([masked.sum(), same.sum(), (~masked & ~same).sum()],
           [0.8, 0.1 + 0.1 / random, 0.1 - 0.1 / random])  # fmt: skip
    within(np.bincount(ids[~masked & ~same], minlength=len(VOCABULARY))[SPECIAL:], np.full(random, 1 / random))


def test_all_positions_are_equally_likely():
    """A χ² over 126 positions, within four of its standard deviations."""
    tokens, times = np.full(126, 7), 8000
    counts = np.zeros(126)
    for index in range(times):
        number = ExampleNumber(0, 0, 0, index)
        feature = {"segment_a": tokens, "segment_b": [], "number": number, "seed": 2, "max_seq_length": 128}
        counts += tiny_collator().example(feature)["labels"][1:-1] != -100
    share = counts.sum() / times / 126
    statistic = ((counts - times * share) ** 2).sum() / (times * share * (1 - share)) * 125 / 126
    assert abs(statistic - 125) < 4 * np.sqrt(2 * 125)


def test_half_of_the_pairs_are_not_next():
    """Also with one-sentence documents, and with one that is larger than all others together."""
    sizes = np.random.default_rng(6).integers(1, 30, 8000).tolist()
    text = NumberedText([sizes, [1, 2, 9000, 3], [2] * 9000], 30, 0, 6)
    examples = PreTrainingExamples(text)
    for window in range(3):
        labels = examples.plan(0, 0, window)[1].label
        assert len(labels) > 1500
        within([(labels == 0).sum(), (labels == 1).sum()], [0.5, 0.5])


def test_another_epoch_draws_other_pairs(store):
    examples = PreTrainingExamples(store)
    first, second = (examples.plan(0, epoch)[1] for epoch in (0, 1))
    both = [set(zip(*map(np.ndarray.tolist, plan), strict=True)) for plan in (first, second)]
    assert len(both[0] & both[1]) / len(both[0]) < 0.2  # a document of two sentences has one cut
