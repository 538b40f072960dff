"""Programs that Paddle saves, in both of its formats, and what it gives for them.

    python tests/peers/paddle_programs.py OUT.npz

Each case is the bytes of a program and of its parameters, inputs by name, and outputs with their axes: "S" is
the steps of all sequences, end to end. The programs of operators on sequences with a LoD are made by hand, as
nothing of Paddle 3 makes them.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["FLAGS_enable_pir_api"] = str(int("--pir" in sys.argv))  # noqa: SIM112 - this is its name
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import paddle
from paddle import nn
from paddle.base import core, framework

PIR = "--pir" in sys.argv
LENGTHS = [3, 1, 4]
ROWS, STEPS, INPUTS, HIDDEN = 2, 4, 3, 2
random = np.random.default_rng(0)


def drawn(*shape):
    return random.normal(0, 0.5, shape).astype("float32")


# ---- layers over padded arrays, in either format -----------------------------------------------------------


def tagger(words):
    h, last = nn.GRU(4, HIDDEN, direction="bidirect", num_layers=2)(nn.Embedding(9, 4, padding_idx=1)(words))
    tags = nn.functional.softmax(nn.Linear(2 * HIDDEN, 3)(h))
    return {"tags": (tags, "NT_"), "states": (last, "_N_")}


def pooled(x, lengths):
    h, (last, cell) = nn.LSTM(INPUTS, HIDDEN, direction="bidirect")(x, sequence_length=lengths)
    return {"h": (h, "NT_"), "last": (last, "_N_"), "cell": (cell, "_N_")}


def begun(x, h0):
    both = paddle.transpose(paddle.reshape(h0, [0, 1, HIDDEN]), [1, 0, 2])
    h, _ = nn.SimpleRNN(INPUTS, HIDDEN, activation="relu")(x, both)
    return {"first": (h[:, 0], "N_"), "last": (h[:, -1], "N_"), "mean": (paddle.mean(h, 1), "N_")}


def time_first(x):
    h, _ = nn.LSTM(INPUTS, HIDDEN, time_major=True)(x)
    wide = paddle.concat([h, h * 2 + 1], -1)
    heads = paddle.reshape(wide, [0, 0, 2, HIDDEN])
    return {"heads": (paddle.max(heads, -1), "TN_"), "wide": (nn.functional.relu(wide), "TN_")}


def dense(x):
    h, _ = nn.GRU(INPUTS, HIDDEN)(x)
    return {"h": (paddle.static.nn.fc(h, 3, num_flatten_dims=2, activation="relu"), "NT_")}


def attention(x):
    h, _ = nn.GRU(INPUTS, 2 * HIDDEN)(nn.LayerNorm(INPUTS)(x))
    a, b = paddle.split(h, 2, axis=-1)
    weights = nn.functional.softmax(nn.Linear(HIDDEN, 1)(paddle.tanh(a)), axis=1)
    made = paddle.sum(weights * b, axis=1)
    parts = [made, nn.functional.sigmoid(made), paddle.exp(made) - made / 2]
    joined = paddle.flatten(paddle.stack(parts, axis=1), 1)
    return {
        "made": (nn.functional.log_softmax(paddle.unsqueeze(joined, 1).squeeze(1)), "N_"),
        "best": (paddle.cast(paddle.argmax(joined, -1), "float32"), "N"),
        "matmul": (
            paddle.matmul(joined, paddle.static.create_parameter([4, 6], "float32"), transpose_y=True),
            "N_",
        ),
    }


UNARY = [
    paddle.abs, paddle.ceil, paddle.cos, paddle.erf, paddle.exp, paddle.floor, paddle.reciprocal,
    paddle.round, paddle.sin, paddle.tanh, paddle.square, nn.functional.softsign, nn.functional.elu,
    nn.functional.gelu, nn.functional.silu, nn.functional.swish,
    nn.functional.hardsigmoid, nn.functional.hardswish,
    nn.functional.relu6, nn.functional.softplus, nn.functional.leaky_relu,
    lambda x: paddle.log(x * x + 1), lambda x: paddle.sqrt(x * x + 1), lambda x: paddle.rsqrt(x * x + 1),
    lambda x: paddle.clip(x, -0.2, 0.3), lambda x: paddle.where(x > 0, x, x * 3),
    lambda x: paddle.pow(x, 3.0),
    lambda x: nn.functional.dropout(x, 0.25, training=False, mode="downscale_in_infer"),
    lambda x: paddle.expand(paddle.min(x, -1, keepdim=True), [-1, -1, INPUTS]),
    lambda x: paddle.maximum(x, paddle.full([1], 0.1)) + paddle.minimum(x, x * x),
    lambda x: nn.functional.gelu(x, approximate=True),
]  # fmt: skip


def pointwise(x):
    """Every function of single numbers, side by side."""
    h, _ = nn.SimpleRNN(INPUTS, INPUTS)(x)
    return {"all": (paddle.concat([function(h * 2) for function in UNARY], -1), "NT_")}


WORDS, X = np.array([[3, 1, 4, 1], [5, 8, 2, 6]]), drawn(ROWS, STEPS, INPUTS)
LAYERS = {
    "tagger": (tagger, {"words": WORDS}),
    "pooled": (pooled, {"x": X, "lengths": np.array([4, 2])}),
    "begun": (begun, {"x": X, "h0": drawn(ROWS, HIDDEN)}),
    "time_first": (time_first, {"x": drawn(STEPS, ROWS, INPUTS)}),
    "dense": (dense, {"x": X}),
    "attention": (attention, {"x": X}),
    "pointwise": (pointwise, {"x": X}),
}
OLD = ("tagger", "pooled", "begun", "time_first", "dense")
NEW = ("tagger", "pooled", "begun", "time_first", "attention", "pointwise")


def layers(name):
    """A program of layers, its inputs, and the axes of its outputs."""
    function, inputs = LAYERS[name]
    fed = [
        paddle.static.data(
            key,
            [-1] * (array.ndim - (array.dtype == np.float32))
            + [array.shape[-1]] * (array.dtype == np.float32),
            str(array.dtype),
        )
        for key, array in inputs.items()
    ]
    outputs = function(*fed)
    return fed, inputs, outputs


# ---- operators over sequences, by hand ---------------------------------------------------------------------


class Hand:
    """A block to which operators are added by hand."""

    def __init__(self, startup):
        self.block, self.startup, self.count = framework.default_main_program().global_block(), startup, 0
        self.fed, self.inputs, self.parameters = [], {}, {}

    def feed(self, name, array, lod=True):
        shape = [-1, *array.shape[1:]]
        made = paddle.static.data(name, shape, str(array.dtype), lod_level=int(lod))
        self.fed.append(made)
        self.inputs[name] = (array, lod)
        return name

    def weight(self, *shape):
        name = f"w{len(self.parameters)}"
        self.block.create_parameter(name=name, shape=shape, dtype="float32")
        self.parameters[name] = drawn(*shape)
        return name

    def add(self, kind, inputs, output="Out", others=(), dtype="float32", **attributes):
        self.count += 1
        outputs = {slot: [f"{kind}{self.count}.{slot}"] for slot in (output, *others)}
        for (name,) in outputs.values():
            self.block.create_var(name=name, dtype=dtype, lod_level=1)
        slots = {slot: names if isinstance(names, list) else [names] for slot, names in inputs.items()}
        self.block.append_op(type=kind, inputs=slots, outputs=outputs, attrs=attributes)
        return outputs[output][0]


GRU = ("BatchGate", "BatchResetHiddenPrev", "BatchHidden")
FUSION_GRU = ("XX", "BatchedInput", "BatchedOut", "ReorderedH0")
LSTM = ("BatchGate", "BatchCellPreAct", "Cell")
FUSION_LSTM = (
    "Cell",
    "XX",
    "BatchedInput",
    "BatchedHidden",
    "BatchedCell",
    "ReorderedH0",
    "ReorderedC0",
    "CheckedCell",
)


def x_of(hand):
    return hand.feed("x", drawn(sum(LENGTHS), INPUTS))


def begins(hand, *slots):
    return {slot: hand.feed(slot.lower(), drawn(len(LENGTHS), HIDDEN), lod=False) for slot in slots}


def gru(hand, *, bias=True, begun=False, fc=False, **attributes):
    if fc:
        arrays = {"Input": x_of(hand), "W": hand.weight(INPUTS, 3 * HIDDEN), "Bias": hand.weight(3 * HIDDEN)}
        made = hand.add("fc", arrays, in_num_col_dims=1)
    else:
        made = hand.add("mul", {"X": x_of(hand), "Y": hand.weight(INPUTS, 3 * HIDDEN)})
    inputs = {"Input": made, "Weight": hand.weight(HIDDEN, 3 * HIDDEN)}
    inputs |= {"Bias": hand.weight(1, 3 * HIDDEN)} if bias else {}
    inputs |= begins(hand, "H0") if begun else {}
    return {"hidden": (hand.add("gru", inputs, "Hidden", GRU, is_test=True, **attributes), "S_")}


def lstm(hand, *, peepholes=True, begun=False, **attributes):
    made = hand.add("mul", {"X": x_of(hand), "Y": hand.weight(INPUTS, 4 * HIDDEN)})
    made = hand.add("elementwise_add", {"X": made, "Y": hand.weight(4 * HIDDEN)}, axis=1)
    inputs = {"Input": made, "Weight": hand.weight(HIDDEN, 4 * HIDDEN)}
    inputs["Bias"] = hand.weight(1, (7 if peepholes else 4) * HIDDEN)
    inputs |= begins(hand, "H0", "C0") if begun else {}
    hidden = hand.add("lstm", inputs, "Hidden", LSTM, use_peepholes=peepholes, is_test=True, **attributes)
    return {"hidden": (hidden, "S_"), "cell": (hidden.replace("Hidden", "Cell"), "S_")}


def fusion(hand, kind, gates, *, blocks, begun=False, **attributes):
    sizes = {
        "X": x_of(hand),
        "WeightX": hand.weight(INPUTS, gates * HIDDEN),
        "WeightH": hand.weight(HIDDEN, gates * HIDDEN),
    }
    sizes |= {"Bias": hand.weight(1, blocks * HIDDEN)} if blocks else {}
    sizes |= begins(hand, *("H0", "C0")[: gates - 2]) if begun else {}
    others = FUSION_GRU if kind == "fusion_gru" else FUSION_LSTM
    return {"hidden": (hand.add(kind, sizes, "Hidden", others, use_seq=True, **attributes), "S_")}


def multi_gru(hand, **attributes):
    sizes = [INPUTS, INPUTS, 2 * HIDDEN, 2 * HIDDEN]
    inputs = {
        "X": x_of(hand),
        "WeightX": [hand.weight(size, 3 * HIDDEN) for size in sizes],
        "WeightH": [hand.weight(HIDDEN, 3 * HIDDEN) for _ in sizes],
        "Bias": [hand.weight(1, 3 * HIDDEN) for _ in sizes],
    }
    return {
        "hidden": (hand.add("multi_gru", inputs, "Hidden", layers=2, use_mkldnn=True, **attributes), "S_")
    }


def text(hand):
    """A classifier as they were: an embedding, a GRU, pooling and attention over its sequences."""
    words = hand.feed("words", np.array([[3], [1], [4], [1], [5], [8], [2], [6]]))
    made = hand.add("lookup_table", {"Ids": words, "W": hand.weight(9, INPUTS)}, padding_idx=1)
    made = hand.add("mul", {"X": made, "Y": hand.weight(INPUTS, 3 * HIDDEN)})
    h = hand.add(
        "gru", {"Input": made, "Weight": hand.weight(HIDDEN, 3 * HIDDEN)}, "Hidden", GRU, is_test=True
    )
    pools = {
        kind.lower(): (
            hand.add("sequence_pool", {"X": h}, "Out", ("MaxIndex",), pooltype=kind, is_test=True),
            "N_",
        )
        for kind in ("SUM", "AVERAGE", "MAX", "LAST", "FIRST")
    }
    query = hand.add("sequence_expand", {"X": pools["last"][0], "Y": h}, ref_level=-1)
    other = hand.add("mul", {"X": hand.add("tanh", {"X": query}), "Y": hand.weight(HIDDEN, 1)})
    scores = hand.add("mul", {"X": h, "Y": hand.weight(HIDDEN, 1)})
    scores = hand.add("elementwise_add", {"X": scores, "Y": other})
    weights = hand.add("sequence_softmax", {"X": scores})
    out = hand.add(
        "scale",
        {"X": hand.add("elementwise_mul", {"X": h, "Y": weights}, axis=0)},
        scale=2.0,
        bias=1.0,
        bias_after_scale=False,
    )
    return {
        **pools,
        "weighted": (
            hand.add("sequence_pool", {"X": out}, "Out", ("MaxIndex",), pooltype="SUM", is_test=True),
            "N_",
        ),
        "sigmoid": (hand.add("sigmoid", {"X": out}), "S_"),
    }


BY_HAND = {
    "gru": lambda hand: gru(hand),
    "gru without bias": lambda hand: gru(hand, bias=False),
    "gru begun": lambda hand: gru(hand, begun=True),
    "gru reverse": lambda hand: gru(hand, begun=True, is_reverse=True),
    "gru origin": lambda hand: gru(hand, begun=True, origin_mode=True),
    "gru origin reverse": lambda hand: gru(hand, origin_mode=True, is_reverse=True),
    "gru other activations": lambda hand: gru(hand, activation="relu", gate_activation="tanh"),
    "fc gru": lambda hand: gru(hand, fc=True),
    "lstm": lambda hand: lstm(hand),
    "lstm without peepholes": lambda hand: lstm(hand, peepholes=False, begun=True),
    "lstm reverse": lambda hand: lstm(hand, begun=True, is_reverse=True),
    "lstm other activations": lambda hand: lstm(hand, cell_activation="relu", candidate_activation="sigmoid"),
    "fusion_gru": lambda hand: fusion(hand, "fusion_gru", 3, blocks=3),
    "fusion_gru reverse": lambda hand: fusion(hand, "fusion_gru", 3, blocks=0, begun=True, is_reverse=True),
    "fusion_gru origin": lambda hand: fusion(
        hand, "fusion_gru", 3, blocks=3, origin_mode=True, use_mkldnn=True
    ),
    "fusion_lstm": lambda hand: fusion(hand, "fusion_lstm", 4, blocks=7, begun=True, use_peepholes=True),
    "fusion_lstm reverse": lambda hand: fusion(
        hand, "fusion_lstm", 4, blocks=4, is_reverse=True, use_peepholes=False
    ),
    "multi_gru": lambda hand: multi_gru(hand),
    "multi_gru origin": lambda hand: multi_gru(hand, origin_mode=True),
    "text": text,
}


def tensor(array, lod):
    made = core.DenseTensor()
    made.set(array, core.CPUPlace())
    if lod:
        made.set_recursive_sequence_lengths([LENGTHS])
    return made


def saved(fed, targets, executor, program, folder):
    """The bytes of the files that Paddle writes."""
    path = str(Path(folder) / "m")
    paddle.static.save_inference_model(path, fed, targets, executor, program=program)
    ending = ".json" if PIR else ".pdmodel"
    made, parameters = (Path(path + each).read_bytes() for each in (ending, ".pdiparams"))
    return [np.frombuffer(each, np.uint8) for each in (made if PIR else without_stacks(made), parameters)]


def without_stacks(made):
    """A program without what it says of the lines that made it."""
    program = framework.Program.parse_from_string(made)
    for each in program.global_block().ops:
        for name in ("op_callstack", "op_namescope", "op_device"):
            each._remove_attr(name)
    return program.desc.serialize_to_string()


def case(name, folder):
    """The description of a case, and its arrays by name."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    executor, scope = paddle.static.Executor(core.CPUPlace()), paddle.static.Scope()
    with paddle.static.program_guard(main, startup), paddle.static.scope_guard(scope):
        if name in BY_HAND:
            hand = Hand(startup)
            outputs = BY_HAND[name](hand)
            fed, feeds = hand.fed, {key: tensor(*value) for key, value in hand.inputs.items()}
            arrays = {key: array for key, (array, _) in hand.inputs.items()}
            for key, array in hand.parameters.items():
                scope.var(key).get_tensor().set(array, core.CPUPlace())
            targets = [hand.block.var(value) for value, _ in outputs.values()]
        else:
            paddle.seed(0)
            fed, arrays, outputs = layers(name)
            feeds, targets = arrays, [value for value, _ in outputs.values()]
            executor.run(startup)
        results = executor.run(main, feed=feeds, fetch_list=targets, return_numpy=False)
        program, parameters = saved(fed, targets, executor, main, folder)
    kept = {f"inputs/{key}": array for key, array in arrays.items()}
    kept |= {f"outputs/{place}": np.array(result) for place, result in enumerate(results)}
    about = {
        "name": name,
        "format": "json" if PIR else "pdmodel",
        "axes": [axes for _, axes in outputs.values()],
    }
    return about, {"program": program, "parameters": parameters, **kept}


def main():
    paddle.enable_static()
    listed, kept = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for name in NEW if PIR else (*OLD, *BY_HAND):
            about, arrays = case(name, folder)
            kept |= {f"{about['format']} {name}/{key}": array for key, array in arrays.items()}
            listed.append(about)
    return listed, kept


if __name__ == "__main__":
    out = Path(sys.argv[1])
    if PIR:
        listed, kept = main()
    else:
        paddle.enable_static()
        paddle.set_flags({"FLAGS_enable_pir_api": False, "FLAGS_enable_pir_in_executor": False})
        with paddle.pir_utils.OldIrGuard():
            listed, kept = main()
        newer = out.with_suffix(".pir.npz")
        subprocess.run([sys.executable, __file__, str(newer), "--pir"], check=True)
        other = np.load(newer)
        listed += json.loads(str(other["about"]))["cases"]
        kept |= {key: other[key] for key in other.files if key != "about"}
        newer.unlink()
    about = {"cases": listed, "lengths": LENGTHS, "paddlepaddle": paddle.__version__}
    np.savez_compressed(out, about=np.array(json.dumps(about)), **kept)
