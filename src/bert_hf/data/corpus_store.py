"""A prepared corpus on disk: Arrow shards, memory-mapped, with a manifest.

A shard is an Arrow stream that `datasets` opens too, a row a document: `input_ids`, `sentence_lengths`. Beside each
stands its own record, `data-00000.json`; `manifest.json` gathers them when all are there.
"""

import contextlib
import hashlib
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from bert_hf.errors import InputError

FORMAT = 2  # of the folder; part of the fingerprint
MANIFEST = "manifest.json"
WINDOW_TOKENS = 256_000_000  # tokens of the shards that are open at a time: the B of NOT_NEXT pairs comes from these
_BATCH_TOKENS = 4_000_000  # tokens in a record batch
_LONGEST_DOCUMENT = 64_000_000  # tokens: it is held until it ends
_SHARD, _SHA256 = re.compile(r"data-\d+(-\d+)?\.arrow"), re.compile(r"[0-9a-f]{64}")
_COUNTS = ("documents", "sentences", "tokens", "one_sentence_documents", "empty_documents", "unknown")


def write_json(path: Path, content: dict, anew: bool = True) -> bool:
    """Writes a JSON file whole or not at all. Not `anew`: whoever comes first writes it. Returns whether it was us."""
    temporary = path.with_name(f".{path.name}.{_mine()}")
    temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    try:
        (os.replace if anew else _link)(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _link(source: Path, path: Path) -> None:
    """Gives a file its name, unless there is one: of many processes, on many machines, one succeeds."""
    try:
        os.link(source, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.replace(source, path)


def _mine() -> str:
    return f"{socket.gethostname()}-{os.getpid()}.tmp"


def remove_leftovers(path: Path) -> None:
    """Removes what killed processes of this machine left of a file that they were writing."""
    begin = f".{path.name}.{socket.gethostname()}-"
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        process = leftover.name.removeprefix(begin).removesuffix(".tmp")  # of "node-1", seen from "node", no number
        if process.isdigit() and not _runs(int(process)):
            leftover.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


# ---- writing


class ShardWriter:
    """Writes one shard: `data-NNNNN.arrow`, then its record beside it. An interrupted one leaves no such file.

        with ShardWriter(folder / "data-00000.arrow", {"source": "a.txt"}) as writer:
            writer.add(encoded)
        writer.entry

    Args:
        path: of the shard.
        facts: what the record says beside the counts.
    """

    def __init__(self, path: Path, facts: dict):
        self.path, self.facts = path, facts
        self.entry: dict | None = None

    def __enter__(self) -> "ShardWriter":
        self._temporary = self.path.with_name(f".{self.path.name}.{_mine()}")
        remove_leftovers(self.path)
        self._file = open(self._temporary, "wb")
        self._stream = None
        self._held: list = []
        self._size = 0  # what is held: tokens, and pieces that may have none
        self._counts = dict.fromkeys(_COUNTS, 0)
        self.document_ended = True
        return self

    def add(self, encoded) -> None:
        """Adds an `encoding.Encoded`. Batches are cut where a document ends, wherever the groups are cut.

        A document of more than `_LONGEST_DOCUMENT` tokens (a file without blank lines, say) is ended there.
        """
        self._size += len(encoded.ids) + len(encoded.ends)
        if self._size >= _LONGEST_DOCUMENT and not encoded.ends[-1]:
            encoded = encoded._replace(ends=np.append(encoded.ends[:-1], True))
        self.document_ended = bool(encoded.ends[-1])
        self._held.append(encoded)
        self._counts["unknown"] += encoded.unknown
        if self._size >= _BATCH_TOKENS and self.document_ended:
            self._flush()

    def _flush(self) -> None:
        ids, lengths, sentences, ends = (np.concatenate([getattr(e, name) for e in self._held]) for name in _FIELDS)
        self._held, self._size = [], 0
        document = np.concatenate([[0], np.cumsum(ends)[:-1]])  # of each piece
        per_document = np.bincount(document, sentences).astype(np.int64)
        last_sentence = np.cumsum(per_document)
        tokens_until = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        filled = per_document > 0
        sentence_ends = np.concatenate([[0], last_sentence[filled]])
        columns = [
            pa.ListArray.from_arrays(pa.array(tokens_until[sentence_ends], pa.int32()), pa.array(ids)),
            pa.ListArray.from_arrays(pa.array(sentence_ends, pa.int32()), pa.array(lengths)),
        ]
        self._write(columns)
        sums = (filled.sum(), len(lengths), len(ids), (per_document == 1).sum(), (~filled).sum())
        for name, value in zip(_COUNTS, sums, strict=False):
            self._counts[name] += int(value)

    def _write(self, columns: list[pa.Array]) -> None:
        batch = pa.record_batch(columns, names=["input_ids", "sentence_lengths"])
        if self._stream is None:
            self._stream = pa.ipc.new_stream(self._file, batch.schema)
        self._stream.write_batch(batch)

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
            self._write([pa.array([], pa.list_(pa.uint16())), pa.array([], pa.list_(pa.int32()))])
        self._stream.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        with open(self._temporary, "rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        size = self._temporary.stat().st_size
        os.replace(self._temporary, self.path)
        self.entry = {"file": self.path.name, "bytes": size, "sha256": checksum, **self._counts, **self.facts}
        write_json(self.path.with_suffix(".json"), self.entry)


_FIELDS = ("ids", "sentence_lengths", "sentences", "ends")


def finished_shard(path: Path, fingerprint: str) -> dict | None:
    """The record of a shard that stands, whole and made of just this; None where it has to be made."""
    try:
        entry = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if entry["fingerprint"] != fingerprint or path.stat().st_size != entry["bytes"]:
            return None
        with open(path, "rb") as file:
            whole = hashlib.file_digest(file, "sha256").hexdigest() == entry["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return entry if whole else None


def write_manifest(folder: Path, facts: dict, entries: list[dict]) -> dict:
    """Gathers the shards' records. The same shards give the same bytes, whoever made them."""
    totals = {name: sum(entry[name] for entry in entries) for name in _COUNTS}
    unknown = totals.pop("unknown")
    made = json.dumps([entry["fingerprint"] for entry in entries])
    manifest = {
        "format": FORMAT,
        **totals,
        "unknown_share": unknown / max(1, totals["tokens"]),
        "fingerprint": hashlib.sha256(made.encode()).hexdigest(),
        **facts,
        "shards": entries,
    }
    write_json(folder / MANIFEST, manifest)
    return manifest


# ---- reading


class Window:
    """The documents of the shards that are open together. Sentences are numbered through all of them.

    Attributes:
        token_offsets: (sentences + 1,) tokens before each sentence.
        document_starts, document_ends: (documents,) the sentences [start, end) of each document.
    """

    def __init__(self, shards: list[tuple[Path, np.ndarray | None]]):
        """`shards`: file, and which of its documents (a boolean mask; None: all)."""
        self._chunks, lengths, sentences, chosen = [], [], [], []
        for path, mask in shards:
            first = len(sentences)
            for batch in _batches(path):
                self._chunks.append(batch.column("input_ids").flatten().to_numpy())  # a view of the memory map
                column = batch.column("sentence_lengths")
                lengths.append(column.flatten().to_numpy())
                sentences.append(np.diff(column.offsets.to_numpy()))
            count = sum(map(len, sentences[first:]))
            chosen.append(np.ones(count, bool) if mask is None else mask)
        none = [np.zeros(0, np.int64)]
        self._chunk_starts = np.concatenate([[0], np.cumsum([len(chunk) for chunk in self._chunks])])
        self.token_offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths or none), dtype=np.int64)])
        ends = np.cumsum(np.concatenate(sentences or none), dtype=np.int64)
        starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
        keep = np.concatenate(chosen or [np.zeros(0, bool)])
        self.document_starts, self.document_ends = starts[keep], ends[keep]

    def __len__(self) -> int:
        return len(self.document_starts)

    def ids(self, first_sentence: int, last_sentence: int) -> np.ndarray:
        """Token ids of the sentences [first, last), which lie in one document."""
        start, end = self.token_offsets[first_sentence], self.token_offsets[last_sentence]
        chunk = int(self._chunk_starts.searchsorted(start, "right")) - 1
        offset = self._chunk_starts[chunk]
        return self._chunks[chunk][start - offset : end - offset]

    def chunks(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """(first, last, ids): all sentences of the open shards, [first, last) at a time, those of left-out documents
        among them."""
        edges = self.token_offsets.searchsorted(self._chunk_starts).tolist()
        yield from zip(edges[:-1], edges[1:], self._chunks, strict=True)

    @property
    def sizes(self) -> np.ndarray:
        """(documents,) tokens of each."""
        return self.token_offsets[self.document_ends] - self.token_offsets[self.document_starts]

    def unigram_counts(self, vocab_size: int) -> np.ndarray:
        """(vocab_size,) how often each token stands in these documents."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        begins, ends = self.token_offsets[self.document_starts], self.token_offsets[self.document_ends]
        for chunk, offset in zip(self._chunks, self._chunk_starts, strict=False):
            change = np.zeros(len(chunk) + 1, np.int8)  # +1 where a document begins, −1 where one ends
            here = (begins >= offset) & (begins < offset + len(chunk))
            np.add.at(change, begins[here] - offset, 1)
            np.add.at(change, ends[here] - offset, -1)
            counts += np.bincount(chunk[np.cumsum(change[:-1], dtype=np.int8) > 0], minlength=vocab_size)[:vocab_size]
        return counts


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        yield from pa.ipc.open_stream(pa.memory_map(str(path)))
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"not a shard of a corpus: {error}", where=path, remedy="run prepare.py again") from None


def _read_manifest(storage: "LocalShards") -> dict:
    """The manifest of a corpus, after a look at its entries and at the shards that they name."""
    path = storage.file(MANIFEST)
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        for entry in manifest["shards"]:  # of both, names of files are made
            counted = all(type(entry[name]) is int and entry[name] >= 0 for name in ("bytes", *_COUNTS))
            if not (counted and _SHARD.fullmatch(entry["file"]) and _SHA256.fullmatch(entry["sha256"])):
                raise ValueError(f"strange entry {entry['file']!r}")
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']}, and not {FORMAT}")
        if not isinstance(manifest["fingerprint"], str):
            raise ValueError("no fingerprint")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"not a prepared corpus: {error}", where=path, remedy="run prepare.py again") from None
    storage.check(manifest["shards"], WINDOW_TOKENS)
    return manifest


class Corpus:
    """A prepared corpus, or some of its documents.

    Attributes:
        manifest: what `manifest.json` says. fingerprint: of what made it, and of which documents these are.
        documents: {shard: boolean mask of its documents}; a shard that is not in it counts whole.
    """

    def __init__(
        self,
        where: "str | Path | LocalShards",
        manifest: dict | None = None,
        shards: list[int] | None = None,
        documents: dict | None = None,
    ):
        """`where`: a folder made by `prepare`. The rest is for `subset`: what has been read of it, and which part."""
        storage = LocalShards(Path(where)) if isinstance(where, str | Path) else where
        manifest = _read_manifest(storage) if manifest is None else manifest
        self.storage, self.manifest = storage, manifest
        self.shards = list(range(len(manifest["shards"]))) if shards is None else shards
        self.documents: dict[int, np.ndarray] = documents or {}
        self._tokens: int | None = None
        chosen = [[shard, np.packbits(mask).tobytes().hex()] for shard, mask in sorted(self.documents.items())]
        parts = json.dumps([manifest["fingerprint"], self.shards, chosen]).encode()
        self.fingerprint = hashlib.sha256(parts).hexdigest() if chosen else manifest["fingerprint"]
        self._open: dict[tuple[int, ...], Window] = {}

    @classmethod
    def open(cls, where: "str | Path | LocalShards") -> "Corpus":
        """Opens a folder made by `prepare`, or what a storage holds.

        Raises:
            InputError: no such corpus, or its shards are not as the manifest says.
        """
        return cls(where)

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_open": {}}  # a worker maps the files itself

    def __len__(self) -> int:
        return sum(map(self._documents, self.shards))

    def _documents(self, shard: int) -> int:
        chosen = self.documents.get(shard)
        return self.manifest["shards"][shard]["documents"] if chosen is None else int(chosen.sum())

    def tokenizer(self) -> Path:
        """The folder of its tokenizer."""
        for name in ("tokenizer_config.json", "tokenizer.json"):
            path = self.storage.file(f"tokenizer/{name}")
        return path.parent

    @property
    def tokens(self) -> int:
        """Tokens in these documents."""
        if self._tokens is None:
            whole = [shard for shard in self.shards if shard not in self.documents]
            self._tokens = sum(self.manifest["shards"][shard]["tokens"] for shard in whole)
            for shard in self.documents.keys() & set(self.shards):
                self._tokens += int(self.window((shard,)).sizes.sum())
        return self._tokens

    # ---- windows
    def windows(self, rng: np.random.Generator | None = None) -> list[tuple[int, ...]]:
        """The shards in groups that are opened together, each of about `WINDOW_TOKENS` tokens, in the order drawn.

        A corpus that fits into one window is one; without a generator the shards keep their order.
        """
        in_order = self._grouped(self.shards)
        if rng is None or len(in_order) == 1:  # so held-out documents, those of one window, stay together
            return in_order
        return self._grouped([self.shards[i] for i in rng.permutation(len(self.shards))])

    def _grouped(self, order: list[int]) -> list[tuple[int, ...]]:
        windows, held, tokens, documents, longer = [], [], 0, 0, 0
        for shard in order:
            held.append(shard)
            tokens += self.manifest["shards"][shard]["tokens"]
            documents += self._documents(shard)
            # of these so many at least have two sentences or more
            longer += max(0, self._documents(shard) - self.manifest["shards"][shard]["one_sentence_documents"])
            if tokens >= WINDOW_TOKENS and documents > 1 and longer:  # without, there would be no pairs
                windows.append(tuple(sorted(held)))
                held, tokens, documents, longer = [], 0, 0, 0
        if held:  # the rest joins the last window: alone it could be too little to draw NOT_NEXT segments from
            last = windows.pop() if windows and (tokens < WINDOW_TOKENS // 2 or documents < 2 or not longer) else ()
            windows.append(tuple(sorted([*last, *held])))
        return windows or [()]

    def head(self) -> tuple[int, ...]:
        """The first window in the store's order. It stays at hand: held-out documents and frequencies come from it."""
        head = self.windows()[0]
        self.storage.keep([self.manifest["shards"][shard] for shard in head])
        return head

    def window(self, shards: tuple[int, ...], following: tuple[int, ...] = ()) -> Window:
        """Opens these shards; `following` are fetched meanwhile, where they have to be. The last two are kept open."""
        if shards not in self._open:
            entries = [self.manifest["shards"][shard] for shard in shards]
            wanted = [self.manifest["shards"][shard] for shard in following]
            with self.storage.files(entries, wanted) as files:
                window = Window([(path, self.documents.get(shard)) for path, shard in zip(files, shards, strict=True)])
            while len(self._open) > 1:
                del self._open[next(iter(self._open))]
            self._open[shards] = window
        return self._open[shards]

    # ---- parts
    def subset(self, chosen: dict[int, np.ndarray]) -> "Corpus":
        """Of each shard named, only these documents ({shard: boolean mask over those it has in the store}).

        Shards in which nothing is left are left out.
        """
        documents = {**self.documents}
        for shard, mask in chosen.items():
            documents[shard] = mask & documents[shard] if shard in documents else mask
        shards = [shard for shard in self.shards if shard not in documents or documents[shard].any()]
        return Corpus(self.storage, self.manifest, shards, documents)

    def split(self, percentage: float, seed: int = 0) -> tuple["Corpus", "Corpus"]:
        """(train, held out): whole documents, `percentage` % of the tokens held out, two documents at least.

        They are drawn from the first window: of a corpus larger than that, the held-out text need not grow with it.
        """
        head = self.head()
        window = self.window(head)
        order = np.random.default_rng(seed).permutation(len(window))
        sizes = window.sizes[order]
        count = int(np.searchsorted(np.cumsum(sizes), sizes.sum() * percentage / 100)) + 1 if len(window) else 0
        count = min(max(2, count), len(window) - 2)
        if count < 2:
            raise InputError(
                f"{len(window)} documents are too few to hold two of them out",
                where="corpus",
                remedy="give --validation_file, or text with blank lines between its documents",
            )
        held = np.zeros(len(window), bool)
        held[order[:count]] = True
        masks, first = {}, 0
        for shard in head:
            mask = self.documents.get(shard, np.ones(self.manifest["shards"][shard]["documents"], bool)).copy()
            here = int(mask.sum())
            mask[mask] = held[first : first + here]
            masks[shard], first = mask, first + here
        rest = self.subset({shard: ~mask for shard, mask in masks.items()})
        held_out = Corpus(self.storage, self.manifest, list(head), self.documents).subset(masks)
        held_out._tokens = int(sizes[:count].sum())
        rest._tokens = self.tokens - held_out._tokens
        return rest, held_out

    def unigram_counts(self, vocab_size: int) -> np.ndarray:
        """(vocab_size,) how often each token stands in the first window: the whole corpus, or its first part."""
        return self.window(self.head()).unigram_counts(vocab_size)


class LocalShards:
    """Where the files of a corpus are: a folder. (`remote.RemoteShards` is another one.)"""

    def __init__(self, folder: Path):
        self.folder = folder

    def file(self, name: str) -> Path:
        """A file other than a shard."""
        return self.folder / name

    def check(self, entries: list[dict], window_tokens: int) -> None:
        """Are all shards there, each as long as its record says?"""
        for entry in entries:
            path = self.folder / entry["file"]
            if not path.is_file() or path.stat().st_size != entry["bytes"]:
                what = f"not {entry['bytes']} bytes long" if path.is_file() else "the shard is not there"
                raise InputError(what, where=path, remedy="run the prepare.py command again: it makes what is missing")

    def keep(self, entries: list[dict]) -> None:
        """Says that these shards are needed to the end."""

    @contextlib.contextmanager
    def files(self, entries: list[dict], following: list[dict]) -> Iterator[list[Path]]:
        """The shards' files, there to be opened inside the `with`."""
        yield [self.folder / entry["file"] for entry in entries]
