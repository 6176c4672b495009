"""What can be known of a run before anything is built: inputs are looked at, folders tried, numbers weighed.

Each recipe hands one of the functions below to `arguments.parse`, which calls it before the ranks of a run join and
before any model. It looks at heads and sizes, not at whole corpora, yields a line for each thing found good, and
raises `InputError` for the first that is not. `--check true` runs it alone.
"""

import math
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers import BertConfig, PreTrainedTokenizerBase
from transformers.integrations import get_available_reporting_integrations

from bert_hf.arguments import ClassificationArguments, CorpusArguments, TokenizerArguments
from bert_hf.corpus import inputs_of, is_prepared, open_prepared, tokenizer_for
from bert_hf.cost import parameter_count
from bert_hf.doctor import free_disk
from bert_hf.errors import InputError
from bert_hf.features import read_splits
from bert_hf.run import RECORD
from bert_hf.shapes import read_shape
from bert_hf.sources import is_url
from bert_hf.tokenization import check_tokenizer, load_tokenizer

_LOOK = 1 << 18  # characters that are read of an input
_LOOKED_AT = 64  # inputs that are opened, spread over all; every one is known to be there
_READ_WHOLE = 64_000_000  # bytes of labelled files, up to which every row is looked at
_SAVED_A_PARAMETER = 12  # bytes: fp32 weight and both moments of Adam

# ---- the recipes


def pretraining(tokens, text, network, shape, run) -> Iterator[str]:
    """Of `pretrain.py`."""
    yield numbers(tokens, text, network, shape, run)
    yield output_folder(run.output_dir, run.overwrite_output_dir, RECORD)
    yield from machine(run)
    yield corpus_text(text, shape.nsp)
    named = tokens.tokenizer_name or network.model_name_or_path
    tokenizer = named_tokenizer(tokens, text, named)
    if tokenizer is not None:
        yield f"tokenizer: {len(tokenizer):,} pieces"
    longest = max(shape.max_seq_length, shape.long_seq_length or 0)
    config = model_shape(network.config_name, network.model_name_or_path, longest)
    if config is not None:
        if network.model_name_or_path is None:
            config.vocab_size = len(tokenizer) if tokenizer is not None else tokens.vocab_size
        elif tokenizer is not None:
            check_tokenizer(tokenizer, config.vocab_size)
        yield from model_on_disk(config, run)


def classification(asked, run) -> Iterator[str]:
    """Of `finetune_classification.py`."""
    if asked.model_name_or_path is None:
        raise InputError("no checkpoint is named", where="--model_name_or_path", remedy="give a pre-trained BERT")
    yield numbers(asked, run)
    yield output_folder(run.output_dir, run.overwrite_output_dir, RECORD)
    yield from machine(run)
    yield labelled_text(asked)
    config = model_shape(None, asked.model_name_or_path, asked.max_seq_length)
    named = asked.tokenizer_name or asked.model_name_or_path
    if _is_here(named):
        tokenizer = load_tokenizer(named)
        yield f"tokenizer: {len(tokenizer):,} pieces"
        if config is not None:
            check_tokenizer(tokenizer, config.vocab_size)
    if config is not None:
        yield from model_on_disk(config, run)


def tokenizer_training(tokens, text, out) -> Iterator[str]:
    """Of `train_tokenizer.py`."""
    yield numbers(tokens, text)
    if is_prepared(text.train_file):
        what, remedy = "a prepared corpus, and not text", "its tokenizer is in its folder tokenizer/"
        raise InputError(what, where=text.train_file[0], remedy=remedy)
    yield corpus_text(text, nsp=False)
    yield output_folder(_needed(out.output_dir), out.overwrite_output_dir, "tokenizer.json")


def preparing(tokens, text, shape, work, out) -> Iterator[str]:
    """Of `prepare.py`."""
    work.part()
    if work.shard and out.overwrite_output_dir:
        what, remedy = "every part would remove the others' work", "empty the folder first"
        raise InputError(what, where="--overwrite_output_dir", remedy=remedy)
    yield numbers(tokens, text, shape, work)
    if not work.check:
        yield writable(_needed(out.output_dir))
    elif out.output_dir is not None:
        yield writable(out.output_dir)
    if not work.check and is_prepared(text.train_file):
        what, remedy = "a prepared corpus, and not text", "give the files that it was made from"
        raise InputError(what, where=text.train_file[0], remedy=remedy)
    yield corpus_text(text, nsp=False)
    if (tokenizer := named_tokenizer(tokens, text, tokens.tokenizer_name)) is not None:
        yield f"tokenizer: {len(tokenizer):,} pieces"


def estimating(tokens, text, network, shape, run, asked) -> Iterator[str]:
    """Of `estimate.py`, which reads no text and writes nothing."""
    yield numbers(tokens, text, network, shape, run, asked)
    longest = max(shape.max_seq_length, shape.long_seq_length or 0)
    if model_shape(network.config_name, network.model_name_or_path, longest) is not None:
        yield "model: its shape is a BERT's"


# ---- numbers


class Range(NamedTuple):
    """Where a number must lie; `least` and `most` themselves are allowed unless they are `beyond`."""

    least: float
    most: float = math.inf
    above: bool = False  # not `least` itself
    below: bool = False  # not `most` itself

    def __contains__(self, value) -> bool:
        low = self.least < value if self.above else self.least <= value
        high = value < self.most if self.below else value <= self.most
        return low and high and math.isfinite(value)

    def __str__(self) -> str:
        low = f"above {self.least:,}" if self.above else f"of at least {self.least:,}"
        if self.most == math.inf:
            return low
        return f"{low} and {f'below {self.most:,}' if self.below else f'at most {self.most:,}'}"


_COUNT, _STEPS, _SHARE = Range(1, 10**6), Range(0, 10**12, above=True), Range(0, 1, below=True)
_RATE, _PERCENT = Range(0, 1000), Range(0, 100, above=True, below=True)
_RANGES = {
    **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), _COUNT),
    **dict.fromkeys(("gradient_accumulation_steps", "save_total_limit", "dataloader_prefetch_factor"), _COUNT),
    **dict.fromkeys(("save_steps", "eval_steps", "logging_steps"), _STEPS),
    **dict.fromkeys(("adam_beta1", "adam_beta2", "dropout", "label_smoothing_factor"), _SHARE),
    **dict.fromkeys(("learning_rate", "weight_decay", "adam_epsilon", "max_grad_norm"), _RATE),
    **dict.fromkeys(("validation_split_percentage", "test_split_percentage"), _PERCENT),
    **dict.fromkeys(("seed", "data_seed", "split_seed"), Range(0, 2**32 - 1)),
    **dict.fromkeys(("max_seq_length", "long_seq_length"), Range(8, 10**6)),
    **dict.fromkeys(("min_frequency", "limit_alphabet", "tokenizer_sample_bytes", "check_bytes"), Range(1, 10**12)),
    "max_steps": Range(1, 10**12),
    "num_train_epochs": Range(0, 10**6, above=True),
    "warmup_steps": Range(0, 10**12),
    "dataloader_num_workers": Range(0, 1024),
    "num_proc": Range(1, 1024),
    "vocab_size": Range(6, 2**31 - 1),  # five special tokens, and one piece
    "long_seq_fraction": Range(0, 1),
    "short_seq_probability": Range(0, 1),
    "mlm_probability": Range(0, 1, above=True, below=True),
    "corpus_cache_gb": Range(0, 10**9, above=True),
    "max_eval_samples": Range(1, 10**9),
    "ddp_timeout": Range(1, 10**8),
    "global_batch": Range(1, 10**9),
    "price_per_hour": Range(0, 10**9),
}


def numbers(*parts) -> str:
    """Weighs every number that is asked for; a number that cannot be meant is refused."""
    weighed = 0
    for part in parts:
        for name, value in vars(part).items():
            if name not in _RANGES or value is None or (name == "max_steps" and value == -1):
                continue
            if value not in _RANGES[name]:
                raise InputError(
                    f"{value} cannot be meant", where=f"--{name}", remedy=f"give a number {_RANGES[name]}"
                )
            weighed += 1
    return f"numbers: {weighed} weighed"


# ---- where it runs and writes


def machine(run) -> Iterator[str]:
    """Precision, trackers and the Hub, as far as they are known to be wrong."""
    if run.bf16 and run.fp16:
        raise InputError("--bf16 and --fp16 exclude each other", where="--fp16", remedy="choose one")
    if run.resume_from_checkpoint and run.resume_from_checkpoint.lower() != "true":
        folder = Path(run.resume_from_checkpoint)
        if not folder.is_dir():
            raise InputError("no such checkpoint", where=folder, remedy="give a folder checkpoint-N, or leave it out")
    known = {*get_available_reporting_integrations(), "all", "none"}
    for tracker in [run.report_to] if isinstance(run.report_to, str) else run.report_to or []:
        if tracker not in known:
            remedy = f"install it, or use one of: {', '.join(sorted(known))}"
            raise InputError(f"no tracker {tracker!r} is installed", where="--report_to", remedy=remedy)
    if run.hub_token is not None:
        remedy = "set HF_TOKEN or `hf auth login`"
        raise InputError("a token is not taken as a flag", where="--hub_token", remedy=remedy)
    if run.push_to_hub:
        name = run.hub_model_id or Path(run.output_dir).name
        try:
            validate_repo_id(name)
        except HFValidationError:
            remedy = "give YOU/NAME of letters, digits, '-', '_' and '.'"
            raise InputError(f"{name!r} is no name of a repository", where="--hub_model_id", remedy=remedy) from None
        if get_token() is None:
            raise InputError("nobody is logged in", where="--push_to_hub", remedy="set HF_TOKEN or `hf auth login`")
        yield f"push: to {name}"


def _needed(output_dir: str | None) -> str:
    if output_dir is None:
        raise InputError("no output folder is named", where="--output_dir", remedy="give one")
    return output_dir


def output_folder(output_dir: str, overwrite: bool, known_by: str) -> str:
    """The folder of a run: new, empty, or one of ours (which holds a file `known_by`), and it can be written."""
    folder = Path(output_dir)
    line = writable(output_dir)
    ours = (folder / known_by).is_file()
    if folder.is_dir() and not ours and any(folder.iterdir()):
        if overwrite:
            what = f"--overwrite_output_dir removes only what was made here, and there is no {known_by}"
            remedy = "remove the folder yourself, or give another --output_dir"
        else:
            what, remedy = "the output folder holds something that no run of ours wrote", "give another --output_dir"
        raise InputError(what, where=folder, remedy=remedy)
    return line


def writable(output_dir: str) -> str:
    """Tries what a save does (write, flush, rename, remove) in the folder, or in what there is of its path.

    Raises:
        InputError: a file stands in the way, or the disk or its rights refuse.
    """
    place = Path(output_dir).expanduser().absolute()
    try:
        while not os.path.lexists(place):
            place = place.parent
        if not place.is_dir():
            remedy = "give another --output_dir"
            raise InputError("a file stands where a folder has to be", where=_short(place, output_dir), remedy=remedy)
        first = place / f".preflight-{socket.gethostname()}-{os.getpid()}.tmp"  # as what others are writing: no run's
        second = first.with_name(f".{first.name}")
        try:
            with open(first, "wb") as file:
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())
            os.replace(first, second)
        finally:
            first.unlink(missing_ok=True)
            second.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot be written: {reason}", where=output_dir, remedy="give a folder that can be"
        ) from None
    return f"output: {output_dir} can be written"


def _short(place: Path, asked: str) -> Path:
    """The path as it was asked for, where it lies on that."""
    for path in (Path(asked), *Path(asked).parents):
        if path.expanduser().absolute() == place:
            return path
    return place


def model_on_disk(config: BertConfig, run) -> Iterator[str]:
    """Is there room for two checkpoints: the newest, and the one being written? (One, where a run goes on.)"""
    parameters = parameter_count(config)
    yield f"model: {config.num_hidden_layers} layers × {config.hidden_size}, {parameters:,} parameters"
    if run.save_strategy == "no":
        need = 4 * parameters
    else:
        need = (1 if (Path(run.output_dir) / RECORD).is_file() else 2) * _SAVED_A_PARAMETER * parameters
    free = free_disk(Path(run.output_dir).expanduser())
    if free < need:
        what = f"two checkpoints take {need / 1e9:,.2f} GB, and {free / 1e9:,.2f} GB are free"
        raise InputError(what, where=run.output_dir, remedy="make room, or give another --output_dir")
    yield f"disk: {need / 1e9:,.2f} GB for checkpoints, {free / 1e9:,.2f} GB free"


# ---- the text


def corpus_text(text: CorpusArguments, nsp: bool) -> str:
    """Every file is there; of some of them the beginning is read as the run will."""
    if text.validation_file and not (text.train_file or text.dataset_name):
        raise InputError("nothing to train on is named", where="--validation_file", remedy="give --train_file too")
    if not text.train_file:
        return f"text: {text.dataset_name or 'the documentation on this machine'}"
    if not all(is_prepared(files) for files in (text.train_file, text.validation_file) if files):
        writable(text.cache_dir)
    said = []
    for files in filter(None, (text.train_file, text.validation_file)):
        if is_prepared(files):
            if not is_url(files[0]):
                corpus = open_prepared(text, files[0])
                _enough(len(corpus), nsp and files is text.train_file, files[0])
            said.append("a prepared corpus")
            continue
        sources = inputs_of(text, files)
        here = [source for source in sources if not is_url(source.path)]
        looked, documents = here[:: max(1, len(here) // _LOOKED_AT)], 0
        whole = len(looked) == len(sources)
        for source in looked:
            ends, all_of_it = _head(source)
            documents, whole = documents + ends, whole and all_of_it
        if whole:
            if not documents:
                raise InputError("no text in it", where=files[0], remedy="give files that hold text")
            _enough(documents, nsp and files is text.train_file, files[0])
        said.append(f"{len(sources):,} files, {sum(Path(source.path).stat().st_size for source in here):,} bytes")
    return f"text: {', held out: '.join(said)}"


def _head(source) -> tuple[int, bool]:
    """(documents that hold text in the first `_LOOK` characters of an input, whether that was all of it)."""
    documents, size, filled = 0, 0, False
    for piece in source.read():
        size, filled = size + len(piece.text), filled or bool(piece.text.strip())
        if piece.ends:
            documents, filled = documents + filled, False
        if size > _LOOK:
            return documents, False
    return documents, True


def _enough(documents: int, nsp: bool, where: str) -> None:
    if nsp and documents < 2:
        what = "one document, and next-sentence prediction needs strangers from another"
        raise InputError(what, where=where, remedy="separate documents by blank lines, or pass --nsp false")


def labelled_text(asked: ClassificationArguments) -> str:
    """Every row of every split, where the files are not large; else that they are there."""
    files = [path for given in (asked.train_file, asked.validation_file, asked.test_file) for path in given or ()]
    if not files:
        if asked.dataset_name is None and asked.task is None:
            remedy = "give --train_file, --dataset_name or --task"
            raise InputError("no data are named", where="--train_file", remedy=remedy)
        return f"rows: {asked.dataset_name or asked.task}"
    if not asked.train_file:
        raise InputError("nothing to train on is named", where="--train_file", remedy="give it too")
    size = sum(Path(path).stat().st_size for path in files if Path(path).is_file())
    if size > _READ_WHOLE or any(map(is_url, files)):
        return f"rows: {size:,} bytes"
    splits, labels = read_splits(asked)
    sizes = ", ".join(f"{len(rows):,} {name}" for name, rows in splits.items())
    return f"rows: {sizes}; labels {', '.join(labels)}"


# ---- tokenizer and model


def _is_here(name: str | None) -> bool:
    """Is it a path rather than a Hub id? What is plainly meant as a path has to be there."""
    if name is None:
        return False
    plain = name.startswith(("/", "./", "../", "~")) or name.count("/") > 1 or Path(name).suffix in (".txt", ".json")
    if plain and not os.path.lexists(name):
        raise InputError("no such file or folder", where=name, remedy="check the path")
    return os.path.lexists(name)


def named_tokenizer(
    tokens: TokenizerArguments, text: CorpusArguments, name: str | None
) -> PreTrainedTokenizerBase | None:
    """The tokenizer, where it is on this machine; None where it is still to be trained or fetched."""
    if name is not None:
        return load_tokenizer(name, **tokens.normalization()) if _is_here(name) else None
    prepared = text.train_file and is_prepared(text.train_file) and not is_url(text.train_file[0])
    return tokenizer_for(tokens, text) if prepared else None


def model_shape(config_name: str | None, checkpoint: str | None, longest: int) -> BertConfig | None:
    """The shape of the network (see `shapes`); None where it is on the Hub."""
    if checkpoint is None:
        if config_name is None:
            raise InputError("no model is named", where="--config_name", remedy="give e.g. configs/model/mini.json")
        return read_shape(config_name, longest)
    if not _is_here(checkpoint):
        return None
    if not Path(checkpoint).is_dir():
        raise InputError("not a folder of a checkpoint", where=checkpoint, remedy="give the folder that holds it")
    return read_shape(Path(checkpoint) / "config.json", longest)
