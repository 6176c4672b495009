"""The shape of a BERT as a JSON file gives it, looked through key by key, so that a fault has a line."""

import json
from pathlib import Path

from transformers import BertConfig
from transformers.activations import ACT2FN

from bert_hf.config.files import named_text
from bert_hf.errors import InputError, did_you_mean

_WHOLE = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_WHOLE += ("max_position_embeddings", "type_vocab_size")
_SHARES = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def read_shape(path: str | Path, longest: int = 0, bert_alone: bool = True) -> BertConfig | None:
    """The configuration in a JSON file: of a model to be made, or of a checkpoint.

    Args:
        longest: tokens of the longest sequence that the model will see.
        bert_alone: another architecture is an error; else None is returned for it.

    Raises:
        InputError: what is wrong, with the line; or `longest` is beyond the positions.
    """
    path = Path(path)
    text = named_text(path, "give a BERT's configuration, e.g. configs/model/mini.json")
    values = _json_object(text, path)
    if not bert_alone and values.get("model_type", "bert") != "bert":
        return None
    _check(values, text, path)
    config = BertConfig(**values)
    if longest > config.max_position_embeddings:
        raise InputError(
            f"sequence length {longest} is beyond the model's {config.max_position_embeddings} positions",
            where=path,
            line=_line_of(text, "max_position_embeddings"),
            remedy="lower --max_seq_length / --long_seq_length, or raise max_position_embeddings in the model JSON",
        )
    return config


def _json_object(text: str, path: Path) -> dict:
    def distinct(pairs: list[tuple]) -> dict:
        names = [name for name, _ in pairs]
        if twice := [name for name in names if names.count(name) > 1]:
            line = _line_of(text, twice[0])
            raise InputError(f"{twice[0]!r} stands there twice", where=path, line=line, remedy="remove one of them")
        return dict(pairs)

    try:
        values = json.loads(text, object_pairs_hook=distinct)
    except json.JSONDecodeError as error:
        raise InputError(
            f"not JSON: {error.msg}", where=path, line=error.lineno, column=error.colno, remedy="mend the file"
        ) from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"not JSON: {str(error).split(';')[0]}", where=path, remedy="mend the file") from None
    if not isinstance(values, dict):
        raise InputError("not a JSON object", where=path, line=1, remedy='write {"hidden_size": 256, …}')
    return values


def _check(values: dict, text: str, path: Path) -> None:
    def refuse(name: str, what: str, remedy: str = "mend this line"):
        raise InputError(what, where=path, line=_line_of(text, name), remedy=remedy)

    usual = BertConfig().to_dict()
    if values.get("model_type", "bert") != "bert":
        refuse("model_type", f"model_type is {values['model_type']!r}, and not 'bert'", "give a BERT's configuration")
    for name in values:
        if name not in usual and (near := did_you_mean(name, set(_WHOLE + _SHARES) - values.keys())):
            refuse(name, f"unknown key {name!r}", near.strip())
    for name in _WHOLE:
        value = values.get(name, 1)
        if type(value) is not int or not 0 < value < 2**31:
            refuse(name, f"{name} is {value!r}, and not a whole number above 0")
    for name in _SHARES:
        value = values.get(name, 0.1)
        if type(value) not in (int, float) or not 0 <= value < 1:
            refuse(name, f"{name} is {value!r}, and not a number from 0 to below 1")
    for name in ("initializer_range", "layer_norm_eps"):
        value = values.get(name, 0.1)
        if type(value) not in (int, float) or not 0 < value < 1:
            refuse(name, f"{name} is {value!r}, and not a number between 0 and 1")
    if (act := values.get("hidden_act", "gelu")) not in ACT2FN:
        refuse(
            "hidden_act", f"hidden_act {act!r} is not known", f"{did_you_mean(str(act), ACT2FN)}(the paper's: gelu)"
        )
    hidden, heads = (values.get(name, usual[name]) for name in ("hidden_size", "num_attention_heads"))
    if hidden % heads:
        what = f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
        refuse("hidden_size", what, "change one of them")


def _line_of(text: str, name: str) -> int | None:
    """The line of a JSON text in which a key stands."""
    before, found, _ = text.rpartition(json.dumps(name))
    return before.count("\n") + 1 if found else None
