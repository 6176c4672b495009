"""What a run shows of itself: curves, a model card with its real figures, and the push to the Hub."""

import csv
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import huggingface_hub
import matplotlib
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from bert_hf.errors import InputError

matplotlib.use("Agg")  # no window, whatever the machine

from matplotlib import pyplot as plt

PUSHED = [
    "config.json",
    "*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "README.md",
    "*_results.json",
    "trainer_state.json",
    "loss.png",
    "log_history.csv",
]
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
TIMEOUT = 60  # seconds without a byte: huggingface_hub itself waits for ever


# ---- curves


def write_curves(history: list[dict], folder: Path, baselines: dict[str, float] | None = None) -> None:
    """Writes `log_history.csv` (every line of the log) and `loss.png` (losses, and accuracies where there are any)."""
    columns = ["step", *sorted({name for row in history for name in row} - {"step"})]
    with open(folder / "log_history.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(history)
    accuracies = [name for name in columns if name.endswith(("accuracy", "_f1"))]
    figure, panels = plt.subplots(1, 2 if accuracies else 1, figsize=(11 if accuracies else 6, 4), squeeze=False)
    losses = [name for name in columns if name.endswith("loss") and name != "train_loss"]
    _draw(panels[0][0], history, losses, "loss (nats)", (baselines or {}).get("unigram_mlm_loss"), "unigram baseline")
    if accuracies:
        majority = (baselines or {}).get("majority_nsp_accuracy")
        _draw(panels[0][1], history, accuracies, "accuracy", majority, "NSP majority")
    figure.tight_layout()
    figure.savefig(folder / "loss.png", dpi=120)
    plt.close(figure)


def _draw(panel, history: list[dict], names: list[str], label: str, level: float | None, level_name: str) -> None:
    """One panel: training figures as thin lines, held-out ones as lines with points, a baseline as a dashed line."""
    colours = {"mlm": "tab:blue", "nsp": "tab:orange", "f1": "tab:green"}
    for name in names:
        points = [(row["step"], row[name]) for row in history if name in row and "step" in row]
        held_out = name.startswith("eval_")
        colour = next((colours[key] for key in colours if key in name), "tab:gray")
        style = {"marker": "o", "markersize": 3, "linewidth": 1.6} if held_out else {"linewidth": 1, "alpha": 0.45}
        text = name.removeprefix("eval_").replace("_", " ").replace("mlm", "MLM").replace("nsp", "NSP")
        panel.plot(*zip(*points, strict=True), color=colour, label=f"{text}, {'held out' if held_out else 'training'}")
        panel.lines[-1].set(**style)
    if level is not None:
        panel.axhline(level, linestyle="--", linewidth=1, color="black", label=level_name)
    panel.set(xlabel="step", ylabel=label)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.25)
    if names:
        panel.legend(fontsize=8, frameon=False)


# ---- card


@dataclass
class Card:
    """What the model card says that is not a figure. Licence, source and language only as the user gave them."""

    title: str
    pipeline_tag: str  # fill-mask · text-classification
    command: str
    machine: str
    corpus: dict = field(default_factory=dict)  # documents, sentences, tokens, fingerprint
    training: dict = field(default_factory=dict)  # the settings, as a table
    source: str | None = None
    license: str | None = None
    language: str | None = None
    base_model: str | None = None
    example: str = "The capital of France is [MASK]."
    notes: list[str] = field(default_factory=list)  # options that change the numbers


def write_card(folder: Path, card: Card, figures: dict[str, float]) -> None:
    """Writes `README.md`: front matter, how to load the model, the run's figures, how it was made."""
    numbers = {name: value for name, value in figures.items() if isinstance(value, int | float)}
    shown = {name: value for name, value in numbers.items() if _is_result(name)}
    task = "masked-language-modeling" if card.pipeline_tag == "fill-mask" else card.pipeline_tag
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=card.pipeline_tag,
        language=card.language,
        license=card.license,
        base_model=card.base_model,
        tags=["bert", "bert_hf"],
        model_name=card.title,
        eval_results=[
            EvalResult(task, card.source or "not stated", card.source or "not stated", name, round(value, 5))
            for name, value in shown.items()
        ],
        widget=[{"text": card.example}],
    )
    ModelCard(f"---\n{data.to_yaml()}\n---\n\n{_body(folder, card, shown)}").save(folder / "README.md")


def _is_result(name: str) -> bool:
    timing = ("_runtime", "_per_second", "_samples", "_time", "flos")
    return name.startswith(("eval_", "test_", "baseline_", "unigram_", "majority_")) and not name.endswith(timing)


def _body(folder: Path, card: Card, figures: dict[str, float]) -> str:
    head = "AutoModelForMaskedLM" if card.pipeline_tag == "fill-mask" else "AutoModelForSequenceClassification"
    lines = [
        f"# {card.title}",
        "",
        "A BERT that stock transformers loads, with no custom code:",
        "",
        "```python",
        "from transformers import AutoTokenizer, pipeline",
        f"from transformers import {head}",
        "",
        f'answer = pipeline("{card.pipeline_tag}", model="{folder.name}")("{card.example}")',
        "```",
        "",
        "## Figures of this run",
        "",
        *_table(("figure", "value"), {name: f"{value:.4f}" for name, value in figures.items()}),
        "",
        "![loss](loss.png)",
        "",
        "## Text",
        "",
        f"- Source: {card.source or 'not stated by the user'}",
        f"- Licence of the text: {card.license or 'not stated by the user'}",
        *(f"- {name}: {value}" for name, value in card.corpus.items()),
        "",
        "## How it was made",
        "",
        f"With bert_hf {version('bert-hf')}, torch {version('torch')}, transformers {version('transformers')}, "
        f"on {card.machine}:",
        "",
        "```",
        card.command,
        "```",
        "",
        *_table(("setting", "value"), card.training),
        "",
        *(f"- {note}" for note in card.notes),
        "",
        "## Limits",
        "",
        "The figures are those of the held-out part of the same text. The model repeats what its text holds, errors "
        "and prejudice included.",
        "",
    ]
    return "\n".join(lines)


def _table(head: tuple[str, str], rows: dict) -> list[str]:
    return [f"| {head[0]} | {head[1]} |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]


# ---- push


def push(folder: Path, repo_id: str, *, private: bool | None = None, revision: str | None = None) -> str:
    """Uploads a finished run and waits for it; returns the address of the commit.

    Only the files in `PUSHED` go. The token is that of `HF_TOKEN` or `hf auth login`; none is taken as an argument.

    Raises:
        InputError: a pickle or the token is among the files, or the Hub refused.
    """
    files = sorted({path for pattern in PUSHED for path in folder.glob(pattern)})
    _refuse_secrets(files, huggingface_hub.get_token())
    try:
        import httpx2

        client = httpx2.Client(timeout=httpx2.Timeout(TIMEOUT), follow_redirects=True)
        huggingface_hub.set_client_factory(lambda: client)
    except ImportError:  # an older huggingface_hub with another client: its own timeouts hold
        pass
    try:
        repo = huggingface_hub.create_repo(repo_id, private=private, exist_ok=True)
        return str(
            huggingface_hub.upload_folder(
                repo_id=repo.repo_id,
                folder_path=folder,
                revision=revision,
                commit_message="Upload a run of bert_hf",
                allow_patterns=[path.name for path in files],
            )
        )
    except InputError:
        raise
    except Exception as error:  # the client raises several unrelated types: its own, httpx's, OSError, RuntimeError
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"the push failed: {reason}",
            where=repo_id,
            remedy=f"the model is safe in {folder}; check `hf auth login`, your rights and the network",
        ) from None


def _refuse_secrets(files: list[Path], token: str | None) -> None:
    for path in files:
        start = path.open("rb").read(4)
        if path.suffix in _PICKLES or start[:2] == b"\x80\x04" or start == b"PK\x03\x04":
            raise InputError("a pickle is not pushed", where=path, remedy="remove the file")
        if token and path.suffix != ".safetensors" and token.encode() in path.read_bytes():
            raise InputError("the file holds your token", where=path, remedy="remove it from the file, and renew it")
