"""How fast a whole training loop goes: ours and the stock model in the stock Trainer, side by side in one process.

python benchmarks/pretraining_throughput.py --config_name configs/model/mini.json --batch_size 64
python benchmarks/pretraining_throughput.py --config_name configs/model/base.json --max_seq_length 512 --batch_size 4 \
    --train_file runs/corpus

Every side sees the same batches: next-sentence pairs of `--train_file` (without it the embedded default corpus),
padded to the longest row. The stock side is `transformers.BertForPreTraining` in `transformers.Trainer` with the same
precision, threads, clipping and optimizer (fused AdamW). Ours runs twice: with the dropout of the model's JSON (the
paper's 0.1), and as the fast recipe, `--dropout 0`. The sides take turns (A B C C B A …); each turn is a new `train()`
of a step that does not count and `--steps` that do, so a figure holds loader, forward, backward, clipping, optimizer
and the Trainer's own work.

Non-padding tokens a second. MFU is the share of what a plain matrix product of the run's precision reaches here (the
best of one a turn: noise only lowers it), with the operations that masked-only training cannot do without, for every
side. Medians of `--pairs` turns; a ratio is the median of the turns' own ratios to the first side. `--profile true`
adds where the time of a step goes, `--ablate all` what each of our ways is worth. Prints a table, then a JSON line.
"""

import ctypes
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import transformers
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers import BertConfig, Trainer, TrainerCallback, TrainingArguments

from bert_hf import BertForPreTraining, DataCollatorForPreTraining, PreTrainer, PreTrainingExamples
from bert_hf.config.arguments import CorpusArguments, TokenizerArguments
from bert_hf.config.options import option
from bert_hf.config.parser import parse
from bert_hf.config.precision import choose_on_cpu, choose_on_gpu, cpu_bf16_feature
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.data.corpus.requested_corpus import load_or_prepare_corpus, load_or_train_tokenizer
from bert_hf.data.examples.samplers import Phase, RunSampler
from bert_hf.errors import one_line_errors
from bert_hf.models import functional, modeling_bert, unpadded_attention
from bert_hf.models.flops import matmul_rate, training_flops

STOCK, STILL, PAPER, FAST = "stock", "stock, dropout 0", "ours, paper's dropout", "ours, fast recipe"


@dataclass
class ThroughputArguments:
    config_name: str = option("configs/model/mini.json", "Model JSON.")
    max_seq_length: int = option(128, "Tokens in a row.")
    batch_size: int = option(64, "UnpaddedBatch in a batch.")
    device: str | None = option(None, "cpu or cuda; by default what is there.", ("cpu", "cuda"))
    bf16: bool | None = option(None, "bf16 autocast on all sides; by default as a run of this model takes it.")
    torch_compile: bool | None = option(None, "Compile ours; by default as a run of this model does.")
    compile_stock: bool = option(False, "Compile the stock side.")
    sides: str = option("stock,paper,fast", "Which sides run; still: stock without dropout, too.")
    ablate: str | None = option(None, "Instead of the sides, ours without these ways (comma-separated; all: each).")
    steps: int = option(2, "Steps of a turn that count.")
    warmup: int = option(1, "Steps of a turn that do not.")
    pairs: int = option(5, "Turns of every side.")
    profile: bool = option(False, "At the end, one more turn of every side that tells where its time goes.")


class StockBatches:
    """The collator of the stock side: what its model takes."""

    def __init__(self, collator: DataCollatorForPreTraining):
        self.collator = collator

    def __call__(self, features: list[dict]) -> dict[str, torch.Tensor]:
        batch = self.collator(features)
        names = ("input_ids", "token_type_ids", "attention_mask", "labels", "next_sentence_label")
        return {name: batch[name] for name in names}


def count_batches(trainer: Trainer) -> list[dict]:
    """A list to which the Trainer will add what each batch holds: workers that collate have lists of their own."""
    seen, take = [], trainer.get_batch_samples

    def get_batch_samples(*args):
        batches, number = take(*args)
        for batch in batches:
            lengths = batch["attention_mask"].sum(1)
            held = {"tokens": lengths.sum(), "squares": (lengths**2).sum(), "masked": (batch["labels"] >= 0).sum()}
            seen.append({**held, "places": batch["input_ids"].numel()})
        return batches, number

    trainer.get_batch_samples = get_batch_samples
    return seen


class Clock(TrainerCallback):
    """When each step ended, all its work done; CPU time with one thread, so that other programs are not counted."""

    def __init__(self):
        self.ends = []
        alone = torch.get_num_threads() == 1 and not torch.cuda.is_available()
        self.now = time.process_time if alone else time.perf_counter

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if args.device.type == "cuda":
            torch.cuda.synchronize()
        self.ends.append(self.now())


def arguments(
    folder: str, options: ThroughputArguments, compiled: bool | None, kind: type[TrainingArguments]
) -> TrainingArguments:
    """The same for every side; ours sets threads and memory, and therefore runs first."""
    return kind(
        output_dir=folder,
        max_steps=options.warmup + options.steps,
        per_device_train_batch_size=options.batch_size,
        use_cpu=options.device == "cpu",
        bf16=options.bf16,
        torch_compile=compiled,
        max_grad_norm=1.0,
        warmup_steps=10,
        logging_steps=10_000,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def stock_memory() -> None:
    """The C library's memory as a stock run has it after some steps; what `keep_freed_memory` changed."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for name, value in ((-4, 65536), (-3, 32 << 20), (-1, 64 << 20)):  # M_MMAP_MAX, _MMAP_THRESHOLD, _TRIM_…
            library.mallopt(name, value)
        library.malloc_trim(0)


def _separate(hidden, *layers):
    return tuple(layer(hidden) for layer in layers)


def _plain_head(hidden, decoder, labels):
    logits = decoder(hidden)
    return functional.token_losses(logits, labels), logits.argmax(-1) == labels


def _softmax_of_all_logits(logits, targets):
    """As until November 2026: an argmax in addition, and fp32 probabilities of the whole batch at once."""
    if logits.dtype != torch.float32:
        logits.argmax(1)
    scores = logits.float()
    probabilities = torch.softmax(scores, -1, out=scores)
    peaks = probabilities.amax(1)
    logits.copy_(probabilities.scatter_add_(1, targets, scores.new_full(targets.shape, -1.0)).to(logits.dtype))
    return peaks


def _plain_dropout(self, input, residual=None):
    dropped = F.dropout(input, self.p, self.training)
    return dropped if residual is None else dropped + residual


class _DropoutAddInOneProduct(functional._DropoutAdd):
    """Until November 2026 `addcmul` added the residual in bf16, too: it first converts both factors to fp32."""

    @staticmethod
    def forward(ctx, x, residual, p):
        mask = functional.keep_mask(x.shape, p, x.dtype)
        ctx.save_for_backward(mask)
        ctx.p, ctx.has_residual = p, residual is not None
        return torch.addcmul(
            x.new_zeros(()) if residual is None else residual, x, mask, value=functional.keep_scale(p)
        )


class _AttentionOfEachGroup(Function):
    """Until November 2026 each group of sequences of equal length was a function and some batches of its own."""

    @classmethod
    def of_all(cls, query, key, value, shapes, p, scaling):
        contexts = []
        of_keys = (unpadded_attention._split(x, shapes[1]) for x in (key, value))
        for qkv in zip(unpadded_attention._split(query, shapes[0]), *of_keys, strict=True):
            count, _, heads, _ = qkv[0].shape
            context = cls.apply(*(x.transpose(1, 2).flatten(0, 1) for x in qkv), p, scaling)
            contexts.append(context.unflatten(0, (count, heads)).transpose(1, 2).flatten(0, 1))
        return torch.cat(contexts)

    @staticmethod
    def chunks(query, key):
        size = max(1, unpadded_attention._CHUNK_SCORES // (query.shape[1] * key.shape[1]))
        return [slice(begin, begin + size) for begin in range(0, len(query), size)]

    @staticmethod
    def forward(ctx, query, key, value, p, scaling):
        context, saved = torch.empty_like(query), []
        for chunk in _AttentionOfEachGroup.chunks(query, key):
            weights = torch.bmm(query[chunk], key[chunk].transpose(1, 2)).mul_(scaling)
            torch.softmax(weights, -1, out=weights)
            mask = functional.keep_mask(weights.shape, p, torch.int8)
            torch.bmm(weights * mask, value[chunk], out=context[chunk])
            saved += [weights, mask]
        ctx.p, ctx.scaling = p, scaling
        ctx.save_for_backward(query, key, value, *saved)
        return context.mul_(functional.keep_scale(p))

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        query, key, value, *saved = ctx.saved_tensors
        for_query, for_key, for_value = (torch.empty_like(x) for x in (query, key, value))
        gradient = gradient * functional.keep_scale(ctx.p)
        for number, chunk in enumerate(_AttentionOfEachGroup.chunks(query, key)):
            weights, mask = saved[2 * number : 2 * number + 2]
            torch.bmm((weights * mask).transpose(1, 2), gradient[chunk], out=for_value[chunk])
            for_weights = torch.bmm(gradient[chunk], value[chunk].transpose(1, 2)).mul_(mask)
            for_scores = torch.ops.aten._softmax_backward_data(for_weights, weights, -1, weights.dtype)
            for_scores.mul_(ctx.scaling)
            torch.bmm(for_scores, key[chunk], out=for_query[chunk])
            torch.bmm(for_scores.transpose(1, 2), query[chunk], out=for_key[chunk])
        return for_query, for_key, for_value, None, None


_PYTORCH_ATTENTION = SimpleNamespace(apply=unpadded_attention._pytorch_attention)
_EXACT_SHAPES = ((unpadded_attention, "_ROW_MULTIPLE", 1),)
_EXACT_ROWS = ((functional, "_ROW_MULTIPLE", 1), (modeling_bert, "add_filler_sequence", lambda batch: batch))
_BIAS_APART = (
    (functional, "_linear_with_gradient", F.linear),
    (functional, "_linear_without_gradient", F.linear),
)
_WHOLE_SOFTMAX = ((functional, "_subtract_targets_from_softmax_", _softmax_of_all_logits),)
_ONE_PRODUCT = ((functional, "_DropoutAdd", _DropoutAddInOneProduct),)
_EACH_GROUP = ((unpadded_attention, "_GroupedAttention", SimpleNamespace(apply=_AttentionOfEachGroup.of_all)),)

WAYS = {  # what `--ablate` takes away: (owner, name, the plain form) of each part
    "nothing": (),
    "everything but the head": ((BertForPreTraining, "unpad", lambda *_: None),),  # the padded model is the plain one
    "one product for Q, K, V": ((modeling_bert, "project", _separate),),
    "one buffer of logits": ((modeling_bert, "projected_cross_entropy", _plain_head),),
    "softmax in the cache": _WHOLE_SOFTMAX,
    "few shapes of attention": _EXACT_SHAPES,
    "bias in the product": _BIAS_APART,
    "one attention of all groups": _EACH_GROUP,
    "residual added apart": _ONE_PRODUCT,
    "few numbers of rows": _EXACT_ROWS,
    "the last six": (*_WHOLE_SOFTMAX, *_EXACT_SHAPES, *_BIAS_APART, *_EACH_GROUP, *_ONE_PRODUCT, *_EXACT_ROWS),
    "cheap dropout": ((functional.DropoutAdd, "forward", _plain_dropout),),
    "attention with dropout": ((unpadded_attention, "_GroupedAttention", _PYTORCH_ATTENTION),),
}


@contextmanager
def without(way: str) -> Iterator[None]:
    """Ours with one optimization replaced by its plain form."""
    with ExitStack() as replaced:
        for owner, name, plain in WAYS[way]:
            replaced.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, plain)
        yield


class Side:
    """One family of model and Trainer, which keeps its weights from turn to turn."""

    def __init__(self, name: str, config: BertConfig, examples, collator, options, lacking: str = "nothing"):
        self.name, self.examples, self.options, self.lacking = name, examples, options, lacking
        self.stock = name in (STOCK, STILL)
        self.collator = StockBatches(collator) if self.stock else collator
        torch.manual_seed(0)
        config = BertConfig.from_dict(config.to_dict())
        if name in (FAST, STILL):
            config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
        config._attn_implementation = "sdpa"
        self.model = (transformers.BertForPreTraining if self.stock else BertForPreTraining)(config)
        self.rates, self.flops = [], []

    def turn(self) -> None:
        compiled = self.options.compile_stock if self.stock else self.options.torch_compile
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            args = arguments(folder, self.options, compiled, PreTrainingArguments)
            if self.stock:
                stock_memory()
                args = arguments(folder, self.options, compiled, TrainingArguments)
                args.remove_unused_columns = False
                args.train_sampling_strategy = "sequential"
                total = args.max_steps * self.options.batch_size
                order = RunSampler(self.examples.phases, self.examples.window_length, total, self.examples.seed)
                rows = [self.examples[number] for number in order]
                trainer = Trainer(self.model, args, self.collator, rows, callbacks=[clock])
            else:
                trainer = PreTrainer(self.model, args, self.collator, self.examples, callbacks=[clock])
            seen = count_batches(trainer)
            with without(self.lacking):
                trainer.train()
        first, steps = self.options.warmup, self.options.steps
        seconds = clock.ends[first + steps - 1] - clock.ends[first - 1]
        held = seen[first : first + steps]
        total = {name: int(sum(batch[name] for batch in held)) for name in held[0]}
        self.rates.append(total["tokens"] / seconds)
        flops = training_flops(self.model.config, total["tokens"], total["squares"], total["masked"])
        self.flops.append(flops / seconds)
        self.padding = 1 - total["tokens"] / total["places"]


KINDS = {  # what part of an operation's name tells its kind; the first that fits
    "matrix products": ("mm", "linear", "nvjet"),
    "fused attention": ("attention", "flash", "sdpa"),
    "GELU": ("gelu",),
    "dropout": ("bernoulli", "random_", "aten::ge", "dropout"),
    "softmax, loss": ("softmax", "amax", "nll", "argmax", "logsumexp"),
    "LayerNorm": ("layer_norm", "gammabeta"),
    "optimizer, clipping": ("adam", "norm", "_foreach", "multi_tensor"),
    "copies, fills, gathers": (
        "copy_",
        "cat",
        "fill",
        "zero_",
        "index",
        "embedding",
        "where",
        "gather",
        "clone",
        "mem",
    ),
    "sums and products": (
        "aten::add",
        "aten::mul",
        "aten::sum",
        "aten::div",
        "aten::sub",
        "addc",
        "reduce",
        "functor",
    ),
}


def profile(side: Side) -> dict[str, float]:
    """Milliseconds of a step by kind of operation; what is not one is the rest, Python among it.

    On a GPU they are those of kernels; what is left of the time from the first to the last one, the GPU was idle.
    """
    with torch.profiler.profile() as recorded:
        side.turn()
    del side.rates[-1], side.flops[-1]
    steps, spent = side.options.warmup + side.options.steps, dict.fromkeys([*KINDS, "the rest"], 0.0)

    events = [(event.key, event.self_cpu_time_total / 1e3) for event in recorded.key_averages()]
    if side.options.device == "cuda":
        kernels = [
            (event.name(), event.start_ns(), event.duration_ns())
            for event in recorded.profiler.kineto_results.events()
            if event.device_type() == torch.autograd.DeviceType.CUDA and "#" not in event.name()  # Optimizer.step#…
        ]
        events = [(name, duration / 1e6) for name, _, duration in kernels]
        span = max(begin + duration for _, begin, duration in kernels) - min(begin for _, begin, _ in kernels)
        spent["idle"] = max(0.0, span / 1e6 - sum(each for _, each in events)) / steps
    for key, milliseconds in events:
        name = key.lower()
        kind = next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "the rest")
        spent[kind] += milliseconds / steps
    return spent


def report_profiles(sides: list[Side]) -> dict:
    profiles = {side.name: profile(side) for side in sides}
    print(f"{'ms of a step':24}" + "".join(f"{name:>26}" for name in profiles))
    for kind in next(iter(profiles.values())):
        cells = (f"{spent[kind]:,.0f} ({spent[kind] / sum(spent.values()):.0%})" for spent in profiles.values())
        print(f"{kind:24}" + "".join(f"{cell:>26}" for cell in cells))
    return profiles


def report(sides: list[Side], peak: float) -> dict:
    result = {"matrix_product_tflops": round(peak / 1e12, 3)}
    print(f"{'':38}{'tokens/s':>12}{'spread':>18}{'MFU':>8}{'padding':>9}{'ratio':>8}")
    for side in sides:
        middle = statistics.median(side.rates)
        row = {"tokens_per_second": round(middle, 1), "mfu": round(statistics.median(side.flops) / peak, 4)}
        row["padding"] = round(side.padding, 4)
        if len(sides) > 1:
            pairs = zip(side.rates, sides[0].rates, strict=True)
            row["ratio"] = round(statistics.median(mine / theirs for mine, theirs in pairs), 3)  # to the first side
        result[side.name] = row
        spread = f"{min(side.rates):,.0f}–{max(side.rates):,.0f}"
        print(
            f"{side.name:38}{middle:12,.0f}{spread:>18}{row['mfu']:8.1%}{side.padding:9.1%}{row.get('ratio', 1):8.2f}"
        )
    return result


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    tokens, text, options = parse((TokenizerArguments, CorpusArguments, ThroughputArguments), argv)
    transformers.utils.logging.set_verbosity_error()
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = load_or_train_tokenizer(tokens, text)
    corpus = load_or_prepare_corpus(text, tokenizer, text.train_file)
    config = BertConfig.from_json_file(options.config_name)
    if options.bf16 is None:
        on_cpu = options.device == "cpu"
        options.bf16 = (choose_on_cpu(cpu_bf16_feature(), config.hidden_size) if on_cpu else choose_on_gpu()).bf16
    collator = DataCollatorForPreTraining(tokenizer)
    names = {"stock": STOCK, "still": STILL, "paper": PAPER, "fast": FAST}
    # An own `PreTrainingExamples` for each side would draw the plan again; the numbers and draws are the same.
    examples = PreTrainingExamples(corpus, (Phase(options.max_seq_length, None),))
    if options.ablate:
        ways = list(WAYS) if options.ablate == "all" else ["nothing", *options.ablate.split(",")]
        sides = [Side(f"without {way}", config, examples, collator, options, way) for way in ways]
    else:
        sides = [Side(names[word], config, examples, collator, options) for word in options.sides.split(",")]
    arguments("unused", options, False, PreTrainingArguments)  # sets the threads
    dtype = torch.bfloat16 if options.bf16 else torch.float32
    print(
        f"{options.config_name}, {options.batch_size} × {options.max_seq_length}, {options.device}, "
        f"{torch.get_num_threads()} threads, {'bf16' if options.bf16 else 'fp32'}, torch {torch.__version__}"
    )
    peak = 0.0
    for turn in range(options.pairs):
        examples.seed = turn  # new batches, as in a run: a CPU compiles kernels for their shapes
        peak = max(peak, matmul_rate(torch.device(options.device), dtype))  # noise only lowers it
        for side in sides[:: -1 if turn % 2 else 1]:  # the first one compiles the shapes that both have
            side.turn()
    result = {**vars(options), **report(sides, peak)}
    if options.profile:
        result["milliseconds"] = report_profiles(sides)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
