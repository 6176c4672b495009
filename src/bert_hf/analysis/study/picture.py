"""Draws `learning_curve.png`: each metric against the number of training rows, or, with one size, by model."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bert_hf.analysis.study.comparison import Summary, summarize
from bert_hf.analysis.study.metrics import Scores

PICTURE = "learning_curve.png"

# Okabe and Ito's palette, which readers with any kind of colour vision can tell apart; and a marker for each
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_BASELINE_DASHES: tuple = ((5, 2), (1, 1.5), (5, 2, 1, 2), (9, 3), (3, 1, 1, 1, 1, 1))
_BASELINE_COLOUR = "0.35"
_MARGIN = 0.6  # of the models' range, above and below it: farther baselines would flatten the curves


def draw_study(scores: list[Scores], path: Path) -> None:
    """Draws a panel for each metric; the legend is below them."""
    figure = Figure(figsize=(max(6.4, 5.2 * len(scores)), 4.8), layout="constrained")
    panels = figure.subplots(1, len(scores), squeeze=False)[0]
    for panel, one in zip(panels, scores, strict=True):
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
        panel.set_ylabel(f"{one.part} {_readable(one.metric)}")
        if len(one.training_rows) > 1:
            _draw_curves(panel, one)
        else:
            _draw_models(panel, one)

        lines, labels = panel.get_legend_handles_labels()
        below = -0.24 if len(one.training_rows) > 1 else -0.2
        style = {"frameon": False, "fontsize": 9, "loc": "upper center", "bbox_to_anchor": (0.5, below)}
        panel.legend(lines, labels, ncols=min(2, len(lines)), **style)
    figure.savefig(path, dpi=150)


def _draw_curves(panel: Axes, scores: Scores) -> None:
    """The mean over folds and seeds against training rows on a logarithmic scale, ± sd as a band."""
    # The whole set has another number of rows in each fold: it is drawn at their mean
    places = {size: float(size or count or 0) for size, count in scores.training_rows.items()}
    ends: list[float] = []
    for style, (name, by_size) in zip(_model_styles(), scores.models.items(), strict=False):
        found = [summarize(values) for values in by_size.values()]
        at = [places[size] for size in by_size]
        panel.plot(at, [one.mean for one in found], label=name, linewidth=1.8, markersize=5, **style)

        low, high = _band(found)
        panel.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)
        ends += low + high

    for dashes, (name, by_size) in zip(itertools.cycle(_BASELINE_DASHES), scores.baselines.items(), strict=False):
        means = [summarize(values).mean for values in by_size.values()]
        at = [places[size] for size in by_size]
        style = {"color": _BASELINE_COLOUR, "dashes": dashes, "linewidth": 1.4}
        panel.plot(at, means, label=_readable(name), **style)
    _limit(panel, ends)

    panel.set_xscale("log")
    ticks = [f"all\n({place:,.0f})" if size is None else f"{size:,}" for size, place in places.items()]
    panel.set_xticks(list(places.values()), ticks)
    panel.minorticks_off()
    panel.set_xlabel("labelled training rows (logarithmic scale)\nlines: mean over folds and seeds, bands: ± 1 sd")


def _draw_models(panel: Axes, scores: Scores) -> None:
    """With one training size: a point for each run, mean ± sd by model, baselines as lines."""
    size, count = next(iter(scores.training_rows.items()))
    ends: list[float] = []
    for place, (style, by_size) in enumerate(zip(_model_styles(), scores.models.values(), strict=False)):
        points = [value for of_fold in by_size[size].values() for value in of_fold]
        across = [place - 0.3 + 0.4 * number / max(1, len(points) - 1) for number in range(len(points))]
        panel.plot(across, points, linestyle="none", alpha=0.4, markersize=5, **style)

        found = summarize(by_size[size])
        bar: dict[str, Any] = {"capsize": 5, "markersize": 6, "elinewidth": 1.8, "zorder": 3}
        panel.errorbar([place + 0.25], [found.mean], yerr=[found.sd or 0.0], **style, **bar)
        low, high = _band([found])
        ends += points + low + high

    for dashes, (name, by_size) in zip(itertools.cycle(_BASELINE_DASHES), scores.baselines.items(), strict=False):
        level = summarize(by_size[size]).mean
        style = {"color": _BASELINE_COLOUR, "dashes": dashes, "linewidth": 1.4}
        panel.axhline(level, label=f"{_readable(name)}, {level:.3f}", **style)
    _limit(panel, ends)

    panel.set_xticks(range(len(scores.models)), list(scores.models))
    panel.set_xlim(-0.5, len(scores.models) - 0.5)
    rows = "all labelled training rows" if size is None else f"{size:,} labelled training rows"
    if size is None and count is not None:
        rows = f"all {count:,.0f} labelled training rows"
    panel.set_xlabel(f"{rows}\npale: runs (folds × seeds), bold: mean ± 1 sd")


def _band(found: list[Summary]) -> tuple[list[float], list[float]]:
    """Lower and upper ends of mean ± sd."""
    low = [one.mean - (one.sd or 0.0) for one in found]
    high = [one.mean + (one.sd or 0.0) for one in found]
    return low, high


def _limit(panel: Axes, ends: list[float]) -> None:
    """Shows the models' range and `_MARGIN` of it around; a baseline that is farther away is named as outside."""
    margin = _MARGIN * max(max(ends) - min(ends), 0.01)
    lowest = min(ends) - margin
    highest = max(ends) + margin

    shown = list(ends)
    for line in panel.lines:
        values = [float(value) for value in line.get_ydata()]  # pyright: ignore[reportGeneralTypeIssues] - a sequence
        inside = [value for value in values if lowest <= value <= highest]
        shown += inside
        if not inside:
            line.set_label(f"{line.get_label()} (outside)")

    edge = 0.05 * max(max(shown) - min(shown), 0.01)
    panel.set_ylim(min(shown) - edge, max(shown) + edge)


def _model_styles() -> Iterator[dict[str, Any]]:
    """Colour and marker of each model; with more than six models the colours repeat with other markers."""
    for number in itertools.count():
        shift = number // len(_COLOURS)
        colour = _COLOURS[number % len(_COLOURS)]
        yield {"color": colour, "marker": _MARKERS[(number + shift) % len(_MARKERS)]}


def _readable(name: str) -> str:
    """`baseline_characters` → `baseline: characters`; `f1` → `F1`."""
    rest = name.removeprefix("baseline_")
    text = {"f1": "F1"}.get(rest, rest.replace("_", " "))
    return f"baseline: {text}" if rest != name else text
