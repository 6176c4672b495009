"""Groups of near-duplicates: what counts as one, compared with every pair, and units that stay together."""

from itertools import combinations

import numpy as np
import pytest

from bert_hf.finetuning.rows.near_duplicates import near_duplicate_groups


def similarity(one, other):
    """Jaccard similarity of the three-word sequences."""
    first, second = (set(zip(words, words[1:], words[2:], strict=False)) for words in (one.split(), other.split()))
    return len(first & second) / len(first | second)


def text_of(rng, words=40):
    letters = np.array(list("abcdefghijklmnop"))
    return " ".join("".join(letters[[number >> shift & 15 for shift in (0, 4, 8, 12)]])
                    for number in rng.integers(0, 20_000, words))  # fmt: skip


def edited(text, rng, share):
    """The text with a passage of this share of its words replaced."""
    words = text.split()
    length = round(share * len(words))
    begin = int(rng.integers(0, len(words) - length + 1))
    return " ".join([*words[:begin], *text_of(rng, length).split(), *words[begin + length :]])


def test_case_digits_and_punctuation_do_not_count():
    texts = [
        "Call 0900 111 now to claim your prize of 500!",
        "call 0800 222 NOW to claim your prize of 900",
        "Hello! Call 0900 333 now to claim your prize of 100 pounds",  # most three-word sequences
        "See you at the station at noon",
        "See you there",
        "12 34",
        "56 78",
        "12 34",
        "SEE: you there 4",
    ]
    assert near_duplicate_groups(texts).tolist() == [0, 0, 0, 1, 2, 3, 4, 3, 2]


@pytest.mark.parametrize(
    "same", ["e\u0301cole", "ecole", "É\u00adcole", "éco\u200ble", "ＥＣＯＬＥ", "éCOLE!"]
)  # decomposed, no accent, soft hyphen, zero-width space, full width
def test_texts_that_the_tokenizer_makes_equal_are_one_group(same):
    assert near_duplicate_groups(["école", same, "à " + same]).tolist() == [0, 0, 1]


@pytest.mark.parametrize("seed", range(3))
def test_similar_texts_share_a_group_and_others_do_not(seed):
    """All pairs are compared: those of similarity 0.6 or more are linked, no text is linked with only unlike ones."""
    rng = np.random.default_rng(seed)
    texts = [text_of(rng, int(words)) for words in rng.integers(3, 120, 60)]
    texts += [edited(texts[row], rng, share) for row in range(60) for share in rng.uniform(0, 0.8, 2)]
    texts = [texts[row] for row in rng.permutation(len(texts))]
    groups = near_duplicate_groups(texts)

    closest = np.zeros(len(texts))  # of the others in the group
    for one, other in combinations(range(len(texts)), 2):
        alike = similarity(texts[one], texts[other])
        assert alike < 0.6 or groups[one] == groups[other]
        if groups[one] == groups[other]:
            closest[[one, other]] = np.maximum(closest[[one, other]], alike)
    alone = np.bincount(groups)[groups] == 1
    assert 20 < alone.sum() < 120
    assert closest[~alone].min() > 0.35


def test_a_chain_is_one_group(rng):
    """Each text nearly equals the one before; the first and the last share nothing."""
    words = text_of(rng, 300).split()
    texts = [" ".join(words[begin : begin + 60]) for begin in range(0, 241, 15)]
    assert near_duplicate_groups(texts).tolist() == [0] * len(texts)


def test_many_copies_are_found(rng):
    """More copies than a text is compared with in a band."""
    text = text_of(rng, 30)
    copies = [edited(text, rng, 0.1) for _ in range(500)]
    assert near_duplicate_groups([*copies, "Alone, and with words of its own."]).tolist() == [0] * 500 + [1]


def test_a_frequent_phrase_links_nothing(rng):
    texts = list(dict.fromkeys(f"please call back {text_of(rng, 3)}" for _ in range(2000)))
    assert near_duplicate_groups(texts).tolist() == list(range(len(texts)))


def test_in_scripts_without_spaces_a_character_is_a_word(rng):
    text = "".join(map(chr, rng.integers(0x4E00, 0x9FFF, 60)))
    texts = [text, text[:30] + "新" + text[30:], text[:20]]
    assert near_duplicate_groups(texts).tolist() == [0, 0, 1]


def test_no_texts_and_texts_without_words():
    assert near_duplicate_groups([]).tolist() == []
    assert near_duplicate_groups(["", "", "!", "?", "one"]).tolist() == [0, 0, 1, 2, 3]


def test_units_stay_together_and_are_linked_by_near_duplicates():
    texts = ["a b c d", "e f g h", "i j k l", "A b c d.", "m n o p", "q r s t", "u v w x", "y z"]
    assert near_duplicate_groups(texts, [0, 0, 1, 1, 2, 3, 4, 5]).tolist() == [0, 0, 0, 0, 1, 2, 3, 4]
    assert near_duplicate_groups(texts, list("xyyzxyww")).tolist() == [0, 1, 1, 0, 0, 1, 2, 2]


def test_units_that_share_a_sentence_are_divided():
    """Ten documents begin with the same sentence: kept whole, they would be one group."""
    texts = [text for number in range(10) for text in ("Good morning everybody", f"{chr(97 + number)} b c d")]
    groups = near_duplicate_groups(texts, [row // 2 for row in range(20)])
    assert groups.tolist() == [number for pair in zip([0] * 10, range(1, 11), strict=True) for number in pair]
