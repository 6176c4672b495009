"""Brings the printed estimates in docs/cost.md up to date.

python docs/make_cost.py

Every fenced command that is followed by a fenced output is run again. An output may leave paragraphs out, shown as
`…`; the others are replaced by the printed paragraph that begins with the same word.
"""

import contextlib
import importlib.util
import io
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/cost.md"
EXAMPLE = re.compile(r"```bash\npython recipes/estimate\.py ([^\n]+)\n```\n\n```text\n(.+?)\n```", re.DOTALL)


def estimate(flags: list[str]) -> list[str]:
    """The paragraphs that recipes/estimate.py prints."""
    spec = importlib.util.spec_from_file_location("estimate", ROOT / "recipes/estimate.py")
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)

    printed = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(printed):
        code = recipe.main(flags)
    assert code == 0, flags
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines()).split("\n\n")


def updated(example: re.Match) -> str:
    command, shown = example.groups()
    by_first_word = {paragraph.split()[0]: paragraph for paragraph in estimate(shlex.split(command))}
    paragraphs = [by_first_word.get(old.split()[0], old) for old in shown.split("\n\n")]
    return example[0].replace(shown, "\n\n".join(paragraphs))


def page() -> str:
    return EXAMPLE.sub(updated, PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
