"""The arrays of a checkpoint folder of Orbax by name, without JAX.

    _METADATA                           the tree: the keys that lead to every array
    manifest.ocdbt, d/...               usually all arrays in one store (`stepnet.layout.files.orbax.ocdbt`)
    encoder.cell.hn.kernel/.zarray      otherwise each array in a folder (`stepnet.layout.files.orbax.zarr`)

A step of a CheckpointManager holds several such folders, one per item, such as "default" or "state".

Source: orbax/checkpoint of Orbax 0.12: _src/metadata/tree.py, _src/serialization/ and checkpointers.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from stepnet.errors import FileError
from stepnet.layout.files import jsons
from stepnet.layout.files.model import Array
from stepnet.layout.files.orbax import zarr
from stepnet.layout.files.orbax.ocdbt import MANIFEST, Tree
from stepnet.layout.files.store import Store

METADATA = "_METADATA"
OLDER = "checkpoint"  # a file of Orbax before 0.4, beside or in place of the arrays


def read(path: str | Path) -> dict[str, Array]:
    """Reads the arrays of an Orbax checkpoint folder by name: the keys that lead to them, joined by "/".

    Raises `FileError`, with the path, for a folder that is missing, incomplete or foreign.
    """
    folder = Path(path)
    try:
        if is_item(folder):
            return arrays(folder)
        items = sorted(inner for inner in folder.iterdir() if inner.is_dir() and is_item(inner))
        if not items:
            older = f"; the file {OLDER} is of an older Orbax" if (folder / OLDER).exists() else ""
            raise FileError(f"this folder of Orbax holds no {MANIFEST} and no {METADATA}{older}")
        by_item = {inner.name: arrays(inner) for inner in items}
        if len(by_item) == 1:
            return next(iter(by_item.values()))
        return {f"{item}/{name}": array for item, held in by_item.items() for name, array in held.items()}
    except FileError as error:
        named = str(error).startswith(str(path))
        raise FileError(str(error) if named else f"{path}: {error}") from None
    except OSError as error:
        raise FileError(f"{path}: it cannot be read ({error.strerror or error})") from error


def is_item(folder: Path) -> bool:
    """Returns True if a folder holds a tree of arrays, as one item of an Orbax checkpoint does."""
    return (folder / MANIFEST).is_file() or (folder / METADATA).is_file()


def arrays(folder: Path) -> dict[str, Array]:
    """Reads the arrays of one tree in an Orbax checkpoint by name, from one store or from a subfolder for
    each; raises `FileError` if an array that the metadata lists is missing. folder: the folder of the tree.
    """
    names, required = tree(folder)
    store = Store(folder, 0)
    get = in_store(folder, store) if (folder / MANIFEST).is_file() else in_folders(folder, store)
    arrays_by_name: dict[str, Array] = {}
    for key, description, chunk in get:
        name = names.get(key, key.replace(".", "/"))
        if name in arrays_by_name:
            raise FileError(f"it has two arrays of the name {name[:100]!a}")
        arrays_by_name[name] = zarr.array(description, chunk, store)
    missing = required - arrays_by_name.keys()
    if missing:
        raise FileError(f"it does not hold the array {min(missing)[:100]!a} that its {METADATA} tells of")
    return arrays_by_name


def tree(folder: Path) -> tuple[dict[str, str], set[str]]:
    """Reads the metadata of a tree of arrays in a checkpoint. Returns the names of the arrays ("a/b") by the
    keys under which they are stored ("a.b"), and the names of the arrays that must exist; both are empty
    without metadata. folder: the folder of the tree.
    """
    if not (folder / METADATA).is_file():
        return {}, set()
    described = zarr.fields(jsons.read(folder / METADATA).get("tree_metadata"))
    names: dict[str, str] = {}
    required: set[str] = set()
    for entry in described.values():
        listed = zarr.fields(entry).get("key_metadata")
        keys = [str(zarr.fields(key).get("key")) for key in cast("list[Any]", listed)] if listed else []
        names[".".join(keys)] = "/".join(keys)
        kind = zarr.fields(zarr.fields(entry).get("value_metadata")).get("value_type")
        if kind in ("jax.Array", "np.ndarray"):
            required.add("/".join(keys))
    return names, required


Stored = Iterator[tuple[str, bytes, Callable[[str], bytes | None]]]


def in_store(folder: Path, store: Store) -> Stored:
    """Yields (key of the array, description, function from a chunk's key to its bytes) of each Zarr array in
    an OCDBT store. The description is the array's JSON.

    folder: the folder with the files of the store. store: limits the memory that reading takes.
    """
    keys = Tree(folder, store)
    items = dict(keys.items())

    def getter(path: str) -> Callable[[str], bytes | None]:
        """Returns a function that takes the key of a chunk of the Zarr array at `path` in the store and gives
        the chunk's bytes; None for a chunk that is missing.
        """

        def get(key: str) -> bytes | None:
            """Returns the bytes of the chunk `key` of a Zarr array; None if missing: zeros."""
            value = items.get(f"{path}/{key}")
            return None if value is None else keys.value(value)

        return get

    for key, value in sorted(items.items()):
        path, _, file = key.rpartition("/")
        if file in zarr.DESCRIPTIONS:
            yield path, keys.value(value), getter(path)


def in_folders(folder: Path, store: Store) -> Stored:
    """Yields (key of the array, description, function from a chunk's key to its bytes) of each Zarr array
    that has a subfolder of its own in `folder`. The key is the name of the subfolder, the description the
    array's JSON.

    store: limits the memory that reading takes.
    """

    def getter(array_key: Path) -> Callable[[str], bytes | None]:
        """Returns a function that takes the key of a chunk of the Zarr array in the folder `array_key` and
        gives the chunk's bytes; None for a chunk that is missing.
        """

        def get(key: str) -> bytes | None:
            """Reads the file of a chunk of the Zarr array, and counts its memory; None if it is missing,
            which means zeros. key: the path of the file in the array's folder.
            """
            path = array_key
            for name in key.split("/"):
                path = jsons.within(path, name)
            if not path.is_file():
                return None
            size = path.stat().st_size
            store.beside(str(path), size)
            store.take(size, f"{path.name}")
            return path.read_bytes()

        return get

    for inner in sorted(folder.iterdir()):
        described = [inner / name for name in zarr.DESCRIPTIONS if (inner / name).is_file()]
        if inner.is_dir() and described:
            data = getter(inner)(described[0].name)
            yield inner.name, data or b"", getter(inner)
