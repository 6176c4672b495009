"""Writes the reference pages of the site: every command, every option, and the public names of Python.

They are made from the recipes' docstrings, the declarations of the options and `bert_hf.__all__`.
"""

import ast
import inspect
import re
import runpy
from dataclasses import MISSING, Field, fields
from pathlib import Path

import bert_hf
from bert_hf.config import package_files, parser, short_help

COMMANDS = """# Commands

`bert-hf COMMAND` runs from any folder; in a clone, `accelerate launch recipes/NAME.py` and `python recipes/NAME.py` do
the same. Commands that train also take every field of transformers'
[TrainingArguments](https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments).
"""


class _Parsed(BaseException):
    """Raised in place of parsing, with the dataclasses of the options."""


def stop(classes: tuple[type, ...], *args, **kwargs):
    raise _Parsed(classes)


def option_classes(recipe: Path) -> tuple[type, ...]:
    """The dataclasses that a recipe parses its command line into; none if it has a parser of its own."""
    module = runpy.run_path(str(recipe))
    try:
        return () if "argparse" in module else module["main"]([])
    except _Parsed as stopped:
        return stopped.args[0]


def declared(cls: type) -> list[Field]:
    """Fields that a class declares itself as options, without those of its parents."""
    return [f for f in fields(cls) if "limits" in f.metadata and f.name in cls.__annotations__]


def groups(cls: type) -> list[type]:
    """The class and its parents that declare options, from the most general on."""
    return [parent for parent in reversed(cls.__mro__) if hasattr(parent, "__dataclass_fields__") and declared(parent)]


def default_of(f: Field) -> str:
    value = f.default_factory() if f.default is MISSING else f.default
    if value is None or value == []:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def row(f: Field) -> str:
    """The line of an option in a table: its name, default, help text and limits."""
    limits = f.metadata["limits"]
    notes = {
        "in ": [limits.range] if limits.range else [],
        "one of ": [f"`{choice}`" for choice in f.metadata.get("choices", ())],
        "only with ": [f"`--{name}`" for name in limits.only_with],
        "not with ": [f"`--{name}`" for name in limits.not_with],
    }
    remarks = "; ".join(f"{note}{', '.join(names)}" for note, names in notes.items() if names)
    help = f.metadata["help"].replace("%%", "%") + (f" ({remarks})" if remarks else "")
    return f"| `--{f.name}` | {default_of(f)} | {help.replace('|', chr(92) + '|')} |"


def title(cls: type) -> str:
    """PreTrainingArguments → Pre-training; HeldOutArguments → Held out."""
    words = re.findall("[A-Z][a-z]+", cls.__name__.removesuffix("Arguments"))
    return " ".join(words).capitalize().replace("e t", "e-t")


def command(recipe: Path, classes: tuple[type, ...]) -> list[str]:
    """The lines of a command: what it does, its page of help, and links to the groups of all its options."""
    name = next((name for name, script in package_files.CONSOLE_COMMANDS.items() if script == recipe.stem), None)
    if name is None:
        first, text = ast.get_docstring(ast.parse(recipe.read_text())).split("\n\n", 1)
    else:
        _, first, text = short_help.help_page(recipe.stem).split("\n\n", 2)
    lines = [f"## {f'bert-hf {name}' if name else recipe.name}", "", f"`recipes/{recipe.name}`: {first}", ""]

    names = dict.fromkeys(title(group) for cls in classes for group in groups(cls))
    links = [f"[{name}](options.md#{name.lower().replace(' ', '-')})" for name in names]
    return [*lines, "```text", text.rstrip(), "```", "", f"All options: {', '.join(links)}" if links else "", ""]


def directive(name: str) -> str:
    """What makes Sphinx document a public name; the fields of option classes are on the page of options."""
    if name.endswith("Arguments"):
        return f".. autoclass:: bert_hf.{name}(**options)"
    if inspect.isclass(getattr(bert_hf, name)):
        return f".. autoclass:: bert_hf.{name}\n   :members:\n   :exclude-members: config_class, auto_class"
    return f".. autofunction:: bert_hf.{name}"


def write_pages(folder: Path) -> None:
    """Writes commands.md, options.md and python.md."""
    folder.mkdir(exist_ok=True)
    parser.parse = stop  # before the recipes import it
    order = list(package_files.CONSOLE_COMMANDS.values())
    recipes = sorted(package_files.RECIPES.glob("[a-z]*.py"), key=lambda path: [*order, path.stem].index(path.stem))
    classes = {recipe: option_classes(recipe) for recipe in recipes}

    lines = [COMMANDS, *(line for recipe in recipes for line in command(recipe, classes[recipe]))]
    (folder / "commands.md").write_text("\n".join(lines))

    lines = ["# Options", "", "By group; [Commands](commands.md) says which command takes which.", ""]
    for group in dict.fromkeys(group for recipe in recipes for cls in classes[recipe] for group in groups(cls)):
        lines += [f"## {title(group)}", "", inspect.getdoc(group).partition("\n")[0], ""]
        lines += ["| option | default | meaning |", "|---|---|---|", *map(row, declared(group)), ""]
    (folder / "options.md").write_text("\n".join(lines))

    lines = ["# Python", "", "What `from bert_hf import …` gives.", ""]
    for name in bert_hf.__all__:
        lines += [f"## {name}", "", "```{eval-rst}", directive(name), "```", ""]
    (folder / "python.md").write_text("\n".join(lines))
