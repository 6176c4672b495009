"""What the probe found: `probe.json` (all figures), `probe.txt` (a table) and `probe.png` (one picture)."""

import json
import statistics
from collections.abc import Iterable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

REPORT_FILES = ("probe.json", "probe.txt", "probe.png")
_NAMES = {
    "checkpoint": "checkpoint",
    "random": "random weights",
    "tfidf_words": "TF-IDF of words",
    "tfidf_characters": "TF-IDF of characters",
    "majority": "majority",
}
_COLOURS = {
    "checkpoint": "tab:blue",
    "random": "tab:orange",
    "tfidf_words": "tab:green",
    "tfidf_characters": "tab:purple",
    "majority": "tab:gray",
}


def write_report(found: dict, folder: Path) -> str:
    """Writes the three files; returns the table."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "probe.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    text = "\n".join(table(found)) + "\n"
    (folder / "probe.txt").write_text(text, encoding="utf-8")
    draw(found, folder / "probe.png")
    return text


# ---- table


def mean_sd(values: Iterable[float]) -> str:
    """`0.913 ± 0.024`: mean and standard deviation."""
    values = list(values)
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.3f} ± {spread:.3f}"


def mean_error(values: Iterable[float]) -> str:
    """`+0.021 (SE 0.009)`: mean and its standard error."""
    values = list(values)
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):+.3f} (SE {error:.3f})"


def columns(head: list[str], rows: list[list[str]]) -> list[str]:
    """Aligned columns, the first one to the left."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = []
    for first, *others in [head, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return lines


def table(found: dict) -> list[str]:
    """All parts as lines of text."""
    lines = [
        f"{found['checkpoint']}: {found['layers']} layers × {found['width']}, "
        f"vocabulary {found['vocabulary_size']:,}, {found['parameters']:,} parameters"
    ]
    sections = (
        ("vocabulary", _vocabulary_lines),
        ("geometry", _geometry_lines),
        ("features", _feature_lines),
        ("few_labels", _few_label_lines),
        ("mlm", _mlm_lines),
        ("nsp", _nsp_lines),
        ("grammar", _grammar_lines),
    )
    for part, write in sections:
        if found.get(part):
            lines += ["", *write(found[part])]
    lines += [f"! {note}" for note in found["notes"]]
    used = found["processor_seconds"]
    parts = ", ".join(f"{part} {value:.0f}" for part, value in used.items())
    clock = sum(found["seconds"].values())
    return [*lines, "", f"seconds of processor time: {sum(used.values()):.0f} ({parts}); by the clock {clock:.0f}"]


def _vocabulary_lines(figures: dict) -> list[str]:
    head = ["vocabulary", "tokens", "tokens a word", "words split", "vocabulary in use", "unknown"]
    rows = [
        [
            name,
            f"{one['tokens']:,}",
            f"{one['fertility']:.2f}",
            f"{one['split_words']:.1%}",
            f"{one['vocabulary_in_use']:.1%}",
            f"{one['unknown']:.2%}",
        ]
        for name, one in figures.items()
    ]
    return columns(head, rows)


def _geometry_lines(figures: dict) -> list[str]:
    names = ["cls_cosine", "cls_rank", "token_cosine", "token_rank"]
    head = [f"geometry ({figures['text']})", "[CLS] cosine", "[CLS] rank", "token cosine", "token rank"]
    rows = []
    for one, other in zip(figures["checkpoint"]["layers"], figures["random"]["layers"], strict=True):
        digits = [".3f" if "cosine" in name else ".1f" for name in names]
        cells = [f"{one[name]:{form}} ({other[name]:{form}})" for name, form in zip(names, digits, strict=True)]
        rows.append([f"layer {one['layer']}", *cells])
    pooler, random_pooler = (figures[name]["pooler"] for name in ("checkpoint", "random"))
    lines = [*columns(head, rows), "in brackets: random weights"]
    lines.append(
        f"pooler output: cosine {pooler['cosine']:.3f} ({random_pooler['cosine']:.3f}), rank {pooler['rank']:.1f} "
        f"({random_pooler['rank']:.1f}), {pooler['nsp_share']:.1%} ({random_pooler['nsp_share']:.1%}) of its variance "
        "along the direction that the next-sentence head reads"
    )
    collapsed = figures["checkpoint"]["collapsed"]
    return [*lines, f"collapsed: {', '.join(collapsed)}" if collapsed else "collapsed: nothing"]


def _feature_lines(figures: dict) -> list[str]:
    lines = []
    for task, one in figures.items():
        counts = list(one["difference"])
        head = [f"frozen features, {task}: {one['metric']}", *(f"{count} labels" for count in counts)]
        rows = [[_NAMES[name], *(mean_sd(one["scores"][name][count]) for count in counts)] for name in one["scores"]]
        rows.append(["checkpoint − random", *(mean_error(one["difference"][count]) for count in counts)])
        layers = one["by_layer"]
        lines += [*columns(head, rows), ""] if lines == [] else ["", *columns(head, rows), ""]
        names = [(name, pooling) for name in ("checkpoint", "random") for pooling in ("mean", "cls")]
        head = [f"by layer, {layers['labels']} labels", *(f"{_NAMES[name]}, {pooling}" for name, pooling in names)]
        rows = []
        for layer in layers["checkpoint"]["mean"]:
            cells = [layers[name][pooling].get(layer) for name, pooling in names]
            rows.append([f"layer {layer}", *("–" if cell is None else f"{cell:.3f}" for cell in cells)])
        lines += columns(head, rows)
    return lines


def _few_label_lines(figures: dict) -> list[str]:
    lines = []
    for task, one in figures.items():
        head = [f"fine-tuned on {one['labels']} rows, {task}", one["metric"], "accuracy"]
        rows = []
        for name, values in one["scores"].items():
            accuracies = one["accuracies"].get(name)
            rows.append([_NAMES[name], mean_sd(values), mean_sd(accuracies) if accuracies else "–"])
        rows.append(["checkpoint − random", mean_error(one["difference"]), "–"])
        lines += columns(head, rows)
        lines.append(f"{one['steps']} steps, learning rate {one['learning_rate']:g}")
    return lines


def _mlm_lines(figures: dict) -> list[str]:
    columns_of = {
        "loss": "loss",
        "at [MASK]": "masked_loss",
        "unigram": "unigram_loss",
        "shuffled": "shuffled_loss",
        "replaced": "replaced_loss",
        "nats a character": "nats_per_character",
        "accuracy": "accuracy",
    }
    head = ["masked language model", *columns_of]
    rows = [[text, *(f"{one[name]:.3f}" for name in columns_of.values())] for text, one in figures.items()]
    lines = columns(head, rows)
    for text, one in figures.items():
        order, context = one["shuffled_gap"], one["replaced_gap"]
        lines.append(f"{text}: word order is worth {order:.3f} nats, context {context:.3f}")
    text, first = next(iter(figures.items()))
    head = [f"by frequency, {text}", "predicted", "loss", "unigram", "accuracy"]
    rows = [
        [
            f"≥ {band['at_least_per_million']:,} of a million",
            f"{band['share']:.1%}",
            *(f"{band[name]:.3f}" for name in ("loss", "unigram_loss", "accuracy")),
        ]
        for band in first["bands"]
    ]
    return [*lines, "", *columns(head, rows)]


def _nsp_lines(figures: dict) -> list[str]:
    head = [f"next sentence ({figures['pairs']:,} pairs)", "accuracy"]
    rows = [
        ["as it is", f"{figures['accuracy']:.3f} (SE {figures['standard_error']:.3f})"],
        ["words of B shuffled", f"{figures['shuffled_b_accuracy']:.3f}"],
        ["lengths only (all words replaced)", f"{figures['lengths_accuracy']:.3f}"],
        ["lengths only, boosted trees", f"{figures['lengths_classifier_accuracy']:.3f}"],
        ["majority", f"{figures['majority']:.3f}"],
    ]
    return columns(head, rows)


def _grammar_lines(figures: dict) -> list[str]:
    one, drawn = figures["checkpoint"], figures["random"]
    head = [f"minimal pairs ({one['pairs']:,}, {figures['pll']})", "pairs", "checkpoint", "random weights"]
    rows = []
    for name, share in one["by_phenomenon"].items():
        random = statistics.fmean(draw["by_phenomenon"][name]["accuracy"] for draw in drawn)
        rows.append([name, str(share["pairs"]), f"{share['accuracy']:.3f}", f"{random:.3f}"])
    random = mean_sd(draw["accuracy"] for draw in drawn)
    share = f"{one['accuracy']:.3f} (SE {one['standard_error']:.3f})"
    rows.append(["all", str(one["pairs"]), share, random])
    return [*columns(head, rows), f"ties, counted as wrong: {one['ties']}"]


# ---- picture


def draw(found: dict, path: Path) -> None:
    """Six panels; a part that was not run leaves its panel empty."""
    figure, panels = plt.subplots(2, 3, figsize=(16, 9))
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
    plt.close(figure)


def _draw_features(panel, figures: dict) -> None:
    task, one = next(iter(figures.items()))
    counts = list(one["difference"])
    for number, (name, scores) in enumerate(one["scores"].items()):
        means = [statistics.fmean(scores[count]) for count in counts]
        spread = [statistics.stdev(scores[count]) if len(scores[count]) > 1 else 0.0 for count in counts]
        places = [position + 0.06 * (number - 2) for position in range(len(counts))]
        style = {"color": _COLOURS[name], "marker": "o", "markersize": 4, "capsize": 2, "linewidth": 1.4}
        panel.errorbar(places, means, spread, label=_NAMES[name], **style)
    panel.set_xticks(range(len(counts)), [str(count) for count in counts])
    panel.set(title=f"frozen features, {task}", xlabel="labels", ylabel=f"{one['metric']} (mean, sd)")
    _finish(panel)


def _draw_layers(panel, figures: dict) -> None:
    task, one = next(iter(figures.items()))
    layers = one["by_layer"]
    for name in ("checkpoint", "random"):
        for pooling, style in (("mean", "-"), ("cls", ":")):
            points = layers[name][pooling]
            label = f"{_NAMES[name]}, {'[CLS]' if pooling == 'cls' else pooling}"
            panel.plot(list(points), list(points.values()), style, marker="o", color=_COLOURS[name], label=label)
    panel.set_xticks(list(layers["checkpoint"]["mean"]))
    panel.set(title=f"by layer, {layers['labels']} labels, {task}", xlabel="layer (0: embeddings)")
    panel.set_ylabel(one["metric"])
    _finish(panel)


def _draw_few_labels(panel, figures: dict) -> None:
    names = ("checkpoint", "random", "tfidf_words", "tfidf_characters")
    for task, one in enumerate(figures.values()):
        for place, name in enumerate(names):
            values, x = one["scores"][name], task + 0.18 * (place - 1.5)
            label = _NAMES[name] if task == 0 else None
            panel.plot([x] * len(values), values, "o", color=_COLOURS[name], alpha=0.5, markersize=6)
            panel.plot([x], statistics.fmean(values), "_", color=_COLOURS[name], label=label)
            panel.lines[-1].set(markersize=26, markeredgewidth=3)
    first = next(iter(figures.values()))
    panel.set_xticks(range(len(figures)), list(figures), fontsize=8)
    panel.set_xlim(-0.5, len(figures) - 0.5)
    panel.set(title=f"fine-tuned on {first['labels']} rows (points: draws, line: mean)", ylabel=first["metric"])
    _finish(panel)
    panel.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, markerscale=0.4)


def _draw_mlm(panel, figures: dict) -> None:
    text, one = next(iter(figures.items()))
    bands = one["bands"]
    places = range(len(bands))
    panel.plot(places, [band["loss"] for band in bands], "o-", color=_COLOURS["checkpoint"], label="checkpoint")
    unigram = [band["unigram_loss"] for band in bands]
    panel.plot(places, unigram, "s--", color=_COLOURS["majority"], label="unigram frequencies")
    for name, colour in (("loss", "tab:blue"), ("shuffled_loss", "tab:red"), ("replaced_loss", "tab:brown")):
        label = {"loss": "all", "shuffled_loss": "all, words shuffled", "replaced_loss": "all, words replaced"}[name]
        panel.axhline(one[name], color=colour, linewidth=1, linestyle=":", label=f"{label}: {one[name]:.2f}")
    panel.set_xticks(
        places, [f"≥ {band['at_least_per_million']:,}\n{band['share']:.0%}" for band in bands], fontsize=8
    )
    panel.set(title=f"masked language model, {text}", xlabel="frequency of the predicted token, in a million")
    panel.set_ylabel("loss (nats a token)")
    _finish(panel)


def _draw_geometry(panel, figures: dict) -> None:
    cosine = panel.twinx()
    cosine.spines["top"].set_visible(False)
    for name in ("checkpoint", "random"):
        layers = figures[name]["layers"]
        numbers = [layer["layer"] for layer in layers]
        rank = [layer["token_rank"] for layer in layers]
        panel.plot(numbers, rank, "o-", color=_COLOURS[name], label=f"{_NAMES[name]}: rank of tokens")
        similar = [layer["cls_cosine"] for layer in layers]
        cosine.plot(numbers[1:], similar[1:], "^:", color=_COLOURS[name], label=f"{_NAMES[name]}: [CLS] cosine")
    panel.set_xticks(numbers)
    collapsed = figures["checkpoint"]["collapsed"]
    title = f"geometry, {figures['text']}" + (f"\ncollapsed: {', '.join(collapsed[:3])}" if collapsed else "")
    panel.set(xlabel="layer (0: embeddings)", ylabel=f"effective rank (width {figures['checkpoint']['width']})")
    panel.set_title(title, fontsize=10)
    panel.set_ylim(0, 1.05 * figures["checkpoint"]["width"])
    cosine.set(ylabel="mean cosine of [CLS]", ylim=(-0.05, 1.05))
    lines = [*panel.lines, *cosine.lines]
    panel.legend(lines, [line.get_label() for line in lines], fontsize=8, frameon=False, loc="lower left")


def _draw_grammar(panel, figures: dict) -> None:
    shares = figures["checkpoint"]["by_phenomenon"]
    names = sorted(shares, key=lambda name: shares[name]["accuracy"])
    panel.barh(names, [shares[name]["accuracy"] for name in names], color=_COLOURS["checkpoint"], alpha=0.6)
    random = [statistics.fmean(one["by_phenomenon"][name]["accuracy"] for one in figures["random"]) for name in names]
    panel.plot(random, names, "|", color=_COLOURS["random"], markersize=9, markeredgewidth=2, label="random weights")
    panel.axvline(0.5, color="black", linewidth=1, linestyle="--", label="chance")
    share = figures["checkpoint"]["accuracy"]
    panel.axvline(share, color=_COLOURS["checkpoint"], linewidth=1, label=f"checkpoint, all: {share:.3f}")
    panel.tick_params(axis="y", labelsize=8)
    panel.set_title(f"minimal pairs ({figures['checkpoint']['pairs']:,})", fontsize=10)
    panel.set_xlim(0, 1)
    panel.set_xlabel("good sentence likelier (ties are wrong)")
    panel.legend(fontsize=8, frameon=False, loc="lower right")


def _finish(panel) -> None:
    panel.title.set_fontsize(10)
    panel.grid(alpha=0.25)
    panel.legend(fontsize=8, frameon=False)
