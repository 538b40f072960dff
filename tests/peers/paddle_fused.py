"""The results of Paddle's own fused operators on ragged sequences, its native ones and those on oneDNN.

    python tests/peers/paddle_fused.py OUT.npz

Each case is an operator, its settings, its inputs by name and its outputs. The native fusion_gru ignores
origin_mode, and has no multi_gru.
"""

import json
import os
import sys

os.environ["FLAGS_enable_pir_api"] = "0"  # noqa: SIM112 - this is its name
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import paddle
from paddle import base
from paddle.base import core, framework

LENGTHS = [3, 1, 6, 4, 6]
INPUTS, HIDDEN = 5, 7
random = np.random.default_rng(0)


def drawn(*shape):
    return random.normal(0, 0.5, shape).astype("float32")


def tensor(array, lengths=None):
    made = core.DenseTensor()
    made.set(array, core.CPUPlace())
    if lengths is not None:
        made.set_recursive_sequence_lengths([list(lengths)])
    return made


def run(operator, inputs, outputs, attributes):
    """The first output of one operator. inputs: for each slot the arrays, X being the sequences."""
    program = framework.Program()
    with paddle.pir_utils.OldIrGuard(), base.program_guard(program, framework.Program()):
        block, feed, slots = program.global_block(), {}, {}
        for slot, arrays in inputs.items():
            slots[slot] = []
            for place, array in enumerate(arrays):
                name, ragged = f"{slot}{place}", slot == "X"
                shape = [-1 if ragged else array.shape[0], *array.shape[1:]]
                block.create_var(name=name, shape=shape, dtype="float32", is_data=True, lod_level=int(ragged))
                feed[name] = tensor(array, LENGTHS if ragged else None)
                slots[slot].append(name)
        for name in outputs:
            block.create_var(name=name, dtype="float32")
        made = {name: [name] for name in outputs}
        block.append_op(type=operator, inputs=slots, outputs=made, attrs=attributes)
        (result,) = base.Executor(core.CPUPlace()).run(
            program, feed=feed, fetch_list=[outputs[0]], return_numpy=False
        )
        return np.array(result)


GRU = ["Hidden", "XX", "BatchedInput", "BatchedOut", "ReorderedH0"]
LSTM = [
    "Hidden",
    "Cell",
    "XX",
    "BatchedInput",
    "BatchedHidden",
    "BatchedCell",
    "ReorderedH0",
    "ReorderedC0",
    "CheckedCell",
]


def weights(gates, inputs, hidden, biases=None):
    return {
        "WeightX": [drawn(inputs, gates * hidden)],
        "WeightH": [drawn(hidden, gates * hidden)],
        "Bias": [drawn(1, (biases or gates) * hidden)],
    }


def without_bias(arrays):
    return {name: values for name, values in arrays.items() if name != "Bias"}


def cases():
    """Every case: operator, whether it is on oneDNN, settings, inputs."""
    x, rows = {"X": [drawn(sum(LENGTHS), INPUTS)]}, len(LENGTHS)
    gru = {**x, **weights(3, INPUTS, HIDDEN)}
    for onednn in (False, True):
        for reverse in (False, True):
            settings = {"is_reverse": reverse, "origin_mode": False}
            yield "fusion_gru", onednn, settings, gru
            yield "fusion_gru", onednn, settings, without_bias(gru)
            yield "fusion_gru", onednn, settings, {**gru, "H0": [drawn(rows, HIDDEN)]}
            if onednn:
                yield "fusion_gru", onednn, {**settings, "origin_mode": True}, gru
            else:
                other = {**settings, "activation": "relu", "gate_activation": "sigmoid"}
                yield "fusion_gru", onednn, other, gru
            begin = {"H0": [drawn(rows, HIDDEN)], "C0": [drawn(rows, HIDDEN)]}
            for biases in (4, 7):
                lstm = {**x, **weights(4, INPUTS, HIDDEN, biases)}
                settings_lstm = {"is_reverse": reverse, "use_peepholes": biases == 7}
                yield "fusion_lstm", onednn, settings_lstm, lstm
                yield "fusion_lstm", onednn, settings_lstm, {**lstm, **begin}
    for origin in (False, True):
        layers = [weights(3, size, HIDDEN) for size in (INPUTS, INPUTS, 2 * HIDDEN, 2 * HIDDEN)]
        stacked = {name: [layer[name][0] for layer in layers] for name in layers[0]}
        yield "multi_gru", True, {"origin_mode": origin, "layers": 2}, {**x, **stacked}


if __name__ == "__main__":
    paddle.enable_static()
    paddle.set_flags({"FLAGS_enable_pir_api": False, "FLAGS_enable_pir_in_executor": False})
    arrays, listed = {}, []
    for place, (operator, onednn, settings, inputs) in enumerate(cases()):
        attributes = {"use_mkldnn": onednn, "use_seq": True, **settings}
        names = {"fusion_gru": GRU, "fusion_lstm": LSTM, "multi_gru": ["Hidden"]}[operator]
        outputs = run(operator, inputs, names, attributes)
        for slot, values in inputs.items():
            for number, value in enumerate(values):
                arrays[f"{place}/{slot}/{number}"] = value
        arrays[f"{place}/outputs"] = outputs
        listed.append({"operator": operator, "onednn": onednn, "settings": settings})
    about = {"cases": listed, "lengths": LENGTHS, "paddlepaddle": paddle.__version__}
    np.savez_compressed(sys.argv[1], about=np.array(json.dumps(about)), **arrays)
