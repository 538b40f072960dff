"""Runs models, and prints digests of what they gave, what the cache did, and whether LLVM was loaded.

Arguments: names of models. With `fork` behind them it forks after the first one, and a child runs the rest.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import stepnet as sn
from stepnet.compiler.disk.store import COUNTS
from stepnet.compiler.values import leaves

X = np.random.default_rng(0).standard_normal((3, 40, 6)).astype("float32")


def cell(name: str, inputs: int, hidden: int, seed: int, reverse: bool = False) -> sn.RNN:
    """A layer with random weights."""
    parameters = sn.cells.CELLS[name].parameters(inputs, hidden, seed=seed)
    return sn.cells.rnn(name, parameters, reverse=reverse)


def stack() -> Any:
    """Two layers of LSTMs in both directions."""
    layers = [
        sn.Bidirectional(cell("lstm", inputs, 16, 2 * place), cell("lstm", inputs, 16, 2 * place + 1, True))
        for place, inputs in enumerate((6, 32))
    ]
    return sn.Stack(layers)(X)


def gru() -> Any:
    """A GRU in float32 on sequences of several lengths."""
    return cell("gru", 6, 5, 0)(X, lengths=[40, 3, 17])


def gradient() -> Any:
    """A GRU's gradient: contracts, sums and saved values."""
    (outputs, _), backward = sn.vjp(cell("gru", 6, 16, 0))(X)
    made = backward(np.ones_like(outputs))
    return made.params, made.inputs


def threads() -> Any:
    """Sequences enough for several threads, each of which is woken."""
    sn.set_threads(3)
    x = np.random.default_rng(1).standard_normal((200, 30, 64)).astype("float32")
    return cell("gru", 64, 64, 0)(x)


def unusual(x: Any, h: Any, params: Any) -> Any:
    """A step of functions with long code: of large angles, powers, scans and gathers."""
    y = np.cumsum(np.sin(1e6 * x) + np.exp(-np.abs(h)), axis=-1)
    row = params[(np.abs(h[:, 0]) * 3).astype("int32") % 4]
    h = np.tanh(y / 10 + row) + np.abs(x) ** 1.5
    return h, h


def functions() -> Any:
    """The results of `unusual`, in float64."""
    table = np.arange(24.0).reshape(4, 6) / 24
    return sn.RNN(unusual, table, memory=6, inputs=6)(X.astype("float64"))


def nested() -> Any:
    """A recurrence over words inside one over sentences, whose memory the inner one reads."""

    def inner(x: Any, h: Any, params: Any) -> Any:
        h = np.tanh(x + 0.5 * h)
        return h, h

    words = sn.RNN(inner, memory=6)

    def outer(x: Any, h: Any, params: Any) -> Any:
        _, h = words(x, initial=h)
        return h, h

    sentences = [[X[0, :4], X[0, 4:9]], [X[1, :3]]]
    return sn.RNN(outer, memory=6)(sn.Ragged.from_list(sentences))


MODELS: dict[str, Callable[[], Any]] = {
    each.__name__: each for each in (stack, gru, gradient, threads, functions, nested)
}


def digest(value: Any) -> str:
    """A digest of all bits of a structure of arrays."""
    arrays = [each.values if isinstance(each, sn.Ragged) else np.asarray(each) for each in leaves(value)]
    return hashlib.blake2b(b"".join(array.tobytes() for array in arrays), digest_size=16).hexdigest()


def report(digests: dict[str, str]) -> None:
    """Prints what there is to say."""
    facts = {"digests": digests, "llvm": "llvmlite.binding" in sys.modules, "counts": dict(COUNTS)}
    print(json.dumps(facts))


if __name__ == "__main__":
    names = [name for name in sys.argv[1:] if name != "fork"]
    if "fork" in sys.argv:
        first = digest(MODELS[names[0]]())
        if child := os.fork():
            _, status = os.waitpid(child, 0)
            assert digest(MODELS[names[0]]()) == first
            sys.exit(os.waitstatus_to_exitcode(status))
        report({name: digest(MODELS[name]()) for name in names})
        sys.stdout.flush()
        os._exit(0)
    report({name: digest(MODELS[name]()) for name in names})
