"""Writes `study.csv`: a row for each cell, without times, so that its bytes depend on nothing but the cells."""

import csv
import io
from pathlib import Path

from bert_hf.finetuning.study.metrics import Row
from bert_hf.training.checkpointing import write_durably

TABLE = "study.csv"


def write_table(root: Path, rows: list[Row]) -> None:
    """Writes coordinates, settings and figures of the cells, in the order of the plan."""
    settings = list(dict.fromkeys(key for row in rows for key, _ in row.cell.settings))
    prefixes = ("eval_", "test_", "baseline_")
    names = {name for row in rows for name in row.metrics}
    metrics = [name for prefix in prefixes for name in sorted(names) if name.startswith(prefix)]

    text = io.StringIO()
    coordinates = ["model", "train_size", "train_rows", "fold", "seed", "phase"]
    writer = csv.DictWriter(text, [*coordinates, *settings, *metrics], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cell = row.cell
        place = {"model": cell.model.name, "train_size": cell.size_name, "train_rows": row.training_rows}
        phase = "search" if cell.tuning else "final"
        place |= {"fold": cell.fold.number, "seed": cell.seed, "phase": phase}
        writer.writerow({**place, **dict(cell.settings), **row.metrics})
    write_durably(root / TABLE, text.getvalue())
