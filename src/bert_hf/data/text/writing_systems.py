"""Finds the scripts (writing systems) of a text, and decides whether an uncased tokenizer strips its accents.

BERT's uncased normalizer decomposes characters and removes every nonspacing mark (Unicode category Mn). In Latin,
Greek and Cyrillic text that removes accents, as in the published English model. In other scripts the same category
contains vowels (Devanagari, Thai, Arabic, Hebrew), vowel killers and voicing (が becomes か), and without them a word
becomes another. The tokenizer file has one switch for all scripts, `strip_accents`; `choose_accents` sets it from the
text.
"""

import functools
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

STRIPPED = frozenset({"Latin", "Greek", "Cyrillic"})  # scripts whose accents the uncased default strips
# Scripts without nonspacing marks: nothing is lost there, whether accents are stripped or kept.
_WITHOUT_MARKS = frozenset({"Cjk", "Ideographic", "Hangul", "Bopomofo", "Yi"})
# Above this share of letters in other scripts accents are kept. English Wikipedia has 0.02 % (foreign names).
OTHER_SCRIPTS = 0.01
# Above this share of letters with an accent, accents are kept: they distinguish common words, as the tones of
# Vietnamese do. In tests/paragraphs.py: Vietnamese 27 %, Greek 15 %, German 8 %, Turkish 7 %, Russian 6 %.
DENSE_ACCENTS = 0.2
# ISO 639 codes of languages that are not written in Latin, Greek or Cyrillic letters, and Vietnamese.
KEPT_LANGUAGES = frozenset(
    "am ar arz ary as awa bho bn bo brx ckb doi dv dz fa gu he hi hy iw ja ka km kn ko kok ks lo mai ml mni mr my ne "
    "new nqo or pa pnb ps sa sat sd shn si syr ta te th ti ug ur vi wuu yi yue zh zgh".split()
)
# Three-letter codes of languages that `sentencex` and `KEPT_LANGUAGES` know by two letters.
_TWO_LETTERS = {
    pair[:3]: pair[4:]
    for pair in "afr-af amh-am ara-ar arb-ar asm-as aze-az bel-be ben-bn bod-bo bos-bs bul-bg cat-ca ces-cs cze-cs "
    "cmn-zh cym-cy dan-da deu-de ger-de div-dv dzo-dz ell-el gre-el eng-en est-et ekk-et eus-eu fas-fa pes-fa prs-fa "
    "fin-fi fra-fr fre-fr gle-ga glg-gl guj-gu heb-he hin-hi hrv-hr hun-hu hye-hy ind-id isl-is ita-it jpn-ja kan-kn "
    "kas-ks kat-ka kaz-kk khm-km kor-ko kur-ku lao-lo lav-lv lvs-lv lit-lt mal-ml mar-mr mkd-mk mon-mn khk-mn msa-ms "
    "zsm-ms mya-my nep-ne npi-ne nld-nl dut-nl nno-nn nob-nb nor-no ori-or ory-or pan-pa pol-pl por-pt pus-ps ron-ro "
    "rum-ro rus-ru san-sa sin-si slk-sk slv-sl snd-sd som-so spa-es sqi-sq srp-sr swa-sw swh-sw swe-sv tam-ta tel-te "
    "tgk-tg tgl-tl tha-th tir-ti tur-tr uig-ug ukr-uk urd-ur uzb-uz uzn-uz vie-vi yid-yi zho-zh chi-zh".split()
}
_COUNTED = 1 << 20  # characters that are counted at a time
_NO_SCRIPT = frozenset({"Modifier", "Combining"})  # first words of names that are shared by scripts


def two_letter_code(language: str) -> str:
    """The code with its first part in two letters, if the language has such a code: `de-AT` for `deu-AT`."""
    code, dash, region = language.partition("-")
    return f"{_TWO_LETTERS.get(code, code)}{dash}{region}"


class Accents(NamedTuple):
    """Whether accents are stripped, and why."""

    strip: bool
    reason: str  # one line


def count_characters(texts: Iterable[str]) -> np.ndarray:
    """How often each code point occurs: (sys.maxunicode + 1,), int64."""
    points = np.zeros(sys.maxunicode + 1, np.int64)
    for some in _joined(texts):  # a count takes as long as a table up to the highest code point
        own = np.bincount(np.frombuffer(some.encode("utf-32-le"), np.uint32))
        points[: len(own)] += own
    return points


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """The texts, one after the other, in strings of about `_COUNTED` characters."""
    held, size = [], 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size >= _COUNTED:
            yield "".join(held)
            held, size = [], 0
    yield "".join(held)


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


def choose_accents(points: np.ndarray, language: str | None = None) -> Accents:
    """Whether an uncased tokenizer for this text should strip accents.

    For a language whose script needs its marks they are kept. For any other language the text decides, so that a wrong
    `language` does not damage it. The same counts and language give the same answer.

    Args:
        points: `count_characters` of the text that the vocabulary is trained on.
        language: an ISO 639 code, with or without a region.
    """
    if language and two_letter_code(language.lower().replace("_", "-")).split("-")[0] in KEPT_LANGUAGES:
        return Accents(False, f"accents are kept, for --language {language}")

    letters = letters_by_script(points)
    share, most = _outside(letters, STRIPPED)
    if share > OTHER_SCRIPTS:
        text = f"accents are kept: {share:.1%} of the letters are not Latin, Greek or Cyrillic (most: {most})"
        return Accents(False, text)

    accented = _accented(points) / max(1, letters.total())
    if accented > DENSE_ACCENTS:
        return Accents(False, f"accents are kept: {accented:.1%} of the letters have one, so they distinguish words")

    reason = (
        f"accents are stripped, as in the published uncased models: {accented:.2%} of the letters have one, and "
        f"{1 - share:.2%} are Latin, Greek or Cyrillic (--strip_accents false keeps accents)"
    )
    return Accents(True, reason)


def _accented(points: np.ndarray) -> int:
    """Latin, Greek and Cyrillic letters with an accent: precomposed ones, and combining marks that several share."""
    count = 0
    for point in np.flatnonzero(points[0x80:]).tolist():
        character = chr(point + 0x80)
        marks = [mark for mark in unicodedata.normalize("NFD", character) if unicodedata.category(mark) == "Mn"]
        if marks and (script_of(character) or "Latin") in STRIPPED:
            count += int(points[point + 0x80])
    return count


def scripts_with_marks(texts: Iterable[str]) -> tuple[float, str]:
    """(share of the letters in scripts that stripping damages, the most frequent of these scripts)."""
    return _outside(letters_by_script(count_characters(texts)), STRIPPED | _WITHOUT_MARKS)


def _outside(letters: Counter[str], scripts: frozenset[str]) -> tuple[float, str]:
    """(share of the letters that are in other scripts, the most frequent of those)."""
    others = Counter({script: count for script, count in letters.items() if script not in scripts})
    most = others.most_common(1)[0][0] if others else ""
    return others.total() / max(1, letters.total()), most
