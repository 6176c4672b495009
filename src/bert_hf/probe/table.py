"""Writes the figures of the probe as a table of text: `probe.txt`."""

import statistics
from collections.abc import Iterable

from bert_hf.console import format_table

METHOD_NAMES = {
    "checkpoint": "checkpoint",
    "random": "random weights",
    "tfidf_words": "TF-IDF of words",
    "tfidf_characters": "TF-IDF of characters",
    "majority": "majority",
}


def mean_sd(values: Iterable[float]) -> str:
    """Mean and standard deviation: `0.913 ± 0.024`."""
    values = list(values)
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.3f} ± {spread:.3f}"


def mean_error(values: Iterable[float]) -> str:
    """Mean and its standard error: `+0.021 (SE 0.009)`."""
    values = list(values)
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):+.3f} (SE {error:.3f})"


def cells(metrics: dict, formats: dict[str, str]) -> list[str]:
    """The named figures as text: `["1,200", "8.5%"]` of `{"tokens": ",", "unknown": ".1%"}`."""
    return [f"{metrics[name]:{form}}" for name, form in formats.items()]


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


def _vocabulary_lines(metrics: dict) -> list[str]:
    head = ["vocabulary", "tokens", "tokens a word", "words split", "vocabulary in use", "unknown"]
    formats = {"tokens": ",", "fertility": ".2f", "split_words": ".1%", "vocabulary_in_use": ".1%", "unknown": ".2%"}
    return format_table([head, *([name, *cells(one, formats)] for name, one in metrics.items())])


def _geometry_lines(metrics: dict) -> list[str]:
    formats = {"cls_cosine": ".3f", "cls_rank": ".1f", "token_cosine": ".3f", "token_rank": ".1f"}
    head = [f"geometry ({metrics['text']})", "[CLS] cosine", "[CLS] rank", "token cosine", "token rank"]
    rows = []
    for one, other in zip(metrics["checkpoint"]["layers"], metrics["random"]["layers"], strict=True):
        both = [f"{one[name]:{form}} ({other[name]:{form}})" for name, form in formats.items()]
        rows.append([f"layer {one['layer']}", *both])

    pooler, random_pooler = metrics["checkpoint"]["pooler"], metrics["random"]["pooler"]
    lines = [*format_table([head, *rows]), "in brackets: random weights"]
    lines.append(
        f"pooler output: cosine {pooler['cosine']:.3f} ({random_pooler['cosine']:.3f}), rank {pooler['rank']:.1f} "
        f"({random_pooler['rank']:.1f}), {pooler['nsp_share']:.1%} ({random_pooler['nsp_share']:.1%}) of its variance "
        "along the direction that the next-sentence head reads"
    )
    return [*lines, f"collapsed: {', '.join(metrics['checkpoint']['collapsed']) or 'nothing'}"]


def _feature_lines(metrics: dict) -> list[str]:
    lines = []
    for task, one in metrics.items():
        counts = list(one["difference"])
        head = [f"frozen features, {task}: {one['metric']}", *(f"{count} labels" for count in counts)]
        rows = [
            [METHOD_NAMES[name], *(mean_sd(one["scores"][name][count]) for count in counts)] for name in one["scores"]
        ]
        rows.append(["checkpoint − random", *(mean_error(one["difference"][count]) for count in counts)])
        if lines:
            lines.append("")
        lines += [*format_table([head, *rows]), ""]

        layers = one["by_layer"]
        names = [(name, pooling) for name in ("checkpoint", "random") for pooling in ("mean", "cls")]
        head = [
            f"by layer, {layers['labels']} labels",
            *(f"{METHOD_NAMES[name]}, {pooling}" for name, pooling in names),
        ]
        rows = []
        for layer in layers["checkpoint"]["mean"]:
            scores = [layers[name][pooling].get(layer) for name, pooling in names]
            rows.append([f"layer {layer}", *("–" if score is None else f"{score:.3f}" for score in scores)])
        lines += format_table([head, *rows])
    return lines


def _few_label_lines(metrics: dict) -> list[str]:
    lines = []
    for task, one in metrics.items():
        head = [f"fine-tuned on {one['labels']} rows, {task}", one["metric"], "accuracy"]
        rows = []
        for name, values in one["scores"].items():
            accuracies = one["accuracies"].get(name)
            rows.append([METHOD_NAMES[name], mean_sd(values), mean_sd(accuracies) if accuracies else "–"])
        rows.append(["checkpoint − random", mean_error(one["difference"]), "–"])
        lines += format_table([head, *rows])
        lines.append(f"{one['steps']} steps, learning rate {one['learning_rate']:g}")
    return lines


def _mlm_lines(metrics: dict) -> list[str]:
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
    formats = dict.fromkeys(columns_of.values(), ".3f")
    lines = format_table([head, *([text, *cells(one, formats)] for text, one in metrics.items())])

    for text, one in metrics.items():
        order, context = one["shuffled_gap"], one["replaced_gap"]
        lines.append(f"{text}: word order is worth {order:.3f} nats, context {context:.3f}")

    text, first = next(iter(metrics.items()))
    head = [f"by frequency, {text}", "predicted", "loss", "unigram", "accuracy"]
    formats = {"share": ".1%", "loss": ".3f", "unigram_loss": ".3f", "accuracy": ".3f"}
    rows = [[f"≥ {band['at_least_per_million']:,} of a million", *cells(band, formats)] for band in first["bands"]]
    return [*lines, "", *format_table([head, *rows])]


def _nsp_lines(metrics: dict) -> list[str]:
    head = [f"next sentence ({metrics['pairs']:,} pairs)", "accuracy"]
    rows = [["as it is", f"{metrics['accuracy']:.3f} (SE {metrics['standard_error']:.3f})"]]
    others = {
        "words of B shuffled": "shuffled_b_accuracy",
        "lengths only (all words replaced)": "lengths_accuracy",
        "lengths only, boosted trees": "lengths_classifier_accuracy",
        "majority": "majority",
    }
    rows += [[text, f"{metrics[name]:.3f}"] for text, name in others.items()]
    return format_table([head, *rows])


def _grammar_lines(metrics: dict) -> list[str]:
    one, drawn = metrics["checkpoint"], metrics["random"]
    head = [f"minimal pairs ({one['pairs']:,}, {metrics['pll']})", "pairs", "checkpoint", "random weights"]
    rows = []
    for name, share in one["by_phenomenon"].items():
        random = statistics.fmean(draw["by_phenomenon"][name]["accuracy"] for draw in drawn)
        rows.append([name, str(share["pairs"]), f"{share['accuracy']:.3f}", f"{random:.3f}"])
    random = mean_sd(draw["accuracy"] for draw in drawn)
    share = f"{one['accuracy']:.3f} (SE {one['standard_error']:.3f})"
    rows.append(["all", str(one["pairs"]), share, random])
    return [*format_table([head, *rows]), f"ties, counted as wrong: {one['ties']}"]
