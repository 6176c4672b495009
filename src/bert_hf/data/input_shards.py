"""Writes an input (a file, a Hub shard) as one shard of a corpus, or as several where it is large.

The shards of a window, which are open together, are planned as a whole. So the bound of a shard bounds the time and
the memory of planning, however large a single file is. Input 3 becomes `data-00003.arrow` and, if it holds more than
`SHARD_TOKENS`, also `data-00003-00001.arrow`, `data-00003-00002.arrow`, … in the order of its documents. The record
of each but the last has `cut_at`, the bound, and `groups`, how many groups of pieces the shard holds: an interrupted
preparation resumes after the last finished shard.
"""

import contextlib
import json
from pathlib import Path

from bert_hf.data.checksums import text_checksum
from bert_hf.data.shard_writer import ShardWriter, finished_shard, remove_leftovers

SHARD_TOKENS = 64_000_000  # a shard ends with the document that fills it; four make a window


class InputShards:
    """Writes the shards of one input; in the end `entries` holds their records.

        with InputShards(folder / "data-00000.arrow", "a.txt", fingerprint) as writer:
            for group in islice(groups, writer.groups_done, None):
                writer.add(encode_group(group, …))

    Where a shard ends depends on the groups alone, and so not on how many processes encode them.

    Args:
        path: of the first shard.
        source: name of the input.
        fingerprint: of what the shards are made from.
        finished: records of its first shards, if they are there already.
    """

    def __init__(self, path: Path, source: str, fingerprint: str, finished: list[dict] | None = None):
        self.path, self.source, self.fingerprint = path, source, fingerprint
        self.entries = list(finished or [])
        self.cut_at = SHARD_TOKENS

    @property
    def groups_done(self) -> int:
        """How many groups of pieces the finished shards hold."""
        return sum(entry["groups"] for entry in self.entries)

    def __enter__(self) -> "InputShards":
        self._begin()
        return self

    def _begin(self) -> None:
        number = len(self.entries)
        facts = {"source": self.source, "fingerprint": _shard_fingerprint(self.fingerprint, number, self.cut_at)}
        self._shard = ShardWriter(_shard_path(self.path, number), facts)
        self._groups = self._tokens = 0
        self._shard.__enter__()

    def add(self, encoded) -> None:
        """Adds an `encoding.Encoded`, to a new shard where the present one is full and no document is cut by it."""
        if self._tokens >= self.cut_at and self._shard.document_ended:
            self._shard.facts |= {"cut_at": self.cut_at, "groups": self._groups}
            self._end()
            self._begin()

        self._shard.add(encoded)
        self._tokens += len(encoded.ids)
        self._groups += 1

    def _end(self) -> None:
        self._shard.__exit__(None, None, None)
        self.entries.append(self._shard.entry)

    def __exit__(self, kind, *rest) -> None:
        if kind is not None:  # finished shards stay for the next run
            self._shard.__exit__(kind, *rest)
            return
        self._end()
        self._remove_later_shards()

    def _remove_later_shards(self) -> None:
        """Removes the shards that an earlier, longer version of the input left."""
        ours = {_shard_path(self.path, number).stem for number in range(len(self.entries))}
        for suffix in ("json", "arrow"):
            for path in self.path.parent.glob(f"{self.path.stem}-*.{suffix}"):
                if path.stem not in ours:
                    path.unlink(missing_ok=True)


def _shard_path(first: Path, number: int) -> Path:
    return first if number == 0 else first.with_name(f"{first.stem}-{number:05d}.arrow")


def _shard_fingerprint(first: str, number: int, cut_at: int) -> str:
    """The first shard's does not depend on where it ends: an input of one shard is not cut."""
    if number == 0:
        return first
    return text_checksum(json.dumps([first, number, cut_at]))


def finished_shards(path: Path, fingerprint: str) -> list[dict]:
    """The records of an input's shards that are complete, undamaged and up to date, up to the first that is not.

    Args:
        path: of the first shard.
    """
    entries: list[dict] = []
    while not has_all_shards(entries):
        number = len(entries)
        entry = finished_shard(_shard_path(path, number), _shard_fingerprint(fingerprint, number, SHARD_TOKENS))
        if entry is None or entry.get("cut_at", SHARD_TOKENS) != SHARD_TOKENS:
            break
        entries.append(entry)
    return entries


def has_all_shards(entries: list[dict]) -> bool:
    """Whether these are the records of all shards of an input."""
    return bool(entries) and "cut_at" not in entries[-1]


def all_recorded(path: Path) -> bool:
    """Whether each shard of an input has its record. Nothing is verified: this reads a few small files."""
    entries: list[dict] = []
    while not has_all_shards(entries):
        record = _shard_path(path, len(entries)).with_suffix(".json")
        try:
            entries.append(json.loads(record.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return False
    return True


def remove_input_leftovers(path: Path) -> None:
    """Removes the temporary files that killed processes of this machine left of an input's shards."""
    remove_leftovers(path)
    with contextlib.suppress(OSError):
        for leftover in path.parent.glob(f".{path.stem}-*.arrow.*.tmp"):
            name = leftover.name.removeprefix(".").partition(".arrow")[0]
            remove_leftovers(path.with_name(f"{name}.arrow"))
