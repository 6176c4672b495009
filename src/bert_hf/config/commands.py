"""The commands of `bert-hf`: the recipe that each runs, and its options, without importing torch."""

from typing import NamedTuple

from bert_hf.config.analysis_arguments import EstimateArguments, FeatureArguments, ProbeArguments, StudyArguments
from bert_hf.config.arguments import (
    CorpusArguments,
    ExampleArguments,
    ModelArguments,
    OutputArguments,
    PrepareArguments,
    TextArguments,
    TokenizerArguments,
)
from bert_hf.config.checkpoint_arguments import (
    ConversionArguments,
    DemoArguments,
    EvaluationArguments,
    ExportArguments,
    PredictionArguments,
)
from bert_hf.config.finetuning_arguments import (
    ClassificationArguments,
    QuestionAnsweringArguments,
    SplitArguments,
    TaskArguments,
    TokenClassificationArguments,
)
from bert_hf.config.training_options import FineTuningOptions, PreTrainingOptions


class Command(NamedTuple):
    """A recipe, the options that `--help` describes, and others that the command takes too."""

    recipe: str
    options: tuple[type, ...]
    others: tuple[type, ...] = ()
    trains: bool = False  # may run on several ranks


_PRETRAINING = (TokenizerArguments, CorpusArguments, ModelArguments, ExampleArguments, PreTrainingOptions)
_FINETUNING = (
    ClassificationArguments,
    TokenClassificationArguments,
    QuestionAnsweringArguments,
    TaskArguments,
    FineTuningOptions,
)

COMMANDS = {
    "tokenizer": Command("train_tokenizer", (TokenizerArguments, TextArguments, OutputArguments)),
    "prepare": Command(
        "prepare", (TextArguments, PrepareArguments, TokenizerArguments, OutputArguments, ExampleArguments)
    ),
    "pretrain": Command("pretrain", _PRETRAINING, trains=True),
    "classify": Command("finetune_classification", (ClassificationArguments, FineTuningOptions), trains=True),
    "answer": Command("finetune_question_answering", (QuestionAnsweringArguments, FineTuningOptions), trains=True),
    "tag": Command("finetune_token_classification", (TokenClassificationArguments, FineTuningOptions), trains=True),
    "choose": Command("finetune_multiple_choice", (TaskArguments, FineTuningOptions), trains=True),
    "predict": Command("predict", (PredictionArguments,)),
    "evaluate": Command("evaluate", (EvaluationArguments,)),
    "demo": Command("demo", (DemoArguments,)),
    "probe": Command("probe", (ProbeArguments, OutputArguments)),
    "study": Command("study", (StudyArguments,), _FINETUNING),
    "split": Command("split", (SplitArguments, OutputArguments)),
    "features": Command("extract_features", (FeatureArguments, OutputArguments)),
    "estimate": Command("estimate", (EstimateArguments,), _PRETRAINING),
    "export": Command("export", (ExportArguments,)),
    "convert": Command("convert_tf_checkpoint", (ConversionArguments,)),
}
