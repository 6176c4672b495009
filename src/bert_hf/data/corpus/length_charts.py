"""Draws the lengths of documents, sentences and examples, as lines of text and as a picture."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bert_hf.data.corpus.repetitions import kept_sentences
from bert_hf.data.corpus.store import Window
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.pair_shortcuts import MAX_PAIRS

_BAR = 40  # characters


def histogram(lengths: np.ndarray) -> Iterator[str]:
    """Lines of text: how many documents have 1, 2–3, 4–7, … tokens."""
    bins = np.bincount(np.log2(np.maximum(lengths, 1)).astype(int)) if len(lengths) else np.zeros(1, int)
    for power, count in enumerate(bins):
        if bins[: power + 1].any():
            bar = "█" * int(np.ceil(_BAR * count / bins.max()))
            yield f"{2**power:>9,} – {2 ** (power + 1) - 1:<9,} {bar:{_BAR}} {count:,}"


def draw_lengths(
    window: Window, examples: PreTrainingExamples, collator: DataCollatorForPreTraining, folder: Path
) -> Path:
    """Writes `lengths.png`: documents, sentences, and examples as the model sees them."""
    from matplotlib.figure import Figure

    number = min(MAX_PAIRS, len(examples))
    lengths = [len(collator.example(examples[index])["input_ids"]) for index in range(number)]
    sentences = np.diff(window.token_offsets)[kept_sentences(window)]

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for axis, values, what in ((left, window.sizes, "documents"), (middle, sentences, "sentences")):
        axis.hist(values, np.unique(np.geomspace(1, values.max() + 1, 40).round()), color="tab:blue")
        axis.set(xscale="log", xlabel="tokens", title=f"{len(values):,} {what}")
    right.hist(lengths, 40, color="tab:orange")
    title = f"{number:,} examples of at most {examples.phases[0].max_seq_length}"
    right.set(yscale="log", xlabel="tokens", title=title)

    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "lengths.png", dpi=110)
    return folder / "lengths.png"
