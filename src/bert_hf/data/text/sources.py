"""Inputs of a corpus: files, shards of Hub datasets, the documentation on this machine; rows of datasets for tasks.

A source is one input. It has a `name`, the same on every machine, a `checksum()` of its content, or of what identifies
it, and `read()`, which yields its documents in order, as `Piece`s. Sources are sent to worker processes.
"""

import contextlib
import functools
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_hf.config.files import file_checksum, text_checksum
from bert_hf.data.text.default_corpus import Documentation
from bert_hf.data.text.input_files import ARTICLES, kind_of
from bert_hf.data.text.line_breaks import join_wrapped_lines, wrap_width
from bert_hf.data.text.readers import Piece, cut_pieces, first_pieces, read_plain
from bert_hf.data.text.tables import Row, read_texts, row_texts, with_class_names
from bert_hf.errors import InputError, first_line

_HEAD = 1 << 16  # characters that tell whether a text is wrapped
_FEW_FILES = 100  # up to this number, small files do not share shards
_SMALL_FILE = 1 << 20  # bytes
_SHARD_BYTES, _SHARD_FILES = 1 << 23, 2000  # of small files that share a shard
_SPLIT_REMEDY = "give the folder of one split, which has state.json"
_HUB_REMEDY = "check the id, --dataset_config_name and the network, or give --train_file"


@dataclass(frozen=True)
class TextFile:
    """A file (.txt, .jsonl, .json lines, .parquet, .csv, .tsv, mails; also compressed).

    In plain text blank lines separate documents; elsewhere each row or mail is a document (see `tables`).
    """

    path: str
    text_column: str | None = None
    join_lines: bool | None = None  # lines that break sentences; None: where the beginning of the text is wrapped

    @property
    def name(self) -> str:
        """Return the last part of its path: the same on every machine."""
        return Path(self.path).name

    def checksum(self) -> str:
        """Return the SHA-256 of its bytes and of the width of lines that are joined."""
        checksum = file_checksum(self.path)
        width = self.width()
        return checksum if width is None else text_checksum(f"{checksum} joined at {width}")

    def width(self) -> int | None:
        """Return the width for `join_wrapped_lines`: 0 joins all lines of a paragraph; None: no line is joined."""
        if self.join_lines is not None:
            return 0 if self.join_lines else None
        status = os.stat(self.path)
        return _width_of_beginning(self, status.st_size, status.st_mtime_ns)

    def read(self) -> Iterator[Piece]:
        """Yield its documents, with wrapped lines joined."""
        width = self.width()
        for piece in self.read_as_it_stands():
            yield piece if width is None else piece._replace(text=join_wrapped_lines(piece.text, width))

    def read_as_it_stands(self) -> Iterator[Piece]:
        """Yield its documents with the line breaks of the file."""
        if kind_of(self.path) in (".txt", "", ARTICLES):
            yield from read_plain(self.path)
            return
        for text in read_texts(self.path, self.text_column):
            yield from cut_pieces(text)


@dataclass(frozen=True)
class SmallFiles:
    """Small files that are one source, so that they share a shard: each shard costs time and space of its own."""

    files: tuple[TextFile, ...]

    @property
    def name(self) -> str:
        """Return the names of the first and the last file, and the number of files."""
        return f"{self.files[0].name} … {self.files[-1].name} ({len(self.files):,} files)"

    def checksum(self) -> str:
        """Return the SHA-256 of the names and checksums of the files."""
        return text_checksum("\n".join(f"{file.name} {file.checksum()}" for file in self.files))

    def read(self) -> Iterator[Piece]:
        """Yield the documents of the files; the end of a file ends its last document."""
        for file in self.files:
            yield from file.read()


def group_small_files(files: list[TextFile]) -> list["TextFile | SmallFiles"]:
    """Return the files in order; if more than `_FEW_FILES` are small, consecutive small ones form `SmallFiles`."""
    sizes = [os.stat(file.path).st_size for file in files]
    if sum(size < _SMALL_FILE for size in sizes) <= _FEW_FILES:
        return list(files)

    sources: list[TextFile | SmallFiles] = []
    group: list[TextFile] = []
    group_bytes = 0
    for file, size in zip(files, sizes, strict=True):
        if group and (size >= _SMALL_FILE or group_bytes >= _SHARD_BYTES or len(group) >= _SHARD_FILES):
            sources.append(SmallFiles(tuple(group)))
            group, group_bytes = [], 0
        if size >= _SMALL_FILE:
            sources.append(file)
        else:
            group.append(file)
            group_bytes += size
    return [*sources, SmallFiles(tuple(group))] if group else sources


@functools.lru_cache(maxsize=100_000)
def _width_of_beginning(file: TextFile, size: int, mtime: int) -> int | None:
    """Return the `wrap_width` of the beginning of a file; `size` and `mtime` are for the cache."""
    return wrap_width(piece.text for piece in first_pieces(file.read_as_it_stands(), _HEAD))


@dataclass(frozen=True)
class HubShard:
    """One shard of the `train` split of a Hub dataset, streamed; no script of the dataset is run."""

    dataset: str
    config: str | None
    index: int
    shards: int  # of the dataset
    text_column: str | None = None
    join_lines: bool | None = None  # all lines of a paragraph; None: lines stay

    @property
    def name(self) -> str:
        """Return dataset, configuration and number of the shard; a folder counts by its last part."""
        dataset = Path(self.dataset).name if is_saved_dataset(self.dataset) else self.dataset
        return f"{dataset}-{self.config or 'default'}-train-{self.index:05d}-of-{self.shards:05d}"

    def checksum(self) -> str:
        """Return the SHA-256 of the shard's name and the dataset's revision, or of its files where it is a folder."""
        import huggingface_hub

        if is_saved_dataset(self.dataset):
            content = list(map(file_checksum, sorted(Path(self.dataset).rglob("*.arrow"))))
        else:
            with _hub_errors(self.dataset):
                content = [str(huggingface_hub.HfApi().dataset_info(self.dataset).sha)]
        joined = ["joined"] if self.join_lines else []
        return text_checksum(" ".join([self.name, *content, *joined]))

    def read(self) -> Iterator[Piece]:
        """Yield the texts of its rows, each a document; empty ones are left out."""
        with _hub_errors(self.dataset):
            shard = _load_streaming(self.dataset, self.config).shard(self.shards, self.index)
            for text in row_texts((Row(row, self.dataset) for row in shard), self.text_column):
                if text:
                    yield from cut_pieces(join_wrapped_lines(text, 0) if self.join_lines else text)


Source = TextFile | SmallFiles | HubShard | Documentation


@contextlib.contextmanager
def _hub_errors(dataset: str) -> Iterator[None]:
    """Convert errors of the Hub and its clients, of many classes, to `InputError`."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"cannot be read: {first_line(error)}", where=dataset, remedy=_HUB_REMEDY) from None


def is_saved_dataset(folder: str) -> bool:
    """Return whether `save_to_disk` wrote the folder, of a `Dataset` or of a `DatasetDict`."""
    return any((Path(folder) / name).is_file() for name in ("state.json", "dataset_dict.json"))


def _load_splits(dataset: str, config: str | None) -> Mapping[Any, Any]:
    """Return the splits of a dataset of the Hub, or of a saved folder, where a `Dataset` is the split `train`."""
    import datasets

    if not is_saved_dataset(dataset):
        return datasets.load_dataset(dataset, config)
    loaded: Any = datasets.load_from_disk(dataset).with_format(None)
    return loaded if isinstance(loaded, Mapping) else {"train": loaded}


def _load_streaming(dataset: str, config: str | None) -> Any:
    """Return the `train` split of a dataset of the Hub or of a saved folder, as a `datasets.IterableDataset`."""
    import datasets

    if is_saved_dataset(dataset):
        splits = _load_splits(dataset, config)
        if "train" not in splits:
            raise InputError(f"no split 'train'; its splits: {', '.join(splits)}", where=dataset, remedy=_SPLIT_REMEDY)
        return splits["train"].to_iterable_dataset()
    return datasets.load_dataset(dataset, config, split="train", streaming=True)


def hub_rows(
    dataset: str | Mapping[str, Any], config: str | None, splits: Collection[str] = ("train", "validation", "test")
) -> dict[str, list[Row]]:
    """Return the rows of each non-empty split of a dataset (id, folder, or splits in memory); `train` is required."""
    name = dataset if isinstance(dataset, str) else "dataset"
    by_split: Any = dataset
    if isinstance(dataset, str):
        with _hub_errors(dataset):
            by_split = _load_splits(dataset, config)
    rows = {split: dataset_rows(by_split[split], f"{name} ({split})") for split in splits if split in by_split}
    if not rows.get("train"):
        what = f"no split 'train'; its splits: {', '.join(map(str, by_split)) or 'none'}"
        raise InputError(what, where=name, remedy="give --train_file")
    return {split: rows_of_split for split, rows_of_split in rows.items() if rows_of_split}


def dataset_rows(rows: Any, where: str = "dataset") -> list[Row]:
    """Return the rows of a `datasets.Dataset` (with names of classes), of a pandas table or of dictionaries."""
    if isinstance(rows, Mapping):
        raise InputError("several datasets", where=where, remedy=f"pass one of them: {', '.join(map(str, rows))}")
    if hasattr(rows, "iterrows"):  # of pandas, with null for NaN
        rows = rows.astype(object).where(rows.notna(), None).to_dict("records")
    if (features := getattr(rows, "features", None)) is None:
        return [Row(dict(row), where) for row in rows]
    return [Row(with_class_names(row, features), where) for row in rows.with_format(None)]  # no tensors


def hub_shards(dataset: str, config: str | None = None, **options: Any) -> list[HubShard]:
    """Return the shards of a Hub dataset's `train` split; `options` are fields of `HubShard`."""
    with _hub_errors(dataset):
        count = _load_streaming(dataset, config).num_shards
    return [HubShard(dataset, config, index, count, **options) for index in range(count)]
