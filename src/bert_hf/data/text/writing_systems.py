"""Decides from the scripts of a text whether an uncased tokenizer strips its accents.

BERT's uncased normalizer removes every nonspacing mark. In Latin, Greek and Cyrillic text these are accents; in other
scripts they are also vowels and voicing (docs/languages.md). The tokenizer file has one switch for all scripts.
"""

import functools
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

STRIPPED = frozenset({"Latin", "Greek", "Cyrillic"})  # scripts whose accents the uncased default strips
# Above this share of letters in other scripts accents are kept. English Wikipedia has 0.02 % (foreign names).
OTHER_SCRIPTS = 0.01
# Above this share of letters with an accent, accents are kept: they distinguish common words, as the tones of
# Vietnamese do. In tests/paragraphs.py: Vietnamese 27 %, Greek 15 %, German 8 %, Turkish 7 %, Russian 6 %.
DENSE_ACCENTS = 0.2
_COUNTED = 1 << 20  # characters that are counted at a time
_NO_SCRIPT = frozenset({"Modifier", "Combining"})  # first words of names that are shared by scripts


def count_characters(texts: Iterable[str]) -> np.ndarray:
    """How often each code point occurs: (sys.maxunicode + 1,), int64."""
    points = np.zeros(sys.maxunicode + 1, np.int64)
    for some in _joined(texts):  # a count takes as long as a table up to the highest code point
        counts = np.bincount(np.frombuffer(some.encode("utf-32-le"), np.uint32))
        points[: len(counts)] += counts
    return points


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """The texts, one after the other, in strings of about `_COUNTED` characters."""
    batch, size = [], 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _COUNTED:
            yield "".join(batch)
            batch, size = [], 0
    yield "".join(batch)


@functools.lru_cache(maxsize=1 << 17)
def script_of(character: str) -> str | None:
    """The script of a letter or mark: "Latin", "Devanagari", "Cjk", …; None where several scripts share it.

    Python's Unicode tables have no script property, so it is taken from the first word of the character's name, after
    compatibility forms (full width, mathematical, ligatures) are resolved.
    """
    first = unicodedata.normalize("NFKD", character)[0]
    name = unicodedata.name(first, "").replace("-", " ").split()
    script = name[0].capitalize() if name else None
    return None if script in _NO_SCRIPT else script


def letters_by_script(points: np.ndarray) -> Counter[str]:
    """Letters of each script, from the counts of code points."""
    letters = Counter()
    for point in np.flatnonzero(points).tolist():
        character = chr(point)
        if unicodedata.category(character)[0] == "L" and (script := script_of(character)):
            letters[script] += int(points[point])
    return letters


def choose_accents(points: np.ndarray) -> tuple[bool, str]:
    """(whether an uncased tokenizer for this text should strip accents, the reason in one line).

    Args:
        points: `count_characters` of the text that the vocabulary is trained on.
    """
    letters = letters_by_script(points)
    others = Counter({script: count for script, count in letters.items() if script not in STRIPPED})
    share = others.total() / max(1, letters.total())
    if share > OTHER_SCRIPTS:
        most = others.most_common(1)[0][0]
        text = f"accents are kept: {share:.1%} of the letters are not Latin, Greek or Cyrillic (most: {most})"
        return False, text

    accented = _accented(points) / max(1, letters.total())
    if accented > DENSE_ACCENTS:
        return False, f"accents are kept: {accented:.1%} of the letters have one, so they distinguish words"

    reason = (
        f"accents are stripped, as in the published uncased models: {accented:.2%} of the letters have one, and "
        f"{1 - share:.2%} are Latin, Greek or Cyrillic (--strip_accents false keeps accents)"
    )
    return True, reason


def _accented(points: np.ndarray) -> int:
    """Latin, Greek and Cyrillic letters with an accent: precomposed ones, and combining marks that several share."""
    count = 0
    for point in np.flatnonzero(points[0x80:]).tolist():
        character = chr(point + 0x80)
        marks = [mark for mark in unicodedata.normalize("NFD", character) if unicodedata.category(mark) == "Mn"]
        if marks and (script_of(character) or "Latin") in STRIPPED:
            count += int(points[point + 0x80])
    return count
