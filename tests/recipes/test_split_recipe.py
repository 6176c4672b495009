"""`split.py`: the files that it writes, what it prints, and what it refuses."""

import json

import pytest
from helpers.classified_rows import read_labelled
from helpers.corpora import everything
from helpers.recipe_runs import ROOT, recipe

MESSAGES = ROOT / "src/bert_hf/finetuning/messages/spam.tsv"


@pytest.fixture
def split(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *words: recipe("split")(["--output_dir", "out", *words])


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def words_of(rng, count):
    return [" ".join(f"{chr(97 + a)}{chr(97 + b)}" for a, b in rng.integers(0, 26, (6, 2))) for _ in range(count)]


def test_five_folds(split, tmp_path, capsys):
    assert split("--train_file", str(MESSAGES), "--folds", "5") == 0
    assert "folds: 5 in out, such as train 268 rows" in capsys.readouterr().out
    names = ("train", "validation", "test")
    folders = [f"fold-{number}" for number in range(5)]
    written = everything(tmp_path / "out")
    assert sorted(written) == sorted(["split.json", *(f"{fold}/{name}.jsonl" for fold in folders for name in names)])

    # Each row of the file is in one part of each fold, and a test row of one fold
    rows = read_labelled([str(MESSAGES)])
    given = sorted(zip(rows.texts, rows.required_labels(), strict=True))
    tested = []
    for fold in folders:
        parts = {name: read_labelled([str(tmp_path / "out" / fold / f"{name}.jsonl")]) for name in names}
        pairs = {name: list(zip(own.texts, own.required_labels(), strict=True)) for name, own in parts.items()}
        assert sorted(pair for own in pairs.values() for pair in own) == given
        tested += pairs["test"]
    assert sorted(tested) == given
    assert json.loads(written["split.json"])["train_file"] == [str(MESSAGES)]

    # The same command again writes the same bytes, another seed others
    assert split("--train_file", str(MESSAGES), "--overwrite_output_dir") == 0
    assert everything(tmp_path / "out") == written
    assert split("--train_file", str(MESSAGES), "--overwrite_output_dir", "--split_seed", "1") == 0
    assert everything(tmp_path / "out") != written


def test_one_split_of_other_percentages_replaces_folds(split, tmp_path):
    assert split("--train_file", str(MESSAGES)) == 0
    words = ["--folds", "1", "--test_split_percentage", "25", "--validation_split_percentage", "25"]
    assert split("--train_file", str(MESSAGES), "--overwrite_output_dir", *words) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["fold-0", "split.json"]
    sizes = {path.stem: len(path.read_text().splitlines()) for path in (tmp_path / "out/fold-0").iterdir()}
    assert sizes == {"train": 192, "validation": 96, "test": 96}


def test_pairs_and_characters_survive(split, tmp_path, rng):
    first, second = words_of(rng, 20), words_of(rng, 20)
    first[0] += ' "é漢\u2028\ttab, comma'
    rows = [{"premise": a, "hypothesis": b, "label": "ny"[number % 2]} for number, (a, b) in
            enumerate(zip(first, second, strict=True))]  # fmt: skip
    file = write(tmp_path / "pairs.jsonl", map(json.dumps, rows))
    assert split("--train_file", file, "--folds", "2") == 0
    read = [json.loads(line) for name in ("train", "validation", "test")
            for line in (tmp_path / f"out/fold-0/{name}.jsonl").read_bytes().splitlines()]  # fmt: skip
    expected = [{"text": row["premise"], "text_pair": row["hypothesis"], "label": row["label"]} for row in rows]
    key = lambda row: row["text"]  # noqa: E731
    assert sorted(read, key=key) == sorted(expected, key=key)


def test_other_files_and_an_earlier_split_are_kept(split, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    write(tmp_path / "out/notes.txt", ["mine"])
    for words in ([], ["--overwrite_output_dir"]):
        assert split("--train_file", str(MESSAGES), *words) == 2
        assert "error: out: " in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]
