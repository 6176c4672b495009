"""Task of text classification and regression: known data sets, calibration, thresholds, baselines, error analysis."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor, nn

from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.console import format_table
from bert_hf.data.text.sources import hub_rows
from bert_hf.errors import InputError, check_known
from bert_hf.finetuning.decisions import thresholds
from bert_hf.finetuning.decisions.baselines import Baselines, cut_texts
from bert_hf.finetuning.decisions.drift import drift_line, typical_values
from bert_hf.finetuning.heads.classification import ClassificationHead
from bert_hf.finetuning.heads.head import Kept
from bert_hf.finetuning.metrics.classification import FEW_CLASSES, THRESHOLD_METRICS, metric_title
from bert_hf.finetuning.rows.known_tasks import TASKS, order_labels, read_task_folder, write_submission
from bert_hf.finetuning.rows.labelled_texts import REGRESSION, Columns, LabelledTexts, names_of
from bert_hf.finetuning.rows.near_duplicates import near_duplicate_groups
from bert_hf.finetuning.rows.splits import row_strata
from bert_hf.finetuning.tasks.task import Task
from bert_hf.training.publishing.curves import draw_confusion

_LEAST_DEVIATION = 0.02  # of predicted numbers, as a share of the labels' deviation; below it they are constant


class PredictedRows(NamedTuple):
    """Labelled rows of a part with their predictions."""

    rows: LabelledTexts
    probabilities: np.ndarray  # (N, C)
    predictions: np.ndarray  # (N,) class ids, by the threshold if there is one
    targets: np.ndarray  # (N,) class ids


class ClassificationTask(Task):
    """Labelled texts or pairs of texts; labels are classes, several classes per row, or numbers."""

    head_name = "classification"
    arguments = ClassificationArguments
    public_files = ("confusion.png",)
    identity_options = ("long_texts", "class_weight", *thresholds.OPTIONS)
    head: ClassificationHead
    task_args: ClassificationArguments
    parts: dict[str, LabelledTexts]

    def __init__(self, task_args: Any, tokenizer: Any, head: Any = None, metrics: Any = (), config: Any = None):
        super().__init__(task_args, tokenizer, head, metrics, config)
        if thresholds.threshold_option(task_args):
            thresholds.check_threshold(task_args, self.targets("validation"), self.head.labels)
        if task_args.class_weight == "balanced":
            if self.head.regression or self.head.several_labels:
                raise InputError("the rows have no single class each", where="--class_weight", remedy="leave it out")
            self.head.class_weights = self._balanced_weights()

    @classmethod
    def make_head(cls, task_args: Any, tokenizer: Any, head: Any = None) -> Any:
        """Return the head; --task sets its metrics, and makes it a regression where the labels are numbers."""
        made: Any = super().make_head(task_args, tokenizer, head)
        known = TASKS.get(task_args.task or "")
        if known is not None:
            made.benchmark_metrics = known.metrics
            if made.problem_type is None and known.regression:
                made.problem_type = REGRESSION
        return made

    def _reason_for_new_head(self, config: Any) -> str:
        """Return why the head is new: also if the checkpoint's second class is not the one of a known task's F1."""
        labels = self.head.labels
        reason = super()._reason_for_new_head(config)  # may take the checkpoint's order of the classes
        known = TASKS.get(self.task_args.task or "")
        swapped = len(labels) == 2 and self.head.labels != labels
        reports_f1 = known is not None and ("f1" in known.metrics or not known.metrics)  # usual metrics have it
        if swapped and reports_f1:
            self.head.labels = labels
            return f"F1 is of {labels[1]!r}, and the checkpoint's classes are {', '.join(reversed(labels))}"
        return reason

    # ---- rows

    def read(self) -> dict[str, LabelledTexts]:
        """Return the rows by part: of a known task from its folder or from the Hub, else as `Task.read` does."""
        task_args, head = self.task_args, self.head
        source = self.source(task_args)  # checks the options
        known = TASKS.get(task_args.task or "")
        if known is None or task_args.train_file:
            return super().read()
        if task_args.data_dir is not None:
            head.columns_read = Columns(*known.columns)  # recorded, for rows to predict
            head.text_columns = tuple(filter(None, known.columns[:2]))
            parts = read_task_folder(str(task_args.task), task_args.data_dir)
            return {part: rows.with_names(task_args.class_names or ()) for part, rows in parts.items()}

        # The Hub, with the columns and the splits of the task
        for name, column in zip(("text_column", "text_pair_column", "label_column"), known.columns, strict=True):
            if column is not None:
                head.given.setdefault(name, column)
        rows = hub_rows(source, task_args.dataset_config_name or known.config, known.splits.values())
        splits = {part: split for part, split in known.splits.items() if split in rows}
        parts = {part: head.read(rows[split], self.label_requirement(part)) for part, split in splits.items()}
        for part in parts:
            if known.benchmark and part.startswith("test"):
                parts[part].labels = None  # the Hub has -1, which is a number like others in a regression
        return parts

    def prepare(self, parts: dict[str, LabelledTexts]) -> None:
        """Check the classes and set `head.labels`, their names by id; then do what `Task.prepare` does."""
        head, task_args = self.head, self.task_args
        if not head.regression:
            parts["train"].check_classes(bool(task_args.task or task_args.problem_type))
            head.labels = head.labels or self._class_names(parts)
        super().prepare(parts)

    def _class_names(self, parts: dict[str, LabelledTexts]) -> tuple[str, ...]:
        """Return the class names of the training rows by id.

        The rarer of two classes is the positive one, by all rows: a study's subsets of the training rows would differ.
        """
        names = {name for label in parts["train"].required_labels() for name in names_of(label)}
        if self.head.several_labels:
            label_columns = self.head.columns_read.labels if self.head.columns_read else ()
            return label_columns or tuple(sorted(names))
        counts = Counter(label for rows in parts.values() for label in rows.labels or ())
        return order_labels({name: counts[name] for name in names}, self.task_args.task)

    def groups(self, rows: LabelledTexts) -> np.ndarray:
        return near_duplicate_groups(rows.joined())

    def strata(self, rows: LabelledTexts) -> np.ndarray:
        return row_strata(rows, self.head.regression)

    @classmethod
    def source(cls, task_args: Any) -> Any:
        """Check --task and --data_dir; return the known task's folder or Hub id, else what `Task.source` returns."""
        if task_args.task is not None:
            check_known(task_args.task, TASKS, f"unknown task {task_args.task!r}", "--task")
        if task_args.data_dir is not None and (task_args.task is None or task_args.train_file):
            what = "needs --task and no --train_file"
            raise InputError(what, where="--data_dir", remedy="pass --task and --data_dir, or --train_file")
        hub_id = TASKS[task_args.task].hub_id if task_args.task and not task_args.train_file else None
        return task_args.data_dir or task_args.dataset_name or hub_id or super().source(task_args)

    def describe(self) -> str:
        """Return a line about the rows of each part, and warnings on long texts and on few negative rows, if any."""
        rate, targets = self.task_args.max_false_positive_rate, self.targets("validation")
        few_negatives = thresholds.few_negatives_line(rate, targets, self.head.labels)
        return "\n".join(filter(None, [super().describe(), self.encoded("train").note, few_negatives]))

    def targets(self, part: str) -> Any:
        """Return the class ids or numbers of a part's rows; None where it has no labels."""
        rows = self.parts[part]
        return None if rows.labels is None else self.head.targets(rows)

    def _balanced_weights(self) -> Tensor:
        """Return (C,) weights, each inverse to the number of training features of its class."""
        counts = np.bincount(self.encoded("train").features["labels"], minlength=len(self.head.labels))
        balanced = counts.sum() / (len(counts) * counts.clip(min=1))  # a class may have no training row
        return torch.from_numpy(balanced).float()

    # ---- decisions

    def forget_decisions(self) -> None:
        super().forget_decisions()
        self.head.typical = {}  # recorded after a training, to notice drift; an evaluation keeps those of the model

    def decide(self, kept: Kept, network: Any) -> list[str]:
        """Calibrate the last layer, choose the threshold by validation rows, record typical lengths; return lines."""
        if self.head.regression or self.task_args.validates_on_training_rows:
            return []
        logits, targets = self.predictions("validation", kept), self.targets("validation")

        # Calibrate first: the threshold is one of the calibrated probabilities
        lines = ["calibration: none, the weights stay as they are"]
        last_layer = getattr(network, "classifier", None)  # a head of one's own may have another
        if isinstance(last_layer, nn.Linear) and not self.head.several_labels:
            temperature = thresholds.fit_temperature(logits, targets)
            if temperature != 1:
                for parameter in last_layer.parameters():
                    parameter.data.div_(temperature)
                lines = [f"calibration: the saved logits are divided by {temperature:.4f}; the classes stay"]
            logits = logits / temperature

        if thresholds.threshold_option(self.task_args) is not None:
            lines += self._decide_thresholds(logits, targets)
        self.head.typical = self.head.typical or typical_values(self.encoded("train").features, self.tokenizer)
        return lines

    def _decide_thresholds(self, logits: np.ndarray, targets: np.ndarray) -> list[str]:
        """Set `head.threshold` by validation rows, of several labels a list with one for each; return a line on it."""
        self.head.threshold = thresholds.choose_head_threshold(logits, targets, self.task_args)
        if not self.head.several_labels:
            sentence = thresholds.describe_threshold(logits, targets, self.head.threshold, self.head.labels)
            return [f"threshold, by validation rows: {sentence}"]
        by_label = zip(self.head.labels, self.head.threshold, strict=True)
        return [f"thresholds, by validation rows: {', '.join(f'{name} {value:.4f}' for name, value in by_label)}"]

    # ---- error analysis

    def analyse(self, folder: Path, part: str, kept: Mapping[str, Kept]) -> list[str]:
        """Return sentences on mistakes, threshold, drift; of single classes write `confusion.png`, `mistakes.csv`."""
        if self.head.regression:
            return self._constant_predictions_line(part, kept[part])
        drift = drift_line(self.encoded(part).features, self.tokenizer, self.head.typical) if self.head.typical else ""
        if self.head.several_labels:
            return [drift] if drift else []

        # Metrics of one part, mistakes of all that have labels
        labelled = [each for each in kept if self.targets(each) is not None]
        parts = {each: self._predicted_rows(each, kept[each]) for each in labelled}
        findings = []
        targets = parts[part].targets
        if len(self.head.labels) <= FEW_CLASSES:
            draw_confusion(folder / "confusion.png", targets, parts[part].predictions, self.head.labels)
        if self.head.threshold is not None:
            logits = self.predictions(part, kept[part])
            findings.append(thresholds.describe_threshold(logits, targets, self.head.threshold, self.head.labels))

        # Rows to look at
        if self.task_args.validates_on_training_rows and part != "validation":
            parts.pop("validation", None)  # the model was fitted to them
        findings.append(write_mistakes(folder / "mistakes.csv", parts, self.head.labels))
        return list(filter(None, [*findings, drift]))

    def _constant_predictions_line(self, part: str, kept: Kept) -> list[str]:
        """Return a sentence where the predicted numbers are nearly the same for all rows, else none."""
        deviation, label_deviation = self.predictions(part, kept).std(), self.targets(part).std()
        if deviation >= _LEAST_DEVIATION * label_deviation:
            return []
        deviations = f"deviation {deviation:.2g}, of the labels {label_deviation:.2g}"
        return [f"! the predictions are nearly constant ({deviations}): try more steps, or another --learning_rate"]

    def _predicted_rows(self, part: str, kept: Kept) -> PredictedRows:
        logits = self.predictions(part, kept)
        predicted = self.head.predicted_targets(logits)
        return PredictedRows(self.parts[part], softmax(logits, axis=-1), predicted, self.targets(part))

    def write_predictions(self, folder: Path, part: str, kept: Kept) -> None:
        """Write the predictions, and a benchmark's submission file if they are of all test rows (not a sample)."""
        super().write_predictions(folder, part, kept)
        logits, labels = self.predictions(part, kept), self.head.labels
        known = TASKS.get(self.task_args.task or "")
        if known is None or part not in known.submissions or len(logits) == self.task_args.max_eval_samples:
            return

        # The head's class ids become the benchmark's: the rows have its class names, or its ids as names
        predictions = self.head.predicted_targets(logits)
        for names_by_id in {known.labels, tuple(map(str, range(len(known.labels))))}:  # () for a regression
            if sorted(names_by_id) == sorted(labels):
                if labels:
                    predictions = np.array([names_by_id.index(labels[number]) for number in predictions])
                write_submission(folder, str(self.task_args.task), part, predictions)

    # ---- identity, card, report

    def row_identity(self, part: str) -> Any:
        return [self.parts[part].joined(), self.parts[part].labels]

    def usage(self, model: str) -> str:
        """Return the card's code: the stock pipeline on a text, or on a pair."""
        text = '"An example sentence."'
        if self.parts["train"].pairs is not None:
            text = '{"text": "An example sentence.", "text_pair": "Another one."}'
        every_label = ", top_k=None" if self.head.several_labels else ""
        return f"""from transformers import pipeline

classify = pipeline("text-classification", model="{model}"{every_label})
classify({text}, truncation=True)  # to {self.task_args.max_seq_length} tokens"""

    def limits(self) -> list[str]:
        """Return the findings, and for texts longer than an input a sentence on what the pipeline does not read."""
        text_parts = {
            "head_tail": "the beginning and the end of",
            "windows": "all of, in several windows whose logits are averaged,",
        }.get(self.task_args.long_texts)
        limits = [f"{finding}." for finding in self.findings]
        if text_parts is not None:
            longest = f"a text of more than {self.task_args.max_seq_length} tokens"
            limits.append(f"Training and metrics read {text_parts} {longest}. The pipeline reads only its beginning.")
        return limits

    def baseline_metrics(self) -> dict[str, float]:
        """Return metrics of majority class and linear models on the test rows, else the validation rows."""
        task_args = self.task_args
        part = "test" if "test" in self.parts and self.parts["test"].labels is not None else "validation"
        cut = self.tokenizer, task_args.max_seq_length, task_args.long_texts  # to what the model reads
        train, validation, test = (cut_texts(self.parts[each], *cut) for each in ("train", "validation", part))
        baselines = Baselines(train, self.head)
        threshold_of_kind = {}  # chosen in the same way as the model's
        if thresholds.threshold_option(task_args):
            scores, targets = baselines.scores(validation), self.targets("validation")
            for kind in baselines.models:
                threshold_of_kind[kind] = thresholds.choose_head_threshold(scores[kind], targets, task_args)
        return baselines.metrics(test, threshold_of_kind)

    def report(self, part: str, metrics: dict, baselines: dict, kept: Kept) -> str:
        """Return a table of the metrics beside the baselines', the findings, and the confusion matrix."""
        prefix = part.replace("validation", "eval")
        columns = {f"{prefix}_": "this model"}  # titles, by the beginning of the metrics' names
        if baselines:
            linear = "ridge regression" if self.head.regression else "linear SVM"
            columns |= {"baseline_mean_": "mean"} if self.head.regression else {"baseline_majority_": "majority"}
            columns |= {f"baseline_{kind}_": f"{linear} on {kind}" for kind in ("words", "characters")}

        # One row per metric: the model's and the baselines'
        values = metrics | baselines
        rows = [[part, *columns.values()]]
        for name in dict.fromkeys((*self.head.metric_names(), *THRESHOLD_METRICS, *self.further_names)):
            if f"{prefix}_{name}" in metrics:
                cells = [f"{values[column + name]:.4f}" if column + name in values else "" for column in columns]
                rows.append([metric_title(name, self.head.labels), *cells])

        lines = format_table(rows)
        if baselines and self.task_args.long_texts == "head":
            lines.append(f"The baselines read what the model reads, at most {self.task_args.max_seq_length} tokens.")
        lines += [*self.findings, self.head.table(self.parts[part], self.predictions(part, kept))]
        return "\n".join(filter(None, lines))


def write_mistakes(path: Path, parts: Mapping[str, PredictedRows], labels: Sequence[str]) -> str:
    """Write every wrong prediction of some parts, the most probable first; return a sentence on them.

    A label is suspected of being wrong where the model, which was not fitted to these rows, is at least as sure of
    another class as it is on average when it predicts that class, and knows more than the classes' frequencies: the
    label is at most half as probable as it is frequent. (Northcutt et al. 2021 average over the rows with that label:
    where many of them are predicted wrongly, the average is low and nearly every mistake is suspected.)
    """
    header = ["part", "file", "line", "label", "prediction", "score", "suspected_label_error", "text"]
    mistakes = []
    for part, (rows, probabilities, predictions, targets) in parts.items():
        scores = probabilities[np.arange(len(rows)), predictions]
        frequencies = np.bincount(targets, minlength=len(labels)) / len(rows)
        mean_scores = {predicted: scores[predictions == predicted].mean() for predicted in np.unique(predictions)}
        texts = rows.joined()
        for row in np.flatnonzero(predictions != targets):
            label, predicted = targets[row], predictions[row]
            is_unlikely = probabilities[row, label] <= frequencies[label] / 2
            suspected = "yes" if is_unlikely and scores[row] >= mean_scores[predicted] else "no"
            names = labels[label], labels[predicted]
            values = (part, *rows.places[row], *names, f"{scores[row]:.4f}", suspected, texts[row])
            mistakes.append(dict(zip(header, values, strict=True)))

    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, header, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(mistakes, key=lambda mistake: mistake["score"], reverse=True))
    suspects = sum(mistake["suspected_label_error"] == "yes" for mistake in mistakes)
    confident = f"{suspects:,} of them confident (check their labels)"
    return f"{path.name}: {len(mistakes):,} wrong predictions in {', '.join(parts)} rows, {confident}"
