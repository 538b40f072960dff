"""The kinds of files that stepnet reads and writes.

A kind is a row of the table `FORMATS`: its endings, how it is read to a `Model`, and how modules are written.
What is read is known by its content, and by its ending where that does not tell; what is written, by its
ending alone.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from stepnet.errors import FileError
from stepnet.files import shards
from stepnet.files.checkpoint.file import is_checkpoint
from stepnet.files.contents import title_of
from stepnet.files.model import Array, Model, Module, among
from stepnet.files.paths import existing, free
from stepnet.files.store import at_most
from stepnet.layout.given import FLOATS
from stepnet.layout.options import option

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Format:
    """A kind of file: its title, the endings of its names, and its module in this package.

    frameworks: for a file of arrays by name, those whose layouts it has, the likeliest first; a kind without
    reads and writes modules itself. suffix: as for `among`. dtypes: of the weights that it can hold. asks:
    whether its reader takes what is said of layouts, as a file tells some of them alone. says: what a model
    of this kind says of a module's outputs, by the fields of `Module`. ordered: as for `Model`.
    """

    title: str
    endings: tuple[str, ...]
    module: str
    frameworks: tuple[str, ...] = ()
    prefix: str = "."  # between the name of a module and those of its arrays
    suffix: str = ""
    dtypes: tuple[str, ...] = FLOATS
    asks: bool = False
    says: tuple[str, ...] = ()
    ordered: bool = True

    @property
    def code(self) -> Any:
        """The module that reads and writes it."""
        return import_module(f"stepnet.files.{self.module}")

    @property
    def is_written(self) -> bool:
        """Whether there are new files of this kind."""
        return hasattr(self.code, "write")

    @property
    def of_arrays(self) -> bool:
        """Whether it says nothing of a module but what its arrays are called."""
        return bool(self.frameworks) or self.module == "raw"

    def tells(self, path: Path) -> bool:
        """Whether a new file of that name says how its layers run, and not their arrays alone."""
        return not self.of_arrays and not path.name.lower().endswith(WEIGHTS)

    def read(self, path: Path, layout: str | None, layouts: Mapping[str, str]) -> Model:
        """What a file holds; layout and layouts: as for `read` below."""
        model = self.contents(path, layout, layouts)
        return model if self.ordered else replace(model, ordered=False)

    def contents(self, path: Path, layout: str | None, layouts: Mapping[str, str]) -> Model:
        """What a file holds, in the order in which it is found there."""
        if not self.frameworks:
            model: Model = self.code.read(path, layout, layouts) if self.asks else self.code.read(path)
            for module in model.modules:
                printable(path, [module.name, *module.arrays, *module.names.values()], "a layer or an array")
            printable(path, model.rest)
            return model
        whole = self.code.held(path) if hasattr(self.code, "held") else None
        arrays = whole.arrays if whole else self.code.read(path)
        printable(path, arrays)
        said = {"settings": whole.settings, "classes": whole.classes} if whole else {}
        printable(path, said.get("classes", {}).values(), "a layer's class")
        return among(str(path), arrays, self.frameworks, layout, layouts, suffix=self.suffix, **said)

    def write(self, path: Path, modules: tuple[Module, ...], rest: Arrays, force: bool) -> None:
        """Writes modules, and other arrays under their own names."""
        for name in {array.dtype.name for module in modules for array in module.arrays.values()}:
            if name in FLOATS and name not in self.dtypes:
                raise FileError(
                    f"{path}: these weights are {name}, and a {self.title} file holds "
                    f"{' or '.join(self.dtypes)}: {option('dtype', dtype=self.dtypes[0])} converts them"
                )
        if not self.frameworks:
            self.code.write(path, modules, dict(rest), force)
            return
        arrays: dict[str, Array] = {}
        for module in modules:
            front = self.front(module) if len(modules) > 1 or rest else ""
            add(path, arrays, {front + name: array for name, array in module.arrays.items()})
        add(path, arrays, rest)
        printable(path, arrays)
        self.code.write(path, arrays, force)

    def front(self, module: Module) -> str:
        """What stands before the names of a module's arrays, if anything does: its name and a sign.

        A last part that the layout may read as the place of a layer or direction is made part of a name, of
        however many layers and directions this one is: cells/0 is cells_0, 0 is layer_0, and both/forward is
        both/forward_layer, as Keras calls it.
        """
        sign = "." if any("." in name for name in module.arrays) else self.prefix
        name = WAY.sub(r"\1_layer", PLACE.sub(r"_\1", "_".join(module.bare)))
        if name and module.record.takes_for_place(name + sign):
            *before, last = re.split("[./]", name)
            number = f"{name[: -len(last) - 1] if before else 'layer'}_{last}"
            name = number if last.isdigit() else f"{name}_layer"
        return f"{name}{sign}" if name else ""


WEIGHTS = (".h5", ".hdf5")  # what Keras loads into a model that is there
TORCH = (".pt", ".pth", ".bin", ".pth.tar", ".th", ".tar", ".pkl", ".model")
FORMATS = (
    Format("model in shards", (".index.json",), "shards", ("torch", "candle", "mlx"), ordered=False),
    Format("PyTorch", TORCH, "pickles.torch", ("torch",)),
    Format("PyTorch export", (".pt2",), "pickles.exported", ("torch",)),
    Format(
        "PyTorch distributed checkpoint",
        (".distcp", ".metadata"),
        "pickles.distributed",
        ("torch",),
        ordered=False,
    ),
    Format("NeMo", (".nemo",), "pickles.nemo", ("torch",)),
    Format("safetensors", (".safetensors",), "safetensors", ("torch", "candle", "mlx"), ordered=False),
    Format(
        "Keras",
        (".keras", ".h5", ".hdf5"),
        "keras.modules",
        dtypes=("float32", "float16", "float64"),
        asks=True,
        says=("last_only", "returned"),
    ),
    Format("ONNX", (".onnx",), "onnx.modules", dtypes=("float32", "float64"), says=("last_only", "states")),
    Format("TFLite", (".tflite",), "tflite.modules", dtypes=("float32",)),
    Format("Core ML", (".mlpackage", ".mlmodel"), "coreml"),
    Format("OpenVINO", (".xml",), "openvino.modules"),
    Format(
        "NumPy",
        (".npz",),
        "npz",
        ("stepnet", "torch", "keras", "haste", "chainer"),
        "/",
        dtypes=("float32", "float16", "float64"),
    ),
    Format("Flax", (".msgpack",), "flax", ("flax", "nnx"), "/", ordered=False),
    Format("Orbax", (), "orbax.file", ("flax", "nnx"), "/", "/value", ordered=False),
    Format("PaddlePaddle", (".pdparams",), "pickles.paddle", ("paddle",)),
    Format("MXNet", (".params",), "mxnet", ("mxnet",), "_"),
    Format("TensorFlow checkpoint", (".index", ".ckpt"), "checkpoint.modules", asks=True, ordered=False),
    Format("TensorFlow SavedModel", (".pb",), "checkpoint.saved_model", asks=True, ordered=False),
    Format("raw buffers", (".json",), "raw"),
)
BY_TITLE = {form.title: form for form in FORMATS}
PLACE, WAY = re.compile(r"/(\d+)$"), re.compile(r"(?<=/)(forward|backward)$")
NAME = 1000  # characters of an array's name


def kind(path: Path) -> Format:
    """The kind of a file that is read: by its content, or by its ending where that does not tell.

    Raises `FileError` where neither does.
    """
    if shards.index_of(path) is not None:
        return BY_TITLE["model in shards"]
    if path.name.endswith(BY_TITLE["PyTorch distributed checkpoint"].endings):  # each looks like a file alone
        return BY_TITLE["PyTorch distributed checkpoint"]
    title = title_of(path) if path.exists() else None
    return BY_TITLE[title] if title else by_ending(path)


def by_ending(path: Path, new: bool = False) -> Format:
    """The kind of a file by its name; raises `FileError` for an ending that no kind has, or no new file."""
    name = path.name.lower()
    if name.endswith(".bin") and path.with_suffix(".json").exists():
        return BY_TITLE["raw buffers"]
    if name.endswith(".bin") and path.with_suffix(".xml").exists():
        return BY_TITLE["OpenVINO"]
    for form in FORMATS:
        if name.endswith(form.endings):
            return form
    if ".ckpt" in name or is_checkpoint(path):
        return BY_TITLE["TensorFlow checkpoint"]
    forms = [form for form in FORMATS if not new or form.is_written]
    known = ", ".join(ending for form in forms for ending in form.endings)
    raise FileError(f"{path}: no kind of {'new file' if new else 'file'} has this ending; there are {known}")


def read(
    path: str | Path,
    layout: str | None = None,
    layouts: Mapping[str, str] | None = None,
    *,
    most: int | None = None,
) -> Model:
    """The recurrent modules of a model file, and its other arrays.

    layout: the layout to look for, or the framework that wrote the file, where names do not say that or fit
    several. layouts: the same for modules by their names. most: bytes of memory that the file may take, in
    place of 64 MiB and 8 times its size. Raises `FileError`, with the path, for a file that is missing,
    truncated or foreign.

    >>> read("model.pt")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.pt: there is no such file
    """
    path = Path(path)
    is_model = os.path.isdir(path) and title_of(path)
    if not is_model and not os.path.exists(f"{path}.index"):  # a checkpoint is several files
        path = existing(path)
    with at_most(most):
        return kind(path).read(path, layout, layouts or {})


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
    one = by_ending(free(path, force), new=True)
    if not one.is_written:
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
