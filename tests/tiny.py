"""A tiny tokenizer, model configuration and corpus for fast tests."""

import numpy as np
import torch
import transformers
from transformers import BertConfig, BertForPreTraining, BertTokenizer

PIECES = [*(f"w{i}" for i in range(60)), *(f"##x{i}" for i in range(34))]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES]


def tiny_tokenizer() -> BertTokenizer:
    return BertTokenizer(vocab={piece: index for index, piece in enumerate(VOCABULARY)})


def tiny_config(dropout: float = 0.1, **changes) -> BertConfig:
    shape = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    return BertConfig(**{**shape, **changes})


def save_tiny_bert(folder, dropout: float = 0.1, **changes) -> None:
    """A stock checkpoint of random weights, always the same ones, and its tokenizer."""
    torch.manual_seed(0)
    BertForPreTraining(tiny_config(dropout, **changes)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def save_random(folder, kind: str = "SequenceClassification", trained_on: dict | None = None, **changes) -> tuple:
    """A model of random weights, so large that its predictions differ, and its tokenizer; of 24 tokens."""
    torch.manual_seed(3)
    model = getattr(transformers, f"BertFor{kind}")(tiny_config(**changes))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=1.0)
    if trained_on:
        model.config.trained_on = trained_on
    model.save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = 24
    tokenizer.save_pretrained(folder)
    return model.eval(), tokenizer


class TinyStore:
    """A corpus of random tokens in one window: documents of different lengths."""

    def __init__(self, documents: int = 60, seed: int = 0, longest: int = 20):
        rng = np.random.default_rng(seed)
        sentences = rng.integers(2, longest, documents)
        self.document_ends = np.cumsum(sentences)
        self.document_starts = self.document_ends - sentences
        lengths = rng.integers(1, 20, sentences.sum())
        self.token_offsets = np.concatenate([[0], np.cumsum(lengths)])
        self.tokens = rng.integers(5, len(VOCABULARY), lengths.sum())

    def windows(self, rng=None) -> list[str]:
        return ["all"]

    def window(self, part) -> "TinyStore":
        return self

    def ids(self, first_sentence: int, last_sentence: int) -> np.ndarray:
        return self.tokens[self.token_offsets[first_sentence] : self.token_offsets[last_sentence]]


class TinyWindows:
    """A corpus of several windows, in another order every epoch."""

    def __init__(self, count: int = 3):
        self.stores = [TinyStore(20, seed) for seed in range(count)]

    def windows(self, rng: np.random.Generator | None = None) -> list[int]:
        return list(range(len(self.stores))) if rng is None else rng.permutation(len(self.stores)).tolist()

    def window(self, part: int) -> TinyStore:
        return self.stores[part]
