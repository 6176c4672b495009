import json
import os
import re
import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from bert_hf.finetuning.splitting import near_duplicates
from bert_hf.finetuning.splitting.near_duplicates import near_duplicate_groups


def words_of(text):
    return re.findall(r"[^\W\d_]+", text.lower())


def sequences(words):
    return set(zip(words, words[1:], words[2:], strict=False))


def brute_force_groups(texts):
    """Every pair is compared. The texts have words."""
    words = [words_of(text) for text in texts]
    sets = [sequences(own) for own in words]
    links = [(row, row) for row in range(len(texts))]
    for one, other in combinations(range(len(texts)), 2):
        shared = len(sets[one] & sets[other])
        if words[one] == words[other] or (shared and 2 * shared >= len(sets[one] | sets[other])):
            links.append((one, other))
    graph = coo_array((np.ones(len(links)), np.array(links).T), (len(texts), len(texts)))
    return connected_components(graph, directed=False)[1]


def text_of(rng, words=40, vocabulary=20_000):
    letters = np.array(list("abcdefghijklmnop"))
    return " ".join("".join(letters[[number >> shift & 15 for shift in (0, 4, 8, 12)]])
                    for number in rng.integers(0, vocabulary, words))  # fmt: skip


def edited(text, rng, share):
    """A passage of this share of the words is replaced."""
    words = text.split()
    length = round(share * len(words))
    begin = int(rng.integers(0, len(words) - length + 1))
    return " ".join([*words[:begin], *text_of(rng, length).split(), *words[begin + length :]])


def test_case_digits_and_signs_do_not_count():
    texts = [
        "Call 0900 111 now to claim your prize of 500!",
        "call 0800 222 NOW to claim your prize of 900",  # digits, case, signs
        "Hello! Call 0900 333 now to claim your prize of 100 pounds",  # most three-word sequences
        "See you at the station at noon",
        "See you there",
        "12 34",
        "56 78",
        "12 34",
        "SEE: you there 4",
    ]
    assert near_duplicate_groups(texts).tolist() == [0, 0, 0, 1, 2, 3, 4, 3, 2]


def test_groups_are_numbered_by_their_first_member():
    """So that the split is the same in every process, whatever Python's hash seed does to the order of sets."""
    texts = ["a b c d e f", "x y z", "a b c d e g", "u v w", "a b c d e h"]
    assert near_duplicate_groups(texts).tolist() == [0, 1, 0, 2, 0]
    assert near_duplicate_groups(texts[::-1]).tolist() == [0, 1, 0, 2, 0]


def test_half_of_the_sequences_is_enough_and_less_is_not():
    """Six words have four sequences. Of two texts that share two, 2 of 6 differ; of those that share three, 3 of 5."""
    texts = ["a b c d e f", "a b c d e x", "k l m n o p", "k l m n x y"]
    assert near_duplicate_groups(texts).tolist() == [0, 0, 1, 2]
    assert near_duplicate_groups(["a b c d e f g h", "a b c d e f x y"]).tolist() == [0, 0]  # 4 of 8
    assert near_duplicate_groups(["a b c d e f g h i", "a b c d e f x y z"]).tolist() == [0, 1]  # 4 of 10


@pytest.mark.parametrize("seed", range(3))
def test_the_groups_are_those_of_comparing_every_pair(seed):
    rng = np.random.default_rng(seed)
    texts = [text_of(rng, int(words)) for words in rng.integers(1, 120, 80)]
    texts += [edited(texts[row], rng, share) for row in range(80) for share in rng.uniform(0, 0.5, 2)]
    texts += [text_of(rng, int(words), vocabulary=4) for words in rng.integers(1, 9, 100)]  # short, much in common
    texts = [texts[row] for row in rng.permutation(len(texts))]
    groups = near_duplicate_groups(texts)
    assert 100 < groups.max() + 1 < 0.8 * len(texts)  # most groups have one text
    assert (groups == brute_force_groups(texts)).all()


def test_a_chain_is_one_group(rng):
    """Each nearly equals the one before; the first and the last share nothing."""
    words = text_of(rng, 300).split()
    texts = [" ".join(words[begin : begin + 60]) for begin in range(0, 241, 15)]
    assert not set(words_of(texts[0])) & set(words_of(texts[-1]))
    assert near_duplicate_groups(texts).tolist() == [0] * len(texts)


def test_many_copies_are_found(rng):
    """More copies than a text is compared with in a band."""
    text = text_of(rng, 30)
    copies = [edited(text, rng, 0.1) for _ in range(500)]
    assert near_duplicate_groups([*copies, "Alone, and with words of its own."]).tolist() == [0] * 500 + [1]


def test_a_frequent_sequence_costs_no_time_for_each_pair(monkeypatch, rng):
    """4,000 texts share one sequence of two: 8 million pairs, of which a small part is compared."""
    compared = []
    are_similar = near_duplicates._are_similar
    monkeypatch.setattr(near_duplicates, "_are_similar", lambda *a: compared.append(len(a[1])) or are_similar(*a))
    texts = list(dict.fromkeys(f"please call back {text_of(rng, 1, vocabulary=65_536)}" for _ in range(4000)))
    assert near_duplicate_groups(texts).tolist() == list(range(len(texts)))
    assert sum(compared) < 80 * 32 * len(texts) / 4


def test_in_scripts_without_spaces_a_character_is_a_word(rng):
    text = "".join(map(chr, rng.integers(0x4E00, 0x9FFF, 60)))
    texts = [text, text[:30] + "新" + text[30:], text[:20]]
    assert near_duplicate_groups(texts).tolist() == [0, 0, 1]


def test_no_texts_and_texts_without_words():
    assert near_duplicate_groups([]).tolist() == []
    assert near_duplicate_groups(["", "", "!", "?", "one"]).tolist() == [0, 0, 1, 2, 3]


def test_the_seed_of_python_s_hashes_does_not_matter(rng):
    code = """if True:
        import json, sys
        from bert_hf.finetuning.splitting.near_duplicates import near_duplicate_groups
        print(near_duplicate_groups(json.loads(sys.stdin.read())).tolist())
    """
    texts = [text_of(rng) for _ in range(50)]
    texts += [edited(text, rng, 0.2) for text in texts[::3]]
    options = {"input": json.dumps(texts), "capture_output": True, "text": True, "check": True}
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": "7"}, **options)
    assert json.loads(done.stdout) == near_duplicate_groups(texts).tolist()
