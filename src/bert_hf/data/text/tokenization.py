"""Trains, saves, loads and checks WordPiece tokenizers."""

import itertools
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer, Normalizer
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.pre_tokenizers import Split
from tokenizers.trainers import WordPieceTrainer
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase

from bert_hf.config.files import json_checksum, read_input_text
from bert_hf.console import log_once, logger, progress
from bert_hf.data.text.writing_systems import should_strip_accents
from bert_hf.errors import InputError, first_line
from bert_hf.models.loading import TOKENIZER_CONFIG, find_tokenizer, read_safe_json

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")  # as saved
MAX_LENGTH = 512  # positions of the published models
_BATCH = 1000  # texts given to the trainer at a time
_ALPHABET_SIZE = 1000  # characters of a trained vocabulary, if they are enough
_COVERAGE = 0.9995  # share of a text's characters for which they should be enough
_NEGLIGIBLE = 0.04  # share of a vocabulary's pieces; in cased ones a quarter and more have capitals
_NORMALIZER_KEYS = {  # option of BertTokenizer → key of the normalizer in tokenizer.json
    "do_lower_case": "lowercase", "strip_accents": "strip_accents", "tokenize_chinese_chars": "handle_chinese_chars"
}  # fmt: skip


def train_tokenizer(
    texts: Sequence[str],
    *,
    vocab_size: int = 30522,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
) -> BertTokenizer:
    """Train a WordPiece vocabulary with BERT's normalisation (Devlin et al. 2019, section 3).

    The alphabet is the 1,000 most frequent characters, or as many as make up 99.95 % of the text (Chinese, Japanese
    and Korean need more), but more than 1,000 take no more than half of the vocabulary. Every character of it is in
    the vocabulary both as the start and as the continuation (##) of a word, and only others become [UNK]. The same
    texts and options give the same vocabulary.

    Args:
        vocab_size: an upper limit; a small text gives a smaller vocabulary.
        strip_accents: None keeps accents if `do_lower_case` is false; else the scripts of the text and the frequency
            of its accents decide (`should_strip_accents`), and the reason is logged.
    """
    characters = Counter(itertools.chain.from_iterable(texts))
    if strip_accents is None and do_lower_case:
        should_strip, reason = should_strip_accents(characters)
        strip_accents = None if should_strip else False  # None is recorded for True, as in the 2018 code
        logger.info(reason)
    options: dict[str, Any] = {"do_lower_case": do_lower_case, "strip_accents": strip_accents}
    options["tokenize_chinese_chars"] = tokenize_chinese_chars

    rust = backend(BertTokenizer(**options))
    alphabet = _choose_alphabet(characters, rust.normalizer, vocab_size)
    vocabulary = _train_wordpiece(rust, texts, alphabet, vocab_size)
    return BertTokenizer(vocab=vocabulary, model_max_length=MAX_LENGTH, **options)


def _train_wordpiece(rust: Tokenizer, texts: Sequence[str], alphabet: list[str], vocab_size: int) -> dict[str, int]:
    """Return the vocabulary that the Rust trainer learns, completed (`_complete_vocabulary`).

    The trainer numbers the continuations of characters in the order of a hash map, and a tie between two pairs goes to
    the lower number: each training would give another vocabulary. Passed as special tokens they are numbered in order.
    """
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        special_tokens=[*SPECIALS, *(f"##{character}" for character in alphabet)],
        show_progress=False,
    )
    _leave_out_long_words(rust, texts)
    begins = progress(range(0, len(texts), _BATCH), "training the vocabulary", "batches")
    batches = (texts[begin : begin + _BATCH] for begin in begins)
    rust.train_from_iterator(batches, trainer)
    return _complete_vocabulary(rust.get_vocab(), vocab_size)


def _leave_out_long_words(rust: Tokenizer, texts: Sequence[str]) -> None:
    """Let the trainer skip words that WordPiece does not split (of more than 100 characters: they are [UNK]).

    Its time is quadratic in the length of a word: 9 s for one of 200,000 bases of DNA. The rule makes any training a
    quarter slower, so it is added only if white space leaves such a word in one of the texts.
    """
    longest = cast(WordPiece, rust.model).max_input_chars_per_word
    if any(max(map(len, text.split()), default=0) > longest for text in texts):
        long_word = Split(Regex(rf"^.{{{longest + 1},}}$"), "removed")
        rust.pre_tokenizer = PreTokenizers([rust.pre_tokenizer, long_word])


def _choose_alphabet(characters: Counter[str], normalizer: Normalizer, vocab_size: int) -> list[str]:
    """Return the most frequent characters after normalisation, in the order of their code points."""
    counts = Counter()
    for character, count in characters.items():
        for normalized in normalizer.normalize_str(character):  # BERT's looks at one character at a time
            counts[normalized] += count

    by_frequency = sorted((-count, character) for character, count in counts.items() if not character.isspace())
    room = (vocab_size - len(SPECIALS)) // 2  # each is in the vocabulary twice
    if by_frequency and room < 1:
        what = f"a vocabulary of {vocab_size:,} has room for no character (two tokens each)"
        raise InputError(what, where="--vocab_size", remedy="give a larger --vocab_size")

    covered = np.cumsum([-count for count, _ in by_frequency])
    needed = int(np.searchsorted(covered, _COVERAGE * covered[-1])) + 1 if by_frequency else 0
    limit = min(room, max(_ALPHABET_SIZE, min(needed, vocab_size // 4)))  # a quarter, twice, is half of the vocabulary
    return sorted(character for _, character in by_frequency[:limit])


def _complete_vocabulary(trained: dict[str, int], vocab_size: int) -> dict[str, int]:
    """Return the ids of the special tokens, then every character in both its forms, then the learned pieces in order.

    The trainer keeps only the forms of a character that it saw: words of known characters could then become [UNK].
    """
    pieces = [piece for piece in sorted(trained, key=trained.__getitem__) if piece not in SPECIALS]
    characters = sorted({piece.removeprefix("##") for piece in pieces if len(piece.removeprefix("##")) == 1})
    forms = dict.fromkeys([*characters, *(f"##{character}" for character in characters)])
    learned = [piece for piece in pieces if piece not in forms]

    remaining = max(0, vocab_size - len(SPECIALS) - len(forms))
    return {piece: index for index, piece in enumerate([*SPECIALS, *forms, *learned[:remaining]])}


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
    """Save a tokenizer as stock transformers does, and of WordPiece also the vocab.txt that transformers 4 reads."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer.is_fast and isinstance(backend(tokenizer).model, WordPiece):
        pieces = {number: piece for piece, number in tokenizer.get_vocab().items()}
        lines = [pieces.get(number, "") for number in range(max(pieces) + 1)]  # "": of an id that no piece has
        (folder / "vocab.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    tokenizer.save_pretrained(folder)


def load_tokenizer(
    name_or_path: str | Path,
    *,
    do_lower_case: bool | None = None,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
    model: str | Path | None = None,
) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a folder, a Hub id or a bare `vocab.txt`.

    Its files say how text is normalised, else the options, else the vocabulary: with capitals in it text is read as
    cased, and a line says so.

    Args:
        model: the checkpoint that the tokenizer is for; its own tokenizer must give the ids the same meaning.
    """
    path = Path(name_or_path)
    chosen = {"do_lower_case": do_lower_case, "strip_accents": strip_accents}
    if os.path.lexists(path) and not path.is_dir():
        vocabulary = _read_vocabulary(path)
        options = _normalization_by_vocabulary(vocabulary, path, chosen)
        tokenizer = BertTokenizer(
            vocab=vocabulary, tokenize_chinese_chars=tokenize_chinese_chars, model_max_length=MAX_LENGTH, **options
        )
    else:
        tokenizer = _load_saved(name_or_path, chosen)
    check_tokenizer(tokenizer, where=path)
    _check_normalization(tokenizer, name_or_path, do_lower_case, strip_accents, tokenize_chinese_chars)

    if model is not None and str(model) != str(name_or_path):
        _check_same_pieces(tokenizer, name_or_path, model)
    return tokenizer


def _load_saved(name_or_path: str | Path, chosen: dict[str, bool | None]) -> PreTrainedTokenizerBase:
    """Load a tokenizer that transformers saved; `chosen` normalization counts if its files have only a vocabulary."""
    folder = find_tokenizer(name_or_path)
    config = read_safe_json(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).is_file() else {}
    state = read_safe_json(folder / "tokenizer.json") if (folder / "tokenizer.json").is_file() else {}
    loader: Any = AutoTokenizer
    options: dict[str, Any] = {}

    algorithm = state.get("model", {}).get("type", "WordPiece")
    if config.get("tokenizer_class") in (None, "BertTokenizer", "BertTokenizerFast") and algorithm == "WordPiece":
        loader = BertTokenizer
        if not state and "do_lower_case" not in config:
            options = _normalization_by_vocabulary(_read_vocabulary(folder / "vocab.txt"), name_or_path, chosen)
        else:
            options = _saved_normalization(state)
        options = {option: value for option, value in options.items() if option not in config}
    elif not config:
        what = f"{TOKENIZER_CONFIG} is missing, which names the special tokens of this {algorithm} tokenizer"
        raise InputError(what, where=name_or_path, remedy="copy all files of the tokenizer")

    try:
        tokenizer = loader.from_pretrained(str(folder), trust_remote_code=False, **options)
    except Exception as error:  # the Rust library raises no narrower class
        remedy = "give a folder with tokenizer.json, a Hub id or a vocab.txt"
        raise InputError(f"cannot load a tokenizer: {first_line(error)}", where=name_or_path, remedy=remedy) from None

    tokenizer.name_or_path = str(name_or_path)  # not the folder of the Hub's cache
    return tokenizer


def _saved_normalization(state: dict[str, Any]) -> dict[str, Any]:
    """Return the options that a tokenizer.json has for `BertTokenizer`, which does not read them there; {} if none."""
    normalizer = state.get("normalizer") or {}
    is_bert = normalizer.get("type") == "BertNormalizer"
    return {option: normalizer.get(key) for option, key in _NORMALIZER_KEYS.items()} if is_bert else {}


def _normalization_by_vocabulary(
    vocabulary: dict[str, int], where: str | Path, chosen: dict[str, bool | None]
) -> dict[str, Any]:
    """Return the options of a tokenizer that has only a vocabulary: as chosen, else by its capitals and accents.

    A line says what the capitals and accents decide. A lower-case vocabulary may have a few pieces that cannot occur:
    SciBERT's has Ω, and 433 of its 31,090 have accents.
    """
    words = [piece.removeprefix("##") for piece in vocabulary]
    letters = [word for word in words if word.isalpha()]  # not [CLS], nor <S> of Google's Chinese vocabulary
    capitals = sum(word != word.lower() for word in letters)
    cased = capitals > _NEGLIGIBLE * len(letters)
    lower = chosen["do_lower_case"] if chosen["do_lower_case"] is not None else not cased
    if cased:
        reading = "lower-cased, so that they cannot occur" if lower else "read as cased"
        log_once(f"tokenizer {where}: {capitals:,} of {len(words):,} pieces have capitals; text is {reading}")

    strip = chosen["strip_accents"]
    if strip is None and lower:
        stripped = BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
        accents = sum(word != stripped.normalize_str(word) for word in words)
        if accents > _NEGLIGIBLE * len(words):
            strip = False
            log_once(f"tokenizer {where}: {accents:,} of {len(words):,} pieces have accents; text keeps them")
    return {"do_lower_case": lower, "strip_accents": strip}  # None: accents of lower-cased text are stripped


def _check_same_pieces(tokenizer: PreTrainedTokenizerBase, where: str | Path, model: str | Path) -> None:
    """Raise an InputError if an id means another piece than in the model's own tokenizer. `[unusedN]` may differ."""
    try:
        model_vocabulary = _load_saved(model, {"do_lower_case": None, "strip_accents": None}).get_vocab()
    except InputError:  # the model has no tokenizer
        return
    model_pieces = {number: piece for piece, number in model_vocabulary.items() if not piece.startswith("[unused")}
    shared = [(piece, number) for piece, number in tokenizer.get_vocab().items() if number in model_pieces]
    if different := sum(piece != model_pieces[number] for piece, number in shared):
        what = f"{different:,} of {len(shared):,} ids mean another piece than in the tokenizer of {model}"
        raise InputError(what, where=where, remedy="leave --tokenizer_name out: the checkpoint has its own")


def _check_normalization(
    tokenizer: PreTrainedTokenizerBase, where: str | Path, lower: bool | None, strip: bool | None, chinese: bool
) -> None:
    """Raise an InputError if options other than the defaults contradict a saved BERT tokenizer."""
    normalizer = json.loads(backend(tokenizer).to_str())["normalizer"] or {}
    if normalizer.get("type") != "BertNormalizer":
        return

    saved_strip = normalizer["lowercase"] if normalizer["strip_accents"] is None else normalizer["strip_accents"]
    contradicted = {
        "do_lower_case": lower not in (None, normalizer["lowercase"]),
        "strip_accents": strip not in (None, saved_strip),
        "tokenize_chinese_chars": not chinese and normalizer["handle_chinese_chars"],
    }
    for option, differs in contradicted.items():
        if differs:
            what = f"the saved tokenizer has a different {option}, which cannot be changed"
            raise InputError(what, where=where, remedy=f"leave --{option} out, or train another vocabulary")


def _read_vocabulary(path: Path) -> dict[str, int]:
    """Return the vocabulary of a vocab.txt (id: line number from 0); special tokens that are missing are an error."""
    text = read_input_text(path)
    if text.lstrip().startswith("{"):
        hint = "give the folder that has it with tokenizer_config.json, or a vocab.txt"
        raise InputError("a JSON file, not a vocabulary of one piece per line", where=path, remedy=hint)
    lines = text.removesuffix("\n").split("\n")
    vocabulary = {piece.rstrip("\r"): number for number, piece in enumerate(lines)}
    if missing := [special for special in SPECIALS if special not in vocabulary]:
        raise InputError(f"{' '.join(missing)} missing", where=path, remedy="add the special tokens, one per line")
    return vocabulary


def check_tokenizer(
    tokenizer: PreTrainedTokenizerBase, model_vocab_size: int | None = None, where: str | Path | None = None
) -> None:
    """Check that a tokenizer is fast and has BERT's special tokens, and that the model has embeddings for its ids."""
    where = where or tokenizer.name_or_path or "tokenizer"
    if not tokenizer.is_fast:
        what = f"{type(tokenizer).__name__} has no implementation in the tokenizers library"
        raise InputError(what, where=where, remedy="convert it to a tokenizer.json, or choose another checkpoint")
    for name in ("pad", "unk", "cls", "sep", "mask"):
        if getattr(tokenizer, f"{name}_token_id", None) is None:
            what = f"the tokenizer has no [{name.upper()}] token"
            raise InputError(what, where=where, remedy="choose a BERT tokenizer")

    if model_vocab_size is not None and id_count(tokenizer) > model_vocab_size:
        what = f"token ids go up to {id_count(tokenizer) - 1}, but the model has only {model_vocab_size} embeddings"
        remedy = "use the model's own tokenizer, or add the tokens in pre-training: bert-hf pretrain"
        raise InputError(what, where=where, remedy=remedy)


def id_count(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the largest id + 1: more than `len` where a vocabulary repeats a token."""
    return max(tokenizer.get_vocab().values()) + 1


def backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """Return a copy of the tokenizer's implementation in Rust (`tokenizers`), without truncation and padding."""
    rust = Tokenizer.from_str(cast(BertTokenizer, tokenizer).backend_tokenizer.to_str())
    rust.no_truncation()
    rust.no_padding()
    return rust


def tokenizer_checksum(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the SHA-256 of all that decides the ids: vocabulary, normaliser, pre-tokeniser, added tokens."""
    state = json.loads(backend(tokenizer).to_str())
    parts = {key: state[key] for key in ("normalizer", "pre_tokenizer", "model")}
    if added := [token for token in state["added_tokens"] if token["content"] not in SPECIALS]:
        parts["added_tokens"] = added
    return json_checksum(parts)


class ModelInput(NamedTuple):
    """The token ids of one text or of a pair with their special tokens."""

    input_ids: list[int]
    token_type_ids: list[int]
    starts: tuple[int, ...]  # where the tokens of each text begin


class InputTemplate:
    """Adds special tokens and token types to token ids, as the tokenizer does it for texts.

    template = InputTemplate(tokenizer)
    template.join([7, 8], [9])        BERT             [CLS] 7 8 [SEP] 9 [SEP]     types 0 0 0 0 1 1     starts 1, 4
                                      XLM-RoBERTa      <s> 7 8 </s> </s> 9 </s>    types all 0           starts 1, 5
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        # Of one text and of a pair: (number of the text, or None for special tokens; ids; types)
        self._parts: list[list[tuple[int | None, list[int], list[int]]]] = []
        for second in (None, "a"):  # any text shows which special tokens surround it
            encoded = tokenizer("a", second)
            ids: Any = encoded["input_ids"]
            types: Any = encoded.get("token_type_ids", [0] * len(ids))
            parts = []
            begin = 0
            for text, tokens in itertools.groupby(encoded.sequence_ids(0)):
                end = begin + len(list(tokens))
                parts.append((text, ids[begin:end], types[begin:end]))
                begin = end
            self._parts.append(parts)

    def join(self, first: Sequence[int], second: Sequence[int] | None = None) -> ModelInput:
        """Return the input of a text or, with `second`, of a pair; no text is cut."""
        texts = [first] if second is None else [first, second]
        starts = [0] * len(texts)
        ids: list[int] = []
        types: list[int] = []
        for text, part_ids, part_types in self._parts[len(texts) - 1]:
            if text is None:  # special tokens
                ids += part_ids
                types += part_types
            else:
                starts[text] = len(ids)
                ids += texts[text]
                types += part_types[:1] * len(texts[text])  # one type for the whole text
        return ModelInput(ids, types, tuple(starts))


def word_start_mask(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Return (V,) bool, by token id: whether it begins a word. Special tokens do not, tokens added by the user do.

        WordPiece             play   ##ing  the         True False True
        byte-level BPE        Ġplay  ing    Ġthe        True False True
        SentencePiece         ▁play  ing    ▁the        True False True

    The vocabulary tells which of these it is: by the mark that most of its tokens begin with.
    """
    vocabulary = tokenizer.get_vocab()
    count = {mark: sum(token.startswith(mark) for token in vocabulary) for mark in ("##", "Ġ", "▁")}
    mark = max(count, key=count.__getitem__)
    if not count[mark]:
        what = "cannot tell where words begin: no token has a word marker (WordPiece ##, BPE Ġ, SentencePiece ▁)"
        remedy = "choose another tokenizer, or omit --whole_word_mask"
        raise InputError(what, where=tokenizer.name_or_path or "tokenizer", remedy=remedy)

    starts = np.zeros(id_count(tokenizer), bool)
    for token, index in vocabulary.items():
        starts[index] = token.startswith(mark) != (mark == "##")  # ## marks the other tokens
    starts[list(cast(BertTokenizer, tokenizer).get_added_vocab().values())] = True
    starts[tokenizer.all_special_ids] = False
    return starts
