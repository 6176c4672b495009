"""What is worth knowing of a corpus before days are spent on it, and what to do about it."""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
from sklearn.linear_model import LogisticRegression
from transformers import PreTrainedTokenizerBase

from bert_hf.config.arguments import CorpusArguments, ExampleArguments, PrepareArguments, TokenizerArguments
from bert_hf.config.learning_checks import PlannedLearning, examine_learning
from bert_hf.data.collator import DataCollatorForPreTraining
from bert_hf.data.corpus_store import WINDOW_TOKENS, Corpus, Window
from bert_hf.data.dataset import PreTrainingExamples
from bert_hf.data.finding import Finding
from bert_hf.data.length_leak import FEWEST_PAIRS, length_leak
from bert_hf.data.markup import find_markup
from bert_hf.data.prepare import inputs_of, is_prepared, language_of, open_prepared, prepare, sample_inputs
from bert_hf.data.readers import Texts
from bert_hf.data.round_trip import measure
from bert_hf.data.samplers import Phase
from bert_hf.data.tokenization import backend, load_tokenizer, train_tokenizer
from bert_hf.data.writing_systems import OTHER_SCRIPTS, scripts_with_marks

_PAIRS = 8000  # examples that the shortcuts are looked for in; half of them to learn from
_GUESSED = 200  # documents whose language is guessed
_GUESSED_TOKENS = 300  # of each
_BYTES_A_PARAMETER = 16  # fp32 weight, gradient and both moments of Adam
_SAVED_A_PARAMETER = 12  # without the gradient
_BAR = 40  # characters


def examine(
    corpus: Corpus,
    examples: PreTrainingExamples,
    collator: DataCollatorForPreTraining,
    *,
    texts: Sequence[str] | None = None,
    planned: "Planned | None" = None,
) -> list[Finding]:
    """Looks at the first window of a corpus (all of it, up to `store.WINDOW_TOKENS`) and at the pairs drawn from it.

    Args:
        examples: of the corpus, `fixed`.
        texts: some of the text as it was; without it the language and the markup are judged by decoded tokens, and of
            the characters that the tokenizer loses only its unknown tokens and its treatment of marks are known.
        planned: the run; without it only the corpus is judged.
    """
    if len(corpus.windows()) > 1 and not examples.fixed:
        raise ValueError("the text of one window and the pairs of another")
    tokenizer = collator.tokenizer
    window = corpus.window(corpus.head())
    counts = window.unigram_counts(len(tokenizer))
    sentences, documents = hashes(window)
    findings = [
        _size(corpus, window, counts, tokenizer),
        _unknown(counts, tokenizer),
        _special_text(counts, tokenizer),
        _repeated_documents(documents),
        _repeated_sentences(window, sentences, tokenizer),
        _one_document(window),
        _large_shard(corpus),
        _one_sentence(window),
    ]
    looked_at = texts or list(_decoded(window, tokenizer))
    findings.append(find_markup(looked_at, decoded=not texts).finding())
    findings += _losses(texts, tokenizer) if texts else _harmed_scripts(looked_at, tokenizer)
    findings.append(_languages(looked_at, corpus.manifest["language"]))
    if examples.nsp:
        findings += shortcuts(examples, collator, counts)
    if planned is not None:
        findings += plan(corpus, window, examples, planned)
    return findings


def check(
    tokens: TokenizerArguments,
    text: CorpusArguments,
    shape: ExampleArguments,
    work: PrepareArguments,
    picture: str | None = None,
) -> Iterator[str]:
    """The report of `prepare.py --check`, line by line: on a prepared corpus, or on a bounded sample of raw text.

    Args:
        picture: folder in which the lengths are drawn (`lengths.png`).
    """
    with tempfile.TemporaryDirectory() as folder:
        if is_prepared(text.train_file):
            corpus, texts = open_prepared(text, text.train_file[0]), None
            tokenizer = load_tokenizer(corpus.tokenizer())
        else:
            texts = sample_inputs(inputs_of(text, text.train_file), work.check_bytes, seen := Counter())
            named = tokens.tokenizer_name
            said: list[str] = []
            tokenizer = (
                load_tokenizer(named, **tokens.normalization())
                if named
                else train_tokenizer(texts, **tokens.training(), language=text.language, log=said.append)
            )
            yield from (f"  {line}" for line in said)
            corpus = prepare([Texts(tuple(texts))], tokenizer, folder, language=language_of(text))
            read = sum(len(part.encode()) for part in texts)
            written = sum(entry["bytes"] for entry in corpus.manifest["shards"])
            yield f"  {read / 1e6:,.1f} MB, spread over what was read; prepared they take {written / 1e6:,.1f} MB"
            yield str(_separated(seen["documents"], seen["pieces"]))
        drawn = {"nsp": shape.nsp, "short_seq_probability": shape.short_seq_probability}
        examples = PreTrainingExamples(corpus, (Phase(shape.max_seq_length, None),), fixed=True, **drawn)
        collator = DataCollatorForPreTraining(tokenizer, mlm_probability=shape.mlm_probability, nsp=shape.nsp)
        yield from map(str, examine(corpus, examples, collator, texts=texts))
        window = corpus.window(corpus.head())
        yield from ("  tokens in a document:", *histogram(window.sizes))
        if picture is not None:
            yield f"  picture: {draw(window, examples, collator, Path(picture))}"


# ---- the text


def hashes(window: Window) -> tuple[np.ndarray, np.ndarray]:
    """(one for each sentence of the window, one for each of its documents): equal ones have equal hashes, uint64."""
    table = np.random.default_rng(0).integers(1, 2**64, 1 << 16, dtype=np.uint64)
    sentences = np.zeros(len(window.token_offsets) - 1, np.uint64)
    for first, last, ids in window.chunks():
        begins = window.token_offsets[first:last] - window.token_offsets[first]
        values = table[ids.astype(np.int64) & 0xFFFF] + ids.astype(np.uint64)
        sentences[first:last] = _sums(values, begins)
    kept = _ranges(window.document_starts, window.document_ends)
    lengths = window.document_ends - window.document_starts
    return sentences, _sums(sentences[kept], np.cumsum(lengths) - lengths)


def _sums(values: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """Of each stretch from one begin to the next, a sum that depends on the order (modulo 2^64)."""
    if len(begins) == 0:
        return np.zeros(0, np.uint64)
    place = np.arange(len(values)) - np.repeat(begins, np.diff(begins, append=len(values)))
    mixed = (values ^ (values >> np.uint64(29))) * (2 * place.astype(np.uint64) + np.uint64(1))
    return np.add.reduceat(mixed, begins)


def _ranges(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """All numbers in [start, end), one range after the other."""
    lengths = ends - starts
    return np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())


def _size(corpus: Corpus, window: Window, counts: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> Finding:
    sentences = int((window.document_ends - window.document_starts).sum())
    tokens, used = int(counts.sum()), float((counts > 0).mean())
    part = "" if len(window) == len(corpus) else f" (of {len(corpus):,} and {corpus.tokens:,} in all)"
    text = f"{len(window):,} documents, {sentences:,} sentences, {tokens:,} tokens{part}; {used:.0%} of the "
    text += f"{len(tokenizer):,} pieces occur"
    return Finding(text, "lower --vocab_size, or train the vocabulary on this text" if used < 0.5 else "")


def _unknown(counts: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> Finding:
    share = counts[tokenizer.unk_token_id] / max(1, counts.sum())
    remedy = "raise --limit_alphabet, train the vocabulary on this text, or look for a wrong encoding"
    return Finding(f"{share:.3%} of the tokens are unknown", remedy if share > 0.005 else "")


def _losses(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> list[Finding]:
    """How many of the text's characters do not come back from the tokenizer."""
    trip = measure(texts, backend(tokenizer))
    return trip.findings() if trip is not None and trip.characters else []


def _harmed_scripts(decoded: list[str], tokenizer: PreTrainedTokenizerBase) -> list[Finding]:
    """Whether the text is of a script whose marks the tokenizer removes; decoded text still has the letters."""
    normalizer = backend(tokenizer).normalizer
    if normalizer is None or normalizer.normalize_str("é") != "e":
        return []
    share, most = scripts_with_marks(decoded)
    if share <= OTHER_SCRIPTS:
        return []
    text = "the tokenizer removes the marks of every script, and "
    text += f"{share:.1%} of the letters are of scripts that need them (most: {most})"
    return [Finding(text, "train a vocabulary with --strip_accents false, and prepare again")]


def _special_text(counts: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> Finding:
    ids = [index for index in tokenizer.all_special_ids if index != tokenizer.unk_token_id]
    found = {tokenizer.convert_ids_to_tokens(index): int(counts[index]) for index in ids if counts[index]}
    if not found:
        return Finding("no special token stands in the text")
    text = ", ".join(f"{token} × {count:,}" for token, count in found.items())
    return Finding(
        f"special tokens stand in the text ({text})", "rewrite them there, e.g. [ MASK ]: the model obeys them"
    )


def _repeated_documents(documents: np.ndarray) -> Finding:
    again = len(documents) - len(np.unique(documents))
    share = again / max(1, len(documents))
    text = f"{again:,} documents ({share:.1%}) equal an earlier one"
    return Finding(text, "prepare with --deduplicate exact (or near)" if again else "")


def _repeated_sentences(window: Window, sentences: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> Finding:
    own = _ranges(window.document_starts, window.document_ends)
    lengths = np.diff(window.token_offsets)[own]
    _, first, which, times = np.unique(sentences[own], return_index=True, return_inverse=True, return_counts=True)
    share = lengths[np.arange(len(own)) != first[which]].sum() / max(1, lengths.sum())
    text = f"{share:.1%} of the tokens are in sentences (lines) that stand there before"
    if not share:
        return Finding(text)
    most = int(np.argmax(times * (lengths[first] > 2)))
    if times[most] > 1:
        sentence = tokenizer.decode(window.ids(own[first[most]], own[first[most]] + 1))
        text += f"; most often, {times[most]:,} times: {sentence[:60]!r}"
    return Finding(text, "remove boiler-plate lines before preparing" if share > 0.1 else "")


def _separated(documents: int, pieces: int) -> Finding:
    text = f"{documents:,} documents were read for it"
    whole = pieces > 1 and (documents < 2 or 8 * documents <= pieces)  # eight megabytes each
    return Finding(text, "separate documents by blank lines: these are whole files" if whole else "")


def _one_document(window: Window) -> Finding:
    share = window.sizes.max(initial=0) / max(1, window.sizes.sum())
    remedy = "separate its documents by blank lines: the B of its NOT_NEXT pairs comes from the others alone"
    return Finding(f"the longest document holds {share:.1%} of the tokens", remedy if share > 0.5 else "")


def _large_shard(corpus: Corpus) -> Finding:
    largest = max(entry["tokens"] for entry in corpus.manifest["shards"])
    text = f"the largest of {len(corpus.manifest['shards']):,} shards holds {largest:,} tokens"
    remedy = "prepare it anew, which cuts large inputs: a shard is opened whole"
    return Finding(text, remedy if largest > 2 * WINDOW_TOKENS else "")


def _one_sentence(window: Window) -> Finding:
    share = float((window.document_ends - window.document_starts == 1).mean()) if len(window) else 0.0
    remedy = "they serve as the B of NOT_NEXT pairs only; join them to documents, or pass --nsp false"
    return Finding(f"{share:.1%} of the documents have one sentence", remedy if share > 0.1 else "")


def _decoded(window: Window, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    for document in np.linspace(0, len(window) - 1, min(_GUESSED, len(window))).astype(int):
        first = window.document_starts[document]
        yield tokenizer.decode(window.ids(first, window.document_ends[document])[:_GUESSED_TOKENS])


def _languages(texts: Iterable[str], language: str | None) -> Finding:
    import py3langid  # two seconds to load

    texts = list(texts)
    some = texts[:: max(1, len(texts) // _GUESSED)]
    guessed = Counter(py3langid.classify(text[: 8 * _GUESSED_TOKENS])[0] for text in some)
    total = guessed.total()
    shares = ", ".join(f"{code} {count / total:.0%}" for code, count in guessed.most_common(4))
    text = f"language, as guessed from {total} documents: {shares}"
    main, most = guessed.most_common(1)[0]
    if language and len(language) == len(main) == 2 and main != language and most > total / 2:
        return Finding(text, f"the sentence splitter was told {language}: prepare with --language {main}")
    return Finding(
        text, "one vocabulary serves them all: raise --vocab_size, or sort the text" if most < 0.8 * total else ""
    )


# ---- the pairs


def shortcuts(
    examples: PreTrainingExamples, collator: DataCollatorForPreTraining, counts: np.ndarray
) -> list[Finding]:
    """How far one gets on the pairs without reading them.

    The lengths of A and B must tell nothing (`length_leak`), and neither must the words of A and of B, each for
    itself. The words that A and B share may tell much: they are what a model has to beat. Both are measured by
    logistic regressions, trained on one half of the pairs and tested on the other.
    """
    number = min(_PAIRS, len(examples))
    if number < FEWEST_PAIRS:
        return [Finding(f"{number} pairs are too few to look for shortcuts in")]
    features = [examples[index] for index in range(number)]
    labels = np.array([feature["next_sentence_label"] for feature in features])
    made = [collator.example(feature) for feature in features]
    segments = [_segments(example, collator.tokenizer) for example in made]
    findings = [_told_by_lengths(made, labels)]
    error = np.sqrt(0.25 / (number / 2))
    for name, columns, cheap in (
        ("the words of each, not compared", _words(segments, len(counts)), False),
        ("the words they share", _shared(segments, counts), True),
    ):
        reached = _reached(columns, labels)
        text = f"next sentence or not, told by {name}: {reached:.1%} right (by guessing 50 ± {error:.1%})"
        remedy = "NOT_NEXT segments differ from NEXT ones by more than their text: look at the shortest documents"
        findings.append(Finding(text, "" if cheap or reached < 0.55 + 3 * error else remedy))
    return findings


def _told_by_lengths(examples: list[dict], labels: np.ndarray) -> Finding:
    b = np.array([example["token_type_ids"].sum() - 1 for example in examples])  # without its [SEP]
    a = np.array([len(example["input_ids"]) for example in examples]) - b - 3
    leak = length_leak(a, b, labels)
    text = f"next sentence or not, told by their lengths: {leak.accuracy:.1%} right "
    text += f"(by guessing {leak.chance:.1%} ± {leak.error:.1%})"
    remedy = "few sentences are as long as the one-sentence documents: join these, or pass --nsp false"
    return Finding(text, remedy if leak.is_found() else "")


def _segments(example: dict, tokenizer: PreTrainedTokenizerBase) -> tuple[np.ndarray, np.ndarray]:
    ids, types = example["input_ids"], example["token_type_ids"]
    plain = ~np.isin(ids, tokenizer.all_special_ids)
    return ids[plain & (types == 0)], ids[plain & (types == 1)]


def _words(segments: list, vocabulary: int) -> scipy.sparse.csr_matrix:
    """(pairs, 2 V): which words stand in A and in B, each scaled to length 1, so that long ones do not stand out."""
    sets = [(np.unique(a), np.unique(b)) for a, b in segments]
    columns = [np.concatenate([a, b + vocabulary]) for a, b in sets]
    values = [np.full(len(words), len(words) ** -0.5) for pair in sets for words in pair if len(words)]
    ends = np.cumsum([0, *map(len, columns)])
    return scipy.sparse.csr_matrix(
        (np.concatenate(values), np.concatenate(columns), ends), (len(sets), 2 * vocabulary)
    )


def _shared(segments: list, counts: np.ndarray) -> np.ndarray:
    """(pairs, 2): share of the words in common, all alike and the rarer the heavier."""
    weight = np.log((counts.sum() + len(counts)) / (counts + 1))
    rows = []
    for a, b in segments:
        both, a, b = np.intersect1d(a, b), np.unique(a), np.unique(b)
        scale = np.sqrt(weight[a].sum() * weight[b].sum()) + 1e-9
        rows.append((len(both) / (len(a) + len(b) - len(both) + 1e-9), weight[both].sum() / scale))
    return 10 * np.array(rows)


def _reached(columns, labels: np.ndarray) -> float:
    half = len(labels) // 2
    return (
        LogisticRegression(C=0.1, solver="liblinear")
        .fit(columns[:half], labels[:half])
        .score(columns[half:], labels[half:])
    )


# ---- the run


@dataclass(frozen=True)
class Planned:
    """The run that a corpus is meant for."""

    steps: int
    batch: int  # sequences of the global batch
    parameters: int
    checkpoints: int  # that are kept
    folder: str
    device_bytes: int  # memory of each device
    learning: PlannedLearning | None = None  # without it only memory, disk and passes are examined


def plan(corpus: Corpus, window: Window, examples: PreTrainingExamples, planned: Planned) -> list[Finding]:
    """What the planned steps mean for this corpus, this memory and this disk."""
    epoch = examples.window_length(0, 0, 0) * corpus.tokens / max(1, window.sizes.sum())
    passes = planned.steps * planned.batch / epoch
    text = f"{planned.steps:,} steps of {planned.batch:,} sequences are {passes:.2f} passes over the corpus"
    findings = [Finding(text, "get more text, or plan fewer steps (the paper: 40 passes)" if passes > 40 else "")]
    need = planned.parameters * _BYTES_A_PARAMETER
    text = (
        f"weights, gradients and Adam's moments take {_gigabytes(need)}, and activations come on top; the memory is "
    )
    text += _gigabytes(planned.device_bytes)
    findings.append(Finding(text, "shard: configs/accelerate/zero3.yaml" if need > 0.8 * planned.device_bytes else ""))
    need, free = planned.parameters * _SAVED_A_PARAMETER * (planned.checkpoints + 1), free_disk(planned.folder)
    text = f"{planned.checkpoints} checkpoints and the one being written take {_gigabytes(need)} of the disk's "
    text += f"{_gigabytes(free)} free"
    findings.append(Finding(text, "lower --save_total_limit, or write elsewhere" if need > 0.9 * free else ""))
    return findings + [Finding(*each) for each in examine_learning(planned.learning)] if planned.learning else findings


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB"


def free_disk(folder: str | Path) -> int:
    """Bytes that are free where the folder is, or will be."""
    place = Path(folder).absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def memory(device: torch.device) -> int:
    """Bytes of memory of a device; the CPU's is the machine's."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# ---- pictures


def histogram(lengths: np.ndarray) -> Iterator[str]:
    """Lines of text: how many documents have 1, 2–3, 4–7, … tokens."""
    bins = np.bincount(np.log2(np.maximum(lengths, 1)).astype(int)) if len(lengths) else np.zeros(1, int)
    for power, count in enumerate(bins):
        if bins[: power + 1].any():
            bar = "█" * int(np.ceil(_BAR * count / bins.max()))
            yield f"{2**power:>9,} – {2 ** (power + 1) - 1:<9,} {bar:{_BAR}} {count:,}"


def draw(window: Window, examples: PreTrainingExamples, collator: DataCollatorForPreTraining, folder: Path) -> Path:
    """Draws the lengths of documents, sentences and examples: `lengths.png`."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    number = min(_PAIRS, len(examples))
    lengths = [len(collator.example(examples[index])["input_ids"]) for index in range(number)]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    own = np.diff(window.token_offsets)[_ranges(window.document_starts, window.document_ends)]
    for axis, values, what in ((left, window.sizes, "documents"), (middle, own, "sentences")):
        axis.hist(values, np.unique(np.geomspace(1, values.max() + 1, 40).round()), color="tab:blue")
        axis.set(xscale="log", xlabel="tokens", title=f"{len(values):,} {what}")
    right.hist(lengths, 40, color="tab:orange")
    right.set(
        yscale="log", xlabel="tokens", title=f"{number:,} examples of at most {examples.phases[0].max_seq_length}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "lengths.png", dpi=110)
    plt.close(figure)
    return folder / "lengths.png"
