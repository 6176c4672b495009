"""Reads the tensors of a TensorFlow 1 checkpoint (the "tensor bundle" format) with numpy, without TensorFlow.

`PREFIX.index` is a sorted table of strings, in the layout of LevelDB: blocks of key-value entries, each followed by a
type byte and a checksum; a last block that lists the blocks; a footer of 48 bytes. The key "" has the number of data
files, every other key is the name of a tensor, with its type, shape, file, offset, size and checksum. The tensors are
raw bytes in `PREFIX.data-NNNNN-of-NNNNN`. (tensorflow@v2.21.0, core/util/tensor_bundle and core/lib/io/format.cc)
"""

import math
import struct
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c

from bert_hf.config.files import check_input_file
from bert_hf.errors import InputError

_FOOTER_BYTES, _MAGIC = 48, 0xDB4775248B80FB57
_BFLOAT16 = 14  # numpy does not have it: the upper half of a float32
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", _BFLOAT16: "<u2", 19: "<f2"}
_OBJECT_GRAPH = b"_CHECKPOINTABLE_OBJECT_GRAPH"  # a key of TensorFlow 2's own checkpoints

_Extents = tuple[tuple[int, int], ...]  # (start, length) in each dimension


class _Entry(NamedTuple):
    dtype: int  # TensorFlow's number: a key of `_DTYPES`
    shape: tuple[int, ...]
    shard: int  # number of the data file
    offset: int  # in that file
    crc: int  # of the tensor's bytes, as `_masked_crc` stores it
    slices: tuple[_Extents, ...]  # of a partitioned variable, whose parts have entries of their own


class TensorBundle:
    """The tensors of a checkpoint in the files `PREFIX.*`: `shapes` by name, `read(name)`."""

    def __init__(self, prefix: str | Path):
        self.prefix = Path(prefix)
        self.index = Path(f"{prefix}.index")
        try:
            self._entries, self._shards = self._read_index(self.index.read_bytes())
        except (IndexError, OverflowError, struct.error):
            raise self._damaged("truncated or damaged") from None
        self.shapes = {key.decode(): entry.shape for key, entry in self._entries.items() if not key.startswith(b"\0")}

    def read(self, name: str) -> np.ndarray:
        """Read a tensor; bfloat16 and the parts of a partitioned one as float32."""
        entry = self._entries[name.encode()]
        if not entry.slices:
            return self._read_entry(name, entry)

        # The key of a part is 0, the name, 0, 1, and numbers, encoded so that keys sort as the extents do
        prefix = b"\0" + name.encode() + b"\0\1"
        parts = [self._entries[key] for key in sorted(self._entries) if key.startswith(prefix)]
        whole = np.full(entry.shape, np.nan, np.float32)
        for extents, part in zip(sorted(entry.slices), parts, strict=True):
            whole[tuple(slice(start, start + length) for start, length in extents)] = self._read_entry(name, part)
        return whole

    def _read_index(self, content: bytes) -> tuple[dict[bytes, _Entry], int]:
        """Return the entries of all tensors, and the number of data files."""
        footer = content[-_FOOTER_BYTES:]
        if len(footer) < _FOOTER_BYTES or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
            raise self._damaged("not the index of a TensorFlow checkpoint, or truncated")

        *_, offset, size = _varints(BytesIO(footer), 4)  # before them, offset and size of the metadata, which is empty
        items = {}
        for _, handle in self._read_block(content, offset, size):  # offset and size of each other block
            items.update(self._read_block(content, *_varints(BytesIO(handle), 2)))

        if _OBJECT_GRAPH in items:
            remedy = "convert it to named variables with TensorFlow first"
            raise InputError("an object checkpoint of TensorFlow 2", where=self.index, remedy=remedy)
        shards = dict(_fields(items.pop(b"", b""))).get(1, 0)  # field 1 of a BundleHeaderProto
        return {key: _parse_entry(value) for key, value in items.items()}, shards

    def _read_block(self, content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the (key, value) pairs of a block; a key shares its first bytes with the one before."""
        end = offset + size  # a type byte and the checksum follow
        if _masked_crc(crc32c(content[offset : end + 1])) != struct.unpack_from("<I", content, end + 1)[0]:
            raise self._damaged("wrong checksum")

        restarts = struct.unpack_from("<I", content, end - 4)[0]
        size -= 4 + 4 * restarts  # after the entries: the positions of whole keys, for a search, and their number
        block = BytesIO(content[offset : offset + size])
        key = b""
        while block.tell() < size:
            shared, unshared, value_size = _varints(block, 3)
            key = key[:shared] + block.read(unshared)
            yield key, block.read(value_size)

    def _read_entry(self, name: str, entry: _Entry) -> np.ndarray:
        """Return the tensor that an entry of the index places in a data file, its checksum verified."""
        if entry.dtype not in _DTYPES:
            raise self._damaged(f"{name!r} is of the unsupported type {entry.dtype}")
        file = Path(f"{self.prefix}.data-{entry.shard:05d}-of-{self._shards:05d}")
        check_input_file(file, "copy all files of the checkpoint")
        values = np.fromfile(file, _DTYPES[entry.dtype], math.prod(entry.shape), offset=entry.offset)
        if _masked_crc(crc32c(values.data)) != entry.crc:
            raise InputError(f"truncated, or wrong checksum of {name!r}", where=file, remedy="copy the file again")
        values = values.reshape(entry.shape)
        if entry.dtype == _BFLOAT16:  # the upper half of a float32
            return (values.astype("<u4") << 16).view("<f4")
        return values

    def _damaged(self, problem: str) -> InputError:
        return InputError(problem, where=self.index, remedy="copy the checkpoint again")


def _masked_crc(crc: int) -> int:
    """Return a CRC-32C as LevelDB stores it ("masked"): rotated, plus a constant."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _varints(stream: BytesIO, count: int) -> list[int]:
    """Read `count` varints: seven bits of a number in each byte, the lowest first."""
    numbers = []
    for _ in range(count):
        value = shift = 0
        while (byte := stream.read(1)[0]) > 127:
            value |= (byte & 127) << shift
            shift += 7
        numbers.append(value | byte << shift)
    return numbers


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of each field of a protocol buffer: varints, numbers of 32 bits, bytes."""
    stream = BytesIO(message)
    while stream.tell() < len(message):
        [tag] = _varints(stream, 1)
        number, wire_type = divmod(tag, 8)
        if wire_type == 5:  # 32 bits
            yield number, struct.unpack("<I", stream.read(4))[0]
            continue
        [value] = _varints(stream, 1)
        yield number, stream.read(value) if wire_type == 2 else value  # 2: `value` bytes


def _parse_entry(message: bytes) -> _Entry:
    """Return the entry in a `BundleEntryProto`: 1 dtype, 2 shape, 3 shard, 4 offset, 5 size, 6 CRC, 7 slices."""
    numbers, dims, slices = {}, [], []
    for number, value in _fields(message):
        if number == 2:  # shape
            dims = [dict(_fields(dim)).get(1, 0) for _, dim in _fields(value)]
        elif number == 7:  # slices
            extents = [dict(_fields(extent)) for _, extent in _fields(value)]
            slices.append(tuple((extent.get(1, 0), extent.get(2, 0)) for extent in extents))
        else:
            numbers[number] = value
    shard, offset, crc = (numbers.get(number, 0) for number in (3, 4, 6))  # the shape tells the size
    return _Entry(numbers[1], tuple(dims), shard, offset, crc, tuple(slices))
