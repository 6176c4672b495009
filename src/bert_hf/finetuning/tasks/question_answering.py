"""Question answering: the start and the end of an answer in a context (Devlin et al. 2019, sections 4.2 and 4.3)."""

import hashlib
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from torch import Tensor
from transformers import AutoModelForQuestionAnswering

from bert_hf.config.finetuning_arguments import QuestionAnsweringArguments
from bert_hf.data.text.sources import hub_rows
from bert_hf.errors import InputError
from bert_hf.finetuning.losses import span_cross_entropies
from bert_hf.finetuning.rows.near_duplicates import near_duplicate_groups
from bert_hf.finetuning.features.answer_spans import best_spans, decode, write_predictions
from bert_hf.finetuning.rows.questions import Question, questions_of_rows, read_questions
from bert_hf.finetuning.metrics.squad import official_metrics
from bert_hf.finetuning.features.context_windows import WindowCollator, WindowShape, make_windows
from bert_hf.finetuning.tasks.task import TRAINED_ON, Arrays, DownstreamTask


class SpanTask(DownstreamTask):
    """Questions on contexts.

    The loss of a window is the mean of the cross entropies of start and end, each a choice among its tokens; a window
    that does not hold the answer has [CLS] as both. Where questions without an answer are predicted, a question has
    none if its null odds exceed a threshold, which the validation questions decide, unless it is given.

    Attributes:
        threshold: of the null odds; None where every question has an answer, or before the first evaluation.
    """

    auto_class = AutoModelForQuestionAnswering
    new_layers = ("qa_outputs.",)
    pipeline_tag = "question-answering"
    splits_test = False
    extra_columns = ("in_context", "limits")
    task_args: QuestionAnsweringArguments
    parts: dict[str, list[Question]]

    def __init__(self, task_args: QuestionAnsweringArguments, tokenizer):
        super().__init__(task_args, tokenizer)

        # Here, so that invalid data are reported before the run begins
        shape = WindowShape(task_args.max_seq_length, task_args.doc_stride, task_args.max_query_length)
        self.windows = {part: make_windows(questions, tokenizer, shape) for part, questions in self.parts.items()}

    # ---- rows

    @classmethod
    def read(cls, task_args: Any) -> dict[str, list[Question]]:
        """The questions; --version_2_with_negative becomes true or false, as the data have it."""
        if task_args.train_file:
            files = task_args.files()
            parts = {part: read_questions(own, need_answers=part != "test") for part, own in files.items()}
        else:
            rows_of_part = hub_rows(cls.source(task_args), task_args.dataset_config_name)
            parts = {part: questions_of_rows(rows, need_answers=part != "test") for part, rows in rows_of_part.items()}

        if not any(question.answers for question in parts["train"]):
            remedy = "give questions with answers to train on"
            raise InputError("no question has an answer", where=parts["train"][0].file, remedy=remedy)
        if task_args.version_2_with_negative is None:
            scored = [question for part, own in parts.items() if part != "test" for question in own]
            task_args.version_2_with_negative = not all(question.answers for question in scored)
        return parts

    @classmethod
    def groups(cls, rows: list[Question]) -> np.ndarray:
        """Near-duplicate contexts, and whole articles."""
        titles = {question.context: question.title for question in rows}
        units = list(titles.values()) if len(set(titles.values())) > 1 else None
        groups = near_duplicate_groups(list(titles), units)

        numbers = {context: number for number, context in enumerate(titles)}
        return groups[[numbers[question.context] for question in rows]]

    @classmethod
    def describe_rows(cls, rows: list[Question], task_args: Any) -> str:
        answered = sum(bool(question.answers) for question in rows)
        return f"{len(rows):,} questions, {answered:,} of them with an answer"

    def encoded(self, part: str) -> datasets.Dataset:
        data = self.windows[part].data
        if part == "test" and not any(question.answers for question in self.parts[part]):
            return data.remove_columns("labels")  # they are predicted but not scored
        return data

    def collator(self) -> WindowCollator:
        return WindowCollator(self.tokenizer)

    # ---- network and loss

    def config_options(self) -> dict:
        return {"num_labels": 2}

    def chosen_options(self) -> dict:
        names = ("doc_stride", "max_query_length", "max_answer_length", "n_best_size", "null_score_diff_threshold")
        trained_on = {name: getattr(self.task_args, name) for name in names}
        return {TRAINED_ON: trained_on, "null_score_diff_threshold": self.threshold}  # also instead of another run's

    def losses(self, inputs: dict[str, Tensor], outputs, label_smoothing: float = 0.0) -> Tensor:
        logits = outputs["start_logits"], outputs["end_logits"]
        return span_cross_entropies(*logits, inputs["attention_mask"], inputs["labels"])

    # ---- predictions

    @classmethod
    def metric_names(cls, task_args: Any) -> tuple[str, ...]:
        both = ("f1", "exact", "HasAns_f1", "HasAns_exact", "loss")
        with_best = task_args.version_2_with_negative is not False  # None: the data, which are not read, decide
        return ("best_f1", "best_exact", *both) if with_best else both

    def reduce(self, inputs: dict[str, Tensor], outputs) -> tuple[Tensor, ...]:
        logits = outputs["start_logits"], outputs["end_logits"]
        where = inputs["in_context"], inputs["limits"]
        return tuple(best_spans(*logits, *where, self.task_args.n_best_size, self.task_args.max_answer_length))

    def begin(self) -> None:
        super().begin()
        self._is_decided = False

    def decide_as_trained(self, config: Any) -> None:
        self.threshold = getattr(config, "null_score_diff_threshold", None)
        self._is_decided = True

    def evaluate(self, part: str, predictions: Arrays, labels: np.ndarray | None) -> dict[str, float]:
        """The official metrics, in percent.

        With questions that have no answer, `exact` and `f1` of the validation questions are those at the given
        threshold or at 0, and `best_…` those at the best; of other parts, those at the threshold that was chosen.
        """
        gold = {question.id: [answer.text for answer in question.answers] for question in self.parts[part]}
        best = list(decode(self.windows[part], predictions, n_best=1))
        texts = {prediction.question.id: prediction.text() for prediction in best}
        if not self.task_args.version_2_with_negative:
            return official_metrics(gold, texts)

        odds = {prediction.question.id: prediction.null_odds for prediction in best}
        threshold = self.task_args.null_score_diff_threshold
        if part == "validation":
            below_all = min(odds.values()) - 1.0
            metrics = official_metrics(gold, texts, odds, threshold or 0.0, answer_nothing=below_all)
            if threshold is not None:
                self.threshold = threshold
            elif not self._is_decided:
                self.threshold = metrics["best_f1_thresh"]
            return metrics

        metrics = official_metrics(gold, texts, odds, self.threshold or 0.0)
        return {name: value for name, value in metrics.items() if not name.startswith("best_")}

    def write_predictions(self, folder: Path, part: str, predictions: Arrays) -> None:
        """The official files."""
        write_predictions(folder, decode(self.windows[part], predictions, self.task_args.n_best_size), self.threshold)

    # ---- identity, card, report

    def fingerprint(self) -> dict:
        digest = hashlib.sha256()
        for part, questions in self.parts.items():
            for question in questions:
                fields = [part, question.id, question.question, question.context, question.answers]
                digest.update(json.dumps(fields).encode())
        task_args = self.task_args
        return {
            "data": digest.hexdigest()[:16],
            "windows": [task_args.doc_stride, task_args.max_query_length, task_args.max_answer_length],
            "version_2": task_args.version_2_with_negative,
            "threshold": task_args.null_score_diff_threshold,
            "n_best": task_args.n_best_size,
        }

    def usage(self, model: str) -> str:
        return f'''from bert_hf import predict

question, context = "Who wrote the letter?", "Anna wrote the letter in May."
print(predict("{model}", [{{"question": question, "context": context}}]))  # a context of any length

# transformers alone, for a context that fits into one input; a longer one is cut
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

model = AutoModelForQuestionAnswering.from_pretrained("{model}")
tokenizer = AutoTokenizer.from_pretrained("{model}")
sizes = dict(truncation="only_second", max_length={self.task_args.max_seq_length})
inputs = tokenizer(question, context, return_tensors="pt", **sizes)
with torch.no_grad():
    outputs = model(**inputs)
first, last = int(outputs.start_logits.argmax()), int(outputs.end_logits.argmax())
print(tokenizer.decode(inputs["input_ids"][0, first : last + 1]))'''

    def settings(self) -> dict:
        task_args = self.task_args
        settings = {
            "questions": "some have no answer" if task_args.version_2_with_negative else "all have an answer",
            "tokens that windows share": task_args.doc_stride,
            "longest question": task_args.max_query_length,
            "longest answer": task_args.max_answer_length,
        }
        if self.threshold is not None:
            settings["threshold of the null odds"] = f"{self.threshold:.4f}"
        return settings
