import json

import datasets
import pytest

from bert_hf.errors import InputError
from bert_hf.finetuning.labelled.columns import CLASSES, NamedColumns
from bert_hf.finetuning.labelled.datasets import read_hub, read_labelled, read_parts
from bert_hf.finetuning.labelled.texts import LabelledTexts


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


def read(tmp_path, name, content, **options):
    return read_labelled(write(tmp_path, name, content), **options)


def table(**columns) -> str:
    """JSON lines of columns of equal length."""
    rows = zip(*columns.values(), strict=True)
    return "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)


WORDS = [f"this is text number {number} of some" for number in range(40)]
OTHERS = [f"and another text of number {number}" for number in range(40)]
LABELS = ["ham", "spam", "ham", "ham"] * 10
NUMBERS = [number / 8 for number in range(40)]


def test_columns_can_be_named(tmp_path):
    files = write(tmp_path, "a.csv", "one,two,three\nx,y,z\nu,v,w\n")
    assert read_labelled(files, NamedColumns("three", None, "one")) == LabelledTexts(["z", "w"], ["x", "u"])
    with_pairs = LabelledTexts(["z", "w"], ["x", "u"], pairs=["y", "v"])
    assert read_labelled(files, NamedColumns("three", "two", "one")) == with_pairs


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        ({"CONTENT": WORDS, "AUTHOR": LABELS, "CLASS": LABELS}, {}, ("CONTENT", None, "CLASS")),
        ({"id": list(range(40)), "body": WORDS, "kind": LABELS}, {}, ("body", None, "kind")),
        ({"sentence1": WORDS, "sentence2": OTHERS, "label": LABELS}, {}, ("sentence1", "sentence2", "label")),
        ({"sentence_B": OTHERS, "sentence_A": WORDS, "judgment": LABELS}, {},
         ("sentence_A", "sentence_B", "judgment")),
        ({"Quality": LABELS, "#1 ID": NUMBERS, "#1 String": WORDS, "#2 String": OTHERS}, {},
         ("#1 String", "#2 String", "Quality")),
        ({"question": WORDS, "sentence": OTHERS, "label": LABELS}, {}, ("question", "sentence", "label")),
        ({"premise": WORDS, "hypothesis": OTHERS, "gold_label": LABELS, "genre": LABELS}, {},
         ("premise", "hypothesis", "gold_label")),
        ({"sentence1": WORDS, "sentence2": OTHERS, "sentence1_parse": WORDS, "gold_label": LABELS, "label1": LABELS,
          "annotator_labels": [[label] for label in LABELS]}, {}, ("sentence1", "sentence2", "gold_label")),
        ({"v1": LABELS, "v2": WORDS, "column_3": ["the rest of a text", "and more of it", *[""] * 38]}, {},
         ("v2", None, "v1")),
        ({"date": ["Mon Apr 06 22:19:45 PDT 2009"] + [f"Tue Apr 07 10:00:{n} PDT 2009" for n in range(10, 49)],
          "tweet": WORDS, "target": LABELS}, {}, ("tweet", None, "target")),
        ({"title": WORDS, "body": OTHERS, "label": LABELS}, {"text": "body"}, ("body", None, "label")),
        ({"title": WORDS, "body": OTHERS, "label": LABELS}, {"text": "title", "pair": "body"},
         ("title", "body", "label")),
        ({"title": WORDS, "body": OTHERS, "label": LABELS}, {"pair": "body"}, ("title", "body", "label")),
        ({"word1": LABELS, "word2": LABELS[1:] + LABELS[:1], "label": LABELS}, {}, ("word1", "word2", "label")),
        ({"source1": LABELS, "source2": LABELS, "text": WORDS, "label": LABELS}, {}, ("text", None, "label")),
        ({"text": WORDS, "intent": [f"intent {n % 20}" for n in range(40)]}, {}, ("text", None, "intent")),
        ({"s1": WORDS, "s2": OTHERS, "genre": LABELS, "score": NUMBERS}, {"problem_type": "regression"},
         ("s1", "s2", "score")),
        ({"text": WORDS, "kind": LABELS, "grade": NUMBERS}, {"problem_type": "regression"}, ("text", None, "grade")),
        ({"text": WORDS, "score": NUMBERS}, {"problem_type": CLASSES, "label": "score"},
         ("text", None, "score")),
        ({"文": ["这是一个测试句子", "我们今天去公园玩"] * 20, "类": LABELS}, {}, ("文", None, "类")),
    ],
)  # fmt: skip
def test_columns_that_leave_one_choice_are_found(tmp_path, columns, options, expected):
    found = read(tmp_path, "a.jsonl", table(**columns), named=NamedColumns(**options)).columns
    assert (found.text, found.pair, found.label) == expected


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        ({"title": WORDS, "body": OTHERS, "label": LABELS}, {},
         "a.jsonl:1: which of the texts are meant: title, body?; "
         "--text_column title --text_pair_column body for pairs, or --text_column alone"),
        ({"question": WORDS, "answer": LABELS, "kind": LABELS}, {},
         "a.jsonl:1: which of the texts are meant: question, "),
        ({"text": WORDS, "kind": LABELS, "source": LABELS[::-1]}, {},
         "a.jsonl:1: which column holds the label?; --label_column, one of: text, kind, source"),
        ({"text": WORDS, "category": LABELS, "sentiment": LABELS}, {}, "a.jsonl:1: which column holds the label?"),
        ({"text": WORDS, "coarse_label": LABELS, "fine_label": LABELS}, {},
         "a.jsonl:1: which column holds the label?"),
        ({"text": WORDS, "number": list(range(40))}, {}, "a.jsonl:1: which column holds the label?"),
        ({"text": WORDS, "label": OTHERS}, {},
         "a.jsonl:1: column 'label' has 40 different values in 40 rows; --label_column label, if they are classes"),
        ({"text": WORDS, "score": NUMBERS}, {},
         "a.jsonl:1: the label column 'score' holds numbers such as 0.125; --problem_type regression, or "),
        ({"text": WORDS, "label": LABELS}, {"problem_type": "regression", "label": "label"},
         "a.jsonl:1: label 'ham' is not a number; correct it"),
        ({"text": WORDS, "label": [*NUMBERS[:-1], "much"]}, {"problem_type": "regression"},
         "a.jsonl:40: label 'much' is not a number"),
        ({"text": WORDS, "label": LABELS}, {"pair": "text_b"},
         "a.jsonl:1: no column 'text_b'; did you mean 'text'? its columns: text, label"),
        ({"text": WORDS, "label": LABELS}, {"text": "text", "pair": "text"}, "--text_column, --text_pair_column, "),
        ({"one": WORDS, "two": OTHERS, "three": OTHERS, "label": LABELS}, {"pair": "two"},
         "a.jsonl:1: to which text does 'two' belong?; --text_column, one of: one, two, three, label"),
    ],
)  # fmt: skip
def test_columns_that_leave_a_choice_are_asked_about(tmp_path, monkeypatch, columns, options, expected):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a.jsonl", table(**columns))
    with pytest.raises(InputError) as caught:
        read_labelled(["a.jsonl"], NamedColumns(**options))
    assert str(caught.value).startswith(expected)


def test_many_classes_are_read_and_counted(tmp_path):
    labels = [f"intent {number % 150}" for number in range(460)]
    rows = read(tmp_path, "a.jsonl", table(text=[f"a text of number {n}" for n in range(460)], intent=labels))
    assert len(set(rows.labels)) == 150
    assert rows.line().startswith("text: text, label: intent, 460 rows; 150 classes, the rarest: intent 149 3, ")
    assert "; fewer than 10 rows, kept: intent 0, intent 1, " in rows.line()
    assert rows.line().endswith(" and 140 more")


@pytest.mark.parametrize(
    ("content", "problem_type", "expected"),
    [
        ("CONTENT,CLASS\n" + "a b,spam\nb c,spam\nc d,ham\n" * 10, None,
         "text: CONTENT, label: CLASS, 30 rows; spam 20, ham 10"),
        ("ham\tx\nspam\ty\nham\tz\n" * 10, None,
         "text: column_2, label: column_1 (no header), 30 rows; ham 20, spam 10"),
        ("text,label\n" + "a,1\n,0\n  ,1\nb,0\n" * 10, None,
         "text: text, label: label, 20 rows; '1' 10, '0' 10; 20 without a text left out"),
        ("text_a,text_b,label\n" + "a,x,yes\nb,,no\nc,y,no\n" * 10, None,
         "text: text_a, pair: text_b, label: label, 20 rows; yes 10, no 10; 10 without a text left out"),
        ("text,score\na b,1.5\nb c,2\n c,4\n", "regression",
         "text: text, label: score, 3 rows; from 1.5 to 4, mean 2.5"),
        ("text,note,label\n" + "".join(map("{},{},{}\n".format, WORDS, OTHERS, LABELS)), "named",
         "text: text, label: label, 40 rows; ham 30, spam 10; texts not read: note"),
        ("text,label\n" + "x,ham\n" * 20 + "y,eggs\n" * 2, None,
         "text: text, label: label, 22 rows; ham 20, eggs 2; "
         "fewer than 10 rows, kept: eggs"),
    ],
)  # fmt: skip
def test_the_line_says_what_was_read(tmp_path, content, problem_type, expected):
    named = NamedColumns(text="text") if problem_type == "named" else NamedColumns(problem_type=problem_type)
    assert read(tmp_path, "a.csv" if "," in content else "a.tsv", content, named=named).line(problem_type) == expected


def test_the_first_row_of_a_class_is_not_lost(tmp_path):
    """In a file without header: it is short, and the only one of its class."""
    content = "thank you\tgratitude\nhello you there\tgreeting\ngood bye then\tfarewell\nhi all of you\tgreeting\n"
    rows = read(tmp_path, "a.tsv", content + "see you all soon\tfarewell\n")
    assert rows.texts[0] == "thank you"
    assert rows.line().startswith("text: column_1, label: column_2 (no header), 5 rows; greeting 2, farewell 2, ")


def test_labels_have_one_name_in_every_kind_of_file(tmp_path):
    one = read(
        tmp_path, "a.jsonl", '{"text": "a", "label": 1.0}\n{"text": "b", "label": 0.0}\n{"text": "c", "label": 1.0}\n'
    )
    other = read(tmp_path, "a.csv", "text,label\na, 1\nb,0 \nc,1\n")
    assert one.labels == other.labels == ["1", "0", "1"]


# ---- train, validation and test


TRAIN = "text,label\n" + "a b c,ham\nd e f,spam\n" * 5


def test_other_parts_have_the_columns_of_the_training_rows(tmp_path):
    train = write(tmp_path, "train.jsonl", table(title=WORDS, body=OTHERS, label=LABELS))
    test = write(tmp_path, "test.jsonl", table(title=WORDS, body=OTHERS, year=LABELS))
    parts = read_parts({"train": train, "test": test}, NamedColumns(text="body"))
    assert parts["test"].texts == OTHERS
    assert parts["test"].labels is None
    assert parts["test"].line() == "text: body, 40 rows; no labels"


def test_a_short_file_has_the_header_of_the_training_file(tmp_path):
    rows = "".join(f"some words {number},{label}\n" for number in range(10) for label in ("yes", "no"))
    files = {"train": write(tmp_path, "a.csv", "said,act\n" + rows)}
    files["test"] = write(tmp_path, "b.csv", "said,act\nsome more,yes\nand more,no\n")
    assert read_parts(files)["test"] == LabelledTexts(["some more", "and more"], ["yes", "no"])


@pytest.mark.parametrize(
    "named", [NamedColumns(), NamedColumns(label="field"), NamedColumns("abstract", None, "field")]
)
@pytest.mark.parametrize("content", ["abstract\none two\nthree four\n", "abstract,source\none two,x\nthree four,y\n"])
def test_the_header_of_unlabelled_rows_is_no_row(tmp_path, named, content):
    rows = "".join(f"some words {number},{label}\n" for number in range(10) for label in ("yes", "no"))
    files = {"train": write(tmp_path, "a.csv", "abstract,field\n" + rows), "test": write(tmp_path, "b.csv", content)}
    test = read_parts(files, named)["test"]
    assert (test.texts, test.labels) == (["one two", "three four"], None)


def test_unlabelled_test_rows_are_all_kept(tmp_path):
    """Each gets its prediction, also where the text is empty."""
    for content in ("id,text\n1,one\n2,\n3,three\n", "id,text,label\n1,one,\n2,,\n3,three,\n"):
        files = {"train": write(tmp_path, "a.csv", TRAIN), "test": write(tmp_path, "b.csv", content)}
        test = read_parts(files)["test"]
        assert (test.texts, test.labels) == (["one", "", "three"], None)
        assert test.line().endswith("; no labels; 1 without a text")


@pytest.mark.parametrize(
    ("part", "content", "expected"),
    [
        ("validation", "text\na b c\n", "b.csv:1: no column 'label'; its columns: text"),
        ("validation", "text,label\na b c,\n", "b.csv:2: the row has no 'label'; label it or remove it"),
        ("test", "text,label\na b c,ham\nd e f,\n", "b.csv:3: the row has no 'label'; label it or remove it"),
        ("test", "label,body\nham,a b\n", "b.csv:1: no column 'text'"),
    ],
)
def test_labels_missing_where_they_are_needed(tmp_path, monkeypatch, part, content, expected):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a.csv", TRAIN)
    write(tmp_path, "b.csv", content)
    with pytest.raises(InputError) as caught:
        read_parts({"train": ["a.csv"], part: ["b.csv"]}, NamedColumns(text="text"))
    assert str(caught.value).startswith(expected)


def test_files_whose_labels_differ_are_not_joined(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a.csv", TRAIN)
    write(tmp_path, "b.csv", TRAIN.replace("ham", "0").replace("spam", "1"))
    write(tmp_path, "c.csv", "text,label\na b c,eggs\n")
    with pytest.raises(InputError) as caught:
        read_labelled(["a.csv", "b.csv"])
    expected = "b.csv: its labels are '0', '1', and those of a.csv: ham, spam; give both the same names, "
    assert str(caught.value).startswith(expected)
    assert len(read_labelled(["a.csv", "c.csv"])) == 11  # a file of one class


def test_take_keeps_pairs_and_places_together():
    places = [("f", line) for line in range(4)]
    rows = LabelledTexts(list("abcd"), list("1234"), places, list("wxyz"))
    taken = rows.take([3, 1])
    assert taken == LabelledTexts(["d", "b"], ["4", "2"], pairs=["z", "x"])
    assert taken.places == [("f", 3), ("f", 1)]
    assert taken.joined() == ["d\nz", "b\nx"]
    assert LabelledTexts(["a"], None).take([0]) == LabelledTexts(["a"], None)


# ---- Hub


def test_a_data_set_of_the_hub_is_read_like_a_file(monkeypatch):
    names = datasets.ClassLabel(names=["not_entailment", "entailment"])
    text = datasets.Value("string")
    features = datasets.Features(
        {"sentence1": text, "sentence2": text, "label": names, "idx": datasets.Value("int32")}
    )
    columns = {"sentence1": ["a ", "b", "c"], "sentence2": ["x", "y", " "], "idx": [0, 1, 2]}
    splits = {
        "test": datasets.Dataset.from_dict({**columns, "label": [-1, -1, -1]}, features=features),
        "train": datasets.Dataset.from_dict({**columns, "label": [1, 0, 0]}, features=features),
    }
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: datasets.DatasetDict(splits))
    found = read_hub("nyu-mll/glue", "rte")
    assert found["train"] == LabelledTexts(["a", "b"], ["entailment", "not_entailment"], pairs=["x", "y"])
    assert found["test"] == LabelledTexts(["a", "b", "c"], None, pairs=["x", "y", ""])
    with pytest.raises(InputError, match=r"nyu-mll/glue: no column 'text'; its columns: sentence1, "):
        read_hub("nyu-mll/glue", "rte", NamedColumns(text="text"))


def test_splits_of_the_hub_that_lack_labels_or_rows(monkeypatch):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["a", "b"])})
    splits = datasets.DatasetDict(
        {
            name: datasets.Dataset.from_dict({"text": ["x y", "z"], "label": labels}, features=features)
            for name, labels in {"train": [0, 1], "validation": [-1, -1], "unsupervised": [-1, -1]}.items()
        }
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: splits)
    with pytest.raises(InputError, match="imdb, validation:1: the row has no 'label'; label it or remove it"):
        read_hub("imdb")
    assert list(read_hub("imdb", wanted=("train", "test"))) == ["train"]
    splits["train"] = splits["train"].select([])
    with pytest.raises(InputError, match="imdb: no split 'train'; its splits: validation, unsupervised; give --train"):
        read_hub("imdb")


@pytest.mark.parametrize(
    ("name", "content", "options", "expected"),
    [
        ("a.csv", "text,label\nx,1\ny\n", {}, "a.csv:3: 1 fields instead of 2"),
        ("a.csv", 'text,label\n"x,1\n', {}, "a.csv:2: not CSV"),
        ("a.tsv", "text\tlabel\nx\t1\ny\t\n", {}, "a.tsv:3: the row has no 'label'"),
        ("a.tsv", b"text\tlabel\nx\xe9\t1\n", {}, "a.tsv:2:2: byte 0xe9 is not UTF-8"),
        ("a.jsonl", '{"text": "x", "label": 1}\nnope\n', {}, "a.jsonl:2:1: not JSON"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"label": 0}\n', {}, "a.jsonl:2: the row has no text"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "y", "label": [0]}\n', {},
         "a.jsonl:2: 'label' is not a name or a number"),
        ("a.tsv", "text\tlabel\nx\t1\n", {"text": "body"}, "a.tsv:1: no column 'body'; its columns: text, label"),
        ("a.csv", "v1,v2\nx,y\nu,v\n", {}, "a.csv:1: which column holds the label?; --label_column, one of: v1, v2"),
        ("a.csv", "a,b\nx,y\nu,v\n", {},
         "a.csv:1: which column holds the label?; --label_column, one of: column_1 (a), column_2 (b)"),
        ("a.csv", "text,label\n", {}, "a.csv: no rows in it"),
        ("a.csv", "text,label\n ,1\n,0\n", {}, "a.csv: no row has a text"),
        ("a.tsv", "1\tx y z\t2\n2\tz\t1\n1\ta long text, of many words\t2\n", {},
         "a.tsv:1: which column holds the label?; --label_column, one of: column_1 (1), column_2 (x y z), column_3 ("),
        ("a.xml", "<a/>", {}, "a.xml: unknown kind"),
    ],
)  # fmt: skip
def test_every_error_names_its_place(tmp_path, monkeypatch, name, content, options, expected):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, name, content)
    with pytest.raises(InputError) as caught:
        read_labelled([name], NamedColumns(**options))
    assert str(caught.value).startswith(expected)
