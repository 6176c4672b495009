"""Fine-tuning side by side: ours and transformers' run_glue, run_ner, run_qa or run_swag, in one process.

python benchmarks/finetuning_parity.py --task spam --model_name_or_path runs/pretrain-default \
    --train_file SMSSpamCollection.tsv

Every side has the same rows, class ids, checkpoint, seeds and training arguments (those of the recipes, fp32) and
predicts the validation rows with its last weights. Stock: the example's tokenization, collator, Trainer and decoding,
padded to `--max_seq_length` or to the longest of the batch. Ours: the recipe's path, whose random order of rows is the
examples'. Seconds are those of the training, CPU time with one thread; freed memory is kept on all sides, as our runs
do. A JSON line has all runs.
"""

import json
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import transformers
from datasets import Dataset
from pretraining_throughput import Clock
from transformers import AutoConfig, AutoTokenizer, Trainer, TrainingArguments, default_data_collator

from bert_hf.config.finetuning_arguments import (
    ClassificationArguments,
    QuestionAnsweringArguments,
    TokenClassificationArguments,
)
from bert_hf.config.options import option
from bert_hf.config.parser import parse
from bert_hf.config.training_arguments import FineTuningArguments, resolve_by_width
from bert_hf.console import logger
from bert_hf.data.text.tokenization import load_tokenizer
from bert_hf.errors import one_line_errors
from bert_hf.finetuning.heads.head import compute_metrics
from bert_hf.finetuning.metrics.entities import tagging_metrics
from bert_hf.finetuning.metrics.squad import official_metrics
from bert_hf.finetuning.tasks.classification import ClassificationTask
from bert_hf.finetuning.tasks.multiple_choice import MultipleChoiceTask
from bert_hf.finetuning.tasks.question_answering import QuestionAnsweringTask
from bert_hf.finetuning.tasks.token_classification import TokenClassificationTask
from bert_hf.finetuning.trainer import FineTuner, load_task_model

STOCK, LONGEST = "stock, padded to one length", "stock, padded to the batch"
OURS = "ours"
ALIKE = "learning_rate num_train_epochs per_device_train_batch_size warmup_steps weight_decay adam_epsilon".split()


@dataclass
class ParityArguments(ClassificationArguments, QuestionAnsweringArguments, TokenClassificationArguments):
    doc_stride: int = 48  # of 128 tokens
    seeds: int = option(3, "Runs of every side, with the seeds 1, 2, …")


# ---- the stock examples: rows to inputs, predictions to a metric (transformers 5, examples/pytorch)


class Glue:
    """run_glue.py, and what the other examples share."""

    collator: Any = transformers.DataCollatorWithPadding

    def __init__(self, task):
        self.task = task
        self.tokenizer = AutoTokenizer.from_pretrained(task.task_args.model_name_or_path)
        self.metric = task.head.metric_names()[0]

    def encode(self, *texts, padding: Any, truncation: Any = True, **how):
        longest = self.task.task_args.max_seq_length
        return self.tokenizer(*texts, padding=padding, truncation=truncation, max_length=longest, **how)

    def features(self, part: str, padding: Any) -> Dataset:
        rows = self.task.parts[part]
        texts = (rows.texts,) if rows.pairs is None else (rows.texts, rows.pairs)
        return Dataset.from_dict({**self.encode(*texts, padding=padding), "labels": self.task.targets(part)})

    def judge(self, predictions: Any, labels: Any) -> float:
        rows, no_losses = self.task.parts["validation"], np.zeros((len(labels), 2))
        return compute_metrics(self.task.head, rows, predictions, no_losses)[self.metric]


class Swag(Glue):
    """run_swag.py: each choice is an input of its own."""

    collator = transformers.DataCollatorForMultipleChoice

    def features(self, part: str, padding: Any) -> Dataset:
        rows = self.task.parts[part]
        count = len(rows[0].choices)
        firsts = [row.texts()[0] for row in rows for _ in range(count)]
        encoded = self.encode(firsts, [choice for row in rows for choice in row.texts()[1]], padding=padding)
        starts = range(0, len(firsts), count)
        columns = {name: [values[at : at + count] for at in starts] for name, values in encoded.items()}
        return Dataset.from_dict({**columns, "labels": [row.label for row in rows]})


class Ner(Glue):
    """run_ner.py: the first piece of a word has its label; words that are cut off are not judged."""

    collator = transformers.DataCollatorForTokenClassification

    def features(self, part: str, padding: Any) -> Dataset:
        rows = self.task.parts[part]
        encoded = self.encode(rows.words, padding=padding, is_split_into_words=True)
        labels = [[-100] * len(ids) for ids in encoded["input_ids"]]
        for number, tags in enumerate(rows.tags):
            words = encoded.word_ids(number)
            for word in set(words) - {None}:
                labels[number][words.index(word)] = self.task.head.labels.index(tags[word])
        return Dataset.from_dict({**encoded, "labels": labels})

    def judge(self, predictions: Any, labels: Any) -> float:
        judged, names = labels != -100, np.array(self.task.head.labels)
        gold, predicted = (
            [names[ids[kept]].tolist() for ids, kept in zip(numbers, judged, strict=True)]
            for numbers in (labels, predictions.argmax(-1))
        )
        return tagging_metrics(gold, predicted)[self.metric]


class Qa(Glue):
    """run_qa.py for SQuAD 1.1: windows; the best of the 20 best starts with the 20 best ends, over all windows."""

    def features(self, part: str, padding: Any) -> Dataset:
        questions = self.task.parts[part]
        encoded = self.encode(
            [question.question.lstrip() for question in questions], [question.context for question in questions],
            padding=padding, truncation="only_second", stride=self.task.task_args.doc_stride,
            return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip
        self.owners, self.offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
        self.inside = [np.flatnonzero(np.equal(encoded.sequence_ids(row), 1)) for row in range(len(self.owners))]
        spans = [self._span(row, questions[owner].answers[0]) for row, owner in enumerate(self.owners)]
        starts, ends = zip(*spans, strict=True)
        return Dataset.from_dict({**encoded, "start_positions": starts, "end_positions": ends})

    def _span(self, row: int, answer) -> tuple[int, int]:
        """First and last token of the answer; (0, 0) where the window does not hold all of it."""
        offsets, inside = self.offsets[row], self.inside[row]
        end = answer.start + len(answer.text)
        if offsets[inside[0]][0] > answer.start or offsets[inside[-1]][1] < end:
            return 0, 0
        after = next((at for at in range(inside[0], len(offsets)) if offsets[at][0] > answer.start), len(offsets))
        return after - 1, next(at for at in inside if offsets[at][1] >= end)

    def judge(self, predictions: Any, labels: Any) -> float:
        questions = self.task.parts["validation"]
        best = {question.id: (-np.inf, "empty") for question in questions}
        for row, (owner, *logits) in enumerate(zip(self.owners, *predictions, strict=True)):
            question, offsets = questions[owner], self.offsets[row]
            starts, ends = (np.intersect1d(np.argsort(own)[-20:], self.inside[row]) for own in logits)
            for first in starts:
                for last in ends[(ends >= first) & (ends - first < self.task.task_args.max_answer_length)]:
                    text = question.context[offsets[first][0] : offsets[last][1]]
                    best[question.id] = max(best[question.id], (logits[0][first] + logits[1][last], text))
        gold = {question.id: [answer.text for answer in question.answers] for question in questions}
        return official_metrics(gold, {name: text for name, (_, text) in best.items()})[self.metric]


TASKS = {
    "spam": (ClassificationTask, Glue),
    "mrpc": (ClassificationTask, Glue),
    "ner": (TokenClassificationTask, Ner),
    "squad": (QuestionAnsweringTask, Qa),
    "swag": (MultipleChoiceTask, Swag),
}


# ---- runs


def run(side: str, example: Glue, seed: int, shared: dict[str, Any]) -> tuple[float, float]:
    """(metric of the validation rows, seconds of the training)."""
    task, clock = example.task, Clock()
    padding = side == STOCK and "max_length"
    model, _ = load_task_model(task, seed)
    with tempfile.TemporaryDirectory() as folder:
        if side == OURS:
            args = FineTuningArguments(output_dir=folder, seed=seed, **shared)
            trainer: Any = FineTuner(model, args, task=task)
            trainer.validate = lambda network: None  # `train` would end with it
        else:
            collator = default_data_collator if padding else example.collator(example.tokenizer)
            args = TrainingArguments(output_dir=folder, seed=seed, **shared)
            trainer = Trainer(model, args, collator, example.features("train", padding))
        trainer.remove_callback(transformers.PrinterCallback)
        started = clock.now()
        trainer.train()
        seconds = clock.now() - started
        if side == OURS:
            return trainer.predict_part("validation", "eval")[f"eval_{example.metric}"], seconds
        output = trainer.predict(example.features("validation", padding))
        return example.judge(output.predictions, output.label_ids), seconds


def line(runs: list[tuple[float, float]], first: list[tuple[float, float]]) -> str:
    """The metric and the seconds of a side, compared with the first side."""
    (values, seconds), (theirs, their_seconds) = np.transpose(runs), np.transpose(first)
    few = min(1, len(runs) - 1)
    error = np.sqrt((values.var(ddof=few) + theirs.var(ddof=few)) / len(runs))
    difference = values.mean() - theirs.mean()
    shown = f"{values.mean():10.4f}{values.std(ddof=few):8.4f}{difference:+12.4f} ({difference / (error or 1):+.1f})"
    return f"{shown}{np.median(seconds):10.1f}{np.median(their_seconds / seconds):7.2f}"


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    options, args = parse((ParityArguments, FineTuningArguments), argv)
    transformers.utils.logging.set_verbosity_error()
    logger.setLevel("WARNING")
    kind, stock = TASKS[options.task]
    example = stock(kind(options, load_tokenizer(options.model_name_or_path)))
    resolve_by_width(args, AutoConfig.from_pretrained(options.model_name_or_path).hidden_size)
    fixed = {"bf16": False, "eval_strategy": "no", "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    shared = {name: getattr(args, name) for name in ALIKE} | fixed

    runs: dict[str, list] = {side: [] for side in (STOCK, LONGEST, OURS)}
    for seed in range(1, options.seeds + 1):
        for side, own in runs.items():
            own.append(run(side, example, seed, shared))

    print(f"{options.task}\n{'':28}{example.metric:>10}{'s.d.':>8}{'difference':>12}{'seconds':>17}{'ratio':>7}")
    for side, own in runs.items():
        print(f"{side:28}{line(own, runs[STOCK])}")
    rows = {part: len(example.task.parts[part]) for part in ("train", "validation")}
    print(json.dumps({"task": options.task, "metric": example.metric, **rows, **shared, **runs}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
