"""Writes the report of the probe: `probe.json` (all figures), `probe.txt` (a table) and `probe.png` (a picture)."""

import json
from pathlib import Path

from bert_hf.analysis.probe.picture import draw_metrics
from bert_hf.analysis.probe.table import table

REPORT_FILES = ("probe.json", "probe.txt", "probe.png")


def write_report(found: dict, folder: Path) -> str:
    """Writes the three files; returns the table."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "probe.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    text = "\n".join(table(found)) + "\n"
    (folder / "probe.txt").write_text(text, encoding="utf-8")
    draw_metrics(found, folder / "probe.png")
    return text
