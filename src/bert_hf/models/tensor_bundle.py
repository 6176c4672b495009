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
    """The tensors of a checkpoint in the files `PREFIX.*`: `shapes` has their names, `read(name)` reads one."""

    def __init__(self, prefix: str | Path):
        self.prefix = Path(prefix)
        self.index = Path(f"{prefix}.index")
        try:
            self._entries, self._shard_count = self._read_index(self.index.read_bytes())
        except (IndexError, OverflowError, struct.error):
            raise self._index_error("truncated or damaged") from None
        self.shapes = {key.decode(): entry.shape for key, entry in self._entries.items() if not key.startswith(b"\0")}

    def read(self, name: str) -> np.ndarray:
        """Return a tensor, joined from its parts if it is partitioned; float32 in that case and for bfloat16."""
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
            raise self._index_error("not the index of a TensorFlow checkpoint, or truncated")

        *_, list_offset, list_size = _read_varints(BytesIO(footer), 4)  # first those of the metadata, which is empty
        items = {}
        for _, address in self._read_block(content, list_offset, list_size):  # (offset, size) of each other block
            items.update(self._read_block(content, *_read_varints(BytesIO(address), 2)))

        if _OBJECT_GRAPH in items:
            remedy = "convert it to named variables with TensorFlow first"
            raise InputError("an object checkpoint of TensorFlow 2", where=self.index, remedy=remedy)
        header = dict(_message_fields(items.pop(b"", b"")))  # a BundleHeaderProto: 1 number of data files
        return {key: _parse_entry(value) for key, value in items.items()}, header.get(1, 0)

    def _read_block(self, content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
        """Check a block's checksum; yield its (key, value) pairs. A key shares its first bytes with the one before."""
        end = offset + size  # a type byte and the checksum follow
        if _masked_crc(crc32c(content[offset : end + 1])) != struct.unpack_from("<I", content, end + 1)[0]:
            raise self._index_error("wrong checksum")

        restarts = struct.unpack_from("<I", content, end - 4)[0]
        entries_size = size - 4 - 4 * restarts  # then the positions of whole keys, for a search, and their number
        block = BytesIO(content[offset : offset + entries_size])
        key = b""
        while block.tell() < entries_size:
            shared, unshared, value_size = _read_varints(block, 3)
            key = key[:shared] + block.read(unshared)
            yield key, block.read(value_size)

    def _read_entry(self, name: str, entry: _Entry) -> np.ndarray:
        """Return the tensor, or the part of one, that an entry locates in a data file, after a check of its bytes."""
        if entry.dtype not in _DTYPES:
            raise self._index_error(f"{name!r} is of the unsupported type {entry.dtype}")
        file = Path(f"{self.prefix}.data-{entry.shard:05d}-of-{self._shard_count:05d}")
        check_input_file(file, "copy all files of the checkpoint")
        values = np.fromfile(file, _DTYPES[entry.dtype], math.prod(entry.shape), offset=entry.offset)
        if _masked_crc(crc32c(values.data)) != entry.crc:
            raise InputError(f"truncated, or wrong checksum of {name!r}", where=file, remedy="copy the file again")
        values = values.reshape(entry.shape)
        if entry.dtype == _BFLOAT16:  # the upper half of a float32
            return (values.astype("<u4") << 16).view("<f4")
        return values

    def _index_error(self, problem: str) -> InputError:
        return InputError(problem, where=self.index, remedy="copy the checkpoint again")


def _masked_crc(crc: int) -> int:
    """Return a CRC-32C as LevelDB stores it ("masked"): rotated, plus a constant."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _read_varints(stream: BytesIO, count: int) -> list[int]:
    """Read `count` varints: seven bits of a number per byte, the lowest first; the eighth tells that more follow."""
    numbers = []
    for _ in range(count):
        value = shift = 0
        while (byte := stream.read(1)[0]) > 127:
            value |= (byte & 127) << shift
            shift += 7
        numbers.append(value | byte << shift)
    return numbers


def _message_fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (field number, value) of a protocol buffer message; a value is an int or, if it is a message, bytes."""
    stream = BytesIO(message)
    while stream.tell() < len(message):
        [tag] = _read_varints(stream, 1)
        number, wire_type = divmod(tag, 8)
        if wire_type == 5:  # 32 bits
            yield number, struct.unpack("<I", stream.read(4))[0]
            continue
        [value] = _read_varints(stream, 1)  # the number, or the size of the bytes
        yield number, stream.read(value) if wire_type == 2 else value


def _parse_entry(message: bytes) -> _Entry:
    """Return the entry in a `BundleEntryProto`: 1 dtype, 2 shape, 3 shard, 4 offset, 5 size, 6 CRC, 7 slices."""
    numbers, dims, slices = {}, [], []
    for field, value in _message_fields(message):
        if field == 2:  # shape: a message per dimension, its size in field 1
            dims = [dict(_message_fields(dim)).get(1, 0) for _, dim in _message_fields(value)]
        elif field == 7:  # slices: a message per dimension, start and length in fields 1 and 2
            extents = [dict(_message_fields(extent)) for _, extent in _message_fields(value)]
            slices.append(tuple((extent.get(1, 0), extent.get(2, 0)) for extent in extents))
        else:
            numbers[field] = value
    shard, offset, crc = (numbers.get(field, 0) for field in (3, 4, 6))  # 0 is not stored
    return _Entry(numbers[1], tuple(dims), shard, offset, crc, tuple(slices))
