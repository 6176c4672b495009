"""Writes features to a folder of Parquet files, each complete or absent, and resumes with the first that is absent."""

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bert_hf.analysis.features.arguments import FEATURE_RECORD
from bert_hf.analysis.features.extraction import Chunk, FeatureExtractor
from bert_hf.analysis.features.texts import Text
from bert_hf.config.files import write_durably
from bert_hf.errors import InputError
from bert_hf.training.command_line import program
from bert_hf.training.output_folder import read_record, refuse_foreign_files, take_lock
from bert_hf.training.run_fingerprint import describe, differences

_NAME = "features-{:05d}.parquet"
_TEMPORARY = ".features.parquet.tmp"


@dataclass
class WrittenFile:
    """A file that is complete: its name and size, and counts of its texts."""

    file: str
    bytes: int = 0
    texts: int = 0
    tokens: int = 0
    empty: int = 0
    cut: int = 0


@dataclass
class FeatureFolder:
    """A folder of features: which texts, network and settings made it, and which files are complete.

    Args:
        identity: what distinguishes these features from others, as JSON values.
    """

    path: Path
    identity: dict
    files: list[WrittenFile] = field(default_factory=list)
    finished: bool = False

    def count(self, name: str) -> int:
        """The sum of a count over the files."""
        return sum(getattr(file, name) for file in self.files)

    def save(self) -> None:
        """Writes the record of the folder."""
        files = [asdict(file) for file in self.files]
        record = {"bert_hf": version("bert-hf"), "identity": self.identity, "files": files, "finished": self.finished}
        write_durably(self.path / FEATURE_RECORD, json.dumps(record, indent=2) + "\n")


def open_folder(path: Path, identity: dict, overwrite: bool) -> FeatureFolder:
    """Locks a folder that is new, empty, or holds (a part of) the same features.

    Args:
        overwrite: features that an earlier run of ours wrote there are removed.

    Raises:
        InputError: it holds other features, or files that are not ours.
    """
    identity = json.loads(json.dumps(identity))
    if read_record(path / FEATURE_RECORD) is None:
        refuse_foreign_files(path, overwrite, known_by=FEATURE_RECORD)
    path.mkdir(parents=True, exist_ok=True)
    take_lock(path)

    record = read_record(path / FEATURE_RECORD)
    if record is not None and overwrite:
        for file in [path / _TEMPORARY, *path.glob("features-*.parquet"), path / FEATURE_RECORD]:
            file.unlink(missing_ok=True)
        record = None
    if record is None:
        folder = FeatureFolder(path, identity)
        folder.save()
        return folder

    if found := differences(record["identity"], identity):
        raise InputError(
            f"the output folder holds other features: {describe(found)}",
            where=path,
            remedy="give another --output_dir, or --overwrite_output_dir to lose them",
        )
    recorded = [WrittenFile(**entry) for entry in record["files"]]
    files = list(takewhile(lambda file: _size(path / file.file) == file.bytes, recorded))
    return FeatureFolder(path, identity, files, record["finished"] and len(files) == len(recorded))


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


# ---- writing


def write_features(
    folder: FeatureFolder,
    extractor: FeatureExtractor,
    texts: Iterable[Text],
    texts_per_file: int,
    dtype: str,
    report: Callable[[str], None],
) -> None:
    """Writes the features that the folder lacks, a file after the other.

    Args:
        texts: all texts, from the first on; those of files that are complete are read and not computed.
        dtype: of the features, `float32` or `float16`.
        report: takes a line for each file that was written.

    Raises:
        InputError: of `texts`; the folder is not finished then.
    """
    remaining = islice(texts, folder.count("texts"), None)
    while True:
        begin = time.perf_counter()
        written = _write_file(folder, extractor, islice(remaining, texts_per_file), np.dtype(dtype))
        if written is None:
            break

        folder.files.append(written)
        folder.save()
        speed = written.texts / (time.perf_counter() - begin)
        report(f"{folder.path / written.file}: {written.texts:,} texts, {speed:,.0f} a second")

    folder.finished = True
    folder.save()


def _write_file(
    folder: FeatureFolder, extractor: FeatureExtractor, texts: Iterable[Text], dtype: np.dtype
) -> WrittenFile | None:
    """Writes a file, a row group a chunk, under a temporary name until it is complete; None where there is no text."""
    written = WrittenFile(_NAME.format(len(folder.files)))
    before = folder.count("texts")
    temporary = folder.path / _TEMPORARY
    writer: pq.ParquetWriter | None = None
    try:
        with open(temporary, "wb") as file:
            for chunk in extractor.chunks(texts):
                batch = _record_batch(chunk, before + written.texts, extractor, dtype)
                writer = writer or pq.ParquetWriter(file, batch.schema, use_dictionary=False, write_statistics=False)
                writer.write_batch(batch)
                _count(written, chunk)
            if writer is None:
                return None
            writer.close()
            file.flush()
            os.fsync(file.fileno())

        written.bytes = temporary.stat().st_size
        os.replace(temporary, folder.path / written.file)
    finally:
        temporary.unlink(missing_ok=True)
    return written


def _count(written: WrittenFile, chunk: Chunk) -> None:
    written.texts += len(chunk.texts)
    written.tokens += sum(len(text.ids) for text in chunk.texts)
    written.empty += sum(text.empty for text in chunk.texts)
    written.cut += sum(text.cut for text in chunk.texts)


def _record_batch(chunk: Chunk, begin: int, extractor: FeatureExtractor, dtype: np.dtype) -> pa.RecordBatch:
    """The columns of a chunk: `id`, then with pooling `none` those of the tokens, then `layer_N` for each layer.

    Args:
        begin: number of the first text.
    """
    texts = chunk.texts
    if texts[0].id is None:
        columns = {"id": pa.array(range(begin, begin + len(texts)), pa.int64())}
    else:
        columns = {"id": pa.array([text.id for text in texts], pa.string())}

    by_token = extractor.pooling == "none"
    ends = pa.array(np.cumsum([0, *(len(text.ids) for text in texts)]), pa.int32())
    if by_token:
        columns["tokens"] = pa.array([text.tokens for text in texts], pa.list_(pa.string()))
        pairs = pa.list_(pa.int32(), 2)
        columns["offsets"] = pa.array([text.offsets for text in texts], pa.list_(pairs))
        segments = pa.array(np.concatenate([text.segments for text in texts]))
        columns["segments"] = pa.ListArray.from_arrays(ends, segments)

    for layer, array in zip(extractor.layers, chunk.features, strict=True):
        numbers = pa.array(array.astype(dtype, copy=False).ravel())
        vectors = pa.FixedSizeListArray.from_arrays(numbers, array.shape[1])
        columns[f"layer_{layer}"] = pa.ListArray.from_arrays(ends, vectors) if by_token else vectors
    return pa.record_batch(columns)


# ---- report


def summary(folder: FeatureFolder) -> list[str]:
    """Lines about a complete folder: counts, columns, and how it is read."""
    shown = [f"{folder.count('texts'):,} texts", f"{folder.count('tokens'):,} tokens"]
    if empty := folder.count("empty"):
        shown.append(f"{empty:,} texts are empty")
    if cut := folder.count("cut"):
        shown.append(f"{cut:,} were cut at {folder.identity['max_seq_length']} tokens")

    schema = pq.read_schema(folder.path / folder.files[0].file)
    width = schema.field(-1).type
    while pa.types.is_list(width):
        width = width.value_type
    reading = f"import pyarrow.parquet as pq; print(pq.read_table('{folder.path}').schema)"
    return [
        ", ".join(shown),
        f"columns: {', '.join(schema.names)}; vectors of {width.list_size} {folder.identity['dtype']}",
        f"features: {folder.path}",
        f'next: {program("python")} -c "{reading}"',
    ]
