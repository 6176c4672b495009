"""Writes an input (a file, a Hub shard) as one shard of a corpus, or as several where it is large.

A window, the shards that are open together, is planned as a whole. So what bounds a shard bounds the time and the
memory of planning, however large a single file is. Input 3 becomes `data-00003.arrow` and, where it holds more than
`SHARD_TOKENS`, also `data-00003-00001.arrow`, `data-00003-00002.arrow`, … in the order of its documents. The record
of each but the last has `cut_at`, the bound, and `groups`, how many groups of pieces the shard holds: an interrupted
preparation resumes behind the last finished shard.
"""

import contextlib
import hashlib
import json
from pathlib import Path

from bert_hf.data.corpus_store import ShardWriter, finished_shard, remove_leftovers

SHARD_TOKENS = 64_000_000  # a shard ends with the document that fills it; four make a window


class InputShards:
    """Writes the shards of one input; in the end `entries` holds their records.

        with InputShards(folder / "data-00000.arrow", "a.txt", fingerprint) as writer:
            for group in islice(groups, writer.groups_done, None):
                writer.add(encode_group(group, …))

    Where a shard ends depends on the groups alone, and so not on how many processes encode them.

    Args:
        path: of the first shard.
        source: name of the input. fingerprint: of what the shards are made of.
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
        facts = {"source": self.source, "fingerprint": _fingerprint(self.fingerprint, number, self.cut_at)}
        self._shard = ShardWriter(_path(self.path, number), facts)
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
        if kind is not None:  # what is finished stays, for the next time
            self._shard.__exit__(kind, *rest)
            return
        self._end()
        self._remove_later_shards()

    def _remove_later_shards(self) -> None:
        """Removes what an earlier, longer version of the input left."""
        ours = {_path(self.path, number).stem for number in range(len(self.entries))}
        for pattern in (f"{self.path.stem}-*.json", f"{self.path.stem}-*.arrow"):
            for path in self.path.parent.glob(pattern):
                if path.stem not in ours:
                    path.unlink(missing_ok=True)


def _path(first: Path, number: int) -> Path:
    return first if number == 0 else first.with_name(f"{first.stem}-{number:05d}.arrow")


def _fingerprint(first: str, number: int, cut_at: int) -> str:
    """Of a shard of an input. The first one's does not depend on where it ends: an input of one shard has no cut."""
    if number == 0:
        return first
    return hashlib.sha256(json.dumps([first, number, cut_at]).encode()).hexdigest()


def finished_shards(path: Path, fingerprint: str) -> list[dict]:
    """The records of an input's shards that are there, whole and made of just this, from the first one on.

    Args:
        path: of the first shard.
    """
    entries: list[dict] = []
    while not is_complete(entries):
        number = len(entries)
        entry = finished_shard(_path(path, number), _fingerprint(fingerprint, number, SHARD_TOKENS))
        if entry is None or entry.get("cut_at", SHARD_TOKENS) != SHARD_TOKENS:
            break
        entries.append(entry)
    return entries


def is_complete(entries: list[dict]) -> bool:
    """Are these the records of all shards of an input?"""
    return bool(entries) and "cut_at" not in entries[-1]


def all_recorded(path: Path) -> bool:
    """Does each shard of an input have its record? Nothing is verified: this reads a few small files."""
    number = 0
    while True:
        try:
            entry = json.loads(_path(path, number).with_suffix(".json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        if "cut_at" not in entry:
            return True
        number += 1


def remove_input_leftovers(path: Path) -> None:
    """Removes what killed processes of this machine left of an input's shards that they were writing."""
    remove_leftovers(path)
    with contextlib.suppress(OSError):
        for leftover in path.parent.glob(f".{path.stem}-*.arrow.*.tmp"):
            name = leftover.name.removeprefix(".").partition(".arrow")[0]
            remove_leftovers(path.with_name(f"{name}.arrow"))
