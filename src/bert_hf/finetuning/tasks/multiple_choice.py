"""Multiple choice: a context and its choices; one choice fits."""

from typing import Any, ClassVar

import numpy as np

from bert_hf.console import logger
from bert_hf.finetuning.rows.choices import ChoiceRow
from bert_hf.finetuning.rows.near_duplicates import near_duplicate_groups
from bert_hf.finetuning.tasks.task import Task


class MultipleChoiceTask(Task):
    """Contexts with choices, of which one fits."""

    head_name = "multiple_choice"
    example: ClassVar[Any] = {
        "context": "She opens the book.",
        "choices": ["She reads the first page.", "She drinks the table."],
    }
    parts: dict[str, list[ChoiceRow]]

    def groups(self, rows: list[ChoiceRow]) -> np.ndarray:
        """Return the groups of near-duplicate contexts; if there are fewer than three, log it and group equal ones."""
        texts = [row.context or row.question for row in rows]
        groups = near_duplicate_groups(texts)
        if len(np.unique(groups)) >= 3:  # training, validation and test rows
            return groups
        logger.info("! the contexts are near-duplicates of each other: only equal ones stay in one part")
        return np.unique(texts, return_inverse=True)[1]

    def row_identity(self, part: str) -> Any:
        return [(row.context, row.question, row.choices, row.label) for row in self.parts[part]]

    def baseline_metrics(self) -> dict[str, float]:
        """Return the accuracy of always choosing the position that is right most often in the training rows."""
        rows = self.parts.get("test", self.parts["validation"])
        labels = [row.label for row in rows if row.label is not None]
        if not labels:
            return {}
        counts = np.bincount([row.label for row in self.parts["train"] if row.label is not None])
        return {"baseline_majority_accuracy": float(np.mean(np.array(labels) == counts.argmax()))}
