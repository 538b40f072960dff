"""The kinds of files that stepnet reads and writes.

A kind is a row of the table `FORMATS`: its endings, how it is read to a `FileContents`, and how modules are
written. The kind of an existing file is recognised by its content, else by its ending; that of a new file by
its ending.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError
from stepnet.layout.arguments import FLOATS
from stepnet.layout.files import shards
from stepnet.layout.files.checkpoint.file import is_checkpoint
from stepnet.layout.files.contents import is_paddle_program, title_of
from stepnet.layout.files.model import Array, FileContents, Module, among
from stepnet.layout.files.paths import existing, free
from stepnet.layout.files.store import at_most
from stepnet.layout.options import option
from stepnet.model.graph.graph import Graph

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Attributes:
        title: The name of the kind in messages.
        endings: The endings of its file names.
        module: The module of this package that reads and writes it.
        frameworks: For a file of arrays by name: the frameworks whose layouts it may have, the most likely
            first. Empty for a kind whose code reads and writes modules itself.
        prefix: The separator between the name of a module and those of its arrays.
        suffix: A suffix that array names may have, which is no part of the layouts' names.
        dtypes: The dtypes of weights that it can hold.
        asks: Whether its reader takes the layouts that the user states, because files do not specify all.
        says: The fields of `Module` about outputs that a model of this kind can express.
        ordered: Whether its modules are in the order of the program that saved them, not sorted by name.
        whole: The module of this package that reads whole models, if there is one.
    """

    title: str
    endings: tuple[str, ...]
    module: str
    frameworks: tuple[str, ...] = ()
    prefix: str = "."
    suffix: str = ""
    dtypes: tuple[str, ...] = FLOATS
    asks: bool = False
    says: tuple[str, ...] = ()
    ordered: bool = True
    whole: str = ""

    @property
    def code(self) -> Any:
        """The Python module that reads and, if it has a function `write`, writes model files of this kind."""
        with IMPORTS:
            return import_module(f"stepnet.layout.files.{self.module}")

    def graph(self, path: Path, **stated: Any) -> Graph | None:
        """Reads a model file as a graph of everything that it computes. Returns None if files of this kind
        are not read whole, or if the file has a layer or operator that stepnet does not have.

        stated: what the user states of the file: `any_steps`, whether no number in it depends on the number
        of steps that it fixes, and of a file of torch.export `axes`, the axes of inputs by name.
        """
        if not self.whole:
            return None
        with IMPORTS:
            reader = import_module(f"stepnet.layout.files.{self.whole}")
        return reader.graph(path, **{name: value for name, value in stated.items() if value})

    def unsupported(self, path: Path, names: Sequence[str]) -> list[str]:
        """Lists the layers or operators of a model file for which there is no row; none for a file of a kind
        that is not read whole, and for one that is not read whole for another reason.

        names: all other layers than recurrent ones, by name and kind.
        """
        if not self.whole:
            return []
        with IMPORTS:
            reader = import_module(f"stepnet.layout.files.{self.whole}")
        return reader.unsupported(path, names) if hasattr(reader, "unsupported") else []

    @property
    def is_written(self) -> bool:
        """True if stepnet can write model files of this kind, and not only read them."""
        return hasattr(self.code, "write")

    @property
    def of_arrays(self) -> bool:
        """True if files of this kind hold arrays by name, and do not say how modules run."""
        return bool(self.frameworks) or self.module == "raw"

    def is_model(self, path: Path) -> bool:
        """Returns True if files with such a name describe the computation, and do not only hold weights."""
        return not self.of_arrays and not path.name.lower().endswith(WEIGHTS)

    def read(self, path: Path, layout: str | None, layouts: Mapping[str, str]) -> FileContents:
        """Reads a model file of this kind as modules (recurrent layers) and other arrays, and marks the
        modules as not ordered if such files do not keep their order. layout, layouts: the layout (a
        framework's arrangement of weights) that the user states, for all modules and for modules by name.
        """
        model = self.contents(path, layout, layouts)
        return model if self.ordered else replace(model, ordered=False)

    def contents(self, path: Path, layout: str | None, layouts: Mapping[str, str]) -> FileContents:
        """Reads a model file of this kind as modules (recurrent layers) and other arrays. Raises `FileError`
        for names that cannot be printed.

        layout, layouts: the layout (a framework's arrangement of weights) that the user states for all
        modules, and for modules by name.
        """
        if not self.frameworks:
            model: FileContents = self.code.read(path, layout, layouts) if self.asks else self.code.read(path)
            for module in model.modules:
                printable(path, [module.name, *module.arrays, *module.names.values()], "a layer or an array")
            printable(path, model.rest)
            return model
        held = self.code.held(path) if hasattr(self.code, "held") else None
        arrays = held.arrays if held else self.code.read(path)
        printable(path, arrays)
        described: dict[str, Any] = {}
        if held:
            described = {"settings": held.settings, "classes": held.classes, "unspecified": held.unspecified}
            printable(path, [*held.classes.values(), held.unspecified], "a layer or its class")
        model = among(str(path), arrays, self.frameworks, layout, layouts, suffix=self.suffix, **described)
        model = held.wired(model) if held else model
        printable(path, [*model.layers, *model.entrances], "a layer or an input")
        return model

    def write(self, path: Path, modules: tuple[Module, ...], rest: Arrays, force: bool) -> None:
        """Writes modules (recurrent layers) to a new model file of this kind, and the arrays `rest` under
        their own names. Raises `FileError` for dtypes that such a file cannot hold, and for two arrays of one
        name.
        """
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
        """Returns the prefix of the names of the arrays of a module (recurrent layer) in a new file: the
        module's name and a separator; "" if it has no name.

        If the layout (a framework's arrangement of weights) would read the last part of the name as the
        number of a layer or as a direction, that part is changed: cells/0 becomes cells_0, 0 becomes layer_0,
        and both/forward becomes both/forward_layer, the name that Keras uses.
        """
        sign = "." if any("." in name for name in module.arrays) else self.prefix
        name = WAY.sub(r"\1_layer", PLACE.sub(r"_\1", "_".join(module.bare)))
        if name and module.record.reads_as_index(name + sign):
            *before, last = re.split("[./]", name)
            number = f"{name[: -len(last) - 1] if before else 'layer'}_{last}"
            name = number if last.isdigit() else f"{name}_layer"
        return f"{name}{sign}" if name else ""


WEIGHTS = (".h5", ".hdf5")  # Keras loads these into an existing model
TORCH = (".pt", ".pth", ".bin", ".pth.tar", ".th", ".tar", ".pkl", ".model")
FORMATS = (
    Format("model in shards", (".index.json",), "shards", ("torch", "candle", "mlx"), ordered=False),
    Format("PyTorch", TORCH, "pickles.torch", ("torch",)),
    Format("PyTorch export", (".pt2",), "pickles.exported", ("torch",), whole="pickles.export_whole"),
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
        whole="keras.whole",
    ),
    Format("ONNX", (".onnx",), "onnx.modules", dtypes=("float32", "float64"), says=("last_only", "states")),
    Format("TFLite", (".tflite",), "tflite.modules", dtypes=("float32",), whole="tflite.whole"),
    Format("Core ML", (".mlpackage", ".mlmodel"), "coreml"),
    Format("OpenVINO", (".xml",), "openvino.modules", whole="openvino.whole"),
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
BY_TITLE = {file_format.title: file_format for file_format in FORMATS}
PLACE, WAY = re.compile(r"/(\d+)$"), re.compile(r"(?<=/)(forward|backward)$")
OF_MODELS = (".stepnet", ".pdmodel")  # of files that are read whole, and never as arrays
NAME = 1000  # the most characters of a name


def kind(path: Path) -> Format:
    """Returns the kind (format) of an existing file: by its content, else by its ending.

    Raises `FileError` if both are unknown.
    """
    if shards.index_of(path) is not None:
        return BY_TITLE["model in shards"]
    if path.name.endswith(
        BY_TITLE["PyTorch distributed checkpoint"].endings
    ):  # each file of it looks like another kind
        return BY_TITLE["PyTorch distributed checkpoint"]
    title = title_of(path) if path.exists() else None
    return BY_TITLE[title] if title else by_ending(path)


def by_ending(path: Path, new: bool = False) -> Format:
    """Returns the kind (format) of a file by the ending of its name; raises `FileError` for an unknown
    ending, and for a `new` file of a kind that is not written.
    """
    name = path.name.lower()
    if name.endswith(".bin") and path.with_suffix(".json").exists():
        return BY_TITLE["raw buffers"]
    if name.endswith(".bin") and path.with_suffix(".xml").exists():
        return BY_TITLE["OpenVINO"]
    for file_format in FORMATS:
        if name.endswith(file_format.endings):
            return file_format
    if ".ckpt" in name or is_checkpoint(path):
        return BY_TITLE["TensorFlow checkpoint"]
    candidates = [file_format for file_format in FORMATS if not new or file_format.is_written]
    endings = [*(() if new else OF_MODELS), *(each for one in candidates for each in one.endings)]
    known = ", ".join(endings)
    raise FileError(f"{path}: no kind of {'new file' if new else 'file'} has this ending; there are {known}")


def read(
    path: str | Path,
    layout: str | None = None,
    layouts: Mapping[str, str] | None = None,
    *,
    most: int | None = None,
) -> FileContents:
    """Reads the recurrent modules of a model file, and its other arrays.

    layout: the layout (a framework's arrangement of weights) to look for, or the framework that wrote the
    file, if names and shapes fit several or none. layouts: the layouts of single modules, by name. most: the
    bytes of memory that the file may take; by default 64 MiB and 8 times its size. Raises `FileError`, with
    the path, for a file that is missing, truncated or foreign.

    >>> read("model.pt")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.pt: there is no such file
    """
    path = Path(path)
    is_model = os.path.isdir(path) and title_of(path)
    if not is_model and not os.path.exists(f"{path}.index"):  # a checkpoint is several files
        path = existing(path)
    if is_paddle_program(path):
        raise FileError(
            f"{path}: it is a program of PaddlePaddle, which is run whole, and its recurrent layers cannot "
            "be taken alone: paddle.save(model.state_dict(), 'm.pdparams') writes a file of which they can"
        )
    with at_most(most):
        return kind(path).read(path, layout, layouts or {})


def write(
    path: str | Path, modules: tuple[Module, ...], rest: Arrays | None = None, *, force: bool = False
) -> None:
    """Writes modules (recurrent layers) to a new file, of the kind that its ending specifies.

    In a file of arrays, the names of arrays have the name of their module as a prefix if there are several
    modules or other arrays (`rest`). Raises `FileError` if the file exists, unless `force`.
    """
    writable(path, force).write(Path(path), modules, rest or {}, force)


def writable(path: str | Path, force: bool = False) -> Format:
    """Returns the kind (format) of a new file, by its ending; raises `FileError` if it cannot be written."""
    file_format = by_ending(free(path, force), new=True)
    if not file_format.is_written:
        raise FileError(f"{path}: stepnet reads {file_format.title} files, and does not write them")
    return file_format


def add(path: Path, arrays: dict[str, Array], more: Arrays) -> None:
    """Adds the arrays `more` to `arrays`, by name; raises `FileError` if two would have the same name."""
    for name, array in more.items():
        if name in arrays:
            raise FileError(f"{path}: two arrays would be called {name!r}")
        arrays[name] = array


def printable(path: Path, names: Iterable[str], what: str = "an array") -> None:
    """Raises `FileError` for a name that is unprintable or too long for messages; what: the named thing."""
    for name in names:
        if not name.isprintable():
            raise FileError(f"{path}: {what} has the name {name[:100]!a}, which cannot be printed")
        if len(name) > NAME:
            raise FileError(f"{path}: {what} has a name of more than {NAME} characters")
