"""Reports on a corpus before days are spent on training: what is in it, what is wrong with it, and what to do.

Each line is a measurement; one that begins with `!` is a problem, and names the remedy.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from html.entities import name2codepoint
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from bert_hf.config.arguments import ExampleArguments, TextArguments, TokenizerArguments
from bert_hf.console import Finding
from bert_hf.data.corpus.requested_corpus import (
    open_prepared,
    prepared_folder,
    sample_inputs,
    sentence_language,
    text_sources,
)
from bert_hf.data.corpus.store import Window
from bert_hf.data.corpus.text_corpus import TextCorpus
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.pair_shortcuts import MAX_PAIRS, shortcuts
from bert_hf.data.text.readers import documents
from bert_hf.data.text.tokenization import backend, load_tokenizer, train_tokenizer
from bert_hf.data.text.writing_systems import round_trip

CHECKED_BYTES = 20_000_000  # of text that `--check` reads, sampled from all of it
_DECODED = 200  # documents of a prepared corpus that are decoded to look for markup
_DECODED_TOKENS = 300  # of each
_LONG = 100_000  # tokens of a mean document that is probably a whole file
_BAR = 40  # characters of the longest bar of a histogram


def corpus_findings(
    corpus: Any, tokenizer: PreTrainedTokenizerBase, texts: Iterable[str] | None = None
) -> list[Finding]:
    """Examines the first window of a corpus: all of it, up to `WINDOW_TOKENS`.

    Args:
        corpus: a `Corpus` or a `TextCorpus`.
        texts: the raw text. Without it markup is looked for in decoded tokens, and the tokenizer is not examined.
    """
    window = corpus.window(corpus.windows()[0])
    counts = window.unigram_counts(len(tokenizer))
    sentences, whole = window_hashes(window)

    findings = [
        _size(corpus, window, counts),
        _unknown(counts, tokenizer),
        _special_tokens(counts, tokenizer),
        _repeated_documents(whole),
        _repeated_sentences(window, sentences, tokenizer),
        _long_documents(window),
        _one_sentence(window),
    ]
    if texts is None:
        return [*findings, find_markup(_decoded(window, tokenizer))]
    return [*findings, find_markup(texts), round_trip(texts, backend(tokenizer))]


def report_lines(
    tokenizer_args: TokenizerArguments,
    corpus_args: TextArguments,
    example_args: ExampleArguments,
    picture: str | None = None,
) -> Iterator[str]:
    """The report of `prepare.py --check`, line by line: on a prepared corpus, or on a bounded sample of raw text.

    Args:
        picture: folder in which the lengths are drawn (`lengths.png`).
    """
    corpus: Any
    texts = None
    if folder := prepared_folder(corpus_args.train_file):
        corpus = open_prepared(corpus_args, folder)
        tokenizer = load_tokenizer(corpus.tokenizer())
    else:
        pieces = sample_inputs(text_sources(corpus_args, corpus_args.train_file), CHECKED_BYTES)
        texts = list(documents(pieces))
        yield f"  {sum(len(text.encode()) for text in texts) / 1e6:,.1f} MB of text, spread over what was read"

        lines = []
        if tokenizer_args.tokenizer_name:
            tokenizer = load_tokenizer(tokenizer_args.tokenizer_name, **tokenizer_args.normalization())
        else:
            vocabulary_text = [piece.text for piece in pieces]
            tokenizer = train_tokenizer(vocabulary_text, **tokenizer_args.training(), log=lines.append)
        yield from (f"  {line}" for line in lines)
        corpus = TextCorpus(texts, tokenizer, sentence_language(corpus_args))
    yield from map(str, corpus_findings(corpus, tokenizer, texts))

    # Whether a pair gives its label away, and the lengths
    examples = PreTrainingExamples(
        corpus, max_seq_length=example_args.max_seq_length, fixed=True, **example_args.pairs()
    )
    collator = DataCollatorForPreTraining(tokenizer, **example_args.masking())
    window = corpus.window(corpus.windows()[0])
    if example_args.nsp:
        yield from map(str, shortcuts(examples, collator))

    yield from ("  tokens in a document:", *histogram(window.sizes))
    if picture is not None:
        number = min(MAX_PAIRS, len(examples))
        lengths = [len(collator.example(examples[index])["input_ids"]) for index in range(number)]
        yield f"  picture: {draw_lengths(window, np.array(lengths), Path(picture))}"


# ---- documents and tokens


def _size(corpus: Any, window: Window, counts: np.ndarray) -> Finding:
    part = "" if len(window) == len(corpus) else f" (of {len(corpus):,} and {corpus.tokens:,} in all)"
    used = (counts > 0).mean()
    text = (
        f"{len(window):,} documents, {window.sentences.sum():,} sentences, {counts.sum():,} tokens{part}; "
        f"{used:.0%} of the {len(counts):,} vocabulary entries occur"
    )
    return Finding(text, "lower --vocab_size, or train the vocabulary on this text" if used < 0.5 else "")


def _unknown(counts: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> Finding:
    share = float(counts[tokenizer.unk_token_id]) / max(1, counts.sum())
    remedy = "raise --limit_alphabet, train the vocabulary on this text, or look for a wrong encoding"
    return Finding(f"{share:.3%} of the tokens are unknown", remedy if share > 0.005 else "")


def _special_tokens(counts: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> Finding:
    ids = [index for index in tokenizer.all_special_ids if index != tokenizer.unk_token_id]
    occurring = [f"{tokenizer.convert_ids_to_tokens(index)} × {counts[index]:,}" for index in ids if counts[index]]
    if not occurring:
        return Finding("no special token occurs in the text")
    remedy = "rewrite them there, e.g. [ MASK ]: the model treats them as special"
    return Finding(f"special tokens occur in the text ({', '.join(occurring)})", remedy)


def _long_documents(window: Window) -> Finding:
    longest = window.sizes.max(initial=0) / max(1, window.sizes.sum())
    mean = window.sizes.mean() if len(window) else 0
    text = f"a document has {mean:,.0f} tokens on average, and the longest holds {longest:.1%} of all"
    remedy = "separate documents by blank lines: the B of NOT_NEXT pairs comes from another document"
    return Finding(text, remedy if longest > 0.5 or mean > _LONG else "")


def _one_sentence(window: Window) -> Finding:
    share = (window.sentences == 1).mean() if len(window) else 0.0
    remedy = "they serve as the B of NOT_NEXT pairs only; join them to documents, or pass --nsp false"
    return Finding(f"{share:.1%} of the documents have one sentence", remedy if share > 0.1 else "")


# ---- repetitions


def window_hashes(window: Window) -> tuple[np.ndarray, np.ndarray]:
    """(one for each sentence of the window, one for each of its documents): equal ones have equal hashes, uint64."""
    table = np.random.default_rng(0).integers(1, 2**64, 1 << 16, dtype=np.uint64)
    sentences = np.zeros(len(window.token_offsets) - 1, np.uint64)
    for first, last, ids in window.chunks():
        begins = window.token_offsets[first:last] - window.token_offsets[first]
        values = table[ids.astype(np.int64) & 0xFFFF] + ids.astype(np.uint64)
        sentences[first:last] = _ordered_sums(values, begins)

    return sentences, _ordered_sums(sentences[_sentences_of(window)], np.cumsum(window.sentences) - window.sentences)


def _ordered_sums(values: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """For each range from one begin to the next a sum that depends on the order (modulo 2^64).

    Of values a b c d e with begins 0 and 3, m(x) the mixed bits of x:

        place   0 1 2  0 1
        sums    m(a) + 3 m(b) + 5 m(c),   m(d) + 3 m(e)
    """
    if len(begins) == 0:
        return np.zeros(0, np.uint64)
    place = np.arange(len(values)) - np.repeat(begins, np.diff(begins, append=len(values)))
    mixed = (values ^ (values >> np.uint64(29))) * (2 * place.astype(np.uint64) + np.uint64(1))
    return np.add.reduceat(mixed, begins)


def _sentences_of(window: Window) -> np.ndarray:
    """Numbers of all sentences of the window's documents: [0, 1, 4, 5, 6] of the documents [0, 2) and [4, 7)."""
    lengths = window.sentences
    before = np.cumsum(lengths) - lengths
    return np.repeat(window.document_starts - before, lengths) + np.arange(lengths.sum())


def _repeated_documents(hashes: np.ndarray) -> Finding:
    repeated = len(hashes) - len(np.unique(hashes))
    text = f"{repeated:,} documents ({repeated / max(1, len(hashes)):.1%}) equal an earlier one"
    return Finding(text, "prepare with --deduplicate exact (or near)" if repeated else "")


def _repeated_sentences(window: Window, hashes: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> Finding:
    numbers = _sentences_of(window)
    lengths = np.diff(window.token_offsets)[numbers]
    _, first, which, times = np.unique(hashes[numbers], return_index=True, return_inverse=True, return_counts=True)
    repeated = np.arange(len(numbers)) != first[which]
    share = lengths[repeated].sum() / max(1, lengths.sum())
    text = f"{share:.1%} of the tokens are in sentences (lines) that occurred before"

    # The most frequent one of three tokens or more
    most = np.argmax(times * (lengths[first] > 2)) if share else 0
    if share and times[most] > 1:
        sentence = int(numbers[first[most]])
        example = str(tokenizer.decode(window.ids(sentence, sentence + 1)))
        text += f"; most often, {times[most]:,} times: {example[:60]!r}"
    return Finding(text, "remove boiler-plate lines before preparing" if share > 0.1 else "")


# ---- markup

_TAGS = (
    "a abbr b big blockquote body br caption center cite code col dd del div dl dt em font footer form h1 h2 h3 h4 h5 "
    "h6 head header hr html i iframe img input ins kbd li link math meta nav noscript nowiki ol option p pre ref "
    "references samp script section small span strike strong style sub sup table tbody td th thead title tr tt u ul "
    "video"
)  # HTML's, and those of MediaWiki: math, nowiki, ref, references
_TAG = rf"/?(?:{'|'.join(_TAGS.split())})(?:\s+[a-z-]+\s*=[^<>&]{{0,200}})?\s*/?"
_ENTITY = rf"&(?:amp;)*(?:{'|'.join(name2codepoint)}|#\d{{1,6}}|#x[0-9a-f]{{1,5}});"
# Patterns that demand the name of a real tag or entity, or the form that wiki software writes: `a < b`, a type such as
# `List<T>`, a matrix `[[1, 2], [3, 4]]`, a Jinja field `{{ name }}` and a line of equals signs do not match.
_MARKUP = {
    "HTML tags": re.compile(rf"<{_TAG}>|<!--.{{0,500}}?-->", re.IGNORECASE),
    "HTML entities": re.compile(_ENTITY),
    "wiki templates": re.compile(r"\{\{(?=[^\W\d]|#)[^{}]{1,500}\}\}"),
    "wiki links": re.compile(r"\[\[(?=[^\W\d]|:)[^\[\]\n]{1,200}\]\]"),
    "wiki headings": re.compile(r"^(={2,6})[^=\n]{1,100}\1[ \t]*$", re.MULTILINE),
    "wiki tables": re.compile(r"^(?:\{\|.*|\|-[ \t]*|\|\}[ \t]*)$", re.MULTILINE),
    "placeholders": re.compile(r"\b(?:formula|codice)_\d+\b"),  # of WikiExtractor
}
# Above this share of the characters a clean-up is recommended: markup is short and becomes many tokens (`<br>` three).
_MUCH_MARKUP = 0.002


def find_markup(documents: Iterable[str]) -> Finding:
    """How much of the text is leftover markup: HTML tags and entities, wiki syntax."""
    characters = marked = number = 0
    of_kind = Counter()
    examples = Counter()
    for text in documents:
        number += 1
        characters += len(text)
        matches = [(kind, match[0]) for kind, pattern in _MARKUP.items() for match in pattern.finditer(text)]
        marked += bool(matches)
        for kind, markup in matches:
            of_kind[kind] += len(markup)
            examples[markup[:60]] += 1

    if not of_kind:
        return Finding("no HTML or wiki markup in the text")
    share = of_kind.total() / characters
    kinds = ", ".join(f"{kind} {count / characters:.3%}" for kind, count in of_kind.most_common())
    text = (
        f"HTML or wiki markup in {marked / number:.1%} of {number:,} documents, {share:.3%} of the characters "
        f"({kinds}); e.g. {examples.most_common(1)[0][0]!r}"
    )
    return Finding(text, "remove it before preparing: unescape entities, strip tags" if share > _MUCH_MARKUP else "")


def _decoded(window: Window, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """The beginnings of some documents, without the space that decoding puts around each mark: `& lt ; br & gt ;`."""
    for document in np.linspace(0, len(window) - 1, min(_DECODED, len(window))).astype(int):
        first, last = int(window.document_starts[document]), int(window.document_ends[document])
        text = str(tokenizer.decode(window.ids(first, last)[:_DECODED_TOKENS]))
        yield re.sub(r" ?([&;<>{}\[\]=|/#_]) ?", r"\1", text)


# ---- lengths


def histogram(lengths: np.ndarray) -> Iterator[str]:
    """Lines of text: how many documents have 1, 2–3, 4–7, … tokens."""
    bins = np.bincount(np.log2(np.maximum(lengths, 1)).astype(int)) if len(lengths) else np.zeros(1, int)
    for power, count in enumerate(bins):
        if bins[: power + 1].any():
            bar = "█" * int(np.ceil(_BAR * count / bins.max()))
            yield f"{2**power:>9,} – {2 ** (power + 1) - 1:<9,} {bar:{_BAR}} {count:,}"


def draw_lengths(window: Window, examples: np.ndarray, folder: Path) -> Path:
    """Writes `lengths.png`: tokens of documents, of sentences, and of examples as the model sees them."""
    from matplotlib.figure import Figure

    sentences = np.diff(window.token_offsets)[_sentences_of(window)]
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for axis, values, what in ((left, window.sizes, "documents"), (middle, sentences, "sentences")):
        axis.hist(values, np.unique(np.geomspace(1, values.max() + 1, 40).round()), color="tab:blue")
        axis.set(xscale="log", xlabel="tokens", title=f"{len(values):,} {what}")
    right.hist(examples, 40, color="tab:orange")
    right.set(yscale="log", xlabel="tokens", title=f"{len(examples):,} examples")

    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "lengths.png", dpi=110)
    return folder / "lengths.png"
