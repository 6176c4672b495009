"""The figures at the end of a fine-tuning run."""

from types import SimpleNamespace

import numpy as np
import pytest

from bert_hf.finetuning import classification_report
from bert_hf.finetuning.datasets import LabelledTexts


def rows(labels: str) -> LabelledTexts:
    texts = {"h": "see you at home tonight", "s": "free prize call now"}
    return LabelledTexts([texts[label] for label in labels], list(labels))


def test_the_baseline_is_compared_row_by_row_whatever_the_order_of_the_batches(monkeypatch):
    """`predict` returns labels in the order of its batches, which are grouped by length."""
    finished = {}
    monkeypatch.setattr(classification_report.run, "finish", lambda trainer, trained, **given: finished.update(given))
    monkeypatch.setattr(classification_report.run, "describe_machine", lambda args: "")
    monkeypatch.setattr(classification_report, "classification_card", lambda *args: None)

    parts = {"train": rows("hshshshs"), "validation": rows("hs"), "test": rows("hhss")}
    tested = SimpleNamespace(label_ids=np.array([1, 1, 0, 0]), predictions=np.zeros((4, 2)), metrics={})
    trainer = SimpleNamespace(args=SimpleNamespace(process_index=1), facts={"identity": {}})
    classification_report.finish_classification(trainer, None, parts, ("h", "s"), {}, {}, tested, None)

    assert finished["baselines"]["baseline_accuracy"] == pytest.approx(1.0)
