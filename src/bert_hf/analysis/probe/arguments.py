"""Declares the options of `recipes/probe.py`."""

from dataclasses import dataclass

from bert_hf.config.arguments import option
from bert_hf.config.languages import checked_language
from bert_hf.errors import InputError, check_known

PARTS = ("vocabulary", "geometry", "features", "few_labels", "mlm", "nsp", "grammar")
NEEDS = {  # part → the options of which it needs at least one
    "vocabulary": ("train_file",),
    "geometry": ("train_file", "validation_file"),
    "features": ("train_file",),
    "few_labels": ("train_file",),
    "mlm": ("validation_file", "train_file"),
    "nsp": ("validation_file",),
    "grammar": ("blimp",),
}
PLL_WORD, PLL_ORIGINAL = "word_l2r", "original"


@dataclass
class ProbeArguments:
    """Which checkpoint is probed, with which data, and how thoroughly."""

    model_name_or_path: str | None = option(None, "Checkpoint (folder or Hub id).")
    tokenizer_name: str | None = option(None, "Tokenizer, where it is not the checkpoint's own.")
    parts: list[str] | None = option(None, f"Parts to run: {', '.join(PARTS)}. By default all that have data.")

    train_file: list[str] | None = option(None, "Labelled files (CSV, TSV, JSON lines); each is a separate task.")
    text_column: str | None = option(None, "Column of the labelled text; by default what the data plainly hold.")
    text_pair_column: str | None = option(None, "Column of the second text, where a row is a pair.")
    label_column: str | None = option(None, "Column of the label; by default what the data plainly hold.")
    encoding: str | None = option(None, "Encoding of the labelled files, where it is not UTF-8: latin-1, cp1252, …")
    validation_file: list[str] | None = option(None, "Held-out raw text, or a folder made by prepare.py.")
    validation_text_column: str | None = option(None, "Column of the held-out text, where its rows have several.")
    language: str | None = option(None, "ISO 639 code of the held-out text, for its sentences; English without it.")
    blimp: list[str] | None = option(None, "Minimal pairs: JSON lines with sentence_good and sentence_bad (BLiMP).")

    max_seq_length: int = option(128, "Longer texts are cut; held-out text is read at this length.")
    max_rows: int = option(6000, "Labelled rows of a task that are used, at most (a random sample).")
    max_eval_samples: int = option(1000, "Held-out examples that are evaluated, at most.")
    max_pairs: int = option(10, "Minimal pairs of each paradigm that are scored, at most.")
    pll: str = option(PLL_WORD, "Pseudo-log-likelihood: see docs/probe.md.", (PLL_WORD, PLL_ORIGINAL))

    labels: list[int] | None = option(None, "Numbers of labelled training rows (10 50 100 500).")
    folds: int = option(5, "Folds of the cross-validation over the labelled rows.")
    random_draws: int = option(3, "Networks with random weights that the checkpoint is compared with.")
    tune_labels: int = option(100, "Labelled rows that a network is fine-tuned on.")
    tune_draws: int = option(3, "Draws of those rows.")
    tune_steps: int = option(200, "Optimizer steps of the fine-tuning.")
    tune_batch_size: int = option(16, "Rows a step of the fine-tuning.")
    tune_learning_rate: float | None = option(None, "Peak rate. By default 5e-4 up to width 256, 1e-4 to 512, 5e-5.")
    tune_reset: list[str] | None = option(
        None, "Parameters drawn at random before the fine-tuning, by the beginning of their names: bert.pooler, …"
    )

    cache_dir: str = option("~/.cache/bert_hf", "Where held-out text that was prepared is kept.")
    seed: int = option(0, "Seed of all that is drawn.")

    def __post_init__(self):
        self.labels = self.labels or [10, 50, 100, 500]
        self.language = checked_language(self.language)

        counts = "max_rows max_eval_samples max_pairs tune_steps tune_batch_size tune_draws random_draws"
        for name in counts.split():
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, not {getattr(self, name)}")

        if self.folds < 2:
            raise ValueError(f"--folds must be at least 2, not {self.folds}")
        if self.tune_draws > self.folds:
            what = f"--tune_draws must be at most --folds ({self.folds})"
            raise ValueError(f"{what}: each draw is tested on its own fold")
        if min(*self.labels, self.tune_labels) < 4:
            raise ValueError("--labels and --tune_labels must be at least 4")

    def chosen_parts(self) -> tuple[str, ...]:
        """The parts to run, in their order.

        Raises:
            InputError: an unknown part, one whose data are not given, or no part at all.
        """
        for part in self.parts or ():
            check_known(part, PARTS, f"no part {part!r}", "--parts")
            if not self._has_data(part):
                options = " or ".join(f"--{name}" for name in NEEDS[part])
                raise InputError(f"the part {part!r} has no data", where="--parts", remedy=f"give {options}")

        chosen = tuple(part for part in PARTS if part in (self.parts or PARTS) and self._has_data(part))
        if not chosen:
            remedy = "give --train_file, --validation_file or --blimp"
            raise InputError("there is nothing to probe with", where="--train_file", remedy=remedy)
        return chosen

    def _has_data(self, part: str) -> bool:
        return any(getattr(self, name) for name in NEEDS[part])
