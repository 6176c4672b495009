"""Options of the recipes: which tokenizer, text, model, examples and labelled data. (The run: training_arguments.py.)

`parse`, of `parser.py`, fills these dataclasses from a YAML file (`--config`) and the command line, which wins.
"""

import re
from dataclasses import dataclass, fields

from bert_hf.config.finetuning_arguments import ClassificationArguments as ClassificationArguments
from bert_hf.config.finetuning_arguments import FineTuningArguments as FineTuningArguments
from bert_hf.config.finetuning_arguments import TaskArguments as TaskArguments
from bert_hf.config.languages import checked_language
from bert_hf.config.parser import option as option
from bert_hf.config.parser import parse as parse
from bert_hf.config.training_arguments import MUON as MUON
from bert_hf.config.training_arguments import PreTrainingArguments as PreTrainingArguments
from bert_hf.config.value_ranges import check_ranges
from bert_hf.errors import InputError


@dataclass
class TokenizerArguments:
    """Which tokenizer is loaded, or how one is trained."""

    tokenizer_name: str | None = option(None, "Folder, Hub id or bare vocab.txt. Without it a tokenizer is trained.")
    vocab_size: int = option(30522, "Size of a trained vocabulary (30,522 as the published uncased models).")
    do_lower_case: bool = option(True, "Lower-case and strip accents (uncased); false keeps both (cased).")
    strip_accents: bool | None = option(
        None,
        "Strip accents? By default as do_lower_case says, but a vocabulary trained here keeps them where --language "
        "or the text is not Latin, Greek or Cyrillic (docs/data.md).",
    )
    tokenize_chinese_chars: bool = option(True, "Put a space around every CJK character.")
    min_frequency: int = option(2, "A piece enters a trained vocabulary when it was seen this often.")
    limit_alphabet: int | None = option(
        None,
        "Characters kept in a trained vocabulary; rarer ones become [UNK]. By default 1000, or as many as make up "
        "99.95 % of the text.",
    )
    tokenizer_sample_bytes: int = option(100_000_000, "Text that a vocabulary is trained on, at most.")

    def normalization(self) -> dict:
        """Arguments of `load_tokenizer` for a bare vocabulary."""
        return {name: getattr(self, name) for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")}

    def training(self) -> dict:
        """Arguments of `train_tokenizer`."""
        names = ("vocab_size", "limit_alphabet")
        return {**self.normalization(), **{name: getattr(self, name) for name in names}}


@dataclass
class CorpusArguments:
    """Which text, and how to read it."""

    dataset_name: str | None = option(None, "Hub dataset id.")
    dataset_config_name: str | None = option(None, "Its configuration.")
    train_file: list[str] | None = option(
        None, "Files or globs (.txt .jsonl .parquet .csv .tsv, also .gz .xz), or a folder."
    )
    validation_file: list[str] | None = option(None, "Held-out text, the same kinds.")
    validation_split_percentage: float = option(5.0, "Documents held out where there is no validation file, in %.")
    text_column: str | None = option(None, "Column that holds the text.")
    language: str | None = option(None, "ISO 639 code that the sentence splitter is told; English rules without it.")
    sentence_per_line: bool = option(False, "A line is a sentence, as in the 2018 code: nothing is split or cut.")
    num_proc: int = option(1, "Processes that prepare the corpus.")
    cache_dir: str = option("~/.cache/bert_hf", "Where a corpus prepared from raw text is kept for the next time.")
    corpus_cache_gb: float | None = option(None, "Disk that the shards of a corpus behind a URL may fill, in GB.")
    corpus_license: str | None = option(None, "Licence of the text, for the model card.")
    corpus_source: str | None = option(None, "Source of the text, for the model card.")

    def __post_init__(self):
        self.language = checked_language(self.language)

    def given(self, *names: str) -> list[str]:
        """Those of the named options that differ from their defaults, as words of a command line."""
        defaults = {field.name: field.default for field in fields(self)}
        differing = {name: getattr(self, name) for name in names if getattr(self, name) != defaults[name]}
        return [word for name, value in differing.items() for word in (f"--{name}", str(value))]


@dataclass
class PrepareArguments:
    """Which part of a corpus is prepared, and how."""

    shard: str | None = option(None, "i/n: prepare every n-th input from the i-th (from 0) on, on one of n machines.")
    deduplicate: str | None = option(
        None, "Leave out documents that equal an earlier one, or nearly do.", ("exact", "near")
    )
    check: bool = option(False, "Only report on the text; --output_dir gets a plot of its lengths.")
    check_bytes: int = option(20_000_000, "Text that --check reads, at most, sampled from all of it.")

    def part(self) -> tuple[int, int]:
        """(i, n) of `--shard`.

        Raises:
            InputError: it is not i/n with 0 ≤ i < n; or --deduplicate is given, which needs all inputs.
        """
        if self.shard is None:
            return 0, 1

        if self.deduplicate:
            raise InputError(
                "--deduplicate has to see all inputs, and a part does not",
                where="--shard",
                remedy="prepare without --shard (--num_proc uses the cores of one machine)",
            )

        match = re.fullmatch(r"(\d+)/(\d+)", self.shard)
        if not match or not int(match[1]) < int(match[2]):
            raise InputError(
                f"{self.shard!r} is not i/n with i from 0 to n - 1", where="--shard", remedy="give 0/4, 1/4, …"
            )
        return int(match[1]), int(match[2])


@dataclass
class EstimateArguments:
    """For which devices the cost of a run is estimated."""

    device: str = option("h200", "h200, h100, a100-80gb, a100-40gb, l40s, l4, v100-32gb, rtx4090, or cpu (this one).")
    num_devices: list[int] | None = option(None, "How many of them; several numbers give a row each.")
    global_batch: int = option(256, "Sequences in an optimizer step, over all devices (A.2: 256).")
    mfu: float | None = option(None, "Share of the device's peak that is reached (docs/cost.md).")
    fill: float | None = option(None, "Real tokens of a row's length. By default 0.94 (docs/cost.md).")
    price_per_hour: float | None = option(None, "Price of a device for an hour; without it no cost is printed.")

    def __post_init__(self):
        if self.num_devices is None:
            self.num_devices = [1] if self.device == "cpu" else [1, 8, 64, 512]


@dataclass
class OutputArguments:
    """The output folder of a recipe without a Trainer."""

    output_dir: str | None = option(None, "Folder that is written.")
    overwrite_output_dir: bool = option(False, "Replace what an earlier run of ours wrote there.")


@dataclass
class ModelArguments:
    """Which network, and from where it starts."""

    config_name: str | None = option(None, "Model JSON (a BertConfig) for training from scratch.")
    model_name_or_path: str | None = option(None, "BERT checkpoint to continue from (folder or Hub id).")
    position_initializer: str = option(
        "random",
        "Initial position embeddings: random (the paper) or sinusoidal, with which short runs "
        "with Muon leave the unigram plateau (docs/small_machine.md). They are trained either way.",
        choices=("random", "sinusoidal"),
    )
    initializer: str = option(
        "truncated_normal",
        "Initial weights: as in the 2018 code, or as in stock transformers.",
        ("truncated_normal", "normal"),
    )
    dropout: float | None = option(None, "Dropout of hidden layers and attention, in place of the model's.")
    attn_implementation: str = option("sdpa", "Attention: eager, sdpa, flash_attention_2, …")

    def __post_init__(self):
        if "/" in self.attn_implementation:
            raise ValueError("--attn_implementation names a kernel of the Hub, and no code is fetched: use sdpa")


@dataclass
class ExampleArguments:
    """How sentences become examples (Devlin et al. 2019, sections 3.1 and A.2)."""

    max_seq_length: int = option(128, "Tokens in an example, [CLS] and both [SEP] included.")
    seq_length_warmup: list[str] | None = option(
        None, "Shorter examples first, as LENGTH:SHARE of the steps, ascending: 32:0.2 64:0.5."
    )
    long_seq_length: int | None = option(None, "Length in the last part of the run (the paper: 512).")
    long_seq_fraction: float = option(0.1, "Share of the steps at long_seq_length.")
    mlm_probability: float = option(0.15, "Share of the tokens that are predicted.")
    final_mlm_probability: float | None = option(None, "A smaller share in the last part of the run.")
    final_mlm_fraction: float = option(0.3, "Share of the steps at final_mlm_probability.")
    whole_word_mask: bool = option(False, "Choose whole words; 80/10/10 is kept.")
    nsp: bool = option(True, "Next-sentence prediction; false trains the masked language model alone.")
    short_seq_probability: float = option(0.1, "Documents whose examples aim at a random shorter length.")
    max_eval_samples: int = option(4000, "Held-out examples that are evaluated, at most.")

    def __post_init__(self):
        check_ranges(self)
        if self.long_seq_length is not None and self.long_seq_length < self.max_seq_length:
            raise ValueError(f"--long_seq_length must be at least --max_seq_length ({self.max_seq_length})")

        shorter = self.shorter_lengths()
        lengths = [length for length, _ in shorter]
        if lengths != sorted(set(lengths)) or not all(8 <= length < self.max_seq_length for length in lengths):
            raise ValueError(
                f"--seq_length_warmup takes ascending lengths from 8 to below --max_seq_length ({self.max_seq_length})"
            )

        long_share = self.long_seq_fraction if self.long_seq_length else 0.0
        if sum(share for _, share in shorter) + long_share > 1:
            raise ValueError("the shares of --seq_length_warmup and --long_seq_fraction must sum to at most 1")

        if self.final_mlm_probability is not None and self.final_mlm_probability >= self.mlm_probability:
            raise ValueError(f"--final_mlm_probability must be below --mlm_probability ({self.mlm_probability})")

        # A share alone would do nothing
        for share, option_name in (
            ("long_seq_fraction", "long_seq_length"),
            ("final_mlm_fraction", "final_mlm_probability"),
        ):
            if getattr(self, option_name) is None and getattr(self, share) != getattr(type(self), share):
                raise ValueError(f"--{share} needs --{option_name}")

    def lengths(self) -> list[tuple[int, float]]:
        """(tokens, share of the steps) of all phases of the run, in order; the shares sum to 1."""
        shorter = self.shorter_lengths()
        longer = [(self.long_seq_length, self.long_seq_fraction)] if self.long_seq_length else []
        rest = 1.0 - sum(share for _, share in [*shorter, *longer])
        return [*shorter, (self.max_seq_length, rest), *longer]

    def mean_mlm_probability(self) -> float:
        """Share of the tokens that are predicted, as a mean over the steps."""
        if self.final_mlm_probability is None:
            return self.mlm_probability
        return self.mlm_probability + self.final_mlm_fraction * (self.final_mlm_probability - self.mlm_probability)

    def shorter_lengths(self) -> list[tuple[int, float]]:
        """(tokens, share of the steps) of each phase before that of `max_seq_length`.

        Raises:
            ValueError: an entry is not LENGTH:SHARE.
        """
        phases = []
        for entry in self.seq_length_warmup or []:
            match = re.fullmatch(r"(\d+):(0?\.\d+|[01])", entry)
            if match is None:
                raise ValueError(f"--seq_length_warmup {entry!r} is not LENGTH:SHARE, as 64:0.5")
            phases.append((int(match[1]), float(match[2])))
        return phases
