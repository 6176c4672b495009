"""Writes the reference pages of the site: every command, every option, and the public names of Python.

They are made from the recipes' docstrings, the option declarations and `bert_hf.__all__`.
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any

import bert_hf
from bert_hf.config import short_help
from bert_hf.config.commands import COMMANDS
from bert_hf.config.options import declarations

INTRODUCTION = """# Commands

`bert-hf COMMAND` runs from any folder; in a clone, `accelerate launch recipes/NAME.py` and `python recipes/NAME.py` do
the same. Commands that train also take every field of transformers'
[TrainingArguments](https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments).
"""


def declared(cls: type) -> list[tuple[Field, Mapping[str, Any]]]:
    """Return the options that a class declares itself, without its parents' options."""
    return [(field, metadata) for field, metadata in declarations(cls) if field.name in cls.__annotations__]


def groups(cls: type) -> list[type]:
    """Return the class and its parents that declare options, from the most general on."""
    return [parent for parent in reversed(cls.__mro__) if hasattr(parent, "__dataclass_fields__") and declared(parent)]


def default_of(f: Field) -> str:
    value = f.default_factory() if f.default is MISSING else f.default
    if value is None or value == []:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def row(f: Field, metadata: Mapping[str, Any]) -> str:
    """Return the line of an option in a table: its name, default, help text and limits."""
    limits = metadata["limits"]
    notes = {
        "in ": [limits.range] if limits.range else [],
        "one of ": [f"`{choice}`" for choice in metadata.get("choices", ())],
        "only with ": [f"`--{name}`" for name in limits.only_with],
        "not with ": [f"`--{name}`" for name in limits.not_with],
    }
    remarks = "; ".join(f"{note}{', '.join(names)}" for note, names in notes.items() if names)
    help = metadata["help"].replace("%%", "%") + (f" ({remarks})" if remarks else "")
    return f"| `--{f.name}` | {default_of(f)} | {help.replace('|', chr(92) + '|')} |"


def title(cls: type) -> str:
    """Return the heading of an option class: PreTrainingOptions → Pre Training."""
    words = re.findall("[A-Z][a-z]+", cls.__name__.removesuffix("Arguments").removesuffix("Options"))
    return " ".join(words).capitalize().replace("Pre t", "Pre-t")


def command(name: str) -> list[str]:
    """Return the lines of a command: its purpose, its page of help, and links to the groups of all its options."""
    recipe, options, others, _ = COMMANDS[name]
    first, text = short_help.description(name).split("\n\n", 1)
    page = f"{text}\n\n{short_help.options_page(name)}"
    titles = dict.fromkeys(title(group) for cls in (*options, *others) for group in groups(cls))
    links = [f"[{title}](options.md#{title.lower().replace(' ', '-')})" for title in titles]
    heading = [f"## bert-hf {name}", "", f"`recipes/{recipe}.py`: {first}", ""]
    return [*heading, "```text", page, "```", "", f"All options: {', '.join(links)}", ""]


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
    lines = [INTRODUCTION, *(line for name in COMMANDS for line in command(name))]
    (folder / "commands.md").write_text("\n".join(lines))

    lines = ["# Options", "", "By group; [Commands](commands.md) says which command takes which.", ""]
    classes = [cls for name in COMMANDS for cls in (*COMMANDS[name].options, *COMMANDS[name].others)]
    for group in dict.fromkeys(group for cls in classes for group in groups(cls)):
        lines += [f"## {title(group)}", "", inspect.getdoc(group).partition("\n")[0], ""]
        lines += ["| option | default | meaning |", "|---|---|---|", *(row(*option) for option in declared(group)), ""]
    (folder / "options.md").write_text("\n".join(lines))

    lines = ["# Python", "", "What `from bert_hf import …` gives.", ""]
    for name in bert_hf.__all__:
        lines += [f"## {name}", "", "```{eval-rst}", directive(name), "```", ""]
    (folder / "python.md").write_text("\n".join(lines))
