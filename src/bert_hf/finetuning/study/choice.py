"""Chooses among the settings of a grid by validation figures."""

import statistics

from bert_hf.finetuning.run import FEW_ROWS
from bert_hf.finetuning.study.metrics import Row, check_metrics, lower_is_better
from bert_hf.finetuning.study.plan import Settings


def choose_settings(rows: list[Row], metric: str, validation_rows: int | None) -> Settings:
    """The settings with the best mean validation figure over the seeds; ties go to the lower mean validation loss.

    With fewer than `FEW_ROWS` validation rows the loss alone decides.

    Args:
        rows: searching cells of one model, training size and fold; of equal candidates the first one is chosen.
        metric: without "eval_".
        validation_rows: in each cell; None where only the recipe can tell.

    Raises:
        InputError: the cells do not have the figure.
    """
    check_metrics([metric, "loss"], rows, "eval_")
    candidates: dict[Settings, list[Row]] = {}
    for row in rows:
        candidates.setdefault(row.cell.settings, []).append(row)

    def mean(settings: Settings, name: str) -> float:
        value = statistics.fmean(row.metrics[f"eval_{name}"] for row in candidates[settings])
        return -value if lower_is_better(name) else value

    few = validation_rows is not None and validation_rows < FEW_ROWS
    names = ["loss"] if few else [metric, "loss"]
    return max(candidates, key=lambda settings: [mean(settings, name) for name in names])
