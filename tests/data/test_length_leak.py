"""The lengths of A and B do not reveal the next-sentence label, for any kind of text (design: invariant 5).

The measure is `length_leak` of benchmarks/fidelity_2018.py: boosted trees, four-fold. Texts are synthetic, with
sentence lengths like those of English Wikipedia (lognormal, 26 tokens on average) unless a test says otherwise.
"""

import numpy as np
import pytest
from fidelity_2018 import Text, length_leak, lengths_here
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_tokenizer

from bert_hf import DataCollatorForPreTraining, PreTrainingExamples
from bert_hf.data.examples.objectives import OBJECTIVES, plan_epoch
from bert_hf.data.examples.samplers import Phase
from bert_hf.data.examples.segment_search import DocumentBounds, find_segments, find_sentences
from bert_hf.data.examples.sentence_pairs import exchange_segments, truncated_lengths

NEXT_SENTENCE = OBJECTIVES[True]
IS_NEXT, NOT_NEXT = 0, 1
ALLOWED_LEAK = 0.02  # accuracy above chance that is tolerated


def make_text(sizes: np.ndarray, seed: int, mean_log_length: float | np.ndarray = 3.1) -> Text:
    """Documents of these numbers of sentences; `mean_log_length` may be one for all or one for each."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(sizes)
    mean = np.repeat(np.broadcast_to(mean_log_length, len(sizes)), sizes)
    lengths = 1 + np.minimum(rng.lognormal(mean, 0.55), 199).astype(int)
    return Text(rng.integers(5, 60, lengths.sum()), np.cumsum([0, *lengths]), ends - sizes, ends)


def text_with_one_sentence_documents(share: float, documents: int, seed: int = 1) -> Text:
    """Documents of 2 to 20 sentences, and a share of one-sentence documents."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 21, documents)
    sizes[rng.random(documents) < share] = 1
    return make_text(sizes, seed)


def test_random_lengths_are_not_a_leak():
    rng = np.random.default_rng(0)
    leak = length_leak(rng.integers(1, 100, 5000), rng.integers(1, 100, 5000), rng.integers(0, 2, 5000))
    assert abs(leak.accuracy - 0.5) < 0.02


@pytest.mark.parametrize("leak_in", ["the length of B", "the sum", "one length of B alone"])
def test_lengths_that_reveal_the_label_are_a_leak(leak_in):
    """One in ten pairs reveals its label: 5 points above chance. A linear model cannot detect the last kind."""
    rng = np.random.default_rng(0)
    a, b, label = rng.integers(20, 90, 8000), rng.integers(20, 90, 8000), rng.integers(0, 2, 8000)
    some = (rng.random(8000) < 0.1) & (label == NOT_NEXT)
    if leak_in == "the length of B":
        b[some] = rng.integers(1, 20, some.sum())
    elif leak_in == "the sum":
        b[some] = 125 - a[some]
    else:
        b[some] = 55
    leak = length_leak(a, b, label)
    assert leak.accuracy > 0.53


@pytest.mark.parametrize("max_seq_length", [128, 512])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5])
def test_lengths_do_not_reveal_the_label(share, max_seq_length):
    """With one-sentence documents as the B of any NOT_NEXT pairs: 50.8, 54, 63, 69 % and 51.5, 55, 64, 71 %."""
    text = text_with_one_sentence_documents(share, 3000 if max_seq_length == 128 else 5000)
    a, b, label = lengths_here(text, max_seq_length, 0.1, seed=0)
    assert len(label) >= 5000
    leak = length_leak(a, b, label)
    assert leak.accuracy <= 0.5 + ALLOWED_LEAK
    assert abs(leak.chance - 0.5) < 4 * leak.error


def test_neither_lengths_nor_positions_in_the_batch_reveal_the_label():
    """From the model's inputs: segment lengths and positions of [SEP] in the collator's output."""
    examples = PreTrainingExamples(text_with_one_sentence_documents(0.3, 3000), (Phase(128, None),), seed=3)
    collator = DataCollatorForPreTraining(tiny_tokenizer())
    batch = collator([examples[index] for index in range(5000)])
    length_b = batch["token_type_ids"].sum(1).numpy() - 1
    total = batch["attention_mask"].sum(1).numpy()
    sep = batch["input_ids"] == tiny_tokenizer().sep_token_id
    rows = np.arange(5000)
    assert sep.sum(1).eq(2).all()
    assert sep[rows, total - 1].all()
    assert sep[rows, total - 2 - length_b].all()
    leak = length_leak(total - 3 - length_b, length_b, batch["next_sentence_label"].numpy())
    assert leak.accuracy <= 0.5 + ALLOWED_LEAK


def one_book(*others: int) -> np.ndarray:
    return np.array([10_000, *others])


@pytest.mark.parametrize(
    ("sizes", "log_length_of_single"),
    [
        pytest.param(one_book(*[80] * 20), 3.1, id="one document has 86 % of the text"),
        pytest.param(one_book(*[1] * 3000), 3.1, id="all documents but one have one sentence"),
        pytest.param(np.array([9000, 5000]), 3.1, id="two documents"),
        pytest.param(np.array([4000, 4000, 3000, *[2] * 2500, *[1] * 1500]), 3.1, id="books and messages"),
        pytest.param(np.tile([1, 2, 3, 9], 1000), 4.5, id="one-sentence documents with sentences four times as long"),
    ],
)
def test_lengths_do_not_reveal_the_label_of_unusual_texts(sizes, log_length_of_single):
    """With exchanges of segments of any length: 55, 95, 54, 65 and 58 %."""
    text = make_text(sizes, 3, np.where(sizes == 1, log_length_of_single, 3.1))
    a, b, label = lengths_here(text, 128, 0.1, seed=0)
    leak = length_leak(a, b, label)
    assert leak.accuracy <= leak.chance + ALLOWED_LEAK
    assert abs(leak.chance - 0.5) < 4 * leak.error


def test_one_document_among_short_ones_does_not_reveal_the_label():
    """Many B had lengths that only the longest of the others could replace: 68 % (four epochs, 512 tokens)."""
    examples = PreTrainingExamples(make_text(one_book(*[3] * 200), 1), (Phase(512, None),), seed=1)
    offsets = examples.corpus.token_offsets
    lengths = []
    for epoch in range(4):
        _, plan = examples.plan(0, epoch)
        a, b = offsets[plan.a_end] - offsets[plan.a_start], offsets[plan.b_end] - offsets[plan.b_start]
        lengths.append((*truncated_lengths(a, b, 509), plan.label))
    leak = length_leak(*map(np.concatenate, zip(*lengths, strict=True)))
    assert leak.accuracy <= leak.chance + ALLOWED_LEAK


FEWER = settings(max_examples=max(100, settings.default.max_examples // 5))
SIZES = st.lists(st.one_of(st.just(1), st.integers(2, 12)), min_size=2, max_size=40).filter(lambda s: max(s) > 1)


@FEWER
@given(SIZES, st.integers(1, 60), st.integers(8, 200), st.sampled_from([0.0, 0.1, 1.0]), st.integers(0, 2**32))
def test_every_one_sentence_document_has_a_pair_and_a_counterpart(sizes, longest, max_tokens, short, seed):
    """A NOT_NEXT pair for each one-sentence document, and as many IS_NEXT pairs whose B is as long or nearest."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(sizes)
    starts, offsets = ends - sizes, np.cumsum([0, *rng.integers(1, longest + 1, ends[-1])])
    plan = plan_epoch(DocumentBounds(starts, ends, offsets), max_tokens, short, NEXT_SENTENCE, rng)

    single = starts[ends - starts == 1]
    count = len(single)
    next_pairs = np.arange(len(plan.label) - 2 * count, len(plan.label) - count)
    single_pairs = np.arange(len(plan.label) - count, len(plan.label))
    assert plan.b_start[single_pairs].tolist() == single.tolist()
    assert (plan.label[next_pairs] == IS_NEXT).all()
    assert (plan.label[single_pairs] == NOT_NEXT).all()
    assert not np.isin(plan.a_start, single).any()

    inner = np.setdiff1d(np.arange(ends[-1]), starts)  # sentences with one before them
    lengths = np.minimum(np.diff(offsets)[inner], max_tokens)
    wanted = np.minimum(np.diff(offsets)[single], max_tokens)
    found = np.minimum(offsets[plan.b_end] - offsets[plan.b_start], max_tokens)[next_pairs]
    nearest = np.abs(lengths[None] - wanted[:, None]).min(1)
    assert (np.abs(found - wanted) <= nearest).all()


def test_pairs_of_one_sentence_documents_reach_the_target():
    """No padding if the text is long enough: A and B reach the target, in IS_NEXT and NOT_NEXT pairs alike."""
    text = make_text(np.array([*[400] * 20, *[1] * 1000]), 0)
    documents = DocumentBounds(text.document_starts, text.document_ends, text.token_offsets)
    plan = plan_epoch(documents, 125, 0.0, NEXT_SENTENCE, np.random.default_rng(0))
    offsets = text.token_offsets
    total = offsets[plan.a_end] - offsets[plan.a_start] + offsets[plan.b_end] - offsets[plan.b_start]
    for pairs in (total[-2000:-1000], total[-1000:]):
        assert (pairs >= 125).mean() > 0.99


@FEWER
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 60)), max_size=60), st.integers(0, 2**32))
def test_an_exchange_is_a_permutation_among_other_documents(segments, seed):
    document, length = np.array(segments, dtype=int).reshape(-1, 2).T
    partner, unmatched = exchange_segments(document, length, np.random.default_rng(seed))
    assert sorted(partner.tolist()) == list(range(len(segments)))
    for pair in set(range(len(segments))) - set(unmatched.tolist()):
        assert document[pair] != document[partner[pair]]
        assert abs(length[pair] - length[partner[pair]]) <= max(4, length[pair] // 8)


def test_an_exchange_finds_partners_where_there_are_some():
    """Documents of up to a third of the segments: all find one."""
    rng = np.random.default_rng(0)
    document = rng.choice(20, 3000, p=np.array([6, *[1] * 19]) / 25)
    _, unmatched = exchange_segments(document, rng.integers(1, 100, 3000), rng)
    assert len(unmatched) == 0


@FEWER
@given(SIZES, st.integers(1, 60), st.integers(0, 2**32))
def test_segments_are_found_in_other_documents_and_near_the_wanted_length(sizes, longest, seed):
    rng = np.random.default_rng(seed)
    last = np.cumsum(sizes)
    first, offsets = last - sizes, np.cumsum([0, *rng.integers(1, longest + 1, last[-1])])
    excluded = rng.integers(0, len(sizes), 50)
    wanted = rng.integers(1, 300, 50)
    start, end = find_segments(DocumentBounds(first, last, offsets), wanted, rng, excluded)
    document = np.searchsorted(last, start, side="right")
    assert (start < end).all()
    assert (end <= last[document]).all()
    assert (document != excluded).all()

    # Within a sentence of the wanted length, or a whole document if none is so long.
    for row in range(50):
        others = np.delete(offsets[last] - offsets[first], excluded[row])
        reachable = min(wanted[row], others.max())
        assert abs(offsets[end[row]] - offsets[start[row]] - reachable) <= longest


@FEWER
@given(SIZES, st.integers(1, 60), st.integers(1, 80), st.integers(0, 2**32))
def test_sentences_are_found_at_the_nearest_length(sizes, longest, max_tokens, seed):
    rng = np.random.default_rng(seed)
    last = np.cumsum(sizes)
    first, offsets = last - sizes, np.cumsum([0, *rng.integers(1, longest + 1, last[-1])])
    wanted = rng.integers(1, max_tokens + 1, 20)
    found = find_sentences(DocumentBounds(first, last, offsets), wanted, max_tokens, rng)
    lengths = np.minimum(np.diff(offsets), max_tokens)
    nearest = np.abs(lengths[:, None] - wanted).min(0)
    assert (np.abs(lengths[found] - wanted) == nearest).all()
