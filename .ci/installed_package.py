"""Checks that the installed package is whole, in an environment that holds nothing else of this project.

python -I .ci/installed_package.py CHECKOUT
"""

import sys
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path


def check_contents(checkout: Path) -> None:
    """The package comes from the environment, whole: with its type marker and its data files."""
    package = files("bert_hf")
    assert Path(str(package)).is_relative_to(sys.prefix), package
    assert not [place for place in sys.path if Path(place).is_relative_to(checkout / "src")], sys.path
    assert (package / "py.typed").is_file()

    sources = {path.relative_to(checkout / "src/bert_hf") for path in (checkout / "src/bert_hf").rglob("*")}
    for source in sorted(sources):
        if source.suffix in (".py", ".tsv", ".md"):
            assert (package / str(source)).is_file(), f"missing in the wheel: {source}"


if __name__ == "__main__":
    check_contents(Path(sys.argv[1]).resolve())
    print(f"bert_hf {version('bert-hf')}: the wheel is complete")
