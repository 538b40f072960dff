"""The kinds of files that stepnet reads and writes, by the endings of their names.

A kind is a row of the table `FORMATS`: its endings, how it is read to a `Model`, and how modules are written.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from stepnet.errors import FileError
from stepnet.files.checkpoint.file import is_checkpoint
from stepnet.files.model import Array, Model, Module, among
from stepnet.files.paths import existing, free
from stepnet.files.store import at_most

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Format:
    """A kind of file: its title, the endings of its names, and its module in this package.

    frameworks: for a file of arrays by name, those whose layouts it has, the likeliest first; a kind without
    reads and writes modules itself. suffix, mark: as for `among`.
    """

    title: str
    endings: tuple[str, ...]
    module: str
    frameworks: tuple[str, ...] = ()
    prefix: str = "."  # between the name of a module and those of its arrays
    suffix: str = ""
    mark: str = ""

    @property
    def code(self) -> Any:
        """The module that reads and writes it."""
        return import_module(f"stepnet.files.{self.module}")

    @property
    def of_arrays(self) -> bool:
        """Whether it says nothing of a module but what its arrays are called."""
        return bool(self.frameworks) or self.module == "raw"

    def read(self, path: Path, layout: str | None) -> Model:
        """What a file holds; `layout` is the only one to look for."""
        if not self.frameworks:
            model: Model = self.code.read(path)
            for module in model.modules:
                printable(path, [module.name, *module.arrays, *module.names.values()], "a layer or an array")
            printable(path, model.rest)
            return model
        arrays = self.code.read(path)
        printable(path, arrays)
        return among(str(path), arrays, self.frameworks, layout, suffix=self.suffix, mark=self.mark)

    def write(self, path: Path, modules: tuple[Module, ...], rest: Arrays, force: bool) -> None:
        """Writes modules, and other arrays under their own names."""
        if not self.frameworks:
            self.code.write(path, modules, dict(rest), force)
            return
        arrays: dict[str, Array] = {}
        for module in modules:
            front = prefix(module, len(modules) > 1 or bool(rest), self.prefix)
            add(path, arrays, {front + name: array for name, array in module.arrays.items()})
        add(path, arrays, rest)
        printable(path, arrays)
        self.code.write(path, arrays, force)


FORMATS = (
    Format("PyTorch", (".pt", ".pth", ".bin"), "pickles.torch", ("torch",)),
    Format("safetensors", (".safetensors",), "safetensors", ("torch", "candle", "mlx")),
    Format("Keras", (".keras", ".h5", ".hdf5"), "keras.modules"),
    Format("ONNX", (".onnx",), "onnx.modules"),
    Format("TFLite", (".tflite",), "tflite.modules"),
    Format("NumPy", (".npz",), "npz", ("stepnet", "torch", "keras", "chainer"), "/"),
    Format("Flax", (".msgpack",), "flax", ("flax", "nnx"), "/"),
    Format("PaddlePaddle", (".pdparams",), "pickles.paddle", ("paddle",)),
    Format("MXNet", (".params",), "mxnet", ("mxnet",), "_"),
    Format(
        "TensorFlow checkpoint",
        (".index", ".ckpt"),
        "checkpoint.file",
        ("tf1", "keras2"),
        "/",
        "/.ATTRIBUTES/VARIABLE_VALUE",  # behind each name that TensorFlow 2 saves
        "cell",  # kernel and bias are names of many other layers too
    ),
    Format("raw buffers", (".json",), "raw"),
)
NAME = 1000  # characters of an array's name


def kind(path: Path) -> Format:
    """The kind of a file, by its name; raises `FileError` for an ending that is none."""
    name = path.name.lower()
    if name.endswith(".bin") and path.with_suffix(".json").exists():
        return FORMATS[-1]
    if name.endswith(".ckpt") and is_zipfile(path):  # PyTorch Lightning calls its checkpoints so
        return FORMATS[0]
    for one in FORMATS:
        if name.endswith(one.endings):
            return one
    if ".ckpt" in name or is_checkpoint(path):
        return next(one for one in FORMATS if one.title == "TensorFlow checkpoint")
    known = ", ".join(ending for one in FORMATS for ending in one.endings)
    raise FileError(f"{path}: what kind of file this is tells its ending, which is one of {known}")


def read(path: str | Path, layout: str | None = None, *, most: int | None = None) -> Model:
    """The recurrent modules of a model file, and its other arrays.

    layout: the layout to look for, where names and shapes fit several. most: bytes of memory that the file
    may take, in place of 64 MiB and 8 times its size. Raises `FileError`, with the path, for a file that is
    missing, truncated or foreign.

    >>> read("model.pt")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.pt: there is no such file
    """
    path = Path(path)
    if not os.path.exists(f"{path}.index"):  # a checkpoint is several files
        path = existing(path)
    with at_most(most):
        return kind(path).read(path, layout)


def write(
    path: str | Path, modules: tuple[Module, ...], rest: Arrays | None = None, *, force: bool = False
) -> None:
    """Writes modules to a new file, of the kind that its ending says.

    A file of arrays by name has them as one module would have them alone, and behind the names of the modules
    where there are several, or other arrays. Raises `FileError` where there is one already, unless `force`.
    """
    writable(path, force).write(Path(path), modules, rest or {}, force)


def writable(path: str | Path, force: bool = False) -> Format:
    """The kind of a file that is to be written; raises `FileError` where that cannot be."""
    one = kind(free(path, force))
    if not hasattr(one.code, "write"):
        raise FileError(f"{path}: a {one.title} is read, and not written")
    return one


def add(path: Path, arrays: dict[str, Array], more: Arrays) -> None:
    """Adds arrays to others; raises `FileError` where two would have one name."""
    for name, array in more.items():
        if name in arrays:
            raise FileError(f"{path}: two arrays would be called {name!r}")
        arrays[name] = array


def printable(path: Path, names: Iterable[str], what: str = "an array") -> None:
    """Raises `FileError` for a name that cannot be printed, or would fill the screen."""
    for name in names:
        if not name.isprintable():
            raise FileError(f"{path}: {what} has the name {name[:100]!a}, which cannot be printed")
        if len(name) > NAME:
            raise FileError(f"{path}: {what} has a name of more than {NAME} characters")


def prefix(module: Module, several: bool, separator: str) -> str:
    """What stands before the names of a module's arrays."""
    name = module.name.rstrip("./_ ").replace(" + ", "_")
    return f"{name}{separator}" if several and name else ""
