"""Imports run one way through the packages of src/bert_hf, and without cycles."""

import ast
import re
import shutil
import subprocess
import sys
from functools import lru_cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/bert_hf"

# A package may import those before it; packages in one place do not import each other.
ORDER = (
    ("console",), ("errors",), ("config",), ("models",), ("data",), ("training",), ("pretraining", "finetuning"),
    ("analysis",), ("cli",),
)  # fmt: skip


def module_name(path: Path) -> str:
    """`bert_hf.data.examples.masking` of src/bert_hf/data/examples/masking.py."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"}


@lru_cache
def imports(module: str) -> set[str]:
    """Modules of ours that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bert_hf":
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in whole}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("bert_hf.")}
    return found & MODULES.keys()


def package(module: str) -> str:
    return module.split(".")[1]


def place(module: str) -> int:
    return next(number for number, packages in enumerate(ORDER) if package(module) in packages)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_its_own_package_and_those_before(module):
    others = {other for other in imports(module) if package(other) != package(module)}
    assert not {other for other in others if place(other) >= place(module)}


def test_there_are_no_cycles():
    assert list(TopologicalSorter({module: imports(module) for module in MODULES}).static_order())


def test_nothing_imports_a_recipe():
    for path in MODULES.values():
        lines = path.read_text().splitlines()
        assert not any("recipes" in line for line in lines if line.startswith(("import", "from"))), path.name


def test_recipes_are_short():
    for path in (ROOT / "recipes").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 110, path.name


def test_no_recipe_hides_a_library(tmp_path):
    """The folder of a script that is run is the first place where its imports are looked for; here it is the last."""
    shutil.copy(ROOT / "recipes/evaluate.py", tmp_path)
    script = tmp_path / "predict.py"
    script.write_text(
        "import importlib.util\n"
        "from bert_hf.config.short_help import answer_at_once\n"
        "answer_at_once(__name__)\n"
        "print(importlib.util.find_spec('evaluate').origin)\n"
    )
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()).parent.name == "evaluate"

    for path in (ROOT / "recipes").glob("*.py"):  # before anything that loads it; SQuAD's metric does not
        imports = path.read_text().partition("answer_at_once(__name__)")[0]
        modules = set(re.findall(r"^from (bert_hf\.\S+)", imports, re.MULTILINE))
        assert modules == {"bert_hf.config.short_help"} or path.stem == "evaluate_squad", path.name
