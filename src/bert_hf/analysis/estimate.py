"""Estimates what a pre-training run costs, by formula: FLOPs, hours, and memory of a device. Nothing is trained.

Parameters, FLOPs and the training state of a device are exact. Time is FLOPs over a share of the device's peak
(`expected_mfu`, from published numbers); communication, data loading and checkpoints are free.
"""

import os
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from transformers import BertConfig

from bert_hf.config.analysis_arguments import EstimateArguments
from bert_hf.config.precision import choose_on_cpu, cpu_units
from bert_hf.console import format_table
from bert_hf.data.corpus.requested_corpus import load_or_train_tokenizer
from bert_hf.data.corpus.store import Corpus
from bert_hf.data.examples.samplers import phases_of_run
from bert_hf.errors import InputError, check_known
from bert_hf.models.config_file import config_from_json, config_of_checkpoint
from bert_hf.models.flops import matmul_rate, parameter_count, training_flops
from bert_hf.models.loading import check_positions
from bert_hf.pretraining.start import PRETRAINING_ARGUMENTS

ESTIMATING_ARGUMENTS = (*PRETRAINING_ARGUMENTS, EstimateArguments)


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

# Expected MFU by hidden size, linear in between (benchmarks/README.md). GPU: ModernBERT-base and AzNeoBERT at 768,
# NVIDIA's BERT-large at 1,024; below 768 nothing is published: in proportion to the hidden size.
MFU_OF_GPU = ((0, 768, 1024), (0.0, 0.27, 0.45))
# Share of `matmul_rate`, measured on 2 cores without bf16 units, fp32, 128 tokens, no dropout
MFU_OF_CPU = ((128, 256, 768), (0.557, 0.757, 0.845))

LAUNCH_SECONDS = 1.0e-3  # assumed: to launch a layer's kernels, forward and backward, under eager autocast
FILL = 0.94  # real tokens of a row's length: Wikipedia at 128. Short documents at 512 have fewer
KEPT = 0.857  # tokens of the corpus that truncation leaves at 128


def find_device(name: str, half: bool = False) -> Device:
    """Return a device by its name. `cpu` is this machine; its rate is measured, in bf16 if `half`."""
    cpu = torch.device("cpu")
    if name == "cpu":
        rate = matmul_rate(cpu, torch.bfloat16 if half else torch.float32)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Device("this machine's CPU", rate, memory, cpu=True)
    check_known(name, [*DEVICES, "cpu"], f"unknown device {name!r}", "--device")
    return DEVICES[name]


def expected_mfu(hidden_size: int, device: Device) -> float:
    """Return the share of the peak that a model of this hidden size is expected to reach."""
    return float(np.interp(hidden_size, *(MFU_OF_CPU if device.cpu else MFU_OF_GPU)))


def corpus_tokens_of_row(length: int) -> float:
    """Return the tokens of the corpus that a row uses up: without special tokens, with what truncation drops."""
    return (length * FILL - 3) / KEPT


@dataclass(frozen=True)
class Plan:
    """A run to be estimated, and the kind of device it uses."""

    config: BertConfig
    device: Device
    mfu: float  # share of the device's peak
    phases: tuple[tuple[int, int], ...]  # (tokens of a row, optimizer steps), in order
    length: int  # tokens of a row of which `micro_batch` are computed at once; fewer of longer rows
    global_batch: int  # rows of an optimizer step, over all devices
    micro_batch: int
    masked: float = 0.15  # predicted tokens of the real ones
    half: bool = True  # 16-bit autocast; else fp32

    def flops(self, length: int, rows: float) -> float:
        """Return the FLOPs of `rows` rows of equal length, counted as in `train_mfu`."""
        tokens = length * FILL
        return training_flops(self.config, rows * tokens, rows * tokens**2, rows * tokens * self.masked)

    def micro(self, devices: int) -> int:
        """Return the rows that each device computes at once: the most, up to `micro_batch`, that divides its share."""
        share = self.global_batch // devices
        return next(size for size in range(min(self.micro_batch, share), 0, -1) if share % size == 0)

    def seconds(self, devices: int) -> float:
        """Return the time of the run under data parallelism: arithmetic, or launching kernels if that is slower."""
        share, total = self.global_batch / devices, 0.0
        for length, steps in self.phases:
            computing = self.flops(length, share) / (self.device.peak * self.mfu)
            rows = self.micro(devices) * self.length // max(length, self.length)
            micro_batches = -(-share // max(1, rows))
            launching = 0.0 if self.device.cpu else micro_batches * self.config.num_hidden_layers * LAUNCH_SECONDS
            total += steps * max(computing, launching)
        return total


# ---- memory


def state_bytes(parameters: float, stage: int, devices: int, half: bool) -> float:
    """Return the bytes that a device holds for the parameters. Stage 0: data parallelism; 1, 2, 3: DeepSpeed's ZeRO.

    Plain: fp32 weights, gradients and Adam's moments, 4 + 4 + 8 per parameter; autocast's copy 2; DDP's buckets 4.
    ZeRO (Rajbhandari et al. 2020, section 5): 16-bit weights and gradients, 2 + 2, and fp32 weights and moments, 12,
    which are divided by the devices; from stage 2 on the gradients are, too, from stage 3 on the weights.
    """
    if stage == 0:
        return parameters * (4 + 4 + 8 + 2 * half + 4 * (devices > 1))

    size = 2 if half else 4
    weights = size / devices if stage >= 3 else size
    gradients = size / devices if stage >= 2 else size
    return parameters * (weights + gradients + 12 / devices)


def token_bytes(plan: Plan, length: int) -> float:
    """Return the bytes per real token at the peak of a micro-batch, when the loss is computed: nothing is freed yet.

    h hidden size, f feed-forward size, V vocabulary; s is 2 under 16-bit autocast (LayerNorm in fp32), 4 in fp32.
    A layer: queries, keys, values, context, the inputs of Q, K, V and of the feed-forward, 6s·h · GELU's input and
    output 2s·f · two LayerNorms 8h · two dropout masks 2h. Dropout in attention: on a GPU its operands once more, in
    padded rows, on a CPU its weights and masks for each pair of tokens. The last layer has queries only at [CLS] and
    the masked tokens: half of it counts. The head, per masked token: 10h + 8V, in fp32 16h + 4V (at the peak).
    """
    config = plan.config
    h, s = config.hidden_size, 2 if plan.half else 4
    layer = 6 * s * h + 2 * s * config.intermediate_size + 10 * h
    if config.attention_probs_dropout_prob and plan.device.cpu:
        layer += config.num_attention_heads * length * FILL * (s + 1)
    elif config.attention_probs_dropout_prob:
        layer += 4 * s * h / FILL
    head = 10 * h + 8 * config.vocab_size if plan.half else 16 * h + 4 * config.vocab_size
    return (config.num_hidden_layers - 0.5) * layer + 5 * h + plan.masked * head


def activation_bytes(plan: Plan, rows: int) -> float:
    """Return the peak bytes of a micro-batch of `rows` rows of the usual length, over all phases."""
    tokens = {length: max(rows * min(length, plan.length), length) * FILL for length, _ in plan.phases}
    return max(count * token_bytes(plan, length) for length, count in tokens.items())


# ---- the run, from the options of pretrain.py


def plan_run(
    tokenizer_args, corpus_args, model_args, example_args, args, estimate_args: EstimateArguments
) -> tuple[Plan, int]:
    """Return the run, and the tokens of a prepared corpus that it trains on (0 without one). Nothing is built."""
    if args.max_hours is not None:
        what = "hours cannot be converted to steps without measuring speed"
        raise InputError(what, where="--max_hours", remedy="give --max_steps")
    corpus_tokens = trained_tokens(corpus_args, args)

    # Model
    if model_args.model_name_or_path:
        config = config_of_checkpoint(model_args.model_name_or_path, **model_args.dropouts())
    else:
        source = corpus_args.train_file or tokenizer_args.tokenizer_name
        vocabulary = len(load_or_train_tokenizer(tokenizer_args, corpus_args)) if source else tokenizer_args.vocab_size
        config = config_from_json(model_args.config_name, vocab_size=vocabulary, **model_args.dropouts())
    check_positions(example_args.longest, config.max_position_embeddings, "--max_seq_length")

    # Steps at each length
    steps = args.max_steps
    if steps <= 0:
        per_row = sum(share * corpus_tokens_of_row(length) for length, share in example_args.lengths())
        steps = max(1, round(args.num_train_epochs * corpus_tokens / per_row / estimate_args.global_batch))
    phases = phases_of_run(example_args.lengths(), steps, global_batch=1)
    ends = [*(phase.end for phase in phases[:-1]), steps]
    lengths = [phase.max_seq_length for phase in phases]

    # Precision and device
    bf16 = choose_on_cpu(cpu_units(), config.hidden_size).bf16 if args.bf16 is None else args.bf16
    half = estimate_args.device != "cpu" or args.fp16 or bf16
    device = find_device(estimate_args.device, half)
    plan = Plan(
        config,
        device,
        mfu=estimate_args.mfu or expected_mfu(config.hidden_size, device),
        phases=tuple(zip(lengths, np.diff([0, *ends]).tolist(), strict=True)),
        length=example_args.max_seq_length,
        global_batch=estimate_args.global_batch,
        micro_batch=args.per_device_train_batch_size,
        masked=example_args.mlm_probability,
        half=half,
    )
    return plan, corpus_tokens


def trained_tokens(corpus_args, args) -> int:
    """Return the tokens of a prepared corpus that are trained on; 0 where --max_steps replaces a corpus."""
    if corpus_args.train_file:
        corpus = Corpus(corpus_args.train_file[0], cache_dir=corpus_args.cache_dir)
        train = corpus if corpus_args.validation_file else corpus.split(corpus_args.validation_split_percentage)[0]
        return train.tokens
    if args.max_steps <= 0:
        remedy = "give it, or a folder made by prepare.py as --train_file"
        raise InputError("unknown run length", where="--max_steps", remedy=remedy)
    return 0


def report(plan: Plan, numbers: list[int], corpus_tokens: float) -> list[str]:
    """Return the printed lines: the run, its tokens and FLOPs, then time and memory for each number of devices."""
    config, device = plan.config, plan.device
    lines = [
        f"model: {config.num_hidden_layers} layers × {config.hidden_size}, vocabulary {config.vocab_size:,}, "
        f"{parameter_count(config):,} parameters, {'16-bit autocast' if plan.half else 'fp32'}",
        f"step: {plan.global_batch:,} sequences on any number of devices (--global_batch), in micro-batches of "
        f"{plan.micro_batch} at most (--per_device_train_batch_size)",
        f"tokens: {FILL:.1%} of a row's length, {plan.masked:.1%} of them predicted",
        f"device: {device.name}, {device.peak / 1e12:,.4g} TFLOP/s, of which {plan.mfu:.1%} (--mfu)",
        "",
    ]

    # Amounts by phase
    tokens = flops = used = 0.0
    for length, steps in plan.phases:
        rows = steps * plan.global_batch
        lines.append(f"length {length}: {steps:,} steps, {rows * length * FILL / 1e9:,.3f} G tokens")
        tokens += rows * length * FILL
        flops += plan.flops(length, rows)
        used += rows * corpus_tokens_of_row(length)
    lines.append(f"in all: {tokens / 1e9:,.3f} G tokens, {flops:.3e} FLOPs")
    if corpus_tokens:
        lines.append(f"{used / corpus_tokens:,.2f} passes over the {corpus_tokens:,.0f} tokens to train on")

    # Time and memory by number of devices
    table = [["devices", "batch", "hours", "device-hours", "tokens/s", "DDP", "ZeRO 1", "ZeRO 2", "ZeRO 3"]]
    for devices in numbers:
        if plan.global_batch % devices:
            table.append([f"{devices:,}", f"does not divide {plan.global_batch}", *[""] * 7])
            continue
        seconds, micro = plan.seconds(devices), plan.micro(devices)
        row = [f"{devices:,}", f"{micro} × {plan.global_batch // devices // micro}", f"{seconds / 3600:,.2f}"]
        row += [f"{seconds / 3600 * devices:,.1f}", f"{tokens / seconds:,.0f}"]
        states = [state_bytes(parameter_count(config), stage, devices, plan.half) for stage in range(4)]
        row += [f"{(state + activation_bytes(plan, micro)) / 1e9:,.2f}" for state in states]
        table.append(row)

    title = f"time; memory in GB, of the {device.memory / 1e9:,.1f} of a device"
    return [*lines, "", title, *format_table(table)]
