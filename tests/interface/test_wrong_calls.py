"""Wrong calls of the public interface: what each is answered with.

`WRONG` has a row for each kind of mistake: the call, the error, and what its message says.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# Wrong calls are what this is about.

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from wrong_values import (
    ANY,
    BACKWARD,
    BOTH,
    BYTES,
    CELL,
    CYCLE,
    ENDLESS,
    EXAMPLE,
    GRADIENT,
    GRU,
    KERAS,
    MASKED,
    RAGGED,
    RNN,
    SCOPES,
    STACK,
    STILL,
    SYMBOLS,
    X,
    inside,
    keep,
    within,
    written,
)

import stepnet as sn
import stepnet.torch
from stepnet.errors import ArgumentError, InputError, LayoutError, StepError, StepnetError

LEVELS = sn.Spec(4, levels=1)
TORCH = {
    name: np.ones((12, 3) if name[7] == "i" else (12, 4), "f4") for name in ("weight_ih_l0", "weight_hh_l0")
}
ANY_RNN: Any = RNN
NAMED: Any = sn.RNN(lambda x, h, p: ({"seen": h, "all": h}, h + x), memory=3)


def of_dict(call: Callable[[Any, Any, Any], Any]) -> Callable[[], Any]:
    """A call of a recurrence whose inputs, memory and parameters are dicts, and whose output is this."""
    rnn = sn.RNN(lambda x, m, p: (call(x, m, p), m), {"W": np.eye(3, dtype="f4")}, memory={"h": 3})
    return lambda: rnn({"a": X})


DOTTED = sn.RNN(lambda x, h, p: (x @ p["u.W"], h), {"u.W": np.eye(3, dtype="f4")}, memory=3, inputs=3)


class Returning(torch.nn.Module):
    """A module that returns what it was made with."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Any) -> Any:
        return self.value


class Begun(torch.nn.Module):
    """A GRU that begins with a state of two sequences, or with one that is given."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = torch.nn.GRU(3, 4, batch_first=True)

    def forward(self, x: Any, h0: Any = None) -> Any:
        return self.gru(x, torch.zeros(1, 2, 4) if h0 is None else h0)[0]


# ---- each mistake: its name, the call, the error, and what is said -----------------------------------------

WRONG: list[tuple[str, Callable[[], Any], type[StepnetError], str]] = [
    # engines
    ("no engine", lambda: RNN(X, engine=None), InputError, "engine is a name, or several .*, not None"),
    (
        "a number",
        lambda: RNN(X, engine=5),
        InputError,
        "cuda, cuda-emulated and 'auto', not 5",
    ),
    ("a mixed list", lambda: RNN(X, engine=["llvm", 3]), InputError, r"not \['llvm', 3\]"),
    ("no engines", lambda: RNN(X, engine=[]), InputError, r"engine is a name, or several .*, not \[\]"),
    ("an unknown engine", lambda: RNN(X, engine="gpu"), InputError, "no engine is called 'gpu'"),
    ("one unknown of two", lambda: RNN(X, engine=("llvm", "gpu")), InputError, "no engine is called 'gpu'"),
    ("engine of a stream", lambda: RNN.stream(engine=["gpu"]), InputError, "no engine is called 'gpu'"),
    ("engine of explain", lambda: RNN.explain(engine={}), InputError, r"engine is a name.*, not \{\}"),
    ("engine over levels", lambda: STILL(X, statics=RAGGED, engine=3), InputError, "engine is a name"),
    ("engine of scan", lambda: sn.scan(keep, np.ones((2, 3)), X, engine=ANY), InputError, "engine is a name"),
    # first mistakes
    (
        "a list of sequences",
        lambda: RNN([X[0], X[0][:1]]),
        InputError,
        r"different batch and time: .*; several sequences are one input: Ragged.from_list\(\[...\]\)",
    ),
    ("h0", lambda: RNN(X, h0=X[:, 0]), ArgumentError, "no argument h0=: the memory before the .* initial="),
    (
        "hx of layers",
        lambda: STACK(X, hx=X[:, 0]),
        ArgumentError,
        "no argument hx=: the memory .* is initial=",
    ),
    ("lengths by another name", lambda: RNN(X, sequence_length=[2, 1]), ArgumentError, "are lengths=$"),
    ("a misspelt argument", lambda: RNN(X, lenghts=[2]), ArgumentError, r"lenghts=: did you mean lengths=\?"),
    ("an argument of RNN", lambda: RNN(X, reverse=True), ArgumentError, r"it is an argument of RNN\(...\)"),
    (
        "params of a call",
        lambda: RNN(X, params=GRU),
        ArgumentError,
        r"no argument params=: with_params\(params\)",
    ),
    (
        "nothing like it",
        lambda: RNN(X, zzz=1),
        ArgumentError,
        "its arguments are sequences, initial, statics, l",
    ),
    (
        "state of a gradient",
        lambda: sn.value_and_grad(lambda y, t: y, RNN)(X, state=X[:, 0]),
        ArgumentError,
        "value_and_grad has no argument state=: the memory before the first step is initial=",
    ),
    (
        "params ahead of the inputs",
        lambda: sn.value_and_grad(lambda y, t: y, RNN)(GRU, X, X),
        ArgumentError,
        "called with sequences and targets, and with all others by name, as params=params",
    ),
    (
        "a target for each sequence",
        lambda: sn.value_and_grad(lambda y, t: y - t, RNN)(X, X[:, 0]),
        InputError,
        r"per step are arrays .* of \(.*\), as the inputs are, not of .* per sequence .* last_only=True",
    ),
    ("mask of vjp", lambda: sn.vjp(RNN)(X, padding_mask=X), ArgumentError, "steps are left out by mask="),
    *(
        (
            f"masks of jvp of {type(model).__name__}",
            lambda model=model: sn.jvp(model)(X, {"inputs": X}, masks=X[..., 0] > 0),
            ArgumentError,
            r"^jvp has no argument masks=: did you mean mask=\?$",
        )
        for model in (RNN, STACK, BOTH, sn.Graph(lambda x, params: RNN(x)[0]))
    ),
    (
        "mask of stream",
        lambda: RNN.stream(masks=X),
        ArgumentError,
        "^stream has no argument masks=: the rows",
    ),
    (
        "mask of step",
        lambda: RNN.stream(2).step(X[:, 0], mask=X),
        ArgumentError,
        "^step has no .* are rows= of",
    ),
    *(
        (
            f"{name} of value_and_grad",
            lambda name=name: ANY.value_and_grad(lambda y, t: y, RNN, **{name: "params"}),
            ArgumentError,
            f"^value_and_grad has no argument {name}=: it is an argument of the call of what value_and_grad",
        )
        for name in ("wrt", "last_only")
    ),
    ("memory by position", lambda: sn.RNN(keep, GRU, {"h": 8}), ArgumentError, "by name, as memory=64$"),
    (
        "a module of PyTorch as a step",
        lambda: sn.RNN(CELL, memory=4),
        InputError,
        "^GRUCell is a module of PyTorch, .* stepnet.torch.trace, or, .* to stepnet.torch.Recurrence",
    ),
    *(
        (
            f"levels of {len(statics)} statics",
            lambda statics=statics: sn.RNN(STILL.step, memory=3, inputs=3, statics=statics),
            InputError,
            r"^the static keys has levels=, which are of inputs: .* Spec\(64, axis='keys'\)",
        )
        for statics in ({"keys": LEVELS}, {"keys": LEVELS, "more": LEVELS})
    ),
    (
        "a static that is not there",
        lambda: sn.RNN(lambda x, h, p, statics: (x, h + statics["prior"]), memory=3)(
            X, statics={"a": X[:, 0]}
        ),
        StepError,
        "there is no static 'prior' in `statics`; there are a\n",
    ),
    (
        "an output that is not there",
        lambda: sn.value_and_grad(lambda y, t: y["z"], NAMED)(X),
        StepError,
        "there is no output 'z' in `y`; there are seen, all\n",
    ),
    *(
        (f"a dict as a value in {name}", call, StepError, words)
        for name, call, words in (
            (
                "a function",
                of_dict(lambda x, m, p: np.tanh(m)),
                r"^`m` is \{h: array\}, and one .*, as m\['h'\]",
            ),
            (
                "a product",
                of_dict(lambda x, m, p: m @ p["W"]),
                r"^`m` is \{h: array\}, and one .*, as m\['h'\]",
            ),
            ("a sum", of_dict(lambda x, m, p: np.sum(m, axis=-1)), r"^`m` is \{h: array\}, and one "),
            (
                "a product of inputs",
                of_dict(lambda x, m, p: x * m["h"]),
                r"^`x` is \{a: array\}, .* x\['a'\]",
            ),
            ("a product of parameters", of_dict(lambda x, m, p: x["a"] @ p), r"^`p` is \{W: array\}, "),
            (
                "a loss",
                lambda: sn.value_and_grad(lambda y, t: y - t, NAMED)(X, X),
                r"^`y` is \{seen: array, a",
            ),
            (
                "a stack",
                lambda: sn.Stack([NAMED, sn.RNN(keep, memory=3)])(X),
                r"^layer 1: `x` is \{seen: array, all: array\}, ",
            ),
        )
    ),
    (
        "a name in an array",
        lambda: sn.RNN(lambda frame, state, w: (frame, state["tape"]), memory=3)(X),
        StepError,
        r"^`state` is an array, and has no 'tape', as a dict has; a step is called as \(x, memory, params\)",
    ),
    (
        "a place behind a list",
        lambda: sn.RNN(lambda x, hc, p: (x, (hc[2], hc[1])), memory=[3, 3])(X),
        StepError,
        r"^there is no memory 2 in `hc`; `hc` is a list of 2: hc\[0\], to hc\[1\]\n",
    ),
    (
        "a place behind a tuple",
        lambda: sn.RNN(lambda x, hc, p: (x, (hc[-3], hc[1])), memory=(sn.Spec(3), sn.Spec(3)))(X),
        StepError,
        "^there is no memory -3 in `hc`; `hc` is a tuple of 2",
    ),
    (
        "a name in a list",
        lambda: sn.RNN(lambda x, h, w: (x @ w["W"], h), [np.eye(3, dtype="f4")], memory=3)(X),
        StepError,
        r"^`w` is a list of 1, and has no 'W', as a dict has: w\[0\]\n",
    ),
    *(
        (
            f"{name} of RNN",
            lambda name=name: ANY.RNN(keep, memory=3, **{name: 4}),
            ArgumentError,
            f"^RNN has no argument {name}=: {words}",
        )
        for name, words in (
            ("hidden_size", "the features of the memory are memory=64$"),
            ("mask", "it is an argument of a call of the recurrence"),
            ("revers", r"did you mean reverse=\?$"),
        )
    ),
    (
        "no statics",
        lambda: sn.Graph(lambda x, p, statics: x + sn.expand(statics, x), inputs=3, statics=3)(X),
        InputError,
        "^the statics are None; this graph was made for array: give them as statics=$",
    ),
    (
        "lengths as a state",
        lambda: sn.RNN(lambda x, m, p: (x, m), memory=[4, 4])(X, [2, 5]),
        InputError,
        "^initial is the memory before the first step, not whole numbers; .*: lengths=lengths$",
    ),
    (
        "one array for two memories",
        lambda: sn.RNN(lambda x, m, p: (x, m), memory=[4, 4])(X, np.ones((2, 4))),
        InputError,
        r"^initial is array, the memory `m` is \(array, array\), of \[2, 4\], \[2, 4\]$",
    ),
    (
        "overwrite of save",
        lambda: ANY.RNN(keep, memory=3).save("x.stepnet", overwrite=True),
        ArgumentError,
        "^save has no argument overwrite=: force=True replaces an existing file$",
    ),
    (
        "tangents of a part",
        lambda: sn.jvp(
            sn.RNN(lambda x, h, p: (x * p["a"] + p["b"], h), {"a": X[0, 0], "b": X[0, 0]}, memory=3)
        )(X, {"params": {"a": X[0, 0]}}),
        InputError,
        "give None for an array that does not change$",
    ),
    (
        "np.where of a condition",
        inside(lambda x, h: np.where(x > 0)),
        StepError,
        r"write np.where\(condition, x, y\)",
    ),
    (
        "out=",
        inside(lambda x, h: np.add(x, x, out=x)),
        StepError,
        r"write a = a \+ b for a \+= b, and a = np.add\(b, c\) for out=a; .* np.concatenate",
    ),
    (
        "a parameter of a list",
        lambda: sn.RNN(keep, {"b": [0.25, 0.5]}, memory=3),
        InputError,
        r"b.0 is the Python number 0.25, .*; a list of numbers is np.asarray\(b, np.float32\)$",
    ),
    (
        "a feature by a value",
        lambda: sn.value_and_grad(lambda y, t: y[:, t], RNN)(X, np.zeros((2, 5), int)),
        StepError,
        r"use np.where, or stepnet.one_hot\(index, size\), a product and a sum",
    ),
    (
        "a feature of one number",
        lambda: sn.RNN(lambda x, m, p: (m[:, 0], m), memory=())(X),
        StepError,
        r"one number in each row has no axis of features .* memory=1 \(here `m`\)",
    ),
    (
        "names with a prefix",
        lambda: sn.convert({f"rnn.{n}": a for n, a in TORCH.items()}, "torch.gru", "keras.gru"),
        LayoutError,
        r"^torch.gru has no array 'rnn.*; remove 'rnn.' from the names: name.removeprefix\('rnn.'\)$",
    ),
    (
        "another layout",
        lambda: sn.convert(TORCH, "torch.lstm", "keras.lstm"),
        LayoutError,
        "^weight_hh_l0 has shape .*; they fit torch.gru$",
    ),
    (
        "a file to convert",
        lambda: ANY.convert("sd.pt", "torch.gru", "keras.gru"),
        InputError,
        "^weights are arrays by name, and not a file: stepnet convert sd.pt writes a new file$",
    ),
    (
        "weights of Keras in a list",
        lambda: ANY.convert([X, X], "keras.gru", "torch.gru"),
        InputError,
        r"of a layer of Keras \{each.name: each.numpy\(\) for each in layer.weights\}, not a list$",
    ),
    (
        "to= of convert",
        lambda: ANY.convert(TORCH, "torch.gru", to="keras.gru"),
        ArgumentError,
        "^convert has no argument to=: the layout to convert to is target=$",
    ),
    ("one sequence", lambda: RNN(X[0]), InputError, r"one sequence is x\[None\], one number per step is x"),
    ("no memory", lambda: sn.RNN(keep), InputError, "carries a memory .*; give its features: memory=64"),
    (
        "a condition of one argument",
        lambda: sn.RNN(keep, memory=3, until=lambda y: y),
        InputError,
        r"is called as <lambda>\(output, memory\), and takes \(y\): too many",
    ),
    (
        "a step without parameters",
        lambda: sn.RNN(lambda x, h: (x, h), memory=3, inputs=3),
        InputError,
        r"is called as <lambda>\(x, memory, params\), and takes \(x, h\): too many",
    ),
    (
        "a parameter that is not there",
        lambda: sn.RNN(lambda x, h, p: (x @ p["Q"], h), {"W": np.eye(3), "U": np.eye(3)}, memory=3, inputs=3),
        StepError,
        "there is no parameter 'Q' in `p`; there are W, U",
    ),
    (
        "a stream of both directions",
        lambda: BOTH.stream(),
        InputError,
        "no stream; its direction `forward` has",
    ),
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
    ("less than no rows", lambda: RNN.stream(rows=-1), InputError, "from 0 to 16777216, not -1"),
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
        "lengths is a list that is not an array",
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
        "mask is a list that is not an array",
    ),
    ("a mask in words", lambda: RNN(X, mask="a"), InputError, r"mask is <U1\[\]; it should be bool\[2, 5\]"),
    (
        "a mask for Raggeds",
        lambda: RNN(RAGGED, mask=[True]),
        InputError,
        "mask is a list; it should be a Ragged",
    ),
    ("ragged begun", lambda: RNN(X, begun=[[1], [1, 2]]), InputError, "begun is a list that is not an array"),
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
        "the counts is a list that is not an array",
    ),
    (
        "ragged indices",
        lambda: RAGGED.take([[1], [1, 2]]),
        InputError,
        "indices is a list that is not an array",
    ),
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
    (
        "a stack of layers in no list",
        lambda: sn.Stack(*[sn.RNN(lambda x, h, p: (x, h), memory=2)] * 2),
        InputError,
        r"layers of a Stack are a list .*; write Stack\(\[first, second\]\)",
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
        "parameter params is a masked array",
    ),
    (
        "a masked memory",
        lambda: RNN(X, np.ma.ones((2, 4))),
        InputError,
        "the initial memory `h` is a masked array",
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
        r"parameter params .*\.detach\(\)",
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
    ("a streamed one", lambda: RNN.stream(2).step(GRADIENT[:, 0]), InputError, r"input x .*\.detach\(\)"),
    (
        "a sparse tensor",
        lambda: RNN(torch.ones(2, 5).to_sparse()),
        InputError,
        "is a Tensor that is not an array",
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
        "the exponent of a power is a number, a value of the step",
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
        "an index is a list that is not an array",
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
        "a parameter of a step of torch that is not there",
        lambda: ANY.torch.trace(lambda x, m, p: (x @ p["V"], m), (*EXAMPLE, {"A": torch.eye(3)})),
        StepError,
        "^the step reads 'V', which is not there; `p` has A\n  at .*test_wrong_calls.py",
    ),
    (
        "a name in a list of a step of torch",
        lambda: ANY.torch.trace(lambda x, m, p: (x @ p["V"], m), (*EXAMPLE, [torch.eye(3)])),
        StepError,
        r"^the step fails: list indices must be .*; `p` is a list, which is read by number, as p\[0\]",
    ),
    ("no example", lambda: ANY.torch.graph(torch.nn.GRU(3, 4)), InputError, r": graph\(model, example\)$"),
    (
        "batch_first of graph",
        lambda: ANY.torch.graph(torch.nn.GRU(3, 4), torch.ones(2, 5, 3), batch_first=True),
        ArgumentError,
        "^graph has no argument batch_first=: the axes of each argument are axes=",
    ),
    (
        "a module that returns a number",
        lambda: ANY.torch.graph(Returning(3), torch.ones(2, 5, 3)),
        StepError,
        "^the module returns 3; the outputs of a model are tensors",
    ),
    (
        "a state of a fixed batch",
        lambda: ANY.torch.graph(Begun(), torch.ones(2, 5, 3)),
        StepError,
        r"should be f32\[4\]; it is of 2 sequences, .* torch.zeros\(1, x.shape\[0\], size\)",
    ),
    (
        "a state of another batch",
        lambda: ANY.torch.graph(Begun(), (torch.ones(3, 5, 3), torch.zeros(2, 3, 4))),
        InputError,
        r"axes= says which axes they are, as axes=\{'h0': '_N'\} of a state",
    ),
    (
        "a Scan of a module",
        lambda: ANY.torch.Scan(DOTTED),
        InputError,
        r"a parameter is called 'u.W', .*; a module is trained as stepnet.torch.Recurrence\(module, ",
    ),
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
        "the input of a torch.nn.GRUCell is one tensor .rows, features., not a str",
    ),
    (
        "a parameter of torch",
        lambda: ANY.torch.trace(keep, (*EXAMPLE, {1})),
        InputError,
        "parameter params has dtype object",
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


def test_an_attribute_of_other_libraries_says_what_is_here() -> None:
    words = r"'RNN' object has no attribute 'predict': call the model itself, model\(sequences\)$"
    with pytest.raises(AttributeError, match=words):
        ANY_RNN.predict(X)
    with pytest.raises(AttributeError, match=r"'RNN' object has no attribute 'zzz'$"):
        _ = ANY_RNN.zzz
    assert not hasattr(RNN, "state_dict")


def test_an_argument_that_is_not_there_is_a_type_error() -> None:
    """So code that asks by a call whether a function has an argument goes on working."""
    with pytest.raises(TypeError, match="initial="):
        RNN(X, h0=X[:, 0])
