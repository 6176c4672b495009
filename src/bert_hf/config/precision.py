"""Default precision (bf16 or fp32), by device features and model size.

On a CPU the rule is a table (feature × hidden size) and never a timing, so that one command on one kind of machine is
always the same run (measurements: docs/speed.md, `benchmarks/precision.py`).
"""

import dataclasses
import math
from typing import Any, NamedTuple

import torch
from accelerate.state import AcceleratorState
from transformers import TrainingArguments

from bert_hf.config.hardware import device_name
from bert_hf.console import logger

# Feature with which a CPU multiplies bf16 → smallest hidden size at which bf16 was measured to be faster than fp32;
# below it, fp32 was faster (AVX512-BF16), or nothing was measured (AMX)
FASTER_FROM = {"none": math.inf, "avx512_bf16 of Intel": math.inf, "avx512_bf16 of AMD": 256, "amx_bf16": 256}


class PrecisionChoice(NamedTuple):
    """A precision and the reason for it, in a few words."""

    bf16: bool  # bf16 autocast; else fp32
    reason: str


def cpu_bf16_feature() -> str:
    """Return the feature with which this CPU multiplies bf16, or `none`: a key of `FASTER_FROM`."""
    if torch.cpu._is_amx_tile_supported():
        return "amx_bf16"
    if not torch.cpu._is_avx512_bf16_supported():
        return "none"
    maker = "AMD" if "AMD" in device_name(torch.device("cpu")) else "Intel"
    return f"avx512_bf16 of {maker}"


def choose_on_cpu(feature: str, hidden_size: int | None) -> PrecisionChoice:
    """Choose bf16 or fp32 by the CPU's feature (`cpu_bf16_feature`); an unknown hidden size (None) counts as small."""
    smallest = FASTER_FROM[feature]
    if smallest == math.inf:
        reason = "this CPU has no bf16 units" if feature == "none" else f"{feature}: fp32 is faster"
        return PrecisionChoice(False, reason)

    size = f"hidden size {'unknown' if hidden_size is None else hidden_size}"
    return PrecisionChoice((hidden_size or 0) >= smallest, f"{feature} and {size}; bf16 pays from {smallest} on")


def choose_on_gpu() -> PrecisionChoice:
    """Choose bf16 for the current CUDA device if it multiplies in it, not by emulation; else fp32."""
    multiplies = torch.cuda.is_bf16_supported(including_emulation=False)
    return PrecisionChoice(multiplies, "this GPU multiplies in bf16" if multiplies else "this GPU has no bf16 units")


def choose_on_device(args: TrainingArguments, hidden_size: int | None) -> PrecisionChoice:
    """Choose bf16 or fp32 for the device of a run; fp32 on devices that are neither CPU nor CUDA."""
    if args.device.type == "cuda":
        return choose_on_gpu()
    if args.device.type != "cpu":
        return PrecisionChoice(False, f"bf16 is not measured on {args.device.type}")
    return choose_on_cpu(cpu_bf16_feature(), hidden_size)


def resolve_precision(args: TrainingArguments, hidden_size: int | None, recorded: str | None = None) -> None:
    """Set `args.bf16` and `mixed_precision` where `bf16` is None, and log why; before a Trainer takes the arguments.

    Args:
        recorded: the precision with which the run began, where it is resumed, maybe on another kind of machine.
    """
    if args.bf16 is None:
        args.bf16, reason = choose_on_device(args, hidden_size)
        if recorded in ("bf16", "fp32"):
            args.bf16, reason = recorded == "bf16", "as the run began"
        args.mixed_precision = "bf16" if args.bf16 else "no"  # for accelerate, when the Trainer is created
        logger.info(f"precision: {precision_name(args)} ({reason}; --bf16 true|false decides)")


def inference_autocast(device: torch.device, bf16: bool | None = None) -> torch.autocast:
    """Return the autocast context of predictions; where `bf16` is None, bf16 on a GPU that multiplies in it."""
    if bf16 is None:
        bf16 = device.type == "cuda" and choose_on_gpu().bf16
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16)


def precision_name(args: TrainingArguments) -> str:
    """Return the precision of a run's matrix products: `bf16`, `fp16` or `fp32`."""
    if args.fp16:
        return "fp16"
    return "bf16" if args.bf16 else "fp32"


def keep_fp32_outputs(state: AcceleratorState) -> None:
    """Make FSDP2 with 16-bit autocast return losses, and reduce gradients, in fp32.

    accelerate's policy is 16-bit throughout, and without autocast: a sum over some hundred tokens is then wrong by up
    to 0.4 %, and the sum of each loss by another factor. `ResumableTrainer` adds the autocast.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy  # takes a second to import

    plugin: Any = getattr(state, "fsdp_plugin", None)
    policy = getattr(plugin, "mixed_precision_policy", None)
    if isinstance(policy, MixedPrecisionPolicy):
        fp32 = {"reduce_dtype": torch.float32, "output_dtype": torch.float32}
        plugin.mixed_precision_policy = dataclasses.replace(policy, **fp32)
