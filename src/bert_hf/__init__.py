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
    from bert_hf.finetuning.predict import predict
    from bert_hf.finetuning.tasks.classification import ClassificationTask
    from bert_hf.finetuning.tasks.multiple_choice import MultipleChoiceTask
    from bert_hf.finetuning.tasks.question_answering import QuestionAnsweringTask
    from bert_hf.finetuning.tasks.token_classification import TokenClassificationTask
    from bert_hf.finetuning.trainer import FineTuner
    from bert_hf.models.modeling_bert import BertForPreTraining, BertModel
    from bert_hf.pretraining.trainer import PreTrainer
    from bert_hf.training.resumable_trainer import ResumableTrainer

# Module → its public names, imported when they are asked for: a process that only encodes text needs no torch.
_NAMES_OF_MODULE = {
    "config.finetuning_arguments": "ClassificationArguments QuestionAnsweringArguments TaskArguments "
    "TokenClassificationArguments",
    "config.training_arguments": "FineTuningArguments PreTrainingArguments",
    "data.corpus.store": "Corpus",
    "data.examples.collator": "DataCollatorForPreTraining",
    "data.examples.dataset": "PreTrainingExamples",
    "data.text.tokenization": "load_tokenizer train_tokenizer",
    "errors": "InputError",
    "finetuning.predict": "predict",
    "finetuning.tasks.classification": "ClassificationTask",
    "finetuning.tasks.multiple_choice": "MultipleChoiceTask",
    "finetuning.tasks.question_answering": "QuestionAnsweringTask",
    "finetuning.tasks.token_classification": "TokenClassificationTask",
    "finetuning.trainer": "FineTuner",
    "models.modeling_bert": "BertForPreTraining BertModel",
    "pretraining.trainer": "PreTrainer",
    "training.resumable_trainer": "ResumableTrainer",
}
_MODULE_OF_NAME = {name: module for module, names in _NAMES_OF_MODULE.items() for name in names.split()}

__all__ = sorted(_MODULE_OF_NAME)  # pyright: ignore[reportUnsupportedDunderAll] - it is not a literal


def __getattr__(name: str):
    """Import a public name from its module when it is asked for."""
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'bert_hf' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bert_hf.{_MODULE_OF_NAME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
