"""Checks that the numbers of a run are in range, before anything is built."""

import math
from typing import NamedTuple

from bert_hf.errors import InputError


class Range(NamedTuple):
    """An interval of finite numbers; `least` and `most` belong to it unless it is open there."""

    least: float
    most: float = math.inf
    above: bool = False  # open below: not `least` itself
    below: bool = False  # open above: not `most` itself

    def __contains__(self, value) -> bool:
        low = self.least < value if self.above else self.least <= value
        high = value < self.most if self.below else value <= self.most
        return low and high and math.isfinite(value)

    def __str__(self) -> str:
        low = f"above {self.least:,}" if self.above else f"of at least {self.least:,}"
        if self.most == math.inf:
            return low
        return f"{low} and {f'below {self.most:,}' if self.below else f'at most {self.most:,}'}"


_COUNT = Range(1, 10**6)
_STEPS = Range(0, 10**12, above=True)
_SHARE = Range(0, 1, below=True)
_RATE = Range(0, 1000)
_PERCENT = Range(0, 100, above=True, below=True)
_BYTES = Range(1, 10**12)

_RANGES = {
    **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), _COUNT),
    **dict.fromkeys(("gradient_accumulation_steps", "dataloader_prefetch_factor"), _COUNT),
    **dict.fromkeys(("save_steps", "eval_steps", "logging_steps"), _STEPS),
    **dict.fromkeys(("adam_beta1", "adam_beta2", "dropout", "label_smoothing_factor"), _SHARE),
    **dict.fromkeys(("learning_rate", "weight_decay", "adam_epsilon", "max_grad_norm"), _RATE),
    **dict.fromkeys(("validation_split_percentage", "test_split_percentage"), _PERCENT),
    **dict.fromkeys(("seed", "data_seed", "split_seed"), Range(0, 2**32 - 1)),
    **dict.fromkeys(("max_seq_length", "long_seq_length"), Range(8, 10**6)),
    **dict.fromkeys(("min_frequency", "limit_alphabet", "tokenizer_sample_bytes", "check_bytes"), _BYTES),
    "save_total_limit": Range(0, 10**6),  # 0 keeps all
    **dict.fromkeys(("save_minutes", "skip_bad_steps"), Range(0, 10**9)),
    "max_hours": Range(0, 10**6, above=True),
    "hang_timeout": Range(1, 10**7),
    "max_steps": Range(1, 10**12),
    "num_train_epochs": Range(0, 10**6, above=True),
    "warmup_steps": Range(0, 10**12),
    "dataloader_num_workers": Range(0, 1024),
    "num_proc": Range(1, 1024),
    "vocab_size": Range(6, 2**31 - 1),  # five special tokens, and one piece
    "long_seq_fraction": Range(0, 1),
    "short_seq_probability": Range(0, 1),
    "mlm_probability": Range(0, 1, above=True, below=True),
    "corpus_cache_gb": Range(0, 10**9, above=True),
    **dict.fromkeys(("max_train_samples", "max_eval_samples"), Range(1, 10**9)),
    **dict.fromkeys(("min_steps", "reinit_layers", "drop_rare"), Range(0, 10**9)),
    "layerwise_lr_decay": Range(0, 1, above=True),
    "folds": Range(1, 1000),
    **dict.fromkeys(("early_stopping_patience", "lstm_hidden_size"), Range(1, 10**6)),
    **dict.fromkeys(("max_query_length", "n_best_size", "max_answer_length"), Range(1, 10**4)),
    "doc_stride": Range(0, 10**6),
    "null_score_diff_threshold": Range(-(10**9), 10**9),
    "ddp_timeout": Range(1, 10**8),
    **dict.fromkeys(("global_batch", "num_devices"), Range(1, 10**9)),
    **dict.fromkeys(("mfu", "fill"), Range(0, 1, above=True)),
    "price_per_hour": Range(0, 10**9),
}


def check_ranges(*parts) -> str:
    """Refuses the first number that is out of range.

    Args:
        parts: dataclasses of options. Options that are None, and --max_steps -1, are not given.

    Returns:
        A line that says how many options were checked.

    Raises:
        InputError: names the option and its range.
    """
    checked = 0
    for part in parts:
        for name, value in vars(part).items():
            if name not in _RANGES or value is None or (name == "max_steps" and value == -1):
                continue

            for number in value if isinstance(value, list) else [value]:
                if number not in _RANGES[name]:
                    remedy = f"give a number {_RANGES[name]}"
                    raise InputError(f"{number} is out of range", where=f"--{name}", remedy=remedy)
            checked += 1
    return f"numbers: {checked} checked"
