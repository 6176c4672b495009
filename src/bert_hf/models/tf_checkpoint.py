"""Converts a checkpoint of google-research/bert (TensorFlow 1, 2018) to weights with transformers' names.

A dense kernel is transposed, every other tensor is copied. Variables without a place in the network are left out.
"""

import re
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, BertModel, BertPreTrainedModel

from bert_hf.config.files import check_input_file, parse_json, read_input_text
from bert_hf.console import shorten_list
from bert_hf.errors import InputError
from bert_hf.models.tensor_bundle import TensorBundle

# Part of a variable's name in TensorFlow → in transformers, replaced in this order
_PARTS = (
    (r"/layer_(\d+)/", r"/layer/\1/"),
    (r"/(gamma|kernel)$", "/weight"),
    (r"/beta$", "/bias"),
    (r"_embeddings$", "_embeddings/weight"),
    (r"^cls/predictions/output_bias$", "cls/predictions/bias"),
    (r"/output_weights$", "/weight"),
    (r"/output_bias$", "/bias"),
)
_CLASSES: tuple[tuple[type, set[str]], ...] = (  # the first class whose heads are all among the weights
    (BertForPreTraining, {"cls.predictions.bias", "cls.seq_relationship.weight"}),
    (BertForMaskedLM, {"cls.predictions.bias"}),
    (BertModel, set()),
)


def find_prefix(where: str | Path) -> Path:
    """Return PREFIX of the files `PREFIX.*`, given PREFIX, its index file, or a folder with only one checkpoint."""
    path = Path(str(where).removesuffix(".index"))
    remedy = "give the folder of one checkpoint, or PREFIX of PREFIX.index"
    if not path.is_dir():
        check_input_file(f"{path}.index", remedy)
        return path

    prefixes = [file.with_suffix("") for file in path.glob("*.index")]
    if len(prefixes) != 1:
        raise InputError(f"{len(prefixes)} TensorFlow checkpoints in this folder", where=path, remedy=remedy)
    return prefixes[0]


def read_tf_config(path: Path) -> BertConfig:
    """Return the configuration in a `bert_config.json`, without the keys that only TensorFlow's code knows.

    Its GELU is computed by erf, as in all published conversions; by tanh, as in the 2018 code, it differs by at most
    0.0005 per unit.
    """
    values = parse_json(read_input_text(path), path, "copy the file again")
    known = BertConfig().to_dict()
    return BertConfig(**{key: value for key, value in values.items() if key in known})


def weight_name(variable: str) -> str:
    """Return a variable's name in transformers: `bert/encoder/layer_0/…/kernel` is `bert.encoder.layer.0.….weight`."""
    for pattern, replacement in _PARTS:
        variable = re.sub(pattern, replacement, variable)
    return variable.replace("/", ".")


def convert_checkpoint(prefix: Path, config: BertConfig) -> tuple[BertPreTrainedModel, int]:
    """Return the network in a checkpoint, in float32, and the number of variables that were left out.

    Its class depends on the heads that the checkpoint has. Optimizers name their slots after the variables
    (`…/adam_m`, `…/BERTAdam`), so whatever is not a weight of the network is left out, layers of a fine-tuning too.
    """
    # The network, without memory until its weights are read, and the variable of each weight
    bundle = TensorBundle(prefix)
    variables = {weight_name(name): name for name in bundle.shapes}
    model_class = next(cls for cls, names in _CLASSES if names <= variables.keys())
    with torch.device("meta"):
        model = model_class(config)

    tied = model.all_tied_weights_keys
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters() if name not in tied}
    base_prefix = "" if hasattr(model, "bert") else "bert."  # BertModel's own names begin after it
    missing = [name for name in shapes if base_prefix + name not in variables]

    next_layer = f"bert.encoder.layer.{config.num_hidden_layers}."
    if any(name.startswith(next_layer) for name in variables):
        problem = f"it has {next_layer}…, by the configuration it has {config.num_hidden_layers} layers"
        raise InputError(problem, where=bundle.index, remedy="give the bert_config.json of this checkpoint")
    if missing:
        remedy = "give a checkpoint of BERT, and the bert_config.json that belongs to it"
        raise InputError(f"it lacks {shorten_list(missing)}", where=bundle.index, remedy=remedy)

    weights = {name: _read_parameter(bundle, variables[base_prefix + name]) for name in shapes}
    for name, weight in weights.items():
        if tuple(weight.shape) != shapes[name]:
            problem = f"shape of {name}: {tuple(weight.shape)}, by the configuration {shapes[name]}"
            raise InputError(problem, where=bundle.index, remedy="give the bert_config.json of this checkpoint")
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    return model, len(bundle.shapes) - len(weights)


def _read_parameter(bundle: TensorBundle, variable: str) -> torch.nn.Parameter:
    """Return a variable in float32, the kernel of a dense layer transposed: TensorFlow's is (inputs, outputs)."""
    values = bundle.read(variable).astype(np.float32, copy=False)
    if variable.endswith("/kernel"):
        values = np.ascontiguousarray(values.T)
    return torch.nn.Parameter(torch.from_numpy(values))
