"""Reads the configuration of a BERT: from a checkpoint or a model JSON, whose keys can be checked line by line."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from transformers import BertConfig
from transformers.activations import ACT2FN

from bert_hf.config.files import parse_json, read_input_text
from bert_hf.errors import InputError, did_you_mean, first_line
from bert_hf.models.loading import find_checkpoint, read_safe_json

MAX_DROPOUT = 0.99  # what is left is multiplied by 1 / (1 - p), which the kernels cannot compute just below 1
_WHOLE = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_WHOLE += ("max_position_embeddings", "type_vocab_size")
_SHARES = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_FRACTIONS = ("initializer_range", "layer_norm_eps")


def read_checked_config(path: str | Path, longest: int = 0, bert_alone: bool = True) -> BertConfig | None:
    """The configuration in a JSON file: of a model to be made, or of a checkpoint.

    Args:
        longest: tokens of the longest sequence that the model will see.
        bert_alone: another architecture is an error; otherwise None is returned for it.

    Raises:
        InputError: a value is wrong (with its line), or `longest` is beyond the positions.
    """
    path = Path(path)
    text = read_input_text(path, "give a BERT's configuration, e.g. configs/model/mini.json")
    values = _json_object(text, path)
    if not bert_alone and values.get("model_type", "bert") != "bert":
        return None

    _check(values, text, path)
    with _config_errors(path, "correct the file"):
        config = BertConfig(**values)

    check_length(config, longest, path, _line_of(text, "max_position_embeddings"))
    return config


def config_from_json(path: str | None, vocab_size: int | None = None, dropout: float | None = None) -> BertConfig:
    """The configuration in a model JSON.

    Args:
        vocab_size: replaces that of the file.
        dropout: replaces both dropout probabilities.

    Raises:
        InputError: no file is named; see `read_checked_config`; or it asks for code.
    """
    if path is None:
        raise InputError("no model is named", where="--config_name", remedy="give e.g. configs/model/base.json")
    config = read_checked_config(path)
    assert config is not None  # of another architecture it is an error
    read_safe_json(Path(path))

    config.vocab_size = vocab_size or config.vocab_size
    return _with_dropout(config, dropout)


def config_of_checkpoint(where: str, dropout: float | None = None) -> BertConfig:
    """The configuration of a checkpoint: a folder or a Hub id. `dropout` replaces both dropout probabilities.

    Raises:
        InputError: it is not that of a BERT.
    """
    with _config_errors(where, "check the path or id"):
        config = BertConfig.from_pretrained(find_checkpoint(where, weights=False))
    return _with_dropout(config, dropout)


@contextlib.contextmanager
def _config_errors(where: str | Path, remedy: str) -> Iterator[None]:
    """Turns what transformers raises for a value of a wrong type into an `InputError`."""
    try:
        yield
    except (OSError, ValueError, TypeError, AttributeError, StrictDataclassError) as error:
        reason = str(error) if isinstance(error, StrictDataclassError) else first_line(error)
        raise InputError(f"no BERT's configuration: {reason}", where=where, remedy=remedy) from None


def _with_dropout(config: BertConfig, dropout: float | None) -> BertConfig:
    if dropout is not None:
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
    return config


def check_length(config: BertConfig, longest: int, where: str | Path | None, line: int | None = None) -> None:
    """Refuses sequences of `longest` tokens, if they are longer than the model's table of position embeddings."""
    if longest > config.max_position_embeddings:
        raise InputError(
            f"sequence length {longest} is beyond the model's {config.max_position_embeddings} positions",
            where=where,
            line=line,
            remedy="lower --max_seq_length / --long_seq_length, or raise max_position_embeddings in the model JSON",
        )


def _json_object(text: str, path: Path) -> dict:
    def distinct(pairs: list[tuple]) -> dict:
        names = [name for name, _ in pairs]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InputError(
                f"{twice[0]!r} is given twice",
                where=path,
                line=_line_of(text, twice[0]),
                remedy="remove one of them",
            )
        return dict(pairs)

    values = parse_json(text, path, "correct the file", object_pairs_hook=distinct)
    if not isinstance(values, dict):
        raise InputError("not a JSON object", where=path, line=1, remedy='write {"hidden_size": 256, …}')
    return values


def _check(values: dict, text: str, path: Path) -> None:
    def refuse(name: str, what: str, remedy: str = "correct this line"):
        raise InputError(what, where=path, line=_line_of(text, name), remedy=remedy)

    usual = BertConfig().to_dict()
    if values.get("model_type", "bert") != "bert":
        refuse("model_type", f"model_type is {values['model_type']!r}, and not 'bert'", "give a BERT's configuration")

    # A misspelled key: an unknown one that resembles a key that is missing
    for name in values:
        if name not in usual and (near := did_you_mean(name, set(_WHOLE + _SHARES) - values.keys())):
            refuse(name, f"unknown key {name!r}", near.strip())

    # Numbers
    for name in _WHOLE:
        value = values.get(name, 1)
        if type(value) is not int or not 0 < value < 2**31:
            refuse(name, f"{name} is {value!r}, and not a whole number above 0")
    for name in _SHARES + _FRACTIONS:
        value = values.get(name, 0.1)
        share = name in _SHARES
        inside = type(value) in (int, float) and (0 <= value <= MAX_DROPOUT if share else 0 < value < 1)
        if not inside:
            allowed = f"from 0 to {MAX_DROPOUT}" if share else "between 0 and 1"
            refuse(name, f"{name} is {value!r}, and not a number {allowed}")

    # Activation and heads
    activation = values.get("hidden_act", "gelu")
    if activation not in ACT2FN:
        remedy = f"{did_you_mean(str(activation), ACT2FN)}(the paper's: gelu)"
        refuse("hidden_act", f"hidden_act {activation!r} is not known", remedy)

    hidden = values.get("hidden_size", usual["hidden_size"])
    heads = values.get("num_attention_heads", usual["num_attention_heads"])
    if hidden % heads:
        what = f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
        refuse("hidden_size", what, "change one of them")


def _line_of(text: str, name: str) -> int | None:
    """The line of a key in a JSON text."""
    before, found, _ = text.rpartition(json.dumps(name))
    return before.count("\n") + 1 if found else None
