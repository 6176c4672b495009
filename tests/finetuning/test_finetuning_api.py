"""Fine-tuning from Python on a dataset in memory, and what a finished model records."""

import json

import datasets
import pytest
import transformers
from helpers.questions import write_questions
from helpers.recipe_runs import recipe
from tiny import save_tiny_bert, tiny_config

import bert_hf

WORDS = {"spam": "w1 w2 w3", "ham": "w4 w5 w6"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api") / "bert"
    save_tiny_bert(folder, 0.0)
    return str(folder)


def labelled(count: int) -> datasets.Dataset:
    labels = [("spam", "ham")[n % 2] for n in range(count)]
    texts = [f"{WORDS[label]} w{7 + n % 50} w{7 + 3 * n % 50}" for n, label in enumerate(labels)]
    return datasets.Dataset.from_dict({"body_text": texts, "kind": labels})


def quick(folder, **options) -> bert_hf.FineTuningArguments:
    fast = {"learning_rate": 3e-3, "num_train_epochs": 4, "disable_tqdm": True, "use_cpu": True, "bf16": False}
    return bert_hf.FineTuningArguments(str(folder), report_to="none", **{**fast, **options})


def test_a_classifier_in_three_lines(checkpoint, tmp_path):
    options = {"head": "classification", "text_column": "body_text", "max_seq_length": 16}
    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "batch_eval_metrics": True}
    given = {"train_dataset": labelled(120).to_iterable_dataset(), "eval_dataset": labelled(20).to_pandas()}
    trainer = bert_hf.FineTuner(checkpoint, quick(tmp_path, **workers), **given, **options)
    trainer.train()
    texts = [WORDS["spam"], WORDS["ham"]]
    assert [row["label"] for row in trainer.predict(texts)] == ["spam", "ham"]
    assert trainer.evaluate(labelled(30))["eval_accuracy"] == trainer.evaluate()["eval_accuracy"] == 1.0
    assert trainer.evaluate(labelled(30))["eval_loss"] != trainer.evaluate()["eval_loss"]
    unlike = [chr(97 + n % 26) * 3 + " " + chr(97 + n // 2) * 4 for n in range(40)]
    rows = datasets.Dataset.from_dict({"body_text": unlike, "kind": ["spam", "ham"] * 20})
    assert bert_hf.FineTuner(checkpoint, train_dataset=rows, **options).task.parts.keys() == {"train", "validation"}
    with pytest.raises(bert_hf.InputError, match="several datasets; pass one of them: a"):
        bert_hf.FineTuner(checkpoint, train_dataset=datasets.DatasetDict(a=labelled(120)), **options)
    numbers = labelled(20).map(lambda row: {"kind": str(len(row["kind"]))})
    weighted = {**options, "problem_type": "regression", "class_weight": "balanced"}
    with pytest.raises(bert_hf.InputError, match="--class_weight: the rows have no single class each"):
        bert_hf.FineTuner(checkpoint, train_dataset=numbers, eval_dataset=numbers, **weighted)
    with pytest.raises(bert_hf.InputError, match="'classification' has no option 'text_colum'; did you mean"):
        bert_hf.FineTuner(checkpoint, train_dataset=labelled(120), text_colum="body_text")

    for head in ("sentiment", "frozen_features"):  # the second one is an option of token_classification
        with pytest.raises(bert_hf.InputError, match="is fine-tuned; one of: classification, token_classification, "):
            bert_hf.FineTuner(checkpoint, train_dataset=rows, head=head)

    larger = bert_hf.load_tokenizer(checkpoint)
    larger.add_tokens("zebra")
    with pytest.raises(bert_hf.InputError, match=r"but the model has only \d+ embeddings"):
        bert_hf.FineTuner(checkpoint, train_dataset=rows, processing_class=larger, **options)

    # The tokenizer of the checkpoint, which the model names, allows more tokens than the training
    tokenizer = bert_hf.load_tokenizer(checkpoint)
    assert trainer.processing_class.model_max_length == 16 < tokenizer.model_max_length
    long_text = [f"{WORDS['spam']} w9 w8 {'w7 w6 ' * 20}"]
    assert bert_hf.predict(trainer.model, long_text) == bert_hf.predict(trainer.model, long_text, tokenizer)


def test_a_task_and_a_network_may_have_several_trainers(checkpoint, tmp_path):
    rows = {"train": labelled(120), "validation": labelled(20), "test": labelled(30)}
    task_args = bert_hf.ClassificationArguments(checkpoint, dataset_name=rows, text_column="body_text")
    task = bert_hf.ClassificationTask(task_args, bert_hf.load_tokenizer(checkpoint))
    network = transformers.AutoModelForSequenceClassification
    model = network.from_pretrained(checkpoint, **task.head.config_options())
    trainer = bert_hf.FineTuner(model, quick(tmp_path), task=task)
    trainer.train()
    assert trainer.predict_part("test", "test")["test_accuracy"] == 1.0

    bert_hf.FineTuner(model, quick(tmp_path), task=task).head.threshold = 0.5
    assert trainer.head.threshold is task.head.threshold is None
    few_rows = bert_hf.FineTuner(model, quick(tmp_path, num_train_epochs=None), task=task)
    assert few_rows.args.num_train_epochs == 50  # of 4 steps


def test_the_threshold_of_an_earlier_training_does_not_stay(checkpoint, tmp_path):
    files = [str(write_questions(tmp_path / "questions.json", 8, 0))]
    sizes = {"max_seq_length": 32, "doc_stride": 8, "max_query_length": 8}
    task_args = bert_hf.QuestionAnsweringArguments(checkpoint, train_file=files, validation_file=files, **sizes)
    task = bert_hf.QuestionAnsweringTask(task_args, bert_hf.load_tokenizer(checkpoint))
    model = transformers.BertForQuestionAnswering(tiny_config(null_score_diff_threshold=-7.0))
    bert_hf.FineTuner(model, bert_hf.FineTuningArguments(str(tmp_path)), task=task)
    assert model.config.null_score_diff_threshold is None


def test_a_finished_model_records_how_rows_become_features(checkpoint, tmp_path):
    for part, count in (("train", 60), ("test", 30)):
        labelled(count).to_csv(tmp_path / f"{part}.csv")
    files = ["--train_file", f"{tmp_path}/train.csv", "--validation_file", f"{tmp_path}/test.csv"]
    options = ["--max_steps", "12", "--learning_rate", "1e-3", "--use_cpu", "true", "--disable_tqdm", "true"]
    lengths = ["--max_seq_length", "8", "--long_texts", "windows", "--text_column", "body_text", "--bf16", "false"]
    run = tmp_path / "run"
    words = ["--model_name_or_path", checkpoint, *files, *options, *lengths, "--output_dir", str(run)]
    assert recipe("finetune_classification")(words) == 0

    trained_on = json.loads((run / "config.json").read_text())["trained_on"]
    columns = {"text_column": "body_text", "text_pair_column": None, "label_column": "kind"}
    assert trained_on.pop("typical")["tokens"] == [7, 0]  # mean and deviation
    assert trained_on == {"head": "classification", **columns, "long_texts": "windows", "max_seq_length": 8}
    assert recipe("predict")([str(run), f"{tmp_path}/test.csv", "--output", f"{tmp_path}/out.jsonl"]) == 0
    first = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert list(first) == ["body_text", "kind", "label", "score"]


def test_an_unknown_label_is_named(checkpoint, tmp_path, capsys):
    tokenizer = bert_hf.load_tokenizer(checkpoint)
    names = {0: "ham", 1: "spam"}
    model = transformers.BertForSequenceClassification(tiny_config(id2label=names))
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "rows.csv").write_text("text,label\nw1,ham\nw2,eggs\n")
    assert recipe("evaluate")([str(tmp_path / "model"), "--test_file", str(tmp_path / "rows.csv")]) == 2
    assert "rows.csv:3: unknown label 'eggs'" in capsys.readouterr().err
