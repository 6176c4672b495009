"""Opens a prepared corpus: memory-mapped shards, a window of them at a time, and parts such as held-out documents."""

import functools
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from bert_hf.config.files import json_checksum
from bert_hf.data.corpus.shards import FORMAT, MANIFEST
from bert_hf.data.text.encoding import offsets_of
from bert_hf.data.text.tokenization import tokenizer_checksum
from bert_hf.errors import InputError

WINDOW_TOKENS = 256_000_000  # tokens of the shards that are open at a time: the B of NOT_NEXT pairs comes from these
WINDOW_SHARDS = 20_000  # at most twice as many in a window, and two are open: a process may have 65,530 memory maps
_SHARD = re.compile(r"data-\d+(-\d+)?\.arrow")


class Window:
    """The documents of the shards that are open together. Sentences are numbered from 0 on through all of them.

    Args: of all shards, one after the other:
        chunks: token ids in several arrays; each ends where a document ends.
        sentence_lengths: tokens of each sentence.
        document_lengths: sentences of each document.
        kept: bool, for each document whether it belongs to this corpus (or part of one).

    Attributes:
        token_offsets: (sentences + 1,) tokens before each sentence.
        document_starts, document_ends: (documents,) the sentences [start, end) of each document.
    """

    def __init__(
        self, chunks: list[np.ndarray], sentence_lengths: np.ndarray, document_lengths: np.ndarray, kept: np.ndarray
    ):
        self._chunks = chunks
        self._chunk_starts = offsets_of([len(chunk) for chunk in chunks])
        self.token_offsets = offsets_of(sentence_lengths)

        bounds = offsets_of(document_lengths)
        self.document_starts = bounds[:-1][kept]
        self.document_ends = bounds[1:][kept]

    def __len__(self) -> int:
        return len(self.document_starts)

    def ids(self, first_sentence: int, end_sentence: int) -> np.ndarray:
        """Return the token ids of the sentences [first, end), which lie in one document."""
        start, end = self.token_offsets[first_sentence], self.token_offsets[end_sentence]
        chunk = int(self._chunk_starts[:-1].searchsorted(start, "right")) - 1  # of an empty range at the end: the last
        offset = self._chunk_starts[chunk]
        return self._chunks[chunk][start - offset : end - offset]

    @property
    def sentence_counts(self) -> np.ndarray:
        """Return (documents,) the number of sentences of each."""
        return self.document_ends - self.document_starts

    @property
    def token_counts(self) -> np.ndarray:
        """Return (documents,) the number of tokens of each."""
        return self.token_offsets[self.document_ends] - self.token_offsets[self.document_starts]

    def unigram_counts(self, vocab_size: int) -> np.ndarray:
        """Return (vocab_size,) how often each token occurs in these documents.

        Of a chunk of 5 tokens, where documents fill [0, 2) and [3, 5):

            change          +1  0 −1 +1  0  (−1)
            cumulated sum    1  1  0  1  1          1 where the token is counted
        """
        counts = np.zeros(vocab_size, dtype=np.int64)
        begins = self.token_offsets[self.document_starts]
        ends = self.token_offsets[self.document_ends]

        for chunk, offset in zip(self._chunks, self._chunk_starts[:-1], strict=True):
            here = (begins >= offset) & (begins < offset + len(chunk))  # the documents in this chunk
            change = np.zeros(len(chunk) + 1, np.int8)
            np.add.at(change, begins[here] - offset, 1)
            np.add.at(change, ends[here] - offset, -1)
            inside = np.cumsum(change[:-1], dtype=np.int8) > 0
            counts += np.bincount(chunk[inside], minlength=vocab_size)[:vocab_size]
        return counts


def _read_window(shards: list[tuple[Path, np.ndarray | None]]) -> Window:
    """Return a window of shards, given as (file, bool mask of its documents; None: all). Ids stay memory-mapped."""
    chunks = []
    empty = np.zeros(0, np.int32)  # without shards, too, there must be an array to concatenate
    sentence_lengths, document_lengths, kept = [empty], [empty], [empty.astype(bool)]
    for path, mask in shards:
        table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
        chunks += [batch.flatten().to_numpy() for batch in table["input_ids"].chunks]
        for batch in table["sentence_lengths"].chunks:
            sentence_lengths.append(batch.flatten().to_numpy())
            document_lengths.append(np.diff(batch.offsets.to_numpy()))
        kept.append(np.ones(len(table), bool) if mask is None else mask)
    return Window(chunks, *map(np.concatenate, (sentence_lengths, document_lengths, kept)))


def _read_manifest(folder: Path) -> dict:
    """Return the manifest of a corpus, after checking its entries and the sizes of the shards in the folder."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']}, expected {FORMAT}")

        for entry in manifest["shards"]:
            if not _SHARD.fullmatch(entry["file"]):  # becomes part of a path
                raise ValueError(f"invalid entry {entry['file']!r}")
            shard = folder / entry["file"]
            if not shard.is_file() or shard.stat().st_size != entry["bytes"]:
                raise ValueError(f"{shard.name} is missing or incomplete")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        remedy = "run the prepare.py command again, which completes it"
        raise InputError(f"not a prepared corpus: {error}", where=path, remedy=remedy) from None
    return manifest


class Corpus:
    """A prepared corpus, or some of its documents.

    Attributes:
        shards: the numbers of its shards.
        documents: {shard: boolean mask of its documents}; of a shard that is not in it all documents belong to it.
        fingerprint: checksum of text and settings, and of shards and `documents` if there are any masks.
    """

    def __init__(
        self,
        folder: str | Path,
        manifest: dict | None = None,
        shards: list[int] | None = None,
        documents: dict[int, np.ndarray] | None = None,
    ):
        """Open a folder made by `prepare`. The other arguments, which `split` gives, choose a part of it."""
        self.folder = Path(folder)
        self.manifest = _read_manifest(self.folder) if manifest is None else manifest
        self._records: list[dict] = self.manifest["shards"]  # one per shard of the folder
        self.shards = list(range(len(self._records))) if shards is None else shards
        self.documents = documents or {}
        self._open = {}  # tuple of shards → their open window

        self.fingerprint = self.manifest["fingerprint"]
        if self.documents:
            chosen = [[shard, np.packbits(mask).tobytes().hex()] for shard, mask in sorted(self.documents.items())]
            self.fingerprint = json_checksum([self.fingerprint, self.shards, chosen])

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_open": {}}  # a worker process maps the files again

    def __len__(self) -> int:
        return sum(map(self._document_count, self.shards))

    def _document_count(self, shard: int) -> int:
        """Return how many documents of a shard belong to this corpus."""
        mask = self.documents.get(shard)
        return self._records[shard]["documents"] if mask is None else int(mask.sum())

    def tokenizer(self) -> Path:
        """Return the folder of the tokenizer that the corpus was prepared with, for `load_tokenizer`."""
        return self.folder / "tokenizer"

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise an InputError if the corpus was prepared with another tokenizer."""
        made_with = self.manifest.get("made_from", {}).get("tokenizer")
        if made_with not in (None, tokenizer_checksum(tokenizer)):
            remedy = f"use the corpus's own, load_tokenizer('{self.folder}/tokenizer')"
            raise InputError("the corpus was prepared with another tokenizer", where=self.folder, remedy=remedy)

    @functools.cached_property
    def tokens(self) -> int:
        """Return the number of tokens in these documents."""
        tokens = 0
        for shard in self.shards:
            whole = shard not in self.documents
            tokens += self._records[shard]["tokens"] if whole else int(self.window((shard,)).token_counts.sum())
        return tokens

    def windows(self, rng: np.random.Generator | None = None) -> list[tuple[int, ...]]:
        """Return the numbers of the shards in groups that are opened together, each of about `WINDOW_TOKENS` tokens.

        The order is drawn, so that each epoch mixes other shards; without `rng` it is the order of the files.
        """
        in_file_order = self._group_shards(self.shards)
        if rng is None or len(in_file_order) == 1:  # in another order, shards that fit into one window could need two
            return in_file_order
        return self._group_shards([self.shards[i] for i in rng.permutation(len(self.shards))])

    def _group_shards(self, order: list[int]) -> list[tuple[int, ...]]:
        """Return windows of consecutive shards of `order`.

        Of shards with 100, 100, 150, 80 tokens, for windows of 200: (0, 1), (2, 3). To draw pairs, a window needs two
        documents, one of them of two sentences. A rest without these, or of less than half a window, joins the last.
        """
        windows = []
        group = []
        tokens = documents = longer = 0  # of the group; `longer`: documents of two or more sentences
        for shard in order:
            group.append(shard)
            tokens += self._records[shard]["tokens"]
            documents += self._document_count(shard)
            # A lower bound: it assumes that a mask leaves out documents of several sentences only
            longer += max(0, self._document_count(shard) - self._records[shard]["one_sentence_documents"])
            if (tokens >= WINDOW_TOKENS or len(group) >= WINDOW_SHARDS) and documents > 1 and longer:
                windows.append(tuple(sorted(group)))
                group = []
                tokens = documents = longer = 0

        if group:
            if windows and (tokens < WINDOW_TOKENS // 2 or documents < 2 or not longer):
                group += windows.pop()
            windows.append(tuple(sorted(group)))
        return windows or [()]  # a corpus without shards has one empty window, so that there is always a first one

    def window(self, shards: tuple[int, ...]) -> Window:
        """Open these shards, one of `windows()`. The last two windows stay open."""
        window = self._open.get(shards)
        if window is None:
            files = [(self.folder / self._records[shard]["file"], self.documents.get(shard)) for shard in shards]
            window = _read_window(files)

            for old in list(self._open)[:-1]:  # a sampler's thread opens windows as well
                self._open.pop(old, None)
            self._open[shards] = window
        return window

    def unigram_counts(self, vocab_size: int) -> np.ndarray:
        """Return (vocab_size,) how often each token occurs in the first window: in all documents of a small corpus."""
        return self.window(self.windows()[0]).unigram_counts(vocab_size)

    def split(self, percentage: float, seed: int = 0) -> tuple["Corpus", "Corpus"]:
        """Return (train, held out): whole documents, at least two and about `percentage` % of the tokens held out.

        They are drawn from the first window: of a corpus larger than that, the held-out text need not grow with it.
        """
        shards = self.windows()[0]
        window = self.window(shards)
        if len(window) < 4:
            problem = f"{len(window)} documents are too few to hold out two"
            remedy = "give --validation_file, or text with blank lines between its documents"
            raise InputError(problem, where=self._records[shards[0]]["source"], remedy=remedy)
        drawn = _draw_documents(window.token_counts, percentage, seed)

        # For each shard: which documents of its file are trained on, and which are held out
        train_masks = dict(self.documents)
        held_out_masks = dict(self.documents)
        ends = np.cumsum([self._document_count(shard) for shard in shards])  # `drawn` counts documents of this corpus
        for shard, drawn_here in zip(shards, np.split(drawn, ends[:-1]), strict=True):
            mask = self.documents.get(shard, np.ones(self._records[shard]["documents"], bool))
            held_out_masks[shard] = mask.copy()
            held_out_masks[shard][mask] = drawn_here
            train_masks[shard] = mask & ~held_out_masks[shard]

        train = self._part(self.shards, train_masks)
        held_out = self._part(list(shards), held_out_masks)
        held_out.tokens = int(window.token_counts[drawn].sum())  # known, so need not be counted
        train.tokens = self.tokens - held_out.tokens
        return train, held_out

    def _part(self, shards: list[int], documents: dict[int, np.ndarray]) -> "Corpus":
        """Return a corpus of the documents that the masks choose, without the shards of which they choose none."""
        filled = [shard for shard in shards if shard not in documents or documents[shard].any()]
        return Corpus(self.folder, self.manifest, filled, documents)


def _draw_documents(sizes: np.ndarray, percentage: float, seed: int) -> np.ndarray:
    """Draw documents with `percentage` % of the tokens, as (documents,) bool; at least two are drawn, and two are not.

    `sizes` (documents,) are their tokens. Where the drawn ones would have more than twice the percentage, the largest
    documents are not drawn. (The two smallest of four or more documents never have more than half of the tokens.)
    """
    documents = len(sizes)
    target = sizes.sum() * percentage / 100
    two_documents = min(4 * np.median(sizes), 0.6 * sizes.sum())  # in a small text, two may exceed the percentage
    most_tokens = max(2 * target, two_documents)

    # If the loop ends in its first round, the draw is that of earlier versions: their runs can be resumed.
    order = np.random.default_rng(seed).permutation(documents)
    while True:
        sums = np.cumsum(sizes[order])
        count = int(np.searchsorted(sums, target)) + 1  # of documents that are drawn
        count = min(max(2, count), documents - 2, len(order))
        if sums[count - 1] <= most_tokens or len(order) == 2:
            break
        order = np.delete(order, sizes[order].argmax())  # the largest document is trained on

    drawn = np.zeros(documents, bool)
    drawn[order[:count]] = True
    return drawn
