"""Measures what the pre-training heads of a checkpoint have learned: masked words, next sentences and grammar."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import BertConfig, BertForPreTraining, PreTrainedTokenizerBase, set_seed

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
    """The probed checkpoint, in fp32 on the device."""

    name: str
    model: BertForPreTraining
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
    return Subject(where, model, tokenizer, missing)


def run_probe(probe_args: ProbeArguments, subject: Subject, folder: Path) -> None:
    """Measure what there are data and heads for, and write `probe.json` and `probe.txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REPORT_FILES[0]).write_text("{}\n")  # from now on the folder is known as a probe's

    results = _measure(probe_args, subject)
    (folder / "probe.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    notes = "".join(f"! {note}\n" for note in results["notes"])
    text = "\n".join(format_table(_table(results))) + "\n" + notes
    (folder / "probe.txt").write_text(text, encoding="utf-8")
    print(f"\n{text}\nreport: {folder}", flush=True)


def _measure(probe_args: ProbeArguments, subject: Subject) -> dict[str, Any]:
    """Return the metrics of each part, and notes on the parts that cannot be measured."""
    model, tokenizer = subject.model, subject.tokenizer
    notes: list[str] = []
    results: dict[str, Any] = {"checkpoint": subject.name, "notes": notes}

    # All data are read before anything is computed, so that a bad line is found in the first seconds
    text = pairs = None
    if files := probe_args.validation_file:
        text = read_held_out(files, tokenizer, probe_args.max_seq_length, probe_args.max_eval_samples)
    if files := probe_args.blimp:
        pairs = read_minimal_pairs(files, probe_args.max_pairs)

    predicts_words = not subject.lacks("cls.predictions")
    if not predicts_words:
        notes.append("mlm, grammar: the checkpoint has no masked-language-model head")
    if text is not None:
        outputs = outputs_of(model, text.examples, tokenizer)
        if predicts_words:
            results["mlm"] = masked_lm(text, outputs)
        if subject.lacks("cls.seq_relationship", "bert.pooler"):
            notes.append("nsp: the checkpoint has no next-sentence head")
        elif not text.pairs or len(text.examples) < _MIN_PAIRS:
            notes.append(f"nsp: the held-out text gives fewer than {_MIN_PAIRS} sentence pairs")
        else:
            results["nsp"] = next_sentence(text, outputs)

    if pairs is not None and predicts_words:
        random: Any = BertForPreTraining(BertConfig.from_dict(model.config.to_dict()))
        networks = {"checkpoint": model, "random": random.to(model.device).eval()}
        results["grammar"] = {name: minimal_pairs(pairs, each, tokenizer) for name, each in networks.items()}
    return results


# ---- report


def _table(results: dict) -> list[list[str]]:
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
        rows.append(
            [f"grammar: {trained['pairs']:,} minimal pairs", shown, f"random weights {random['accuracy']:.3f}"]
        )

    return rows
