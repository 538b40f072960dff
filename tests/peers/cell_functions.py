"""The results of other libraries' functions for the inputs of cells: flash-linear-attention, transformers and
others.

Called with the path of a file of inputs, and that of a file to write, which holds the inputs too. Arrays are
called cell|part|name, where part is x, memory or params, and then output or final. Only functions in plain
PyTorch are run.
"""

import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from LRU_pytorch import LRU
from minGRU_pytorch.minGRU import minGRU
from minGRU_pytorch.minLSTM import minLSTM
from s5 import s5_model as s5_module
from transformers.models.mamba import modeling_mamba as mamba_module
from transformers.models.mamba2 import modeling_mamba2 as mamba2_module
from transformers.models.recurrent_gemma import modeling_recurrent_gemma as gemma_module
from transformers.models.rwkv import modeling_rwkv as rwkv_module
from transformers.models.xlstm import modeling_xlstm as xlstm_module


def naive(path):
    """A module of the library's plain functions, by its file: the package itself needs a GPU's compiler."""
    (root,) = importlib.util.find_spec("fla").submodule_search_locations
    return module_of(Path(root, "ops", f"{path}.py"), path.replace("/", "_"))


def module_of(file, name):
    """The module of a file, whose package is not imported."""
    spec = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
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


def gated_delta_product(x, memory, params):
    products = x["k"].shape[2]
    flat = {name: x[name].flatten(1, 2) for name in ("k", "v", "beta")}
    run = naive("gated_delta_product/naive").naive_recurrent_gated_delta_product
    options = {"scale": 1, "initial_state": memory, "output_final_state": True, "num_householder": products}
    return run(x["q"], g=x["g"], **flat, **options)


def linear_attention(x, memory, params):
    run = naive("linear_attn/naive").naive_recurrent_linear_attn
    return run(**x, scale=1, initial_state=memory, output_final_state=True)


def simple_gla(x, memory, params):
    run = naive("simple_gla/naive").naive_recurrent_simple_gla
    return run(**x, scale=1, initial_state=memory, output_final_state=True)


def retnet(x, memory, params):
    run = naive("simple_gla/naive").naive_chunk_simple_gla
    g = params["g"].expand(*x["q"].shape[:3])
    return run(**x, g=g, scale=1, initial_state=memory, output_final_state=True, chunk_size=4)


def gla(x, memory, params):
    run = naive("gla/naive").naive_recurrent_gla
    state = {"initial_state": memory, "output_final_state": True}
    return run(unscaled(x["q"]), x["k"], x["v"], x["g"], **state)


def hgrn2(x, memory, params):
    return gla(x | {"k": 1 - x["g"].exp()}, memory, params)  # the library's layer calls that with this key


def rwkv4(x, memory, params):
    run = rwkv_module.rwkv_linear_attention_cpu
    state = [memory[name] for name in ("num", "den", "max")]
    output, final = run(torch.log(-params["w"]), params["u"], x["k"], x["v"], state, return_state=True)
    return output, dict(zip(("num", "den", "max"), final, strict=True))


def rwkv6(x, memory, params):
    x = heads_first(x)
    run = naive("rwkv6/recurrent_naive").naive_recurrent_rwkv6
    state = {"scale": 1, "initial_state": memory, "output_final_state": True}
    output, final = run(x["r"], x["k"], x["v"], x["w"], params["u"], **state)
    return output.transpose(1, 2), final


def rwkv7(x, memory, params):
    x = heads_first(x)
    run = naive("generalized_delta_rule/dplr/naive").dplr_recurrence
    output, final = run(unscaled(x["r"]), x["k"], x["v"], x["a"], x["b"], x["w"], memory)
    return output.transpose(1, 2), final


def mlstm(x, memory, params):
    x = heads_first(x)
    run = xlstm_module.mlstm_recurrent_sequence_native
    states = memory["C"], memory["n"], memory["m"][..., None]
    options = {"return_last_states": True, "eps": 0}
    output, final = run(unscaled(x["q"]), x["k"], x["v"], x["i"], x["f"], *states, **options)
    return output.transpose(1, 2), {"C": final[0], "n": final[1], "m": final[2][..., 0]}


def slstm(x, memory, params):
    (root,) = importlib.util.find_spec("flashrnn").submodule_search_locations
    vanilla = module_of(Path(root, "flashrnn", "vanilla", "__init__.py"), "vanilla")
    wx = torch.stack([x[name] for name in "ifzo"], 2).transpose(0, 1)
    recurrent = torch.stack([params[f"R{name}"] for name in "ifzo"], 2)  # of [heads, before, gates, after]
    bias = torch.zeros(4, *wx.shape[-2:])
    states = torch.stack([memory[name] for name in "hcnm"], 1)[None]
    pointwise = vanilla.flashrnn_pointwise_function_registry["slstm"]
    outputs, final = vanilla.flashrnn_forward(wx, states, recurrent, bias, pointwise)
    return outputs[:, :, 0].transpose(0, 1), dict(zip("hcnm", final[0].unbind(1), strict=True))


def of_modules(module, projection, names, x, memory):
    """A module of minimal cells, given what its projection would give, a step at a time."""
    hidden = torch.where(
        x["n"] >= 0.5, x["n"] - 0.5, torch.logit(x["n"].clamp(max=0.5))
    )  # it applies g to it
    setattr(module, projection, torch.nn.Identity())
    given = torch.cat([hidden, *(x[name] for name in names)], -1)
    outputs, state = [], memory[:, None]
    for step in range(given.shape[1]):
        output, state = module(given[:, step : step + 1], state, return_next_prev_hidden=True)
        outputs.append(output)
    return torch.cat(outputs, 1), state[:, 0]


def min_gru(x, memory, params):
    return of_modules(minGRU(1), "to_hidden_and_gate", "z", x, memory)


def min_lstm(x, memory, params):
    return of_modules(minLSTM(1), "to_hidden_and_f_i_gate", "fi", x, memory)


def rg_lru(x, memory, params):
    """Each step of each row alone, as the module's gates are made so by its biases."""
    rows, steps, width = x["x"].shape
    config = SimpleNamespace(num_attention_heads=1, lru_width=width)
    outputs, final = torch.empty_like(x["x"]), memory.clone()
    for row in range(rows):
        for step in range(steps):
            module = gemma_module.RecurrentGemmaRglru(config)
            for gate, name in (("input", "i"), ("recurrent", "r")):
                getattr(module, f"{gate}_gate_weight").zero_()
                getattr(module, f"{gate}_gate_bias").copy_(x[name][row, step][None])
            module.recurrent_param.copy_(params["lambda"])
            module.recurrent_states = final[row : row + 1]
            outputs[row, step] = module(x["x"][row, step][None, None], torch.ones(1, 1, dtype=torch.long))
            final[row] = module.recurrent_states[0]
    return outputs, final


def complex_of(arrays, name):
    """The complex tensor of a pair."""
    return torch.complex(arrays[f"{name}re"], arrays[f"{name}im"])


def lru(x, memory, params):
    """The module forgets its states after each call. Matrices C of 1 and -j let the outputs show them."""
    width, count = params["B_re"].shape
    states = complex_of(memory, "")

    def run(c, d):
        module = LRU(width, len(c), count)
        names = ("nu_log", "theta_log", "gamma_log", "B", "C", "D")
        values = (params["nu"], params["theta"], params["gamma"], complex_of(params, "B_").T, c, d)
        for name, value in zip(names, values, strict=True):
            getattr(module, name).copy_(value)
        return torch.stack([module(row, state) for row, state in zip(x, states, strict=True)])

    one, none = torch.eye(count, dtype=torch.complex64), torch.zeros(count, width)
    final = {"re": run(one, none)[:, -1], "im": run(-1j * one, none)[:, -1]}
    return run(complex_of(params, "C_").T, torch.diag(params["D"])), final


def s5(x, memory, params):
    dt = params["step"].exp()
    decay, b = s5_module.discretize_zoh(complex_of(params, "A_"), complex_of(params, "B_").T, dt)
    c = complex_of(params, "C_").T
    run = [
        s5_module.apply_ssm(decay, b, c, params["D"], row, state)
        for row, state in zip(x, complex_of(memory, ""), strict=True)
    ]
    final = torch.stack([state for _, state in run])
    return torch.stack([output for output, _ in run]), {"re": final.real, "im": final.imag}


def ttt_linear(x, memory, params):
    run = naive("ttt/naive").chunk_ttt_linear_ref
    states = memory["W"].clone(), memory["b"][:, :, None].clone()
    output, weight, bias = run(
        x["q"].clone(),
        x["k"],
        x["v"],
        params["scale"],
        params["shift"],
        x["eta"][..., None],
        scale=1,
        mini_batch_size=1,
        initial_state=states[0],
        initial_state_bias=states[1],
        output_final_state=True,
    )
    return output, {"W": weight, "b": bias[:, :, 0]}


PACKAGES = (
    "flash-linear-attention",
    "transformers",
    "flashrnn",
    "minGRU-pytorch",
    "LRU-pytorch",
    "s5-pytorch",
    "torch",
)
FUNCTIONS = [
    causal_convolution,
    delta_rule,
    gated_delta_product,
    gated_delta_rule,
    gla,
    hgrn2,
    kda,
    linear_attention,
    lru,
    mamba,
    mamba2,
    min_gru,
    min_lstm,
    mlstm,
    retnet,
    rg_lru,
    rwkv4,
    rwkv6,
    rwkv7,
    s5,
    simple_gla,
    slstm,
    ttt_linear,
]


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
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    written["versions"] = np.array(json.dumps(versions))
    np.savez_compressed(sys.argv[2], **written)
