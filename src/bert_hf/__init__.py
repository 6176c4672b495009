"""BERT, pre-trained from scratch and fine-tuned, in the Hugging Face ecosystem."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bert_hf.config.finetuning_arguments import (
        ClassificationArguments,
        QuestionAnsweringArguments,
        TaskArguments,
        TokenClassificationArguments,
    )
    from bert_hf.config.training_arguments import FineTuningArguments, PreTrainingArguments
    from bert_hf.data.corpus.store import Corpus
    from bert_hf.data.examples.collator import DataCollatorForPreTraining
    from bert_hf.data.examples.dataset import PreTrainingExamples
    from bert_hf.data.text.tokenization import load_tokenizer, train_tokenizer
    from bert_hf.errors import InputError
    from bert_hf.finetuning.choices import ChoiceTask
    from bert_hf.finetuning.classification import ClassificationTask
    from bert_hf.finetuning.prediction import predict
    from bert_hf.finetuning.spans import SpanTask
    from bert_hf.finetuning.trainer import FineTuner
    from bert_hf.finetuning.words import TokenClassificationTask
    from bert_hf.models.modeling_bert import BertForPreTraining, BertModel
    from bert_hf.training.log_lines import print_summary
    from bert_hf.training.resumable_trainer import ResumableTrainer
    from bert_hf.training.trainer import PreTrainer

# Imported when they are asked for: a process that only encodes text needs no torch.
_HOMES = {
    "BertForPreTraining": "models.modeling_bert",
    "BertModel": "models.modeling_bert",
    "ChoiceTask": "finetuning.choices",
    "ClassificationArguments": "config.finetuning_arguments",
    "ClassificationTask": "finetuning.classification",
    "Corpus": "data.corpus.store",
    "DataCollatorForPreTraining": "data.examples.collator",
    "FineTuner": "finetuning.trainer",
    "FineTuningArguments": "config.training_arguments",
    "InputError": "errors",
    "PreTrainer": "training.trainer",
    "PreTrainingArguments": "config.training_arguments",
    "PreTrainingExamples": "data.examples.dataset",
    "QuestionAnsweringArguments": "config.finetuning_arguments",
    "ResumableTrainer": "training.resumable_trainer",
    "SpanTask": "finetuning.spans",
    "TaskArguments": "config.finetuning_arguments",
    "TokenClassificationArguments": "config.finetuning_arguments",
    "TokenClassificationTask": "finetuning.words",
    "load_tokenizer": "data.text.tokenization",
    "predict": "finetuning.prediction",
    "print_summary": "training.log_lines",
    "train_tokenizer": "data.text.tokenization",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll] - it is not a literal


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'bert_hf' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bert_hf.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
