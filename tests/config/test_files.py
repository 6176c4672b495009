"""Tries to write into the folder of a run."""

import errno
import os

import pytest

from bert_hf.config import files
from bert_hf.config.files import check_writable
from bert_hf.errors import InputError


@pytest.mark.parametrize("call", ["fsync"])
def test_a_disk_that_takes_no_save_is_refused_and_nothing_stays(tmp_path, monkeypatch, call):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, call, refuse)
    with pytest.raises(InputError, match=r"out: cannot be written: No space left on device; give another --output$"):
        check_writable(str(tmp_path / "out"), "--output")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_rights_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written: Permission denied"):
        check_writable(str(tmp_path / "out"))


def test_the_folder_is_tried_where_it_is_and_left_as_it_was(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    assert check_writable(str(tmp_path)) == f"output: {tmp_path} can be written"
    check_writable(str(tmp_path / "a/b/c"))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
