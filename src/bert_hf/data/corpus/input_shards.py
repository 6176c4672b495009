"""Writes an input (a file, a Hub shard) as one shard of a corpus, or as several where it is large.

The shards of a window, which are open together, are planned as a whole. So the bound of a shard bounds the time and
the memory of planning, however large a single file is. Input 3 becomes `data-00003.arrow` and, if it holds more than
`SHARD_TOKENS`, also `data-00003-00001.arrow`, `data-00003-00002.arrow`, … in the order of its documents. The record
of each but the last has `cut_at`, the bound, and `groups`, how many groups of pieces the shard holds: an interrupted
preparation resumes after the last finished shard.

The module imports neither torch nor transformers, so that worker processes start in a fraction of a second.
"""

import functools
import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bert_hf.data.corpus.checksums import json_checksum
from bert_hf.data.corpus.shard_writer import ShardWriter, finished_shard
from bert_hf.data.text.encoding import batch_text_pieces, encode_group, leave_out
from bert_hf.data.text.sources import Source

SHARD_TOKENS = 64_000_000  # a shard ends with the document that fills it; four make a window


@dataclass
class InputShards:
    """An input and its shards, of which those in `entries` are known to be finished.

        shards = InputShards(source, folder / "data-00000.arrow", {"language": "en", …})
        shards.find_finished()
        shards.write((str(folder / "tokenizer/tokenizer.json"), ""), "en")

    Where a shard ends depends on the groups of pieces alone, and so not on how many processes encode them.
    """

    source: Source
    path: Path  # of the first shard
    made_from: dict  # what the fingerprint has in common with those of the corpus's other inputs
    without: frozenset[int] = frozenset()  # numbers of documents that are left out
    entries: list[dict] = field(default_factory=list)  # the records of the first shards
    cut_at: int = field(default_factory=lambda: SHARD_TOKENS)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of what the shards are made from. It takes reading the input."""
        return json_checksum([self.made_from, self.source.name, self.source.checksum(), sorted(self.without)])

    @property
    def complete(self) -> bool:
        """Whether the records of all shards are known."""
        return bool(self.entries) and "cut_at" not in self.entries[-1]

    def _path_of(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.stem}-{number:05d}.arrow") if number else self.path

    def _fingerprint_of(self, number: int) -> str:
        """The first shard's does not depend on where it ends: an input of one shard is not cut."""
        return json_checksum([self.fingerprint, number, self.cut_at]) if number else self.fingerprint

    def all_recorded(self) -> bool:
        """Whether each shard has its record. Nothing is verified: this reads a few small files."""
        number = 0
        while True:
            try:
                record = json.loads(self._path_of(number).with_suffix(".json").read_bytes())
            except (OSError, ValueError):
                return False
            if "cut_at" not in record:
                return True
            number += 1

    def find_finished(self) -> None:
        """Finds the shards that are complete, undamaged and up to date, up to the first that is not.

        Where there are any, input and shards are read.
        """
        while not self.complete:
            number = len(self.entries)
            path = self._path_of(number)
            if not path.with_suffix(".json").is_file():
                break
            entry = finished_shard(path, self._fingerprint_of(number))
            if entry is None or entry.get("cut_at", self.cut_at) != self.cut_at:
                break
            self.entries.append(entry)

    def write(
        self,
        tokenizer: tuple[str, str],
        language: str | None,
        mapped: Callable[[Callable, Iterable], Iterable] = map,
    ) -> list[dict]:
        """Reads the input, encodes it and writes the shards that are not finished: the work of one process.

        Args:
            tokenizer: the arguments of `encoding.load_encoder`.
            mapped: a `map` that encodes the groups, of one process or several.

        Returns:
            The records of all shards.
        """
        pieces = leave_out(self.source.read(), self.without)
        done = sum(entry["groups"] for entry in self.entries)
        encode = functools.partial(encode_group, tokenizer=tokenizer, language=language)
        groups = iter(mapped(encode, itertools.islice(batch_text_pieces(pieces), done, None)))

        group = next(groups, None)
        while not self.complete:
            number = len(self.entries)
            facts = {"source": self.source.name, "fingerprint": self._fingerprint_of(number)}
            with ShardWriter(self._path_of(number), facts) as shard:
                written = tokens = 0
                while group is not None and (tokens < self.cut_at or not shard.document_ended):
                    shard.add(group)
                    written += 1
                    tokens += len(group.ids)
                    group = next(groups, None)
                if group is not None:
                    shard.facts |= {"cut_at": self.cut_at, "groups": written}
            self.entries.append(shard.entry)

        self._remove_later_shards()
        return self.entries

    def _remove_later_shards(self) -> None:
        """Removes the shards that an earlier, longer version of the input left."""
        ours = {entry["file"] for entry in self.entries}
        for suffix in (".json", ".arrow"):  # no record is ever left without its tokens
            for path in self.path.parent.glob(f"{self.path.stem}-*{suffix}"):
                if path.with_suffix(".arrow").name not in ours:
                    path.unlink(missing_ok=True)
