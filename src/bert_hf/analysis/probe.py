"""Measures what a checkpoint has learned: masked words, next sentences, grammar, frozen features, few labels."""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import BertConfig, BertForPreTraining, PreTrainedTokenizerBase, set_seed

from bert_hf.analysis.features import open_network
from bert_hf.analysis.probe_labels import few_labels, frozen_features, prepare_folds
from bert_hf.analysis.probe_language import (
    HeldOutText,
    masked_lm,
    minimal_pairs,
    next_sentence,
    outputs_of,
    read_held_out,
    read_minimal_pairs,
)
from bert_hf.analysis.study import Main
from bert_hf.config.parser import option
from bert_hf.console import format_table
from bert_hf.errors import InputError, check_known

REPORT_FILES = ("probe.json", "probe.txt")
NEEDS = {  # part → the option that names its data
    "mlm": "validation_file",
    "nsp": "validation_file",
    "grammar": "blimp",
    "features": "train_file",
    "few_labels": "train_file",
}
_MIN_PAIRS = 40  # held-out pairs below which next-sentence prediction is not measured


@dataclass
class ProbeArguments:
    """Which checkpoint is probed, and with which data."""

    model_name_or_path: str | None = option(None, "Checkpoint (folder or Hub id).")
    parts: list[str] | None = option(None, f"Parts to run: {', '.join(NEEDS)}. By default all that have data.")
    validation_file: list[str] | None = option(None, "Held-out raw text, or a folder made by prepare.py.")
    blimp: list[str] | None = option(None, "Minimal pairs: JSON lines with sentence_good and sentence_bad (BLiMP).")
    train_file: list[str] | None = option(None, "Labelled rows, as for finetune_classification.py.")
    text_column: str | None = option(None, "Column of the text; by default a usual name.")
    label_column: str | None = option(None, "Column of the label; by default a usual name.")
    max_seq_length: int = option(128, "Longer texts are cut; held-out text is read at this length.")
    max_eval_samples: int = option(1000, "Held-out examples that are evaluated, at most.")
    max_pairs: int = option(10, "Minimal pairs of each paradigm that are scored, at most.")

    def chosen_parts(self) -> list[str]:
        """The parts to run.

        Raises:
            InputError: an unknown part, one whose data are not given, or no part at all.
        """
        for part in self.parts or ():
            check_known(part, NEEDS, f"no part {part!r}", "--parts")
        chosen = self.parts or [part for part in NEEDS if getattr(self, NEEDS[part])]
        lacking = [NEEDS[part] for part in chosen or NEEDS if not getattr(self, NEEDS[part])]
        if lacking:
            names = " or ".join(f"--{name}" for name in dict.fromkeys(lacking))
            raise InputError("no data to probe with", where="--parts", remedy=f"give {names}")
        return chosen


@dataclass
class Subject:
    """The probed checkpoint, in fp32 on the device, and a network of the same shape with random weights.

    Attributes:
        missing: names of the parameters that the checkpoint lacks, such as heads.
    """

    name: str
    model: BertForPreTraining
    random: BertForPreTraining
    tokenizer: PreTrainedTokenizerBase
    missing: list[str]

    def lacks(self, *prefixes: str) -> bool:
        return any(name.startswith(prefixes) for name in self.missing)


def open_subject(probe_args: ProbeArguments) -> Subject:
    """Loads the checkpoint by stock `BertForPreTraining`.

    Raises:
        InputError: see `open_network`.
    """
    set_seed(0)  # of the heads that the checkpoint lacks
    heads = ("cls.", "bert.pooler.")
    where = probe_args.model_name_or_path
    model, tokenizer, missing = open_network(where, probe_args.max_seq_length, BertForPreTraining, heads)
    random: Any = BertForPreTraining(BertConfig.from_dict(model.config.to_dict()))
    return Subject(str(where), model, random.to(model.device).eval(), tokenizer, missing)


class Probe:
    """One probe of one checkpoint.

    Args:
        folder: the output folder.
        main: of the recipe that fine-tunes on few labels.
        report: prints a line.
    """

    def __init__(
        self, probe_args: ProbeArguments, subject: Subject, folder: Path, main: Main, report: Callable = print
    ):
        self.args, self.subject, self.folder, self.main, self.report = probe_args, subject, folder, main, report
        self.parts = probe_args.chosen_parts()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / REPORT_FILES[0]).write_text("{}\n")  # from now on the folder is known as a probe's

        # All data are read before anything is computed, so that a bad line is found in the first seconds
        self.text: HeldOutText | None = None
        if {"mlm", "nsp"} & set(self.parts):
            files, most = probe_args.validation_file or [], probe_args.max_eval_samples
            self.text = read_held_out(files, subject.tokenizer, probe_args.max_seq_length, most)
        if "grammar" in self.parts:
            self.pairs = read_minimal_pairs(probe_args.blimp or [], probe_args.max_pairs)
        if {"features", "few_labels"} & set(self.parts):
            columns = probe_args.text_column, probe_args.label_column
            prepare_folds(probe_args.train_file or [], *columns, folder / "folds")

    def run(self) -> dict:
        """Runs the parts and writes `probe.json` and `probe.txt`; returns the results by part."""
        results: dict[str, Any] = {"checkpoint": self.subject.name, "notes": [], "seconds": {}}
        for part in self.parts:
            self.report(f"{part} …")
            begin = time.perf_counter()
            note = self._unmeasurable(part)
            if note is None:
                results[part] = getattr(self, f"_{part}")()
            else:
                results["notes"].append(note)
            results["seconds"][part] = round(time.perf_counter() - begin, 1)

        (self.folder / "probe.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        notes = "".join(f"! {note}\n" for note in results["notes"])
        text = "\n".join(format_table(_table(results))) + "\n" + notes
        (self.folder / "probe.txt").write_text(text, encoding="utf-8")
        self.report(f"\n{text}\nreport: {self.folder}")
        return results

    def _unmeasurable(self, part: str) -> str | None:
        """Why a part cannot be measured; None where it can."""
        if part in ("mlm", "grammar") and self.subject.lacks("cls.predictions"):
            return f"{part}: the checkpoint has no masked-language-model head"
        if part == "nsp" and self.subject.lacks("cls.seq_relationship", "bert.pooler"):
            return "nsp: the checkpoint has no next-sentence head"
        if part == "nsp" and (self.text is None or not self.text.pairs or len(self.text.examples) < _MIN_PAIRS):
            return f"nsp: the held-out text gives fewer than {_MIN_PAIRS} sentence pairs"
        return None

    # ---- parts, named as in `NEEDS`

    def _mlm(self) -> dict:
        assert self.text is not None
        return masked_lm(self.text, self.subject.model, self.subject.tokenizer)

    def _nsp(self) -> dict:
        assert self.text is not None
        outputs = outputs_of(self.subject.model, self.text.examples, self.subject.tokenizer)
        return next_sentence(self.text, outputs)

    def _grammar(self) -> dict:
        networks = {"checkpoint": self.subject.model, "random": self.subject.random}
        return {name: minimal_pairs(self.pairs, model, self.subject.tokenizer) for name, model in networks.items()}

    def _features(self) -> dict:
        networks: Any = {"checkpoint": self.subject.model.bert, "random": self.subject.random.bert}
        return frozen_features(networks, self.subject.tokenizer, self.folder / "folds", self.args.max_seq_length)

    def _few_labels(self) -> dict:
        return few_labels(self.subject.name, self.folder, self.args.max_seq_length, self.main)


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
        own, random = grammar["checkpoint"], grammar["random"]
        shown = f"{own['accuracy']:.3f} ± {own['standard_error']:.3f}"
        rows.append([f"grammar: {own['pairs']:,} minimal pairs", shown, f"random weights {random['accuracy']:.3f}"])
    if features := results.get("features"):
        for count, value in features["scores"]["checkpoint"].items():
            others = {name: by_count[count] for name, by_count in features["scores"].items() if name != "checkpoint"}
            compared = ", ".join(f"{name} {other:.3f}" for name, other in others.items())
            rows.append([f"frozen features, {count} labels: {features['metric']}", f"{value:.3f}", compared])
    for metric, values in results.get("few_labels", {}).get("checkpoint", {}).items():
        others = {name: found[metric] for name, found in results["few_labels"].items() if metric in found}
        compared = ", ".join(f"{n} {statistics.fmean(v):.3f}" for n, v in others.items() if n != "checkpoint")
        rows.append([f"fine-tuned on few labels: {metric}", f"{statistics.fmean(values):.3f}", compared])
    return rows
