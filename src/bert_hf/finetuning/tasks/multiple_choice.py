"""Multiple choice: a context and its choices; one choice fits."""

import numpy as np

from bert_hf.console import logger
from bert_hf.data.corpus.checksums import json_checksum
from bert_hf.finetuning.rows.choices import ChoiceRow
from bert_hf.finetuning.rows.near_duplicates import near_duplicate_groups
from bert_hf.finetuning.tasks.task import Task


class MultipleChoiceTask(Task):
    """Rows of choices."""

    head_name = "multiple_choice"
    parts: dict[str, list[ChoiceRow]]

    def groups(self, rows: list[ChoiceRow]) -> np.ndarray:
        texts = [row.context or row.question for row in rows]
        groups = near_duplicate_groups(texts)
        if len(np.unique(groups)) >= 3:  # training, validation and test rows
            return groups
        logger.info("! the contexts are near-duplicates of each other: only equal ones stay in one part")
        return np.unique(texts, return_inverse=True)[1]

    @property
    def choices(self) -> int:
        """Return the number of choices of the first training row."""
        return len(self.parts["train"][0].choices)

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

    def baselines(self) -> dict[str, float]:
        """Return the accuracy of the choice that is right most often in the training rows, wherever it is placed."""
        judged = self.parts.get("test", self.parts["validation"])
        labels = [row.label for row in judged if row.label is not None]
        if not labels:
            return {}
        counts = np.bincount([row.label for row in self.parts["train"] if row.label is not None])
        return {"baseline_majority_accuracy": float(np.mean(np.array(labels) == counts.argmax()))}
