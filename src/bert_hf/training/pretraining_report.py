"""Prints the report of a pre-training run: banner, corpus report, held-out metrics before and after, summary."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel, TrainerCallback

from bert_hf.config.arguments import CorpusArguments, ExampleArguments, PreTrainingArguments
from bert_hf.config.hardware import device_memory
from bert_hf.config.learning_checks import LearningSettings
from bert_hf.console import logger
from bert_hf.data.corpus.planned_run import PlannedRun
from bert_hf.data.corpus.report import corpus_findings
from bert_hf.data.corpus.store import Corpus
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.training import run
from bert_hf.training.baselines import pretraining_baselines
from bert_hf.training.command_line import command_line
from bert_hf.training.loss_curve import CurveReader
from bert_hf.training.optimization.optimizers import format_batch_size, global_batch_size, option_text
from bert_hf.training.output_folder import folder_of
from bert_hf.training.pretraining import data_seed, pair_options
from bert_hf.training.publishing.card import pretraining_card
from bert_hf.training.trainer import PreTrainer


@dataclass
class PreTrainingReport:
    """Prints and saves the metrics of a run, together with those of its baselines."""

    trainer: PreTrainer
    args: PreTrainingArguments
    corpus_args: CorpusArguments
    example_args: ExampleArguments
    model: PreTrainedModel
    collator: DataCollatorForPreTraining
    corpus: Corpus  # to train on
    evaluation: PreTrainingExamples  # held out
    longer: dict[str, PreTrainingExamples]  # held out, of longer lengths
    baselines: dict = field(default_factory=dict)  # measured by `print_start`

    def print_start(self, *, resumed: bool, from_scratch: bool) -> None:
        """Prints banner and corpus report, and measures the baselines. Called by all ranks."""
        logger.info(self._banner())
        if self.args.process_index == 0 and not resumed:
            self._report_corpus(from_scratch)

        self.baselines = pretraining_baselines(self.evaluation, self.collator, self.corpus, self._planned_tokens())
        self.trainer.add_callback(HeldOutBefore(self.baselines))
        self.trainer.add_callback(CurveReader(self.baselines["unigram_mlm_loss"], self.trainer.global_batch))

    def _planned_tokens(self) -> int:
        """Tokens of all steps, if no example were shorter than the length of its phase."""
        mean_length = sum(share * length for length, share in self.example_args.lengths())
        return round(self.args.max_steps * global_batch_size(self.args) * mean_length)

    def _banner(self) -> str:
        args, config = self.args, self.model.config
        tokens = self._planned_tokens()
        passes = tokens / max(1, self.corpus.tokens)
        return (
            f"model: {config.num_hidden_layers} layers × {config.hidden_size}, "
            f"{self.model.num_parameters():,} parameters, vocabulary {config.vocab_size:,}\n"
            f"text: {self.corpus.tokens:,} tokens; the run sees at most {tokens:,} ({passes:.1f} passes)\n"
            f"batch: {format_batch_size(args)} sequences (device × accumulation × ranks), {args.max_steps:,} steps\n"
            f"machine: {run.describe_machine(args)}"
        )

    def _report_corpus(self, from_scratch: bool) -> None:
        examples = PreTrainingExamples(
            self.corpus,
            self.evaluation.phases,
            fixed=True,
            seed=data_seed(self.args),
            **pair_options(self.example_args),
        )
        findings = corpus_findings(self.corpus, examples, self.collator, planned=self._planned(from_scratch))
        print(*findings, sep="\n", flush=True)

    def _planned(self, from_scratch: bool) -> PlannedRun:
        """The planned run, as the corpus report needs it."""
        args, config = self.args, self.model.config
        batch = global_batch_size(args)

        every = args.save_steps or 1.0
        every = every if every >= 1 else every * args.max_steps
        kept = args.save_total_limit or max(1, int(args.max_steps / every))
        learning = LearningSettings(
            steps=args.max_steps,
            batch=batch,
            warmup_steps=args.get_warmup_steps(args.max_steps),
            schedule=option_text(args.lr_scheduler_type),
            optimizer=option_text(args.optim),
            rate=args.learning_rate,
            predictions=self.example_args.mean_mlm_probability() * batch * self.example_args.max_seq_length,
            vocabulary=config.vocab_size,
            spread=config.initializer_range,
            from_scratch=from_scratch,
        )
        return PlannedRun(
            steps=args.max_steps,
            batch=batch,
            parameters=self.model.num_parameters(),
            checkpoints=kept if args.save_minutes or args.save_strategy != "no" else 0,
            folder=str(args.output_dir),
            device_bytes=device_memory(args.device),
            learning=learning,
        )

    def save_and_print(self, trained: dict, after: dict, *, push_to: str | None, default_config: Path) -> None:
        """Saves model, results and card, pushes if asked, and prints held-out metrics, summary and limits.

        Args:
            trained: metrics of the training. after: of the held-out examples.
            default_config: the YAML file of a command without options (see `command_line`).
        """
        args = self.args
        card = pretraining_card(
            args, self.corpus_args, self.example_args, self.model, self.collator.tokenizer, self.corpus,
            run.describe_machine(args), command_line(default_config),
        )  # fmt: skip
        run.finish(
            self.trainer,
            trained,
            identity=self.trainer.facts["identity"],
            card=card,
            push_to=push_to,
            metrics={"eval": after},
            baselines=self.baselines,
        )

        if args.process_index == 0:
            report_heldout("after", after, self.baselines, self.longer)
            print(_summary(self.trainer.state.global_step, trained))
            print(f"checkpoint: {folder_of(args)}", *card.limits, sep="\n", flush=True)


class HeldOutBefore(TrainerCallback):
    """Prints the held-out metrics of the untrained model. (A callback, since DeepSpeed evaluates only in `train`.)"""

    def __init__(self, baselines: dict):
        self.baselines = baselines

    def on_evaluate(self, args, state, control, metrics=None, **kwargs) -> None:
        if state.global_step == 0 and state.is_world_process_zero:
            report_heldout("before", metrics or {}, self.baselines)


def report_heldout(
    when: str, metrics: dict, baselines: dict, longer: dict[str, PreTrainingExamples] | None = None
) -> None:
    """Prints held-out metrics and the baselines' next to them, and a warning where the training learned nothing.

    Args:
        when: "before" or "after".
        longer: the examples of longer lengths, by name.
    """
    loss, unigram = metrics["eval_mlm_loss"], baselines["unigram_mlm_loss"]
    known = f"unigram {unigram:.3f}"
    if "trigram_mlm_loss" in baselines:
        known += f", trigram {baselines['trigram_mlm_loss']:.3f}"
    print(f"held out, {when}: MLM loss {loss:.3f} ({known}){_nsp_text(metrics, baselines)}", flush=True)

    for name, examples in (longer or {}).items():
        _report_longer(f"eval_{name}", examples, metrics)

    if when == "after" and not loss < unigram:  # NaN as well
        print(
            f"! the held-out MLM loss {loss:.3f} is not below {unigram:.3f}, which token frequencies alone reach: "
            "train for more steps, or look at --learning_rate and the text",
            flush=True,
        )


def _nsp_text(metrics: dict, baselines: dict) -> str:
    """MLM and NSP accuracy, the latter with its distance from the majority class; empty without pairs."""
    if "eval_nsp_accuracy" not in metrics or "nsp_pairs" not in baselines:
        return ""
    accuracy = metrics["eval_nsp_accuracy"]
    majority, pairs = baselines["majority_nsp_accuracy"], baselines["nsp_pairs"]
    if error := np.sqrt(majority * (1 - majority) / pairs):
        distance = f", {(accuracy - majority) / error:+.1f} standard errors on {pairs:,} pairs"
    else:
        distance = f": too few pairs to judge by, all {pairs:,} are of one class"
    return (
        f", MLM accuracy {metrics['eval_mlm_accuracy']:.3f}"
        f", NSP accuracy {accuracy:.3f} (majority {majority:.3f}{distance})"
    )


def _report_longer(prefix: str, examples: PreTrainingExamples, metrics: dict) -> None:
    """Prints one line of held-out metrics of a longer length."""
    tokens = examples.phases[0].max_seq_length
    text = f"held out, {tokens} tokens: MLM loss {metrics[f'{prefix}_mlm_loss']:.3f}"
    if f"{prefix}_nsp_accuracy" in metrics:
        text += f", NSP accuracy {metrics[f'{prefix}_nsp_accuracy']:.3f} on {len(examples):,} pairs"
    print(text, flush=True)


def _summary(steps: int, trained: dict) -> str:
    """`trained: 1,500 steps in 3.4 min, 41,000 tokens/s, MFU 31 %`; a resumed run counts its last part's time."""
    text = f"trained: {steps:,} steps in {trained['train_runtime'] / 60:.1f} min"
    if "train_tokens_per_second" in trained:
        text += f", {trained['train_tokens_per_second']:,.0f} tokens/s"
    if "train_mfu" in trained:
        text += f", MFU {trained['train_mfu']:.0%}"
    return text
