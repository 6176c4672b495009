"""Argument classes of each recipe."""

from bert_hf.config.arguments import CorpusArguments, ExampleArguments, ModelArguments, TokenizerArguments
from bert_hf.config.finetuning_arguments import (
    ClassificationArguments,
    QuestionAnsweringArguments,
    TaskArguments,
    TokenClassificationArguments,
)
from bert_hf.config.training_arguments import FineTuningArguments, PreTrainingArguments

PRETRAIN = (TokenizerArguments, CorpusArguments, ModelArguments, ExampleArguments, PreTrainingArguments)


FINETUNE = (ClassificationArguments, FineTuningArguments)

FINETUNING_RECIPES = {
    "finetune_classification": FINETUNE,
    "finetune_multiple_choice": (TaskArguments, FineTuningArguments),
    "finetune_question_answering": (QuestionAnsweringArguments, FineTuningArguments),
    "finetune_token_classification": (TokenClassificationArguments, FineTuningArguments),
}
