"""Project files use the field's own terms: none of the retired words appears in code, docs or comments.

The words are retired because a reader who knows BERT, PyTorch and transformers had to learn what they meant here.
Identifiers count: `NEEDS_ROOM` and `RemoteShelf` are read as "NEEDS ROOM" and "Remote Shelf".

    python tests/test_language.py            # every use, and the number of uses in each package
    python tests/test_language.py src/bert_hf/data README.md
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATTERNS = ("*.py", "*.md", "*.yaml", "*.yml", "*.toml", "Makefile")

# Each entry is a regular expression. A space matches white space, underscores, line breaks and comment marks.
RETIRED = (
    # metaphors
    "houses?", "rooms?", "stones?", "joints?", "doors?", "rivers?", "ground", "strangers?", "shel(f|ves)",
    "doctors?", "tortur(e|es|ed|ing)", "relay(s|ed|ing)?", "dogs?",
    # verbs of people, said of programs
    "go(es|ing|ne)? on", "went on", "g[ai]v(e|es|en|ing) up", "speaks?", "spoken?", "speaking", "ow(e|es|ed)",
    "stands?", "stood", "standing", "obey(s|ed|ing)?", "mend(s|ed|ing)?", "weigh(s|ed|ing)?",
    "knows? nothing",
    # turns of phrase
    "nobody", "in good order", "in vain", "afresh", "anew", "cannot be meant", "this very", "beside",
    
    # former names
    "Early End", "attend rows", "obeying signals",
)  # fmt: skip

# A clause where a noun belongs: a docstring or comment that begins with "What" and asks nothing.
CLAUSE = r'(?:"""|^ *# )What\b[^?\n]*$'

# Phrases in which a retired word is the usual term.
TERMS = ("ground truth",)

# (file, phrase): literals that are data, such as sentences of a test corpus. A phrase of "" excepts the whole file.
DATA = (
    ("tests/test_language.py", ""),
    ("tests/data/test_round_trip.py", "lazy dog"),
    ("tests/data/test_tokenization.py", "lazy dog"),
    ("tests/data/test_tokenization.py", '"fox", "dog"'),
)  # fmt: skip

GAP = r"(?:[\s_]|\n *#)+"
WORDS = re.compile(
    "|".join(rf"(?<![A-Za-z])(?:{pattern.replace(' ', GAP)})(?![A-Za-z])" for pattern in RETIRED), re.IGNORECASE
)


def tracked_files(folders: list[str] | None = None) -> list[Path]:
    """Files of the project that contain prose or identifiers, as git lists them."""
    command = ["git", "ls-files", "-z", "--", *PATTERNS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    wanted = [ROOT / folder for folder in folders or ["."]]
    return [file for file in files if file.exists() and any(file.is_relative_to(folder) for folder in wanted)]


def retired_words(text: str, allowed: tuple[str, ...] = TERMS) -> list[tuple[int, str]]:
    """(line number, word) of each use.

    retired_words("x = 1\\nNEEDS_ROOM = 2") == [(2, "ROOM")]
    """
    # Blank out what is allowed; every replacement keeps the lines.
    for phrase in allowed:
        text = re.sub(re.escape(phrase), lambda match: re.sub(r"\S", ".", match[0]), text, flags=re.IGNORECASE)
    text = re.sub("(?<=[a-z])(?=[A-Z])", " ", text)

    found = [*WORDS.finditer(text), *re.finditer(CLAUSE, text, re.MULTILINE)]
    uses = [(text.count("\n", 0, match.start()) + 1, " ".join(match[0].split())) for match in found]
    return sorted(uses)


def uses_in(file: Path) -> list[tuple[int, str]]:
    name = file.relative_to(ROOT).as_posix()
    phrases = tuple(phrase for exempt, phrase in DATA if exempt == name)
    return [] if "" in phrases else retired_words(file.read_text(encoding="utf-8"), (*TERMS, *phrases))


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git lists the files")
def test_no_file_uses_a_retired_word():
    uses = [f"{file.relative_to(ROOT)}:{line}: {word}" for file in tracked_files() for line, word in uses_in(file)]
    assert not uses, "\n".join(["retired words:", *uses])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The run goes on.", ["goes on"]),
        ("The run goes\n    # on.", ["goes # on"]),
        ("def _go_on(): ...", ["go_on"]),
        ("class RemoteShelf:", ["Shelf"]),
        ("NEEDS_ROOM = 3", ["ROOM"]),
        ('"""What a run survives."""', ['"""What a run survives."""']),
        ("    # What comes next?", []),
        ("standard error of the understanding", []),
        ("the joined table, the background, ground truth", []),
        ("the recommended weight of a watchdog", []),
        ("Besides, it is along the way.", []),
    ],
)
def test_the_search_finds_words_and_leaves_others(text, words):
    assert [word for _, word in retired_words(text)] == words


def test_exceptions_still_occur():
    for name, phrase in DATA:
        assert phrase in (ROOT / name).read_text(encoding="utf-8"), (name, phrase)


def main(folders: list[str]) -> int:
    """Prints each use, then the number of uses in each folder."""
    counts = Counter()
    for file in tracked_files(folders):
        for line, word in uses_in(file):
            print(f"{file.relative_to(ROOT)}:{line}: {word}")
            counts["/".join(file.relative_to(ROOT).parts[:-1][:3])] += 1

    for folder, count in sorted(counts.items()):
        print(f"{count:5}  {folder or '(top level)'}")
    print(f"{counts.total():5}  in all")
    return int(bool(counts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
