"""The results of FlashRNN's functions without a GPU, for one head."""

import importlib.metadata
import importlib.util
import sys

import torch
from case import HIDDEN, INPUTS, ROWS, STEPS, case, random, save

GATES = {"rnn": (1, 1, 1, "elman"), "gru": (3, 4, 1, "gru"), "lstm": (4, 4, 2, "lstm")}


def vanilla():
    """The package's module of plain functions; the package itself asks for a GPU when imported."""
    root = next(
        file for file in importlib.metadata.files("flashrnn") if str(file).endswith("vanilla/__init__.py")
    )
    path = root.locate()
    spec = importlib.util.spec_from_file_location(
        "vanilla", path, submodule_search_locations=[str(path.parent)]
    )
    module = sys.modules["vanilla"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def from_function(cell):
    gates, biases, states, name = GATES[cell]
    x = random(ROWS, STEPS, INPUTS)
    arrays = {
        "W": random(gates, 1, HIDDEN, INPUTS),
        "R": random(gates, 1, HIDDEN, HIDDEN),
        "b": random(biases, 1, HIDDEN),
    }
    given = torch.einsum("bti,ghdi->tbghd", torch.from_numpy(x), torch.from_numpy(arrays["W"]))
    recurrent = torch.from_numpy(arrays["R"]).permute(1, 3, 0, 2).contiguous()  # GHDP is HPGD inside
    zeros = torch.zeros(1, ROWS, states, 1, HIDDEN)
    functions = vanilla()
    pointwise = functions.flashrnn_pointwise_function_registry[name]
    found, _ = functions.flashrnn_forward(given, zeros, recurrent, torch.from_numpy(arrays["b"]), pointwise)
    return case("flashrnn." + cell, arrays, x, found[:, :, 0, 0].permute(1, 0, 2).numpy())


if __name__ == "__main__":
    save([from_function(cell) for cell in GATES], {"flashrnn": importlib.metadata.version("flashrnn")})
