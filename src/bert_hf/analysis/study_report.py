"""Writes the results of a study: `study.csv` (one row per cell), `study.md` (tables) and `learning_curve.png`."""

import csv
import io
import itertools
import json
import math
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_hf.config.files import write_durably
from bert_hf.training.command import command_line

TABLE, PAGE, PICTURE = "study.csv", "study.md", "learning_curve.png"

_CLOCK = ("_runtime", "_per_second", "_preparation_time")
_BASELINE = "baseline_"


@dataclass(frozen=True)
class Row:
    """A finished cell, the number of rows that it was trained on, and its metrics by name, in the task's order."""

    cell: Any
    training_rows: int
    metrics: dict[str, float]


def read_cell(cell: Any, run: Path) -> Row:
    """Return the results of a run: validation, test and baseline metrics, without times.

    A subset has no separate validation rows, so its validation metrics are left out.
    """
    results = json.loads((run / "all_results.json").read_text(encoding="utf-8"))
    prefixes = ("eval_", "test_", _BASELINE) if cell.size is None else ("test_", _BASELINE)
    metrics = {
        name: value for name, value in results.items() if name.startswith(prefixes) and not name.endswith(_CLOCK)
    }
    return Row(cell, results["train_samples"], metrics)


def prefix_of(rows: list[Row]) -> str:
    """Return `test_`; or `eval_` where the test rows have no labels, as in GLUE."""
    return "test_" if any(name.startswith("test_") for row in rows for name in row.metrics) else "eval_"


def metric_names(rows: list[Row]) -> list[str]:
    """Return the metrics that every row has, without their prefix."""
    prefix = prefix_of(rows)
    common = set.intersection(*(set(row.metrics) for row in rows))
    return [name.removeprefix(prefix) for name in rows[0].metrics if name in common and name.startswith(prefix)]


def baseline_names(row: Row) -> list[str]:
    """Return the baselines of a run: `baseline_words` of `baseline_words_f1`, …"""
    pattern = re.compile(f"({_BASELINE}[a-z]+)_({'|'.join(metric_names([row]))})")
    names = [match[1] for match in map(pattern.fullmatch, row.metrics) if match]
    return list(dict.fromkeys(names))


def main_metrics(rows: list[Row]) -> list[str]:
    """Return the first two metrics of the task but its loss."""
    return [name for name in metric_names(rows) if name != "loss"][:2]


def format_metrics(row: Row, metrics: list[str] | None) -> str:
    """Return `test_f1 0.9123, test_average_precision 0.9567` of a row."""
    prefix = prefix_of([row])
    return ", ".join(f"{prefix}{name} {row.metrics[prefix + name]:.4f}" for name in metrics or main_metrics([row]))


def write_table(root: Path, rows: list[Row]) -> None:
    """Write the coordinates and metrics of the cells. Without times: the bytes depend on nothing but the cells."""
    names = dict.fromkeys(name for row in rows for name in row.metrics)
    metrics = [name for prefix in ("eval_", "test_", _BASELINE) for name in names if name.startswith(prefix)]

    text = io.StringIO()
    writer = csv.DictWriter(text, ["model", "train_size", "train_rows", "fold", "seed", *metrics], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cell = row.cell
        place = {"model": cell.model.name, "train_size": cell.size or "all", "train_rows": row.training_rows}
        writer.writerow({**place, "fold": cell.fold, "seed": cell.seed, **row.metrics})
    write_durably(root / TABLE, text.getvalue())


# ---- statistics

Values = dict[int, list[float]]  # fold → the metric of each seed

# One metric: model or baseline → number of training rows (None: all) → values
Scores = dict[str, dict[int | None, Values]]


def collect(rows: list[Row], metric: str) -> Scores:
    """Return the values of a metric, models first. A baseline has one value per fold, the same for all seeds.

    Where models read different parts of the texts, their baselines do, too: `baseline_words (MODEL)`.
    """
    scores: Scores = {row.cell.model.name: {} for row in rows}
    baselines: dict[str, Scores] = {}
    for row in rows:
        cell = row.cell
        by_fold = scores[cell.model.name].setdefault(cell.size, {})
        by_fold.setdefault(cell.fold, []).append(row.metrics[prefix_of(rows) + metric])
        for name in baseline_names(row):
            if (value := row.metrics.get(f"{name}_{metric}")) is not None:
                own = baselines.setdefault(name, {}).setdefault(cell.model.name, {})
                own.setdefault(cell.size, {})[cell.fold] = [value]

    for name, by_model in baselines.items():
        first, *others = by_model.values()
        if all(other == first for other in others):
            scores[name] = first
        else:
            scores |= {f"{name} ({model})": own for model, own in by_model.items()}
    return scores


def mean_and_deviation(values: Values) -> tuple[float, float | None]:
    """Return the mean and standard deviation of all values; None for a single value."""
    everything = list(itertools.chain.from_iterable(values.values()))
    return statistics.fmean(everything), statistics.stdev(everything) if len(everything) > 1 else None


def paired_difference(values: Values, reference: Values) -> tuple[float, float | None, int, int]:
    """Return (mean difference on the same folds, half-width of its 95 % interval, folds where it is positive, folds).

    Seeds are averaged first: seeds of one fold share their test rows and are not independent. The folds share training
    rows, so their plain variance is too small; the t interval is corrected for that (Nadeau & Bengio 2003, section 3:
    the variance of k folds is multiplied by 1/k + test rows / training rows, here 1/k + 1/(k − 1)).
    """
    from scipy.stats import t

    folds = sorted(values.keys() & reference.keys())
    differences = np.array([statistics.fmean(values[fold]) - statistics.fmean(reference[fold]) for fold in folds])
    count = len(folds)
    mean, higher = float(differences.mean()), int((differences > 0).sum())
    if count < 2:
        return mean, None, higher, count

    variance = differences.var(ddof=1) * (1 / count + 1 / (count - 1))
    return mean, float(t.ppf(0.975, count - 1) * math.sqrt(variance)), higher, count


# ---- the page


def write_report(root: Path, rows: list[Row], metrics: list[str], reference: str | None) -> list[str]:
    """Write the page and the picture; return the tables and the paths, to be printed."""
    part = "Test" if prefix_of(rows) == "test_" else "Validation"
    scores = {f"{part} {metric}": collect(rows, metric) for metric in metrics}
    tables = [line for title, one in scores.items() for line in (f"## {title}", "", *_table(one, reference), "")]
    note = "Intervals: over the folds, seeds averaged first, variance-corrected t (Nadeau & Bengio 2003)."
    text = "\n".join(["# Study", "", f"`{command_line()}`", "", *tables, note])
    write_durably(root / PAGE, text + "\n")
    draw(scores, root / PICTURE)
    return [*tables, f"study: {', '.join(str(root / name) for name in (PAGE, TABLE, PICTURE))}"]


def _sizes(scores: Scores) -> list[int | None]:
    return list(next(iter(scores.values())))


def _table(scores: Scores, reference: str | None) -> list[str]:
    """Return the mean of each model and baseline at each size and, with a reference, the difference from it."""
    head = ["training rows", "model", "mean", "standard deviation", "runs"]
    if reference in scores:
        head += [f"difference from {reference}", "95 % interval", "folds higher"]
    lines = [_line(head), _line(["---"] * len(head))]

    for size, name in itertools.product(_sizes(scores), scores):
        values = scores[name][size]
        mean, deviation = mean_and_deviation(values)
        spread = "–" if deviation is None else f"{deviation:.4f}"
        cells = [_size(size), name, f"{mean:.4f}", spread, str(sum(map(len, values.values())))]
        if name == reference:
            cells += ["", "", ""]
        elif reference in scores:
            mean, half, higher, folds = paired_difference(values, scores[reference][size])
            interval = "–" if half is None else f"{mean - half:+.4f} to {mean + half:+.4f}"
            cells += [f"{mean:+.4f}", interval, f"{higher} of {folds}"]
        lines.append(_line(cells))
    return lines


def _size(size: int | None) -> str:
    return "all" if size is None else f"{size:,}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


# ---- the picture


def draw(scores: dict[str, Scores], path: Path) -> None:
    """Draw one panel per metric: mean ± standard deviation by training rows, of models and baselines (dashed)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(6.4, 5.2 * len(scores)), 4.8), layout="constrained")
    panels = figure.subplots(1, len(scores), squeeze=False)[0]
    for panel, (title, one) in zip(panels, scores.items(), strict=True):
        places = np.arange(len(_sizes(one)))
        for number, (name, by_size) in enumerate(one.items()):
            means, deviations = zip(*map(mean_and_deviation, by_size.values()), strict=True)
            errors = [deviation or 0.0 for deviation in deviations]
            line = "--" if name.startswith(_BASELINE) else "-"
            beside = places + 0.05 * number  # so that error bars do not hide each other
            panel.errorbar(beside, means, yerr=errors, label=name, marker="o", capsize=4, linestyle=line)

        panel.set_xticks(places, [_size(size) for size in _sizes(one)])
        panel.set_xlabel("labelled training rows")
        panel.set_ylabel(title)
        panel.grid(alpha=0.25)
        panel.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)
