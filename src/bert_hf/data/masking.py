"""Choose which tokens are predicted, and put [MASK], a random token or the token itself in their place.

Devlin et al. 2019, section 3.1 "Masked LM" and A.1: 15 % of the WordPieces are chosen at random; of these 80 % become
[MASK], 10 % a random token, 10 % stay. Arrays in, arrays out, the random generator passed in: nothing here knows of
tokenizers, batches or epochs.
"""

import numpy as np

MASKED, RANDOM = 0.8, 0.1  # A.1; the rest keeps its token


def prediction_count(maskable: int, probability: float) -> int:
    """How many of `maskable` positions are predicted: max(1, ⌊p·n + ½⌋), and 0 where nothing can be."""
    return min(maskable, max(1, int(probability * maskable + 0.5)))


def choose_tokens(maskable: np.ndarray, probability: float, rng: np.random.Generator) -> np.ndarray:
    """Positions to predict, ascending: exactly `prediction_count` of the positions where `maskable` (L,) is true."""
    candidates = np.flatnonzero(maskable)
    count = prediction_count(len(candidates), probability)
    return np.sort(candidates[np.argsort(rng.random(len(candidates)))[:count]])


def choose_words(
    maskable: np.ndarray, continues: np.ndarray, probability: float, rng: np.random.Generator
) -> np.ndarray:
    """Positions to predict, ascending, whole words only.

    Words are taken in random order while they fit into the budget of `prediction_count`; one that does not fit is
    passed over. So the budget is never exceeded, and what is left of it is shorter than the shortest word not taken.

    Args:
        maskable: (L,) bool.
        continues: (L,) bool, true where a token continues the word of the token before it.
    """
    candidates = np.flatnonzero(maskable)
    budget = prediction_count(len(candidates), probability)
    starts = np.ones(len(candidates), dtype=bool)
    starts[1:] = ~(continues[candidates[1:]] & (np.diff(candidates) == 1))
    word = np.cumsum(starts) - 1  # of each candidate
    lengths = np.bincount(word)
    order = rng.permutation(len(lengths))
    first = int(np.searchsorted(np.cumsum(lengths[order]), budget, "right"))  # so many fit, one after the other
    chosen = np.zeros(len(lengths), dtype=bool)
    chosen[order[:first]] = True
    budget -= int(lengths[order[:first]].sum())
    for other in order[first:].tolist() if budget else ():
        if lengths[other] <= budget:
            chosen[other] = True
            budget -= int(lengths[other])
    return candidates[chosen[word]]


def replace(
    input_ids: np.ndarray, positions: np.ndarray, mask_id: int, random_ids: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """A copy of `input_ids` (L,) in which each of `positions` drew 80 % [MASK], 10 % random, 10 % itself.

    The draw is made for every token by itself, whole words included, so that 80/10/10 holds at the token level.
    `random_ids` (R,) are the ids a random token is drawn from: the 2018 code draws from the whole vocabulary, here
    the special tokens are left out of it.
    """
    draw = rng.random(len(positions))
    random_tokens = random_ids[rng.integers(0, len(random_ids), len(positions))]
    replaced = input_ids.copy()
    original = input_ids[positions]
    replaced[positions] = np.where(draw < MASKED, mask_id, np.where(draw < MASKED + RANDOM, random_tokens, original))
    return replaced
