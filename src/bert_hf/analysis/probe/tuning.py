"""Fine-tunes the whole network on few labelled rows, and for comparison the same network with random weights.

A compact loop and not the Trainer: some six runs of 200 steps that are never resumed and write no files.
"""

import math
from collections import defaultdict
from typing import cast

import numpy as np
import torch
from sklearn.metrics import accuracy_score, average_precision_score
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel, get_linear_schedule_with_warmup

from bert_hf.analysis.probe.arguments import ProbeArguments
from bert_hf.analysis.probe.data import LabelledTask
from bert_hf.analysis.probe.features import labelled_folds, probe_tfidf
from bert_hf.analysis.probe.network import Subject, batches_by_length, model_inputs
from bert_hf.finetuning.metrics import f1
from bert_hf.training.optimization.optimizers import parameter_groups

WARMUP, WEIGHT_DECAY, MAX_GRAD_NORM = 0.1, 0.01, 1.0
MAX_TEST_ROWS = 1000
TOKENS_OF_A_PIECE = 256  # a step's rows go through the network in pieces of similar length: half the padding of SMS


def peak_rate(probe_args: ProbeArguments, subject: Subject) -> float:
    """The peak learning rate; where none is given, small networks take larger ones."""
    width = subject.config.hidden_size
    return probe_args.tune_learning_rate or (5e-4 if width <= 256 else 1e-4 if width <= 512 else 5e-5)


def fine_tune(
    model: PreTrainedModel, rows: list[dict], labels: np.ndarray, subject: Subject, probe_args: ProbeArguments
):
    """Trains all weights on the rows: AdamW, linear warm-up and decay, clipped gradients, passes in random order."""
    rate = peak_rate(probe_args, subject)
    # Fused: where the loss ends near 0, squared gradients underflow, and the plain loop takes 10 times as long
    optimizer = torch.optim.AdamW(parameter_groups(model, WEIGHT_DECAY), lr=rate, fused=True)
    schedule = get_linear_schedule_with_warmup(optimizer, round(WARMUP * probe_args.tune_steps), probe_args.tune_steps)

    rng = np.random.default_rng(subject.seed)
    passes = math.ceil(probe_args.tune_steps * probe_args.tune_batch_size / len(rows)) + 1
    order = np.concatenate([rng.permutation(len(rows)) for _ in range(passes)])

    model.train()
    for step in range(probe_args.tune_steps):
        batch = order[step * probe_args.tune_batch_size : (step + 1) * probe_args.tune_batch_size]
        for places in batches_by_length([len(rows[row]["input_ids"]) for row in batch], TOKENS_OF_A_PIECE):
            piece = batch[places]
            inputs = model_inputs([rows[row] for row in piece], subject)
            loss = model(**inputs, labels=torch.from_numpy(labels[piece]).to(subject.device)).loss
            (loss * (len(piece) / len(batch))).backward()

        clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


@torch.no_grad()
def classify(model: PreTrainedModel, rows: list[dict], subject: Subject) -> np.ndarray:
    """(N, classes) logits."""
    model.eval()
    logits = np.zeros((len(rows), cast(int, model.config.num_labels)))
    for batch in batches_by_length([len(row["input_ids"]) for row in rows]):
        logits[batch] = model(**model_inputs([rows[row] for row in batch], subject)).logits.float().cpu().numpy()
    return logits


def metrics(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """(average precision of class 1 or, of more classes, macro F1; accuracy)."""
    guesses = logits.argmax(1)
    accuracy = float(accuracy_score(labels, guesses))
    if logits.shape[1] == 2:
        return float(average_precision_score(labels, logits[:, 1] - logits[:, 0])), accuracy
    return f1(labels, guesses, logits.shape[1]), accuracy


def probe_few_labels(task: LabelledTask, subject: Subject, probe_args: ProbeArguments) -> dict | None:
    """Fine-tunes on `tune_labels` rows, `tune_draws` draws, each tested on another fold.

    Returns:
        metric; scores and accuracies {checkpoint, random, tfidf_words, tfidf_characters: a value a draw};
        difference: checkpoint − random of each draw. None where there are too few rows.
    """
    fits = labelled_folds(task, [probe_args.tune_labels], probe_args.folds, probe_args.seed).get(
        probe_args.tune_labels
    )
    if not fits:
        return None

    rows = task.encoded(subject.tokenizer, probe_args.max_seq_length)
    texts = task.seen(subject.tokenizer, probe_args.max_seq_length)
    reset = tuple(probe_args.tune_reset or ())
    scores, accuracies = defaultdict(list), defaultdict(list)

    for draw, fit in enumerate(fits[: probe_args.tune_draws]):
        test = np.sort(np.random.default_rng([probe_args.seed, draw]).permutation(fit.test)[:MAX_TEST_ROWS])
        fit = fit._replace(test=test)
        for name in ("checkpoint", "random"):
            model = subject.load_classifier(task.classes, draw, name == "random", reset)
            fine_tune(model, [rows[row] for row in fit.train], task.labels[fit.train], subject, probe_args)
            value, accuracy = metrics(classify(model, [rows[row] for row in test], subject), task.labels[test])
            scores[name].append(value)
            accuracies[name].append(accuracy)
        for kind in ("words", "characters"):
            scores[f"tfidf_{kind}"].append(probe_tfidf(texts, task, fit, kind))

    return {
        "metric": "average precision" if task.classes == 2 else "macro F1",
        "labels": probe_args.tune_labels,
        "steps": probe_args.tune_steps,
        "learning_rate": peak_rate(probe_args, subject),
        "scores": scores,
        "accuracies": accuracies,
        "difference": np.subtract(scores["checkpoint"], scores["random"]).tolist(),
    }
