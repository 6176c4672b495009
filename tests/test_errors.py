import errno
import os
import pickle

import pytest

from bert_hf.console import logger
from bert_hf.errors import InputError, one_line_errors


def test_line_names_place_fault_and_remedy():
    error = InputError("the row has\nno label", where="a.tsv", line=3, column=7, remedy="label it")
    assert str(error) == "a.tsv:3:7: the row has no label; label it"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # it crosses worker processes


def test_main_prints_one_line_and_returns_2(capsys, monkeypatch):
    @one_line_errors
    def main():
        raise InputError("no such file", where="x.txt", remedy="check the path")

    assert main() == 2
    assert capsys.readouterr().err == "error: x.txt: no such file; check the path\n"
    monkeypatch.setenv("RANK", "1")  # only rank 0 prints
    assert main() == 2
    assert capsys.readouterr().err == ""


def test_other_errors_are_not_hidden():
    @one_line_errors
    def main():
        raise KeyError("ours")

    with pytest.raises(KeyError):
        main()


def test_a_full_disk_is_one_line(capsys):
    @one_line_errors
    def main():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/data-00000.arrow")

    assert main() == 2
    assert capsys.readouterr().err == (
        "error: out/data-00000.arrow: No space left on device; "
        "free some space, change its permissions, or name another place\n"
    )


def test_rank_0_alone_logs_information(capsys, monkeypatch):
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)  # some launchers set it after the import
        logger.info(f"information of rank {rank}")
        logger.warning(f"warning of rank {rank}")
    assert capsys.readouterr().out.splitlines() == ["information of rank 0", "warning of rank 0", "warning of rank 1"]
