"""README and docs: links lead somewhere, options exist, commands pass their check, Python examples run."""

import ast
import gzip
import importlib
import json
import lzma
import re
import shlex
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

import datasets
import pytest
from accelerate.commands.launch import launch_command_parser
from helpers.corpora import Texts
from tiny import tiny_config
from transformers import BertForSequenceClassification, TrainingArguments

import bert_hf
from bert_hf import BertForPreTraining, train_tokenizer
from bert_hf.config import training_arguments
from bert_hf.config.commands import COMMANDS
from bert_hf.config.package_files import recipe_main
from bert_hf.data.corpus.prepare import prepare
from bert_hf.data.text.tokenization import save_tokenizer
from bert_hf.finetuning.heads.frozen_features import BiLstmTagger
from bert_hf.training import command as command_module

ROOT = Path(__file__).parents[1]
PAGES = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
CONFIGS = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "configs").glob("*/*.yaml"))]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "configs/README.md", "benchmarks/README.md", *PAGES]

# Sizes in the examples, and those that the tests use instead
SMALLER = {"8192": "300", "4096": "300", "256": "32", "1024": "64", "4000": "2", "250": "20"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: str
    line: int
    language: str
    body: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def read(document: str) -> str:
    return (ROOT / document).read_text()


def blocks_of(document: str) -> list[Block]:
    text = read(document)
    fences = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(document, text[: fence.start()].count("\n") + 1, fence[1], fence[2]) for fence in fences]


NOTEBOOKS = ["examples/own_text.ipynb", "examples/spam.ipynb"]


def cells(kind: str, notebooks: list[str] = NOTEBOOKS) -> list[dict]:
    return [cell for name in notebooks for cell in json.loads(read(name))["cells"] if cell["cell_type"] == kind]


BLOCKS = [block for document in DOCUMENTS for block in blocks_of(document)]


def commands() -> list:
    """The lines of fenced bash blocks that start a recipe, as test parameters."""
    parameters = []
    for block in BLOCKS:
        if block.language == "bash":
            lines = block.body.replace("\\\n", " ").splitlines()
            starts = [line for line in lines if re.match(r"(accelerate launch|python recipes/|bert-hf )", line)]
            parameters += [pytest.param(line, id=f"{block}-{number}") for number, line in enumerate(starts)]
    return parameters


main_of = lru_cache(recipe_main)


# ---- a reader's folder


CHECKPOINTS = ("pretrain-default", "mine", "bert-mini-cpu", "bert-mini-cpu-long", "adapted-0", "sst2-adapted")
CLASSIFIERS = ("spam-messages", "comments")
MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """The folder of a reader who has followed the docs: texts, a vocabulary, a corpus and checkpoints, all tiny."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("configs", "recipes", "src", "accelerate_config.yaml"):
        (folder / name).symlink_to(ROOT / name)
    documents = [
        "\n".join(f"Document {d} says in sentence {s} that item{d} follows item{s}." for s in range(2 + d % 5))
        for d in range(60)
    ]
    write_texts(folder, documents)

    tokenizer = train_tokenizer(documents, vocab_size=300)
    for name in ("runs/corpus", "wiki/corpus"):
        prepare([Texts(tuple(documents))], tokenizer, folder / name)

    config = tiny_config(vocab_size=len(tokenizer), max_position_embeddings=128)
    for name in CHECKPOINTS:
        BertForPreTraining(config).save_pretrained(folder / "runs" / name)
    config.id2label = {0: "ham", 1: "spam"}
    for name in CLASSIFIERS:
        BertForSequenceClassification(config).save_pretrained(folder / "runs" / name)
    tagger = {"features": "last", "lstm_hidden_size": 8, "max_seq_length": 128}
    BiLstmTagger(tiny_config(vocab_size=len(tokenizer), tagger=tagger)).save_pretrained(folder / "runs/tagger")
    for name in (*CHECKPOINTS, *CLASSIFIERS, "tagger", "tokenizer", "../wiki/tokenizer"):
        save_tokenizer(tokenizer, folder / "runs" / name)
    return folder


def write_texts(folder: Path, documents: list[str]) -> None:
    rows = "".join(json.dumps({"text": text, "url": "elsewhere"}) + "\n" for text in documents).encode()
    pair = json.dumps({"sentence_good": "a b", "sentence_bad": "b a", "UID": "x", "linguistics_term": "y"}) + "\n"
    words = "red blue green black white grey brown pink gold lime teal navy rust plum sand jade".split()
    labelled = "".join(f"ham\tsee the {a} {b} one\nspam\twin a {b} {a} prize\n" for a in words for b in words)
    classified = [dict(zip(("label", "text"), line.split("\t"), strict=True)) for line in labelled.splitlines()]
    fold = "".join(json.dumps(row) + "\n" for row in classified).encode()

    contents = {
        "corpus/a.txt": "\n\n".join(documents).encode(),
        "corpus/a.jsonl.gz": gzip.compress(rows),
        "corpus.jsonl": rows,
        "held-out.jsonl": rows,
        "wikipedia_en/main.jsonl.xz": lzma.compress(rows),
        "wikipedia_en/valid.jsonl.xz": lzma.compress(rows),
        "blimp.jsonl": pair.encode(),
        **dict.fromkeys(("SMSSpamCollection", "SMSSpamCollection.tsv"), labelled.encode()),
        **dict.fromkeys(
            ("comments.csv", "new.csv", "labelled.csv"), ("label,comment\n" + labelled.replace("\t", ",")).encode()
        ),
        "glue/MRPC/train.tsv": f"{MRPC}1\t1\t2\tA man runs.\tHe runs.\n0\t3\t4\tIt rains.\tNo.\n".encode(),
        "glue/MRPC/dev.tsv": f"{MRPC}0\t1\t2\tA.\tB.\n".encode(),
        "glue/MRPC/test.tsv": f"index\t{MRPC.partition(chr(9))[2]}0\t1\t2\tA.\tB.\n".encode(),
        **dict.fromkeys(
            ("conll/train.txt", "conll/dev.txt", "conll/test.txt"), b"Ada B-PER\nsleeps O\n\nIt O\nrains O\n"
        ),
        **{f"runs/sms-folds/fold-0/{part}.jsonl": fold for part in ("train", "validation", "test")},
    }
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


# ---- tests


def test_the_documentation_is_short():
    assert len(read("README.md").splitlines()) <= 150
    texts = [read(name) for name in [*DOCUMENTS, "CHANGELOG.md"]]
    texts += ["".join(cell["source"]) for cell in cells("markdown")]
    assert sum(len(text.split()) for text in texts) <= 20_000


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("name", [*DOCUMENTS, "CHANGELOG.md"])
def test_links_and_paths_exist(name):
    text = read(name)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        path = (ROOT / name).parent / target if target else ROOT / name
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
            assert anchor in map(slug, headings), f"{target}#{anchor}"

    paths = re.findall(r"\b(?:configs|recipes|tests|benchmarks|src)/[\w./-]+\.\w+", text)
    modules = re.findall(r"(?<![\w/])((?:config|models|data|training|finetuning|analysis)/[\w/]+\.py)\b", text)
    for path in (*paths, *(f"src/bert_hf/{module}" for module in modules)):
        assert (ROOT / path).exists(), path


def test_pages_named_in_the_code_exist():
    folders = ("src", "recipes", "benchmarks", "configs", "tests")
    files = [path for folder in folders for kind in ("py", "yaml") for path in (ROOT / folder).rglob(f"*.{kind}")]
    for path in (*files, ROOT / "pyproject.toml"):
        for page in re.findall(r"\b(?:docs|configs|benchmarks)/\w+\.md\b", path.read_text()):
            assert (ROOT / page).exists(), f"{path}: {page}"


@lru_cache
def options_of_scripts() -> frozenset[str]:
    """Names of all options: fields declared by `option(…)`, and arguments of the benchmarks' own parsers."""
    names = set()
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")):
        text = path.read_text()
        names |= set(re.findall(r'add_argument\(\s*"--(\w+)"', text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.AnnAssign) and getattr(getattr(node.value, "func", None), "id", "") == "option":
                names.add(node.target.id)
    return frozenset(names)


@pytest.mark.parametrize(
    "name", [name for name in [*DOCUMENTS, *CONFIGS] if name not in ("CONTRIBUTING.md", "SECURITY.md")]
)
def test_options_exist(name):
    known = (
        options_of_scripts()
        | {field.name for field in fields(TrainingArguments)}
        | {"config", "check", "help", "accelerate_config"}
    )
    known |= {flag.removeprefix("--") for action in launch_command_parser()._actions for flag in action.option_strings}
    known |= {"array", "wrap", "type", "sdk"}  # of sbatch and hf
    known |= {"model", "auto"}  # --model-id, --auto-truncate of text-embeddings-inference
    assert set(re.findall(r"(?<![\w-])--(\w+)", read(name))) <= known


def test_the_reference_has_each_option_once_with_the_commands_that_take_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    reference = importlib.import_module("reference")
    reference.write_pages(tmp_path)
    rows = re.findall(r"^\| `--(\w+)` \|.*\| ([a-z, ]+) \|$", (tmp_path / "options.md").read_text(), re.MULTILINE)
    taken = {name: commands.split(", ") for name, commands in rows}
    assert len(rows) == len(taken)
    assert taken == {
        name: [command for command in COMMANDS if name in reference.options_of(command)]
        for command in COMMANDS
        for name in reference.options_of(command)
    }


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    quoted = {target for name in DOCUMENTS for target in re.findall(r"`make ([a-z-]+)\b", read(name))}
    run = {target for block in BLOCKS for target in re.findall(r"^make ([a-z-]+)\b", block.body, re.MULTILINE)}
    assert quoted | run <= targets


def test_blocks_have_a_language():
    assert {block.language for block in BLOCKS} == {"bash", "python", "text"}


def test_the_quickstart_shows_the_output_of_the_readme():
    outputs = [block.body.splitlines() for block in BLOCKS if "held out, after:" in block.body]
    readme, quickstart = sorted(outputs, key=len)  # the README leaves out a line or two
    assert set(readme) < set(quickstart)


@pytest.mark.parametrize("command", commands())
def test_recipe_commands_pass_their_check(command, reader, monkeypatch, capsys):
    """Accepted are exit code 0, a URL or Hub data set that cannot be reached, and an output folder that exists."""
    words = shlex.split(command)
    if words[0] == "accelerate":
        assert words[2] == "--config_file"
        assert (ROOT / words[3]).is_file()
        words = words[3:]
    elif words[0] == "bert-hf":
        words[1] = f"recipes/{COMMANDS[words[1]].recipe}.py"
    script, flags = words[1], words[2:]

    monkeypatch.chdir(reader)
    monkeypatch.setattr(command_module, "find_spec", lambda name: name)  # extras
    code = main_of(Path(script).stem)([*flags, "--check", "true"])
    line = capsys.readouterr().err
    place = line.removeprefix("error: ").partition(": ")[0]
    unreachable = place in [word for word in flags if "://" in word]
    unreachable |= "on the Hub (OfflineModeIsEnabled)" in line
    assert code == 0 or unreachable or "--output_dir" in line, line


def test_each_public_name_is_in_the_docs():
    code = "\n".join(block.body for block in BLOCKS if block.language == "python")
    imported = {
        name.name
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and node.module == "bert_hf"
        for name in node.names
    }
    named = {name for name in bert_hf.__all__ if f"`{name}`" in read("docs/python.md")}
    assert imported <= set(bert_hf.__all__)
    assert imported | named == set(bert_hf.__all__)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python"], ids=str)
def test_python_examples_run(block, reader, monkeypatch):
    code = block.body
    for size, small in SMALLER.items():
        code = re.sub(rf"\b{size}\b", small, code)

    monkeypatch.chdir(reader)
    monkeypatch.setattr(training_arguments, "MIN_STEPS", 4)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", reader / "cache")
    if "onnxruntime" in code:
        pytest.importorskip("onnxruntime")
        main_of("export")(["runs/spam-messages", "--output_dir", "runs/spam-onnx"])
    names = {}
    exec(compile(code, str(block), "exec"), names)
    if "trainer" in names:  # the ten lines of the README
        assert len([line for line in code.splitlines() if line and "import" not in line]) <= 10
        assert names["trainer"].state.global_step == 2
        assert {"eval_mlm_loss", "eval_nsp_accuracy"} <= names["trainer"].evaluate().keys()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run(name, reader, monkeypatch):
    """With fewer steps; `make docs` runs them as they are."""
    code = cells("code", [name])
    assert not any(cell["outputs"] for cell in code)
    text = "\n".join("".join(cell["source"]) for cell in code)
    for size, small in SMALLER.items():
        text = re.sub(rf"\b{size}\b", small, text)

    (reader / "examples").mkdir(exist_ok=True)
    monkeypatch.chdir(reader / "examples")
    monkeypatch.setattr(training_arguments, "MIN_STEPS", 4)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", reader / "cache")
    exec(compile(text, name, "exec"), {})
