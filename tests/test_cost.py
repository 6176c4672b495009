import pytest
from transformers import BertConfig

from bert_hf.cost import training_flops


def test_flops_follow_the_published_count():
    """BERT-base, length 128, 15 % predicted: 545.4 MFLOP a token."""
    assert training_flops(BertConfig(), 128, 128**2, 0.15 * 128) / 128 == pytest.approx(545.4e6, rel=1e-3)
