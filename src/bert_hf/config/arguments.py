"""Options of text, tokenizer, network, examples and output folder; a class's docstring is its heading in `--help`."""

import re
from dataclasses import dataclass, fields
from typing import ClassVar

from bert_hf.config.options import option
from bert_hf.errors import InputError

READ_IN_LOWER_CASE = (  # help of --do_lower_case where a tokenizer is only loaded
    "Read text in lower case, without accents. Default: as the tokenizer's files or its vocabulary say."
)


@dataclass
class ConfigArguments:
    """Command."""

    config: str | None = option(None, "YAML file of options, or its name in configs/; the command line wins.")


@dataclass
class CheckArguments(ConfigArguments):
    """Command."""

    check: bool = option(False, "Only check the options, the files to read and where to write.")


@dataclass
class LaunchArguments:
    """Command."""

    num_processes: int | None = option(None, "Ranks on this machine (only with `bert-hf`). Default: one per GPU.")
    accelerate_config: str | None = option(
        None, "ddp, fsdp2, zero2, or a file of `accelerate config` (only with `bert-hf`)."
    )


@dataclass
class OutputArguments:
    """Output folder."""

    output_dir: str | None = option(
        None, "Folder to write to; where a command can be continued, the same command does so."
    )
    overwrite_output_dir: bool = option(False, "Replace earlier results of the command in this folder.")


def check_language(code: str | None) -> None:
    """Raise an `InputError` for a language that is not an ISO 639 code; None is allowed."""
    if code is not None and not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]+)*", code):
        raise InputError(f"{code!r} is not an ISO 639 language code", where="--language", remedy="give e.g. de")


@dataclass
class TokenizerArguments:
    """Tokenizer: loaded, or trained on the text."""

    tokenizer_name: str | None = option(None, "Folder, Hub id or bare vocab.txt. Default: a vocabulary is trained.")
    vocab_size: int = option(
        30522,
        "Size of a trained vocabulary (30,522 as the published uncased models).",
        range="[6, 2147483647]",  # five special tokens and one piece
        not_with=("tokenizer_name", "model_name_or_path"),
    )
    do_lower_case: bool | None = option(
        None, "Lower-case, strip accents. Default: as its files or pieces say; true if trained."
    )
    strip_accents: bool | None = option(
        None,
        "Strip accents. Default: as do_lower_case, but a newly trained vocabulary keeps them where the text is not "
        "Latin, Greek or Cyrillic (docs/languages.md).",
    )
    tokenize_chinese_chars: bool = option(True, "Put a space around every CJK character.")

    def normalization_options(self) -> dict:
        """Return the arguments of `load_tokenizer` that say how a bare vocabulary reads text."""
        return {name: getattr(self, name) for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")}

    def vocabulary_options(self) -> dict:
        """Return the arguments of `train_tokenizer` for a new vocabulary: its size, and how text is read."""
        lower = self.do_lower_case is not False  # None, the default: true
        return {**self.normalization_options(), "vocab_size": self.vocab_size, "do_lower_case": lower}


@dataclass
class TextArguments:
    """Text: files, or a dataset of the Hub."""

    train_file: list[str] | None = option(
        None, "Files or globs: .txt .jsonl .csv .parquet …, mails; or a prepared corpus."
    )
    dataset_name: str | None = option(None, "Hub dataset, in place of files.", not_with="train_file")
    dataset_config_name: str | None = option(
        None, "Configuration of the dataset.", only_with="dataset_name", not_with="train_file"
    )
    text_column: str | None = option(None, "Column of the text. Default: a usual name, such as text.")
    language: str | None = option(None, "ISO 639 code, such as de: for the ends of sentences and the model card.")
    sentence_per_line: bool = option(
        False, "One sentence per line, as in the 2018 code; nothing is split or truncated."
    )
    join_lines: bool | None = option(
        None,
        "Join a paragraph's lines. Default: where they break sentences (wrapped text).",
        not_with="sentence_per_line",
    )
    num_proc: int = option(1, "Processes that prepare the text.", range="[1, 1024]")
    cache_dir: str = option("~/.cache/bert_hf", "Folder that keeps prepared text for the next time.")

    def __post_init__(self):
        check_language(self.language)

    def non_default_flags(self) -> list[str]:
        """Return the options that decide, beside files, how text is read, as flags: `["--num_proc", "4"]`."""
        flags = []
        for each in fields(self):
            value = getattr(self, each.name)
            if value != each.default and each.name not in ("train_file", "cache_dir"):
                flags += [f"--{each.name}", str(value)]
        return flags


@dataclass
class CorpusArguments(TextArguments):
    """Held-out text, and facts for the model card."""

    validation_file: list[str] | None = option(
        None,
        "Held-out files of the same kinds. Default: a part is split off.",
        only_with=("train_file", "dataset_name", "do_eval", "do_train=False"),
    )
    validation_split_percentage: float = option(
        5.0, "Documents held out, in %.", range="(0, 100)", not_with="validation_file"
    )
    model_license: str | None = option(None, "Licence of the model, for the model card.", common=False)
    dataset_license: str | None = option(None, "Licence of the data, for the model card.", common=False)
    dataset_source: str | None = option(None, "Source of the data, for the model card.", common=False)


@dataclass
class PrepareArguments:
    """Preparation of a corpus."""

    shard: str | None = option(
        None,
        "i/n: prepare every n-th input, starting with input i (from 0), on one of n machines.",
        not_with=("deduplicate", "overwrite_output_dir", "check"),  # a part sees neither all inputs nor all outputs
    )
    deduplicate: bool = option(
        False, "Leave out documents that equal an earlier one, white space aside.", not_with="check"
    )
    check: bool = option(False, "Only report on the text; nothing is written.")

    def __post_init__(self):
        self.shard_numbers()  # an error of --shard comes before the text is read

    def shard_numbers(self) -> tuple[int, int]:
        """Return (i, n) of `--shard i/n`, i from 0 to n - 1: which of n parts of the inputs; (0, 1) without it."""
        if self.shard is None:
            return 0, 1

        match = re.fullmatch(r"(\d+)/(\d+)", self.shard)
        if not match or not int(match[1]) < int(match[2]):
            problem = f"{self.shard!r} is not i/n with i from 0 to n - 1"
            raise InputError(problem, where="--shard", remedy="give 0/4, 1/4, …")
        return int(match[1]), int(match[2])


@dataclass
class ModelArguments:
    """Model: from scratch, or a checkpoint."""

    model_name_or_path: str | None = option(None, "BERT checkpoint (folder or Hub id) to continue from.")
    config_name: str | None = option(
        None,
        "Model JSON (a BertConfig), or its name: tiny, mini, small, medium, base, large.",
        not_with="model_name_or_path",
    )
    position_initializer: str = option(
        "random",
        "Initial position embeddings: random (the paper) or sinusoidal, with which short runs "
        "with Muon leave the unigram plateau (docs/small_machine.md). They are trained either way.",
        choices=("random", "sinusoidal"),
        not_with="model_name_or_path",
        common=False,
    )
    dropout: float | None = option(
        None,
        "Dropout of hidden layers and attention. Default: the model's.",
        range="[0, 0.99]",  # the rest is multiplied by 1 / (1 - p), which kernels cannot compute just below 1
    )

    def dropouts(self) -> dict[str, float]:
        """Return the entries of a `BertConfig` that `--dropout` replaces."""
        names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        return {} if self.dropout is None else dict.fromkeys(names, self.dropout)


@dataclass
class ExampleArguments:
    """Examples (Devlin et al. 2019, sections 3.1 and A.2)."""

    from_command_line: ClassVar[frozenset[str]] = frozenset()  # names of the options given there, set by `parse`

    max_seq_length: int = option(128, "Maximum tokens of an example, [CLS] and [SEP] included.", range="[8, inf)")
    long_seq_length: int | None = option(
        None, "Length in the last part of the run (the paper: 512).", range="[8, inf)"
    )
    long_seq_fraction: float = option(
        0.1, "Share of the steps at long_seq_length.", range="[0, 1]", only_with="long_seq_length"
    )
    mlm_probability: float = option(0.15, "Share of the tokens that are predicted.", range="(0, 1)")
    whole_word_mask: bool = option(False, "Mask whole words (80/10/10 still applies per token).")
    nsp: bool = option(True, "Next-sentence prediction; false trains only the masked language model.")
    short_seq_probability: float = option(
        0.1, "Share of documents whose examples get a random, shorter target length.", range="[0, 1]"
    )
    max_eval_samples: int = option(4000, "Maximum number of held-out examples that are evaluated.", range="[1, inf)")

    def __post_init__(self):
        if self.long_seq_length is not None and self.long_seq_length < self.max_seq_length:
            raise ValueError(f"--long_seq_length must be at least --max_seq_length ({self.max_seq_length})")

    def pair_options(self) -> dict:
        """Return the arguments of `PreTrainingExamples` that say how pairs are drawn."""
        return {name: getattr(self, name) for name in ("nsp", "short_seq_probability")}

    def masking_options(self) -> dict:
        """Return the arguments of `DataCollatorForPreTraining` that say which tokens are predicted."""
        return {name: getattr(self, name) for name in ("nsp", "mlm_probability", "whole_word_mask")}

    def lengths(self) -> list[tuple[int, float]]:
        """Return (maximum tokens, share of the steps) of each phase of the run, in order; the shares sum to 1."""
        if self.long_seq_length is None:
            return [(self.max_seq_length, 1.0)]
        long_share = self.long_seq_fraction
        return [(self.max_seq_length, 1.0 - long_share), (self.long_seq_length, long_share)]

    @property
    def longest_seq_length(self) -> int:
        """Return the maximum tokens of an example in the last phase of the run, which is the longest."""
        return self.lengths()[-1][0]
