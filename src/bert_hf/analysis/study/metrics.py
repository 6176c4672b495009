"""Reads the metrics of finished cells, chooses settings by them, and arranges them by model, size and fold."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bert_hf.analysis.study.plan import Cell, Settings
from bert_hf.errors import InputError, did_you_mean
from bert_hf.finetuning.run import FEW_ROWS

# Metrics by which results are usually reported; a study compares the first two of them that its cells have.
_USUAL = (
    "combined_score", "best_f1", "best_exact", "f1", "exact", "average_precision", "matthews_correlation", "pearson",
    "spearmanr", "accuracy",
)  # fmt: skip
_OF_THE_CLOCK = ("_runtime", "_per_second", "_time")
_BASELINE = "baseline_"


@dataclass(frozen=True)
class Row:
    """A finished cell: its metrics by the names of `all_results.json`, and the rows that it was trained on."""

    cell: Cell
    training_rows: int | None
    metrics: dict[str, float]


def cell_metrics(run: Path, cell: Cell) -> dict[str, float]:
    """Validation, test and baseline metrics of a run, without times.

    A cell that trained on a whole subset has no validation rows of its own: its validation metrics are left out. So
    are test metrics and baselines of a cell that searches.
    """
    metrics = json.loads((run / "all_results.json").read_text(encoding="utf-8"))
    kept = ("eval_",) if cell.tuning else ("eval_", "test_", _BASELINE)
    if cell.size is not None and not cell.tuning:
        kept = ("test_", _BASELINE)
    return {
        name: value
        for name, value in sorted(metrics.items())
        if name.startswith(kept) and not name.endswith(_OF_THE_CLOCK) and isinstance(value, int | float)
    }


def names_of(rows: Iterable[Row], prefix: str) -> list[str]:
    """The metrics that the rows have under a prefix, without it."""
    return sorted({name.removeprefix(prefix) for row in rows for name in row.metrics if name.startswith(prefix)})


def usual_metrics(rows: Iterable[Row], prefix: str, of_task: str | None = None) -> list[str]:
    """Names of the metrics, without the prefix, that are compared where none are asked for.

    Args:
        of_task: the metric by which the task's benchmark is reported, which comes first.
    """
    names = names_of(rows, prefix)
    return [name for name in dict.fromkeys((of_task, *_USUAL)) if name in names][:2] or names[:1]


def check_metrics(metrics: list[str], rows: list[Row], prefix: str) -> None:
    """Refuses metrics that the cells, or some of them, do not have.

    Raises:
        InputError: names the metrics that all cells have.
    """
    names = [name for name in names_of(rows, prefix) if all(f"{prefix}{name}" in row.metrics for row in rows)]
    for name in metrics:
        if name in names:
            continue
        lacking = [row.cell for row in rows if f"{prefix}{name}" not in row.metrics]
        which = "the cells have" if len(lacking) == len(rows) else f"the cell {lacking[0]} has"
        remedy = f"{did_you_mean(name, names)}one of: {', '.join(names)}"
        raise InputError(f"{which} no metric {name!r}", where="--metrics", remedy=remedy)


def lower_is_better(metric: str) -> bool:
    return metric.endswith("loss")


# ---- the choice of settings


def choose_settings(rows: list[Row], metric: str, validation_rows: int | None) -> Settings:
    """The settings with the best mean validation metric over the seeds; ties go to the lower mean validation loss.

    With fewer than `FEW_ROWS` validation rows the loss alone decides.

    Args:
        rows: tuning cells of one model, training size and fold; of equal candidates the first one is chosen.
        metric: without "eval_".
        validation_rows: in each cell; None where only the recipe can tell.

    Raises:
        InputError: a cell does not have the metric.
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


# ---- by model, size and fold

Values = dict[int, list[float]]  # fold number → the metric of each seed


@dataclass(frozen=True)
class Scores:
    """One metric: model or baseline → training size (None: all) → fold → values of the seeds.

    Attributes:
        part: "test" or "validation", whose metric it is.
        training_rows: mean over the folds, by training size; None where only the recipe can tell.
    """

    part: str
    metric: str
    models: dict[str, dict[int | None, Values]]
    baselines: dict[str, dict[int | None, Values]]
    training_rows: dict[int | None, float | None]

    def of(self, name: str) -> dict[int | None, Values]:
        return {**self.models, **self.baselines}[name]


def judged_prefix(final: list[Row]) -> str:
    """`test_`; or `eval_` where the test rows have no labels, as those of GLUE."""
    return "test_" if names_of(final, "test_") else "eval_"


def collect(final: list[Row], metric: str) -> Scores:
    """The values of a metric in the final cells. A baseline has one value a fold: the mean over its cells."""
    prefix = judged_prefix(final)
    models: dict[str, dict[int | None, Values]] = {}
    baselines: dict[str, dict[int | None, Values]] = {}
    for row in final:
        size, fold = row.cell.size, row.cell.fold.number
        by_size = models.setdefault(row.cell.model.name, {})
        by_size.setdefault(size, {}).setdefault(fold, []).append(row.metrics[f"{prefix}{metric}"])
        for name, value in _baselines_of(row, metric, prefix).items():
            baselines.setdefault(name, {}).setdefault(size, {}).setdefault(fold, []).append(value)

    for by_size in baselines.values():
        for values in by_size.values():
            values.update({fold: [statistics.fmean(found)] for fold, found in values.items()})

    counts: dict[int | None, list[int]] = {}
    for row in final:
        if row.training_rows is not None:
            counts.setdefault(row.cell.size, []).append(row.training_rows)
    sizes = dict.fromkeys(row.cell.size for row in final)
    means = {size: statistics.fmean(counts[size]) if size in counts else None for size in sizes}
    part = prefix.rstrip("_").replace("eval", "validation")
    return Scores(part, metric, models, baselines, means)


def check_reference(name: str, models: Iterable[str], scores: Iterable[Scores]) -> None:
    """Refuses a reference that is neither one of the models nor a baseline of the cells.

    Raises:
        InputError: names what there is.
    """
    names = list(dict.fromkeys([*models, *(baseline for one in scores for baseline in one.baselines)]))
    if name not in names:
        remedy = f"{did_you_mean(name, names)}one of: {', '.join(names)}"
        raise InputError(f"no model or baseline {name!r}", where="--reference", remedy=remedy)


def _baselines_of(row: Row, metric: str, prefix: str) -> dict[str, float]:
    """Baselines with this metric: `baseline_characters_f1` is the f1 of `baseline_characters`.

    Of `baseline_average_precision` the metric is `average_precision`, and not `precision`: the longest name counts.
    """
    metrics = names_of([row], prefix)
    found = {}
    for name, value in row.metrics.items():
        if not name.startswith(_BASELINE):
            continue
        measured = max((other for other in metrics if name.endswith(f"_{other}")), key=len, default=None)
        if measured == metric:
            found[name.removesuffix(f"_{metric}")] = value
    return found
