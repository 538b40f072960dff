"""The results of the recurrent layers of ncnn: a model of one layer, written as its .param and .bin."""

import os
import tempfile

import ncnn
import numpy as np
from case import HIDDEN, INPUTS, STEPS, case, random, save

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def from_layer(kind, both):
    gates, ways = GATES[kind], 2 if both else 1
    biases = (ways, 4, HIDDEN) if gates > 1 else (ways, HIDDEN)
    arrays = {
        "weight_xc_data": random(ways, gates * HIDDEN, INPUTS),
        "bias_c_data": random(*biases),
        "weight_hc_data": random(ways, gates * HIDDEN, HIDDEN),
    }
    x = random(1, STEPS, INPUTS)
    size = arrays["weight_xc_data"].size
    lines = ["7767517", "2 2", "Input x 0 1 x"]
    lines.append(f"{kind} y 1 1 x y 0={HIDDEN} 1={size} 2={2 if both else 0}")
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "model")
        with open(model + ".param", "w") as file:
            file.write("\n".join(lines) + "\n")
        with open(model + ".bin", "wb") as file:
            for array in arrays.values():
                file.write(b"\0\0\0\0" + array.tobytes())  # a flag before each: floats
        net = ncnn.Net()
        net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = net.opt.use_fp16_packed = False
        net.opt.use_bf16_storage = False
        net.load_param(model + ".param")
        net.load_model(model + ".bin")
        run = net.create_extractor()
        run.input("x", ncnn.Mat(x[0].copy()))
        found = np.array(run.extract("y")[1])
    return case("ncnn." + kind.lower(), arrays, x, found[None])


if __name__ == "__main__":
    save(
        [from_layer(kind, both) for kind in GATES for both in (False, True)],
        {"ncnn": ncnn.__version__},
    )
