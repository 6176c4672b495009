"""Measures what a checkpoint has learned: masked words, next sentences, grammar, frozen features, few labels."""

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import BertConfig, BertForPreTraining, PreTrainedTokenizerBase, set_seed

from bert_hf.analysis.probe_labels import FINE_TUNED, few_labels, frozen_features, prepare_folds
from bert_hf.analysis.probe_language import (
    masked_lm,
    minimal_pairs,
    next_sentence,
    outputs_of,
    read_held_out,
    read_minimal_pairs,
)
from bert_hf.config.analysis_arguments import ProbeArguments
from bert_hf.console import format_table
from bert_hf.data.text.tokenization import load_tokenizer
from bert_hf.finetuning.predict import open_network
from bert_hf.models.loading import check_positions

REPORT_FILES = ("probe.json", "probe.txt")
_MIN_PAIRS = 40  # held-out pairs below which next-sentence prediction is not measured


@dataclass
class Subject:
    """The probed checkpoint, in fp32 on the device, and a network of the same shape with random weights."""

    name: str
    model: BertForPreTraining
    random: BertForPreTraining
    tokenizer: PreTrainedTokenizerBase
    missing: list[str]  # names of the parameters that the checkpoint lacks, such as heads

    def lacks(self, *prefixes: str) -> bool:
        return any(name.startswith(prefixes) for name in self.missing)


def open_subject(probe_args: ProbeArguments) -> Subject:
    """Load the checkpoint by stock `BertForPreTraining`."""
    set_seed(0)  # of the heads that the checkpoint lacks
    heads = ("cls.", "bert.pooler.")
    where = str(probe_args.model_name_or_path)
    tokenizer = load_tokenizer(where, do_lower_case=probe_args.do_lower_case)
    model, tokenizer, missing = open_network(where, BertForPreTraining, heads, tokenizer)
    check_positions(probe_args.max_seq_length, model.config.max_position_embeddings, where)
    random: Any = BertForPreTraining(BertConfig.from_dict(model.config.to_dict()))
    return Subject(where, model, random.to(model.device).eval(), tokenizer, missing)


def run_probe(probe_args: ProbeArguments, subject: Subject, folder: Path) -> None:
    """Run the chosen parts and write `probe.json` and `probe.txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REPORT_FILES[0]).write_text("{}\n")  # from now on the folder is known as a probe's

    results: dict[str, Any] = {"checkpoint": subject.name, "notes": []}
    for part, measure in _measures(probe_args, subject, folder).items():
        print(f"{part} …", flush=True)
        result = measure()
        if isinstance(result, str):
            results["notes"].append(f"{part}: {result}")
        else:
            results[part] = result
        (folder / "probe.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")

    notes = "".join(f"! {note}\n" for note in results["notes"])
    text = "\n".join(format_table(_table(results))) + "\n" + notes
    (folder / "probe.txt").write_text(text, encoding="utf-8")
    print(f"\n{text}\nreport: {folder}", flush=True)


def _measures(probe_args: ProbeArguments, subject: Subject, folder: Path) -> dict[str, Callable[[], dict | str]]:
    """Return a function for each chosen part: it measures, or says why that is not possible.

    All data are read here, before anything is computed, so that a bad line is found in the first seconds.
    """
    model, random, tokenizer = subject.model, subject.random, subject.tokenizer
    length, chosen = probe_args.max_seq_length, probe_args.chosen_parts()
    measures: dict[str, Callable[[], dict | str]] = {}

    if {"mlm", "nsp"} & set(chosen):
        text = read_held_out(probe_args.validation_file or [], tokenizer, length, probe_args.max_eval_samples)
        measures["mlm"] = lambda: masked_lm(text, model, tokenizer)
        measures["nsp"] = lambda: next_sentence(text, outputs_of(model, text.examples, tokenizer))
        if not text.pairs or len(text.examples) < _MIN_PAIRS:
            measures["nsp"] = lambda: f"the held-out text gives fewer than {_MIN_PAIRS} sentence pairs"
    if "grammar" in chosen:
        pairs = read_minimal_pairs(probe_args.blimp or [], probe_args.max_pairs)
        measures["grammar"] = lambda: {
            "checkpoint": minimal_pairs(pairs, model, tokenizer), "random": minimal_pairs(pairs, random, tokenizer)
        }  # fmt: skip
    if {"features", "few_labels"} & set(chosen):
        folds = folder / "folds"
        fewest = prepare_folds(probe_args.train_file or [], probe_args.text_column, probe_args.label_column, folds)
        networks: Any = {"checkpoint": model.bert, "random": random.bert}
        measures["features"] = lambda: frozen_features(networks, tokenizer, folds, length)
        measures["few_labels"] = lambda: few_labels(subject.name, folder, length)
        if fewest < FINE_TUNED:
            measures["few_labels"] = lambda: f"the folds have {fewest} training rows, fewer than {FINE_TUNED}"

    if subject.lacks("cls.predictions"):
        measures["mlm"] = measures["grammar"] = lambda: "the checkpoint has no masked-language-model head"
    if subject.lacks("cls.seq_relationship", "bert.pooler"):
        measures["nsp"] = lambda: "the checkpoint has no next-sentence head"
    return {part: measures[part] for part in chosen}


# ---- report


def _table(results: dict) -> list[list[str]]:
    rows = [[results["checkpoint"], "value", "compared with"]]

    if mlm := results.get("mlm"):
        rows.append(["masked words: loss (nats)", f"{mlm['loss']:.3f}", f"unigram {mlm['unigram_loss']:.3f}"])
        rows.append(["  accuracy", f"{mlm['accuracy']:.3f}", ""])
        rows.append(["  what word order is worth", f"{mlm['shuffled_gap']:.3f}", ""])
        rows.append(["  what context is worth", f"{mlm['replaced_gap']:.3f}", ""])

    if nsp := results.get("nsp"):
        shown = f"{nsp['accuracy']:.3f} ± {nsp['standard_error']:.3f}"
        rows.append(["next sentence: accuracy", shown, f"majority {nsp['majority']:.3f}"])

    if grammar := results.get("grammar"):
        trained, random = grammar["checkpoint"], grammar["random"]
        shown = f"{trained['accuracy']:.3f} ± {trained['standard_error']:.3f}"
        rows.append(
            [f"grammar: {trained['pairs']:,} minimal pairs", shown, f"random weights {random['accuracy']:.3f}"]
        )

    if features := results.get("features"):
        for count in features["scores"]["checkpoint"]:
            values = {name: by_count[count] for name, by_count in features["scores"].items()}
            rows.append([f"frozen features, {count} labels: {features['metric']}", *_compared(values)])

    tuned = results.get("few_labels", {})
    for metric in tuned.get("checkpoint", {}):
        values = {name: statistics.fmean(own[metric]) for name, own in tuned.items() if metric in own}
        rows.append([f"fine-tuned on few labels: {metric}", *_compared(values)])

    return rows


def _compared(values: dict[str, float]) -> list[str]:
    """Return the value of the checkpoint, and the values of all others by name."""
    shown = {name: f"{value:.3f}" for name, value in values.items()}
    own = shown.pop("checkpoint")
    return [own, ", ".join(f"{name} {value}" for name, value in shown.items())]
