"""Measures what a checkpoint has learned: masked words, next sentences, grammar, frozen features, few labels."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForPreTraining, PreTrainedTokenizerBase, set_seed

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
from bert_hf.analysis.probe_report import write_report
from bert_hf.analysis.study import Main
from bert_hf.config.parser import option
from bert_hf.data.text.tokenization import check_tokenizer, load_tokenizer
from bert_hf.errors import InputError, check_known
from bert_hf.models.loading import load_network, open_checkpoint

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
            if not getattr(self, NEEDS[part]):
                raise InputError(f"{part} has no data", where="--parts", remedy=f"give --{NEEDS[part]}")
        chosen = [part for part in self.parts or NEEDS if getattr(self, NEEDS[part])]
        if not chosen:
            names = ", ".join(f"--{name}" for name in dict.fromkeys(NEEDS.values()))
            raise InputError("nothing to probe with", where="--validation_file", remedy=f"give one of {names}")
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
        InputError: nothing can be loaded from there, or tokenizer, length and shape do not fit.
    """
    if probe_args.model_name_or_path is None:
        raise InputError("missing", where="--model_name_or_path", remedy="give a BERT checkpoint")
    where = probe_args.model_name_or_path
    folder, config, device = open_checkpoint(where, probe_args.max_seq_length)
    tokenizer = load_tokenizer(where)
    check_tokenizer(tokenizer, config.vocab_size)

    set_seed(0)
    heads = ("cls.", "bert.pooler.")
    model, missing = load_network(BertForPreTraining, folder, where, heads, dtype=torch.float32)
    random = BertForPreTraining(BertConfig.from_dict(config.to_dict()))
    networks: Any = [network.float().to(device).eval() for network in (model, random)]
    return Subject(where, *networks, tokenizer, missing)


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
        (folder / "probe.json").write_text("{}\n")  # from now on the folder is known as a probe's

        # All data are read before anything is computed, so that a bad line is found in the first seconds
        tokenizer, length = subject.tokenizer, probe_args.max_seq_length
        self.text: HeldOutText | None = None
        if {"mlm", "nsp"} & set(self.parts):
            assert probe_args.validation_file is not None
            self.text = read_held_out(probe_args.validation_file, tokenizer, length, probe_args.max_eval_samples)
        self.pairs = (
            read_minimal_pairs(probe_args.blimp or [], probe_args.max_pairs) if "grammar" in self.parts else []
        )
        if {"features", "few_labels"} & set(self.parts):
            columns = probe_args.text_column, probe_args.label_column
            prepare_folds(probe_args.train_file or [], *columns, folder / "folds")

    def run(self) -> dict:
        """Runs the parts and writes `probe.json`, `probe.txt` and `probe.png`; returns the results by part."""
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
        networks = {"checkpoint": self.subject.model.bert, "random": self.subject.random.bert}
        return frozen_features(networks, self.subject.tokenizer, self.folder / "folds", self.args.max_seq_length)

    def _few_labels(self) -> dict:
        length = self.args.max_seq_length
        return few_labels(self.subject.name, self.folder, length, self.main)


def finish(probe: Probe, results: dict) -> None:
    """Writes the table and the picture, and prints the table."""
    probe.report("\n" + write_report(results, probe.folder))
    probe.report(f"report: {probe.folder}")
