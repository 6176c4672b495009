"""Decides whether a pre-training run on a GPU compiles the layers of the model, and with which options."""

import shutil
import sysconfig
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils._triton import has_triton
from transformers import TrainingArguments

from bert_hf.config.hardware import shards_weights
from bert_hf.models.modeling_bert import BertForPreTraining

_FASTER_FROM = 768  # hidden size: base ran 14 % faster on an H200; for a smaller model it is not known


def take_over_compilation(args: TrainingArguments, model: nn.Module | None) -> dict[str, Any] | None:
    """Resolve --torch_compile; return options for `BertForPreTraining.compile_layers`, None where it is not called.

    On a GPU the layers of our model are compiled one by one: accelerate compiles the whole model, which takes minutes.
    Another model, and ours on a CPU, is left to accelerate.
    """
    ours = isinstance(model, BertForPreTraining) and args.device.type == "cuda"
    if args.torch_compile is None:
        wide = ours and model.config.hidden_size >= _FASTER_FROM
        args.torch_compile = wide and not shards_weights() and can_compile()
    if not ours or not args.torch_compile:
        return None

    options = {"backend": args.torch_compile_backend or "inductor", "mode": args.torch_compile_mode}
    args.torch_compile_backend = args.torch_compile_mode = None  # accelerate then compiles nothing
    return options


def can_compile() -> bool:
    """Return True if torch.compile can work for a GPU here: Triton, a C compiler and the headers of Python exist."""
    compiler = any(map(shutil.which, ("cc", "gcc", "clang")))
    return has_triton() and compiler and Path(sysconfig.get_path("include"), "Python.h").exists()
