"""Prepares a corpus: sources of text become tokenized shards in a folder, made by any number of processes or machines.

Each input becomes a shard, or several. A shard that is complete and up to date is not made again.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
from transformers import PreTrainedTokenizerBase

from bert_hf.config.files import read_json_object
from bert_hf.console import progress
from bert_hf.data.corpus.shards import FORMAT, MANIFEST, InputShards, remove_leftovers, write_json, write_manifest
from bert_hf.data.corpus.store import Corpus
from bert_hf.data.corpus.worker_pool import map_ahead
from bert_hf.data.text.sources import Source
from bert_hf.data.text.tokenization import TOKENIZER_FILES, save_tokenizer, tokenizer_checksum
from bert_hf.errors import InputError

RECIPE = "recipe.json"  # settings and names of the inputs that are prepared in a folder; others are an error
_LOCK = ".lock.tmp"
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
    text_language: str | None = None,
    overwrite: bool = False,
) -> Corpus | None:
    """Split the inputs into sentences and these into ids, one or more shards in `folder` per input.

    Args:
        language: for the sentence splitter; None: a line is a sentence.
        shard: (i, n): make the inputs i, i + n, i + 2n, …: one of n parts of the work.
        without: {number of an input: numbers of its documents that are left out}.
        options: settings that decided `without`; they are recorded (`RECIPE`).
        text_language: of the text as the user named it, for the model card; `language` may be a default or None.
        overwrite: another corpus in the folder is removed; the same one is continued all the same.

    Returns:
        The corpus; None where other parts still have shards to make. Whichever part ends last completes the folder,
        with the bytes that a single machine would have written.
    """
    folder = Path(folder)
    settings = _shard_settings(inputs, tokenizer, language, options or {})
    recipe = {**settings, "inputs": [source.name for source in inputs]}
    _claim_folder(folder, recipe, tokenizer, overwrite)

    jobs = [
        InputShards(source, folder / f"data-{number:05d}.arrow", settings, (without or {}).get(number, frozenset()))
        for number, source in enumerate(inputs)
    ]
    part = jobs[shard[0] :: shard[1]]
    with ThreadPoolExecutor(num_proc) as pool:  # hashing releases Python's global lock
        list(pool.map(InputShards.find_finished, part))  # raises here what a thread raised

    if not overwrite and (other := next((job for job in part if job.holds_other_text()), None)):
        problem = f"{other.source.name} is not the text that was prepared here"
        raise InputError(problem, where=folder, remedy="choose another --output_dir, or pass --overwrite_output_dir")
    _make_shards([job for job in part if not job.complete], folder, recipe, num_proc)
    return _complete_corpus(folder, recipe, jobs, text_language)


def _shard_settings(
    inputs: Sequence[Source], tokenizer: PreTrainedTokenizerBase, language: str | None, options: dict
) -> dict:
    """Return the settings that determine a shard's bytes, besides its text."""
    first = getattr(inputs[0], "files", inputs)[0] if inputs else None  # of small files that share shards, a file
    column = getattr(first, "text_column", None)
    return {
        "format": FORMAT,
        "tokenizer": tokenizer_checksum(tokenizer),
        "language": language,
        "vocab_size": len(tokenizer),
        **({"text_column": column} if column else {}),  # without it a corpus keeps its fingerprint
        **options,
    }


def _claim_folder(folder: Path, recipe: dict, tokenizer: PreTrainedTokenizerBase, overwrite: bool) -> None:
    """Record recipe (settings and input names) and tokenizer in the folder, or check that its recipe is the same."""
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / _LOCK):  # several machines may begin at the same moment
        present = read_json_object(folder / RECIPE)
        if present is not None and present != recipe:
            if not overwrite:
                differ = [key for key in {**present, **recipe} if present.get(key) != recipe.get(key)]
                problem = f"the folder contains another corpus (different {', '.join(differ)})"
                remedy = "choose another --output_dir, or pass --overwrite_output_dir"
                raise InputError(problem, where=folder, remedy=remedy)
            _remove_files(folder)
        if present != recipe:
            write_json(folder / RECIPE, recipe)

        if not (folder / "tokenizer/tokenizer.json").is_file():  # the file that is saved last
            save_tokenizer(tokenizer, folder / "tokenizer")


def _complete_corpus(folder: Path, recipe: dict, jobs: list[InputShards], text_language: str | None) -> Corpus | None:
    """Write the manifest and return the corpus; None while shards are missing. A corpus without text is removed."""
    records = [job.records() for job in jobs]
    if not all(records):
        return None

    entries = list(itertools.chain.from_iterable(records))
    if not any(entry["tokens"] for entry in entries):
        _remove_corpus(folder)
        raise InputError("contains no text", where=jobs[0].source.name, remedy="give files that contain text")

    named = {"text_language": text_language} if text_language else {}
    facts = {"language": recipe["language"], "vocab_size": recipe["vocab_size"], **named, "made_from": recipe}
    with filelock.FileLock(folder / _LOCK):  # two parts may end at the same moment
        write_manifest(folder, facts, entries)
    (folder / _LOCK).unlink(missing_ok=True)
    return Corpus(folder)


def _remove_files(folder: Path) -> None:
    """Remove the files that `prepare` writes; the recipe last, because it identifies the folder as ours."""
    for pattern in reversed(OWNED):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def _remove_corpus(folder: Path) -> None:
    """Remove the files that `prepare` writes, and the folders where nothing else is in them."""
    _remove_files(folder)
    (folder / _LOCK).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty
        (folder / "tokenizer").rmdir()
        folder.rmdir()


def _make_shards(jobs: list[InputShards], folder: Path, recipe: dict, num_proc: int) -> None:
    """Make the jobs' shards: inputs in parallel, or few inputs one by one, and groups of their text in parallel."""
    tokenizer = (str(folder / "tokenizer" / "tokenizer.json"), recipe["tokenizer"])
    language = recipe["language"]

    def map_groups(encode: Callable, groups: Iterable) -> Iterable:
        return progress(map_ahead(encode, ((group,) for group in groups), num_proc), "preparing text", "groups")

    if len(jobs) >= num_proc > 1:
        results = map_ahead(InputShards.write, ((job, tokenizer, language) for job in jobs), num_proc)
        entries_of_jobs = progress(results, "preparing text", "inputs", len(jobs))
    else:
        entries_of_jobs = (job.write(tokenizer, language, map_groups) for job in jobs)
    try:
        for job, entries in zip(jobs, entries_of_jobs, strict=True):
            job.entries = entries
    except BaseException:  # an error ends the worker processes at once, which leave unfinished files
        for job in jobs:
            remove_leftovers(job.path)
        raise
