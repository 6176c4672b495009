"""Writes the results of a study: `study.csv` (one row per cell), `study.md` (tables) and `learning_curve.png`.

A cell is a dictionary with its place (model, train_size, train_rows, fold, seed) and its metrics by name.
"""

import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from bert_hf.config.files import write_durably
from bert_hf.training.command import command_line
from bert_hf.training.publishing.curves import save_picture

TABLE, PAGE, PICTURE = "study.csv", "study.md", "learning_curve.png"

_BASELINE = "baseline_"


def metric_prefix(cells: pd.DataFrame) -> str:
    """Return the prefix of the reported metrics: `test_`, or `eval_` where the test rows have no labels (GLUE)."""
    return "test_" if any(name.startswith("test_") for name in cells) else "eval_"


def metric_names(cells: pd.DataFrame) -> list[str]:
    """Return the names of the metrics that every cell has, without their prefix."""
    prefix = metric_prefix(cells)
    return [name.removeprefix(prefix) for name in cells.dropna(axis="columns") if name.startswith(prefix)]


def baseline_names(cells: pd.DataFrame) -> list[str]:
    """Return the names of the baselines in the cells: `baseline_words` of `baseline_words_f1`, …"""
    pattern = re.compile(f"({_BASELINE}[a-z]+)_({'|'.join(metric_names(cells))})")
    return list(dict.fromkeys(match[1] for match in map(pattern.fullmatch, cells) if match))


def write_table(root: Path, cells: list[dict[str, Any]]) -> None:
    """Write `study.csv`: places and metrics of the cells, without times, so that equal runs give equal bytes."""
    table = pd.DataFrame(cells, dtype=object)  # integers stay integers beside a missing value
    order = ("model", "train_size", "train_rows", "fold", "seed", "eval_", "test_", _BASELINE)
    columns = [name for prefix in order for name in table if name.startswith(prefix)]
    write_durably(root / TABLE, table[columns].to_csv(index=False, lineterminator="\n"))


def metric_values(cells: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a table of one metric with the columns name, train_size, fold and value: models, then baselines.

    A baseline has one value per fold. Where models read different parts of the texts, their baselines do, too:
    `baseline_words (MODEL)`.
    """
    keys = ["train_size", "fold"]  # the columns that tell which rows were trained on
    columns = [metric_prefix(cells) + metric, *(f"{name}_{metric}" for name in baseline_names(cells))]
    tables = []
    for column in (name for name in columns if name in cells):
        values: Any = cells[["model", *keys, column]].set_axis(["name", *keys, "value"], axis="columns")
        if column.startswith(_BASELINE):
            baseline = column.removesuffix(f"_{metric}")
            values = values.dropna().drop_duplicates(["name", *keys])  # seeds share the baseline
            distinct = values.drop_duplicates([*keys, "value"])
            if distinct.duplicated(keys).any():  # the baselines of two models differ
                values = values.assign(name=[f"{baseline} ({model})" for model in values["name"]])
            else:
                values = distinct.assign(name=baseline)
        tables.append(values)
    return pd.concat(tables, ignore_index=True)


def paired_difference(values: pd.DataFrame, reference: pd.DataFrame) -> tuple[float, float, int, int]:
    """Return (mean difference on the same folds, half-width of its 95 % interval, folds where it is positive, folds).

    Seeds are averaged first: seeds of one fold share their test rows and are not independent. The folds share training
    rows, so their plain variance is too small; the t interval is corrected for that (Nadeau & Bengio 2003, section 3:
    the variance of k folds is multiplied by 1/k + test rows / training rows, here 1/k + 1/(k − 1)). NaN for one fold.
    """
    from scipy.stats import t

    means: list[Any] = [scores.groupby("fold")["value"].mean() for scores in (values, reference)]
    differences = (means[0] - means[1]).dropna()
    count = len(differences)
    half_width = math.nan
    if count > 1:
        half_width = t.ppf(0.975, count - 1) * math.sqrt(differences.var() * (1 / count + 1 / (count - 1)))
    return float(differences.mean()), float(half_width), int((differences > 0).sum()), count


def write_report(root: Path, cells: pd.DataFrame, metrics: list[str], reference: str | None) -> list[str]:
    """Write `study.md` and `learning_curve.png`; return the lines to print: the tables, and where the files are."""
    part = "Test" if metric_prefix(cells) == "test_" else "Validation"
    values_by_title = {f"{part} {metric}": metric_values(cells, metric) for metric in metrics}
    tables: list[str] = []
    for title, values in values_by_title.items():
        tables += [f"## {title}", "", *_markdown_table(values, reference), ""]
    note = "Intervals: over the folds, seeds averaged first, variance-corrected t (Nadeau & Bengio 2003)."
    picture = f"![{', '.join(values_by_title)} by number of training rows, beside the baselines]({PICTURE})"
    text = "\n".join(["# Study", "", f"`{command_line()}`", "", *tables, note, "", picture])
    write_durably(root / PAGE, text + "\n")
    draw_learning_curves(values_by_title, root / PICTURE)
    return [*tables, f"study: {', '.join(str(root / name) for name in (PAGE, TABLE, PICTURE))}"]


def _markdown_table(metric_table: pd.DataFrame, reference: str | None) -> list[str]:
    """Return the lines of a Markdown table of `metric_values`: means by size, and differences from the reference."""
    compares = reference in metric_table["name"].values
    head = ["training rows", "model", "mean", "standard deviation", "runs"]
    if compares:
        head += [f"difference from {reference}", "95 % interval", "folds higher"]
    rows = [head, ["---"] * len(head)]

    for size, of_size in metric_table.groupby("train_size", sort=False):
        for name, of_name in of_size.groupby("name", sort=False):
            values = of_name["value"]
            deviation = "–" if len(values) == 1 else f"{values.std():.4f}"
            cells = [_size_label(size), str(name), f"{values.mean():.4f}", deviation, str(len(values))]
            if name == reference:
                cells += ["", "", ""]
            elif compares:
                mean, half, higher, folds = paired_difference(of_name, of_size.query("name == @reference"))
                interval = "–" if folds == 1 else f"{mean - half:+.4f} to {mean + half:+.4f}"
                cells += [f"{mean:+.4f}", interval, f"{higher} of {folds}"]
            rows.append(cells)
    return [f"| {' | '.join(row)} |" for row in rows]


def _size_label(size: Any) -> str:
    return size if size == "all" else f"{size:,}"


def draw_learning_curves(values_by_title: dict[str, pd.DataFrame], path: Path) -> None:
    """Write a picture with a panel per metric: mean ± standard deviation by training rows, baselines dashed."""
    figure = Figure(figsize=(max(6.4, 5.2 * len(values_by_title)), 4.8), layout="constrained")
    panels = figure.subplots(1, len(values_by_title), squeeze=False)[0]
    for panel, (title, values) in zip(panels, values_by_title.items(), strict=True):
        sizes = values["train_size"].unique()
        for number, (name, of_name) in enumerate(values.groupby("name", sort=False)):
            by_size: Any = of_name.groupby("train_size", sort=False)["value"].agg(["mean", "std"]).reindex(sizes)
            line = "--" if str(name).startswith(_BASELINE) else "-"
            shifted = [place + 0.05 * number for place in range(len(sizes))]  # error bars do not hide each other
            errors = by_size["std"].fillna(0.0)
            panel.errorbar(shifted, by_size["mean"], yerr=errors, label=name, marker="o", capsize=4, linestyle=line)

        panel.set_xticks(range(len(sizes)), list(map(_size_label, sizes)))
        panel.set_xlabel("labelled training rows")
        panel.set_ylabel(title)
        panel.grid(alpha=0.25)
        panel.legend(frameon=False, fontsize=9)
    save_picture(figure, path)
