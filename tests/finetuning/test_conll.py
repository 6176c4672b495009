"""Sentences of tagged words from files: what is read, what is refused and where."""

import json

import datasets
import numpy as np
import pytest
from tiny import tiny_config, tiny_tokenizer

from bert_hf.data.text.sources import hub_rows
from bert_hf.data.text.tables import Row
from bert_hf.errors import InputError
from bert_hf.finetuning.heads.head import compute_metrics, rows_of_files
from bert_hf.finetuning.heads.token_classification import TokenClassificationHead
from bert_hf.finetuning.metrics.entities import Entity, entities
from bert_hf.finetuning.rows.tagged_sentences import TaggedSentences, check_labels, label_names, unify_schemes
from bert_hf.finetuning.tasks.token_classification import TokenClassificationTask

SENTENCES = [(["EU", "rejects", "German", "call"], ["B-ORG", "O", "B-MISC", "O"]), (["Peter"], ["B-PER"])]


def write(folder, name: str, content: str) -> list[str]:
    (folder / name).write_text(content, encoding="utf-8")
    return [str(folder / name)]


def read_tagged(files: list[str], **options) -> TaggedSentences:
    head = TokenClassificationHead(tiny_tokenizer(), options)
    return head.read(list(rows_of_files(head, files)))


def pairs(rows: TaggedSentences) -> list[tuple]:
    return list(zip(rows.words, rows.tags, strict=True))


TWO = "EU\tB-ORG\nrejects\tO\nGerman\tB-MISC\ncall\tO\n\nPeter\tB-PER\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.conll", TWO),
        ("a.txt", TWO.replace("\t", " ").rstrip("\n")),  # no end of the last line
        ("a.conll", TWO.replace("\n", "\r\n")),
        ("a.conll", "\n\n" + TWO.replace("\n\n", "\n \n\n\n") + "\n\n"),  # several blank lines
        ("a.bio", TWO.replace("\t", "\tNN\tB-NP\t")),  # the columns of CoNLL-2003
        ("a.conll", "-DOCSTART- -X- O O\n\n" + TWO.replace("\t", "  NN   B-NP ")),
        ("a.conll", "# text = EU rejects\n# sent_id = 1\n" + TWO),  # comments of CoNLL-U
        ("a.jsonl", "".join(json.dumps({"tokens": w, "ner_tags": t}) + "\n" for w, t in SENTENCES)),
        ("a.json", "".join(json.dumps({"id": 1, "words": w, "labels": t}) + "\n" for w, t in SENTENCES)),
    ],
)
def test_files_of_any_kind(tmp_path, name, content):
    assert pairs(read_tagged(write(tmp_path, name, content))) == SENTENCES


NUMBERED = "1\tEU\tB-ORG\n2\trejects\tO\n3\tGerman\tB-MISC\n4\tcall\tO\n\n1\tPeter\tB-PER\n"


def numbered(columns: str) -> str:
    """The lines of NUMBERED by a format: of `{0} {1}` the number and the word."""
    return "".join(columns.format(*line.split("\t")) + "\n" if line else "\n" for line in NUMBERED.splitlines())


# With comments, and entities within entities
GERMEVAL = "#\thttp://a.example [2009]\n" + numbered("{0}\t{1}\t{2}\tO").replace("MISC\tO", "MISC\tB-ORG")


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (NUMBERED, "word: column 2, label: column 3"),
        (NUMBERED.replace("\n\n1", "\n1"), "word: column 2, label: column 3"),  # no blank line
        (NUMBERED.replace("\n\n1", "\n\n5"), "word: column 2, label: column 3"),  # numbers of the whole file
        (NUMBERED.replace("\t", "  "), "word: column 2, label: column 3"),
        (GERMEVAL, "word: column 2, label: column 3"),
        (numbered("{0}\t{1}\t{2}\t-\tanna"), "word: column 2, label: column 3"),  # with an annotator
        (numbered("{1} {2} anna"), "word: column 1, label: column 2"),
        (numbered("{2}\t{1}"), "word: column 2, label: column 1"),
        (numbered("{0}\ten:{1}\t{2}"), "word: column 2, label: column 3"),  # with the language, as in WikiANN
        (numbered("{0}\t{1}\tNN\t{2}"), "word: column 2, label: column 4"),
        (numbered("report.txt\t{2}\t{0}\t{1}"), "word: column 4, label: column 2"),
        (numbered("{0}2\t{0}7\t{1}\t{2}"), "word: column 3, label: column 4"),  # begin and end in characters
    ],
)
def test_which_columns_are_read(tmp_path, caplog, content, read):
    assert pairs(read_tagged(write(tmp_path, "a.conll", content))) == SENTENCES
    assert read in caplog.text


def test_entities_may_begin_late(tmp_path):
    content = "the B-NP O\n\n" * 1100 + "Rome B-NP B-LOC\n"
    assert pairs(read_tagged(write(tmp_path, "a.conll", content)))[-1] == (["Rome"], ["B-LOC"])


def test_columns_that_are_named(tmp_path):
    content = numbered("{0}\t{1}\tlemma\tNN\t{2}")
    rows = read_tagged(write(tmp_path, "a.conll", content), text_column="3", label_column="4")
    assert pairs(rows) == [(["lemma"] * 4, ["NN"] * 4), (["lemma"], ["NN"])]
    with pytest.raises(InputError, match="no column '7'; pass a number from 1 to 5 as --label_column"):
        read_tagged([f"{tmp_path}/a.conll"], label_column="7")


def test_parts_of_speech_of_conll_u(tmp_path):
    """Contractions, words that are not written and comments are no words."""
    lines = ["1-2 zum _ _", "1 zu zu PART", "2 dem der DET", "3 Haus Haus NOUN", "3.1 ist sein VERB"]
    wide = ["\t".join([*line.split(), *"______"]) for line in lines]
    content = "\n".join(["# sent_id = 1", "# text = zum Haus", *wide])
    rows = read_tagged(write(tmp_path, "a.conllu", content))
    assert pairs(rows) == [(["zu", "dem", "Haus"], ["PART", "DET", "NOUN"])]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("PER PER O LOC", [("PER", 0, 1), ("LOC", 3, 3)]),  # without prefixes
        ("B-PER L-PER O U-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),  # BILOU
        ("B_PER M_PER E_PER W_LOC", [("PER", 0, 2), ("LOC", 3, 3)]),  # BMEWO
    ],
)
def test_schemes_other_than_iob(tmp_path, tags, expected):
    content = "".join(f"w{number} {tag}\n" for number, tag in enumerate(tags.split()))
    rows = read_tagged(write(tmp_path, "a.conll", content))
    unify_schemes({"train": rows})
    assert rows.tags == [tags.split()]
    assert entities(rows.tags[0]) == [Entity(*each) for each in expected]


def test_parts_of_speech_have_an_accuracy_only(tmp_path):
    rows = read_tagged(write(tmp_path, "a.conll", "a DET\nword NOUN\nis VERB\n"))
    head = TokenClassificationHead(tiny_tokenizer())
    head.check({"train": rows})
    predicted = [["DET", "VERB", "VERB"]]
    assert compute_metrics(head, rows, predicted, np.ones((1, 2))) == {"accuracy": pytest.approx(2 / 3), "loss": 1.0}
    assert head.metric_names() == ("accuracy", "loss")
    assert "VERB 0.5000 1.0000 0.6667 1" in " ".join(head.table(rows, predicted).split())


WORDS = "EU,NNP,B-ORG rejects,VBZ,O German,JJ,B-MISC call,NN,O".split()


@pytest.mark.parametrize(
    "content",
    [
        "Sentence #,Word,POS,Tag\nSentence: 1," + "\n,".join(WORDS) + "\nSentence: 2,Peter,NNP,B-PER\n",
        "sentence_id,word,pos,ner\n" + "".join(f"7,{word}\n" for word in WORDS) + "8,Peter,NNP,B-PER\n",
        "sentence_id,words,pos,labels\n" + "".join(f"0,{word}\n" for word in WORDS) + "1,Peter,NNP,B-PER\n",
        "token,pos,label\n" + "\n".join(WORDS) + "\n\nPeter,NNP,B-PER\n",
        "token,pos,label\n" + "\n".join(WORDS) + "\n,,\nPeter,NNP,B-PER\n",
        ",token,pos,label\n" + "".join(f"{i},{word}\n" for i, word in enumerate(WORDS)) + "\n4,Peter,NNP,B-PER\n",
    ],
)
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_tables_with_a_row_for_each_word(tmp_path, content, separator):
    content = content.replace(",", separator)
    name = "a.tsv" if separator == "\t" else "a.csv"
    rows = read_tagged(write(tmp_path, name, content))
    assert pairs(rows) == SENTENCES
    head = TokenClassificationHead(tiny_tokenizer(), {}, tiny_config(id2label=dict(enumerate("ab"))))
    assert [row.values["tokens"] for row in rows_of_files(head, [str(tmp_path / name)])] == rows.words
    if "POS" in content:
        assert read_tagged([str(tmp_path / name)], label_column="POS").tags == [["NNP", "VBZ", "JJ", "NN"], ["NNP"]]


def test_words_of_a_table_without_a_header(tmp_path):
    assert pairs(read_tagged(write(tmp_path, "a.csv", "a;O\nb;B-X\n\nc;O\n")))[1] == (["c"], ["O"])


def test_sentences_of_a_table_end_with_their_number_or_document(tmp_path):
    words = [("1", 0, "Anna"), ("1", 0, "sings"), ("1", 1, "Bob"), ("2", 0, "No"), ("2", 1, "Yes")]
    rows = [{"doc_id": document, "sent_id": number, "word": word, "tag": "O"} for document, number, word in words]
    expected = [["Anna", "sings"], ["Bob"], ["No"], ["Yes"]]
    assert read_tagged(write(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))).words == expected
    assert read_tagged(write(tmp_path, "a.json", json.dumps(rows))).words == expected

    two = "doc_id,sent_id,word,tag\n1,0,Anna,O\n1,0,sings,O\n2,0,Bob,O\n"
    assert read_tagged(write(tmp_path, "b.csv", two)).words == [["Anna", "sings"], ["Bob"]]
    gaps = [{"word": word, "tag": "O" if word else ""} for word in ("Anna", "sings", "", "Bob")]
    assert read_tagged(write(tmp_path, "c.json", json.dumps(gaps))).words == [["Anna", "sings"], ["Bob"]]


def test_cells_of_words_and_labels_with_spaces(tmp_path):
    first = read_tagged(write(tmp_path, "b.csv", "tokens,ner_tags\nYes,O\nAnna sings,B-PER O\n"))
    assert pairs(first) == [(["Yes"], ["O"]), (["Anna", "sings"], ["B-PER", "O"])]
    rows = read_tagged(write(tmp_path, "a.csv", "text,labels\nAnna left Rome,B-PER O B-LOC\nNo,O\n"))
    assert pairs(rows) == [(["Anna", "left", "Rome"], ["B-PER", "O", "B-LOC"]), (["No"], ["O"])]
    to_predict = [Row({"tokens": "Anna-Lena sings"}, "")]
    assert TokenClassificationHead(tiny_tokenizer()).read(to_predict, "ignored").words == [["Anna-Lena", "sings"]]


@pytest.mark.parametrize(
    "entities",
    [
        {"label": [[0, 5, "PER"], [15, 20, "LOC"]]},
        {"entities": [{"id": 1, "label": "PER", "start_offset": 0, "end_offset": 5},
                      {"id": 2, "label": "LOC", "start_offset": 15, "end_offset": 20}]},
        {"label": [{"start": 0, "end": 5, "labels": ["PER"]}, {"start": 15, "end": 20, "type": "LOC"}]},
        {"entities": [{"label": "PER", "start": 0, "end": 5}, {"label": "LOC", "start": 15, "end": 20},
                      {"label": "ORG", "start": 16, "end": 20}]},
    ],
)  # fmt: skip
def test_entities_as_characters_of_a_text(tmp_path, entities):
    """As doccano exports them and `predict` writes them; of two that overlap the first counts."""
    row = {"text": "w1 w2 w4 x3, w5w6 w7.", **entities}
    rows = read_tagged(write(tmp_path, "a.jsonl", json.dumps(row) + '\n{"text": "w1", "label": [], "entities": []}\n'))
    words = ["w1", "w2", "w4", "x3", ",", "w5w6", "w7", "."]
    assert pairs(rows) == [(words, ["B-PER", "I-PER", "O", "O", "O", "B-LOC", "I-LOC", "O"]), (["w1"], ["O"])]


def test_entities_of_doubtful_offsets_are_counted(tmp_path, caplog):
    """Such as of bytes, or of another text: they end inside a word, or overlap."""
    lines = [
        {"text": "Anna is in Rome.", "label": [[0, 4, "PER"], [12, 16, "LOC"], [0, 7, "ORG"]]},
        {"text": "Anna left.", "tokens": [{"text": "Anna"}], "spans": [[0, 4, "PER"]], "answer": "reject"},
        {"text": "Anna left.", "tokens": [{"text": "Anna"}], "spans": [[0, 4, "PER"]], "answer": "accept"},
    ]
    rows = read_tagged(write(tmp_path, "a.jsonl", json.dumps(lines[0])))
    assert rows.tags == [["B-PER", "O", "O", "B-LOC", "I-LOC"]]
    assert "1 entities begin or end inside a word" in caplog.text
    assert "1 entities overlap an earlier one" in caplog.text
    rows = read_tagged(write(tmp_path, "b.jsonl", "".join(json.dumps(line) + "\n" for line in lines[1:])))
    assert len(rows) == 1


def test_words_that_look_like_something_else(tmp_path):
    content = "#\tO\n#hashtag\tO\n# 1\tO\na\u00a0b\tO\n\u2028\tO\n"
    assert read_tagged(write(tmp_path, "a.conll", content)).words == [["#", "#hashtag", "# 1", "a\u00a0b", "\u2028"]]
    assert read_tagged(write(tmp_path, "b.conll", "# O\n1 O\n")).words == [["#", "1"]]


def test_comments_before_a_sentence(tmp_path):
    """Of MultiCoNER (with tabs), and of CoNLL-U Plus (one word)."""
    wide = TWO.replace("\t", "\t_\t_\t").split("\n\n")
    content = "\n\n".join(f"# id 5239\tdomain=en\n# newdoc\n{sentence}" for sentence in wide)
    assert pairs(read_tagged(write(tmp_path, "a.conll", content))) == SENTENCES
    content = "\n\n".join(f"# newdoc\n# id 5239\tdomain=en\n{sentence}" for sentence in TWO.split("\n\n"))
    assert pairs(read_tagged(write(tmp_path, "b.conll", content))) == SENTENCES
    assert read_tagged(write(tmp_path, "c.conll", "a O\n\n# B-X\n")).words == [["a"], ["#"]]


def test_documents_and_lines(tmp_path):
    one = write(tmp_path, "a.conll", "a O\n\nb O\n-DOCSTART- O\n\n-DOCSTART- O\nc O\n\n")  # an empty document in it
    two = write(tmp_path, "b.conll", "-DOCSTART- O\nd O\n-DOCSTART- O\ne O\n")
    rows = read_tagged(one + two)
    assert rows.words == [["a"], ["b"], ["c"], ["d"], ["e"]]
    assert rows.documents == [0, 0, 1, 2, 3]


def test_places_name_the_line_of_each_word(tmp_path):
    rows = read_tagged(write(tmp_path, "a.conll", "-DOCSTART- O\n\na O\nb O\n\nc O\n"))
    assert [rows.place(0, 1), rows.place(1, 0)] == [(str(tmp_path / "a.conll"), 4), (str(tmp_path / "a.conll"), 6)]
    assert rows.take([1]).place(0, 0)[1] == 6


def test_sentences_that_are_not_neighbours_are_of_different_documents(tmp_path):
    """`--document_context` fills a window with neighbours, also where --max_train_samples draws sentences."""
    rows = read_tagged(write(tmp_path, "a.conll", "".join(f"{word} O\n\n" for word in "abcd") + "-DOCSTART- O\ne O\n"))
    assert rows.take([0, 1, 3, 4]).documents == [0, 0, 3, 4]
    assert rows.take(range(5)).documents == [0, 0, 0, 0, 4]


def test_document_column_of_json_lines(tmp_path):
    rows = [{"tokens": ["a"], "ner_tags": ["O"], "document_id": name} for name in "xxyzz"]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    assert read_tagged(write(tmp_path, "a.jsonl", content)).documents == [0, 0, 1, 2, 2]


IOB1 = "a I-X\nb I-X\nc B-X\nd O\ne I-Y\nf I-X\n\ng I-X\n"


def test_iob1_files_give_the_rows_of_their_iob2_twins(tmp_path, caplog):
    iob2 = read_tagged(write(tmp_path, "two.conll", "a B-X\nb I-X\nc B-X\nd O\ne B-Y\nf B-X\n\ng B-X\n"))
    parts = {"train": read_tagged(write(tmp_path, "one.conll", IOB1)), "test": read_tagged([f"{tmp_path}/one.conll"])}
    unify_schemes(parts)
    assert pairs(parts["train"]) == pairs(parts["test"]) == pairs(iob2)
    assert "IOB1 labels, turned into IOB2" in caplog.text


def test_the_scheme_is_one_decision_for_all_parts(tmp_path, caplog):
    """One `B-` that IOB1 does not need, in one part, must not leave the parts in two schemes."""
    train = read_tagged(write(tmp_path, "train.conll", IOB1 + "\nh B-Y\n"))
    validation = read_tagged(write(tmp_path, "validation.conll", IOB1))
    before = pairs(validation)
    unify_schemes({"train": train, "validation": validation})
    assert pairs(validation) == before == pairs(train)[:-1]
    assert "IOB1" not in caplog.text


ROW = '{"tokens": ["a"], "ner_tags": ["O"]}\n'


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.conll", "a O\nb\n", "a.conll:2: 1 columns instead of 2"),
        ("a.conll", "a\tO\n\tO\n", "a.conll:2: the word is blank; fix the line"),
        ("a.conll", "a B-X\nb NOUN\n", "a.conll:2: label 'NOUN' is not O, B-TYPE"),
        ("a.conll", "".join(f"word{n} lemma{n}\n" for n in range(99)), "a.conll: 99 different labels of 99 words; "),
        ("a.conll", "\n\n", "a.conll: contains no rows"),
        ("a.jsonl", '{"tokenz": ["a"], "ner_tags": ["O"]}', "a.jsonl:1: no column 'tokens'; did you mean 'tokenz'"),
        ("a.jsonl", '{"tokens": ["a"], "name": ["O"]}', "a.jsonl:1: no column 'ner_tags'; pass --label_column, "),
        ("a.txt", "a;O\nb;B-X\n", "a.txt: the words have no labels; give CoNLL files (a tab or space before"),
        ("a.csv", "word,pos\na,DT\nb,\n", "a.csv:3: the label is blank; fix or remove it"),
        ("a.csv", "w1,O\nw2 w2,B-X\nw3,O\n", "a.csv:1: label holds 'O', no list of labels; "),
        ("a.jsonl", '{"text": "w1", "label": [[0, 2]]}', "a.jsonl:1: label holds [0, 2], no entity such as [0, 4, 'P"),
        ("a.jsonl", '{"text": "w1", "label": [[5, 7, "X"]]}', "a.jsonl:1: no word at the characters 5 to 7 of label"),
        ("a.jsonl", ROW + '{"tokens": [1], "ner_tags": ["O"]}', "a.jsonl:2: tokens is neither a list of words nor"),
        ("a.jsonl", '{"tokens": ["a", "b"], "ner_tags": ["O"]}', "a.jsonl:1: 2 words and 1 labels: lists of the"),
        ("a.jsonl", '{"tokens": ["a"], "ner_tags": [1]}', "a.jsonl:1: label 1 has no name; write names such as"),
    ],
)
def test_every_error_names_its_place(tmp_path, monkeypatch, name, content, expected):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, name, content)
    with pytest.raises(InputError) as caught:
        read_tagged([name])
    assert str(caught.value).startswith(expected)


def test_sentences_of_the_training_are_counted_in_other_parts(tmp_path, caplog):
    task = TokenClassificationTask.__new__(TokenClassificationTask)
    task.head = TokenClassificationHead(tiny_tokenizer())
    files = {"train": write(tmp_path, "a.conll", "x B-X\n\ny O\n"), "test": write(tmp_path, "b.conll", "X O\n")}
    task.prepare({part: read_tagged(paths) for part, paths in files.items()})
    assert "1 of 1 test rows have the same words as a training row" in caplog.text


def test_a_label_that_training_does_not_have(tmp_path):
    train = read_tagged(write(tmp_path, "a.conll", "a B-person\nb I-person\nc O\n"))
    labels = label_names(train.tags)
    assert labels == ("O", "B-person", "I-person")

    other = read_tagged(write(tmp_path, "b.conll", "a O\n\nb B-person\nc B-persan\n"))
    with pytest.raises(InputError, match=r"b\.conll:4: unknown label 'B-persan'; did you mean"):
        check_labels(other, labels)
    check_labels(train, labels)


def test_parquet_of_numbered_labels_as_a_file_and_as_a_folder_of_the_hub(tmp_path, caplog):
    tags = datasets.List(datasets.ClassLabel(names=["O", "B-X"]))
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "ner_tags": tags})
    rows = {"tokens": [["a", "b"], [], ["c"]], "ner_tags": [[0, 1], [], [1]]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "train.parquet")

    assert pairs(read_tagged([str(tmp_path / "train.parquet")])) == [(["a", "b"], ["O", "B-X"]), (["c"], ["B-X"])]
    found = TokenClassificationHead(None).read(hub_rows(str(tmp_path), None)["train"])
    assert pairs(found) == [(["a", "b"], ["O", "B-X"]), (["c"], ["B-X"])]
    assert found.place(0, 0) == (f"{tmp_path} (train)", None)
    assert f"{tmp_path} (train): 1 rows have no words and are left out" in caplog.text
