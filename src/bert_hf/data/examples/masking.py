"""Chooses the tokens that are predicted, and replaces them by [MASK], a random token or the token itself (80/10/10).

Devlin et al. 2019, section 3.1 "Masked LM" and A.1: 15 % of the WordPieces are chosen at random; of these 80 % become
[MASK], 10 % a random token, 10 % stay. All functions work on the arrays of one sequence and draw from the generator
that they are given; tokenizer, batch and epoch are the collator's concern.
"""

import numpy as np
from numpy.random import Generator

MASKED, RANDOM = 0.8, 0.1  # A.1; the rest keeps its token


def prediction_count(maskable: int, probability: float) -> int:
    """Return how many of the `maskable` positions to predict: max(1, ⌊p·n + ½⌋), and 0 where nothing can be."""
    return min(maskable, max(1, int(probability * maskable + 0.5)))


def choose_tokens(maskable: np.ndarray, probability: float, rng: Generator) -> np.ndarray:
    """Return positions to predict, ascending: exactly `prediction_count` of those where `maskable` (L,) is true."""
    candidates = np.flatnonzero(maskable)
    count = prediction_count(len(candidates), probability)
    in_random_order = candidates[np.argsort(rng.random(len(candidates)))]
    return np.sort(in_random_order[:count])


def choose_words(maskable: np.ndarray, starts_word: np.ndarray, probability: float, rng: Generator) -> np.ndarray:
    """Return positions to predict, ascending, whole words only; `maskable` and `starts_word` are (L,) bool.

    Words are taken in random order while they fit into the budget of `prediction_count`; one that does not fit is
    skipped. So the budget is never exceeded, and the rest of it is shorter than the shortest word that was not taken.

    Example: un ##aff ##able cat ##s sat on, all maskable, probability 0.4: a budget of ⌊2.8 + ½⌋ = 3 tokens.
        words 0 0 0 1 1 2 3, of lengths 3, 2, 1, 1; the random order is 1, 0, 3, 2
        word 1 fits (1 token left), word 0 with its three does not, word 3 fits (none left)
        chosen: cat ##s on, the positions 3, 4, 6
    """
    candidates = np.flatnonzero(maskable)
    budget = prediction_count(len(candidates), probability)

    # The number of each candidate's word; another word begins after a gap, too (a special token)
    begins = np.ones(len(candidates), dtype=bool)
    begins[1:] = starts_word[candidates[1:]] | (np.diff(candidates) > 1)
    word = np.cumsum(begins) - 1
    lengths = np.bincount(word).tolist()

    chosen = np.zeros(len(lengths), dtype=bool)
    for drawn in rng.permutation(len(lengths)).tolist():
        if budget == 0:
            break
        if lengths[drawn] <= budget:
            chosen[drawn] = True
            budget -= lengths[drawn]
    return candidates[chosen[word]]


def replace_tokens(
    input_ids: np.ndarray, positions: np.ndarray, mask_id: int, random_ids: np.ndarray, rng: Generator
) -> np.ndarray:
    """Return a copy of `input_ids` (L,), at `positions` with 80 % [MASK], 10 % random tokens, 10 % unchanged.

    Each token has its own draw, also within whole words, so that 80/10/10 holds at the token level. `random_ids` (R,)
    are the ids that a random token is drawn from: the whole vocabulary in the 2018 code, here without special tokens.
    """
    draw = rng.random(len(positions))
    random_tokens = random_ids[rng.integers(0, len(random_ids), len(positions))]
    changed = np.where(draw < MASKED, mask_id, random_tokens)

    replaced = input_ids.copy()
    replaced[positions] = np.where(draw < MASKED + RANDOM, changed, input_ids[positions])
    return replaced
