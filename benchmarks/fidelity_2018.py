"""Our pairs and masks compared with those of the 2018 algorithm, on the same text: one pass of each.

python benchmarks/fidelity_2018.py                                   # the embedded default corpus
python benchmarks/fidelity_2018.py --train_file 'wiki/*.jsonl.xz' --documents 500

Also takes the flags of the tokenizer, the corpus and the examples (--tokenizer_name, --max_seq_length, …). Prints two
tables, then a JSON line.

The first table has the statistics of all pairs and masks. One that must agree is followed by z, the difference in
standard errors (documents are the sampling units); the others differ on purpose. The second table says how many labels
boosted trees tell from the lengths of A and B alone, at 128 and 512 tokens, when the text is cut into short documents
and 0 to 50 % of these keep one sentence. A prepared corpus of 28 million tokens: two minutes, one core.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np
from original_2018 import SPECIALS, mask, pairs_of_document, predictions, truncate
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold, cross_val_score

from bert_hf.config.arguments import CorpusArguments, ExampleArguments, TokenizerArguments
from bert_hf.config.options import option
from bert_hf.config.parser import parse
from bert_hf.data.corpus.requested_corpus import load_or_prepare_corpus, load_or_train_tokenizer
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.samplers import MASK, PLAN, Phase, generator
from bert_hf.data.examples.sentence_pairs import NOT_NEXT, truncated_lengths
from bert_hf.data.examples.sentence_pairs import truncate as truncate_here
from bert_hf.errors import one_line_errors
from bert_hf.models.functional import IGNORE_INDEX

BATCH = 64  # sequences, for the share of padding
LONE_SHARES = (0.0, 0.1, 0.3, 0.5)  # of the documents that keep one sentence, for the length leak
LEAK_LENGTHS = (128, 512)  # tokens
LEAK_TOKENS = 3_000_000  # of the text that the leak is measured on: above 5,000 pairs of 512 tokens
LEAK_PAIRS = 40_000  # at most


@dataclass
class FidelityArguments:
    documents: int | None = option(None, "Only so many documents, from the first on.")
    max_predictions_per_seq: int = option(20, "Of the 2018 algorithm.")
    seed: int = option(0, "Of both.")


class Text:
    """Documents in memory (a `Window`): (T,) token ids, (S + 1,) tokens before each sentence, (D,) sentences."""

    def __init__(self, tokens: np.ndarray, token_offsets: np.ndarray, document_starts, document_ends):
        self.tokens, self.token_offsets = tokens, token_offsets
        self.document_starts, self.document_ends = document_starts, document_ends

    @classmethod
    def of(cls, documents: list[list[list[int]]]) -> "Text":
        lengths = [len(sentence) for document in documents for sentence in document]
        ends = np.cumsum([len(document) for document in documents])
        tokens = np.array([token for document in documents for sentence in document for token in sentence])
        return cls(tokens, np.cumsum([0, *lengths]), np.append(0, ends[:-1]), ends)

    @classmethod
    def first(cls, corpus, documents: int | None) -> "Text":
        """The first documents of a whole prepared corpus, of its first window."""
        window = corpus.window(corpus.windows()[0])
        starts, ends = window.document_starts[:documents], window.document_ends[:documents]
        pieces = [window.ids(start, end) for start, end in zip(starts, ends, strict=True)]
        return cls(np.concatenate(pieces), window.token_offsets[: ends[-1] + 1], starts, ends)

    def windows(self, rng=None) -> list:
        return [()]

    def window(self, part) -> "Text":
        return self

    def ids(self, first_sentence: int, last_sentence: int) -> np.ndarray:
        return self.tokens[self.token_offsets[first_sentence] : self.token_offsets[last_sentence]]

    def positions(self) -> list[list[range]]:
        """The documents with each token's position in the text for its id, so that one sees which were used."""
        spans = list(map(range, self.token_offsets[:-1].tolist(), self.token_offsets[1:].tolist()))
        bounds = zip(self.document_starts.tolist(), self.document_ends.tolist(), strict=True)
        return [spans[start:end] for start, end in bounds]


class Positions(Text):
    """The text with each token's position for its id."""

    def __init__(self, text: Text):
        super().__init__(text.tokens, text.token_offsets, text.document_starts, text.document_ends)

    def ids(self, first_sentence: int, last_sentence: int) -> np.ndarray:
        return np.arange(self.token_offsets[first_sentence], self.token_offsets[last_sentence])


@dataclass
class Epoch:
    """One pass over a text. Arrays with a row for each example, in the order in which a run reads them."""

    max_seq_length: int
    text: Text
    gathered: np.ndarray  # (N, 4) positions of the tokens: A from, to, B from, to; before truncation
    used: np.ndarray  # (N, 4) the same after it
    not_next: np.ndarray  # (N,) bool
    lone: np.ndarray  # (N,) bool: gathered as a chunk of one sentence
    whole: np.ndarray  # (N,) bool: A and the segment behind it are a chunk; False for a one-sentence document's pairs
    target: np.ndarray  # (N,) tokens aimed at
    maskable: np.ndarray  # (N,) tokens that could have been predicted
    fates: np.ndarray  # (N, 3) predicted tokens that became [MASK], became another token, stayed
    padded_to: int | None = None  # every batch to this length; None: to its own longest


def spans(a, b) -> tuple[int, int, int, int]:
    """First position and end of two runs of positions."""
    return int(a[0]), int(a[-1]) + 1, int(b[0]), int(b[-1]) + 1


def fates(labels: np.ndarray, after: np.ndarray, mask_id: int) -> tuple[int, int, int]:
    masked, kept = int((after == mask_id).sum()), int((after == labels).sum())
    return masked, len(labels) - masked - kept, kept


def epoch_2018(
    text: Text, tokenizer, example_args: ExampleArguments, max_predictions: int = 20, seed: int = 0
) -> Epoch:
    """One pass (dupe_factor 1) of the 2018 algorithm."""
    rng, documents, length = Random(seed), text.positions(), example_args.max_seq_length
    cls, sep, mask_id, vocabulary = (
        tokenizer.cls_token_id,
        tokenizer.sep_token_id,
        tokenizer.mask_token_id,
        len(tokenizer),
    )
    rows = []
    for home in range(len(documents)):
        for pair in pairs_of_document(documents, home, length, example_args.short_seq_probability, rng):
            a, b = truncate(pair.a, pair.b, length - SPECIALS, rng)
            span = spans(a, b)
            ids = [cls, *text.tokens[slice(*span[:2])].tolist(), sep, *text.tokens[slice(*span[2:])].tolist(), sep]
            count = predictions(len(ids), example_args.mlm_probability, max_predictions)
            after, chosen = mask(ids, count, {cls, sep}, mask_id, vocabulary, rng)
            fate = fates(np.array([ids[i] for i in chosen]), np.array([after[i] for i in chosen]), mask_id)
            drawn = (pair.is_random_next, pair.chunk_sentences == 1, True, pair.target)
            rows.append((spans(pair.a, pair.b), span, *drawn, len(ids) - SPECIALS, fate))
    rng.shuffle(rows)
    return Epoch(length, text, *map(np.array, zip(*rows, strict=True)), padded_to=length)


def targets(documents: int, max_seq_length: int, short_seq_probability: float, rng: np.random.Generator) -> np.ndarray:
    """(documents,) target lengths: the first draws of `plan_epoch`, made again."""
    target = np.full(documents, max_seq_length - SPECIALS)
    short = rng.random(documents) < short_seq_probability
    target[short] = rng.integers(2, max_seq_length - SPECIALS + 1, short.sum())
    return target


def epoch_here(text: Text, tokenizer, example_args: ExampleArguments, seed: int = 0) -> Epoch:
    """The first epoch of `PreTrainingExamples` and `DataCollatorForPreTraining`."""
    length, probability = example_args.max_seq_length, example_args.short_seq_probability
    examples = PreTrainingExamples(
        Positions(text), (Phase(length, None),), seed=seed, nsp=True, short_seq_probability=probability
    )
    collator = DataCollatorForPreTraining(
        tokenizer, mlm_probability=example_args.mlm_probability, whole_word_mask=example_args.whole_word_mask
    )
    target = targets(len(text.document_starts), length, probability, generator(seed, PLAN, 0, 0))
    ends, specials = text.token_offsets[text.document_ends], np.array(tokenizer.all_special_ids)
    chunks = len(examples) - 2 * int((text.document_ends - text.document_starts == 1).sum())
    rows = []
    for index in range(len(examples)):
        feature = examples[index]
        a, b = feature["segment_a"], feature["segment_b"]
        example = collator.example({**feature, "segment_a": text.tokens[a], "segment_b": text.tokens[b]})
        # The collator's own draw, made again: which positions are left?
        cut = truncate_here(a, b, length - SPECIALS, generator(seed, MASK, *feature["number"]))
        labels, after = example["labels"], example["input_ids"]
        original = np.where(labels == IGNORE_INDEX, after, labels)
        inside = np.concatenate([text.tokens[cut[0]], text.tokens[cut[1]]])
        if not np.array_equal(inside, np.concatenate([original[1 : len(cut[0]) + 1], original[len(cut[0]) + 2 : -1]])):
            raise AssertionError(f"{feature['number']}: the collator drew another truncation")
        chosen = labels != IGNORE_INDEX
        fate = fates(labels[chosen], after[chosen], tokenizer.mask_token_id)
        maskable = int((~np.isin(inside, specials)).sum())
        home = np.searchsorted(ends, a[0], side="right")
        drawn = (feature["next_sentence_label"] == NOT_NEXT, False, feature["number"].index < chunks, target[home])
        rows.append((spans(a, b), spans(*cut), *drawn, maskable, fate))
    return Epoch(length, text, *map(np.array, zip(*rows, strict=True)))


# ---- statistics

FATES = ("[MASK]", "another token", "itself")


def share(part: np.ndarray, whole: np.ndarray, document: np.ndarray) -> tuple[float, float]:
    """Σ part / Σ whole and its standard error, with documents as the sampling units (ratio estimator)."""
    if whole.sum() == 0:
        return float("nan"), float("nan")
    ratio = part.sum() / whole.sum()
    rest = np.bincount(document, weights=part - ratio * whole)
    return float(ratio), float(np.sqrt((rest**2).sum()) / whole.sum())


def label_from_lengths(epoch: Epoch) -> float:
    """Share of labels told right by the lengths of A and B alone: a table of 8 × 8 tokens made from one half of the
    examples guesses the other half."""
    a, b = (epoch.used[:, 1] - epoch.used[:, 0]) // 8, (epoch.used[:, 3] - epoch.used[:, 2]) // 8
    cell = a * (epoch.max_seq_length // 8 + 1) + b
    votes = np.bincount(cell[::2], weights=np.where(epoch.not_next[::2], 1, -1), minlength=cell.max() + 1)
    majority = epoch.not_next[::2].mean() > 0.5
    guess = np.where(votes == 0, majority, votes > 0)[cell[1::2]]
    return float((guess == epoch.not_next[1::2]).mean())


def times_used(spans: np.ndarray, tokens: int) -> np.ndarray:
    """(tokens,) how often each position lies in one of the spans (N, 4)."""
    steps = np.bincount(spans[:, [0, 2]].ravel(), minlength=tokens + 1)
    steps -= np.bincount(spans[:, [1, 3]].ravel(), minlength=tokens + 1)
    return np.cumsum(steps)[:tokens]


def statistics(epoch: Epoch) -> dict[str, float | tuple[float, float]]:
    """Everything the table shows. A tuple is (value, standard error): these must agree."""
    text, limit = epoch.text, epoch.max_seq_length - SPECIALS
    ends = text.token_offsets[text.document_ends]
    home = np.searchsorted(ends, epoch.gathered[:, 0], side="right")
    length_a, length_b = (epoch.used[:, [1, 3]] - epoch.used[:, [0, 2]]).T
    length = length_a + length_b + SPECIALS
    part_a = length_a / (length_a + length_b)
    gathered = (epoch.gathered[:, [1, 3]] - epoch.gathered[:, [0, 2]]).sum(1)
    following, one, short = ~epoch.not_next, np.ones(len(length)), epoch.target < limit
    inside = following & epoch.whole & (epoch.gathered[:, 3] < ends[home])  # the chunk did not end for want of text
    if (gathered < epoch.target)[inside].any():
        raise AssertionError("a chunk inside a document stops short of its target")
    documents, first = np.unique(home, return_index=True)
    whole = inside & ~short
    fate, tokens = epoch.fates.sum(1), len(text.tokens)
    before, after = times_used(epoch.gathered, tokens), times_used(epoch.used, tokens)
    padded = length[: len(length) // BATCH * BATCH].reshape(-1, BATCH)
    widths = padded.max(1) if epoch.padded_to is None else np.full(len(padded), epoch.padded_to)
    result = {
        "examples": len(length),
        "length: mean": length.mean(),
        **{f"length: p{p}": np.percentile(length, p) for p in (10, 50, 90)},
        "length: share that is full": (length == epoch.max_seq_length).mean(),
        "length, Next: mean": length[following].mean(),
        "length, NotNext: mean": length[~following].mean(),
        "documents with a short target": share(short[first], np.ones(len(first)), documents),
        "examples with a short target": short.mean(),
        "A's share of A + B: mean": part_a.mean(),
        **{f"A's share of A + B: p{p}": np.percentile(part_a, p) for p in (10, 50, 90)},
        "A's share, Next inside a document, full target: mean": part_a[whole].mean(),
        "NotNext": epoch.not_next.mean(),
        "NotNext, chunks of two sentences or more": share(epoch.not_next & ~epoch.lone, ~epoch.lone, home),
        "NotNext, chunks of one sentence": share(epoch.not_next & epoch.lone, epoch.lone, home)[0],
        "chunks of one sentence": epoch.lone.mean(),
        "label told from the lengths of A and B alone": label_from_lengths(epoch),
        "predicted share of the maskable": fate.sum() / epoch.maskable.sum(),
        "predictions: mean": fate.mean(),
        "predictions: p90": np.percentile(fate, 90),
        "predictions: max": fate.max(),
        **{f"predicted: {name}": share(epoch.fates[:, i], fate * one, home) for i, name in enumerate(FATES)},
        "corpus tokens used, before truncation": (before > 0).mean(),
        "corpus tokens used, after truncation": (after > 0).mean(),
        "corpus tokens used twice or more, before truncation": (before > 1).mean(),
        "tokens read for each corpus token": after.sum() / tokens,
        "cut off by truncation": 1 - (length - SPECIALS).sum() / gathered.sum(),
        f"padding, batches of {BATCH}": 1 - padded.sum() / (widths.sum() * BATCH) if len(padded) else float("nan"),
    }
    return {name: value if isinstance(value, tuple) else float(value) for name, value in result.items()}


# ---- labels predicted from the lengths of A and B


def short_documents(text: Text, lone_share: float, seed: int = 0, tokens: int = LEAK_TOKENS) -> Text:
    """The first so many tokens, cut into documents of 2 to 20 sentences; a share of these keep one random sentence.

    Example: a document of 7 sentences and draws of 4 and 2. Documents of sentences 0–3 and 4–5 would leave sentence 6
    alone, so the last one takes it in: 0–3 and 4–6.
    """
    rng = np.random.default_rng(seed)
    starts, ends = [], []
    for start, end in zip(text.document_starts.tolist(), text.document_ends.tolist(), strict=True):
        while start < end and text.token_offsets[start] < tokens:
            stop = start + int(rng.integers(2, 21))
            stop = end if end - stop < 2 else stop
            starts.append(start)
            ends.append(stop)
            start = stop

    starts, ends = np.array(starts), np.array(ends)
    several = ends - starts > 1
    starts, ends = starts[several], ends[several]
    lone = rng.random(len(starts)) < lone_share
    kept = rng.integers(starts, ends)
    return Text(text.tokens, text.token_offsets, np.where(lone, kept, starts), np.where(lone, kept + 1, ends))


Lengths = tuple[np.ndarray, np.ndarray, np.ndarray]  # of A and B after truncation, and the labels; (N,) each


def lengths_2018(text: Text, max_seq_length: int, short_seq_probability: float, seed: int) -> Lengths:
    """Lengths and labels of one pass of the 2018 algorithm."""
    rng, documents, rows = Random(seed), text.positions(), []
    for home in range(len(documents)):
        for pair in pairs_of_document(documents, home, max_seq_length, short_seq_probability, rng):
            rows.append((len(pair.a), len(pair.b), int(pair.is_random_next)))
    a, b, label = np.array(rows).T
    return *truncated_lengths(a, b, max_seq_length - SPECIALS), label


def lengths_here(text: Text, max_seq_length: int, short_seq_probability: float, seed: int) -> Lengths:
    """Lengths and labels of the first epoch here."""
    phases = (Phase(max_seq_length, None),)
    examples = PreTrainingExamples(text, phases, seed=seed, short_seq_probability=short_seq_probability)
    plan, offsets = examples.plan(0, 0)[1], text.token_offsets
    a, b = offsets[plan.a_end] - offsets[plan.a_start], offsets[plan.b_end] - offsets[plan.b_start]
    return *truncated_lengths(a, b, max_seq_length - SPECIALS), plan.label


class LengthLeak(NamedTuple):
    """How well the lengths predict the label."""

    accuracy: float  # share of the labels that the trees predict correctly
    chance: float  # share of the more frequent label: the accuracy of always predicting it
    error: float  # standard error of an accuracy of one half, for this number of pairs


def length_leak(length_a: np.ndarray, length_b: np.ndarray, label: np.ndarray) -> LengthLeak:
    """Predict the label of pairs only from their lengths: boosted trees, four-fold, always with the same folds.

    A model that can infer the label so learns that instead of language. [SEP] follows A and B, so its positions are
    the same information. The trees are fewer and smaller than scikit-learn's default, which overfits some thousand
    pairs and detects less of a small leak.

    Args:
        length_a, length_b: (N,) tokens of A and B as the model sees them: after truncation.
        label: (N,) 0 or 1.
    """
    columns = np.stack([length_a, length_b, length_a + length_b, length_a - length_b], axis=1)
    trees = HistGradientBoostingClassifier(
        max_iter=50,
        max_leaf_nodes=8,
        min_samples_leaf=40,
        early_stopping=False,  # pyright: ignore[reportArgumentType] - the stub names the type of "auto" only
        random_state=0,
    )
    folds = StratifiedKFold(4, shuffle=True, random_state=0)
    accuracy = cross_val_score(trees, columns, label, cv=folds).mean()

    ones = np.mean(label)
    return LengthLeak(float(accuracy), float(max(ones, 1 - ones)), float(0.5 / np.sqrt(len(label))))


def leak_of(make: Callable[..., Lengths], text: Text, *options) -> tuple[LengthLeak, int]:
    """Accuracy of labels predicted from lengths, and the number of pairs."""
    a, b, label = make(text, *options)
    some = np.random.default_rng(0).permutation(len(label))[:LEAK_PAIRS]
    return length_leak(a[some], b[some], label[some]), len(some)


def leak_rows(text: Text, short_seq_probability: float, seed: int = 0) -> Iterator[dict]:
    """The second table: one row a length and share of one-sentence documents."""
    for max_seq_length in LEAK_LENGTHS:
        for lone_share in LONE_SHARES:
            documents = short_documents(text, lone_share, seed)
            row = {"max_seq_length": max_seq_length, "lone_share": lone_share}
            for name, make in (("2018", lengths_2018), ("here", lengths_here)):
                leak, pairs = leak_of(make, documents, max_seq_length, short_seq_probability, seed)
                row[name] = {"pairs": pairs, **leak._asdict()}
            yield row


# ---- the tables


def difference(theirs, ours) -> str:
    """z of a statistic that must agree; nothing for one that differs on purpose."""
    if isinstance(theirs, tuple) and not np.isnan(theirs[1] + ours[1]):
        return f"z = {(ours[0] - theirs[0]) / max(np.hypot(theirs[1], ours[1]), 1e-12):+.1f}"
    return ""


def shown(value) -> str:
    value = value[0] if isinstance(value, tuple) else value
    if np.isnan(value):
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" if value > 1 else f"{value:.4f}"


def print_leaks(rows: list[dict]) -> None:
    print()
    print("% of the labels told from the lengths of A and B by boosted trees (by guessing the more frequent label)")
    print(f"{'length':>6} {'one-sentence documents':>22} {'2018':>13} {'here':>13} {'± 1 s.e.':>8} {'pairs here':>10}")
    for row in rows:
        told = [f"{100 * row[name]['accuracy']:.1f} ({100 * row[name]['chance']:.1f})" for name in ("2018", "here")]
        print(
            f"{row['max_seq_length']:>6} {row['lone_share']:>22.0%} {told[0]:>13} {told[1]:>13} "
            f"{100 * row['here']['error']:>8.1f} {row['here']['pairs']:>10,}"
        )


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    tokens, source, shape, options = parse(
        (TokenizerArguments, CorpusArguments, ExampleArguments, FidelityArguments), argv
    )
    tokenizer = load_or_train_tokenizer(tokens, source)
    text = Text.first(load_or_prepare_corpus(source, tokenizer, source.train_file), options.documents)
    theirs = statistics(epoch_2018(text, tokenizer, shape, options.max_predictions_per_seq, options.seed))
    ours = statistics(epoch_here(text, tokenizer, shape, options.seed))
    leaks = list(leak_rows(text, shape.short_seq_probability, options.seed))
    size = {
        "documents": len(text.document_starts),
        "sentences": len(text.token_offsets) - 1,
        "tokens": len(text.tokens),
    }
    print(", ".join(f"{count:,} {name}" for name, count in size.items()) + f", max_seq_length {shape.max_seq_length}")
    width = max(map(len, theirs))
    print(f"{'statistic':{width}} {'2018':>9} {'here':>9}")
    for name in theirs:
        z = difference(theirs[name], ours[name])
        print(f"{name:{width}} {shown(theirs[name]):>9} {shown(ours[name]):>9}  {z}".rstrip())
    print_leaks(leaks)
    plain = {
        which: {name: value[0] if isinstance(value, tuple) else value for name, value in metrics.items()}
        for which, metrics in (("2018", theirs), ("here", ours))
    }
    metrics = {**size, "max_seq_length": shape.max_seq_length, **plain, "length_leak": leaks}
    print(json.dumps(metrics).replace("NaN", "null"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
