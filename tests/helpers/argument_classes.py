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

PRETRAIN = (TokenizerArguments, CorpusArguments, ModelArguments, ExampleArguments, PreTrainingArguments)


FINETUNE = (ClassificationArguments, FineTuningArguments)
