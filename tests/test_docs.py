"""README and docs: links lead somewhere, examples run, commands are accepted, generated pages are up to date."""

import gzip
import importlib.util
import json
import lzma
import re
import shlex
import sys
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path

import datasets
import pytest
from accelerate.commands.launch import launch_command_parser
from tiny import tiny_config
from transformers import BertForSequenceClassification

from bert_hf import BertForPreTraining, train_tokenizer
from bert_hf.analysis import probe as probe_arguments
from bert_hf.config import arguments, finetuning_arguments
from bert_hf.data.corpus.prepare import prepare
from bert_hf.data.text.sources import Texts
from bert_hf.data.text.tokenization import save_tokenizer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "configs/README.md"]
DOCUMENTS += sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))

# Sizes of the examples, and the ones that the tests use instead.
SMALLER = {"8192": "300", "256": "32", "1024": "64", "4000": "2", "2000": "2"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: str
    line: int
    language: str
    body: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks_of(document: str) -> list[Block]:
    text = (ROOT / document).read_text()
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(document, text[: match.start()].count("\n") + 1, match[1], match[2]) for match in found]


BLOCKS = [block for document in DOCUMENTS for block in blocks_of(document)]
PYTHON = [block for block in BLOCKS if block.language == "python"]


def commands() -> list:
    """The lines of fenced bash blocks that start a recipe, as test parameters."""
    found = []
    for block in BLOCKS:
        if block.language == "bash":
            lines = block.body.replace("\\\n", " ").splitlines()
            starts = [line for line in lines if re.match(r"(accelerate launch|python recipes/)", line)]
            found += [pytest.param(line, id=f"{block}-{number}") for number, line in enumerate(starts)]
    return found


FOLDERS = ("labelled", "splitting", "squad", "tagging", "study", "probe", "features")  # one line each in the tree
MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


@lru_cache
def recipe(path: str):
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    _write_texts(folder, documents)

    tokenizer = train_tokenizer(documents, vocab_size=300)
    for name in ("runs/corpus", "wiki/corpus"):
        prepare([Texts(tuple(documents))], tokenizer, folder / name)
    config = tiny_config(vocab_size=len(tokenizer), max_position_embeddings=128)
    for name in (
        "pretrain-default",
        "mini",
        "mine",
        "bert-mini-cpu",
        "bert-mini-cpu-long",
        "adapted-0",
        "sst2-adapted",
    ):
        BertForPreTraining(config).save_pretrained(folder / "runs" / name)
        save_tokenizer(tokenizer, folder / "runs" / name)
    BertForSequenceClassification(config).save_pretrained(folder / "runs/spam-messages")
    for name in ("runs/spam-messages", "runs/tokenizer", "wiki/tokenizer"):
        save_tokenizer(tokenizer, folder / name)
    return folder


def _write_texts(folder: Path, documents: list[str]) -> None:
    rows = "".join(json.dumps({"text": text, "url": "elsewhere"}) + "\n" for text in documents).encode()
    pair = json.dumps({"sentence_good": "a b", "sentence_bad": "b a", "UID": "x", "linguistics_term": "y"}) + "\n"
    words = "red blue green black white grey brown pink gold lime teal navy rust plum sand jade".split()
    labelled = "".join(f"ham\tsee the {a} {b} one\nspam\twin a {b} {a} prize\n" for a in words for b in words)
    contents = {
        "corpus/a.txt": "\n\n".join(documents).encode(),
        "corpus/a.jsonl.gz": gzip.compress(rows),
        "corpus.jsonl": rows,
        "held-out.jsonl": rows,
        "wikipedia-valid.jsonl.xz": lzma.compress(rows),
        "wikipedia_en/main.jsonl.xz": lzma.compress(rows),
        "wikipedia_en/valid.jsonl.xz": lzma.compress(rows),
        "blimp.jsonl": pair.encode(),
        "blimp.jsonl.xz": lzma.compress(pair.encode()),
        "SMSSpamCollection.tsv": labelled.encode(),
        "comments.csv": ("label,comment\n" + labelled.replace("\t", ",")).encode(),
        "glue/MRPC/train.tsv": f"{MRPC}1\t1\t2\tA man runs.\tHe runs.\n0\t3\t4\tIt rains.\tNo.\n".encode(),
        "glue/MRPC/dev.tsv": f"{MRPC}0\t1\t2\tA.\tB.\n".encode(),
        "glue/SST-2/train.tsv": b"sentence\tlabel\n" + b"a good film \t1\na bad film \t0\n" * 9,
        "glue/SST-2/dev.tsv": b"sentence\tlabel\na fine film . \t1\na dull film . \t0\n",
        "glue/SST-2/test.tsv": b"index\tsentence\n0\tno film .\n",
        "glue/MRPC/test.tsv": f"index\t{MRPC.partition(chr(9))[2]}0\t1\t2\tA.\tB.\n".encode(),
    }
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    fields = [line.split("\t") for line in labelled.splitlines()]
    classified = "".join(json.dumps({"text": text, "label": label}) + "\n" for label, text in fields)
    (folder / "runs/sms-folds/fold-0").mkdir(parents=True)
    for part in ("train", "validation", "test"):
        (folder / f"runs/sms-folds/fold-0/{part}.jsonl").write_text(classified)


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 200


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_and_paths_exist(name):
    text = (ROOT / name).read_text()
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        path = (ROOT / name).parent / target if target else ROOT / name
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
            assert anchor in map(slug, headings), f"{target}#{anchor}"

    for path in re.findall(r"\b(?:configs|recipes|tests|benchmarks|src)/[\w./-]+\.\w+", text):
        removed = name == "CHANGELOG.md"  # may name files of earlier versions
        assert (ROOT / path).exists() or removed, path

    modules = re.findall(r"\b(?<!/)((?:config|models|data|training|finetuning|probe|features)/\w+\.py)\b", text)
    assert all((ROOT / "src/bert_hf" / path).exists() for path in modules), modules


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != "CONTRIBUTING.md"])
def test_every_command_is_in_a_fence_with_a_language(name):
    assert all(block.language in ("bash", "python", "text") for block in blocks_of(name))
    text = re.sub(r"^```.*?^```$", "", (ROOT / name).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert not re.findall(r"^    (?:accelerate|python|make|pip) .*$", text, re.MULTILINE)


def test_there_are_many_examples():
    assert len(BLOCKS) >= 20
    assert len(PYTHON) >= 5
    assert len(commands()) >= 15


@pytest.mark.parametrize("command", commands())
def test_recipe_commands_pass_their_check(command, reader, monkeypatch, capsys):
    """Accepted are exit code 0, a URL that cannot be reached from here, and an output folder that exists already."""
    words = shlex.split(command)
    if words[0] == "accelerate":
        assert words[2] == "--config_file"
        assert (ROOT / words[3]).is_file()
        words = words[3:]
    script, flags = words[1], words[2:]

    monkeypatch.chdir(reader)
    code = recipe(script).main([*flags, "--check", "true"])
    line = capsys.readouterr().err
    place = line.removeprefix("error: ").partition(": ")[0]
    unreachable = place in [word for word in flags if "://" in word]
    assert code == 0 or unreachable or "give another --output_dir" in line, line


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_examples_run(block, reader, monkeypatch):
    code = block.body
    for size, small in SMALLER.items():
        code = re.sub(rf"\b{size}\b", small, code)

    monkeypatch.chdir(reader)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", reader / "cache")
    names = {}
    exec(compile(code, str(block), "exec"), names)
    if block.document == "README.md":
        assert len([line for line in code.splitlines() if line and "import" not in line]) <= 10
        assert names["trainer"].state.global_step == 2
        assert {"eval_mlm_loss", "eval_nsp_accuracy"} <= names["trainer"].evaluate().keys()


@pytest.mark.parametrize(
    "name", ["README.md", *(f"docs/{page}.md" for page in ("quickstart", "your_corpus", "paper"))]
)
def test_options_exist(name):
    classes = [
        value
        for value in {**vars(arguments), **vars(finetuning_arguments), **vars(probe_arguments)}.values()
        if is_dataclass(value)
    ]
    known = {field.name for cls in classes for field in fields(cls)} | {"config", "check", "help"}
    known |= {name.removeprefix("--") for action in launch_command_parser()._actions for name in action.option_strings}
    known |= {"exclude"}  # of `hf upload`
    assert set(re.findall(r"(?<![\w-])--(\w+)", (ROOT / name).read_text())) <= known


def test_the_quickstart_shows_the_output_of_the_readme():
    shown = [block.body for block in BLOCKS if "held out, after:" in block.body]
    assert len(shown) == 2
    assert shown[0] == shown[1]


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for name in DOCUMENTS for target in re.findall(r"`make ([a-z]+)\b", (ROOT / name).read_text())}
    named |= {target for block in BLOCKS for target in re.findall(r"^make ([a-z]+)\b", block.body, re.MULTILINE)}
    assert named <= targets


def test_the_tree_names_every_module_and_nothing_else():
    tree = next(block.body for block in blocks_of("README.md") if "src/bert_hf/" in block.body)
    named = set(re.findall(r"(\w+)\.py\b", tree))
    modules = {path.stem for path in (ROOT / "src/bert_hf").rglob("*.py")} - {"__init__"}
    listed_by_folder = {path.stem for path in (ROOT / "src/bert_hf").rglob("*.py") if path.parent.name in FOLDERS}
    assert modules - listed_by_folder <= named
    assert named <= modules
    for folder in FOLDERS[:4]:  # their modules are named, without .py
        line = next(line for line in tree.splitlines() if f"{folder}/" in line)
        stems = {path.stem for path in (ROOT / "src/bert_hf/finetuning" / folder).glob("*.py")} - {"__init__"}
        assert stems <= set(re.findall(r"\w+", line)), folder
    assert all(re.search(rf"\b{path.stem}\b", tree) for path in (ROOT / "recipes").glob("*.py"))


@pytest.mark.parametrize(
    ("script", "function", "result"),
    [
        ("make_cost", "page", "cost.md"),
    ],
)
def test_generated_pages_are_up_to_date(script, function, result, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # the script adds to it
    content = getattr(recipe(f"docs/{script}.py"), function)()
    assert content == (ROOT / "docs" / result).read_text(), f"run python docs/{script}.py"
