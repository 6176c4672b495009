"""Checks the options of each recipe before anything is built: inputs, folders, sizes. (Ranges: `parse` itself.)

The checks run before the ranks of a run connect and before a model is made. They read the beginnings and sizes of
files, not whole corpora, yield a line for each successful check, and raise `InputError` for the first failed one.
`--check true` runs them alone.
"""

import functools
import glob
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from accelerate.utils import DynamoBackend
from huggingface_hub import get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig, PreTrainedTokenizerBase, TrainingArguments
from transformers.integrations.integration_utils import get_available_reporting_integrations
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from bert_hf.config.arguments import (
    CorpusArguments,
    EstimateArguments,
    ExampleArguments,
    FineTuningArguments,
    ModelArguments,
    OutputArguments,
    PrepareArguments,
    PreTrainingArguments,
    TaskArguments,
    TokenizerArguments,
    parse,
)
from bert_hf.config.files import check_writable, read_input_text
from bert_hf.config.hardware import free_disk
from bert_hf.config.split_arguments import SplitArguments
from bert_hf.config.training_options import BY_FINETUNING, BY_PRETRAINING, check_options, defaults_of
from bert_hf.data.input_files import is_url
from bert_hf.data.planned_run import SAVED_A_PARAMETER
from bert_hf.data.requested_corpus import is_prepared, load_or_train_tokenizer, open_prepared, text_sources
from bert_hf.data.tokenization import check_tokenizer, load_tokenizer
from bert_hf.errors import InputError, check_known
from bert_hf.finetuning.splitting.fold_files import TEST_PERCENTAGE, read_rows_to_split
from bert_hf.finetuning.task import DownstreamTask
from bert_hf.models.config_file import read_checked_config
from bert_hf.models.flops import parameter_count
from bert_hf.training.optimization import check_optimizer, check_schedule
from bert_hf.training.output_folder import RUN_RECORD, refuse_foreign_files, require_output_dir
from bert_hf.training.pretraining import longest_length

_HEAD = 1 << 18  # characters that are read of an input
_OPENED = 64  # inputs that are opened, evenly spread; all are checked to exist
_SECONDS = 1.0  # after which no further input is opened
_READ_WHOLE = 64_000_000  # bytes of labelled files, up to which every row is read

# `paged` is for generation
_ATTENTIONS = ("eager", *(name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if not name.startswith("paged")))
_MLM_METRICS = ("loss", "mlm_loss", "mlm_accuracy")
_NSP_METRICS = ("nsp_loss", "nsp_accuracy")

# ---- the options of each recipe

PRETRAINING_ARGUMENTS = (TokenizerArguments, CorpusArguments, ModelArguments, ExampleArguments, PreTrainingArguments)
ESTIMATING_ARGUMENTS = (*PRETRAINING_ARGUMENTS, EstimateArguments)
PREPARING_ARGUMENTS = (TokenizerArguments, CorpusArguments, ExampleArguments, PrepareArguments, OutputArguments)
TOKENIZER_TRAINING_ARGUMENTS = (TokenizerArguments, CorpusArguments, OutputArguments)
SPLITTING_ARGUMENTS = (SplitArguments, OutputArguments)


def parse_pretraining(argv: list[str] | None, default_config: Path) -> tuple | None:
    """The options of `pretrain.py`, checked, in the order of `PRETRAINING_ARGUMENTS`. None after `--check`."""
    return parse(PRETRAINING_ARGUMENTS, argv, str(default_config), check_pretraining)


def parse_estimating(argv: list[str] | None, default_config: Path) -> tuple | None:
    """The options of `estimate.py`, in the order of `ESTIMATING_ARGUMENTS`. None after `--check`."""
    return parse(ESTIMATING_ARGUMENTS, argv, str(default_config), check_estimating)


def parse_preparing(argv: list[str] | None) -> tuple:
    """The options of `prepare.py`, in the order of `PREPARING_ARGUMENTS`; `--check` is one of them."""
    options = parse(PREPARING_ARGUMENTS, argv, preflight=check_preparing)
    assert options is not None
    return options


def parse_tokenizer_training(argv: list[str] | None) -> tuple | None:
    """The options of `train_tokenizer.py`, in the order of `TOKENIZER_TRAINING_ARGUMENTS`. None after `--check`."""
    return parse(TOKENIZER_TRAINING_ARGUMENTS, argv, preflight=check_tokenizer_training)


def parse_splitting(argv: list[str] | None) -> tuple | None:
    """The options of `split.py`, in the order of `SPLITTING_ARGUMENTS`. None after `--check`."""
    return parse(SPLITTING_ARGUMENTS, argv, preflight=check_splitting)


def parse_finetuning(
    arguments: type[TaskArguments], task: type[DownstreamTask], argv: list[str] | None
) -> tuple | None:
    """The options of a recipe `finetune_….py`, checked: (task and model, run). None after `--check`."""
    return parse((arguments, FineTuningArguments), argv, preflight=functools.partial(check_finetuning, task))


# ---- the checks of each recipe


def check_pretraining(tokenizer_args, corpus_args, model_args, example_args, args) -> Iterator[str]:
    """The checks of `pretrain.py`."""
    # Options and folders
    yield check_output_folder(args.output_dir, args.overwrite_output_dir, RUN_RECORD)
    yield check_training_options(args, PreTrainingArguments, BY_PRETRAINING)
    yield from check_machine(args, _MLM_METRICS + (_NSP_METRICS if example_args.nsp else ()))
    yield check_corpus_text(corpus_args, example_args.nsp, splits=True)
    if args.max_hours is not None and args.max_steps > 0:
        raise InputError("it excludes --max_steps", where="--max_hours", remedy="leave one of the two out")
    attention = model_args.attn_implementation
    check_known(attention, _ATTENTIONS, f"no attention {attention!r}", "--attn_implementation")
    if attention == "flex_attention" and (args.use_cpu or not torch.accelerator.is_available()):
        what, remedy = "FlexAttention has no gradients on a CPU", "use sdpa"
        raise InputError(what, where="--attn_implementation", remedy=remedy)

    # Tokenizer
    named = tokenizer_args.tokenizer_name or model_args.model_name_or_path
    tokenizer = local_tokenizer(tokenizer_args, corpus_args, named)
    if tokenizer is not None:
        yield f"tokenizer: {len(tokenizer):,} pieces"

    # Model, with the tokenizer's vocabulary
    config = read_model_config(model_args.config_name, model_args.model_name_or_path, longest_length(example_args))
    if config is None:
        yield not_checked(model_args.model_name_or_path)
        return
    dropout = config.attention_probs_dropout_prob if model_args.dropout is None else model_args.dropout
    if attention == "flex_attention" and dropout:
        raise InputError("FlexAttention has no dropout", where="--attn_implementation", remedy="give --dropout 0")
    if model_args.model_name_or_path is None:
        config.vocab_size = len(tokenizer) if tokenizer is not None else tokenizer_args.vocab_size
    elif tokenizer is not None:
        check_tokenizer(tokenizer, config.vocab_size, named)
    yield from check_disk_space(config, args)


def check_finetuning(task: type[DownstreamTask], task_args, args) -> Iterator[str]:
    """The checks of a recipe that fine-tunes."""
    if task_args.model_name_or_path is None:
        raise InputError("no checkpoint is named", where="--model_name_or_path", remedy="give a pre-trained BERT")

    # Options and folders
    yield check_output_folder(args.output_dir, args.overwrite_output_dir, RUN_RECORD)
    yield check_training_options(args, FineTuningArguments, BY_FINETUNING)
    yield from check_machine(args, tuple(dict.fromkeys((*task.metric_names(task_args), "loss"))))
    yield check_labelled_rows(task, task_args)

    # Model and tokenizer
    config = read_model_config(None, task_args.model_name_or_path, task_args.max_seq_length, bert_alone=False)
    named = task_args.tokenizer_name or task_args.model_name_or_path
    if _is_here(named):
        tokenizer = load_tokenizer(named)
        yield f"tokenizer: {len(tokenizer):,} pieces"
        if config is not None:
            check_tokenizer(tokenizer, config.vocab_size, named)
    if config is not None:
        yield from check_disk_space(config, args)
    elif not _is_here(task_args.model_name_or_path):
        yield not_checked(task_args.model_name_or_path)


def check_tokenizer_training(tokenizer_args, corpus_args, output_args) -> Iterator[str]:
    """The checks of `train_tokenizer.py`."""
    if is_prepared(corpus_args.train_file):
        what, remedy = "a prepared corpus, and not text", "its tokenizer is in its folder tokenizer/"
        raise InputError(what, where=corpus_args.train_file[0], remedy=remedy)
    if tokenizer_args.tokenizer_name is not None:
        what, remedy = "a tokenizer is trained here, and none is loaded", "leave it out"
        raise InputError(what, where="--tokenizer_name", remedy=remedy)
    _refuse_held_out_text(corpus_args)
    yield check_corpus_text(corpus_args)
    yield check_output_folder(
        require_output_dir(output_args.output_dir), output_args.overwrite_output_dir, "tokenizer.json"
    )


def check_preparing(tokenizer_args, corpus_args, example_args, prepare_args, output_args) -> Iterator[str]:
    """The checks of `prepare.py`."""
    # Options
    prepare_args.part()
    if prepare_args.shard and output_args.overwrite_output_dir:
        what, remedy = "every part would remove the others' work", "empty the folder first"
        raise InputError(what, where="--overwrite_output_dir", remedy=remedy)

    # Folders and text; `--check` needs no output folder, and accepts a prepared corpus
    if not prepare_args.check or output_args.output_dir is not None:
        yield check_writable(require_output_dir(output_args.output_dir))
    if not prepare_args.check and is_prepared(corpus_args.train_file):
        what, remedy = "a prepared corpus, and not text", "give the files that it was made from"
        raise InputError(what, where=corpus_args.train_file[0], remedy=remedy)
    _refuse_held_out_text(corpus_args)
    yield check_corpus_text(corpus_args)
    if prepare_args.deduplicate or not (prepare_args.check or tokenizer_args.tokenizer_name):
        check_writable(corpus_args.cache_dir, "--cache_dir")

    # Tokenizer
    if (tokenizer := local_tokenizer(tokenizer_args, corpus_args, tokenizer_args.tokenizer_name)) is not None:
        yield f"tokenizer: {len(tokenizer):,} pieces"


def check_estimating(tokenizer_args, corpus_args, model_args, example_args, args, estimate_args) -> Iterator[str]:
    """The checks of `estimate.py`, which reads no text and writes nothing."""
    if args.bf16 is False and estimate_args.device != "cpu":
        what, remedy = "a GPU is estimated with 16-bit autocast", "leave it out, or give --device cpu"
        raise InputError(what, where="--bf16", remedy=remedy)
    if args.max_hours is not None:
        what, remedy = "hours become steps by a measured speed, and nothing is measured", "give --max_steps"
        raise InputError(what, where="--max_hours", remedy=remedy)

    if (
        read_model_config(model_args.config_name, model_args.model_name_or_path, longest_length(example_args))
        is not None
    ):
        yield "model: its shape is a BERT's"
    else:
        yield not_checked(model_args.model_name_or_path)


def check_splitting(split_args, output_args) -> Iterator[str]:
    """The checks of `split.py`."""
    if split_args.folds > 1 and split_args.test_split_percentage is not None:
        what = f"the test rows of {split_args.folds} folds are {100 / split_args.folds:g} %"
        raise InputError(what, where="--test_split_percentage", remedy="leave it out, or give --folds 1")
    test = 100 / split_args.folds if split_args.folds > 1 else split_args.test_split_percentage or TEST_PERCENTAGE
    if split_args.validation_split_percentage + test >= 100:
        what = f"with {test:g} % test rows no training rows are left"
        raise InputError(what, where="--validation_split_percentage", remedy="give fewer")
    yield f"rows: {len(read_rows_to_split(split_args)):,}"
    yield check_writable(require_output_dir(output_args.output_dir))


# ---- machine and folders


def check_machine(args, metrics: tuple[str, ...]) -> Iterator[str]:
    """Refuses precisions, metrics, checkpoints, trackers and repositories that do not exist.

    Args:
        metrics: names of the metrics of an evaluation.
    """
    # Precision
    if args.bf16 and args.fp16:
        raise InputError("--bf16 and --fp16 exclude each other", where="--fp16", remedy="choose one")
    if args.fp16 and (args.use_cpu or not torch.accelerator.is_available()):
        raise InputError("a CPU does not train in fp16", where="--fp16", remedy="leave it out, or give --bf16 true")

    # Metrics, checkpoint
    best = args.metric_for_best_model
    if best is not None:
        check_known(best.removeprefix("eval_"), metrics, f"no metric {best!r}", "--metric_for_best_model")
    if args.resume_from_checkpoint and args.resume_from_checkpoint.lower() != "true":
        folder = Path(args.resume_from_checkpoint)
        if not folder.is_dir():
            raise InputError("no such checkpoint", where=folder, remedy="give a folder checkpoint-N, or leave it out")

    # Trackers, Hub
    known = {*get_available_reporting_integrations(), "all", "none"}
    for tracker in [args.report_to] if isinstance(args.report_to, str) else args.report_to or []:
        if tracker not in known:
            remedy = f"install it, or use one of: {', '.join(sorted(known))}"
            raise InputError(f"no tracker {tracker!r} is installed", where="--report_to", remedy=remedy)
    if args.push_to_hub:
        yield _check_push(args.hub_model_id or Path(args.output_dir).name)


def _check_push(repo_id: str) -> str:
    try:
        validate_repo_id(repo_id)
    except HFValidationError:
        remedy = "give YOU/NAME of letters, digits, '-', '_' and '.'"
        raise InputError(f"{repo_id!r} is no name of a repository", where="--hub_model_id", remedy=remedy) from None
    if get_token() is None:
        remedy = "set HF_TOKEN or `hf auth login`"
        raise InputError("you are not logged in to the Hub", where="--push_to_hub", remedy=remedy)
    return f"push: to {repo_id}"


def check_training_options(args, kind: type[TrainingArguments], by: frozenset[str]) -> str:
    """Refuses training options that do not work, and combinations of them that contradict each other."""
    parsed = {name: _json(name, getattr(args, name)) for name in TrainingArguments._VALID_DICT_FIELDS}
    defaults = defaults_of(kind)
    line = check_options(args, defaults, by)
    check_optimizer(args, defaults)
    check_schedule(args, parsed["lr_scheduler_kwargs"])
    _check_compiling(args)
    _check_activation_checkpointing(parsed["gradient_checkpointing_kwargs"])
    return line


def _check_compiling(args) -> None:
    """Refuses a backend and a mode of torch.compile that do not exist."""
    if backend := args.torch_compile_backend:
        known = [each.value.lower() for each in DynamoBackend if each is not DynamoBackend.NO]
        check_known(backend.lower(), known, f"no backend {backend!r}", "--torch_compile_backend")
    if mode := args.torch_compile_mode:
        from torch._inductor import list_mode_options  # takes seconds to import

        check_known(mode, list_mode_options(), f"no mode {mode!r}", "--torch_compile_mode")


def _check_activation_checkpointing(kwargs: dict | None) -> None:
    """Refuses arguments that `torch.utils.checkpoint` does not take, by calling it."""
    try:
        checkpoint(torch.square, torch.ones(1, requires_grad=True), **{"use_reentrant": False, **(kwargs or {})})
    except (TypeError, ValueError):
        what = f"torch.utils.checkpoint does not take {kwargs}"
        remedy = "it takes use_reentrant, preserve_rng_state, determinism_check, debug, early_stop"
        raise InputError(what, where="--gradient_checkpointing_kwargs", remedy=remedy) from None


def _json(name: str, value) -> dict | None:
    """The value of an option that is JSON, or names a file of it."""
    if not isinstance(value, str) or not value:
        return value or None
    text = value if value.startswith("{") else read_input_text(value)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f"--{name}" if text is value else value
        raise InputError(f"not JSON: {error}", where=where, remedy='write {"key": value, …}') from None


def check_output_folder(output_dir: str, overwrite: bool, known_by: str) -> str:
    """The folder of a run: new, empty, or one of ours (which holds a file `known_by`), and writable."""
    folder = Path(output_dir)
    line = check_writable(output_dir)
    if not (folder / known_by).is_file():
        refuse_foreign_files(folder, overwrite, known_by)
    return line


def check_disk_space(config: BertConfig, args) -> Iterator[str]:
    """Checks that two checkpoints fit on the disk: the newest, and the one being written (a resumed run has one)."""
    parameters = parameter_count(config)
    yield f"model: {config.num_hidden_layers} layers × {config.hidden_size}, {parameters:,} parameters"

    # Bytes that are still to be written
    never = args.save_strategy is None and args.save_steps is None and not args.save_minutes
    if never or args.save_strategy == "no":
        need = 4 * parameters
    else:
        need = (1 if (Path(args.output_dir) / RUN_RECORD).is_file() else 2) * SAVED_A_PARAMETER * parameters

    free = free_disk(Path(args.output_dir).expanduser())
    if free < need:
        what = f"two checkpoints take {need / 1e9:,.2f} GB, and {free / 1e9:,.2f} GB are free"
        raise InputError(what, where=args.output_dir, remedy="free some space, or give another --output_dir")
    yield f"disk: {need / 1e9:,.2f} GB for checkpoints, {free / 1e9:,.2f} GB free"


# ---- the text


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


def _refuse_held_out_text(corpus_args: CorpusArguments) -> None:
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
    parts = task.read_given(task_args)
    return "rows: " + ", ".join(f"{len(rows):,} {name}" for name, rows in parts.items())


def _refuse_rows_seen_before_the_test(task_args: TaskArguments) -> None:
    """Refuses a test file that is trained on, or that chooses the weights. (Studies validate on training rows.)"""
    tested = _resolved(task_args.test_file)
    for option, files in (("--train_file", task_args.train_file), ("--validation_file", task_args.validation_file)):
        for path, name in _resolved(files).items():
            if path in tested:
                remedy = "test on other rows, or leave --test_file out"
                raise InputError(f"{option} and --test_file both name it", where=name, remedy=remedy)


# ---- tokenizer and model


def _is_here(name: str | None) -> bool:
    """True for a path that exists; a name that can only be a path, and no Hub id, has to exist."""
    if name is None:
        return False
    is_path = name.startswith(("/", "./", "../", "~")) or name.count("/") > 1 or Path(name).suffix in (".txt", ".json")
    is_path = is_path or ("/" in name and Path(Path(name).parts[0]).is_dir())  # runs/mien for runs/mine
    if is_path and not os.path.lexists(name):
        raise InputError("no such file or folder", where=name, remedy="check the path")
    return os.path.lexists(name)


def not_checked(name: str) -> str:
    """The line for a checkpoint that is not on this machine."""
    return f"model: {name} is taken from the Hub (not checked)"


def local_tokenizer(
    tokenizer_args: TokenizerArguments, corpus_args: CorpusArguments, name: str | None
) -> PreTrainedTokenizerBase | None:
    """The tokenizer, where it is on this machine; None where it has to be trained or downloaded."""
    if name is not None:
        return load_tokenizer(name, **tokenizer_args.normalization()) if _is_here(name) else None
    prepared = corpus_args.train_file and is_prepared(corpus_args.train_file) and not is_url(corpus_args.train_file[0])
    return load_or_train_tokenizer(tokenizer_args, corpus_args) if prepared else None


def read_model_config(
    config_name: str | None, checkpoint: str | None, longest: int, bert_alone: bool = True
) -> BertConfig | None:
    """The configuration of the network (see `read_checked_config`).

    None where it is on the Hub or, unless `bert_alone`, not that of a BERT.
    """
    if checkpoint is None:
        if config_name is None:
            raise InputError("no model is named", where="--config_name", remedy="give e.g. configs/model/mini.json")
        return read_checked_config(config_name, longest)
    if not _is_here(checkpoint):
        return None
    if not Path(checkpoint).is_dir():
        raise InputError("not a folder of a checkpoint", where=checkpoint, remedy="give the folder that holds it")
    return read_checked_config(Path(checkpoint) / "config.json", longest, bert_alone)
