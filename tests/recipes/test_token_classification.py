"""finetune_token_classification.py: a whole run, what it writes, how it loads, its resume, its error lines."""

import json

import pytest
import torch
from helpers.recipe_runs import cut_off, recipe
from helpers.tagged_words import write_checkpoint, write_parts
from safetensors.torch import load_file
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

from bert_hf import predict
from bert_hf.finetuning.heads import frozen_features
from bert_hf.finetuning.metrics.entities import count_entities, total_counts
from bert_hf.finetuning.rows.tagged_sentences import read_tagged_file
from bert_hf.finetuning.trainer import FineTuner

FEATURE_BASED = ("--feature_based", "weighted_last_4")


@pytest.fixture(autouse=True)
def small_lstm(monkeypatch):
    monkeypatch.setattr(frozen_features, "LSTM_HIDDEN_SIZE", 32)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A checkpoint and three files of tagged words."""
    folder = tmp_path_factory.mktemp("words")
    write_checkpoint(folder / "bert")
    write_parts(folder)
    return folder


def tune(place, output: str, *words: str, parts=("train", "validation", "test")) -> int:
    files = [word for part in parts for word in (f"--{part}_file", str(place / f"{part}.conll"))]
    steps = () if "--max_steps" in words else ("--min_steps", "0")
    return recipe("finetune_token_classification")(
        [
            "--model_name_or_path", str(place / "bert"), *files, "--max_seq_length", "12",
            "--per_device_train_batch_size", "8", "--disable_tqdm", "true", "--use_cpu", "true", *steps,
            "--output_dir", str(place / output), *words,
        ]
    )  # fmt: skip


def read_predictions(folder, part: str = "test") -> tuple[list, list]:
    """(words, predictions) of each sentence of PART_predictions.jsonl."""
    rows = [json.loads(line) for line in (folder / f"{part}_predictions.jsonl").read_text().splitlines()]
    return [row["text"].split(" ") for row in rows], [row["labels"] for row in rows]


@pytest.fixture(scope="module")
def tuned(place):
    assert tune(place, "tuned", "--num_train_epochs", "8", "--learning_rate", "1e-2", "--eval_strategy", "no") == 0
    return place / "tuned"


def test_every_word_of_the_test_file_is_predicted(place, tuned):
    rows = [row.values for row in read_tagged_file(str(place / "test.conll"))]
    words, predicted = read_predictions(tuned)
    gold = [row["tags"] for row in rows]
    assert words == [row["tokens"] for row in rows]

    # The metrics are those of the file, and the words were learned
    metrics = json.loads((tuned / "all_results.json").read_text())
    counts = count_entities(gold, predicted)
    assert metrics["test_f1"] == pytest.approx(total_counts(counts).rates()["f1"], abs=1e-12)
    assert metrics["test_f1_person"] == pytest.approx(counts["person"].rates()["f1"], abs=1e-12)
    assert metrics["test_f1"] > 0.6


def test_the_pipeline_finds_the_entities(tuned):
    """Words of the pipeline are separated by white space here, so its entities are those of the predictions."""
    words, predicted = read_predictions(tuned)
    for strategy in ("none", "simple", "first", "average", "max"):
        tagger = pipeline("token-classification", model=str(tuned), aggregation_strategy=strategy)
        assert isinstance(tagger("w1 w20 w30"), list)

    tagger = pipeline("token-classification", model=str(tuned), aggregation_strategy="first")
    row = next(n for n, tags in enumerate(predicted) if "B-place" in tags and len(words[n]) < 5)
    found = {(entity["entity_group"], entity["word"]) for entity in tagger(" ".join(words[row]))}
    expected = {(tag[2:], word) for tag, word in zip(predicted[row], words[row], strict=True) if tag == "B-place"}
    assert {each for each in found if each[0] == "place"} == expected


def test_the_folder_loads_with_the_stock_class(tuned):
    model, loaded = AutoModelForTokenClassification.from_pretrained(tuned, output_loading_info=True)
    assert not loaded["missing_keys"]
    assert not loaded["unexpected_keys"]
    assert model.config.id2label == {0: "O", 1: "B-person", 2: "I-person", 3: "B-place"}
    card = (tuned / "README.md").read_text()
    assert "Measured on the text given by --test_file (test.conll):" in card
    assert "| order | random |" in card
    assert "pipeline_tag: token-classification" in card
    assert AutoTokenizer.from_pretrained(tuned)("w1")["input_ids"] == [2, 6, 3]


def test_the_code_of_the_card_reads_a_text_of_any_length(place, tuned, monkeypatch):
    words, predicted = read_predictions(tuned)
    row = next(n for n, tags in enumerate(predicted) if "B-place" in tags and len(words[n]) < 5)
    text = " ".join(words[row])
    code = (tuned / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(place)
    names: dict = {}
    exec(code, names)
    found = names["tagger"](" ".join(["w39"] * 100 + [text]))  # the model has 64 positions
    place_of = {entity["word"] for entity in found if entity["entity_group"] == "place"}
    assert place_of & {word for tag, word in zip(predicted[row], words[row], strict=True) if tag == "B-place"}
    assert max(entity["start"] for entity in found) >= 400


def test_without_a_test_file_the_validation_file_is_written(place):
    assert tune(place, "validated", "--max_steps", "1", parts=("train", "validation")) == 0
    rows = read_tagged_file(str(place / "validation.conll"))
    assert read_predictions(place / "validated", "validation")[0] == [row.values["tokens"] for row in rows]
    card = (place / "validated/README.md").read_text()
    assert "Measured on the text given by --validation_file (validation.conll), which also chose the weights:" in card


def test_feature_based(place, capsys):
    options = ("--num_train_epochs", "12", "--learning_rate", "1e-2", "--eval_strategy", "no")
    options += ("--feature_based", "concat_last_4")
    assert tune(place, "tagger", *options) == 0
    said = capsys.readouterr().out
    assert "BERT is frozen; newly initialized: BiLSTM and classifier" in said
    assert "all (micro)" in said
    assert not list((place / "tagger").glob("features-*"))

    # The tagger of the folder predicts what the run predicted
    words, predicted = read_predictions(place / "tagger")
    gold = [row.values["tags"] for row in read_tagged_file(str(place / "test.conll"))]
    assert [row["labels"] for row in predict(place / "tagger", words)] == predicted
    assert total_counts(count_entities(gold, predicted)).rates()["f1"] > 0.5
    card = (place / "tagger/README.md").read_text()
    assert 'predict("tagger", ["Anna' in card
    assert "bert_hf loads it" in card
    assert "pipeline_tag" not in card

    # Its BERT is the checkpoint's
    before, after = (load_file(place / folder / "model.safetensors") for folder in ("bert", "tagger"))
    assert all(torch.equal(before[name], after[name]) for name in after if name.startswith("bert."))


@pytest.mark.parametrize("options", [(), FEATURE_BASED], ids=["fine-tuned", "feature-based"])
def test_cut_off_and_asked_again_it_ends_with_the_same_bytes(place, options):
    words = ("--max_steps", "8", "--save_steps", "2", "--eval_strategy", "no", *options)
    whole, cut = (place / f"{name}-{len(options)}" for name in ("whole", "cut"))
    assert tune(place, whole.name, *words) == 0
    with cut_off(FineTuner):
        tune(place, cut.name, *words)

    assert tune(place, cut.name, *words) == 0
    assert (whole / "model.safetensors").read_bytes() == (cut / "model.safetensors").read_bytes()
