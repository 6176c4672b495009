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
from bert_hf.config.finetuning_arguments import TokenClassificationArguments

PRETRAIN = (TokenizerArguments, CorpusArguments, ModelArguments, ExampleArguments, PreTrainingArguments)


FINETUNE = (ClassificationArguments, FineTuningArguments)

FINETUNING_RECIPES = {
    "finetune_classification": FINETUNE,
    "finetune_token_classification": (TokenClassificationArguments, FineTuningArguments),
}
