"""Answers to questions: the start and the end of an answer in a context (Devlin et al. 2019, sections 4.2 and 4.3)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForQuestionAnswering

from bert_hf.data.examples.collator import pad_inputs
from bert_hf.data.text.tables import Row
from bert_hf.finetuning.features.answer_spans import Prediction, best_spans, merge_windows
from bert_hf.finetuning.features.context_windows import ContextWindows, make_context_windows
from bert_hf.finetuning.heads.head import TRAINED_ON, Head, Kept, Labels, label_options, unnamed_labels
from bert_hf.finetuning.heads.pictures import bars, marked_text
from bert_hf.finetuning.losses import span_cross_entropies
from bert_hf.finetuning.rows.questions import Question, question_rows, questions_of_rows


class QuestionAnsweringHead(Head):
    """The answer to a question in its context, or none. A long context is read in windows, each a feature.

    The loss of a window is the sum of the cross entropies of start and end, each a choice among its tokens; a window
    that does not hold the answer has [CLS] as both. A question has no answer if its null odds (score of [CLS] minus
    score of the best span) exceed `threshold`; without a threshold every question has one.
    """

    name = "question_answering"
    auto_class = AutoModelForQuestionAnswering
    architectures = ("ForQuestionAnswering",)
    new_layers = ("qa_outputs.",)
    pipeline_tag = "question-answering"
    own_metric = "QuestionAnswering"
    extra_columns = ("ranges",)
    text_columns = ("question", "context")
    option_names = ("doc_stride", "max_query_length", "max_answer_length", "n_best_size")

    def read_file(self, path: str, encoding: str | None = None) -> Iterator[Row]:
        yield from question_rows(path, encoding, self.given.get("separator"))

    def read(self, rows: Sequence[Row], labels: Labels = "needed") -> list[Question]:
        return questions_of_rows(rows, labels)

    def describe_rows(self, rows: list[Question]) -> str:
        answered = sum(bool(question.answers) for question in rows)
        return f"{len(rows):,} questions, {answered:,} of them with an answer"

    def encode(self, rows: list[Question]) -> ContextWindows:
        """Return windows over the contexts, each with its question."""
        doc_stride = self.option("doc_stride", self.length // 3)
        max_query_length = self.option("max_query_length", min(64, self.length // 2))
        return make_context_windows(rows, self.tokenizer, self.length, doc_stride, max_query_length)

    def collate(self, features: list[dict]) -> dict[str, Tensor]:
        """Return a padded batch with `ranges` (B, 6) and, where known, `labels` (B, 2), see `ContextWindows`."""
        ids, segments = ([feature[name] for feature in features] for name in ("input_ids", "token_type_ids"))
        batch = pad_inputs(ids, self.tokenizer.pad_token_id, torch.device("cpu"), segments)
        others = [name for name in ("labels", "ranges") if name in features[0]]
        return batch | {name: torch.as_tensor([feature[name] for feature in features]) for name in others}

    def config_options(self) -> dict:
        return label_options(unnamed_labels(2))  # two outputs per token: the logits of start and end

    def losses(self, inputs: dict[str, Tensor], outputs: Any, label_smoothing: float = 0.0) -> Tensor:
        starts, ends = outputs["start_logits"], outputs["end_logits"]
        return span_cross_entropies(starts, ends, inputs["attention_mask"], inputs["labels"])

    def keep(self, inputs: dict[str, Tensor], outputs: Any) -> tuple[Tensor, ...]:
        """Return the best spans of each window and the logits of [CLS], see `best_spans`."""
        starts, ends = outputs["start_logits"], outputs["end_logits"]
        n_best, longest = self.option("n_best_size", 20), self.option("max_answer_length", 30)
        return best_spans(starts, ends, inputs["ranges"], n_best, longest)

    def decode(self, rows: list[Question], encoded: ContextWindows, kept: Kept) -> list[Prediction]:
        """Return the best spans of each question."""
        return list(merge_windows(encoded, kept))

    def added_columns(self, rows: list[Question], predictions: list[Prediction]) -> list[dict[str, Any]]:
        """Return `answer`, "" for none, and `score`, its probability among the best spans."""
        added = []
        for prediction in predictions:
            has_answer = prediction.text(self.threshold) != ""
            span = prediction.spans[0] if has_answer else prediction.null
            probability_of_span = dict(prediction.probabilities(with_null=self.threshold is not None))
            added.append({"answer": span.text, "score": probability_of_span[span]})
        return added

    def picture(self, texts: Mapping[str, str], rows: list[Question], predictions: list[Prediction]) -> str:
        """Return the context with the answer marked, and its score."""
        [added], [prediction] = self.added_columns(rows, predictions), predictions
        answer, score = added["answer"], added["score"]
        if not answer:
            return marked_text(texts["context"], []) + bars({"no answer": score}, ["no answer"])
        best = prediction.spans[0]
        return marked_text(texts["context"], [(best.start, best.end, "")]) + bars({answer: score}, [answer])

    def metric_names(self) -> tuple[str, ...]:
        names = ("f1", "exact", "HasAns_f1", "HasAns_exact", "loss")
        may_have_none = self.given.get("version_2_with_negative", True)  # not given: the rows decide later
        # A task adds the metrics at the best threshold, where questions may have no answer
        return ("best_f1", "best_exact", *names) if self.is_new and may_have_none else names

    def metric_inputs(self, rows: list[Question], predictions: list[Prediction]) -> dict[str, Any]:
        """Return predictions and references in the form of the `squad_v2` metric, answers chosen by the threshold."""
        threshold = self.threshold
        is_stock = not self.is_new and not self.trained  # fine-tuned by a stock example, which records no threshold
        if threshold is None and is_stock and not all(question.answers for question in rows):
            threshold = 0.0  # the default of the stock examples
        predicted = [
            {"id": each.question.id, "prediction_text": each.text(threshold), "no_answer_probability": 0.0}
            for each in predictions
        ]
        references = []
        for question in rows:
            texts = [answer.text for answer in question.answers or ()]
            starts = [answer.start for answer in question.answers or ()]
            references.append({"id": question.id, "answers": {"text": texts, "answer_start": starts}})
        return {"predictions": predicted, "references": references}

    def record(self) -> dict[str, Any]:
        """Return the options of the training, with the threshold as it was given, and the threshold that is used.

        Both also where they are None: the checkpoint that was fine-tuned may have those of another run.
        """
        given = {"null_score_diff_threshold": self.given.get("null_score_diff_threshold")}
        options = super().record()[TRAINED_ON] | given
        return {TRAINED_ON: options, "null_score_diff_threshold": self.threshold}

    def restore(self, config: Any) -> None:
        self.labels = ()  # the stock configuration names two outputs LABEL_0 and LABEL_1
        self.threshold = getattr(config, "null_score_diff_threshold", None)
