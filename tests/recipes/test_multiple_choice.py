"""recipes/finetune_multiple_choice.py on rows without labels; on others: finetuning/test_evaluation.py."""

import json

from helpers.choice_rows import save_checkpoint, swag_lines
from helpers.recipe_runs import recipe


def test_rows_without_labels_are_predicted(tmp_path):
    save_checkpoint(tmp_path / "bert")
    (tmp_path / "rows.jsonl").write_text(swag_lines())
    (tmp_path / "unlabelled.jsonl").write_text(swag_lines(label=-1))
    words = [
        "--model_name_or_path", str(tmp_path / "bert"), "--train_file", str(tmp_path / "rows.jsonl"), "--test_file",
        str(tmp_path / "unlabelled.jsonl"), "--max_seq_length", "48", "--max_steps", "2", "--eval_strategy", "no",
        "--per_device_train_batch_size", "4", "--write_predictions", "true", "--use_cpu", "true", "--bf16", "false",
        "--disable_tqdm", "true", "--output_dir", str(tmp_path / "run"),
    ]  # fmt: skip
    assert recipe("finetune_multiple_choice")(words) == 0
    assert len((tmp_path / "run/test_predictions.jsonl").read_text().splitlines()) == 10
    metrics = json.loads((tmp_path / "run/all_results.json").read_text())
    assert not {"test_accuracy", "test_loss", "baseline_majority_accuracy"} & metrics.keys()
