"""Draws the curves of a run, writes its model card with its metrics, and pushes it to the Hub."""

import contextlib
import csv
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from matplotlib.figure import Figure

from bert_hf.config.files import write_durably
from bert_hf.console import shorten_list
from bert_hf.errors import InputError, first_line

PUSHED = (
    "config.json *.safetensors model.safetensors.index.json tokenizer.json tokenizer_config.json vocab.txt README.md "
    "sentence_bert_config.json "
    "*_results.json trainer_state.json loss.png log_history.csv"
).split()
STOCK = "A BERT that stock transformers loads, with no custom code:"
_OWN = ("eval_", "test_")  # beginnings of the names of a model's own metrics
TIMEOUT = 60  # seconds without a byte; huggingface_hub has no limit
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")  # the shape of a token of the Hub
_TOKEN_FLAG = re.compile(r"(--(?:push_to_)?hub_token[ =])\s*\S+")
_IN_URL = re.compile(r"(://)[^/\s@'\"]+@|([?&][\w-]*(?:token|key|sig|signature|secret|password)=)[^&\s'\"]+", re.I)
# Licences of texts that the Hub knows; it refuses a card with any other, except as `other` with a name.
_LICENCES = (
    "apache-2.0 mit bsd-3-clause cc cc0-1.0 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-4.0 cc-by-nd-4.0 "
    "cc-by-nc-sa-4.0 cc-by-nc-nd-4.0 gfdl gpl-3.0 lgpl-3.0 mpl-2.0 odc-by odbl pddl unlicense unknown other"
).split()
_COLOURS = {"mlm": "tab:blue", "nsp": "tab:orange", "f1": "tab:green", "accuracy": "tab:blue", "loss": "tab:blue"}


# ---- curves


def write_curves(history: list[dict], folder: Path, baselines: dict[str, float] | None = None) -> None:
    """Writes `log_history.csv` (every entry of the log) and `loss.png` (see `draw_curves`)."""
    columns = ["step", *sorted({name for row in history for name in row} - {"step"})]
    with open(folder / "log_history.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(history)

    draw_curves(history, baselines or {}).savefig(folder / "loss.png", dpi=120)


def draw_curves(history: list[dict], baselines: dict[str, float]) -> Figure:
    """Two panels, each with its baseline as a dashed line.

    Pre-training: the MLM loss, and the NSP accuracy (MLM accuracy where there are no pairs). The NSP loss is left out,
    because it is below 0.7 nats where the MLM loss is between 2 and 10. Other runs: losses, and accuracies if any.
    """
    names = sorted({name for row in history for name in row})
    losses = [name for name in names if name.endswith("loss")]
    scores = [name for name in names if name.endswith(("accuracy", "_f1"))]

    if any("mlm" in name for name in losses):
        task = "nsp" if any("nsp" in name for name in scores) else "mlm"
        losses = [name for name in losses if "mlm" in name]
        scores = [name for name in scores if task in name]

    figure = Figure(figsize=(11 if scores else 6, 4))
    panels = figure.subplots(1, 2 if scores else 1, squeeze=False)
    unigram, majority = baselines.get("unigram_mlm_loss"), baselines.get("majority_nsp_accuracy")
    _draw(panels[0][0], history, losses, "loss (nats)", unigram, "unigram frequencies")
    if scores:
        _draw(panels[0][1], history, scores, "accuracy", majority, "majority class")
    figure.tight_layout()
    return figure


def _draw(panel, history: list[dict], names: list[str], label: str, level: float | None, level_name: str) -> None:
    """One panel: training metrics as thin lines, held-out ones as lines with points, a baseline as a dashed line."""
    for name in names:
        points = [(row["step"], row[name]) for row in history if name in row and "step" in row]
        if not points or name.startswith("train_"):  # the mean over the run is a metric, not a curve
            continue

        held_out = name.startswith("eval_")
        style = {"marker": "o", "markersize": 3, "linewidth": 1.6} if held_out else {"linewidth": 1, "alpha": 0.45}
        colour = next((_COLOURS[key] for key in _COLOURS if key in name), "tab:gray")
        text = name.removeprefix("eval_").replace("_", " ")
        text = re.sub("mlm|nsp|f1", lambda found: found[0].upper(), text)
        text += ", held out" if held_out else ", training"
        panel.plot(*zip(*points, strict=True), color=colour, label=text, **style)

    if level is not None:
        panel.axhline(level, linestyle="--", linewidth=1, color="black", label=f"{level_name} ({level:.3f})")

    panel.set(xlabel="step", ylabel=label)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.25)
    if panel.lines:
        panel.legend(fontsize=8, frameon=False)


# ---- card


@dataclass
class Card:
    """The contents of a model card without its metrics. Licence, source and language only as the user gave them."""

    title: str
    pipeline_tag: str  # fill-mask, text-classification, …
    command: str
    machine: str
    corpus: dict = field(default_factory=dict)  # documents, sentences, tokens, fingerprint
    training: dict = field(default_factory=dict)  # the settings, as a table
    source: str | None = None
    license: str | None = None
    language: str | None = None
    base_model: str | None = None
    example: str = "The capital of France is [MASK]."  # of the Hub's widget; "": no widget
    introduction: str = STOCK  # of the code that loads the model
    stock: bool = True  # whether stock transformers loads it; else the Hub is told of no library and no pipeline
    usage: Callable[[str], str] | None = None  # Python code that calls a model; by default a pipeline on the example
    held_out: str = "the held-out part of the same text"  # the data of the metrics
    notes: list[str] = field(default_factory=list)  # options that change the numbers
    limits: list[str] = field(default_factory=list)  # what a user of the model has to know, one or two sentences each
    repo_id: str | None = None  # where it will be pushed: the code on the card loads it from there


def write_card(folder: Path, card: Card, metrics: dict[str, float]) -> None:
    """Writes `README.md`: front matter, how to load the model, the run's metrics, how it was made.

    Metrics that are not finite numbers are left out, and so is everything that looks like a token.
    """
    shown = {name: value for name, value in metrics.items() if _is_result(name, value)}

    task = "masked-language-modeling" if card.pipeline_tag == "fill-mask" else card.pipeline_tag
    dataset = card.source or "not stated"
    own = {name: value for name, value in shown.items() if name.startswith(_OWN)}  # no baselines
    results = [EvalResult(task, dataset, dataset, name, round(value, 5)) for name, value in own.items()]
    data = ModelCardData(
        library_name="transformers" if card.stock else None,
        pipeline_tag=card.pipeline_tag if card.stock else None,
        language=card.language,
        **_licence(card.license),
        base_model=card.base_model,
        tags=["bert", "bert_hf"],
        model_name=card.title if own else None,  # with no metric there is no `model-index`
        eval_results=results or None,
        widget=[{"text": card.example}] if card.example else None,
    )
    text = f"---\n{data.to_yaml()}\n---\n\n{_body(folder, card, shown)}"
    ModelCard(_without_tokens(text)).save(folder / "README.md")


def replace_repository(folder: Path, name: str, repo_id: str) -> None:
    """Replaces the name from which the code of a card loads the model, that of the folder or of another repository."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    before, fence, rest = card.partition("```python\n")
    code, end, after = rest.partition("```")
    code = code.replace(f'"{name}"', f'"{repo_id}"')
    write_durably(folder / "README.md", before + fence + code + end + after)


def _without_tokens(text: str) -> str:
    """Replaces tokens and passwords, which the command or a URL may contain."""
    text = _TOKEN.sub("(token)", _TOKEN_FLAG.sub(r"\1(token)", text))
    text = _IN_URL.sub(lambda found: f"{found[1]}(token)@" if found[1] else f"{found[2]}(token)", text)
    if token := huggingface_hub.get_token():
        text = text.replace(token, "(token)")
    return text


def held_out_text(files: list[str] | None, option: str, otherwise: str) -> str:
    """Describes the data of a card's metrics: the names of the given files, or `otherwise` the part split off."""
    if not files:
        return otherwise
    names = [Path(name.split("?")[0]).name for name in files]
    return f"the text given by {option} ({shorten_list(names)})"


def _licence(given: str | None) -> dict[str, Any]:
    """The licence that the user named, as front matter."""
    if given is None:
        return {}
    name = given.strip().lower().replace(" ", "-")
    if name in _LICENCES:
        return {"license": name}
    return {"license": "other", "license_name": re.sub(r"[^a-z0-9.]+", "-", name).strip("-")}


def _is_result(name: str, value) -> bool:
    """True for a finite metric that is no time or count."""
    timing = ("_runtime", "_per_second", "_samples", "_time", "flos")
    kinds = (*_OWN, "baseline_", "unigram_", "trigram_", "majority_")
    finite = isinstance(value, int | float) and math.isfinite(value)
    return finite and name.startswith(kinds) and not name.endswith(timing)


def _body(folder: Path, card: Card, metrics: dict[str, float]) -> str:
    """The card below its front matter."""
    values = {name: f"{value:.4f}" for name, value in metrics.items()}
    limits = "".join(f"\n{limit}\n" for limit in card.limits)

    return f"""# {card.title}

{card.introduction}

```python
{_usage(folder, card)}
```

## Metrics of this run

{_table("metric", "value", values)}

![loss](loss.png)

{_provenance(card)}## Limits

The metrics are those of {card.held_out}. The model repeats what its text holds, errors and prejudice included.
{limits}"""


def _usage(folder: Path, card: Card) -> str:
    """Code that calls the model: the card's own, or its pipeline."""
    name = card.repo_id or folder.name
    if card.usage:
        return card.usage(name)

    model = repr(name).replace("'", '"')
    example = card.example.replace("\\", " ").replace('"', "'").replace("\n", " ")
    return f"""from transformers import pipeline

pipeline("{card.pipeline_tag}", model={model})("{example}")"""


def _provenance(card: Card) -> str:
    """The sections on the text and the run behind the model."""
    corpus = "".join(f"- {name}: {value}\n" for name, value in card.corpus.items())
    notes = "".join(f"- {note}\n" for note in card.notes)

    return f"""## Text

- Source: {card.source or "not stated by the user"}
- Licence of the text: {card.license or "not stated by the user"}
{corpus}
## How it was made

With bert_hf {version("bert-hf")}, torch {version("torch")}, transformers {version("transformers")}, on {card.machine}:

```
{card.command}
```

{_table("setting", "value", card.training)}

{notes}
"""


def _table(left: str, right: str, rows: dict) -> str:
    """A table of two columns, in Markdown."""
    lines = [f"| {left} | {right} |", "|---|---|"]
    for cells in rows.items():
        name, value = (str(cell).replace("|", "\\|") for cell in cells)
        lines.append(f"| {name} | {value} |")
    return "\n".join(lines)


# ---- push


def create_repository(folder: Path, repo_id: str, *, private: bool | None = None, revision: str | None = None) -> str:
    """Creates the repository and the branch of a run where they do not exist; returns the full id, USER/NAME.

    Raises:
        InputError: the Hub refused.
    """
    _set_timeout()
    with _push_errors(folder, repo_id):
        full_id = huggingface_hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if revision and revision != "main" and not revision.startswith("refs/"):
            huggingface_hub.create_branch(full_id, branch=revision, exist_ok=True)
        return full_id


def push(folder: Path, repo_id: str, *, revision: str | None = None) -> str:
    """Uploads a finished run into an existing repository and waits for it; returns the address of the commit.

    Only the files in `PUSHED` go. The token is that of `HF_TOKEN` or `hf auth login`; none is taken as an argument.

    Raises:
        InputError: a pickle or the token is among the files, or the Hub refused.
    """
    files = sorted({path for pattern in PUSHED for path in folder.glob(pattern)})
    _refuse_secrets(files, huggingface_hub.get_token())
    _set_timeout()

    with _push_errors(folder, repo_id):
        commit = huggingface_hub.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            revision=revision,
            commit_message="Upload a run of bert_hf",
            allow_patterns=[path.name for path in files],
        )
        return str(commit)


@contextlib.contextmanager
def _push_errors(folder: Path, repo_id: str) -> Iterator[None]:
    """Turns whatever the Hub's client raises into an `InputError` that says where the model is."""
    try:
        yield
    except Exception as error:  # the client raises several unrelated types: its own, httpx's, OSError, RuntimeError
        raise InputError(
            f"the push failed: {first_line(error)}",
            where=repo_id,
            remedy=f"the model is safe in {folder}; check `hf auth login`, your rights and the network",
        ) from None


def _set_timeout() -> None:
    """Gives the Hub's HTTP client a timeout and keeps its other settings: hooks (among them offline mode), redirects.

    The class comes from the present client, because huggingface_hub 1 uses httpx and 2 uses httpx2. A factory is set
    and not a client, because huggingface_hub closes its client after a failed connection and makes another.
    """
    stock = huggingface_hub.get_session()
    client_class = type(stock)
    hooks = stock.event_hooks
    huggingface_hub.set_client_factory(lambda: client_class(event_hooks=hooks, follow_redirects=True, timeout=TIMEOUT))


def _refuse_secrets(files: list[Path], token: str | None) -> None:
    """Raises for a pickle (recognised by its content) and for a file that contains a token."""
    for path in files:
        if _is_pickle(path):
            raise InputError("a pickle is not pushed", where=path, remedy="remove the file")
        if path.suffix in (".safetensors", ".png"):
            continue  # gigabytes of numbers and pixels, in which a match would be chance

        text = path.read_bytes()
        if (token and token.encode() in text) or _TOKEN.search(text.decode("utf-8", "replace")):
            raise InputError("the file holds your token", where=path, remedy="remove it from the file, and renew it")


def _is_pickle(path: Path) -> bool:
    """Whether a file begins like a pickle (protocol 2 to 5) or like the zip archive around one.

    The first eight bytes of a safetensors file are the length of its JSON header and may have any value, so there the
    byte after them decides.
    """
    with path.open("rb") as file:
        start = file.read(9)
    if path.suffix == ".safetensors":
        return start[8:9] != b"{"
    return start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"))
