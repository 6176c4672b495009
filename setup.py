"""Puts recipes/ and configs/ of the checkout into the installed package; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

FOLDERS = [
    "recipes",
    *(f"configs/{kind}" for kind in ("accelerate", "deepspeed", "finetune", "model", "pretrain")),
]
PLACES = {f"bert_hf.{folder.replace('/', '.')}": folder for folder in FOLDERS}

setup(
    packages=[*find_packages("src"), *PLACES],
    package_dir={"": "src", **PLACES},
    package_data={package: ["*.py", "*.yaml", "*.json"] for package in PLACES},
)
