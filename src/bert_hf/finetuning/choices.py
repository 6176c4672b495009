"""Multiple choice: each choice is a separate input, scored by one new vector on [CLS] (Devlin et al. 2019, 4.4)."""

from collections.abc import Sequence
from pathlib import Path

import datasets
import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoModelForMultipleChoice,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
)

from bert_hf.config.finetuning_arguments import TaskArguments
from bert_hf.data.corpus.checksums import json_checksum
from bert_hf.finetuning.choice_rows import ChoiceRow, read_choices
from bert_hf.finetuning.long_texts import token_ids
from bert_hf.finetuning.losses import IGNORE_INDEX
from bert_hf.finetuning.near_duplicates import near_duplicate_groups
from bert_hf.finetuning.task import Arrays, DownstreamTask

# Shapes in this file: B rows of a batch, C choices of a row, L tokens of the longest choice, N rows of a part.


class ChoiceTask(DownstreamTask):
    """Rows with the same number of choices."""

    auto_class = AutoModelForMultipleChoice
    new_layers = ("classifier.", "bert.pooler.")  # a checkpoint with a masked-LM head alone has no pooler
    pipeline_tag = "multiple-choice"

    def __init__(self, task_args: TaskArguments, tokenizer: PreTrainedTokenizerBase):
        super().__init__(task_args, tokenizer)
        self._encoded = {
            part: encode_choices(rows, tokenizer, task_args.max_seq_length) for part, rows in self.parts.items()
        }

    # ---- rows

    @classmethod
    def read(cls, task_args: TaskArguments) -> dict[str, list[ChoiceRow]]:
        cls.source(task_args)
        return read_choices(task_args)

    @classmethod
    def groups(cls, rows: Sequence[ChoiceRow]) -> np.ndarray:
        return near_duplicate_groups([row.context or row.question for row in rows])

    @property
    def choices(self) -> int:
        """C."""
        return len(self.parts["train"][0].choices)

    def describe(self) -> str:
        return f"{self.choices} choices"

    def encoded(self, part: str) -> datasets.Dataset:
        return self._encoded[part]

    def collator(self) -> "ChoiceCollator":
        return ChoiceCollator(self.tokenizer)

    # ---- network

    def config_options(self) -> dict:
        return {}  # the head has one output, and the network takes any number of choices

    # ---- predictions

    @classmethod
    def metric_names(cls, task_args: TaskArguments) -> tuple[str, ...]:
        return ("accuracy", "loss")

    def evaluate(self, part: str, predictions: Arrays, labels: np.ndarray | None) -> dict[str, float]:
        assert isinstance(predictions, np.ndarray)
        has_label = np.zeros(0, bool) if labels is None else labels != IGNORE_INDEX
        if labels is None or not has_label.any():
            return {}
        return {"accuracy": float((predictions.argmax(1) == labels)[has_label].mean())}

    def write_predictions(self, folder: Path, part: str, predictions: Arrays) -> None:
        """`PART_predictions.tsv`: a row's index, its choice (index and text), and the row's file and line."""
        predicted = np.argmax(np.asarray(predictions), axis=1).tolist()
        lines = ["index\tprediction\ttext\tplace"]
        for number, (row, choice) in enumerate(zip(self.parts[part], predicted, strict=True)):
            place = row.where if row.line is None else f"{row.where}:{row.line}"  # the number is not that in the file
            lines.append(f"{number}\t{choice}\t{' '.join(row.choices[choice].split())}\t{place}")
        (folder / f"{part}_predictions.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")

    # ---- identity, card, baseline

    def fingerprint(self) -> dict:
        rows = [[row[:4] for row in rows] for rows in self.parts.values()]
        return {"data": json_checksum(rows)[:16], "choices": self.choices}

    def usage(self, model: str) -> str:
        longest = self.task_args.max_seq_length
        return f'''import torch
from transformers import AutoModelForMultipleChoice, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{model}")
model = AutoModelForMultipleChoice.from_pretrained("{model}")

context = "She opens the book."
choices = ["She reads the first page.", "She drinks the table."]
sizes = dict(truncation="only_first", max_length={longest})  # as in training
inputs = tokenizer([context] * len(choices), choices, padding=True, return_tensors="pt", **sizes)
with torch.no_grad():
    logits = model(**{{name: value.unsqueeze(0) for name, value in inputs.items()}}).logits  # (1, choices)
print(choices[logits.argmax()])'''

    def settings(self) -> dict:
        return {"choices": self.choices}

    def baselines(self, folder: Path) -> dict[str, float]:
        """Accuracy of the choice that is right most often in the training rows, wherever it is placed."""
        judged = self.parts.get("test", self.parts["validation"])
        labels = [row.label for row in judged if row.label is not None]
        if not labels:
            return {}
        counts = np.bincount([row.label for row in self.parts["train"]])
        return {"baseline_accuracy": float(np.mean(np.array(labels) == counts.argmax()))}


# ---- inputs of the network


def encode_choices(
    rows: Sequence[ChoiceRow], tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> datasets.Dataset:
    """[CLS] context [SEP] question and choice [SEP] for each choice of each row.

    Only the context is cut, at its end; a choice is cut where it alone is too long. At length 8, letters are tokens:

        context abcd, choice xy   → [CLS] a b c [SEP] x y [SEP]
        context abcd, choice x…z  → [CLS] [SEP] v w x y z [SEP] of seven tokens, two cut

    Returns:
        Features with the columns `input_ids` and `token_type_ids` (C lists each), `length` (of the longest choice),
        and `labels` unless no row has one.
    """
    texts = [row.texts() for row in rows]
    contexts = token_ids([context for context, _ in texts], tokenizer)
    choices = token_ids([choice for _, several in texts for choice in several], tokenizer)
    count = len(rows[0].choices)
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    capacity = max_seq_length - 3

    inputs, segments, lengths = [], [], []
    for number, context in enumerate(contexts):
        row_choices = choices[number * count : (number + 1) * count]
        for choice in row_choices:
            context_tokens = context[: max(0, capacity - len(choice))]
            inputs.append(np.array([cls, *context_tokens, sep, *choice[:capacity], sep], np.int32))
            segments.append((np.arange(len(inputs[-1])) >= len(context_tokens) + 2).astype(np.int8))
        lengths.append(max(map(len, inputs[-count:])))

    starts = range(0, len(inputs), count)
    columns: dict = {
        "input_ids": [inputs[start : start + count] for start in starts],
        "token_type_ids": [segments[start : start + count] for start in starts],
        "length": lengths,
    }
    if any(row.label is not None for row in rows):
        columns["labels"] = [IGNORE_INDEX if row.label is None else row.label for row in rows]
    return datasets.Dataset.from_dict(columns)


class ChoiceCollator:
    """Makes a batch of rows: tensors (B, C, L), and `labels` (B,) where the rows have them.

    transformers' `DataCollatorForMultipleChoice` needs labels, which test rows may lack.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.pad = DataCollatorWithPadding(tokenizer)

    def __call__(self, features: list[dict]) -> dict[str, Tensor]:
        flat = [
            {"input_ids": ids, "token_type_ids": segments}
            for row in features
            for ids, segments in zip(row["input_ids"], row["token_type_ids"], strict=True)
        ]
        padded = self.pad(flat)  # (B · C, L)
        batch = {name: values.view(len(features), -1, values.shape[-1]) for name, values in padded.items()}
        if "labels" in features[0]:
            batch["labels"] = torch.tensor([row["labels"] for row in features])
        return batch
