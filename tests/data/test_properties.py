"""What holds for every text, every seed and every layout: P1 to P14, on texts that Hypothesis draws.

P4, P5, P6 and P9 stand beside their rooms, too (test_masking.py, test_pairing.py). How many examples are tried, and
how to try more: conftest.py. The statistical ones (P1, P6, P11) look at one large sample, always the same.
"""

import contextlib
import functools
import gzip
import io
import itertools
import lzma
import math
import operator
import os
import pickle
import runpy
import tempfile
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny import VOCABULARY, TinyStore, tiny_tokenizer
from transformers import BertTokenizer

from bert_hf import DataCollatorForPreTraining, PreTrainingExamples
from bert_hf.data import encoding, readers
from bert_hf.data.corpus_store import Corpus
from bert_hf.data.encoding import split_sentences
from bert_hf.data.masking import prediction_count
from bert_hf.data.prepare import prepare
from bert_hf.data.readers import TextFile, Texts, cut_pieces, documents
from bert_hf.data.samplers import ExampleNumber, Phase, RunSampler
from bert_hf.training.state_file import load_state, save_state

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = 5  # ids below it
LONGEST = 25  # tokens of a sentence
PLACES = 10 * 50 * LONGEST  # more tokens than any text here has
CONTINUES = np.concatenate([[False] * SPECIAL, np.random.default_rng(0).random(PLACES) < 0.5])  # pieces with ##
WHOLE_FILES = settings(max_examples=max(50, settings.default.max_examples // 40))

# In memory, where there is such a file system: a disk's fsync would take most of the time.
scratch = functools.partial(tempfile.TemporaryDirectory, dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)

# ---- texts in which a token's id tells its place


class Marked(TinyStore):
    """Documents of so many sentences, in windows. A token is its place in the text, plus `SPECIAL`, or a special."""

    def __init__(self, sizes: list, longest: int, special: float, seed: int):
        self.seed, rng = seed, np.random.default_rng(seed)
        counts = np.concatenate(sizes)
        self.document_ends = np.cumsum(counts)
        self.document_starts = self.document_ends - counts
        self.token_offsets = np.concatenate([[0], np.cumsum(rng.integers(1, longest + 1, counts.sum()))])
        self.tokens = SPECIAL + np.arange(self.token_offsets[-1])
        strange = rng.random(len(self.tokens)) < special
        self.tokens[strange] = rng.choice([UNK, SEP, MASK], strange.sum())
        cuts = np.cumsum([0, *map(len, sizes)])
        self._parts = [slice(*cut) for cut in itertools.pairwise(cuts.tolist())]

    def windows(self, rng=None) -> list[slice]:
        return self._parts

    def window(self, part, following=()) -> TinyStore:
        window = TinyStore.__new__(TinyStore)
        window.__dict__.update(self.__dict__)
        window.document_starts, window.document_ends = self.document_starts[part], self.document_ends[part]
        return window

    def place(self, segment: np.ndarray) -> int | None:
        """Where in the text a segment begins; None: it has special tokens only. It must stand there word for word."""
        known = np.flatnonzero(segment >= SPECIAL)
        if len(known) == 0:
            return None
        begin = segment[known[0]] - SPECIAL - known[0]
        assert begin >= 0
        assert np.array_equal(segment, self.tokens[begin : begin + len(segment)])
        return int(begin)

    def document(self, begin: int, length: int) -> int:
        """The one document in which this stretch lies."""
        ends = self.token_offsets[self.document_ends]
        first, last = np.searchsorted(ends, [begin, begin + length - 1], side="right")
        assert first == last
        return int(first)


@functools.cache
def placed_tokenizer() -> BertTokenizer:
    """A piece for each place; half of them continue a word."""
    numbered = enumerate(CONTINUES[SPECIAL:])
    pieces = [*VOCABULARY[:SPECIAL], *(f"##x{i}" if inside else f"w{i}" for i, inside in numbered)]
    return BertTokenizer(vocab={piece: index for index, piece in enumerate(pieces)})


@functools.cache
def collator(mlm_probability: float, **options) -> DataCollatorForPreTraining:
    return DataCollatorForPreTraining(placed_tokenizer(), mlm_probability=mlm_probability, **options)


# Sentences of a document, by a byte: bytes are cheap to draw. One in 32 documents outweighs all others of its window.
SIZES = np.array([1] * 64 + [2 + size % 11 for size in range(184)] + [50] * 8)
# A window needs two documents, one of them of two sentences.
WINDOWS = (
    st.binary(min_size=2, max_size=10).map(lambda drawn: SIZES[list(drawn)]).filter(lambda sizes: sizes.max() > 1)
)
SEEDS = st.integers(0, 2**32)


@st.composite
def texts(draw, windows: int = 1) -> Marked:
    sizes = draw(st.lists(WINDOWS, min_size=1, max_size=windows)) if windows > 1 else [draw(WINDOWS)]
    return Marked(sizes, draw(st.integers(1, LONGEST)), draw(st.sampled_from([0, 0.1, 0.9])), draw(SEEDS))


class Batch(NamedTuple):
    text: Marked
    features: list[dict]
    made: dict[str, np.ndarray]
    chosen: np.ndarray  # where something is predicted
    original: np.ndarray  # input_ids with the labels put back
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
    options = {"whole_word_mask": whole, "nsp": nsp, "pad_to_multiple_of": draw(st.sampled_from([None, 8]))}
    examples = PreTrainingExamples(text, (Phase(length, None),), nsp=nsp, seed=text.seed)
    first = draw(st.integers(0, len(examples) - 1))
    features = [examples[index] for index in range(first, min(first + 6, len(examples)))]
    made = {name: tensor.numpy() for name, tensor in collator(probability, **options)(features).items()}
    chosen = made["labels"] != -100
    original = np.where(chosen, made["labels"], made["input_ids"])
    return Batch(text, features, made, chosen, original, length, probability, whole)


def special_and_pad_tokens_are_not_predicted(batch: Batch) -> None:
    """P2."""
    assert (batch.original[batch.chosen] >= SPECIAL).all()
    assert not batch.chosen[batch.made["attention_mask"] == 0].any()
    replaced = batch.made["input_ids"][batch.chosen]
    assert ((replaced >= SPECIAL) | (replaced == MASK)).all()


def labels_put_back_give_the_text(batch: Batch) -> None:
    """P3. Every position: [CLS] A [SEP] B [SEP] and padding, A and B word for word as in the text."""
    for feature, a, b in batch.segments():
        for segment, whole in ((a, feature["segment_a"]), (b, feature["segment_b"])):
            begin, whole_begin = batch.text.place(segment), batch.text.place(np.asarray(whole))
            assert begin is None or whole_begin <= begin <= whole_begin + len(whole) - len(segment)
        kept = min(len(feature["segment_a"]) + len(feature["segment_b"]),
                   batch.max_seq_length - (3 if len(b) else 2))  # fmt: skip
        assert len(a) + len(b) == kept


def each_predicts_as_many_tokens_as_it_should(batch: Batch) -> None:
    """P4. At least one, wherever there is one to predict (whole words: one that is not beyond the budget)."""
    for original, chosen in zip(batch.original, batch.chosen, strict=True):
        maskable = int((original >= SPECIAL).sum())
        budget = max(1, math.floor(batch.mlm_probability * maskable + 0.5)) if maskable else 0
        assert chosen.sum() <= budget if batch.whole_word_mask else chosen.sum() == budget
    positions = np.flatnonzero(batch.chosen)
    assert batch.made["masked_positions"].tolist() == positions.tolist()
    assert (batch.made["labels"].flatten()[positions] == batch.original.flatten()[positions]).all()


def whole_words_are_whole(batch: Batch) -> None:
    """P5, through the collator: all pieces of a word or none."""
    if not batch.whole_word_mask:
        return
    inside = CONTINUES[batch.original][:, 1:] & (batch.original[:, :-1] >= SPECIAL)
    assert (batch.chosen[:, 1:] == batch.chosen[:, :-1])[inside].all()


def segments_are_of_one_document_and_labels_tell_which(batch: Batch) -> None:
    """P6 and P7. Label 0: B goes on where A ends; label 1: B is of another document; both before truncation."""
    for feature, *cut in batch.segments():
        whole = [np.asarray(feature[name]) for name in ("segment_a", "segment_b")]
        for segments in (whole, cut):
            begins = [batch.text.place(segment) for segment in segments]
            homes = [None if begin is None else batch.text.document(begin, len(segment))
                     for begin, segment in zip(begins, segments, strict=True)]  # fmt: skip
            if None not in homes:
                assert feature["next_sentence_label"] == int(homes[0] != homes[1])
                gap = begins[1] - begins[0] - len(segments[0])
                assert feature["next_sentence_label"] or (gap == 0 if segments is whole else gap >= 0)
    if "next_sentence_label" in batch.made:
        labels = [feature["next_sentence_label"] for feature in batch.features]
        assert batch.made["next_sentence_label"].tolist() == labels


def rows_have_the_shape_that_bert_reads(batch: Batch) -> None:
    """P8. Within the length; padded on the right; token types 0…01…1; attention where there is no padding."""
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
def test_every_batch_is_right(batch):
    """P2 to P8: drawing a batch costs far more than looking at it."""
    special_and_pad_tokens_are_not_predicted(batch)
    labels_put_back_give_the_text(batch)
    each_predicts_as_many_tokens_as_it_should(batch)
    whole_words_are_whole(batch)
    segments_are_of_one_document_and_labels_tell_which(batch)
    rows_have_the_shape_that_bert_reads(batch)


@given(texts(windows=3), st.integers(8, 96), st.booleans(), st.integers(0, 3))
def test_an_epoch_covers_every_sentence(text, length, nsp, epoch):
    """P9. As a run reads it: through the sampler, window after window."""
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


def row(example: dict, **more) -> tuple:
    return tuple(np.asarray(value).tolist() for value in (*example.values(), *more.values()))


@settings(max_examples=max(100, settings.default.max_examples // 10))  # each compares hundreds of examples
@given(texts(windows=2), st.integers(1, 7), st.integers(1, 3), st.integers(0, 60), st.booleans())
def test_an_example_is_a_function_of_seed_and_number(text, batch_size, ranks, start, whole):
    """P10. Any batches, ranks, order, start, and a copy that travelled to a worker: the same examples."""
    collate = collator(0.15, whole_word_mask=whole)

    def numbers_and_examples(start: int) -> tuple[list[ExampleNumber], PreTrainingExamples]:
        examples = PreTrainingExamples(text, (Phase(16, 40), Phase(48, None)), seed=text.seed)
        return list(RunSampler(examples.phases, examples.window_length, 60, text.seed, start)), examples

    numbers, examples = numbers_and_examples(0)
    assert len(set(numbers)) == 60
    expected = {number: row(collate.example(examples[number])) for number in numbers}
    resumed, examples = numbers_and_examples(start)
    assert resumed == numbers[start:]
    examples = pickle.loads(pickle.dumps(examples))
    for rank in range(ranks):
        own = resumed[rank::ranks][::-1]
        for batch in (own[i : i + batch_size] for i in range(0, len(own), batch_size)):
            made = collate([examples[number] for number in batch])
            lengths = made["attention_mask"].sum(1).tolist()
            for at, (number, length) in enumerate(zip(batch, lengths, strict=True)):
                names = ("input_ids", "token_type_ids", "labels")
                assert tuple(made[name][at, :length].tolist() for name in names) == expected[number]


# ---- one large sample


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
    return {**columns, "lengths": np.array([len(example["labels"]) - 2 for example in made])}


@functools.cache
def tiny_collator() -> DataCollatorForPreTraining:
    return DataCollatorForPreTraining(tiny_tokenizer())


def within(counts, shares) -> None:
    """Are the counts within four standard errors of these shares?"""
    counts, shares = np.asarray(counts), np.asarray(shares)
    error = np.sqrt(counts.sum() * shares * (1 - shares))
    assert (np.abs(counts - counts.sum() * shares) < 4 * error).all()


def test_fifteen_percent_are_predicted(sample):
    """P1. By our rule the count is known to the token, so that the share comes closer than chance would bring it."""
    predicted = int((sample["labels"] != -100).sum())
    maskable = int(sample["lengths"].sum())
    assert maskable > 1_000_000
    assert predicted == sum(prediction_count(int(n), 0.15) for n in sample["lengths"])
    within([predicted, maskable - predicted], [0.15, 0.85])


def test_of_these_80_10_10(sample):
    """P1. A random token is now and then the token itself; none is special, and all are equally likely."""
    chosen = sample["labels"] != -100
    ids, labels = sample["input_ids"][chosen], sample["labels"][chosen]
    random = len(VOCABULARY) - SPECIAL
    masked, same = ids == MASK, ids == labels
    within([masked.sum(), same.sum(), (~masked & ~same).sum()],
           [0.8, 0.1 + 0.1 / random, 0.1 - 0.1 / random])  # fmt: skip
    within(np.bincount(ids[~masked & ~same], minlength=len(VOCABULARY))[SPECIAL:], np.full(random, 1 / random))


def test_positions_are_predicted_alike():
    """P1. A χ² over 126 positions, within four of its standard deviations."""
    tokens, times = np.full(126, 7), 8000
    counts = np.zeros(126)
    for index in range(times):
        number = ExampleNumber(0, 0, 0, index)
        feature = {"segment_a": tokens, "segment_b": [], "number": number, "seed": 2, "max_seq_length": 128}
        counts += tiny_collator().example(feature)["labels"][1:-1] != -100
    share = counts.sum() / times / 126
    statistic = ((counts - times * share) ** 2).sum() / (times * share * (1 - share)) * 125 / 126
    assert abs(statistic - 125) < 4 * np.sqrt(2 * 125)


def test_half_of_the_pairs_are_strangers():
    """P6. With one-sentence documents, and one that outweighs all others, too."""
    sizes = np.random.default_rng(6).integers(1, 30, 8000).tolist()
    text = Marked([sizes, [1, 2, 9000, 3], [2] * 9000], 30, 0, 6)
    examples = PreTrainingExamples(text)
    for window in range(3):
        labels = examples.plan(0, 0, window)[1].label
        assert len(labels) > 1500
        within([(labels == 0).sum(), (labels == 1).sum()], [0.5, 0.5])


def test_another_epoch_draws_other_masks():
    """P11. And so do another phase, window, index and seed: the same text, and the masks have nothing in common."""
    tokens = np.arange(SPECIAL, SPECIAL + 60)
    feature = {"segment_a": tokens, "segment_b": [], "max_seq_length": 128}

    def mask(number: ExampleNumber, seed: int) -> bytes:
        return (tiny_collator().example({**feature, "number": number, "seed": seed})["labels"] != -100).tobytes()

    others = [(1, 0, 0, 0), (0, 1, 0, 0), (0, 2, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    equal = []
    for index in range(2000):
        base = np.array([0, index % 7, 0, index])
        first = mask(ExampleNumber(*base.tolist()), 3)
        equal += [mask(ExampleNumber(*(base + other).tolist()), 3) == first for other in others]
        equal.append(mask(ExampleNumber(*base.tolist()), 4) == first)
    assert np.mean(equal) < 1e-3


def test_another_epoch_draws_other_pairs(store):
    """P11."""
    examples = PreTrainingExamples(store)
    first, second = (examples.plan(0, epoch)[1] for epoch in (0, 1))
    both = [set(zip(*map(np.ndarray.tolist, plan), strict=True)) for plan in (first, second)]
    assert len(both[0] & both[1]) / len(both[0]) < 0.2  # a document of two sentences has one cut


# ---- text on its way

WORDS = st.text(st.sampled_from("ab .!?\n\r\t\x0b\x1c\x85\u2028漢。é😀́"), max_size=60)


@given(WORDS, st.sampled_from(["en", "de", "zh", "xx", None]), st.sampled_from([1, 200]))
def test_sentences_lose_nothing_but_white_space(text, language, times):
    text *= times  # 200: longer than the longest sentence
    assert "".join("".join(split_sentences(text, language)).split()) == "".join(text.split())


@given(WORDS, st.integers(1, 80))
def test_pieces_of_any_size_are_the_document(text, size):
    pieces = list(cut_pieces(text, size))
    assert list(documents(pieces)) == [text]
    assert all(len(piece.text) <= size for piece in pieces)


@WHOLE_FILES
@given(WORDS, st.integers(4, 40))
def test_a_file_read_in_parts_of_any_size_holds_the_same_documents(text, size):
    with scratch() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, "a.txt")
        path.write_bytes(text.encode())
        whole = [document.split() for document in documents(TextFile(str(path)).read())]
        patch.setattr(readers, "PIECE", size)
        pieces = list(TextFile(str(path)).read())
        assert [document.split() for document in documents(pieces)] == whole
        assert all(len(piece.text) <= size for piece in pieces)


# ---- whole files


class Inputs(NamedTuple):
    """Everything that decides a corpus."""

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
    """Each differs from the first in one thing only."""
    pieces = {"vocabulary": [*VOCABULARY[:-1], "##y"], "order": [*VOCABULARY[:SPECIAL], *VOCABULARY[:4:-1]]}
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
LAST = ("w1 w2. w3.", "w4. w5.", "w6")  # something is left, whatever is left out
FIELDS = {
    "files": st.lists(DOCUMENTS, max_size=3).map(lambda files: (*files, LAST)),
    "language": st.sampled_from(["en", "de", None]),
    "tokenizer": st.sampled_from(TOKENIZERS),
    "without": st.frozensets(st.integers(0, 2), max_size=1),
}
CORPORA = st.builds(Inputs, **FIELDS)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("share", ["machines", "files", "groups"])  # joblib starts new processes for each
@WHOLE_FILES
@given(CORPORA, st.integers(1, 3), st.sampled_from([1, 60, encoding.GROUP]), st.randoms())
def test_a_corpus_is_the_same_bytes_whoever_made_it(share, inputs, machines, group, random):
    """P10. One process; several machines in any order; two processes, for a file or a group of documents each."""
    with scratch() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        if share == "groups":
            inputs = inputs._replace(files=(sum(inputs.files, ()),))
        if share == "files":
            inputs = inputs._replace(files=(*inputs.files, LAST))  # two at least
        inputs.prepare(folder / "one")
        patch.setattr(encoding, "GROUP", group)
        if share == "machines":
            for part in random.sample(range(machines), machines):
                done = inputs.prepare(folder / "other", shard=(part, machines))
        else:
            done = inputs.prepare(folder / "other", num_proc=2)
        assert done is not None
        assert contents(folder / "one") == contents(folder / "other")


NEARLY = [("w1 w2. w3. ", *LAST[1:]), ("w1 w2.", "w3.", *LAST[1:]), LAST[::-1]]


@WHOLE_FILES
@given(CORPORA, st.data())
def test_equal_fingerprints_are_equal_bytes(inputs, data):
    """P12. And whatever differs in one thing has another; what is made twice in one folder stays as it is."""
    others = {
        **FIELDS,
        "files": FIELDS["files"] | st.sampled_from(NEARLY).map(lambda last: (*inputs.files[:-1], last)),
    }
    with scratch() as name:
        folder = Path(name)
        fingerprint, first = inputs.prepare(folder / "first").fingerprint, contents(folder / "first")
        for where in ("first", "again"):
            assert inputs.prepare(folder / where).fingerprint == fingerprint
            assert contents(folder / where) == first
        for field, values in others.items():
            value = data.draw(values.filter(functools.partial(operator.ne, getattr(inputs, field))), field)
            other = inputs._replace(**{field: value}).prepare(folder / field)
            assert other.fingerprint != fingerprint
            assert contents(folder / field) != first


# ---- state

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
          torch.float16, torch.bfloat16, torch.float32, torch.float64]  # fmt: skip
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def arrays(draw) -> torch.Tensor | np.ndarray:
    """Of any shape and type, transposed and with steps, too."""
    shape, values = draw(SHAPES), np.random.default_rng(draw(SEEDS))
    if draw(st.booleans()):
        made = torch.from_numpy(values.integers(-100, 100, shape)).to(draw(st.sampled_from(DTYPES)))
        return made.mT if made.dim() > 1 else made[::2] if made.dim() else made
    types = ["bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]
    made = values.integers(-100, 100, shape).astype(draw(st.sampled_from(types)))
    return made.T[::-1] if made.ndim else made


LEAVES = (st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"]))
          | arrays() | st.sampled_from([np.float32(0.1), np.float64(0.1), np.int64(-3), np.bool_(True)]))  # fmt: skip
KEYS = st.text("ab", max_size=2) | st.integers(0, 3) | st.none() | st.tuples(st.integers(0, 2), st.booleans())
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


def equal(a, b) -> bool:
    """As == says, with the types, NaN equal to itself, tensors by their bits; a NumPy scalar is a plain number."""
    if isinstance(a, np.generic):
        a = a.item()
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return repr(a) == repr(b)


@given(STATES)
def test_a_state_comes_back_as_it_was(state):
    """P13."""
    with scratch() as folder:
        save_state(Path(folder, "s"), state)
        assert equal(state, load_state(Path(folder, "s")))


# ---- any bytes

SNIPPETS = [
    b"w1 w2. w3 w4.\n", b"\n\n", b"\r", b"\r\n", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80",
    b"\xf0\x9f\x98", "漢字。w1".encode(), "w1\u2028w2\x85w3\x1cw4 \ufeff".encode(), b"[MASK] [SEP]", b"w1,w2\n",
    b"a\tb\n", b"w1 w2 " * 3000, b"w" * 3000, b"[" * 9000, b"9" * 5000, b'"\\ud800"',
]  # fmt: skip
ROWS = [
    b'{"text": "w1 w2. w3"}\n', b'{"text": "\\ud800 w1"}\n', b'{"\\ud800": 0, "text": "w1"}\n', b"{}\n", b"[1]\n",
    b'{"text": null}\n', b'{"text": "w1", "x": NaN}\n', b'{"text": "w1", "x": ' + b"9" * 5000 + b"}\n", b"\n",
    b'{"text": ' + b"[" * 9000 + b"\n", b'{"a": "w1. w2.", "b": "y"}\n', b'{"body": "w1. w2."}\n', b'{"text": ',
    b'{"text": "w1", "text": "w2"}\n', b'{"body": ["w1"]}\n', b"\xef\xbb\xbf",
]  # fmt: skip
PLAIN = st.lists(st.sampled_from(SNIPPETS) | st.binary(max_size=6), max_size=8).map(b"".join)
JSON = st.lists(st.sampled_from(ROWS), max_size=4).map(b"".join)


@st.composite
def parquet(draw) -> bytes:
    strings = st.lists(st.sampled_from([None, "", "w1 w2. w3.", "é\x00😀", "w4 " * 300]), min_size=4, max_size=4)
    kinds = st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
    columns = draw(st.dictionaries(st.sampled_from(["text", "a.b", "", "ü"]), st.tuples(strings, kinds), max_size=2))
    table = pa.table({name: pa.array(values).cast(kind) if kind != pa.binary() else pa.array([b"\xff"] * 4)
                      for name, (values, kind) in columns.items()})  # fmt: skip
    file = io.BytesIO()
    pq.write_table(
        table, file, compression=draw(st.sampled_from(["none", "snappy", "zstd", "gzip"])), row_group_size=2
    )
    return file.getvalue()


@st.composite
def wounded(draw, whole) -> bytes:
    """Bytes, some of them cut off, turned, doubled or put in."""
    data = draw(whole)
    for kind, at in draw(
        st.lists(st.tuples(st.sampled_from("cut turn double put".split()), st.floats(0, 1)), max_size=2)
    ):
        place = min(int(at * len(data)), max(0, len(data) - 1))
        middle = {"cut": b"", "turn": bytes([255 ^ data[place]]) + data[place + 1 :] if data else b"",
                  "double": data, "put": draw(st.binary(max_size=4)) + data[place:]}[kind]  # fmt: skip
        data = data[:place] + middle
    return data


@st.composite
def files(draw) -> tuple[str, bytes]:
    """A name and its bytes: what the suffix says, nearly, or something else."""
    kind = draw(st.sampled_from([".txt", ".TXT", "", ".jsonl", ".json", ".JSONL", ".parquet", ".Parquet", ".csv"]))
    pack = draw(st.sampled_from(["", "", "", "", ".gz", ".xz", ".GZ"]))
    fitting = {".parquet": parquet(), ".jsonl": JSON, ".json": JSON}.get(kind.lower(), PLAIN)
    whole = wounded(fitting if draw(st.integers(0, 9)) else PLAIN)
    if pack and draw(st.integers(0, 9)):
        packer = lzma.compress if pack == ".xz" else functools.partial(gzip.compress, mtime=0)
        whole = wounded(whole.map(packer))
    return f"a{kind}{pack}", draw(whole)


@functools.cache
def prepare_main():
    return runpy.run_path(str(Path(__file__).parents[2] / "recipes" / "prepare.py"))["main"]


def prepared(argv: list[str]) -> tuple[int, str]:
    """Exit code and what it says on stderr."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = prepare_main()(argv)
    return code, said.getvalue()


@settings(max_examples=max(150, WHOLE_FILES.max_examples))
@example([("a.jsonl", b'{"text": "\\ud800 w1"}\n')], "named", False)
@example([("a.jsonl", b'{"text": ' + b"[" * 9000)], "named", False)
@example([("a.txt.gz", gzip.compress(b"w1")[:10] + b"\xff" * 9)], "named", False)
@given(st.lists(files(), min_size=1, max_size=2), st.sampled_from(["named", "named", "trained"]), st.booleans())
def test_any_bytes_are_a_corpus_or_one_line(contents_of_files, tokenizer, lines):
    """P14. And nothing half-written is left, and the same command says the same again, in bounded memory."""
    with scratch() as name:
        folder = Path(name)
        argv = ["--output_dir", f"{folder}/out", "--cache_dir", f"{folder}/cache", "--train_file"]
        for number, (file, data) in enumerate(contents_of_files):
            (folder / str(number)).mkdir()
            (folder / str(number) / file).write_bytes(data)
            argv.append(f"{folder}/{number}/{file}")
        if tokenizer == "named":
            (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
            argv += ["--tokenizer_name", f"{folder}/vocab.txt"]
        argv += ["--sentence_per_line", str(lines)]
        code, said = prepared(argv)
        left = contents(folder / "out")
        assert not list(folder.rglob(".*"))
        if code == 0:
            assert said == ""
            assert Corpus.open(folder / "out").tokens > 0
        else:
            assert code == 2
            assert said.startswith("error: ")
            assert len(said.splitlines()) == 1
            assert "manifest.json" not in left
        assert prepared(argv) == (code, said)
        assert contents(folder / "out") == left
    assert pa.default_memory_pool().max_memory() < 2**30


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_line_without_an_end_is_read_in_bounded_memory(tmp_path, pack):
    """P14. 64 MB that were packed into a few KB."""
    path = tmp_path / f"a.txt.{'gz' if pack is gzip.compress else 'xz'}"
    path.write_bytes(pack(b"\x00" * 2**26))
    tracemalloc.start()
    try:
        assert sum(len(piece.text) for piece in TextFile(str(path)).read()) == 2**26
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
