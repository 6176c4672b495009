"""Cost of checkpoints: seconds of a save, share of the training time, seconds that a resume adds.

python benchmarks/checkpoint_cost.py --config_name configs/model/mini.json
python benchmarks/checkpoint_cost.py --config_name configs/model/base.json --batch_size 8

One process, random rows: `--saves` steps with a save after each, then the same run resumed. Saving
writes and flushes the files, hashes them and renames the folder; resuming hashes, reads and restores them. The share
is that of one save in the default interval of 15 minutes. For comparison: how fast this machine hashes, and the stock
Trainer's save of the same model (no flush, no checksum). Prints a table, then a JSON line.
"""

import hashlib
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import BertConfig, TrainerCallback, TrainingArguments, default_data_collator

from bert_hf import BertForPreTraining, PreTrainer
from bert_hf.config.parser import option, parse
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.errors import one_line_errors
from bert_hf.training.checkpoints import checkpoint_files


@dataclass
class CostArguments:
    config_name: str = option("configs/model/mini.json", "Model JSON.")
    batch_size: int = option(8, "Sequences in a step.")
    saves: int = option(5, "Saves that are timed.")


class Saves(TrainerCallback):
    """When each step ended, and each save after it."""

    def __init__(self):
        self.seconds, self.first = [], None

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.first = self.first or time.perf_counter()
        self.begun = time.perf_counter()

    def on_save(self, args, state, control, **kwargs) -> None:
        self.seconds.append(time.perf_counter() - self.begun)


def rows(config: BertConfig, count: int) -> list[dict]:
    """Random rows of 32 tokens."""
    made = torch.Generator().manual_seed(0)
    result = []
    for index in range(count):
        ids = torch.randint(5, config.vocab_size, (32,), generator=made)
        labels = torch.where(torch.arange(32) % 7 == 0, ids, -100)
        result.append({"input_ids": ids, "labels": labels, "next_sentence_label": torch.tensor(index % 2)})
    return result


def trained(kind, model, folder: str, options: CostArguments, resume: str | None, steps: int) -> tuple[Saves, float]:
    """(what was saved, seconds from `train` to the end of its first step)."""
    common = {
        "max_steps": steps, "per_device_train_batch_size": options.batch_size, "save_strategy": "steps",
        "save_steps": 1,
        "save_total_limit": 2, "report_to": "none", "disable_tqdm": True, "logging_steps": 10_000, "use_cpu": True,
        "bf16": False,
    }  # fmt: skip
    ours = kind is PreTrainer
    args = (PreTrainingArguments if ours else TrainingArguments)(output_dir=folder, **common)
    clock = Saves()
    data = rows(model.config, options.batch_size * options.saves * 2)
    trainer = kind(model, args, default_data_collator, data, callbacks=[clock])
    begun = time.perf_counter()
    trainer.train(resume_from_checkpoint=resume)
    return clock, clock.first - begun


def hash_rate() -> float:
    """Bytes a second that SHA-256 takes here."""
    block = bytes(64 << 20)
    begun = time.perf_counter()
    for _ in range(4):
        hashlib.sha256(block).digest()
    return 4 * len(block) / (time.perf_counter() - begun)


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    (options,) = parse((CostArguments,), argv)
    config = BertConfig.from_json_file(options.config_name)
    transformers.logging.set_verbosity_error()
    metrics: dict = {"config": options.config_name, "hash_bytes_per_second": hash_rate()}
    with tempfile.TemporaryDirectory() as folder:
        for name, kind, family in (
            ("ours", PreTrainer, BertForPreTraining),
            ("stock", transformers.Trainer, transformers.BertForPreTraining),
        ):
            place = f"{folder}/{name}"
            trained(kind, family(config), f"{place}-first", options, None, 1)  # what is done once in a process
            clock, fresh = trained(kind, family(config), place, options, None, options.saves)
            metrics[name] = {"save_seconds": statistics.median(clock.seconds), "fresh_seconds": fresh}
            if kind is PreTrainer:
                newest = checkpoint_files.checkpoints(Path(place))[0]
                size = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
                begun = time.perf_counter()
                checkpoint_files.newest_verified(Path(place))
                verified = time.perf_counter() - begun
                _, resumed = trained(kind, family(config), place, options, str(newest), options.saves + 1)
                metrics[name] |= {"checkpoint_bytes": size, "verify_seconds": verified, "resumed_seconds": resumed}
    ours, stock = metrics["ours"], metrics["stock"]
    metrics["share_of_15_minutes"] = ours["save_seconds"] / 900
    metrics["resume_adds_seconds"] = ours["verify_seconds"] + ours["resumed_seconds"] - ours["fresh_seconds"]
    print(f"checkpoint: {ours['checkpoint_bytes'] / 1e6:,.0f} MB; SHA-256 here: "
          f"{metrics['hash_bytes_per_second'] / 1e9:.2f} GB/s")  # fmt: skip
    print(f"a save: {ours['save_seconds']:.2f} s (stock {stock['save_seconds']:.2f} s), "
          f"{metrics['share_of_15_minutes']:.2%} of 15 minutes")  # fmt: skip
    print(f"a resume adds {metrics['resume_adds_seconds']:.2f} s: {ours['verify_seconds']:.2f} s to verify "
          f"({ours['checkpoint_bytes'] / ours['verify_seconds'] / 1e9:.2f} GB/s), the rest to restore")  # fmt: skip
    print(json.dumps(metrics))
    return 0


if __name__ == "__main__":
    sys.exit(main())
