"""Measures what the pre-training heads of a checkpoint have learned: masked words, next sentences and grammar.

Grammar is measured by minimal pairs (BLiMP): how often the grammatical one of two sentences is the likelier one.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForPreTraining, PreTrainedTokenizerBase, set_seed

from bert_hf.config.arguments import CorpusArguments
from bert_hf.config.checkpoint_arguments import ProbeArguments
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.console import format_table
from bert_hf.data.corpus.requested_corpus import load_or_prepare_corpus
from bert_hf.data.examples.collator import DataCollatorForPreTraining, pad_inputs
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.samplers import Phase
from bert_hf.data.text.input_files import expand_paths
from bert_hf.data.text.tables import read_rows
from bert_hf.data.text.tokenization import load_tokenizer, word_start_mask
from bert_hf.finetuning.predict import open_network
from bert_hf.models.inference import run_by_length
from bert_hf.models.loading import check_positions
from bert_hf.pretraining.examples import pretraining_baselines
from bert_hf.pretraining.trainer import PreTrainer

REPORT_FILES = JSON, TEXT = "probe.json", "probe.txt"
_MIN_PAIRS = 40  # held-out pairs below which next-sentence prediction is not measured
_TOKENS_PER_BATCH = 8192  # padding included
_TIE = 1e-4  # nats: sums of fp32 logits in other batches differ by less

MinimalPair = tuple[str, str]  # two sentences, of which the first is grammatical


@dataclass
class ProbedModel:
    """The checkpoint that is probed, in fp32 on the device."""

    name: str
    model: BertForPreTraining
    tokenizer: PreTrainedTokenizerBase
    missing: list[str]  # names of the parameters that the checkpoint lacks, such as heads

    def lacks(self, *prefixes: str) -> bool:
        """Return True if the checkpoint lacks a parameter whose name begins with one of the prefixes."""
        return any(name.startswith(prefixes) for name in self.missing)


def open_probed_model(probe_args: ProbeArguments) -> ProbedModel:
    """Load the checkpoint by stock `BertForPreTraining`; heads that it lacks are random, and are not measured."""
    set_seed(0)  # for the heads that are drawn
    where = str(probe_args.model_name_or_path)
    tokenizer = load_tokenizer(where, do_lower_case=probe_args.do_lower_case)
    model, tokenizer, missing = open_network(where, BertForPreTraining, ("cls.", "bert.pooler."), tokenizer)
    check_positions(probe_args.max_seq_length, model.config.max_position_embeddings, where)
    return ProbedModel(where, model, tokenizer, missing)


def run_probe(probe_args: ProbeArguments, probed: ProbedModel, folder: Path) -> None:
    """Measure each part for which there are data and a head; write `probe.json` and `probe.txt`, and print it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / JSON).write_text("{}\n")  # marks the folder as a probe's before the minutes of measuring

    results = _measure(probe_args, probed, folder)
    (folder / JSON).write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    lines = [*format_table(_report_table(results)), *(f"! {note}" for note in results["notes"])]
    text = "\n".join(lines) + "\n"
    (folder / TEXT).write_text(text, encoding="utf-8")
    print(f"\n{text}\nreport: {folder}", flush=True)


def _measure(probe_args: ProbeArguments, probed: ProbedModel, folder: Path) -> dict[str, Any]:
    """Return the name of the `checkpoint`, its metrics (`mlm`, `nsp`, `grammar`), and `notes` on those that it lacks.

    The trainer that evaluates the held-out text needs a `folder`.
    """
    model, tokenizer = probed.model, probed.tokenizer
    notes: list[str] = []
    results: dict[str, Any] = {"checkpoint": probed.name, "notes": notes}
    predicts_words = not probed.lacks("cls.predictions")
    if not predicts_words:
        notes.append("mlm, grammar: the checkpoint has no masked-language-model head")

    pairs = read_minimal_pairs(probe_args.blimp or [], probe_args.max_pairs)  # first, so that a bad line is found soon
    # Random weights, the baseline of grammar: drawn before the trainer of the held-out text sets a seed
    random: Any = BertForPreTraining(BertConfig.from_dict(model.config.to_dict()))
    if probe_args.validation_file:
        results |= _measure_held_out_text(probe_args, probed, folder, notes)
    if pairs and predicts_words:
        networks = {"checkpoint": model, "random": random.to(model.device).eval()}
        results["grammar"] = {name: grammar_accuracy(pairs, each, tokenizer) for name, each in networks.items()}
    return results


def _measure_held_out_text(
    probe_args: ProbeArguments, probed: ProbedModel, folder: Path, notes: list[str]
) -> dict[str, Any]:
    """Return the metrics of `mlm` and `nsp`; add to `notes` if a head is missing or the sentence pairs are too few."""
    metrics = held_out_metrics(probe_args, probed, folder)
    results = {}
    if not probed.lacks("cls.predictions"):
        loss, accuracy = metrics["eval_mlm_loss"], metrics["eval_mlm_accuracy"]
        results["mlm"] = {"loss": loss, "accuracy": accuracy, "unigram_loss": metrics["unigram_mlm_loss"]}
    if probed.lacks("cls.seq_relationship", "bert.pooler"):
        notes.append("nsp: the checkpoint has no next-sentence head")
    elif metrics.get("nsp_pairs", 0) < _MIN_PAIRS:
        notes.append(f"nsp: the held-out text gives fewer than {_MIN_PAIRS} sentence pairs")
    else:
        accuracy = accuracy_with_error(metrics["eval_nsp_accuracy"], int(metrics["nsp_pairs"]))
        results["nsp"] = {"majority": metrics["majority_nsp_accuracy"], **accuracy}
    return results


def held_out_metrics(probe_args: ProbeArguments, probed: ProbedModel, output_dir: Path) -> dict[str, float]:
    """Return metrics and baselines of the first examples on which `pretrain.py` evaluates this text at this length."""
    files, tokenizer = probe_args.validation_file or [], probed.tokenizer
    corpus = load_or_prepare_corpus(CorpusArguments(), tokenizer, files)
    # Sentence pairs need a document of two sentences, and another one for the negatives
    documents = corpus.window(corpus.windows()[0])
    nsp = len(documents) > 1 and bool((documents.sentence_counts > 1).any())
    phases = (Phase(probe_args.max_seq_length, None),)
    examples = PreTrainingExamples(corpus, phases, nsp=nsp, seed=0, fixed=True, limit=probe_args.max_eval_samples)

    collator = DataCollatorForPreTraining(tokenizer, nsp=nsp)
    args = PreTrainingArguments(str(output_dir), bf16=False, report_to="none", disable_tqdm=True)
    trainer = PreTrainer(probed.model, args, collator, eval_dataset=examples, processing_class=tokenizer)
    return trainer.evaluate() | pretraining_baselines(examples, collator, corpus)


def read_minimal_pairs(files: list[str], max_pairs: int) -> list[MinimalPair]:
    """Return at most `max_pairs` pairs of each paradigm, a random sample, from JSON lines as BLiMP ships them.

    Keys: `sentence_good`, `sentence_bad`; `UID` names the paradigm.
    """
    by_paradigm: dict[str, list[MinimalPair]] = defaultdict(list)
    for path in expand_paths(files):
        for row in read_rows(path):
            sentences = [row.values.get("sentence_good"), row.values.get("sentence_bad")]
            if not all(isinstance(sentence, str) and sentence.strip() for sentence in sentences):
                raise row.error("not a minimal pair", "give sentence_good and sentence_bad, both text")

            good, bad = map(str, sentences)
            by_paradigm[str(row.values.get("UID") or Path(path).name)].append((good, bad))

    rng = np.random.default_rng(0)
    chosen: list[MinimalPair] = []
    for _, pairs in sorted(by_paradigm.items()):
        chosen += [pairs[number] for number in np.sort(rng.permutation(len(pairs))[:max_pairs])]
    return chosen


def mask_each_position(ids: list[int], continues: np.ndarray, mask: int) -> Iterator[tuple[list[int], int]]:
    """Yield for each token of a sentence the masked ids from which it is predicted, and its position.

    The later pieces of the same word are masked, too (PLL-word-l2r, Kauf & Ivanova 2023): else the pieces of a word
    give each other away.

        [CLS] a ##b c [SEP]   →   [CLS] M M c [SEP], 1 · [CLS] a M c [SEP], 2 · [CLS] a ##b M [SEP], 3

    Args:
        ids: with [CLS] first and [SEP] last, which are not scored.
        continues: (V,) bool, which tokens continue the word of the token before.
    """
    for position in range(1, len(ids) - 1):
        end = position + 1
        while end < len(ids) - 1 and continues[ids[end]]:
            end += 1
        yield [*ids[:position], *[mask] * (end - position), *ids[end:]], position


def pseudo_log_likelihoods(
    model: BertForPreTraining, sentences: list[str], tokenizer: PreTrainedTokenizerBase
) -> np.ndarray:
    """Return (N,) the pseudo-log-likelihood of each sentence in nats (Salazar et al. 2020)."""
    continues = ~word_start_mask(tokenizer)
    continues[tokenizer.all_special_ids] = False
    mask: Any = tokenizer.mask_token_id
    pad: Any = tokenizer.pad_token_id
    encoded: Any = tokenizer(sentences, truncation=True, max_length=model.config.max_position_embeddings)["input_ids"]

    # (number of the sentence, masked ids, position of the token that is predicted from them)
    copies = [
        (number, masked, position)
        for number, ids in enumerate(encoded)
        for masked, position in mask_each_position(ids, continues, mask)
    ]

    def compute(numbers: list[int]) -> torch.Tensor:
        """Return (B,) the negative log-likelihood of the token that each of these copies masks."""
        batch = [copies[number] for number in numbers]
        states = model.bert(**pad_inputs([ids for _, ids, _ in batch], pad, model.device))[0]
        positions = [position for _, _, position in batch]
        logits = model.cls.predictions(states[range(len(batch)), positions]).float()  # (B, V)
        tokens = torch.tensor([encoded[sentence][position] for sentence, _, position in batch], device=model.device)
        return cross_entropy(logits, tokens, reduction="none")

    losses = run_by_length([len(ids) for _, ids, _ in copies], compute, tokens=_TOKENS_PER_BATCH)
    losses = torch.stack(losses).cpu().numpy()
    return -np.bincount([sentence for sentence, _, _ in copies], losses, minlength=len(sentences))


def grammar_accuracy(
    pairs: list[MinimalPair], model: BertForPreTraining, tokenizer: PreTrainedTokenizerBase
) -> dict[str, float]:
    """Return the share of pairs where the grammatical sentence scores higher (not a tie), as `accuracy_with_error`."""
    scores = pseudo_log_likelihoods(model, [text for pair in pairs for text in pair], tokenizer)
    grammatical, ungrammatical = scores[0::2], scores[1::2]
    return accuracy_with_error(float((grammatical - ungrammatical > _TIE).mean()), len(pairs))


def accuracy_with_error(accuracy: float, pairs: int) -> dict[str, float]:
    """Return `accuracy`, its number of `pairs` and its (binomial) `standard_error`, as in `probe.json`."""
    return {"pairs": pairs, "accuracy": accuracy, "standard_error": float(np.sqrt(accuracy * (1 - accuracy) / pairs))}


def _report_table(results: dict) -> list[list[str]]:
    """Return the rows of the printed table, a heading first: each metric that was measured, beside its baseline."""
    rows = [[results["checkpoint"], "value", "compared with"]]

    if mlm := results.get("mlm"):
        rows.append(["masked words: loss (nats)", f"{mlm['loss']:.3f}", f"unigram {mlm['unigram_loss']:.3f}"])
        rows.append(["  accuracy", f"{mlm['accuracy']:.3f}", ""])

    if nsp := results.get("nsp"):
        shown = f"{nsp['accuracy']:.3f} ± {nsp['standard_error']:.3f}"
        rows.append(["next sentence: accuracy", shown, f"majority {nsp['majority']:.3f}"])

    if grammar := results.get("grammar"):
        trained, random = grammar["checkpoint"], grammar["random"]
        shown = f"{trained['accuracy']:.3f} ± {trained['standard_error']:.3f}"
        name, compared = f"grammar: {trained['pairs']:,} minimal pairs", f"random weights {random['accuracy']:.3f}"
        rows.append([name, shown, compared])

    return rows
