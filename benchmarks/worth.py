"""What checkpoints are worth with few labels: a published encoder, some of one's own, and random weights.

python benchmarks/worth.py --model_name_or_path all-MiniLM-L6-v2 --pretrained runs/pretrain-default \
    --train_file SMSSpamCollection.tsv
… --train_file SST-2/train.tsv --test_file SST-2/dev.tsv --train_sizes 100 1000 --output_dir runs/worth-sst2
… --train_file MRPC/train.tsv --test_file MRPC/dev.tsv --text_column '#1 String' --text_pair_column '#2 String' \
    --label_column Quality --output_dir runs/worth-mrpc
… --train_file SICK.txt --text_column sentence_A --text_pair_column sentence_B --label_column entailment_label \
    --output_dir runs/worth-sick

A cell is one method on one draw of labelled rows. Fine-tuned: `bert-hf classify` at its defaults, but for the weights,
which are the last ones where only a part of the rows is used. Beside it, on the same rows: logistic regression on the
published encoder's mean states (of pairs u, v: on u, v, |u − v| and u · v), and SVMs on words and on characters. Draws
are folds with test rows of their own, near-duplicates in one part; with --test_file they share its rows.

The same command continues where it was interrupted. It prints what the pre-training of one's own checkpoints reached
on held-out text, then a table, means with standard deviations over the draws, and a JSON line; OUTPUT_DIR/worth.csv
has each cell.
"""

import csv
import json
import statistics
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bert_hf.analysis.features import FeatureExtractor, open_extractor
from bert_hf.analysis.study import Study, json_lines
from bert_hf.config.checkpoint_arguments import FeatureArguments, StudyArguments
from bert_hf.config.finetuning_arguments import SplitArguments
from bert_hf.config.options import option
from bert_hf.config.parser import parse
from bert_hf.console import format_table
from bert_hf.errors import one_line_errors
from bert_hf.finetuning.metrics.classification import classification_metrics
from bert_hf.finetuning.rows.known_tasks import order_labels
from bert_hf.finetuning.rows.near_duplicates import near_duplicate_groups
from bert_hf.finetuning.rows.splits import make_folds, read_rows_to_split, row_strata, split_rows, write_folds

METRICS = ("f1", "accuracy")
NAMES = {
    "published": "published, fine-tuned",
    "embeddings": "logistic regression on its mean states",
    "baseline_characters": "SVM on characters",
    "baseline_words": "SVM on words",
}
Cells = dict[tuple[str, str, int], dict[str, float]]  # (method, training rows, draw) → metrics


@dataclass
class PublishedEncoderArguments(SplitArguments):
    """Checkpoints and rows."""

    folds: int = 3  # the draws
    model_name_or_path: str | None = option(None, "Published encoder: folder or Hub id.")
    pretrained: list[str] | None = option(
        None, "Checkpoints; `random` has the shape of the first. Default: runs/pretrain-default."
    )
    test_file: list[str] | None = option(None, "Labelled test rows. Default: each fold's own.")
    train_sizes: list[str] | None = option(None, "Numbers of training rows. Default: 100 all.")
    max_eval_samples: int | None = option(None, "Use at most N test rows.")
    output_dir: str = option("runs/worth", "Folder of the cells.")


def write_draws(options: PublishedEncoderArguments, folder: Path) -> None:
    """Write the rows of each draw as `bert-hf split` does."""
    split = {name: getattr(options, name) for name in SplitArguments.__dataclass_fields__}
    rows = read_rows_to_split(options)
    groups = near_duplicate_groups(rows.joined())
    if options.test_file is None:
        draws = make_folds(rows, groups, options)
    else:
        test = read_rows_to_split(SplitArguments(**{**split, "train_file": options.test_file}))
        shares = {"validation": options.validation_split_percentage}
        draws = [
            {**split_rows(rows, groups, shares, seed, rows.file(), row_strata), "test": test}
            for seed in range(options.folds)
        ]
    for number, draw in enumerate(draws):
        order = np.random.default_rng(number).permutation(len(draw["test"]))
        draw["test"] = draw["test"].take(np.sort(order[: options.max_eval_samples]))
    write_folds(str(folder), draws, SplitArguments(**split), overwrite=True)


# ---- logistic regression on frozen states


def frozen_cells(options: PublishedEncoderArguments, study: Study) -> Cells:
    """Return the cells of the logistic regression; those of a draw are kept in a file."""
    extractor, cells = None, {}
    for draw in study.folds:
        path = study.root / f"embeddings/draw-{draw}.json"
        done = json.loads(path.read_text()) if path.is_file() else {}
        for size in study.sizes:
            name = str(size or "all")
            if name not in done:
                checkpoint = FeatureArguments(model_name_or_path=options.model_name_or_path)
                extractor = extractor or open_extractor(checkpoint)
                fold = Path(str(study.args.folds_dir), f"fold-{draw}")
                drawn = study.root / f"subsets/fold-{draw}/{size}.jsonl" if size else fold / "train.jsonl"
                done[name] = frozen_metrics(extractor, drawn, fold / "test.jsonl")
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps(done))
            cells["embeddings", name, draw] = done[name]
    return cells


def frozen_metrics(extractor: FeatureExtractor, train_file: Path, test_file: Path) -> dict[str, float]:
    """Fit a logistic regression, and return its test metrics."""
    train, test = ([json.loads(line) for line in json_lines(file)] for file in (train_file, test_file))
    names = order_labels(Counter(str(row["label"]) for row in test))
    train_labels, test_labels = ([names.index(str(row["label"])) for row in rows] for rows in (train, test))
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, class_weight="balanced", max_iter=2000))
    model.fit(states_of(extractor, train), train_labels)
    metrics = classification_metrics(model.predict(states_of(extractor, test)), np.array(test_labels))
    return {name: metrics[name] for name in METRICS}


def states_of(extractor: FeatureExtractor, rows: list[dict[str, Any]]) -> np.ndarray:
    """Return (N, H) mean states of texts; (N, 4 H) of pairs: both, their distance and their product."""
    columns = [name for name in ("text", "text_pair") if name in rows[0]]
    states = [extractor.states(extractor.encode([(row[name], None) for row in rows]))[0] for name in columns]
    if len(states) == 1:
        return states[0]
    first, second = states
    return np.hstack([first, second, np.abs(first - second), first * second])


# ---- tables


def report_pretraining(checkpoints: list[str]) -> None:
    """Print hours (since the last start) and held-out results beside baselines, of checkpoints that keep theirs."""
    table = [["pre-training", "hours", "MLM loss (unigram)", "NSP accuracy (majority)"]]
    for checkpoint in map(Path, checkpoints):
        file = checkpoint / "all_results.json"
        results = json.loads(file.read_text()) if file.is_file() else {}
        if "unigram_mlm_loss" in results:
            mlm = f"{results['eval_mlm_loss']:.3f} ({results['unigram_mlm_loss']:.3f})"
            nsp = f"{results['eval_nsp_accuracy']:.3f} ({results['majority_nsp_accuracy']:.3f})"
            table.append([checkpoint.name, f"{results['train_runtime'] / 3600:.2f}", mlm, nsp])
    if len(table) > 1:
        print("\n".join([*format_table(table), ""]))


def study_cells(study: Study) -> Cells:
    """Return the fine-tuned cells and, once for each draw, the SVMs'."""
    cells: Cells = {}
    for row in study.results:
        size, draw = str(row["train_size"]), row["fold"]
        for method, prefix in ((row["model"], "test"), ("baseline_words",) * 2, ("baseline_characters",) * 2):
            cells.setdefault((method, size, draw), {name: row[f"{prefix}_{name}"] for name in METRICS})
    return cells


def report(cells: Cells, path: Path) -> None:
    """Print means and standard deviations over the draws, and write each cell."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "train_size", "draw", *METRICS])
        writer.writerows([*key, *(f"{value:.4f}" for value in metrics.values())] for key, metrics in cells.items())

    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (method, size, _), metrics in cells.items():
        for name, value in metrics.items():
            found[method, size][name].append(value)
    sizes = dict.fromkeys(size for _, size in found)
    table = [["", *(f"{size}: {name}" for size in sizes for name in METRICS)]]
    for method in dict.fromkeys(method for method, _ in found):
        name = NAMES.get(method, f"{method}, fine-tuned")
        table.append([name, *(mean(found[method, size][metric]) for size in sizes for metric in METRICS)])
    print("\n".join(format_table(table)))
    print(json.dumps([{"method": method, "train_size": size, **own} for (method, size), own in found.items()]))


def mean(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.3f} ({deviation:.3f})"


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    (options,) = parse((PublishedEncoderArguments,), argv, required=("model_name_or_path", "train_file"))
    transformers.utils.logging.set_verbosity_error()
    root = Path(options.output_dir)
    write_draws(options, root / "folds")

    ours = options.pretrained or ["runs/pretrain-default"]
    models = {"published": options.model_name_or_path, **{Path(path).name: path for path in ours}}
    study_args = StudyArguments(
        models=[*(f"{name}={path}" for name, path in models.items()), f"random={ours[0]}:from_scratch"],
        folds_dir=str(root / "folds"),
        seeds=[1],
        train_sizes=options.train_sizes or ["100", "all"],
        output_dir=str(root / "study"),
    )
    study = Study(study_args, [])
    if code := study.run():
        return code
    report_pretraining(ours)
    report({**study_cells(study), **frozen_cells(options, study)}, root / "worth.csv")
    return 0


if __name__ == "__main__":
    sys.exit(main())
