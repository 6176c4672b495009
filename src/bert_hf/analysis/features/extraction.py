"""Computes the hidden states of texts, a bounded number of texts at a time, and pools them without the padding."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModel, PreTrainedModel

from bert_hf.analysis.features.arguments import FeatureArguments, chosen_layers
from bert_hf.analysis.features.texts import Text
from bert_hf.data.corpus.checksums import file_checksum, text_checksum
from bert_hf.data.examples.collator import pad_inputs
from bert_hf.data.text.tokenization import backend, check_tokenizer, load_tokenizer, tokenizer_checksum
from bert_hf.models.loading import CONFIG, load_network, open_checkpoint, weight_files

_TEXTS = 4096  # in a chunk, at most
_BYTES = 32_000_000  # of features in a chunk, unless one text has more
_ENCODED = 256  # texts that are tokenized at a time, at most
_CHARACTERS = 1_000_000  # of these texts, unless one has more

# Shapes in this file: N texts of a chunk, B of a batch, L tokens of the longest, H width, K chosen layers; R rows of
# the features of a chunk: N where they are pooled, else the tokens of all its texts.


class EncodedText(NamedTuple):
    """The tokens of a text, special tokens included.

    Attributes:
        id: of the text, where a column holds one. empty: whether the text is nothing but white space.
        ids: (L,) int32.
        segments: (L,) int8, 0 in the first text and 1 in the second one of a pair.
        cut: whether tokens beyond the longest length were left out.
        tokens, offsets: each token, and the characters [begin, end) of its text that it was made from ((0, 0) for a
            special token); empty where the features of a text are pooled.
    """

    id: str | None
    empty: bool
    ids: np.ndarray
    segments: np.ndarray
    cut: bool
    tokens: list[str]
    offsets: list[tuple[int, int]]


class Chunk(NamedTuple):
    """Consecutive texts in input order, and their features.

    Attributes:
        features: an array (R, H) of float32 for each chosen layer.
    """

    texts: list[EncodedText]
    features: list[np.ndarray]


@dataclass
class FeatureExtractor:
    """A stock network, its tokenizer, and the hidden states that are kept.

    Args:
        model: `AutoModel` of a BERT in fp32, without the layers above the highest that is asked for.
        tokenizer: one that cuts at the longest length.
        layers: K numbers, 0 for the embeddings.
        pooling: `none`, `cls`, `mean` or `max`.
        batch_size: texts in a batch.
    """

    model: PreTrainedModel
    tokenizer: Tokenizer
    pad_id: int
    layers: list[int]
    pooling: str
    batch_size: int

    @property
    def width(self) -> int:
        """H, numbers in a hidden state."""
        return self.model.config.hidden_size

    def chunks(self, texts: Iterable[Text]) -> Iterator[Chunk]:
        """Features of the texts, in their order, as chunks of at most `_TEXTS` texts and about `_BYTES` of features.

        Texts are sorted by length only within a chunk, so the memory does not grow with their number.
        """
        most = max(1, _BYTES // (4 * self.width * len(self.layers)))  # rows of features
        held: list[EncodedText] = []
        rows = 0
        for text in self.encoded(texts):
            more = len(text.ids) if self.pooling == "none" else 1
            if held and (len(held) == _TEXTS or rows + more > most):
                yield Chunk(held, self.features(held))
                held, rows = [], 0
            held.append(text)
            rows += more

        if held:
            yield Chunk(held, self.features(held))

    def encoded(self, texts: Iterable[Text]) -> Iterator[EncodedText]:
        """The tokens of the texts, in their order."""
        by_token = self.pooling == "none"
        for group in _groups(texts):
            inputs = [(text.text, text.pair) if text.pair else text.text for text in group]
            for text, encoding in zip(group, self.tokenizer.encode_batch(inputs), strict=True):
                ids, segments = np.array(encoding.ids, np.int32), np.array(encoding.type_ids, np.int8)
                tokens, offsets = (encoding.tokens, encoding.offsets) if by_token else ([], [])
                yield EncodedText(text.id, text.empty, ids, segments, bool(encoding.overflowing), tokens, offsets)

    @torch.inference_mode()
    def features(self, texts: list[EncodedText]) -> list[np.ndarray]:
        """(R, H) float32 for each chosen layer; the texts are computed longest first."""
        counts = [len(text.ids) if self.pooling == "none" else 1 for text in texts]
        ends = np.cumsum(counts)
        found = [np.empty((int(ends[-1]), self.width), np.float32) for _ in self.layers]

        order = sorted(range(len(texts)), key=lambda number: -len(texts[number].ids))
        for begin in range(0, len(order), self.batch_size):
            numbers = order[begin : begin + self.batch_size]
            batch = [texts[number] for number in numbers]
            ids, segments = [text.ids for text in batch], [text.segments for text in batch]
            inputs = pad_inputs(ids, self.pad_id, self.model.device, segments)
            states = self.model(**inputs, output_hidden_states=True).hidden_states  # tuple of (B, L, H)
            for array, layer in zip(found, self.layers, strict=True):
                pooled = pool(states[layer], inputs["attention_mask"], self.pooling).cpu().numpy()
                for number, vectors in zip(numbers, pooled, strict=True):
                    array[ends[number] - counts[number] : ends[number]] = vectors[: counts[number]]
        return found


def _groups(texts: Iterable[Text]) -> Iterator[list[Text]]:
    """Consecutive texts to be tokenized together."""
    held: list[Text] = []
    characters = 0
    for text in texts:
        held.append(text)
        characters += len(text.text) + len(text.pair or "")
        if len(held) == _ENCODED or characters >= _CHARACTERS:
            yield held
            held, characters = [], 0
    if held:
        yield held


def pool(states: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """One vector a text from those of its tokens, [CLS] and [SEP] included and padding excluded.

    Of a text [CLS] a [SEP] in a batch padded to length 4, with states 1, 2, 6 and 9 (padding):

        cls → 1      mean → (1 + 2 + 6) / 3 = 3      max → 6      none → 1, 2, 6, 9 (the caller drops the padding)

    Args:
        states: (B, L, H). mask: (B, L), 0 where padding is.

    Returns:
        (B, 1, H); for `none` the states as they are, (B, L, H).
    """
    if pooling == "none":
        return states
    if pooling == "cls":
        return states[:, :1]

    real = mask[:, :, None].bool()  # (B, L, 1)
    if pooling == "max":
        return states.masked_fill(~real, -torch.inf).amax(1, keepdim=True)
    return states.masked_fill(~real, 0).sum(1, keepdim=True) / real.sum(1, keepdim=True)


def open_extractor(feature_args: FeatureArguments) -> tuple[FeatureExtractor, dict]:
    """Loads the network by stock `AutoModel` on the GPU, where there is one; sets the threads of a CPU.

    Returns:
        The extractor, and the settings that distinguish its features from others.

    Raises:
        InputError: nothing can be loaded from there, or tokenizer, length, layers and network do not fit.
    """
    where = str(feature_args.model_name_or_path)
    folder, config, device = open_checkpoint(where, feature_args.max_seq_length)
    tokenizer = load_tokenizer(feature_args.tokenizer_name or where)
    check_tokenizer(tokenizer, config.vocab_size)
    layers = chosen_layers(feature_args.layers or [-1], config.num_hidden_layers)

    model, _ = load_network(AutoModel, folder, where, ("pooler.",), dtype=torch.float32)  # the pooler is not read
    model.encoder.layer = model.encoder.layer[: max(1, *layers)]

    rust = backend(tokenizer)
    rust.enable_truncation(feature_args.max_seq_length, strategy="longest_first")
    extractor = FeatureExtractor(
        model.to(device).eval(),
        rust,
        cast(int, tokenizer.pad_token_id),
        layers,
        feature_args.pooling,
        feature_args.per_device_eval_batch_size,
    )
    return extractor, {
        "checkpoint": _checksum(folder),
        "tokenizer": tokenizer_checksum(tokenizer)[:16],
        "layers": layers,
        "pooling": feature_args.pooling,
        "max_seq_length": feature_args.max_seq_length,
        "dtype": feature_args.dtype,
    }


def _checksum(folder: Path) -> str:
    """Of all that decides the network: its shape and its weights."""
    files = [folder / CONFIG, *weight_files(folder)]
    return text_checksum(" ".join(map(file_checksum, files)))[:16]
