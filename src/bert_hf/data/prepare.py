"""Prepares a corpus: sources of text become tokenized shards in a folder, made by any number of processes or machines.

Each input becomes a shard, or several. A shard that is complete and up to date is not made again.
"""

import contextlib
import json
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from bert_hf.data.checksums import text_checksum
from bert_hf.data.corpus_store import Corpus
from bert_hf.data.encoding import encode_source
from bert_hf.data.input_shards import (
    InputShards,
    all_recorded,
    finished_shards,
    has_all_shards,
    remove_input_leftovers,
)
from bert_hf.data.readers import Source
from bert_hf.data.shard_writer import FORMAT, MANIFEST, write_json, write_manifest
from bert_hf.data.tokenization import TOKENIZER_FILES, fingerprint_text, save_tokenizer
from bert_hf.data.worker_pool import map_ahead, worker_errors
from bert_hf.errors import InputError

RECIPE = "recipe.json"  # what is being prepared in a folder; other text or another tokenizer is refused there
# Globs of the files that `prepare` writes into a folder; the first one identifies such a folder.
_TOKENIZER = tuple(f"tokenizer/{name}" for name in TOKENIZER_FILES)
OWNED = (RECIPE, MANIFEST, *_TOKENIZER, "data-*.json", "data-*.arrow", ".data-*.tmp")


def prepare(
    inputs: Sequence[Source],
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    language: str | None = "en",
    num_proc: int = 1,
    shard: tuple[int, int] = (0, 1),
    without: Mapping[int, frozenset[int]] | None = None,
    options: dict | None = None,
) -> Corpus | None:
    """Splits the inputs into sentences and these into ids, a shard (or several) of `folder` for each input.

    Args:
        inputs: sources (see `readers`): anything with `name`, `checksum()` and `read()`.
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
        "tokenizer": text_checksum(fingerprint_text(tokenizer)),
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
    part = jobs[shard[0] :: shard[1]]
    _find_finished(part, num_proc)
    _make_shards([job for job in part if not has_all_shards(job.entries)], folder, num_proc)
    return _complete(folder, recipe, jobs, num_proc)


# ---- the folder


def _claim(folder: Path, recipe: dict, tokenizer: PreTrainedTokenizerBase) -> None:
    """Records what is made in the folder, or checks that it is the same. Parts may begin at the same moment."""
    path = folder / RECIPE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.is_file() or not write_json(path, recipe, replace=False):
            present = json.loads(path.read_text(encoding="utf-8"))
            differ = [key for key in {**present, **recipe} if present.get(key) != recipe.get(key)]
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
    """Adds the files that are missing, each atomically: another part may be reading them already."""
    if all((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt")):
        return

    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".tokenizer-", suffix=".tmp") as temporary:
        save_tokenizer(tokenizer, temporary)
        for file in sorted(Path(temporary).iterdir()):
            if not (folder / file.name).is_file():
                os.replace(file, folder / file.name)


def _complete(folder: Path, recipe: dict, jobs: list["_Job"], num_proc: int) -> Corpus | None:
    """Writes the manifest once the shards of all parts are there."""
    if not all(all_recorded(job.path) for job in jobs):
        return None  # before anything is read: the last part alone reads the other parts' shards

    _find_finished(jobs, num_proc)
    if not all(has_all_shards(job.entries) for job in jobs):
        return None  # another part is making one again

    entries = [entry for job in jobs for entry in job.entries]
    if not any(entry["tokens"] for entry in entries):
        _remove_corpus(folder)
        raise InputError("no text in it", where=jobs[0].source.name, remedy="give files that hold text")

    facts = {"language": recipe["language"], "vocab_size": recipe["vocab_size"], "made_from": recipe}
    write_manifest(folder, facts, entries)
    return Corpus.open(folder)


def _remove_corpus(folder: Path) -> None:
    for pattern in reversed(OWNED):  # the recipe last
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        (folder / "tokenizer").rmdir()
        folder.rmdir()


# ---- the shards


@dataclass
class _Job:
    """One input and its shards."""

    source: Source
    path: Path  # of the first shard
    recipe: dict
    without: frozenset[int]
    entries: list[dict] = field(default_factory=list)  # the records of the shards that are known to be finished

    @cached_property
    def fingerprint(self) -> str:
        """Of what the shards are made from. It takes reading the input: those of one's part, and all at the end."""
        shared = {key: value for key, value in self.recipe.items() if key != "inputs"}
        parts = [shared, self.source.name, self.source.checksum(), sorted(self.without)]
        return text_checksum(json.dumps(parts, sort_keys=True))

    def find_finished(self) -> None:
        """Finds out which of the shards are finished. Where there are any, input and shards are read."""
        if not has_all_shards(self.entries) and self.path.with_suffix(".json").is_file():
            self.entries = finished_shards(self.path, self.fingerprint)

    def writer(self) -> InputShards:
        """Writes the shards that are not finished."""
        return InputShards(self.path, self.source.name, self.fingerprint, self.entries)


def _find_finished(jobs: list[_Job], num_proc: int) -> None:
    with ThreadPoolExecutor(num_proc) as pool:  # hashing releases Python's global lock
        deque(pool.map(_Job.find_finished, jobs), 0)


def _make_shards(jobs: list[_Job], folder: Path, num_proc: int) -> None:
    """Makes the jobs' shards: whole inputs in parallel, or one input after the other, its groups in parallel."""
    if not jobs:
        return
    recipe = jobs[0].recipe
    tokenizer = (str(folder / "tokenizer" / "tokenizer.json"), recipe["tokenizer"])
    work = ((job.source, job.writer(), tokenizer, recipe["language"], job.without) for job in jobs)

    def mapped(encode: Callable, groups: Iterable) -> Iterable:
        return map_ahead(encode, ((group,) for group in groups), num_proc)

    with worker_errors(), _clean_up(jobs):
        if len(jobs) >= num_proc > 1:
            made: Iterable[list[dict]] = map_ahead(encode_source, work, num_proc)
        else:
            made = (encode_source(*each, mapped) for each in work)
        for job, entries in zip(jobs, made, strict=True):
            job.entries = entries


@contextlib.contextmanager
def _clean_up(jobs: list[_Job]) -> Iterator[None]:
    """Removes half-written files after an error, which ends the worker processes at once."""
    try:
        yield
    except BaseException:
        for job in jobs:
            remove_input_leftovers(job.path)
        raise
