"""Writes the files of a prepared corpus: Arrow shards, the record of each, and the manifest that gathers them.

A shard is an Arrow stream that `datasets` opens too, a row a document: `input_ids`, `sentence_lengths`. Next to each
shard lies its record, `data-00000.json`; `manifest.json` holds all records once every shard is there. Every file is
written under a temporary name and renamed when it is complete.
"""

import json
import os
import socket
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from bert_hf.data.corpus.checksums import file_checksum, json_checksum
from bert_hf.data.text.encoding import Encoded, offsets_of, sentences_per_document

FORMAT = 2  # of the folder; part of the fingerprint
MANIFEST = "manifest.json"
COUNTS = ("documents", "sentences", "tokens", "one_sentence_documents", "empty_documents", "unknown")
_BATCH_TOKENS = 4_000_000  # tokens in a record batch
_MAX_DOCUMENT_TOKENS = 64_000_000  # tokens: a document is held in memory until it ends


def write_json(path: Path, content: dict, replace: bool = True) -> bool:
    """Writes a JSON file atomically.

    Args:
        replace: an existing file; else the first of several processes writes it, and the others leave it.

    Returns:
        Whether it was written by this call.
    """
    temporary = _temporary(path)
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave a name without its bytes
        (os.replace if replace else _link)(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _link(source: Path, path: Path) -> None:
    """Gives a file a second name, unless that exists: of many processes, on many machines, one succeeds."""
    try:
        os.link(source, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.replace(source, path)


def _temporary(path: Path) -> Path:
    """The name under which this process writes a file."""
    return path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")


def remove_leftovers(path: Path) -> None:
    """Removes what killed processes of this machine left of an input's shards: of the one at `path` and later ones."""
    for leftover in path.parent.glob(f".{path.stem}[.-]*.tmp"):
        process = leftover.stem.partition(f".arrow.{socket.gethostname()}-")[2]  # seen from another host no number
        if process.isdigit() and not psutil.pid_exists(int(process)):
            leftover.unlink(missing_ok=True)


# ---- a shard


class ShardWriter:
    """Writes one shard: `data-NNNNN.arrow`, then its record. An interrupted one leaves no such file.

        with ShardWriter(folder / "data-00000.arrow", {"source": "a.txt"}) as writer:
            writer.add(encoded)
        writer.entry

    Args:
        path: of the shard.
        facts: what the record holds in addition to the counts.

    Attributes:
        entry: the record, after the `with`.
    """

    entry: dict

    def __init__(self, path: Path, facts: dict):
        self.path, self.facts = path, facts

    def __enter__(self) -> "ShardWriter":
        self._temporary = _temporary(self.path)
        remove_leftovers(self.path)
        self._file = open(self._temporary, "wb")
        self._stream = None
        self._held = []
        self._size = 0  # what is held: tokens, and pieces that may have none
        self._counts = dict.fromkeys(COUNTS, 0)
        self.document_ended = True
        return self

    def add(self, encoded: Encoded) -> None:
        """Adds some pieces of text. Batches are cut where a document ends, wherever the groups are cut.

        A document of more than `_MAX_DOCUMENT_TOKENS` tokens (a file without blank lines, say) is ended there.
        """
        self._size += len(encoded.ids) + len(encoded.ends)
        if self._size >= _MAX_DOCUMENT_TOKENS and not encoded.ends[-1]:
            encoded = encoded._replace(ends=np.append(encoded.ends[:-1], True))

        self.document_ended = bool(encoded.ends[-1])
        self._held.append(encoded)
        if self._size >= _BATCH_TOKENS and self.document_ended:
            self._flush()

    def _flush(self) -> None:
        """Writes what is held as one record batch."""
        ids, lengths, sentences, ends, unknown = map(np.hstack, zip(*self._held, strict=True))
        self._held, self._size = [], 0

        # Where each document that has text begins and the last one ends: sentences and tokens before that
        per_document = sentences_per_document(sentences, ends)
        filled = per_document > 0
        sentence_offsets = offsets_of(per_document[filled])
        token_offsets = offsets_of(lengths)[sentence_offsets]
        self._write(
            pa.ListArray.from_arrays(pa.array(token_offsets, pa.int32()), pa.array(ids)),
            pa.ListArray.from_arrays(pa.array(sentence_offsets, pa.int32()), pa.array(lengths)),
        )

        sums = (filled.sum(), len(lengths), len(ids), (per_document == 1).sum(), (~filled).sum(), unknown.sum())
        for name, value in zip(COUNTS, sums, strict=True):
            self._counts[name] += int(value)

    def _write(self, *columns: pa.Array) -> pa.RecordBatchStreamWriter:
        batch = pa.record_batch(list(columns), names=["input_ids", "sentence_lengths"])
        if self._stream is None:
            self._stream = pa.ipc.new_stream(self._file, batch.schema)
        self._stream.write_batch(batch)
        return self._stream

    def __exit__(self, kind, *_) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._file.close()
            self._temporary.unlink(missing_ok=True)

    def _finish(self) -> None:
        if self._held:
            self._flush()
        if self._stream is None:  # no text: a shard without a row
            self._stream = self._write(pa.array([], pa.list_(pa.uint16())), pa.array([], pa.list_(pa.int32())))
        self._stream.close()
        self._file.flush()
        os.fsync(self._file.fileno())

        checksum = file_checksum(self._temporary)
        size = self._temporary.stat().st_size
        os.replace(self._temporary, self.path)
        self.entry = {"file": self.path.name, "bytes": size, "sha256": checksum, **self._counts, **self.facts}
        write_json(self.path.with_suffix(".json"), self.entry)


def finished_shard(path: Path, fingerprint: str) -> dict | None:
    """The record of a shard that is complete, undamaged and up to date (of this fingerprint), else None."""
    try:
        entry = json.loads(path.with_suffix(".json").read_bytes())
        if entry["fingerprint"] != fingerprint or path.stat().st_size != entry["bytes"]:
            return None
        return entry if file_checksum(path) == entry["sha256"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_manifest(folder: Path, facts: dict, entries: list[dict]) -> None:
    """Writes the manifest: totals and the shards' records. Equal shards give equal bytes, whoever made them."""
    totals = {name: sum(entry[name] for entry in entries) for name in COUNTS}
    unknown = totals.pop("unknown")
    manifest = {
        "format": FORMAT,
        **totals,
        "unknown_share": unknown / max(1, totals["tokens"]),
        "fingerprint": json_checksum([entry["fingerprint"] for entry in entries]),
        **facts,
        "shards": entries,
    }
    write_json(folder / MANIFEST, manifest)
