"""recipes/finetune_question_answering.py on a tiny checkpoint: files, figures, resume, stock loading, bad input."""

import json

import pytest
import torch
from helpers.child_processes import launch_ranks
from helpers.questions import write_questions
from helpers.recipe_runs import ROOT, recipe
from tiny import save_tiny_bert
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from bert_hf import predict


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    save_tiny_bert(folder / "bert", num_labels=3)  # of another task
    write_questions(folder / "train.json", 40, 0)
    write_questions(folder / "dev.json", 12, 1)
    write_questions(folder / "train2.json", 40, 2, unanswerable=0.5)
    write_questions(folder / "dev2.json", 12, 3, unanswerable=0.5)
    write_questions(folder / "test2.json", 6, 4, unanswerable=0.5)
    return folder


def fine_tune(place, output, *words):
    return recipe("finetune_question_answering")(
        [
            "--model_name_or_path", str(place / "bert"), "--max_seq_length", "32", "--doc_stride", "12",
            "--output_dir", str(place / output), "--max_steps", "6", "--eval_steps", "2",
            "--per_device_train_batch_size", "16", "--use_cpu", "--bf16", "false", "--disable_tqdm", "true", *words,
        ]
    )  # fmt: skip


def files_of(place, name, part="dev"):
    return ["--train_file", str(place / f"train{name}.json"), "--validation_file", str(place / f"{part}{name}.json")]


def official(place, data, folder, capsys, *words):
    capsys.readouterr()
    assert recipe("evaluate_squad")([str(place / data), str(place / folder / "predictions.json"), *words]) == 0
    return json.loads(capsys.readouterr().out)


def results(place, folder):
    return json.loads((place / folder / "all_results.json").read_text())


@pytest.fixture(scope="module")
def squad(place):
    assert fine_tune(place, "squad", *files_of(place, "")) == 0
    return place / "squad"


def test_squad_1(place, squad, capsys):
    metrics = results(place, "squad")
    found = official(place, "dev.json", "squad", capsys)
    assert {name: metrics[f"eval_{name}"] for name in found} == found
    assert set(found) == {"exact", "f1", "total", "HasAns_exact", "HasAns_f1", "HasAns_total"}
    assert not (squad / "null_odds.json").exists()
    assert json.loads((squad / "config.json").read_text()).get("null_score_diff_threshold") is None
    lists = json.loads((squad / "nbest_predictions.json").read_text())
    assert all(sum(entry["probability"] for entry in entries) == pytest.approx(1) for entries in lists.values())


def test_squad_2_stores_the_threshold_of_the_validation_questions(place, capsys):
    words = [*files_of(place, "2"), "--test_file", str(place / "test2.json")]
    assert fine_tune(place, "squad2", *words, "--max_eval_samples", "12") == 0
    threshold = json.loads((place / "squad2/config.json").read_text())["null_score_diff_threshold"]

    # The predictions for the test questions are those at this threshold, and so are their figures
    metrics = results(place, "squad2")
    assert metrics["eval_best_f1_thresh"] == threshold
    found = official(place, "test2.json", "squad2", capsys)
    assert {name: metrics[f"test_{name}"] for name in found} == found
    assert "test_best_f1" not in metrics
    assert metrics["eval_best_f1"] >= metrics["eval_f1"]
    odds = json.loads((place / "squad2/null_odds.json").read_text())
    texts = json.loads((place / "squad2/predictions.json").read_text())
    assert {name: text == "" for name, text in texts.items()} == {name: odds[name] > threshold for name in odds}

    # The saved model answers as the run did
    for article in json.loads((place / "test2.json").read_text())["data"]:
        (paragraph,) = article["paragraphs"]
        (asked,) = paragraph["qas"]
        row = {"question": asked["question"], "context": paragraph["context"]}
        assert predict(place / "squad2", [row])[0]["answer"] == texts[asked["id"]]


def test_the_code_of_the_card_runs(place, squad, capsys, monkeypatch):
    card = (squad / "README.md").read_text()
    assert "pipeline_tag: question-answering" in card
    code = card.partition("```python\n")[2].partition("```")[0]
    code = code.replace("Anna wrote the letter in May.", "w1 w2 w3 " * 50)  # longer than the positions
    monkeypatch.chdir(place)
    names = {}
    exec(code.replace('predict("', 'found = predict("'), names)
    assert set(names["found"][0]) == {"answer", "score"}


def test_unlabelled_test_questions_do_not_make_a_run_one_of_squad_2(place, capsys):
    data = json.loads((place / "dev.json").read_text())["data"]
    for article in data:
        for paragraph in article["paragraphs"]:
            for fields in paragraph["qas"]:
                fields["id"] = f"hidden-{fields['id']}"
                del fields["answers"]
    (place / "hidden.json").write_text(json.dumps({"data": data}))

    words = [*files_of(place, ""), "--test_file", str(place / "hidden.json"), "--max_steps", "1"]
    assert fine_tune(place, "hidden", *words) == 0
    printed = capsys.readouterr().out
    assert "test: 12 questions, 0 of them with an answer" in printed
    assert "\neval_f1 " in printed  # not the speed of the test alone
    metrics = results(place, "hidden")
    assert "eval_f1" in metrics
    assert not [name for name in metrics if name in ("eval_best_f1", "test_f1", "test_total")]
    texts = json.loads((place / "hidden/predictions.json").read_text())
    assert len(texts) == 12
    assert all(name.startswith("hidden-") and text for name, text in texts.items())
    assert not (place / "hidden/null_odds.json").exists()


def test_a_given_threshold_is_kept_and_another_one_is_another_run(place, capsys):
    words = [*files_of(place, "2"), "--max_steps", "1", "--null_score_diff_threshold", "1000"]
    assert fine_tune(place, "given", *words) == 0
    assert json.loads((place / "given/config.json").read_text())["null_score_diff_threshold"] == 1000
    assert "" not in json.loads((place / "given/predictions.json").read_text()).values()
    for other in (["--null_score_diff_threshold", "1"], ["--n_best_size", "3"]):
        assert fine_tune(place, "given", *words, *other) == 2
        assert "contains another run" in capsys.readouterr().err


def test_answering_is_without_dropout_and_leaves_the_mode(place):
    torch.manual_seed(0)
    model = AutoModelForQuestionAnswering.from_pretrained(
        place / "bert", num_labels=2, hidden_dropout_prob=0.5
    ).train()
    tokenizer = AutoTokenizer.from_pretrained(place / "bert")
    row = {"question": "w1 w2 w3", "context": "w4 w5 w6 w7"}
    assert predict(model, [row], tokenizer) == predict(model, [row], tokenizer)
    assert model.training
    cut = predict(model, [row], tokenizer, max_query_length=2)
    assert cut == predict(model, [{**row, "question": "w1 w2"}], tokenizer)
    assert cut[0]["answer"]


@pytest.mark.slow
def test_two_ranks_predict_what_one_process_predicts(place):
    """Windows are dealt to the ranks, and the last batch is filled up: each window must count once, in its place."""
    words = [
        "--model_name_or_path", str(place / "bert"), *files_of(place, "2"), "--max_seq_length", "32",
        "--doc_stride", "12", "--max_steps", "1", "--learning_rate", "1e-9", "--use_cpu",
        "--bf16", "false", "--per_device_eval_batch_size", "5", "--null_score_diff_threshold", "0",
    ]  # fmt: skip

    def run_of(output: str, batch: str) -> list[str]:
        return ["--per_device_train_batch_size", batch, "--output_dir", str(place / output)]

    assert recipe("finetune_question_answering")([*words, *run_of("one", "8")]) == 0
    recipe_file = ROOT / "recipes/finetune_question_answering.py"
    done, printed = launch_ranks(place / "two.log", recipe_file, *words, *run_of("two", "4"))
    assert done == 0, printed[-3000:]

    one, two = (json.loads((place / output / "null_odds.json").read_text()) for output in ("one", "two"))
    assert list(one) == list(two)
    assert two == pytest.approx(one, abs=1e-5)
    one, two = ((place / output / "predictions.json").read_text() for output in ("one", "two"))
    assert one == two
