"""Writes the shards of a corpus: each input (a file, a Hub shard) becomes one shard, or several where it is large.

A shard is an Arrow stream that `datasets` opens too, one row per document: `input_ids`, `sentence_lengths`. Next to
each shard lies its record, `data-00000.json`; `manifest.json` holds all records once every shard is there.

Input 3 becomes `data-00003.arrow` and, above `SHARD_TOKENS`, also `data-00003-00001.arrow`, … in the order of its
documents. The record of each but the last has `cut_at`, the bound, and `groups`, how many groups of pieces the shard
holds: an interrupted preparation resumes after the last finished shard.

The module imports neither torch nor transformers, so that worker processes start in a fraction of a second.
"""

import functools
import itertools
import json
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import psutil
import pyarrow as pa

from bert_hf.config.files import file_checksum, json_checksum, read_json_object, write_durably
from bert_hf.data.text.encoding import (
    Encoded,
    batch_text_pieces,
    encode_group,
    offsets_of,
    sentences_per_document,
    skip_documents,
)
from bert_hf.data.text.sources import Source

FORMAT = 2  # of the folder; part of the fingerprint
MANIFEST = "manifest.json"
COUNTS = ("documents", "sentences", "tokens", "one_sentence_documents", "empty_documents", "unknown")
SHARD_TOKENS = 64_000_000  # a shard ends with the document that fills it; four make a window
_BATCH_TOKENS = 4_000_000  # tokens in a record batch
_MAX_DOCUMENT_TOKENS = 64_000_000  # tokens: a document is held in memory until it ends


def write_json(path: Path, content: dict) -> None:
    """Write a JSON file atomically."""
    write_durably(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


class ShardWriter:
    """Write one shard: `data-NNNNN.arrow`, then its record, `data-NNNNN.json`, which an interrupted one lacks.

        with ShardWriter(folder / "data-00000.arrow", {"source": "a.txt"}) as writer:
            writer.add(encoded)
        writer.record

    The record holds the given `facts` in addition to file name, size, checksum and `COUNTS`.
    """

    record: dict  # after the `with`

    def __init__(self, path: Path, facts: dict):
        self.path, self.facts = path, facts

    def __enter__(self) -> "ShardWriter":
        remove_leftovers(self.path)
        self._temporary = self.path.with_name(f".{self.path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
        self._file = open(self._temporary, "wb")
        self._stream = None  # opened by the first record batch
        self._pending = []  # groups for the next record batch
        self._size = 0  # their tokens and pieces, since a piece may have no tokens
        self._counts = dict.fromkeys(COUNTS, 0)
        self.document_ended = True
        return self

    def add(self, group: Encoded) -> None:
        """Add encoded pieces of text; write a record batch when there are enough of them.

        A record batch ends where a document does. A document of about `_MAX_DOCUMENT_TOKENS` tokens (a file without
        blank lines, say) is ended there.
        """
        self._size += len(group.ids) + len(group.ends)
        if self._size >= _MAX_DOCUMENT_TOKENS and not group.ends[-1]:
            group = group._replace(ends=np.append(group.ends[:-1], True))

        self.document_ended = bool(group.ends[-1])  # only there `InputShards` ends the shard
        self._pending.append(group)
        if self._size >= _BATCH_TOKENS and self.document_ended:
            self._flush()

    def _flush(self) -> None:
        """Write the pending groups as one record batch, and add their documents, sentences, … to the counts."""
        ids, lengths, sentences, ends, unknown = map(np.hstack, zip(*self._pending, strict=True))
        self._pending, self._size = [], 0

        # For each document that has text, and at last for the end: the sentences and the tokens before it
        per_document = sentences_per_document(sentences, ends)
        filled = per_document > 0
        sentence_offsets = offsets_of(per_document[filled])
        token_offsets = offsets_of(lengths)[sentence_offsets]
        self._write_batch(
            pa.ListArray.from_arrays(pa.array(token_offsets, pa.int32()), pa.array(ids)),
            pa.ListArray.from_arrays(pa.array(sentence_offsets, pa.int32()), pa.array(lengths)),
        )

        # In the order of `COUNTS`
        sums = (filled.sum(), len(lengths), len(ids), (per_document == 1).sum(), (~filled).sum(), unknown.sum())
        for name, value in zip(COUNTS, sums, strict=True):
            self._counts[name] += int(value)

    def _write_batch(self, input_ids: pa.Array, sentence_lengths: pa.Array) -> None:
        """Write a record batch, one row per document; the first one opens the stream, with its types."""
        batch = pa.record_batch([input_ids, sentence_lengths], names=["input_ids", "sentence_lengths"])
        if self._stream is None:
            self._stream = pa.ipc.new_stream(self._file, batch.schema)
        self._stream.write_batch(batch)

    def __exit__(self, error_type, *_) -> None:
        try:
            if error_type is None:
                self._finish()
        finally:
            self._file.close()
            self._temporary.unlink(missing_ok=True)

    def _finish(self) -> None:
        """Write what is pending, give the file its final name, then write `record` beside it."""
        if self._pending:
            self._flush()
        if self._stream is None:  # no text: a shard without a row
            self._write_batch(pa.array([], pa.list_(pa.uint16())), pa.array([], pa.list_(pa.int32())))
        cast(pa.RecordBatchStreamWriter, self._stream).close()
        self._file.flush()
        os.fsync(self._file.fileno())

        checksum = file_checksum(self._temporary)
        size = self._temporary.stat().st_size
        os.replace(self._temporary, self.path)
        self.record = {"file": self.path.name, "bytes": size, "sha256": checksum, **self._counts, **self.facts}
        write_json(self.path.with_suffix(".json"), self.record)


def remove_leftovers(path: Path) -> None:
    """Remove temporary files that killed processes of this machine left of an input; `path` is its first shard."""
    for leftover in path.parent.glob(f".{path.stem}[.-]*.tmp"):
        process_id = leftover.stem.partition(f".arrow.{socket.gethostname()}-")[2]  # "": another machine's
        if process_id.isdigit() and not psutil.pid_exists(int(process_id)):
            leftover.unlink(missing_ok=True)


def write_manifest(folder: Path, facts: dict, records: list[dict]) -> None:
    """Write the manifest: totals, `facts`, the shards' records. Equal shards give equal bytes, whoever made them."""
    totals = {name: sum(record[name] for record in records) for name in COUNTS}
    unknown = totals.pop("unknown")
    manifest = {
        "format": FORMAT,
        **totals,
        "unknown_share": unknown / max(1, totals["tokens"]),
        "fingerprint": json_checksum([record["fingerprint"] for record in records]),
        **facts,
        "shards": records,
    }
    write_json(folder / MANIFEST, manifest)


@dataclass
class InputShards:
    """An input and its shards; all but the last have `cut_at` in their records.

    Where a shard ends depends only on the groups of pieces, not on how many processes encode them.
    """

    source: Source
    path: Path  # of the first shard
    made_from: dict  # settings of all inputs of the corpus, part of the fingerprint
    without: frozenset[int] = frozenset()  # numbers of documents that are left out
    verified_records: list[dict] = field(default_factory=list)  # of the first shards: found good, or written just now
    cut_at: int = field(default_factory=lambda: SHARD_TOKENS)  # tokens of a full shard; read late, as tests change it

    @functools.cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256 of what determines the shards: text, settings, documents left out. The input is read."""
        return json_checksum([self.made_from, self.source.name, self.source.checksum(), sorted(self.without)])

    @property
    def complete(self) -> bool:
        """Return whether `verified_records` reach the last shard, whose record is the only one without `cut_at`."""
        return bool(self.verified_records) and "cut_at" not in self.verified_records[-1]

    def _path_of(self, number: int) -> Path:
        """Return the path of a shard: data-00003.arrow for the first one of input 3, then data-00003-00001.arrow."""
        return self.path.with_name(f"{self.path.stem}-{number:05d}.arrow") if number else self.path

    def _fingerprint_of(self, number: int) -> str:
        """Return a shard's fingerprint; the first one's does not depend on `cut_at`, since it may be the only one."""
        return json_checksum([self.fingerprint, number, self.cut_at]) if number else self.fingerprint

    def read_all_records(self) -> list[dict]:
        """Return the records in the folder, unverified: of all shards, or an empty list while one is missing."""
        records = []
        while record := read_json_object(self._path_of(len(records)).with_suffix(".json")):
            records.append(record)
            if "cut_at" not in record:  # the last shard
                return records
        return []

    def holds_other_text(self) -> bool:
        """Return whether there is a first shard with another fingerprint: made from other text or settings."""
        record = read_json_object(self.path.with_suffix(".json"))
        return record is not None and record.get("fingerprint") != self.fingerprint

    def verify(self) -> None:
        """Set `verified_records`: of the shards that are undamaged and up to date, up to the first that is not.

        Where there are shards, they and the input are read.
        """
        while not self.complete:
            number = len(self.verified_records)
            path = self._path_of(number)
            record = read_json_object(path.with_suffix(".json"))
            if record is None or record.get("cut_at", self.cut_at) != self.cut_at or not path.is_file():
                break
            if record.get("fingerprint") != self._fingerprint_of(number):
                break
            if record.get("sha256") != file_checksum(path):
                break
            self.verified_records.append(record)

    def write(
        self,
        tokenizer: tuple[str, str],
        language: str | None,
        map_groups: Callable[[Callable, Iterable], Iterable] = map,
    ) -> None:
        """Write the shards after the verified ones, and add their records to `verified_records`.

        `tokenizer` (file, version) are the arguments of `load_encoder`. `map_groups` applies a function to groups of
        pieces, in order, as `map` does.
        """
        pieces = skip_documents(self.source.read(), self.without)
        verified_groups = sum(record["groups"] for record in self.verified_records)
        encode = functools.partial(encode_group, tokenizer=tokenizer, language=language)
        groups = iter(map_groups(encode, itertools.islice(batch_text_pieces(pieces), verified_groups, None)))

        group = next(groups, None)
        while not self.complete:
            number = len(self.verified_records)
            facts = {"source": self.source.name, "fingerprint": self._fingerprint_of(number)}
            with ShardWriter(self._path_of(number), facts) as writer:
                shard_groups = shard_tokens = 0
                while group is not None and (shard_tokens < self.cut_at or not writer.document_ended):
                    writer.add(group)
                    shard_groups += 1
                    shard_tokens += len(group.ids)
                    group = next(groups, None)
                if group is not None:  # another shard follows
                    writer.facts |= {"cut_at": self.cut_at, "groups": shard_groups}
            self.verified_records.append(writer.record)
