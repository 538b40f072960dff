"""Models of torch.export in the corpus (.pt2), with what PyTorch gives.

    python tests/conformance/whole/make_pt2.py [NAME ...]

Without names it writes the archive saved/pt2.tar.xz and its list; with names it only tries these models.
"""

# pyright: basic, reportPrivateImportUsage=false

import io
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch_modules as modules
from drawn_inputs import COUNTS, STEPS, Input, batch, real, record, tokens
from recording import Recorder, Run
from torch import nn
from torch.export import Dim
from torch.utils import _pytree


@dataclass(frozen=True)
class Export:
    """A module to export: what makes it, its inputs, and the steps of the calls."""

    module: Callable[[], nn.Module]
    inputs: Mapping[str, Input]
    steps: tuple[int, int, int] = STEPS


EXPORTS = {
    "tagger": Export(modules.Tagger, {"tokens": tokens("N T", 30)}),
    "reversed": Export(modules.Reversed, {"x": real("N T 4")}),
    "einsum_pooling": Export(modules.EinsumPooling, {"x": real("N T 5")}),
    "gated_linear": Export(modules.GatedLinear, {"tokens": tokens("N T", 25)}),
    "enhancer": Export(modules.Enhancer, {"spectrum": real("N 4 T")}, (12, 8, 16)),
    "statistics": Export(modules.Statistics, {"features": real("N T 6")}, (14, 12, 19)),
    "separator": Export(modules.Separator, {"mixture": real("N 6 T")}),
    "residual": Export(modules.Residual, {"x": real("N T 5")}),
    "stream": Export(modules.Stream, {"x": real("N T 5"), "h": real("2 N 8"), "c": real("2 N 8")}),
    "attending": Export(modules.Attending, {"x": real("N T 5")}),
    "squeezed_spotter": Export(modules.SqueezedSpotter, {"features": real("N 8 T")}, (12, 8, 17)),
    "autoregressive": Export(modules.Autoregressive, {"target": real("N T", 5), "covariates": real("N T 3")}),
    "sentence_pair": Export(
        modules.SentencePair, {"premise": tokens("N T", 30), "hypothesis": tokens("N U", 30)}
    ),
    "masked_mean": Export(modules.MaskedMean, {"x": real("N T 5"), "lengths": COUNTS}),
    "projected": Export(modules.Projected, {"x": real("N T 5")}),
    "cbhg": Export(modules.CBHG, {"x": real("N T 6")}),
    "pyramidal": Export(modules.PyramidalEncoder, {"x": real("N T 4")}, (8, 6, 12)),
    "unrolled": Export(modules.Unrolled, {"x": real("N T5 4")}),
    "text_cnn": Export(modules.TextCNN, {"tokens": tokens("N T", 40)}),
    "autoencoder": Export(modules.Autoencoder, {"x": real("N T 4")}),
}


def exported(export: Export) -> tuple[bytes, nn.Module]:
    """Exports a module; returns the bytes of the file, and the module."""
    torch.manual_seed(0)
    module = modules.with_statistics(export.module())
    example = {name: torch.from_numpy(array) for name, array in batch(export.inputs, export.steps[0]).items()}
    sizes: dict[str, Any] = {"N": Dim("batch", max=1000), "T": Dim.AUTO, "U": Dim.AUTO}
    shapes = tuple(
        {number: sizes[axis] for number, axis in each.open.items()} for each in export.inputs.values()
    )
    program = torch.export.export(module, tuple(example.values()), dynamic_shapes=shapes)
    stream = io.BytesIO()
    torch.export.save(program, stream)
    return stream.getvalue(), module


def runs(module: nn.Module) -> Run:
    """A function that runs a module; outputs are named by their places, as "0" or "states.1"."""

    def run(arrays):
        with torch.no_grad():
            outputs = module(*(torch.from_numpy(array) for array in arrays.values()))
        leaves, _ = _pytree.tree_flatten_with_path(outputs)
        return {named(path): np.asarray(leaf) for path, leaf in leaves}

    return run


def named(path) -> str:
    """The name of a place in a structure."""
    return ".".join(str(getattr(key, "key", getattr(key, "idx", ""))) for key in path) or "0"


if __name__ == "__main__":
    recorder = Recorder("pt2", f"torch {torch.__version__}")
    for name in sys.argv[1:] or EXPORTS:
        export = EXPORTS[name]
        data, module = exported(export)
        (recorder.folder / f"{name}.pt2").write_bytes(data)
        about = (module.__doc__ or "").partition("\n")[0].removesuffix(".")
        record(recorder, name, f"{name}.pt2", about, export.inputs, runs(module), export.steps)
    if len(sys.argv) == 1:
        recorder.pack()
