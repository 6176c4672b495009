"""What a run may ask: dataclasses, and the device, threads and precision a run ends up with.

`parse()`, of `options.py`, fills them from a YAML file (`--config`) and the command line, which wins.
"""

import os
import re
from dataclasses import dataclass, field

import torch
from transformers import TrainingArguments

from bert_hf.config import hardware
from bert_hf.config.parser import parse as parse  # how they are filled
from bert_hf.config.precision import choose_on_gpu
from bert_hf.errors import InputError

MUON = "muon"  # --optim: Muon for the encoder's matrices, AdamW for the rest


def option(default, help: str, choices: tuple | None = None):
    """A dataclass field with its help text (and, if given, the values it may take)."""
    metadata = {"help": help.replace("%", "%%")}
    if choices:
        metadata["choices"] = choices
    return field(default=default, metadata=metadata)


@dataclass
class TokenizerArguments:
    """Which tokenizer: one from elsewhere, or how to train one."""

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

    def __post_init__(self):
        alphabet = 1 if self.limit_alphabet is None else self.limit_alphabet
        if min(self.vocab_size, alphabet, self.min_frequency, self.tokenizer_sample_bytes) < 1:
            names = "--vocab_size, --limit_alphabet, --min_frequency and --tokenizer_sample_bytes"
            raise ValueError(f"{names} must be at least 1")

    def normalization(self) -> dict:
        """What `load_tokenizer` takes for a bare vocabulary."""
        return {name: getattr(self, name) for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")}

    def training(self) -> dict:
        """What `train_tokenizer` takes."""
        names = ("vocab_size", "min_frequency", "limit_alphabet")
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
    corpus_license: str | None = option(None, "Licence of the text, as it shall stand in the model card.")
    corpus_source: str | None = option(None, "Source of the text, as it shall stand in the model card.")

    def __post_init__(self):
        if self.num_proc < 1:
            raise ValueError(f"--num_proc must be at least 1, not {self.num_proc}")
        if not 0 < self.validation_split_percentage < 100:
            raise ValueError(
                f"--validation_split_percentage must lie between 0 and 100, not {self.validation_split_percentage}"
            )


@dataclass
class PrepareArguments:
    """How much of the work of preparing is done here."""

    shard: str | None = option(None, "i/n: prepare every n-th input from the i-th (from 0) on, on one of n machines.")
    deduplicate: str | None = option(
        None, "Leave out documents that equal an earlier one, or nearly do.", ("exact", "near")
    )
    check: bool = option(False, "Only look at the text; --output_dir gets a picture of its lengths.")
    check_bytes: int = option(20_000_000, "Text that is looked at, at most, spread over all.")

    def __post_init__(self):
        if self.check_bytes < 1:
            raise ValueError(f"--check_bytes must be at least 1, not {self.check_bytes}")

    def part(self) -> tuple[int, int]:
        """(i, n) of `--shard`.

        Raises:
            InputError: it is not i/n with 0 ≤ i < n, or duplicates, of which a part knows nothing, shall be found.
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
    """For which machine a run is estimated."""

    device: str = option("h200", "h200, h100, a100-80gb, a100-40gb, l40s, l4, v100-32gb, rtx4090, or cpu (this one).")
    num_devices: list[int] | None = option(None, "How many of them; several numbers give a row each.")
    global_batch: int = option(256, "Sequences in an optimizer step, over all devices (A.2: 256).")
    mfu: float | None = option(None, "Share of the device's peak that is reached (docs/cost.md).")
    fill: float | None = option(None, "Real tokens of a row's length. By default 0.94 (docs/cost.md).")
    price_per_hour: float | None = option(None, "Price of a device for an hour; without it no cost is printed.")

    def __post_init__(self):
        if self.num_devices is None:
            self.num_devices = [1] if self.device == "cpu" else [1, 8, 64, 512]
        if min(self.global_batch, *self.num_devices) < 1:
            raise ValueError("--global_batch and --num_devices must be at least 1")
        for name, value in (("mfu", self.mfu), ("fill", self.fill)):
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"--{name} must lie above 0 and be at most 1, not {value}")
        if self.price_per_hour is not None and self.price_per_hour < 0:
            raise ValueError(f"--price_per_hour must not be negative, not {self.price_per_hour}")


@dataclass
class FolderArguments:
    """Where a recipe without a Trainer writes."""

    output_dir: str | None = option(None, "Folder that is written.")
    overwrite_output_dir: bool = option(False, "Replace what an earlier run of ours wrote there.")


@dataclass
class ModelArguments:
    """Which network, and from where it starts."""

    config_name: str | None = option(None, "Model JSON (a BertConfig) for training from scratch.")
    model_name_or_path: str | None = option(None, "BERT checkpoint to go on from (folder or Hub id).")
    position_initializer: str = option(
        "random",
        "How position embeddings begin: random (the paper) or sinusoidal, with which a short run learns to read "
        "neighbouring words several times earlier (docs/recipes.md). They are trained either way.",
        choices=("random", "sinusoidal"),
    )
    initializer: str = option(
        "truncated_normal", "Fresh weights: as the 2018 code, or as stock.", ("truncated_normal", "normal")
    )
    dropout: float | None = option(None, "Dropout of hidden layers and attention, where it shall not be the model's.")
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
    whole_word_mask: bool = option(False, "Choose whole words; 80/10/10 is kept.")
    nsp: bool = option(True, "Next-sentence prediction; false trains the masked language model alone.")
    short_seq_probability: float = option(0.1, "Documents whose examples aim at a random shorter length.")
    max_eval_samples: int = option(4000, "Held-out examples that are evaluated, at most.")

    def __post_init__(self):
        if not 0 < self.mlm_probability < 1:
            raise ValueError(f"--mlm_probability must lie between 0 and 1, not {self.mlm_probability}")
        if self.max_eval_samples < 1:
            raise ValueError(f"--max_eval_samples must be at least 1, not {self.max_eval_samples}")
        if self.max_seq_length < 8:
            raise ValueError(f"--max_seq_length must be at least 8, not {self.max_seq_length}")
        if self.long_seq_length is not None and self.long_seq_length < self.max_seq_length:
            raise ValueError(f"--long_seq_length must be at least --max_seq_length ({self.max_seq_length})")
        lengths = [length for length, _ in self.shorter_lengths()]
        if lengths != sorted(set(lengths)) or not all(8 <= length < self.max_seq_length for length in lengths):
            raise ValueError(
                f"--seq_length_warmup takes ascending lengths from 8 to below --max_seq_length ({self.max_seq_length})"
            )
        shares = [share for _, share in self.shorter_lengths()]
        shares.append(self.long_seq_fraction if self.long_seq_length else 0.0)
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError("the shares of --seq_length_warmup and --long_seq_fraction must sum to at most 1")

    def lengths(self) -> list[tuple[int, float]]:
        """(tokens, share of the steps) of all phases of the run, in order; the shares sum to 1."""
        shorter = self.shorter_lengths()
        longer = [(self.long_seq_length, self.long_seq_fraction)] if self.long_seq_length else []
        rest = 1.0 - sum(share for _, share in [*shorter, *longer])
        return [*shorter, (self.max_seq_length, rest), *longer]

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


@dataclass
class ClassificationArguments:
    """Which checkpoint is fine-tuned on which labelled texts."""

    model_name_or_path: str | None = option(None, "Pre-trained checkpoint (folder or Hub id).")
    from_scratch: bool = option(False, "Keep the checkpoint's shape, but draw its weights at random.")
    tokenizer_name: str | None = option(None, "Tokenizer, where it is not the checkpoint's own.")
    task: str | None = option(None, "A task by name: spam.")
    dataset_name: str | None = option(None, "Hub dataset id.")
    dataset_config_name: str | None = option(None, "Its configuration.")
    train_file: list[str] | None = option(None, "CSV, TSV or JSON lines; headerless label<TAB>text too.")
    validation_file: list[str] | None = option(None, "Held-out rows; without it they are split off.")
    test_file: list[str] | None = option(None, "Test rows; without it they are split off.")
    text_column: str | None = option(None, "Column of the text; by default what the data plainly hold.")
    label_column: str | None = option(None, "Column of the label, likewise.")
    max_seq_length: int = option(128, "Longer texts are cut.")
    validation_split_percentage: float = option(10.0, "Rows split off for validation, in %.")
    test_split_percentage: float = option(20.0, "Rows split off for the test, in %.")
    split_seed: int = option(0, "Seed of the split, apart from --seed, so that several seeds share one split.")
    language: str | None = option(None, "Language, as it shall stand in the model card.")
    dataset_license: str | None = option(None, "Licence of the data, as it shall stand in the model card.")
    dataset_source: str | None = option(None, "Source of the data, as it shall stand in the model card.")


@dataclass
class RunArguments(TrainingArguments):
    """`TrainingArguments` that find their device, threads and precision."""

    bf16: bool | None = option(None, "bf16 autocast. By default where it is faster; a resumed run keeps its own.")
    overwrite_output_dir: bool = option(False, "Remove what an earlier run of ours wrote into the output folder.")
    logging_nan_inf_filter: bool = option(False, "Hides NaN losses and syncs each micro-step (stock default: true).")
    eval_strategy: str | None = option(
        None, "no: not while it trains. steps, epoch: as they say. By default steps where --eval_steps is given."
    )
    hub_strategy: str = option("end", "end: the finished run is pushed, once, by --push_to_hub.")
    save_minutes: float = option(15.0, "A checkpoint at least that often, and after the last step; 0: never by time.")
    save_strategy: str | None = option(None, "no: never. steps, epoch, best: beside those of save_minutes.")
    save_steps: float | None = option(None, "A checkpoint every so many steps, beside those of save_minutes.")
    save_total_limit: int | None = option(2, "Checkpoints that are kept: the newest. 0 keeps all.")
    skip_bad_steps: int = option(0, "Updates that may be left out for a loss or gradient that is not finite.")
    hang_timeout: float = option(
        50.0,
        "Seconds without progress after which a run is ended as hanging; at least 18 median steps are waited for. "
        "Planning, compiling, evaluating, saving may take 36 times as long.",
    )

    def __post_init__(self):
        if self.hub_token is not None:  # it would stand in the process list and in the history of the shell
            raise InputError(
                "a token is not taken as a flag", where="--hub_token", remedy="set HF_TOKEN or `hf auth login`"
            )
        if self.save_strategy == "no":
            self.save_minutes = 0.0
        self.save_strategy = self.save_strategy or ("no" if self.save_steps is None else "steps")
        self.save_steps = 500 if self.save_steps is None else self.save_steps
        if self.eval_strategy is None:
            self.eval_strategy = "no" if self.eval_steps is None else "steps"
        if self.save_minutes < 0 or self.skip_bad_steps < 0:
            raise ValueError("--save_minutes and --skip_bad_steps must not be negative")
        if not torch.accelerator.is_available():
            self.use_cpu = True
        self._take_given_precision()
        if self.use_cpu or not torch.accelerator.is_available():
            torch.set_num_threads(hardware.cpu_threads())
            hardware.keep_freed_memory()
        compiled = self.torch_compile or self.torch_compile_mode or self.torch_compile_backend
        if compiled and self.torch_compile_backend in (None, "inductor") and not hardware.finds_compiler():
            print("no C++ compiler is found: this run is not compiled", flush=True)
            self.torch_compile, self.torch_compile_mode, self.torch_compile_backend = False, None, None
        super().__post_init__()
        if self.bf16 is False and not self.fp16:  # said with --bf16; the stock class takes the launcher's word
            self.mixed_precision = "no"
        if self.n_gpu > 1:  # plain `python` on several GPUs: stock Trainer would wrap the model in nn.DataParallel
            print(f"using one of {self.n_gpu} devices; `accelerate launch` uses them all", flush=True)
            self._n_gpu = 1

    def _take_given_precision(self) -> None:
        """Precision as far as it is given, here or to the launcher. Else `bf16` stays None: see `precision.py`."""
        if self.bf16 is not None:
            return
        launcher = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        if self.fp16 or launcher == "fp16":
            self.bf16, self.fp16 = False, True
        elif launcher == "bf16":
            self.bf16 = True
        elif hardware.engine(self) == "deepspeed":
            # Its engine is told the precision below. On a CPU its bf16 optimizer gives other numbers: only if asked.
            self.bf16 = not self.use_cpu and torch.cuda.is_available() and choose_on_gpu().bf16


@dataclass
class PreTrainingArguments(RunArguments):
    """The paper's optimizer and schedule by default (Devlin et al. 2019, A.2)."""

    output_dir: str | None = option("runs/pretrain", "Where the run writes.")
    learning_rate: float = option(1e-4, "Peak learning rate (A.2).")
    adam_beta1: float = option(0.9, "Adam beta 1 (A.2).")
    adam_beta2: float = option(0.999, "Adam beta 2 (A.2).")
    adam_epsilon: float = option(1e-6, "Adam epsilon (2018 code).")
    weight_decay: float = option(0.01, "Decay of all weights but LayerNorm and biases (A.2).")
    warmup_steps: float = option(
        0.01, "Steps of linear warm-up; a number below 1 is a share of the steps (A.2: 10,000 of 1,000,000)."
    )
    max_grad_norm: float = option(1.0, "Gradient clipping (2018 code).")
    max_steps: int = option(-1, "Optimizer steps. Without it num_train_epochs decides.")
    max_hours: float | None = option(
        None, "In place of --max_steps: as many as fit, by a speed that is measured once; pauses do not count."
    )
    adam_bias_correction: bool = option(True, "false: Adam as in the 2018 code, which has no bias correction.")
    optim: str = option(
        "adamw_torch_fused", "adamw_torch_fused, adamw_torch, sgd, adagrad, rmsprop, adafactor, or muon."
    )
    muon_learning_rate: float = option(3e-3, "With --optim muon: peak rate of the encoder's matrices.")
    nsp_loss_weight: float = option(1.0, "Factor of the next-sentence loss in the sum of both (the paper: 1).")
    data_seed: int | None = option(None, "Seed of pairs, masks and their order. By default --seed.")
    dataloader_num_workers: int | None = option(
        None, "Processes that make batches. By default up to 4 beside an accelerator, none where the CPU trains."
    )
    decay_from_step_zero: bool = option(
        False, "true: the linear decay of the 2018 code, which counts from step 0 and not from the end of warm-up."
    )

    fast_path: str = option(
        "auto",
        "auto: the first batch is computed without padding and with it, and where they differ the run keeps padding. "
        "on: nothing is compared. off: padding is kept.",
    )

    def __post_init__(self):
        if self.data_seed is None:
            self.data_seed = self.seed
        yaml_words = {"true": "on", "false": "off"}  # YAML reads on and off as truth values
        self.fast_path = yaml_words.get(str(self.fast_path).lower(), self.fast_path)
        if self.fast_path not in ("auto", "on", "off"):
            raise ValueError(f"--fast_path must be auto, on or off, not {self.fast_path!r}")
        if self.max_hours is not None and not (self.max_hours > 0 and self.max_steps <= 0):
            raise ValueError("--max_hours must be positive, and excludes --max_steps")
        if self.dataloader_num_workers is None:
            beside = torch.accelerator.is_available() and not self.use_cpu
            self.dataloader_num_workers = min(4, hardware.cores_of_rank() - 1) if beside else 0

        # TrainingArguments refuses names that transformers itself does not implement.
        muon = self.optim == MUON
        if muon:
            self.optim = "adamw_torch_fused"
        super().__post_init__()
        if muon:
            self.optim = MUON
            self._check_muon()

    def _check_muon(self) -> None:
        """Refuses what shards or flattens the matrices that Muon orthogonalises, or takes the optimizer over."""
        sharded = bool(self.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("1", "true")
        if hardware.engine(self) == "deepspeed" or sharded:
            raise InputError(
                "Muon orthogonalises whole matrices, and DeepSpeed and FSDP divide them among the ranks",
                where="--optim muon",
                remedy="use DDP (configs/accelerate/ddp.yaml) or --optim adamw_torch_fused",
            )
        if not self.adam_bias_correction:
            raise InputError(
                "Muon is combined with AdamW, which corrects its bias",
                where="--adam_bias_correction false",
                remedy="leave one of --optim muon and --adam_bias_correction false out",
            )


@dataclass
class FineTuningArguments(RunArguments):
    """The middle of the paper's fine-tuning grid by default (Devlin et al. 2019, A.3)."""

    output_dir: str | None = option("runs/finetune", "Where the run writes.")
    learning_rate: float = option(5e-5, "The paper's grid: 5e-5, 3e-5, 2e-5 (A.3).")
    per_device_train_batch_size: int = option(32, "The paper's grid: 16, 32 (A.3).")
    num_train_epochs: float = option(3.0, "The paper's grid: 2, 3, 4 (A.3).")
    weight_decay: float = option(0.01, "As in pre-training.")
    adam_epsilon: float = option(1e-6, "As in pre-training.")
    warmup_steps: float = option(0.1, "A number below 1 is a share of the steps (2018 code: 0.1).")
    train_sampling_strategy: str = option(
        "group_by_length",
        "Texts of about one length share a batch: little padding. random: as in the 2018 code.",
        ("group_by_length", "random", "sequential", "batch_rebalance"),
    )
