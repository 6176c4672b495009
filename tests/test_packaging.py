"""The requirements: few, and each one pinned to the version that was tested, with all that it requires."""

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def pinned() -> set[str]:
    """Names in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonicalize_name(line.split("==")[0]) for line in lines if not line.startswith("#")}


def test_every_requirement_is_pinned():
    """Those of other requirements too, as far as they are installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(project["dependencies"]) <= 20

    extras = project["optional-dependencies"].values()
    waiting = [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]
    names = {"bert-hf"}
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        applies = applies and not name.startswith(("cuda-", "nvidia-", "triton"))  # torch's CUDA build pins its own
        if not applies or name in names:
            continue
        names.add(name)
        try:
            waiting += map(Requirement, metadata.requires(name) or [])
        except metadata.PackageNotFoundError:
            continue
    assert names - {"bert-hf"} <= pinned()
