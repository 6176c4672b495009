"""The commands of `bert-hf`: the recipe that each runs, and its options, without importing torch."""

from typing import NamedTuple

from bert_hf.config import arguments, training_options
from bert_hf.config import checkpoint_arguments as checkpoint
from bert_hf.config import finetuning_arguments as finetuning


class Command(NamedTuple):
    """A recipe, the option classes that `--help` describes, and others whose options the command takes, too."""

    recipe: str
    options: tuple[type, ...]
    others: tuple[type, ...] = ()
    trains: bool = False  # may run on several ranks


_TOKENIZER, _TEXT, _EXAMPLES = arguments.TokenizerArguments, arguments.TextArguments, arguments.ExampleArguments
_OUTPUT = arguments.OutputArguments
_PRETRAINING = (
    _TOKENIZER, arguments.CorpusArguments, arguments.ModelArguments, _EXAMPLES, training_options.PreTrainingOptions,
)  # fmt: skip
_TUNING = training_options.FineTuningOptions
_FINETUNING = (
    finetuning.ClassificationArguments,
    finetuning.TokenClassificationArguments,
    finetuning.QuestionAnsweringArguments,
    finetuning.TaskArguments,
    _TUNING,
)

COMMANDS = {
    "tokenizer": Command("train_tokenizer", (_TOKENIZER, _TEXT, _OUTPUT)),
    "prepare": Command("prepare", (_TEXT, arguments.PrepareArguments, _TOKENIZER, _OUTPUT, _EXAMPLES)),
    "pretrain": Command("pretrain", _PRETRAINING, trains=True),
    "classify": Command("finetune_classification", (finetuning.ClassificationArguments, _TUNING), trains=True),
    "answer": Command("finetune_question_answering", (finetuning.QuestionAnsweringArguments, _TUNING), trains=True),
    "tag": Command("finetune_token_classification", (finetuning.TokenClassificationArguments, _TUNING), trains=True),
    "choose": Command("finetune_multiple_choice", (finetuning.TaskArguments, _TUNING), trains=True),
    "predict": Command("predict", (checkpoint.PredictionArguments,)),
    "evaluate": Command("evaluate", (checkpoint.EvaluationArguments,)),
    "demo": Command("demo", (checkpoint.DemoArguments,)),
    "probe": Command("probe", (checkpoint.ProbeArguments, _OUTPUT)),
    "study": Command("study", (checkpoint.StudyArguments,), _FINETUNING),
    "split": Command("split", (finetuning.SplitArguments, _OUTPUT)),
    "features": Command("extract_features", (checkpoint.FeatureArguments, _OUTPUT)),
    "estimate": Command("estimate", (checkpoint.EstimateArguments,), _PRETRAINING),
    "export": Command("export", (checkpoint.ExportArguments,)),
    "convert": Command("convert_tf_checkpoint", (checkpoint.ConversionArguments,)),
}
