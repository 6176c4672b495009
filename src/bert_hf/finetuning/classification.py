"""Classification of texts and of pairs of texts, and regression: one new layer on [CLS] (Devlin et al. 2019, 4.1)."""

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from scipy.special import softmax
from sklearn.metrics import precision_recall_curve
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, PreTrainedTokenizerBase

from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.console import format_table, logger
from bert_hf.data.corpus.checksums import json_checksum
from bert_hf.data.text.sources import hub_rows
from bert_hf.errors import InputError, check_known
from bert_hf.finetuning import decisions, mistakes
from bert_hf.finetuning.baselines import Baselines, cut_texts
from bert_hf.finetuning.known_tasks import TASKS, order_labels, read_task_folder, write_numbered, write_submission
from bert_hf.finetuning.labelled_texts import Columns, LabelledTexts, labelled_rows, read_labelled, without_empty
from bert_hf.finetuning.long_texts import EncodedTexts, average_windows, encode_texts
from bert_hf.finetuning.losses import cross_entropies, squared_errors
from bert_hf.finetuning.metrics import (
    CLASSIFICATION,
    CORRELATION,
    RANKING,
    THRESHOLD_METRICS,
    classification_metrics,
    confusion,
    metric_title,
    positive_rates,
    positive_scores,
    predicted_classes,
    regression_metrics,
)
from bert_hf.finetuning.near_duplicates import near_duplicate_groups, words_of
from bert_hf.finetuning.splits import row_strata
from bert_hf.finetuning.task import TRAINED_ON, Arrays, DownstreamTask
from bert_hf.training.publishing.curves import draw_shares


def is_regression(task_args: ClassificationArguments) -> bool:
    """Whether labels are numbers: by --problem_type, else by the task."""
    if task_args.problem_type is not None:
        return task_args.problem_type == "regression"
    return task_args.task in TASKS and TASKS[task_args.task].regression


class ClassificationTask(DownstreamTask):
    """Labelled texts or pairs of texts; labels are classes or, of a regression, numbers.

    A text read in several windows gives several features; their logits are averaged.
    """

    auto_class = AutoModelForSequenceClassification
    new_layers = ("classifier.", "bert.pooler.")  # a checkpoint with a masked-LM head alone has no pooler
    pipeline_tag = "text-classification"
    task_args: ClassificationArguments

    def __init__(self, task_args: ClassificationArguments, tokenizer: PreTrainedTokenizerBase):
        super().__init__(task_args, tokenizer)
        self.regression = is_regression(task_args)
        self._warning = decisions.check_threshold(task_args, self.targets("validation"), self.labels)
        self._inputs: dict[str, EncodedTexts] = {}
        self._svm_code = ""

    # ---- rows

    @classmethod
    def read(cls, task_args: Any) -> dict[str, LabelledTexts]:
        """The rows, checked."""
        parts = _read(task_args, cls.source(task_args))
        if task_args.class_names:
            parts = {part: rows.with_names(task_args.class_names) for part, rows in parts.items()}
        if is_regression(task_args):
            for rows in parts.values():
                if rows.labels is not None:
                    rows.numbers()
        else:
            parts["train"].check_classes(bool(task_args.task or task_args.problem_type))
            names = cls.class_names(task_args, parts)
            for rows in parts.values():
                rows.check_labels(names)

        train = {tuple(words_of(text)) for text in parts["train"].joined()} - {()}
        for name in parts.keys() - {"train"}:
            if repeated := sum(tuple(words_of(text)) in train for text in parts[name].joined()):
                logger.info(f"{repeated:,} of {len(parts[name]):,} {name} rows have the same words as a training row")
        return parts

    @classmethod
    def groups(cls, rows: LabelledTexts) -> np.ndarray:
        return near_duplicate_groups(rows.joined())

    @classmethod
    def strata(cls, task_args: Any, rows: LabelledTexts) -> np.ndarray:
        return row_strata(rows, is_regression(task_args))

    @classmethod
    def class_names(cls, task_args: Any, parts: dict[str, LabelledTexts]) -> tuple[str, ...]:
        if task_args.class_names:
            return tuple(task_args.class_names)
        # Counted in all rows: a study's subsets of the training rows would differ in which class is the rare one
        every = Counter(label for rows in parts.values() for label in rows.labels or ())
        counts = {name: every[name] for name in parts["train"].class_names()}
        return () if is_regression(task_args) else order_labels(counts, task_args.task)

    @classmethod
    def source(cls, task_args: Any) -> str:
        if task_args.task is not None:
            check_known(task_args.task, TASKS, f"unknown task {task_args.task!r}", "--task")
        if task_args.data_dir is not None and (task_args.task is None or task_args.train_file):
            what = "needs --task and no --train_file"
            raise InputError(what, where="--data_dir", remedy="pass --task and --data_dir, or --train_file")
        hub_id = TASKS[task_args.task].hub_id if task_args.task and not task_args.train_file else None
        return task_args.data_dir or task_args.dataset_name or hub_id or super().source(task_args)

    @classmethod
    def describe_rows(cls, rows: LabelledTexts, task_args: Any) -> str:
        return rows.line("regression" if is_regression(task_args) else None)

    def describe(self) -> str:
        return "\n".join(filter(None, [super().describe(), self.inputs("train").note, self._warning]))

    def targets(self, part: str) -> Any:
        """(N,) class ids or numbers of a part's rows; None where it has no labels."""
        rows: LabelledTexts = self.parts[part]
        return None if rows.labels is None else rows.targets(self.labels)

    def inputs(self, part: str) -> EncodedTexts:
        """The encoded rows of a part."""
        if part not in self._inputs:
            targets = self.targets(part)
            labels = None if targets is None else targets.tolist()
            self._inputs[part] = encode_texts(
                self.parts[part], labels, self.tokenizer, self.task_args.max_seq_length, self.task_args.long_texts
            )
        return self._inputs[part]

    def encoded(self, part: str) -> datasets.Dataset:
        return self.inputs(part).features

    def collator(self) -> DataCollatorWithPadding:
        return DataCollatorWithPadding(self.tokenizer)

    # ---- network and loss

    def config_options(self) -> dict:
        if self.regression:
            return {"num_labels": 1, "problem_type": "regression"}
        return {**super().config_options(), "problem_type": "single_label_classification"}

    def chosen_options(self) -> dict:
        columns = self.parts["train"].columns
        names = {"text_column": columns.text, "text_pair_column": columns.pair, "label_column": columns.label}
        trained_on = {**names, "long_texts": self.task_args.long_texts, "deciles": self._deciles}
        return {TRAINED_ON: trained_on, "decision_threshold": self.threshold}

    def losses(self, inputs: dict[str, Tensor], outputs, label_smoothing: float = 0.0) -> Tensor:
        if self.regression:
            return squared_errors(outputs["logits"], inputs["labels"])
        return cross_entropies(outputs["logits"], inputs["labels"], label_smoothing)

    def label_weights(self, labels: Tensor) -> Tensor:
        if self.task_args.class_weight == "none":
            return super().label_weights(labels)
        return self._class_weights.to(labels.device)[labels.clamp(min=0)]

    @functools.cached_property
    def _class_weights(self) -> Tensor:
        counts = np.bincount(self.encoded("train")["labels"], minlength=len(self.labels))  # of inputs, windows too
        balanced = counts.sum() / (len(self.labels) * counts.clip(min=1))  # a class may have no training row
        return torch.from_numpy(balanced).float()

    # ---- predictions

    @classmethod
    def metric_names(cls, task_args: Any) -> tuple[str, ...]:
        if is_regression(task_args):
            return (*CORRELATION, "loss")
        benchmark_metrics = TASKS[task_args.task].metrics if task_args.task in TASKS else ()
        return tuple(dict.fromkeys((*benchmark_metrics, *CLASSIFICATION, RANKING, "loss")))

    def evaluate(self, part: str, predictions: Arrays, labels: np.ndarray | None) -> dict[str, float]:
        logits, targets = self.logits(part, predictions), self.targets(part)
        if self.regression:
            metrics = regression_metrics(logits, targets)
        else:
            metrics = classification_metrics(logits, targets, self.metric_names(self.task_args), self.threshold)
        if self._temperature is not None and not self.regression:
            metrics |= decisions.probability_metrics(logits, targets)

        if len(logits) < len(predictions):  # a mean over windows would weight long texts more
            losses = self.losses({"labels": torch.from_numpy(targets)}, {"logits": torch.from_numpy(logits)})
            metrics["loss"] = float(losses.double().mean())
        return metrics

    def logits(self, part: str, predictions: Arrays) -> np.ndarray:
        """(N, classes) of the rows."""
        assert isinstance(predictions, np.ndarray)
        return average_windows(predictions, self.inputs(part).row_of_feature)

    def begin(self) -> None:
        super().begin()
        self._temperature: float | None = None  # until `decide`
        self._deciles: dict[str, list[float]] = {}

    def decide_as_trained(self, config: Any) -> None:
        super().decide_as_trained(config)
        self._temperature = 1.0  # it is part of the weights
        self._deciles = getattr(config, TRAINED_ON, {}).get("deciles", {})

    def decide(self, predictions: Arrays, network: Any) -> list[str]:
        self._temperature = 1.0
        if self.regression or self.task_args.validates_on_training_rows:
            return []
        logits, targets = self.logits("validation", predictions), self.targets("validation")

        # Probabilities first: the threshold is one of them
        lines = ["calibration: none, the weights stay as they are"]
        last = getattr(network, "classifier", None)  # a head of one's own may have another last layer
        if isinstance(last, nn.Linear) and (temperature := decisions.fit_temperature(logits, targets)) != 1:
            self._temperature = temperature
            for parameter in last.parameters():
                parameter.data.div_(self._temperature)
            lines = [f"calibration: logits divided by {self._temperature:.4f}, by validation rows"]

        logits = logits / self._temperature
        if decisions.threshold_option(self.task_args) is not None:
            self.threshold = decisions.choose_threshold(logits, targets, self.task_args)
            on_rows = decisions.describe_threshold(logits, targets, self.threshold, self.labels)
            lines.append(f"threshold, by validation rows: {on_rows}")

        # The training rows' own scores would be those of rows that the network knows by heart
        measured = mistakes.measures(self.encoded("train"), logits, self.tokenizer)
        self._deciles = {name: mistakes.deciles(values) for name, values in measured.items()}
        return lines

    def analyse(self, folder: Path, part: str, predictions: dict[str, Arrays]) -> list[str]:
        if self.regression:
            return []
        labelled = [each for each in predictions if self.targets(each) is not None]
        judged = {each: self._judged(each, predictions[each]) for each in labelled}
        rows, _, predicted, targets = judged[part]
        logits = self.logits(part, predictions[part])

        # Probabilities and threshold
        by_name = {"as trained": logits}
        if self._temperature not in (None, 1):
            by_name = {"as trained": logits * self._temperature, "calibrated": logits}
        curves: dict[str, Any] = {"ideal": ([0, 1], [0, 1])}
        curves |= {name: decisions.reliability(each, targets) for name, each in by_name.items()}
        draw_shares(folder / "reliability.png", curves, "confidence", "accuracy")
        findings = [decisions.describe_calibration(by_name, targets)]
        if len(self.labels) == 2:
            precisions, recalls, _ = precision_recall_curve(targets, positive_scores(logits))
            own = positive_rates(predicted == 1, targets == 1)
            curves = {"every threshold": (recalls, precisions), "as predicted": ([own["recall"]], [own["precision"]])}
            draw_shares(folder / "precision_recall.png", curves, "recall", "precision")
        if self.threshold is not None:
            findings.append(decisions.describe_threshold(logits, targets, self.threshold, self.labels))

        # Rows to look at
        inputs = self.inputs(part)
        slices = {"tokens": mistakes.length_groups(inputs.lengths)}
        if rows.slices:
            slices[str(rows.columns.slice)] = rows.slices
        mistakes.write_slices(folder / "slices.csv", judged[part], slices)
        findings.append(mistakes.write_mistakes(folder / "mistakes.csv", judged, self.labels))
        measured = mistakes.measures(inputs.features, logits, self.tokenizer)
        return list(filter(None, [*findings, mistakes.drift_line(measured, self._deciles)]))

    def _judged(self, part: str, predictions: Arrays) -> mistakes.Judged:
        logits = self.logits(part, predictions)
        predicted = predicted_classes(logits, self.threshold)
        return mistakes.Judged(self.parts[part], softmax(logits, axis=-1), predicted, self.targets(part))

    def write_predictions(self, folder: Path, part: str, predictions: Arrays) -> None:
        logits = self.logits(part, predictions)
        values = logits[:, 0] if self.regression else predicted_classes(logits, self.threshold)
        # A submission has all test rows of the benchmark, and its classes
        drawn = len(values) == self.task_args.max_eval_samples
        task = None if drawn else TASKS.get(self.task_args.task or "")
        if task and part in task.submissions and self.labels in (task.labels, tuple("012"[: len(task.labels)])):
            write_submission(folder, str(self.task_args.task), part, values)
            return

        shown = [f"{value:.6g}" if self.regression else self.labels[value] for value in values]
        write_numbered(folder / f"{part}_predictions.tsv", shown, self.parts[part].places)

    # ---- identity, card, report

    def fingerprint(self) -> dict:
        rows = [[rows.joined(), rows.labels] for rows in self.parts.values()]
        long_texts = None if self.task_args.long_texts == "head" else self.task_args.long_texts
        option = decisions.threshold_option(self.task_args)
        return {
            "data": json_checksum(rows)[:16],
            "labels": list(self.labels),
            "long_texts": long_texts,
            "class_weight": "balanced" if self.task_args.class_weight == "balanced" else None,
            "threshold": option and [option, getattr(self.task_args, option)],
        }

    def usage(self, model: str) -> str:
        text = '"An example sentence."'
        if self.parts["train"].pairs is not None:
            text = '{"text": "An example sentence.", "text_pair": "Another one."}'
        return f"""from transformers import pipeline

classify = pipeline("text-classification", model="{model}")
classify({text}, truncation=True)  # to {self.task_args.max_seq_length} tokens, as in training
{self._svm_code}""".rstrip()

    def settings(self) -> dict:
        kind = {"target": "a number"} if self.regression else {"labels": ", ".join(self.labels)}
        return {**kind, "long texts": self.task_args.long_texts}

    def limits(self) -> list[str]:
        text_parts = {
            "head_tail": "the beginning and the end of",
            "windows": "all of, in several windows whose logits are averaged,",
        }.get(self.task_args.long_texts)
        limits = [f"{finding}." for finding in self.findings]
        if text_parts is not None:
            longest = f"a text of more than {self.task_args.max_seq_length} tokens"
            limits.append(f"Training and metrics read {text_parts} {longest}. The pipeline reads its beginning alone.")
        return limits

    def baselines(self, folder: Path) -> dict[str, float]:
        how = (self.tokenizer, self.task_args.max_seq_length, self.task_args.long_texts)
        judged = "test" if "test" in self.parts and self.parts["test"].labels is not None else "validation"
        train, validation, test = (cut_texts(self.parts[part], *how) for part in ("train", "validation", judged))
        names, baselines = self.metric_names(self.task_args), Baselines(train, self.labels)
        thresholds = {}
        if decisions.threshold_option(self.task_args):  # by the same rule, on the same rows
            scores, targets = baselines.predict(validation), self.targets("validation")
            thresholds = {
                kind: decisions.choose_threshold(scores[kind], targets, self.task_args) for kind in baselines.models
            }
        if baselines.models and validation.pairs is None:
            by_kind = baselines.metrics(validation, names)
            best = max(baselines.models, key=lambda kind: by_kind[f"baseline_{kind}_{names[0]}"])
            self._svm_code = baselines.save(folder / "svm.npz", best)
        return baselines.metrics(test, names, thresholds)

    def report(self, metrics: dict, baselines: dict, predictions: Arrays | None) -> str:
        judged = "test" if "test_loss" in metrics else "validation"  # test rows may have no labels
        prefix = judged.replace("validation", "eval")
        columns = {f"{prefix}_": "this model"}
        if baselines:
            linear = "ridge regression" if self.regression else "linear SVM"
            columns |= {"baseline_mean_": "mean"} if self.regression else {"baseline_majority_": "majority"}
            columns |= {f"baseline_{kind}_": f"{linear} on {kind}" for kind in ("words", "characters")}

        # One row per metric: the model's and the baselines'
        values = metrics | baselines
        rows = [[judged, *columns.values()]]
        for name in (*self.metric_names(self.task_args), *THRESHOLD_METRICS):
            if f"{prefix}_{name}" in metrics:
                cells = (f"{values[column + name]:.4f}" if column + name in values else "" for column in columns)
                rows.append([metric_title(name, self.labels), *cells])

        lines = format_table(rows)
        if baselines:
            lines.append(f"The baselines read what the model reads, at most {self.task_args.max_seq_length} tokens.")
        lines += self.findings
        if predictions is not None and not self.regression:
            guesses = predicted_classes(self.logits(judged, predictions), self.threshold)
            lines.append(confusion(self.targets(judged), guesses, self.labels))
        return "\n".join(filter(None, lines))


# ---- files and the Hub


def _read(task_args: ClassificationArguments, source: str) -> dict[str, LabelledTexts]:
    if task_args.data_dir is not None:
        return read_task_folder(str(task_args.task), task_args.data_dir)

    columns = Columns(task_args.text_column, task_args.text_pair_column, task_args.label_column)
    columns = columns._replace(slice=task_args.slice_column)
    parts: dict[str, LabelledTexts] = {}
    if task_args.train_file:
        for part, files in task_args.files().items():
            parts[part] = read_labelled(files, columns, task_args.encoding, part != "test", task_args.separator)
            columns = parts["train"].columns
        return parts

    task = TASKS.get(task_args.task or "")
    text, pair, label = task.columns if task else (None, None, None)
    columns = columns._replace(text=columns.text or text, pair=columns.pair or pair, label=columns.label or label)
    splits = task.splits if task else {part: part for part in ("train", "validation", "test")}
    config = task_args.dataset_config_name or (task.config if task else None)
    rows = hub_rows(source, config, splits.values())
    for part, split in splits.items():
        if split not in rows:
            continue
        labelled = labelled_rows(rows[split], columns, needs_labels=not part.startswith("test"))
        if task is not None and task.benchmark and part.startswith("test"):
            labelled.labels = None  # the Hub has -1, which is a number like others in a regression
        parts[part] = without_empty(labelled)
        columns = parts["train"].columns
    return parts
