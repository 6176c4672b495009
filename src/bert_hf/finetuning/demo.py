"""Shows a finished model in the browser: a Gradio app that predicts while one types. Needs the extra `demo`."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_hf.config.checkpoint_arguments import DemoArguments
from bert_hf.data.text.tables import Row
from bert_hf.errors import InputError
from bert_hf.finetuning.heads.pictures import STYLE
from bert_hf.finetuning.predict import Predictor, load_predictor, rounded
from bert_hf.training.command import check_installed
from bert_hf.training.run import EXAMPLES, identity_in


def check_demo(demo_args: DemoArguments) -> Iterator[str]:
    """Check that Gradio is installed; yield a line for `--check`."""
    check_installed("demo", "gradio")
    yield "gradio: installed"


def make_demo(where: str | Path, examples: list[list[str]] | None = None) -> Any:
    """Return the Gradio app (`gradio.Blocks`) of a finished model: folder or Hub id. Set Gradio to record nothing.

    `examples` are rows of texts, one for each box; None: those in the folder. None of them is pushed to the Hub.
    """
    os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_RUN_HISTORY": "False"}
    import gradio as gr  # pyright: ignore[reportMissingImports]

    # A pre-training's identity has the lengths that it trained; a fine-tuned model's configuration has its own (None)
    pretrained = (identity_in(Path(where)) or {}).get("examples", {})
    lengths = [pretrained.get(name) or 0 for name in ("max_seq_length", "long_seq_length")]
    predictor = load_predictor(where, max_seq_length=max(lengths) or None)
    columns, length = predictor.head.text_columns, predictor.head.length
    name, example_rows = Path(where).name, Path(where, EXAMPLES)
    kept = json.loads(example_rows.read_text(encoding="utf-8")) if example_rows.is_file() else []
    rows = kept if examples is None else examples

    with gr.Blocks(title=name) as app:
        hint = "Write [MASK] where a word is missing" if predictor.head.name == "fill_mask" else "Type a text"
        gr.Markdown(f"## {name}\n{hint}. At most {length:,} tokens are read.")
        with gr.Row():
            with gr.Column():
                texts = rows[0] if rows else [""] * len(columns)
                boxes = [gr.Textbox(text, label=column, lines=2) for text, column in zip(texts, columns, strict=True)]
            with gr.Column():
                picture = gr.HTML(css_template=STYLE, container=True, padding=True, min_height=100)
                json_line = gr.Textbox(label="as bert-hf predict writes it", max_lines=4)
        if rows:
            gr.Examples(rows, boxes, label="Examples" if examples else "Examples, held out of the training")

        events = [app.load, *(box.change for box in boxes)]
        options: Any = {"api_name": "predict", "show_progress": "hidden", "trigger_mode": "always_last"}
        gr.on(events, lambda *texts: predict_and_draw(predictor, *texts), boxes, [picture, json_line], **options)
    return app


def predict_and_draw(predictor: Predictor, *texts: str) -> tuple[str, str]:
    """Return the prediction as HTML (or the text of an error) and as JSON; ("", "") if all texts are blank."""
    if not any(map(str.strip, texts)):
        return "", ""
    head = predictor.head
    text_of_column = dict(zip(head.text_columns, texts, strict=True))
    values = {name: text.splitlines() if name == "choices" else text for name, text in text_of_column.items()}
    try:
        rows, predictions = predictor.rows_and_predictions([Row(values, "the row")])
    except InputError as error:  # such as one choice only
        return error.what, ""
    [added] = head.added_columns(rows, predictions)
    return head.picture(text_of_column, rows, predictions), json.dumps(rounded(added), ensure_ascii=False)
