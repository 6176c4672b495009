"""The options that each recipe parses, and the order of its checks."""

import functools
from collections.abc import Iterator
from pathlib import Path

import torch
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
from bert_hf.config.files import check_writable
from bert_hf.config.split_arguments import SplitArguments
from bert_hf.config.training_options import BY_FINETUNING, BY_PRETRAINING
from bert_hf.data.corpus.requested_corpus import is_prepared
from bert_hf.data.text.tokenization import check_tokenizer, load_tokenizer
from bert_hf.errors import InputError, check_known
from bert_hf.finetuning.run import refuse_stop_without_evaluation
from bert_hf.finetuning.splitting.fold_files import TEST_PERCENTAGE, read_rows_to_split
from bert_hf.finetuning.task import DownstreamTask
from bert_hf.preflight.checkpoints import is_here, local_tokenizer, not_checked, read_model_config
from bert_hf.preflight.inputs import (
    check_corpus_text,
    check_labelled_rows,
    refuse_held_out_text,
    refuse_unused_text_options,
)
from bert_hf.preflight.options import (
    check_disk_space,
    check_machine,
    check_output_folder,
    check_training_options,
    refuse_unused,
)
from bert_hf.training.output_folder import RUN_RECORD, require_output_dir
from bert_hf.training.pretraining import longest_length

# `paged` is for generation
_ATTENTIONS = ("eager", *(name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if not name.startswith("paged")))
_MLM_METRICS = ("loss", "mlm_loss", "mlm_accuracy")
_NSP_METRICS = ("nsp_loss", "nsp_accuracy")
# Options of a text that only a run with held-out documents and a model card uses
_OF_A_RUN = ("validation_split_percentage", "corpus_license", "corpus_source")

# ---- the options of each recipe

PRETRAINING_ARGUMENTS = (TokenizerArguments, CorpusArguments, ModelArguments, ExampleArguments, PreTrainingArguments)
ESTIMATING_ARGUMENTS = (*PRETRAINING_ARGUMENTS, EstimateArguments)
PREPARING_ARGUMENTS = (TokenizerArguments, CorpusArguments, ExampleArguments, PrepareArguments, OutputArguments)
TOKENIZER_TRAINING_ARGUMENTS = (TokenizerArguments, CorpusArguments, OutputArguments)
SPLITTING_ARGUMENTS = (SplitArguments, OutputArguments)


def parse_pretraining(argv: list[str] | None, default_config: Path) -> tuple | None:
    """The options of `pretrain.py`, checked, in the order of `PRETRAINING_ARGUMENTS`. None after `--check`."""
    return parse(PRETRAINING_ARGUMENTS, argv, str(default_config), check_pretraining, refuse_unused_text_options)


def parse_estimating(argv: list[str] | None, default_config: Path) -> tuple | None:
    """The options of `estimate.py`, in the order of `ESTIMATING_ARGUMENTS`. None after `--check`."""
    return parse(ESTIMATING_ARGUMENTS, argv, str(default_config), check_estimating, refuse_unused_text_options)


def parse_preparing(argv: list[str] | None) -> tuple:
    """The options of `prepare.py`, in the order of `PREPARING_ARGUMENTS`; `--check` is one of them."""
    options = parse(PREPARING_ARGUMENTS, argv, preflight=check_preparing, check_given=refuse_unused_text_options)
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
    if not example_args.nsp and args.nsp_loss_weight != 1:
        what = "there is no next-sentence loss with --nsp false"
        raise InputError(what, where="--nsp_loss_weight", remedy="leave one of the two out")
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
    refuse_stop_without_evaluation(args, task_args)
    yield from check_machine(args, tuple(dict.fromkeys((*task.metric_names(task_args), "loss"))))
    yield check_labelled_rows(task, task_args)

    # Model and tokenizer
    config = read_model_config(None, task_args.model_name_or_path, task_args.max_seq_length)
    named = task_args.tokenizer_name or task_args.model_name_or_path
    if is_here(named):
        tokenizer = load_tokenizer(named)
        yield f"tokenizer: {len(tokenizer):,} pieces"
        if config is not None:
            check_tokenizer(tokenizer, config.vocab_size, named)
    if config is not None:
        yield from check_disk_space(config, args)
    elif not is_here(task_args.model_name_or_path):
        yield not_checked(task_args.model_name_or_path)


def check_tokenizer_training(tokenizer_args, corpus_args, output_args) -> Iterator[str]:
    """The checks of `train_tokenizer.py`."""
    if is_prepared(corpus_args.train_file):
        what, remedy = "a prepared corpus, and not text", "its tokenizer is in its folder tokenizer/"
        raise InputError(what, where=corpus_args.train_file[0], remedy=remedy)
    if tokenizer_args.tokenizer_name is not None:
        what, remedy = "a tokenizer is trained here, and none is loaded", "leave it out"
        raise InputError(what, where="--tokenizer_name", remedy=remedy)
    refuse_unused(corpus_args, _OF_A_RUN, "a tokenizer is trained on all of the text", "give it to pretrain.py")
    refuse_held_out_text(corpus_args)
    yield check_corpus_text(corpus_args)
    yield check_output_folder(
        require_output_dir(output_args.output_dir), output_args.overwrite_output_dir, "tokenizer.json"
    )


def check_preparing(tokenizer_args, corpus_args, example_args, prepare_args, output_args) -> Iterator[str]:
    """The checks of `prepare.py`."""
    # Options
    prepare_args.part()
    refuse_unused(corpus_args, _OF_A_RUN, "a corpus is prepared of all of the text", "give it to pretrain.py")
    if prepare_args.check:
        what, remedy = "--check prepares no corpus", "leave one of the two out"
        refuse_unused(prepare_args, ("shard", "deduplicate"), what, remedy)
    else:
        what, remedy = "it is used with --check alone", "give --check true, or leave it out"
        refuse_unused(prepare_args, ("check_bytes",), what, remedy)
        what, remedy = "examples are made by pretrain.py, and not here", "give it to pretrain.py"
        refuse_unused(example_args, vars(example_args), what, remedy)
    if prepare_args.shard and output_args.overwrite_output_dir:
        what, remedy = "every part would remove the others' work", "empty the folder first"
        raise InputError(what, where="--overwrite_output_dir", remedy=remedy)

    # Folders and text; `--check` needs no output folder, and accepts a prepared corpus
    if not prepare_args.check or output_args.output_dir is not None:
        yield check_writable(require_output_dir(output_args.output_dir))
    if not prepare_args.check and is_prepared(corpus_args.train_file):
        what, remedy = "a prepared corpus, and not text", "give the files that it was made from"
        raise InputError(what, where=corpus_args.train_file[0], remedy=remedy)
    refuse_held_out_text(corpus_args)
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

    # With its accumulation steps, one device of the run may have more sequences than are estimated
    rows, accumulated = args.per_device_train_batch_size, args.gradient_accumulation_steps
    if accumulated > 1 and rows * accumulated > estimate_args.global_batch:
        what = f"{estimate_args.global_batch} sequences a step are fewer than one device's {rows} × {accumulated}"
        remedy = f"give {rows * accumulated}, times the number of devices"
        raise InputError(what, where="--global_batch", remedy=remedy)

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
