"""Inputs of a corpus: files, shards of Hub datasets, the documentation on this machine.

A source is one input. It has a `name`, the same on every machine, a `checksum()` of its content, or of what identifies
it, and `read()`, which yields its documents in order, as `Piece`s. Sources are sent to worker processes.
"""

import contextlib
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, cast

import fsspec

from bert_hf.data.corpus.checksums import file_checksum, text_checksum
from bert_hf.data.text.default_corpus import Documentation
from bert_hf.data.text.input_files import access_errors, is_url, kind_of, path_without_query
from bert_hf.data.text.readers import Piece, cut_pieces, read_plain
from bert_hf.data.text.tables import Row, read_texts, row_texts, with_class_names
from bert_hf.errors import InputError

# Fields of a server's answer that change when the file does
_VERSION_FIELDS = ("size", "etag", "blobid", "lfs", "versionid", "lastmodified", "lastcommit", "mtime", "created")
_HUB_REMEDY = "check the id, --dataset_config_name and the network, or give --train_file"


@dataclass(frozen=True)
class TextFile:
    """A file (.txt, .jsonl, .json lines, .parquet, .csv, .tsv; each also .gz or .xz), or the URL of one (fsspec).

    In plain text blank lines separate documents; elsewhere each row is a document (see `tables`).
    """

    path: str
    text_column: str | None = None

    @property
    def name(self) -> str:
        """The last part of its path: the same on every machine."""
        return path_without_query(self.path).name

    def checksum(self) -> str:
        """SHA-256 of its bytes; of a URL, of what the server reports: size and, where it does, version and time."""
        with access_errors(self.path):
            if not is_url(self.path):
                return file_checksum(self.path)

            system, path = fsspec.url_to_fs(self.path)
            info = {re.sub("[-_]", "", key.lower()): str(value) for key, value in system.info(path).items()}
            return text_checksum(json.dumps({key: info.get(key) for key in _VERSION_FIELDS}))

    def read(self) -> Iterator[Piece]:
        """Its documents."""
        with access_errors(self.path) if is_url(self.path) else contextlib.nullcontext():
            if kind_of(self.path) in (".txt", ""):
                yield from read_plain(self.path)
                return
            for text in read_texts(self.path, self.text_column):
                yield from cut_pieces(text)


@dataclass(frozen=True)
class HubShard:
    """One shard of the `train` split of a Hub dataset, streamed; no script of the dataset is run."""

    dataset: str
    config: str | None
    index: int
    shards: int
    text_column: str | None = None

    @property
    def name(self) -> str:
        """Dataset and number of the shard."""
        return f"{self.dataset}-{self.config or 'default'}-train-{self.index:05d}-of-{self.shards:05d}"

    def checksum(self) -> str:
        """SHA-256 of the shard's name and the dataset's revision."""
        import huggingface_hub

        with access_errors(self.dataset, _HUB_REMEDY):
            revision = huggingface_hub.HfApi().dataset_info(self.dataset).sha
        return text_checksum(f"{self.name} {revision}")

    def read(self) -> Iterator[Piece]:
        """Its rows; each is a document."""
        with access_errors(self.dataset, _HUB_REMEDY):
            shard = _load_streaming(self.dataset, self.config).shard(self.shards, self.index)
            rows = (Row(row, self.dataset) for row in shard)
            for text in row_texts(rows, self.text_column):
                if text:
                    yield from cut_pieces(text)


Source = TextFile | HubShard | Documentation


def _load_streaming(dataset: str, config: str | None):
    import datasets

    return datasets.load_dataset(dataset, config, split="train", streaming=True)


def hub_rows(
    dataset: Any, config: str | None, splits: Collection[str] = ("train", "validation", "test")
) -> dict[str, list[Row]]:
    """Return the rows of those splits of a Hub dataset, or of a folder of its files, that exist, in this order.

    Args:
        dataset: its id or folder, or the `datasets.Dataset` of each split.
    """
    import datasets

    loaded: Any = dataset
    if isinstance(dataset, str):
        with access_errors(dataset, _HUB_REMEDY):
            loaded = cast(Any, datasets.load_dataset(dataset, config))
    name = dataset if isinstance(dataset, str) else "dataset"
    if "train" not in loaded or not len(loaded["train"]):
        what = f"no split 'train'; its splits: {', '.join(map(str, loaded)) or 'none'}"
        raise InputError(what, where=name, remedy="give --train_file")

    return {
        split: dataset_rows(loaded[split], f"{name} ({split})")
        for split in splits
        if split in loaded and len(loaded[split])
    }


def dataset_rows(rows: Any, where: str = "dataset") -> list[Row]:
    """Return the rows of a `datasets.Dataset`, or of a list of dictionaries by column."""
    features = getattr(rows, "features", None)
    return [Row(dict(row) if features is None else with_class_names(row, features), where) for row in rows]


def hub_shards(dataset: str, config: str | None = None, text_column: str | None = None) -> list[HubShard]:
    """The shards of a Hub dataset's `train` split."""
    with access_errors(dataset, _HUB_REMEDY):
        count = _load_streaming(dataset, config).num_shards
    return [HubShard(dataset, config, index, count, text_column) for index in range(count)]
