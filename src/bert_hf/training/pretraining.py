"""A pre-training run: its network and steps, what makes it this one, its baselines and its card."""

import hashlib
import os
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import (
    BertConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from bert_hf.config.arguments import MUON, ExampleArguments, ModelArguments
from bert_hf.config.learning_checks import PlannedLearning
from bert_hf.config.precision import precision_name
from bert_hf.data.collator import DataCollatorForPreTraining
from bert_hf.data.corpus_report import Planned, examine, memory
from bert_hf.data.corpus_store import Corpus
from bert_hf.data.dataset import PreTrainingExamples
from bert_hf.data.samplers import Phase
from bert_hf.data.tokenization import check_tokenizer, fingerprint_text
from bert_hf.data.trigrams import TrigramModel
from bert_hf.errors import InputError
from bert_hf.models.flops import read_config
from bert_hf.models.functional import IGNORED
from bert_hf.models.loading import find_checkpoint, load_network, read_config_file
from bert_hf.models.modeling_bert import BertForPreTraining
from bert_hf.training import hub
from bert_hf.training.optimization import optimizer_name
from bert_hf.training.run_fingerprint import settings

PAPER_MLM_PROBABILITY = 0.15  # of the held-out examples, whatever is trained with: runs remain comparable
_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


_TRIGRAM_LEAST = 500_000  # tokens: of less text, two neighbours tell little
_TRIGRAM_MOST = 32_000_000  # tokens

# Options that earlier versions did not have and so did not record; None means what those versions did.
_NEWER = ("seq_length_warmup",)


def pretraining_identity(
    args,
    config: BertConfig,
    tokenizer: PreTrainedTokenizerBase,
    text: tuple[Corpus, Corpus],
    examples: ExampleArguments,
) -> dict:
    """What makes a pre-training run this one; logging, saving, workers, ranks and hub may change.

    Args:
        text: training and held-out documents.
    """
    tokenizer_hash = hashlib.sha256(fingerprint_text(tokenizer).encode()).hexdigest()[:16]
    data_hash = "+".join(part.fingerprint[:16] for part in text)
    shape = {key: value for key, value in config.to_dict().items() if isinstance(value, int | float | str | bool)}
    shape = {key: shape[key] for key in sorted(shape) if key not in ("transformers_version", "dtype")}
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size

    # In the order of the lists of earlier records (see `identity`): a new entry comes last.
    optimizer = ("learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "max_grad_norm")
    optimizer += ("adam_bias_correction", "optim", "bf16", "fp16")
    optimizer += ("optim_args", "nsp_loss_weight")
    if args.optim == MUON:
        optimizer += ("muon_learning_rate",)
    schedule = ("max_steps", "num_train_epochs", "warmup_steps", "lr_scheduler_type", "decay_from_step_zero")
    schedule += ("lr_scheduler_kwargs",)

    return {
        "model": shape,
        "tokenizer": tokenizer_hash,
        "data": data_hash,
        "seed": args.seed,
        "data_seed": args.data_seed if args.data_seed != args.seed else None,
        "global_batch": batch,
        "optimizer": {**settings(args, optimizer), "optimizer_name": optimizer_name(args)},
        "precision": precision_name(args),
        "schedule": settings(args, schedule),
        "max_hours": args.max_hours,
        "examples": {name: value for name, value in vars(examples).items() if name not in _NEWER or value is not None},
    }


def hidden_size(network: ModelArguments) -> int:
    """Width of the network that is trained, by the configuration that is named."""
    if network.model_name_or_path:
        return read_config(network.model_name_or_path).hidden_size
    return read_config(network.config_name, vocab_size=1).hidden_size  # of the JSON; the vocabulary comes later


def make_model(
    network: ModelArguments, shape: ExampleArguments, tokenizer: PreTrainedTokenizerBase, seed: int
) -> BertForPreTraining:
    """The network: fresh from a model JSON with the tokenizer's vocabulary size, or from a checkpoint.

    Raises:
        InputError: neither is there, the checkpoint is no BERT, tokenizer or sequence length do not fit.
    """
    set_seed(seed)
    changed = {} if network.dropout is None else dict.fromkeys(_DROPOUTS, network.dropout)
    where = network.model_name_or_path or network.config_name
    if where is None:
        raise InputError("no model is named", where="--config_name", remedy="give e.g. configs/model/mini.json")
    try:
        if network.model_name_or_path:
            model, fresh = load_network(
                BertForPreTraining,
                find_checkpoint(where),
                where,
                heads=("cls.", "bert.pooler."),
                dtype=torch.float32,
                attn_implementation=network.attn_implementation,
                initializer=network.initializer,
                **changed,
            )
            if fresh and os.environ.get("RANK", "0") == "0":
                print(f"not in {where}, drawn afresh: {', '.join(fresh)}", flush=True)
        else:
            config = BertConfig.from_json_file(where)
            read_config_file(Path(where))
            config.update({**changed, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id})
            config._attn_implementation = network.attn_implementation
            model = BertForPreTraining(config, network.initializer)
            if network.position_initializer == "sinusoidal":
                model.config.position_initializer = network.position_initializer  # recorded: makes it another run
                model.bert.embeddings.set_sinusoidal_positions(config.initializer_range)
    except (OSError, ValueError, ImportError, RuntimeError, TypeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"no BERT can be made of it: {reason}", where=where, remedy="check the path or id") from None
    check_tokenizer(tokenizer, model.config.vocab_size)
    longest = max(shape.max_seq_length, shape.long_seq_length or 0)
    if longest > model.config.max_position_embeddings:
        raise InputError(
            f"sequence length {longest} is beyond the model's {model.config.max_position_embeddings} positions",
            where=where,
            remedy="lower --max_seq_length / --long_seq_length, or raise max_position_embeddings in the model JSON",
        )
    return model


def pretraining_card(args, text, shape, model, tokenizer, corpus, machine: str, command: str) -> hub.Card:
    """What the card of a pre-trained model says beside its figures."""
    config = model.config
    per_device, accumulated = args.per_device_train_batch_size, args.gradient_accumulation_steps
    batch = per_device * accumulated * args.world_size
    notes = []
    if config.attention_probs_dropout_prob != 0.1 or config.hidden_dropout_prob != 0.1:
        notes.append(f"Dropout {config.hidden_dropout_prob} in place of the paper's 0.1 changes the numbers.")
    if args.bf16 or args.fp16:
        notes.append("Trained under 16-bit autocast, with fp32 weights.")
    return hub.Card(
        title=Path(args.output_dir).name,
        pipeline_tag="fill-mask",
        command=command,
        machine=machine,
        source=text.corpus_source,
        license=text.corpus_license,
        language=text.language,
        corpus={
            "documents": f"{len(corpus):,}",
            "tokens": f"{corpus.tokens:,}",
            "fingerprint": corpus.manifest["fingerprint"][:16],
            "unknown tokens": f"{corpus.manifest['unknown_share']:.4%}",
        },
        training={
            "layers × hidden size, heads": (
                f"{config.num_hidden_layers} × {config.hidden_size}, {config.num_attention_heads}"
            ),
            "vocabulary": f"{len(tokenizer):,} WordPieces",
            "steps": args.max_steps,
            "batch": f"{per_device} × {accumulated} × {args.world_size} = {batch}",
            "sequence length": ", then ".join(f"{length} ({share:.0%})" for length, share in shape.lengths()),
            "optimizer": f"Muon ({args.muon_learning_rate}) and AdamW" if args.optim == MUON else optimizer_name(args),
            "learning rate": args.learning_rate,
            "warm-up": args.warmup_steps,
            "position embeddings": f"{getattr(config, 'position_initializer', 'random')} at the start",
            "masking": f"{shape.mlm_probability:.0%}{', whole words' if shape.whole_word_mask else ''}, 80/10/10",
            "next-sentence prediction": shape.nsp,
            "seed": args.seed,
        },
        held_out=hub.held_out_text(text.validation_file, "--validation_file", "documents held out of the same text"),
        notes=notes,
        limits=[*untrained_positions(shape, config, tokenizer)],
    )


def untrained_positions(shape: ExampleArguments, config: BertConfig, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """What to know of positions that model and tokenizer allow and this run did not train; empty where all are."""
    longest = max(shape.max_seq_length, shape.long_seq_length or 0)
    allowed = min(config.max_position_embeddings, tokenizer.model_max_length)
    if longest >= allowed:
        return []
    return [
        f"This run trained on sequences of at most {longest} tokens; the model and its tokenizer accept {allowed}. "
        f"Positions {longest + 1} to {allowed} are untrained by it: truncate to {longest} (max_length={longest}), "
        f"or train further with --max_seq_length {allowed}."
    ]


def held_out_examples(
    held_out: Corpus, shape: ExampleArguments, phases: tuple[Phase, ...], drawn: dict
) -> tuple[PreTrainingExamples, dict[str, PreTrainingExamples]]:
    """The fixed examples that are evaluated: of `max_seq_length`, and of each longer length that the run has.

    The plain figures (`eval_mlm_loss`, …) are those of `max_seq_length` from the first step to the last, so that they
    can be compared along a run, between runs, and with the baselines. The longest length is called `long`, as in
    `eval_long_mlm_loss`, another one between by its tokens. Of longer examples there are fewer, so that an evaluation
    has about as many tokens as that of the usual length.

    Args:
        phases: of the run; a length that gets no step is not evaluated.
        drawn: how pairs are drawn (`nsp`, `short_seq_probability`).
    """
    usual = shape.max_seq_length
    fixed = {"seed": 0, "fixed": True, "mlm_probability": PAPER_MLM_PROBABILITY, **drawn}
    evaluation = PreTrainingExamples(held_out, (Phase(usual, None),), limit=shape.max_eval_samples, **fixed)

    longer = {}
    for length in sorted({phase.max_seq_length for phase in phases if phase.max_seq_length > usual}):
        limit = max(1, shape.max_eval_samples * usual // length)
        longer[str(length)] = PreTrainingExamples(held_out, (Phase(length, None),), limit=limit, **fixed)
    if longer:
        longest = list(longer)[-1]
        longer["long"] = longer.pop(longest)
    return evaluation, longer


def baselines(
    examples: PreTrainingExamples,
    collator: DataCollatorForPreTraining,
    corpus: Corpus,
    planned_tokens: int,
) -> dict:
    """What models without a network reach on the held-out examples.

    For masked tokens unigram frequencies (one is added to each count) and, of enough text, a trigram model that sees
    their two left neighbours as they were before masking; for next sentences the majority class.

    Args:
        corpus: the training text.
        planned_tokens: how much of it the run sees; the trigram model is made of as much.
    """
    counts = corpus.unigram_counts(len(collator.tokenizer))
    tokens = _first_tokens(corpus, planned_tokens)
    probabilities = (counts + 1) / (counts + 1).sum()
    labels, contexts, pairs = [], [], []
    for index in range(len(examples)):
        feature = examples[index]
        example = collator.example(feature)
        masked = np.flatnonzero(example["labels"] != IGNORED)
        original = np.where(example["labels"] != IGNORED, example["labels"], example["input_ids"])
        labels.append(original[masked])
        contexts.append(original[np.maximum(masked[:, None] - (2, 1), 0)])
        pairs.append(feature["next_sentence_label"])

    words = np.concatenate(labels)
    result = {"unigram_mlm_loss": float(-np.log(probabilities[words]).mean())}
    if len(tokens) >= _TRIGRAM_LEAST:
        losses = TrigramModel(tokens, len(counts)).losses(np.concatenate(contexts), words)
        result["trigram_mlm_loss"] = float(losses.mean())
    if examples.nsp:
        share = float(np.mean(pairs))
        result["majority_nsp_accuracy"], result["nsp_pairs"] = max(share, 1 - share), len(pairs)
    return result


def _first_tokens(corpus: Corpus, planned: int) -> np.ndarray:
    """(T,) tokens of the first documents of a corpus: as many as a run sees, at most 32 million.

    The trigram model then has the text that the network has (its counts of 32 million tokens take a gigabyte).
    """
    window = corpus.window(corpus.head())
    wanted, parts = min(planned, _TRIGRAM_MOST), []
    for start, end in zip(window.document_starts.tolist(), window.document_ends.tolist(), strict=True):
        if wanted <= 0:
            break
        parts.append(window.ids(start, end))
        wanted -= len(parts[-1])
    return np.concatenate(parts)


class HeldOutBefore(TrainerCallback):
    """Prints the held-out figures of the untrained model. (Inside `train`, since DeepSpeed evaluates only there.)"""

    def __init__(self, reference: dict):
        self.reference = reference

    def on_evaluate(self, args, state, control, metrics=None, **kwargs) -> None:
        if state.global_step == 0 and state.is_world_process_zero:
            report_heldout("before", metrics, self.reference)


def report_corpus(
    corpus: Corpus,
    phases: tuple[Phase, ...],
    collator: DataCollatorForPreTraining,
    planned: Planned,
    *,
    seed: int,
    **drawn,
) -> None:
    """Prints the corpus report of a run that begins.

    Args:
        phases: the one whose examples are looked at.
        drawn: how pairs are drawn (`nsp`, `short_seq_probability`).
    """
    examples = PreTrainingExamples(corpus, phases, fixed=True, seed=seed, **drawn)
    print(*examine(corpus, examples, collator, planned=planned), sep="\n", flush=True)


def report_heldout(
    when: str, figures: dict, reference: dict, longer: dict[str, PreTrainingExamples] | None = None
) -> None:
    """Held-out figures beside what knows nothing, those of longer examples, and whether training was in vain."""
    loss, unigram = figures["eval_mlm_loss"], reference["unigram_mlm_loss"]
    known = f"unigram {unigram:.3f}"
    if "trigram_mlm_loss" in reference:
        known += f", trigram {reference['trigram_mlm_loss']:.3f}"
    text = f"held out, {when}: MLM loss {loss:.3f} ({known})"
    if "eval_nsp_accuracy" in figures and "nsp_pairs" in reference:
        majority, pairs = reference["majority_nsp_accuracy"], reference["nsp_pairs"]
        text += f", MLM accuracy {figures['eval_mlm_accuracy']:.3f}, NSP accuracy {figures['eval_nsp_accuracy']:.3f} "
        if error := np.sqrt(majority * (1 - majority) / pairs):
            distance = (figures["eval_nsp_accuracy"] - majority) / error
            text += f"(majority {majority:.3f}, {distance:+.1f} standard errors on {pairs:,} pairs)"
        else:
            text += f"(majority {majority:.3f}: too few pairs to judge by, all {pairs:,} are of one class)"
    print(text, flush=True)
    _report_longer(longer or {}, figures)

    if when == "after" and not loss < unigram:  # NaN as well
        print(
            f"! the held-out MLM loss {loss:.3f} is not below {unigram:.3f}, which token frequencies alone reach: "
            "train for more steps, or look at --learning_rate and the text",
            flush=True,
        )


def _report_longer(longer: dict[str, PreTrainingExamples], figures: dict) -> None:
    """One line of held-out figures for each length beyond the usual one."""
    for name, examples in longer.items():
        tokens, prefix = examples.phases[0].max_seq_length, f"eval_{name}"
        text = f"held out, {tokens} tokens: MLM loss {figures[f'{prefix}_mlm_loss']:.3f}"
        if f"{prefix}_nsp_accuracy" in figures:
            text += f", NSP accuracy {figures[f'{prefix}_nsp_accuracy']:.3f} on {len(examples):,} pairs"
        print(text, flush=True)


def planned_run(
    args: TrainingArguments, model: PreTrainedModel, shape: ExampleArguments, from_scratch: bool
) -> Planned:
    """What the report has to know of a run."""
    every = args.save_steps if args.save_steps >= 1 else args.save_steps * args.max_steps
    kept = args.save_total_limit or max(1, int(args.max_steps / every))
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    return Planned(
        steps=args.max_steps,
        batch=batch,
        parameters=model.num_parameters(),
        checkpoints=kept if args.save_strategy != "no" else 0,
        folder=args.output_dir,
        device_bytes=memory(args.device),
        learning=PlannedLearning(
            steps=args.max_steps,
            batch=batch,
            warmup_steps=args.get_warmup_steps(args.max_steps),
            schedule=str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)),
            optimizer=optimizer_name(args),
            rate=args.learning_rate,
            predictions=shape.mlm_probability * batch * shape.max_seq_length,
            vocabulary=model.config.vocab_size,
            spread=model.config.initializer_range,
            from_scratch=from_scratch,
        ),
    )
