"""Finds the entities of tagged sentences and computes precision, recall and F1, as conlleval does.

A tag is `O`, or a prefix and a type: `B-location` begins an entity, `I-location` continues one. The rules of conlleval
(the script of the CoNLL-2000 to 2003 tasks), which are also the default of seqeval: an `I-` that continues
nothing begins an entity, and so does a tag of another type. `E-` or `L-` (last word), `S-`, `U-` or `W-` (single word)
and `M-` (as `I-`) are read too; a type without a prefix is read as with `I-`, as the stock pipeline does.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from bert_hf.console import format_table

OUTSIDE = "O"
_PREFIXES = {"M": "I", "L": "E", "U": "S", "W": "S"}  # of BILOU, BMES and BMEWO, and the equal ones of BIOES
_TAG = re.compile("([BIES])|([BIESMLUW])[-_](.*)")
_NO_TYPE = "_"  # of the tags `B` and `I` alone


class Entity(NamedTuple):
    """Words `first` to `last` (both included) of a sentence."""

    kind: str  # its type, such as `location`
    first: int
    last: int


@functools.cache  # a data set has few different tags
def split_tag(tag: str) -> tuple[str, str]:
    """Return (prefix, type) of a tag, the prefix one of O, B, I, E and S, as in BIOES.

    `B-creative-work` → ("B", "creative-work"), `U-X` → ("S", "X"), `city` → ("I", "city"), `O` → ("O", "").
    """
    if tag == OUTSIDE:
        return OUTSIDE, ""
    match = _TAG.fullmatch(tag)
    if match is None:
        return "I", tag
    prefix = match[1] or match[2]
    return _PREFIXES.get(prefix, prefix), match[3] or _NO_TYPE


def is_tag(tag: str) -> bool:
    """Return whether a tag is `O`, or has one of the prefixes of IOB, BIOES, BILOU or BMES."""
    return tag == OUTSIDE or _TAG.fullmatch(tag) is not None


def have_entities(labels: Iterable[str]) -> bool:
    """Return whether labels are of entities: one is `O`, or all have prefixes. Parts of speech have neither."""
    labels = set(labels)
    return OUTSIDE in labels or all(map(is_tag, labels))


def begins_entity(previous: str, tag: str) -> bool:
    """Return whether an entity begins at a tag that follows another; at the start of a sentence `previous` is `O`.

    previous   tag                  begins
    any        O                    no
    O          B-X I-X E-X S-X      yes
    B-X, I-X   I-X, E-X             no
    B-X, I-X   I-Y                  yes: another type
    any        B-X, S-X             yes
    E-X, S-X   I-X                  yes: the last entity has ended
    """
    before, kind_before = split_tag(previous)
    prefix, kind = split_tag(tag)
    if prefix == OUTSIDE:
        return False
    return prefix in ("B", "S") or before in (OUTSIDE, "E", "S") or kind != kind_before


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of one sentence, in the order of their words.

    entities(["I-X", "B-X", "I-X", "O", "I-Y"]) == [Entity("X", 0, 0), Entity("X", 1, 2), Entity("Y", 4, 4)]
    """
    result: list[Entity] = []
    for word, (previous, tag) in enumerate(_with_previous(tags)):
        if begins_entity(previous, tag):
            result.append(Entity(split_tag(tag)[1], word, word))
        elif tag != OUTSIDE:
            result[-1] = result[-1]._replace(last=word)
    return result


def is_iob1(sentences: Iterable[Sequence[str]]) -> bool:
    """Return whether the tags follow IOB1: entities begin with `I-`, or with `B-` directly after one of their type.

    At least one begins with `I-`: otherwise the tags are IOB2 as well, or there are no entities.
    """
    has_inside_start = False
    for tags in sentences:
        for previous, tag in _with_previous(tags):
            prefix, kind = split_tag(tag)
            if not is_tag(tag) or prefix in ("E", "S") or (prefix == "B" and split_tag(previous)[1] != kind):
                return False
            has_inside_start = has_inside_start or (prefix == "I" and begins_entity(previous, tag))
    return has_inside_start


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Turn IOB1 tags into IOB2, where each entity begins with `B-`.

    to_iob2(["I-X", "I-X", "B-X", "O", "I-Y"]) == ["B-X", "I-X", "B-X", "O", "B-Y"]
    """
    return ["B" + tag[1:] if begins_entity(previous, tag) else tag for previous, tag in _with_previous(tags)]


def _with_previous(tags: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (the tag before it, tag) of each word of a sentence; `O` before the first."""
    return zip([OUTSIDE, *tags], tags, strict=False)


class Counts(NamedTuple):
    """Entities of one type, or of all: in the data, predicted, and predicted with the right words and type."""

    gold: int
    predicted: int
    correct: int

    def rates(self) -> dict[str, float]:
        """Return `precision`, `recall` and `f1`; 0 where no entity is predicted, or none is in the data."""
        precision = self.correct / max(1, self.predicted)
        recall = self.correct / max(1, self.gold)
        f1 = 2 * self.correct / max(1, self.gold + self.predicted)
        return {"precision": precision, "recall": recall, "f1": f1}


def count_entities(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, Counts]:
    """Return the counts by type, sorted; an entity is correct if its first word, last word and type are."""
    in_data, guessed, correct = Counter(), Counter(), Counter()  # numbers of entities by type
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_entities, predicted_entities = set(entities(gold_tags)), set(entities(predicted_tags))
        in_data.update(entity.kind for entity in gold_entities)
        guessed.update(entity.kind for entity in predicted_entities)
        correct.update(entity.kind for entity in gold_entities & predicted_entities)
    return {kind: Counts(in_data[kind], guessed[kind], correct[kind]) for kind in sorted({*in_data, *guessed})}


def total_counts(counts: dict[str, Counts]) -> Counts:
    """Return the sum over all types, from which micro-averaged metrics follow."""
    columns = zip((0, 0, 0), *counts.values(), strict=True)  # zeros first, as there may be no type
    return Counts(*map(sum, columns))


def tagging_metrics(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], of_entities: bool = True
) -> dict[str, float]:
    """Return `precision`, `recall`, `f1` of all entities (micro), `accuracy` of the tags, and `f1_TYPE`.

    Parts of speech, which are not `of_entities`, have only the accuracy.
    """
    is_right = [tag == guess for tag, guess in zip(chain(*gold), chain(*predicted), strict=True)]
    accuracy = {"accuracy": sum(is_right) / max(1, len(is_right))}
    if not of_entities:
        return accuracy
    counts = count_entities(gold, predicted)
    f1_of_type = {f"f1_{kind}": count.rates()["f1"] for kind, count in counts.items()}
    return {**total_counts(counts).rates(), **accuracy, **f1_of_type}


def tagging_table(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> str:
    """Return a table of counts, precision, recall and F1, with a row per type of entities and one for all."""
    counts = count_entities(gold, predicted)
    rows = [["type", "entities", "predicted", "precision", "recall", "F1"]]
    for kind, count in [*counts.items(), ("all (micro)", total_counts(counts))]:
        rates = (f"{rate:.4f}" for rate in count.rates().values())
        rows.append([kind, f"{count.gold:,}", f"{count.predicted:,}", *rates])
    return "\n".join(format_table(rows))
