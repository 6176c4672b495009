"""Measures the geometry of the states: how different [CLS] vectors of texts are, how many directions tokens use."""

import numpy as np
import torch
from transformers import BertForPreTraining

from bert_hf.analysis.probe.data import LabelledTask
from bert_hf.analysis.probe.network import Subject, batches_by_length, model_inputs

MAX_TEXTS, MAX_TOKENS = 500, 4000
COLLAPSED_COSINE = 0.99  # mean cosine of [CLS] of different texts, from which on it hardly depends on the text
COLLAPSED_RANK = 0.05  # effective rank of the token states as a share of their width, below which they are collapsed


def mean_pairwise_cosine(vectors: np.ndarray) -> float:
    """Mean cosine of all pairs of different rows of (N, H)."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    count = len(unit)
    return float((np.square(unit.sum(0)).sum() - count) / (count * (count - 1)))


def effective_rank(vectors: np.ndarray) -> float:
    """Effective rank of the centred rows of (N, H): exp of the entropy of the normalised singular values.

    Roy & Vetterli 2007, "The effective rank". H equally strong directions give H, a single one gives 1, equal rows 1.
    """
    values = np.linalg.svd(vectors - vectors.mean(0), compute_uv=False)
    if values.sum() <= 1e-6 * max(1.0, float(np.abs(vectors).max())):
        return 1.0
    shares = values / values.sum()
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


def share_along(vectors: np.ndarray, direction: np.ndarray) -> float:
    """Share of the variance of the rows of (N, H) that lies along a direction (H,)."""
    centred = vectors - vectors.mean(0)
    total = np.square(centred).sum()
    along = np.square(centred @ (direction / np.linalg.norm(direction))).sum()
    return float(along / total) if total > 0 else 0.0


@torch.no_grad()
def probe_geometry(model: BertForPreTraining, rows: list[dict], subject: Subject) -> dict:
    """Metrics of every layer on some texts.

    Args:
        rows: `input_ids` and `token_type_ids` of different texts.

    Returns:
        layers: [{layer, cls_cosine, cls_rank, token_cosine, token_rank, collapsed}], layer 0 the embeddings; pooler
        {cosine, rank, nsp_share}, where nsp_share is the share of its variance along the direction that the
        next-sentence head reads; width; texts; collapsed: names of the collapsed layers.
    """
    rows = rows[:MAX_TEXTS]
    firsts, tokens, pooled = [], [], []
    for batch in batches_by_length([len(row["input_ids"]) for row in rows]):
        inputs = model_inputs([rows[row] for row in batch], subject)
        output = model.bert(**inputs, output_hidden_states=True)
        states = torch.stack(output.hidden_states)  # (layers + 1, B, L, H)
        firsts.append(states[:, :, 0].cpu())
        inside = inputs["attention_mask"].bool()
        inside[:, 0] = False
        tokens.append(states[:, inside].cpu())  # (layers + 1, tokens, H)
        pooled.append(output.pooler_output.cpu())

    first, token = torch.cat(firsts, 1).double().numpy(), torch.cat(tokens, 1)
    chosen = np.random.default_rng(subject.seed).permutation(token.shape[1])[:MAX_TOKENS]
    token = token[:, chosen].double().numpy()

    layers = [_layer(number, *states) for number, states in enumerate(zip(first, token, strict=True))]
    vectors = torch.cat(pooled).double().numpy()
    weight = model.cls.seq_relationship.weight.double().cpu().numpy()
    pooler = {
        "cosine": mean_pairwise_cosine(vectors),
        "rank": effective_rank(vectors),
        "nsp_share": share_along(vectors, weight[0] - weight[1]),
    }

    names = [name for layer in layers for name in layer["collapsed"]]
    if pooler["cosine"] >= COLLAPSED_COSINE:
        names.append("pooler output")
    return {"layers": layers, "pooler": pooler, "width": first.shape[2], "texts": len(rows), "collapsed": names}


def _layer(number: int, first: np.ndarray, token: np.ndarray) -> dict:
    """Metrics of one layer from [CLS] (N, H) and other tokens (T, H)."""
    found = {
        "layer": number,
        "cls_cosine": mean_pairwise_cosine(first),
        "cls_rank": effective_rank(first),
        "token_cosine": mean_pairwise_cosine(token),
        "token_rank": effective_rank(token),
    }
    # The [CLS] of layer 0 is the same in all texts, by construction.
    cls = number > 0 and found["cls_cosine"] >= COLLAPSED_COSINE
    tokens = found["token_rank"] < COLLAPSED_RANK * token.shape[1]
    states = {f"[CLS] of layer {number}": cls, f"tokens of layer {number}": tokens}
    found["collapsed"] = [name for name, collapsed in states.items() if collapsed]
    return found


def vocabulary_use(task: LabelledTask, subject: Subject) -> dict:
    """How the tokenizer splits the words of a task's texts.

    Returns:
        fertility (tokens a word; words as the pre-tokenizer has them, punctuation marks among them; Rust et al. 2021),
        split_words (share of words of several pieces), vocabulary_in_use (share), unknown (share of tokens).
    """
    encoded = subject.tokenizer(task.joined(), add_special_tokens=False)
    ids = np.array([index for row in encoded["input_ids"] for index in row], dtype=np.int64)

    words = [np.array(encoded.word_ids(number), dtype=np.int64) for number in range(len(task))]
    pieces_of_word = np.concatenate([np.unique(text, return_counts=True)[1] for text in words])

    return {
        "tokens": len(ids),
        "fertility": float(pieces_of_word.mean()),
        "split_words": float((pieces_of_word > 1).mean()),
        "vocabulary_in_use": len(np.unique(ids)) / len(subject.tokenizer),
        "unknown": float((ids == subject.tokenizer.unk_token_id).mean()),
    }
