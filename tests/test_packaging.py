"""The requirements: few, and each one pinned to the version that was tested."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_requirement_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    names = {re.match(r"[\w-]+", requirement)[0].replace("_", "-") for requirement in required} - {"bert-hf"}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].replace("_", "-") for line in lines if not line.startswith("#")}
    assert names == pinned - {"coverage"}  # of pytest-cov
    assert len(project["dependencies"]) <= 19
