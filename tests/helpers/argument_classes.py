"""Argument classes of each recipe."""

from bert_hf.config.arguments import (
    ClassificationArguments,
    CorpusArguments,
    ExampleArguments,
    FineTuningArguments,
    ModelArguments,
    PreTrainingArguments,
    TokenizerArguments,
)
from bert_hf.config.finetuning_arguments import (
    QuestionAnsweringArguments,
    TaskArguments,
    TokenClassificationArguments,
)

PRETRAIN = (TokenizerArguments, CorpusArguments, ModelArguments, ExampleArguments, PreTrainingArguments)


FINETUNE = (ClassificationArguments, FineTuningArguments)

FINETUNING_RECIPES = {
    "finetune_classification": FINETUNE,
    "finetune_multiple_choice": (TaskArguments, FineTuningArguments),
    "finetune_question_answering": (QuestionAnsweringArguments, FineTuningArguments),
    "finetune_token_classification": (TokenClassificationArguments, FineTuningArguments),
}
