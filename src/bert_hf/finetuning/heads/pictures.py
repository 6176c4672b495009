"""Draws a prediction as HTML, for the demo: a bar for each score, or parts of a text that are marked."""

from collections.abc import Collection, Iterable, Mapping
from html import escape

MOST_BARS = 10  # of more classes, those with the highest scores

# The variables are those of Gradio's themes, light and dark
STYLE = """
.bars { display: grid; grid-template-columns: minmax(5em, auto) 1fr 4em; gap: 0.6em 1em; align-items: center }
.bars ~ .bars { margin-top: 1em; padding-top: 1em; border-top: 1px solid var(--border-color-primary) }
.bars b { font: inherit; font-weight: 600 }
.bars i { height: 1.2em; border-radius: 3px; background:
    linear-gradient(var(--body-text-color) 0 0) var(--threshold, -9px) 0 / 2px 100% no-repeat,
    linear-gradient(var(--color-accent) 0 0) 0 0 / var(--score) 100% no-repeat, var(--border-color-primary) }
.text { white-space: pre-wrap; line-height: 2.2 }
mark { background: hsl(var(--hue) 75% 50% / 0.3); color: inherit; border-radius: 3px; padding: 0.2em 0.3em }
"""


def bars(
    scores: Mapping[str, float], chosen: Collection[str] = (), thresholds: Mapping[str, float] | None = None
) -> str:
    """Return HTML with a bar for each score; the chosen names are bold, and a line in a bar marks its threshold."""
    names = list(scores)
    if len(names) > MOST_BARS:
        names = sorted(names, key=lambda name: -scores[name])[:MOST_BARS]
    cells = []
    for name in names:
        tag = "b" if name in chosen else "span"
        style = f"--score: {scores[name]:.2%}"
        note = ""
        if thresholds and name in thresholds:
            style += f"; --threshold: {thresholds[name]:.2%}"
            note = f"<small>from {thresholds[name]:.4f} on</small>"
        cells.append(f'<{tag}>{escape(name)} {note}</{tag}><i style="{style}"></i><{tag}>{scores[name]:.4f}</{tag}>')
    return f'<div class="bars">{"".join(cells)}</div>'


def marked_text(text: str, spans: Iterable[tuple[int, int, str]], labels: Collection[str] = ()) -> str:
    """Return the HTML of a text with marked spans, (begin, end, label) in order; each of `labels` has a colour."""
    pieces = []
    done = 0  # characters of the text that are in `pieces`
    for begin, end, label in spans:
        rank = sorted(labels).index(label) if label in labels else 0
        hue = 210 + 360 * rank // max(1, len(labels))  # degrees; 210 is blue
        name = f" <small>{escape(label)}</small>" if label else ""
        pieces.append(f'{escape(text[done:begin])}<mark style="--hue: {hue}">{escape(text[begin:end])}{name}</mark>')
        done = end
    return f'<p class="text">{"".join(pieces)}{escape(text[done:])}</p>'
