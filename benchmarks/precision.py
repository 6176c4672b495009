"""Which precision is faster on this CPU: a training step in fp32 and under bf16 autocast, side by side in one process.

python benchmarks/precision.py --config_name configs/model/mini.json --batch_size 64

One call measures one row of the table in docs/speed.md, the source of the rule in `bert_hf/config/precision.py`. A
step is forward, backward, clipping and fused AdamW of our model; the batch is generated (random tokens, rows of 60 to
128 tokens, 15 % masked), which costs the same as a batch of real text. The sides take turns, after one step each that
does not count. Figures are non-padding tokens a second of CPU time on one thread (`--threads`), on which other
processes have little influence. Prints the row, with the choice of the rule on this machine, then a JSON line.
"""

import json
import statistics
import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import BertConfig

from bert_hf import BertForPreTraining
from bert_hf.config.hardware import device_name, keep_freed_memory
from bert_hf.config.options import option
from bert_hf.config.parser import parse
from bert_hf.config.precision import choose_on_cpu, cpu_bf16_feature
from bert_hf.errors import one_line_errors
from bert_hf.training.optimization.optimizers import parameter_groups

PRECISIONS = ("fp32", "bf16")


@dataclass
class PrecisionArguments:
    config_name: str = option("configs/model/mini.json", "Model JSON.")
    max_seq_length: int = option(128, "Tokens in the longest row.")
    batch_size: int = option(64, "Rows in a batch.")
    dropout: float | None = option(None, "Dropout; default: the model's.")
    threads: int = option(1, "Threads that multiply.")
    turns: int = option(5, "Steps of each side that count.")


def make_batch(config: BertConfig, rows: int, length: int) -> dict[str, Tensor]:
    """A batch as the collator gives it, of random tokens: every row ends between 0.47 of the length and all of it."""
    torch.manual_seed(0)
    lengths = torch.randint(round(0.47 * length), length + 1, (rows,))
    lengths[torch.rand(rows) < 0.8] = length  # most rows are full, as in running text
    places = torch.arange(length)
    real = places < lengths.unsqueeze(1)
    ids = torch.randint(5, config.vocab_size, (rows, length)) * real
    masked = (torch.rand(rows, length) < 0.15) & real & (places > 0)
    return {
        "input_ids": ids,
        "attention_mask": real.long(),
        "token_type_ids": (places > length // 2).long().expand(rows, -1) * real,
        "labels": torch.where(masked, ids, -100),
        "next_sentence_label": torch.arange(rows) % 2,
        "masked_positions": masked.flatten().nonzero().squeeze(1),
        "token_positions": real.flatten().nonzero().squeeze(1),
    }


class Side:
    """A model that is trained in one precision."""

    def __init__(self, config: BertConfig, bf16: bool):
        torch.manual_seed(0)
        self.bf16 = bf16
        self.model = BertForPreTraining(config).train()
        self.optimizer = torch.optim.AdamW(parameter_groups(self.model, 0.01), lr=1e-4, eps=1e-6, fused=True)
        self.seconds: list[float] = []

    def step(self, batch: dict[str, Tensor]) -> float:
        """One optimizer step; returns its CPU seconds."""
        begun = time.process_time()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16):
            losses = self.model(**batch, losses_only=True)
        (losses.mlm_losses.mean() + losses.nsp_losses.mean()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.process_time() - begun


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    (options,) = parse((PrecisionArguments,), argv)
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    config = BertConfig.from_json_file(options.config_name)
    if options.dropout is not None:
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = options.dropout
    batch = make_batch(config, options.batch_size, options.max_seq_length)
    tokens = int(batch["attention_mask"].sum())

    sides = {name: Side(config, name == "bf16") for name in PRECISIONS}
    for turn in range(options.turns + 1):
        for side in sides.values():
            seconds = side.step(batch)
            if turn:
                side.seconds.append(seconds)

    rates = {name: tokens / statistics.median(side.seconds) for name, side in sides.items()}
    ratios = [slow / fast for slow, fast in zip(*(side.seconds for side in sides.values()), strict=True)]
    ratio = statistics.median(ratios)
    choice = choose_on_cpu(cpu_bf16_feature(), config.hidden_size)
    rule = PRECISIONS[choice.bf16]
    print(f"{device_name(torch.device('cpu'))}, bf16 units: {cpu_bf16_feature()}, torch {torch.__version__}")
    print(f"{options.config_name}, hidden size {config.hidden_size}, {options.batch_size} × {options.max_seq_length}")
    print("tokens a CPU second: " + ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items()))
    print(f"bf16 is {ratio:.2f} × as fast ({min(ratios):.2f} to {max(ratios):.2f}); the rule takes {rule}")
    metrics = {**vars(options), "hidden_size": config.hidden_size, "units": cpu_bf16_feature(), "rates": rates}
    print(json.dumps({**metrics, "ratio": ratio, "rule": rule, "torch": torch.__version__}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
