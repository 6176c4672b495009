"""Reports on a corpus before days are spent on training: its contents, its problems, and what to do about them.

Each line is a measurement; one that begins with `!` is a problem, and names the remedy.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from html.entities import name2codepoint
from typing import cast

import numpy as np
from transformers import PreTrainedTokenizerBase

from bert_hf.config.arguments import ExampleArguments, TextArguments, TokenizerArguments
from bert_hf.console import Finding
from bert_hf.data.corpus.requested_corpus import prepared_folder, sample_inputs, sentence_language, text_sources
from bert_hf.data.corpus.store import Corpus, Window
from bert_hf.data.corpus.text_corpus import TextCorpus
from bert_hf.data.text.readers import join_pieces
from bert_hf.data.text.tokenization import id_count, load_tokenizer, train_tokenizer
from bert_hf.data.text.unknown import Unknown, unknown_characters

CHECKED_BYTES = 20_000_000  # of text that `--check` reads, sampled from all of it
_DECODED = 200  # documents of a prepared corpus, evenly spread, that are decoded to look for markup
_DECODED_TOKENS = 300  # of each
_COMPARED = 20_000  # documents, evenly spread, whose sentences are compared
_ENCODED = 4_000_000  # characters, about, that are encoded to find unknown ones
_MUCH_UNKNOWN = 0.005  # share of the characters (or tokens) that is a problem
_MUCH_REPEATED = 0.005  # share of the documents
_LONG = 100_000  # tokens of a mean document that is probably a whole file


def corpus_findings(
    corpus: Corpus | TextCorpus,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str] | None = None,
    *,
    nsp: bool = True,
    may_train_vocabulary: bool = True,
) -> list[Finding]:
    """Return the result of each check on the first window of a corpus (all of it, up to `WINDOW_TOKENS`).

    Without the raw `texts`, markup is looked for in decoded tokens. `may_train_vocabulary` is False where it is no
    remedy to train one: if the vocabulary is a checkpoint's, or was trained on this text.
    """
    window = corpus.window(corpus.windows()[0])
    counts = window.unigram_counts(id_count(tokenizer))
    unknown = cast(int | None, tokenizer.unk_token_id)
    if texts:
        unknown_share = _measure_lost_characters(texts, tokenizer, may_train_vocabulary)
    else:
        unknown_share = _measure_unknown_tokens(counts, tokenizer)
    return [
        _measure_size(corpus, window, counts, may_train_vocabulary),  # first, as `short_report` expects
        unknown_share,
        _count_repeated_documents(window, unknown),
        _measure_shared_sentences(window, unknown),
        _measure_document_lengths(window, nsp),
        _count_one_sentence_documents(window, nsp),
        measure_markup(texts or _decode_beginnings(window, tokenizer)),
    ]


def short_report(findings: list[Finding]) -> list[str]:
    """Return one line for all checks that passed, with the size of the corpus, and a line for each problem."""
    problems = [str(finding) for finding in findings if finding.remedy]
    size = "" if findings[0].remedy else f"{findings[0].what}; "  # the first finding counts documents and tokens
    return [f"corpus: {size}{len(findings) - len(problems)} of {len(findings)} checks passed", *problems]


def report_lines(
    tokenizer_args: TokenizerArguments, corpus_args: TextArguments, example_args: ExampleArguments
) -> Iterator[str]:
    """Yield the lines of `prepare.py --check`: findings on a prepared corpus or on a bounded sample of raw text."""
    texts = None
    if folder := prepared_folder(corpus_args.train_file):
        corpus = Corpus(folder)
        tokenizer = load_tokenizer(corpus.tokenizer())
    else:
        pieces = sample_inputs(text_sources(corpus_args, corpus_args.train_file), CHECKED_BYTES)
        texts = list(join_pieces(pieces))
        yield f"  {sum(len(text.encode()) for text in texts) / 1e6:,.1f} MB of text, spread over what was read"
        if tokenizer_args.tokenizer_name:
            tokenizer = load_tokenizer(tokenizer_args.tokenizer_name, **tokenizer_args.normalization())
        else:
            tokenizer = train_tokenizer([piece.text for piece in pieces], **tokenizer_args.training())
        corpus = TextCorpus(texts, tokenizer, sentence_language(corpus_args))
    may_train = tokenizer_args.tokenizer_name is not None  # else the vocabulary may have been trained on this text
    findings = corpus_findings(corpus, tokenizer, texts, nsp=bool(example_args.nsp), may_train_vocabulary=may_train)
    yield from map(str, findings)


def _measure_size(corpus: Corpus | TextCorpus, window: Window, counts: np.ndarray, may_train: bool) -> Finding:
    """Count documents, sentences and tokens, and how much of the vocabulary occurs."""
    totals = "" if len(window) == len(corpus) else f" (of {len(corpus):,} and {corpus.tokens:,} in all)"
    used = (counts > 0).mean()
    text = (
        f"{len(window):,} documents, {window.sentence_counts.sum():,} sentences, {counts.sum():,} tokens{totals}; "
        f"{used:.0%} of the {len(counts):,} vocabulary entries occur"
    )
    remedy = "leave --tokenizer_name out, to train a vocabulary on this text"
    return Finding(text, remedy if may_train and used < 0.5 else "")


def _measure_unknown_tokens(counts: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> Finding:
    """Measure the share of the tokens that are [UNK]; where the raw text is gone, its characters cannot be counted."""
    share = float(counts[tokenizer.unk_token_id]) / max(1, counts.sum())
    remedy = "bert-hf prepare --check true, given the text, shows which characters that loses, and why"
    return Finding(f"{share:.3%} of the tokens are unknown", remedy if share > _MUCH_UNKNOWN else "")


def _measure_lost_characters(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, may_train: bool) -> Finding:
    """Measure the share of the characters that become [UNK], in a sample of the texts, and their usual cause."""
    step = max(1, sum(map(len, texts)) // _ENCODED)
    sample = [text[:_ENCODED] for text in texts[::step]]
    lost = unknown_characters(sample, tokenizer)
    share = lost.total() / max(1, sum(len(text) - text.count(" ") for text in sample))  # no token has a space
    cause = max(lost, key=lost.__getitem__, default=Unknown.OTHERS)

    train = "leave --tokenizer_name out, to train a vocabulary on this text"
    remedy = {
        Unknown.LONG: "put spaces between words (docs/languages.md)",
        Unknown.CASE: "pass --do_lower_case true",
        Unknown.OTHERS: f"{train if may_train else 'raise --vocab_size'}, or check the encoding",
    }[cause]
    text = f"{share:.3%} of the characters are unknown" + (f", most of them in {cause.value}" if lost else "")
    return Finding(text, remedy if share > _MUCH_UNKNOWN else "")


def _measure_document_lengths(window: Window, nsp: bool) -> Finding:
    """Compare the documents in length: one that holds most of the text leaves few others to draw B from."""
    longest_share = window.token_counts.max(initial=0) / max(1, window.token_counts.sum())
    mean = window.token_counts.mean() if len(window) else 0
    text = f"a document has {mean:,.0f} tokens on average, and the longest has {longest_share:.1%} of all tokens"
    remedy = "separate documents by blank lines: the B of NOT_NEXT pairs comes from another document"
    return Finding(text, remedy if nsp and (longest_share > 0.5 or mean > _LONG) else "")


def _count_one_sentence_documents(window: Window, nsp: bool) -> Finding:
    """Count the documents of one sentence, which gives no IS_NEXT pair."""
    share = (window.sentence_counts == 1).mean() if len(window) else 0.0
    remedy = "they serve as the B of NOT_NEXT pairs only; join them to documents, or pass --nsp false"
    return Finding(f"{share:.1%} of the documents have one sentence", remedy if nsp and share > 0.1 else "")


def _key_of_text(ids: np.ndarray, unknown: int | None) -> Hashable:
    """Return a checksum of ids; if half are `unknown`, texts may differ: then an object that equals no other."""
    mostly_unknown = 2 * np.count_nonzero(ids == unknown) >= len(ids)
    return object() if mostly_unknown else hashlib.blake2b(ids.tobytes(), digest_size=16).digest()


def _count_repeated_documents(window: Window, unknown: int | None) -> Finding:
    """Count the documents that repeat an earlier one, token by token."""
    bounds = zip(window.document_starts.tolist(), window.document_ends.tolist(), strict=True)
    repeated = len(window) - len({_key_of_text(window.ids(start, end), unknown) for start, end in bounds})
    text = f"{repeated:,} documents ({repeated / max(1, len(window)):.1%}) are duplicates"
    much = repeated > _MUCH_REPEATED * len(window)
    return Finding(text, "bert-hf prepare --deduplicate true leaves them out" if much else "")


def _measure_shared_sentences(window: Window, unknown: int | None) -> Finding:
    """Measure how much of the text is in sentences of many documents, such as menus and footers of web pages."""
    compared = np.linspace(0, len(window) - 1, min(_COMPARED, len(window))).astype(int)
    many = max(10, len(compared) // 100)
    tokens = Counter()  # sentence → its tokens in all documents
    occurs_in = Counter()  # sentence → the number of documents that have it
    for document in compared:
        tokens_here = Counter()
        for sentence in range(window.document_starts[document], window.document_ends[document]):
            ids = window.ids(sentence, sentence + 1)
            tokens_here[_key_of_text(ids, unknown)] += len(ids)
        tokens.update(tokens_here)
        occurs_in.update(tokens_here.keys())

    shared = sum(count for sentence, count in tokens.items() if occurs_in[sentence] >= many)
    share = shared / max(1, tokens.total())
    text = f"{share:.1%} of the text is in sentences that {many:,} or more of {len(compared):,} documents share"
    remedy = "remove menus, footers and other repeated lines; --deduplicate keeps them"
    return Finding(text, remedy if share > 0.1 else "")


_TAGS = (
    "a abbr b big blockquote body br caption center cite code col dd del div dl doc docno dt em font footer form h1 "
    "h2 h3 h4 h5 h6 head header hr html i iframe img input ins kbd li link math meta nav noscript nowiki ol option p "
    "pre ref references samp script section small span strike strong style sub sup table tbody td text th thead "
    "title tr tt u ul video"
)  # HTML's, those of MediaWiki (math, nowiki, ref, references) and of TREC (doc, docno, text)
_TAG = rf"/?(?:{'|'.join(_TAGS.split())})(?:\s+[a-z-]+\s*=[^<>&]{{0,200}})?\s*/?"
_ENTITY = rf"&(?:amp;)*(?:{'|'.join(name2codepoint)}|#\d{{1,6}}|#x[0-9a-f]{{1,5}});"
# Patterns that demand the name of a real tag or entity, or the form that wiki software writes: `a < b`, a type such as
# `List<T>`, a matrix `[[1, 2], [3, 4]]`, a Jinja field `{{ name }}` and a line of equals signs do not match.
_MARKUP = re.compile(
    "|".join(
        (
            rf"(?i:<{_TAG}>)|<!--.{{0,500}}?-->",
            _ENTITY,
            r"\{\{(?=[^\W\d]|#)[^{}]{1,500}\}\}",  # templates
            r"\[\[(?=[^\W\d]|:)[^\[\]\n]{1,200}\]\]",  # links
            r"^(?P<level>={2,6})[^=\n]{1,100}(?P=level)[ \t]*$",  # headings
            r"^(?:\{\|.*|\|-[ \t]*|\|\}[ \t]*)$",  # tables
            r"\b(?:formula|codice)_\d+\b",  # placeholders of WikiExtractor
            r"^\d+(?=\t)",  # numbers of lines
        )
    ),
    re.MULTILINE,
)
# Above this share of the characters a clean-up is recommended: markup is short and becomes many tokens (`<br>` three).
_MUCH_MARKUP = 0.002


def measure_markup(texts: Iterable[str]) -> Finding:
    """Measure how much of the text is leftover markup: HTML tags and entities, wiki syntax."""
    characters = 0
    occurrences = Counter()  # of each tag, entity, …
    for text in texts:
        characters += len(text)
        occurrences.update(match[0] for match in _MARKUP.finditer(text))

    if not occurrences:
        return Finding("no HTML or wiki markup in the text")
    share = sum(len(markup) * count for markup, count in occurrences.items()) / characters
    example = occurrences.most_common(1)[0][0][:60]
    text = f"{share:.3%} of the characters are HTML or wiki markup, most often {example!r}"
    return Finding(text, "remove it before preparing: unescape entities, strip tags" if share > _MUCH_MARKUP else "")


def _decode_beginnings(window: Window, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Yield the beginnings of some documents, without the spaces that decoding puts into markup: `& lt ;`."""
    for document in np.linspace(0, len(window) - 1, min(_DECODED, len(window))).astype(int):
        first, last = int(window.document_starts[document]), int(window.document_ends[document])
        text = str(tokenizer.decode(window.ids(first, last)[:_DECODED_TOKENS]))
        yield re.sub(r" ?([&;<>{}\[\]=|/#_]) ?", r"\1", text)
