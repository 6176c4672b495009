"""Writes the results of a study: `study.csv` (one row per cell), `study.md` (tables) and `learning_curve.png`."""

import csv
import io
import itertools
import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_hf.config.files import write_durably
from bert_hf.errors import InputError, did_you_mean

TABLE, PAGE, PICTURE = "study.csv", "study.md", "learning_curve.png"

# Metrics by which results are usually reported; the first two that the cells have are compared.
_USUAL = (
    "combined_score", "best_f1", "best_exact", "f1", "exact", "average_precision", "matthews_correlation", "pearson",
    "spearmanr", "accuracy",
)  # fmt: skip
_CLOCK = ("_runtime", "_per_second", "_time")
_BASELINE = "baseline_"


@dataclass(frozen=True)
class Row:
    """A finished cell, the number of rows that it was trained on (None: unknown), and its metrics by name."""

    cell: Any
    training_rows: int | None
    metrics: dict[str, float]


def cell_metrics(run: Path, validated: bool) -> dict[str, float]:
    """Validation, test and baseline metrics of a run, without times.

    Args:
        validated: the run had validation rows of its own; otherwise its validation metrics are left out.
    """
    metrics = json.loads((run / "all_results.json").read_text(encoding="utf-8"))
    prefixes = ("eval_", "test_", _BASELINE) if validated else ("test_", _BASELINE)
    return {
        name: value
        for name, value in sorted(metrics.items())
        if name.startswith(prefixes) and not name.endswith(_CLOCK) and isinstance(value, int | float)
    }


def prefix_of(rows: list[Row]) -> str:
    """`test_`; or `eval_` where the test rows have no labels, as those of GLUE."""
    return "test_" if any(name.startswith("test_") for row in rows for name in row.metrics) else "eval_"


def names_of(rows: list[Row], prefix: str) -> list[str]:
    """The metrics that every row has under a prefix, without it."""
    common = set.intersection(*(set(row.metrics) for row in rows))
    return sorted(name.removeprefix(prefix) for name in common if name.startswith(prefix))


def usual_metrics(rows: list[Row], prefix: str) -> list[str]:
    names = names_of(rows, prefix)
    return [name for name in _USUAL if name in names][:2] or names[:1]


def check_metrics(metrics: Iterable[str], rows: list[Row]) -> None:
    """Raises an `InputError` for a metric that the cells do not have."""
    names = names_of(rows, prefix_of(rows))
    for name in metrics:
        if name not in names:
            hint = f"{did_you_mean(name, names)}one of: {', '.join(names)}"
            raise InputError(f"the cells have no metric {name!r}", where="--metrics", remedy=hint)


def format_metrics(row: Row, metrics: list[str] | None) -> str:
    """`test_f1 0.9123, test_average_precision 0.9567` of a row."""
    prefix = prefix_of([row])
    names = metrics or usual_metrics([row], prefix)
    return ", ".join(f"{prefix}{name} {row.metrics[prefix + name]:.4f}" for name in names)


def check_reference(name: str, names: Iterable[str]) -> None:
    """Raises an `InputError` for a reference that is none of the names."""
    names = list(names)
    if name not in names:
        hint = f"{did_you_mean(name, names)}one of: {', '.join(names)}"
        raise InputError(f"no model or baseline {name!r}", where="--reference", remedy=hint)


def write_table(root: Path, rows: list[Row]) -> None:
    """Writes the coordinates and metrics of the cells. Without times: the bytes depend on nothing but the cells."""
    names = {name for row in rows for name in row.metrics}
    metrics = [name for prefix in ("eval_", "test_", _BASELINE) for name in sorted(names) if name.startswith(prefix)]

    text = io.StringIO()
    writer = csv.DictWriter(text, ["model", "train_size", "train_rows", "fold", "seed", *metrics], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cell = row.cell
        place = {"model": cell.model.name, "train_size": cell.size_name, "train_rows": row.training_rows}
        writer.writerow({**place, "fold": cell.fold, "seed": cell.seed, **row.metrics})
    write_durably(root / TABLE, text.getvalue())


# ---- statistics

Values = dict[int, list[float]]  # fold → the metric of each seed


@dataclass(frozen=True)
class Scores:
    """One metric: model or baseline → number of training rows (None: all) → fold → the values of the seeds."""

    title: str
    metric: str
    models: dict[str, dict[int | None, Values]]
    baselines: dict[str, dict[int | None, Values]]

    @property
    def all(self) -> dict[str, dict[int | None, Values]]:
        return {**self.models, **self.baselines}

    @property
    def sizes(self) -> list[int | None]:
        return list(next(iter(self.models.values())))


def collect(rows: list[Row], metric: str) -> Scores:
    """The values of a metric. A baseline has one value per fold: it is the same for all models and seeds."""
    prefix = prefix_of(rows)
    models: dict = {}
    baselines: dict = {}
    for row in rows:
        cell = row.cell
        by_fold = models.setdefault(cell.model.name, {}).setdefault(cell.size, {})
        by_fold.setdefault(cell.fold, []).append(row.metrics[prefix + metric])
        for name in ("majority", "mean", "words", "characters"):
            if (value := row.metrics.get(f"{_BASELINE}{name}_{metric}")) is not None:
                baselines.setdefault(f"{_BASELINE}{name}", {}).setdefault(cell.size, {})[cell.fold] = [value]
    part = "Test" if prefix == "test_" else "Validation"
    return Scores(f"{part} {metric}", metric, models, baselines)


def mean_and_deviation(values: Values) -> tuple[float, float | None]:
    """Mean and standard deviation of all values; None for a single value."""
    everything = list(itertools.chain.from_iterable(values.values()))
    return statistics.fmean(everything), statistics.stdev(everything) if len(everything) > 1 else None


def paired_difference(values: Values, reference: Values) -> tuple[float, float | None, int, int]:
    """(mean difference on the same folds, half-width of its 95 % interval, folds in which it is positive, folds).

    Seeds are averaged first: those of one fold share their test rows and are not independent. The folds share training
    rows, so their plain variance is too small; the t interval is corrected for that (Nadeau & Bengio 2003, section 3:
    the variance of k folds is multiplied by 1/k + test rows / training rows, here 1/k + 1/(k − 1)).
    """
    from scipy.stats import t

    folds = sorted(values.keys() & reference.keys())
    differences = np.array([statistics.fmean(values[fold]) - statistics.fmean(reference[fold]) for fold in folds])
    count = len(folds)
    higher = int((differences > 0).sum())
    if count < 2:
        return float(differences.mean()), None, higher, count

    variance = differences.var(ddof=1) * (1 / count + 1 / (count - 1))
    return float(differences.mean()), float(t.ppf(0.975, count - 1) * math.sqrt(variance)), higher, count


# ---- the page


def write_report(
    root: Path, rows: list[Row], metrics: list[str] | None, reference: str | None, description: list[str]
) -> list[str]:
    """Writes the page and the picture; returns the tables and the paths, to be printed.

    Raises:
        InputError: the cells do not have a metric, or the reference is neither a model nor a baseline.
    """
    check_metrics(metrics or [], rows)
    scores = [collect(rows, metric) for metric in metrics or usual_metrics(rows, prefix_of(rows))]
    if reference is not None:
        check_reference(reference, dict.fromkeys(name for one in scores for name in one.all))

    tables: list[str] = []
    for one in scores:
        tables += [f"## {one.title}", "", *_means(one), ""]
        if reference in one.all:
            tables += [f"### Difference from {reference}", "", *_differences(one, reference), ""]
    write_durably(root / PAGE, "\n".join(["# Study", "", *description, "", *tables]).rstrip() + "\n")
    draw(scores, root / PICTURE)
    return [*tables, f"study: {', '.join(str(root / name) for name in (PAGE, TABLE, PICTURE))}"]


def _means(scores: Scores) -> list[str]:
    lines = _table_head("training rows", "model", "mean", "standard deviation", "runs")
    for size, name in itertools.product(scores.sizes, scores.all):
        if size in scores.all[name]:
            values = scores.all[name][size]
            mean, deviation = mean_and_deviation(values)
            spread = "–" if deviation is None else f"{deviation:.4f}"
            lines.append(_line(_size(size), name, f"{mean:.4f}", spread, str(sum(map(len, values.values())))))
    return lines


def _differences(scores: Scores, reference: str) -> list[str]:
    lines = _table_head("training rows", "model", "difference", "95 % interval", "higher in")
    for size, name in itertools.product(scores.sizes, scores.all):
        if name == reference or size not in scores.all[name]:
            continue
        mean, half, higher, folds = paired_difference(scores.all[name][size], scores.all[reference][size])
        interval = "–" if half is None else f"{mean - half:+.4f} to {mean + half:+.4f}"
        lines.append(_line(_size(size), name, f"{mean:+.4f}", interval, f"{higher} of {folds} folds"))
    return [
        *lines,
        "",
        "Seeds are averaged first; variance-corrected t interval over the folds (Nadeau & Bengio 2003).",
    ]


def _size(size: int | None) -> str:
    return "all" if size is None else f"{size:,}"


def _table_head(*names: str) -> list[str]:
    return [_line(*names), _line(*["---"] * len(names))]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


# ---- the picture


def draw(scores: list[Scores], path: Path) -> None:
    """One panel per metric: mean ± standard deviation of each model by training rows, baselines as dashed lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(6.4, 5.2 * len(scores)), 4.8), layout="constrained")
    for panel, one in zip(figure.subplots(1, len(scores), squeeze=False)[0], scores, strict=True):
        places = np.arange(len(one.sizes))
        shift = np.linspace(-0.12, 0.12, len(one.models))  # so that error bars do not hide each other
        for offset, (name, by_size) in zip(shift, one.models.items(), strict=True):
            means, deviations = zip(*map(mean_and_deviation, by_size.values()), strict=True)
            errors = [deviation or 0.0 for deviation in deviations]
            panel.errorbar(places + offset, means, yerr=errors, label=name, marker="o", capsize=4)

        for name, by_size in one.baselines.items():
            means = [mean_and_deviation(values)[0] for values in by_size.values()]
            label = name.replace("_", ": ", 1)
            if len(means) == 1:
                panel.axhline(means[0], linestyle="--", color="0.4", linewidth=1)
                panel.annotate(label, (0.01, means[0]), xycoords=("axes fraction", "data"), fontsize=8, va="bottom")
            else:
                panel.plot(places[: len(means)], means, linestyle="--", marker=".", linewidth=1, label=label)

        panel.set_xticks(places, [_size(size) for size in one.sizes])
        panel.set_xlim(-0.5, len(places) - 0.5)
        panel.set_xlabel("labelled training rows")
        panel.set_ylabel(one.title)
        panel.grid(alpha=0.25)
        panel.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)
