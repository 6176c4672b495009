"""Declares the options of `recipes/extract_features.py` and checks them before a network is loaded."""

from collections.abc import Iterator
from dataclasses import dataclass

from transformers import BertConfig

from bert_hf.analysis.features.texts import Columns, read_texts
from bert_hf.config.arguments import OutputArguments, option
from bert_hf.data.text.input_files import expand, is_url
from bert_hf.errors import InputError
from bert_hf.preflight.checkpoints import not_checked, read_model_config
from bert_hf.preflight.options import check_output_folder
from bert_hf.training.output_folder import require_output_dir

POOLINGS = ("none", "cls", "mean", "max")
# Marks a folder of ours. Readers of Parquet folders skip names that begin with "_" or ".".
FEATURE_RECORD = "_features.json"


@dataclass
class FeatureArguments:
    """Which checkpoint reads which texts, and which of its hidden states are kept."""

    model_name_or_path: str | None = option(None, "Checkpoint (folder or Hub id).")
    tokenizer_name: str | None = option(None, "Tokenizer, where it is not the checkpoint's own.")

    train_file: list[str] | None = option(
        None, "Texts: .txt (a line is a text, or a pair as `A ||| B`), or rows of .jsonl .csv .tsv .parquet."
    )
    text_column: str | None = option(None, "Column of the text; by default found in the data.")
    text_pair_column: str | None = option(None, "Column of the second text, where a row is a pair.")
    id_column: str | None = option(None, "Column whose values name the rows; without it they are numbered from 0.")

    layers: list[int] | None = option(None, "0 = embeddings, 1 … = layers, -1 = the last one. By default -1.")
    pooling: str = option("mean", "One vector a text, or `none`: one a token.", POOLINGS)
    max_seq_length: int = option(128, "Tokens of a text (or a pair), [CLS] and [SEP] included; longer ones are cut.")
    per_device_eval_batch_size: int = option(32, "Texts in a batch.")
    dtype: str = option("float32", "Numbers in the files. The network computes in float32.", ("float32", "float16"))
    texts_per_file: int = option(
        100_000, "Texts in a file, at most. A run that was cut off resumes with the next file."
    )

    def __post_init__(self):
        if self.layers is None:
            self.layers = [-1]
        if self.texts_per_file < 1:
            raise ValueError(f"--texts_per_file must be at least 1, not {self.texts_per_file}")

    def columns(self) -> Columns:
        """The columns that are read."""
        return Columns(self.text_column, self.text_pair_column, self.id_column)


def chosen_layers(layers: list[int], depth: int) -> list[int]:
    """Layer numbers counted from the embeddings (0), in the order asked for.

    Args:
        layers: negative numbers count from the last layer, as in `hidden_states[-1]`.
        depth: layers of the network.

    Raises:
        InputError: there is no such layer, or one is named twice.
    """
    chosen: list[int] = []
    for number in layers:
        if not -depth - 1 <= number <= depth:
            remedy = f"give numbers from {-depth - 1} to {depth}"
            raise InputError(f"no layer {number} in a network of {depth}", where="--layers", remedy=remedy)

        layer = number % (depth + 1)
        if layer in chosen:
            raise InputError(f"layer {layer} is named twice", where="--layers", remedy="name each layer once")
        chosen.append(layer)
    return chosen


def check_features(feature_args: FeatureArguments, output_args: OutputArguments) -> Iterator[str]:
    """Checks options, paths, all texts and the model's shape; a line for each check (see `bert_hf.preflight`)."""
    if feature_args.model_name_or_path is None:
        raise InputError("no checkpoint is named", where="--model_name_or_path", remedy="give a BERT checkpoint")
    if feature_args.train_file is None:
        raise InputError("no texts are named", where="--train_file", remedy="give files of them")

    # Options and folders
    yield check_output_folder(
        require_output_dir(output_args.output_dir), output_args.overwrite_output_dir, FEATURE_RECORD
    )

    # Every row: a fault in the last one would otherwise end the run after hours
    files = expand(feature_args.train_file)
    local = [path for path in files if not is_url(path)]
    texts = sum(1 for path in local for _ in read_texts(path, feature_args.columns()))
    if not texts and len(local) == len(files):
        raise InputError("no texts in it", where=files[0], remedy="give files that hold text")
    yield f"texts: {texts:,} in {len(local):,} files"

    # Model
    config = read_model_config(None, feature_args.model_name_or_path, feature_args.max_seq_length)
    assert feature_args.layers is not None
    if isinstance(config, BertConfig):
        chosen_layers(feature_args.layers, config.num_hidden_layers)
        yield f"model: {config.num_hidden_layers} layers × {config.hidden_size}"
    else:
        yield not_checked(feature_args.model_name_or_path)
