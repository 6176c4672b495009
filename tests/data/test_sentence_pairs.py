import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_hf.data.sentence_pairs import plan_epoch, truncate

NEXT, NOT_NEXT = 0, 1  # written out: the meaning is Google's and transformers', whatever the code calls it


def store(sizes: list[int], tokens_in_sentence: int = 10):
    """Documents of so many sentences, each of so many tokens."""
    ends = np.cumsum(sizes)
    return ends - sizes, ends, np.arange(0, (ends[-1] + 1) * tokens_in_sentence, tokens_in_sentence)


def document_of(ends: np.ndarray, sentence: np.ndarray) -> np.ndarray:
    return np.searchsorted(ends, sentence, side="right")


def check(plan, starts, ends):
    """What holds for every plan."""
    assert (plan.a_start < plan.a_end).all()
    assert (plan.b_start < plan.b_end).all()
    home = document_of(ends, plan.a_start)
    assert (home == document_of(ends, plan.a_end - 1)).all()
    assert (document_of(ends, plan.b_start) == document_of(ends, plan.b_end - 1)).all()
    same = home == document_of(ends, plan.b_start)
    assert (same == (plan.label == NEXT)).all()  # 0 = B follows A, 1 = B is from another document
    assert (plan.b_start == plan.a_end)[plan.label == NEXT].all()
    covered = np.zeros(ends[-1], dtype=bool)
    for a_start, a_end, b_start, b_end in zip(*plan[:4], strict=True):
        covered[a_start:a_end] = covered[b_start:b_end] = True
    assert covered.all()  # every sentence is in at least one example


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=30).filter(lambda sizes: max(sizes) > 1),
    st.integers(1, 60),
    st.integers(8, 200),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.integers(0, 2**32),
)
def test_a_plan_has_right_labels_and_every_sentence(sizes, longest, max_tokens, short, seed):
    """P6, P7 and P9."""
    rng = np.random.default_rng(seed)
    starts, ends, _ = store(sizes)
    offsets = np.cumsum([0, *rng.integers(1, longest + 1, ends[-1])])
    check(plan_epoch(starts, ends, offsets, max_tokens, short, True, rng), starts, ends)


def test_half_are_not_next_with_one_sentence_documents_too(rng):
    sizes = rng.integers(1, 30, 4000)
    starts, ends, offsets = store(sizes)
    plan = plan_epoch(starts, ends, offsets, 125, 0.1, True, rng)
    check(plan, starts, ends)
    assert abs((plan.label == NOT_NEXT).mean() - 0.5) < 4 * 0.5 / np.sqrt(len(plan))


def test_replaced_segments_are_exchanged_and_not_drawn(rng):
    """Where no document is large, every sentence is in exactly one example."""
    starts, ends, offsets = store(rng.integers(2, 30, 300))
    plan = plan_epoch(starts, ends, offsets, 60, 0.1, True, rng)
    used = np.zeros(ends[-1], dtype=int)
    for a_start, a_end, b_start, b_end in zip(*plan[:4], strict=True):
        used[a_start:a_end] += 1
        used[b_start:b_end] += 1
    assert (used == 1).all()


def test_a_not_next_segment_is_as_long_as_what_it_replaces(rng):
    starts, ends, offsets = store(rng.integers(2, 30, 300))
    plan = plan_epoch(starts, ends, offsets, 60, 0.0, True, rng)
    inside = plan.a_end < ends[document_of(ends, plan.a_start)] - 6  # the chunk did not end with the document
    lengths = (plan.a_end - plan.a_start + plan.b_end - plan.b_start)[inside]
    assert (lengths == 6).mean() > 0.99  # sentences of ten tokens; but for rare exchanges of unequal ones


def test_one_document_that_holds_most_of_the_text(rng):
    """Segments of the others are drawn then: still half, still as long as what they replace, and nothing is lost."""
    starts, ends, offsets = store([2000, 80, 80])
    plan = plan_epoch(starts, ends, offsets, 60, 0.0, True, rng)
    check(plan, starts, ends)
    assert abs((plan.label == NOT_NEXT).mean() - 0.5) < 4 * 0.5 / np.sqrt(len(plan))
    lengths = offsets[plan.a_end] - offsets[plan.a_start] + offsets[plan.b_end] - offsets[plan.b_start]
    full = [(lengths[plan.label == label] == 60).mean() for label in (NEXT, NOT_NEXT)]
    assert full[0] > 0.95
    assert full[1] > 0.85  # a drawn one may meet its document's end


def test_a_chunk_fills_the_target_and_is_cut_at_sentence_ends(rng):
    starts, ends, offsets = store([100, 100])
    plan = plan_epoch(starts, ends, offsets, 50, 0.0, True, rng)
    following = plan.label == NEXT
    lengths = offsets[plan.b_end] - offsets[plan.a_start]
    assert set(lengths[following].tolist()) == {50}  # five sentences of ten tokens


def test_short_targets_are_drawn_for_a_tenth_of_the_documents(rng):
    starts, ends, offsets = store([12] * 5000)
    plan = plan_epoch(starts, ends, offsets, 120, 0.1, False, rng)
    documents = document_of(ends, plan.a_start)
    whole = np.bincount(documents, minlength=5000) == 1  # the target of 120 takes the document in one
    expected = 0.9 + 0.1 * 9 / 119  # a short target of 111 to 120 tokens takes it in one as well
    assert abs(whole.mean() - expected) < 4 * np.sqrt(0.1 * 0.9 / 5000)


def test_without_pairs_a_chunk_is_one_segment(rng):
    starts, ends, offsets = store([7, 1, 4])
    plan = plan_epoch(starts, ends, offsets, 30, 0.0, False, rng)
    assert plan.a_start.tolist() == [0, 3, 6, 7, 8, 11]
    assert plan.a_end.tolist() == [3, 6, 7, 8, 11, 12]
    assert (plan.b_start == plan.b_end).all()


def literal_2018_truncation(a: list, b: list, limit: int, rng) -> tuple[list, list]:
    """google-research/bert@eedf571 truncate_seq_pair, as its description says: one token at a time."""
    while len(a) + len(b) > limit:
        longer = a if len(a) > len(b) else b
        longer.pop(0 if rng.random() < 0.5 else -1)
    return a, b


@pytest.mark.parametrize(("length_a", "length_b"), [(30, 10), (10, 30), (20, 20), (21, 20), (3, 90), (5, 5)])
def test_truncation_cuts_as_the_2018_code(length_a, length_b):
    fronts = {"ours": [], "theirs": []}
    for seed in range(300):
        a, b = truncate(np.arange(length_a), np.arange(length_b), 24, np.random.default_rng(seed))
        expected = literal_2018_truncation(
            list(range(length_a)), list(range(length_b)), 24, np.random.default_rng(seed + 1000)
        )
        assert (len(a), len(b)) == tuple(map(len, expected))
        assert (np.diff(a) == 1).all()
        assert (np.diff(b) == 1).all()
        fronts["ours"].append(a[0] + b[0])
        fronts["theirs"].append(expected[0][0] + expected[1][0])
    spread = np.std(fronts["theirs"]) + 1e-9
    assert abs(np.mean(fronts["ours"]) - np.mean(fronts["theirs"])) < 4 * spread * np.sqrt(2 / 300) + 1e-9
