"""Estimates what a pre-training run costs, by formula: FLOPs, hours, and memory of a device.

Nothing is trained. Parameters, FLOPs and the training state of a device are exact; activations are exact but for the
logits at their peak. Time is FLOPs over a share of the device's peak (`expected_mfu`, from published figures);
communication, data loading and checkpoints are free. docs/speed.md compares the results with measurements.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from transformers import BertConfig

from bert_hf.console import format_table
from bert_hf.errors import InputError
from bert_hf.models.flops import matmul_rate, parameter_count, training_flops

# ---- devices


class Device(NamedTuple):
    """An accelerator, or a machine that computes on its CPU."""

    name: str
    peak: float  # FLOP/s of a dense 16-bit matrix product with fp32 sums (no sparsity)
    memory: float  # bytes; a data sheet's GB is read as 10⁹
    cpu: bool = False


DEVICES = {  # NVIDIA's data sheet of each; GeForce: Ada white paper, appendix A
    "h200": Device("H200 SXM", 989e12, 141e9),
    "h100": Device("H100 SXM", 989e12, 80e9),
    "a100-80gb": Device("A100 SXM 80 GB", 312e12, 80e9),
    "a100-40gb": Device("A100 SXM 40 GB", 312e12, 40e9),
    "l40s": Device("L40S", 362e12, 48e9),
    "l4": Device("L4", 121e12, 24e9),
    "v100-32gb": Device("V100 SXM2 32 GB, fp16", 125e12, 32e9),
    "rtx4090": Device("GeForce RTX 4090", 165.2e12, 24e9),
}

# Expected MFU where --mfu is not given: hidden sizes and shares, linear in between.
# At 768: ModernBERT-base 24–30 % and AzNeoBERT 27 % of Hopper's 989 TFLOP/s, BERT-base of MosaicML 24 % of an A100.
# At 1,024: BERT-large of NVIDIA's DeepLearningExamples, 45 % of an A100, 43 % of a V100 (MLPerf's kernels: 48–50 %).
# Below 768 nothing is published: in proportion to the hidden size, as FLOPs for a byte of activations are.
# benchmarks/README.md has the sources, and how far each is from these points.
MFU_OF_GPU = ((0, 768, 1024), (0.0, 0.27, 0.45))
# Share of `matmul_rate` of a CPU, without dropout. benchmarks/pretraining_throughput.py on 2 cores without bf16 units,
# fp32, 128 tokens: tiny in batches of 32, mini of 64, base of 16. (With dropout 0.509, 0.700, 0.825.)
MFU_OF_CPU = ((128, 256, 768), (0.557, 0.757, 0.845))

# Seconds to launch a layer's kernels, forward and backward, under eager autocast, whatever their size: 12 layers take
# 12 ms at least. An assumption; with torch.compile and CUDA graphs it is far less.
LAUNCH_SECONDS = 1.0e-3
HEADROOM = 0.9  # of the memory may be used: the rest is for the driver, fragments, the collectives' own buffers
FILL = 0.94  # real tokens of a row's length: Wikipedia at 128, benchmarks/README.md. Short documents at 512 have fewer
KEPT = 0.857  # tokens of the corpus that truncation leaves at 128, benchmarks/README.md


def find_device(name: str, half: bool = False, memory: float = 0.0) -> Device:
    """A device by its name. `cpu` is this machine: its rate is measured (in bf16 if `half`), its memory is given."""
    if name == "cpu":
        rate = matmul_rate(torch.device("cpu"), torch.bfloat16 if half else torch.float32)
        return Device("this machine's CPU", rate, memory, cpu=True)

    if name not in DEVICES:
        known = ", ".join([*DEVICES, "cpu"])
        raise InputError(f"{name!r} is not in the table of devices", where="--device", remedy=f"give one of {known}")
    return DEVICES[name]


def expected_mfu(hidden_size: int, device: Device) -> float:
    """Share of the peak that a model of this hidden size is expected to reach: see `MFU_OF_GPU`, `MFU_OF_CPU`."""
    return float(np.interp(hidden_size, *(MFU_OF_CPU if device.cpu else MFU_OF_GPU)))


# ---- the run


def corpus_tokens_of_row(length: int, fill: float) -> float:
    """Tokens of the corpus that a row uses up: without its three special tokens, with what truncation drops."""
    return (length * fill - 3) / KEPT


@dataclass(frozen=True)
class Plan:
    """A run to be estimated, and the kind of device it uses."""

    config: BertConfig
    device: Device
    mfu: float  # share of the device's peak
    phases: tuple[tuple[int, int], ...]  # (tokens of a row, optimizer steps), in order
    global_batch: int  # rows of an optimizer step, over all devices
    micro_batch: int  # rows of `batch_length` that a device computes at once, at most
    fill: float = FILL  # real tokens of a row's length; padding is not computed
    masked: float = 0.15  # predicted tokens of the real ones
    half: bool = True  # 16-bit autocast; else fp32
    batch_length: int | None = None  # fewer of longer rows are computed at once; None: the first phase's length

    @property
    def usual_length(self) -> int:
        """Tokens of a row of which `micro_batch` are computed at once."""
        return self.batch_length or self.phases[0][0]

    def flops(self, length: int, rows: float) -> float:
        """FLOPs of so many rows, as `train_mfu` counts them.

        All rows count as equally long. (Attention grows with the square of the length: a mixture takes a little more.)
        """
        tokens = length * self.fill
        return training_flops(self.config, rows * tokens, rows * tokens**2, rows * tokens * self.masked)

    def micro(self, devices: int) -> int:
        """Rows that each device computes at once: the most, up to `micro_batch`, that divides its share."""
        share = self.global_batch // devices
        return next(size for size in range(min(self.micro_batch, share), 0, -1) if share % size == 0)

    def seconds(self, devices: int) -> float:
        """Time of the whole run under plain data parallelism: arithmetic, or launching its kernels if that is slower.

        A micro-batch of longer rows has as many tokens as one of the usual length, one of shorter rows as many rows.
        """
        share, total = self.global_batch / devices, 0.0
        for length, steps in self.phases:
            computing = self.flops(length, share) / (self.device.peak * self.mfu)
            rows = self.micro(devices) * self.usual_length // max(length, self.usual_length)
            micro_batches = -(-share // max(1, rows))
            launching = 0.0 if self.device.cpu else micro_batches * self.config.num_hidden_layers * LAUNCH_SECONDS
            total += steps * max(computing, launching)
        return total


# ---- memory


def state_bytes(parameters: float, stage: int, devices: int, half: bool) -> float:
    """Bytes that a device holds for the parameters. Stage 0: plain data parallelism; 1, 2, 3: DeepSpeed's ZeRO.

    Plain: fp32 weights, gradients and Adam's two moments, 4 + 4 + 8 a parameter; autocast keeps a 16-bit copy of the
    weights until backward has ended (2), and several devices have DDP's buckets (4), from which gradients are sent.
    ZeRO (Rajbhandari et al. 2020, section 5, and DeepSpeed's bf16 engine): 16-bit weights and gradients, 2 + 2, and
    fp32 weights and moments, 12, that are divided by the devices from stage 1 on; gradients from stage 2 on, weights
    from stage 3 on. In fp32 its weights and gradients take 4 + 4.
    """
    if stage == 0:
        return parameters * (4 + 4 + 8 + 2 * half + 4 * (devices > 1))

    size = 2 if half else 4
    weights = size / devices if stage >= 3 else size
    gradients = size / devices if stage >= 2 else size
    return parameters * (weights + gradients + 12 / devices)


def token_bytes(plan: Plan, length: int) -> dict[str, float]:
    """Bytes for each real token at the peak of a micro-batch: when the loss is computed, everything is still kept.

    h hidden size, f feed-forward size, V vocabulary; s is 2 under 16-bit autocast (LayerNorm in fp32), 4 in fp32.

    Attention: queries, keys, values and context, s·h each. On a GPU the variable-length kernel has neither dropout nor
    fp32: there all four are also kept in padded rows. On a CPU: with dropout, the weights and an int8 mask for every
    pair of tokens and head (and 3s·h a token at most, in rows of unequal shape); else the context once more.
    Rest of a layer: input of Q, K and V s·h · of LayerNorm 4h · of the feed-forward s·h · GELU's input and output
    2s·f · input of LayerNorm 4h · two dropout masks, of 1 byte on a GPU and of s on a CPU.
    Last layer: input of K and V, keys and values of all tokens; the rest only for [CLS] and the masked tokens.
    Embeddings: LayerNorm's input 4h · a dropout mask, of 4 bytes on a CPU.
    Head, for each masked token: inputs of the transform, GELU, LayerNorm and the decoder, 10h or 16h · logits, softmax
    in fp32 and its copy, 2V + 4V + 2V, of which 2V are kept; in fp32 all in one buffer, 4V.
    Not counted: single numbers for a token (statistics, indices), the pooler, in fp32 the weights of Q, K, V together.
    """
    config, cpu = plan.config, plan.device.cpu
    h, f, s = config.hidden_size, config.intermediate_size, 2 if plan.half else 4
    attention_dropout = config.attention_probs_dropout_prob > 0

    # Attention: of each token, and of each token that is a query
    of_key = of_query = 2.0 * s * h
    if not cpu and (attention_dropout or not plan.half):
        of_key += 4 * s * h / plan.fill
    elif cpu and attention_dropout:
        of_query += config.num_attention_heads * length * plan.fill * (s + 1)
    elif cpu:
        of_query += s * h

    dropout = config.hidden_dropout_prob > 0
    of_query += (8 + s) * h + 2 * s * f + dropout * 2 * h * (s if cpu else 1)
    queries = plan.masked + 1 / (length * plan.fill)
    head = 10 * h + 8 * config.vocab_size if plan.half else 16 * h + 4 * config.vocab_size
    return {
        "layer": s * h + of_key + of_query,
        "last layer": s * h + of_key + queries * (s * h + of_query),
        "embeddings": 4 * h + dropout * h * (4 if cpu else 1),
        "head": plan.masked * head,
    }


def activation_bytes(plan: Plan, rows: int) -> float:
    """Bytes of a micro-batch of so many rows of the usual length at their peak, in the phase that needs the most."""
    peaks = []
    for length, _ in plan.phases:
        tokens = max(rows * min(length, plan.usual_length), length) * plan.fill  # a long row is not divided
        sizes = token_bytes(plan, length)
        peaks.append(tokens * (sum(sizes.values()) + (plan.config.num_hidden_layers - 2) * sizes["layer"]))
    return max(peaks)


def device_bytes(plan: Plan, stage: int, devices: int, rows: int) -> float:
    """Memory of each device at its peak, in bytes; under ZeRO activations count as under autocast, an upper bound."""
    return state_bytes(parameter_count(plan.config), stage, devices, plan.half) + activation_bytes(plan, rows)


def largest_micro_batch(plan: Plan, stage: int, devices: int) -> int:
    """The most rows of the usual length that fit into a device; 0: none do."""
    available = HEADROOM * plan.device.memory
    if device_bytes(plan, stage, devices, 1) > available:
        return 0

    state = state_bytes(parameter_count(plan.config), stage, devices, plan.half)
    many = 1_000_000  # rows, which make the bytes of a single one exact
    return int((available - state) / (activation_bytes(plan, many) / many))


# ---- report


def report(plan: Plan, numbers: list[int], price: float | None, corpus_tokens: float) -> list[str]:
    """The printed lines: the run, its tokens and FLOPs, then time and memory for each number of devices."""
    config, device = plan.config, plan.device
    lines = [
        f"model: {config.num_hidden_layers} layers × {config.hidden_size}, vocabulary {config.vocab_size:,}, "
        f"{parameter_count(config):,} parameters, {'16-bit autocast' if plan.half else 'fp32'}",
        f"step: {plan.global_batch:,} sequences on any number of devices (--global_batch), in micro-batches of "
        f"{plan.micro_batch} at most (--per_device_train_batch_size)",
        f"tokens: {plan.fill:.1%} of a row's length, {plan.masked:.1%} of them predicted",
        f"device: {device.name}, {device.peak / 1e12:,.4g} TFLOP/s, of which {plan.mfu:.1%} (--mfu)",
        "",
    ]

    # Amounts by phase
    tokens = flops = used = 0.0
    for length, steps in plan.phases:
        rows = steps * plan.global_batch
        lines.append(f"length {length}: {steps:,} steps, {rows * length * plan.fill / 1e9:,.3f} G tokens")
        tokens += rows * length * plan.fill
        flops += plan.flops(length, rows)
        used += rows * corpus_tokens_of_row(length, plan.fill)
    lines.append(f"in all: {tokens / 1e9:,.3f} G tokens, {flops:.3e} FLOPs")
    if corpus_tokens:
        lines.append(f"{used / corpus_tokens:,.2f} passes over the {corpus_tokens:,.0f} tokens to train on")

    # Time and memory by number of devices
    header = ["devices", "batch", "hours", "device-hours", "tokens/s", "DDP", "ZeRO 1", "ZeRO 2", "ZeRO 3"]
    table = [header if price is None else [*header, "cost"]]
    for devices in numbers:
        if plan.global_batch % devices:
            remark = f"{plan.global_batch} rows cannot be dealt to {devices}"
            table.append([f"{devices:,}", remark, *[""] * (len(table[0]) - 2)])
        else:
            table.append(_row(plan, devices, tokens, price))

    length, available = plan.usual_length, HEADROOM * device.memory / 1e9
    title = f"time; memory of a device in GB (and the largest micro-batch at {length} that {available:,.1f} GB hold)"
    return [*lines, "", title, *format_table(table)]


def _row(plan: Plan, devices: int, tokens: float, price: float | None) -> list[str]:
    """Time, memory by ZeRO stage, and cost (where there is a price) on so many devices."""
    seconds, micro = plan.seconds(devices), plan.micro(devices)
    hours = seconds / 3600
    row = [f"{devices:,}", f"{micro} × {plan.global_batch // devices // micro}", f"{hours:,.2f}"]
    row += [f"{hours * devices:,.1f}", f"{tokens / seconds:,.0f}"]
    for stage in range(4):
        needed, most = device_bytes(plan, stage, devices, micro), largest_micro_batch(plan, stage, devices)
        row.append(f"{needed / 1e9:,.2f} (≤ {most:,})")
    return row if price is None else [*row, f"{hours * devices * price:,.2f}"]
