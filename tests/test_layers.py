"""Imports run one way through the packages of src/bert_hf, and without cycles."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src/bert_hf"

# The package of each module, in the order of imports: a package may import those before it (design: data flow).
PACKAGES = {
    "errors": "errors progress",
    "config": "arguments files learning_checks options precision ranges training_options",
    "models": "cost fast_path kernels modeling muon optimization pretrained shapes",
    "data": "collator corpus doctor documentation duplicates encoding finding input_shards "
    "length_leak markup masking pairing remote round_trip "
    "sampling scripts sources store text_corpus tokenization trigrams",
    "training": "checkpointing curve exact_backward finite hub identity planning pretraining ranks run "
    "running_sums safe_trainer stored_trainer trainer watch",
    "finetuning": "classification features metrics tasks",
    "preflight": "preflight",
    "probe": "probe_arguments probe_data probe_features probe_geometry probe_grammar probe_language probe_network "
    "probe_parts probe_report probe_tuning",
}
PLACE = {module: number for number, modules in enumerate(PACKAGES.values()) for module in modules.split()}


def imports(path: Path) -> set[str]:
    """Modules of ours that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bert_hf":
            inside = node.module.split(".")[1:]
            found |= {inside[0]} if inside else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("bert_hf.")}
    return found


GRAPH = {path.stem: imports(path) for path in SOURCE.glob("*.py") if path.stem != "__init__"}


def test_every_module_belongs_to_a_package():
    assert GRAPH.keys() == PLACE.keys()


@pytest.mark.parametrize("module", sorted(GRAPH))
def test_a_module_imports_its_own_package_and_those_before(module):
    later = {other for other in GRAPH[module] if PLACE[other] > PLACE[module]}
    assert not later


def test_there_are_no_cycles():
    assert list(TopologicalSorter(GRAPH).static_order())


def test_nothing_imports_a_recipe():
    for path in SOURCE.glob("*.py"):
        lines = path.read_text().splitlines()
        assert not any("recipes" in line for line in lines if line.startswith(("import", "from"))), path.name


def test_recipes_are_short():
    for path in (SOURCE.parents[1] / "recipes").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 110, path.name
