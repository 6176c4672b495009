"""Estimates what a pre-training run costs, by formula: FLOPs, hours and device-hours. Nothing is trained.

Parameters and FLOPs are exact. Time is FLOPs over a share of the device's peak (`expected_mfu`, from published
numbers); communication, data loading and checkpoints are free.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from transformers import BertConfig

from bert_hf.config.arguments import CorpusArguments, ExampleArguments, ModelArguments, TokenizerArguments
from bert_hf.config.checkpoint_arguments import EstimateArguments
from bert_hf.config.precision import choose_on_cpu, cpu_bf16_feature
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.console import format_table
from bert_hf.data.corpus.requested_corpus import load_or_train_tokenizer
from bert_hf.data.examples.samplers import phases_of_run
from bert_hf.errors import InputError, check_known
from bert_hf.models.flops import matmul_rate, parameter_count, training_flops
from bert_hf.models.loading import check_positions, config_from_json, config_of_checkpoint
from bert_hf.pretraining.start import PRETRAINING_ARGUMENTS

ESTIMATING_ARGUMENTS = (*PRETRAINING_ARGUMENTS, EstimateArguments)


class Device(NamedTuple):
    """An accelerator, or a machine that computes on its CPU."""

    name: str
    peak: float  # FLOP/s of a dense 16-bit matrix product with fp32 sums (no sparsity); of a CPU as measured
    cpu: bool = False


DEVICES = {  # NVIDIA's data sheet of each; GeForce: Ada white paper, appendix A
    "h200": Device("H200 SXM", 989e12),
    "h100": Device("H100 SXM", 989e12),
    "a100-80gb": Device("A100 SXM 80 GB", 312e12),
    "a100-40gb": Device("A100 SXM 40 GB", 312e12),
    "l40s": Device("L40S", 362e12),
    "l4": Device("L4", 121e12),
    "v100-32gb": Device("V100 SXM2 32 GB, fp16", 125e12),
    "rtx4090": Device("GeForce RTX 4090", 165.2e12),
}

# Expected MFU by hidden size, linear in between (benchmarks/README.md). GPU: ModernBERT-base and AzNeoBERT at 768,
# NVIDIA's BERT-large at 1,024; below 768 nothing is published: in proportion to the hidden size.
MFU_OF_GPU = ((0, 768, 1024), (0.0, 0.27, 0.45))
# Share of `matmul_rate`, measured on 2 cores without bf16 units, fp32, 128 tokens, no dropout
MFU_OF_CPU = ((128, 256, 768), (0.557, 0.757, 0.845))

LAUNCH_SECONDS = 1.0e-3  # assumed: to launch a layer's kernels, forward and backward, under eager autocast
REAL_TOKENS = 0.94  # their share of a sequence's length: Wikipedia at 128. Short documents at 512 have fewer


def find_device(name: str, bf16: bool = False) -> Device:
    """Return a device of `DEVICES` by its name; for `cpu` this machine, whose rate is measured, in bf16 or fp32."""
    if name == "cpu":
        rate = matmul_rate(torch.device("cpu"), torch.bfloat16 if bf16 else torch.float32)
        return Device("this machine's CPU", rate, cpu=True)
    check_known(name, [*DEVICES, "cpu"], f"unknown device {name!r}", "--device")
    return DEVICES[name]


def expected_mfu(hidden_size: int, device: Device) -> float:
    """Return the share of the peak that a model of this hidden size should reach, interpolated between known sizes."""
    hidden_sizes, shares = MFU_OF_CPU if device.cpu else MFU_OF_GPU
    return float(np.interp(hidden_size, hidden_sizes, shares))


@dataclass(frozen=True)
class Plan:
    """A run to be estimated, and the kind of device it uses."""

    config: BertConfig
    device: Device
    mfu: float  # share of the device's peak
    phases: tuple[tuple[int, int], ...]  # (sequence length in tokens, optimizer steps), in order
    micro_batch_length: int  # sequence length that `micro_batch` is meant for; of longer ones, as many tokens at once
    global_batch: int  # sequences of an optimizer step, over all devices
    micro_batch: int  # sequences that a device computes at once, at most
    masked: float = 0.15  # share of the real tokens that is predicted
    autocast: bool = True  # to 16 bits; else fp32

    def flops(self, length: int, sequences: float) -> float:
        """Return the training FLOPs of sequences of this length, their padding not counted, as in `train_mfu`."""
        tokens = length * REAL_TOKENS
        return training_flops(self.config, sequences * tokens, sequences * tokens**2, sequences * tokens * self.masked)

    def equal_micro_batch(self, devices: int) -> int:
        """Return the largest micro-batch, up to `micro_batch`, that divides each device's part of the global batch."""
        share = self.global_batch // devices
        return next(size for size in range(min(self.micro_batch, share), 0, -1) if share % size == 0)

    def seconds(self, devices: int) -> float:
        """Return the run's seconds under data parallelism; a step takes its arithmetic, or its launches if longer."""
        total = 0.0
        share = self.global_batch / devices  # sequences of a step on each device
        for length, steps in self.phases:
            computing = self.flops(length, share) / (self.device.peak * self.mfu)
            at_once = self.equal_micro_batch(devices) * self.micro_batch_length // max(length, self.micro_batch_length)
            micro_batches = -(-share // max(1, at_once))  # rounded up
            launching = 0.0 if self.device.cpu else micro_batches * self.config.num_hidden_layers * LAUNCH_SECONDS
            total += steps * max(computing, launching)
        return total


def plan_run(
    tokenizer_args: TokenizerArguments,
    corpus_args: CorpusArguments,
    model_args: ModelArguments,
    example_args: ExampleArguments,
    args: PreTrainingArguments,
    estimate_args: EstimateArguments,
) -> Plan:
    """Return the run that these options describe, `cpu` measured; an `InputError` if they do not give its steps."""
    if args.max_hours is not None:
        what = "hours cannot be converted to steps without measuring speed"
        raise InputError(what, where="--max_hours", remedy="give --max_steps")
    if args.max_steps <= 0:
        raise InputError("unknown run length", where="--max_steps", remedy="give it")

    if model_args.model_name_or_path:
        config = config_of_checkpoint(model_args.model_name_or_path, **model_args.dropouts())
    else:
        source = corpus_args.train_file or tokenizer_args.tokenizer_name
        vocabulary = len(load_or_train_tokenizer(tokenizer_args, corpus_args)) if source else tokenizer_args.vocab_size
        config = config_from_json(model_args.config_name, vocab_size=vocabulary, **model_args.dropouts())
    check_positions(example_args.longest_seq_length, config.max_position_embeddings, "--max_seq_length")

    # Steps at each length: with one example per step, the `end` of a phase counts steps
    phases = phases_of_run(example_args.lengths(), args.max_steps, global_batch=1)
    ends = [*(phase.end for phase in phases[:-1]), args.max_steps]
    lengths = [phase.max_seq_length for phase in phases]

    bf16 = choose_on_cpu(cpu_bf16_feature(), config.hidden_size).bf16 if args.bf16 is None else args.bf16
    autocast = estimate_args.device != "cpu" or args.fp16 or bf16
    device = find_device(estimate_args.device, autocast)
    return Plan(
        config,
        device,
        mfu=estimate_args.mfu or expected_mfu(config.hidden_size, device),
        phases=tuple(zip(lengths, np.diff([0, *ends]).tolist(), strict=True)),
        micro_batch_length=example_args.max_seq_length,
        global_batch=estimate_args.global_batch,
        micro_batch=args.per_device_train_batch_size,
        masked=example_args.mlm_probability,
        autocast=autocast,
    )


def report_lines(plan: Plan, device_counts: list[int]) -> list[str]:
    """Return the printed lines: the run, its tokens and FLOPs, then the time for each number of devices."""
    config, device = plan.config, plan.device
    lines = [
        f"model: {config.num_hidden_layers} layers × {config.hidden_size}, vocabulary {config.vocab_size:,}, "
        f"{parameter_count(config):,} parameters, {'16-bit autocast' if plan.autocast else 'fp32'}",
        f"step: {plan.global_batch:,} sequences on any number of devices (--global_batch), in micro-batches of "
        f"{plan.micro_batch} at most (--per_device_train_batch_size)",
        f"tokens: {REAL_TOKENS:.1%} of a row's length, {plan.masked:.1%} of them predicted",
        f"device: {device.name}, {device.peak / 1e12:,.4g} TFLOP/s, of which {plan.mfu:.1%} (--mfu)",
        "",
    ]

    tokens = flops = 0.0
    for length, steps in plan.phases:
        sequences = steps * plan.global_batch
        phase_tokens = sequences * length * REAL_TOKENS
        lines.append(f"length {length}: {steps:,} steps, {phase_tokens / 1e9:,.3f} G tokens")
        tokens += phase_tokens
        flops += plan.flops(length, sequences)
    lines.append(f"in all: {tokens / 1e9:,.3f} G tokens, {flops:.3e} FLOPs")

    table = [["devices", "batch", "hours", "device-hours", "tokens/s"]]
    for devices in device_counts:
        if plan.global_batch % devices:
            table.append([f"{devices:,}", f"does not divide {plan.global_batch}", *[""] * 3])
            continue
        seconds, micro_batch = plan.seconds(devices), plan.equal_micro_batch(devices)
        accumulated = plan.global_batch // devices // micro_batch
        row = [f"{devices:,}", f"{micro_batch} × {accumulated}", f"{seconds / 3600:,.2f}"]
        row += [f"{seconds / 3600 * devices:,.1f}", f"{tokens / seconds:,.0f}"]
        table.append(row)
    return [*lines, "", *format_table(table)]
