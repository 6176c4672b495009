"""Any text → tokenized documents with sentence boundaries, memory-mapped, fingerprinted.

A prepared corpus is a folder: Arrow shards that `datasets` opens too (one row a document: `input_ids`,
`sentence_lengths`), the tokenizer, and `manifest.json`.
"""

import hashlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import sentencex
from transformers import PreTrainedTokenizerBase

from bert_hf.arguments import CorpusArguments, TokenizerArguments
from bert_hf.errors import InputError
from bert_hf.sources import default_documents, default_versions, describe, read_documents, read_hub
from bert_hf.tokenization import backend, fingerprint_text, load_tokenizer, save_tokenizer, train_tokenizer

FORMAT = 1  # of the folder; part of the fingerprint
MANIFEST = "manifest.json"
SHARD_TOKENS = 32_000_000  # 64 MB of uint16
LONGEST_SENTENCE = 1000  # characters; beyond it text without full stops is cut at white space
_DOCUMENTS_AT_ONCE = 64


def split_sentences(text: str, language: str = "en") -> list[str]:
    """The sentences of a text.

    A line break always ends a sentence; within a line `sentencex` decides, told the language (an unknown code falls
    back along its own chain of related languages and at last to English rules). What is still longer than
    `LONGEST_SENTENCE` characters (text without full stops) is cut at the last white space before that length, or at
    that length where there is none.
    """
    sentences = []
    for line in text.splitlines():
        if line.strip():
            for sentence in sentencex.segment(language, line) if len(line) > 1 else [line]:
                sentences.extend(_cut_long(sentence.strip()))
    return sentences


def _cut_long(sentence: str) -> Iterator[str]:
    while len(sentence) > LONGEST_SENTENCE:
        at = sentence.rfind(" ", 1, LONGEST_SENTENCE)
        at = at if at > 0 else LONGEST_SENTENCE
        yield sentence[:at].strip()
        sentence = sentence[at:].strip()
    if sentence:
        yield sentence


# ---- the store


class Corpus:
    """A prepared corpus, or some of its documents. Sentences are numbered through the whole store.

    Attributes:
        manifest: what `manifest.json` says. fingerprint: of what made it.
        token_offsets: (sentences + 1,) tokens before each sentence.
        document_starts, document_ends: (documents,) the sentences [start, end) of each document.
    """

    def __init__(self, folder: Path, manifest: dict, documents: np.ndarray | None = None):
        self.folder, self.manifest = folder, manifest
        self.fingerprint: str = manifest["fingerprint"]
        self._selected = documents
        self._open()

    @classmethod
    def open(cls, folder: str | Path) -> "Corpus":
        """Memory-maps a folder made by `prepare`.

        Raises:
            InputError: no such corpus, or its shards are not as the manifest says.
        """
        folder = Path(folder)
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            shards = {entry["file"]: entry["bytes"] for entry in manifest["shards"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"not a prepared corpus: {error}", where=folder / MANIFEST, remedy="run recipes/prepare.py again"
            ) from None
        for name, size in shards.items():
            path = folder / Path(name).name
            if not path.is_file() or path.stat().st_size != size:
                raise InputError(f"not {size} bytes long", where=path, remedy="run recipes/prepare.py again")
        return cls(folder, manifest)

    def _open(self) -> None:
        self._chunks, lengths, sentences = [], [], []
        for entry in self.manifest["shards"]:
            table = datasets.Dataset.from_file(str(self.folder / Path(entry["file"]).name)).data.table
            for chunk in table.column("input_ids").chunks:
                self._chunks.append(chunk.flatten().to_numpy())  # a view of the memory map
            for chunk in table.column("sentence_lengths").chunks:
                lengths.append(chunk.flatten().to_numpy())
                sentences.append(np.diff(chunk.offsets.to_numpy()))
        self._chunk_starts = np.concatenate([[0], np.cumsum([len(chunk) for chunk in self._chunks])])
        self.token_offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths), dtype=np.int64)])
        ends = np.cumsum(np.concatenate(sentences), dtype=np.int64)
        starts = np.concatenate([[0], ends[:-1]])
        chosen = slice(None) if self._selected is None else self._selected
        self.document_starts, self.document_ends = starts[chosen], ends[chosen]

    def __reduce__(self):
        return Corpus, (self.folder, self.manifest, self._selected)  # a worker maps the files itself

    def __len__(self) -> int:
        return len(self.document_starts)

    def ids(self, first_sentence: int, last_sentence: int) -> np.ndarray:
        """Token ids of the sentences [first, last), which lie in one document."""
        start, end = self.token_offsets[first_sentence], self.token_offsets[last_sentence]
        chunk = int(self._chunk_starts.searchsorted(start, "right")) - 1
        offset = self._chunk_starts[chunk]
        return self._chunks[chunk][start - offset : end - offset]

    @property
    def tokens(self) -> int:
        """Tokens in these documents."""
        return int((self.token_offsets[self.document_ends] - self.token_offsets[self.document_starts]).sum())

    def subset(self, documents: np.ndarray) -> "Corpus":
        """The same store with these of its documents (ascending positions in this corpus)."""
        chosen = documents if self._selected is None else self._selected[documents]
        return Corpus(self.folder, self.manifest, np.asarray(chosen))

    def split(self, percentage: float, seed: int = 0) -> tuple["Corpus", "Corpus"]:
        """(train, held out): whole documents, `percentage` % of the tokens held out, two documents at least."""
        order = np.random.default_rng(seed).permutation(len(self))
        sizes = (self.token_offsets[self.document_ends] - self.token_offsets[self.document_starts])[order]
        count = int(np.searchsorted(np.cumsum(sizes), sizes.sum() * percentage / 100)) + 1
        count = min(max(2, count), len(self) - 2)
        if count < 2:
            raise InputError(
                f"{len(self)} documents are too few to hold two of them out",
                where="corpus",
                remedy="give --validation_file, or text with blank lines between its documents",
            )
        return self.subset(np.sort(order[count:])), self.subset(np.sort(order[:count]))

    def unigram_counts(self, vocab_size: int) -> np.ndarray:
        """(vocab_size,) how often each token stands in these documents."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        for start, end in zip(self.document_starts, self.document_ends, strict=True):
            counts += np.bincount(self.ids(start, end), minlength=vocab_size)[:vocab_size]
        return counts


# ---- preparing


def fingerprint(tokenizer: PreTrainedTokenizerBase, language: str, made_from: dict) -> str:
    """SHA-256 of all that decides what a prepared corpus holds."""
    parts = json.dumps([FORMAT, fingerprint_text(tokenizer), language, made_from], sort_keys=True)
    return hashlib.sha256(parts.encode()).hexdigest()


def prepare(
    documents: Iterable[str],
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    language: str = "en",
    num_proc: int = 1,
    made_from: dict | None = None,
) -> Corpus:
    """Documents → sentences → ids, written to `folder` (made in a temporary one beside it, then renamed).

    Args:
        documents: the text of each document.
        made_from: names the source (files with sizes and times, columns); part of the fingerprint.

    Raises:
        InputError: not one token in all the text.
    """
    folder = Path(folder)
    temporary = folder.with_name(f".{folder.name}.preparing-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        totals, shards = _write_shards(_encoded(documents, tokenizer, language, num_proc), tokenizer, temporary)
        if totals["documents"] == 0:
            raise InputError("no text in it", where=_name_of(made_from), remedy="give files that hold text")
        save_tokenizer(tokenizer, temporary / "tokenizer")
        unknown = totals.pop("unknown")
        manifest = {
            "format": FORMAT,
            **totals,
            "unknown_share": unknown / totals["tokens"],
            "fingerprint": fingerprint(tokenizer, language, made_from or {}),
            "language": language,
            "vocab_size": len(tokenizer),
            "made_from": made_from or {},
            "shards": shards,
        }
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Corpus.open(folder)


def _name_of(made_from: dict | None) -> str:
    files = (made_from or {}).get("files") or []
    return files[0][0] if files else "corpus"


def _encoded(documents, tokenizer, language: str, num_proc: int) -> Iterator[tuple[list[np.ndarray], list[int]]]:
    """(ids of the document, lengths of its sentences) in the order of the documents, made by `num_proc` processes."""
    groups = _groups(documents)
    if num_proc <= 1:
        _start_worker(backend(tokenizer).to_str(), language)
        for group in groups:
            yield from _encode(group)
        return
    context = multiprocessing.get_context("spawn")  # forking a process that runs threads can hang
    with context.Pool(num_proc, _start_worker, (backend(tokenizer).to_str(), language)) as pool:
        for encoded in pool.imap(_encode, groups):
            yield from encoded


def _groups(documents: Iterable[str]) -> Iterator[tuple[str, ...]]:
    documents = iter(documents)
    while group := tuple(islice(documents, _DOCUMENTS_AT_ONCE)):
        yield group


_worker: dict = {}


def _start_worker(tokenizer: str, language: str) -> None:
    from tokenizers import Tokenizer

    _worker.update(tokenizer=Tokenizer.from_str(tokenizer), language=language)


def _encode(group: tuple[str, ...]) -> list[tuple[np.ndarray, list[int]]]:
    """Encodes a group of documents, all their sentences in one call."""
    sentences = [split_sentences(text, _worker["language"]) for text in group]
    flat = [sentence for document in sentences for sentence in document]
    encodings = iter(_worker["tokenizer"].encode_batch_fast(flat, add_special_tokens=False))
    result = []
    for document in sentences:
        ids = [encoding.ids for encoding in islice(encodings, len(document))]
        ids = [sentence for sentence in ids if sentence]
        joined = np.fromiter((i for sentence in ids for i in sentence), np.int32, sum(map(len, ids)))
        result.append((joined, [len(sentence) for sentence in ids]))
    return result


def _write_shards(encoded, tokenizer, folder: Path) -> tuple[dict, list[dict]]:
    """Writes all documents; returns the totals and an entry for each shard."""
    dtype = pa.uint16() if len(tokenizer) < 2**16 else pa.int32()
    names = ("documents", "sentences", "tokens", "one_sentence_documents", "empty_documents", "unknown")
    totals, shards = dict.fromkeys(names, 0), []
    rows: list[tuple[np.ndarray, list[int]]] = []
    held = 0
    for ids, lengths in encoded:
        if not lengths:
            totals["empty_documents"] += 1
            continue
        rows.append((ids, lengths))
        held += len(ids)
        totals["documents"] += 1
        totals["sentences"] += len(lengths)
        totals["tokens"] += len(ids)
        totals["one_sentence_documents"] += len(lengths) == 1
        totals["unknown"] += int((ids == tokenizer.unk_token_id).sum())
        if held >= SHARD_TOKENS:
            shards.append(_write_shard(rows, dtype, folder / f"data-{len(shards):05d}.arrow"))
            rows, held = [], 0
    if rows:
        shards.append(_write_shard(rows, dtype, folder / f"data-{len(shards):05d}.arrow"))
    return totals, shards


def _write_shard(rows: list[tuple[np.ndarray, list[int]]], dtype: pa.DataType, path: Path) -> dict:
    """One Arrow stream, as `datasets` memory-maps it."""
    offsets = np.cumsum([0] + [len(ids) for ids, _ in rows])
    sentence_offsets = np.cumsum([0] + [len(lengths) for _, lengths in rows])
    ids = pa.array(np.concatenate([ids for ids, _ in rows]).astype(dtype.to_pandas_dtype()), dtype)
    lengths = pa.array(np.concatenate([np.asarray(lengths, np.int32) for _, lengths in rows]), pa.int32())
    columns = [
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), ids),
        pa.ListArray.from_arrays(pa.array(sentence_offsets, pa.int32()), lengths),
    ]
    table = pa.table(columns, names=["input_ids", "sentence_lengths"])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with open(path, "rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    return {"file": path.name, "documents": len(rows), "bytes": path.stat().st_size, "sha256": checksum}


# ---- what a run asks for


def is_prepared(paths: list[str] | None) -> bool:
    """Is this one folder made by `prepare`?"""
    return bool(paths) and len(paths) == 1 and (Path(paths[0]) / MANIFEST).is_file()


def documents_of(args: CorpusArguments, files: list[str] | None) -> tuple[Callable[[], Iterator[str]], dict]:
    """A function that reads the documents asked for, and what names their source (see `prepare`)."""
    if files:
        made_from = {"files": describe(files), "text_column": args.text_column}
        return lambda: read_documents(files, args.text_column), made_from
    if args.dataset_name:
        made_from = {"dataset": [args.dataset_name, args.dataset_config_name], "text_column": args.text_column}
        return lambda: read_hub(args.dataset_name, args.dataset_config_name, args.text_column), made_from
    return default_documents, {"default": default_versions()}


def sample(documents: Iterable[str], limit: int) -> list[str]:
    """Documents of about `limit` bytes at most, spread evenly over all: when too many are held, every second goes."""
    held: list[str] = []
    size, stride = 0, 1
    for number, document in enumerate(documents):
        if number % stride == 0:
            held.append(document)
            size += len(document.encode("utf-8", "surrogatepass"))
        while size > limit and len(held) > 1:
            held, stride = held[::2], stride * 2
            size = sum(len(document.encode("utf-8", "surrogatepass")) for document in held)
    return held


def tokenizer_for(args: TokenizerArguments, corpus: CorpusArguments) -> PreTrainedTokenizerBase:
    """The tokenizer asked for: the named one, that of a prepared corpus, or one trained on the text (and kept)."""
    options = {name: getattr(args, name) for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")}
    if args.tokenizer_name:
        return load_tokenizer(args.tokenizer_name, **options)
    if is_prepared(corpus.train_file):
        return load_tokenizer(Path(corpus.train_file[0]) / "tokenizer")
    documents, made_from = documents_of(corpus, corpus.train_file)
    options.update({name: getattr(args, name) for name in ("vocab_size", "min_frequency", "limit_alphabet")})
    key = json.dumps([FORMAT, made_from, options, args.tokenizer_sample_bytes], sort_keys=True)
    folder = Path(corpus.cache_dir).expanduser() / f"tokenizer-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if not folder.is_dir():
        texts = sample(documents(), args.tokenizer_sample_bytes)
        if not texts:
            raise InputError("no text in it", where=_name_of(made_from), remedy="give files that hold text")
        trained = train_tokenizer(texts, **options)
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
        save_tokenizer(trained, temporary)
        os.rename(temporary, folder)
    return load_tokenizer(folder)


def corpus_for(args: CorpusArguments, tokenizer: PreTrainedTokenizerBase, files: list[str] | None) -> Corpus:
    """The corpus asked for: a prepared folder, or raw text prepared now and taken from the cache the next time."""
    if is_prepared(files):
        corpus = Corpus.open(files[0])
        if fingerprint_text(load_tokenizer(Path(files[0]) / "tokenizer")) != fingerprint_text(tokenizer):
            raise InputError(
                "it was prepared with another tokenizer", where=files[0], remedy="leave out --tokenizer_name"
            )
        return corpus
    documents, made_from = documents_of(args, files)
    language = args.language or "en"
    folder = Path(args.cache_dir).expanduser() / fingerprint(tokenizer, language, made_from)[:16]
    if (folder / MANIFEST).is_file():
        return Corpus.open(folder)
    return prepare(documents(), tokenizer, folder, language=language, num_proc=args.num_proc, made_from=made_from)


def split_for(args: CorpusArguments, tokenizer: PreTrainedTokenizerBase) -> tuple[Corpus, Corpus]:
    """(train, held out): from `--validation_file`, or split off by document."""
    corpus = corpus_for(args, tokenizer, args.train_file)
    if args.validation_file:
        return corpus, corpus_for(args, tokenizer, args.validation_file)
    return corpus.split(args.validation_split_percentage)
