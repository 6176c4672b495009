"""Finds the recipes and the configurations that come with the package, by name and from any directory."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_hf.errors import InputError, check_known

_PACKAGE = Path(__file__).parents[1]
_ROOT = _PACKAGE if (_PACKAGE / "recipes").is_dir() else _PACKAGE.parents[1]  # installed, or a checkout
RECIPES = _ROOT / "recipes"
CONFIGS = _ROOT / "configs"

COMMAND_VARIABLE = "BERT_HF_COMMAND"  # set by the console command: the command as it was given, for every rank


def in_clone() -> bool:
    """Return True where the working directory is this clone: printed commands may use `make`, constraints.txt."""
    return Path.cwd() == _ROOT and Path("Makefile").is_file()


def recipe_main(name: str) -> Callable[[list[str]], int]:
    """Return `main` of a recipe, imported by path: the recipe `evaluate` has the name of a library."""
    spec: Any = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    return recipe.main


def find_config(name: str, *kinds: str, suffix: str = ".yaml") -> Path:
    """Return a path as it is, or the file with this bare name in `configs/KIND/` of the package, for any of `kinds`.

    A path that begins with `configs/` is the package's where the working directory has no such file.
    """
    path = Path(name)
    if path.parts[:1] == ("configs",) and not path.exists():
        return _ROOT / path
    if path.suffix or "/" in name or path.exists():
        return path
    shipped = {file.stem: file for kind in kinds for file in sorted((CONFIGS / kind).glob(f"*{suffix}"))}
    check_known(name, shipped, "no such file or configuration", where=name)
    return shipped[name]


def find_accelerate_config(name: str) -> Path:
    """Return the file for `accelerate launch`, by path or name; without an accelerator `cpu_NAME` if that exists."""
    path = find_config(name, "accelerate")
    if not path.is_file():
        raise InputError("no such file", where="--accelerate_config", remedy=f"{name!r} is not in configs/accelerate")

    import torch  # two seconds: only where ranks are started

    on_cpu = path.with_name(f"cpu_{path.name}")
    return on_cpu if on_cpu.is_file() and not torch.accelerator.is_available() else path
