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
from bert_hf.data.text.sources import SmallFiles, Source
from bert_hf.data.text.tokenization import TOKENIZER_FILES, save_tokenizer, tokenizer_checksum
from bert_hf.errors import InputError

RECIPE = "recipe.json"  # settings and names of the inputs that are prepared in a folder; others are an error
_LOCK = ".lock.tmp"
_OTHER_FOLDER = "choose another --output_dir, or pass --overwrite_output_dir"
# Globs of the files that `prepare` writes into a folder; the first one identifies such a folder.
_SAVED_TOKENIZER = tuple(f"tokenizer/{name}" for name in TOKENIZER_FILES)
OWNED = (RECIPE, MANIFEST, *_SAVED_TOKENIZER, "data-*.json", "data-*.arrow", ".data-*.tmp")


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
    """Tokenize the inputs sentence by sentence, and write to `folder` one or more shards for each, and a manifest.

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

    all_inputs = [
        InputShards(source, folder / f"data-{number:05d}.arrow", settings, (without or {}).get(number, frozenset()))
        for number, source in enumerate(inputs)
    ]
    own_inputs = all_inputs[shard[0] :: shard[1]]
    with ThreadPoolExecutor(num_proc) as pool:  # hashing releases Python's global lock
        list(pool.map(InputShards.verify, own_inputs))  # raises here what a thread raised

    for shards in own_inputs:
        if not overwrite and shards.holds_other_text():
            problem = f"{shards.source.name} is not the text that was prepared here"
            raise InputError(problem, where=folder, remedy=_OTHER_FOLDER)
    _write_shards([shards for shards in own_inputs if not shards.complete], folder, recipe, num_proc)
    return _finish_corpus(folder, recipe, all_inputs, text_language)


def _shard_settings(
    inputs: Sequence[Source], tokenizer: PreTrainedTokenizerBase, language: str | None, options: dict
) -> dict:
    """Return the settings that determine a shard's bytes, besides its text."""
    first = inputs[0].files[0] if isinstance(inputs[0], SmallFiles) else inputs[0]  # all have the same column
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
    """Write recipe (settings, input names) and tokenizer. Another recipe is an error, or its files are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / _LOCK):  # several machines may begin at the same moment
        present = read_json_object(folder / RECIPE)
        if present is not None and present != recipe:
            if not overwrite:
                differ = [key for key in {**present, **recipe} if present.get(key) != recipe.get(key)]
                problem = f"the folder contains another corpus (different {', '.join(differ)})"
                raise InputError(problem, where=folder, remedy=_OTHER_FOLDER)
            _remove_files(folder)
        if present != recipe:
            write_json(folder / RECIPE, recipe)

        if not (folder / "tokenizer/tokenizer.json").is_file():  # the file that is saved last
            save_tokenizer(tokenizer, folder / "tokenizer")


def _finish_corpus(folder: Path, recipe: dict, inputs: list[InputShards], text_language: str | None) -> Corpus | None:
    """Write the manifest and return the corpus; None while shards are missing. Without text, remove all and raise."""
    records_of_inputs = [shards.read_all_records() for shards in inputs]
    if not all(records_of_inputs):
        return None

    records = list(itertools.chain.from_iterable(records_of_inputs))
    if not any(record["tokens"] for record in records):
        _remove_corpus(folder)
        raise InputError("contains no text", where=inputs[0].source.name, remedy="give files that contain text")

    named_language = {"text_language": text_language} if text_language else {}  # "language": the sentence splitter's
    facts = {"language": recipe["language"], "vocab_size": recipe["vocab_size"], **named_language, "made_from": recipe}
    with filelock.FileLock(folder / _LOCK):  # two parts may end at the same moment
        write_manifest(folder, facts, records)
    (folder / _LOCK).unlink(missing_ok=True)  # no shard is missing, so no part has to claim the folder
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


def _write_shards(inputs: list[InputShards], folder: Path, recipe: dict, num_proc: int) -> None:
    """Write the missing shards: of many inputs in parallel; else one by one, parts of each text in parallel."""
    tokenizer = (str(folder / "tokenizer" / "tokenizer.json"), recipe["tokenizer"])  # file, checksum
    language = recipe["language"]

    def map_groups(encode: Callable, groups: Iterable) -> Iterable:
        return progress(map_ahead(encode, ((group,) for group in groups), num_proc), "preparing text", "groups")

    if len(inputs) >= num_proc > 1:
        results = map_ahead(InputShards.write, ((shards, tokenizer, language) for shards in inputs), num_proc)
        results = progress(results, "preparing text", "inputs", len(inputs))
    else:  # `InputShards.write` is called when the loop below asks for the next result
        results = (shards.write(tokenizer, language, map_groups) for shards in inputs)
    try:
        for _ in results:  # waits until all are written
            pass
    except BaseException:  # an error ends the worker processes at once, which leave unfinished files
        for shards in inputs:
            remove_leftovers(shards.path)
        raise
