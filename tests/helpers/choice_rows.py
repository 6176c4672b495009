"""Ten rows in the format of SWAG, and a vocabulary of their words."""

import json
from pathlib import Path

import torch
from tiny import tiny_config
from transformers import BertForPreTraining, BertTokenizer

from bert_hf.data.text.tokenization import save_tokenizer

_NAMES = ("sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label")
_ROWS = (
    ("A man pours milk into a bowl.", "He", "stirs it with a spoon.", "paints it red.", "sings.", "rides it.", 0),
    ("Two girls run along the beach.", "They", "freeze.", "jump into the water.", "fold it.", "drive a bus.", 1),
    ("The cook cuts an onion.", "She", "plays it.", "swims home.", "puts it into the pan.", "throws a dart.", 2),
    ("A band walks onto the stage.", "The crowd", "melts.", "is cut.", "peels a pear.", "claps and shouts.", 3),
    (
        "Snow falls on the mountain.",
        "A skier",
        "turns and stops.",
        "bakes bread.",
        "is a cup.",
        "reads a map, twice.",
        0,
    ),
    ("The dentist opens a drawer.", "He", "sails off.", "takes out a mirror.", "plants corn.", "boils.", 1),
    ("A boy ties his laces.", "He", "is a lamp.", "pours tea.", "runs to the field.", 'irons "it".', 2),
    ("The train arrives late.", "People", "swim.", "are grey.", "hang it up.", "step out and hurry.", 3),
    ("She opens a letter.", "Her hands", "shake a little.", "drive away.", "rain.", "grow on trees.", 0),
    ("A goat eats the hedge.", "The farmer", "is salt.", "chases it away.", "rhymes.", "flies low.", 1),
)
ROWS = [dict(zip(_NAMES, row, strict=True)) for row in _ROWS]

_LETTERS = [*'abcdefghijklmnopqrstuvwxyz.,"']
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_LETTERS, *(f"##{letter}" for letter in _LETTERS)]


def swag_lines(**changes) -> str:
    """The rows as JSON lines, some columns changed."""
    return "".join(json.dumps({**row, **changes}) + "\n" for row in ROWS)


def save_checkpoint(folder: Path, dropout: float = 0.1) -> None:
    """A stock checkpoint with random weights, and a tokenizer of letters."""
    torch.manual_seed(0)
    BertForPreTraining(tiny_config(dropout, vocab_size=len(VOCABULARY))).save_pretrained(folder)
    save_tokenizer(BertTokenizer(vocab={piece: number for number, piece in enumerate(VOCABULARY)}), folder)
