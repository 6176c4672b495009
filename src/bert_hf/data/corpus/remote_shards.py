"""Reads a corpus behind a URL: its files are downloaded when they are needed, once, into a folder of the cache."""

import os
from pathlib import Path

import filelock
import fsspec
from fsspec.callbacks import TqdmCallback

from bert_hf.config.files import flush_to_disk
from bert_hf.data.corpus.checksums import file_checksum, text_checksum
from bert_hf.data.text.input_files import access_errors


class RemoteShards:
    """The files of a corpus behind the URL of its folder, downloaded into a folder in `cache`.

    Processes of one machine share that folder, and no shard is downloaded twice.
    """

    def __init__(self, url: str, cache: Path):
        self.url = url.rstrip("/")
        self.folder = cache / f"remote-{text_checksum(self.url)[:16]}"

    def file(self, name: str) -> Path:
        """Download a file other than a shard, every time: the corpus at the address may have changed."""
        path = self.folder / name
        with self._lock():
            self._download(name, path)
        return path

    def shard(self, entry: dict) -> Path:
        """Return the file of a shard, downloaded if it is missing.

        Its checksum is in its name: another corpus at the same address has other files.
        """
        path = self.folder / f"{Path(entry['file']).stem}-{entry['sha256'][:16]}.arrow"
        with self._lock():
            if not path.is_file():
                self._download(entry["file"], path, entry["sha256"])
        return path

    def _lock(self) -> filelock.BaseFileLock:
        self.folder.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(self.folder / ".lock")  # a process that dies releases it

    def _download(self, name: str, path: Path, checksum: str | None = None) -> None:
        """Download a file atomically. `checksum`: the SHA-256 that it must have."""
        url = f"{self.url}/{name}"
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            path.parent.mkdir(exist_ok=True)
            with access_errors(url):
                system, place = fsspec.url_to_fs(url, **_client_options(url))
                # huggingface_hub draws a progress bar unless it is given one
                system.get_file(place, str(temporary), callback=TqdmCallback(tqdm_kwargs={"disable": True}))
                if checksum is not None and file_checksum(temporary) != checksum:
                    raise ValueError("checksum mismatch")

            flush_to_disk(temporary)  # or a power cut could leave a name without its bytes
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _client_options(url: str) -> dict:
    """Return options of the protocol's client: by default aiohttp aborts any transfer after five minutes."""
    if not url.startswith(("http://", "https://")):
        return {}
    import aiohttp  # of the extra `streaming`

    return {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)}}
