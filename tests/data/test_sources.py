"""Names, checksums and documents of the inputs of a corpus."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_hf.data.text.sources import TextFile, hub_shards
from bert_hf.errors import InputError


def test_checksums_depend_on_content_and_names_on_no_machine(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text("same")
    first, second = (TextFile(str(tmp_path / folder / "x.txt")) for folder in "ab")
    assert (first.name, first.checksum()) == (second.name, second.checksum())
    (tmp_path / "b" / "x.txt").write_text("other")
    assert first.checksum() != second.checksum()


def test_hub_shards_are_sources(tmp_path, monkeypatch):
    """Through `datasets` itself, on a folder in place of a Hub id."""
    for name in "ab":
        pq.write_table(pa.table({"text": [f"{name}1", f"{name}2"]}), tmp_path / f"{name}.parquet")
    shards = hub_shards(str(tmp_path))
    assert [shard.index for shard in shards] == [0, 1]
    assert [piece.text for shard in shards for piece in shard.read()] == ["a1", "a2", "b1", "b2"]
    with pytest.raises(InputError, match="no column 'body'"):
        list(hub_shards(str(tmp_path), text_column="body")[0].read())
    with pytest.raises(InputError, match="cannot be read"):
        hub_shards(str(tmp_path / "none"))
