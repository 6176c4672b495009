"""The demo shows what `predict` returns: its pictures, and the app in a browser (the extra `demo`, and Chromium)."""

import asyncio
import gc
import importlib.util
import json
import re

import pytest
import torch
import transformers
from helpers.browser import CHROMIUM, open_page
from tiny import tiny_config, tiny_tokenizer

from bert_hf.config.package_files import recipe_main
from bert_hf.finetuning.demo import make_demo, predict_and_draw
from bert_hf.finetuning.predict import load_predictor, predict
from bert_hf.training import command
from bert_hf.training.run import EXAMPLES

NAMES = {"id2label": {0: "ham", 1: "spam", 2: "news"}}
TAGS = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}}
PAIR = {"trained_on": {"head": "classification", "text_column": "premise", "text_pair_column": "hypothesis"}}
TWO = {"id2label": {0: "ham", 1: "spam"}, "decision_threshold": 0.97}
SEVERAL = {**NAMES, "problem_type": "multi_label_classification", "decision_threshold": [0.1, 0.9, 0.5]}
WORDS = "w1 w2 w3 w4 w5 w6 w7"
QUESTION = {"question": "w1 w2", "context": f"{WORDS} w8 w9"}
CHOICES = {"context": "w1 w2 w3", "question": "w4", "choices": "w5 w6\nw7\nw8 w9"}

# The class of the network, entries of its configuration, the texts that are typed, and how many bars there are
HEADS = {
    "words": ("PreTraining", {}, {"text": "w1 [MASK] w3 [MASK] w5"}, 10),
    "classes": ("SequenceClassification", NAMES, {"text": WORDS}, 3),
    "threshold": ("SequenceClassification", TWO, {"text": WORDS}, 2),
    "several labels": ("SequenceClassification", SEVERAL, {"text": WORDS}, 3),
    "number": ("SequenceClassification", {"num_labels": 1}, {"text": WORDS}, 0),
    "pair": ("SequenceClassification", NAMES | PAIR, {"premise": WORDS, "hypothesis": "w8 w9"}, 3),
    "names": ("TokenClassification", TAGS, {"text": f"{WORDS}, w8 w9 w10 w11."}, 0),
    "answer": ("QuestionAnswering", {}, QUESTION, 1),
    "no answer": ("QuestionAnswering", {"null_score_diff_threshold": -99.0}, QUESTION, 1),
    "choices": ("MultipleChoice", {}, CHOICES, 3),
}


@pytest.fixture(params=HEADS)
def case(request, tmp_path):
    """The folder of a model with random weights, the texts that are typed, and what `predict` returns for them."""
    kind, entries, texts, _ = HEADS[request.param]
    torch.manual_seed(3)
    model = getattr(transformers, f"BertFor{kind}")(tiny_config(**entries))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")

    row = {name: text.split("\n") if name == "choices" else text for name, text in texts.items()}
    [expected] = predict(str(tmp_path / "model"), [row])
    return request.param, tmp_path / "model", texts, expected


def close_to(expected):
    """What equals a prediction whose numbers differ by at most 1e-6."""
    return pytest.approx(leaves(expected), abs=1e-6)


def leaves(value) -> list:
    if isinstance(value, dict):
        return [*value, *leaves(list(value.values()))]
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, list) else [value]


def test_the_picture_is_that_of_the_prediction(case):
    name, folder, texts, expected = case
    predictor = load_predictor(folder)
    picture, line = predict_and_draw(predictor, *texts.values())
    assert leaves(json.loads(line)) == close_to(expected)

    assert picture.count("<i ") == HEADS[name][3]
    scores = expected.get("scores", [expected["score"]] if "score" in expected else [])
    for score in scores.values() if isinstance(scores, dict) else scores:
        assert f"{score:.4f}" in picture
    parts = expected.get("entities") or ([expected["answer"]] if expected.get("answer") else [])
    assert picture.count("<mark ") == len(parts)

    # Texts without a prediction
    assert predict_and_draw(predictor, *[" "] * len(texts)) == ("", "")
    if name == "choices":
        assert predict_and_draw(predictor, "w1", "w2", "w3")[0].startswith("not a context with two or more choices")
    if name == "words":
        assert predict_and_draw(predictor, WORDS)[0] == "Write [MASK] in place of a word."


def test_without_gradio_one_line_says_how_to_install_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert recipe_main("demo")([str(tmp_path)]) == 2
    assert "install -c constraints.txt -e '.[demo]'" in capsys.readouterr().err  # in a clone
    monkeypatch.chdir(tmp_path)
    assert recipe_main("demo")([str(tmp_path)]) == 2
    assert re.fullmatch(r"error: not installed: gradio; \S*pip install 'bert-hf\[demo\]'\n", capsys.readouterr().err)


needs_gradio = pytest.mark.skipif(importlib.util.find_spec("gradio") is None, reason="the extra `demo` is missing")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium (apt-get install chromium)")


@pytest.mark.slow
@needs_gradio
@needs_chromium
@pytest.mark.filterwarnings("default")
def test_a_browser_shows_what_is_predicted(case, tmp_path, monkeypatch):
    """Typed over a held-out example. Nothing is asked of another machine, and no file appears."""
    name, folder, texts, expected = case
    monkeypatch.chdir(tmp_path)
    examples = [[text.replace("w1", "w20") for text in texts.values()]]
    (folder / EXAMPLES).write_text("[]" if name == "pair" else json.dumps(examples))
    before = sorted(tmp_path.rglob("*"))

    async def type_and_look() -> None:
        async with open_page(address, browser) as page:
            line = "[...document.querySelectorAll('textarea')].at(-1)?.value"
            await page.until(line)  # of the example
            for number, text in enumerate(texts.values()):
                await page.type(number, text)
            for _ in range(600):  # it predicts while one types
                await asyncio.sleep(0.1)
                shown = json.loads(await page.evaluate(line))
                if leaves(shown) == close_to(expected):
                    break
            assert leaves(shown) == close_to(expected)
            assert await page.evaluate("document.querySelectorAll('.bars i, mark, .prose h1').length") > 0
            assert {url.split("/")[2] for url in page.requests if url.startswith("http")} == {f"127.0.0.1:{port}"}

    app = make_demo(folder, examples if name == "pair" else None)
    _, address, _ = app.launch(server_name="127.0.0.1", share=False, quiet=True, prevent_thread_lock=True)
    port, browser = address.rstrip("/").rpartition(":")[2], tmp_path / "browser"
    try:
        asyncio.run(type_and_look())
    finally:
        app.close(verbose=False)
        del app
        gc.collect()  # what Gradio does not close warns here, not in another test
    assert sorted(path for path in tmp_path.rglob("*") if browser not in (path, *path.parents)) == before
