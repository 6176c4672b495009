"""Any text → a prepared corpus: each input becomes a shard, or several, made once, by any number of processes."""

import contextlib
import hashlib
import heapq
import json
import os
import shutil
import socket
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path

import filelock
import numpy as np
from joblib.externals.loky import ProcessPoolExecutor
from joblib.externals.loky.process_executor import TerminatedWorkerError
from transformers import PreTrainedTokenizerBase

from bert_hf.config.arguments import CorpusArguments, TokenizerArguments
from bert_hf.data.corpus_store import (
    FORMAT,
    MANIFEST,
    Corpus,
    write_json,
    write_manifest,
)
from bert_hf.data.deduplication import METHOD, Duplicates, find_duplicates
from bert_hf.data.default_corpus import default_documents, default_versions
from bert_hf.data.encoding import encode_group, encode_source, group_pieces, leave_out
from bert_hf.data.input_shards import (
    InputShards,
    all_recorded,
    finished_shards,
    is_complete,
    remove_input_leftovers,
)
from bert_hf.data.readers import KINDS, Piece, TextFile, Texts, expand, hub_shards, is_url, kind_of, packing
from bert_hf.data.remote_shards import RemoteShards
from bert_hf.data.round_trip import measure
from bert_hf.data.tokenization import (
    TOKENIZER_FILES,
    backend,
    fingerprint_text,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from bert_hf.errors import InputError

RECIPE = "recipe.json"  # what is being prepared in a folder; other text or another tokenizer is refused there
# What `prepare` writes into a folder, as globs; by the first such a folder is known.
_TOKENIZER = tuple(f"tokenizer/{name}" for name in TOKENIZER_FILES)
OWNED = (RECIPE, MANIFEST, *_TOKENIZER, "data-*.json", "data-*.arrow", ".data-*.tmp")
_GOLDEN = (5**0.5 - 1) / 2
_SAMPLE_READ = 10  # a sample is drawn from so many times its size of text


@dataclass(frozen=True)
class Documentation:
    """The embedded default corpus as a source (see `sources`)."""

    name: str = "documentation"

    def stamp(self) -> list:
        """See `TextFile.stamp`."""
        return [self.name, self.checksum()]

    def checksum(self) -> str:
        """SHA-256 of the versions that decide the text."""
        return hashlib.sha256(json.dumps(default_versions(), sort_keys=True).encode()).hexdigest()

    def read(self) -> Iterator[Piece]:
        """The documents."""
        return Texts(default_documents()).read()


# ---- preparing


def prepare(
    inputs: list,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    language: str | None = "en",
    num_proc: int = 1,
    shard: tuple[int, int] = (0, 1),
    without: dict[int, frozenset] | None = None,
    options: dict | None = None,
) -> Corpus | None:
    """Inputs → sentences → ids, a shard of `folder` each, or several. What is there already is not made again.

    Args:
        inputs: sources (see `sources`): anything with `name`, `checksum()` and `read()`.
        language: for the sentence splitter; None: a line is a sentence.
        shard: (i, n): make the inputs i, i + n, i + 2n, …: one of n parts of the work.
        without: {input: numbers of documents that are left out}.
        options: what decided `without`, for the recipe.

    Returns:
        The corpus; None where other parts still have shards to make. Whichever part ends last completes the folder,
        and its bytes are those that one machine alone would have written.

    Raises:
        InputError: the text is at fault, there is no token in it, or the folder holds another corpus.
    """
    folder = Path(folder)
    recipe = {
        "format": FORMAT,
        "tokenizer": hashlib.sha256(fingerprint_text(tokenizer).encode()).hexdigest(),
        "language": language,
        "vocab_size": len(tokenizer),
        **(options or {}),
        "inputs": [source.name for source in inputs],
    }
    _claim(folder, recipe, tokenizer)
    jobs = [
        _Job(source, folder / f"data-{number:05d}.arrow", recipe, (without or {}).get(number, frozenset()))
        for number, source in enumerate(inputs)
    ]
    _look(jobs[shard[0] :: shard[1]], num_proc)
    todo = [job for job in jobs[shard[0] :: shard[1]] if not is_complete(job.entries)]
    version = (str(folder / "tokenizer" / "tokenizer.json"), recipe["tokenizer"])
    with _working(), _swept(todo):
        if len(todo) >= num_proc > 1:  # whole inputs side by side
            made = _ahead(encode_source, ((*job.work(), version, language, job.without) for job in todo), num_proc)
        else:  # or one after the other, each by all processes
            made = (_encode(job, version, language, num_proc) for job in todo)
        for job, entries in zip(todo, made, strict=True):
            job.entries = entries
    return _complete(folder, recipe, jobs, num_proc)


@contextlib.contextmanager
def _swept(jobs: list["_Job"]):
    """A fault ends the other processes at once, and what they had half written goes."""
    try:
        yield
    except BaseException:
        for job in jobs:
            remove_input_leftovers(job.path)
        raise


@contextlib.contextmanager
def _working():
    """A worker process that was killed becomes one line."""
    try:
        yield
    except TerminatedWorkerError:
        raise InputError(
            "a worker process was killed, perhaps for want of memory",
            where="--num_proc",
            remedy="use fewer; the same command goes on with the shards that are not finished",
        ) from None


@dataclass
class _Job:
    """One input and its shards."""

    source: object
    path: Path  # of the first shard
    recipe: dict
    without: frozenset
    entries: list[dict] = field(default_factory=list)  # the records of the shards that are known to be whole

    @cached_property
    def fingerprint(self) -> str:
        """Of what the shards are made of. The input is read for it: of one's own part, and of all at the end."""
        own = {key: value for key, value in self.recipe.items() if key != "inputs"}
        parts = [own, self.source.name, self.source.checksum(), sorted(self.without)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def look(self) -> None:
        """Finds out which of the shards are finished. Where there are any, input and shards are read."""
        if not is_complete(self.entries) and self.path.with_suffix(".json").is_file():
            self.entries = finished_shards(self.path, self.fingerprint)

    def work(self) -> tuple:
        return self.source, InputShards(self.path, self.source.name, self.fingerprint, self.entries)


def _look(jobs: list[_Job], num_proc: int) -> None:
    with ThreadPoolExecutor(num_proc) as pool:  # hashing leaves Python's lock alone
        deque(pool.map(_Job.look, jobs), 0)


def _claim(folder: Path, recipe: dict, tokenizer: PreTrainedTokenizerBase) -> None:
    """Says what is made in the folder, or finds that it is this. Parts may begin at the same moment."""
    path = folder / RECIPE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.is_file() or not write_json(path, recipe, anew=False):
            there = json.loads(path.read_text(encoding="utf-8"))
            differ = [key for key in {**there, **recipe} if there.get(key) != recipe.get(key)]
            if differ:
                raise InputError(
                    f"another corpus is in the folder (other {', '.join(differ)})",
                    where=folder,
                    remedy="choose another --output_dir, or pass --overwrite_output_dir",
                )
        _put_tokenizer(folder / "tokenizer", tokenizer)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be written: {error}", where=folder, remedy="check the path and its rights") from None


def _put_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Puts what is missing into place, a whole file at a time: another part may be reading it already."""
    if all((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt")):
        return
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".tokenizer-", suffix=".tmp") as temporary:
        save_tokenizer(tokenizer, temporary)
        for file in sorted(Path(temporary).iterdir()):
            if not (folder / file.name).is_file():
                os.replace(file, folder / file.name)


def _encode(job: _Job, version: tuple[str, str], language: str | None, num_proc: int) -> list[dict]:
    source, writer = job.work()
    groups = group_pieces(leave_out(source.read(), job.without))
    groups = islice(groups, writer.groups_done, None)
    one = partial(encode_group, tokenizer=version, language=language)
    encoded = _ahead(one, ((group,) for group in groups), num_proc) if num_proc > 1 else map(one, groups)
    with writer:
        for group in encoded:
            writer.add(group)
    return writer.entries


def _ahead(work, arguments: Iterable[tuple], num_proc: int) -> Iterator:
    """What `work` makes of each of the arguments, in order, by processes that are never more than a few of them ahead.

    (joblib's own generator goes on whether or not what it made is taken: a slow disk would fill the memory.)
    """
    pool, pending = _pool(num_proc), deque()
    try:
        for own in arguments:
            pending.append(pool.submit(work, *own))
            if len(pending) >= 4 * num_proc:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BaseException:  # a fault, or nobody takes the rest
        _pool.cache_clear()
        pool.shutdown(kill_workers=True)
        raise


@lru_cache(maxsize=1)
def _pool(num_proc: int) -> ProcessPoolExecutor:
    """Processes for the next input, too; they end when they are idle for a minute."""
    return ProcessPoolExecutor(num_proc, timeout=60)


def _complete(folder: Path, recipe: dict, jobs: list[_Job], num_proc: int) -> Corpus | None:
    if not all(all_recorded(job.path) for job in jobs):
        return None  # before anything is read: the last part alone reads the other parts' shards
    _look(jobs, num_proc)
    if not all(is_complete(job.entries) for job in jobs):
        return None  # one is being made anew
    entries = [entry for job in jobs for entry in job.entries]
    if not any(entry["tokens"] for entry in entries):
        for path in [path for pattern in reversed(OWNED) for path in folder.glob(pattern)]:
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (folder / "tokenizer").rmdir()
            folder.rmdir()
        raise InputError("no text in it", where=jobs[0].source.name, remedy="give files that hold text")
    facts = {"language": recipe["language"], "vocab_size": recipe["vocab_size"], "made_from": recipe}
    write_manifest(folder, facts, entries)
    return Corpus.open(folder)


# ---- what a run asks for


def is_prepared(paths: list[str] | None) -> bool:
    """Is this one folder (or the URL of one) made by `prepare`?"""
    if not paths or len(paths) != 1:
        return False
    if is_url(paths[0]):
        return not (packing(paths[0]) or kind_of(paths[0]) in KINDS or set("*?[") & set(paths[0]))
    folder = Path(paths[0])
    recipe, manifest = (os.path.isfile(folder / name) for name in (RECIPE, MANIFEST))
    if recipe and not manifest:
        raise InputError("it is not prepared to the end", where=folder, remedy="run the prepare.py command again")
    return manifest


def open_prepared(args: CorpusArguments, folder: str) -> Corpus:
    """Opens a prepared folder; one behind a URL is read through the cache."""
    limit = None if args.corpus_cache_gb is None else int(args.corpus_cache_gb * 1e9)
    return Corpus.open(RemoteShards(folder, Path(args.cache_dir).expanduser(), limit) if is_url(folder) else folder)


def inputs_of(args: CorpusArguments, files: list[str] | None) -> list:
    """The sources asked for: files, the shards of a Hub dataset, or the documentation on this machine."""
    if files:
        return [TextFile(path, args.text_column) for path in expand(files)]
    if args.dataset_name:
        return list(hub_shards(args.dataset_name, args.dataset_config_name, args.text_column))
    return [Documentation()]


def language_of(args: CorpusArguments) -> str | None:
    """The language that the sentence splitter is told; None: one sentence a line."""
    return None if args.sentence_per_line else args.language or "en"


def texts_of(inputs: list, read: Counter | None = None) -> Iterator[str]:
    """All text, document by document (a very long one in pieces); `read` counts both."""
    for source in inputs:
        for piece in source.read():
            if read is not None:
                read.update(pieces=1, documents=piece.ends)
            yield piece.text


def sample(texts: Iterable[str], limit: int) -> list[str]:
    """Texts of `limit` bytes at most (but one at least), spread evenly over the first ten times as much.

    A text's key is the fractional part of its number times the golden ratio: texts of small keys lie evenly among
    all. When too many are held, those of the largest keys go.
    """
    held: list[tuple[float, int, int, str]] = []
    size = read = 0
    for number, text in enumerate(texts):
        length = len(text.encode("utf-8", "surrogatepass"))
        heapq.heappush(held, (-(number * _GOLDEN % 1), number, length, text))
        size, read = size + length, read + length
        while size > limit and len(held) > 1:
            size -= heapq.heappop(held)[2]
        if read > _SAMPLE_READ * limit:
            break
    return [text for _, _, _, text in sorted(held, key=lambda one: one[1])]


def sample_inputs(inputs: list, limit: int, read: Counter | None = None) -> list[str]:
    """A bounded sample of the text (see `sample`), the inputs taken in a shuffled order (always the same one).

    Args:
        read: gets the numbers of "documents" and "pieces" that were read for it.
    """
    order = np.random.default_rng(0).permutation(len(inputs))
    texts = sample(texts_of([inputs[i] for i in order], read), limit)
    if not any(text.strip() for text in texts):
        raise InputError("no text in it", where=inputs[0].name, remedy="give files that hold text")
    return texts


def tokenizer_for(args: TokenizerArguments, corpus: CorpusArguments) -> PreTrainedTokenizerBase:
    """The tokenizer asked for: the named one, that of a prepared corpus, or one trained on the text (and kept)."""
    if args.tokenizer_name:
        return load_tokenizer(args.tokenizer_name, **args.normalization())
    if is_prepared(corpus.train_file):
        return load_tokenizer(open_prepared(corpus, corpus.train_file[0]).tokenizer())
    inputs = inputs_of(corpus, corpus.train_file)
    made_from = [FORMAT, _stamps(inputs), args.training(), args.tokenizer_sample_bytes]
    if args.strip_accents is None and args.do_lower_case:
        made_from += ["accents by script", corpus.language]
    folder = _cached(corpus, "tokenizer", json.dumps(made_from, sort_keys=True))
    with _alone(folder):
        if not folder.is_dir():
            trained = _train_and_report(args, corpus, sample_inputs(inputs, args.tokenizer_sample_bytes))
            temporary = folder.with_name(f".{folder.name}.{socket.gethostname()}-{os.getpid()}")
            save_tokenizer(trained, temporary)
            try:
                os.rename(temporary, folder)
            except OSError:  # another process was first
                shutil.rmtree(temporary)
    return load_tokenizer(folder)


def _train_and_report(args: TokenizerArguments, corpus: CorpusArguments, texts: list[str]) -> PreTrainedTokenizerBase:
    """Trains a tokenizer, and prints what it does with accents and how much of the text it loses."""
    trained = train_tokenizer(
        texts, **args.training(), language=corpus.language, log=lambda line: print(f"tokenizer: {line}", flush=True)
    )
    if (trip := measure(texts, backend(trained))) is not None:
        print(*(f"tokenizer: {finding}" for finding in trip.findings()), sep="\n", flush=True)
    return trained


@contextlib.contextmanager
def _alone(folder: Path):
    """One process at a time makes a folder of the cache; the ranks of a run come to it together.

    Those that wait do so here, however long it takes: a collective of theirs would end after its timeout. Where a file
    system has no locks, or a cache no room for one, each makes it for itself, and one of them puts it into place.
    """
    lock = filelock.FileLock(folder.with_name(f"{folder.name}.lock"))
    with contextlib.suppress(OSError, NotImplementedError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def duplicates_for(args: CorpusArguments, inputs: list, kind: str) -> Duplicates:
    """The duplicates among the documents (see `duplicates`), found once and taken from the cache the next time."""
    path = _cached(args, "duplicates", json.dumps([kind, METHOD, _stamps(inputs)]))
    path = path.with_suffix(".json")
    if path.is_file():
        there = json.loads(path.read_text(encoding="utf-8"))
        numbers = {int(source): frozenset(own) for source, own in there.pop("numbers").items()}
        return Duplicates(numbers, **there)
    with _working():
        found = find_duplicates(inputs, kind, args.num_proc)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**vars(found), "numbers": {source: sorted(own) for source, own in found.items()}})
    return found


def _stamps(inputs: list) -> list:
    return [[source.stamp(), getattr(source, "text_column", None)] for source in inputs]


def _cached(args: CorpusArguments, what: str, key: str) -> Path:
    return Path(args.cache_dir).expanduser() / f"{what}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def corpus_for(args: CorpusArguments, tokenizer: PreTrainedTokenizerBase, files: list[str] | None) -> Corpus:
    """The corpus asked for: a prepared folder, or raw text prepared now and taken from the cache the next time."""
    if is_prepared(files):
        corpus = open_prepared(args, files[0])
        if fingerprint_text(load_tokenizer(corpus.tokenizer())) != fingerprint_text(tokenizer):
            raise InputError(
                "it was prepared with another tokenizer", where=files[0], remedy="prepare all text with one tokenizer"
            )
        return corpus
    inputs, language = inputs_of(args, files), language_of(args)
    key = json.dumps([FORMAT, fingerprint_text(tokenizer), language, _stamps(inputs)], sort_keys=True)
    folder = _cached(args, "corpus", key)
    with _alone(folder):
        if (folder / MANIFEST).is_file():
            return Corpus.open(folder)
        return prepare(inputs, tokenizer, folder, language=language, num_proc=args.num_proc)


def split_for(args: CorpusArguments, tokenizer: PreTrainedTokenizerBase) -> tuple[Corpus, Corpus]:
    """(train, held out): from `--validation_file`, or split off by document."""
    corpus = corpus_for(args, tokenizer, args.train_file)
    if args.validation_file:
        return corpus, corpus_for(args, tokenizer, args.validation_file)
    return corpus.split(args.validation_split_percentage)
