"""Calls of the public interface with one argument that is mostly nonsense.

`ENTRIES` times `BAD`: whatever it is, it is refused by a `StepnetError`, or it was no nonsense there.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# Wrong calls are what this is about.

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from wrong_values import (
    ANY,
    BACKWARD,
    BOTH,
    CELL,
    CYCLE,
    DEEP,
    ENDLESS,
    EXAMPLE,
    F32,
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
    TORCH,
    Pair,
    X,
    block,
    inside,
    keep,
    within,
    written,
)

import stepnet as sn
import stepnet.torch
from stepnet.errors import StepnetError

pytestmark = pytest.mark.usefixtures("same_threads")

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

KERNEL = np.ones((2, 3, 2), "float32")
NOWHERE_RIGHT = ("object", "complex")
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
    "conv1d": lambda v: sn.conv1d(v, v),
    "conv1d weight": lambda v: sn.Graph(lambda x, p: sn.conv1d(x, v), inputs=3),
    "conv1d bias": lambda v: sn.Graph(lambda x, p: sn.conv1d(x, KERNEL, v), inputs=3),
    "conv1d dilation": lambda v: sn.Graph(lambda x, p: sn.conv1d(x, KERNEL, dilation=v), inputs=3),
    "conv1d padding": lambda v: sn.Graph(lambda x, p: sn.conv1d(x, KERNEL, padding=v), inputs=3),
    "conv1d groups": lambda v: sn.Graph(lambda x, p: sn.conv1d(x, KERNEL, groups=v), inputs=3),
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
    """The generated sequences with these arguments changed."""
    return ANY.generate(SYMBOLS, **{"start": [0, 1], "max_steps": 2, "engine": "interpret", **changed})


def searched(**changed: Any) -> Any:
    """The sequences found with these arguments changed."""
    given = {"start": [0, 1], "beams": 2, "max_steps": 2, "engine": "interpret", **changed}
    return ANY.beam_search(SYMBOLS, **given)


@pytest.mark.parametrize("entry", ENTRIES)
def test_nonsense_is_refused_by_an_error_of_stepnet(entry: str) -> None:
    leaks, refused, left_out = list[str](), list[str](), LEFT_OUT.get(entry, ())
    for name, value in BAD.items():
        if name in left_out:
            continue
        try:
            with np.errstate(all="ignore"):
                ENTRIES[entry](value)
        except StepnetError:
            refused.append(name)
        except Exception as error:
            leaks.append(f"{name}: {type(error).__name__}: {error}")
    assert leaks == []
    assert {*NOWHERE_RIGHT} - {*left_out} <= {*refused}
