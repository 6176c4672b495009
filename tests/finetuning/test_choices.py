"""Multiple choice: rows are read and checked, only contexts are cut, and a trained model loads in the stock class."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.choice_rows import ROWS, VOCABULARY, save_checkpoint, swag_lines
from tiny import tiny_config
from transformers import AutoModelForMultipleChoice, AutoTokenizer, BertTokenizer, DataCollatorForMultipleChoice

from bert_hf.config.finetuning_arguments import TaskArguments
from bert_hf.config.training_arguments import FineTuningArguments
from bert_hf.data.text.tables import Row
from bert_hf.data.text.tokenization import load_tokenizer
from bert_hf.errors import InputError
from bert_hf.finetuning.heads.multiple_choice import MultipleChoiceHead, encode_choices
from bert_hf.finetuning.rows.choices import ChoiceRow, choice_row
from bert_hf.finetuning.run import start_finetuning, train_and_finish
from bert_hf.finetuning.tasks.multiple_choice import MultipleChoiceTask
from bert_hf.finetuning.trainer import FineTuner, load_task_model
from bert_hf.training.output_folder import release_lock


@pytest.fixture(scope="module")
def words():
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(VOCABULARY)})


class Unsplit(MultipleChoiceTask):
    """Splits nothing off the training rows."""

    def complete(self, parts):
        return parts


def read(folder, name, content, **options):
    path = folder / name
    if content is not None:
        path.write_text(content)
    return Unsplit(TaskArguments(train_file=[str(path)], **options), None).parts


BOTH = ("", "q", ("x", "y"), 1)
SWAG = {"sent1": "A ball lies there.", "sent2": "It", "ending0": "rolls.", "ending1": "reads.", "label": 1}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (SWAG, ("A ball lies there.", "It", ("rolls.", "reads."), 1)),
        ({**SWAG, "label": "0", "video-id": "x"}, ("A ball lies there.", "It", ("rolls.", "reads."), 0)),
        ({**SWAG, "label": -1}, ("A ball lies there.", "It", ("rolls.", "reads."), None)),
        ({"context": "c", "question": "q", "choices": ["x", " y "], "label": 1}, ("c", "q", ("x", "y"), 1)),
        ({"context": "c", "question": None, "choices": ["x", "y", "z"], "label": "2"}, ("c", "", ("x", "y", "z"), 2)),
        ({"question": "q", "ending0": "x", "ending1": "y"}, ("", "q", ("x", "y"), None)),
        ({"question": "q", "choices": {"label": ["A", "B"], "text": ["x", "y"]}, "answerKey": "B"}, BOTH),
        ({"question": "q", "choices": {"label": ["1", "2"], "text": ["x", "y"]}, "answerKey": "2"}, BOTH),
        ({"question_stem": "q", "choices": '{"text": ["x", "y"], "label": ["A", "B"]}', "answerKey": "B"}, BOTH),
        ({"question": "q", "choices": "{'text': array(['x', 'y'],\n dtype=object), 'label': array(['A', 'B'])}",
          "answerKey": "B"}, BOTH),
        ({"question": {"stem": "q", "choices": [{"text": "x", "label": "A"}, {"text": "y", "label": "B"}]},
          "answerKey": "B"}, BOTH),
        ({"article": "c", "question": "q", "options": ["x", "y"], "answer": "b"}, ("c", "q", ("x", "y"), 1)),
        ({"sentence": "c", "option1": "x", "option2": "y", "answer": "2"}, ("c", "", ("x", "y"), 1)),  # by its name
        ({"premise": "c", "question": "q", "choice1": "x", "choice2": "y", "label": "1"}, ("c", "q", ("x", "y"), 1)),
        ({"question": "q", "answerA": "x", "answerB": "y", "answerC": "", "label": "B"}, BOTH),
        ({"question": "q", "choices": ["x", "y"], "label": "y"}, BOTH),
        ({"question": "q", "options": {"A": "x", "B": "y"}, "answer_idx": "B", "answer": "y"}, BOTH),  # MedQA
        ({"prompt": "q", "A": "x", "B": "y", "answer": "B"}, BOTH),
        ({"context": "c", "question": "q", "answers": ["x", "y"], "label": 1}, ("c", "q", ("x", "y"), 1)),  # ReClor
        ({"question": "q", "choices": ["b", "a"], "label": "a"}, ("", "q", ("b", "a"), 1)),
    ],
)  # fmt: skip
def test_rows_of_public_data_sets(row, expected):
    assert choice_row(Row(row, "a.jsonl", 1))[:4] == expected


@pytest.mark.parametrize("label", [2, "C", True, "ß", [0], -2])
def test_a_label_that_names_no_choice(label):
    with pytest.raises(InputError, match=r"a\.jsonl:7: label .* is not one of the 2 choices; give 0 to 1"):
        choice_row(Row({**SWAG, "label": label}, "a.jsonl", 7))


@pytest.mark.parametrize(
    "changes", [{"ending1": " "}, {"ending0": None}, {"choices": ["x"]}, {"sent1": " ", "sent2": ""}, {"sent1": 5}]
)
def test_a_bad_row_is_one_line_with_its_place(changes):
    with pytest.raises(InputError, match=r"a\.jsonl:7: not a context with two or more choices"):
        choice_row(Row({**SWAG, **changes}, "a.jsonl", 7))


def test_only_test_rows_may_lack_labels(tmp_path):
    unlabelled = "".join(json.dumps({**row, "label": ""}) + "\n" for row in ROWS)
    (tmp_path / "test.jsonl").write_text(unlabelled)
    parts = read(tmp_path, "a.jsonl", swag_lines(), test_file=[str(tmp_path / "test.jsonl")])
    assert {row.label for row in parts["test"]} == {None}
    with pytest.raises(InputError, match=r"a.jsonl:1: missing label"):
        read(tmp_path, "a.jsonl", unlabelled)


def test_rows_are_split_by_context(tmp_path):
    contexts = [f"{a} {b} {a} one {b}" for a in "red blue green black white".split() for b in "ham egg oil".split()]
    rows = [
        {"context": context, "question": f"Question {n}", "choices": ["x", "y"], "label": 0}
        for context in contexts
        for n in range(4)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = MultipleChoiceTask(TaskArguments(train_file=[str(tmp_path / "a.jsonl")]), None)
    parts = task.parts
    sizes = {part: len(own) for part, own in parts.items()}
    assert sizes["train"] + sizes["validation"] + sizes["test"] == 60
    assert 6 <= sizes["test"] <= 12
    contexts_of = [{row.context for row in own} for own in parts.values()]
    assert not contexts_of[0] & contexts_of[1]
    assert not contexts_of[0] & contexts_of[2]
    with pytest.raises(InputError, match=r"a\.jsonl: too few rows differ in their words to hold out 20 %"):
        task.add_split_parts({"train": [row for own in parts.values() for row in own if row.context == contexts[0]]})


def test_contexts_of_one_pattern_are_split(tmp_path, caplog):
    places = "gate wall tree pond barn".split()
    animals = "cat dog hen".split()
    contexts = [f"In the yard there is a {animal} near the {place}." for animal in animals for place in places]
    rows = [{"context": context, "choices": ["x", "y"], "label": "A"} for context in contexts * 2]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parts = MultipleChoiceTask(TaskArguments(train_file=[str(tmp_path / "a.jsonl")]), None).parts
    assert sum(map(len, parts.values())) == 30
    assert not {row.context for row in parts["train"]} & {row.context for row in parts["test"]}
    assert "! the contexts are near-duplicates of each other" in caplog.text


def test_inputs_equal_the_stock_tokenizers(words):
    rows = [choice_row(Row(row, "")) for row in ROWS]
    features = encode_choices(rows, words, 128)
    for feature, row in zip(features, rows, strict=True):
        context, choices = row.texts()
        stock = words([context] * len(choices), choices)
        assert feature["input_ids"] == stock["input_ids"]
        assert feature["token_type_ids"] == stock["token_type_ids"]
        assert feature["length"] == max(map(len, stock["input_ids"]))
        assert feature["labels"] == row.label


def test_only_the_context_is_cut_and_a_choice_that_alone_is_too_long(words):
    a, b, c, d = "abcd"
    rows = [
        ChoiceRow("a b c d", "", ("a b", "a"), 0),
        ChoiceRow("a b c d", "", ("a b c d a b c", "b"), 1),
        ChoiceRow("a", "", ("b", "c"), 1),
    ]
    features = encode_choices(rows, words, 8)
    pieces = [[words.convert_ids_to_tokens(ids) for ids in feature["input_ids"]] for feature in features]
    first, last = "[CLS]", "[SEP]"
    assert pieces == [
        [[first, a, b, c, last, a, b, last], [first, a, b, c, d, last, a, last]],
        [[first, last, a, b, c, d, a, last], [first, a, b, c, d, last, b, last]],
        [[first, a, last, b, last], [first, a, last, c, last]],
    ]
    assert features["token_type_ids"][1][0] == [0, 0, 1, 1, 1, 1, 1, 1]


def test_the_collator_equals_transformers_and_needs_no_labels(words):
    features = encode_choices([choice_row(Row(row, "")) for row in ROWS], words, 128)
    rows = [{name: value for name, value in row.items() if name != "length"} for row in features]
    ours = MultipleChoiceHead(words).collate([dict(row) for row in rows])
    stock = DataCollatorForMultipleChoice(words)([dict(row) for row in rows])
    assert ours.pop("choices").tolist() == [4] * 10
    assert ours.keys() == stock.keys()
    assert all(torch.equal(ours[name], stock[name]) for name in ours)
    assert ours["input_ids"].shape[:2] == (10, 4)

    unlabelled = encode_choices([choice_row(Row({**row, "label": -1}, "")) for row in ROWS], words, 128)
    assert "labels" not in unlabelled.column_names
    assert "labels" not in MultipleChoiceHead(words).collate(list(unlabelled.remove_columns("length")))


@pytest.fixture
def task(tmp_path, words):
    (tmp_path / "rows.jsonl").write_text(swag_lines())
    return MultipleChoiceTask(TaskArguments(train_file=[str(tmp_path / "rows.jsonl")], max_seq_length=32), words)


def test_accuracy_counts_labelled_rows(task):
    task.parts["test"] = [ChoiceRow("a", "", ("b", "c"), label) for label in (1, 1, None)]
    logits = np.array([[0.0, 1.0], [2.0, 1.0], [0.0, 3.0]])
    assert task.metrics("test", logits, np.array([[1.0, 1], [2, 1], [0, 0]])) == {"accuracy": 0.5, "loss": 1.5}


def test_predictions_name_the_choice(task, tmp_path):
    rows = task.parts["test"]
    task.write_predictions(tmp_path, "test", np.eye(4)[[3] * len(rows)])
    written = [json.loads(line) for line in (tmp_path / "test_predictions.jsonl").read_text().splitlines()]
    assert [row["choice"] for row in written] == [3] * len(rows)
    assert [row["choices"].splitlines() for row in written] == [list(row.choices) for row in rows]


def test_rows_of_different_numbers_of_choices_have_the_losses_of_each_alone(words):
    """As those of the stock head, which takes one number of choices."""
    torch.manual_seed(0)
    model = AutoModelForMultipleChoice.from_config(tiny_config(vocab_size=len(VOCABULARY))).eval()
    head = MultipleChoiceHead(words, {"max_seq_length": 32})
    assert not MultipleChoiceHead(words, {"max_seq_length": 32}, model.config).labels  # not LABEL_0 and LABEL_1
    changes = ({}, {"ending3": None}, {"ending2": None, "ending3": None})
    values = [{**ROWS[number], **own} for number, own in enumerate(changes)]
    kept = [{name: cell for name, cell in row.items() if cell is not None} for row in values]
    rows = head.read([Row({**row, "label": 1}, "a.jsonl", 1) for row in kept])
    features = list(head.encode(rows).features.remove_columns("length"))

    batch = head.collate(features)
    outputs = head.forward(model, batch)
    for row, feature, loss, logits in zip(
        rows, features, head.losses(batch, outputs), head.keep(batch, outputs), strict=True
    ):
        stock = model(**DataCollatorForMultipleChoice(words)([feature]))
        torch.testing.assert_close(loss, stock.loss)
        torch.testing.assert_close(logits[: len(row.choices)], stock.logits[0])
        assert (logits[len(row.choices) :] == -torch.inf).all()

    smoothed = head.losses(batch, outputs, label_smoothing=0.1)
    each = [F.cross_entropy(own[None, : len(row.choices)], torch.tensor([1]), label_smoothing=0.1)
            for row, own in zip(rows, outputs["logits"], strict=True)]  # fmt: skip
    torch.testing.assert_close(smoothed, torch.stack(each))
    smoothed.sum().backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())


@pytest.fixture
def ten_rows(tmp_path):
    """A file of ten rows; next to it, in `bert`, a checkpoint whose vocabulary has their words."""
    save_checkpoint(tmp_path / "bert")
    (tmp_path / "rows.jsonl").write_text(swag_lines())
    return tmp_path / "rows.jsonl"


def fine_tuned(rows, output, **options):
    """The trainer of a finished run on these rows, which are its validation and test rows, too."""
    files = [str(rows)]
    task_args = TaskArguments(
        model_name_or_path=str(rows.with_name("bert")), train_file=files, validation_file=files, test_file=files,
        max_seq_length=64,
    )  # fmt: skip
    defaults = {"max_steps": 5, "eval_strategy": "no", "save_strategy": "no", "use_cpu": True, "bf16": False,
                "disable_tqdm": True, "per_device_train_batch_size": 4, "report_to": "none"}  # fmt: skip
    args = FineTuningArguments(output_dir=str(output), **{**defaults, **options})
    task = MultipleChoiceTask(task_args, load_tokenizer(str(task_args.model_name_or_path)))
    model, about = load_task_model(task, seed=0)
    run = start_finetuning(task, args, model, about)
    trainer = FineTuner(model, args, task=task, facts={"identity": run.identity})
    train_and_finish(trainer, run)
    release_lock()
    return trainer


def test_ten_rows_train_predict_and_load_back_in_the_stock_class(ten_rows, tmp_path):
    predicted = fine_tuned(ten_rows, tmp_path / "run").kept["test"]
    assert predicted.shape == (10, 4)

    model = AutoModelForMultipleChoice.from_pretrained(tmp_path / "run")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    rows = [json.loads(line) for line in ten_rows.read_text().splitlines()]
    for row, logits in zip(rows, predicted, strict=True):
        endings = [f"{row['sent2']} {row[f'ending{number}']}" for number in range(4)]
        options = {"truncation": "only_first", "max_length": 64, "padding": True, "return_tensors": "pt"}
        inputs = tokenizer([row["sent1"]] * 4, endings, **options)
        with torch.no_grad():
            stock = model(**{name: value[None] for name, value in inputs.items()}).logits[0]
        np.testing.assert_allclose(logits, stock, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"choices": ["1", "2", "3"], "answer": "2"}, 1),  # the text, not the number
        ({"choices": ["1", "2", "3"], "label": 2}, 2),
        ({"answers": "two", "option1": "one", "option2": "two", "label": 1}, 1),  # `answers` is no numbered choice
        ({**{f"ending{n}": f"end {n}" for n in range(12)}, "label": 10}, 10),
    ],
)
def test_labels_that_name_a_choice(values, expected):
    row = choice_row(Row({"context": "It is.", **values}, "rows.jsonl", 1))
    assert row.label == expected
    assert len(row.choices) == (12 if "ending0" in values else len(values.get("choices", "ab")))
