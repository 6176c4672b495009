"""What a run costs, by formula: parameters, FLOPs, time, memory of a device, and what that comes to in device-hours.

Nothing here trains. What is exact is said to be (parameters, FLOPs, the state that a device holds); the rest rests on
figures that others published, named beside each, and on two assumptions, `LAUNCH_SECONDS` and `LINK_SHARE`.

Letters: h hidden size · f feed-forward size · V vocabulary · P parameters · n devices.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from transformers import BertConfig

from bert_hf.errors import InputError
from bert_hf.models.flops import matrix_product_rate, parameter_count, training_flops

# ---- the network


# ---- FLOPs


# ---- machines


class Device(NamedTuple):
    """One accelerator, or a machine whose CPU computes."""

    name: str
    peak: float  # FLOP/s of a dense 16-bit matrix product with fp32 sums (no sparsity)
    memory: float  # bytes; a data sheet's GB is read as 10⁹
    bandwidth: float  # bytes/s of that memory
    link: float  # bytes/s from a device to the next one of its node, one direction
    node: float  # bytes/s out of a node, one direction
    cpu: bool = False


NODE = 8  # devices of a node, as NVIDIA's own machines have
# Peak, memory, bandwidth and NVLink or PCIe (half of "bidirectional"): NVIDIA's data sheet of each. Out of a node: the
# network of NVIDIA's machine of that name; the three PCIe cards have no such machine, and 100 Gb/s is assumed.
DEVICES = {
    "h200": Device("H200 SXM", 989e12, 141e9, 4.8e12, 450e9, 400e9),  # data sheet H200; DGX H200: 8 × 400 Gb/s
    "h100": Device("H100 SXM", 989e12, 80e9, 3.35e12, 450e9, 400e9),  # data sheet H100; DGX H100: 8 × 400 Gb/s
    "a100-80gb": Device("A100 SXM 80 GB", 312e12, 80e9, 2.039e12, 300e9, 200e9),  # data sheet A100; DGX A100: 8 × 200
    "a100-40gb": Device("A100 SXM 40 GB", 312e12, 40e9, 1.555e12, 300e9, 200e9),  # data sheet A100; DGX A100: 8 × 200
    "l40s": Device("L40S", 362e12, 48e9, 864e9, 32e9, 12.5e9),  # data sheet L40S; PCIe 4.0 × 16
    "l4": Device("L4", 121e12, 24e9, 300e9, 32e9, 12.5e9),  # data sheet L4 (242 with sparsity); PCIe 4.0 × 16
    "v100-32gb": Device("V100 SXM2 32 GB, fp16", 125e12, 32e9, 900e9, 150e9, 50e9),  # V100; DGX-1: 4 × 100 Gb/s
    "rtx4090": Device("GeForce RTX 4090", 165.2e12, 24e9, 1.008e12, 32e9, 12.5e9),  # Ada white paper, appendix A
}
ETHERNET = 1.25e9  # bytes/s between machines that compute on their CPU: 10 Gb/s, assumed

# MFU that is expected where no --mfu says it: (hidden size, share), linear in between.
# At 768: ModernBERT-base 24–30 % and AzNeoBERT 27 % of Hopper's 989 TFLOP/s, BERT-base of MosaicML 24 % of an A100.
# At 1,024: BERT-large of NVIDIA's DeepLearningExamples, 45 % of an A100, 43 % of a V100 (MLPerf's kernels: 48–50 %).
# Below 768 nobody published a point: in proportion to the hidden size, as FLOPs for a byte of activations are.
# docs/cost.md has the sources and how far each lies from what comes out here.
MFU_OF_GPU = ((0, 0.0), (768, 0.27), (1024, 0.45))
# Share of `matrix_product_rate` of a CPU, without dropout and with it. benchmarks/pretraining_throughput.py on 2 cores
# without bf16 units, fp32, 128 tokens: tiny in batches of 32, mini of 64, base of 16. (Base at 512, of 4: 0.81, 0.74.)
MFU_OF_CPU = {False: ((128, 0.557), (256, 0.757), (768, 0.845)), True: ((128, 0.509), (256, 0.700), (768, 0.825))}

# Seconds to launch a layer's kernels, forward and backward, under eager autocast, whatever their size: 12 layers take
# 12 ms at least. An assumption; with torch.compile and CUDA graphs it is far less.
LAUNCH_SECONDS = 1.0e-3
LINK_SHARE = 0.8  # of a link's bandwidth that an all-reduce of large buckets reaches. An assumption
UPDATE_BYTES = 40  # moved for a parameter by clipping and a fused Adam, with bias correction or without
FILL = 0.94  # real tokens of a row's length: Wikipedia at 128, docs/data.md. Short documents at 512 have fewer
KEPT = 0.857  # tokens of the corpus that truncation leaves at 128, docs/data.md


def find_device(name: str, half: bool = False, memory: float = 0.0) -> Device:
    """A device by its name; `cpu` is this machine, and its rate is measured now.

    Args:
        half: the CPU shall multiply in bf16. memory: of this machine, in bytes.
    """
    if name == "cpu":
        rate = matrix_product_rate(torch.device("cpu"), torch.bfloat16 if half else torch.float32)
        return Device("this machine's CPU", rate, memory, float("inf"), ETHERNET, ETHERNET, cpu=True)
    if name not in DEVICES:
        known = ", ".join([*DEVICES, "cpu"])
        raise InputError(f"{name!r} is not in the table of devices", where="--device", remedy=f"give one of {known}")
    return DEVICES[name]


def expected_mfu(config: BertConfig, device: Device) -> float:
    """Share of the peak that a model of this hidden size is expected to reach: see `MFU_OF_GPU`, `MFU_OF_CPU`."""
    points = MFU_OF_CPU[_drops(config)] if device.cpu else MFU_OF_GPU
    size = config.hidden_size
    if size <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in pairwise(points):
        if size <= right:
            return low + (high - low) * (size - left) / (right - left)
    return points[-1][1]


def _drops(config: BertConfig) -> bool:
    return config.hidden_dropout_prob > 0 or config.attention_probs_dropout_prob > 0


# ---- the run


@dataclass(frozen=True)
class Plan:
    """A run that is to be estimated."""

    config: BertConfig
    stretches: tuple[tuple[int, int], ...]  # (tokens of a row, optimizer steps), in order
    global_batch: int  # rows of an optimizer step, over all devices
    micro_batch: int  # rows that a device computes at once at the first length, at most
    fill: float = FILL  # real tokens of a row's length; padding is not computed
    masked: float = 0.15  # predicted tokens of the real ones
    half: bool = True  # 16-bit autocast; else fp32
    cpu: bool = False  # memory is that of a CPU's kernels, which keep more for dropout

    def flops(self, length: int, rows: float) -> float:
        """FLOPs of so many rows, as `train_mfu` counts them.

        All rows count as equally long. (Attention goes with the square of the length: a mixture takes a little more.)
        """
        tokens = length * self.fill
        return training_flops(self.config, rows * tokens, rows * tokens**2, rows * tokens * self.masked)

    def tokens(self) -> float:
        """Real tokens of the whole run."""
        return sum(length * steps for length, steps in self.stretches) * self.global_batch * self.fill

    def passes(self, corpus_tokens: float) -> float:
        """Passes over a corpus: each row has three special tokens, and truncation drops some of the text."""
        rows = [(length * self.fill - 3, steps * self.global_batch) for length, steps in self.stretches]
        return sum(text * count for text, count in rows) / KEPT / corpus_tokens

    def micro(self, devices: int) -> int:
        """Rows that each device computes at once: the most, up to `micro_batch`, that divides its share."""
        share = self.global_batch // devices
        return next(size for size in range(min(self.micro_batch, share), 0, -1) if share % size == 0)


def steps_of(epochs: float, corpus_tokens: float, length: int, global_batch: int, fill: float = FILL) -> int:
    """Optimizer steps of so many passes over a corpus."""
    return max(1, round(epochs * corpus_tokens * KEPT / (length * fill - 3) / global_batch))


class Step(NamedTuple):
    """Where the time of an optimizer step goes, in seconds."""

    compute: float  # matrix products and all that goes with them, or launching kernels where that takes longer
    exposed: float  # gradients under way after backward has ended
    update: float  # clipping and Adam
    launches: bool  # launching takes longer than computing

    @property
    def seconds(self) -> float:
        return self.compute + self.exposed + self.update


def all_reduce_seconds(parameters: float, device: Device, devices: int) -> float:
    """Time to sum fp32 gradients over all devices: a ring, 2·P·4·(n − 1)/n bytes out of each device.

    A ring crosses each node's border once, so it runs at the slower of a device's link and the node's network.
    """
    slowest = device.link if devices <= NODE else min(device.link, device.node)
    return 2 * parameters * 4 * (devices - 1) / devices / (slowest * LINK_SHARE)


def step_time(plan: Plan, length: int, device: Device, devices: int, mfu: float) -> Step:
    """Time of an optimizer step under plain data parallelism.

    The rows of a device are computed in pieces of as many tokens as a micro-batch of the first length has. Gradients
    travel during the backward pass (two thirds) of the last piece; only what takes longer than it counts.
    """
    share = plan.global_batch / devices
    rows = max(1, plan.micro(devices) * plan.stretches[0][0] // length)
    pieces = max(1, -(-share // rows))
    floor = 0.0 if device.cpu else pieces * plan.config.num_hidden_layers * LAUNCH_SECONDS
    computing = plan.flops(length, share) / (device.peak * mfu)
    compute = max(computing, floor)
    parameters = parameter_count(plan.config)
    travel = all_reduce_seconds(parameters, device, devices)
    exposed = max(0.0, travel - compute / pieces * 2 / 3)
    update = parameters * UPDATE_BYTES / device.bandwidth
    return Step(compute, exposed, update, floor > computing)


def run_seconds(plan: Plan, device: Device, devices: int, mfu: float) -> float:
    """Time of the whole run."""
    return sum(steps * step_time(plan, length, device, devices, mfu).seconds for length, steps in plan.stretches)


# ---- memory


def state_bytes(parameters: float, stage: int, devices: int, half: bool) -> float:
    """What a device holds for the parameters, in bytes. Stage 0: plain data parallelism; 1, 2, 3: DeepSpeed's ZeRO.

    Plain: fp32 weights, gradients and Adam's two moments, 4 + 4 + 8 a parameter; autocast keeps a 16-bit copy of the
    weights until backward has ended (2), and several devices have DDP's buckets (4), from which gradients travel.
    ZeRO (Rajbhandari et al. 2020, section 5, and DeepSpeed's bf16 engine): 16-bit weights and gradients, 2 + 2, and
    fp32 weights and moments, 12, that are divided by the devices from stage 1 on; gradients from stage 2 on, weights
    from stage 3 on. In fp32 its weights and gradients take 4 + 4.
    """
    if stage == 0:
        return parameters * (4 + 4 + 8 + 2 * half + 4 * (devices > 1))
    short = 2 if half else 4
    weights, gradients = (short / devices if stage >= least else short for least in (3, 2))
    return parameters * (weights + gradients + 12 / devices)


def attention_bytes(plan: Plan, length: int) -> tuple[float, float]:
    """Bytes that attention keeps until backward: (of each real token, of each token that asks).

    Keys and values; queries and what comes out. On a GPU the kernel for rows of different length has neither dropout
    nor fp32: there all four are kept in padded rows besides. On a CPU: with dropout weights and an int8 mask for every
    pair of tokens and head (and 3s·h a token at most, where a row's shape is its own); else what comes out once more.
    """
    size, config = 2 if plan.half else 4, plan.config
    vector, drops = size * config.hidden_size, config.attention_probs_dropout_prob > 0
    each = own = 2 * vector
    if not plan.cpu:
        each += 4 * vector / plan.fill if drops or not plan.half else 0
    else:
        own += config.num_attention_heads * length * plan.fill * (size + 1) if drops else vector
    return each, own


def token_bytes(plan: Plan, length: int) -> dict[str, float]:
    """Bytes for each real token at the peak of a micro-batch: when the loss is made, everything is still there.

    s is 2 under 16-bit autocast (LayerNorm in fp32), 4 in fp32; what `attention_bytes` says comes to it.
    A layer: input of Q, K and V s·h · of LayerNorm 4h · of the feed-forward s·h · GELU's input and output 2s·f · input
    of LayerNorm 4h · two dropout masks, of 1 byte on a GPU and of s on a CPU.
    The last layer: input of K and V s·h; and for the reads alone, [CLS] and the masked tokens, Q's s·h and the rest.
    Embeddings: LayerNorm's input 4h · a dropout mask, of 4 bytes on a CPU.
    Head, for each masked token: inputs of the transform, GELU, LayerNorm and the decoder, 10h or 16h · logits, softmax
    in fp32 and its copy, 2V + 4V + 2V, of which 2V are kept; in fp32 all in one place, 4V.
    Not counted: numbers for a token (statistics, indices), the pooler, in fp32 the joint weights of Q, K and V.
    """
    config, size = plan.config, 2 if plan.half else 4
    h, f = config.hidden_size, config.intermediate_size
    drops, reads = config.hidden_dropout_prob > 0, plan.masked + 1 / (length * plan.fill)
    each, own = attention_bytes(plan, length)
    after = (8 + size) * h + 2 * size * f + drops * 2 * h * (size if plan.cpu else 1)
    head = 10 * h + 8 * config.vocab_size if plan.half else 16 * h + 4 * config.vocab_size
    return {
        "layer": size * h + each + own + after,
        "last layer": size * h + each + reads * (size * h + own + after),
        "embeddings": 4 * h + drops * h * (4 if plan.cpu else 1),
        "head": plan.masked * head,
    }


def activation_bytes(plan: Plan, rows: int) -> float:
    """Bytes of a micro-batch of so many rows of the first length at their peak, in the phase that needs the most."""
    most = 0.0
    for length, _ in plan.stretches:
        tokens = max(rows * plan.stretches[0][0], length) * plan.fill  # a long row is not divided
        sizes = token_bytes(plan, length)
        most = max(most, tokens * (sum(sizes.values()) + (plan.config.num_hidden_layers - 2) * sizes["layer"]))
    return most


HEADROOM = 0.9  # of the memory may be used: the rest is for the driver, fragments, the collectives' own buffers


def device_bytes(plan: Plan, stage: int, devices: int, rows: int) -> float:
    """Memory of each device at its peak, in bytes; under ZeRO activations count as under autocast, an upper bound."""
    parameters = parameter_count(plan.config)
    return state_bytes(parameters, stage, devices, plan.half) + activation_bytes(plan, rows)


def largest_micro_batch(plan: Plan, stage: int, device: Device, devices: int) -> int:
    """The most rows of the first length that fit into a device; 0: none do."""
    room = HEADROOM * device.memory
    if device_bytes(plan, stage, devices, 1) > room:
        return 0
    state = state_bytes(parameter_count(plan.config), stage, devices, plan.half)
    many = 1_000_000
    return int((room - state) / (activation_bytes(plan, many) / many))


# ---- in words


def aligned(rows: list[list[str]]) -> list[str]:
    """A table as lines: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def describe(plan: Plan, device: Device, mfu: float) -> list[str]:
    """What is estimated, in sentences."""
    config = plan.config
    return [
        f"model: {config.num_hidden_layers} layers × {config.hidden_size}, vocabulary {config.vocab_size:,}, "
        f"{parameter_count(config):,} parameters, {'16-bit autocast' if plan.half else 'fp32'}",
        f"step: {plan.global_batch:,} sequences on any number of devices (--global_batch), in micro-batches of "
        f"{plan.micro_batch} at most (--per_device_train_batch_size)",
        f"tokens: {plan.fill:.1%} of a row's length (--fill), {plan.masked:.1%} of them predicted",
        f"device: {device.name}, {device.peak / 1e12:,.4g} TFLOP/s, of which {mfu:.1%} (--mfu)",
    ]


def amounts(plan: Plan) -> list[str]:
    """Real tokens and their FLOPs by phase, as a table."""
    rows, totals = [["", "steps", "tokens", "FLOPs"]], [0.0] * 3
    for length, steps in plan.stretches:
        sequences = steps * plan.global_batch
        row = [steps, sequences * length * plan.fill, plan.flops(length, sequences)]
        totals = [a + b for a, b in zip(totals, row, strict=True)]
        rows.append([f"length {length}", *_amount_cells(row)])
    return aligned([*rows, ["in all", *_amount_cells(totals)]] if len(plan.stretches) > 1 else rows)


def _amount_cells(row: list[float]) -> list[str]:
    return [f"{row[0]:,.0f}", f"{row[1] / 1e9:,.3f} G", f"{row[2]:.3e}"]


def times(plan: Plan, device: Device, numbers: list[int], mfu: float, price: float | None) -> list[str]:
    """Hours and device-hours (and cost, where there is a price) for each number of devices, as a table."""
    rows = [["devices", "batch", "hours", "device-hours", "tokens/s", "held up by"]]
    rows[0] += ["cost"] if price is not None else []
    for devices in numbers:
        if plan.global_batch % devices:
            rest = [f"{plan.global_batch} rows cannot be dealt to {devices}", *[""] * (len(rows[0]) - 2)]
            rows.append([f"{devices:,}", *rest])
            continue
        seconds = run_seconds(plan, device, devices, mfu)
        hours, micro = seconds / 3600 * devices, plan.micro(devices)
        row = [f"{devices:,}", f"{micro} × {plan.global_batch // devices // micro}", f"{seconds / 3600:,.2f}"]
        row += [f"{hours:,.1f}", f"{plan.tokens() / seconds:,.0f}", _brake(plan, device, devices, mfu)]
        rows.append([*row, f"{hours * price:,.2f}"] if price is not None else row)
    return aligned(rows)


def _brake(plan: Plan, device: Device, devices: int, mfu: float) -> str:
    """What keeps the longest phase from the expected MFU, where that is a tenth of the time or more."""
    length = max(plan.stretches, key=lambda stretch: stretch[0] * stretch[1])[0]
    step = step_time(plan, length, device, devices, mfu)
    if step.exposed > 0.1 * step.seconds:
        return "gradients"
    if step.launches:
        return "launches"
    return "update" if step.update > 0.1 * step.seconds else "–"


def memories(plan: Plan, device: Device, numbers: list[int]) -> list[str]:
    """Memory of a device in GB, and the largest micro-batch that fits, for each number of devices, as a table."""
    rows = [["devices", "batch", "DDP", "ZeRO 1", "ZeRO 2", "ZeRO 3"]]
    for devices in [number for number in numbers if plan.global_batch % number == 0]:
        micro = plan.micro(devices)
        cells = []
        for stage in range(4):
            need, most = device_bytes(plan, stage, devices, micro), largest_micro_batch(plan, stage, device, devices)
            cells.append(f"{need / 1e9:,.2f} (≤ {most:,})")
        rows.append([f"{devices:,}", str(micro), *cells])
    room, length = HEADROOM * device.memory / 1e9, plan.stretches[0][0]
    return [f"GB on a device, and the largest micro-batch at {length} for which {room:,.1f} do", *aligned(rows)]
