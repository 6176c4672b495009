"""Safe loading of untrusted checkpoints and tokenizers (safetensors only), from a folder or the Hub.

Only JSON, safetensors and vocabulary text are read: no pickle, no code, no file outside the folder. transformers
follows what a configuration names (code, kernels, shards anywhere on the disk); here such configurations are rejected
first, and the stock classes open what remains. If others can write to the folder meanwhile, these checks cannot help.
"""

import contextlib
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from huggingface_hub.errors import HFValidationError, StrictDataclassError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn
from transformers import BertConfig, PreTrainedModel
from transformers.utils import logging

from bert_hf.config.files import parse_json, read_input_text
from bert_hf.config.package_files import find_config
from bert_hf.console import shorten_list
from bert_hf.errors import InputError, did_you_mean, first_line

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
POOLING = "1_Pooling/config.json"  # of sentence-transformers
TOKENIZER = ("tokenizer.json", TOKENIZER_CONFIG, "vocab.txt", "special_tokens_map.json", "added_tokens.json")
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack")  # h5 and msgpack: just not read
# Entries that stock classes follow to code or to other files; attention and experts may name a kernel of the Hub
# (CVE-2026-4372), an adapter its base model.
_FOLLOWED = ("auto_map", "custom_pipelines", "gguf_file", "quantization_config", "transformers_weights")
_NAMES_CODE = ("trust_remote_code", "attn_implementation", "experts_implementation")
_UNOPENED = ("special_tokens_map_file", "added_tokens_file")  # of old tokenizers: former paths, never opened
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# What the stock classes raise for a value of a configuration
_REJECTED = (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError, AssertionError)
_COMPLETE = f"correct {CONFIG}, or give weights and config of one complete BERT checkpoint"
_SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size",
)  # fmt: skip


# ---- finding a folder


def find_checkpoint(where: str | Path, weights: bool = True) -> Path:
    """Return the folder of a BERT checkpoint, local or downloaded from the Hub, after checks of every file to open.

    With `weights`, these are there and every number in them is finite (base: 0.2 s); without, they are not looked at.
    """
    patterns = (CONFIG, POOLING, *((WEIGHTS, INDEX, "model-*.safetensors") if weights else ()))
    folder = _find_folder(where, patterns, "BERT", "check the path or id")
    _check_openable_files(folder)
    if not os.path.lexists(folder / CONFIG):
        remedy = "repeat the command of its training, or give a checkpoint-N in it"
        if (folder / "bert_config.json").is_file():  # as in Google's checkpoints
            remedy = "bert-hf convert makes one of a TensorFlow checkpoint; of another, rename bert_config.json"
        raise InputError(f"no {CONFIG}: not a model, or its training is not finished", where=where, remedy=remedy)
    path = plain_file(folder, CONFIG)
    config = {"model_type": None, **read_safe_json(path)}  # here a missing type is an error
    if key_and_problem := _architecture_problem(config):
        is_named = config["model_type"] is not None
        remedy = "give a BERT checkpoint" if is_named else 'add "model_type": "bert" if it is one'
        _, problem = key_and_problem
        raise InputError(problem, where=path, remedy=remedy)

    if weights:
        for file in weight_files(folder):
            check_finite(file)
    return folder


def _architecture_problem(config: dict[str, Any]) -> tuple[str, str] | None:
    """Return (key, problem) if a configuration describes another network than BERT; a missing key is no problem."""
    for key, value in {"model_type": "bert", "position_embedding_type": "absolute", "is_decoder": False}.items():
        if config.get(key, value) != value:  # transformers 5 would ignore relative positions
            return key, f"{key} is {config[key]!r}, not {value!r}"
    return None


def find_tokenizer(where: str | Path) -> Path:
    """Return the folder of a tokenizer, local or downloaded from the Hub, after checks of every file to be opened."""
    remedy = "give a folder with tokenizer.json, a Hub id or a vocab.txt"
    folder = _find_folder(where, (*TOKENIZER, CONFIG), "tokenizer", remedy)
    _check_openable_files(folder)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
        raise InputError("no tokenizer there", where=where, remedy="add its files (a training: --tokenizer_name)")

    for name in (TOKENIZER_CONFIG, CONFIG):
        if not os.path.lexists(folder / name):
            continue
        path = plain_file(folder, name)
        for key, value in _nested_items(read_safe_json(path)):
            is_outside = key.endswith("_file") and isinstance(value, str) and Path(value).name != value
            if is_outside and key not in _UNOPENED:
                raise InputError(f"{key!r} points outside the folder", where=path, remedy="remove the entry")
    return folder


def _find_folder(where: str | Path, patterns: tuple[str, ...], kind: str, remedy: str) -> Path:
    """Return a local folder, or download the files of a Hub repository that match the patterns, all of one commit."""
    if str(where) and Path(where).is_dir():
        return Path(where)

    try:
        if os.path.lexists(where):
            raise ValueError("not a folder")
        return Path(huggingface_hub.snapshot_download(str(where), allow_patterns=list(patterns)))
    except HFValidationError:
        reason = "no such folder"
    except Exception as error:  # the client raises several unrelated types: its own, httpx's, OSError
        reason = _reason(error)

    raise InputError(f"cannot load a {kind}: {reason}", where=where, remedy=remedy)


def _reason(error: Exception) -> str:
    """Return the message of an error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, StrictDataclassError):  # the value that is wrong stands in its second line
        return " ".join(str(error).split())
    return f"unknown value {error}" if isinstance(error, KeyError) else first_line(error)  # such as a hidden_act


# ---- checking files


def plain_file(folder: Path, name: str) -> Path:
    """Return the path of a file in this folder; raise an `InputError` if it is not a regular one or lies elsewhere."""
    path = folder / name
    home = folder.resolve()
    # The Hub's cache links from `snapshots` to `blobs`
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    problem = None
    try:
        target = path.resolve(strict=True)
        if not stat.S_ISREG(target.stat().st_mode):  # opening a FIFO would wait forever
            problem = "not a regular file"
        elif not (target.is_relative_to(home) or target.is_relative_to(blobs)):
            problem = f"a link out of the folder, to {target}"
    except (OSError, RuntimeError) as error:  # a loop of links is either, by version
        problem = f"cannot be opened: {_reason(error)}"
    if problem:
        raise InputError(problem, where=path, remedy="give a complete checkpoint, or put a copy of the file there")
    return path


def _check_openable_files(folder: Path) -> None:
    """Check that the files which stock classes may open are plain ones, chat templates too; reject an adapter."""
    for path in [*folder.iterdir(), *folder.glob("additional_chat_templates/*")]:
        opened = path.suffix in (".json", ".safetensors", ".txt", ".jinja")
        if opened and not path.is_dir():
            plain_file(path.parent, path.name)
        if path.name == "adapter_config.json":  # transformers would open the model that it names
            raise InputError("an adapter, not a model", where=path, remedy="merge it into its model first")


def read_safe_json(path: Path) -> dict[str, Any]:
    """Return a JSON object; raise an `InputError` where a key in it asks for code or for other files."""
    content = _read_json_object(path)
    for key, value in _nested_items(content):
        if key.endswith("_autoset") and isinstance(value, bool):  # transformers 4.46–4.56 wrote it into every file
            continue
        requests_code = key in _FOLLOWED or any(name in key for name in _NAMES_CODE)
        if requests_code and value is not None and value is not False:
            remedy = "remove the entry if the model is a plain BERT"
            raise InputError(f"{key!r} requests code or files that are never loaded here", where=path, remedy=remedy)
    return content


def _nested_items(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a JSON value's objects, at any depth."""
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from value.items()
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _read_json_object(path: Path) -> dict[str, Any]:
    remedy = "fix the file, or give a complete checkpoint"
    content = parse_json(read_input_text(path, remedy), path, remedy)
    if not isinstance(content, dict):
        raise InputError("not a JSON object", where=path, remedy=remedy)
    return content


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint: one, or the shards that its index names."""
    if os.path.lexists(folder / WEIGHTS):
        return [plain_file(folder, WEIGHTS)]
    if os.path.lexists(folder / INDEX):
        return [plain_file(folder, name) for name in _shard_names(plain_file(folder, INDEX))]

    problem = f"no {WEIGHTS}"
    if pickles := sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES):
        problem += f", only {', '.join(pickles[:3])}: pickles are not read"
    hint = "if you trust it, load and save it with transformers (version 4 has from_tf and from_flax)"
    raise InputError(problem, where=folder, remedy=hint)


def _shard_names(index: Path) -> list[str]:
    """Return the sorted names of the files that an index lists; raise an `InputError` if one is not a plain name.

    transformers and accelerate join the names to the folder unchecked, `../..` included (CVE-2026-69112).
    """
    weight_map = _read_json_object(index).get("weight_map")
    names = sorted(set(map(str, weight_map.values()))) if isinstance(weight_map, dict) else []
    for name in names or [""]:  # an index without files is rejected, too
        if not _SHARD.fullmatch(name):
            problem = f"lists {name[:80]!r}, which is not a safetensors file in its folder"
            raise InputError(problem, where=index, remedy="give a complete checkpoint")
    return names


def check_finite(path: Path) -> None:
    """Reject a damaged safetensors file, and one with NaN or infinity, which would make every later loss NaN."""
    try:
        with safe_open(path, framework="pt") as file:  # checks the whole header: offsets, sizes, no overlap
            for name in file.keys():  # noqa: SIM118 - not a dict
                tensor = file.get_tensor(name)
                # NaN or infinity anywhere is the minimum or the maximum: one pass, no copy
                if tensor.dtype in _FLOATS and tensor.numel() and not all(map(math.isfinite, tensor.aminmax())):
                    raise ValueError(f"{name} contains NaN or infinity")
    except (OSError, ValueError, SafetensorError) as error:
        hint = "give a complete checkpoint; pickles are not read"
        raise InputError(f"bad weights: {_reason(error)}", where=path, remedy=hint) from None


# ---- configurations


@contextlib.contextmanager
def config_errors(where: str | Path, remedy: str) -> Iterator[None]:
    """Context manager: turn what transformers raises for a configuration into an `InputError`."""
    try:
        yield
    except (*_REJECTED, StrictDataclassError) as error:
        raise InputError(f"not a BERT's configuration: {_reason(error)}", where=where, remedy=remedy) from None


def config_from_json(path: str | None, **changes: Any) -> BertConfig:
    """Return the configuration in a model JSON, such as configs/model/base.json; `changes` replace its entries."""
    if path is None:
        raise InputError("missing option", where="--config_name", remedy="give e.g. configs/model/base.json")
    file = find_config(path, "model", suffix=".json")
    text = read_input_text(file, "give a BERT's configuration, e.g. configs/model/mini.json")
    values = read_safe_json(file)
    if key_and_problem := _config_problem(values):
        key, problem = key_and_problem
        before, quoted_key, _ = text.rpartition(json.dumps(key))  # of equal keys JSON keeps the last
        line = before.count("\n") + 1 if quoted_key else None
        raise InputError(problem, where=file, line=line, remedy="fix the file")
    with config_errors(file, "fix the file"):
        return BertConfig(**{**values, **changes})


def config_of_checkpoint(where: str, **changes: Any) -> BertConfig:
    """Return the configuration of a checkpoint, a folder or a Hub id; `changes` replace its entries."""
    with config_errors(where, "correct config.json, or give a complete BERT checkpoint"):
        return BertConfig.from_pretrained(find_checkpoint(where, weights=False), **changes)


def _config_problem(values: dict) -> tuple[str, str] | None:
    """Return (key, problem) of the first entry that transformers would accept and BERT cannot have, or None."""
    if key_and_problem := _architecture_problem(values):
        return key_and_problem

    # A misspelled key: an unknown one that resembles a key that is missing
    defaults = BertConfig().to_dict()
    for key in values:
        if key not in defaults and (suggestion := did_you_mean(key, set(_SIZES) - values.keys())):
            return key, f"unknown key {key!r}; {suggestion.strip()}"

    sizes = {key: values.get(key, defaults[key]) for key in _SIZES}
    for key, size in sizes.items():
        if not (isinstance(size, int) and size > 0):
            return key, f"{key} is {size!r}, not an integer above 0"
    hidden_size, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    if hidden_size % heads:
        return "hidden_size", f"hidden_size {hidden_size} is not a multiple of num_attention_heads {heads}"
    return None


# ---- loading


def check_positions(length: int, positions: int, where: str | Path | None) -> None:
    """Raise an `InputError` if inputs of `length` tokens are longer than a model's table of `positions`."""
    if length > positions:
        problem = f"sequence length {length} is beyond the model's {positions} positions"
        hint = (
            "lower --max_seq_length / --long_seq_length, or add positions: max_position_embeddings of a model JSON; "
            "pre-training that continues a checkpoint adds them"
        )
        raise InputError(problem, where=where, remedy=hint)


def load_network(
    model_class: type, folder: Path, where: str | Path, head_prefixes: tuple[str, ...], **options: Any
) -> tuple[Any, list[str]]:
    """Load a folder that `find_checkpoint` returned, with a stock class or with one of ours, in fp32.

    Return the model, and the sorted names of the weights that are newly initialized, because they are missing or of
    another shape. Only names that begin with one of `head_prefixes` may be: else raise an `InputError` (for `where`).
    """
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # of transformers: its load report; callers name the new layers
    logging.disable_progress_bar()
    try:
        with config_errors(where, _COMPLETE):  # the files were checked: it rejects a value of the configuration
            # fp32, because the default dtype is the checkpoint's, and bf16 weights lose small updates
            model, report = model_class.from_pretrained(
                folder, use_safetensors=True, trust_remote_code=False, output_loading_info=True,
                ignore_mismatched_sizes=True, dtype=torch.float32, **options,
            )  # fmt: skip
    finally:
        logging.set_verbosity(verbosity)
    model.name_or_path = model.config.name_or_path = str(where)  # not a folder of the Hub's cache
    model.config.return_dict = True  # outputs are read by name
    _check_encoder_weights(model, report, head_prefixes, where)
    return model, sorted({*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])})


def _check_encoder_weights(model: Any, report: dict, head_prefixes: tuple[str, ...], where: str | Path) -> None:
    """Raise an `InputError` if transformers' load report names a weight, other than a head's, that does not fit."""
    for name, saved, expected in sorted(report["mismatched_keys"]):
        if not name.startswith(head_prefixes):
            sizes = " instead of ".join(" × ".join(map(str, shape)) for shape in (saved, expected))
            raise InputError(f"{name} is {sizes}, as {CONFIG} says", where=where, remedy=_COMPLETE)

    if missing := sorted(name for name in report["missing_keys"] if not name.startswith(head_prefixes)):
        problem = f"it lacks {shorten_list(missing)}"
        # Training libraries add a prefix, such as `module.`
        if prefixed := [name for name in report["unexpected_keys"] if name.endswith(f".{missing[0]}")]:
            problem += f", but has {min(prefixed)}"
        raise InputError(problem, where=where, remedy=_COMPLETE)
    if unused := _unused_encoder_weights(model, report["unexpected_keys"]):
        raise InputError(f"{CONFIG} does not describe {shorten_list(unused)}", where=where, remedy=_COMPLETE)


def extend_embeddings(model: Any, vocabulary: int, positions: int) -> str:
    """Extend our network's embeddings to these numbers of tokens and positions, and return a line for the log.

    The line is empty if it has as many already. The rows of new tokens are drawn from the mean and the covariance of
    the others, as run_mlm.py does; the rows of new positions are drawn as in a new network.
    """
    config = model.config
    added = []
    if vocabulary > config.vocab_size:
        added.append(f"{vocabulary - config.vocab_size:,} tokens to {config.vocab_size:,}")
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()  # without a note on how the rows are drawn
        model.resize_token_embeddings(vocabulary)
        logging.set_verbosity(verbosity)

    if positions > config.max_position_embeddings:
        added.append(f"{positions - config.max_position_embeddings:,} positions to {config.max_position_embeddings:,}")
        embeddings = model.base_model.embeddings
        old = embeddings.position_embeddings.weight
        table = torch.empty(positions, old.shape[1], dtype=old.dtype, device=old.device)
        table.normal_(0, config.initializer_range)
        table[: len(old)] = old.detach()
        embeddings.position_embeddings = torch.nn.Embedding.from_pretrained(table, freeze=False)
        config.max_position_embeddings = positions
    return f"added, newly initialized: {' and '.join(added)}" if added else ""


def _unused_encoder_weights(model: PreTrainedModel, unexpected: Iterable[str]) -> list[str]:
    """Return the encoder's weights among the `unexpected` ones, which the model has no place for."""
    encoder = ["embeddings.", "encoder."]
    if getattr(model.base_model, "pooler", None) is not None:  # heads of tokens and answers do without the pooler
        encoder.append("pooler.")
    names = [name for name in unexpected if name.removeprefix("bert.").startswith(tuple(encoder))]
    return sorted(name for name in names if not name.endswith("position_ids"))  # a buffer that old versions saved


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a run's checkpoint by name, on the CPU, read from safetensors only."""
    tensors = {}
    for file in weight_files(folder):
        try:
            tensors |= load_file(file)
        except (OSError, SafetensorError) as error:
            hint = "resume from another checkpoint"
            raise InputError(f"not a safetensors file: {_reason(error)}", where=file, remedy=hint) from None
    return tensors


def load_weights(model: nn.Module, folder: Path) -> None:
    """Load the weights of a run's checkpoint into its model; raise an `InputError` if a name or shape differs."""
    try:
        result = model.load_state_dict(read_weights(folder), strict=False)
        tied = getattr(model, "all_tied_weights_keys", {})  # saved once
        differing = [name for name in result.missing_keys if name not in tied] + result.unexpected_keys
    except RuntimeError as error:  # shapes
        differing = [_reason(error)]
    if differing:
        hint = "resume from another checkpoint"
        raise InputError(f"weights of another model: {shorten_list(differing)}", where=folder, remedy=hint)
