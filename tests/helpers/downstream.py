"""Downstream tasks on random rows, one for each stock head, and trainers of them."""

import numpy as np
import torch
from datasets import Dataset
from tiny import tiny_config, tiny_tokenizer
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from bert_hf.config.finetuning_arguments import TaskArguments
from bert_hf.config.training_arguments import FineTuningArguments
from bert_hf.finetuning.losses import IGNORE_INDEX, cross_entropies, span_cross_entropies, squared_errors
from bert_hf.finetuning.task import DownstreamTask
from bert_hf.finetuning.trainer import FineTuner

ROWS = 36  # not a multiple of the batch: the last step has a smaller accumulation group
CHOICES = 3


class RandomTask(DownstreamTask):
    """Random rows of different lengths under one of the stock heads."""

    auto_class = AutoModelForSequenceClassification
    new_layers = ("classifier.", "bert.pooler.")
    pipeline_tag = "text-classification"

    @classmethod
    def read(cls, task_args):
        rng = np.random.default_rng(0)
        lengths = np.sort(rng.integers(4, 20, ROWS))  # so that micro-batches hold very different numbers of labels
        rows = [cls.row(rng, rng.integers(5, 99, length)) for length in lengths]
        return {"train": rows, "validation": rows[::3], "test": rows[1::2]}

    @staticmethod
    def row(rng, ids) -> dict:
        return {"input_ids": ids.tolist(), "labels": int(rng.integers(3))}

    def encoded(self, part):
        rows = self.parts[part]
        return Dataset.from_list([{**row, "length": np.size(row["input_ids"])} for row in rows])

    def collator(self):
        return collate

    def config_options(self):
        return {"num_labels": 3}

    def losses(self, inputs, outputs, label_smoothing=0.0):
        return cross_entropies(outputs["logits"], inputs["labels"], label_smoothing)

    @classmethod
    def metric_names(cls, task_args):
        return ("share_of_class_0", "loss")

    def evaluate(self, part, predictions, labels):
        return {"share_of_class_0": float(np.mean(np.argmax(predictions, -1) == 0))}

    def write_predictions(self, folder, part, predictions):
        np.savetxt(folder / f"{part}.txt", np.argmax(predictions, -1), fmt="%d")

    def fingerprint(self):
        return {"data": type(self).__name__}

    def usage(self, model):
        return f"# {model}"


class Weighted(RandomTask):
    """Classes of different weights."""

    class_weights = torch.tensor([0.02, 1.0, 3.0])

    def label_weights(self, labels):
        return self.class_weights.to(labels.device)[labels.clamp(min=0)]


class Regression(RandomTask):
    @staticmethod
    def row(rng, ids):
        return {"input_ids": ids.tolist(), "labels": float(rng.normal())}

    def config_options(self):
        return {"num_labels": 1, "problem_type": "regression"}

    def losses(self, inputs, outputs, label_smoothing=0.0):
        return squared_errors(outputs["logits"], inputs["labels"])


class Tokens(RandomTask):
    auto_class = AutoModelForTokenClassification

    @staticmethod
    def row(rng, ids):
        labels = np.where(rng.random(len(ids)) < 0.6, rng.integers(0, 3, len(ids)), IGNORE_INDEX)
        return {"input_ids": ids.tolist(), "labels": labels.tolist()}


class Spans(RandomTask):
    auto_class = AutoModelForQuestionAnswering

    @staticmethod
    def row(rng, ids):
        return {"input_ids": ids.tolist(), "labels": np.sort(rng.integers(0, len(ids), 2)).tolist()}

    def config_options(self):
        return {"num_labels": 2}

    def losses(self, inputs, outputs, label_smoothing=0.0):
        logits = outputs["start_logits"], outputs["end_logits"]
        return span_cross_entropies(*logits, inputs["attention_mask"], inputs["labels"])

    def reduce(self, inputs, outputs):
        return outputs["start_logits"], outputs["end_logits"]


class Choices(RandomTask):
    auto_class = AutoModelForMultipleChoice

    @staticmethod
    def row(rng, ids):
        return {"input_ids": [rng.permutation(ids).tolist() for _ in range(CHOICES)], "labels": int(rng.integers(3))}


TASKS = (RandomTask, Weighted, Regression, Tokens, Spans, Choices)


def collate(features: list[dict]) -> dict[str, torch.Tensor]:
    """Pads `input_ids`, of any number of dimensions, and labels of tokens."""
    width = max(np.shape(row["input_ids"])[-1] for row in features)

    def padded(values, fill):
        return np.pad(values, [(0, 0)] * (np.ndim(values) - 1) + [(0, width - np.shape(values)[-1])],
                      constant_values=fill)  # fmt: skip

    ids = torch.tensor(np.stack([padded(row["input_ids"], 0) for row in features]))
    labels = [row["labels"] for row in features]
    if isinstance(labels[0], list) and len(labels[0]) == np.shape(features[0]["input_ids"])[-1]:
        labels = [padded(each, IGNORE_INDEX).tolist() for each in labels]
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.tensor(labels)}


def make_model(kind: type[RandomTask], task: RandomTask, dropout: float = 0.0):
    torch.manual_seed(0)
    return kind.auto_class.from_config(tiny_config(dropout, **task.config_options()))


def make_finetuner(folder, kind: type[RandomTask] = RandomTask, dropout: float = 0.0, task_args=None, **options):
    task = kind(task_args or TaskArguments("checkpoint", min_steps=0), tiny_tokenizer())
    defaults = {
        "learning_rate": 0.1, "optim": "sgd", "num_train_epochs": 1, "max_grad_norm": 0.0, "warmup_steps": 0,
        "eval_strategy": "no", "save_minutes": 0, "train_sampling_strategy": "sequential", "report_to": "none",
        "disable_tqdm": True, "use_cpu": True, "bf16": False, "seed": 3, "lr_scheduler_type": "constant",
    }  # fmt: skip
    args = FineTuningArguments(output_dir=str(folder), **{**defaults, **options})
    return FineTuner(make_model(kind, task, dropout), args, task.collator(), task, tiny_tokenizer())
