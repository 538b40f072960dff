"""Wrong calls of the public interface: what each is answered with.

`WRONG` has a row for each kind of mistake: the call, the error, and what its message says. `ENTRIES` times
`BAD` are calls with one argument that is mostly nonsense: whatever it is, it is refused by a `StepnetError`,
or it was no nonsense there.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# Wrong calls are what this is about.

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import stepnet as sn
import stepnet.torch
from stepnet.errors import InputError, LayoutError, StepError, StepnetError

F32 = np.float32
ANY: Any = sn  # so that wrong types are not refused before they are run
GRU = sn.cells.CELLS["gru"].parameters(inputs=3, hidden=4)
X = np.ones((2, 5, 3), F32)
RAGGED = sn.Ragged.from_list([np.ones((2, 3), F32), np.ones((4, 3), F32)])
DEEP = RAGGED.group([2])
RNN: Any = sn.cells.rnn("gru", GRU)
BACKWARD: Any = sn.cells.rnn("gru", GRU, reverse=True)
STACK: Any = sn.Stack([RNN])
BOTH: Any = sn.Bidirectional(RNN, BACKWARD)
SYMBOLS: Any = sn.RNN(lambda x, h, p: (x @ p, h), np.eye(4, dtype=F32), memory=1, inputs=4)
STILL: Any = sn.RNN(lambda x, h, p, statics: (h + statics, h + x + statics), memory=3)
SCOPES: Any = RNN.trace_steps(RAGGED)
KERAS = {"kernel": np.ones((2, 9)), "recurrent_kernel": np.ones((3, 9)), "bias": np.ones((2, 9))}
TORCH = {"weight_ih_l0": np.ones((9, 2)), "weight_hh_l0": np.ones((9, 3))}
CELL = torch.nn.GRUCell(3, 4)
EXAMPLE = torch.zeros(1, 3), torch.zeros(1, 4)
GRADIENT = torch.ones(2, 5, 3, requires_grad=True)
CYCLE: dict[str, Any] = {}
CYCLE["again"] = CYCLE
ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
Pair = namedtuple("Pair", "a b")

BYTES = np.ones((2, 5, 3), ml_dtypes.float8_e5m2)
MASKED = np.ma.masked_array(X, X > 2)


def keep(x: Any, h: Any, params: Any) -> Any:
    """A step that adds up."""
    return h, h + x


def inside(step: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    """A call of a recurrence whose step does this with an input [rows, 3] and a memory [rows, 2, 3]."""

    def run() -> Any:
        def of(x: Any, h: Any, params: Any) -> Any:
            return step(x, h), h

        return sn.RNN(of, memory=(2, 3))(X, engine="interpret")

    return run


def within(call: Callable[[Any], Any]) -> Callable[[], Any]:
    """A call of a recurrence whose step does this with inner sequences [steps, 3]."""

    def run() -> Any:
        return sn.RNN(lambda x, h, p: (call(x), h), memory=4)(DEEP, engine="interpret")

    return run


def block(call: Callable[[Any], Any]) -> Any:
    """What a block makes that does this with its rnn."""
    rnn = sn.create_rnn_op()
    with rnn.stepnet():
        call(rnn)
    return rnn


def written(call: Callable[[Any, Any, Any], Any] = lambda rnn, x, h: None) -> Any:
    """The rnn of a block that does this with its rnn, input and memory."""
    rnn = sn.create_rnn_op()
    with rnn.stepnet():
        x = rnn.add_input(X)
        h = rnn.add_memory(shape=3)
        call(rnn, x, h)
        h.update(h.pre_state() + x)
        rnn.add_outputs(h)
    return rnn


# ---- each mistake: its name, the call, the error, and what is said -----------------------------------------

WRONG: list[tuple[str, Callable[[], Any], type[StepnetError], str]] = [
    # engines
    ("no engine", lambda: RNN(X, engine=None), InputError, "engine is a name, or several .*, not None"),
    ("a number", lambda: RNN(X, engine=5), InputError, "of llvm, interpret and 'auto', not 5"),
    ("a mixed list", lambda: RNN(X, engine=["llvm", 3]), InputError, r"not \['llvm', 3\]"),
    ("no engines", lambda: RNN(X, engine=[]), InputError, r"engine is a name, or several .*, not \[\]"),
    ("an unknown engine", lambda: RNN(X, engine="gpu"), InputError, "no engine is called 'gpu'"),
    ("one unknown of two", lambda: RNN(X, engine=("llvm", "gpu")), InputError, "no engine is called 'gpu'"),
    ("engine of a stream", lambda: RNN.stream(engine=["gpu"]), InputError, "no engine is called 'gpu'"),
    ("engine of explain", lambda: RNN.explain(engine={}), InputError, r"engine is a name.*, not \{\}"),
    ("engine over levels", lambda: STILL(X, statics=RAGGED, engine=3), InputError, "engine is a name"),
    ("engine of scan", lambda: sn.scan(keep, np.ones((2, 3)), X, engine=ANY), InputError, "engine is a name"),
    # flags
    (
        "last_only in words",
        lambda: RNN(X, last_only="yes"),
        InputError,
        "last_only is True or False, not 'yes'",
    ),
    ("last_only as a number", lambda: RNN(X, last_only=1), InputError, "last_only is True or False, not 1"),
    (
        "reverse in words",
        lambda: sn.RNN(keep, memory=3, reverse="no"),
        InputError,
        "reverse is True or False",
    ),  # pyright: ignore
    (
        "reverse of a cell",
        lambda: ANY.cells.rnn("gru", GRU, reverse=None),
        InputError,
        "reverse is True or False",
    ),
    (
        "all steps in words",
        lambda: written()("all"),
        InputError,
        "output_all_steps is True or False, not 'all'",
    ),
    (
        "exact in words",
        lambda: ANY.convert(KERAS, "keras.gru", "torch.gru", exact="y"),
        InputError,
        "exact is True",
    ),
    (
        "bias in words",
        lambda: ANY.cells.CELLS["gru"].parameters(3, 4, bias="b"),
        InputError,
        "bias is True or Fal",
    ),
    (
        "approximate in words",
        lambda: ANY.gelu(X, approximate="t"),
        InputError,
        "approximate is True or False",
    ),
    (
        "time_major in words",
        lambda: ANY.Ragged.from_padded(X, time_major="t"),
        InputError,
        "time_major is True",
    ),
    (
        "sorted in words",
        lambda: ANY.Ragged.to_packed(RAGGED, "t"),
        InputError,
        "enforce_sorted is True or False",
    ),
    # whole numbers
    ("a bool for rows", lambda: RNN.stream(rows=True), InputError, "rows is how many .*, not True"),
    ("rows of a stream", lambda: RNN.stream(rows=2.0), InputError, "rows is how many .*, not 2.0"),
    ("no rows", lambda: RNN.stream(rows=0), InputError, "from 1 on, not 0"),
    ("rows beyond all", lambda: RNN.stream(rows=10**30), InputError, "rows is how many"),
    (
        "unroll",
        lambda: ANY.RNN(keep, memory=3, unroll=True),
        InputError,
        "unroll is a number of steps from 1 to 64",
    ),
    (
        "threads",
        lambda: ANY.set_threads("a"),
        InputError,
        "the number of threads is a whole number from 1 on",
    ),
    (
        "threads of NaN",
        lambda: ANY.set_threads(float("nan")),
        InputError,
        "the number of threads is .*, not nan",
    ),
    ("outputs of a block", lambda: ANY.create_rnn_op("a"), InputError, "output_num is how many .*, not 'a'"),
    (
        "beams",
        lambda: ANY.beam_search(SYMBOLS, [0], beams=True, max_steps=1),
        InputError,
        "beams is .*, not True",
    ),
    ("max_steps", lambda: ANY.generate(SYMBOLS, [0], max_steps="a"), InputError, "max_steps is .*, not 'a'"),
    ("top_k", lambda: ANY.sampling(top_k=1.5), InputError, "top_k is how many .*, not 1.5"),
    ("seed", lambda: ANY.generate(SYMBOLS, [0], max_steps=1, seed="a"), InputError, "a seed is .*, not 'a'"),
    ("seed of dropout", lambda: ANY.masks.dropout(0.5, [2], seed=-1), InputError, "a seed is .*, not -1"),
    (
        "seed of parameters",
        lambda: ANY.cells.CELLS["gru"].parameters(3, 4, seed="a"),
        InputError,
        "seed is a whole",
    ),
    ("a cell of no units", lambda: sn.cells.CELLS["gru"].parameters(3, 0), InputError, "hidden is how many"),
    ("size of one_hot", lambda: ANY.one_hot([1], "a"), InputError, "size is how many numbers .*, not 'a'"),
    (
        "length of padding",
        lambda: ANY.Ragged.to_padded(RAGGED, length="a"),
        InputError,
        "length is 'a', and must be",
    ),
    (
        "levels of lists",
        lambda: ANY.Ragged.from_list([[1]], levels="a"),
        InputError,
        "one level or more, not 'a'",
    ),
    ("a row of scopes", lambda: SCOPES.step("a", 0), InputError, "there is no sequence 'a': there are 2"),
    ("a step of scopes", lambda: SCOPES.step(0, None), InputError, "sequence 0 has no step None: it has 2"),
    # numbers
    (
        "temperature",
        lambda: ANY.sampling("a"),
        InputError,
        "temperature is above 0, not 'a'; without a sampler",
    ),
    ("temperature of NaN", lambda: sn.sampling(float("nan")), InputError, "temperature is above 0, not nan"),
    (
        "temperature as a list",
        lambda: ANY.sampling([1.0]),
        InputError,
        r"temperature is above 0, not \[1.0\]",
    ),
    ("temperature beyond floats", lambda: sn.sampling(10**400), InputError, "temperature is above 0, not "),
    ("top_p", lambda: ANY.sampling(top_p="a"), InputError, "top_p is a probability above 0, not 'a'"),
    (
        "rate",
        lambda: ANY.masks.dropout("a", [2], seed=1),
        InputError,
        "a dropout rate is from 0 to 1, not 'a'",
    ),
    (
        "rate as a bool",
        lambda: sn.masks.dropout(True, [2], seed=1),
        InputError,
        "a dropout rate is .*, not True",
    ),
    (
        "length_penalty",
        lambda: ANY.beam_search(SYMBOLS, [0], beams=1, max_steps=1, length_penalty=None),
        InputError,
        "length_penalty is 0 or more, not None",
    ),
    # words
    ("masked", lambda: RNN(X, masked=["zero"]), InputError, r"masked is 'repeat' or 'zero', not \['zero'\]"),
    ("masked as an array", lambda: RNN(X, masked=np.zeros(2)), InputError, r"not an array float64\[2\]"),
    ("merge", lambda: ANY.Bidirectional(RNN, BACKWARD, merge=["sum"]), InputError, r"or None, not \['sum'\]"),
    (
        "per",
        lambda: ANY.masks.uniform([2], seed=1, per=None),
        InputError,
        "per is 'sequence' or 'step', not None",
    ),
    (
        "a cell",
        lambda: ANY.cells.cell(["gru"]),
        InputError,
        r"no cell is called \['gru'\]; there are simple_rnn",
    ),
    (
        "a kind of weights",
        lambda: ANY.convert(KERAS, "keras.gru", "torch.gru", kind=[]),
        LayoutError,
        "kind is one",
    ),
    (
        "a layout",
        lambda: ANY.convert(KERAS, None, "torch.gru"),
        InputError,
        "a layout is a name, as 'torch.gru'",
    ),
    (
        "how to reduce",
        within(lambda x: ANY.reduce(x, ["sum"])),
        StepError,
        r"how is one of sum, .*, not \['sum'\]",
    ),
    ("a name of scopes", lambda: SCOPES[["h"]], InputError, r"no value is called \['h'\]; there are"),
    # lengths, masks, begun
    (
        "ragged lengths",
        lambda: RNN(X, lengths=[[1], [1, 2]]),
        InputError,
        "lengths is a list that is no array",
    ),
    ("lengths in words", lambda: RNN(X, lengths="ab"), InputError, "lengths are 2 whole numbers"),
    ("lengths of floats", lambda: RNN(X, lengths=[1.0, 2.0]), InputError, "lengths are 2 whole numbers"),
    ("lengths of bools", lambda: RNN(X, lengths=[True, False]), InputError, "lengths are 2 whole numbers"),
    ("lengths as a set", lambda: RNN(X, lengths={1, 2}), InputError, "lengths are 2 whole numbers"),
    (
        "lengths beyond int64",
        lambda: RNN(X, lengths=np.array([1, 2**64 - 1], np.uint64)),
        InputError,
        r"lengths\[1\]",
    ),
    (
        "a ragged mask",
        lambda: RNN(X, mask=[[True], [True, False]]),
        InputError,
        "mask is a list that is no array",
    ),
    ("a mask in words", lambda: RNN(X, mask="a"), InputError, r"mask is <U1\[\]; it should be bool\[2, 5\]"),
    (
        "a mask for Raggeds",
        lambda: RNN(RAGGED, mask=[True]),
        InputError,
        "mask is a list; it should be a Ragged",
    ),
    ("ragged begun", lambda: RNN(X, begun=[[1], [1, 2]]), InputError, "begun is a list that is no array"),
    (
        "begun beyond int64",
        lambda: RNN(X, begun=2**63),
        InputError,
        "begun is a whole number from 0, .*; the most is",
    ),
    ("begun beyond all", lambda: RNN(X, begun=10**30), InputError, "begun is a whole number from 0"),
    (
        "begun of uint64",
        lambda: RNN(X, begun=np.array([2**64 - 1, 0], np.uint64)),
        InputError,
        "begun is a whole",
    ),
    ("begun of a stream", lambda: RNN.stream(begun="a"), InputError, "begun is a whole number from 0"),
    (
        "ragged identities",
        lambda: ANY.masks.uniform([2, 3], seed=1, identities=[[1], [1, 2]]),
        InputError,
        "identit",
    ),
    (
        "ragged counts",
        lambda: RAGGED.group([[1], [1, 2]]),
        InputError,
        "the counts is a list that is no array",
    ),
    ("ragged indices", lambda: RAGGED.take([[1], [1, 2]]), InputError, "indices is a list that is no array"),
    ("lengths of like", lambda: ANY.masks.uniform("ab", seed=1), InputError, "like is whole numbers"),
    (
        "a ragged start",
        lambda: sn.generate(SYMBOLS, [[1], [1, 2]], max_steps=1),
        InputError,
        "start is a list that",
    ),
    (
        "stop in words",
        lambda: ANY.generate(SYMBOLS, [0], max_steps=1, stop="a"),
        InputError,
        "stop is whole numbers",
    ),
    (
        "before",
        lambda: ANY.masks.uniform([2], seed=1, per="step", before="a"),
        InputError,
        "before is 1 whole",
    ),
    # functions
    (
        "a step",
        lambda: ANY.RNN("a", memory=3),
        InputError,
        r"step is a function step\(x, memory, params\), not a str",
    ),
    ("until", lambda: ANY.RNN(keep, memory=3, until=5), InputError, "until is a function until.*, not a int"),
    ("a body", lambda: ANY.foreach(None, X, np.ones((2, 3))), InputError, "body is a function .*, not None"),
    (
        "a sampler",
        lambda: ANY.generate(SYMBOLS, [0], max_steps=1, sampler="a"),
        InputError,
        "sampler is a function",
    ),
    (
        "scores",
        lambda: ANY.generate(SYMBOLS, [0], max_steps=1, scores=5),
        InputError,
        "scores is a function of",
    ),
    (
        "a feed",
        lambda: ANY.generate(SYMBOLS, [0], max_steps=1, feed="a"),
        InputError,
        "feed is a function of symbols",
    ),
    (
        "a feed of lists",
        lambda: sn.generate(SYMBOLS, [0], max_steps=1, feed=[[1], [1, 2]]),
        InputError,
        "feed is a li",
    ),
    # layers
    (
        "a stack of a number",
        lambda: sn.Stack(5),
        InputError,
        "layers of a Stack are a list of RNNs.*, not a int",
    ),
    ("a stack of a name", lambda: sn.Stack("gru"), InputError, "layers of a Stack are a list .*, not a str"),
    ("a stack of nothing", lambda: sn.Stack(None), InputError, "layers of a Stack are a list .*, not None"),
    (
        "a stack of names",
        lambda: sn.Stack({"a": RNN}),
        InputError,
        "layers of a Stack are a list .*, not a dict",
    ),
    (
        "initial of a stack",
        lambda: STACK(X, initial=5),
        InputError,
        "initial of a Stack is a tuple, .*, not a int",
    ),
    ("initial of two", lambda: BOTH(X, initial=5), InputError, "initial of a Bidirectional is .*, not 5"),
    ("a direction", lambda: ANY.Bidirectional(None, RNN), InputError, "forward is an RNN, .*, not None"),
    # weights
    (
        "no weights",
        lambda: ANY.convert(None, "keras.gru", "torch.gru"),
        InputError,
        "weights are arrays by name.*None",
    ),
    (
        "a list of weights",
        lambda: ANY.convert([1], "keras.gru", "torch.gru"),
        InputError,
        "weights are arrays by na",
    ),
    ("weights by number", lambda: ANY.convert({1: X}, "keras.gru", "torch.gru"), InputError, "1 is no name"),
    ("no state", lambda: ANY.layout.from_torch(None), InputError, "a state is arrays by name, .*, not None"),
    (
        "layers of no weights",
        lambda: ANY.layout.layers(5, "keras.gru"),
        InputError,
        "weights are arrays by name",
    ),
    (
        "sizes",
        lambda: ANY.convert(KERAS, "keras.gru", "torch.gru", sizes=5),
        InputError,
        "sizes are whole numbers by",
    ),
    (
        "semantics",
        lambda: ANY.convert(KERAS, "keras.gru", "torch.gru", semantics=5),
        InputError,
        "semantics are val",
    ),
    (
        "shapes",
        lambda: ANY.layout.find({"a": 5}),
        InputError,
        "the shape of a is a tuple of whole numbers, not 5",
    ),
    (
        "a side",
        lambda: ANY.layout.verify(None, None),
        InputError,
        r"a side is Weights\(arrays, layout\), not None",
    ),
    (
        "a record",
        lambda: ANY.layout.Record("a.b", "gru", {"w": 5}),
        InputError,
        "w is a text in the notation, not 5",
    ),
    (
        "a conversion",
        lambda: ANY.Conversion(5, None),
        InputError,
        "a conversion has arrays by name, not a int",
    ),
    (
        "no parameters",
        lambda: ANY.cells.rnn("gru", None),
        InputError,
        "parameters of gru are arrays by name, not None",
    ),
    (
        "a cell without parameters",
        lambda: sn.RNN(sn.cells.gru, {}, memory=4)(X),
        InputError,
        "the parameters of this cell are arrays by name, 'W' among them, not {}",
    ),
    (
        "a cell of one memory",
        lambda: sn.RNN(sn.cells.lstm, sn.cells.CELLS["lstm"].parameters(3, 4), memory={"h": 4})(X),
        InputError,
        "the memory of this cell are arrays by name, 'c' among them",
    ),
    # arrays
    ("an input in words", lambda: RNN("abc"), InputError, "has dtype str"),
    ("nothing", lambda: RNN(None), InputError, "there are no input sequences"),
    ("a set", lambda: RNN({1, 2}), InputError, "an array of Python objects"),
    (
        "an input of a byte",
        lambda: RNN(BYTES),
        InputError,
        r"has dtype float8_e5m2; use one of .*: cast it, \.astype\(np.float32\)",
    ),
    ("a complex input", lambda: RNN(X + 1j), InputError, "has dtype complex64; use one of float32, float64"),
    (
        "dates",
        lambda: RNN(np.zeros((2, 5, 3), "datetime64[s]")),
        InputError,
        r"has dtype datetime64\[s\]; use one of",
    ),
    ("objects", lambda: RNN(X.astype(object)), InputError, "an array of Python objects"),
    (
        "a structured array",
        lambda: RNN(np.zeros((2, 5), [("a", "f4")])),
        InputError,
        "has dtype void32; use one of",
    ),
    (
        "bytes",
        lambda: RNN(np.uint8(X)),
        InputError,
        r"has dtype uint8; use one of .*: cast it, \.astype\(np.int64\)",
    ),
    (
        "a masked array",
        lambda: RNN(MASKED),
        InputError,
        r"is a masked array, .*; give \.filled\(\.\.\.\), .*mask=",
    ),
    (
        "a masked parameter",
        lambda: sn.RNN(keep, MASKED, memory=3),
        InputError,
        "a parameter is a masked array",
    ),
    (
        "a masked memory",
        lambda: RNN(X, np.ma.ones((2, 4))),
        InputError,
        "the initial memory is a masked array",
    ),
    ("a masked list", lambda: sn.Ragged.from_list([MASKED[0]]), InputError, "sequence 0 is a masked array"),
    (
        "an input with a gradient",
        lambda: RNN(GRADIENT),
        InputError,
        r"requires a gradient, .*; give \.detach\(\)",
    ),
    (
        "a named input with one",
        lambda: sn.RNN(keep, memory=3)({"x": GRADIENT}),
        InputError,
        r"input x .*\.detach\(\)",
    ),
    (
        "a parameter with one",
        lambda: sn.RNN(keep, GRADIENT, memory=3),
        InputError,
        r"a parameter .*\.detach\(\)",
    ),
    (
        "a memory with one",
        lambda: RNN(X, GRADIENT[:, 0, :1]),
        InputError,
        r"the initial memory .*\.detach\(\)",
    ),
    ("a static with one", lambda: STILL(X, statics=GRADIENT[:, 0]), InputError, r"the static .*\.detach\(\)"),
    (
        "an inner one",
        lambda: sn.RNN(lambda x, h, p: (h, h + GRADIENT[0, 0]), memory=3)(X),
        StepError,
        r"\.detach\(\)",
    ),
    ("a streamed one", lambda: RNN.stream(2).step(GRADIENT[:, 0]), InputError, r"the input .*\.detach\(\)"),
    (
        "a sparse tensor",
        lambda: RNN(torch.ones(2, 5).to_sparse()),
        InputError,
        "is a Tensor that is no array",
    ),
    (
        "parameters in themselves",
        lambda: sn.RNN(keep, CYCLE, memory=3),
        InputError,
        "nests .*, or contains itself",
    ),
    ("inputs in themselves", lambda: RNN(ENDLESS), InputError, "nests more than 64 deep, or contains itself"),
    ("a memory in itself", lambda: sn.RNN(keep, memory=CYCLE), InputError, "nests .*, or contains itself"),
    ("an initial in itself", lambda: RNN(X, CYCLE), InputError, "nests .*, or contains itself"),
    (
        "lists in themselves",
        lambda: sn.Ragged.from_list(ENDLESS),
        InputError,
        "the lists nest .* contains itself",
    ),
    ("lengths in themselves", lambda: RNN(X, lengths=ENDLESS), InputError, "lengths"),
    (
        "relu of a word",
        lambda: sn.relu("a"),
        InputError,
        "relu takes a value of a step, or an array of numbers, not 'a'",
    ),
    ("softmax of nothing", lambda: sn.softmax(None), InputError, "softmax takes a value of a step"),
    (
        "an axis of softmax",
        lambda: ANY.softmax(X, axis="a"),
        InputError,
        "axis of softmax is one of the 3 axes",
    ),
    (
        "an axis too many",
        lambda: sn.softmax(X, axis=3),
        InputError,
        "axis of softmax is one of the 3 axes, .*, not 3",
    ),
    (
        "a slope",
        lambda: ANY.leaky_relu(X, "a"),
        InputError,
        "leaky_relu takes a value of a step, or an array of num",
    ),
    (
        "a dtype",
        lambda: sn.one_hot([1], 2, dtype="half a float"),
        InputError,
        "a one-hot vector has dtype 'half a f",
    ),
    (
        "a list of dtype",
        lambda: ANY.Ragged.from_list([[1]], dtype=5),
        InputError,
        "dtype is a dtype of numbers, not 5",
    ),
    (
        "equal",
        lambda: ANY.Ragged.equal(RAGGED, "a"),
        InputError,
        "equal compares with another Ragged, not a str",
    ),
    ("a slice", lambda: ANY.Ragged.__getitem__(RAGGED, slice("a")), InputError, "is no slice of sequences"),
    (
        "a slice of step 0",
        lambda: RAGGED[::0],
        InputError,
        "is no slice of sequences: slice step cannot be zero",
    ),
    # specs
    (
        "levels of a spec",
        lambda: ANY.Spec(3, levels="a"),
        InputError,
        "levels is how many levels .*, not 'a'",
    ),
    (
        "levels below 0",
        lambda: sn.Spec(3, levels=-1),
        InputError,
        "levels is how many levels .* from 0 to 4, not -1",
    ),
    ("levels beyond all", lambda: sn.Spec(3, levels=5), InputError, "levels is how many levels .*, not 5"),
    (
        "an axis of a spec",
        lambda: ANY.Spec(3, axis=5),
        InputError,
        "axis is a name for the steps of a static",
    ),
    ("an axis that is taken", lambda: sn.Spec(3, axis="steps"), InputError, "axis is a name .*, not 'steps'"),
    (
        "a bool for a size",
        lambda: sn.Spec(True),
        InputError,
        "a feature shape is made of whole numbers, not True",
    ),
    (
        "a word for a shape",
        lambda: ANY.Spec("a"),
        InputError,
        "a feature shape is made of whole numbers, not 'a'",
    ),
    ("a shape beyond all", lambda: sn.Spec(10**30), InputError, "a feature shape has at most"),
    (
        "a dtype of a spec",
        lambda: sn.Spec(3, "M8[s]"),
        InputError,
        r"a spec has dtype datetime64\[s\]; use one of",
    ),
    (
        "a spec of a byte",
        lambda: sn.Spec(3, ml_dtypes.float8_e5m2),
        InputError,
        "a spec has dtype float8_e5m2; use one of .*: cast it",
    ),
    (
        "a memory in words",
        lambda: sn.RNN(keep, memory="a"),
        InputError,
        "a feature shape is a whole number, a tuple",
    ),
    ("a memory of bools", lambda: sn.RNN(keep, memory=True), InputError, "a feature shape is a whole number"),
    # in a step
    (
        "a power of nothing",
        inside(lambda x, h: x**None),
        StepError,
        "the exponent of a power is one constant number",
    ),
    ("a power in words", inside(lambda x, h: x**ANY.__name__), StepError, "the exponent of a power is one"),
    (
        "a slice by zero",
        inside(lambda x, h: x[:, ::0]),
        StepError,
        "is no slice of 3 features: slice step cannot be",
    ),
    ("a slice of words", inside(lambda x, h: x[:, "a":]), StepError, "is no slice of 3 features"),
    (
        "a ragged index",
        inside(lambda x, h: x[:, [[1], [1, 2]]]),
        StepError,
        "an index is a list that is no array",
    ),
    (
        "parts in words",
        inside(lambda x, h: np.split(x, "a", -1)[0]),
        StepError,
        "np.split takes a number of parts",
    ),
    (
        "no parts",
        inside(lambda x, h: np.array_split(x, 0, -1)[0]),
        StepError,
        "makes from 1 to 4096 parts, not 0",
    ),
    (
        "parts beyond all",
        inside(lambda x, h: np.array_split(x, 10**9, -1)[0]),
        StepError,
        "makes from 1 to 4096 parts",
    ),
    (
        "axes beyond",
        inside(lambda x, h: np.transpose(x, (0, 5))),
        StepError,
        r"each of them once, not \(0, 5\)",
    ),
    (
        "axes in words",
        inside(lambda x, h: np.transpose(x, "ab")),
        StepError,
        "transpose of 2 axes wants each of",
    ),
    ("an axis twice", inside(lambda x, h: np.expand_dims(x, (1, 1))), StepError, "has one of the axes twice"),
    (
        "an axis in words",
        inside(lambda x, h: np.expand_dims(x, "a")),
        StepError,
        "to 3 axes wants places among them, each once, not a",
    ),
    (
        "an axis beyond",
        inside(lambda x, h: np.expand_dims(x, (1, 5))),
        StepError,
        "to 4 axes wants places among them, each once, not",
    ),
    (
        "a new axis of rows",
        inside(lambda x, h: np.expand_dims(x, (2, 0))),
        StepError,
        "would stand before the rows",
    ),
    ("a shape in words", inside(lambda x, h: x.reshape(-1, "a")), StepError, "np.reshape in a step: "),
    ("relu in a step", inside(lambda x, h: sn.relu(None)), InputError, "relu takes a value of a step"),
    (
        "lengths in a step",
        within(lambda x: RNN(x, "zeros", lengths=[1])),
        StepError,
        "lengths= and engine= are not for",
    ),
    (
        "an engine in a step",
        within(lambda x: RNN(x, "zeros", engine="interpret")),
        StepError,
        "lengths= and engine= are",
    ),
    (
        "no engine in a step",
        within(lambda x: RNN(x, "zeros", engine="junk")),
        InputError,
        "no engine is called 'junk'",
    ),
    (
        "a flag in a step",
        within(lambda x: RNN(x, "zeros", last_only="y")),
        InputError,
        "last_only is True or False",
    ),
    (
        "features in a step",
        within(lambda x: RNN(x[..., :2], "zeros")),
        InputError,
        "this recurrence was made for",
    ),
    # torch
    (
        "a step of torch",
        lambda: ANY.torch.trace(None, EXAMPLE),
        InputError,
        "a step is a torch.nn.Module or a function",
    ),
    (
        "an example",
        lambda: ANY.torch.trace(CELL, None),
        InputError,
        "example is what one call of the step is given",
    ),
    (
        "an example of words",
        lambda: ANY.torch.trace(CELL, ("a", "b")),
        InputError,
        "an input of the example is a",
    ),
    (
        "a parameter of torch",
        lambda: ANY.torch.trace(keep, (*EXAMPLE, {1})),
        InputError,
        "a parameter has dtype object",
    ),
    (
        "reverse of torch",
        lambda: ANY.torch.trace(CELL, EXAMPLE, reverse="no"),
        InputError,
        "reverse is True or False",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [row[1:] for row in WRONG],
    ids=[f"{n} {row[0]}" for n, row in enumerate(WRONG)],
)
def test_a_wrong_call_says_what_is_wrong(call: Any, error: type[StepnetError], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


# ---- every argument, of every kind -------------------------------------------------------------------------

BAD: dict[str, Any] = {
    "None": None,
    "word": "a",
    "bytes": b"a",
    "True": True,
    "minus one": -1,
    "zero": 0,
    "seven": 7,
    "huge": 10**30,
    "half": 0.5,
    "NaN": float("nan"),
    "complex": 1j,
    "object": object(),
    "class": int,
    "function": len,
    "list": [],
    "ragged": [[1], [1, 2]],
    "mixed": [1, "a", None],
    "tuple": (1, 2),
    "dict": {"a": 1},
    "dict by number": {1: [2]},
    "set": {1, 2},
    "generator": iter([1, 2]),
    "cycle": CYCLE,
    "endless": ENDLESS,
    "named tuple": Pair(1, "b"),
    "0-d": np.array(1.0),
    "empty": np.zeros(0),
    "wide": np.zeros((2, 3, 4, 5)),
    "objects": np.array([None, "a"], object),
    "complexes": np.ones((2, 5, 3), complex),
    "words": np.array([["a", "b"]]),
    "dates": np.zeros((2, 5), "datetime64[s]"),
    "structured": np.zeros((2, 5), [("a", "f4")]),
    "masked": MASKED,
    "gradient": GRADIENT,
    "bfloat16": torch.ones(2, 5, 3).bfloat16(),
    "uint64": np.array([2**64 - 1, 1], np.uint64),
    "Ragged": RAGGED,
    "deep": DEEP,
    "RNN": RNN,
}

QUIET = {"engine": "interpret"}

ENTRIES: dict[str, Callable[[Any], Any]] = {
    "RNN step": lambda v: sn.RNN(v, memory=3) and None,
    "RNN params": lambda v: sn.RNN(keep, v, memory=3)(X, **QUIET),
    "RNN memory": lambda v: sn.RNN(lambda x, h, p: (x, h), memory=v)(X, **QUIET),
    "RNN inputs": lambda v: sn.RNN(lambda x, h, p: (h, h), memory=3, inputs=v).plan,
    "RNN statics": lambda v: sn.RNN(lambda x, h, p, statics: (h, h), memory=3, inputs=3, statics=v).plan,
    "RNN reverse": lambda v: sn.RNN(keep, memory=3, reverse=v),
    "RNN unroll": lambda v: sn.RNN(keep, memory=3, unroll=v),
    "RNN until": lambda v: sn.RNN(keep, memory=3, until=v) and None,
    "call sequences": lambda v: RNN(v, **QUIET),
    "call initial": lambda v: RNN(X, v, **QUIET),
    "call initial deep": lambda v: STILL(X, v, RAGGED, **QUIET),
    "call statics": lambda v: STILL(X, statics=v, **QUIET),
    "call lengths": lambda v: RNN(X, lengths=v, **QUIET),
    "call lengths of Raggeds": lambda v: RNN(RAGGED, lengths=v, **QUIET),
    "call last_only": lambda v: RNN(X, last_only=v, **QUIET),
    "call engine": lambda v: RNN(X, engine=v),
    "call mask": lambda v: RNN(X, mask=v, **QUIET),
    "call mask of Raggeds": lambda v: RNN(RAGGED, mask=v, **QUIET),
    "call mask over levels": lambda v: STILL(X, statics=RAGGED, mask=v, **QUIET),
    "call masked": lambda v: RNN(X, masked=v, **QUIET),
    "call begun": lambda v: RNN(X, begun=v, **QUIET),
    "call begun over levels": lambda v: STILL(X, statics=RAGGED, begun=v, **QUIET),
    "stream rows": lambda v: RNN.stream(v, **QUIET),
    "stream initial": lambda v: RNN.stream(2, v, **QUIET).step(X[:, 0]),
    "stream statics": lambda v: STILL.stream(2, statics=v, **QUIET).step(X[:, 0]),
    "stream engine": lambda v: RNN.stream(2, engine=v).step(X[:, 0]),
    "stream begun": lambda v: RNN.stream(2, begun=v, **QUIET).step(X[:, 0]),
    "stream first step": lambda v: RNN.stream(2, **QUIET).step(v),
    "stream second step": lambda v: stepped().step(v),
    "stream reset rows": lambda v: stepped().reset(v),
    "stream reset initial": lambda v: stepped().reset(None, v),
    "stream reset statics": lambda v: stepped().reset(None, None, v),
    "stream reorder": lambda v: stepped().reorder(v),
    "deep stream reorder": lambda v: stepped(RAGGED).reorder(v),
    "deep stream step": lambda v: stepped(RAGGED).step(v),
    "deep stream rows": lambda v: stepped(RAGGED).reset(v),
    "deep stream initial": lambda v: stepped(RAGGED).reset(None, v),
    "deep stream statics": lambda v: stepped(RAGGED).reset(None, None, v),
    "trace_steps sequences": lambda v: RNN.trace_steps(v),
    "trace_steps initial": lambda v: RNN.trace_steps(X, v),
    "trace_steps statics": lambda v: STILL.trace_steps(X, statics=v),
    "trace_steps lengths": lambda v: RNN.trace_steps(X, lengths=v),
    "trace_steps mask": lambda v: RNN.trace_steps(X, mask=v),
    "trace_steps masked": lambda v: RNN.trace_steps(X, masked=v),
    "trace_steps begun": lambda v: RNN.trace_steps(X, begun=v),
    "explain": lambda v: RNN.explain(v),
    "scopes name": lambda v: SCOPES[v],
    "scopes row": lambda v: SCOPES.step(v, 0),
    "scopes step": lambda v: SCOPES.step(0, v),
    "scan step": lambda v: sn.scan(v, np.ones((2, 3), F32), X, engine="interpret"),
    "scan initial": lambda v: sn.scan(lambda x, h, p: (x, h), v, X, engine="interpret"),
    "scan xs": lambda v: sn.scan(lambda x, h, p: (x, h), np.ones((2, 3)), v, engine="interpret"),
    "scan params": lambda v: sn.scan(lambda x, h, p: (x, h), np.ones((2, 3)), X, v, engine="interpret"),
    "scan engine": lambda v: sn.scan(lambda x, h, p: (x, h), np.ones((2, 3)), X, engine=v),
    "Stack": lambda v: sn.Stack(v),
    "Stack of one": lambda v: sn.Stack([v]),
    "Stack sequences": lambda v: STACK(v, **QUIET),
    "Stack initial": lambda v: STACK(X, v, **QUIET),
    "Stack statics": lambda v: STACK(X, statics=v, **QUIET),
    "Stack last_only": lambda v: STACK(X, last_only=v, **QUIET),
    "Stack mask": lambda v: STACK(X, mask=v, **QUIET),
    "Stack engine": lambda v: STACK(X, engine=v),
    "Stack stream": lambda v: STACK.stream(v),
    "Stack stream initial": lambda v: STACK.stream(2, v, **QUIET).step(X[:, 0]),
    "Stack trace_steps": lambda v: STACK.trace_steps(v),
    "Stack explain": lambda v: STACK.explain(v),
    "Bidirectional forward": lambda v: ANY.Bidirectional(v, BACKWARD),
    "Bidirectional backward": lambda v: ANY.Bidirectional(RNN, v),
    "Bidirectional merge": lambda v: sn.Bidirectional(RNN, BACKWARD, v),
    "Bidirectional sequences": lambda v: BOTH(v, **QUIET),
    "Bidirectional initial": lambda v: BOTH(X, v, **QUIET),
    "Bidirectional statics": lambda v: BOTH(X, statics=v, **QUIET),
    "Bidirectional lengths": lambda v: BOTH(X, lengths=v, **QUIET),
    "Bidirectional last_only": lambda v: BOTH(X, last_only=v, **QUIET),
    "Ragged values": lambda v: sn.Ragged(v, (np.array([0, 1]),)),
    "Ragged offsets": lambda v: sn.Ragged(np.ones(2), v),
    "Ragged offset": lambda v: sn.Ragged(np.ones(2), (v,)),
    "Ragged index": lambda v: RAGGED[v],
    "Ragged take": lambda v: RAGGED.take(v),
    "Ragged with_values": lambda v: RAGGED.with_values(v),
    "Ragged group": lambda v: RAGGED.group(v),
    "Ragged equal": lambda v: RAGGED.equal(v),
    "from_list": lambda v: sn.Ragged.from_list(v),
    "from_list of one": lambda v: sn.Ragged.from_list([v]),
    "from_list dtype": lambda v: sn.Ragged.from_list([[1]], dtype=v),
    "from_list features": lambda v: sn.Ragged.from_list([], features=v),
    "from_list levels": lambda v: sn.Ragged.from_list([[1]], levels=v),
    "from_padded": lambda v: sn.Ragged.from_padded(v),
    "from_padded lengths": lambda v: sn.Ragged.from_padded(X, v),
    "from_padded time_major": lambda v: sn.Ragged.from_padded(X, time_major=v),
    "to_padded time_major": lambda v: RAGGED.to_padded(v),
    "to_padded length": lambda v: RAGGED.to_padded(length=v),
    "to_padded fill": lambda v: RAGGED.to_padded(fill=v),
    "from_arrow": lambda v: sn.Ragged.from_arrow(v),
    "from_packed": lambda v: sn.Ragged.from_packed(v),
    "to_packed": lambda v: RAGGED.to_packed(v),
    "from_nested": lambda v: sn.Ragged.from_nested(v),
    "generate rnn": lambda v: sn.generate(v, [0], max_steps=2, engine="interpret"),
    "generate start": lambda v: generated(start=v),
    "generate max_steps": lambda v: generated(max_steps=v),
    "generate stop": lambda v: generated(stop=v),
    "generate sampler": lambda v: generated(sampler=v),
    "generate initial": lambda v: generated(initial=v),
    "generate statics": lambda v: generated(statics=v),
    "generate feed": lambda v: generated(feed=v),
    "generate scores": lambda v: generated(scores=v),
    "generate seed": lambda v: generated(seed=v),
    "generate identities": lambda v: generated(identities=v, sampler=sn.sampling()),
    "generate engine": lambda v: generated(engine=v),
    "sampling temperature": lambda v: sn.sampling(v),
    "sampling top_k": lambda v: sn.sampling(top_k=v),
    "sampling top_p": lambda v: sn.sampling(top_p=v),
    "beam_search rnn": lambda v: sn.beam_search(v, [0], beams=2, max_steps=2, engine="interpret"),
    "beam_search start": lambda v: searched(start=v),
    "beam_search beams": lambda v: searched(beams=v),
    "beam_search max_steps": lambda v: searched(max_steps=v),
    "beam_search stop": lambda v: searched(stop=v),
    "beam_search length_penalty": lambda v: searched(length_penalty=v),
    "beam_search initial": lambda v: searched(initial=v),
    "beam_search feed": lambda v: searched(feed=v),
    "beam_search scores": lambda v: searched(scores=v),
    "create_rnn_op": lambda v: sn.create_rnn_op(v),
    "add_input": lambda v: block(lambda rnn: rnn.add_input(v)),
    "add_input level": lambda v: block(lambda rnn: rnn.add_input(X, v)),
    "add_memory init": lambda v: written(lambda rnn, x, h: rnn.add_memory(v)),
    "add_memory shape": lambda v: written(lambda rnn, x, h: rnn.add_memory(shape=v)),
    "add_memory dtype": lambda v: written(lambda rnn, x, h: rnn.add_memory(shape=3, dtype=v)),
    "add_static": lambda v: written(lambda rnn, x, h: rnn.add_static(v)),
    "add_outputs": lambda v: written(lambda rnn, x, h: rnn.add_outputs(v)),
    "update": lambda v: written(lambda rnn, x, h: h.update(v)),
    "builder.matmul W": lambda v: written(lambda rnn, x, h: ANY.builder.matmul(v, x)),
    "builder.matmul x": lambda v: written(lambda rnn, x, h: ANY.builder.matmul(np.ones((3, 3)), v)),
    "builder.add_two": lambda v: written(lambda rnn, x, h: ANY.builder.add_two(x, v)),
    "block output_all_steps": lambda v: written()(v, **QUIET),
    "block engine": lambda v: written()(engine=v),
    "foreach body": lambda v: sn.foreach(v, X, np.ones((2, 3)), engine="interpret"),
    "foreach inputs": lambda v: sn.foreach(lambda x, s: (s, s), v, np.ones((2, 3)), engine="interpret"),
    "foreach state": lambda v: sn.foreach(lambda x, s: (x, s), X, v, engine="interpret"),
    "foreach engine": lambda v: sn.foreach(lambda x, s: (x, s), X, np.ones((2, 3)), engine=v),
    "cells.cell": lambda v: sn.cells.cell(v),
    "cells.rnn name": lambda v: sn.cells.rnn(v, GRU),
    "cells.rnn params": lambda v: sn.cells.rnn("gru", v),
    "cells.rnn parameter": lambda v: sn.cells.rnn("gru", {**GRU, "b": v}),
    "cells.rnn reverse": lambda v: sn.cells.rnn("gru", GRU, reverse=v),
    "Cell memory": lambda v: sn.cells.CELLS["lstm_projection"].memory(3, v),
    "Cell shapes": lambda v: sn.cells.CELLS["lstm_projection"].shapes(v, 2, 3),
    "Cell hidden": lambda v: sn.cells.CELLS["gru"].shapes(2, v),
    "Cell parameters": lambda v: sn.cells.CELLS["gru"].parameters(2, v),
    "Cell seed": lambda v: sn.cells.CELLS["gru"].parameters(2, 3, seed=v),
    "Cell dtype": lambda v: sn.cells.CELLS["gru"].parameters(2, 3, dtype=v),
    "Cell bias": lambda v: sn.cells.CELLS["gru"].parameters(2, 3, bias=v),
    "Cell sizes": lambda v: sn.cells.CELLS["gru"].sizes(v),
    "dropout rate": lambda v: sn.masks.dropout(v, [2, 3], seed=1),
    "dropout like": lambda v: sn.masks.dropout(0.5, v, seed=1),
    "dropout features": lambda v: sn.masks.dropout(0.5, [2], v, seed=1),
    "dropout seed": lambda v: sn.masks.dropout(0.5, [2], seed=v),
    "dropout per": lambda v: sn.masks.dropout(0.5, [2], seed=1, per=v),
    "dropout dtype": lambda v: sn.masks.dropout(0.5, [2], seed=1, dtype=v),
    "dropout identities": lambda v: sn.masks.dropout(0.5, [2, 3], seed=1, identities=v),
    "uniform before": lambda v: sn.masks.uniform([2, 3], seed=1, per="step", before=v),
    "convert arrays": lambda v: sn.convert(v, "keras.gru", "torch.gru"),
    "convert one array": lambda v: sn.convert({**KERAS, "bias": v}, "keras.gru", "torch.gru"),
    "convert source": lambda v: sn.convert(KERAS, v, "torch.gru"),
    "convert target": lambda v: sn.convert(KERAS, "keras.gru", v),
    "convert sizes": lambda v: sn.convert(KERAS, "keras.gru", "torch.gru", sizes=v),
    "convert a size": lambda v: sn.convert(KERAS, "keras.gru", "torch.gru", sizes={"inputs": v}),
    "convert semantics": lambda v: sn.convert(KERAS, "keras.gru", "torch.gru", semantics=v),
    "convert a field": lambda v: sn.convert(
        KERAS, "keras.gru", "torch.gru", semantics={"gate_activation": v}
    ),
    "convert to semantics": lambda v: sn.convert(KERAS, "keras.gru", "torch.gru", semantics={"target": v}),
    "convert exact": lambda v: sn.convert(KERAS, "keras.gru", "torch.gru", exact=v),
    "convert kind": lambda v: sn.convert(KERAS, "keras.gru", "torch.gru", kind=v),
    "Conversion arrays": lambda v: repr(sn.Conversion(v, v)),
    "layout.from_torch": lambda v: sn.layout.from_torch(v),
    "layout.from_torch one": lambda v: sn.layout.from_torch({**TORCH, "weight_ih_l0": v}),
    "layout.from_torch prefix": lambda v: sn.layout.from_torch(TORCH, v),
    "layout.from_torch cell": lambda v: sn.layout.from_torch(TORCH, cell=v),
    "layout.layers": lambda v: sn.layout.layers(v, "keras.gru"),
    "layout.layers layout": lambda v: sn.layout.layers(KERAS, v),
    "layout.layers dtype": lambda v: sn.layout.layers(KERAS, "keras.gru", dtype=v),
    "layout.layers reverse": lambda v: sn.layout.layers(KERAS, "keras.gru", reverse=v),
    "layout.layers merge": lambda v: sn.layout.layers(KERAS, "keras.gru", merge=v),
    "layout.find": lambda v: sn.layout.find(v),
    "layout.find shape": lambda v: sn.layout.find({"weight_ih_l0": v}),
    "layout.record": lambda v: sn.layout.record(v),
    "layout.Record name": lambda v: sn.layout.Record(v, "gru", {}),
    "layout.Record cell": lambda v: sn.layout.Record("a.b", v, {}),
    "layout.Record arrays": lambda v: sn.layout.Record("a.b", "gru", v),
    "layout.Record array": lambda v: sn.layout.Record("a.b", "gru", {"w": v}),
    "layout.Record semantics": lambda v: sn.layout.Record("a.b", "gru", {}, v),
    "layout.Semantics": lambda v: sn.layout.Semantics(v),
    "layout.Semantics field": lambda v: sn.layout.Semantics("gru", reset=v),
    "layout.Semantics number": lambda v: sn.layout.Semantics("gru", clip=v),
    "layout.Sizes": lambda v: sn.layout.Sizes(2, v),
    "layout.verify": lambda v: sn.layout.verify(v, v),
    "layout.Weights": lambda v: sn.layout.Weights(v, "keras.gru").layers(),
    "set_threads": lambda v: sn.set_threads(v),
    "one_hot index": lambda v: sn.one_hot(v, 3),
    "one_hot size": lambda v: sn.one_hot([1], v),
    "one_hot dtype": lambda v: sn.one_hot([1], 3, v),
    "softmax axis": lambda v: sn.softmax(X, v),
    "layer_norm axis": lambda v: sn.layer_norm(X, axis=v),
    "layer_norm epsilon": lambda v: sn.layer_norm(X[0, 0, :1], epsilon=v),
    "leaky_relu slope": lambda v: sn.leaky_relu(np.ones(1), v),
    "elu alpha": lambda v: sn.elu(np.ones(1), v),
    "hard_sigmoid slope": lambda v: sn.hard_sigmoid(np.ones(1), v),
    "gelu approximate": lambda v: sn.gelu(X, v),
    **{
        name: lambda v, name=name: getattr(sn, name)(v)
        for name in (
            *("elu", "erf", "gelu", "hard_sigmoid", "layer_norm", "leaky_relu", "relu", "selu", "sigmoid"),
            *("silu", "softmax", "softplus", "softsign", "softmax_over_steps"),
        )
    },
    "expand": lambda v: sn.expand(v, v),
    "reduce": lambda v: sn.reduce(v, "sum"),
    "reduce how": lambda v: within(lambda x: sn.reduce(x, v))(),
    "expand in a step": lambda v: within(lambda x: sn.expand(x, v))(),
    "Spec shape": lambda v: sn.Spec(v),
    "Spec dtype": lambda v: sn.Spec(3, v),
    "Spec levels": lambda v: sn.Spec(3, levels=v),
    "Spec axis": lambda v: sn.Spec(3, axis=v),
    "inner sequences": lambda v: within(lambda x: RNN(v, "zeros")[0])(),
    "inner initial": lambda v: within(lambda x: RNN(x, v)[0])(),
    "inner statics": lambda v: within(lambda x: STILL(x, "zeros", v)[0])(),
    "inner lengths": lambda v: within(lambda x: RNN(x, "zeros", lengths=v)[0])(),
    "inner last_only": lambda v: within(lambda x: RNN(x, "zeros", last_only=v)[0])(),
    "inner engine": lambda v: within(lambda x: RNN(x, "zeros", engine=v)[0])(),
    "index in a step": lambda v: inside(lambda x, h: x[:, v])(),
    "slice in a step": lambda v: inside(lambda x, h: x[:, ::v])(),
    "split in a step": lambda v: inside(lambda x, h: np.split(x, v, -1)[0])(),
    "array_split in a step": lambda v: inside(lambda x, h: np.array_split(x, v, -1)[0])(),
    "expand_dims in a step": lambda v: inside(lambda x, h: np.expand_dims(x, v))(),
    "transpose in a step": lambda v: inside(lambda x, h: np.transpose(x, v))(),
    "reshape in a step": lambda v: inside(lambda x, h: x.reshape(-1, v))(),
    "power in a step": lambda v: inside(lambda x, h: np.power(x, v))(),
    "sum in a step": lambda v: inside(lambda x, h: x.sum(v))(),
    "astype in a step": lambda v: inside(lambda x, h: x.astype(v))(),
    "maximum in a step": lambda v: inside(lambda x, h: np.maximum(x, v))(),
    "where in a step": lambda v: inside(lambda x, h: np.where(x > 0, x, v))(),
    "matmul in a step": lambda v: inside(lambda x, h: np.matmul(x, v))(),
    "returned by a step": lambda v: inside(lambda x, h: v)(),
    "torch.trace step": lambda v: ANY.torch.trace(v, EXAMPLE),
    "torch.trace example": lambda v: ANY.torch.trace(CELL, v),
    "torch.trace input": lambda v: ANY.torch.trace(CELL, (v, EXAMPLE[1])),
    "torch.trace state": lambda v: ANY.torch.trace(CELL, (EXAMPLE[0], v)),
    "torch.trace statics": lambda v: ANY.torch.trace(CELL, EXAMPLE, statics=v),
    "torch.trace reverse": lambda v: ANY.torch.trace(CELL, EXAMPLE, reverse=v),
}

LONG = ("huge",)
CALLED = ("class", "function", "RNN")
LEFT_OUT: dict[str, tuple[str, ...]] = {
    # right, and long
    "generate max_steps": LONG,
    "beam_search max_steps": LONG,
    "to_padded length": LONG,
    "set_threads": ("seven", "huge"),
    # functions that are called with what they do not take, and say so themselves
    "scan step": CALLED,
    "foreach body": CALLED,
    "generate sampler": CALLED,
    "generate feed": CALLED,
    "generate scores": CALLED,
    "beam_search feed": CALLED,
    "beam_search scores": CALLED,
    "torch.trace step": CALLED,
    "torch.trace input": ("gradient", "list", "bfloat16"),
    "torch.trace state": ("gradient", "list", "bfloat16"),
}


def stepped(statics: Any = None) -> Any:
    """A stream that has made a step; one with sequences beside it for statics."""
    stream = (RNN if statics is None else STILL).stream(2, statics=statics, engine="interpret")
    stream.step(X[:, 0])
    return stream


def generated(**changed: Any) -> Any:
    """What is generated when these arguments are changed."""
    return ANY.generate(SYMBOLS, **{"start": [0, 1], "max_steps": 2, "engine": "interpret", **changed})


def searched(**changed: Any) -> Any:
    """What is found when these arguments are changed."""
    given = {"start": [0, 1], "beams": 2, "max_steps": 2, "engine": "interpret", **changed}
    return ANY.beam_search(SYMBOLS, **given)


@pytest.fixture(autouse=True)
def threads() -> Any:
    """As many threads as before."""
    yield
    sn.set_threads(None)


@pytest.mark.parametrize("entry", ENTRIES)
def test_nonsense_is_refused_by_an_error_of_stepnet(entry: str) -> None:
    leaks: list[str] = []
    for name, value in BAD.items():
        if name in LEFT_OUT.get(entry, ()):
            continue
        try:
            with np.errstate(all="ignore"):
                ENTRIES[entry](value)
        except StepnetError:
            pass
        except Exception as error:
            leaks.append(f"{name}: {type(error).__name__}: {error}")
    assert leaks == []
