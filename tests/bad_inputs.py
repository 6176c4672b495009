# ruff: noqa: E501 - the lines are what is printed
"""The catalogue of bad input: what a user may give to a recipe, and the error line that it prints.

Data alone; `test_bad_inputs.py` runs it. Each case is run in an empty folder: paths in the words and in the error line
are relative to it. `good/` in it is a link to good inputs: `text.txt`, `vocab.txt`,
`model.json`, `rows.tsv`, `bert/` (a checkpoint), `corpus/` (prepared text).
"""

import gzip
import io
import json
import lzma
import os
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when huggingface_hub is imported, which comes later

SHAPE = {
    "model_type": "bert", "vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64, "type_vocab_size": 2,
}  # fmt: skip
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [
    *SPECIALS,
    *"abcdefghijklmnopqrstuvwxyz0123456789.",
    *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz0123456789"),
]
TEXT = "\n\n".join(
    "\n".join(f"Document {d} says in sentence {s} that item {d} follows item {s}." for s in range(2 + d % 5))
    for d in range(20)
)
_WORDS = "red blue green black white grey brown pink gold lime teal navy rust plum sand jade".split()
ROWS = "".join(
    f"ham\tsee the {a} and {b} {c} one\nspam\twin a {b} or {c} {a} prize\n"
    for a, b, c in zip(_WORDS, _WORDS[3:] + _WORDS[:3], _WORDS[7:] + _WORDS[:7], strict=True)
)


class Folder:
    """In place of a file."""


class Pipe:
    """A named pipe without a writer."""


@dataclass(frozen=True)
class Link:
    to: str


@dataclass(frozen=True)
class Changed:
    """The folder `good/NAME` with some files replaced, or removed (None)."""

    of: str
    files: dict


@dataclass(frozen=True)
class Bad:
    """A case: recipe, command line, files, and what is printed after `error: `.

    Attributes:
        later: found only when transformers' own arguments are built, the text is opened or the model is made.
        leaves: files that stay, so that the same command continues where it stopped.
    """

    name: str
    recipe: str
    words: str | list
    line: str
    files: dict = field(default_factory=dict)
    later: bool = False
    leaves: tuple = ()


def lines(*rows: str) -> str:
    return "".join(f"{row}\n" for row in rows)


def shape(**changes) -> str:
    """A model JSON, a key a line; a value None leaves the key out."""
    return json.dumps({k: v for k, v in {**SHAPE, **changes}.items() if v is not None}, indent=1)


def parquet(**columns) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


LONG = "word " * 1_000_000  # 5 MB in a line
PRETRAIN = (
    "--config_name good/model.json --tokenizer_name good/vocab.txt --max_seq_length 32 --max_steps 2 --output_dir out"
)
TUNE = "--model_name_or_path good/bert --max_seq_length 32 --output_dir out --max_steps 2"
PROBE = "--model_name_or_path good/bert --max_seq_length 32 --output_dir out"


def pretrain(name: str, words: str, line: str, files: dict | None = None, **options) -> Bad:
    return Bad(name, "pretrain", f"{PRETRAIN} {words}", line, files or {}, **options)


def tune(name: str, words: str, line: str, files: dict | None = None, **options) -> Bad:
    return Bad(name, "finetune_classification", f"{TUNE} {words}", line, files or {}, **options)


def text(name: str, file: str, content, line: str, words: str = "", **options) -> Bad:
    """A bad text, as it is read by all three recipes that read text."""
    files = {file: content} if content is not None else {}
    return pretrain(name, f"--train_file '{file}' {words}", line, files, **options)


def rows(name: str, file: str, content, line: str, words: str = "", **options) -> Bad:
    return tune(name, f"--train_file '{file}' {words}", line, {file: content}, **options)


def model(name: str, content, line: str, words: str = "") -> Bad:
    return pretrain(name, f"--train_file good/text.txt --config_name m.json {words}", line, {"m.json": content})


def vocabulary(name: str, content, line: str) -> Bad:
    return pretrain(name, "--train_file good/text.txt --tokenizer_name v.txt", line, {"v.txt": content})


def config(name: str, content, line: str, recipe: str = "pretrain") -> Bad:
    return Bad(name, recipe, "--config run.yaml", line, {"run.yaml": content})


def number(option: str, value: str, line: str) -> Bad:
    return pretrain(f"{option} {value}", f"--train_file good/text.txt --{option}={value}", line)


TWO_TEXTS = [f'{{"title": "a title of row {i}", "body": "and its text {i}", "label": {i % 2}}}' for i in range(9)]


# fmt: off
COMMAND_LINE = [
    pretrain("an unknown option", "--max_stepz 3", "command line: unknown option 'max_stepz'; did you mean max_steps?"),
    pretrain("an unknown option with =", "--max_stepz=3",
        "command line: unknown option 'max_stepz'; did you mean max_steps?"),
    pretrain("a word that is not an option", "stray",
        "command line: unknown option 'stray'; --help lists every flag"),
    pretrain("a word instead of a number", "--max_steps many",
        "command line: argument --max_steps: invalid int value: 'many'; --help lists every flag"),
    pretrain("a fraction instead of a whole number", "--max_steps 2.5",
        "command line: argument --max_steps: invalid int value: '2.5'; --help lists every flag"),
    pretrain("an option without its value", "--max_steps",
        "command line: argument --max_steps: expected one argument; --help lists every flag"),
    pretrain("neither true nor false", "--nsp maybe",
        "command line: argument --nsp: Truthy value expected: got maybe but expected one of yes/no, true/false, t/f, y/n, 1/0 (case insensitive); --help lists every flag"),
    pretrain("an unknown choice", "--initializer uniform",
        "command line: argument --initializer: invalid choice: 'uniform'; did you mean 'normal'?"),
    pretrain("an empty path", "--train_file ''",
        "--train_file: an empty value; give a value, or leave the option out"),
    pretrain("an empty output folder", "--output_dir=",
        "--output_dir: an empty value; give a value, or leave the option out"),
    Bad("a path that is not UTF-8", "pretrain", ['--train_file', 'caf\udce9.txt'],
        "--train_file: bytes that are not UTF-8; rename what it names"),
    Bad("a NUL in a path", "pretrain", ['--train_file', 'a\x00b.txt'], "--train_file: a NUL character; remove it"),
    pretrain("a name of 300 letters", f"--train_file {'a' * 300}",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa: cannot be opened: File name too long; check the path (globs need quotes)"),
    pretrain("an output folder of 300 letters", f"--train_file good/text.txt --output_dir out/{'a' * 300}",
        "out/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa: cannot be written: File name too long; give another --output_dir"),
    Bad("a name of 5,000 letters", "pretrain", ['--train_file', 'a' * 5000],
        "--train_file: a value of 5,000 characters; shorten it"),
    Bad("a path of 5,000 letters", "pretrain", ['--output_dir', 'a/' * 2500],
        "--output_dir: a value of 5,000 characters; shorten it"),
    pretrain("an integer of 5,000 digits", f"--max_steps {'9' * 5000}",
        "--max_steps: a value of 5,000 characters; shorten it"),
    pretrain("options as broken JSON", "--lr_scheduler_kwargs '{bad'",
        "--lr_scheduler_kwargs: not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1); write {\"key\": value, …}"),
    pretrain("an unknown schedule", "--lr_scheduler_type zigzag --train_file good/text.txt",
        "command line: argument --lr_scheduler_type: invalid choice: 'zigzag'; --help lists every flag"),
    pretrain("an unknown optimizer", "--optim adamm --train_file good/text.txt",
        "--optim: no optimizer 'adamm'; one of: adamw_torch_fused, adamw_torch, sgd, adagrad, rmsprop, adafactor, muon"),
    pretrain("an unknown attention implementation", "--attn_implementation fast --train_file good/text.txt",
        "--attn_implementation: no attention 'fast'; one of: eager, flash_attention_4, flash_attention_3, flash_attention_2, sdpa"),
    pretrain("an attention that does not train here", "--attn_implementation 'paged|eager' --train_file good/text.txt",
        "--attn_implementation: no attention 'paged|eager'; did you mean 'eager'?"),
    pretrain("a metric of pairs, without pairs", "--metric_for_best_model nsp_accuracy --nsp false --train_file good/text.txt",
        "--metric_for_best_model: no metric 'nsp_accuracy'; did you mean 'mlm_accuracy'?"),
    pretrain("a value that the optimizer refuses", "--optim sgd --optim_args momentum=-1 --train_file good/text.txt",
        "--optim_args: sgd cannot be made: Invalid momentum value: -1.0; correct the value"),
    pretrain("a lowest rate above the peak",
        """--lr_scheduler_type polynomial --lr_scheduler_kwargs '{"lr_end": 9}' --train_file good/text.txt""",
        '--lr_scheduler_kwargs: the schedule polynomial cannot be made: lr_end (9) must be smaller than initial lr (0.0001); give what it needs as {"name": value}, or another --lr_scheduler_type'),
    pretrain("an unknown mode of torch.compile", "--torch_compile_mode fast --train_file good/text.txt",
        "--torch_compile_mode: no mode 'fast'; one of: default, lite, reduce-overhead, max-autotune-no-cudagraphs, max-autotune"),
    pretrain("an unknown backend of torch.compile", "--torch_compile_backend eagre --train_file good/text.txt",
        "--torch_compile_backend: no backend 'eagre'; did you mean 'eager'?"),
    pretrain("an unknown argument of activation checkpointing",
        """--gradient_checkpointing_kwargs '{"fast": 1}' --train_file good/text.txt""",
        "--gradient_checkpointing_kwargs: torch.utils.checkpoint does not take {'fast': 1}; it takes use_reentrant, preserve_rng_state, determinism_check, debug, early_stop"),
    pretrain("a tracker that is not installed", "--report_to wandbb --train_file good/text.txt",
        "--report_to: no tracker 'wandbb' is installed; install it, or use one of: all, none"),
    pretrain("two precisions at once", "--bf16 true --fp16 true --train_file good/text.txt",
        "--fp16: --bf16 and --fp16 exclude each other; choose one"),
    pretrain("an access token as an option", "--hub_token hf_x --train_file good/text.txt",
        "--hub_token: a token is not taken as a flag; set HF_TOKEN or `hf auth login`"),
    pretrain("an invalid repository name", "--push_to_hub true --hub_model_id a/b/c --train_file good/text.txt",
        "--hub_model_id: 'a/b/c' is no name of a repository; give YOU/NAME of letters, digits, '-', '_' and '.'"),
    pretrain("a push without a login", "--push_to_hub true --train_file good/text.txt",
        "--push_to_hub: you are not logged in to the Hub; set HF_TOKEN or `hf auth login`"),
    pretrain("a best model without evaluation", "--load_best_model_at_end true --save_strategy steps --train_file good/text.txt",
        "arguments: --load_best_model_at_end requires the save and eval strategy to match, except when --save_strategy=\"best\", but found - Evaluation strategy: IntervalStrategy.NO - Save strategy: SaveStrategy.STEPS; change the option it names", later=True),
    pretrain("an unsupported optimizer", "--optim lomo --train_file good/text.txt",
        "--optim: lomo is not supported: exact resume is not tested with it; one of: adamw_torch_fused, adamw_torch, sgd, adagrad, rmsprop, adafactor, muon"),
    pretrain("an option without effect", "--label_smoothing_factor 0.1 --train_file good/text.txt",
        "--label_smoothing_factor: the losses of pre-training have no smoothed form here; leave the option out"),
    tune("an option that would drop rows", "--dataloader_drop_last true --train_file good/rows.tsv",
        "--dataloader_drop_last: rows would be left out of the metrics: it holds for evaluation as well; leave the option out"),
    pretrain("a schedule without its arguments", "--lr_scheduler_type cosine_with_min_lr --train_file good/text.txt",
        "--lr_scheduler_kwargs: the schedule cosine_with_min_lr cannot be made: One of min_lr or min_lr_rate should be set through the `lr_scheduler_kwargs`; give what it needs as {\"name\": value}, or another --lr_scheduler_type"),
    pretrain("an unknown metric", "--metric_for_best_model mlm_los --train_file good/text.txt",
        "--metric_for_best_model: no metric 'mlm_los'; did you mean 'mlm_loss'?"),
    tune("a metric of pre-training in fine-tuning", "--metric_for_best_model mlm_loss --train_file good/rows.tsv",
        "--metric_for_best_model: no metric 'mlm_loss'; did you mean 'loss'?"),
    pretrain("a missing DeepSpeed file", "--deepspeed zero.json --train_file good/text.txt",
        "zero.json: no such file; check the path"),
    pretrain("a DeepSpeed file that is not JSON", "--deepspeed zero.json --train_file good/text.txt",
        "zero.json: not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1); write {\"key\": value, …}", {'zero.json': '{'}),
    pretrain("fp16 on a CPU", "--fp16 true --bf16 false --use_cpu true --train_file good/text.txt",
        "--fp16: a CPU does not train in fp16; leave it out, or give --bf16 true"),
    pretrain("a missing checkpoint", "--resume_from_checkpoint nope --train_file good/text.txt",
        "nope: no such checkpoint; give a folder checkpoint-N, or leave it out"),
    pretrain("an unknown strategy", "--save_strategy often --train_file good/text.txt",
        "arguments: often is not a valid SaveStrategy, please select one of ['no', 'steps', 'epoch', 'best']; change the option it names", later=True),
    pretrain("the name of a language", "--train_file good/text.txt --language german",
        "--language: 'german' is no ISO 639 code of a language; give e.g. de"),
    tune("the name of a language for fine-tuning", "--train_file good/rows.tsv --language german",
        "--language: 'german' is no ISO 639 code of a language; give e.g. de"),
    pretrain("text and a Hub dataset", "--train_file good/text.txt --dataset_name me/text",
        "--dataset_name: --train_file names the data already, and the dataset would not be read; give one of both"),
    tune("rows and a Hub dataset", "--train_file good/rows.tsv --dataset_name me/rows",
        "--dataset_name: --train_file names the data already, and the dataset would not be read; give one of both"),
    Bad("no output folder", "train_tokenizer", "--train_file good/text.txt",
        "--output_dir: no output folder is named; give one"),
    Bad("no output folder for a corpus", "prepare", "--train_file good/text.txt --tokenizer_name good/vocab.txt",
        "--output_dir: no output folder is named; give one"),
    Bad("a shard number out of range", "prepare", "--train_file good/text.txt --output_dir out --shard 3/3",
        "--shard: '3/3' is not i/n with i from 0 to n - 1; give 0/4, 1/4, …"),
    Bad("a shard that is not i/n", "prepare", "--train_file good/text.txt --output_dir out --shard one",
        "--shard: 'one' is not i/n with i from 0 to n - 1; give 0/4, 1/4, …"),
    Bad("deduplication of one shard", "prepare", "--train_file good/text.txt --output_dir out --shard 0/2 --deduplicate near",
        "--shard: --deduplicate has to see all inputs, and a part does not; prepare without --shard (--num_proc uses the cores of one machine)"),
    Bad("overwriting by one shard", "prepare", "--train_file good/text.txt --output_dir out --shard 0/2 --overwrite_output_dir true",
        "--overwrite_output_dir: every part would remove the others' work; empty the folder first"),
    Bad("an unknown kind of deduplication", "prepare", "--train_file good/text.txt --output_dir out --deduplicate fuzzy",
        "command line: argument --deduplicate: invalid choice: 'fuzzy'; one of: exact, near"),
    Bad("an unknown device", "estimate", "--config_name good/model.json --max_seq_length 32 --max_steps 10 --device tpu",
        "--device: 'tpu' is not in the table of devices; give one of h200, h100, a100-80gb, a100-40gb, l40s, l4, v100-32gb, rtx4090, cpu", later=True),
    Bad("zero devices", "estimate", "--config_name good/model.json --max_seq_length 32 --max_steps 10 --num_devices 0",
        "--num_devices: 0 is out of range; give a number of at least 1 and at most 1,000,000,000"),
    Bad("an MFU above 1", "estimate", "--config_name good/model.json --max_seq_length 32 --max_steps 10 --mfu 2",
        "--mfu: 2.0 is out of range; give a number above 0 and at most 1"),
    Bad("a negative price", "estimate", "--config_name good/model.json --max_seq_length 32 --max_steps 10 --price_per_hour -1",
        "--price_per_hour: -1.0 is out of range; give a number of at least 0 and at most 1,000,000,000"),
    Bad("an estimate without steps", "estimate", "--config_name good/model.json --max_seq_length 32",
        "--max_steps: the length of the run is not known; give it, or a folder made by prepare.py as --train_file", later=True),
    Bad("an estimate of raw text", "estimate", "--config_name good/model.json --max_seq_length 32 --train_file good/text.txt",
        "good/text.txt: no folder made by prepare.py; make one, or give --max_steps alone", later=True),
    Bad("an estimate beyond the model's positions", "estimate", "--config_name good/model.json --max_steps 10 --max_seq_length 128",
        "good/model.json:8: sequence length 128 is beyond the model's 64 positions; lower --max_seq_length / --long_seq_length, or raise max_position_embeddings in the model JSON"),
    Bad("an estimate of a GPU in fp32", "estimate", "--config_name good/model.json --max_seq_length 32 --max_steps 10 --bf16 false",
        "--bf16: a GPU is estimated with 16-bit autocast; leave it out, or give --device cpu"),
    Bad("an estimate by hours", "estimate", "--config_name good/model.json --max_seq_length 32 --train_file good/corpus --max_hours 1",
        "--max_hours: hours become steps by a measured speed, and nothing is measured; give --max_steps"),
    Bad("an estimate without a model", "estimate", "--max_steps 10",
        "--config_name: no model is named; give e.g. configs/model/mini.json"),
    Bad("a split of nothing", "split", "--output_dir out",
        "--train_file: no data are named; give files of labelled rows"),
    Bad("a split of one class", "split", "--train_file a.csv --output_dir out",
        "a.csv: only one label: x; give rows of two labels or more", {'a.csv': 'text,label\na b,x\nc d,x\n'}),
    Bad("a class of fewer rows than folds", "split", "--train_file a.csv --output_dir out",
        "a.csv: label 'y' has 1 rows, fewer than 5 folds; give more rows of it, remove it, or give fewer --folds",
        {'a.csv': 'text,label\n' + ''.join(f'{"a" * n} b,x\n' for n in range(1, 9)) + 'c d,y\n'}),
    Bad("a class of near-duplicates", "split", "--train_file a.csv --output_dir out",
        "a.csv: label 'y' has 1 texts that differ in their words, too few for 5 folds; give more rows of it, remove it, or give fewer --folds",
        {'a.csv': 'text,label\n' + ''.join(f'{"a" * n} b,x\nwin {n} now,y\n' for n in range(1, 9))}),
    Bad("no folds", "split", "--train_file good/rows.tsv --output_dir out --folds 0",
        "--folds: 0 is out of range; give a number of at least 1 and at most 1,000"),
    Bad("folds with a share for the test", "split", "--train_file good/rows.tsv --output_dir out --test_split_percentage 30",
        "--test_split_percentage: the test rows of 5 folds are 20 %; leave it out, or give --folds 1"),
    Bad("folds without training rows", "split", "--train_file good/rows.tsv --output_dir out --validation_split_percentage 80",
        "--validation_split_percentage: with 20 % test rows no training rows are left; give fewer"),
    Bad("a probe without a checkpoint", "probe", "--output_dir out --train_file good/rows.tsv",
        "--model_name_or_path: no checkpoint is named; give a BERT checkpoint"),
    Bad("a probe without an output folder", "probe", "--model_name_or_path good/bert --train_file good/rows.tsv",
        "--output_dir: no output folder is named; give one"),
    Bad("a probe without data", "probe", PROBE,
        "--train_file: there is nothing to probe with; give --train_file, --validation_file or --blimp"),
    Bad("a probe part without data", "probe", f"{PROBE} --train_file good/rows.tsv --parts grammar",
        "--parts: the part 'grammar' has no data; give --blimp"),
    Bad("an unknown part", "probe", f"{PROBE} --train_file good/rows.tsv --parts grammer",
        "--parts: no part 'grammer'; did you mean 'grammar'?"),
    Bad("a probe beyond the model's positions", "probe", f"{PROBE} --train_file good/rows.tsv --max_seq_length 128",
        "good/bert/config.json:<number>: sequence length 128 is beyond the model's 64 positions; lower --max_seq_length / --long_seq_length, or raise max_position_embeddings in the model JSON"),
    Bad("more draws than folds", "probe", f"{PROBE} --train_file good/rows.tsv --tune_draws 6",
        "arguments: --tune_draws must be at most --folds (5): each draw is tested on its own fold; change the option it names"),
    Bad("too few labels for cross-validation", "probe", f"{PROBE} --train_file good/rows.tsv --labels 2",
        "arguments: --labels and --tune_labels must be at least 4; change the option it names"),
    Bad("one fold", "probe", f"{PROBE} --train_file good/rows.tsv --folds 1",
        "arguments: --folds must be at least 2, not 1; change the option it names"),
    Bad("a file without minimal pairs", "probe", f"{PROBE} --blimp pairs.jsonl",
        "pairs.jsonl: no minimal pairs in it; give sentence_good and sentence_bad", {"pairs.jsonl": "\n"}),
    Bad("a line without a minimal pair", "probe", f"{PROBE} --blimp pairs.jsonl",
        "pairs.jsonl:1: no minimal pair; give sentence_good and sentence_bad, both text",
        {"pairs.jsonl": '{"sentence_good": "a b"}\n'}, later=True),
    Bad("rows to probe of one label", "probe", f"{PROBE} --train_file a.tsv",
        "a.tsv: only one label: ham; give rows of two labels or more",
        {"a.tsv": "label\ttext\nham\tone\nham\ttwo\n"}, later=True),
    Bad("rows to probe whose labels are numbers", "probe", f"{PROBE} --train_file a.tsv",
        "a.tsv: the labels are numbers such as 0.5, and the probe needs classes; name another --label_column, or leave the file out",
        {"a.tsv": "label\ttext\n0.5\tone\n1\ttwo\n"}, later=True),
]

NUMBERS = [
    number("learning_rate", "nan",
        "--learning_rate: nan is out of range; give a number of at least 0 and at most 1,000"),
    number("learning_rate", "inf",
        "--learning_rate: inf is out of range; give a number of at least 0 and at most 1,000"),
    number("learning_rate", "-1e-4",
        "--learning_rate: -0.0001 is out of range; give a number of at least 0 and at most 1,000"),
    number("muon_learning_rate", "nan",
        "--muon_learning_rate: nan is out of range; give a number of at least 0 and at most 1,000"),
    number("nsp_loss_weight", "-1",
        "--nsp_loss_weight: -1.0 is out of range; give a number of at least 0 and at most 1,000"),
    number("eval_delay", "-1",
        "--eval_delay: -1.0 is out of range; give a number of at least 0 and at most 1,000,000,000,000"),
    number("eval_accumulation_steps", "0",
        "--eval_accumulation_steps: 0 is out of range; give a number of at least 1 and at most 1,000,000"),
    number("weight_decay", "-0.1",
        "--weight_decay: -0.1 is out of range; give a number of at least 0 and at most 1,000"),
    number("adam_beta1", "1.0", "--adam_beta1: 1.0 is out of range; give a number of at least 0 and below 1"),
    number("adam_beta2", "-0.5", "--adam_beta2: -0.5 is out of range; give a number of at least 0 and below 1"),
    number("max_grad_norm", "nan",
        "--max_grad_norm: nan is out of range; give a number of at least 0 and at most 1,000"),
    number("warmup_steps", "-10",
        "--warmup_steps: -10.0 is out of range; give a number of at least 0 and at most 1,000,000,000,000"),
    number("warmup_steps", "nan",
        "--warmup_steps: nan is out of range; give a number of at least 0 and at most 1,000,000,000,000"),
    number("max_steps", "0",
        "--max_steps: 0 is out of range; give a number of at least 1 and at most 1,000,000,000,000"),
    number("max_steps", "-5",
        "--max_steps: -5 is out of range; give a number of at least 1 and at most 1,000,000,000,000"),
    number("max_steps", "99999999999999999999",
        "--max_steps: 99999999999999999999 is out of range; give a number of at least 1 and at most 1,000,000,000,000"),
    pretrain("steps and hours", "--max_hours 1 --max_steps 5 --train_file good/text.txt",
        "--max_hours: it excludes --max_steps; leave one of the two out"),
    number("save_minutes", "-1",
        "--save_minutes: -1.0 is out of range; give a number of at least 0 and at most 1,000,000,000"),
    number("max_hours", "nan", "--max_hours: nan is out of range; give a number above 0 and at most 1,000,000"),
    number("num_train_epochs", "0",
        "--num_train_epochs: 0.0 is out of range; give a number above 0 and at most 1,000,000"),
    number("num_train_epochs", "inf",
        "--num_train_epochs: inf is out of range; give a number above 0 and at most 1,000,000"),
    number("per_device_train_batch_size", "0",
        "--per_device_train_batch_size: 0 is out of range; give a number of at least 1 and at most 1,000,000"),
    number("per_device_train_batch_size", "-8",
        "--per_device_train_batch_size: -8 is out of range; give a number of at least 1 and at most 1,000,000"),
    number("per_device_eval_batch_size", "0",
        "--per_device_eval_batch_size: 0 is out of range; give a number of at least 1 and at most 1,000,000"),
    number("gradient_accumulation_steps", "0",
        "--gradient_accumulation_steps: 0 is out of range; give a number of at least 1 and at most 1,000,000"),
    number("save_steps", "0",
        "--save_steps: 0.0 is out of range; give a number above 0 and at most 1,000,000,000,000"),
    number("logging_steps", "-1",
        "--logging_steps: -1.0 is out of range; give a number above 0 and at most 1,000,000,000,000"),
    number("save_total_limit", "-1",
        "--save_total_limit: -1 is out of range; give a number of at least 0 and at most 1,000,000"),
    number("dataloader_num_workers", "-1",
        "--dataloader_num_workers: -1 is out of range; give a number of at least 0 and at most 1,024"),
    number("seed", "-1", "--seed: -1 is out of range; give a number of at least 0 and at most 4,294,967,295"),
    number("seed", "99999999999",
        "--seed: 99999999999 is out of range; give a number of at least 0 and at most 4,294,967,295"),
    number("mlm_probability", "0",
        "--mlm_probability: 0.0 is out of range; give a number above 0 and below 1"),
    number("mlm_probability", "1.5",
        "--mlm_probability: 1.5 is out of range; give a number above 0 and below 1"),
    number("mlm_probability", "nan",
        "--mlm_probability: nan is out of range; give a number above 0 and below 1"),
    number("final_mlm_probability", "-0.1",
        "--final_mlm_probability: -0.1 is out of range; give a number above 0 and below 1"),
    number("final_mlm_probability", "0.5",
        "arguments: --final_mlm_probability must be below --mlm_probability (0.15); change the option it names"),
    number("final_mlm_fraction", "2",
        "--final_mlm_fraction: 2.0 is out of range; give a number of at least 0 and at most 1"),
    number("max_seq_length", "4", "--max_seq_length: 4 is out of range; give a number of at least 8 and at most 1,000,000"),
    number("max_seq_length", "128",
        "good/model.json:8: sequence length 128 is beyond the model's 64 positions; lower --max_seq_length / --long_seq_length, or raise max_position_embeddings in the model JSON"),
    number("long_seq_length", "16",
        "arguments: --long_seq_length must be at least --max_seq_length (32); change the option it names"),
    number("long_seq_length", "512",
        "good/model.json:8: sequence length 512 is beyond the model's 64 positions; lower --max_seq_length / --long_seq_length, or raise max_position_embeddings in the model JSON"),
    number("long_seq_fraction", "1.5",
        "--long_seq_fraction: 1.5 is out of range; give a number of at least 0 and at most 1"),
    number("long_seq_fraction", "0.2",
        "arguments: --long_seq_fraction needs --long_seq_length; change the option it names"),
    number("final_mlm_fraction", "0.2",
        "arguments: --final_mlm_fraction needs --final_mlm_probability; change the option it names"),
    number("short_seq_probability", "-0.1",
        "--short_seq_probability: -0.1 is out of range; give a number of at least 0 and at most 1"),
    number("dropout", "1", "--dropout: 1.0 is out of range; give a number of at least 0 and below 1"),
    number("max_eval_samples", "0",
        "--max_eval_samples: 0 is out of range; give a number of at least 1 and at most 1,000,000,000"),
    number("validation_split_percentage", "0",
        "--validation_split_percentage: 0.0 is out of range; give a number above 0 and below 100"),
    number("validation_split_percentage", "100",
        "--validation_split_percentage: 100.0 is out of range; give a number above 0 and below 100"),
    number("num_proc", "0", "--num_proc: 0 is out of range; give a number of at least 1 and at most 1,024"),
    number("num_proc", "1000000",
        "--num_proc: 1000000 is out of range; give a number of at least 1 and at most 1,024"),
    number("vocab_size", "3",
        "--vocab_size: 3 is out of range; give a number of at least 6 and at most 2,147,483,647"),
    number("vocab_size", "-5",
        "--vocab_size: -5 is out of range; give a number of at least 6 and at most 2,147,483,647"),
    number("corpus_cache_gb", "-1",
        "--corpus_cache_gb: -1.0 is out of range; give a number above 0 and at most 1,000,000,000"),
]

CONFIGS = [
    config("a missing YAML file", None, "run.yaml: no such file; give --config the path of a YAML file"),
    config("a folder in place of the YAML", Folder(), "run.yaml: a folder, and not a file; name a file in it"),
    config("a pipe in place of the YAML", Pipe(), "run.yaml: not a regular file; give a file that can be read twice"),
    config("circular links in place of the YAML", Link('run.yaml'),
        "run.yaml: cannot be opened: Too many levels of symbolic links; give --config the path of a YAML file"),
    config("YAML that is not UTF-8", b'seed: 1\noutput_dir: caf\xe9\n',
        "run.yaml:2:16: byte 0xe9 is not UTF-8; convert the file, e.g. with iconv -t UTF-8"),
    config("YAML with a NUL", b'seed: 1\noutput_dir: a\x00b\n',
        "run.yaml:2: not readable as YAML: unacceptable character #x0000: special characters are not allowed; correct the file"),
    config("binary YAML", bytes(range(256)),
        "run.yaml:2:118: byte 0x80 is not UTF-8; convert the file, e.g. with iconv -t UTF-8"),
    config("a list in place of options", '- seed: 1\n',
        "run.yaml:1: holds no `key: value` lines; write one option a line"),
    config("a word in place of options", 'seed\n', "run.yaml:1: holds no `key: value` lines; write one option a line"),
    config("two documents", 'seed: 1\n---\nseed: 2\n',
        "run.yaml:2: not readable as YAML: expected a single document in the stream, but found another document; correct the file"),
    config("a bracket that does not close", 'seed: 1\ntrain_file: [a.txt\n',
        "run.yaml:3: not readable as YAML: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'; correct the file"),
    config("a tab", 'seed: 1\n\tmax_steps: 2\n',
        "run.yaml:2: not readable as YAML: while scanning for the next token, found character '\\t' that cannot start any token; correct the file"),
    config("an unknown key", 'seed: 1\nmax_step: 7\n',
        "run.yaml:2: unknown option 'max_step'; did you mean max_steps?"),
    config("an unknown key without a similar one", 'seed: 1\nxyzzy: 7\n',
        "run.yaml:2: unknown option 'xyzzy'; --help lists every flag"),
    config("a key twice", 'seed: 1\nmax_steps: 3\nseed: 2\n',
        "run.yaml:3: 'seed' is given twice, first in line 1; remove one of them"),
    config("a key that is a list", '? [seed, data_seed]\n: 1\n',
        "run.yaml:1: unknown option '?'; --help lists every flag"),
    config("a config in a config", 'config: other.yaml\n',
        "run.yaml:1: config is no option of a run; remove this line"),
    config("help in a config", 'help: true\n', "run.yaml:1: help is no option of a run; remove this line"),
    config("an object of Python", "output_dir: !!python/object/apply:os.system ['touch hacked']\n",
        "run.yaml:1: not readable as YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:python/object/apply:os.system'; correct the file"),
    config("a name of Python", 'output_dir: !!python/name:os.system\n',
        "run.yaml:1: not readable as YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:python/name:os.system'; correct the file"),
    config("nested YAML aliases", 'a: &a [x, x]\nb: &b [*a, *a]\ntrain_file: [*b, *b]\n',
        "run.yaml:2: not readable as YAML: an alias is not taken; correct the file"),
    config("10,000 brackets", 'train_file: ' + '[' * 10000 + '\n',
        "run.yaml: nested too deeply; write one option a line"),
    config("a list in a list", 'train_file: [[a.txt]]\n',
        "run.yaml:1: train_file: a list is neither text nor a number; correct this line"),
    config("a list with nothing in it", 'train_file: [~]\n',
        "run.yaml:1: train_file: a NoneType is neither text nor a number; correct this line"),
    config("a number of base 60", 'learning_rate: 1:30\n',
        "run.yaml:1: argument --learning_rate: invalid float value: '1:30'; correct this line"),
    config("a number that is a word, in line 3", 'seed: 1\n\nmax_steps: many\n',
        "run.yaml:3: argument --max_steps: invalid int value: 'many'; correct this line"),
    config("a list for a number", 'max_steps: [1, 2]\n', "run.yaml:1: max_steps takes one value; correct this line"),
    config("a mapping for a number", 'max_steps: {a: 1}\n',
        "run.yaml:1: argument --max_steps: invalid int value: '{\"a\": 1}'; correct this line"),
    config("an empty text", "seed: 1\noutput_dir: ''\n", "run.yaml:2: an empty value; correct this line"),
    config("an option as a value", 'output_dir: --overwrite_output_dir\nmax_steps: x\n',
        "run.yaml:2: argument --max_steps: invalid int value: 'x'; correct this line"),
    config("a missing text file named in the YAML", 'train_file: [good/text.txt, missing.txt]\nconfig_name: good/model.json\n',
        "missing.txt: no such file; check the path (globs need quotes)"),
    config("YAML of another recipe", 'vocab_size: 100\n',
        "run.yaml:1: unknown option 'vocab_size'; --help lists every flag", "finetune_classification"),
]

FILES = [
    text("no such file", "a.txt", None, "a.txt: no such file; check the path (globs need quotes)"),
    text("a glob without matches", "*.txt", None, "*.txt: no such file; check the path (globs need quotes)"),
    text("an empty file", "a.txt", "", "a.txt: the file is empty; give a file that holds text"),
    text("only white space", "a.txt", '\n  \n\t\n', "a.txt: no text in it; give files that hold text"),
    text("a folder in place of text", "a.txt", Folder(),
        "a.txt: a folder; name files, e.g. 'a.txt/*.txt' (pretrain.py also takes one folder made by prepare.py)"),
    text("a pipe in place of text", "a.txt", Pipe(), "a.txt: not a regular file; give a file that can be read twice"),
    text("circular links in place of text", "a.txt", Link('a.txt'),
        "a.txt: cannot be opened: Too many levels of symbolic links; check the path (globs need quotes)"),
    text("a link to nothing", "a.txt", Link('gone.txt'), "a.txt: no such file; check the path (globs need quotes)"),
    pretrain("a device in place of text", "--train_file /dev/zero",
        "/dev/zero: not a regular file; give a file that can be read twice"),
    text("another kind of file", "a.docx", "text",
        "a.docx: unknown kind '.docx'; use .txt .jsonl .json .parquet .csv .tsv, also .gz or .xz"),
    text("gzip without its suffix", "a.txt", gzip.compress(b'text. ' * 99),
        "a.txt: it begins like gzip, and not like text; unpack or convert it, or name it as what it is (.gz, .xz, .parquet)"),
    text("zip without its suffix", "a.txt", b'PK\x03\x04' + bytes(99),
        "a.txt: it begins like zip, and not like text; unpack or convert it, or name it as what it is (.gz, .xz, .parquet)"),
    text("Parquet without its suffix", "a.txt", parquet(text=['a b. c d.']),
        "a.txt: it begins like Parquet, and not like text; unpack or convert it, or name it as what it is (.gz, .xz, .parquet)"),
    text("a pickle", "a.txt", b'\x80\x04\x95',
        "a.txt: it begins like a pickle, and not like text; unpack or convert it, or name it as what it is (.gz, .xz, .parquet)"),
    text("a PDF", "a.txt", b'%PDF-1.7\n',
        "a.txt: it begins like PDF, and not like text; unpack or convert it, or name it as what it is (.gz, .xz, .parquet)"),
    text("UTF-16", "a.txt", 'some text'.encode('utf-16'),
        "a.txt: it begins like UTF-16, and not like text; unpack or convert it, or name it as what it is (.gz, .xz, .parquet)"),
    text("Latin-1", "a.txt", b'first line\na caf\xe9 here\n',
        "a.txt:2:6: byte 0xe9 is not UTF-8; convert the file, e.g. with iconv -t UTF-8"),
    text("a cut-off character", "a.txt", 'café'.encode()[:-1],
        "a.txt:1:4: byte 0xc3 is not UTF-8; convert the file, e.g. with iconv -t UTF-8"),
    text("Latin-1 after 5 MB in a line", "a.jsonl", json.dumps({'text': LONG}).encode() + b'\n\xff\n',
        "a.jsonl:2:1: byte 0xff is not UTF-8; convert the file, e.g. with iconv -t UTF-8", later=True),
    text("plain text named .gz", "a.txt.gz", b'plain text\n',
        "a.txt.gz:1: cannot be decompressed: Not a gzipped file (b'pl'); fetch the file again"),
    text("plain text named .xz", "a.txt.xz", b'plain text\n',
        "a.txt.xz:1: cannot be decompressed: Input format not supported by decoder; fetch the file again"),
    text("gzip cut off", "a.txt.gz", gzip.compress(TEXT.encode())[:-20],
        "a.txt.gz:97: cannot be decompressed: Compressed file ended before the end-of-stream marker was reached; fetch the file again"),
    text("xz cut off", "a.txt.xz", lzma.compress(TEXT.encode())[:-20],
        "a.txt.xz:99: cannot be decompressed: Compressed file ended before the end-of-stream marker was reached; fetch the file again"),
    text("plain text named .parquet", "a.parquet", b'plain text, long enough to have a footer\n',
        "a.parquet: not a Parquet file: Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file; fetch it again"),
    text("Parquet cut off", "a.parquet", parquet(text=[TEXT])[:-30],
        "a.parquet: not a Parquet file: Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file; fetch it again"),
    text("Parquet without text", "a.parquet", parquet(count=[1, 2]),
        "a.parquet: which column holds the text?; --text_column, one of: count"),
    text("Parquet of two texts", "a.parquet", parquet(title=['a'], body=['b']),
        "a.parquet: which column holds the text?; --text_column, one of: title, body"),
    text("Parquet of another column", "a.parquet", parquet(text=['a']),
        "a.parquet: no column 'Text'; did you mean 'text'? --text_column, one of: text", "--text_column Text"),
    text("lines that are not JSON", "a.jsonl", lines('{"text": "a. b."}', 'nope'),
        "a.jsonl:2:1: not JSON: Expecting value; write one object a line"),
    text("JSON cut off", "a.jsonl", lines('{"text": "a. b."}', '{"text": "c'),
        "a.jsonl:2:10: not JSON: Unterminated string starting at; write one object a line"),
    text("a list in place of an object", "a.jsonl", lines('["a"]'),
        "a.jsonl:1: not a JSON object; write one object a line"),
    text("a number in place of text", "a.jsonl", lines('{"text": "a. b."}', '{"text": 7}'),
        "a.jsonl:2: column 'text' is not text; put text there, or name another column by --text_column"),
    text("a list in place of text", "a.jsonl", lines('{"text": ["a", "b"]}'),
        "a.jsonl:1: column 'text' is not text; put text there, or name another column by --text_column"),
    text("NaN in place of text", "a.jsonl", lines('{"text": "a. b."}', '{"text": NaN}'),
        "a.jsonl:2: column 'text' is not text; put text there, or name another column by --text_column"),
    text("ragged rows", "a.jsonl", lines('{"text": "a. b."}', '{"txt": "c. d."}'),
        "a.jsonl:2: no column 'text'; did you mean 'txt'? --text_column, one of: txt"),
    text("which of two columns", "a.jsonl", lines('{"title": "a", "body": "b"}'),
        "a.jsonl:1: which column holds the text?; --text_column, one of: title, body"),
    text("another column", "a.jsonl", lines('{"body": "a. b."}'),
        "a.jsonl:1: no column 'boddy'; did you mean 'body'? --text_column, one of: body", "--text_column boddy"),
    text("JSON of 100,000 brackets", "a.jsonl", '[' * 100000,
        "a.jsonl:1: not JSON: maximum recursion depth exceeded while decoding a JSON array from a unicode string; correct the line"),
    text("a number of 5,000 digits", "a.jsonl", f"""{{"text": {'9' * 5000}}}\n""",
        "a.jsonl:1: not JSON: Exceeds the limit (4300 digits) for integer string conversion: value has 5000 digits; correct the line"),
    text("a .csv of semicolons", "a.csv", lines('text;label', 'a b.;1'),
        "a.csv: the header has one column, and holds ';'; separate the columns by commas, or begin a table of texts alone with the line `text`"),
    text("a .csv of tabs", "a.csv", lines('text\tlabel', 'a b.\t1'),
        "a.csv: the header has one column, and holds a tab; name the file .tsv, or begin a table of texts alone with the line `text`"),
    text("a table with a column twice", "a.csv", lines('text,label,text', 'a b.,1,c d.'),
        "a.csv: two columns are called 'text'; rename one of them"),
    text("three documents, two to hold out", "a.txt", 'One. Two.\n\nThree. Four.\n\nFive. Six.\n',
        "a.txt: too few documents (3) to train on and to hold two of them out; separate documents by blank lines, or give more text"),
    pretrain("one document for next sentences", "--train_file a.txt --validation_file good/text.txt",
        "a.txt: next-sentence prediction needs at least 2 documents, and the text has 1; separate documents by blank lines, or give more text", {'a.txt': 'One document. Of two sentences.\n'}),
    pretrain("a long document alone", "--train_file a.txt --validation_file good/text.txt",
        "corpus: next-sentence prediction needs at least 2 documents, and the text has 1; separate documents by blank lines, or pass --nsp false", {'a.txt': 'A sentence of some words. ' * 12000}, later=True),
    pretrain("a valid and a missing file", "--train_file good/text.txt b.txt",
        "b.txt: no such file; check the path (globs need quotes)"),
    pretrain("missing held-out text", "--train_file good/text.txt --validation_file v.txt",
        "v.txt: no such file; check the path (globs need quotes)"),
    pretrain("held-out text that is empty", "--train_file good/text.txt --validation_file v.txt",
        "v.txt: no text in it; give files that hold text", {'v.txt': ' \n'}),
    pretrain("held-out text that is trained on", "--train_file good/text.txt --validation_file ./good/../good/*.txt",
        "good/text.txt: --train_file and --validation_file both name it; hold other text out, or leave --validation_file out"),
    pretrain("held-out text without training text", "--validation_file good/text.txt",
        "--validation_file: nothing to train on is named; give --train_file too"),
    pretrain("a folder of text", "--train_file texts",
        "texts: a folder; name files, e.g. 'texts/*.txt' (pretrain.py also takes one folder made by prepare.py)", {'texts/a.txt': TEXT}),
    pretrain("a Hub dataset without network", "--dataset_name no/such",
        "no/such: cannot be read: Couldn't reach 'no/such' on the Hub (OfflineModeIsEnabled); check the id, --dataset_config_name and the network, or give --train_file", later=True),
    pretrain("a prepared corpus of another tokenizer", "--train_file good/corpus",
        "good/corpus: it was prepared with another tokenizer; prepare all text with one tokenizer", later=True),
    Bad("a prepared corpus, prepared again", "prepare", "--train_file good/corpus --output_dir out",
        "good/corpus: a prepared corpus, and not text; give the files that it was made from"),
    Bad("more characters than pieces", "train_tokenizer", "--train_file good/text.txt --vocab_size 20 --limit_alphabet 9 --output_dir out",
        "--limit_alphabet: a vocabulary of 20 pieces holds 7 characters, each as start and inside of a word; give fewer, or a larger --vocab_size", later=True),
    Bad("a vocabulary without characters", "train_tokenizer", "--train_file good/text.txt --vocab_size 6 --output_dir out",
        "--vocab_size: 6 pieces do not hold a single character; give 7 or more", later=True),
    Bad("a vocabulary of a prepared corpus", "train_tokenizer", "--train_file good/corpus --output_dir out",
        "good/corpus: a prepared corpus, and not text; its tokenizer is in its folder tokenizer/"),
    Bad("a prepared corpus whose manifest is cut off", "pretrain", "--config_name good/model.json --max_seq_length 32 --train_file corpus",
        "corpus/manifest.json: not a prepared corpus: Expecting ',' delimiter: line 1 column 13 (char 12); run prepare.py again", {'corpus': Changed('corpus', {'manifest.json': '{"format": 2'})}),
    Bad("a prepared corpus without a shard", "pretrain", "--config_name good/model.json --max_seq_length 32 --train_file corpus",
        "corpus/data-00000.arrow: the shard is not there; run the prepare.py command again: it makes what is missing", {'corpus': Changed('corpus', {'data-00000.arrow': None})}),
    Bad("a prepared corpus with a short shard", "pretrain", "--config_name good/model.json --max_seq_length 32 --train_file corpus",
        "corpus/data-00000.arrow: not 8608 bytes long; run the prepare.py command again: it makes what is missing", {'corpus': Changed('corpus', {'data-00000.arrow': b'short'})}),
    Bad("a prepared corpus of an older format", "pretrain", "--config_name good/model.json --max_seq_length 32 --train_file corpus",
        "corpus/manifest.json: not a prepared corpus: format 1, and not 2; run prepare.py again", {'corpus': Changed('corpus', {'manifest.json': '{"format": 1, "shards": []}'})}),
    Bad("an incomplete corpus", "pretrain", "--config_name good/model.json --max_seq_length 32 --train_file corpus",
        "corpus: the corpus is incomplete; run the prepare.py command again", {'corpus': Changed('corpus', {'manifest.json': None})}),
    Bad("no such text for a vocabulary", "train_tokenizer", "--train_file a.txt --output_dir out",
        "a.txt: no such file; check the path (globs need quotes)"),
    Bad("only white space for a vocabulary", "train_tokenizer", "--train_file a.txt --output_dir out",
        "a.txt: no text in it; give files that hold text", {'a.txt': ' \n \n'}),
    Bad("Latin-1 for a vocabulary", "train_tokenizer", "--train_file a.txt --output_dir out",
        "a.txt:1:4: byte 0xe9 is not UTF-8; convert the file, e.g. with iconv -t UTF-8", {'a.txt': b'caf\xe9\n'}),
    Bad("no such text to prepare", "prepare", "--train_file a.txt --output_dir out",
        "a.txt: no such file; check the path (globs need quotes)"),
    Bad("an empty file to prepare", "prepare", "--train_file a.txt --output_dir out",
        "a.txt: the file is empty; give a file that holds text", {'a.txt': ''}),
    Bad("Latin-1 late in a file", "prepare", "--train_file a.txt --output_dir out --tokenizer_name good/vocab.txt",
        "a.txt:19801:4: byte 0xe9 is not UTF-8; convert the file, e.g. with iconv -t UTF-8", {'a.txt': (TEXT + '\n').encode() * 200 + b'caf\xe9\n'}, later=True, leaves=('out',)),
    Bad("missing text to check", "prepare", "--check true --train_file a.txt",
        "a.txt: no such file; check the path (globs need quotes)"),
    Bad("a URL without a server", "prepare", "--output_dir out --tokenizer_name good/vocab.txt --train_file http://127.0.0.1:9/a.txt",
        "http://127.0.0.1:9/a.txt: cannot be read: not found, or the server does not answer; check the address and the network", later=True, leaves=('out',)),
]

TOKENIZERS = [
    vocabulary("no such vocabulary", None, "v.txt: no such file or folder; check the path"),
    vocabulary("an empty vocabulary", "",
        "v.txt: [PAD] [UNK] [CLS] [SEP] [MASK] missing; add the special tokens, one a line"),
    vocabulary("a vocabulary without [MASK]", lines('[PAD]', '[UNK]', '[CLS]', '[SEP]', 'a'),
        "v.txt: [MASK] missing; add the special tokens, one a line"),
    vocabulary("a piece twice", lines(*VOCABULARY, 'a'), "v.txt:79: 'a' occurs twice; keep one piece a line, once"),
    vocabulary("a vocabulary in Latin-1", lines(*SPECIALS).encode() + b'\xe9\n',
        "v.txt:6:1: byte 0xe9 is not UTF-8; convert the file, e.g. with iconv -t UTF-8"),
    vocabulary("a pipe in place of a vocabulary", Pipe(),
        "v.txt: not a regular file; give a file that can be read twice"),
    vocabulary("a binary vocabulary", bytes(range(256)) * 4,
        "v.txt:2:118: byte 0x80 is not UTF-8; convert the file, e.g. with iconv -t UTF-8"),
    vocabulary("an empty folder in place of a vocabulary", Folder(),
        "v.txt: no tokenizer in it; give a folder with tokenizer.json or vocab.txt"),
    pretrain("a tokenizer whose JSON is cut off", "--train_file good/text.txt --tokenizer_name t",
        "t: no tokenizer can be loaded from it: Expecting property name enclosed in double quotes: line 1 column 2 (char 1); give a folder with tokenizer.json, a Hub id or a vocab.txt", {'t': Changed('bert', {'tokenizer.json': '{'})}),
    pretrain("a tokenizer.json of another format", "--train_file good/text.txt --tokenizer_name t",
        "t: no tokenizer can be loaded from it: no 'added_tokens'; give a folder with tokenizer.json, a Hub id or a vocab.txt", {'t': Changed('bert', {'tokenizer.json': '{"version": "1.0"}'})}),
    pretrain("a tokenizer of an unknown class", "--train_file good/text.txt --tokenizer_name t",
        "t: the tokenizer has no [PAD] token; choose a BERT tokenizer", {'t': Changed('bert', {'tokenizer_config.json': '{"tokenizer_class": "Nope"}'})}),
    pretrain("tokenizer_config.json without a vocabulary", "--train_file good/text.txt --tokenizer_name t",
        "t: no tokenizer in it; give a folder with tokenizer.json or vocab.txt", {'t/tokenizer_config.json': '{}'}),
    pretrain("an option that a saved tokenizer contradicts", "--train_file good/text.txt --tokenizer_name good/bert --do_lower_case false",
        "good/bert: the saved tokenizer has do_lower_case true, which --do_lower_case does not change; leave the option out, or train another vocabulary"),
    pretrain("a tokenizer larger than the model", "--train_file good/text.txt --model_name_or_path good/bert --tokenizer_name v.txt",
        "v.txt: the tokenizer's ids reach 577, the model has 200 embeddings; use the model's own tokenizer, or train from scratch with --config_name", {'v.txt': lines(*VOCABULARY, *(f'w{i}' for i in range(500)))}),
    tune("an invalid tokenizer for a classifier", "--train_file good/rows.tsv --tokenizer_name v.txt",
        "v.txt: [PAD] [UNK] [CLS] [SEP] [MASK] missing; add the special tokens, one a line", {'v.txt': 'a\n'}),
    Bad("an invalid vocabulary for prepare.py", "prepare", "--train_file good/text.txt --output_dir out --tokenizer_name v.txt",
        "v.txt: [PAD] [UNK] [CLS] [SEP] [MASK] missing; add the special tokens, one a line", {'v.txt': 'a\n'}),
]

MODELS = [
    pretrain("a missing model file", "--train_file good/text.txt --config_name m.json",
        "m.json: no such file; give a BERT's configuration, e.g. configs/model/mini.json"),
    Bad("no model is named", "pretrain", "--train_file good/text.txt --output_dir out",
        "--config_name: no model is named; give e.g. configs/model/mini.json"),
    model("a folder in place of a model", Folder(), "m.json: a folder, and not a file; name a file in it"),
    model("a pipe in place of a model", Pipe(), "m.json: not a regular file; give a file that can be read twice"),
    model("an empty model", "", "m.json:1:1: not JSON: Expecting value; correct the file"),
    model("a model that is a list", "[]", "m.json:1: not a JSON object; write {\"hidden_size\": 256, …}"),
    model("a model cut off", shape()[:60], "m.json:4:16: not JSON: Expecting value; correct the file"),
    model("a model in Latin-1", b'{"hidden_act": "caf\xe9"}',
        "m.json:1:20: byte 0xe9 is not UTF-8; convert the file, e.g. with iconv -t UTF-8"),
    model("a model of 100,000 brackets", '[' * 100000,
        "m.json: not JSON: maximum recursion depth exceeded while decoding a JSON array from a unicode string; correct the file"),
    model("a number of a model as text", shape(hidden_size='32'),
        "m.json:4: hidden_size is '32', and not a whole number above 0; correct this line"),
    model("a model of half a layer", shape(num_hidden_layers=1.5),
        "m.json:5: num_hidden_layers is 1.5, and not a whole number above 0; correct this line"),
    model("a model of no layers", shape(num_hidden_layers=0),
        "m.json:5: num_hidden_layers is 0, and not a whole number above 0; correct this line"),
    model("a model of negative width", shape(hidden_size=-32),
        "m.json:4: hidden_size is -32, and not a whole number above 0; correct this line"),
    model("a model of null heads", '{"num_attention_heads": null}',
        "m.json:1: num_attention_heads is None, and not a whole number above 0; correct this line"),
    model("a model of true heads", shape(num_attention_heads=True),
        "m.json:6: num_attention_heads is True, and not a whole number above 0; correct this line"),
    model("a width that the heads do not divide", shape(hidden_size=30, num_attention_heads=4),
        "m.json:4: hidden_size 30 is not a multiple of num_attention_heads 4; change one of them"),
    model("a width of 20 digits", shape(hidden_size=10 ** 20),
        "m.json:4: hidden_size is 100000000000000000000, and not a whole number above 0; correct this line"),
    model("dropout of a model above 1", shape(hidden_dropout_prob=1.5),
        "m.json:10: hidden_dropout_prob is 1.5, and not a number from 0 to below 1; correct this line"),
    model("dropout of a model that is NaN", shape(hidden_dropout_prob=float('nan')),
        "m.json:10: hidden_dropout_prob is nan, and not a number from 0 to below 1; correct this line"),
    model("an unknown activation", shape(hidden_act='gleu'),
        "m.json:10: hidden_act 'gleu' is not known; did you mean 'gelu'? (the paper's: gelu)"),
    model("another architecture", shape(model_type='gpt2'),
        "m.json:2: model_type is 'gpt2', and not 'bert'; give a BERT's configuration"),
    model("a misspelt key of a model", shape(hidden_size=None, hiden_size=32),
        "m.json:9: unknown key 'hiden_size'; did you mean 'hidden_size'?"),
    model("a key of a model twice", '{\n"hidden_size": 32,\n"hidden_size": 64\n}',
        "m.json:3: 'hidden_size' is given twice; remove one of them"),
    model("a model larger than the disk", shape(hidden_size=2 ** 20, intermediate_size=2 ** 24, num_hidden_layers=99),
        "out: two checkpoints take 94,100,669.26 GB, and <number> GB are free; free some space, or give another --output_dir"),
    pretrain("a misspelt checkpoint folder", "--train_file good/text.txt --model_name_or_path good/brt",
        "good/brt: no such file or folder; check the path"),
    pretrain("a missing checkpoint folder", "--train_file good/text.txt --model_name_or_path ./nope",
        "./nope: no such file or folder; check the path"),
    pretrain("a file in place of a checkpoint", "--train_file good/text.txt --model_name_or_path good/model.json",
        "good/model.json: not a folder of a checkpoint; give the folder that holds it"),
    pretrain("a checkpoint without a model", "--train_file good/text.txt --model_name_or_path b",
        "b/config.json: no such file; give a BERT's configuration, e.g. configs/model/mini.json", {'b': Changed('bert', {'config.json': None})}),
    pretrain("a checkpoint without weights", "--train_file good/text.txt --model_name_or_path b",
        "b: no model.safetensors; convert it where you trust it: load it with transformers and call save_pretrained", {'b': Changed('bert', {'model.safetensors': None})}, later=True),
    pretrain("a checkpoint whose weights are cut off", "--train_file good/text.txt --model_name_or_path b",
        "b/model.safetensors: not a safetensors file: Error while deserializing header: invalid header length; give a whole checkpoint; pickles are not read", {'b': Changed('bert', {'model.safetensors': b'\x10\x00\x00\x00\x00\x00\x00\x00{'})}, later=True),
    pretrain("a checkpoint of another architecture", "--train_file good/text.txt --model_name_or_path b",
        "b/config.json:1: model_type is 'gpt2', and not 'bert'; give a BERT's configuration", {'b': Changed('bert', {'config.json': '{"model_type": "gpt2"}'})}),
    pretrain("a checkpoint too short for the sequences", "--train_file good/text.txt --model_name_or_path good/bert --max_seq_length 128",
        "good/bert/config.json:18: sequence length 128 is beyond the model's 64 positions; lower --max_seq_length / --long_seq_length, or raise max_position_embeddings in the model JSON"),
    Bad("fine-tuning without a checkpoint", "finetune_classification", "--train_file good/rows.tsv --output_dir out",
        "--model_name_or_path: no checkpoint is named; give a pre-trained BERT"),
    tune("a missing checkpoint folder for fine-tuning", "--train_file good/rows.tsv --model_name_or_path ./nope",
        "./nope: no such file or folder; check the path"),
    tune("a checkpoint to tune, not in the Hub", "--train_file good/rows.tsv --model_name_or_path no/such",
        "no/such: it is not in the cache of this machine, and the Hub cannot be reached (HF_HUB_OFFLINE is set); check the id and the network, or give a folder", later=True),
    tune("a checkpoint to tune without weights", "--train_file good/rows.tsv --model_name_or_path b",
        "b: no model.safetensors; convert it where you trust it: load it with transformers and call save_pretrained", {'b': Changed('bert', {'model.safetensors': None})}, later=True),
    tune("a checkpoint to tune whose weights are cut off", "--train_file good/rows.tsv --model_name_or_path b",
        "b/model.safetensors: not a safetensors file: Error while deserializing header: invalid header length; give a whole checkpoint; pickles are not read", {'b': Changed('bert', {'model.safetensors': b'\x10\x00\x00\x00\x00\x00\x00\x00{'})}, later=True),
    tune("texts longer than the positions", "--train_file good/rows.tsv --max_seq_length 512",
        "good/bert/config.json:18: sequence length 512 is beyond the model's 64 positions; lower --max_seq_length / --long_seq_length, or raise max_position_embeddings in the model JSON"),
]

ROWS_READ = [
    Bad("no rows named", "finetune_classification", TUNE,
        "--train_file: no data are named; give --train_file, --dataset_name or --task"),
    tune("another number of labels than the task has", "--task mrpc --train_file a.tsv",
        "a.tsv: 3 labels, and the task mrpc has 2; leave --task out, or give rows of its labels: not_equivalent, equivalent",
        {"a.tsv": "label\tsentence1\tsentence2\n" + "".join(f"{kind}\tsee a {word}\tno {word}\n" for word in _WORDS[:6] for kind in "xyz")}),
    tune("an unknown task", "--task spamm", "--task: unknown task 'spamm'; did you mean 'spam'?"),
    tune("test rows without training rows", "--test_file good/rows.tsv", "--train_file: nothing to train on is named; give it too"),
    tune("no such rows", "--train_file a.csv", "a.csv: no such file; check the path (globs need quotes)"),
    tune("a folder of rows", "--train_file d",
        "d: a folder without train file and without text files by class; name the files, e.g. 'd/*.csv', or give each class a subfolder of .txt files", {'d/a.csv': 'text,label\n'}),
    tune("a folder of test rows alone", "--train_file d",
        "d: no train file in the folder; name the files by --train_file, --validation_file and --test_file", {'d/test.csv': 'text,label\n'}),
    tune("a file of a class in Latin-1", "--train_file d",
        "d/spam/1.txt:1:4: byte 0xe9 is not UTF-8; --encoding latin-1, if that is what it is", {'d/spam/1.txt': b'caf\xe9', 'd/ham/1.txt': 'tea'}),
    rows("an empty file of rows", "a.csv", "", "a.csv: the file is empty; give a file that holds text"),
    rows("a header without rows", "a.csv", 'text,label\n', "a.csv: no rows in it; give a file with rows of text and label"),
    rows("another kind of rows", "a.xlsx", b'PK\x03\x04',
        "a.xlsx: unknown kind '.xlsx'; use .csv .tsv .txt .jsonl .json .parquet, also .gz or .xz"),
    rows("a spreadsheet named .csv", "a.csv", b'PK\x03\x04' + bytes(99),
        "a.csv: it begins like zip, and not like text; unpack or convert it, or name it as what it is (.gz, .xz, .parquet)"),
    rows("a quote that does not close", "a.csv", 'text,label\n"x,1\n',
        "a.csv:2: not CSV: unexpected end of data; check the quotes of the row: inside a quoted field they are doubled"),
    rows("a quote amid a field", "a.csv", 'text,label\n"x"y,1\n',
        "a.csv:2: not CSV: ',' expected after '\"'; check the quotes of the row: inside a quoted field they are doubled"),
    rows("a field too few", "a.csv", 'text,label\nx,1\ny\n', "a.csv:3: 1 fields instead of 2; correct the row"),
    rows("a field too many", "a.csv", 'text,label\nx,1\ny,0,7\n', "a.csv:3: 3 fields instead of 2; correct the row"),
    rows("a row without a label", "a.csv", 'text,label\nx,1\ny,\n',
        "a.csv:3: the row has no 'label'; label it or remove it"),
    rows("a row with a blank label", "a.csv", 'text,label\nx,1\ny,  \n',
        "a.csv:3: the row has no 'label'; label it or remove it"),
    rows("a null label", "a.jsonl", lines('{"text": "x", "label": 1}', '{"text": "y", "label": null}'),
        "a.jsonl:2: the row has no 'label'; label it or remove it"),
    rows("a label that is NaN", "a.jsonl", lines('{"text": "x", "label": 1}', '{"text": "y", "label": NaN}'),
        "a.jsonl:2: the row has no 'label'; label it or remove it"),
    rows("a label that is a list", "a.jsonl", lines('{"text": "x", "label": 1}', '{"text": "y", "label": [1]}'),
        "a.jsonl:2: 'label' is not a name or a number; give each row one label"),
    rows("a row without a text", "a.jsonl", lines('{"text": "x", "label": 1}', '{"label": 0}'),
        "a.jsonl:2: the row has no text 'text'; correct or remove it"),
    rows("a text that is a number", "a.jsonl", lines('{"text": "x", "label": 1}', '{"text": 5, "label": 0}'),
        "a.jsonl:2: the row has no text 'text'; correct or remove it"),
    rows("one label", "a.csv", 'text,label\nx,1\ny,1\n', "a.csv: only one label: 1; give rows of two labels or more"),
    rows("which column holds the label", "a.csv", 'a,b\nx y,p q\nz w,r s\n',
        "a.csv:1: which column holds the label?; --label_column, one of: column_1 (a), column_2 (b)"),
    rows("a header in the middle", "a.csv", 'text,label\nx,1\ntext,label\ny,0\n',
        "a.csv:3: the header comes again; remove the line: files were joined with their headers"),
    rows("two columns of one name", "a.csv", 'text,label,text\nx,1,y\n',
        "a.csv:1: two columns are called 'text'; rename one of them"),
    rows("no text in any row", "a.csv", 'text,label\n,1\n ,0\n', "a.csv: no row has a text; name another --text_column"),
    rows("which columns hold the texts", "a.jsonl", lines(*TWO_TEXTS),
        "a.jsonl:1: which of the texts are meant: title, body?; --text_column title --text_pair_column body for pairs, or --text_column alone"),
    rows("a pair column that is not there", "a.jsonl", lines(*TWO_TEXTS),
        "a.jsonl:1: no column 'bodi'; did you mean 'body'? its columns: title, body, label", "--text_pair_column bodi"),
    rows("one column for two purposes", "a.jsonl", lines(*TWO_TEXTS),
        "--text_column, --text_pair_column, --label_column: one column is named twice; name a column for each", "--text_column body --text_pair_column body"),
    rows("labels that were measured", "a.csv", 'text,score\nx,1\ny,2.5\n',
        "a.csv:1: the label column 'score' holds numbers such as 2.5; --problem_type regression, or --problem_type single_label_classification if they are classes"),
    rows("text where a number belongs", "a.csv", 'text,label\nx,1\ny,2.5\nz,much\n',
        "a.csv:4: label 'much' is not a number; correct it, or give --problem_type single_label_classification", "--problem_type regression"),
    rows("as many labels as rows", "a.csv", 'text,label\n' + ''.join(f'x{i},y{i}\n' for i in range(21)),
        "a.csv:1: column 'label' has 21 different values in 21 rows; --label_column label, if they are classes, or another of: text, label"),
    rows("every class is rare", "a.csv", 'text,label\nx,1\ny,0\nz,1\n',
        "--drop_rare: fewer than two classes have 2 rows; give 1 or less", "--drop_rare 2"),
    rows("another column of text", "a.csv", 'Text,label\nx,1\ny,0\n',
        "a.csv:1: no column 'text'; did you mean 'Text'? its columns: Text, label", "--text_column text"),
    rows("another column of labels", "a.csv", 'text,label\nx,1\ny,0\n',
        "a.csv:1: no column 'labels'; did you mean 'label'? its columns: text, label", "--label_column labels"),
    rows("rows in Latin-1", "a.csv", b'text,label\ncaf\xe9,1\n',
        "a.csv:2:4: byte 0xe9 is not UTF-8; --encoding latin-1, if that is what it is"),
    rows("rows in Windows-1252", "a.csv", b'text,label\ndon\x92t,1\n',
        "a.csv:2:4: byte 0x92 is not UTF-8; --encoding cp1252, if that is what it is"),
    rows("rows in UTF-16 without a mark", "a.csv", 'text,label\nx,1\n'.encode('utf-16-le'),
        "a.csv:1: a NUL character; if it is text, --encoding utf-16-le"),
    rows("rows in UTF-16, cut off", "a.csv", b'\xff\xfea',
        "a.csv:1:3: byte 0x61 is not UTF-16-LE; its byte-order mark says so: fetch it again"),
    rows("an unknown encoding", "a.csv", 'text,label\nx,1\n',
        "--encoding: unknown encoding 'latni-1'; did you mean 'latin-1'? one that Python knows, e.g. utf-8, utf-16, utf-16-le, utf-16-be, latin-1, cp1252, cp1251, shift_jis, gb18030", "--encoding latni-1"),
    rows("rows that are not JSON", "a.jsonl", lines('{"text": "x", "label": 1}', '{'),
        "a.jsonl:2:2: not JSON: Expecting property name enclosed in double quotes; write one object a line, or an array of objects"),
    rows("an array that is not closed", "a.json", '[{"text": "x", "label": 1},\n{"text": "y", "label": 0}\n',
        "a.json:3: not JSON: the array is not closed; write one object a line, or an array of objects"),
    rows("rows that are no Parquet", "a.parquet", b'PAR1',
        "a.parquet: not a Parquet file: Parquet file size is 4 bytes, smaller than the minimum file footer (8 bytes); fetch it again"),
    rows("rows that differ only in numbers", "a.tsv", ''.join(f'ham\tsee you at {i}\nspam\tprize number {i}\n' for i in range(30)),
        "a.tsv: too few texts of label 'ham' differ in their words (1) to hold 20 % of them out; give more rows, or --validation_file and --test_file", later=True),
    rows("too few rows to split", "a.csv", 'text,label\nx,1\ny,0\n',
        "a.csv: too few texts of label '0' differ in their words (1) to hold 20 % of them out; give more rows, or --validation_file and --test_file", later=True),
    tune("a label that training lacks", "--train_file good/rows.tsv --test_file b.tsv",
        "b.tsv:2: label 'span' is not in the training rows; did you mean 'spam'? correct or remove the row", {'b.tsv': 'ham\tx y\nspan\ty z\nham\tz x\n'}),
    tune("a held-out label that training lacks", "--train_file good/rows.tsv --validation_file b.tsv",
        "b.tsv:2: label 'eggs' is not in the training rows; the labels there: ham, spam; correct or remove the row", {'b.tsv': 'ham\tx y\neggs\ty z\nham\tz x\n'}),
    tune("files whose labels differ", "--train_file good/rows.tsv b.tsv",
        "b.tsv: its labels are '0', '1', and those of good/rows.tsv: ham, spam; give both the same names, or join the files if all are meant", {'b.tsv': '0\tx y\n1\ty z\n0\tz x\n'}),
    tune("labels missing where they are needed", "--train_file a.csv --validation_file b.csv",
        "b.csv:1: no column 'label'; its columns: text", {'a.csv': 'text,label\nx y,ham\ny z,spam\n', 'b.csv': 'text\nz x\n'}),
    tune("a second text missing in the test", "--train_file a.csv --test_file b.csv",
        "b.csv:1: no column 'text_b'; did you mean 'text_a'? its columns: text_a, label", {'a.csv': 'text_a,text_b,label\nx y,y,ham\ny z,z,spam\n', 'b.csv': 'text_a,label\nz x,ham\n'}),
    tune("test rows that are not there", "--train_file good/rows.tsv --test_file b.tsv",
        "b.tsv: no such file; check the path (globs need quotes)"),
    tune("test rows that are trained on", "--train_file good/rows.tsv --test_file a.tsv",
        "good/rows.tsv: --train_file and --test_file both name it; test on other rows, or leave --test_file out", {'a.tsv': Link('good/rows.tsv')}),
    tune("test rows that choose the weights", "--train_file good/rows.tsv --validation_file '*.tsv' --test_file ./a.tsv",
        "a.tsv: --validation_file and --test_file both name it; test on other rows, or leave --test_file out", {'a.tsv': ROWS}),
    tune("a negative share for the test", "--train_file good/rows.tsv --test_split_percentage -1",
        "--test_split_percentage: -1.0 is out of range; give a number above 0 and below 100"),
    tune("every row held out", "--train_file good/rows.tsv --test_split_percentage 60 --validation_split_percentage 50",
        "--test_split_percentage: 110 % of the rows would be held out; leave some to train on"),
    tune("an unknown sampling strategy", "--train_file good/rows.tsv --train_sampling_strategy lucky",
        "command line: argument --train_sampling_strategy: invalid choice: 'lucky'; one of: group_by_length, random, sequential, batch_rebalance"),
]

FOLDERS = [
    pretrain("a file in place of the output folder", "--train_file good/text.txt --output_dir out",
        "out: is a file, and not a folder; give another --output_dir", {'out': 'mine'}),
    pretrain("a file above the output folder", "--train_file good/text.txt --output_dir a/b/out",
        "a: is a file, and not a folder; give another --output_dir", {'a': 'mine'}),
    pretrain("an output folder with other files", "--train_file good/text.txt",
        "out: the output folder holds files that bert_hf did not write; give another --output_dir", {'out/mine.txt': 'mine'}),
    pretrain("overwriting a folder with other files", "--train_file good/text.txt --overwrite_output_dir true",
        "out: --overwrite_output_dir removes only files that bert_hf wrote, and there is no run.json; remove the folder yourself, or give another --output_dir", {'out/mine.txt': 'mine'}),
    pretrain("an output folder that cannot be written", "--train_file good/text.txt --output_dir /dev/null/out",
        "/dev/null: is a file, and not a folder; give another --output_dir"),
    pretrain("a broken link in place of the output folder", "--train_file good/text.txt",
        "out: is a file, and not a folder; give another --output_dir", {'out': Link('gone/out')}),
    pretrain("a pipe in place of the output folder", "--train_file good/text.txt",
        "out: is a file, and not a folder; give another --output_dir", {'out': Pipe()}),
    pretrain("a file in place of the cache", "--train_file good/text.txt --cache_dir c",
        "c: is a file, and not a folder; give another --cache_dir", {'c': 'mine'}),
    Bad("a tokenizer into a full folder", "train_tokenizer", "--train_file good/text.txt --output_dir out",
        "out: the output folder holds files that bert_hf did not write; give another --output_dir", {'out/mine.txt': 'mine'}),
    Bad("a tokenizer over another", "train_tokenizer", "--train_file good/text.txt --output_dir out",
        "out: the output folder is not empty; give another --output_dir, or --overwrite_output_dir", {'out': Changed('bert', {})}),
    Bad("a corpus into a full folder", "prepare", "--train_file good/text.txt --tokenizer_name good/vocab.txt --output_dir out",
        "out: the output folder is not empty; give another --output_dir", {'out/mine.txt': 'mine'}),
    Bad("a corpus over another", "prepare", "--train_file good/text.txt --tokenizer_name good/vocab.txt --output_dir out",
        "out: another corpus is in the folder (other tokenizer, vocab_size); choose another --output_dir, or pass --overwrite_output_dir", {'out': Changed('corpus', {})}),
    Bad("a corpus into a file", "prepare", "--train_file good/text.txt --tokenizer_name good/vocab.txt --output_dir out",
        "out: is a file, and not a folder; give another --output_dir", {'out': 'mine'}),
    tune("a classifier into a full folder", "--train_file good/rows.tsv",
        "out: the output folder holds files that bert_hf did not write; give another --output_dir", {'out/mine.txt': 'mine'}),
    tune("a classifier into a file", "--train_file good/rows.tsv",
        "out: is a file, and not a folder; give another --output_dir", {'out': 'mine'}),
]

STUDIES = [
    Bad("a study without models", "study", "--output_dir out",
        "--models: no model is named; give NAME=PATH, e.g. mini=runs/mini"),
    Bad("a study of folds that are not there", "study", "--models a=good/bert --folds_dir folds --output_dir out",
        "folds: no such folder; give a folder made by split.py: fold-0/train.jsonl, …"),
    Bad("a study into a full folder", "study", "--models a=good/bert --train_file good/rows.tsv --output_dir out",
        "out: the output folder holds files that bert_hf did not write; give another --output_dir", {'out/mine.txt': 'mine'}),
    Bad("a study with an option that the recipe does not have", "study",
        "--models a=good/bert --train_file good/rows.tsv --output_dir out --learning_rte 1",
        "cell a/fold-0/size-all/seed-1: command line: unknown option 'learning_rte'; did you mean learning_rate?"),
    Bad("a study with a seed of the recipe", "study", "--models a=good/bert --train_file good/rows.tsv --seed 3 --output_dir out",
        "--seed: the study sets it for each cell; give --seeds"),
    Bad("a study whose YAML file turns its test rows off", "study",
        "--models a=good/bert --train_file good/rows.tsv --config run.yaml --output_dir out",
        "run.yaml:1: the study sets evaluate_test for each cell; remove it; give --grid", {"run.yaml": "evaluate_test: false\n"}),
    Bad("a study with a subset but without folds", "study",
        "--models a=good/bert --train_file good/rows.tsv --train_sizes 10 --output_dir out",
        "--train_sizes: subsets are drawn from a fold's training rows; give --folds_dir, a folder made by split.py (--folds 1 makes one split)"),
]

_CHOICE = '{"context": "c", "question": "q", "choices": ["x", "y"], "label": %s}'
_CHOOSE = "--model_name_or_path good/bert --max_seq_length 32 --output_dir out --max_steps 2 --train_file a.jsonl"


def choices(name: str, line: str, *rows: str, words: str = "", files: dict | None = None, **options) -> Bad:
    given = {"a.jsonl": lines(*rows), **(files or {})}
    return Bad(name, "finetune_multiple_choice", f"{_CHOOSE} {words}", line, given, **options)


CHOICES = [
    choices("a row without choices",
        "a.jsonl:1: no choices in the columns text; give sent1, sent2, ending0, ending1, … and label; or context, question, choices and label", '{"text": "x"}'),
    choices("one choice", "a.jsonl:1: 1 choices; give two or more", '{"context": "c", "choices": ["x"], "label": 0}'),
    choices("another number of choices", "a.jsonl:2: 3 choices, and 2 in the first training row; give each row the same number",
        _CHOICE % 0, '{"context": "c", "choices": ["x", "y", "z"], "label": 0}'),
    choices("a label beyond the choices", "a.jsonl:2: label 2 is none of the 2 choices; give 0 to 1, or A to B", _CHOICE % 0, _CHOICE % 2),
    choices("a training row without a label", "a.jsonl:2: the row has no label; label it or remove it (test rows need no labels)",
        _CHOICE % 0, _CHOICE % "null"),
    choices("an empty choice", "a.jsonl:1: choice 1 is empty, or no text; correct or remove the row",
        '{"context": "c", "choices": ["x", " "], "label": 0}'),
    choices("a row without a context", "a.jsonl:1: the row has no context and no question; give sent1, sent2, ending0, ending1, … and label; or context, question, choices and label",
        '{"context": "", "choices": ["x", "y"], "label": 0}'),
    choices("one context", "a.jsonl: too few contexts differ (1) to hold 20 % of 3 rows out; give more rows, or --validation_file and --test_file",
        _CHOICE % 0, _CHOICE % 1, _CHOICE % 0),
    choices("an ending that is missing in a CSV", "b.csv:2: choice 1 is empty, or no text; correct or remove the row", _CHOICE % 0,
        words="--validation_file b.csv", files={"b.csv": "sent1,sent2,ending0,ending1,label\na,b,c,,0\n"}),
    choices("another kind of choices", "b.txt: unknown kind '.txt'; use .csv, .tsv or .jsonl, also .gz or .xz", _CHOICE % 0,
        words="--test_file b.txt", files={"b.txt": "x"}),
]

FEATURES = [
    Bad("features without a checkpoint", "extract_features", "--train_file good/text.txt --output_dir out",
        "--model_name_or_path: no checkpoint is named; give a BERT checkpoint"),
    Bad("features without texts", "extract_features", PROBE, "--train_file: no texts are named; give files of them"),
    Bad("features without an output folder", "extract_features", "--model_name_or_path good/bert --train_file good/text.txt",
        "--output_dir: no output folder is named; give one"),
    Bad("features of a layer beyond the last", "extract_features", f"{PROBE} --train_file good/text.txt --layers -1 2",
        "--layers: no layer 2 in a network of 1; give numbers from -2 to 1"),
    Bad("features of a layer twice", "extract_features", f"{PROBE} --train_file good/text.txt --layers 1 -1",
        "--layers: layer 1 is named twice; name each layer once"),
    Bad("features of texts beyond the positions", "extract_features", f"{PROBE} --train_file good/text.txt --max_seq_length 128",
        "good/bert/config.json:18: sequence length 128 is beyond the model's 64 positions; lower --max_seq_length / --long_seq_length, or raise max_position_embeddings in the model JSON"),
    Bad("no texts in a file per run", "extract_features", f"{PROBE} --train_file good/text.txt --texts_per_file 0",
        "arguments: --texts_per_file must be at least 1, not 0; change the option it names"),
    Bad("a column of plain text", "extract_features", f"{PROBE} --train_file good/text.txt --id_column id",
        "good/text.txt: plain text has no columns, and --id_column names one; leave --id_column out, or give .jsonl, .csv, .tsv or .parquet"),
    Bad("a text that is a number, in the last row", "extract_features", f"{PROBE} --train_file a.jsonl",
        "a.jsonl:2: column 'text' is not text; correct the row, or name another column by --text_column", {"a.jsonl": lines('{"text": "x"}', '{"text": 5}')}),
    Bad("a header without texts", "extract_features", f"{PROBE} --train_file a.csv",
        "a.csv: no texts in it; give files that hold text", {"a.csv": "text,label\n"}),
    Bad("features in a folder of other files", "extract_features", f"{PROBE} --train_file good/text.txt",
        "out: the output folder holds files that bert_hf did not write; give another --output_dir", {"out/a.txt": "x"}),
    Bad("features of a checkpoint without weights", "extract_features", f"{PROBE} --train_file good/text.txt --model_name_or_path b",
        "b: no model.safetensors; convert it where you trust it: load it with transformers and call save_pretrained", {"b": Changed("bert", {"model.safetensors": None})}, later=True),
]

_ANSWER = "--model_name_or_path good/bert --max_seq_length 32 --doc_stride 8 --output_dir out --max_steps 2 --train_file a.jsonl"
_QUESTION = '{"id": "%s", "context": "red blue green", "question": "which?", "answers": {"text": ["%s"], "answer_start": [%d]}}'


def questions(name: str, line: str, *rows: str, words: str = "", files: dict | None = None, **options) -> Bad:
    given = {"a.jsonl": lines(*rows), **(files or {})}
    return Bad(name, "finetune_question_answering", f"{_ANSWER} {words}", line, given, **options)


QUESTIONS = [
    questions("an answer that is not in its context", "a.jsonl:1: question q1: its answer 'black' is not in its context; correct or remove the question", _QUESTION % ("q1", "black", 0)),
    questions("a question twice", "a.jsonl:2: question q1 occurs twice (first in a.jsonl:1); give each question its own id", _QUESTION % ("q1", "blue", 4), _QUESTION % ("q1", "red", 0)),
    questions("rows that are no questions", "a.jsonl:1: the row has no 'context' as SQuAD has it; give SQuAD's JSON (data, paragraphs, qas) or JSON lines of id, context, question, answers", '{"text": "x", "label": "y"}'),
    questions("a stride as long as a window", "arguments: --doc_stride 31 must be less than --max_seq_length 32 without its 3 special tokens; change the option it names", _QUESTION % ("q1", "blue", 4), words="--doc_stride 31"),
    questions("no question with an answer", "a.jsonl: no question has an answer; give questions with answers to train on", '{"id": "q", "context": "red", "question": "w", "answers": {"text": [], "answer_start": []}}'),
    questions("a question file that is not JSON", "b.json:1:2: not JSON: Expecting property name enclosed in double quotes; check that the file is complete", "", words="--train_file b.json", files={"b.json": "{"}),
    Bad("predictions for other questions", "evaluate_squad", "a.jsonl p.json", "p.json: no question of the data is in it; give predictions for a.jsonl",
        {"a.jsonl": lines(_QUESTION % ("q1", "blue", 4)), "p.json": '{"q2": "blue"}'}),
    Bad("predictions that are a list", "evaluate_squad", "a.jsonl p.json", "p.json: not a JSON object; give the predictions as one JSON object: question id to answer text",
        {"a.jsonl": lines(_QUESTION % ("q1", "blue", 4)), "p.json": "[]"}),
    Bad("a threshold that is not a number", "evaluate_squad", "a.jsonl p.json --na_prob_thresh nan",
        "--na_prob_thresh: nan is out of range; give a number of at least -1,000,000,000 and at most 1,000,000,000"),
    Bad("no predictions", "evaluate_squad", "a.jsonl p.json", "p.json: no such file; check the path", {"a.jsonl": lines(_QUESTION % ("q1", "blue", 4))}),
]

_TAG = "--model_name_or_path good/bert --max_seq_length 32 --output_dir out --max_steps 2 --train_file a.conll"


def tagged(name: str, line: str, content: str, words: str = "", files: dict | None = None, **options) -> Bad:
    return Bad(name, "finetune_token_classification", f"{_TAG} {words}", line, {"a.conll": content, **(files or {})}, **options)


TAGGED = [
    tagged("a word without a label", "a.conll:2: the line has no word and label; give each line a word first and its label last; a blank line ends a sentence", "red O\nblue\n"),
    tagged("another number of columns", "a.conll:2: 2 columns instead of 3; correct the line", "red X O\nblue O\n"),
    tagged("a file of tagged words without words", "a.conll: no sentences in it; give a file of tagged words", "\n\n"),
    tagged("a tag that training does not have", "b.conll:2: label 'B-B' is not in the training rows; did you mean 'B-A'? correct it or remove the sentence", "red O\nblue B-A\n", "--validation_file b.conll", {"b.conll": "red O\nblue B-B\n"}),
    tagged("a BiLSTM that is not trained", "--lstm_hidden_size: no BiLSTM is trained; give --feature_based too, or leave it out", "red O\nblue B-A\n", "--lstm_hidden_size 8"),
    tagged("words and labels of other numbers", "b.jsonl:1: 2 tokens and 1 ner_tags; correct or remove it", "", "--train_file b.jsonl", {"b.jsonl": lines('{"tokens": ["a", "b"], "ner_tags": ["O"]}')}),
    tagged("one sentence", "a.conll: no two documents, or sentences that differ in their words, of which one can be held out; give more, or --validation_file", "red O\nblue B-A\n"),
]

CASES = [*COMMAND_LINE, *NUMBERS, *CONFIGS, *FILES, *TOKENIZERS, *MODELS, *ROWS_READ, *FOLDERS, *STUDIES, *CHOICES,
         *FEATURES, *QUESTIONS, *TAGGED]
