"""Multiple choice: each choice is a separate input, scored by one new vector on [CLS] (Devlin et al. 2019, 4.4)."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
from torch import Tensor
from transformers import AutoModelForMultipleChoice, DataCollatorForMultipleChoice, PreTrainedTokenizerBase

from bert_hf.config.finetuning_arguments import TaskArguments
from bert_hf.data.corpus.checksums import json_checksum
from bert_hf.data.text.sources import hub_rows
from bert_hf.data.text.tables import Row, file_rows
from bert_hf.errors import InputError
from bert_hf.finetuning.features.long_texts import token_ids
from bert_hf.finetuning.losses import IGNORE_INDEX
from bert_hf.finetuning.rows.near_duplicates import near_duplicate_groups
from bert_hf.finetuning.tasks.task import Arrays, DownstreamTask

_CONTEXTS = ("sent1", "context")  # SWAG's name of the column, and the general one
_QUESTIONS = ("sent2", "question")
_COLUMNS = "give sent1, sent2, ending0, ending1, … and label; or context, question, choices and label"

# Shapes in this file: B rows of a batch, C choices of a row, L tokens of the longest choice, N rows of a part.

# ---- rows


class ChoiceRow(NamedTuple):
    """A context and the choices, one of which fits it.

    Attributes:
        question: about the context, or the beginning of the sentence that each choice ends (SWAG's sent2); may be "".
        label: number of the right choice; None where it is not known.
        where, line: file (or Hub dataset) and line of the row, for messages.
    """

    context: str
    question: str
    choices: tuple[str, ...]
    label: int | None = None
    where: str = ""
    line: int | None = None

    def texts(self) -> tuple[str, list[str]]:
        """The first text of the network's input, which all choices share, and the second one of each choice.

        ("A ball", "It", ("rolls.", "reads.")) → "A ball", ["It rolls.", "It reads."]. Without a context the question
        is the first text.
        """
        if not self.context:
            return self.question, list(self.choices)
        return self.context, [f"{self.question} {choice}".strip() for choice in self.choices]


def choice_row(row: Row) -> ChoiceRow:
    """A row of SWAG (sent1, sent2, ending0, …, label) or a general one (context, question, choices, label).

    The label is an index from 0. No label, an empty one and -1 (as in SWAG's test rows) mean that it is not known.
    """
    values = row.values
    choices = _choices(values)
    texts = [_first_filled(values, names) for names in (_CONTEXTS, _QUESTIONS)]
    are_texts = all(isinstance(text, str) for text in (*texts, *choices))
    if len(choices) < 2 or not are_texts or not all(map(str.strip, ("".join(texts), *choices))):
        raise row.error(f"not a context with two or more choices (columns: {', '.join(values)})", _COLUMNS)

    label = None
    if values.get("label") not in (None, "", -1, "-1"):
        text = str(values["label"]).strip()
        label = int(text) if text.isdecimal() else -1
        if label not in range(len(choices)):
            what = f"label {values['label']!r} is not one of the {len(choices)} choices"
            raise row.error(what, f"give 0 to {len(choices) - 1}")

    context, question, *choices = map(str.strip, (*texts, *choices))
    return ChoiceRow(context, question, tuple(choices), label, row.where, row.line)


def _first_filled(values: dict[str, Any], names: Iterable[str]) -> Any:
    """The first of these columns that holds something; "" where none does."""
    return next((values[name] for name in names if values.get(name)), "")


def _choices(values: dict[str, Any]) -> list:
    """The choices of a row, unchecked; [] where no column is one of choices."""
    if isinstance(values.get("choices"), list):
        return values["choices"]
    count = next(number for number in range(len(values) + 1) if f"ending{number}" not in values)
    return [values[f"ending{number}"] for number in range(count)]


# ---- task


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
        """The rows: all with the same number of choices, and all but test rows with a label."""
        source = cls.source(task_args)
        if task_args.train_file:
            rows_of_part = {part: file_rows(files) for part, files in task_args.files().items()}
        else:
            rows_of_part = hub_rows(source, task_args.dataset_config_name)
        parts = {part: list(map(choice_row, rows)) for part, rows in rows_of_part.items()}

        count = len(parts["train"][0].choices)
        for part, rows in parts.items():
            for row in rows:
                if row.label is None and part != "test":
                    remedy = "add a label, or remove the row (only test rows may lack one)"
                    raise InputError("missing label", where=row.where, line=row.line, remedy=remedy)
                if len(row.choices) != count:
                    what = f"{len(row.choices)} choices; the first training row has {count}"
                    raise InputError(what, where=row.where, line=row.line, remedy="give each row the same number")
        return parts

    @classmethod
    def groups(cls, rows: Sequence[ChoiceRow]) -> np.ndarray:
        return near_duplicate_groups([row.context or row.question for row in rows])

    @property
    def choices(self) -> int:
        """C."""
        return len(self.parts["train"][0].choices)

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
        has_label = np.asarray(labels) != IGNORE_INDEX
        right = np.asarray(predictions).argmax(1) == labels
        return {"accuracy": float(right[has_label].mean())}

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


class ChoiceCollator(DataCollatorForMultipleChoice):
    """Makes a batch of rows: tensors (B, C, L), and `labels` (B,) where the rows have them, as test rows may not."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        names = ("input_ids", "token_type_ids")
        rows = [{name: row[name] for name in names} | {"labels": row.get("labels", 0)} for row in examples]
        batch = super().torch_call(rows)
        if "labels" not in examples[0]:
            del batch["labels"]
        return batch
