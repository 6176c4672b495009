"""Writes the metrics of the probe as a table of text: `probe.txt`."""

import statistics

from bert_hf.console import format_table

METHOD_NAMES = {
    "checkpoint": "checkpoint",
    "random": "random weights",
    "tfidf_words": "TF-IDF of words",
    "tfidf_characters": "TF-IDF of characters",
    "majority": "majority",
}


def mean_sd(values: list[float]) -> tuple[float, float]:
    """Mean and standard deviation, which is 0 for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def _spread(values: list[float]) -> str:
    """Mean and standard deviation: `0.913 ± 0.024`."""
    return "{:.3f} ± {:.3f}".format(*mean_sd(values))


def _difference(values: list[float]) -> str:
    """Mean and its standard error: `+0.021 (SE 0.009)`."""
    mean, sd = mean_sd(values)
    return f"{mean:+.3f} (SE {sd / len(values) ** 0.5:.3f})"


def random_accuracies(metrics: dict) -> dict[str, float]:
    """The mean accuracy of random weights in each phenomenon of the minimal pairs."""
    return {
        name: statistics.fmean(draw["by_phenomenon"][name]["accuracy"] for draw in metrics["random"])
        for name in metrics["checkpoint"]["by_phenomenon"]
    }


def _cells(row: str, *values, **metrics) -> list[str]:
    """The cells of a row: `"{0} | {tokens:,}"` with `"rows"` and `tokens=1200` gives `["rows", "1,200"]`."""
    return [cell.format(*values, **metrics) for cell in row.split(" | ")]


def table(found: dict) -> list[str]:
    """All parts as lines of text."""
    title = "{checkpoint}: {layers} layers × {width}, vocabulary {vocabulary_size:,}, {parameters:,} parameters"
    lines = [title.format_map(found)]
    for part, write in _SECTIONS.items():
        if found.get(part):
            lines += ["", *write(found[part])]
    lines += [f"! {note}" for note in found["notes"]]

    used = found["processor_seconds"]
    parts = ", ".join(f"{part} {value:.0f}" for part, value in used.items())
    clock = sum(found["seconds"].values())
    return [*lines, "", f"seconds of processor time: {sum(used.values()):.0f} ({parts}); by the clock {clock:.0f}"]


def _vocabulary(metrics: dict) -> list[str]:
    head = "vocabulary | tokens | tokens a word | words split | vocabulary in use | unknown"
    row = "{0} | {tokens:,} | {fertility:.2f} | {split_words:.1%} | {vocabulary_in_use:.1%} | {unknown:.2%}"
    return format_table([_cells(head), *(_cells(row, task, **one) for task, one in metrics.items())])


def _geometry(metrics: dict) -> list[str]:
    head = "geometry ({text}) | [CLS] cosine | [CLS] rank | token cosine | token rank"
    row = (
        "layer {0[layer]} | {0[cls_cosine]:.3f} ({1[cls_cosine]:.3f}) | {0[cls_rank]:.1f} ({1[cls_rank]:.1f}) | "
        "{0[token_cosine]:.3f} ({1[token_cosine]:.3f}) | {0[token_rank]:.1f} ({1[token_rank]:.1f})"
    )
    pooler = (
        "pooler output: cosine {0[cosine]:.3f} ({1[cosine]:.3f}), rank {0[rank]:.1f} ({1[rank]:.1f}), "
        "{0[nsp_share]:.1%} ({1[nsp_share]:.1%}) of its variance along the direction that the next-sentence head reads"
    )

    checkpoint, random = metrics["checkpoint"], metrics["random"]
    layers = zip(checkpoint["layers"], random["layers"], strict=True)
    return [
        *format_table([_cells(head, **metrics), *(_cells(row, *both) for both in layers)]),
        "in brackets: random weights",
        pooler.format(checkpoint["pooler"], random["pooler"]),
        f"collapsed: {', '.join(checkpoint['collapsed']) or 'nothing'}",
    ]


def _features(metrics: dict) -> list[str]:
    lines = []
    for task, one in metrics.items():
        head = [f"frozen features, {task}: {one['metric']}", *(f"{count} labels" for count in one["difference"])]
        rows = [[METHOD_NAMES[name], *map(_spread, scores.values())] for name, scores in one["scores"].items()]
        rows.append(["checkpoint − random", *map(_difference, one["difference"].values())])
        lines += ["", *format_table([head, *rows]), ""]

        layers = one["by_layer"]
        columns = {
            f"{METHOD_NAMES[name]}, {pooling}": layers[name][pooling]
            for name in ("checkpoint", "random")
            for pooling in ("mean", "cls")
        }
        rows = [[f"by layer, {layers['labels']} labels", *columns]]
        for layer in layers["checkpoint"]["mean"]:
            scores = (f"{scores[layer]:.3f}" if layer in scores else "–" for scores in columns.values())
            rows.append([f"layer {layer}", *scores])
        lines += format_table(rows)
    return lines[1:]


def _few_labels(metrics: dict) -> list[str]:
    lines = []
    for task, one in metrics.items():
        rows = [_cells("fine-tuned on {labels} rows, {0} | {metric} | accuracy", task, **one)]
        for name, values in one["scores"].items():
            accuracies = one["accuracies"].get(name)
            rows.append([METHOD_NAMES[name], _spread(values), _spread(accuracies) if accuracies else "–"])
        rows.append(["checkpoint − random", _difference(one["difference"]), "–"])
        lines += [*format_table(rows), "{steps} steps, learning rate {learning_rate:g}".format_map(one)]
    return lines


def _mlm(metrics: dict) -> list[str]:
    head = "masked language model | loss | at [MASK] | unigram | shuffled | replaced | nats a character | accuracy"
    row = (
        "{0} | {loss:.3f} | {masked_loss:.3f} | {unigram_loss:.3f} | {shuffled_loss:.3f} | {replaced_loss:.3f} | "
        "{nats_per_character:.3f} | {accuracy:.3f}"
    )
    lines = format_table([_cells(head), *(_cells(row, text, **one) for text, one in metrics.items())])
    worth = "{0}: word order is worth {shuffled_gap:.3f} nats, context {replaced_gap:.3f}"
    lines += [worth.format(text, **one) for text, one in metrics.items()]

    text, first = next(iter(metrics.items()))
    head = "by frequency, {0} | predicted | loss | unigram | accuracy"
    row = "≥ {at_least_per_million:,} of a million | {share:.1%} | {loss:.3f} | {unigram_loss:.3f} | {accuracy:.3f}"
    return [*lines, "", *format_table([_cells(head, text), *(_cells(row, **band) for band in first["bands"])])]


def _nsp(metrics: dict) -> list[str]:
    rows = (
        "next sentence ({pairs:,} pairs) | accuracy",
        "as it is | {accuracy:.3f} (SE {standard_error:.3f})",
        "words of B shuffled | {shuffled_b_accuracy:.3f}",
        "lengths only (all words replaced) | {lengths_accuracy:.3f}",
        "lengths only, boosted trees | {lengths_classifier_accuracy:.3f}",
        "majority | {majority:.3f}",
    )
    return format_table([_cells(row, **metrics) for row in rows])


def _grammar(metrics: dict) -> list[str]:
    one, random = metrics["checkpoint"], random_accuracies(metrics)
    rows = [_cells("minimal pairs ({pairs:,}, {0}) | pairs | checkpoint | random weights", metrics["pll"], **one)]
    for name, share in one["by_phenomenon"].items():
        rows.append(_cells("{0} | {pairs} | {accuracy:.3f} | {1:.3f}", name, random[name], **share))
    spread = _spread([draw["accuracy"] for draw in metrics["random"]])
    rows.append(_cells("all | {pairs} | {accuracy:.3f} (SE {standard_error:.3f}) | {0}", spread, **one))
    return [*format_table(rows), "ties, counted as wrong: {ties}".format_map(one)]


_SECTIONS = {
    "vocabulary": _vocabulary,
    "geometry": _geometry,
    "features": _features,
    "few_labels": _few_labels,
    "mlm": _mlm,
    "nsp": _nsp,
    "grammar": _grammar,
}
