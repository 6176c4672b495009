"""Many small files share shards, and the corpus is that of their text in one file."""

import numpy as np
import pytest

from bert_hf.config.arguments import TextArguments
from bert_hf.data.corpus.prepare import prepare
from bert_hf.data.corpus.requested_corpus import text_sources
from bert_hf.data.text.sources import SmallFiles
from bert_hf.data.text.tokenization import train_tokenizer


@pytest.fixture
def many(tmp_path):
    """A folder of 130 files of two documents, one of them large, and the same text in one file."""
    (tmp_path / "files").mkdir()
    texts = [f"This is file {n}.\nIt has two sentences.\n\nAnother part of {n}." for n in range(130)]
    texts[40] += "\n\nA long story is told here, and told again." * 30_000
    for n, text in enumerate(texts):
        (tmp_path / f"files/{n:03d}.txt").write_text(text)
    (tmp_path / "one.txt").write_text("\n\n".join(texts))
    return tmp_path


def sources(path):
    return text_sources(TextArguments(), [str(path)])


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.*")) if path.is_file()}


def test_small_files_share_shards_and_give_the_text_of_one_file(many, tmp_path):
    inputs = sources(many / "files")
    assert [type(each).__name__ for each in inputs] == ["SmallFiles", "TextFile", "SmallFiles"]
    assert [len(each.files) for each in inputs if isinstance(each, SmallFiles)] == [40, 89]
    assert len(sources(many / "files/0*.txt")) == 100  # so few files each have a shard, as before

    tokenizer = train_tokenizer(["This is file 0123456789. Another part of it has two sentences."] * 3)
    together = prepare(inputs, tokenizer, tmp_path / "together")
    alone = prepare(sources(many / "one.txt"), tokenizer, tmp_path / "alone")
    assert together is not None
    assert alone is not None
    windows = [corpus.window(corpus.windows()[0]) for corpus in (together, alone)]
    texts = [[window.ids(start, end).tolist() for start, end in zip(window.document_starts, window.document_ends,
              strict=True)] for window in windows]  # fmt: skip
    assert texts[0] == texts[1]
    assert np.array_equal(windows[0].sentence_counts, windows[1].sentence_counts)

    # As many processes as one; what is finished is not made again
    made = contents(tmp_path / "together")
    prepare(inputs, tokenizer, tmp_path / "two", num_proc=2)
    assert contents(tmp_path / "two") == made
    (tmp_path / "together/data-00002.arrow").unlink()
    before = (tmp_path / "together/data-00000.arrow").stat().st_mtime_ns
    prepare(inputs, tokenizer, tmp_path / "together")
    assert contents(tmp_path / "together") == made
    assert (tmp_path / "together/data-00000.arrow").stat().st_mtime_ns == before


def test_another_text_in_one_of_the_files_is_another_source(many):
    before = [source.checksum() for source in sources(many / "files")]
    (many / "files/100.txt").write_text("Other text.")
    after = [source.checksum() for source in sources(many / "files")]
    assert before[:2] == after[:2]
    assert before[2] != after[2]
