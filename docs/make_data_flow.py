"""Draws docs/data_flow.svg, the picture of the data flow in the README.

python docs/make_data_flow.py

The same program always writes the same bytes; tests/test_docs.py compares them with the file.
"""

from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 1000, 440
BOX_WIDTH, BOX_HEIGHT = 168, 118
LEFT, STEP = 28, 194  # of the first box; from one box to the next
ROWS = (52, 276)  # upper edge of the boxes of each row

COLOURS = {"data": "#dbeafe", "models": "#fde68a", "training": "#dcfce7", "finetuning": "#fae8ff", "stock": "#f1f5f9"}


@dataclass(frozen=True)
class Stage:
    """A box: its title, two lines that explain it, and the module to open first."""

    title: str
    lines: tuple[str, str]
    module: str
    package: str


@dataclass(frozen=True)
class Lane:
    """The background of the stages that one package implements."""

    label: str
    row: int
    first: int
    count: int
    package: str


DATA = (
    Stage("Raw text", (".txt .jsonl .parquet,", "or a Hub dataset"), "sources.py", "data"),
    Stage("Tokenizer", ("WordPiece vocabulary,", "trained or loaded"), "tokenization.py", "data"),
    Stage("Corpus", ("documents as token ids,", "Arrow shards on disk"), "corpus_store.py", "data"),
    Stage("Dataset", ("example number →", "sentence pair (A, B)"), "sentence_pairs.py", "data"),
    Stage("Collator", ("[CLS] A [SEP] B [SEP],", "80/10/10 masks"), "masking.py", "data"),
)
TRAINING = (
    Stage("Model", ("masked-LM loss", "+ next-sentence loss"), "modeling_bert.py", "models"),
    Stage("Trainer", ("one exact loss for the", "global batch; resume"), "trainer.py", "training"),
    Stage("Checkpoint", ("stock parameter names,", "verified manifest"), "checkpointing.py", "training"),
    Stage("Fine-tuning", ("stock AutoModelFor…", "and one new layer"), "classification.py", "finetuning"),
    Stage("Hub", ("model card with the", "figures of the run"), "hub.py", "training"),
)
LANES = (
    Lane("src/bert_hf/data/", 0, 0, 5, "data"),
    Lane("models/", 1, 0, 1, "models"),
    Lane("training/", 1, 1, 2, "training"),
    Lane("finetuning/", 1, 3, 1, "finetuning"),
    Lane("training/", 1, 4, 1, "training"),
)


def text(x: int, y: int, content: str, style: str) -> str:
    return f'<text x="{x}" y="{y}" class="{style}">{escape(content)}</text>'


def draw_lane(lane: Lane) -> list[str]:
    x = LEFT + lane.first * STEP - 10
    width = (lane.count - 1) * STEP + BOX_WIDTH + 20
    y = ROWS[lane.row] - 36
    box = f'<rect x="{x}" y="{y}" width="{width}" height="{BOX_HEIGHT + 48}" rx="10" fill="{COLOURS[lane.package]}"/>'
    return [box, text(x + 12, y + 23, lane.label, "lane")]


def draw_stage(stage: Stage, row: int, column: int) -> list[str]:
    x, y = LEFT + column * STEP, ROWS[row]
    middle = x + BOX_WIDTH // 2
    return [
        f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8" class="box"/>',
        text(middle, y + 28, stage.title, "title"),
        text(middle, y + 52, stage.lines[0], "line"),
        text(middle, y + 71, stage.lines[1], "line"),
        text(middle, y + 101, stage.module, "module"),
    ]


def arrow(points: str) -> str:
    return f'<polyline points="{points}" class="arrow" marker-end="url(#head)"/>'


def draw_arrows() -> list[str]:
    """Left to right in the first row, down to the second, and from the checkpoint to both of its uses."""
    arrows = []
    for row, columns in ((0, range(4)), (1, range(3))):
        y = ROWS[row] + BOX_HEIGHT // 2
        for column in columns:
            end = LEFT + column * STEP + BOX_WIDTH
            arrows.append(arrow(f"{end},{y} {end + STEP - BOX_WIDTH - 3},{y}"))

    # From the collator back to the left, above the second row.
    start = LEFT + 4 * STEP + BOX_WIDTH // 2
    end = LEFT + BOX_WIDTH // 2
    bottom, turn = ROWS[0] + BOX_HEIGHT, ROWS[1] - 65
    arrows.append(arrow(f"{start},{bottom} {start},{turn} {end},{turn} {end},{ROWS[1] - 3}"))

    # From the checkpoint to the Hub, below the fine-tuning.
    start = LEFT + 2 * STEP + BOX_WIDTH // 2
    end = LEFT + 4 * STEP + BOX_WIDTH // 2
    bottom = ROWS[1] + BOX_HEIGHT
    turn = bottom + 28
    arrows.append(arrow(f"{start},{bottom} {start},{turn} {end},{turn} {end},{bottom + 3}"))
    return arrows


def draw() -> str:
    style = (
        "text{font-family:Helvetica,Arial,'DejaVu Sans',sans-serif;fill:#0f172a}"
        ".title{font-size:17px;font-weight:bold;text-anchor:middle}"
        ".line{font-size:13px;text-anchor:middle}"
        ".module,.lane{font-size:13px;font-family:'DejaVu Sans Mono',Menlo,Consolas,monospace}"
        ".module{text-anchor:middle;fill:#1d4ed8}"
        ".lane{fill:#475569}"
        ".box{fill:#ffffff;stroke:#475569;stroke-width:1.2}"
        ".arrow{fill:none;stroke:#0f172a;stroke-width:1.8}"
    )
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#0f172a"/></marker>'
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="title">',
        '<title id="title">Data flow: raw text, tokenizer, corpus, dataset, collator, model, trainer, checkpoint, '
        "then fine-tuning or the Hugging Face Hub</title>",
        f"<style>{style}</style>",
        f"<defs>{head}</defs>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for lane in LANES:
        parts += draw_lane(lane)
    for row, stages in enumerate((DATA, TRAINING)):
        for column, stage in enumerate(stages):
            parts += draw_stage(stage, row, column)
    parts += [*draw_arrows(), "</svg>"]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("data_flow.svg").write_text(draw(), encoding="utf-8")
