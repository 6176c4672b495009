"""Writes hidden states of texts as Parquet files: one vector per text or per token, in bounded memory, resumable."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from bert_hf.config.arguments import OutputArguments, option
from bert_hf.config.files import write_durably
from bert_hf.data.corpus.checksums import file_checksum, text_checksum
from bert_hf.data.examples.collator import pad_inputs
from bert_hf.data.text.input_files import expand, kind_of
from bert_hf.data.text.readers import read_lines
from bert_hf.data.text.sources import TextFile
from bert_hf.data.text.tables import choose_column, read_rows, text_of
from bert_hf.data.text.tokenization import check_tokenizer, load_tokenizer, tokenizer_checksum
from bert_hf.errors import InputError
from bert_hf.models.loading import CONFIG, load_network, open_checkpoint, weight_files
from bert_hf.training.output_folder import read_record, refuse_foreign_files, take_lock
from bert_hf.training.run_fingerprint import describe, differences

FEATURE_RECORD = "_features.json"  # marks a folder of ours; readers of Parquet folders skip names that begin with "_"
TEXTS_PER_FILE = 100_000
_TEXTS_PER_CHUNK = {"none": 256}  # that are sorted by length and written together; 4,096 where they are pooled
_NAME = "features-{:05d}.parquet"
_SEPARATOR = " ||| "  # between the texts of a pair in a line (extract_features.py of google-research/bert)


@dataclass
class FeatureArguments:
    """Which checkpoint reads which texts, and which of its hidden states are kept."""

    model_name_or_path: str | None = option(None, "Checkpoint (folder or Hub id).")
    train_file: list[str] | None = option(
        None, "Texts: .txt (a line is a text, or a pair as `A ||| B`), or rows of .jsonl .csv .tsv .parquet."
    )
    text_column: str | None = option(None, "Column of the text; by default a usual name.")
    text_pair_column: str | None = option(None, "Column of the second text of a pair.")
    layers: list[int] | None = option(None, "0 = embeddings, 1 … = layers, -1 = the last one. By default -1.")
    pooling: str = option("mean", "One vector per text, or `none`: one per token.", ("none", "cls", "mean", "max"))
    max_seq_length: int = option(128, "Tokens of a text (or a pair), [CLS] and [SEP] included; longer ones are cut.")
    per_device_eval_batch_size: int = option(32, "Texts per batch.")
    dtype: str = option("float32", "Type of the numbers written.", ("float32", "float16"))


# ---- texts

Text = tuple[str, str | None]  # a text, or a pair


def read_texts(feature_args: FeatureArguments) -> Iterator[Text]:
    """Every line of the plain text files and every row of the tables, in order, empty ones included.

    Raises:
        InputError: with file and line; or there are no texts at all.
    """
    files = expand(feature_args.train_file or [])
    count = 0
    for path in files:
        plain = kind_of(path) in (".txt", "")
        for text in _lines(path) if plain else _rows(path, feature_args.text_column, feature_args.text_pair_column):
            count += 1
            yield text
    if not count:
        raise InputError("no texts found", where=str(files[0]), remedy="give files that hold text")


def _lines(path: str) -> Iterator[Text]:
    for _, line in read_lines(path):
        text, separator, pair = line.rpartition(_SEPARATOR)  # the last one, as in the 2018 code
        yield (text, pair) if separator else (line, None)


def _rows(path: str, text_column: str | None, pair_column: str | None) -> Iterator[Text]:
    for row in read_rows(path):
        if text_column is None:
            others = {name: value for name, value in row.values.items() if name != pair_column}
            text_column = choose_column(row._replace(values=others))
        pair = text_of(row, pair_column) or "" if pair_column else None
        yield text_of(row, text_column) or "", pair


# ---- hidden states


class Encoded(NamedTuple):
    """The tokens of a text: ids and segments (L,), strings, and the characters [begin, end) each was made from."""

    ids: np.ndarray
    segments: np.ndarray
    tokens: list[str]
    offsets: list[tuple[int, int]]


@dataclass
class FeatureExtractor:
    """Hidden states of a stock network in fp32.

    Args:
        layers: numbers of the K layers that are kept, 0 for the embeddings.
        pooling: `none`, `cls`, `mean` or `max`.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    layers: list[int]
    pooling: str
    max_seq_length: int
    batch_size: int

    def encode(self, texts: Iterable[tuple[str, str | None]]) -> list[Encoded]:
        """The tokens of texts, special tokens included, cut at the longest length."""
        rust = self.tokenizer.backend_tokenizer  # pyright: ignore[reportAttributeAccessIssue] - a fast tokenizer
        rust.enable_truncation(self.max_seq_length, strategy="longest_first")
        encodings = rust.encode_batch([(text, pair) if pair else text for text, pair in texts])
        return [
            Encoded(np.array(one.ids, np.int32), np.array(one.type_ids, np.int8), one.tokens, one.offsets)
            for one in encodings
        ]

    @torch.inference_mode()
    def states(self, texts: list[Encoded]) -> list[np.ndarray]:
        """(R, H) float32 for each kept layer; R is the number of texts, or of their tokens without pooling."""
        counts = [len(text.ids) if self.pooling == "none" else 1 for text in texts]
        ends = np.cumsum(counts)
        found = [np.empty((int(ends[-1]), self.model.config.hidden_size), np.float32) for _ in self.layers]

        order = sorted(range(len(texts)), key=lambda number: -len(texts[number].ids))
        for begin in range(0, len(order), self.batch_size):
            numbers = order[begin : begin + self.batch_size]
            ids, segments = zip(*[texts[number][:2] for number in numbers], strict=True)
            pad: Any = self.tokenizer.pad_token_id
            inputs = pad_inputs(list(ids), pad, self.model.device, list(segments))
            hidden = self.model(**inputs, output_hidden_states=True).hidden_states  # (B, L, H) for each layer
            for array, layer in zip(found, self.layers, strict=True):
                pooled = pool(hidden[layer], inputs["attention_mask"], self.pooling).cpu().numpy()
                for number, vectors in zip(numbers, pooled, strict=True):
                    array[ends[number] - counts[number] : ends[number]] = vectors[: counts[number]]
        return found


def pool(states: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """One vector per text from those of its tokens, [CLS] and [SEP] included and padding excluded.

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
    """Loads the network by stock `AutoModel`; returns it and the settings that distinguish its features from others.

    Raises:
        InputError: nothing can be loaded from there, or tokenizer, length, layers and network do not fit.
    """
    where = str(feature_args.model_name_or_path)
    folder, config, device = open_checkpoint(where, feature_args.max_seq_length)
    tokenizer = load_tokenizer(where)
    check_tokenizer(tokenizer, config.vocab_size)
    depth = config.num_hidden_layers
    wanted = feature_args.layers or [-1]
    if not all(-depth - 1 <= number <= depth for number in wanted):
        raise InputError(f"the network has {depth} layers", where="--layers", remedy=f"give {-depth - 1} to {depth}")
    layers = list(dict.fromkeys(number % (depth + 1) for number in wanted))

    model, _ = load_network(AutoModel, folder, where, ("pooler.",), dtype=torch.float32)  # the pooler is not read
    model.encoder.layer = model.encoder.layer[: max(1, *layers)]
    names = ("pooling", "max_seq_length", "dtype", "text_column", "text_pair_column")
    settings = {name: getattr(feature_args, name) for name in names} | {"layers": layers}
    settings["checkpoint"] = text_checksum(" ".join(map(file_checksum, [folder / CONFIG, *weight_files(folder)])))[:16]
    settings["tokenizer"] = tokenizer_checksum(tokenizer)[:16]
    settings["texts"] = text_checksum(
        " ".join(TextFile(str(p)).checksum() for p in expand(feature_args.train_file or []))
    )
    sizes = feature_args.max_seq_length, feature_args.per_device_eval_batch_size
    return FeatureExtractor(model.to(device).eval(), tokenizer, layers, feature_args.pooling, *sizes), settings


# ---- files


@dataclass
class FeatureFolder:
    """A folder of features: what made it, and which of its files (name, bytes, texts) are complete."""

    path: Path
    identity: dict
    files: list[dict] = field(default_factory=list)
    finished: bool = False

    def save(self) -> None:
        record = {"identity": self.identity, "files": self.files, "finished": self.finished}
        write_durably(self.path / FEATURE_RECORD, json.dumps(record, indent=2) + "\n")

    @property
    def texts(self) -> int:
        return sum(file["texts"] for file in self.files)


def open_folder(output_args: OutputArguments, identity: dict) -> FeatureFolder:
    """Locks a folder that is new, empty, or holds (a part of) the same features.

    Raises:
        InputError: it holds other features (`--overwrite_output_dir` removes them), or files that are not ours.
    """
    path = Path(str(output_args.output_dir))
    if read_record(path / FEATURE_RECORD) is None:
        refuse_foreign_files(path, output_args.overwrite_output_dir, known_by=FEATURE_RECORD)
    path.mkdir(parents=True, exist_ok=True)
    take_lock(path)

    record = read_record(path / FEATURE_RECORD)
    if record is not None and (other := differences(record["identity"], identity)):
        if not output_args.overwrite_output_dir:
            hint = "give another --output_dir, or --overwrite_output_dir to lose them"
            raise InputError(f"the folder holds other features: {describe(other)}", where=path, remedy=hint)
        for file in [*path.glob("features-*.parquet"), path / FEATURE_RECORD]:
            file.unlink(missing_ok=True)
        record = None
    if record is None:
        folder = FeatureFolder(path, identity)
        folder.save()
        return folder
    complete = takewhile(lambda file: _size(path / file["file"]) == file["bytes"], record["files"])
    folder = FeatureFolder(path, identity, list(complete))
    folder.finished = record["finished"] and len(folder.files) == len(record["files"])
    return folder


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def write_features(
    folder: FeatureFolder, extractor: FeatureExtractor, texts: Iterable[Text], report: Callable
) -> None:
    """Writes the files that the folder lacks, one after the other; the texts of complete files are skipped."""
    dtype = np.dtype(folder.identity["dtype"])
    at_once = _TEXTS_PER_CHUNK.get(extractor.pooling, 4096)
    remaining = islice(texts, folder.texts, None)
    while chunk := list(islice(remaining, min(at_once, TEXTS_PER_FILE))):
        name = _NAME.format(len(folder.files))
        temporary = folder.path / f".{name}.tmp"
        begin = count = folder.texts
        writer: pq.ParquetWriter | None = None
        with open(temporary, "wb") as file:
            while chunk:
                batch = _record_batch(extractor, extractor.encode(chunk), count, dtype)
                writer = writer or pq.ParquetWriter(file, batch.schema, use_dictionary=False, write_statistics=False)
                writer.write_batch(batch)
                count += len(chunk)
                room = TEXTS_PER_FILE - (count - begin)
                chunk = list(islice(remaining, min(at_once, room)))
            assert writer is not None
            writer.close()
            file.flush()
            os.fsync(file.fileno())

        os.replace(temporary, folder.path / name)
        folder.files.append({"file": name, "bytes": _size(folder.path / name), "texts": count - begin})
        folder.save()
        report(f"{folder.path / name}: {count - begin:,} texts")
    folder.finished = True
    folder.save()


def _record_batch(extractor: FeatureExtractor, texts: list[Encoded], begin: int, dtype: np.dtype) -> pa.RecordBatch:
    """The columns `id` (from `begin` on), with pooling `none` those of the tokens, and `layer_N` for each layer."""
    columns: dict[str, pa.Array] = {"id": pa.array(range(begin, begin + len(texts)), pa.int64())}
    by_token = extractor.pooling == "none"
    ends = pa.array(np.cumsum([0, *(len(text.ids) for text in texts)]), pa.int32())
    if by_token:
        columns["tokens"] = pa.array([text.tokens for text in texts], pa.list_(pa.string()))
        columns["offsets"] = pa.array([text.offsets for text in texts], pa.list_(pa.list_(pa.int32(), 2)))
        segments = pa.array(np.concatenate([text.segments for text in texts]))
        columns["segments"] = pa.ListArray.from_arrays(ends, segments)

    for layer, array in zip(extractor.layers, extractor.states(texts), strict=True):
        numbers = pa.array(array.astype(dtype, copy=False).ravel())
        vectors = pa.FixedSizeListArray.from_arrays(numbers, array.shape[1])
        columns[f"layer_{layer}"] = pa.ListArray.from_arrays(ends, vectors) if by_token else vectors
    return pa.record_batch(columns)
