import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_hf.data.examples.objectives import OBJECTIVES, plan_epoch
from bert_hf.data.examples.segment_search import DocumentBounds, find_segments, find_sentences
from bert_hf.data.examples.sentence_pairs import exchange_segments, gather_chunks, truncate, truncated_lengths

NEXT_SENTENCE = OBJECTIVES[True]
IS_NEXT, NOT_NEXT = 0, 1  # literal values, with Google's and transformers' meaning


def store(sizes: list[int], tokens_in_sentence: int = 10):
    """Documents of these numbers of sentences: starts, ends, token offsets."""
    ends = np.cumsum(sizes)
    return ends - sizes, ends, np.arange(0, (ends[-1] + 1) * tokens_in_sentence, tokens_in_sentence)


def document_of(ends: np.ndarray, sentence: np.ndarray) -> np.ndarray:
    return np.searchsorted(ends, sentence, side="right")


def assert_valid_plan(plan, starts, ends):
    """Asserts the properties of every plan."""
    assert (plan.a_start < plan.a_end).all()
    assert (plan.b_start < plan.b_end).all()
    document_a = document_of(ends, plan.a_start)
    document_b = document_of(ends, plan.b_start)
    assert (document_a == document_of(ends, plan.a_end - 1)).all()
    assert (document_b == document_of(ends, plan.b_end - 1)).all()

    same = document_a == document_b
    assert (same == (plan.label == IS_NEXT)).all()  # 0 = B follows A, 1 = B is from another document
    assert (plan.b_start == plan.a_end)[plan.label == IS_NEXT].all()

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
def test_every_plan_has_correct_labels_and_covers_all_sentences(sizes, longest, max_tokens, short, seed):
    rng = np.random.default_rng(seed)
    starts, ends, _ = store(sizes)
    offsets = np.cumsum([0, *rng.integers(1, longest + 1, ends[-1])])
    assert_valid_plan(
        plan_epoch(DocumentBounds(starts, ends, offsets), max_tokens, short, NEXT_SENTENCE, rng), starts, ends
    )


def test_replaced_segments_are_exchanged(rng):
    """Where no document is large, every sentence is in exactly one example."""
    starts, ends, offsets = store(rng.integers(2, 30, 300))
    plan = plan_epoch(DocumentBounds(starts, ends, offsets), 60, 0.1, NEXT_SENTENCE, rng)
    used = np.zeros(ends[-1], dtype=int)
    for a_start, a_end, b_start, b_end in zip(*plan[:4], strict=True):
        used[a_start:a_end] += 1
        used[b_start:b_end] += 1
    assert (used == 1).all()


def test_a_not_next_segment_is_as_long_as_the_replaced_one(rng):
    starts, ends, offsets = store(rng.integers(2, 30, 300))
    plan = plan_epoch(DocumentBounds(starts, ends, offsets), 60, 0.0, NEXT_SENTENCE, rng)
    inside = plan.a_end < ends[document_of(ends, plan.a_start)] - 6  # the chunk did not end with the document
    lengths = (plan.a_end - plan.a_start + plan.b_end - plan.b_start)[inside]
    assert (lengths == 6).mean() > 0.99  # sentences of ten tokens; but for rare exchanges of unequal ones


def test_a_chunk_reaches_the_target_and_ends_with_a_sentence(rng):
    starts, ends, offsets = store([100, 100])
    plan = plan_epoch(DocumentBounds(starts, ends, offsets), 50, 0.0, NEXT_SENTENCE, rng)
    following = plan.label == IS_NEXT
    lengths = offsets[plan.b_end] - offsets[plan.a_start]
    assert set(lengths[following].tolist()) == {50}  # five sentences of ten tokens


def test_without_pairs_a_chunk_is_one_segment(rng):
    starts, ends, offsets = store([7, 1, 4])
    plan = plan_epoch(DocumentBounds(starts, ends, offsets), 30, 0.0, OBJECTIVES[False], rng)
    assert plan.a_start.tolist() == [0, 3, 6, 7, 8, 11]
    assert plan.a_end.tolist() == [3, 6, 7, 8, 11, 12]
    assert (plan.b_start == plan.b_end).all()


def truncation_of_2018(a: list, b: list, limit: int, rng) -> tuple[list, list]:
    """google-research/bert@eedf571 truncate_seq_pair, by its description: one token at a time."""
    while len(a) + len(b) > limit:
        longer = a if len(a) > len(b) else b
        longer.pop(0 if rng.random() < 0.5 else -1)
    return a, b


@pytest.mark.parametrize(("length_a", "length_b"), [(30, 10), (10, 30), (20, 20), (21, 20), (3, 90), (5, 5)])
def test_truncation_is_that_of_2018(length_a, length_b):
    fronts = {"ours": [], "theirs": []}
    for seed in range(300):
        a, b = truncate(np.arange(length_a), np.arange(length_b), 24, np.random.default_rng(seed))
        expected = truncation_of_2018(
            list(range(length_a)), list(range(length_b)), 24, np.random.default_rng(seed + 1000)
        )
        assert (len(a), len(b)) == tuple(map(len, expected))
        assert (np.diff(a) == 1).all()
        assert (np.diff(b) == 1).all()

        fronts["ours"].append(a[0] + b[0])
        fronts["theirs"].append(expected[0][0] + expected[1][0])

    spread = np.std(fronts["theirs"]) + 1e-9
    assert abs(np.mean(fronts["ours"]) - np.mean(fronts["theirs"])) < 4 * spread * np.sqrt(2 / 300) + 1e-9


def documents_of(*documents: list[int]) -> DocumentBounds:
    """Documents with sentences of these numbers of tokens."""
    ends = np.cumsum([len(lengths) for lengths in documents])
    starts = ends - [len(lengths) for lengths in documents]
    return DocumentBounds(starts, ends, np.cumsum(np.concatenate([[0], *documents])))


def assert_some_seed_gives(draw, expected, seeds: int = 2000) -> int:
    """The first seed with which `draw(rng)` gives the expected value."""
    found = next((seed for seed in range(seeds) if draw(np.random.default_rng(seed)) == expected), None)
    assert found is not None, f"none of {seeds} seeds gives {expected}"
    return found


def test_example_of_an_epoch():
    documents = documents_of([6, 7, 3, 8, 5], [20, 4], [9])

    def pairs(rng) -> list[tuple]:
        plan = plan_epoch(documents, 10, 0.0, NEXT_SENTENCE, rng)
        return sorted(zip(*map(np.ndarray.tolist, plan), strict=True))

    expected = [
        (0, 1, 6, 7, NOT_NEXT),  # 6 · 4
        (2, 3, 3, 5, IS_NEXT),  # 3 · 8, 5
        (5, 6, 1, 2, NOT_NEXT),  # 20 · 7
        (2, 3, 3, 4, IS_NEXT),  # 3 · 8
        (2, 3, 7, 8, NOT_NEXT),  # 3 · 9
    ]
    assert_some_seed_gives(pairs, sorted(expected))


def test_example_of_chunks():
    chunks = gather_chunks(documents_of([6, 7, 3, 8, 5], [20, 4]), np.array([10, 10]), min_sentences=2)
    assert chunks.tolist() == [[0, 0, 1], [0, 2, 5], [2, 5, 7]]


def test_example_of_an_exchange():
    document = np.array([0, 1, 0, 2, 3])  # a, b, a, c, d
    length = np.array([5, 30, 6, 29, 9])

    def exchanged(rng) -> tuple:
        partner, unmatched = exchange_segments(document, length, rng)
        return length[partner].tolist(), length[unmatched].tolist()

    assert_some_seed_gives(exchanged, ([9, 29, 5, 30, 6], [6]))
    for seed in range(20):  # with any draws one of the two pairs of document a is unmatched
        assert exchanged(np.random.default_rng(seed))[1] in ([5], [6])


def test_example_of_a_one_sentence_document():
    documents = documents_of([9, 12, 6, 7, 8], [11, 3, 7], [7])

    def pairs(rng) -> list[tuple]:
        plan = plan_epoch(documents, 20, 0.0, NEXT_SENTENCE, rng)
        return list(zip(*map(np.ndarray.tolist, plan), strict=True))[-2:]

    assert_some_seed_gives(pairs, [(1, 3, 3, 4, IS_NEXT), (5, 7, 8, 9, NOT_NEXT)])


def test_example_of_sentences_of_a_length(rng):
    documents = DocumentBounds(np.array([1]), np.array([6]), np.cumsum([0, 99, 4, 7, 30, 7, 8]))
    found = np.concatenate([find_sentences(documents, np.array([7, 20]), 60, rng) for _ in range(20)])
    assert set(found[:, 0].tolist()) == {2, 4}
    assert set(found[:, 1].tolist()) == {3}


def test_example_of_segments_of_a_length(monkeypatch, rng):
    monkeypatch.setattr("bert_hf.data.examples.segment_search._SEGMENT_CANDIDATES", 1)
    documents = documents_of([5, 9, 4, 8])
    found = {tuple(np.concatenate(find_segments(documents, np.array([12]), rng)).tolist()) for _ in range(100)}
    assert {(1, 3), (2, 4)} <= found  # [9, 4], from the second sentence; [4, 8], from the fourth


def test_example_of_excluded_documents(rng):
    documents = documents_of([15, 15], [20, 20, 10], [10] * 4)  # a, b, c
    wanted = np.full(50, 35)
    start, _ = find_segments(documents, wanted, rng)
    assert set(document_of(documents.ends, start).tolist()) == {1, 2}
    start, _ = find_segments(documents, wanted, rng, excluded=np.ones(50, int))
    assert set(document_of(documents.ends, start).tolist()) == {2}


@pytest.mark.parametrize(("max_tokens", "expected"), [(24, (14, 10)), (20, (10, 10)), (17, (9, 8))])
def test_example_of_truncated_lengths(max_tokens, expected):
    assert truncated_lengths(30, 10, max_tokens) == expected


def test_example_of_a_truncation():
    a, b = np.arange(30), np.arange(10)
    seed = assert_some_seed_gives(lambda rng: truncate(a, b, 24, rng)[0].tolist(), list(range(7, 21)))
    assert truncate(a, b, 24, np.random.default_rng(seed))[1].tolist() == b.tolist()
