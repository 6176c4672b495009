"""Finds leftover markup in a text: HTML tags and entities, and wiki syntax.

The patterns require the name of a real tag or entity, or the form that wiki software writes, so that `a < b`, a type
such as `List<T>`, a matrix `[[1, 2], [3, 4]]`, a Jinja field `{{ name }}` and a line of equals signs do not match.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from html.entities import name2codepoint

from bert_hf.data.corpus.finding import Finding

_TAGS = (
    "a abbr b big blockquote body br caption center cite code col dd del div dl dt em font footer form h1 h2 h3 h4 h5 "
    "h6 head header hr html i iframe img input ins kbd li link math meta nav noscript nowiki ol option p pre ref "
    "references samp script section small span strike strong style sub sup table tbody td th thead title tr tt u ul "
    "video"
)  # HTML's, and those of MediaWiki: math, nowiki, ref, references
_NAME = f"(?:{'|'.join(_TAGS.split())})"
# A tag's name, then its attributes (name="value") or nothing.
_TAG = rf"/?{_NAME}(?:\s+[a-z-]+\s*=[^<>&]{{0,200}})?\s*/?"
_ENTITY = rf"&(?:amp;)*(?:{'|'.join(name2codepoint)}|#\d{{1,6}}|#x[0-9a-f]{{1,5}});"
# kind → (strings, one of which is in every match: searched first, because that is much faster; pattern)
_KINDS = {
    # `&lt;br&gt;` and `<br>`. This kind is the first, so that entities of escaped tags are not counted again.
    "HTML tags": (
        ("<", "&"),
        re.compile(rf"&(?:amp;)*lt;{_TAG}&(?:amp;)*gt;|<{_TAG}>|<!--.{{0,500}}?-->", re.IGNORECASE),
    ),
    "HTML entities": (("&",), re.compile(_ENTITY)),
    "wiki templates": (("{{",), re.compile(r"\{\{(?=[^\W\d]|#)[^{}]{1,500}\}\}")),
    "wiki links": (("[[",), re.compile(r"\[\[(?=[^\W\d]|:)[^\[\]\n]{1,200}\]\]")),
    "wiki headings": (("==",), re.compile(r"^(={2,6})[^=\n]{1,100}\1[ \t]*$", re.MULTILINE)),
    "wiki tables": (("{|", "|-"), re.compile(r"^(?:\{\|.*|\|-[ \t]*|\|\}[ \t]*)$", re.MULTILINE)),
    "placeholders": (("formula_", "codice_"), re.compile(r"\b(?:formula|codice)_\d+\b")),  # of WikiExtractor
}
_SHOWN = 60  # characters of an example
_SPACED = re.compile(r" ?([&;<>{}\[\]=|/#_]) ?")

# Above this share of the characters a clean-up is recommended: markup is short and becomes many tokens (`<br>` three),
# so 0.2 % of the characters are about 0.5 % of the tokens, the share above which unknown tokens are reported.
MUCH = 0.002
# Also for markup in every tenth document, if it is more than a tag in some 25,000 characters (a book may quote one).
MANY_DOCUMENTS, FEW = 0.1, 0.0002


@dataclass
class Markup:
    """How much markup there is in some documents."""

    documents: int = 0
    with_markup: int = 0
    characters: int = 0
    of_kind: Counter[str] = field(default_factory=Counter)  # characters
    examples: Counter[str] = field(default_factory=Counter)

    def finding(self) -> Finding:
        """The line of the report."""
        total = self.of_kind.total()
        if not total:
            return Finding("no HTML or wiki markup in the text")

        share = total / self.characters
        documents = self.with_markup / self.documents
        kinds = ", ".join(f"{kind} {count / self.characters:.3%}" for kind, count in self.of_kind.most_common())
        text = (
            f"HTML or wiki markup in {documents:.1%} of {self.documents:,} documents, {share:.3%} of the characters "
            f"({kinds}); e.g. {self.examples.most_common(1)[0][0]!r}"
        )
        much = share > MUCH or (documents > MANY_DOCUMENTS and share > FEW)
        return Finding(text, "remove it before preparing: unescape entities, strip tags" if much else "")


def find_markup(documents: Iterable[str], decoded: bool = False) -> Markup:
    """Counts the markup in documents.

    Args:
        decoded: the documents were decoded from tokens, so that every mark has spaces around it (`& lt ; br & gt ;`).
    """
    found = Markup()
    for document in documents:
        text = _SPACED.sub(r"\1", document) if decoded else document
        found.documents += 1
        found.characters += len(text)
        found.with_markup += _find_in(text, found)
    return found


def _find_in(text: str, found: Markup) -> bool:
    """Adds the markup of one document to the counts; returns whether there is any."""
    before = found.of_kind.total()
    for kind, (signs, pattern) in _KINDS.items():
        if not any(sign in text for sign in signs):
            continue
        for match in pattern.finditer(text):
            found.of_kind[kind] += len(match[0])
            found.examples[match[0][:_SHOWN]] += 1
        if kind == "HTML tags":
            text = pattern.sub(" ", text)  # the entities of an escaped tag are a part of it
    return found.of_kind.total() > before
