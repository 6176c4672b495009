"""Writes the corpus report: what to know of a corpus before days are spent on it, and what to do about it."""

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from bert_hf.config.arguments import ExampleArguments, TextArguments, TokenizerArguments
from bert_hf.data.corpus.finding import Finding
from bert_hf.data.corpus.length_charts import draw_lengths, histogram
from bert_hf.data.corpus.planned_run import PlannedRun, planned_findings
from bert_hf.data.corpus.prepare import prepare
from bert_hf.data.corpus.repetitions import repeated_documents, repeated_sentences, window_hashes
from bert_hf.data.corpus.requested_corpus import open_prepared, prepared_folder, sentence_language, text_sources
from bert_hf.data.corpus.store import WINDOW_TOKENS, Corpus, Window
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.pair_shortcuts import shortcuts
from bert_hf.data.text.markup import find_markup
from bert_hf.data.text.round_trip import measure
from bert_hf.data.text.sample import sample_inputs
from bert_hf.data.text.sources import Texts
from bert_hf.data.text.tokenization import backend, load_tokenizer, train_tokenizer
from bert_hf.data.text.writing_systems import OTHER_SCRIPTS, scripts_with_marks

CHECKED_BYTES = 20_000_000  # of raw text, sampled from all of it
_GUESSED = 200  # documents whose language is guessed
_GUESSED_TOKENS = 300  # of each


def corpus_findings(
    corpus: Corpus,
    examples: PreTrainingExamples,
    collator: DataCollatorForPreTraining,
    *,
    texts: Sequence[str] | None = None,
    planned: PlannedRun | None = None,
) -> list[Finding]:
    """Examines the first window of a corpus (all of it, up to `WINDOW_TOKENS`) and the pairs drawn from it.

    Args:
        examples: of the corpus, `fixed`.
        texts: a sample of the raw text. Without it, language and markup are judged by decoded tokens, and of the
            characters that the tokenizer loses only its unknown tokens and its treatment of marks are known.
        planned: the run; without it only the corpus is judged.
    """
    if len(corpus.windows()) > 1 and not examples.fixed:
        raise ValueError("the text of one window and the pairs of another")
    tokenizer = collator.tokenizer
    window = corpus.window(corpus.head())
    counts = window.unigram_counts(len(tokenizer))
    sentences, documents = window_hashes(window)

    findings = [
        _size(corpus, window, counts, tokenizer),
        _unknown(counts, tokenizer),
        _special_text(counts, tokenizer),
        repeated_documents(documents),
        repeated_sentences(window, sentences, tokenizer),
        _one_document(window),
        _large_shard(corpus),
        _one_sentence(window),
    ]
    findings += _text_findings(texts, window, tokenizer, corpus.manifest["language"])
    if examples.nsp:
        findings += shortcuts(examples, collator)
    if planned is not None:
        findings += planned_findings(corpus, window, examples, planned)
    return findings


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
    with tempfile.TemporaryDirectory() as folder:
        texts = None
        if prepared := prepared_folder(corpus_args.train_file):
            corpus = open_prepared(corpus_args, prepared)
            tokenizer = load_tokenizer(corpus.tokenizer())
        else:
            read = Counter()
            texts = sample_inputs(text_sources(corpus_args, corpus_args.train_file), CHECKED_BYTES, read)
            tokenizer, lines = _sample_tokenizer(tokenizer_args, corpus_args, texts)
            yield from lines
            prepare([Texts(tuple(texts))], tokenizer, folder, language=sentence_language(corpus_args))
            corpus = Corpus.open(folder)
            yield _sample_size(corpus, texts)
            yield str(_separated(read["documents"], read["pieces"]))

        examples, collator = _examples_of(corpus, tokenizer, example_args)
        yield from map(str, corpus_findings(corpus, examples, collator, texts=texts))

        window = corpus.window(corpus.head())
        yield from ("  tokens in a document:", *histogram(window.sizes))
        if picture is not None:
            yield f"  picture: {draw_lengths(window, examples, collator, Path(picture))}"


def _examples_of(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, example_args: ExampleArguments
) -> tuple[PreTrainingExamples, DataCollatorForPreTraining]:
    """The examples that a run with these options would draw, and its collator."""
    examples = PreTrainingExamples(
        corpus,
        max_seq_length=example_args.max_seq_length,
        nsp=example_args.nsp,
        short_seq_probability=example_args.short_seq_probability,
        fixed=True,
    )
    return examples, DataCollatorForPreTraining(
        tokenizer, mlm_probability=example_args.mlm_probability, nsp=example_args.nsp
    )


# ---- the sample


def _sample_tokenizer(
    tokenizer_args: TokenizerArguments, corpus_args: TextArguments, texts: list[str]
) -> tuple[PreTrainedTokenizerBase, list[str]]:
    """(the named tokenizer, or one trained on the sample; lines of the report about it)."""
    if tokenizer_args.tokenizer_name:
        return load_tokenizer(tokenizer_args.tokenizer_name, **tokenizer_args.normalization()), []
    lines = []
    tokenizer = train_tokenizer(texts, **tokenizer_args.training(), language=corpus_args.language, log=lines.append)
    return tokenizer, [f"  {line}" for line in lines]


def _sample_size(corpus: Corpus, texts: list[str]) -> str:
    read = sum(len(part.encode()) for part in texts)
    written = sum(entry["bytes"] for entry in corpus.manifest["shards"])
    return f"  {read / 1e6:,.1f} MB, spread over what was read; prepared they take {written / 1e6:,.1f} MB"


def _separated(documents: int, pieces: int) -> Finding:
    text = f"{documents:,} documents were read for it"
    whole_files = pieces > 1 and (documents < 2 or 8 * documents <= pieces)  # eight megabytes each
    return Finding(text, "separate documents by blank lines: these are whole files" if whole_files else "")


# ---- documents and tokens


def _size(corpus: Corpus, window: Window, counts: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> Finding:
    part = "" if len(window) == len(corpus) else f" (of {len(corpus):,} and {corpus.tokens:,} in all)"
    used = (counts > 0).mean()
    text = (
        f"{len(window):,} documents, {window.sentences.sum():,} sentences, {counts.sum():,} tokens{part}; "
        f"{used:.0%} of the {len(tokenizer):,} pieces occur"
    )
    return Finding(text, "lower --vocab_size, or train the vocabulary on this text" if used < 0.5 else "")


def _unknown(counts: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> Finding:
    share = float(counts[tokenizer.unk_token_id]) / max(1, counts.sum())
    remedy = "raise --limit_alphabet, train the vocabulary on this text, or look for a wrong encoding"
    return Finding(f"{share:.3%} of the tokens are unknown", remedy if share > 0.005 else "")


def _special_text(counts: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> Finding:
    ids = [index for index in tokenizer.all_special_ids if index != tokenizer.unk_token_id]
    found = [f"{tokenizer.convert_ids_to_tokens(index)} × {counts[index]:,}" for index in ids if counts[index]]
    if not found:
        return Finding("no special token occurs in the text")
    remedy = "rewrite them there, e.g. [ MASK ]: the model treats them as special"
    return Finding(f"special tokens occur in the text ({', '.join(found)})", remedy)


def _one_document(window: Window) -> Finding:
    share = window.sizes.max(initial=0) / max(1, window.sizes.sum())
    remedy = "separate its documents by blank lines: the B of its NOT_NEXT pairs comes from the others alone"
    return Finding(f"the longest document holds {share:.1%} of the tokens", remedy if share > 0.5 else "")


def _large_shard(corpus: Corpus) -> Finding:
    entries = corpus.manifest["shards"]
    largest = max(entry["tokens"] for entry in entries)
    text = f"the largest of {len(entries):,} shards holds {largest:,} tokens"
    remedy = "prepare it again, which cuts large inputs: a shard is opened whole"
    return Finding(text, remedy if largest > 2 * WINDOW_TOKENS else "")


def _one_sentence(window: Window) -> Finding:
    share = (window.sentences == 1).mean() if len(window) else 0.0
    remedy = "they serve as the B of NOT_NEXT pairs only; join them to documents, or pass --nsp false"
    return Finding(f"{share:.1%} of the documents have one sentence", remedy if share > 0.1 else "")


# ---- characters and languages


def _text_findings(
    raw: Sequence[str] | None, window: Window, tokenizer: PreTrainedTokenizerBase, language: str | None
) -> list[Finding]:
    """Markup, lost characters and languages: of raw text, or where there is none of decoded documents."""
    texts = raw or list(_decoded(window, tokenizer))
    losses = _losses(raw, tokenizer) if raw else _harmed_scripts(texts, tokenizer)
    return [find_markup(texts, decoded=not raw).finding(), *losses, _languages(texts, language)]


def _decoded(window: Window, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    for document in np.linspace(0, len(window) - 1, min(_GUESSED, len(window))).astype(int):
        first, last = int(window.document_starts[document]), int(window.document_ends[document])
        yield str(tokenizer.decode(window.ids(first, last)[:_GUESSED_TOKENS]))


def _losses(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> list[Finding]:
    """How many of the text's characters are lost by encoding and decoding."""
    trip = measure(texts, backend(tokenizer))
    return trip.findings() if trip is not None and trip.characters else []


def _harmed_scripts(decoded: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[Finding]:
    """Whether the text is of a script whose marks the tokenizer removes; decoded text still has the letters."""
    normalizer = backend(tokenizer).normalizer
    if normalizer is None or normalizer.normalize_str("é") != "e":
        return []
    share, most = scripts_with_marks(list(decoded))
    if share <= OTHER_SCRIPTS:
        return []

    text = (
        f"the tokenizer removes the marks of every script, and {share:.1%} of the letters are of scripts that need "
        f"them (most: {most})"
    )
    return [Finding(text, "train a vocabulary with --strip_accents false, and prepare again")]


def _languages(texts: Sequence[str], language: str | None) -> Finding:
    import py3langid  # two seconds to load

    some = texts[:: max(1, len(texts) // _GUESSED)]
    guessed = Counter(py3langid.classify(text[: 8 * _GUESSED_TOKENS])[0] for text in some)
    total = guessed.total()
    shares = ", ".join(f"{code} {count / total:.0%}" for code, count in guessed.most_common(4))
    text = f"language, as guessed from {total} documents: {shares}"

    main, most = guessed.most_common(1)[0]
    if language and len(language) == len(main) == 2 and main != language and most > total / 2:
        return Finding(text, f"the sentence splitter was told {language}: prepare with --language {main}")
    remedy = "one vocabulary serves them all: raise --vocab_size, or sort the text"
    return Finding(text, remedy if most < 0.8 * total else "")
