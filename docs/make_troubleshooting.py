# ruff: noqa: E501 - tables of the page
"""Writes docs/troubleshooting.md from the catalogue of bad inputs, tests/bad_inputs.py.

python docs/make_troubleshooting.py

Run it after changing an error line; tests/test_docs.py fails while the page differs from the catalogue.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import bad_inputs  # noqa: E402 - found through the path above
from bad_inputs import Bad  # noqa: E402

SECTIONS = [
    ("The command line", bad_inputs.COMMAND_LINE, "Options, their values, and combinations of options."),
    ("Numbers", bad_inputs.NUMBERS, "Every number has a range; the line gives it."),
    ("Run configurations (YAML)", bad_inputs.CONFIGS, "The file named by `--config`."),
    ("Text and prepared corpora", bad_inputs.FILES, "`--train_file`, `--validation_file`, `--dataset_name`."),
    ("Tokenizers", bad_inputs.TOKENIZERS, "`--tokenizer_name`."),
    ("Models and checkpoints", bad_inputs.MODELS, "`--config_name`, `--model_name_or_path`."),
    ("Labelled rows", bad_inputs.ROWS_READ, "The data of `finetune_classification.py`."),
    ("Output folders", bad_inputs.FOLDERS, "`--output_dir`, `--cache_dir`."),
]
SHOWN = 3  # causes named in a row

HEAD = """\
<!-- Written by docs/make_troubleshooting.py from tests/bad_inputs.py: change those. -->
# Troubleshooting

Bad input ends a command with exit code 2 and one line on stderr:

```text
error: PLACE: WHAT; REMEDY
```

PLACE is an option, or a file with line and column. No half-written file is left, and no traceback is printed. To find
such errors before a run starts, add `--check true`:

```bash
accelerate launch --config_file accelerate_config.yaml recipes/pretrain.py \\
    --config configs/pretrain/bert-mini-cpu.yaml --train_file 'corpus/*.txt' --check true
```

Under `accelerate launch` the same line appears once; the launcher then adds its own report and exits with 1, whatever the
exit code of the recipe. The codes below are the recipe's own.

## A run that ends early or does not learn

| symptom | cause | remedy |
|---|---|---|
| a line that begins with `stopped:`, exit code 143 | a signal (Ctrl-C, SIGTERM, SIGUSR1), or the launcher ended | run the same command again: it resumes |
| exit code 75 | a rank or a loader process died, or there was no progress for `--hang_timeout` seconds | run the same command again; look into `stacks-rankN.txt`; raise `--hang_timeout` if the machine is slow |
| exit code 70 | a loss or gradient is not finite | look at the examples that the line names; lower `--learning_rate` in a new `--output_dir`, or give `--skip_bad_steps N` |
| no line at all | kill −9, often for lack of memory | run the same command again, with a smaller `--per_device_train_batch_size` and as many more `--gradient_accumulation_steps` |
| `!` lines before training | the text or the plan has a problem that does not prevent training | the line says what to do; all checks: [data.md](data.md#the-corpus-report) |
| MLM loss stays within 0.8 nats of *unigram* after a quarter of the steps | context is not used yet: too few tokens, or positions are learned slowly | `--optim muon --position_initializer sinusoidal` in a new `--output_dir` ([small_machine.md](small_machine.md)), or more tokens |
| next-sentence accuracy stays at 0.5 | it rises only after the MLM loss has left that level | train longer |
| `OutOfMemoryError` | the batch of a device is too large | halve `--per_device_train_batch_size` and double `--gradient_accumulation_steps`: the run resumes on the same examples |
| the folder is refused | a setting that affects the result differs from the run in the folder | the line names the setting; restore it, or give another `--output_dir` |

[reliability.md](reliability.md) describes exit codes, signals and the watchdog in detail.

The following tables list the error lines by topic. `FILE`, `LINE` and `COLUMN` mark the place; names and numbers are
examples.
"""


def parts(line: str) -> tuple[str, str, str]:
    """(place, what, remedy) of an error line: `a.txt:2:6: byte …; convert …` → `a.txt:2:6`, `byte …`, `convert …`."""
    place, rest = re.fullmatch(r"(--[\w ,-]+?|command line|arguments|cell \S+|\S+): (.+)", line).groups()
    what, remedy = rest.split("; ", 1)
    return place, what, remedy


def shown_place(place: str) -> str:
    """Options as they are; a file as FILE, FILE:LINE or FILE:LINE:COLUMN."""
    if place.startswith("--") or place in ("command line", "arguments", "corpus"):
        return place
    numbers = re.search(r"((?::(?:\d+|<number>))*)$", place)[1].count(":")
    return ":".join(["FILE", "LINE", "COLUMN"][: numbers + 1])


def kind(text: str) -> str:
    """The text without names and numbers: lines that are equal then share a row."""
    text = re.sub(r"'[^']*'|--\w+|\bnan\b|\binf\b|-?\d[\d.,]*|0x\w\w", "·", text)
    return re.sub(r"\b[a-z]+_[a-z_]+\b|\.\w+\b", "·", text)


def code(text: str) -> str:
    text = text.replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def rows(cases: list[Bad]) -> list[str]:
    """A table row for each kind of error line: the line, its causes, its remedy."""
    kinds: dict[tuple, list[Bad]] = {}
    for case in cases:
        place, what, remedy = parts(case.line)
        kinds.setdefault((kind(shown_place(place)), kind(what), kind(remedy)), []).append(case)

    lines = []
    for alike in kinds.values():
        place, what, remedy = parts(alike[0].line)
        causes = [plain(case.name) for case in alike]
        more = f" ({len(causes) - SHOWN} more)" if len(causes) > SHOWN else ""
        message = code(f"{shown_place(place)}: {what}")
        lines.append(f"| {message} | {'; '.join(causes[:SHOWN])}{more} | {plain(remedy)} |")
    return lines


def page() -> str:
    text = [HEAD]
    for title, cases, about in SECTIONS:
        text += [f"## {title}\n", f"{about}\n", "| error line | cause | remedy |", "|---|---|---|", *rows(cases), ""]
    return "\n".join(text)


if __name__ == "__main__":
    Path(__file__).with_name("troubleshooting.md").write_text(page(), encoding="utf-8")
