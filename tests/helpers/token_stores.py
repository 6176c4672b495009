"""Corpora written from lists of token ids."""

import numpy as np

from bert_hf.data.corpus.shards import ShardWriter, write_manifest
from bert_hf.data.corpus.store import Corpus
from bert_hf.data.text.encoding import Encoded


def encoded(rng, documents: int, cut: bool = False) -> Encoded:
    """Random documents of 0 to 5 sentences, a piece each; with `cut` in up to three pieces."""
    sentences, ends = [], []
    for _ in range(documents):
        pieces = rng.integers(1, 4) if cut else 1
        sentences += rng.integers(0, 6, pieces).tolist()
        ends += [False] * (pieces - 1) + [True]
    lengths = rng.integers(1, 9, sum(sentences)).astype(np.int32)
    ids = rng.integers(0, 100, lengths.sum()).astype(np.uint16)
    return Encoded(ids, lengths, np.array(sentences), np.array(ends), int((ids == 1).sum()))


def write(folder, shards: int = 3, documents: int = 40, seed: int = 0) -> Corpus:
    rng = np.random.default_rng(seed)
    entries = []
    for number in range(shards):
        with ShardWriter(folder / f"data-{number:05d}.arrow", {"source": "x", "fingerprint": f"{seed}-{number}"}) as w:
            for _ in range(3):
                w.add(encoded(rng, documents, cut=True))
        entries.append(w.record)
    write_manifest(folder, {}, entries)
    return Corpus(folder)


def rows(window) -> list[list[list[int]]]:
    """Documents → sentences → ids."""
    return [
        [window.ids(s, s + 1).tolist() for s in range(start, end)]
        for start, end in zip(window.document_starts, window.document_ends, strict=True)
    ]
