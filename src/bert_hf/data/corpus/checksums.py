"""SHA-256 of texts and files."""

import hashlib
import json
from pathlib import Path


def text_checksum(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def json_checksum(content) -> str:
    """Return the SHA-256 of a JSON value, independent of key order."""
    return text_checksum(json.dumps(content, sort_keys=True))


def file_checksum(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
