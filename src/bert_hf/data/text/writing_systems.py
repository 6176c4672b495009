"""Decides from the scripts of a text whether an uncased tokenizer strips its accents.

BERT's uncased normalizer removes every nonspacing mark. In Latin, Greek and Cyrillic text these are accents; in other
scripts they are also vowels and voicing (docs/languages.md). The tokenizer file has one switch for all scripts.
"""

import functools
import unicodedata
from collections import Counter

STRIPPED = frozenset({"Latin", "Greek", "Cyrillic"})  # scripts whose accents the uncased default strips
# Above this share of letters in other scripts accents are kept. English Wikipedia has 0.02 % (foreign names).
OTHER_SCRIPTS = 0.01
# Above this share of letters with an accent, accents are kept: they distinguish common words, as the tones of
# Vietnamese do. In tests/paragraphs.py: Vietnamese 27 %, Greek 15 %, German 8 %, Turkish 7 %, Russian 6 %.
DENSE_ACCENTS = 0.2
_SHARED_NAMES = frozenset({"Modifier", "Combining"})  # first words of names of characters that scripts share


@functools.lru_cache(maxsize=1 << 17)
def script_of(character: str) -> str | None:
    """Return the script of a letter or mark: "Latin", "Devanagari", "Cjk", …; None if it is shared or has no name.

    Python's Unicode tables have no script property, so it is taken from the first word of the character's name, after
    compatibility forms (full width, mathematical, ligatures) are resolved.
    """
    base = unicodedata.normalize("NFKD", character)[0]
    name = unicodedata.name(base, "").replace("-", " ").split()
    script = name[0].capitalize() if name else None
    return None if script in _SHARED_NAMES else script


def should_strip_accents(characters: Counter[str]) -> tuple[bool, str]:
    """Return whether an uncased tokenizer for a text of these characters should strip accents, and why (a line)."""
    letters = Counter()  # by script
    for character, count in characters.items():
        if unicodedata.category(character)[0] == "L" and (script := script_of(character)):
            letters[script] += count
    others = Counter({script: count for script, count in letters.items() if script not in STRIPPED})
    other_share = others.total() / max(1, letters.total())
    if other_share > OTHER_SCRIPTS:
        most = f"most: {others.most_common(1)[0][0]}"
        return False, f"accents are kept: {other_share:.1%} of the letters are not Latin, Greek or Cyrillic ({most})"

    accented = sum(count for character, count in characters.items() if _has_accent(character))
    accented_share = accented / max(1, letters.total())
    if accented_share > DENSE_ACCENTS:
        return False, f"accents are kept: {accented_share:.1%} of the letters have one, so they distinguish words"

    return True, (
        f"accents are stripped, as in the published uncased models: {accented_share:.2%} of the letters have one, and "
        f"{1 - other_share:.2%} are Latin, Greek or Cyrillic (--strip_accents false keeps accents)"
    )


def _has_accent(character: str) -> bool:
    """Return True for a Latin, Greek or Cyrillic letter with an accent, and for a mark that several scripts share."""
    marks = [mark for mark in unicodedata.normalize("NFD", character) if unicodedata.category(mark) == "Mn"]
    return bool(marks) and (script_of(character) or "Latin") in STRIPPED
