"""Draws the figures of the probe: `probe.png`, six panels."""

import statistics
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from bert_hf.analysis.probe.table import METHOD_NAMES, mean_sd, random_accuracies

_COLOURS = {
    "checkpoint": "tab:blue",
    "random": "tab:orange",
    "tfidf_words": "tab:green",
    "tfidf_characters": "tab:purple",
    "majority": "tab:gray",
}


@rc_context(
    {
        "axes.titlesize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.alpha": 0.25,
        "legend.fontsize": 8,
        "legend.frameon": False,
    }
)
def draw_metrics(found: dict, path: Path) -> None:
    """Draws six panels; that of a part that was not run stays empty."""
    figure = Figure(figsize=(16, 9))
    drawn = (
        ("features", _draw_features),
        ("features", _draw_layers),
        ("few_labels", _draw_few_labels),
        ("mlm", _draw_mlm),
        ("geometry", _draw_geometry),
        ("grammar", _draw_grammar),
    )

    for panel, (part, paint) in zip(figure.subplots(2, 3).flat, drawn, strict=True):
        if found.get(part):
            paint(panel, found[part])
        else:
            panel.set_title(f"{part}: not measured", color="gray")
            panel.set(xticks=[], yticks=[])

    figure.suptitle("{checkpoint} ({layers} layers × {width})".format_map(found))
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _draw_features(panel, metrics: dict) -> None:
    task, one = next(iter(metrics.items()))
    counts = one["difference"]
    for number, (name, scores) in enumerate(one["scores"].items()):
        means, spreads = zip(*map(mean_sd, scores.values()), strict=True)
        places = [position + 0.06 * (number - 2) for position in range(len(counts))]
        style = {"color": _COLOURS[name], "marker": "o", "markersize": 4, "capsize": 2, "linewidth": 1.4}
        panel.errorbar(places, means, spreads, label=METHOD_NAMES[name], **style)
    panel.set_xticks(range(len(counts)), map(str, counts))
    panel.set(title=f"frozen features, {task}", xlabel="labels", ylabel="{metric} (mean, sd)".format_map(one))
    panel.grid()
    panel.legend()


def _draw_layers(panel, metrics: dict) -> None:
    task, one = next(iter(metrics.items()))
    layers = one["by_layer"]
    for name in ("checkpoint", "random"):
        for pooling, style, shown in (("mean", "-", "mean"), ("cls", ":", "[CLS]")):
            numbers, scores = zip(*layers[name][pooling].items(), strict=True)
            label = f"{METHOD_NAMES[name]}, {shown}"
            panel.plot(numbers, scores, style, marker="o", color=_COLOURS[name], label=label)
    panel.set(
        title=f"by layer, {layers['labels']} labels, {task}",
        xlabel="layer (0: embeddings)",
        ylabel=one["metric"],
        xticks=list(layers["checkpoint"]["mean"]),
    )
    panel.grid()
    panel.legend()


def _draw_few_labels(panel, metrics: dict) -> None:
    for task, one in enumerate(metrics.values()):
        for place, (name, values) in enumerate(one["scores"].items()):
            x = task + 0.18 * (place - 1.5)
            label = METHOD_NAMES[name] if task == 0 else None
            mean = {"markersize": 26, "markeredgewidth": 3, "label": label}
            panel.plot([x] * len(values), values, "o", color=_COLOURS[name], alpha=0.5, markersize=6)
            panel.plot(x, statistics.fmean(values), "_", color=_COLOURS[name], **mean)

    first = next(iter(metrics.values()))
    panel.set_xticks(range(len(metrics)), metrics, fontsize=8)
    panel.set(
        title="fine-tuned on {labels} rows (points: draws, line: mean)".format_map(first),
        ylabel=first["metric"],
        xlim=(-0.5, len(metrics) - 0.5),
    )
    panel.grid()
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, markerscale=0.4)


def _draw_mlm(panel, metrics: dict) -> None:
    text, one = next(iter(metrics.items()))
    bands = one["bands"]
    places = range(len(bands))
    for name, style, method, label in (
        ("loss", "o-", "checkpoint", "checkpoint"),
        ("unigram_loss", "s--", "majority", "unigram frequencies"),
    ):
        panel.plot(places, [band[name] for band in bands], style, color=_COLOURS[method], label=label)

    for name, label, colour in (
        ("loss", "all", "tab:blue"),
        ("shuffled_loss", "all, words shuffled", "tab:red"),
        ("replaced_loss", "all, words replaced", "tab:brown"),
    ):
        panel.axhline(one[name], color=colour, linewidth=1, linestyle=":", label=f"{label}: {one[name]:.2f}")

    ticks = ["≥ {at_least_per_million:,}\n{share:.0%}".format_map(band) for band in bands]
    panel.set_xticks(places, ticks, fontsize=8)
    panel.set(
        title=f"masked language model, {text}",
        xlabel="frequency of the predicted token, in a million",
        ylabel="loss (nats a token)",
    )
    panel.grid()
    panel.legend()


def _draw_geometry(panel, metrics: dict) -> None:
    cosine_axis = panel.twinx()
    cosine_axis.spines["right"].set_visible(True)
    for name in ("checkpoint", "random"):
        layers, style = metrics[name]["layers"], {"color": _COLOURS[name]}
        ranks = [layer["token_rank"] for layer in layers]
        cosines = [layer["cls_cosine"] for layer in layers[1:]]  # in layer 0 [CLS] is the same in every text
        panel.plot(ranks, "o-", label=f"{METHOD_NAMES[name]}: rank of tokens", **style)
        numbers = range(1, len(layers))
        cosine_axis.plot(numbers, cosines, "^:", label=f"{METHOD_NAMES[name]}: [CLS] cosine", **style)

    checkpoint = metrics["checkpoint"]
    width, collapsed = checkpoint["width"], ", ".join(checkpoint["collapsed"][:3])
    title = f"geometry, {metrics['text']}" + (f"\ncollapsed: {collapsed}" if collapsed else "")
    panel.set(
        title=title,
        xlabel="layer (0: embeddings)",
        ylabel=f"effective rank (width {width})",
        xticks=range(len(checkpoint["layers"])),
        ylim=(0, 1.05 * width),
    )
    cosine_axis.set(ylabel="mean cosine of [CLS]", ylim=(-0.05, 1.05))
    panel.legend(handles=[*panel.lines, *cosine_axis.lines], loc="lower left")


def _draw_grammar(panel, metrics: dict) -> None:
    checkpoint, colour = metrics["checkpoint"], _COLOURS["checkpoint"]
    shares = {name: share["accuracy"] for name, share in checkpoint["by_phenomenon"].items()}
    names = sorted(shares, key=shares.__getitem__)
    panel.barh(names, [shares[name] for name in names], color=colour, alpha=0.6)
    random = random_accuracies(metrics)
    style = {"markersize": 9, "markeredgewidth": 2, "label": "random weights"}
    panel.plot([random[name] for name in names], names, "|", color=_COLOURS["random"], **style)
    panel.axvline(0.5, color="black", linewidth=1, linestyle="--", label="chance")
    label = "checkpoint, all: {accuracy:.3f}".format_map(checkpoint)
    panel.axvline(checkpoint["accuracy"], color=colour, linewidth=1, label=label)
    panel.tick_params(axis="y", labelsize=8)
    panel.set(
        title="minimal pairs ({pairs:,})".format_map(checkpoint),
        xlabel="good sentence likelier (ties are wrong)",
        xlim=(0, 1),
    )
    panel.legend(loc="lower right")
