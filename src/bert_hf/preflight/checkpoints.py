"""Checks of a tokenizer and of a network's shape, where they are on this machine and not on the Hub."""

import os
from pathlib import Path

from transformers import BertConfig, PreTrainedTokenizerBase

from bert_hf.config.arguments import CorpusArguments, TokenizerArguments
from bert_hf.data.corpus.requested_corpus import is_prepared, load_or_train_tokenizer
from bert_hf.data.text.input_files import is_url
from bert_hf.data.text.tokenization import load_tokenizer
from bert_hf.errors import InputError
from bert_hf.models.config_file import read_checked_config


def is_here(name: str | None) -> bool:
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
        return load_tokenizer(name, **tokenizer_args.normalization()) if is_here(name) else None
    prepared = corpus_args.train_file and is_prepared(corpus_args.train_file) and not is_url(corpus_args.train_file[0])
    return load_or_train_tokenizer(tokenizer_args, corpus_args) if prepared else None


def read_model_config(config_name: str | None, checkpoint: str | None, longest: int) -> BertConfig | None:
    """The configuration of the network (see `read_checked_config`); None where it is on the Hub."""
    if checkpoint is None:
        if config_name is None:
            raise InputError("no model is named", where="--config_name", remedy="give e.g. configs/model/mini.json")
        return read_checked_config(config_name, longest)
    if not is_here(checkpoint):
        return None
    if not Path(checkpoint).is_dir():
        raise InputError("not a folder of a checkpoint", where=checkpoint, remedy="give the folder that holds it")
    return read_checked_config(Path(checkpoint) / "config.json", longest)
