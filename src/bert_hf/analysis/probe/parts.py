"""Runs the parts of the probe that have data, and collects their metrics."""

import time
from collections.abc import Callable, Iterator
from functools import cached_property, partial

import torch
import transformers
from threadpoolctl import threadpool_limits
from transformers import BertForPreTraining

from bert_hf.analysis.probe.arguments import PLL_WORD, ProbeArguments
from bert_hf.analysis.probe.data import LabelledTask, MaskedExample, ProbeData, masked_examples_of
from bert_hf.analysis.probe.features import pooled_states, probe_features
from bert_hf.analysis.probe.geometry import probe_geometry, vocabulary_use
from bert_hf.analysis.probe.grammar import probe_grammar, pseudo_log_likelihoods
from bert_hf.analysis.probe.language import (
    MIN_NSP_PAIRS,
    LanguageOutputs,
    language_outputs,
    probe_masked_lm,
    probe_next_sentence,
)
from bert_hf.analysis.probe.network import Subject
from bert_hf.analysis.probe.tuning import probe_few_labels


class ProbeRun:
    """One probe of one checkpoint.

    Args:
        probe_args: options.
        subject: the checkpoint.
        data: for all parts.
        report: called with the name of each part that begins.
    """

    def __init__(self, probe_args: ProbeArguments, subject: Subject, data: ProbeData, report: Callable = print):
        self.probe_args, self.subject, self.report = probe_args, subject, report
        self.tasks, self.held_out, self.pairs = data
        # Name → what `Subject.load` takes
        self.networks: dict[str, list] = {"checkpoint": [None], "random": list(range(1, probe_args.random_draws + 1))}
        self.checkpoint = subject.load()  # first: it finds out which parameters the checkpoint lacks

    def run(self) -> dict:
        """The metrics of all parts; `notes` names the parts and tasks that could not be measured, and why."""
        found = self._facts()
        for part in self.probe_args.chosen_parts():
            self.report(f"{part} …")
            begin, processor_begin = time.perf_counter(), time.process_time()

            note = self._unmeasurable(part)
            if note is None:
                found[part] = getattr(self, part)()
                found["notes"] += self._without_rows(part, found[part])
            else:
                found["notes"].append(note)

            found["seconds"][part] = round(time.perf_counter() - begin, 1)
            found["processor_seconds"][part] = round(time.process_time() - processor_begin, 1)
        return found

    def _facts(self) -> dict:
        """Checkpoint, machine and data, as the report lists them before the parts."""
        config = self.subject.config
        return {
            "checkpoint": self.subject.name,
            "layers": config.num_hidden_layers,
            "width": config.hidden_size,
            "vocabulary_size": len(self.subject.tokenizer),
            "parameters": self.checkpoint.num_parameters(),
            "device": str(self.subject.device),
            "threads": torch.get_num_threads(),
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
            "options": vars(self.probe_args),
            "lacking": list(self.subject.missing),
            "tasks": {task.name: self._describe(task) for task in self.tasks},
            "seconds": {},
            "processor_seconds": {},
            "notes": [],
        }

    def _unmeasurable(self, part: str) -> str | None:
        """Why a part cannot be measured; None where it can."""
        if part in ("mlm", "grammar") and self.subject.lacks("cls.predictions"):
            return f"{part}: the checkpoint has no masked-language-model head"
        texts = len(self.tasks[0]) if self.tasks else len(self.held_out.examples)
        if part == "geometry" and texts < 2:
            return "geometry: a single text cannot be compared with others"
        if part == "nsp" and (self.subject.lacks("cls.seq_relationship") or self.subject.lacks("bert.pooler")):
            return "nsp: the checkpoint has no next-sentence head"
        if part == "nsp" and not self.held_out.pairs:
            return "nsp: the held-out text has no two documents, or none of two sentences"
        if part == "nsp" and len(self.held_out.examples) < MIN_NSP_PAIRS:
            return f"nsp: the held-out text gives {len(self.held_out.examples)} pairs, fewer than {MIN_NSP_PAIRS}"
        return None

    def _without_rows(self, part: str, metrics: dict) -> list[str]:
        """A note for each task that has too few rows for a part."""
        fewest = {"features": min(self.probe_args.labels or [0]), "few_labels": self.probe_args.tune_labels}
        if part not in fewest:
            return []
        unmeasured = [task.name for task in self.tasks if task.name not in metrics]
        return [f"{part}: {name} has too few rows to draw {fewest[part]} of them" for name in unmeasured]

    def _describe(self, task: LabelledTask) -> dict:
        shares = {name: float((task.labels == number).mean()) for number, name in enumerate(task.label_names)}
        return {"rows": len(task), "label_shares": shares, "pairs": task.pairs is not None}

    def _rows(self, task: LabelledTask) -> list[dict]:
        return task.encoded(self.subject.tokenizer, self.probe_args.max_seq_length)

    def _models(self, name: str) -> Iterator[BertForPreTraining]:
        for draw in self.networks[name]:
            yield self.checkpoint if draw is None else self.subject.load(draw)

    def _outputs(self, examples: list[MaskedExample]) -> LanguageOutputs:
        if examples is self.held_out.examples:  # two parts ask for them
            return self._held_out_outputs
        return language_outputs(self.checkpoint, examples, self.subject)

    @cached_property
    def _held_out_outputs(self) -> LanguageOutputs:
        return language_outputs(self.checkpoint, self.held_out.examples, self.subject)

    # ---- parts, each named as in `arguments.PARTS`

    def vocabulary(self) -> dict:
        """Fertility and use of the vocabulary, task by task."""
        return {task.name: vocabulary_use(task, self.subject) for task in self.tasks}

    def geometry(self) -> dict:
        """[CLS] and token states on the first task's texts (else on the held-out text), and with random weights."""
        if self.tasks:
            rows, source = self._rows(self.tasks[0]), self.tasks[0].name
        else:
            texts = [example._replace(input_ids=example.original()) for example in self.held_out.examples]
            rows, source = [text._asdict() for text in texts], "held-out text"
        found = {name: probe_geometry(next(self._models(name)), rows, self.subject) for name in self.networks}
        return {"text": source, **found}

    def features(self) -> dict:
        """Linear probes of frozen states, task by task."""
        probe_args = self.probe_args
        found = {}
        for task in self.tasks:
            rows = self._rows(task)
            states = {
                name: [pooled_states(model, rows, self.subject) for model in self._models(name)]
                for name in self.networks
            }
            texts = task.seen(self.subject.tokenizer, probe_args.max_seq_length)
            with threadpool_limits(1, "blas"):  # thousands of fits of a few ms, which several threads make slower
                found[task.name] = probe_features(
                    states, task, texts, probe_args.labels or [], probe_args.folds, probe_args.seed
                )
        return _measured(found)

    def few_labels(self) -> dict:
        """Fine-tuning with few labels, task by task."""
        return _measured({task.name: probe_few_labels(task, self.subject, self.probe_args) for task in self.tasks})

    def mlm(self) -> dict:
        """The masked language model on the held-out text, and on each task's texts."""
        texts = {"held-out text": self.held_out} if self.held_out.examples else {}
        texts |= {task.name: masked_examples_of(task, self.subject.tokenizer, self.probe_args) for task in self.tasks}
        return {name: probe_masked_lm(text, self.subject, self._outputs) for name, text in texts.items()}

    def nsp(self) -> dict:
        """Next-sentence prediction on the held-out text."""
        return probe_next_sentence(self.held_out, self.subject, self._outputs)

    def grammar(self) -> dict:
        """Minimal pairs, with the checkpoint and with random weights."""
        options = {"subject": self.subject, "whole_words": self.probe_args.pll == PLL_WORD}

        def metrics(model: BertForPreTraining) -> dict:
            return probe_grammar(self.pairs, partial(pseudo_log_likelihoods, model, **options))

        return {
            "pll": self.probe_args.pll,
            "checkpoint": metrics(self.checkpoint),
            "random": list(map(metrics, self._models("random"))),
        }


def _measured(found: dict) -> dict:
    """The tasks that have rows enough."""
    return {name: metrics for name, metrics in found.items() if metrics is not None}
