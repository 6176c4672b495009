"""Makes the examples of a pre-training run, and measures the baselines on its held-out ones."""

import numpy as np

from bert_hf.config.arguments import ExampleArguments
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.console import progress
from bert_hf.data.corpus.store import Corpus
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.samplers import Phase
from bert_hf.data.text.tokenization import id_count
from bert_hf.models.functional import IGNORE_INDEX

PAPER_MLM_PROBABILITY = 0.15  # of the held-out examples, whatever the training uses: runs remain comparable


def training_examples(
    corpus: Corpus, phases: tuple[Phase, ...], example_args: ExampleArguments, args: PreTrainingArguments
) -> PreTrainingExamples:
    """Return a run's training examples; `--per_device_train_batch_size` means rows of `max_seq_length`."""
    seed = args.seed if args.data_seed is None else args.data_seed
    return PreTrainingExamples(
        corpus, phases, seed=seed, batch_length=example_args.max_seq_length, **example_args.pair_options()
    )


def held_out_examples(held_out: Corpus, example_args: ExampleArguments) -> PreTrainingExamples:
    """Return at most `max_eval_samples` examples of `max_seq_length`; pairs and masks do not depend on the seed."""
    return PreTrainingExamples(
        held_out, (Phase(example_args.max_seq_length, None),), limit=example_args.max_eval_samples, seed=0,
        fixed=True, mlm_probability=PAPER_MLM_PROBABILITY, **example_args.pair_options(),
    )  # fmt: skip


def pretraining_baselines(
    examples: PreTrainingExamples, collator: DataCollatorForPreTraining, corpus: Corpus
) -> dict[str, float]:
    """Measure on held-out examples: MLM loss of the corpus's token frequencies, majority accuracy, number of pairs."""
    features = [examples[index] for index in progress(range(len(examples)), "counting tokens", "examples")]
    labels = np.concatenate([collator.example(feature)["labels"] for feature in features])

    counts = corpus.unigram_counts(id_count(collator.tokenizer)) + 1  # of its first window; + 1: no loss is infinite
    probabilities = counts / counts.sum()
    targets = labels[labels != IGNORE_INDEX]
    baselines = {"unigram_mlm_loss": float(np.mean(-np.log(probabilities[targets])))}

    if prefix := examples.objective.prefix:
        negatives = float(np.mean([feature["next_sentence_label"] for feature in features]))  # share of label 1
        baselines[f"majority_{prefix}_accuracy"] = max(negatives, 1 - negatives)
        baselines[f"{prefix}_pairs"] = len(features)
    return baselines
