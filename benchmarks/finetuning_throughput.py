"""How long an epoch of fine-tuning takes: ours and the stock Trainer with texts padded to one length, in one process.

python benchmarks/finetuning_throughput.py                                    # the messages that come with the project
python benchmarks/finetuning_throughput.py --train_file SMSSpamCollection.tsv

One stock `AutoModelForSequenceClassification` of random weights on each side, the same rows, batches of
`--batch_size`, dropout as the model's JSON has it. Stock: `transformers.Trainer`, each text padded to
`--max_seq_length`. Between: the same with `DataCollatorWithPadding`, which pads to the longest of a batch. Ours: what
`recipes/finetune_classification.py` does. The sides take turns; the first steps of a turn do not count. Seconds are
scaled to an epoch of all training rows. Medians of `--pairs` turns; ratios are medians of the turns' own. Prints a
table, then a JSON line.
"""

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import datasets
import torch
import transformers
from pretraining_throughput import Clock, stock_memory
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

import bert_hf
from bert_hf.config.finetuning_arguments import ClassificationArguments, FineTuningArguments
from bert_hf.config.parser import option, parse
from bert_hf.data.text.tokenization import load_tokenizer, train_tokenizer
from bert_hf.errors import one_line_errors
from bert_hf.finetuning.classification import ClassificationTask
from bert_hf.finetuning.long_texts import encode_texts
from bert_hf.training.resumable_trainer import ResumableTrainer

STOCK, BETWEEN, OURS = "stock, padded to one length", "stock, padded to the batch", "ours"
MESSAGES = Path(bert_hf.__file__).parent / "finetuning/messages/spam.tsv"


@dataclass
class ThroughputArguments:
    config_name: str = option("configs/model/mini.json", "Model JSON.")
    batch_size: int = option(32, "Rows in a batch.")
    steps: int = option(24, "Steps of a turn that count, at most.")
    warmup: int = option(2, "Steps of a turn that do not.")
    pairs: int = option(5, "Turns of every side.")
    bf16: bool = option(False, "bf16 autocast on all sides.")


def measure(side: str, model, rows: datasets.Dataset, padded: datasets.Dataset, tokenizer, options) -> tuple:
    """(seconds an epoch takes, share of padding in it)."""
    clock, seen = Clock(), []
    kind, options_of_side = TrainingArguments, {}
    if side == OURS:
        kind, options_of_side = FineTuningArguments, {"train_sampling_strategy": "group_by_length"}
    else:
        stock_memory()
    pad = DataCollatorWithPadding(tokenizer)

    def collator(features):
        batch = pad(features)
        seen.append((int(batch["attention_mask"].sum()), batch["attention_mask"].numel()))
        return batch

    steps = min(options.steps, len(rows) // options.batch_size - options.warmup)
    with tempfile.TemporaryDirectory() as folder:
        args = kind(
            output_dir=folder, per_device_train_batch_size=options.batch_size, max_steps=options.warmup + steps,
            seed=1,
            use_cpu=not torch.cuda.is_available(), logging_steps=10_000, save_strategy="no", report_to="none",
            disable_tqdm=True, bf16=options.bf16, eval_strategy="no", learning_rate=5e-5, **options_of_side,
        )  # fmt: skip
        data = padded if side == STOCK else rows
        (ResumableTrainer if side == OURS else Trainer)(model, args, collator, data, callbacks=[clock]).train()
    seconds = clock.ends[-1] - clock.ends[options.warmup - 1]
    tokens, places = (sum(column) for column in zip(*seen[options.warmup : options.warmup + steps], strict=True))
    all_tokens = sum(map(len, rows["input_ids"]))
    return seconds / tokens * all_tokens, 1 - tokens / places


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    data, options = parse((ClassificationArguments, ThroughputArguments), argv)
    transformers.utils.logging.set_verbosity_error()
    data.train_file, data.task = data.train_file or [str(MESSAGES)], data.task or "spam"
    parts = ClassificationTask.complete(data, ClassificationTask.read(data))
    names = ClassificationTask.class_names(data, parts)
    known = data.tokenizer_name or data.model_name_or_path
    tokenizer = load_tokenizer(known) if known else train_tokenizer(parts["train"].texts, vocab_size=8192)
    numbers = [names.index(label) for label in parts["train"].class_names()]
    rows = encode_texts(parts["train"], numbers, tokenizer, data.max_seq_length).features
    whole = tokenizer(parts["train"].texts, truncation=True, max_length=data.max_seq_length, padding="max_length")
    padded = datasets.Dataset.from_dict({**whole, "labels": rows["labels"]})
    config = BertConfig.from_json_file(options.config_name)
    config.num_labels = len(names)
    FineTuningArguments(output_dir="unused", report_to="none")  # sets the threads
    seen = {side: [] for side in (STOCK, BETWEEN, OURS)}
    for _ in range(options.pairs):
        for side, found in seen.items():
            torch.manual_seed(0)
            model = AutoModelForSequenceClassification.from_config(config)
            model.accepts_loss_kwargs = False
            found.append(measure(side, model, rows, padded, tokenizer, options))
    machine = f"{torch.get_num_threads()} threads"
    print(f"{options.config_name}, {len(rows):,} rows, batches of {options.batch_size}, {machine}")
    print(f"{'':30}{'s an epoch':>12}{'spread':>14}{'padding':>9}{'ratio':>8}")
    result = {}
    for side, found in seen.items():
        seconds = [turn[0] for turn in found]
        ratio = statistics.median(theirs[0] / mine for mine, theirs in zip(seconds, seen[STOCK], strict=True))
        row = {"seconds": round(statistics.median(seconds), 2), "padding": round(found[0][1], 4)}
        result[side] = {**row, "ratio": round(ratio, 2)}
        spread = f"{min(seconds):.1f}–{max(seconds):.1f}"
        print(f"{side:30}{row['seconds']:12.2f}{spread:>14}{row['padding']:9.1%}{ratio:8.2f}")
    print(json.dumps({**vars(options), "rows": len(rows), **result}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
