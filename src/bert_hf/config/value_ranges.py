"""Where the numbers of a run must lie: what cannot be meant is refused before it costs hours."""

import math
from typing import NamedTuple

from bert_hf.errors import InputError


class Range(NamedTuple):
    """Where a number must lie; `least` and `most` themselves are allowed unless they are `beyond`."""

    least: float
    most: float = math.inf
    above: bool = False  # not `least` itself
    below: bool = False  # not `most` itself

    def __contains__(self, value) -> bool:
        low = self.least < value if self.above else self.least <= value
        high = value < self.most if self.below else value <= self.most
        return low and high and math.isfinite(value)

    def __str__(self) -> str:
        low = f"above {self.least:,}" if self.above else f"of at least {self.least:,}"
        if self.most == math.inf:
            return low
        return f"{low} and {f'below {self.most:,}' if self.below else f'at most {self.most:,}'}"


_COUNT, _STEPS, _SHARE = Range(1, 10**6), Range(0, 10**12, above=True), Range(0, 1, below=True)
_RATE, _PERCENT = Range(0, 1000), Range(0, 100, above=True, below=True)
_RANGES = {
    **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), _COUNT),
    **dict.fromkeys(("gradient_accumulation_steps", "dataloader_prefetch_factor"), _COUNT),
    **dict.fromkeys(("save_steps", "eval_steps", "logging_steps"), _STEPS),
    **dict.fromkeys(("adam_beta1", "adam_beta2", "dropout", "label_smoothing_factor"), _SHARE),
    **dict.fromkeys(("learning_rate", "weight_decay", "adam_epsilon", "max_grad_norm"), _RATE),
    **dict.fromkeys(("validation_split_percentage", "test_split_percentage"), _PERCENT),
    **dict.fromkeys(("seed", "data_seed", "split_seed"), Range(0, 2**32 - 1)),
    **dict.fromkeys(("max_seq_length", "long_seq_length"), Range(8, 10**6)),
    **dict.fromkeys(("min_frequency", "limit_alphabet", "tokenizer_sample_bytes", "check_bytes"), Range(1, 10**12)),
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
    "max_eval_samples": Range(1, 10**9),
    "ddp_timeout": Range(1, 10**8),
    "global_batch": Range(1, 10**9),
    "price_per_hour": Range(0, 10**9),
}


def check_ranges(*parts) -> str:
    """Weighs every number that is asked for; a number that cannot be meant is refused."""
    weighed = 0
    for part in parts:
        for name, value in vars(part).items():
            if name not in _RANGES or value is None or (name == "max_steps" and value == -1):
                continue
            if value not in _RANGES[name]:
                raise InputError(
                    f"{value} cannot be meant", where=f"--{name}", remedy=f"give a number {_RANGES[name]}"
                )
            weighed += 1
    return f"numbers: {weighed} weighed"
