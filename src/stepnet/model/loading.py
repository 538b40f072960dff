"""Loads the model in a file; the graph of an .onnx file that an earlier process read needs none."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepnet.compiler.disk.model_files import small_contents
from stepnet.compiler.values.arguments import LIBRARY, advised, is_any, path_text
from stepnet.compiler.values.collector import paused_collector
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.model.ready import ONNX, loaded
from stepnet.model.stored import ENDING

if TYPE_CHECKING:
    from pathlib import Path


@advised(trust=LIBRARY)
def load(
    path: "str | Path",
    *,
    recurrent_only: bool = False,
    layout: str | None = None,
    module: str | None = None,
    steps: str | None = None,
    axes: Mapping[str, str] | None = None,
) -> Any:
    """Loads the model in a file, ready to run: everything that the file computes.

    Args:
        path: The file. `.stepnet` files are models as `Model.save` wrote them. `.onnx` files and programs of
            PaddlePaddle are read whole, and so are files of torch.export, Keras, TFLite and OpenVINO whose
            layers are all supported. Files of other kinds are read if they specify that their model consists
            of recurrent layers alone.
        recurrent_only: Whether to read only the recurrent layers of a file, as if they stood in a row, and to
            leave out everything else.
        layout: The layout of the layers, or the framework that wrote the file, if the file does not specify
            it.
        module: The name of the only recurrent layer to read; implies `recurrent_only`.
        steps: "any" to state that no number in the file depends on the number of steps. A file that fixes
            this number is run over sequences of other lengths only if it has no number that may have been
            computed from it, or if you say so.
        axes: The meaning of the axes of inputs by name, as {"x": "NT"}, where the operators of a file of
            ONNX, torch.export or PaddlePaddle do not determine it; see `stepnet.onnx.load`.

    Returns:
        A `Graph`, an `RNN`, a `Stack` or a `Bidirectional`.

    Raises:
        FileError: For a file that cannot be read.
        LayoutError: For a file with other layers, which are named, and for one that holds weights and no
            architecture, unless `recurrent_only`.
        ModelError: For operators that are not supported, and for a `.stepnet` file whose parts do not fit
            together.
        InputError: For axes that do not fit, or of a file of another kind.

    >>> load("model.onnx")
    Traceback (most recent call last):
    stepnet.errors.FileError: model.onnx: there is no such file
    """
    any_steps, file = is_any(steps), path_text(path, "model")
    ending = os.path.splitext(file)[1]
    is_onnx = ending.lower() == ONNX and not recurrent_only and layout is module is None
    is_plain = not (recurrent_only or any_steps) and axes is layout is module is None
    if is_plain and (is_onnx or ending == ENDING) and (contents := small_contents(file)) is not None:
        read = read_onnx if is_onnx else read_stored
        return loaded(ONNX if is_onnx else ENDING, contents, lambda: read(file, contents))
    if is_onnx:
        with IMPORTS, paused_collector():  # late: a file of another kind needs none of it
            from stepnet.onnx import load as load_onnx
        return load_onnx(file, axes=axes, steps=steps)
    if is_plain and ending == ENDING:
        return read_stored(file, None)
    with IMPORTS, paused_collector():  # late: they take longer than to load an .onnx file
        from stepnet.layout.files.choice import LayoutChoice
        from stepnet.model.file import load_model
    return load_model(path, recurrent_only, LayoutChoice(layout=layout, module=module), axes, any_steps)


def read_onnx(file: str, contents: bytes) -> Any:
    """Returns the graph of an .onnx file. file, contents: its path, and its bytes."""
    with IMPORTS, paused_collector():
        from stepnet.onnx.kept import load_contents
    return load_contents(file, contents, {}, False)


def read_stored(file: str, contents: bytes | None) -> Any:
    """Returns the model of a .stepnet file. contents: its bytes; None if they are many, or not kept."""
    with IMPORTS, paused_collector():
        from stepnet.model.stored.kept import load_contents
    return load_contents(file, contents)
