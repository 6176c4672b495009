"""Checks of the text of a corpus and of labelled rows."""

import glob
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from bert_hf.config.arguments import CorpusArguments, TaskArguments
from bert_hf.config.effects import OF_A_VOCABULARY
from bert_hf.config.files import check_writable
from bert_hf.data.corpus.requested_corpus import is_prepared, open_prepared, text_sources
from bert_hf.data.text.input_files import is_url, kind_of
from bert_hf.errors import InputError
from bert_hf.finetuning.task import DownstreamTask

_HEAD = 1 << 18  # characters that are read of an input
_OPENED = 64  # inputs that are opened, evenly spread; all are checked to exist
_SECONDS = 1.0  # after which no further input is opened
_OF_TEXT = ("text_column", "sentence_per_line")
_READ_WHOLE = 64_000_000  # bytes of labelled files, up to which every row is read


def check_corpus_text(corpus_args: CorpusArguments, nsp: bool = False, splits: bool = False) -> str:
    """Checks that every file exists, and reads the beginnings of some of them as the run will.

    Args:
        nsp: pairs are drawn, which takes two documents.
        splits: the text is prepared in the cache, and documents are held out where no held-out text is named.
    """
    if corpus_args.validation_file and not (corpus_args.train_file or corpus_args.dataset_name):
        raise InputError("nothing to train on is named", where="--validation_file", remedy="give --train_file too")
    _refuse_two_sources(corpus_args)
    _refuse_training_text_held_out(corpus_args)
    given = [files for files in (corpus_args.train_file, corpus_args.validation_file) if files]
    if splits and not (given and all(map(is_prepared, given))):
        check_writable(corpus_args.cache_dir, "--cache_dir")
    if not corpus_args.train_file:
        return f"text: {corpus_args.dataset_name or 'the documentation on this machine'}"

    least = 4 if splits and not corpus_args.validation_file else 2 if nsp else 1
    deadline = time.monotonic() + _SECONDS
    checked = []
    for files in given:
        min_documents = least if files is corpus_args.train_file else 1
        if not is_prepared(files):
            checked.append(_check_text_files(corpus_args, files, min_documents, deadline))
            continue
        checked.append("a prepared corpus")
        if not is_url(files[0]):
            _require_documents(len(open_prepared(corpus_args, files[0])), min_documents, files[0])
    return f"text: {', held out: '.join(checked)}"


def _refuse_two_sources(args: CorpusArguments | TaskArguments) -> None:
    if args.train_file and args.dataset_name:
        what = "--train_file names the data already, and the dataset would not be read"
        raise InputError(what, where="--dataset_name", remedy="give one of both")


def refuse_unused_text_options(given: Collection[str], values: Any) -> None:
    """Refuses options that the text does not need: it is prepared, has no columns, or is on this machine.

    Args:
        given: the options of the command line. (A YAML file serves many runs.)
        values: all options.
    """
    unused: dict[str, tuple[str, str]] = {}
    named = [files for files in (values.train_file, values.validation_file) if files]
    paths = [path for files in named for path in files]
    if named and all(_is_plain(path) for path in paths):
        unused["text_column"] = "plain text has no columns", "leave it out, or give a table"
    if not any(map(is_url, paths)):
        unused["corpus_cache_gb"] = "no corpus behind a URL is read", "leave it out"

    if is_prepared(values.train_file):
        prepared = "it has no effect on a prepared corpus", "leave it out, or prepare the text with it"
        unused |= dict.fromkeys(OF_A_VOCABULARY, prepared)
        if all(map(is_prepared, named)):
            unused |= dict.fromkeys(_OF_TEXT, prepared)

    for name, (what, remedy) in unused.items():
        if name in given and getattr(values, name):
            raise InputError(what, where=f"--{name}", remedy=remedy)


def _is_plain(path: str) -> bool:
    return kind_of(path) == ".txt"


def refuse_held_out_text(corpus_args: CorpusArguments) -> None:
    """For the recipes that read one text."""
    if corpus_args.validation_file:
        what, remedy = "only --train_file is read here", "give it to pretrain.py; to prepare it, call it --train_file"
        raise InputError(what, where="--validation_file", remedy=remedy)


def _refuse_training_text_held_out(corpus_args: CorpusArguments) -> None:
    """Refuses a file that is both trained on and evaluated."""
    held_out = _resolved(corpus_args.validation_file)
    for path, name in _resolved(corpus_args.train_file).items():
        if path in held_out:
            what = "--train_file and --validation_file both name it"
            raise InputError(what, where=name, remedy="hold other text out, or leave --validation_file out")


def _resolved(names: list[str] | None) -> dict[str, str]:
    """The files that paths and globs name, by absolute path with links resolved; URLs are their own key."""
    found: dict[str, str] = {}
    for name in names or ():
        here = [name] if is_url(name) or os.path.lexists(name) else glob.glob(name, recursive=True)
        found |= {path if is_url(path) else os.path.realpath(path): path for path in here}
    return found


def _check_text_files(corpus_args: CorpusArguments, files: list[str], min_documents: int, deadline: float) -> str:
    """Reads the beginnings of some files until the deadline; where that is all of the text, counts its documents.

    Returns:
        The line to report: files and bytes.
    """
    sources = text_sources(corpus_args, files)
    local = [source for source in sources if not is_url(source.path)]
    sampled = local[:: max(1, len(local) // _OPENED)]

    documents = 0
    complete = len(sampled) == len(sources)  # a URL is not opened
    for source in sampled:
        if time.monotonic() > deadline:
            complete = False
            break
        found, whole = _head(source)
        documents += found
        complete = complete and whole

    if complete and not documents:
        raise InputError("no text in it", where=files[0], remedy="give files that hold text")
    if complete:
        _require_documents(documents, min_documents, files[0])
    return f"{len(sources):,} files, {sum(Path(source.path).stat().st_size for source in local):,} bytes"


def _head(source) -> tuple[int, bool]:
    """(documents that hold text in the first `_HEAD` characters of an input, whether that was all of it)."""
    documents = size = 0
    filled = False
    for piece in source.read():
        size += len(piece.text)
        filled = filled or bool(piece.text.strip())
        if piece.ends:
            documents += filled
            filled = False
        if size > _HEAD:
            return documents, False
    return documents, True


def _require_documents(documents: int, least: int, where: str) -> None:
    if documents < least:
        what = f"next-sentence prediction needs at least 2 documents, and the text has {documents}"
        if least > 2:
            what = f"too few documents ({documents}) to train on and to hold two of them out"
        raise InputError(what, where=where, remedy="separate documents by blank lines, or give more text")


def check_labelled_rows(task: type[DownstreamTask], task_args: TaskArguments) -> str:
    """Reads every row of every part, where the files are not large."""
    files = [path for given in task_args.files().values() for path in given]
    if files and not task_args.train_file:
        raise InputError("nothing to train on is named", where="--train_file", remedy="give it too")
    source = task.source(task_args)
    _refuse_two_sources(task_args)
    _refuse_rows_seen_before_the_test(task_args)

    if not task.splits_test and task_args.test_split_percentage != TaskArguments.test_split_percentage:
        what, remedy = "this task splits no test rows off", "leave it out, or give --test_file"
        raise InputError(what, where="--test_split_percentage", remedy=remedy)

    # How many of the rows are held out
    held_out = 0 if task_args.validation_file else task_args.validation_split_percentage
    held_out += task_args.test_split_percentage if task.splits_test and not task_args.test_file else 0
    if held_out >= 100:
        what, remedy = f"{held_out:g} % of the rows would be held out", "leave some to train on"
        raise InputError(what, where="--test_split_percentage", remedy=remedy)

    # The rows
    size = sum(Path(path).stat().st_size for path in files if Path(path).is_file())
    if size > _READ_WHOLE or any(map(is_url, files)) or not (files or getattr(task_args, "data_dir", None)):
        return f"rows: {size:,} bytes" if files else f"rows: {source}"
    return "\n".join(task.check_rows(task_args))


def _refuse_rows_seen_before_the_test(task_args: TaskArguments) -> None:
    """Refuses a test file that is trained on, or that chooses the weights. (Studies validate on training rows.)"""
    tested = _resolved(task_args.test_file)
    for option, files in (("--train_file", task_args.train_file), ("--validation_file", task_args.validation_file)):
        for path, name in _resolved(files).items():
            if path in tested:
                remedy = "test on other rows, or leave --test_file out"
                raise InputError(f"{option} and --test_file both name it", where=name, remedy=remedy)
