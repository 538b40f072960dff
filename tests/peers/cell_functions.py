"""What functions of other libraries give for the inputs of cells: flash-linear-attention and transformers.

Called with the path of a file of inputs, and that of a file to write, which holds the inputs too. Arrays are
called cell|part|name, where part is x, memory or params, and then output or final. Only functions in plain
PyTorch are run.
"""

import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers.models.mamba import modeling_mamba as mamba_module
from transformers.models.mamba2 import modeling_mamba2 as mamba2_module


def naive(path):
    """A module of the library's plain functions, by its file: the package itself needs a GPU's compiler."""
    (root,) = importlib.util.find_spec("fla").submodule_search_locations
    file = Path(root, "ops", f"{path}.py")
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def heads_first(x):
    """[rows, steps, heads, ...] as [rows, heads, steps, ...]."""
    return {name: array.transpose(1, 2) for name, array in x.items()}


def unscaled(q):
    """A query for functions that divide it by the root of its size."""
    return q * q.shape[-1] ** 0.5


def delta_rule(x, memory, params):
    x = heads_first(x)
    run = naive("delta_rule/naive").delta_rule_recurrence
    output, final = run(unscaled(x["q"]), x["k"], x["v"], x["beta"], memory)
    return output.transpose(1, 2), final


def gated_delta_rule(x, memory, params):
    run = naive("gated_delta_rule/naive").naive_recurrent_gated_delta_rule
    return run(**x, scale=1, initial_state=memory, output_final_state=True)


def kda(x, memory, params):
    run = naive("kda/naive").naive_recurrent_kda
    return run(**x, scale=1, initial_state=memory, output_final_state=True)


def step_by_step(run, x, state):
    """Outputs of a function of one step that writes the next state in place."""
    state = state.clone()
    length = next(iter(x.values())).shape[1]
    outputs = [run(state, {name: array[:, step] for name, array in x.items()}) for step in range(length)]
    return torch.stack(outputs, 1), state


def mamba(x, memory, params):
    def run(state, now):
        return mamba_module.mamba_selective_state_update(
            state, now["x"], now["dt"], params["A"], now["B"], now["C"], params["D"]
        )

    return step_by_step(run, x, memory)


def mamba2(x, memory, params):
    return mamba2_module.mamba2_chunk_scan(
        x["x"],
        x["dt"],
        params["A"],
        x["B"],
        x["C"],
        chunk_size=4,
        D=params["D"],
        initial_states=memory,
        return_final_states=True,
    )


def causal_convolution(x, memory, params):
    def run(state, now):
        update = mamba_module.causal_conv1d_update
        return update(now["x"][..., None], state, params["weight"], params["bias"])[..., 0]

    return step_by_step(run, {"x": x}, memory)


FUNCTIONS = [delta_rule, gated_delta_rule, kda, mamba, mamba2, causal_convolution]


def arrays_of(file, front):
    """The arrays whose names begin so, as tensors by the rest; the tensor alone for an empty rest."""
    found = {
        name[len(front) :]: torch.from_numpy(file[name]) for name in file.files if name.startswith(front)
    }
    return found.get("", found)


def named(front, value):
    """A tensor, or a dict of tensors, as arrays by name."""
    values = value if isinstance(value, dict) else {"": value}
    return {front + name: tensor.numpy() for name, tensor in values.items()}


if __name__ == "__main__":
    with np.load(sys.argv[1]) as file, torch.no_grad():
        written = dict(file)
        for function in FUNCTIONS:
            cell = function.__name__
            x, memory, params = (arrays_of(file, f"{cell}|{part}|") for part in ("x", "memory", "params"))
            output, final = function(x, memory, params)
            written |= named(f"{cell}|output|", output) | named(f"{cell}|final|", final)
    packages = ("flash-linear-attention", "transformers", "torch")
    versions = {name: importlib.metadata.version(name) for name in packages}
    written["versions"] = np.array(json.dumps(versions))
    np.savez_compressed(sys.argv[2], **written)
