"""The output folder of a run: what is removed from it."""

from bert_hf.config.arguments import PreTrainingArguments
from bert_hf.finetuning.tasks import TASKS
from bert_hf.training import output_folder


def test_overwriting_removes_every_file_of_any_recipe_and_no_other(tmp_path):
    submissions = {name for task in TASKS.values() for name in task.submissions.values()}
    ours = {
        "predictions.json", "nbest_predictions.json", "null_odds.json", "predictions.conll", "test_predictions.tsv",
        "test_predictions.json", "test_null_odds.json", "features-0a.npy", "features-0b.npy.partial", *submissions,
        "stacks-rank0.txt", ".nbest_predictions.json.tmp", ".null_odds.json.tmp", ".test_predictions.tsv.tmp",
        ".predictions.conll.tmp", ".MNLI-mm.tsv.tmp",
    }  # fmt: skip
    for name in {*ours, "notes.tsv", "predictions.md"}:
        (tmp_path / name).write_text("old")
    output_folder.write_record(tmp_path, {"seed": 1}, finished=True)
    args = PreTrainingArguments(output_dir=str(tmp_path), use_cpu=True, bf16=False, overwrite_output_dir=True)
    output_folder.start(args, {"seed": 2})
    output_folder.release_lock()

    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"notes.tsv", "predictions.md", output_folder.RECORD, output_folder.LOCK}
