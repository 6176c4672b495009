import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_hf.data.examples.masking import choose_words, prediction_count, replace_tokens


@pytest.mark.parametrize(("n", "expected"), [(0, 0), (1, 1), (3, 1), (10, 2), (13, 2), (20, 3), (100, 15), (125, 19)])
def test_prediction_count_is_max_1_and_half_up(n, expected):
    assert prediction_count(n, 0.15) == expected


@given(st.binary(min_size=1, max_size=80), st.floats(0.15, 0.4), st.integers(0, 2**32))
def test_whole_words_stay_whole_and_within_the_budget(tokens, probability, seed):
    bits = np.frombuffer(tokens, np.uint8)
    maskable, continues = bits & 3 > 0, bits & 12 > 0
    chosen = set(choose_words(maskable, ~continues, probability, np.random.default_rng(seed)).tolist())

    words = []
    for position in np.flatnonzero(maskable).tolist():
        if words and continues[position] and position - 1 == words[-1][-1]:
            words[-1].append(position)
        else:
            words.append([position])

    budget = prediction_count(int(maskable.sum()), probability)
    taken = [word for word in words if chosen & set(word)]
    left = [word for word in words if not chosen & set(word)]
    assert chosen == {position for word in taken for position in word}
    assert len(chosen) <= budget
    assert not left or budget - len(chosen) < min(map(len, left))


def test_example_of_whole_words():
    """un ##aff ##able cat ##s sat on: words of 3, 2, 1, 1 tokens, a budget of 3, the random order 1, 0, 3, 2."""
    seed = next(s for s in range(1000) if np.random.default_rng(s).permutation(4).tolist() == [1, 0, 3, 2])
    continues = np.array([False, True, True, False, True, False, False])
    assert prediction_count(7, 0.4) == 3
    assert choose_words(np.ones(7, bool), ~continues, 0.4, np.random.default_rng(seed)).tolist() == [3, 4, 6]


def test_replacement_changes_neither_other_tokens_nor_its_input(rng):
    ids = np.arange(10, 30)
    replaced = replace_tokens(ids, np.array([3, 7]), 4, np.array([99]), rng)
    untouched = np.setdiff1d(np.arange(20), [3, 7])
    assert (replaced[untouched] == ids[untouched]).all()
    assert (ids == np.arange(10, 30)).all()
