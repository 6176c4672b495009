"""Writes hidden states of texts as a Parquet file: one vector per text or per token, in bounded memory."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Encoding
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from bert_hf.config.checkpoint_arguments import FeatureArguments
from bert_hf.config.files import flush_to_disk
from bert_hf.console import logger
from bert_hf.data.examples.collator import pad_inputs
from bert_hf.data.text.input_files import expand_paths, kind_of
from bert_hf.data.text.readers import read_lines
from bert_hf.data.text.tables import choose_column, read_rows, text_of
from bert_hf.data.text.tokenization import load_tokenizer
from bert_hf.errors import InputError
from bert_hf.finetuning.predict import open_network
from bert_hf.models.inference import run_by_length
from bert_hf.models.loading import POOLING, check_positions, find_checkpoint, plain_file, read_safe_json

FEATURES_FILE = "features.parquet"
_SEPARATOR = " ||| "  # between the texts of a pair in a line (extract_features.py of google-research/bert)

TextOrPair = tuple[str, str | None]  # a text and None, or the two texts of a pair


def read_texts_or_pairs(feature_args: FeatureArguments) -> Iterator[TextOrPair]:
    """Yield every line of the plain text files and every row of the tables, in order, empty ones included."""
    for path in expand_paths(feature_args.train_file or []):
        if kind_of(path) in (".txt", ""):
            for _, line in read_lines(path):
                first, separator, second = line.rpartition(_SEPARATOR)  # the last one, as in the 2018 code
                yield (first, second) if separator else (line, None)
        else:
            column = feature_args.text_column
            for row in read_rows(path):
                column = column or choose_column(row)
                yield text_of(row, column) or "", None


@dataclass
class FeatureExtractor:
    """Computes the hidden states of texts with a stock network, in fp32."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    layers: list[int]  # numbers of the layers that are kept, 0 for the embeddings
    pooling: str  # none, cls or mean
    max_seq_length: int
    batch_size: int = 32

    def encode(self, texts: Iterable[TextOrPair]) -> list[Encoding]:
        """Return the tokens of texts, special tokens included, cut to `max_seq_length`; sets the tokenizer up so."""
        backend: Any = self.tokenizer.backend_tokenizer  # gives offsets and types without making a batch of them
        backend.enable_truncation(self.max_seq_length, strategy="longest_first")
        backend.no_padding()  # that a tokenizer.json may ask for: it would count as text
        return backend.encode_batch([(first, second) if second else first for first, second in texts])

    def states(self, texts: list[Encoding]) -> list[np.ndarray]:
        """Return (R, H) float32 for each kept layer; R is the number of texts, or of their tokens without pooling."""

        def compute(indices: list[int]) -> list[list[np.ndarray]]:
            """Return for each of these texts its vectors in each kept layer: (1 or its tokens, H)."""
            batch = [texts[index] for index in indices]
            pad: Any = self.tokenizer.pad_token_id
            segments = [text.type_ids for text in batch]
            inputs = pad_inputs([text.ids for text in batch], pad, self.model.device, segments)
            hidden = self.model(**inputs, output_hidden_states=True).hidden_states  # (B, L, H) for each layer
            mask = inputs["attention_mask"]
            pooled = [pool(hidden[layer], mask, self.pooling).cpu().numpy() for layer in self.layers]
            # A pooled text has one vector; without pooling, the vectors of padding are dropped here
            return [[layer[row, : len(text.ids)] for layer in pooled] for row, text in enumerate(batch)]

        by_text = run_by_length([len(text.ids) for text in texts], compute, rows=self.batch_size)
        return [np.concatenate(of_layer) for of_layer in zip(*by_text, strict=True)]  # all texts, in their order


def pool(states: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Return one vector per text from the vectors of its tokens, [CLS] and [SEP] included and padding excluded.

    Of a text [CLS] a [SEP] in a batch padded to length 4, with states 1, 2, 6 and 9 (padding):

        cls → 1      mean → (1 + 2 + 6) / 3 = 3      none → 1, 2, 6, 9 (the caller drops the padding)

    States (B, L, H) become (B, 1, H), but with `none`; the mask (B, L) is 0 where padding is.
    """
    if pooling == "none":
        return states
    if pooling == "cls":
        return states[:, :1]

    real = mask[:, :, None].bool()  # (B, L, 1)
    return states.masked_fill(~real, 0).sum(1, keepdim=True) / real.sum(1, keepdim=True)


def recorded_pooling(where: str) -> str:
    """Return the pooling that a sentence-transformers checkpoint records, and log it; `mean` for other checkpoints.

    Its file has a flag for each mode, such as `pooling_mode_cls_token`; newer ones have the name as `pooling_mode`.
    """
    folder = find_checkpoint(where, weights=False)
    content = read_safe_json(plain_file(folder, POOLING)) if (folder / POOLING).is_file() else {}
    mode_of_flag = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    flags = [name for name in content if name.startswith("pooling_mode_") and content[name]]
    pooling = content.get("pooling_mode", "mean")
    if flags:  # several are an error, too
        pooling = " and ".join(mode_of_flag.get(flag, flag) for flag in flags)
    if pooling not in mode_of_flag.values():
        raise InputError(f"pools by {pooling}", where=folder / POOLING, remedy="pass --pooling, which has other modes")
    if content:
        logger.info(f"pooling: {pooling}, as {POOLING} says")
    return pooling


def open_extractor(feature_args: FeatureArguments) -> FeatureExtractor:
    """Return the extractor of a checkpoint, loaded by stock `AutoModel` without the layers above the last kept one."""
    where = str(feature_args.model_name_or_path)
    length = feature_args.max_seq_length
    tokenizer = load_tokenizer(where, do_lower_case=feature_args.do_lower_case)
    model, tokenizer, _ = open_network(where, AutoModel, ("pooler.",), tokenizer)  # the pooler is not read
    check_positions(length, model.config.max_position_embeddings, where)
    depth = model.config.num_hidden_layers
    numbers = feature_args.layers or [-1]
    if not all(-depth - 1 <= number <= depth for number in numbers):
        remedy = f"give {-depth - 1} to {depth}"
        raise InputError(f"the model has only {depth} layers", where="--layers", remedy=remedy)
    layers = list(dict.fromkeys(number % (depth + 1) for number in numbers))  # −1 is the last, 0 the embeddings
    model.encoder.layer = model.encoder.layer[: max(1, *layers)]  # at least one, also for the embeddings

    pooling = feature_args.pooling or recorded_pooling(where)
    return FeatureExtractor(model, tokenizer, layers, pooling, length, feature_args.per_device_eval_batch_size)


def write_features(folder: Path, extractor: FeatureExtractor, texts: Iterable[TextOrPair]) -> int:
    """Write `features.parquet` with the hidden states of texts, complete or not at all; return the number of texts."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{FEATURES_FILE}.tmp"
    at_once = 256 if extractor.pooling == "none" else 4096  # texts that are sorted by length and written together

    count = 0
    remaining = iter(texts)
    writer: pq.ParquetWriter | None = None
    while chunk := list(islice(remaining, at_once)):
        batch = _record_batch(extractor, extractor.encode(chunk), count)
        writer = writer or pq.ParquetWriter(temporary, batch.schema, use_dictionary=False, write_statistics=False)
        writer.write_batch(batch)
        count += len(chunk)

    if writer is None:
        raise InputError("contains no texts", where="--train_file", remedy="give texts, one per line or row")
    writer.close()
    flush_to_disk(temporary)
    os.replace(temporary, folder / FEATURES_FILE)
    return count


def _record_batch(extractor: FeatureExtractor, texts: list[Encoding], first_id: int) -> pa.RecordBatch:
    """Return the columns `id` (from `first_id` on) and `layer_N`; per token also `tokens`, `offsets`, `segments`."""
    columns: dict[str, pa.Array] = {"id": pa.array(range(first_id, first_id + len(texts)), pa.int64())}
    by_token = extractor.pooling == "none"
    starts = pa.array(np.cumsum([0, *(len(text.ids) for text in texts)]), pa.int32())  # of each text, in tokens
    if by_token:
        columns["tokens"] = pa.array([text.tokens for text in texts], pa.list_(pa.string()))
        columns["offsets"] = pa.array([text.offsets for text in texts], pa.list_(pa.list_(pa.int32(), 2)))
        segments = pa.array(np.concatenate([np.array(text.type_ids, np.int8) for text in texts]))
        columns["segments"] = pa.ListArray.from_arrays(starts, segments)

    for layer, array in zip(extractor.layers, extractor.states(texts), strict=True):
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
        columns[f"layer_{layer}"] = pa.ListArray.from_arrays(starts, vectors) if by_token else vectors
    return pa.record_batch(columns)
