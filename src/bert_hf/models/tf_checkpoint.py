"""Converts a checkpoint of google-research/bert (TensorFlow 1, 2018) to weights with transformers' names.

A dense kernel is transposed, every other tensor is copied. The slots of the optimizer and `global_step` are left out.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tokenizers.normalizers import BertNormalizer
from transformers import (
    BertConfig,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertPreTrainedModel,
)

from bert_hf.config.checkpoint_arguments import ConversionArguments
from bert_hf.config.files import check_input_file, check_writable, parse_json, read_input_text, write_durably
from bert_hf.errors import InputError
from bert_hf.models.tensor_bundle import TensorBundle

GELUS = {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}  # the 2018 code computes the second
_FEW = 0.04  # share of a vocabulary's pieces that tells nothing: cased ones have a quarter and more
_OPTIMIZER = re.compile(r"(^|/)(adam_m|adam_v|Adam|Adam_1|global_step|beta[12]_power)$")
# Part of a name in TensorFlow → in transformers; where they stand, they are all of a name between two slashes
_PARTS = (
    (r"/layer_(\d+)/", r"/layer/\1/"),
    (r"/(gamma|kernel)$", "/weight"),
    (r"/beta$", "/bias"),
    (r"_embeddings$", "_embeddings/weight"),
    (r"^cls/predictions/output_bias$", "cls/predictions/bias"),
    (r"^cls/squad/", "qa_outputs/"),
    (r"^(?=output_)", "classifier/"),  # of run_classifier.py
    (r"/output_weights$", "/weight"),
    (r"/output_bias$", "/bias"),
)
_HEADS = {  # a variable that marks the head → the class that has it
    "cls/squad/output_weights": BertForQuestionAnswering,
    "output_weights": BertForSequenceClassification,
    "cls/predictions/output_bias": BertForPreTraining,
}


def check_conversion(conversion_args: ConversionArguments) -> Iterator[str]:
    """Check that the folder can be written."""
    yield check_writable(str(conversion_args.output_dir))


# ---- files


def find_prefix(where: str | Path) -> Path:
    """Return the prefix of a checkpoint's files: given itself, or of the only checkpoint in a folder."""
    path = Path(str(where).removesuffix(".index"))
    remedy = "give the folder of one checkpoint, or PREFIX of PREFIX.index"
    if not path.is_dir():
        check_input_file(f"{path}.index", remedy)
        return path

    prefixes = [file.with_suffix("") for file in path.glob("*.index")]
    if len(prefixes) != 1:
        raise InputError(f"{len(prefixes)} TensorFlow checkpoints in this folder", where=path, remedy=remedy)
    return prefixes[0]


def read_tf_config(path: Path, gelu: str) -> BertConfig:
    """Return the configuration in a `bert_config.json`, without the keys that only TensorFlow's code knows."""
    values = parse_json(read_input_text(path), path, "copy the file again")
    known = BertConfig().to_dict()
    config = {key: value for key, value in values.items() if key in known}
    if config.get("hidden_act", "gelu") == "gelu":
        config["hidden_act"] = GELUS[gelu]
    return BertConfig(**config)


def normalization(vocabulary: Path) -> dict[str, bool]:
    """Return tokenizer options for a `vocab.txt`, with which the normaliser changes hardly any of its pieces.

    Some it may: SciBERT's lower-case vocabulary has Ω and 433 pieces with accents among 31,090.
    """
    text = read_input_text(vocabulary)
    words = [piece.removeprefix("##") for piece in text.split("\n")]  # not [CLS], nor <S> of Google's Chinese one
    capitals = [word != word.lower() for word in words if word.isalpha()]
    if sum(capitals) > _FEW * len(capitals):
        return {"do_lower_case": False}

    strip = BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    changed = [one != other for one, other in zip(words, map(strip.normalize_str, words), strict=True)]
    return {"strip_accents": False} if sum(changed) > _FEW * len(words) else {}


def write_card(folder: Path, prefix: Path, gelu: str) -> None:
    """Write README.md: where the weights come from, and with which activation they are computed."""
    text = f"""---
library_name: transformers
tags: [bert]
---

# {folder.name}

Converted from the TensorFlow checkpoint `{prefix.parent.name}/{prefix.name}` of
[google-research/bert](https://github.com/google-research/bert), in float32, without the optimizer's state.

The activation is GELU in its {gelu} form (`hidden_act: {GELUS[gelu]}`). The code of 2018 computes the tanh form;
published conversions use erf. The two differ by at most 0.0005 per unit.
"""
    write_durably(folder / "README.md", text)


# ---- weights


def weight_name(variable: str) -> str:
    """Return the name in transformers of a variable of the 2018 code.

    bert/encoder/layer_0/attention/self/query/kernel → bert.encoder.layer.0.attention.self.query.weight
    """
    for pattern, replacement in _PARTS:
        variable = re.sub(pattern, replacement, variable)
    return variable.replace("/", ".")


def convert(prefix: Path, config: BertConfig) -> BertPreTrainedModel:
    """Return the network of a checkpoint in float32; `config` takes the number of classes from its weights."""
    bundle = TensorBundle(prefix)
    variables = [name for name in sorted(bundle.shapes) if not _OPTIMIZER.search(name)]
    head = next((name for name in _HEADS if name in variables), None)
    if head is None:
        remedy = "convert a checkpoint of run_pretraining.py, run_classifier.py or run_squad.py"
        raise InputError("no head of BERT among the variables", where=bundle.index, remedy=remedy)
    if head == "output_weights":
        config.num_labels = bundle.shapes[head][0]
    with torch.device("meta"):
        model = _HEADS[head](config)
    if isinstance(model, BertForQuestionAnswering):  # has no pooler
        variables = [name for name in variables if not name.startswith("bert/pooler/")]

    weights = {weight_name(name): _weight(bundle, name) for name in variables}
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    expected = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    if differing := [name for name, _ in shapes.items() ^ expected.items()]:
        name = min(differing)
        what = f"shape of {name}: {shapes.get(name, 'missing')}, by the configuration {expected.get(name, 'none')}"
        raise InputError(what, where=bundle.index, remedy="give the bert_config.json of this checkpoint")

    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    return model


def _weight(bundle: TensorBundle, variable: str) -> torch.nn.Parameter:
    values = bundle.read(variable).astype(np.float32, copy=False)
    if variable.endswith("/kernel"):
        values = np.ascontiguousarray(values.T)
    return torch.nn.Parameter(torch.from_numpy(values))
