"""Records what the recipes compute on a small generated text, and compares a later state of the code with the record.

python benchmarks/behavior_snapshot.py record snapshot.json
python benchmarks/behavior_snapshot.py compare snapshot.json

The record holds SHA-256 of weights, optimizer state, vocabularies and prepared corpora, logged losses and evaluation
figures, and the structure of every file that a later version has to read. `compare` records it again, prints each
difference and returns 1 if there is any. It is meant for one machine: other processors give other bytes.

So that a reorganisation of the package does not touch this script, it uses only the recipes' command lines, the files
that they write, and public names of `bert_hf`. Recipes run in forks of one process, which has imported the libraries
once (importing costs some 6 s a process) and computes nothing itself: each fork starts with fresh random generators,
thread pools and file locks, and a signal ends it alone. Only the run on two ranks is a real subprocess, because
`accelerate launch` is part of what it checks.

With `--work_dir` everything that was written stays in a new folder below it, the output of each command in `logs/`.
"""

import argparse
import contextlib
import csv
import functools
import gzip
import hashlib
import importlib.util
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# Before torch and transformers are imported: one thread, no network, and the package of this checkout.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1] / "src")
sys.path.insert(0, os.environ["PYTHONPATH"])

import numpy as np
import torch
import transformers
import yaml

import bert_hf

ROOT = Path(__file__).resolve().parents[1]

# Values that are not compared (that they are there is): the name of the entry, or the end of it from "_" on → why.
# Versions are left out only where they are strings.
VOLATILE = {
    "_runtime": "clock",
    "_per_second": "speed",
    "_seconds": "clock",
    "train_mfu": "speed",
    "seconds": "clock",
    "hours": "clock",
    "bert_hf": "version",
    "torch": "version",
    "transformers": "version",
    "transformers_version": "version",
    "machine": "device and versions",
}
MANIFEST_DIGEST = "digest over versions and over files with clock values"  # in place of a checkpoint manifest's sha256
VOLATILE_FILES = {
    ".lock": "names the process that holds it",
    "stacks-rank": "written only where a run hangs",
}
REMOVED_NAMES = {"SafeTrainer": "public name that the reorganisation removes on purpose"}

MODEL = {
    "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64, "vocab_size": 300,
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
}  # fmt: skip
PRETRAIN = {
    "config_name": "model.json", "train_file": "corpus", "cache_dir": "cache", "validation_split_percentage": 20,
    "max_seq_length": 32, "max_eval_samples": 64, "max_steps": 30, "per_device_train_batch_size": 8,
    "learning_rate": 1e-3, "warmup_steps": 4, "logging_steps": 5, "eval_steps": 15, "save_steps": 10, "seed": 3,
}  # fmt: skip
FINETUNE = {
    "model_name_or_path": "plain", "train_file": "labelled.csv", "max_seq_length": 32, "num_train_epochs": 3,
    "per_device_train_batch_size": 16, "learning_rate": 5e-3, "logging_steps": 5, "eval_strategy": "epoch",
    "save_strategy": "epoch", "load_best_model_at_end": "true", "metric_for_best_model": "accuracy", "seed": 3,
}  # fmt: skip
MACHINE = {"bf16": "false", "use_cpu": "true", "report_to": "none", "disable_tqdm": "true"}

# Name of a pre-training run → what differs from PRETRAIN.
RUNS = {
    "plain": {},
    "two_phases": {"long_seq_length": 64, "long_seq_fraction": 0.3},
    "length_warmup": {"seq_length_warmup": "16:0.3"},
    "accumulation": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "whole_words": {"whole_word_mask": "true"},
    "without_nsp": {"nsp": "false"},
    "without_dropout": {"dropout": 0},
    "padded": {"fast_path": "off"},
    "muon": {"optim": "muon"},
    "bert_adam": {"adam_bias_correction": "false", "decay_from_step_zero": "true"},
    "epochs": {"max_steps": -1, "num_train_epochs": 1, "per_device_train_batch_size": 32},
    "best_model": {"load_best_model_at_end": "true", "metric_for_best_model": "mlm_loss", "save_steps": 15},
    "continued": {"config_name": None, "model_name_or_path": "plain", "max_steps": 10, "save_steps": 5},
    "raw_text": {
        "train_file": "text-0.txt",
        "validation_file": "text-1.txt",
        "vocab_size": 250,
        "max_steps": 10,
        "validation_split_percentage": None,
    },
    "loader_processes": {"dataloader_num_workers": 2},
}


# ---- the text


def write_inputs(folder: Path) -> None:
    """Writes the texts, the labelled rows, the minimal pairs and the model's shape; always the same bytes."""
    rng = random.Random(7)
    syllables = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(400)]
    words += ["café", "東京", "1984", "don't"]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    sentence = functools.partial(make_sentence, rng, words, weights)

    for number in range(2):
        documents = make_documents(rng, sentence, count=110)
        (folder / f"text-{number}.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")

    rows = "".join(json.dumps({"text": text}) + "\n" for text in make_documents(rng, sentence, count=110))
    (folder / "text-2.jsonl.gz").write_bytes(gzip.compress(rows.encode(), mtime=0))

    # The label can be read off one word; the other words come from the same distribution
    with open(folder / "labelled.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "text"])
        for number in range(240):
            label = ("calm", "loud")[number % 2]
            writer.writerow([label, f"{sentence()} {words[40 + number % 2]} {sentence()}"])

    pairs = [
        {"sentence_good": sentence(), "sentence_bad": sentence(), "UID": f"u{n % 2}", "linguistics_term": "order"}
        for n in range(10)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    (folder / "model.json").write_text(json.dumps(MODEL))


def make_sentence(rng: random.Random, words: list[str], weights: list[float]) -> str:
    """One sentence of four to twelve words, with an upper-case letter, at times a comma, and a mark at its end."""
    chosen = rng.choices(words, weights, k=rng.randint(4, 12))
    if rng.random() < 0.3:
        chosen[1] += ","
    return " ".join(chosen).capitalize() + rng.choice(".....?!")


def make_documents(rng: random.Random, sentence: Callable[[], str], count: int) -> list[str]:
    """Documents of two to nine sentences, one in eight of a single sentence; copies and near-copies at the end."""
    documents = []
    for number in range(count):
        length = 1 if number % 8 == 0 else rng.randint(2, 9)
        separator = "\n" if number % 3 else " "
        documents.append(separator.join(sentence() for _ in range(length)))

    long = [text for text in documents if len(text) > 250]
    copies = long[:4]
    near_copies = [text.replace(",", "").rsplit(" ", 1)[0] + " end." for text in long[4:10]]
    return [*documents, *copies, *near_copies]


# ---- running commands


def load_recipes() -> dict[str, Callable]:
    """`main` of each recipe by its name; importing them brings in all libraries that the forks need."""
    mains = {}
    for path in sorted((ROOT / "recipes").glob("*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        mains[path.stem] = module.main
    return mains


def in_fork(log: Path, action: Callable[[], int | None], wait: bool = True) -> int:
    """Calls `action` in a fork of this process, its output in `log`.

    Returns:
        The exit code, negative for a signal; without `wait` the process id.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if wait else pid

    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for name in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            signal.signal(name, signal.SIG_DFL)
        code = action() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Interrupt(transformers.TrainerCallback):
    """Sends a signal to its own process at the end of a step."""

    def __init__(self, step: int, number: int):
        self.step, self.number = step, number

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), self.number)


class Workplace:
    """The folder in which all commands run, and the recipes.

    Paths on the command lines are relative to the folder, so that its own name enters nothing that is recorded.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.mains = load_recipes()
        (folder / "logs").mkdir()
        os.chdir(folder)
        write_inputs(folder)

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.txt"

    def run(self, recipe: str, name: str, options: dict, interrupt: Interrupt | None = None) -> None:
        """Runs a recipe in a fork.

        Args:
            name: of its log.
            options: flags and their values; None leaves a flag out, a list gives several values.
            interrupt: sends a signal while it trains; the run must then fail.
        """
        words = command_words(options)

        def action() -> int:
            sys.argv = [f"recipes/{recipe}.py", *words]
            if interrupt is not None:
                transformers.trainer.DEFAULT_CALLBACKS.append(interrupt)
            return self.mains[recipe](words)

        code = in_fork(self.log(name), action)
        if (code == 0) is (interrupt is not None):
            sys.exit(f"{recipe} ({name}) ended with exit code {code}:\n{self.log(name).read_text()[-3000:]}")

    def pretrain(self, name: str, interrupt: Interrupt | None = None, **changes) -> None:
        self.run("pretrain", name, {**PRETRAIN, **MACHINE, "output_dir": name, **changes}, interrupt)

    def finetune(self, name: str, interrupt: Interrupt | None = None) -> None:
        self.run("finetune_classification", name, {**FINETUNE, **MACHINE, "output_dir": name}, interrupt)


def command_words(options: dict) -> list[str]:
    """`--name value …` for each option that is not None."""
    words = []
    for name, value in options.items():
        if value is not None:
            values = value if isinstance(value, list) else [value]
            words += [f"--{name}", *map(str, values)]
    return words


@contextlib.contextmanager
def served(folder: Path, log: Path) -> Iterator[str]:
    """Serves a folder on 127.0.0.1 from a fork (this process must keep one thread); yields the address."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    pid = in_fork(log, server.serve_forever, wait=False)
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.server_close()
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


# ---- reading what was written


def sha256(data: bytes | Path) -> str:
    return hashlib.sha256(data.read_bytes() if isinstance(data, Path) else data).hexdigest()


def without_volatile(value, name: str = ""):
    """JSON content in which each value that VOLATILE names is replaced by its reason."""
    for end, reason in VOLATILE.items():
        named = name == end or (end[0] == "_" and name.endswith(end))
        if named and (reason != "version" or isinstance(value, str)):
            return f"({reason})"

    if isinstance(value, dict):
        return {str(key): without_volatile(part, str(key)) for key, part in value.items()}
    if isinstance(value, list):
        return [without_volatile(part) for part in value]
    return value


def read_json(path: Path):
    return without_volatile(json.loads(path.read_text(encoding="utf-8")))


def structure(value):
    """The keys of nested dicts; of everything else the name of its type."""
    if isinstance(value, dict):
        return {str(key): structure(part) for key, part in value.items()}
    if isinstance(value, list):
        return [structure(part) for part in value]
    return type(value).__name__


def safetensors_content(path: Path) -> dict:
    """SHA-256 of a file's tensors, and what its header says: names and shapes, or the state that refers to them.

    SHA-256 of the whole file is there, too, unless its header holds values that VOLATILE names.
    """
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    content = {"file": sha256(data), "tensors": sha256(data[8 + length :])}

    metadata = header.pop("__metadata__", {})
    if "state" not in metadata:
        return {**content, "header": {name: f"{one['dtype']} {one['shape']}" for name, one in sorted(header.items())}}

    state = decoded_state(json.loads(metadata["state"]))
    content["header"] = without_volatile(state)
    if content["header"] != state:
        del content["file"]
    return content


def decoded_state(value):
    """The nested state that a header describes. A dict is a list of pairs there, and a tensor a reference.

    Long lists of plain values (the state of Python's generator) are recorded as their SHA-256.
    """
    if not isinstance(value, dict):
        return value
    kind, content = value["kind"], value["of"]
    if kind in ("tensor", "array"):
        return {kind: content}
    if kind == "dict":
        return {str(decoded_state(key)): decoded_state(part) for key, part in content}

    items = [decoded_state(part) for part in content]
    return sha256(json.dumps(items).encode()) if len(items) > 100 else {kind: items}


def file_content(path: Path):
    """Record of one file, by its kind."""
    if path.suffix == ".safetensors":
        return safetensors_content(path)
    if path.name == "checkpoint_manifest.json":
        manifest = read_json(path)
        files = {name: structure(entry) for name, entry in manifest["files"].items()}
        return {**manifest, "files": files, "sha256": f"({MANIFEST_DIGEST})"}
    if path.suffix == ".json" and path.name != "tokenizer.json":
        return read_json(path)
    if path.name == "README.md":
        return card_content(path)
    if path.name == "log_history.csv":
        with open(path, newline="", encoding="utf-8") as file:
            return [without_volatile(row) for row in csv.DictReader(file)]
    return "exists" if path.suffix == ".png" else sha256(path)


def card_content(path: Path) -> dict:
    """Figures of a model card: those of its front matter, its tables, the numbers of its sentences in any order."""
    _, front, body = path.read_text(encoding="utf-8").split("---\n", 2)
    front = yaml.safe_load(front)
    metrics = [metric for entry in front["model-index"] for result in entry["results"] for metric in result["metrics"]]

    body = re.sub(r"```.*?```", "", body, flags=re.DOTALL)  # commands and code
    rows = [line.strip("| ").split(" | ") for line in body.splitlines() if re.match(r"\|[^-]", line)]

    libraries = "|".join(name for name, reason in VOLATILE.items() if reason == "version")
    prose = "\n".join(line for line in body.splitlines() if not line.startswith("|"))
    prose = re.sub(rf"\b({libraries}) \d\S*", "", prose)
    numbers = sorted(found.rstrip(".,") for found in re.findall(r"\d[\w.,%]*", prose))
    return {"front": structure(front), "metrics": metrics, "tables": rows, "numbers": numbers}


def folder_content(folder: Path, skip: str = "") -> dict:
    """Record of each file below a folder, by its relative path.

    Args:
        skip: paths that begin with it are left out.
    """
    content = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        ignored = path.name.startswith(tuple(VOLATILE_FILES)) or (skip and name.startswith(skip))
        if path.is_file() and not ignored:
            content[name] = file_content(path)
    return content


def last_checkpoint(run: Path) -> Path:
    return max(run.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))


def run_content(run: Path) -> dict:
    """All of a training run's folder; of its checkpoints the last one."""
    checkpoint = last_checkpoint(run)
    checkpoints = sorted(path.name for path in run.glob("checkpoint-*"))
    content = {"checkpoints": checkpoints, "files": folder_content(run, skip="checkpoint-")}
    return {**content, "checkpoint": folder_content(checkpoint)}


def byte_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file below a folder."""
    return {str(path.relative_to(folder)): sha256(path) for path in sorted(folder.rglob("*")) if path.is_file()}


# ---- what is recorded


def record_vocabularies(place: Workplace) -> dict:
    """An uncased and a cased vocabulary."""
    text = {"train_file": "text-*", "vocab_size": 300}
    place.run("train_tokenizer", "tokenizer", {**text, "output_dir": "tokenizer"})
    place.run("train_tokenizer", "cased", {**text, "do_lower_case": "false", "output_dir": "cased"})
    return {name: byte_hashes(place.folder / name) for name in ("tokenizer", "cased")}


def record_corpora(place: Workplace) -> dict:
    """A corpus prepared by one process, by two, in two parts, without near-duplicates, and by lines."""
    text = {"train_file": "text-*", "tokenizer_name": "tokenizer", "cache_dir": "cache"}
    variants = {
        "corpus": [{}],
        "corpus_two_processes": [{"num_proc": 2}],
        "corpus_two_parts": [{"shard": "0/2"}, {"shard": "1/2"}],
        "corpus_deduplicated": [{"deduplicate": "near"}],
        "corpus_by_lines": [{"sentence_per_line": "true"}],
    }
    for name, commands in variants.items():
        for changes in commands:
            place.run("prepare", name, {**text, "output_dir": name, **changes})

    content = {name: byte_hashes(place.folder / name) for name in variants}
    content["manifest"] = read_json(place.folder / "corpus/manifest.json")
    content["manifest_deduplicated"] = read_json(place.folder / "corpus_deduplicated/manifest.json")
    return content


def record_pretraining(place: Workplace, name: str, changes: dict) -> dict:
    place.pretrain(name, **changes)
    return run_content(place.folder / name)


def record_resumed(place: Workplace, name: str, interrupt: Interrupt, train: Callable, uncut: str) -> dict:
    """A run that a signal ends, started again by the same command; it must end as the uncut run did."""
    train(name, interrupt)
    cut_at = last_checkpoint(place.folder / name).name
    train(name)

    ends = [run_content(place.folder / run) for run in (name, uncut)]
    log = [end["files"]["trainer_state.json"]["log_history"] for end in ends]
    optimizers = [end["checkpoint"]["optimizer.safetensors"] for end in ends]
    checks = {
        "same_weights": ends[0]["files"]["model.safetensors"] == ends[1]["files"]["model.safetensors"],
        "same_optimizer": optimizers[0] == optimizers[1],
        "same_log": log[0] == log[1],
    }
    return {"cut_at": cut_at, **checks, **ends[0]}


def record_streamed(place: Workplace) -> dict:
    """Training from a corpus behind a URL."""
    with served(place.folder / "corpus", place.log("server")) as address:
        place.pretrain("streamed", train_file=address, corpus_cache_gb=0.01, cache_dir="streamed-cache")
    return run_content(place.folder / "streamed")


def record_two_ranks(place: Workplace) -> dict:
    """Two processes on the CPU, through the launcher."""
    changes = {"output_dir": "two_ranks", "per_device_train_batch_size": 4, "max_steps": 10, "save_steps": 5}
    machine = ROOT / "configs/accelerate/cpu_ddp.yaml"
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(machine)]
    command += [str(ROOT / "recipes/pretrain.py"), *command_words({**PRETRAIN, **MACHINE, **changes})]

    with open(place.log("two_ranks"), "w") as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
    if code:
        sys.exit(f"two ranks ended with exit code {code}:\n{place.log('two_ranks').read_text()[-3000:]}")
    return run_content(place.folder / "two_ranks")


def record_finetuning(place: Workplace) -> dict:
    place.finetune("finetuned")
    return run_content(place.folder / "finetuned")


def record_probe(place: Workplace) -> dict:
    """All parts of the probe, with few labels and few steps."""
    options = {
        "model_name_or_path": "plain", "train_file": "labelled.csv", "validation_file": "text-1.txt",
        "blimp": "pairs.jsonl", "cache_dir": "cache", "output_dir": "probe", "max_seq_length": 32, "labels": 10,
        "folds": 2, "random_draws": 1, "tune_labels": 20, "tune_draws": 1, "tune_steps": 4, "max_pairs": 3,
        "max_eval_samples": 100,
    }  # fmt: skip
    place.run("probe", "probe", options)
    return {
        "files": sorted(byte_hashes(place.folder / "probe")),
        "figures": read_json(place.folder / "probe/probe.json"),
    }


def record_estimate(place: Workplace) -> dict:
    """The numbers that the estimate prints (it writes no file), line by line."""
    options = {
        "config_name": "model.json", "train_file": "corpus", "tokenizer_name": "tokenizer", "device": "h200",
        "num_devices": [1, 8], "max_steps": 1000, "max_seq_length": 32, "long_seq_length": 64, "price_per_hour": 2,
        "bf16": "false",
    }  # fmt: skip
    place.run("estimate", "estimate", options)
    lines = place.log("estimate").read_text().splitlines()
    numbers = [re.findall(r"\d[\d.,]*(?:e[+-]?\d+)?", line) for line in lines]
    return {"numbers": [found for found in numbers if found]}


def record_python(place: Workplace) -> dict:
    """Public names: a batch, what the model computes of it, and three steps of `PreTrainer`."""
    place.folder.joinpath("python.json").unlink(missing_ok=True)
    code = in_fork(place.log("python"), functools.partial(use_python, place.folder))
    if code:
        sys.exit(f"the Python interface failed:\n{place.log('python').read_text()[-3000:]}")
    return read_json(place.folder / "python.json")


def use_python(folder: Path) -> None:
    """Writes `python.json`: see `record_python`. Called in a fork."""
    tokenizer = bert_hf.load_tokenizer("tokenizer")
    train, held_out = bert_hf.Corpus.open("corpus").split(20)
    examples = bert_hf.PreTrainingExamples(train, max_seq_length=32, seed=3)
    collator = bert_hf.DataCollatorForPreTraining(tokenizer)
    batch = collator([examples[number] for number in range(8)])

    # The model by its seed, with and without the arguments that only our collator sends
    torch.manual_seed(3)
    model = bert_hf.BertForPreTraining(transformers.BertConfig(**{**MODEL, "vocab_size": len(tokenizer)}))
    weights = {name: sha256(value.numpy().tobytes()) for name, value in model.state_dict().items()}
    model.eval()
    stock = ("input_ids", "attention_mask", "token_type_ids", "labels", "next_sentence_label")
    with torch.no_grad():
        outputs = {"ours": model(**batch), "stock": model(**{name: batch[name] for name in stock if name in batch})}

    # The trainer on the examples of a corpus
    arguments = bert_hf.PreTrainingArguments(
        output_dir="python", max_steps=3, per_device_train_batch_size=4, logging_steps=1, bf16=False, use_cpu=True,
        report_to="none", disable_tqdm=True, save_strategy="no", seed=3,
    )  # fmt: skip
    evaluation = bert_hf.PreTrainingExamples(held_out, max_seq_length=32, fixed=True, limit=32)
    trainer = bert_hf.PreTrainer(model, arguments, collator, examples, evaluation, tokenizer)
    trainer.train()
    figures = trainer.evaluate()

    content = {
        "names": sorted(set(bert_hf.__all__) - set(REMOVED_NAMES)),
        "batch": {name: tensor_content(value) for name, value in sorted(batch.items())},
        "weights": weights,
        "outputs": {
            kind: {name: tensor_content(value) for name, value in output.items()} for kind, output in outputs.items()
        },
        "log": trainer.state.log_history,
        "figures": figures,
        "corpus": {"documents": len(train), "tokens": train.tokens, "fingerprint": train.fingerprint},
    }
    (folder / "python.json").write_text(json.dumps(content))


def tensor_content(value):
    """SHA-256, type and shape of a tensor or an array; other values as they are."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)} {sha256(np.ascontiguousarray(value).tobytes())}"
    return value if isinstance(value, int | float | str | None) else type(value).__name__


def parts_of(place: Workplace) -> dict[str, Callable[[], dict]]:
    """All parts of the record in the order in which they need each other."""
    parts = {
        "vocabularies": functools.partial(record_vocabularies, place),
        "corpora": functools.partial(record_corpora, place),
    }
    for name, changes in RUNS.items():
        parts[f"pretrain {name}"] = functools.partial(record_pretraining, place, name, changes)

    # SIGTERM lets a run write a checkpoint of its last step; SIGKILL leaves the one before
    terminate, kill = signal.SIGTERM, signal.SIGKILL
    cuts = {
        "resumed_terminated": (Interrupt(13, terminate), place.pretrain, "plain"),
        "resumed_killed": (Interrupt(17, kill), place.pretrain, "plain"),
        "finetuning_terminated": (Interrupt(7, terminate), place.finetune, "finetuned"),
    }
    parts["finetuning"] = functools.partial(record_finetuning, place)
    for name, (interrupt, train, uncut) in cuts.items():
        parts[name] = functools.partial(record_resumed, place, name, interrupt, train, uncut)

    others = {
        "streamed": record_streamed,
        "two_ranks": record_two_ranks,
        "probe": record_probe,
        "estimate": record_estimate,
        "python": record_python,
    }
    return {**parts, **{name: functools.partial(action, place) for name, action in others.items()}}


def make_record(work_dir: Path | None, only: list[str] | None = None) -> dict:
    """Runs every part, or those that `only` names, in a new folder, which is kept where `work_dir` is given."""
    if work_dir is None:
        with tempfile.TemporaryDirectory(prefix="snapshot-") as folder:
            return make_record(Path(folder).resolve(), only)

    work_dir.mkdir(parents=True, exist_ok=True)
    place = Workplace(Path(tempfile.mkdtemp(prefix="snapshot-", dir=work_dir)))
    record = {"machine": machine()}
    for name, action in parts_of(place).items():
        if only and not any(re.fullmatch(pattern, name) for pattern in only):
            continue
        begin = time.perf_counter()
        record[name] = json.loads(json.dumps(action()))
        print(f"{time.perf_counter() - begin:6.1f} s  {name}", flush=True)
    os.chdir(ROOT)
    return record


def machine() -> dict[str, str]:
    """Versions and machine, which decide the bytes, too; a difference here explains others."""
    models = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "cpu": models[0] if models else platform.processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


# ---- comparing


def flattened(value, path: str = "") -> Iterator[tuple[str, object]]:
    """(path, leaf) for each leaf of nested dicts and lists; an empty one is a leaf."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    empty = True
    for key, child in children:
        empty = False
        yield from flattened(child, f"{path} › {key}" if path else str(key))
    if empty:
        yield path, value


def differences(before: dict, after: dict) -> list[str]:
    """One line for each leaf that changed, is missing or is new."""
    old, new = dict(flattened(before)), dict(flattened(after))
    lines = []
    for path in sorted({**old, **new}):
        if path not in new:
            lines.append(f"missing: {path} (was {old[path]!r})")
        elif path not in old:
            lines.append(f"new: {path} = {new[path]!r}")
        elif repr(old[path]) != repr(new[path]):
            lines.append(f"changed: {path}: {old[path]!r} → {new[path]!r}")
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("record", "compare"))
    parser.add_argument("file", type=Path, help="JSON that is written, or compared with")
    parser.add_argument("--work_dir", type=Path, help="folder below which everything is written, and stays")
    parser.add_argument("--only", nargs="+", help="parts by regular expression (what they read must be among them)")
    asked = parser.parse_args(argv)

    file = asked.file.resolve()
    work_dir = asked.work_dir.resolve() if asked.work_dir else None
    expected = json.loads(file.read_text(encoding="utf-8")) if asked.command == "compare" else None
    begin = time.perf_counter()
    record = make_record(work_dir, asked.only)
    seconds = time.perf_counter() - begin

    if expected is None:
        file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"recorded {len(dict(flattened(record))):,} values in {seconds:.0f} s")
        return 0

    if asked.only:
        expected = {name: part for name, part in expected.items() if name in record}
    recorded_on, made_on = expected.pop("machine"), record.pop("machine")
    if recorded_on != made_on:
        print(f"note: recorded on {recorded_on}, and this is {made_on}")
    found = differences(expected, record)
    print(*found, sep="\n")
    print(f"{len(found):,} differences among {len(dict(flattened(expected))):,} values, in {seconds:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
