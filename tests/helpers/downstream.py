"""Each stock head on random rows, a task of such rows, and trainers of them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tiny import tiny_config, tiny_tokenizer

from bert_hf.config.finetuning_arguments import TaskArguments
from bert_hf.config.training_arguments import FineTuningArguments
from bert_hf.finetuning.heads.classification import ClassificationHead
from bert_hf.finetuning.heads.multiple_choice import MultipleChoiceHead
from bert_hf.finetuning.heads.question_answering import QuestionAnsweringHead
from bert_hf.finetuning.heads.token_classification import TokenClassificationHead
from bert_hf.finetuning.losses import IGNORE_INDEX
from bert_hf.finetuning.rows.labelled_texts import CLASSES, MULTIPLE, REGRESSION
from bert_hf.finetuning.tasks.task import Task
from bert_hf.finetuning.trainer import FineTuner

ROWS = 36  # not a multiple of the batch: the last step has a smaller accumulation group


class RandomRows:
    """Random features of different lengths in place of rows; loss and network are those of the head."""

    def __init__(self, tokenizer, given=None, config=None):
        super().__init__(tokenizer, given, config)
        self.labels = ("a", "b", "c")
        self.text_columns = ()

    @staticmethod
    def row(rng, ids) -> dict:
        return {"input_ids": ids.tolist(), "labels": int(rng.integers(3))}

    def check(self, parts):
        pass

    def describe_rows(self, rows):
        return f"{len(rows)} rows"

    def encode(self, rows):
        features = [{**row, "length": np.size(row["input_ids"])} for row in rows]
        return SimpleNamespace(features=Dataset.from_list(features))

    def collate(self, features):
        return collate(features)

    def keep(self, inputs, outputs):
        return outputs["logits"]

    def metric_names(self):
        return ("share_of_class_0", "loss")


class Classes(RandomRows, ClassificationHead):
    kind = CLASSES

    def __init__(self, tokenizer, given=None, config=None):
        super().__init__(tokenizer, given, config)
        self.problem_type = self.kind


class Weighted(Classes):
    """Classes of different weights."""

    weights = torch.tensor([0.02, 1.0, 3.0])

    def __init__(self, tokenizer, given=None, config=None):
        super().__init__(tokenizer, given, config)
        self.class_weights = self.weights


class Regression(Classes):
    kind = REGRESSION

    @staticmethod
    def row(rng, ids):
        return {"input_ids": ids.tolist(), "labels": float(rng.normal())}

    def targets(self, rows):
        return np.array([row["labels"] for row in rows])


class SeveralLabels(Classes):
    kind = MULTIPLE

    @staticmethod
    def row(rng, ids):
        return {"input_ids": ids.tolist(), "labels": rng.integers(0, 2, 3).astype(float).tolist()}


class Tokens(RandomRows, TokenClassificationHead):
    @staticmethod
    def row(rng, ids):
        labels = np.where(rng.random(len(ids)) < 0.6, rng.integers(0, 3, len(ids)), IGNORE_INDEX)
        return {"input_ids": ids.tolist(), "labels": labels.tolist()}


class Spans(RandomRows, QuestionAnsweringHead):
    @staticmethod
    def row(rng, ids):
        return {"input_ids": ids.tolist(), "labels": np.sort(rng.integers(0, len(ids), 2)).tolist()}

    def keep(self, inputs, outputs):
        return outputs["start_logits"], outputs["end_logits"]


class Choices(RandomRows, MultipleChoiceHead):
    """Rows of two to four choices."""

    @staticmethod
    def row(rng, ids):
        choices = [rng.permutation(ids).tolist() for _ in range(rng.integers(2, 5))]
        types = [[0] * len(ids) for _ in choices]
        return {"input_ids": choices, "token_type_ids": types, "labels": int(rng.integers(len(choices)))}

    collate = MultipleChoiceHead.collate
    keep = MultipleChoiceHead.keep


RANDOM_HEADS = (Classes, Weighted, Regression, SeveralLabels, Tokens, Spans, Choices)


def collate(features: list[dict]) -> dict[str, torch.Tensor]:
    """Pads `input_ids` and labels of tokens."""
    width = max(len(row["input_ids"]) for row in features)

    def padded(values, fill):
        return [*values, *([fill] * (width - len(values)))]

    ids = torch.tensor([padded(row["input_ids"], 0) for row in features])
    labels = [row["labels"] for row in features]
    if isinstance(labels[0], list) and len(labels[0]) == len(features[0]["input_ids"]):
        labels = [padded(each, IGNORE_INDEX) for each in labels]
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.tensor(labels)}


class RandomTask(Task):
    """Random rows of any head, and a metric of their logits."""

    head: Any

    def read(self):
        rng = np.random.default_rng(0)
        lengths = np.sort(rng.integers(4, 20, ROWS))  # so that micro-batches hold very different numbers of labels
        rows = [self.head.row(rng, rng.integers(5, 99, length)) for length in lengths]
        return {"train": rows, "validation": rows[::3], "test": rows[1::2]}

    def metrics(self, part, kept, losses):
        share = float(np.mean(np.argmax(kept, -1) == 0))
        return {"share_of_class_0": share, "loss": self.head.mean_loss(self.parts[part], kept, losses)}

    def write_predictions(self, folder, part, kept) -> None:
        np.savetxt(folder / f"{part}.txt", np.argmax(kept, -1), fmt="%d")

    def usage(self, model):
        return f"# {model}"


def make_model(head, dropout: float = 0.0):
    torch.manual_seed(0)
    return head.auto_class.from_config(tiny_config(dropout, **head.config_options()))


def make_finetuner(folder, head=Classes, dropout: float = 0.0, task_args=None, kind=RandomTask, **options):
    """Returns a trainer of plain SGD; `kind` is the class of its task."""
    task = kind(task_args or TaskArguments("checkpoint", from_scratch=True, min_steps=0), tiny_tokenizer(), head)
    defaults = {
        "learning_rate": 0.1, "optim": "sgd", "num_train_epochs": 1, "max_grad_norm": 0.0, "warmup_steps": 0,
        "eval_strategy": "no", "save_minutes": 0, "train_sampling_strategy": "sequential", "report_to": "none",
        "disable_tqdm": True, "use_cpu": True, "bf16": False, "seed": 3, "lr_scheduler_type": "constant",
    }  # fmt: skip
    args = FineTuningArguments(output_dir=str(folder), **{**defaults, **options})
    return FineTuner(make_model(task.head, dropout), args, task=task)
