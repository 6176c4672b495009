"""Short runs of PreTrainer, and their history and weights."""

import numpy as np
import torch
from tiny import TinyStore, tiny_config
from transformers import TrainerCallback

from bert_hf import BertForPreTraining, DataCollatorForPreTraining, PreTrainer, PreTrainingExamples
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.data.examples.samplers import Phase


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_save(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == self.step


def make(
    folder, tokenizer, *, micro=8, accumulation=2, steps=12, dropout=0.1, stop=None, phases=True, short=0.1, **options
):
    torch.manual_seed(0)
    model = BertForPreTraining(tiny_config(dropout))
    lengths = (Phase(32, 8 * 16), Phase(64, None)) if phases else (Phase(32, None),)
    defaults = {
        "logging_steps": 5, "save_steps": 3, "eval_strategy": "steps", "eval_steps": 6, "warmup_steps": 2,
        "report_to": "none", "disable_tqdm": True, "bf16": False, "use_cpu": True, "seed": 3,
    }  # fmt: skip
    args = PreTrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulation, **{**defaults, **options},
    )  # fmt: skip
    return PreTrainer(
        model, args, DataCollatorForPreTraining(tokenizer),
        PreTrainingExamples(TinyStore(), lengths, seed=1, short_seq_probability=short),
        PreTrainingExamples(TinyStore(seed=2), lengths, seed=7, limit=50),
        tokenizer, callbacks=[StopAt(stop)] if stop else None,
    )  # fmt: skip


def weights(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


CLOCK = ("runtime", "per_second", "mfu", "time")


def history(trainer):
    """The log without what the clock decides."""
    rows = trainer.state.log_history
    return [{k: v for k, v in row.items() if not k.endswith(CLOCK)} for row in rows if "train_runtime" not in row]


def ready_rows(n=24):
    rng = np.random.default_rng(0)
    rows = []
    for index in range(n):
        ids = rng.integers(5, 99, 12)
        labels = np.where(rng.random(12) < 0.3, ids, -100)
        rows.append({"input_ids": ids.tolist(), "labels": labels.tolist(), "next_sentence_label": index % 2})
    return rows
