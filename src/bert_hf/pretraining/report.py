"""Reports on a pre-training run: banner, corpus report, held-out metrics before and after, summary, model card."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback

from bert_hf.config.arguments import CorpusArguments, ExampleArguments
from bert_hf.config.package_files import in_clone
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.console import logger
from bert_hf.data.corpus.report import corpus_findings, short_report
from bert_hf.data.corpus.store import Corpus
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.models.modeling_bert import BertForPreTraining
from bert_hf.pretraining.examples import pretraining_baselines
from bert_hf.pretraining.trainer import PreTrainer
from bert_hf.training.command import command_line, next_command
from bert_hf.training.distributed import rank0_value
from bert_hf.training.log_lines import format_metrics, trained_line
from bert_hf.training.optimization.optimizers import global_batch_size
from bert_hf.training.publishing.card import Card, held_out_description, hub_id
from bert_hf.training.run import Run, describe_machine, evaluation_run

_MANY_PASSES = 1.5  # of an epoch over the text: more get a warning


@dataclass
class PreTrainingReport(TrainerCallback):
    """Print and save the metrics of a run and of its baselines.

    As a callback it prints the metrics of the untrained model, since DeepSpeed evaluates only in `train`.
    """

    trainer: PreTrainer
    run: Run
    corpus_args: CorpusArguments
    example_args: ExampleArguments
    corpus: Corpus  # to train on
    tokenizer_is_named: bool = False  # it is neither a checkpoint's nor trained on the text
    baselines: dict = field(default_factory=dict)  # measured by `start`

    def start(self) -> None:
        """Print banner and corpus report, measure `baselines`, become the trainer's callback. Called by all ranks."""
        logger.info(self._banner())
        trainer: Any = self.trainer
        measured = {}
        if trainer.args.process_index == 0:
            if self.run.checkpoint is None:
                self._print_corpus_report()
            measured = pretraining_baselines(trainer.eval_dataset, trainer.data_collator, self.corpus)
        self.baselines = rank0_value(measured)
        trainer.add_callback(self)

    def _print_corpus_report(self) -> None:
        tokenizer: Any = self.trainer.processing_class
        nsp = bool(self.example_args.nsp)
        findings = corpus_findings(self.corpus, tokenizer, nsp=nsp, may_train_vocabulary=self.tokenizer_is_named)
        print(*short_report(findings), *self._repetition_warning(), sep="\n", flush=True)

    def on_evaluate(self, args, state, control, metrics=None, **kwargs) -> None:
        """Print the metrics of an evaluation before the first step; later ones are not printed here."""
        if state.global_step == 0 and state.is_world_process_zero:
            report_heldout("before", metrics or {}, self.baselines)

    def _banner(self) -> str:
        """Return four lines on the run: the sizes of model, text and batch, and the machine."""
        args = self.trainer.args
        model: Any = self.trainer.network
        mean_length = sum(share * length for length, share in self.example_args.lengths())
        batch = global_batch_size(args)
        factors = f"{args.per_device_train_batch_size} × {args.gradient_accumulation_steps} × {args.world_size}"
        tokens = round(args.max_steps * batch * mean_length)
        passes = tokens / max(1, self.corpus.tokens)
        return (
            f"model: {model.config.num_hidden_layers} layers × {model.config.hidden_size}, "
            f"{model.num_parameters():,} parameters, vocabulary {model.config.vocab_size:,}\n"
            f"text: {self.corpus.tokens:,} tokens; the run sees at most {tokens:,} ({passes:.1f} passes)\n"
            f"batch: {factors} = {batch} sequences (device × accumulation × ranks), {args.max_steps:,} steps\n"
            f"machine: {describe_machine(args)}"
        )

    def _repetition_warning(self) -> list[str]:
        """Return a line (or []) if an epoch of pairs is many passes over the text: few documents have 2 sentences."""
        examples: Any = self.trainer.train_dataset
        window, plan = examples.plan(0, 0, 0)  # of the first window, which is open anyway
        offsets = window.token_offsets
        tokens = offsets[plan.a_end] - offsets[plan.a_start] + offsets[plan.b_end] - offsets[plan.b_start]  # per pair
        passes = tokens.sum() / max(1, window.token_counts.sum())
        if not self.example_args.nsp or passes < _MANY_PASSES:
            return []
        return [
            f"! an epoch is {passes:.1f} passes over the text: documents of several sentences are repeated, so that "
            "half of the pairs are of consecutive ones; join documents, or pass --nsp false"
        ]

    def save_and_print(self, trained: dict, after: dict) -> None:
        """Save model, results and card, push if asked; print held-out metrics, summary, limits and next command."""
        trainer: Any = self.trainer
        args, tokenizer = trainer.args, trainer.processing_class
        card = pretraining_card(args, self.corpus_args, self.example_args, trainer.network, tokenizer, self.corpus)
        sentences = masked_sentences(trainer.eval_dataset, tokenizer)
        card.example = sentences[0]
        self.run.write_examples([[text] for text in sentences])
        self.run.finish(trainer, trained, card=card, metrics={"eval": after}, baselines=self.baselines)

        if args.process_index == 0:
            report_heldout("after", after, self.baselines)
            print(trained_line(trainer.state.global_step, trained))
            print(*card.limits, f"checkpoint: {self.run.folder}", sep="\n")
            # After `make pretrain`: `make demo` also installs what the demo needs
            by_make = in_clone() and self.run.folder == Path("runs/pretrain-default")
            print("next:", "make demo" if by_make else next_command("demo", self.run.folder), flush=True)


def evaluate_only(
    model: BertForPreTraining,
    args: PreTrainingArguments,
    collator: DataCollatorForPreTraining,
    evaluation: PreTrainingExamples,
) -> None:
    """Evaluate a checkpoint on the held-out text without training; save and print its metrics."""
    run = evaluation_run(args)
    trainer = PreTrainer(model, args, collator, eval_dataset=evaluation, processing_class=collator.tokenizer)

    metrics = trainer.evaluate()
    with run.writing(public=True):
        trainer.save_metrics("eval", metrics, combined=False)
    logger.info(f"held out: {format_metrics(metrics)}")


def masked_sentences(examples: PreTrainingExamples, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return sentences with one [MASK], to try the model on: one from each of the first four held-out documents.

    The sentence is the first one with 20 or more tokens, else the longest, cut to 32; its longest token is masked.
    """
    window, _ = examples.plan(0, 0)
    sentences = []
    for start, end in zip(window.document_starts[:4], window.document_ends[:4], strict=True):
        lengths = np.diff(window.token_offsets[start : end + 1])
        sentence = start + np.minimum(lengths, 20).argmax()

        ids = window.ids(sentence, sentence + 1)[:32].tolist()
        pieces = tokenizer.convert_ids_to_tokens(ids)
        ids[pieces.index(max(pieces, key=len))] = tokenizer.mask_token_id
        sentences.append(str(tokenizer.decode(ids)))
    return sentences


def report_heldout(when: str, metrics: dict, baselines: dict) -> None:
    """Print the held-out metrics "before" or "after" beside the baselines; "after", warn if nothing was learned."""
    loss, unigram = metrics["eval_mlm_loss"], baselines["unigram_mlm_loss"]
    accuracy = f"MLM accuracy {metrics['eval_mlm_accuracy']:.3f}"
    pairs = _pair_accuracy_text(metrics, baselines)
    logger.info(f"held out, {when}: MLM loss {loss:.3f} (unigram {unigram:.3f}), {accuracy}{pairs}")

    if when == "after" and not loss < unigram:  # NaN as well
        logger.info(
            f"! the held-out MLM loss {loss:.3f} is not below {unigram:.3f}, the loss of token frequencies alone: "
            "train longer, or check --learning_rate and the text"
        )


def _pair_accuracy_text(metrics: dict, baselines: dict) -> str:
    """Return the end of a line: the pairs' accuracy, how far it is from the majority class's; empty without pairs."""
    prefix = next((key.removesuffix("_pairs") for key in baselines if key.endswith("_pairs")), None)  # "nsp"
    if prefix is None:
        return ""
    accuracy = metrics[f"eval_{prefix}_accuracy"]
    majority, pairs = baselines[f"majority_{prefix}_accuracy"], baselines[f"{prefix}_pairs"]

    if standard_error := np.sqrt(majority * (1 - majority) / pairs):
        distance = f", {(accuracy - majority) / standard_error:+.1f} standard errors on {pairs:,} pairs"
    else:
        distance = f": too few pairs to judge by, all {pairs:,} are of one class"
    return f", {prefix.upper()} accuracy {accuracy:.3f} (majority {majority:.3f}{distance})"


def pretraining_card(
    args: PreTrainingArguments,
    corpus_args: CorpusArguments,
    example_args: ExampleArguments,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
) -> Card:
    """Return the model card of a pre-training; `Run.finish` adds the metrics."""
    is_default = not (corpus_args.train_file or corpus_args.dataset_name)
    default_source = "English documentation of installed Python packages" if is_default else None
    split_off = "documents held out of the same text"
    return Card(
        pipeline_tag="fill-mask",
        command=command_line(),
        machine=describe_machine(args),
        dataset=hub_id(corpus_args.dataset_name),
        source=corpus_args.dataset_source or default_source,
        dataset_license=corpus_args.dataset_license,
        model_license=corpus_args.model_license,
        language=corpus_args.language or corpus.manifest.get("text_language"),
        base_model=hub_id(model.name_or_path),  # "" where the run began with new weights
        corpus={
            "documents": f"{len(corpus):,}",
            "tokens": f"{corpus.tokens:,}",
            "fingerprint": corpus.manifest["fingerprint"][:16],
            "unknown tokens": f"{corpus.manifest['unknown_share']:.4%}",
        },
        held_out=held_out_description(corpus_args.validation_file, "--validation_file", split_off),
        limits=untrained_positions_warning(example_args, model.config, tokenizer),
    )


def untrained_positions_warning(
    example_args: ExampleArguments, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> list[str]:
    """Return a line (or []) if model and tokenizer accept positions that this run does not train."""
    longest = example_args.longest_seq_length
    allowed = min(config.max_position_embeddings, tokenizer.model_max_length)
    if longest >= allowed:
        return []
    return [
        f"Positions {longest + 1} to {allowed} are untrained by this run: truncate to {longest} "
        f"(max_length={longest}), or train further with --max_seq_length {allowed}."
    ]
