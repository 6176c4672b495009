"""Checks that the numbers of a run are in range, before anything is built."""

from typing import NamedTuple

from bert_hf.errors import InputError


class Range(NamedTuple):
    """An interval of finite numbers; `least` and `most` belong to it unless it is open there."""

    least: float
    most: float
    above: bool = False  # open below: not `least` itself
    below: bool = False  # open above: not `most` itself

    def __contains__(self, value) -> bool:
        low = self.least < value if self.above else self.least <= value
        high = value < self.most if self.below else value <= self.most
        return low and high

    def __str__(self) -> str:
        low, high = "above" if self.above else "of at least", "below" if self.below else "at most"
        return f"{low} {self.least:,} and {high} {self.most:,}"


MAX_DROPOUT = 0.99  # what is left is multiplied by 1 / (1 - p), which the kernels cannot compute just below 1
_ALLOWED = {
    "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps": Range(1, 1_000_000),
    "dataloader_prefetch_factor early_stopping_patience lstm_hidden_size": Range(1, 1_000_000),
    "eval_accumulation_steps torch_empty_cache_steps ddp_bucket_cap_mb": Range(1, 1_000_000),
    "max_seq_length long_seq_length": Range(8, 1_000_000),
    "save_total_limit doc_stride": Range(0, 1_000_000),  # 0 keeps all checkpoints
    "max_query_length n_best_size max_answer_length": Range(1, 10_000),
    "dataloader_num_workers": Range(0, 1024),
    "num_proc": Range(1, 1024),
    "folds": Range(1, 1000),
    "vocab_size": Range(6, 2**31 - 1),  # five special tokens, and one piece
    "seed data_seed split_seed seeds subset_seed": Range(0, 2**32 - 1),
    "max_train_samples max_eval_samples global_batch num_devices": Range(1, 1_000_000_000),
    "min_steps reinit_layers drop_rare price_per_hour save_minutes": Range(0, 1_000_000_000),
    "labels tune_labels": Range(4, 1_000_000_000),
    "max_rows max_pairs random_draws tune_draws tune_steps tune_batch_size texts_per_file": Range(1, 1_000_000_000),
    "layers": Range(-10_000, 10_000),
    "local_rank": Range(-1, 1_000_000),
    "null_score_diff_threshold na_prob_thresh": Range(-1_000_000_000, 1_000_000_000),
    "corpus_cache_gb": Range(0, 1_000_000_000, above=True),
    "min_frequency limit_alphabet tokenizer_sample_bytes check_bytes max_steps": Range(1, 1_000_000_000_000),
    "save_steps eval_steps logging_steps": Range(0, 1_000_000_000_000, above=True),
    "warmup_steps eval_delay": Range(0, 1_000_000_000_000),
    "num_train_epochs max_hours": Range(0, 1_000_000, above=True),
    "ddp_timeout": Range(1, 100_000_000),
    "learning_rate muon_learning_rate tune_learning_rate": Range(0, 1000),
    "weight_decay adam_epsilon max_grad_norm nsp_loss_weight neftune_noise_alpha": Range(0, 1000),
    "adam_beta1 adam_beta2 label_smoothing_factor": Range(0, 1, below=True),
    "dropout": Range(0, MAX_DROPOUT),
    "long_seq_fraction short_seq_probability final_mlm_fraction": Range(0, 1),
    "mfu fill layerwise_lr_decay": Range(0, 1, above=True),
    "mlm_probability final_mlm_probability": Range(0, 1, above=True, below=True),
    "validation_split_percentage test_split_percentage": Range(0, 100, above=True, below=True),
}
_RANGES = {name: allowed for names, allowed in _ALLOWED.items() for name in names.split()}


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


def is_number(text: str) -> bool:
    """Whether a text is a number, as Python reads it."""
    try:
        float(text)
    except ValueError:
        return False
    return True
