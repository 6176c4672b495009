"""Writes the table (`probe.txt`) and the picture (`probe.png`) of a probe."""

import statistics
from pathlib import Path
from typing import Any

from bert_hf.console import format_table

REPORT_FILES = ("probe.json", "probe.txt", "probe.png")


def write_report(results: dict, folder: Path) -> str:
    """Writes both files; returns the table."""
    text = "\n".join(format_table(_table(results))) + "\n" + "".join(f"! {note}\n" for note in results["notes"])
    (folder / "probe.txt").write_text(text, encoding="utf-8")
    draw(results, folder / "probe.png")
    return text


def _table(results: dict) -> list[list[str]]:
    rows = [[results["checkpoint"], "value", "compared with"]]
    if mlm := results.get("mlm"):
        rows.append(["masked words: loss (nats)", f"{mlm['loss']:.3f}", f"unigram {mlm['unigram_loss']:.3f}"])
        rows.append(["  accuracy", f"{mlm['accuracy']:.3f}", ""])
        rows.append(["  what word order is worth", f"{mlm['shuffled_gap']:.3f}", ""])
        rows.append(["  what context is worth", f"{mlm['replaced_gap']:.3f}", ""])
    if nsp := results.get("nsp"):
        shown = f"{nsp['accuracy']:.3f} ± {nsp['standard_error']:.3f}"
        rows.append(["next sentence: accuracy", shown, f"majority {nsp['majority']:.3f}"])
    if grammar := results.get("grammar"):
        own, random = grammar["checkpoint"], grammar["random"]
        shown = f"{own['accuracy']:.3f} ± {own['standard_error']:.3f}"
        rows.append([f"grammar: {own['pairs']:,} minimal pairs", shown, f"random weights {random['accuracy']:.3f}"])
    if features := results.get("features"):
        for count, value in features["scores"]["checkpoint"].items():
            others = {name: by_count[count] for name, by_count in features["scores"].items() if name != "checkpoint"}
            compared = ", ".join(f"{name} {other:.3f}" for name, other in others.items())
            rows.append([f"frozen features, {count} labels: {features['metric']}", f"{value:.3f}", compared])
    for metric, values in results.get("few_labels", {}).get("checkpoint", {}).items():
        others = {name: found[metric] for name, found in results["few_labels"].items() if metric in found}
        compared = ", ".join(f"{n} {statistics.fmean(v):.3f}" for n, v in others.items() if n != "checkpoint")
        rows.append([f"fine-tuned on few labels: {metric}", f"{statistics.fmean(values):.3f}", compared])
    return rows


def draw(results: dict, path: Path) -> None:
    """Up to three panels: scores by number of labels, scores by layer, grammar by phenomenon."""
    from matplotlib.figure import Figure

    panels = [part for part in ("features", "by_layer", "grammar") if part in results or part == "by_layer"]
    if "features" not in results:
        panels.remove("by_layer")
    if not panels:
        return
    figure = Figure(figsize=(5.2 * len(panels), 4.4), layout="constrained")
    for panel, part in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        {"features": _draw_labels, "by_layer": _draw_layers, "grammar": _draw_grammar}[part](panel, results)
        panel.grid(alpha=0.25)
    figure.savefig(path, dpi=130)


def _draw_labels(panel: Any, results: dict) -> None:
    for name, by_count in results["features"]["scores"].items():
        style = "--" if name.startswith("tfidf") else "-"
        panel.plot(list(by_count), list(by_count.values()), style, marker="o", label=name)
    panel.set_xscale("log")
    panel.set_xlabel("labelled rows")
    panel.set_ylabel(results["features"]["metric"])
    panel.legend(frameon=False)


def _draw_layers(panel: Any, results: dict) -> None:
    for name, values in results["features"]["by_layer"].items():
        panel.plot(range(len(values)), values, marker="o", label=name)
    panel.set_xlabel("layer (0: embeddings)")
    panel.set_ylabel(results["features"]["metric"])
    panel.legend(frameon=False)


def _draw_grammar(panel: Any, results: dict) -> None:
    shares = results["grammar"]["checkpoint"]["by_phenomenon"]
    panel.barh(list(shares), list(shares.values()))
    panel.axvline(0.5, color="0.4", linestyle="--")
    panel.tick_params(axis="y", labelsize=7)
    panel.set_xlabel("grammatical sentence preferred")
