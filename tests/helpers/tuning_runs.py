"""Short fine-tuning runs."""

import numpy as np
import torch
import transformers
from datasets import Dataset
from tiny import tiny_config, tiny_tokenizer

from bert_hf import ResumableTrainer
from bert_hf.config.training_arguments import FineTuningArguments


def tuned(folder, **options):
    """A stock classifier of random rows, evaluated and saved by epochs, the best kept."""
    torch.manual_seed(0)
    config = tiny_config(num_labels=2)
    model = transformers.BertForSequenceClassification(config)
    rng = np.random.default_rng(0)
    rows = [
        {"input_ids": rng.integers(5, 99, rng.integers(4, 20)).tolist(), "labels": int(rng.integers(2))}
        for _ in range(22)
    ]
    for row in rows:
        row["attention_mask"] = [1] * len(row["input_ids"])
    common = {
        "num_train_epochs": 3, "per_device_train_batch_size": 4, "eval_strategy": "epoch", "save_strategy": "epoch",
        "load_best_model_at_end": True, "metric_for_best_model": "loss", "save_total_limit": 1, "logging_steps": 2,
        "report_to": "none", "disable_tqdm": True, "use_cpu": True, "bf16": False, "learning_rate": 1e-2,
        "per_device_eval_batch_size": 8,  # two batches, so that an evaluation can be interrupted
    }  # fmt: skip
    args = FineTuningArguments(output_dir=str(folder), **{**common, **options})
    collator = transformers.DataCollatorWithPadding(tiny_tokenizer())
    data = Dataset.from_list(rows)
    trainer = ResumableTrainer(model, args, collator, data, data.select(range(10)), tiny_tokenizer())
    trainer.model_accepts_loss_kwargs = False
    return trainer
