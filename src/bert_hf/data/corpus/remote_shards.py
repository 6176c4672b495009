"""Fetches the shards of a corpus behind a URL when they are needed, and ahead, into a cache of limited size."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import filelock
import fsspec
from fsspec.callbacks import TqdmCallback

from bert_hf.config.files import flush_to_disk
from bert_hf.data.corpus.checksums import file_checksum, text_checksum
from bert_hf.data.text.input_files import access_errors
from bert_hf.errors import InputError


class RemoteShards:
    """The files of a corpus behind a URL, in place of `store.LocalShards`.

    Shards are fetched when they are needed, and ahead; the least recently used are removed when the cache is full.
    Processes of one machine share the cache folder, and one at a time fetches or removes: no shard is fetched twice,
    the limit holds for all of them together, and nothing is removed before it is opened. (Once mapped, a file that is
    removed stays readable; its disk space is free when no process has it open any more.)
    """

    def __init__(self, url: str, cache: Path, limit: int | None = None):
        """`cache`: where the folder is made; `limit`: bytes that its shards may fill, None: any number.

        Three windows stay, whatever the limit: the first of the corpus, the open one and the next.
        """
        self.url = url.rstrip("/")
        self.limit = limit
        self.folder = cache / f"remote-{text_checksum(self.url)[:16]}"
        self._kept = set()
        self._ahead = None  # the thread that fetches what is needed next

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_ahead": None}

    def file(self, name: str) -> Path:
        """Fetches a file other than a shard, every time: the corpus at the address may have changed."""
        self._download(name, self.folder / name)
        return self.folder / name

    def check(self, entries: list[dict]) -> None:
        """Nothing to do: a shard is checked when it is fetched."""

    def keep(self, entries: list[dict]) -> None:
        """Never removes these shards: they are needed until the end."""
        self._kept |= {self._path(entry) for entry in entries}

    @contextlib.contextmanager
    def files(self, entries: list[dict], following: list[dict]) -> Iterator[list[Path]]:
        """Fetches the shards that are missing; `following` are then fetched in the background."""
        needed = self._kept | {self._path(entry) for entry in [*entries, *following]}
        with contextlib.ExitStack() as opened:
            if self._ahead is not None:
                self._ahead.join()
            opened.enter_context(self._lock())
            files = [self._fetch(entry, needed) for entry in entries]
            yield files

        if not all(self._path(entry).is_file() for entry in following):
            self._ahead = threading.Thread(target=self._fetch_ahead, args=(following, needed), daemon=True)
            self._ahead.start()

    def _path(self, entry: dict) -> Path:
        """Where a shard is kept. Its checksum is in the name: another corpus at the same address has other files."""
        return self.folder / f"{Path(entry['file']).stem}-{entry['sha256'][:16]}.arrow"

    def _lock(self) -> filelock.BaseFileLock:
        """The lock of the folder, held while a file is fetched or opened; a process that dies releases it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(self.folder / ".lock")

    def _fetch_ahead(self, entries: list[dict], needed: set[Path]) -> None:
        with contextlib.suppress(InputError, OSError):  # fetched again, and reported, when it is needed
            for entry in entries:
                with self._lock():
                    self._fetch(entry, needed)

    def _fetch(self, entry: dict, needed: set[Path]) -> Path:
        path = self._path(entry)
        if path.is_file() and path.stat().st_size == entry["bytes"]:
            os.utime(path)  # marks it as just used
        else:
            self._free_space(entry["bytes"], needed)
            self._download(entry["file"], path, entry)
        return path

    def _free_space(self, size: int, needed: set[Path]) -> None:
        """Removes leftovers of killed processes, then the least recently used shards."""
        for leftover in self.folder.glob(".data-*.tmp"):
            leftover.unlink()

        shards = sorted(self.folder.glob("data-*.arrow"), key=lambda path: path.stat().st_mtime_ns)
        used = sum(path.stat().st_size for path in shards)
        for path in shards:
            if self.limit is not None and used + size > self.limit and path not in needed:
                used -= path.stat().st_size
                path.unlink()

    def _download(self, name: str, path: Path, entry: dict | None = None) -> None:
        """Fetches a file atomically. `entry`: the record of a shard, whose checksum it must have."""
        url = f"{self.url}/{name}"
        temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with access_errors(url):
                system, place = fsspec.url_to_fs(url, **_client_options(url))
                # huggingface_hub draws a progress bar unless it is given one
                system.get_file(place, str(temporary), callback=TqdmCallback(tqdm_kwargs={"disable": True}))
                if entry is not None and file_checksum(temporary) != entry["sha256"]:
                    raise ValueError("its checksum differs from the manifest's")

            flush_to_disk(temporary)  # or a power cut could leave a name without its bytes
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _client_options(url: str) -> dict:
    """Options of the protocol's client: by default aiohttp aborts any transfer after five minutes."""
    if not url.startswith(("http://", "https://")):
        return {}
    import aiohttp  # of the extra `streaming`

    return {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)}}
