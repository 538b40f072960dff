"""The layers that a Keras configuration tells of, one after the other, and what feeds each.

    {"class_name": "Sequential", "config": {"layers": [...]}}        ->  lstm, dense
    a functional model with a model "encoder" in it                  ->  lstm, encoder/gru, encoder/dense, ...

Models in models are taken apart: the layers of an inner one have its name before theirs, and take what feeds
it. So is a TimeDistributed, which holds one layer or model and runs it once for each outer step. Layers that
give back what they get when a model is used, such as Dropout, are looked through.

Sources: keras/src/models/functional.py, models/sequential.py and saving/saving_lib.py of 3.15; tf_keras 2.21;
keras/engine/topology.py of 1.2.2.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from stepnet.errors import FileError
from stepnet.files.store import OBJECT, Store

Config = Mapping[str, Any]
Names = tuple[str, ...]
Tensor = tuple[str, int, int]  # the name of a layer, which call of it, and which of the things that it gave

LOOKED_THROUGH = {
    *("Dropout", "SpatialDropout1D", "GaussianDropout", "GaussianNoise", "AlphaDropout"),
    *("ActivityRegularization", "Identity"),
}
KERNELS = ("kernel", "recurrent_kernel", "bias")

# What the numbered arrays of a class are, in Keras 3's files.
VARIABLES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN", "LSTMCell", "GRUCell", "SimpleRNNCell"), KERNELS),
    **dict.fromkeys(("CuDNNLSTM", "CuDNNGRU", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"), KERNELS),
    **dict.fromkeys(("Dense", "Conv1D", "Conv2D", "Conv3D"), ("kernel", "bias")),
    "Embedding": ("embeddings",),
}
TIMED = "TimeDistributed"
DEEPEST = 30  # models in models
MOST_INPUTS = 1000  # of a layer


@dataclass(frozen=True)
class Call:
    """One call of a layer in a configuration.

    tensors: what it is called with, but for masks. more: whether that is more than one tensor, such as an
    initial state. masked: whether a mask is among it. training: whether the layer is to do what it does in
    training.
    """

    tensors: tuple[Tensor, ...]
    more: bool = False
    masked: bool = False
    training: bool = False


@dataclass(frozen=True)
class Use:
    """How a model uses a layer.

    calls: how often it calls it, with the models around it. more, masked, training: what the calls have, as
    `Call` says; besides: names of the layers that compute what there is more. outputs: the number of outputs
    of the whole model, where the layer gives one of several; states: whether its last states are among these.
    """

    calls: int = 1
    more: bool = False
    besides: Names = ()
    masked: bool = False
    training: bool = False
    outputs: int = 0
    states: bool = False


@dataclass(frozen=True)
class Told:
    """A layer that a configuration tells of.

    name: its own after those of the models around it; outermost: the layer of the whole model that it is or
    lies in; inputs: names of what feeds it; place: where files of Keras 3 have its arrays. timed: the name of
    the TimeDistributed that it lies in, if any. passes: whether it gives back what it gets.
    """

    name: str
    own: str
    outermost: str
    class_name: str
    config: Config
    inputs: Names
    place: str
    timed: str = ""
    passes: bool = False
    use: Use = Use()

    @property
    def node(self) -> Config:
        """It as an object of a configuration."""
        return {"class_name": self.class_name, "config": self.config}


@dataclass(frozen=True)
class Around:
    """What is around the layers of a model: the models that it lies in, what feeds each of its inputs, how
    the model itself is called, and the group of each layer in files of Keras 3, where that is not told by its
    class.
    """

    prefix: str = ""
    place: str = ""
    outermost: str = ""
    feeds: tuple[Names, ...] = ()
    depth: int = 0
    timed: str = ""
    group: str = ""
    calls: int = 1
    training: bool = False


def layers_of(model: Config, store: Store) -> list[Told]:
    """Every layer of a model, in its order; nothing for a model whose layers its configuration does not tell.

    >>> lstm = {"class_name": "LSTM", "config": {"name": "lstm", "units": 3}}
    >>> dense = {"class_name": "Dense", "config": {"name": "dense"}}
    >>> model = {"class_name": "Sequential", "config": {"layers": [lstm, dense]}}
    >>> for layer in layers_of(model, Store(None, 0)):
    ...     print(layer.name, layer.class_name, layer.inputs, layer.place)
    lstm LSTM () layers/lstm
    dense Dense ('lstm',) layers/dense
    """
    layers, exits = inside(model, Around(), store)
    ends = union(exits)
    several = {*ends} if len(ends) > 1 else set[str]()
    entrances = {layer.name for layer in layers if layer.class_name == "InputLayer"}
    outputs = tensors(table(model.get("config")).get("output_layers"))
    states = {name for name, _, place in outputs if place}  # what a layer gives behind its outputs

    def complete(use: Use, name: str) -> Use:
        besides = tuple(feed for feed in use.besides if feed not in entrances)
        count = len(ends) if name in several else 0
        return replace(use, besides=besides, outputs=count, states=name in states)

    return [replace(layer, use=complete(layer.use, layer.name)) for layer in layers]


@dataclass
class Wiring:
    """What feeds the layers of one model, as far as it was walked over.

    given: what is behind each call of what gives back what it gets, and each of its outputs; "" is what feeds
    the first layer of a chain.
    """

    around: Around
    store: Store
    given: dict[str, list[list[Names]]]

    def resolved(self, tensor: Tensor) -> Names:
        """The names of the layers that give a tensor."""
        name, call, place = tensor
        self.store.take(OBJECT + len(self.around.prefix), "what feeds its layers")
        if name not in self.given:
            return (self.around.prefix + name,)
        calls = self.given[name]
        meant = calls[call : call + 1] or calls  # Keras 2 counts calls elsewhere, too
        return union(places[place] for places in meant if place < len(places))

    def fed(self, calls: Sequence[Call]) -> list[tuple[Names, ...]]:
        """What feeds a layer in each of its calls."""
        return [tuple(map(self.resolved, call.tensors)) for call in calls]


def inside(model: Config, around: Around, store: Store) -> tuple[list[Told], list[Names]]:
    """The layers of a model, and the names of what gives each of its outputs."""
    if around.depth > DEEPEST:
        raise FileError(f"its configuration has models in models more than {DEEPEST} deep")
    whole, counts, layers = table(model.get("config")), dict[str, int](), list[Told]()
    chained = "input_layers" not in whole
    entrances = {name: place for place, (name, *_) in enumerate(tensors(whole.get("input_layers")))}
    wiring = Wiring(around, store, {"": [[around.feeds[0] if around.feeds else ()]]})
    before = ""
    for node in nodes_of(model):
        own, class_name = name_of(node), str(node.get("class_name"))
        is_timed = class_name == TIMED
        calls = [Call(((before, 0, 0),))] if chained else list(map(call_of, rows(node.get("inbound_nodes"))))
        fed = wiring.fed(calls)
        group = around.group or f"layers/{numbered(snake(class_name), counts)}"
        layer = layer_of(node, around, group, calls, fed, store)
        if is_timed or nodes_of(node):
            held, exits = within(layer, is_timed, around, positions(fed), store)
            layers += held
            wiring.given |= {} if is_timed else {own: [exits]}  # of all calls together
        elif class_name == "InputLayer" and around.depth:
            entrance = entrances.get(own, 0)
            wiring.given[own] = [list(around.feeds[entrance : entrance + 1])]
        else:
            layers.append(layer)
            wiring.given |= {own: [[union(feed)] for feed in fed]} if layer.passes else {}
        before = own
    ends: Iterable[Tensor] = [(before, 0, 0)] if chained else tensors(whole.get("output_layers"))
    return layers, [wiring.resolved(tensor) for tensor in ends]


def layer_of(
    node: Config,
    around: Around,
    group: str,
    calls: Sequence[Call],
    fed: Sequence[tuple[Names, ...]],
    store: Store,
) -> Told:
    """A layer of a model, by its calls and what feeds each of them; group: where files of Keras 3 have it in
    the model's.
    """
    own, place, inputs = name_of(node), f"{around.place}{group}", union(positions(fed))
    store.take(4 * OBJECT + 2 * len(around.prefix) + len(own) + len(place) + 8 * len(inputs), "its layers")
    if len(inputs) > MOST_INPUTS:
        raise FileError(f"its configuration has a layer that {len(inputs)} others feed")
    use = replace(use_of(calls, around), besides=union(names for feed in fed for names in feed[1:]))
    known = str(node.get("class_name")) in LOOKED_THROUGH and bool(inputs) and not use.training
    return Told(
        around.prefix + own,
        own,
        around.outermost or own,
        class_of(node),
        table(node.get("config")),
        inputs,
        place,
        around.timed,
        passes=known and all(len(union(feed)) == 1 for feed in fed),
        use=use,
    )


def within(
    layer: Told, is_timed: bool, around: Around, feeds: tuple[Names, ...], store: Store
) -> tuple[list[Told], list[Names]]:
    """As `inside`, of the layers in a layer that is a model, or is_timed: a TimeDistributed, which gives each
    step of its input to what it holds.
    """
    deeper = Around(
        f"{layer.name}/",
        f"{layer.place}/",
        layer.outermost,
        feeds,
        around.depth + 1,
        around.timed,
        calls=layer.use.calls,
        training=layer.use.training,
    )
    if not is_timed:
        return inside(layer.node, deeper, store)
    held: Config = {"config": {"layers": [layer.config.get("layer")]}}
    timed = replace(deeper, feeds=((layer.name,),), timed=around.timed or layer.name, group="layer")
    return inside(held, timed, store)


def use_of(calls: Sequence[Call], around: Around) -> Use:
    """How a model uses a layer that it calls so."""
    return Use(
        around.calls * len(calls),
        more=any(call.more for call in calls),
        masked=any(call.masked for call in calls),
        training=around.training or any(call.training for call in calls),
    )


def call_of(node: object) -> Call:
    """A call of a layer, as a configuration has it.

    Keras 3 writes {"args": [...], "kwargs": {"training": true}}, with tensors anywhere in both; Keras 1 and 2
    wrote a list of tensors, each of which may have such arguments behind it.

    >>> call_of([["lstm", 0, 0, {"training": True}]])
    Call(tensors=(('lstm', 0, 0),), more=False, masked=False, training=True)
    >>> call_of({"args": [["gru", 0, 0]], "kwargs": {"initial_state": ["gru", 0, 1]}}).more
    True
    """
    modern = table(node)
    values, named = modern.get("args"), [table(modern.get("kwargs"))]
    if not modern:
        values, named = node, [table(arguments) for _, arguments in histories(node)]
    words = [(name, value) for arguments in named for name, value in arguments.items() if value is not None]
    others = [value for name, value in words if name not in ("mask", "training")]
    given = (*tensors(values), *tensors(others))
    return Call(
        given,
        more=len(given) > 1 or bool(others),
        masked=any(True for name, value in words if name == "mask" for _ in tensors(value)),
        training=any(name == "training" and value in (True, 1) for name, value in words),
    )


def table(value: object) -> Config:
    """A JSON object, an empty one for what is none."""
    return cast(Config, value) if isinstance(value, dict) else {}


def rows(value: object) -> list[Any]:
    """A JSON array, an empty one for what is none."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def nodes_of(model: Config) -> list[Config]:
    """The layers in a model's configuration, which was a bare list for Keras 1's Sequential."""
    config = model.get("config")
    return [table(node) for node in rows(config) or rows(table(config).get("layers"))]


def class_of(node: Config) -> str:
    """The class of a layer: Keras' own by its name alone, any other as the program that has it calls it.

    >>> class_of({"class_name": "LSTM", "module": "keras.layers", "registered_name": None})
    'LSTM'
    >>> class_of({"class_name": "LSTM", "module": "model", "registered_name": "Mine>LSTM"})
    'Mine>LSTM'
    """
    name, registered = str(node.get("class_name") or ""), node.get("registered_name")
    module = str(node.get("module") or "")
    if not registered or module.partition(".")[0] in ("keras", "tf_keras"):
        return name
    return f"{module}>{name}" if registered == name else str(registered)


def name_of(node: Config) -> str:
    """What a layer of a configuration is called."""
    return str(
        node.get("name") or table(node.get("config")).get("name") or snake(str(node.get("class_name")))
    )


def tensors(value: object) -> Iterator[Tensor]:
    """The outputs of layers that a part of a configuration names, in their order.

    Keras 3 writes {"class_name": "__keras_tensor__", "config": {"keras_history": ["lstm", 0, 0]}}, Keras 1
    and 2 wrote ["lstm", 0, 0, {}]; the numbers are which call of the layer, and which output.
    """
    return (tensor for tensor, _ in histories(value))


def histories(value: object) -> Iterator[tuple[Tensor, object]]:
    """The outputs of layers as in `tensors`, each with the arguments that stand behind it, if any."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            node = cast(Config, value)
            history = table(node.get("config")).get("keras_history")
            pending.extend([history] if history else reversed(list(node.values())))
        elif isinstance(value, list):
            items = cast("list[Any]", value)
            if [type(item) for item in items[:3]] == [str, int, int]:
                yield (items[0], max(0, items[1]), max(0, items[2])), items[3] if len(items) > 3 else None
            else:
                pending.extend(reversed(items))


def positions(calls: Sequence[tuple[Names, ...]]) -> tuple[Names, ...]:
    """What is given at each place of a layer's calls, of all calls together."""
    places: list[list[Names]] = [[] for _ in range(max(map(len, calls), default=0))]
    for call in calls:
        for place, names in zip(places, call, strict=False):
            place.append(names)
    return tuple(map(union, places))


def union(names: Iterable[Names]) -> Names:
    """All names, each once."""
    return tuple(dict.fromkeys(name for some in names for name in some))


def snake(class_name: str) -> str:
    """A class's name as Keras writes it in files.

    >>> snake("SimpleRNN"), snake("CuDNNLSTM"), snake("Conv1D")
    ('simple_rnn', 'cu_dnnlstm', 'conv1d')
    """
    words = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", class_name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower()


def numbered(name: str, counts: dict[str, int]) -> str:
    """A name that is used for the first time as it is, and later with a number.

    >>> counts = {}
    >>> numbered("lstm", counts), numbered("lstm", counts), numbered("gru", counts)
    ('lstm', 'lstm_1', 'gru')
    """
    counts[name] = counts.get(name, -1) + 1
    return f"{name}_{counts[name]}" if counts[name] else name
