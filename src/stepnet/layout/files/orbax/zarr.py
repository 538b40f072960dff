"""Arrays in the formats Zarr 2 and 3: a description, and chunks, each under its own key.

    NAME/.zarray, NAME/0.1         Zarr 2
    NAME/zarr.json, NAME/c/0/1     Zarr 3; a chunk can be a shard of smaller chunks, with an index at its end

Source: zarr-specs.readthedocs.io: v2, v3 core, and the codecs bytes, zstd, gzip, crc32c and sharding_indexed.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, cast

import ml_dtypes
import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError
from stepnet.layout.files.jsons import Object, parsed
from stepnet.layout.files.model import Array
from stepnet.layout.files.orbax.packed import unpacked
from stepnet.layout.files.store import Store

DESCRIPTIONS = (".zarray", "zarr.json")
AXES = 32
CHUNKS = 1 << 20
NO_CHUNK = (1 << 64) - 1
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
KINDS = {
    "bfloat16": BFLOAT16,
    "bool": np.dtype(np.bool_),
    **{f"float{bits}": np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
    **{
        f"{kind}int{bits}": np.dtype(f"{kind or 'i'}{bits // 8}")
        for kind in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}
CODES = {kind.str[1:]: kind for name, kind in KINDS.items() if name != "bfloat16"} | {"bfloat16": BFLOAT16}
Get = Callable[[str], bytes | None]


@dataclass(frozen=True)
class ArrayFormat:
    """The form of a Zarr array in files.

    chunks: the shape of its chunks.
    inner: the shape of the chunks in a shard; None without shards.
    kind: its dtype in the file.
    packing: the compression codecs.
    order: the order of axes in a chunk, C or F.
    front, separator: the prefix of the keys of chunks, and the separator of the indices in a key.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    inner: tuple[int, ...] | None
    kind: np.dtype[Any]
    packing: tuple[str, ...]
    order: str = "C"
    front: str = ""
    separator: str = "."

    def key(self, chunk_index: tuple[int, ...]) -> str:
        """Returns the key under which a chunk of a Zarr array is stored, such as "c/0/1". chunk_index: the
        index of the chunk along each axis; () for an array without axes.
        """
        return self.front + self.separator.join(map(str, chunk_index)) if chunk_index or self.front else "0"


def array(description: bytes, get: Get, store: Store) -> Array:
    """Reads a Zarr array from its chunks; raises `FileError` if it is in too many.

    description: the JSON that describes it. get: a function from a chunk's key to its bytes, or None for a
    chunk of zeros. store: limits the memory that reading takes.
    """
    described = parsed(description, "description of an array", store)
    array_format = (
        format_of_zarr3(described) if described.get("zarr_format") == 3 else format_of_zarr2(described)
    )
    counts = [
        -(-length // chunk) for length, chunk in zip(array_format.shape, array_format.chunks, strict=True)
    ]
    if math.prod(counts) > CHUNKS:
        raise FileError(f"it has an array in more than {CHUNKS} chunks")
    store.take(
        math.prod(array_format.shape) * array_format.kind.itemsize, f"an array of {array_format.shape}"
    )
    numbers = np.zeros(array_format.shape, array_format.kind)
    for chunk_index in product(*map(range, counts)):
        data = get(array_format.key(chunk_index))
        if data is None:
            continue
        start = [index * chunk for index, chunk in zip(chunk_index, array_format.chunks, strict=True)]
        for corner, piece in pieces(array_format, data, store):
            where = tuple(
                slice(at + more, at + more + length)
                for at, more, length in zip(start, corner, piece.shape, strict=True)
            )
            target = numbers[(*where, ...)]
            target[...] = piece[(*(slice(0, length) for length in target.shape), ...)]
    return numbers


def pieces(array_format: ArrayFormat, data: bytes, store: Store) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Yields (index, array) of the chunks in the bytes of a Zarr chunk: the chunk itself or, if it is a
    shard, the smaller chunks in it. The index is the position of the array's first element within the outer
    chunk.

    array_format: how the Zarr array is stored. data: the bytes of the chunk. store: limits the memory that
    reading takes. Raises `FileError` if a shard is cut off.
    """
    if array_format.inner is None:
        yield (0,) * len(array_format.shape), chunk(array_format, array_format.chunks, data, store)
        return
    counts = [outer // inner for outer, inner in zip(array_format.chunks, array_format.inner, strict=True)]
    size = 16 * math.prod(counts) + 4
    if math.prod(counts) > CHUNKS or size > len(data):
        raise FileError("a shard in it is cut off")
    listed = np.frombuffer(data, "<u8", (size - 4) // 8, len(data) - size).reshape(-1, 2)
    for chunk_index, (start, length) in zip(product(*map(range, counts)), listed.tolist(), strict=True):
        if start == length == NO_CHUNK:
            continue
        if start + length > len(data) - size:
            raise FileError("a shard in it lists a chunk beyond its end")
        corner = tuple(index * inner for index, inner in zip(chunk_index, array_format.inner, strict=True))
        yield corner, chunk(array_format, array_format.inner, data[start : start + length], store)


def chunk(array_format: ArrayFormat, shape: tuple[int, ...], data: bytes, store: Store) -> Array:
    """Decodes the bytes of one Zarr chunk to an array of a shape; raises `FileError` if it is damaged.

    array_format: of the whole array, with the compression to undo. store: the limit on memory, from which the
    chunk's bytes are counted off.
    """
    size = math.prod(shape) * array_format.kind.itemsize
    store.take(size, f"a chunk of {shape}")
    for method in reversed(array_format.packing):
        data = data[:-4] if method == "crc32c" else unpacked(data, method, size + 64)
    if len(data) != size:
        raise FileError(f"a chunk in it has {len(data)} bytes in place of {size}")
    numbers = np.frombuffer(
        data, array_format.kind if array_format.kind == BFLOAT16 else array_format.kind.newbyteorder("<")
    )
    return numbers.reshape(shape, order=cast(Any, array_format.order))


def format_of_zarr2(described: Object) -> ArrayFormat:
    """Returns the storage of a Zarr array (shape, chunks, dtype, compression), from the JSON of its
    description in Zarr 2; raises `FileError` for a form that is not read.
    """
    code, compressor = described.get("dtype"), described.get("compressor")
    kind = CODES.get(code.lstrip("<|") if isinstance(code, str) else "")
    if (
        described.get("zarr_format") != 2
        or described.get("filters")
        or kind is None
        or described.get("order") not in ("C", "F")
    ):
        raise FileError(
            f"it has an array of {str(code)[:50]!a} that is filtered, or of no dtype that is read"
        )
    packing = () if compressor is None else (str(fields(compressor).get("id")),)
    separator = str(described.get("dimension_separator", "."))
    check_fill_value(described.get("fill_value"))
    shape, chunks = shapes(described.get("shape"), described.get("chunks"))
    return ArrayFormat(shape, chunks, None, kind, packing, str(described["order"]), separator=separator)


def format_of_zarr3(described: Object) -> ArrayFormat:
    """Returns the storage of a Zarr array (shape, chunks, shards, dtype, compression), from the JSON of its
    description in Zarr 3; raises `FileError` for a form that is not read.
    """
    grid, encoding = fields(described.get("chunk_grid")), fields(described.get("chunk_key_encoding"))
    kind = KINDS.get(str(described.get("data_type")))
    if kind is None or grid.get("name") != "regular" or encoding.get("name") not in ("default", "v2"):
        raise FileError(
            f"it has an array of {str(described.get('data_type'))[:50]!a} or in chunks that are not read"
        )
    shape, chunks = shapes(described.get("shape"), fields(grid.get("configuration")).get("chunk_shape"))
    check_fill_value(described.get("fill_value"))
    codecs, inner = described.get("codecs"), None
    if isinstance(codecs, list) and len(cast("list[Any]", codecs)) == 1:
        shard = fields(cast("list[Any]", codecs)[0])
        if shard.get("name") == "sharding_indexed":
            inside = fields(shard.get("configuration"))
            _, inner = shapes(chunks, inside.get("chunk_shape"))
            if inside.get("index_location", "end") != "end" or any(
                a % b for a, b in zip(chunks, inner, strict=True)
            ):
                raise FileError("it has shards of a form that is not read")
            codecs = inside.get("codecs")
    listed = cast("list[Any]", codecs) if isinstance(codecs, list) and codecs else [None]
    names = [fields(codec) for codec in listed]
    if (
        names[0].get("name") != "bytes"
        or fields(names[0].get("configuration")).get("endian", "little") != "little"
    ):
        raise FileError("it has an array whose numbers are not plain bytes, the lowest first")
    separator = str(fields(encoding.get("configuration")).get("separator", "/"))
    front = f"c{separator}" if encoding["name"] == "default" and shape else "c" if not shape else ""
    packing = tuple(str(codec.get("name")) for codec in names[1:])
    return ArrayFormat(shape, chunks, inner, kind, packing, front=front, separator=separator)


def fields(value: Any) -> Mapping[str, Any]:
    """Returns a JSON value if it is an object, else an empty one, so that untrusted files raise no errors."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def check_fill_value(fill: Any) -> None:
    """Raises `FileError` if `fill`, the numbers of a Zarr array's missing chunks, is not zero."""
    if fill not in (None, 0, False):
        raise FileError(f"it has an array filled with {str(fill)[:50]!a}, and only zeros are read")


def shapes(shape: Any, chunks: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Converts the shapes of a Zarr array and of its chunks from JSON to tuples; raises `FileError` unless
    both are lengths, of equally many axes.
    """
    sizes: list[list[Any]] = [
        list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [None]
        for value in (shape, chunks)
    ]
    are_sizes = all(type(size) is int and 0 <= size < 1 << 48 for size in (*sizes[0], *sizes[1]))
    if not are_sizes or len(sizes[0]) != len(sizes[1]) or len(sizes[0]) > AXES or 0 in sizes[1]:
        raise FileError("it has an array without a shape and chunks that fit")
    return tuple(sizes[0]), tuple(sizes[1])
