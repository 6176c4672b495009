"""Labelled texts from tables, folders and the Hub: which columns are read, which rows are kept, what is refused."""

import json

import datasets
import pytest
from helpers.classified_rows import read_labelled

from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.data.text.sources import dataset_rows
from bert_hf.data.text.tables import Row
from bert_hf.errors import InputError
from bert_hf.finetuning.rows.known_tasks import order_labels
from bert_hf.finetuning.rows.labelled_texts import (
    Columns,
    LabelledTexts,
    as_number,
    file_texts,
    find_columns,
    labelled_rows,
)
from bert_hf.finetuning.tasks.classification import ClassificationTask


def write(tmp_path, name, content):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return [str(tmp_path / name)]


ROWS = [("ham", 'He said "hi, you'), ("spam", "WIN now"), ("ham", "ok")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "".join(f"{label}\t{text}\n" for label, text in ROWS)),
        ("a.tsv", "label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in ROWS)),
        ("a.csv", 'body,kind\n"He said ""hi, you",ham\nWIN now,spam\nok,ham\n'),
        ("a.jsonl", "".join(json.dumps({"kind": label, "body": text}) + "\n" for label, text in ROWS)),
        ("a.txt", "".join(f"{label}\t{text}\n" for label, text in ROWS)),
    ],
)
def test_files_of_any_kind_and_column_names(tmp_path, name, content):
    rows = read_labelled(write(tmp_path, name, content))
    assert list(zip(rows.labels, rows.texts, strict=True)) == ROWS


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([[1, 0, 0], [0, 1, 1]], [("0",), ("1", "2")]),
        (["[1.0, 0.0, 1.0]", "[0 0 0]"], [("0", "2"), ()]),
        ([[True, False], [True, True]], [("0",), ("0", "1")]),
        ([[0, 2, 1], [1]], [("0", "2", "1"), ("1",)]),  # numbers of labels
        (["['ham' 'win']", "['ham']"], [("ham", "win"), ("ham",)]),
        (["1.0", "0.0"], ["1", "0"]),
        (["1.0", "2.5"], ["1.0", "2.5"]),
    ],
)
def test_labels_as_libraries_write_them(tmp_path, labels, expected):
    lines = "".join(json.dumps({"text": "a text", "labels": value}) + "\n" for value in labels)
    rows = labelled_rows(list(file_texts(*write(tmp_path, "a.jsonl", lines))), Columns())
    assert rows.labels == expected


def test_rejected_rows_of_annotators_are_left_out(tmp_path, caplog):
    rows = [{"text": f"text {answer}", "label": "a", "answer": answer} for answer in ("accept", "reject", "ignore")]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    found = labelled_rows(list(file_texts(*write(tmp_path, "a.jsonl", lines))), Columns())
    assert found.texts == ["text accept"]
    assert "2 rows were not accepted" in caplog.text
    assert len(labelled_rows(list(file_texts(f"{tmp_path}/a.jsonl")), Columns(), "ignored")) == 3
    assert len(labelled_rows(list(file_texts(f"{tmp_path}/a.jsonl")), Columns(), "optional")) == 1
    with pytest.raises(InputError, match="no row was accepted"):
        labelled_rows([Row({"text": "a", "label": "b", "answer": "reject"}, "a.jsonl")], Columns())

    numbers = "".join(json.dumps({**row, "answer": number}) + "\n" for number, row in enumerate(rows))
    assert len(labelled_rows(list(file_texts(*write(tmp_path, "b.jsonl", numbers))), Columns())) == 3


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        (["ham", "spam", "nan"], "! 1 rows have the label 'nan': remove them"),
        (list("abcdefghijkl"), "! 12 classes of 12 rows: is 'label' the label?"),
    ],
)
def test_doubtful_labels_have_a_line(tmp_path, caplog, labels, line):
    content = "".join(f"{label},a text\n" for label in labels)
    read_labelled(write(tmp_path, "a.csv", "label,text\n" + content)).check_classes(may_be_numbers=False)
    assert line in caplog.text


# ---- columns


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        ("CONTENT AUTHOR CLASS", {}, ("CONTENT", None, "CLASS")),
        ("id body kind", {}, ("body", None, "kind")),
        ("text label category", {}, ("text", None, "label")),
        ("tweet label", {}, ("tweet", None, "label")),
        ("__index_level_0__ remark label", {}, ("remark", None, "label")),
        ("sentence1 sentence2 label", {}, ("sentence1", "sentence2", "label")),
        ("sentence_B sentence_A label", {}, ("sentence_A", "sentence_B", "label")),
        ("question sentence label", {}, ("question", "sentence", "label")),
        ("text text_pair label", {}, ("text", "text_pair", "label")),
        ("sentence1 sentence2 label", {"text": "sentence2"}, ("sentence2", None, "label")),
        ("title body label", {"text": "title", "pair": "body"}, ("title", "body", "label")),
        ("title body label", {"pair": "title"}, ("body", "title", "label")),
        ("one two three", {"text": "three", "label": "one"}, ("three", None, "one")),
    ],
)
def test_columns_are_found_by_usual_names_or_named(columns, options, expected):
    row = Row(dict.fromkeys(columns.split(), "x"), "a.csv", 2)
    assert find_columns(row, Columns(**options))[:3] == expected


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        ("title summary label", {}, "a.csv:1: text column not recognised; pass --text_column, one of: title, summary"),
        ("text topic", {}, "a.csv:1: label column not recognised; pass --label_column, one of: text, topic"),
        ("text label", {"pair": "text_b"}, "a.csv:1: no column 'text_b'; did you mean 'text'?"),
        ("text label", {"label": "kind"}, "a.csv:1: no column 'kind'; pass --label_column, one of: text, label"),
    ],
)
def test_other_columns_are_asked_about(columns, options, expected):
    row = Row(dict.fromkeys(columns.split(), "x"), "a.csv", 2)
    with pytest.raises(InputError) as caught:
        find_columns(row, Columns(**options))
    assert str(caught.value).startswith(expected)


# ---- rows


@pytest.mark.parametrize(
    ("content", "problem_type", "expected"),
    [
        ("CONTENT,CLASS\n" + "a b,spam\nb c,spam\nc d,ham\n" * 10, None,
         "text: CONTENT, label: CLASS, 30 rows; spam 20, ham 10"),
        ("text_a,text_b,label\n" + "a,x,yes\nb,,no\nc,y,no\n" * 10, None,
         "text: text_a, pair: text_b, label: label, 20 rows; yes 10, no 10"),
        ("text,label\na b,1.5\nb c,2\n c,4\n", "regression",
         "text: text, label: label, 3 rows; from 1.5 to 4, mean 2.5"),
        ("text,label\n" + "".join(f"a text,intent {n % 150}\n" for n in range(460)), None,
         "text: text, label: label, 460 rows; 150 classes of 3 to 4 rows"),
    ],
)  # fmt: skip
def test_the_line_says_what_was_read(tmp_path, content, problem_type, expected):
    rows = read_labelled(write(tmp_path, "a.csv", content))
    assert rows.describe(problem_type) == expected


def test_a_label_is_one_line(tmp_path):
    """It stands in the model card and in the file of predictions."""
    content = json.dumps({"text": "x", "label": "ham\n\n# A heading\t[link]"})
    (label,) = read_labelled(write(tmp_path, "a.jsonl", content)).labels
    assert label == "ham # A heading [link]"


@pytest.mark.parametrize(
    ("name", "content", "options", "expected"),
    [
        ("a.tsv", "text\tlabel\nx\t1\ny\t\n", {}, "a.tsv:3: 1 of 2 rows have no 'label': line 3; "),
        ("a.csv", "text,label\nx,1\ny,\n" + 4 * "z,\n", {}, "a.csv:3: 5 of 6 rows have no 'label': line 3, line 4"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": 5, "label": 0}\n', {}, "a.jsonl:2: column 'text' holds"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "y", "label": [0]}\n', {}, "a.jsonl:2: 'label' is neither"),
        ("a.csv", "text,label\n ,1\n,0\n", {}, "a.csv: all texts are empty"),
        ("a.csv", "thank you,gratitude\nhello you,greeting\nhi all,greeting\n", {},
         "a.csv:1: label column not recognised; pass --label_column, one of: thank you, gratitude"),
    ],
)  # fmt: skip
def test_every_error_names_its_place(tmp_path, monkeypatch, name, content, options, expected):
    """A first row that is the only one of its class is never lost: see the last case."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, name, content)
    with pytest.raises(InputError) as caught:
        read_labelled([name], **options)
    assert str(caught.value).startswith(expected)


def test_labels_that_differ_in_case_are_named_with_their_line(tmp_path, caplog):
    read_labelled(write(tmp_path, "a.csv", "text,label\nx,spam\ny,ham\nz,Spam\n")).check_classes(False)
    assert "a.csv:4: label 'Spam' is another class than 'spam'" in caplog.text


def test_measured_numbers_may_be_classes(tmp_path):
    rows = read_labelled(write(tmp_path, "a.csv", "text,label\nx,0.5\ny,1\n"))
    with pytest.raises(InputError, match=r"a\.csv: the labels look like measured numbers; pass --problem_type regr"):
        rows.check_classes(False)
    rows.check_classes(True)
    rows = read_labelled(write(tmp_path, "b.csv", "text,label\nx,0.5\ny,low\n"))
    with pytest.raises(InputError, match=r"b\.csv:3: label 'low' is not a number"):
        rows.numbers()


def test_numbers_with_decimal_commas(tmp_path):
    """As an Excel in German or French writes them."""
    content = "text;score\nx;0,5\ny;-1,25\nz;3\nu;1,234\n"
    rows = read_labelled(write(tmp_path, "a.csv", content), label_column="score")
    assert rows.numbers().tolist() == [0.5, -1.25, 3.0, 1.234]
    with pytest.raises(InputError, match="look like measured numbers"):
        rows.check_classes(False)
    assert order_labels(dict.fromkeys(("2,5", "10", "0,5"), 1)) == ("0,5", "2,5", "10")
    for label in ("1,234,5", "1.234,5", "1,2 kg"):
        assert as_number(label) is None


def test_a_comma_of_thousands_is_refused(tmp_path):
    rows = read_labelled(write(tmp_path, "a.csv", "text;score\nx;950\ny;1,234\nz;12,500\n"), label_column="score")
    with pytest.raises(InputError, match="label '1,234' has a decimal comma, or one of thousands; write 1234 or"):
        rows.numbers()


# ---- train, validation and test


class Unsplit(ClassificationTask):
    """Splits nothing off the training rows."""

    def add_split_parts(self, parts):
        return parts


def read(**options) -> dict:
    return Unsplit(ClassificationArguments(**options), None).parts


def given_parts(tmp_path, train, **others):
    files = {part: write(tmp_path, f"{part}.csv", content) for part, content in {"train": train, **others}.items()}
    options = {f"{part}_file": paths for part, paths in files.items()}
    return lambda **more: read(**options, **more)


TRAIN = "text,label\n" + "a b c,ham\nd e f,spam\n" * 5


def test_other_parts_have_the_columns_of_the_training_rows(tmp_path):
    read = given_parts(tmp_path, "title,body,kind\nx,a b,ham\ny,c d,spam\n", test="title,body,year\nx,e f,1\n")
    test = read(text_column="title")["test"]
    assert (test.texts, test.labels) == (["x"], None)
    assert test.describe() == "text: title, 1 rows; no labels"


def test_parts_may_differ_in_their_header(tmp_path):
    read = given_parts(tmp_path, "ham,a b\nspam,c d\nham,e f\n", validation=TRAIN, test="text\nx y\n")
    parts = read()
    assert (len(parts["train"]), len(parts["validation"]), parts["test"].texts) == (3, 10, ["x y"])


@pytest.mark.parametrize("label", ["", ",", ",-1"])
def test_unlabelled_test_rows_are_all_kept(tmp_path, caplog, label):
    """Each gets its prediction, also where the text is empty; GLUE marks them with -1."""
    content = f"id,text{label and ',label'}\n1,one{label}\n2,{label}\n3,three{label}\n"
    test = given_parts(tmp_path, TRAIN, test=content)()["test"]
    assert (test.texts, test.labels) == (["one", "", "three"], None)
    assert "1 of 3 rows have no text" in caplog.text


@pytest.mark.parametrize(
    ("part", "content", "expected"),
    [
        ("validation", "text\na b c\n", "validation.csv:1: no column 'label'; "),
        ("test", "text,label\na b c,ham\nd e f,\n", "test.csv:3: 1 of 2 rows have no 'label': line 3;"),
        ("test", "label,body\nham,a b\n", "test.csv:1: no column 'text'"),
    ],
)
def test_labels_and_columns_missing_where_they_are_needed(tmp_path, part, content, expected):
    with pytest.raises(InputError) as caught:
        given_parts(tmp_path, TRAIN, **{part: content})()
    assert str(caught.value).startswith(f"{tmp_path}/{expected}")


# ---- folders


def make(folder, **files):
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_a_folder_of_classes(tmp_path, caplog):
    for number in range(3):
        make(tmp_path, **{f"spam__{number}.txt": f"win\n{number}\n", f"ham__{number}.eml": f"hi {number}"})
    make(tmp_path, **{"readme.md": "about", "ham__.hidden": "no", "spam__empty.txt": " \n", "spam__list.csv": "x"})
    rows = read_labelled([str(tmp_path)])
    assert rows.labels == ["ham"] * 3 + ["spam"] * 3
    assert rows.texts == ["hi 0", "hi 1", "hi 2", "win\n0", "win\n1", "win\n2"]
    assert rows.places[0] == (str(tmp_path / "ham/0.eml"), 1)
    assert "1 of 7 rows have no text and are left out" in caplog.text


# ---- Hub


def hub(monkeypatch, **splits):
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: datasets.DatasetDict(splits))


@pytest.mark.parametrize("format", ["torch", "numpy"])
def test_a_dataset_that_yields_tensors(format):
    names = datasets.ClassLabel(names=["ham", "spam"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features).with_format(format)
    assert [row.values for row in dataset_rows(rows)] == [
        {"text": "a", "label": "spam"},
        {"text": "b", "label": "ham"},
    ]


def test_a_dataset_of_the_hub_is_read_like_a_file(monkeypatch):
    names = datasets.ClassLabel(names=["not_entailment", "entailment"])
    text = datasets.Value("string")
    features = datasets.Features(
        {"sentence1": text, "sentence2": text, "label": names, "idx": datasets.Value("int32")}
    )
    columns = {"sentence1": ["a ", "b", "c"], "sentence2": ["x", "y", " "], "idx": [0, 1, 2]}
    hub(
        monkeypatch,
        test=datasets.Dataset.from_dict({**columns, "label": [-1, -1, -1]}, features=features),
        train=datasets.Dataset.from_dict({**columns, "label": [1, 0, 0]}, features=features),
        other=datasets.Dataset.from_dict({"x": ["y"]}),
    )
    parts = read(dataset_name="some/pairs")
    assert parts["train"] == LabelledTexts(["a", "b"], ["entailment", "not_entailment"], pairs=["x", "y"])
    assert parts["test"] == LabelledTexts(["a", "b", "c"], None, pairs=["x", "y", ""])
    assert list(parts) == ["train", "test"]
    with pytest.raises(
        InputError, match=r"some/pairs \(train\): no column 'text'; pass --text_column, one of: sentence1, "
    ):
        read(dataset_name="some/pairs", text_column="text")


def test_splits_of_the_hub_that_lack_labels_or_rows(monkeypatch):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["a", "b"])})
    splits = {
        name: datasets.Dataset.from_dict({"text": ["x y", "z"], "label": labels}, features=features)
        for name, labels in {"train": [0, 1], "validation": [-1, -1], "unsupervised": [-1, -1]}.items()
    }
    hub(monkeypatch, **splits)
    with pytest.raises(InputError, match=r"imdb \(validation\): 2 of 2 rows have no 'label';"):
        read(dataset_name="imdb")
    hub(monkeypatch, **{**splits, "train": splits["train"].select([])})
    with pytest.raises(InputError, match="imdb: no split 'train'"):
        read(dataset_name="imdb")


def test_a_point_beside_decimal_commas_is_refused(tmp_path):
    """In German 1.234 is 1234."""
    rows = read_labelled(write(tmp_path, "a.csv", "text;score\nx;12,5\ny;1.234\nz;980,0\n"), label_column="score")
    with pytest.raises(InputError, match=r"labels '12,5' and '1\.234'"):
        rows.numbers()
