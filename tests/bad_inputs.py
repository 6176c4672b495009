"""The catalogue of bad input: what a person may hand a recipe, and the one line that answers it.

Data alone; `test_bad_inputs.py` runs it. A case lives in an empty folder of its own, where it is run: paths in the
words and in the answer are relative to that. `good/` in it is a link to good inputs: `text.txt`, `vocab.txt`,
`model.json`, `rows.tsv`, `bert/` (a checkpoint), `corpus/` (prepared text).
"""

import gzip
import io
import json
import lzma
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

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
ROWS = "".join(f"ham\tsee you at {i} then\nspam\twin prize number {i} now\n" for i in range(30))


class Folder:
    """In place of a file."""


class Pipe:
    """That nobody writes into."""


@dataclass(frozen=True)
class Link:
    to: str


@dataclass(frozen=True)
class Changed:
    """The folder `good/NAME`, some files of which are others, or not there (None)."""

    of: str
    files: dict


@dataclass(frozen=True)
class Bad:
    """A case: who is asked, in which words, among which files, and what is answered after `error: `.

    Attributes:
        later: it is known only when the text is opened or the model made, and takes longer.
    """

    name: str
    recipe: str
    words: str | list
    line: str
    files: dict = field(default_factory=dict)
    later: bool = False


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
    return pretrain(f"{option} {value}", f"--train_file good/text.txt --{option} {value}", line)


COMMAND_LINE = [
    pretrain("unknown flag", "--max_stepz 3", ""),
    pretrain("unknown flag with a value in it", "--max_stepz=3", ""),
    pretrain("a word that belongs to nothing", "stray", ""),
    pretrain("a number that is a word", "--max_steps many", ""),
    pretrain("a whole number with a point", "--max_steps 2.5", ""),
    pretrain("a flag without its value", "--max_steps", ""),
    pretrain("neither true nor false", "--nsp maybe", ""),
    pretrain("a choice that is none", "--initializer uniform", ""),
    pretrain("an empty path", "--train_file ''", ""),
    pretrain("an empty output folder", "--output_dir=", ""),
    Bad("a path that is not UTF-8", "pretrain", ["--train_file", "caf\udce9.txt"], ""),
    Bad("a NUL in a path", "pretrain", ["--train_file", "a\0b.txt"], ""),
    Bad("a name of 5,000 letters", "pretrain", ["--train_file", "a" * 5000], ""),
    Bad("a path of 5,000 letters", "pretrain", ["--output_dir", "a/" * 2500], ""),
    pretrain("an integer of 5,000 digits", f"--max_steps {'9' * 5000}", ""),
    pretrain("options as broken JSON", "--lr_scheduler_kwargs '{bad'", ""),
    pretrain("a schedule that is none", "--lr_scheduler_type zigzag --train_file good/text.txt", ""),
    pretrain("an optimizer that is none", "--optim adamm --train_file good/text.txt", ""),
    pretrain("an attention that is none", "--attn_implementation fast --train_file good/text.txt", ""),
    pretrain("a tracker that is not there", "--report_to wandbb --train_file good/text.txt", ""),
    pretrain("both precisions", "--bf16 true --fp16 true --train_file good/text.txt", ""),
    pretrain("a token as a flag", "--hub_token hf_x --train_file good/text.txt", ""),
    pretrain(
        "a repository of a strange name", "--push_to_hub true --hub_model_id a/b/c --train_file good/text.txt", ""
    ),
    pretrain("a push by nobody", "--push_to_hub true --train_file good/text.txt", ""),
    pretrain("a best model without evaluation", "--load_best_model_at_end true --train_file good/text.txt", ""),
    pretrain("a checkpoint that is not there", "--resume_from_checkpoint nope --train_file good/text.txt", ""),
    pretrain("a strategy that is none", "--save_strategy often --train_file good/text.txt", ""),
    Bad("no output folder", "train_tokenizer", "--train_file good/text.txt", ""),
    Bad("no output folder for a corpus", "prepare", "--train_file good/text.txt --tokenizer_name good/vocab.txt", ""),
    Bad("a part that is none", "prepare", "--train_file good/text.txt --output_dir out --shard 3/3", ""),
    Bad("a part of words", "prepare", "--train_file good/text.txt --output_dir out --shard one", ""),
    Bad(
        "a part without duplicates",
        "prepare",
        "--train_file good/text.txt --output_dir out --shard 0/2 --deduplicate near",
        "",
    ),
    Bad(
        "a part that overwrites",
        "prepare",
        "--train_file good/text.txt --output_dir out --shard 0/2 --overwrite_output_dir true",
        "",
    ),
    Bad(
        "duplicates of another kind", "prepare", "--train_file good/text.txt --output_dir out --deduplicate fuzzy", ""
    ),
    Bad(
        "an unknown device",
        "estimate",
        "--config_name good/model.json --max_seq_length 32 --max_steps 10 --device tpu",
        "",
    ),
    Bad(
        "no devices",
        "estimate",
        "--config_name good/model.json --max_seq_length 32 --max_steps 10 --num_devices 0",
        "",
    ),
    Bad(
        "more than all of the peak",
        "estimate",
        "--config_name good/model.json --max_seq_length 32 --max_steps 10 --mfu 2",
        "",
    ),
    Bad(
        "a negative price",
        "estimate",
        "--config_name good/model.json --max_seq_length 32 --max_steps 10 --price_per_hour -1",
        "",
    ),
    Bad("an estimate without steps", "estimate", "--config_name good/model.json --max_seq_length 32", ""),
    Bad(
        "an estimate of raw text",
        "estimate",
        "--config_name good/model.json --max_seq_length 32 --train_file good/text.txt",
        "",
    ),
    Bad(
        "an estimate of a model too short",
        "estimate",
        "--config_name good/model.json --max_steps 10 --max_seq_length 128",
        "",
    ),
    Bad("an estimate of nothing", "estimate", "--max_steps 10", ""),
]

NUMBERS = [
    number("learning_rate", "nan", ""),
    number("learning_rate", "inf", ""),
    number("learning_rate", "-1e-4", ""),
    number("weight_decay", "-0.1", ""),
    number("adam_beta1", "1.0", ""),
    number("adam_beta2", "-0.5", ""),
    number("max_grad_norm", "nan", ""),
    number("warmup_steps", "-10", ""),
    number("warmup_steps", "nan", ""),
    number("max_steps", "0", ""),
    number("max_steps", "-5", ""),
    number("max_steps", "99999999999999999999", ""),
    number("num_train_epochs", "0", ""),
    number("num_train_epochs", "inf", ""),
    number("per_device_train_batch_size", "0", ""),
    number("per_device_train_batch_size", "-8", ""),
    number("per_device_eval_batch_size", "0", ""),
    number("gradient_accumulation_steps", "0", ""),
    number("save_steps", "0", ""),
    number("logging_steps", "-1", ""),
    number("save_total_limit", "0", ""),
    number("dataloader_num_workers", "-1", ""),
    number("seed", "-1", ""),
    number("seed", "99999999999", ""),
    number("mlm_probability", "0", ""),
    number("mlm_probability", "1.5", ""),
    number("mlm_probability", "nan", ""),
    number("max_seq_length", "4", ""),
    number("max_seq_length", "128", ""),
    number("long_seq_length", "16", ""),
    number("long_seq_length", "512", ""),
    number("long_seq_fraction", "1.5", ""),
    number("short_seq_probability", "-0.1", ""),
    number("dropout", "1", ""),
    number("max_eval_samples", "0", ""),
    number("validation_split_percentage", "0", ""),
    number("validation_split_percentage", "100", ""),
    number("num_proc", "0", ""),
    number("num_proc", "1000000", ""),
    number("vocab_size", "3", ""),
    number("vocab_size", "-5", ""),
    number("corpus_cache_gb", "-1", ""),
]

CONFIGS = [
    config("no YAML", None, ""),
    config("a folder in place of the YAML", Folder(), ""),
    config("a pipe in place of the YAML", Pipe(), ""),
    config("links in a circle in place of the YAML", Link("run.yaml"), ""),
    config("YAML that is not UTF-8", b"seed: 1\noutput_dir: caf\xe9\n", ""),
    config("YAML with a NUL", b"seed: 1\noutput_dir: a\0b\n", ""),
    config("binary YAML", bytes(range(256)), ""),
    config("a list in place of options", "- seed: 1\n", ""),
    config("a word in place of options", "seed\n", ""),
    config("two documents", "seed: 1\n---\nseed: 2\n", ""),
    config("a bracket that does not close", "seed: 1\ntrain_file: [a.txt\n", ""),
    config("a tab", "seed: 1\n\tmax_steps: 2\n", ""),
    config("an unknown key", "seed: 1\nmax_step: 7\n", ""),
    config("an unknown key unlike any", "seed: 1\nxyzzy: 7\n", ""),
    config("a key twice", "seed: 1\nmax_steps: 3\nseed: 2\n", ""),
    config("a key that is a list", "? [seed, data_seed]\n: 1\n", ""),
    config("a config in a config", "config: other.yaml\n", ""),
    config("help in a config", "help: true\n", ""),
    config("an object of Python", "output_dir: !!python/object/apply:os.system ['touch hacked']\n", ""),
    config("a name of Python", "output_dir: !!python/name:os.system\n", ""),
    config("a bomb of aliases", "a: &a [x, x]\nb: &b [*a, *a]\ntrain_file: [*b, *b]\n", ""),
    config("10,000 brackets", "train_file: " + "[" * 10_000 + "\n", ""),
    config("a list in a list", "train_file: [[a.txt]]\n", ""),
    config("a date", "output_dir: 2026-01-01\n", ""),
    config("a number that is a word, in line 3", "seed: 1\n\nmax_steps: many\n", ""),
    config("a list for a number", "max_steps: [1, 2]\n", ""),
    config("a mapping for a number", "max_steps: {a: 1}\n", ""),
    config("an empty text", "seed: 1\noutput_dir: ''\n", ""),
    config("a flag smuggled in as a value", "output_dir: --overwrite_output_dir\nmax_steps: x\n", ""),
    config("a file that is none", "train_file: [good/text.txt, missing.txt]\nconfig_name: good/model.json\n", ""),
    config("YAML for another recipe", "vocab_size: 100\n", "", "finetune_classification"),
]

FILES = [
    text("no such file", "a.txt", None, ""),
    text("a glob of nothing", "*.txt", None, ""),
    text("an empty file", "a.txt", "", ""),
    text("nothing but blanks", "a.txt", "\n  \n\t\n", ""),
    text("a folder in place of text", "a.txt", Folder(), ""),
    text("a pipe in place of text", "a.txt", Pipe(), ""),
    text("links in a circle in place of text", "a.txt", Link("a.txt"), ""),
    text("a link to nothing", "a.txt", Link("gone.txt"), ""),
    pretrain("a device in place of text", "--train_file /dev/zero", ""),
    text("another kind of file", "a.docx", "text", ""),
    text("gzip without the name", "a.txt", gzip.compress(b"text. " * 99), ""),
    text("zip without the name", "a.txt", b"PK\x03\x04" + bytes(99), ""),
    text("Parquet without the name", "a.txt", parquet(text=["a b. c d."]), ""),
    text("a pickle", "a.txt", b"\x80\x04\x95", ""),
    text("a PDF", "a.txt", b"%PDF-1.7\n", ""),
    text("UTF-16", "a.txt", "some text".encode("utf-16"), ""),
    text("Latin-1", "a.txt", b"first line\na caf\xe9 here\n", ""),
    text("a cut-off character", "a.txt", "caf\u00e9".encode()[:-1], ""),
    text("Latin-1 after 5 MB in a line", "a.jsonl", json.dumps({"text": LONG}).encode() + b"\n\xff\n", ""),
    text("plain text named .gz", "a.txt.gz", b"plain text\n", ""),
    text("plain text named .xz", "a.txt.xz", b"plain text\n", ""),
    text("gzip cut off", "a.txt.gz", gzip.compress(TEXT.encode())[:-20], ""),
    text("xz cut off", "a.txt.xz", lzma.compress(TEXT.encode())[:-20], ""),
    text("plain text named .parquet", "a.parquet", b"plain text, long enough to have a footer\n", ""),
    text("Parquet cut off", "a.parquet", parquet(text=[TEXT])[:-30], ""),
    text("Parquet without text", "a.parquet", parquet(count=[1, 2]), ""),
    text("Parquet of two texts", "a.parquet", parquet(title=["a"], body=["b"]), ""),
    text("Parquet of another column", "a.parquet", parquet(text=["a"]), "", "--text_column Text"),
    text("no JSON", "a.jsonl", lines('{"text": "a. b."}', "nope"), ""),
    text("JSON cut off", "a.jsonl", lines('{"text": "a. b."}', '{"text": "c'), ""),
    text("a list in place of an object", "a.jsonl", lines('["a"]'), ""),
    text("a number in place of text", "a.jsonl", lines('{"text": "a. b."}', '{"text": 7}'), ""),
    text("a list in place of text", "a.jsonl", lines('{"text": ["a", "b"]}'), ""),
    text("NaN in place of text", "a.jsonl", lines('{"text": "a. b."}', '{"text": NaN}'), ""),
    text("ragged rows", "a.jsonl", lines('{"text": "a. b."}', '{"txt": "c. d."}'), ""),
    text("which of two columns", "a.jsonl", lines('{"title": "a", "body": "b"}'), ""),
    text("another column", "a.jsonl", lines('{"body": "a. b."}'), "", "--text_column boddy"),
    text("JSON of 100,000 brackets", "a.jsonl", "[" * 100_000, ""),
    text("a number of 5,000 digits", "a.jsonl", f'{{"text": {"9" * 5000}}}\n', ""),
    text("one document for next sentences", "a.txt", "One document. Of two sentences.\nAnd a third.\n", ""),
    pretrain("one good file and one that is none", "--train_file good/text.txt b.txt", ""),
    pretrain("held-out text that is not there", "--train_file good/text.txt --validation_file v.txt", ""),
    pretrain(
        "held-out text that is empty", "--train_file good/text.txt --validation_file v.txt", "", {"v.txt": " \n"}
    ),
    pretrain("held-out text alone", "--validation_file good/text.txt", ""),
    pretrain("a folder of text", "--train_file texts", "", {"texts/a.txt": TEXT}),
    pretrain("text in the Hub's absence", "--dataset_name no/such", "", later=True),
    pretrain("a prepared corpus of another tokenizer", "--train_file good/corpus", "", later=True),
    Bad("a prepared corpus, prepared again", "prepare", "--train_file good/corpus --output_dir out", ""),
    Bad("a vocabulary of a prepared corpus", "train_tokenizer", "--train_file good/corpus --output_dir out", ""),
    Bad(
        "a prepared corpus whose manifest is cut off",
        "pretrain",
        "--config_name good/model.json --max_seq_length 32 --train_file corpus",
        "",
        {"corpus": Changed("corpus", {"manifest.json": '{"format": 2'})},
    ),
    Bad(
        "a prepared corpus without a shard",
        "pretrain",
        "--config_name good/model.json --max_seq_length 32 --train_file corpus",
        "",
        {"corpus": Changed("corpus", {"data-00000.arrow": None})},
    ),
    Bad(
        "a prepared corpus with a short shard",
        "pretrain",
        "--config_name good/model.json --max_seq_length 32 --train_file corpus",
        "",
        {"corpus": Changed("corpus", {"data-00000.arrow": b"short"})},
    ),
    Bad(
        "a prepared corpus of an older format",
        "pretrain",
        "--config_name good/model.json --max_seq_length 32 --train_file corpus",
        "",
        {"corpus": Changed("corpus", {"manifest.json": '{"format": 1, "shards": []}'})},
    ),
    Bad(
        "a corpus not prepared to the end",
        "pretrain",
        "--config_name good/model.json --max_seq_length 32 --train_file corpus",
        "",
        {"corpus": Changed("corpus", {"manifest.json": None})},
    ),
    Bad("no such text for a vocabulary", "train_tokenizer", "--train_file a.txt --output_dir out", ""),
    Bad(
        "nothing but blanks for a vocabulary",
        "train_tokenizer",
        "--train_file a.txt --output_dir out",
        "",
        {"a.txt": " \n \n"},
    ),
    Bad(
        "Latin-1 for a vocabulary",
        "train_tokenizer",
        "--train_file a.txt --output_dir out",
        "",
        {"a.txt": b"caf\xe9\n"},
    ),
    Bad("no such text to prepare", "prepare", "--train_file a.txt --output_dir out", ""),
    Bad("an empty file to prepare", "prepare", "--train_file a.txt --output_dir out", "", {"a.txt": ""}),
    Bad(
        "Latin-1 to prepare, far behind",
        "prepare",
        "--train_file a.txt --output_dir out --tokenizer_name good/vocab.txt",
        "",
        {"a.txt": (TEXT + "\n").encode() * 200 + b"caf\xe9\n"},
        later=True,
    ),
    Bad("no text to check", "prepare", "--check true --train_file a.txt", ""),
    Bad(
        "a URL that nobody answers",
        "prepare",
        "--output_dir out --tokenizer_name good/vocab.txt --train_file http://127.0.0.1:9/a.txt",
        "",
        later=True,
    ),
]

TOKENIZERS = [
    vocabulary("no such vocabulary", None, ""),
    vocabulary("an empty vocabulary", "", ""),
    vocabulary("a vocabulary without [MASK]", lines("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"), ""),
    vocabulary("a piece twice", lines(*VOCABULARY, "a"), ""),
    vocabulary("a vocabulary in Latin-1", lines(*SPECIALS).encode() + b"\xe9\n", ""),
    vocabulary("a pipe in place of a vocabulary", Pipe(), ""),
    vocabulary("a binary vocabulary", bytes(range(256)) * 4, ""),
    vocabulary("an empty folder in place of a vocabulary", Folder(), ""),
    pretrain(
        "a tokenizer whose JSON is cut off",
        "--train_file good/text.txt --tokenizer_name t",
        "",
        {"t": Changed("bert", {"tokenizer.json": "{"})},
    ),
    pretrain(
        "a tokenizer whose JSON is another",
        "--train_file good/text.txt --tokenizer_name t",
        "",
        {"t": Changed("bert", {"tokenizer.json": '{"version": "1.0"}'})},
    ),
    pretrain(
        "a tokenizer of no known class",
        "--train_file good/text.txt --tokenizer_name t",
        "",
        {"t/tokenizer_config.json": '{"tokenizer_class": "Nope"}'},
    ),
    pretrain(
        "a tokenizer that brings code",
        "--train_file good/text.txt --tokenizer_name t",
        "",
        {
            "t/tokenizer_config.json": '{"auto_map": {"AutoTokenizer": ["code.T", null]}}',
            "t/code.py": "open('hacked', 'w')",
        },
    ),
    pretrain(
        "a tokenizer larger than the model",
        "--train_file good/text.txt --model_name_or_path good/bert --tokenizer_name v.txt",
        "",
        {"v.txt": lines(*VOCABULARY, *(f"w{i}" for i in range(500)))},
    ),
    tune(
        "a classifier's tokenizer that is none",
        "--train_file good/rows.tsv --tokenizer_name v.txt",
        "",
        {"v.txt": "a\n"},
    ),
    Bad(
        "a vocabulary to prepare with that is none",
        "prepare",
        "--train_file good/text.txt --output_dir out --tokenizer_name v.txt",
        "",
        {"v.txt": "a\n"},
    ),
]

MODELS = [
    pretrain("no model", "--train_file good/text.txt --config_name m.json", ""),
    Bad("no model is named", "pretrain", "--train_file good/text.txt --output_dir out", ""),
    model("a folder in place of a model", Folder(), ""),
    model("a pipe in place of a model", Pipe(), ""),
    model("an empty model", "", ""),
    model("a model that is a list", "[]", ""),
    model("a model cut off", shape()[:60], ""),
    model("a model in Latin-1", b'{"hidden_act": "caf\xe9"}', ""),
    model("a model of 100,000 brackets", "[" * 100_000, ""),
    model("a number of a model as text", shape(hidden_size="32"), ""),
    model("a model of half a layer", shape(num_hidden_layers=1.5), ""),
    model("a model of no layers", shape(num_hidden_layers=0), ""),
    model("a model of negative width", shape(hidden_size=-32), ""),
    model("a model of null heads", '{"num_attention_heads": null}', ""),
    model("a model of true heads", shape(num_attention_heads=True), ""),
    model("heads that do not divide", shape(hidden_size=30, num_attention_heads=4), ""),
    model("a width of 20 digits", shape(hidden_size=10**20), ""),
    model("dropout of a model above 1", shape(hidden_dropout_prob=1.5), ""),
    model("dropout of a model that is NaN", shape(hidden_dropout_prob=float("nan")), ""),
    model("an activation that is none", shape(hidden_act="gleu"), ""),
    model("another architecture", shape(model_type="gpt2"), ""),
    model("a misspelt key of a model", shape(hidden_size=None, hiden_size=32), ""),
    model("a key of a model twice", '{\n"hidden_size": 32,\n"hidden_size": 64\n}', ""),
    model("a model larger than the disk", shape(hidden_size=2**20, intermediate_size=2**24, num_hidden_layers=99), ""),
    pretrain("a checkpoint that is no path", "--train_file good/text.txt --model_name_or_path ./nope", ""),
    pretrain("a file in place of a checkpoint", "--train_file good/text.txt --model_name_or_path good/model.json", ""),
    pretrain(
        "a checkpoint without a model",
        "--train_file good/text.txt --model_name_or_path b",
        "",
        {"b": Changed("bert", {"config.json": None})},
    ),
    pretrain(
        "a checkpoint without weights",
        "--train_file good/text.txt --model_name_or_path b",
        "",
        {"b": Changed("bert", {"model.safetensors": None})},
        later=True,
    ),
    pretrain(
        "a checkpoint whose weights are cut off",
        "--train_file good/text.txt --model_name_or_path b",
        "",
        {"b": Changed("bert", {"model.safetensors": b"\x10\0\0\0\0\0\0\0{"})},
        later=True,
    ),
    pretrain(
        "a checkpoint of another architecture",
        "--train_file good/text.txt --model_name_or_path b",
        "",
        {"b": Changed("bert", {"config.json": '{"model_type": "gpt2"}'})},
    ),
    pretrain(
        "a checkpoint of another width",
        "--train_file good/text.txt --model_name_or_path b",
        "",
        {"b": Changed("bert", {"config.json": shape(hidden_size=64)})},
        later=True,
    ),
    pretrain(
        "a checkpoint too short for the sequences",
        "--train_file good/text.txt --model_name_or_path good/bert --max_seq_length 128",
        "",
    ),
    Bad("no checkpoint to tune", "finetune_classification", "--train_file good/rows.tsv --output_dir out", ""),
    tune("a checkpoint to tune that is no path", "--train_file good/rows.tsv --model_name_or_path ./nope", ""),
    tune(
        "a checkpoint to tune, not in the Hub",
        "--train_file good/rows.tsv --model_name_or_path no/such",
        "",
        later=True,
    ),
    tune(
        "a checkpoint to tune without weights",
        "--train_file good/rows.tsv --model_name_or_path b",
        "",
        {"b": Changed("bert", {"model.safetensors": None})},
        later=True,
    ),
    tune(
        "a checkpoint to tune whose weights are cut off",
        "--train_file good/rows.tsv --model_name_or_path b",
        "",
        {"b": Changed("bert", {"model.safetensors": b"\x10\0\0\0\0\0\0\0{"})},
        later=True,
    ),
    tune("texts longer than the positions", "--train_file good/rows.tsv --max_seq_length 512", ""),
]

ROWS_READ = [
    Bad("no rows named", "finetune_classification", TUNE, ""),
    tune("a task that is none", "--task spamm", ""),
    tune("test rows alone", "--test_file good/rows.tsv", ""),
    tune("no such rows", "--train_file a.csv", ""),
    tune("a folder of rows", "--train_file d", "", {"d/a.csv": "text,label\n"}),
    rows("an empty file of rows", "a.csv", "", ""),
    rows("a header alone", "a.csv", "text,label\n", ""),
    rows("another kind of rows", "a.xlsx", b"PK\x03\x04", ""),
    rows("a spreadsheet named .csv", "a.csv", b"PK\x03\x04" + bytes(99), ""),
    rows("a quote that does not close", "a.csv", 'text,label\n"x,1\n', ""),
    rows("a quote amid a field", "a.csv", 'text,label\n"x"y,1\n', ""),
    rows("a field too few", "a.csv", "text,label\nx,1\ny\n", ""),
    rows("a field too many", "a.csv", "text,label\nx,1\ny,0,7\n", ""),
    rows("a row without a label", "a.csv", "text,label\nx,1\ny,\n", ""),
    rows("a row with a blank label", "a.csv", "text,label\nx,1\ny,  \n", ""),
    rows("a null label", "a.jsonl", lines('{"text": "x", "label": 1}', '{"text": "y", "label": null}'), ""),
    rows("a label that is NaN", "a.jsonl", lines('{"text": "x", "label": 1}', '{"text": "y", "label": NaN}'), ""),
    rows("a label that is a list", "a.jsonl", lines('{"text": "x", "label": 1}', '{"text": "y", "label": [1]}'), ""),
    rows("a row without a text", "a.jsonl", lines('{"text": "x", "label": 1}', '{"label": 0}'), ""),
    rows("a text that is a number", "a.jsonl", lines('{"text": "x", "label": 1}', '{"text": 5, "label": 0}'), ""),
    rows("one label", "a.csv", "text,label\nx,1\ny,1\n", ""),
    rows("which column holds the label", "a.csv", "a,b\nx y,p q\nz w,r s\n", ""),
    rows("another column of text", "a.csv", "Text,label\nx,1\ny,0\n", "", "--text_column text"),
    rows("another column of labels", "a.csv", "text,label\nx,1\ny,0\n", "", "--label_column labels"),
    rows("rows in Latin-1", "a.csv", b"text,label\ncaf\xe9,1\n", ""),
    rows("rows with a field of 5 MB", "a.csv", f"text,label\nx,1\n{LONG},0\n", ""),
    rows("rows in JSON that is none", "a.jsonl", lines('{"text": "x", "label": 1}', "{"), ""),
    rows("too few rows to split", "a.csv", "text,label\nx,1\ny,0\n", "", later=True),
    tune(
        "a label that training lacks",
        "--train_file good/rows.tsv --test_file b.tsv",
        "",
        {"b.tsv": "ham\tx y\nspan\ty z\nham\tz x\n"},
    ),
    tune(
        "a held-out label that training lacks",
        "--train_file good/rows.tsv --validation_file b.tsv",
        "",
        {"b.tsv": "ham\tx y\neggs\ty z\nham\tz x\n"},
    ),
    tune("test rows that are not there", "--train_file good/rows.tsv --test_file b.tsv", ""),
    tune("a negative share for the test", "--train_file good/rows.tsv --test_split_percentage -1", ""),
    tune(
        "all for the test",
        "--train_file good/rows.tsv --test_split_percentage 60 --validation_split_percentage 50",
        "",
    ),
    tune("a sampling that is none", "--train_file good/rows.tsv --train_sampling_strategy lucky", ""),
]

FOLDERS = [
    pretrain(
        "a file in place of the output folder", "--train_file good/text.txt --output_dir out", "", {"out": "mine"}
    ),
    pretrain("a file above the output folder", "--train_file good/text.txt --output_dir a/b/out", "", {"a": "mine"}),
    pretrain("an output folder of somebody else's", "--train_file good/text.txt", "", {"out/mine.txt": "mine"}),
    pretrain(
        "somebody else's, to be overwritten",
        "--train_file good/text.txt --overwrite_output_dir true",
        "",
        {"out/mine.txt": "mine"},
    ),
    pretrain("an output folder that cannot be written", "--train_file good/text.txt --output_dir /proc/out", ""),
    pretrain(
        "a broken link in place of the output folder", "--train_file good/text.txt", "", {"out": Link("gone/out")}
    ),
    pretrain("a pipe in place of the output folder", "--train_file good/text.txt", "", {"out": Pipe()}),
    pretrain("a file in place of the cache", "--train_file good/text.txt --cache_dir c", "", {"c": "mine"}),
    Bad(
        "a tokenizer into a full folder",
        "train_tokenizer",
        "--train_file good/text.txt --output_dir out",
        "",
        {"out/mine.txt": "mine"},
    ),
    Bad(
        "a tokenizer over another",
        "train_tokenizer",
        "--train_file good/text.txt --output_dir out",
        "",
        {"out": Changed("bert", {})},
    ),
    Bad(
        "a corpus into a full folder",
        "prepare",
        "--train_file good/text.txt --tokenizer_name good/vocab.txt --output_dir out",
        "",
        {"out/mine.txt": "mine"},
    ),
    Bad(
        "a corpus over another",
        "prepare",
        "--train_file good/text.txt --tokenizer_name v.txt --output_dir out",
        "",
        {"out": Changed("corpus", {}), "v.txt": lines(*VOCABULARY, "more")},
    ),
    Bad(
        "a corpus into a file",
        "prepare",
        "--train_file good/text.txt --tokenizer_name good/vocab.txt --output_dir out",
        "",
        {"out": "mine"},
    ),
    tune("a classifier into a full folder", "--train_file good/rows.tsv", "", {"out/mine.txt": "mine"}),
    tune("a classifier into a file", "--train_file good/rows.tsv", "", {"out": "mine"}),
]

CASES = [*COMMAND_LINE, *NUMBERS, *CONFIGS, *FILES, *TOKENIZERS, *MODELS, *ROWS_READ, *FOLDERS]
