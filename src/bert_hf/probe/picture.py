"""Draws the figures of the probe: `probe.png`, six panels."""

import statistics
from pathlib import Path

from matplotlib.figure import Figure

from bert_hf.probe.table import METHOD_NAMES

_COLOURS = {
    "checkpoint": "tab:blue",
    "random": "tab:orange",
    "tfidf_words": "tab:green",
    "tfidf_characters": "tab:purple",
    "majority": "tab:gray",
}


def draw_metrics(found: dict, path: Path) -> None:
    """Draws six panels; that of a part that was not run stays empty."""
    figure = Figure(figsize=(16, 9))
    panels = figure.subplots(2, 3)
    drawn = (
        ("features", _draw_features),
        ("features", _draw_layers),
        ("few_labels", _draw_few_labels),
        ("mlm", _draw_mlm),
        ("geometry", _draw_geometry),
        ("grammar", _draw_grammar),
    )

    for panel, (part, paint) in zip(panels.flat, drawn, strict=True):
        panel.spines[["top", "right"]].set_visible(False)
        if found.get(part):
            paint(panel, found[part])
        else:
            panel.set_title(f"{part}: not measured", color="gray", fontsize=10)
            panel.set(xticks=[], yticks=[])

    figure.suptitle(f"{found['checkpoint']} ({found['layers']} layers × {found['width']})", fontsize=12)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _draw_features(panel, metrics: dict) -> None:
    task, one = next(iter(metrics.items()))
    counts = list(one["difference"])
    for number, (name, scores) in enumerate(one["scores"].items()):
        means = [statistics.fmean(scores[count]) for count in counts]
        spread = [statistics.stdev(scores[count]) if len(scores[count]) > 1 else 0.0 for count in counts]
        places = [position + 0.06 * (number - 2) for position in range(len(counts))]
        style = {"color": _COLOURS[name], "marker": "o", "markersize": 4, "capsize": 2, "linewidth": 1.4}
        panel.errorbar(places, means, spread, label=METHOD_NAMES[name], **style)
    panel.set_xticks(range(len(counts)), [str(count) for count in counts])
    panel.set(title=f"frozen features, {task}", xlabel="labels", ylabel=f"{one['metric']} (mean, sd)")
    _finish(panel)


def _draw_layers(panel, metrics: dict) -> None:
    task, one = next(iter(metrics.items()))
    layers = one["by_layer"]
    for name in ("checkpoint", "random"):
        for pooling, style in (("mean", "-"), ("cls", ":")):
            points = layers[name][pooling]
            label = f"{METHOD_NAMES[name]}, {'[CLS]' if pooling == 'cls' else pooling}"
            panel.plot(list(points), list(points.values()), style, marker="o", color=_COLOURS[name], label=label)
    panel.set_xticks(list(layers["checkpoint"]["mean"]))
    panel.set(title=f"by layer, {layers['labels']} labels, {task}", xlabel="layer (0: embeddings)")
    panel.set_ylabel(one["metric"])
    _finish(panel)


def _draw_few_labels(panel, metrics: dict) -> None:
    names = ("checkpoint", "random", "tfidf_words", "tfidf_characters")
    for task, one in enumerate(metrics.values()):
        for place, name in enumerate(names):
            values = one["scores"][name]
            x = task + 0.18 * (place - 1.5)
            label = METHOD_NAMES[name] if task == 0 else None
            panel.plot([x] * len(values), values, "o", color=_COLOURS[name], alpha=0.5, markersize=6)
            panel.plot([x], statistics.fmean(values), "_", color=_COLOURS[name], label=label)
            panel.lines[-1].set(markersize=26, markeredgewidth=3)

    first = next(iter(metrics.values()))
    panel.set_xticks(range(len(metrics)), list(metrics), fontsize=8)
    panel.set_xlim(-0.5, len(metrics) - 0.5)
    panel.set(title=f"fine-tuned on {first['labels']} rows (points: draws, line: mean)", ylabel=first["metric"])
    _finish(panel)
    panel.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, markerscale=0.4)


def _draw_mlm(panel, metrics: dict) -> None:
    text, one = next(iter(metrics.items()))
    bands = one["bands"]
    places = range(len(bands))
    panel.plot(places, [band["loss"] for band in bands], "o-", color=_COLOURS["checkpoint"], label="checkpoint")
    unigram = [band["unigram_loss"] for band in bands]
    panel.plot(places, unigram, "s--", color=_COLOURS["majority"], label="unigram frequencies")

    for name, label, colour in (
        ("loss", "all", "tab:blue"),
        ("shuffled_loss", "all, words shuffled", "tab:red"),
        ("replaced_loss", "all, words replaced", "tab:brown"),
    ):
        panel.axhline(one[name], color=colour, linewidth=1, linestyle=":", label=f"{label}: {one[name]:.2f}")

    ticks = [f"≥ {band['at_least_per_million']:,}\n{band['share']:.0%}" for band in bands]
    panel.set_xticks(places, ticks, fontsize=8)
    panel.set(title=f"masked language model, {text}", xlabel="frequency of the predicted token, in a million")
    panel.set_ylabel("loss (nats a token)")
    _finish(panel)


def _draw_geometry(panel, metrics: dict) -> None:
    cosine_axis = panel.twinx()
    cosine_axis.spines["top"].set_visible(False)
    for name in ("checkpoint", "random"):
        layers = metrics[name]["layers"]
        numbers = [layer["layer"] for layer in layers]
        rank = [layer["token_rank"] for layer in layers]
        panel.plot(numbers, rank, "o-", color=_COLOURS[name], label=f"{METHOD_NAMES[name]}: rank of tokens")
        cls_cosine = [layer["cls_cosine"] for layer in layers]
        # Not of layer 0, where [CLS] is the same in every text
        cosine_axis.plot(
            numbers[1:], cls_cosine[1:], "^:", color=_COLOURS[name], label=f"{METHOD_NAMES[name]}: [CLS] cosine"
        )
    panel.set_xticks(list(range(len(metrics["checkpoint"]["layers"]))))

    collapsed = metrics["checkpoint"]["collapsed"]
    title = f"geometry, {metrics['text']}" + (f"\ncollapsed: {', '.join(collapsed[:3])}" if collapsed else "")
    panel.set(xlabel="layer (0: embeddings)", ylabel=f"effective rank (width {metrics['checkpoint']['width']})")
    panel.set_title(title, fontsize=10)
    panel.set_ylim(0, 1.05 * metrics["checkpoint"]["width"])
    cosine_axis.set(ylabel="mean cosine of [CLS]", ylim=(-0.05, 1.05))

    lines = [*panel.lines, *cosine_axis.lines]
    panel.legend(lines, [line.get_label() for line in lines], fontsize=8, frameon=False, loc="lower left")


def _draw_grammar(panel, metrics: dict) -> None:
    shares = metrics["checkpoint"]["by_phenomenon"]
    names = sorted(shares, key=lambda name: shares[name]["accuracy"])
    panel.barh(names, [shares[name]["accuracy"] for name in names], color=_COLOURS["checkpoint"], alpha=0.6)
    random = [statistics.fmean(one["by_phenomenon"][name]["accuracy"] for one in metrics["random"]) for name in names]
    panel.plot(random, names, "|", color=_COLOURS["random"], markersize=9, markeredgewidth=2, label="random weights")
    panel.axvline(0.5, color="black", linewidth=1, linestyle="--", label="chance")
    share = metrics["checkpoint"]["accuracy"]
    panel.axvline(share, color=_COLOURS["checkpoint"], linewidth=1, label=f"checkpoint, all: {share:.3f}")
    panel.tick_params(axis="y", labelsize=8)
    panel.set_title(f"minimal pairs ({metrics['checkpoint']['pairs']:,})", fontsize=10)
    panel.set_xlim(0, 1)
    panel.set_xlabel("good sentence likelier (ties are wrong)")
    panel.legend(fontsize=8, frameon=False, loc="lower right")


def _finish(panel) -> None:
    panel.title.set_fontsize(10)
    panel.grid(alpha=0.25)
    panel.legend(fontsize=8, frameon=False)
