"""Draws docs/small_machine.png: held-out MLM loss over tokens, from benchmarks/results/recipe_search_curves.csv.

python docs/make_small_machine.py
"""

import csv
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

ROOT = Path(__file__).parents[1]
CURVES = ROOT / "benchmarks/results/recipe_search_curves.csv"
PICTURE = ROOT / "docs/small_machine.png"

# Panels: title, unigram loss of the held-out text, and the label of each run
PANELS = (
    (
        "tiny, Wikipedia, 15 % masked",
        6.997,
        {
            "tiny-adamw": "AdamW, random positions",
            "tiny-adamw-sinusoidal": "AdamW, sinusoidal",
            "tiny-muon": "Muon, random positions",
            "tiny-muon-sinusoidal": "Muon, sinusoidal",
            "tiny-sinusoidal-seed2": "the same, seed 2",
            "tiny-sinusoidal-double-rates": "rates doubled",
        },
    ),
    (
        "tiny, Wikipedia, Muon, sinusoidal",
        6.997,
        {
            "tiny-muon-sinusoidal": "15 % masked",
            "tiny-sinusoidal-mask0.3": "30 % masked",
            "mask0.3-adamw": "30 %, AdamW",
            "mask0.3-double-rates": "30 %, rates doubled",
            "mask0.3-len64": "30 %, length 64 first",
            "mask0.3-batch16": "30 %, 16 sequences a step",
            "mask0.3-batch64": "30 %, 64 sequences a step",
            "mask0.3-wsd": "30 %, peak rate until the last 20 %",
        },
    ),
    (
        "make pretrain (tiny, documentation)",
        6.311,
        {
            "default-0.1": "0.1: AdamW, random positions",
            "default": "Muon, sinusoidal",
            "default-mask0.3": "30 % masked",
            "default-mask0.3-1.5-rates": "rates × 1.5 (the default)",
            "default-wsd": "and the peak rate until the last 20 %",
            "default-mask0.3-double-rates": "rates × 2",
        },
    ),
    (
        "mini, Wikipedia",
        7.002,
        {
            "bert-mini-cpu-long": "60 million tokens, 15 %",
            "mini-long-mask0.3": "60 million tokens, 30 %",
            "mini-long-mask0.4-final0.2": "60 million tokens, 40 %, then 20 %",
            "mini-long-batch64": "85 million tokens, 30 %, batch 64",
            "mini-30m": "30 million tokens, 15 %",
            "mini-mask0.3": "15 million tokens, 30 %",
            "mini-15m-warmup0.1": "the same, longer warm-up",
        },
    ),
    (
        "mini, Wikipedia, 6 million tokens",
        6.996,
        {
            "mini-6m": "warm-up 2 %",
            "mini-6m-seed2": "the same, seed 2",
            "mini-6m-rates0.67": "2 %, rates × 0.67",
            "mini-6m-rates1.5": "2 %, rates × 1.5",
            "mini-6m-warmup0.1": "10 %",
            "mini-6m-warmup0.2": "20 %",
            "mini-6m-warmup0.2-seed2": "the same, seed 2",
            "mini-6m-warmup0.2-rates1.5": "20 %, rates × 1.5",
            "mini-6m-warmup0.2-len64": "20 %, length 64 first",
            "mini-6m-warmup0.2-wsd": "20 %, peak rate until the last 20 %",
        },
    ),
)


def read_curves() -> dict[str, list[tuple[float, float]]]:
    """Of each run, (million tokens, MLM loss in nats) of its evaluations."""
    curves = defaultdict(list)
    with open(CURVES, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            curves[row["run"]].append((int(row["tokens"]) / 1e6, float(row["eval_mlm_loss"])))
    return curves


def draw() -> None:
    curves = read_curves()
    figure, axes = pyplot.subplots(3, 2, figsize=(12, 13), layout="constrained")
    axes[-1, -1].remove()
    for axis, (title, unigram, labels) in zip(axes.flat, PANELS, strict=False):
        for run, label in labels.items():
            points = [(tokens, loss) for tokens, loss in curves[run] if tokens]
            axis.plot(*zip(*points, strict=True), marker=".", label=label)
        axis.axhline(unigram, color="grey", linestyle=":", label="unigram")
        axis.set(title=title, xlabel="million tokens", ylabel="held-out MLM loss (nats)")
        axis.legend(fontsize="small")
    figure.savefig(PICTURE, dpi=90)
    pyplot.close(figure)


if __name__ == "__main__":
    draw()
