"""Task of question answering: checks the questions, chooses the no-answer threshold, writes SQuAD's files."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from bert_hf.config.finetuning_arguments import QuestionAnsweringArguments
from bert_hf.errors import InputError
from bert_hf.finetuning.features.answer_spans import write_predictions
from bert_hf.finetuning.heads.head import Kept
from bert_hf.finetuning.heads.question_answering import QuestionAnsweringHead
from bert_hf.finetuning.metrics.squad import official_metrics
from bert_hf.finetuning.rows.near_duplicates import near_duplicate_groups
from bert_hf.finetuning.rows.questions import Question
from bert_hf.finetuning.tasks.task import Task


class QuestionAnsweringTask(Task):
    """Questions on contexts, and the threshold above which a question has no answer (see `QuestionAnsweringHead`).

    Where some questions have no answer (--version_2_with_negative), the validation questions decide it, or an option.
    """

    head_name = "question_answering"
    arguments = QuestionAnsweringArguments
    splits_test = False
    identity_options = (*QuestionAnsweringHead.option_names, "version_2_with_negative", "null_score_diff_threshold")
    example: ClassVar[Any] = {"question": "Who wrote the letter?", "context": "Anna wrote the letter in May."}
    head: QuestionAnsweringHead
    task_args: QuestionAnsweringArguments
    parts: dict[str, list[Question]]

    def __init__(self, task_args: Any, tokenizer: Any, head: Any = None, metrics: Any = (), config: Any = None):
        super().__init__(task_args, tokenizer, head, metrics, config)
        for part in self.parts:  # here, so that invalid data are reported before the run begins
            self.encoded(part)

    def prepare(self, parts: dict[str, list[Question]]) -> None:
        """Check that some training questions have answers; set --version_2_with_negative where it is not given.

        It is true if a question has no answer. Test questions do not count: their answers may be unknown.
        """
        if not any(question.answers for question in parts["train"]):
            remedy = "give questions with answers to train on"
            raise InputError("no question has an answer", where=parts["train"][0].file, remedy=remedy)
        if self.task_args.version_2_with_negative is None:
            known = [question for part, questions in parts.items() if part != "test" for question in questions]
            self.task_args.version_2_with_negative = not all(question.answers for question in known)
            self.head.given["version_2_with_negative"] = self.task_args.version_2_with_negative
        super().prepare(parts)

    def groups(self, rows: list[Question]) -> np.ndarray:
        """Return the groups of near-duplicate contexts, and whole articles."""
        titles = {question.context: question.title for question in rows}
        units = list(titles.values()) if len(set(titles.values())) > 1 else None
        groups = near_duplicate_groups(list(titles), units)

        numbers = {context: number for number, context in enumerate(titles)}
        return groups[[numbers[question.context] for question in rows]]

    def forget_decisions(self) -> None:
        super().forget_decisions()
        # "open" in a training, "restored" in an evaluation of a finished model, "decided" after a training
        self._threshold_is: Literal["open", "restored", "decided"] = "open"

    def restore(self, config: Any) -> None:
        super().restore(config)
        self._threshold_is = "restored"

    def decide(self, kept: Kept, network: Any) -> list[str]:
        self._threshold_is = "decided"  # `metrics` of the validation questions has set it
        return []

    def metrics(self, part: str, kept: Kept, losses: np.ndarray) -> dict[str, float]:
        """Return the official metrics, in percent, at `head.threshold` (as given, restored or decided).

        Until the end of a training, validation questions with --version_2_with_negative also give `exact` and `f1` at
        the given threshold or at 0, and `best_…` at the best one, which becomes `head.threshold` if none is given.
        """
        given = self.task_args.null_score_diff_threshold
        if given is not None:
            self.head.threshold = given
        is_validation = part == "validation" and self.task_args.version_2_with_negative
        if not is_validation or self._threshold_is == "decided":
            return super().metrics(part, kept, losses)

        predictions = self.predictions(part, kept)
        odds = {prediction.question.id: prediction.null_odds for prediction in predictions}
        texts = {prediction.question.id: prediction.text() for prediction in predictions}
        gold = {each.id: [text for text, _ in each.answers or ()] for each in self.parts[part]}
        below_all = min(odds.values()) - 1.0  # a threshold at which no question has an answer
        official = official_metrics(gold, texts, odds, threshold=given or 0.0, answer_nothing=below_all)
        if given is None and self._threshold_is == "open":
            self.head.threshold = official["best_f1_thresh"]
        return {**super().metrics(part, kept, losses), **official}

    def write_predictions(self, folder: Path, part: str, kept: Kept) -> None:
        """Write the files that SQuAD's official script reads, and the best answers of each question."""
        write_predictions(folder, self.predictions(part, kept), self.head.threshold)

    def row_identity(self, part: str) -> Any:
        return [[each.id, each.question, each.context, each.answers] for each in self.parts[part]]
