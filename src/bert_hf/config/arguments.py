"""Options of the recipes: which tokenizer, text, network, examples and output folder.

Those of a training run are in training_arguments.py, those of labelled data in finetuning_arguments.py. `parse`, of
parser.py, fills these dataclasses from a YAML file (`--config`) and from the command line, which wins.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from bert_hf.config.parser import option
from bert_hf.errors import InputError

# ---- options that several recipes share


@dataclass
class OutputArguments:
    """The output folder."""

    output_dir: str | None = option(None, "Folder to write to.")
    overwrite_output_dir: bool = option(False, "Overwrite an earlier run of bert_hf in the output folder.")


@dataclass
class TrainFileArguments:
    """The files to train on."""

    train_file: list[str] | None = option(
        None, "Files, globs or a folder to train on: .txt .jsonl .parquet .csv .tsv, mails, also compressed."
    )


@dataclass
class DataArguments(TrainFileArguments):
    """Where text or rows come from: files or a dataset of the Hub."""

    dataset_name: str | None = option(None, "Hub dataset id.", not_with="train_file")
    dataset_config_name: str | None = option(
        None, "Configuration of the dataset.", only_with=("dataset_name", "task"), not_with="train_file"
    )


@dataclass
class HeldOutArguments:
    """The files that are held out."""

    validation_file: list[str] | None = option(
        None,
        "Held-out files of the same kinds. Default: a part is split off.",
        only_with=("train_file", "dataset_name", "do_eval", "do_train=False"),
    )


@dataclass
class TextColumnArguments:
    """The column of the text."""

    text_column: str | None = option(None, "Column of the text. Default: a usual name, such as text.")


@dataclass
class LanguageArguments:
    """The language of the text."""

    language: str | None = option(None, "ISO 639 code, such as de: for the end of sentences and for the model card.")

    def __post_init__(self):
        if self.language is not None and not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]+)*", self.language):
            what = f"{self.language!r} is not an ISO 639 language code"
            raise InputError(what, where="--language", remedy="give e.g. de")


@dataclass
class CardArguments(LanguageArguments):
    """What the model card says that a run cannot know."""

    model_license: str | None = option(None, "Licence of the model, for the model card.")

    dataset_license: str | None = option(None, "Licence of the data, for the model card.")
    dataset_source: str | None = option(None, "Source of the data, for the model card.")


@dataclass
class CheckpointArguments:
    """The checkpoint that is read."""

    model_name_or_path: str | None = option(None, "BERT checkpoint (folder or Hub id).")


@dataclass
class LengthArguments:
    """The length of model inputs."""

    max_seq_length: int = option(128, "Maximum tokens in a model input, special tokens included.", range="[8, inf)")


# ---- text and tokenizer


@dataclass
class CaseArguments:
    """How a tokenizer whose files do not say it treats capitals."""

    do_lower_case: bool | None = option(
        None,
        "Lower-case and strip accents (uncased); false keeps both (cased). Default: as the tokenizer's files or its "
        "vocabulary say; a trained one is uncased.",
    )


@dataclass
class TokenizerArguments(CaseArguments):
    """Which tokenizer is loaded, or how one is trained."""

    tokenizer_name: str | None = option(None, "Folder, Hub id or bare vocab.txt. Without it a tokenizer is trained.")
    vocab_size: int = option(
        30522,
        "Size of a trained vocabulary (30,522 as the published uncased models).",
        range="[6, 2147483647]",  # five special tokens and one piece
        not_with=("tokenizer_name", "model_name_or_path"),
    )
    strip_accents: bool | None = option(
        None,
        "Strip accents. Default: follows do_lower_case, but a newly trained vocabulary keeps them where --language "
        "or the text is not Latin, Greek or Cyrillic (docs/languages.md).",
    )
    tokenize_chinese_chars: bool = option(True, "Put a space around every CJK character.")
    limit_alphabet: int | None = option(
        None,
        "Characters kept in a trained vocabulary; rarer ones become [UNK]. Default: 1000, or as many as make up "
        "99.95 % of the text.",
        range="[1, inf)",
        not_with=("tokenizer_name", "model_name_or_path"),
    )

    def normalization(self) -> dict:
        """Arguments of `load_tokenizer` for a bare vocabulary."""
        return {name: getattr(self, name) for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")}

    def training(self) -> dict:
        """Arguments of `train_tokenizer`."""
        options = {**self.normalization(), "vocab_size": self.vocab_size, "limit_alphabet": self.limit_alphabet}
        return {**options, "do_lower_case": self.do_lower_case is not False}


@dataclass
class TextArguments(LanguageArguments, TextColumnArguments, DataArguments):
    """Which text, and how to read it."""

    sentence_per_line: bool = option(
        False, "One sentence per line, as in the 2018 code; nothing is split or truncated."
    )
    join_lines: bool | None = option(
        None,
        "Join the lines of a paragraph. Default: where they break sentences, as in text wrapped at 72 columns.",
        not_with="sentence_per_line",
    )
    num_proc: int = option(1, "Processes that prepare the corpus.", range="[1, 1024]")
    cache_dir: str = option(
        "~/.cache/bert_hf", "Where a corpus prepared from raw text, or downloaded, is kept for the next time."
    )

    def given(self, *names: str) -> list[str]:
        """The given options that differ from their defaults, as command-line arguments."""
        differing = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(type(self), name)}
        return [word for name, value in differing.items() for word in (f"--{name}", str(value))]


@dataclass
class CorpusArguments(CardArguments, HeldOutArguments, TextArguments):
    """The text of a pre-training run: a part of it is held out, and the model card describes it."""

    validation_split_percentage: float = option(
        5.0, "Documents held out, in %.", range="(0, 100)", not_with="validation_file"
    )


@dataclass
class PrepareArguments:
    """Which part of a corpus is prepared, and how."""

    shard: str | None = option(
        None,
        "i/n: prepare every n-th input, starting with input i (from 0), on one of n machines.",
        not_with=("deduplicate", "overwrite_output_dir", "check"),  # a part sees neither all inputs nor all outputs
    )
    deduplicate: str | None = option(
        None, "Leave out documents that equal an earlier one, or nearly do.", ("exact", "near"), not_with="check"
    )
    check: bool = option(False, "Only report on the text; nothing is written.")

    def __post_init__(self):
        self.part()

    def part(self) -> tuple[int, int]:
        """(i, n) of `--shard`."""
        if self.shard is None:
            return 0, 1

        match = re.fullmatch(r"(\d+)/(\d+)", self.shard)
        if not match or not int(match[1]) < int(match[2]):
            what = f"{self.shard!r} is not i/n with i from 0 to n - 1"
            raise InputError(what, where="--shard", remedy="give 0/4, 1/4, …")
        return int(match[1]), int(match[2])


# ---- network and examples


@dataclass
class ModelArguments(CheckpointArguments):
    """Which network, and from where it starts."""

    config_name: str | None = option(
        None, "Model JSON (a BertConfig), for training from scratch.", not_with="model_name_or_path"
    )
    position_initializer: str = option(
        "random",
        "Initial position embeddings: random (the paper) or sinusoidal, with which short runs "
        "with Muon leave the unigram plateau (docs/small_machine.md). They are trained either way.",
        choices=("random", "sinusoidal"),
        not_with="model_name_or_path",
    )
    dropout: float | None = option(
        None,
        "Dropout of hidden layers and attention; overrides the model's.",
        range="[0, 0.99]",  # what is left is multiplied by 1 / (1 - p), which kernels cannot compute just below 1
    )
    attn_implementation: str = option(
        "sdpa", "Attention: one of transformers' implementations.", ("eager", "sdpa", "flash_attention_2",
        "flash_attention_3", "flash_attention_4", "flex_attention"),
    )  # fmt: skip


@dataclass
class ExampleArguments(LengthArguments):
    """How sentences become examples (Devlin et al. 2019, sections 3.1 and A.2)."""

    from_command_line: ClassVar[frozenset[str]] = frozenset()  # options that it gives, see `parse`

    long_seq_length: int | None = option(
        None, "Length in the last part of the run (the paper: 512).", range="[8, inf)"
    )
    long_seq_fraction: float = option(
        0.1, "Share of the steps at long_seq_length.", range="[0, 1]", only_with="long_seq_length"
    )
    mlm_probability: float = option(0.15, "Share of the tokens that are predicted.", range="(0, 1)")
    whole_word_mask: bool = option(False, "Mask whole words (80/10/10 still applies per token).")
    nsp: bool = option(True, "Next-sentence prediction; false trains the masked language model alone.")
    short_seq_probability: float = option(
        0.1, "Share of documents whose examples get a random, shorter target length.", range="[0, 1]"
    )
    max_eval_samples: int = option(4000, "Maximum number of held-out examples that are evaluated.", range="[1, inf)")

    def __post_init__(self):
        if self.long_seq_length is not None and self.long_seq_length < self.max_seq_length:
            raise ValueError(f"--long_seq_length must be at least --max_seq_length ({self.max_seq_length})")

    def pairs(self) -> dict:
        """Arguments of `PreTrainingExamples`: how pairs are drawn."""
        return {name: getattr(self, name) for name in ("nsp", "short_seq_probability")}

    def masking(self) -> dict:
        """Arguments of `DataCollatorForPreTraining`: what is predicted."""
        return {name: getattr(self, name) for name in ("nsp", "mlm_probability", "whole_word_mask")}

    def lengths(self) -> list[tuple[int, float]]:
        """(tokens, share of the steps) of all phases of the run, in order; the shares sum to 1."""
        if self.long_seq_length is None:
            return [(self.max_seq_length, 1.0)]
        fraction = self.long_seq_fraction
        return [(self.max_seq_length, 1.0 - fraction), (self.long_seq_length, fraction)]

    @property
    def longest(self) -> int:
        """Tokens of the longest examples of the run."""
        return self.lengths()[-1][0]


@dataclass
class EstimateArguments:
    """For which devices the cost of a run is estimated."""

    device: str = option("h200", "h200, h100, a100-80gb, a100-40gb, l40s, l4, v100-32gb, rtx4090, or cpu (this one).")
    num_devices: list[int] | None = option(
        None, "Number of devices; several numbers give one row each.", range="[1, inf)"
    )
    global_batch: int = option(256, "Sequences per optimizer step, over all devices (A.2: 256).", range="[1, inf)")
    mfu: float | None = option(
        None, "Fraction of the device's peak FLOP/s that is reached (docs/speed.md).", range="(0, 1]"
    )

    def __post_init__(self):
        if self.num_devices is None:
            self.num_devices = [1] if self.device == "cpu" else [1, 8, 64, 512]
