"""Rows of two classes that a tiny model learns, and runs of the classification recipe on them."""

from pathlib import Path
from typing import Any

import numpy as np
from tiny import save_tiny_bert

from bert_hf.finetuning.heads.classification import ClassificationHead
from bert_hf.finetuning.heads.head import rows_of_files
from bert_hf.finetuning.rows.labelled_texts import LabelledTexts
from helpers.recipe_runs import recipe

PARTS = {"train": 80, "validation": 60, "test": 70}


def write_classified(folder: Path, names: tuple[str, str], right: float = 1.0) -> Path:
    """Writes a checkpoint and a CSV file for each part into `folder`, which is returned.

    Args:
        right: share of the rows whose label is that of their words.
    """
    save_tiny_bert(folder / "bert")
    random = np.random.default_rng(0)
    for part, count in PARTS.items():
        lines = ["label,source,text"]
        for _ in range(count):
            kind = int(random.random() < 0.4)
            words = random.integers(0, 40, random.integers(3, 9)) + 12 * kind
            label = names[kind if random.random() < right else 1 - kind]
            lines.append(f"{label},{random.choice(['web', 'mail'])},{' '.join(f'w{word}' for word in words)}")
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n")
    return folder


def classify(folder: Path, output: str, *words: str, model: str = "bert") -> int:
    """Trains on these rows; returns the exit code."""
    files = [word for part in PARTS for word in (f"--{part}_file", str(folder / f"{part}.csv"))]
    return recipe("finetune_classification")(
        [
            "--model_name_or_path", str(folder / model), "--output_dir", str(folder / output), *files,
            "--max_steps", "20", "--learning_rate", "3e-3", "--per_device_train_batch_size", "8",
            "--use_cpu", "true", "--bf16", "false", "--disable_tqdm", "true", "--max_seq_length", "16", *words,
        ]
    )  # fmt: skip


def read_labelled(files: list[str], **options: Any) -> LabelledTexts:
    """Return the labelled rows of files, as a classification reads them."""
    head = ClassificationHead(None, options)
    return head.read(list(rows_of_files(head, files)))
