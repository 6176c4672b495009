"""The picture of the house, as law: who may import whom inside src/bert_hf (see README, "The house")."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src/bert_hf"

GROUND = {"errors", "files", "kernels", "muon", "options", "pretrained"}
STONES = {
    "arguments", "checkpointing", "cost", "curve", "documentation", "duplicates", "encoding", "finite",
    "learning_checks", "masking", "metrics", "modeling", "optimization", "pairing", "ranges", "ranks", "remote",
    "sampling", "shapes", "sources", "store", "tasks", "tokenization", "training_options", "trigrams", "watch",
}  # fmt: skip
JOINTS = {  # joint: the stones it may import, beside the ground
    "corpus": {"arguments", "documentation", "duplicates", "encoding", "remote", "sources", "store", "tokenization"},
    "collator": {"masking", "modeling", "pairing", "remote", "sampling"},
    "stored_trainer": {"arguments", "checkpointing", "ranks"},
    # Trainers alone stand on each other: stored, then safe, then with BERT's two losses.
    "safe_trainer": {
        "stored_trainer",
        "checkpointing",
        "finite",
        "optimization",
        "sampling",
        "training_options",
        "watch",
    },
    "trainer": {
        "safe_trainer",
        "checkpointing",
        "cost",
        "modeling",
        "optimization",
        "remote",
        "sampling",
        "training_options",
    },
    "features": {"arguments", "sources", "tasks"},
    "hub": set(),
}
BETWEEN = {"classification", "doctor", "planning", "preflight", "pretraining", "run"}


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


def test_every_module_is_in_the_picture():
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__"}
    assert modules == GROUND | STONES | JOINTS.keys() | BETWEEN


def test_stones_stand_on_the_ground():
    for name in GROUND:  # errors.py lies lowest, files.py on it
        assert imports(SOURCE / f"{name}.py") <= {"errors", "files"} - {name}, name
    for name in STONES:
        assert imports(SOURCE / f"{name}.py") <= GROUND, name


def test_joints_join_stones_and_not_joints():
    for name, allowed in JOINTS.items():
        assert imports(SOURCE / f"{name}.py") <= allowed | GROUND, name


def test_nothing_imports_a_door():
    for path in SOURCE.glob("*.py"):
        assert not any(
            "recipes" in line for line in path.read_text().splitlines() if line.startswith(("import", "from"))
        )


def test_doors_are_thin():
    for path in (SOURCE.parents[1] / "recipes").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 110, path.name
