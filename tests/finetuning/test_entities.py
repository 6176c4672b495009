"""Entities and their figures, held to literal cases of conlleval's rules, and to its two rules stated apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_hf.finetuning.metrics.entities import (
    Counts,
    Entity,
    count_entities,
    entities,
    is_iob1,
    tagging_metrics,
    tagging_table,
    to_iob2,
    total_counts,
)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", []),
        ("O O", []),
        ("B-X", [("X", 0, 0)]),  # one word, the whole sentence
        ("O B-X", [("X", 1, 1)]),  # at the end of the sentence
        ("B-X I-X I-X O", [("X", 0, 2)]),
        ("O I-X I-X", [("X", 1, 2)]),  # I- after O begins
        ("I-X", [("X", 0, 0)]),  # I- at the start of the sentence begins
        ("B-X I-Y", [("X", 0, 0), ("Y", 1, 1)]),  # another type begins
        ("I-X I-Y I-Y", [("X", 0, 0), ("Y", 1, 2)]),
        ("I-X B-X", [("X", 0, 0), ("X", 1, 1)]),  # B- after I- begins
        ("B-X B-X I-X", [("X", 0, 0), ("X", 1, 2)]),
        ("B-X O I-X", [("X", 0, 0), ("X", 2, 2)]),
        ("B-X I-X E-X O S-Y", [("X", 0, 2), ("Y", 4, 4)]),
        ("B-X E-X I-X", [("X", 0, 1), ("X", 2, 2)]),  # after E- the entity has ended
        ("S-X I-X", [("X", 0, 0), ("X", 1, 1)]),
        ("E-X E-X", [("X", 0, 0), ("X", 1, 1)]),
        ("B-creative-work I-creative-work", [("creative-work", 0, 1)]),
        ("B I O", [("_", 0, 1)]),  # tags without types
    ],
)
def test_entities_by_the_rules_of_conlleval(tags, expected):
    assert entities(tags.split()) == [Entity(*entity) for entity in expected]


TAGS = st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y", "E-X", "S-X", "S-Y"]), max_size=12)


def conlleval_entities(tags: list[str]) -> set[tuple]:
    """The rules as conlleval states them: one for the end of a chunk, one for its start, over neighbouring tags."""

    def ends(before, kind_before, prefix, kind):
        if before in "ES":
            return True
        if before in "BI" and prefix in "BSO":
            return True
        return before != "O" and kind_before != kind

    def starts(before, kind_before, prefix, kind):
        if prefix in "BS":
            return True
        if before in "ESO" and prefix in "EI":
            return True
        return prefix != "O" and kind_before != kind

    found, begin, before, kind_before = set(), 0, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        if ends(before, kind_before, prefix, kind) and before != "O":
            found.add((kind_before, begin, place - 1))
        if starts(before, kind_before, prefix, kind):
            begin = place
        before, kind_before = prefix, kind
    return found


@given(TAGS)
def test_entities_equal_those_of_the_two_rules(tags):
    assert set(entities(tags)) == conlleval_entities(tags)


GOLD = ["B-X I-X O B-Y O".split(), "B-X O B-Z".split()]
PREDICTED = ["B-X I-X O B-X O".split(), "B-X I-X O".split()]


def test_figures_equal_a_count_by_hand():
    # X: 2 in the data, 3 predicted (two in the first sentence, one too long), 1 correct. Y, Z: 1, 0, 0.
    assert count_entities(GOLD, PREDICTED) == {"X": Counts(2, 3, 1), "Y": Counts(1, 0, 0), "Z": Counts(1, 0, 0)}
    expected = {
        "precision": 1 / 3,
        "recall": 1 / 4,
        "f1": 2 / 7,
        "accuracy": 5 / 8,
        "f1_X": 2 / 5,
        "f1_Y": 0,
        "f1_Z": 0,
    }
    assert tagging_metrics(GOLD, PREDICTED) == pytest.approx(expected, abs=1e-12)

    table = tagging_table(GOLD, PREDICTED).splitlines()
    assert table[1].split() == ["X", "2", "3", "0.3333", "0.5000", "0.4000"]
    assert table[-1].split() == ["all", "(micro)", "4", "3", "0.3333", "0.2500", "0.2857"]


def test_figures_without_entities_are_zero():
    assert tagging_metrics([["O", "O"]], [["O", "O"]]) == {"precision": 0, "recall": 0, "f1": 0, "accuracy": 1}
    assert total_counts({}) == Counts(0, 0, 0)


@pytest.mark.parametrize(
    ("tags", "iob1", "iob2"),
    [
        ("I-X I-X O I-Y", True, "B-X I-X O B-Y"),
        ("I-X B-X I-X", True, "B-X B-X I-X"),  # IOB1's only use of B-
        ("I-X I-Y", True, "B-X B-Y"),
        ("B-X I-X", False, "B-X I-X"),
        ("O O", False, "O O"),
        ("B-X O I-X", False, "B-X O B-X"),  # B- after O: no IOB1, though an I- begins an entity
        ("I-X B-Y", False, "B-X B-Y"),
    ],
)
def test_iob1_is_recognised_and_converted(tags, iob1, iob2):
    assert is_iob1([tags.split()]) is iob1
    assert to_iob2(tags.split()) == iob2.split()


@given(st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"]), max_size=12))
def test_iob2_has_the_same_entities(tags):
    converted = to_iob2(tags)
    assert entities(converted) == entities(tags)
    assert to_iob2(converted) == converted
    assert not is_iob1([converted])
