"""The layers of a Keras configuration as objects: class, name, calls, and the tensors that these name.

    {"class_name": "LSTM", "module": "keras.layers", "config": {"name": "lstm"}, "inbound_nodes": []}

Sources: keras/src/saving/serialization_lib.py and models/functional.py of 3.15; tf_keras 2.21;
keras/engine/topology.py of 1.2.2.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from stepnet.compiler.values.records import dataclass
from stepnet.layout.files.keras.names import (
    BIDIRECTIONAL,
    EXACT,
    GROUPED,
    SETTINGS_OF_WEIGHTS,
    VARIABLES,
    WEIGHTED,
)

Config = Mapping[str, Any]
Tensor = tuple[str, int, int]  # the name of a layer, the number of a call, and the number of its output


@dataclass(frozen=True)
class LayerCall:
    """A call of a layer in the configuration of a Keras model.

    tensors: its arguments without masks. more: whether there are several, such as an initial state. masked:
    whether it has a mask. training: whether it is called with training=True.
    """

    tensors: tuple[Tensor, ...]
    more: bool = False
    masked: bool = False
    training: bool = False


def calls_of(node: Config) -> list[LayerCall]:
    """Parses the calls of a layer of a functional Keras model, the "inbound_nodes" of its configuration."""
    return list(map(call_of, rows(node.get("inbound_nodes"))))


def call_of(node: object) -> LayerCall:
    """Parses the configuration of a layer's call: returns its tensors, and whether it has several, a mask, or
    training=True.

    Keras 3 writes {"args": [...], "kwargs": {"training": true}}, with tensors anywhere in both; Keras 1 and 2
    wrote a list of tensors, each of which may have such arguments behind it.

    >>> call_of([["lstm", 0, 0, {"training": True}]])
    LayerCall(tensors=(('lstm', 0, 0),), more=False, masked=False, training=True)
    >>> call_of({"args": [["gru", 0, 0]], "kwargs": {"initial_state": ["gru", 0, 1]}}).more
    True
    """
    modern = table(node)
    values, named = modern.get("args"), [table(modern.get("kwargs"))]
    if not modern:
        values, named = node, [table(arguments) for _, arguments in histories(node)]
    named_arguments = [
        (name, value) for arguments in named for name, value in arguments.items() if value is not None
    ]
    others = [value for name, value in named_arguments if name not in ("mask", "training")]
    all_tensors = (*tensors(values), *tensors(others))
    return LayerCall(
        all_tensors,
        more=len(all_tensors) > 1 or any(not any(tensors(value)) for value in others),
        masked=any(True for name, value in named_arguments if name == "mask" for _ in tensors(value)),
        training=any(name == "training" and value in (True, 1) for name, value in named_arguments),
    )


def table(value: object) -> Config:
    """Returns a JSON value if it is an object, else an empty one, so that untrusted files raise no errors."""
    return cast(Config, value) if isinstance(value, dict) else {}


def rows(value: object) -> list[Any]:
    """Returns a JSON value if it is an array, else an empty one, so that untrusted files raise no errors."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def nodes_of(model: Config) -> list[Config]:
    """Returns the layers in a model's configuration, which was a bare list for Keras 1's Sequential."""
    config = model.get("config")
    return [table(node) for node in rows(config) or rows(table(config).get("layers"))]


def class_of(node: Config) -> str:
    """Returns the class of a layer: its name if it is Keras' own, or stepnet's in its place; else the name
    that it is registered under.

    >>> class_of({"class_name": "LSTM", "module": "keras.layers", "registered_name": None})
    'LSTM'
    >>> class_of({"class_name": "LSTM", "module": "model", "registered_name": "Mine>LSTM"})
    'Mine>LSTM'
    >>> class_of({"class_name": "LSTM", "module": "stepnet.keras.layers", "registered_name": "stepnet>LSTM"})
    'LSTM'
    >>> class_of({"class_name": "stepnet>LSTM"})  # as an .h5 file has it
    'LSTM'
    """
    name, registered = str(node.get("class_name") or ""), str(node.get("registered_name") or "")
    module = str(node.get("module") or "")
    if registered == f"stepnet>{name}":
        return name
    if not registered and not module:
        return name.removeprefix("stepnet>")
    if module.partition(".")[0] in ("keras", "tf_keras") and registered in ("", name):
        return name
    return registered if ">" in registered else f"{module or 'unregistered'}>{name}"


def outputs_of(node: Config) -> int:
    """Returns the number of outputs of a Keras layer, by its configuration; those after the first are states.

    >>> outputs_of({"class_name": "LSTM", "config": {"return_state": True}})
    3
    """
    inner = table(table(node.get("config")).get("layer")) if class_of(node) == BIDIRECTIONAL else node
    config = table(inner.get("config"))
    if not config.get("return_state"):
        return 1
    cell = table(config.get("cell")) or inner
    cells = [table(own) for own in rows(table(cell.get("config")).get("cells"))] or [cell]
    states = sum(2 if "LSTM" in class_of(own) else 1 for own in cells)
    return 1 + (states if inner is node else 2 * states)


def rounding(node: Config) -> str:
    """Returns the dtype policy of a Keras layer, if it rounds numbers otherwise than float32 does; else "".

    >>> policy = {"class_name": "DTypePolicy", "config": {"name": "mixed_bfloat16"}}
    >>> rounding({"config": {"dtype": policy}}), rounding({"config": {"dtype": "float32"}})
    ('mixed_bfloat16', '')
    """
    dtype = table(node.get("config")).get("dtype")
    policy = table(dtype)
    name = str((table(policy.get("config")).get("name") if policy else dtype) or "")
    return "" if name in EXACT else name


def given_name(node: Config) -> str:
    """Returns the name that the configuration of a Keras layer states; "" if it states none."""
    return str(node.get("name") or table(node.get("config")).get("name") or "")


def name_of(node: Config) -> str:
    """Returns the name of a layer in a Keras configuration; if it has none, its class in snake case."""
    return given_name(node) or snake(str(node.get("class_name")))


def tensors(value: object) -> Iterator[Tensor]:
    """Yields the tensors, as (layer, number of the layer's call, number of its output), that a value of a
    Keras configuration names, in order and at any depth.

    Keras 3 writes {"class_name": "__keras_tensor__", "config": {"keras_history": ["lstm", 0, 0]}}, Keras 1
    and 2 wrote ["lstm", 0, 0, {}]. The values of a table are in the order of its sorted names, in which Keras
    numbers outputs.
    """
    return (tensor for tensor, _ in histories(value))


def histories(value: object) -> Iterator[tuple[Tensor, object]]:
    """Yields all tensors, the arguments of a layer's call, in a value of a Keras configuration, at any depth,
    as ((layer, number of the layer's call, number of its output), arguments). The latter are further
    arguments of the call, which Keras 1 and 2 write after a tensor; None without any.
    """
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            node = cast(Config, value)
            history = table(node.get("config")).get("keras_history")
            pending.extend([history] if history else [node[key] for key in sorted(node, reverse=True)])
        elif isinstance(value, list):
            items = cast("list[Any]", value)
            if [type(item) for item in items[:3]] == [str, int, int]:
                yield (items[0], max(0, items[1]), max(0, items[2])), items[3] if len(items) > 3 else None
            else:
                pending.extend(reversed(items))


def is_weighted(node: Config) -> bool:
    """Returns True if a layer of one of Keras' own classes has arrays, by its configuration.

    >>> dense, norm = {"class_name": "Dense"}, {"class_name": "LayerNormalization", "config": {"center": 0}}
    >>> is_weighted(dense), is_weighted(norm), is_weighted({"class_name": "Dropout"})
    (True, True, False)
    """
    name, config = class_of(node), table(node.get("config"))
    settings = SETTINGS_OF_WEIGHTS.get(name, ())
    usual = {"center": True, "scale": True}
    return name in VARIABLES or name in WEIGHTED or any(config.get(key, usual.get(key)) for key in settings)


# ---- the names that Keras gives to layers without one -----------------------------------------------------


def snake(class_name: str) -> str:
    """Converts the name of a class to snake case, as Keras names layers in files. A class with two names gets
    the name in Keras' code, which configurations do not state.

    >>> snake("SimpleRNN"), snake("CuDNNLSTM"), snake("Conv1D")
    ('simple_rnn', 'cu_dnnlstm', 'conv1d')
    """
    class_name = GROUPED[-1] if class_name in GROUPED else class_name
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", class_name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def numbered(name: str, counts: dict[str, int]) -> str:
    """Returns a name as Keras numbers it: unchanged at its first use, later with a number; updates `counts`.

    >>> counts = {}
    >>> numbered("lstm", counts), numbered("lstm", counts), numbered("gru", counts)
    ('lstm', 'lstm_1', 'gru')
    """
    counts[name] = counts.get(name, -1) + 1
    return f"{name}_{counts[name]}" if counts[name] else name
