"""Measures what a BERT tokenizer loses of a text: encodes it, joins the pieces again, and compares.

The comparison is with the text itself and not with its normalized form. It ignores case and canonical equivalence
(é may be one character or two) where the tokenizer changes them, and the accents of Latin, Greek and Cyrillic letters
where the tokenizer strips them; marks of other scripts count as differences.
"""

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordPiece

from bert_hf.data.corpus.finding import Finding
from bert_hf.data.text.encoding import WORDS
from bert_hf.data.text.writing_systems import DENSE_ACCENTS, STRIPPED, script_of

_BATCH = 10_000  # words that are encoded at a time
_SHOWN = 16  # characters of an example
_MUCH = 0.005  # share of the characters from which a remedy is given, the same as for unknown tokens
_MARKS = 0.001  # the same for marks outside Latin, Greek and Cyrillic: each one that is lost changes the word
_REMOVED = ("Cc", "Cf", "Co")  # categories that BERT's normalizer removes: control, format (zero width), private use
_DOTLESS = 0.005  # share of ı and İ above which a text counts as Turkish, where I is the capital of ı


@dataclass
class RoundTrip:
    """How many of a text's characters do not come back, and why. Counts of characters, white space left out."""

    characters: int = 0
    strips: bool = False  # the tokenizer strips accents
    lowers: bool = False  # it lower-cases
    marks: Counter[str] = field(default_factory=Counter)  # removed, by the script of the letter
    removed: int = 0  # control, zero-width and private characters
    unknown: int = 0  # in words that are [UNK] because a character is not in the vocabulary
    too_long: int = 0  # in words that are [UNK] because they are too long
    longest: int = 100  # characters of the longest word that the tokenizer takes
    capitals: int = 0  # capital I
    dotless: int = 0  # ı and İ
    different: int = 0  # words that differ by more than case and stripped accents
    example: tuple[str, str] | None = None  # the most frequent such word, and what comes back

    @property
    def lost(self) -> int:
        """Characters that are changed or missing, except for case."""
        return self.marks.total() + self.removed + self.unknown + self.too_long + self.turkish

    @property
    def harmed(self) -> int:
        """Marks that are removed outside Latin, Greek and Cyrillic."""
        return sum(count for script, count in self.marks.items() if script not in STRIPPED)

    @property
    def turkish(self) -> int:
        """Capital I that should have become ı."""
        return self.capitals if self.lowers and self.dotless > _DOTLESS * self.characters else 0

    def findings(self) -> list[Finding]:
        """The report, a line for each cause."""
        findings = [self._equality()]
        if self.marks:
            findings.append(self._removed_marks())

        for count, text, remedy in (
            (self.unknown, "are in words that become [UNK]: a character of theirs is not in the vocabulary",
             "raise --limit_alphabet, or look for a wrong encoding"),
            (self.too_long, f"are in words of more than {self.longest} characters, which become [UNK]",
             "put spaces between the words (this tokenizer has no segmenter)"),
            (self.removed, "are zero-width, control or private-use characters, which every BERT tokenizer removes",
             "replace those that carry meaning, e.g. zero-width non-joiners by spaces"),
            (self.turkish, "are capital I, which becomes i and not the ı of Turkish",
             "lower-case the text by Turkish rules first, or pass --do_lower_case false"),
        ):  # fmt: skip
            if count:
                share = count / self.characters
                findings.append(Finding(f"{count:,} characters ({share:.3%}) {text}", remedy if share > _MUCH else ""))
        return findings

    def _equality(self) -> Finding:
        """Whether the text comes back, and how much of it is lost."""
        ignored = [name for name, on in (("case", self.lowers), ("accents", self.strips)) if on]
        up_to = f" up to {' and '.join(ignored)}" if ignored else ""
        lost = f"{self.lost:,} of {self.characters:,} characters ({self.lost / max(1, self.characters):.3%}) are lost"
        if not self.different:
            return Finding(f"round trip equal{up_to}; {lost}")

        word, back = _around_difference(*(self.example or ("", "")))
        count = max(self.harmed, self.different)
        text = f"round trip not equal{up_to} in {count:,} places ({count / self.characters:.3%}), "
        return Finding(f"{text}e.g. {word!r} comes back as {back!r}; {lost}")

    def _removed_marks(self) -> Finding:
        by_script = ", ".join(f"{script} {count:,}" for script, count in self.marks.most_common(4))
        share = self.marks.total() / self.characters
        text = f"{self.marks.total():,} accents or other marks ({share:.3%}) are removed ({by_script})"

        remedy = "train the vocabulary with --strip_accents false"
        if self.harmed > _MARKS * self.characters:
            return Finding(text, f"{remedy}: outside Latin, Greek and Cyrillic they make other words")
        return Finding(text, remedy if share > DENSE_ACCENTS else "")


def measure(texts: Iterable[str], tokenizer: Tokenizer) -> RoundTrip | None:
    """Encodes every distinct word of the texts and compares it with the string that its pieces form.

    White space and ASCII punctuation end a word in any context, so this compares the whole text.

    Args:
        tokenizer: of the `tokenizers` library, without truncation.

    Returns:
        None if the tokenizer is not BERT's: other pieces cannot be joined like this.
    """
    normalizer, model = tokenizer.normalizer, tokenizer.model
    if type(normalizer).__name__ != "BertNormalizer" or not isinstance(model, WordPiece):
        return None

    counts = _count_words(texts, [token.content for token in tokenizer.get_added_tokens_decoder().values()])
    trip = RoundTrip(
        strips=normalizer.normalize_str("é") == "e",
        lowers=normalizer.normalize_str("A") == "a",
        longest=model.max_input_chars_per_word,
    )
    most = 0
    for word, encoding in _encoded(list(counts), tokenizer):
        times = counts[word]
        trip.characters += times * len(word)
        trip.capitals += times * word.count("I")
        trip.dotless += times * (word.count("ı") + word.count("İ"))
        back = _joined(word, encoding, tokenizer, times, trip)

        # Most words come back as they are; the comparison of the others takes long.
        if back == word or (word.isascii() and word.isprintable() and trip.lowers and back == word.lower()):
            continue

        _count_removed(word, times, trip)
        if _folded(word, trip) != _folded(back, trip):
            trip.different += times
            if times > most:
                most = times
                trip.example = (word, back)
    return trip


def _count_words(texts: Iterable[str], special: list[str]) -> Counter[str]:
    """How often each word (between white space and ASCII punctuation) and each punctuation mark occurs.

    A string that contains a special token is not split: the tokenizer finds special tokens before it splits.
    """
    between_spaces = Counter()
    for text in texts:
        between_spaces.update(text.split())

    counts = Counter()
    for word, times in between_spaces.items():
        whole = word.isalpha() or any(token in word for token in special)
        for part in [word] if whole else WORDS.findall(word):
            counts[part] += times
    return counts


def _around_difference(word: str, back: str) -> tuple[str, str]:
    """Both words from four characters before their first difference (without spaces a word may be a sentence)."""
    begin = max(0, len(os.path.commonprefix([word.lower(), back.lower()])) - 4)
    return word[begin : begin + _SHOWN], back[begin : begin + _SHOWN]


def _encoded(words: list[str], tokenizer: Tokenizer) -> Iterator[tuple[str, Encoding]]:
    for begin in range(0, len(words), _BATCH):
        batch = words[begin : begin + _BATCH]
        yield from zip(batch, tokenizer.encode_batch(batch, add_special_tokens=False), strict=True)


def _joined(word: str, encoding: Encoding, tokenizer: Tokenizer, times: int, trip: RoundTrip) -> str:
    """The pieces of a word as one string, with the word's own characters in place of [UNK]. Counts those."""
    unknown, prefix = tokenizer.model.unk_token, tokenizer.model.continuing_subword_prefix
    if unknown not in encoding.tokens:
        return "".join([piece.removeprefix(prefix) for piece in encoding.tokens])

    parts = []
    for piece, (begin, end) in zip(encoding.tokens, encoding.offsets, strict=True):
        own = word[begin:end]
        parts.append(own if piece == unknown else piece.removeprefix(prefix))
        if piece != unknown or own == unknown:  # the text may contain the literal string
            continue

        if len(tokenizer.normalizer.normalize_str(own)) > trip.longest:
            trip.too_long += times * len(own)
        else:
            trip.unknown += times * len(own)
    return "".join(parts)


def _count_removed(word: str, times: int, trip: RoundTrip) -> None:
    """Counts the characters of a word that the normalizer removes."""
    for character, category, script in _characters(word):
        if category in _REMOVED or character == "\ufffd":
            trip.removed += times
        elif category == "Mn" and trip.strips:
            trip.marks[script or "no letter"] += times


def _characters(text: str) -> Iterator[tuple[str, str, str | None]]:
    """The characters of a text, decomposed, each with its category and its script.

    A mark that several scripts share has its letter's script. The script of other characters, such as the = in ≠, is
    "symbols".
    """
    script = None
    for character in unicodedata.normalize("NFD", text):
        category = unicodedata.category(character)
        if category[0] == "M":
            script = script_of(character) or script
        else:
            script = script_of(character) if category[0] == "L" else "symbols"
        yield character, category, script


def _folded(text: str, trip: RoundTrip) -> str:
    """The text in the form in which it is compared."""
    kept = []
    for character, category, script in _characters(text):
        stripped = trip.strips and category == "Mn" and (script in STRIPPED or script is None)
        if category not in _REMOVED and character != "\ufffd" and not stripped:
            kept.append(character)
    folded = "".join(kept)
    return unicodedata.normalize("NFD", folded.casefold()) if trip.lowers else folded
