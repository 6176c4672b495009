"""Loads or creates text sources, tokenizer, corpus and held-out split from a run's options.

A tokenizer and a corpus, which take time to make, are kept in `--cache_dir`.
"""

import contextlib
import functools
import heapq
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import numpy as np
from transformers import PreTrainedTokenizerBase

from bert_hf.config.arguments import CorpusArguments, OutputArguments, TextArguments, TokenizerArguments
from bert_hf.config.files import check_writable, json_checksum
from bert_hf.console import logger, progress, shorten_list
from bert_hf.data.corpus.prepare import RECIPE, prepare
from bert_hf.data.corpus.shards import FORMAT, MANIFEST
from bert_hf.data.corpus.store import Corpus
from bert_hf.data.text.default_corpus import Documentation
from bert_hf.data.text.input_files import check_disjoint, expand_paths, log_misnamed
from bert_hf.data.text.line_breaks import wrap_width
from bert_hf.data.text.readers import Piece, first_pieces
from bert_hf.data.text.sources import SmallFiles, Source, TextFile, group_small_files, hub_shards, is_saved_dataset
from bert_hf.data.text.tokenization import (
    id_count,
    load_tokenizer,
    save_tokenizer,
    tokenizer_checksum,
    train_tokenizer,
)
from bert_hf.data.text.unknown import unknown_characters
from bert_hf.errors import InputError

_READ_FILES = 64  # files whose beginnings are checked, evenly spread; all are checked to exist
_HEAD = 1 << 18  # characters of each
TOKENIZER_SAMPLE = 100_000_000  # bytes of text that a vocabulary is trained on, at most
_GOLDEN = (5**0.5 - 1) / 2  # the golden ratio's fractional part
_SAMPLE_READ = 10  # a sample is drawn from at most ten times its size


def text_sources(corpus_args: TextArguments, files: list[str] | None) -> list[Source]:
    """Return the sources asked for: files (beginnings checked), a Hub dataset's shards, or this machine's docs."""
    join_lines = False if corpus_args.sentence_per_line else corpus_args.join_lines  # None: each file's lines decide
    options: dict[str, Any] = {"text_column": corpus_args.text_column, "join_lines": join_lines}
    if files:
        paths = _expand_files(files)
        text_files = [TextFile(path, **options) for path in paths if not os.path.isdir(path)]
        saved_datasets = [shard for path in filter(os.path.isdir, paths) for shard in hub_shards(path, **options)]
        log_misnamed(tuple(file.path for file in text_files))
        _check_beginnings((*text_files, *saved_datasets))
        return [*group_small_files(text_files), *saved_datasets]
    if corpus_args.dataset_name:
        return [*hub_shards(corpus_args.dataset_name, corpus_args.dataset_config_name, **options)]
    return [Documentation()]


@functools.cache  # a command that asks for its sources again neither reads nor logs again
def _check_beginnings(sources: tuple[Any, ...]) -> None:
    """Read the beginnings of some `TextFile`s and `HubShard`s: raise errors, and log lines that break sentences."""
    undecided = [source for source in sources if source.join_lines is None]
    all_widths = {file: file.width() for file in undecided if isinstance(file, TextFile)}
    widths = {file: width for file, width in all_widths.items() if width}  # of files whose lines are joined
    if widths:
        broken = f"{shorten_list([file.name for file in widths])}: lines of up to {max(widths.values())} characters"
        logger.info(f"{broken} break sentences, and are joined (--join_lines false keeps them)")

    # Files that have too few lines to tell each may have enough together
    not_joined = dict.fromkeys(source for source in undecided if source not in widths)
    texts = []
    for source in sources[:: max(1, len(sources) // _READ_FILES)]:
        beginning = [piece.text for piece in first_pieces(source.read(), _HEAD)]
        if source in not_joined:
            texts += beginning
    if width := wrap_width(texts):
        broken = f"{shorten_list([source.name for source in not_joined])}: lines of up to {width} characters"
        logger.info(f"! {broken} break sentences: pass --join_lines true")


def _expand_files(patterns: list[str] | None) -> list[str]:
    """Return the files of paths and globs and all below folders, each once; a saved dataset stays a folder.

    Left out are hidden files and folders, where tools keep copies (.git, .cache, .ipynb_checkpoints).
    """
    files = []
    for path in expand_paths(patterns or [], folders=True):
        inside = [path]
        if os.path.isdir(path) and not is_saved_dataset(path):
            below = [file for file in sorted(Path(path).rglob("*")) if file.is_file()]
            inside = [str(file) for file in below if "/." not in f"/{file.relative_to(path)}"]
        if not inside:
            raise InputError("the folder contains no files", where=path, remedy="give files or globs")
        files += inside
    return expand_paths(files, folders=True)


def sentence_language(corpus_args: TextArguments) -> str | None:
    """Return the language for the sentence splitter; None: one sentence per line."""
    return None if corpus_args.sentence_per_line else corpus_args.language or "en"


def prepared_folder(paths: list[str] | None) -> str | None:
    """Return the only path if `prepare` made it, else None; raise an InputError if such a folder is incomplete."""
    if not paths or len(paths) != 1:
        return None
    path = paths[0]
    if os.path.isfile(Path(path) / MANIFEST):
        return path
    if os.path.isfile(Path(path) / RECIPE):
        raise InputError("the corpus is incomplete", where=path, remedy="run the prepare.py command again")
    return None


def sample_inputs(inputs: Sequence[Source], limit: int = TOKENIZER_SAMPLE) -> list[Piece]:
    """Return a sample of the text, at most about `limit` bytes, always the same; no text is an InputError."""
    order = np.random.default_rng(0).permutation(len(inputs))
    pieces = sample_pieces((piece for i in order for piece in inputs[i].read()), limit)
    if not any(piece.text.strip() for piece in pieces):
        raise InputError("contains no text", where=inputs[0].name, remedy="give files that contain text")
    return pieces


def sample_pieces(pieces: Iterable[Piece], limit: int) -> list[Piece]:
    """Return pieces of `limit` bytes at most (but one at least), spread evenly over the first ten times as much.

    A piece's key is the fractional part of its number times the golden ratio: pieces of small keys lie evenly among
    all. Above the limit, the pieces of the largest keys are dropped; a document ends before a piece that was dropped.

        number   0     1     2     3     4     5
        key      0.00  0.62  0.24  0.85  0.47  0.09     the limit allows three: 0, 2, 5
    """
    heap = []  # (-key, number, bytes, piece): the largest key is popped first
    kept_bytes = read_bytes = 0
    for number, piece in enumerate(progress(pieces, "reading text", "pieces")):
        length = len(piece.text.encode("utf-8", "surrogatepass"))
        heapq.heappush(heap, (-(number * _GOLDEN % 1), number, length, piece))
        kept_bytes += length
        read_bytes += length

        while kept_bytes > limit and len(heap) > 1:
            _, _, dropped_bytes, _ = heapq.heappop(heap)
            kept_bytes -= dropped_bytes
        if read_bytes > _SAMPLE_READ * limit:
            break

    kept = dict(sorted((number, piece) for _, number, _, piece in heap))
    return [piece._replace(ends=piece.ends or number + 1 not in kept) for number, piece in kept.items()]


def load_or_train_tokenizer(tokenizer_args: TokenizerArguments, corpus_args: TextArguments) -> PreTrainedTokenizerBase:
    """Return the named tokenizer, else the prepared corpus's, else one trained on the text, or cached from before."""
    if tokenizer_args.tokenizer_name:
        return load_tokenizer(tokenizer_args.tokenizer_name, **tokenizer_args.normalization_options())
    if folder := prepared_folder(corpus_args.train_file):
        return load_tokenizer(Corpus(folder).tokenizer(), **tokenizer_args.normalization_options())

    inputs = text_sources(corpus_args, corpus_args.train_file)
    made_from = [FORMAT, list(map(_content_key, inputs)), tokenizer_args.vocabulary_options()]
    with _cache_folder(corpus_args, "tokenizer", made_from) as cached:
        if not (cached / "tokenizer.json").is_file():
            shutil.rmtree(cached, ignore_errors=True)  # of a cache from which old files were removed
            texts = [piece.text for piece in sample_inputs(inputs)]
            trained = train_tokenizer(texts, **tokenizer_args.vocabulary_options())
            with tempfile.TemporaryDirectory(dir=cached.parent, prefix=".tokenizer-") as temporary:
                save_tokenizer(trained, Path(temporary) / "made")
                os.rename(Path(temporary) / "made", cached)  # so that a killed process leaves no half of it
    return load_tokenizer(cached)


def load_or_prepare_corpus(
    corpus_args: TextArguments, tokenizer: PreTrainedTokenizerBase, files: list[str] | None
) -> Corpus:
    """Return the corpus asked for: a prepared folder, or raw text, prepared now or taken from the cache."""
    if folder := prepared_folder(files):
        corpus = Corpus(folder)
        corpus.check_tokenizer(tokenizer)
        return corpus

    inputs = text_sources(corpus_args, files)
    language = sentence_language(corpus_args)
    made_from = [FORMAT, tokenizer_checksum(tokenizer), language, list(map(_content_key, inputs))]
    with _cache_folder(corpus_args, "corpus", made_from) as cached:
        with contextlib.suppress(InputError):  # not made yet, or old files were removed: the others are kept
            return Corpus(cached)
        prepare(inputs, tokenizer, cached, language=language, num_proc=corpus_args.num_proc)
        return Corpus(cached)


def load_train_and_held_out(corpus_args: CorpusArguments, tokenizer: PreTrainedTokenizerBase) -> tuple[Corpus, Corpus]:
    """Return (train, held out), the latter from `--validation_file` or split off; both must have tokens to predict.

    Where a checkpoint is only evaluated, held-out text may be the only text: it stands for both.
    """
    train_file = corpus_args.train_file
    if not train_file and not corpus_args.dataset_name:
        train_file = corpus_args.validation_file
    corpus = load_or_prepare_corpus(corpus_args, tokenizer, train_file)
    if corpus_args.validation_file:
        parts = (corpus, load_or_prepare_corpus(corpus_args, tokenizer, corpus_args.validation_file))
    else:
        parts = corpus.split(corpus_args.validation_split_percentage)

    for part, files in zip(parts, (train_file, corpus_args.validation_file or train_file), strict=True):
        _check_predictable_tokens(part, tokenizer, corpus_args, files)
    return parts


def _check_predictable_tokens(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, corpus_args: CorpusArguments, files: list[str] | None
) -> None:
    """Raise an InputError if all tokens of the corpus (its first window) are special, as [UNK] is: none is masked."""
    counts = corpus.unigram_counts(id_count(tokenizer))
    counts[tokenizer.all_special_ids] = 0
    if counts.any():
        return
    texts = []  # a prepared folder keeps none, so that the error names no cause
    if not prepared_folder(files):
        texts = [piece.text for piece in sample_inputs(text_sources(corpus_args, files), 1_000_000)]
    lost = unknown_characters(texts, tokenizer)
    cause = f": {max(lost, key=lost.__getitem__).value}" if lost else ""
    remedy = "use the tokenizer of this text; bert-hf prepare --check true shows what is lost"
    where = corpus.manifest["shards"][corpus.shards[0]]["source"]
    raise InputError(f"no token can be predicted, all are unknown{cause}", where=where, remedy=remedy)


def check_text(text_args: TextArguments, files: list[str] | None) -> str:
    """Check that every file exists, and read the beginnings of some; return a line for `--check` that names them."""
    if folder := prepared_folder(files):
        return f"text: the prepared corpus {folder}"
    return f"text: {shorten_list([source.name for source in text_sources(text_args, files)])}"


def check_train_and_held_out_text(corpus_args: CorpusArguments) -> Iterator[str]:
    """Check the text of a pre-training run, and that no file is held out as well; yield lines for `--check`."""
    train_files, held_out_files = map(_expand_files, (corpus_args.train_file, corpus_args.validation_file))
    check_disjoint(train_file=train_files, validation_file=held_out_files)
    if corpus_args.train_file or corpus_args.dataset_name or not corpus_args.validation_file:
        yield check_text(corpus_args, corpus_args.train_file)
    if corpus_args.validation_file:
        yield check_text(corpus_args, corpus_args.validation_file)


def check_preparing(_: TokenizerArguments, text_args: TextArguments, *others: Any) -> Iterator[str]:
    """Check output folder and text of a recipe without a model, given all its options; yield lines for `--check`."""
    output_args: OutputArguments = others[-1]
    if output_args.output_dir is not None:
        yield check_writable(output_args.output_dir)
    yield check_text(text_args, text_args.train_file)


def _content_key(source: Source) -> list:
    """Return what identifies a text in the cache, as JSON: a file's path, size and time, so that it is not read."""
    if isinstance(source, SmallFiles):
        return [_content_key(file) for file in source.files]
    column = getattr(source, "text_column", None)
    if isinstance(source, TextFile):
        stat = Path(source.path).stat()
        joined_at = [] if source.width() is None else [source.width()]  # [] keeps caches of earlier versions valid
        return [[str(Path(source.path).resolve()), stat.st_size, stat.st_mtime_ns], column, *joined_at]
    return [[source.name, source.checksum()], column]


@contextlib.contextmanager
def _cache_folder(corpus_args: TextArguments, prefix: str, made_from: list) -> Iterator[Path]:
    """Yield the path of the cached folder for these values, which may not exist yet, and hold its lock.

    The ranks of a run wait here, however long it takes: a collective operation would fail after its timeout.
    """
    folder = Path(corpus_args.cache_dir).expanduser() / f"{prefix}-{json_checksum(made_from)[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder.with_name(f"{folder.name}.lock")):
        yield folder
