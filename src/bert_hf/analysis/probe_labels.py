"""Measures what a checkpoint is worth with few labels: logistic regression on frozen features, and fine-tuning.

Both use the same three folds of a user's labelled rows, near-duplicates in one part of each.
"""

import json
import shutil
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bert_hf.analysis.features import FeatureExtractor
from bert_hf.analysis.study import PARTS, Study, json_lines, nested_order
from bert_hf.analysis.study_report import collect, metric_names
from bert_hf.config.analysis_arguments import StudyArguments
from bert_hf.config.finetuning_arguments import SplitArguments
from bert_hf.finetuning.decisions.baselines import tfidf
from bert_hf.finetuning.rows.fold_files import make_folds, read_rows_to_split, write_folds
from bert_hf.finetuning.rows.known_tasks import order_labels
from bert_hf.finetuning.rows.near_duplicates import near_duplicate_groups

FOLDS = 3
LABELS = (10, 50, 100, 500)  # labelled rows of the frozen features
FINE_TUNED = 100  # labelled rows of the fine-tuning
STEPS = 200  # of the fine-tuning
Text = tuple[str, str]  # a text and the second one of a pair, else ""


def prepare_folds(files: list[str], text_column: str | None, label_column: str | None, folder: Path) -> int:
    """Write the rows of each fold, in place of an earlier probe's; return the fewest training rows of a fold."""
    split_args = SplitArguments(train_file=files, text_column=text_column, label_column=label_column, folds=FOLDS)
    rows = read_rows_to_split(split_args)
    for old in (folder, folder.parent / "few_labels"):
        shutil.rmtree(old, ignore_errors=True)
    made = make_folds(rows, near_duplicate_groups(rows.joined()), split_args)
    write_folds(str(folder), made, split_args)
    return min(len(parts["train"]) for parts in made)


# ---- frozen features


def frozen_features(
    networks: dict[str, PreTrainedModel], tokenizer: PreTrainedTokenizerBase, folder: Path, length: int
) -> dict[str, Any]:
    """Return the scores of logistic regression on mean states of the last layer and on TF-IDF, by number of labels.

    Returns:
        metric; scores {method: {labelled rows: mean over the folds}}.
    """
    folds = [_read_fold(folder / f"fold-{number}") for number in range(FOLDS)]
    names = order_labels(Counter(label for rows in folds for _, label in rows["test"]))  # all rows, each once
    texts = sorted({text for rows in folds for text, _ in (*rows["train"], *rows["test"])})

    # The value of each text, what makes features of the values, and C of the logistic regression
    methods: dict[str, tuple[dict[Text, Any], Any, float]] = {}
    for name, model in networks.items():
        extractor = FeatureExtractor(model, tokenizer, [model.config.num_hidden_layers], "mean", length)
        [states] = extractor.states(extractor.encode(texts))
        methods[name] = dict(zip(texts, states, strict=True)), StandardScaler(), 0.1
    joined = {text: " ".join(text) for text in texts}
    methods |= {f"tfidf_{kind}": (joined, tfidf(kind), 10.0) for kind in ("words", "characters")}

    scores: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    most = max(count for count in LABELS if count <= min(len(rows["train"]) for rows in folds))
    for number, rows in enumerate(folds):
        truth = np.array([names.index(label) for _, label in rows["test"]])
        classes = np.array([names.index(label) for _, label in rows["train"]])
        order = nested_order(np.unique(classes, return_inverse=True)[1], most, (0, number))
        for count in (count for count in LABELS if count <= most):
            drawn = [rows["train"][row][0] for row in order[:count]]
            for name, (value_of, features, c) in methods.items():
                model = make_pipeline(features, LogisticRegression(C=c, class_weight="balanced", max_iter=2000))
                model.fit([value_of[text] for text in drawn], classes[order[:count]])
                scores[name][count].append(_score(model, [value_of[text] for text, _ in rows["test"]], truth))

    return {
        "metric": "average precision" if len(names) == 2 else "macro F1",
        "scores": {
            name: {count: statistics.fmean(found) for count, found in by_count.items()}
            for name, by_count in scores.items()
        },
    }


def _read_fold(folder: Path) -> dict[str, list[tuple[Text, str]]]:
    """Return ((text, second text), label) of each row by part; the validation rows are training rows here."""
    parts = {}
    for part in PARTS:
        rows = [json.loads(line) for line in json_lines(folder / f"{part}.jsonl")]
        parts[part] = [((row["text"], row.get("text_pair", "")), str(row["label"])) for row in rows]
    return {"train": parts["train"] + parts["validation"], "test": parts["test"]}


def _score(model: Pipeline, inputs: list, truth: np.ndarray) -> float:
    """Return the average precision of the second class, the positive one, or macro F1 of more classes."""
    if len(model.classes_) == 2 and len(np.unique(truth)) <= 2:
        return float(average_precision_score(truth == model.classes_[1], model.decision_function(inputs)))
    return float(f1_score(truth, model.predict(inputs), average="macro"))


# ---- fine-tuning


def few_labels(checkpoint: str, folder: Path, length: int) -> dict[str, Any]:
    """Fine-tune the checkpoint, and its shape with random weights, on `FINE_TUNED` rows of each fold.

    Returns:
        {model or baseline: {metric: value of each fold}}, from the study in `few_labels/`.
    """
    study_args = StudyArguments(
        models=[f"checkpoint={checkpoint}", f"random={checkpoint}:from_scratch"],
        folds_dir=str(folder / "folds"),
        seeds=[1],
        train_sizes=[str(FINE_TUNED)],
        output_dir=str(folder / "few_labels"),
    )
    recipe_argv = ["--max_seq_length", str(length), "--max_steps", str(STEPS)]
    study = Study(study_args, recipe_argv)
    if study.run():
        return {}

    results: dict[str, Any] = defaultdict(dict)
    for metric in [name for name in metric_names(study.table) if name != "loss"]:
        for name, scores in collect(study.table, metric).groupby("name", sort=False):
            results[str(name).replace("baseline_", "tfidf_")][metric] = scores["value"].tolist()
    return {name: metrics for name, metrics in results.items() if name != "tfidf_majority"}
