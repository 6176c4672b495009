"""Writes `study.csv` (a row a cell), `study.md` and the learning curve.

The page has means, standard deviations, paired differences and chosen settings.
"""

import csv
import io
from pathlib import Path

from bert_hf.analysis.study.comparison import RESAMPLES, paired_difference, summarize
from bert_hf.analysis.study.metrics import (
    Row,
    Scores,
    check_metrics,
    check_reference,
    collect,
    judged_prefix,
    usual_metrics,
)
from bert_hf.analysis.study.picture import PICTURE, draw_study
from bert_hf.analysis.study.plan import Fold, Model, Plan, Settings
from bert_hf.config.files import write_durably

TABLE, PAGE = "study.csv", "study.md"
FEWEST_FOLDS = 5  # for which an interval is printed; with fewer it is far too narrow (docs/studies.md)

Chosen = dict[tuple[Model, int | None, Fold], Settings]


def write_table(root: Path, rows: list[Row]) -> None:
    """Writes coordinates, settings and metrics of the cells, in the order of the plan.

    Without times: the bytes depend on nothing but the cells.
    """
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


def write_report(plan: Plan, rows: list[Row], chosen: Chosen) -> list[str]:
    """Writes the page and the picture.

    Returns:
        The lines to print: the page's tables, and where the files are.

    Raises:
        InputError: the cells do not have a metric, or the reference is neither a model nor a baseline.
    """
    final = [row for row in rows if not row.cell.tuning]
    prefix = judged_prefix(final)
    metrics = plan.study_args.metrics or usual_metrics(final, prefix, plan.task_metric)
    check_metrics(metrics, final, prefix)
    scores = [collect(final, metric) for metric in metrics]
    reference = _reference(plan, scores)

    tables: list[str] = []
    for one in scores:
        tables += [f"## {one.part.capitalize()} {one.metric}", "", *_means(one), ""]
        if reference is not None:
            tables += [f"### {one.metric}: difference from {reference}", "", *_differences(one, reference), ""]
    if plan.tunes:
        tables += ["## Chosen settings", "", *_chosen_settings(chosen), ""]

    text = "\n".join(["# Study", "", *_description(plan, scores[0].part), "", *tables])
    write_durably(plan.root / PAGE, text.rstrip() + "\n")
    draw_study(scores, plan.root / PICTURE)
    return [*tables, f"study: {', '.join(str(plan.root / name) for name in (PAGE, TABLE, PICTURE))}"]


def _reference(plan: Plan, scores: list[Scores]) -> str | None:
    """The name that the others are compared with: the one asked for, or the first model of random weights."""
    name = plan.study_args.reference
    if name is None:
        return next((model.name for model in plan.models if model.from_scratch), None)

    check_reference(name, [model.name for model in plan.models], scores)
    return name


# ---- the page


def _description(plan: Plan, part: str) -> list[str]:
    study_args = plan.study_args
    data = f"the folds in `{study_args.folds_dir}`" if study_args.folds_dir else "the recipe's own data"
    options = " ".join(plan.recipe_argv) or "none"
    lines = [f"- recipe `{study_args.recipe}` on {data}; options for every cell: `{options}`"]
    for model in plan.models:
        kind = f"the shape of `{model.path}` with random weights" if model.from_scratch else f"`{model.path}`"
        own = f", `{' '.join(model.argv)}`" if model.argv else ""
        lines.append(f"- {model.name}: {kind}{own}")

    sizes = ", ".join("all" if size is None else str(size) for size in plan.sizes)
    seeds = ", ".join(map(str, plan.seeds))
    lines.append(f"- folds: {len(plan.folds)}; seeds: {seeds}; training rows: {sizes}")
    lines.append("- n counts runs (folds × seeds), and baselines once a fold; sd is over these n values.")
    if part == "validation":
        lines.append("- The test rows have no labels. Metrics are of the validation rows, which also chose weights.")
    if plan.subsets:
        lines.append(
            "- A subset of the training rows is the same for all models and seeds of a fold. Its models are trained "
            "for all steps and nothing is selected; baselines have the same rows."
        )
    if plan.tunes:
        lines.append(
            "- Settings were chosen within each fold by the mean validation metric over the seeds. With a subset, a "
            "fifth of the subset validated: the one numbered by the seed modulo 5."
        )
    return lines


def _means(scores: Scores) -> list[str]:
    lines = _table_head("training rows", "model", "mean", "sd", "n", "sd over seeds")
    for size, count in scores.training_rows.items():
        for name in [*scores.models, *scores.baselines]:
            if size in scores.of(name):
                found = summarize(scores.of(name)[size])
                cells = (f"{found.mean:.4f}", _number(found.sd), str(found.count), _number(found.sd_of_seeds))
                lines.append(_line(_size(size, count), name, *cells))
    return lines


def _differences(scores: Scores, reference: str) -> list[str]:
    if reference not in {**scores.models, **scores.baselines}:  # baselines have no loss
        return [f"{reference} has no {scores.metric}."]

    lines = _table_head("training rows", "model", "difference", "95 % interval", "higher in")
    for size, count in scores.training_rows.items():
        for name in [*scores.models, *scores.baselines]:
            if name == reference or size not in scores.of(name):
                continue
            found = paired_difference(scores.of(name)[size], scores.of(reference)[size])
            interval = "–"
            if found.interval is not None and found.folds >= FEWEST_FOLDS:
                interval = f"{found.interval[0]:+.4f} to {found.interval[1]:+.4f}"
            folds = f"{found.higher} of {found.folds} folds"
            lines.append(_line(_size(size, count), name, f"{found.mean:+.4f}", interval, folds))

    note = f"Seeds are averaged first. Interval: percentile bootstrap over the folds, {RESAMPLES:,} resamples"
    return [
        *lines,
        "",
        f"{note}; none with fewer than {FEWEST_FOLDS} folds. It is too narrow: an indication, no test.",
    ]


def _chosen_settings(chosen: Chosen) -> list[str]:
    lines = _table_head("training rows", "model", "fold", "settings")
    for (model, size, fold), settings in chosen.items():
        values = ", ".join(f"{key} {value}" for key, value in settings)
        lines.append(_line(_size(size, None), model.name, str(fold.number), values))
    return lines


def _size(size: int | None, count: float | None) -> str:
    if size is not None:
        return f"{size:,}"
    return "all" if count is None else f"all ({count:,.0f})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _table_head(*names: str) -> list[str]:
    return [_line(*names), _line(*["---"] * len(names))]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
