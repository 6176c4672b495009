"""Pre-training with stock transformers, for comparison: Trainer, BertForPreTraining, a collator that masks.

Saves every few steps and resumes from `get_last_checkpoint`, as the examples of transformers do. `stock.py` starts it
like a recipe: `main(argv) -> int`.
"""

import argparse
from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertForPreTraining,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from bert_hf.data.corpus.store import Corpus
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.samplers import Phase
from bert_hf.data.text.tokenization import load_tokenizer


class Pairs(torch.utils.data.Dataset):
    """Sentence pairs, planned once, as rows of input_ids, token_type_ids and next_sentence_label."""

    def __init__(self, examples: PreTrainingExamples, tokenizer):
        self.rows = []
        for index in range(len(examples)):
            example = examples[index]
            a, b = (example[name].tolist()[:14] for name in ("segment_a", "segment_b"))
            ids = [tokenizer.cls_token_id, *a, tokenizer.sep_token_id, *b, tokenizer.sep_token_id]
            types = [0] * (len(a) + 2) + [1] * (len(b) + 1)
            label = int(example["next_sentence_label"])
            self.rows.append({"input_ids": ids, "token_type_ids": types, "next_sentence_label": label})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return self.rows[index]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    for name in ("train_file", "config_name", "output_dir", "max_steps", "save_steps", "save_total_limit"):
        parser.add_argument(f"--{name}")
    asked, _ = parser.parse_known_args(argv)
    set_seed(42)

    corpus = Corpus(asked.train_file)
    tokenizer = load_tokenizer(str(Path(asked.train_file) / "tokenizer"))
    dataset = Pairs(PreTrainingExamples(corpus, (Phase(32, None),), fixed=True), tokenizer)

    config = BertConfig.from_json_file(asked.config_name)
    model = BertForPreTraining(config)
    args = TrainingArguments(
        asked.output_dir, max_steps=int(asked.max_steps), save_steps=int(asked.save_steps), logging_steps=1,
        save_total_limit=int(asked.save_total_limit), per_device_train_batch_size=8, use_cpu=True, report_to="none",
        disable_tqdm=True, seed=42,
    )  # fmt: skip
    trainer = Trainer(
        model, args, train_dataset=dataset, data_collator=DataCollatorForLanguageModeling(tokenizer),
        processing_class=tokenizer,
    )  # fmt: skip

    folder = Path(asked.output_dir)
    last = get_last_checkpoint(asked.output_dir) if folder.is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    trainer.save_model()
    trainer.save_state()
    return 0
