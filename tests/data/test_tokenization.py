import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, BertJapaneseTokenizer, PreTrainedTokenizerFast

from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.text.tokenization import (
    SPECIALS,
    InputTemplate,
    check_tokenizer,
    id_count,
    load_tokenizer,
    save_tokenizer,
    tokenizer_checksum,
    train_tokenizer,
    word_start_mask,
)
from bert_hf.errors import InputError

TEXTS = ["The quick brown fox jumps over the lazy dog.", "Crème brûlée über alles; naïve café."] * 20


def test_round_trip_through_auto_tokenizer(tmp_path):
    trained = train_tokenizer(TEXTS, vocab_size=200)
    save_tokenizer(trained, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded).__name__ == "BertTokenizer"
    assert loaded(TEXTS)["input_ids"] == trained(TEXTS)["input_ids"]
    assert loaded("fox", "dog")["token_type_ids"][-1] == 1
    assert loaded.model_max_length == 512
    bare = load_tokenizer(tmp_path / "vocab.txt")
    assert bare(TEXTS)["input_ids"] == trained(TEXTS)["input_ids"]


def _sentencepiece(**kinds) -> PreTrainedTokenizerFast:
    """With the template of XLM-RoBERTa, or another one."""
    rust = Tokenizer(models.Unigram())
    rust.pre_tokenizer = pre_tokenizers.Metaspace()
    special = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
    names = list(dict.fromkeys(special.values()))
    rust.train_from_iterator(TEXTS, trainers.UnigramTrainer(vocab_size=80, special_tokens=names, unk_token="<unk>"))
    pair = kinds.pop("pair", "<s> $A </s> </s> $B </s>")
    rust.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair=pair, special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokens = {f"{name}_token": token for name, token in special.items()}
    return PreTrainedTokenizerFast(tokenizer_object=rust, **tokens, **kinds)


TYPES = ["input_ids", "token_type_ids", "attention_mask"]


@pytest.mark.parametrize(
    "tokenizer",
    [
        train_tokenizer(TEXTS, vocab_size=200),
        _sentencepiece(),
        _sentencepiece(pair="<s> $A:0 </s>:1 $B:2 </s>:2", model_input_names=TYPES),
        _sentencepiece(pair="$B:1 </s>:1 $A:0 </s>:0 </s>:0", model_input_names=TYPES),
    ],
    ids=["bert", "no types", "xlnet-like types", "second text first"],
)
def test_special_tokens_and_types_are_those_of_the_stock_tokenizer(tokenizer):
    template = InputTemplate(tokenizer)
    for texts in (["fox"], ["the lazy dog", "fox"], ["", ""], ["fox", ""], [""]):
        stock = {name: values[0] for name, values in tokenizer(*([text] for text in texts)).items()}
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        ours = template.join(*ids)
        assert ours.input_ids == stock["input_ids"]
        assert ours.token_type_ids == stock.get("token_type_ids", [0] * len(ours.input_ids))
        assert [ours.input_ids[start : start + len(part)] for start, part in zip(ours.starts, ids, strict=True)] == ids


def test_the_same_text_gives_the_same_vocabulary():
    """With many ties: words of random letters, all equally frequent."""
    rng = np.random.default_rng(0)
    texts = [" ".join("".join(rng.choice(list("abcdefgé漢"), 6)) for _ in range(300))] * 2
    first, *others = [train_tokenizer(texts, vocab_size=300).get_vocab() for _ in range(4)]
    assert all(other == first for other in others)


def test_words_that_are_unknown_whatever_the_vocabulary_do_not_count():
    """Of more than 100 characters. One of 100 counts, and so do Chinese characters, each of which is a word."""
    texts = [*TEXTS, "狐狸跳過懶狗" * 20, " ".join(["fox-foxdog"] * 20)]
    vocabulary = train_tokenizer(texts).get_vocab()
    assert train_tokenizer([*texts, "gfnal" * 2_000]).get_vocab() == vocabulary
    assert train_tokenizer([*texts, "gfnalf" * 16 + "gfna"]).get_vocab() != vocabulary


def test_tokens_that_were_added_are_part_of_the_fingerprint(tmp_path):
    prints = [tokenizer_checksum(train_tokenizer(["a b"]))]
    for number, added in enumerate(["a b", "b a"]):
        wide = train_tokenizer(["a b"])
        wide.add_tokens([added])
        save_tokenizer(wide, tmp_path / str(number))
        prints.append(tokenizer_checksum(wide))
        assert tokenizer_checksum(load_tokenizer(tmp_path / str(number))) == prints[-1]
    assert len(set(prints)) == 3


def test_an_unseen_word_is_split_and_only_unseen_characters_are_unknown():
    tokenizer = train_tokenizer(TEXTS, vocab_size=120)
    pieces = tokenizer.tokenize("zzfoxqqq")
    assert tokenizer.unk_token not in pieces
    assert "".join(piece.removeprefix("##") for piece in pieces) == "zzfoxqqq"
    assert tokenizer.tokenize("ж") == [tokenizer.unk_token]


def test_size_and_special_ids():
    tokenizer = train_tokenizer(TEXTS, vocab_size=90)
    assert len(tokenizer) <= 90
    assert tokenizer.convert_ids_to_tokens(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.tokenize("a [MASK] b")[1] == "[MASK]"


@pytest.mark.parametrize("size", [7, 10, 500, 3005])
def test_the_size_is_a_limit_for_any_alphabet(size):
    """1,500 characters, each in two forms, and five specials; the most frequent ones are kept."""
    characters = [chr(0x4E00 + number) for number in range(1500)]
    texts = [" ".join(characters), " ".join(characters[:200])]
    vocabulary = train_tokenizer(texts, vocab_size=size).get_vocab()
    kept = {piece for piece in vocabulary if piece in characters}
    assert len(vocabulary) <= size
    assert len(kept) == min((size - 5) // 2, 1000)
    assert kept <= set(characters[:200]) or kept >= set(characters[:200])


def test_a_vocabulary_without_room_for_a_character_is_refused():
    with pytest.raises(InputError, match="--vocab_size: a vocabulary of 6 has room for no character"):
        train_tokenizer(["abcdefghijklmnopqr"] * 3, vocab_size=6)


@pytest.mark.parametrize(
    ("content", "line"), [(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", "[MASK] missing"), (b"\xff\xfe", "not UTF-8")]
)
def test_a_bad_vocabulary_is_refused(tmp_path, content, line):
    (tmp_path / "v.txt").write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_tokenizer(tmp_path / "v.txt")
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("trained", "given", "line"),
    [
        ({}, {"do_lower_case": False}, "a different do_lower_case"),
        ({}, {"strip_accents": False}, "a different strip_accents"),
        ({"do_lower_case": False}, {"strip_accents": True}, "a different strip_accents"),
        ({}, {"tokenize_chinese_chars": False}, "a different tokenize_chinese_chars"),
        ({"do_lower_case": False}, {"do_lower_case": False, "strip_accents": False}, None),
        ({"do_lower_case": False}, {}, None),
        ({"do_lower_case": False}, {"do_lower_case": True}, "a different do_lower_case"),
        ({"strip_accents": False}, {"strip_accents": False}, None),
    ],
)
def test_an_option_that_a_saved_tokenizer_contradicts_is_refused(tmp_path, trained, given, line):
    save_tokenizer(train_tokenizer(TEXTS, vocab_size=200, **trained), tmp_path)
    if line is None:
        assert load_tokenizer(tmp_path, **given)("Café") == load_tokenizer(tmp_path)("Café")
        return
    with pytest.raises(InputError, match=line):
        load_tokenizer(tmp_path, **given)
    load_tokenizer(tmp_path / "vocab.txt", **given)  # has no settings of its own


def folder_of(tmp_path, files: str, **options):
    """A folder with some of the files of a tokenizer, and the tokenizer with all of them."""
    trained = train_tokenizer(["The Fox meets Anna and Bob in Bonn. Anna met them at the river."] * 20, **options)
    save_tokenizer(trained, tmp_path / "all")
    (tmp_path / "some").mkdir()
    for name in files.split():
        (tmp_path / "some" / name).write_bytes((tmp_path / "all" / name).read_bytes())
    if "tokenizer_config.json" in files:  # as of old checkpoints
        (tmp_path / "some/tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    return tmp_path / "some", trained


FILES = ["vocab.txt", "tokenizer.json", "tokenizer.json tokenizer_config.json", "vocab.txt tokenizer_config.json"]


@pytest.mark.parametrize("files", FILES)
@pytest.mark.parametrize("cased", [True, False])
def test_a_tokenizer_without_a_statement_is_read_as_its_vocabulary_was_made(tmp_path, files, cased):
    some, trained = folder_of(tmp_path, files, do_lower_case=not cased)
    for where in (some, *some.glob("vocab.txt")):
        loaded = load_tokenizer(where)
        assert loaded("Anna met THE Fox")["input_ids"] == trained("Anna met THE Fox")["input_ids"]
        assert loaded.pad_token == "[PAD]"


def test_do_lower_case_is_taken_where_no_file_states_the_case(tmp_path, capsys):
    some, _ = folder_of(tmp_path, "vocab.txt", do_lower_case=False)
    for where in (some, some / "vocab.txt"):
        assert load_tokenizer(where, do_lower_case=True).tokenize("ANNA") == load_tokenizer(where).tokenize("anna")
        load_tokenizer(where)
        line = f"tokenizer {where}: 15 of 68 pieces have capitals; text is read as cased"
        assert capsys.readouterr().out.count(line) == 1


@pytest.mark.parametrize(
    ("words", "cased"), [(["Ω", "é"], False), (["<S>", "<T>"], False), ([f"{c}at" for c in "ABCDEFGHIJ"], True)]
)
def test_a_few_pieces_with_capitals_do_not_make_a_vocabulary_cased(tmp_path, words, cased):
    pieces = [*SPECIALS, *(f"w{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(200)), *words]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    assert (load_tokenizer(tmp_path / "vocab.txt").tokenize("WAA") == ["[UNK]"]) == cased


def test_ids_that_mean_other_pieces_than_the_checkpoint_s_are_refused(tmp_path):
    pieces = [*SPECIALS, *(f"[unused{n}]" for n in range(5)), *"abcdefgh"]
    (tmp_path / "model").mkdir()
    (tmp_path / "model/vocab.txt").write_text("\n".join(pieces))
    other = tmp_path / "vocab.txt"

    other.write_text("\n".join([*pieces[:5], "words", "of", "[unused2]", *pieces[8:], "more"]))
    assert load_tokenizer(other, model=tmp_path / "model").tokenize("of more words") == ["of", "more", "words"]
    other.write_text("\n".join([*pieces[:-3], "h", "g", "f"]))
    with pytest.raises(InputError, match=r"2 of 13 ids mean another piece than in the tokenizer of .*model"):
        load_tokenizer(other, model=tmp_path / "model")
    assert load_tokenizer(other, model=tmp_path / "no tokenizer there")


def test_the_line_about_other_files_of_a_tokenizer_is_true(tmp_path):
    _sentencepiece().save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(InputError, match=r"tokenizer_config\.json is missing, which names the special tokens"):
        load_tokenizer(tmp_path)
    with pytest.raises(InputError, match="a JSON file, not a vocabulary of one piece per line"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_tokenizer_without_an_implementation_in_rust_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, "a"]))
    BertJapaneseTokenizer(str(tmp_path / "vocab.txt"), word_tokenizer_type="basic").save_pretrained(tmp_path)
    with pytest.raises(InputError, match="BertJapaneseTokenizer has no implementation in the tokenizers library"):
        load_tokenizer(tmp_path)


def test_ids_beyond_the_model_are_refused(tokenizer):
    check_tokenizer(tokenizer, 99)
    with pytest.raises(InputError, match="ids go up to 98, but the model has only 98 embeddings"):
        check_tokenizer(tokenizer, 98)


SPECIAL_NAMES = ("pad", "unk", "cls", "sep", "mask")


def trained_as(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer of another kind than WordPiece, with BERT's special tokens."""
    specials = [f"[{name.upper()}]" for name in SPECIAL_NAMES]
    if kind == "byte-level BPE":
        rust = Tokenizer(models.BPE(unk_token="[UNK]"))
        rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=specials, show_progress=False)
    elif kind == "Unigram":
        return _sentencepiece()
    else:
        rust = Tokenizer(models.WordLevel(unk_token="[UNK]"))
        rust.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.WordLevelTrainer(special_tokens=specials, show_progress=False)
    rust.train_from_iterator(TEXTS, trainer)
    names = {f"{name}_token": special for name, special in zip(SPECIAL_NAMES, specials, strict=True)}
    return PreTrainedTokenizerFast(tokenizer_object=rust, **names)


@pytest.mark.parametrize("kind", ["WordPiece", "byte-level BPE"])
def test_only_a_word_piece_vocabulary_is_saved_as_text(tmp_path, kind):
    """From another `vocab.txt` older tools would make a WordPiece tokenizer of other ids."""
    tokenizer = train_tokenizer(TEXTS, vocab_size=90) if kind == "WordPiece" else trained_as(kind)
    save_tokenizer(tokenizer, tmp_path)
    assert (tmp_path / "vocab.txt").is_file() is (kind == "WordPiece")
    assert load_tokenizer(tmp_path)("the quick fox")["input_ids"] == tokenizer("the quick fox")["input_ids"]


def test_a_vocabulary_with_a_repeated_line_keeps_its_ids(tmp_path):
    """The last of the lines counts, as in the 2018 code; in the saved vocabulary, too."""
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "the", "cat", "sat"])
    )
    save_tokenizer(load_tokenizer(tmp_path / "vocab.txt"), tmp_path / "saved")
    for saved in ("saved", "saved/vocab.txt"):
        tokenizer = load_tokenizer(tmp_path / saved)
        assert tokenizer("the cat sat on")["input_ids"] == [2, 6, 7, 8, 1, 3]
        assert id_count(tokenizer) == 9


@pytest.mark.parametrize("kind", ["WordPiece", "byte-level BPE", "Unigram"])
def test_where_words_begin(kind):
    tokenizer = train_tokenizer(TEXTS, vocab_size=90) if kind == "WordPiece" else trained_as(kind)
    tokenizer.add_tokens(["<user>"])
    starts = word_start_mask(tokenizer)
    assert not starts[tokenizer.all_special_ids].any()
    assert starts[tokenizer.convert_tokens_to_ids("<user>")]
    for text in ("the quick fox jumps over", "lazy dogfox"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert len(ids) > len(text.split())
        assert starts[ids[0]]
        assert starts[ids].sum() == len(text.split())


def test_whole_words_need_a_mark_in_the_vocabulary():
    tokenizer = trained_as("WordLevel")
    assert DataCollatorForPreTraining(tokenizer).example({"input_ids": [2, 5, 6, 3]})["labels"].max() >= 5
    with pytest.raises(InputError, match="cannot tell where words begin"):
        DataCollatorForPreTraining(tokenizer, whole_word_mask=True)
