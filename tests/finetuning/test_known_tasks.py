"""Files in the layouts of the benchmark, its label names, and its submission files."""

import numpy as np
import pytest
from tiny import tiny_config, tiny_tokenizer
from transformers import BertForSequenceClassification

from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.errors import InputError
from bert_hf.finetuning.heads.head import TRAINED_ON
from bert_hf.finetuning.rows.known_tasks import TASKS, order_labels, read_task_folder, write_submission
from bert_hf.finetuning.tasks.classification import ClassificationTask

GLUE = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli")

_INFERENCE = "index\tsentence1\tsentence2"
_SIMILARITY = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
_MNLI = "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse"
_MNLI += "\tsentence2_parse\tsentence1\tsentence2"
_P = "\tx" * 7  # the columns of MNLI between index and sentences

# File → its text, in the benchmark's layout. Every first text has a lone quote.
FILES = {
    "cola": {
        "train": 'g1\t1\t\tHe said "yes.\ng1\t0\t*\tHim said yes.\n',
        "dev": "g2\t0\t??\tYes said.\ng2\t1\t\tOK.",  # the real file, too, ends without a line feed
        "test": "index\tsentence\n0\tOne.\n1\tTwo.\n2\tThree.\n",
    },
    "sst2": {
        "train": 'sentence\tlabel\na " good film \t1\nbad \t0\n',
        "dev": "sentence\tlabel\nfine\t1\n",
        "test": "index\tsentence\n0\tso so\n",
    },
    "mrpc": {
        "train": '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe said " yes .\tYes , he said .\n',
        "dev": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\tOne .\tTwo .\n",
        "test": "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tThree .\tFour .\n",
    },
    "qqp": {
        "train": 'id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tWhy "so?\tWhy?\t1\n4\t5\t6\tH?\t?\t0\n',
        "dev": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tA?\tB?\t0\n",
        "test": "id\tquestion1\tquestion2\n0\tC?\tD?\n",
    },
    "stsb": {
        "train": f'{_SIMILARITY}\tscore\n0\tg\tf\t2012\t1\tnone\tnone\tA "plane.\tA plane.\t4.750\n',
        "dev": f"{_SIMILARITY}\tscore\n0\tg\tf\t2012\t1\tnone\tnone\tA.\tB.\t0.00\n",
        "test": f"{_SIMILARITY}\n0\tg\tf\t2012\t1\tnone\tnone\tC.\tD.\n",
    },
    "mnli": {
        "train": f'{_MNLI}\tlabel1\tgold_label\n0{_P}\tThe "rights.\tNo rights.\tcontradiction\tcontradiction\n',
        "dev_matched": f"{_MNLI}\tlabel1\tlabel2\tgold_label\n0{_P}\tA.\tB.\tneutral\tneutral\tneutral\n",
        "dev_mismatched": f"{_MNLI}\tlabel1\tlabel2\tgold_label\n0{_P}\tC.\tD.\tneutral\tentailment\tentailment\n",
        "test_matched": f"{_MNLI}\n0{_P}\tE.\tF.\n",
        "test_mismatched": f"{_MNLI}\n0{_P}\tG.\tH.\n1{_P}\tI.\tJ.\n",
    },
    "rte": {
        "train": f'{_INFERENCE}\tlabel\n0\tA "cat runs.\tA cat.\tentailment\n',
        "dev": f"{_INFERENCE}\tlabel\n0\tA.\tB.\tnot_entailment\n",
        "test": f"{_INFERENCE}\n0\tC.\tD.\n",
    },
}

# The first training row, and the label of the first validation row
FIRST = {
    "cola": ('He said "yes.', None, "acceptable", "unacceptable"),
    "sst2": ('a " good film', None, "positive", "positive"),
    "mrpc": ('He said " yes .', "Yes , he said .", "equivalent", "not_equivalent"),
    "qqp": ('Why "so?', "Why?", "duplicate", "not_duplicate"),
    "stsb": ('A "plane.', "A plane.", "4.750", "0.00"),
    "mnli": ('The "rights.', "No rights.", "contradiction", "neutral"),
    "rte": ('A "cat runs.', "A cat.", "entailment", "not_entailment"),
}


def write(folder, task, suffix=".tsv", opener=open, **changed):
    """Writes the files of a task; a change to None leaves a file out."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {**FILES[task], **changed}.items():
        if text is not None:
            with opener(folder / f"{name}{suffix}", "wt", encoding="utf-8") as file:
                file.write(text)
    return str(folder)


@pytest.mark.parametrize("task", FILES)
def test_the_files_of_each_task(tmp_path, task):
    parts = read_task_folder(task, write(tmp_path, task))
    train = parts["train"]
    pair = train.pairs and train.pairs[0]
    assert (train.texts[0], pair, train.labels[0], parts["validation"].labels[0]) == FIRST[task]
    assert list(parts) == list(TASKS[task].splits)

    # Test rows have no labels, every row has its place
    assert [parts[part].labels for part in parts if part.startswith("test")] == [None] * len(TASKS[task].submissions)
    assert train.places[0] == (str(tmp_path / "train.tsv"), 1 if task == "cola" else 2)
    assert len(train.places) == len(train)


def test_incomplete_training_rows_of_qqp_are_counted(tmp_path, caplog):
    train = FILES["qqp"]["train"] + "8\t9\t10\tWhat is\n11\t12\n"
    parts = read_task_folder("qqp", write(tmp_path, "qqp", train=train))
    assert len(parts["train"]) == 2
    assert f"{tmp_path / 'train.tsv'}: skipped 2 incomplete rows" in caplog.text


@pytest.mark.parametrize(
    ("task", "changed", "expected"),
    [
        ("cola", {"dev": None}, "dev.tsv: no such file; add it"),
        ("cola", {"train": "g1\t1\t\tFine.\ng1\t1\tFine.\n"}, "train.tsv:2: 3 fields instead of 4"),
        ("cola", {"train": "g1\tyes\t\tFine.\n"}, "train.tsv:1: unknown label 'yes'; the known ones: unacc"),
        ("sst2", {"train": "sentence\tlabel\na\tb\t1\n"}, "train.tsv:2: 3 fields instead of 2"),
        ("sst2", {"dev": ""}, "dev.tsv: contains no rows"),
        (
            "rte",
            {"dev": f"{_INFERENCE}\tlabel\n0\tA.\tB.\tneutral\n"},
            "dev.tsv:2: unknown label 'neutral'; the known ones: entailment, not_",
        ),
        (
            "rte",
            {"dev": FILES["mrpc"]["dev"]},
            "dev.tsv:1: no column 'sentence1'; pass --text_column, one of: Quality, #1 ID",
        ),
    ],
)
def test_every_error_names_file_and_line(tmp_path, monkeypatch, task, changed, expected):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, task, **changed)
    with pytest.raises(InputError) as caught:
        read_task_folder(task, ".")
    assert str(caught.value).startswith(expected)


def test_a_model_of_a_benchmark_s_folder_records_that_it_reads_pairs(tmp_path):
    """Else `predict` would read only the first text."""
    write(tmp_path, "qqp")
    task = ClassificationTask(ClassificationArguments(task="qqp", data_dir=str(tmp_path)), None)
    recorded = task.head.record()[TRAINED_ON]
    assert (recorded["text_column"], recorded["text_pair_column"]) == ("question1", "question2")


def test_the_nine_tasks_of_the_benchmark():
    assert tuple(task for task, row in TASKS.items() if row.hub_id == "nyu-mll/glue") == GLUE
    assert all(TASKS[task].config == task for task in GLUE)
    selecting = {task: TASKS[task].metrics[0] for task in GLUE}
    assert selecting == {
        "cola": "matthews_correlation",
        "mrpc": "combined_score",
        "qqp": "combined_score",
        "stsb": "combined_score",
        **dict.fromkeys(("sst2", "mnli", "qnli", "rte", "wnli"), "accuracy"),
    }


@pytest.mark.parametrize(
    ("names", "task", "expected"),
    [
        ({"spam", "ham"}, "spam", ("ham", "spam")),
        ({"entailment", "neutral"}, "mnli", ("entailment", "neutral", "contradiction")),
        ({"no", "yes"}, None, ("no", "yes")),
        ({"nein", "Ja"}, None, ("nein", "Ja")),
        ({"positive", "zzz"}, None, ("zzz", "positive")),
        ({"c", "a", "b"}, None, ("a", "b", "c")),
        ({"1", "0"}, None, ("0", "1")),
        ({"1", "-1"}, None, ("-1", "1")),
        ({"1", "2"}, None, ("1", "2")),
        ({"2", "10"}, None, ("2", "10")),
        ({"10", "9", "-1.5"}, None, ("-1.5", "9", "10")),
        ({"10", "9", "b"}, None, ("10", "9", "b")),
    ],
)
def test_label_order(names, task, expected):
    assert order_labels(dict.fromkeys(names, 1), task) == expected


def test_the_rare_one_of_two_unknown_labels_is_positive():
    assert order_labels({"ok": 900, "junk": 120}) == ("ok", "junk")
    assert order_labels({"ok": 500, "junk": 400}) == ("junk", "ok")
    assert order_labels({"junk": 100, "spam": 900}) == ("junk", "spam")


@pytest.mark.parametrize(
    ("task", "part", "predictions", "name", "column"),
    [
        ("cola", "test", [1, 0], "CoLA.tsv", ["1", "0"]),
        ("sst2", "test", [1, 0], "SST-2.tsv", ["1", "0"]),
        ("mrpc", "test", [1, 0], "MRPC.tsv", ["1", "0"]),
        ("qqp", "test", [1, 0], "QQP.tsv", ["1", "0"]),
        ("stsb", "test", [-0.2, 5.3, 2.34567], "STS-B.tsv", ["-0.200", "5.300", "2.346"]),
        ("mnli", "test", [0, 1, 2], "MNLI-m.tsv", ["entailment", "neutral", "contradiction"]),
        ("mnli", "test_mm", [2, 0], "MNLI-mm.tsv", ["contradiction", "entailment"]),
        ("qnli", "test", [0, 1], "QNLI.tsv", ["entailment", "not_entailment"]),
        ("rte", "test", [0, 1], "RTE.tsv", ["entailment", "not_entailment"]),
        ("wnli", "test", [0, 1], "WNLI.tsv", ["0", "1"]),
    ],
)
def test_submission_files(tmp_path, task, part, predictions, name, column):
    path = write_submission(tmp_path, task, part, np.array(predictions))
    assert path == tmp_path / "submission" / name
    rows = [f"{index}\t{value}" for index, value in enumerate(column)]
    assert path.read_bytes().decode() == "\n".join(["index\tprediction", *rows]) + "\n"
    assert [file.name for file in path.parent.iterdir()] == [name]


def test_a_submission_has_the_benchmarks_classes_in_any_order_of_the_checkpoint(tmp_path):
    train = f"{_INFERENCE}\tlabel\n0\tA cat.\tA dog.\tentailment\n1\tNo.\tYes.\tnot_entailment\n"
    folder = write(tmp_path / "rte", "rte", train=train)
    names = {0: "not_entailment", 1: "entailment"}
    config = tiny_config(id2label=names, label2id={name: number for number, name in names.items()})
    BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    task_args = ClassificationArguments(str(tmp_path / "bert"), task="rte", data_dir=folder, max_seq_length=16)
    task = ClassificationTask(task_args, tiny_tokenizer())
    assert task.head.labels == tuple(names.values())
    task.write_predictions(tmp_path, "test", np.array([[0.0, 1.0]] * len(task.parts["test"])))
    assert "0\tentailment\n" in (tmp_path / "submission/RTE.tsv").read_text()


def test_f1_of_a_benchmark_is_of_its_positive_class(tmp_path):
    """A checkpoint whose first class is the positive one gets a new head."""
    names = {0: "equivalent", 1: "not_equivalent"}
    config = tiny_config(id2label=names, label2id={name: number for number, name in names.items()})
    BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    rows = header + "1\t1\t2\tA cat.\tA cat.\n0\t3\t4\tYes.\tNo.\n"
    folder = write(tmp_path / "mrpc", "mrpc", train=rows)
    task = ClassificationTask(
        ClassificationArguments(str(tmp_path / "bert"), task="mrpc", data_dir=folder, max_seq_length=16),
        tiny_tokenizer(),
    )
    assert task.head.labels == ("not_equivalent", "equivalent")
    assert "F1 is of 'equivalent'" in task.new_head
