"""Recognises hard-wrapped text, whose lines break sentences at a fixed width, and joins its lines."""

import itertools
from collections.abc import Iterable

_ENDS = tuple(".!?:;…。！？।\"'”’»)]")  # characters that end a line between sentences
_FEWEST_LINES = 20  # fewer do not tell whether a text is wrapped
_WIDTHS = range(30, 121)  # columns at which text is wrapped
_FULL = 0.75  # a line of this share of the width is continued by the next one


def wrap_width(texts: Iterable[str]) -> int | None:
    """Return the width at which the lines of the texts are broken inside sentences; None: they are not, or are few.

    In wrapped text nearly all lines but the last of a paragraph are almost full, and most end inside a sentence.
    """
    neighbours = itertools.chain.from_iterable(itertools.pairwise(text.split("\n")) for text in texts)
    lines = [line.rstrip() for line, following in neighbours if line.strip() and following.strip()]
    if len(lines) < _FEWEST_LINES:
        return None

    width = sorted(map(len, lines))[round(0.98 * (len(lines) - 1))]  # a few lines may be longer
    full_share = sum(len(line) > _FULL * width for line in lines) / len(lines)
    open_share = sum(not line.endswith(_ENDS) for line in lines) / len(lines)  # the sentence goes on
    letter_share = sum(line.lstrip()[0].isalpha() for line in lines) / len(lines)  # those of logs do not begin so
    mean_words = sum(len(line.split()) for line in lines) / len(lines)
    is_prose = open_share > 0.5 and letter_share > 0.5 and mean_words > 3
    return width if width in _WIDTHS and full_share > 0.8 and is_prose else None


def join_wrapped_lines(text: str, width: int) -> str:
    """Join each line to the next one, up to a blank line, where it is almost full or the next word had no room in it.

    The width 0 joins all lines of a paragraph. With the width 24:

        The ship left at noon        The ship left at noon and came back. Nobody knew.
        and came back. Nobody   →    The end.
        knew.
        The end.
    """
    joined = []
    for line, following in itertools.pairwise(f"{text}\n".split("\n")):
        line = line.rstrip()
        next_word = next(iter(following.split()), "")
        is_full = len(line) > _FULL * width or len(line) + 1 + len(next_word) > width
        joined.append(f"{line} " if line and next_word and is_full else f"{line}\n")
    return "".join(joined).removesuffix("\n")
