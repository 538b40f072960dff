"""The layers in a Keras configuration, in order, and the layers that compute the inputs of each.

    {"class_name": "Sequential", "config": {"layers": [...]}}        ->  lstm, dense
    a functional model with a model "encoder" in it                  ->  lstm, encoder/gru, encoder/dense, ...

Models in models are flattened: the layers of an inner model have its name as a prefix, and its inputs. The
same holds for a TimeDistributed, which runs a layer or model once for each outer step. Layers that return
their input in inference, such as Dropout, are skipped.

Sources: keras/src/models/functional.py, models/sequential.py and saving/saving_lib.py of 3.15; tf_keras 2.21;
keras/engine/topology.py of 1.2.2.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError
from stepnet.layout.files.keras.names import INPUT, LOOKED_THROUGH, MODELS, TIMED, WRAPPERS
from stepnet.layout.files.keras.nodes import (
    Config,
    LayerCall,
    Tensor,
    calls_of,
    class_of,
    given_name,
    name_of,
    nodes_of,
    numbered,
    outputs_of,
    rounding,
    snake,
    table,
    tensors,
)
from stepnet.layout.files.store import OBJECT, Store

Names = tuple[str, ...]
Source = tuple[str, int]  # the full name of a layer, and the number of its output: 0, or later for its states
Sources = tuple[Source, ...]

DEEPEST = 30  # the deepest nesting of models
MOST_INPUTS = 1000  # the most inputs of a layer


@dataclass(frozen=True)
class Use:
    """The ways in which a Keras model uses a layer.

    calls: how often it is called, including calls of the models around it. more, masked, training: whether
    any call has several arguments, a mask, or training=True. besides: the names of the layers that compute
    further arguments. outputs: the number of outputs of the model, if the layer computes one of several.
    states: whether its final states are among these. bare: whether its outputs at the steps are not, while
    its states are. lost: whether no output of the model is computed from it.
    """

    calls: int = 1
    more: bool = False
    besides: Names = ()
    masked: bool = False
    training: bool = False
    outputs: int = 0
    states: bool = False
    bare: bool = False
    lost: bool = False


@dataclass(frozen=True)
class ConfiguredLayer:
    """A layer in the configuration of a Keras model.

    Attributes:
        name: Its name, with those of the models around it as a prefix.
        own: Its name alone.
        outermost: The layer of the outermost model that it is, or lies in.
        class_name: Its class.
        config: Its configuration.
        inputs: The names of the layers that compute its inputs.
        group: The group of its arrays in files of Keras 3.
        timed: The name of the TimeDistributed around it, if there is one.
        passes: Whether it returns its input unchanged.
        wraps: Whether it computes something around layers that are listed by themselves, as a TimeDistributed
            and a model of a class that is not Keras' own do.
        use: How its model uses it.
    """

    name: str
    own: str
    outermost: str
    class_name: str
    config: Config
    inputs: Names
    group: str
    timed: str = ""
    passes: bool = False
    wraps: bool = False
    use: Use = Use()

    @property
    def node(self) -> Config:
        """The layer of a Keras model in the form of a configuration: a dict of its class and settings."""
        return {"class_name": self.class_name, "config": self.config}


@dataclass(frozen=True)
class Around:
    """The context of the layers of a model.

    prefix: the names of the models around it.
    group_prefix: the prefix of the groups of its layers in files of Keras 3.
    outermost: the layer of the outermost model that it lies in.
    feeds: for each of its inputs, the (layer, output) pairs that are passed for it.
    depth: the number of models around it.
    timed: the name of the TimeDistributed around it, if there is one.
    group: the group of its only layer, if that does not follow from the layer's class.
    calls: how often the model is called.
    training: whether it is called with training=True.
    """

    prefix: str = ""
    group_prefix: str = ""
    outermost: str = ""
    feeds: tuple[Sources, ...] = ()
    depth: int = 0
    timed: str = ""
    group: str = ""
    calls: int = 1
    training: bool = False


def layers_of(model: Config, store: Store) -> list[ConfiguredLayer]:
    """Lists all layers of a Keras model in order; [] for a model whose configuration has no layers. model:
    its configuration. store: the limit on memory.

    >>> lstm = {"class_name": "LSTM", "config": {"name": "lstm", "units": 3}}
    >>> dense = {"class_name": "Dense", "config": {"name": "dense"}}
    >>> model = {"class_name": "Sequential", "config": {"layers": [lstm, dense]}}
    >>> for layer in layers_of(model, Store(None, 0)):
    ...     print(layer.name, layer.class_name, layer.inputs, layer.group)
    lstm LSTM () layers/lstm
    dense Dense ('lstm',) layers/dense
    """
    layers, exits = layers_inside_model(model, Around(), store)
    outputs_of_model = union(exits)
    ends = dict.fromkeys(name for name, _ in outputs_of_model)
    count = len(exits) if len(ends) > 1 or len({*exits}) < len(exits) else 0
    entrances = {layer.name for layer in layers if layer.class_name == INPUT}
    needed = ancestors(ends, layers)

    def complete(layer: ConfiguredLayer) -> Use:
        """Completes a layer's `use` by facts about the whole model: how many outputs the model has, if the
        layer computes one of several; if its states are outputs, and its outputs are not; if no output needs
        it.
        """
        name, use = layer.name, layer.use
        outputs = {output for source, output in outputs_of_model if source == name}
        return replace(
            use,
            besides=tuple(feed for feed in use.besides if feed not in entrances),
            outputs=count if name in ends else 0,
            states=any(outputs),
            bare=bool(outputs) and 0 not in outputs,
            lost=name not in needed and not layer.timed,
        )

    return [replace(layer, use=complete(layer)) for layer in layers]


def ancestors(names: Iterable[str], layers: Iterable[ConfiguredLayer]) -> set[str]:
    """Returns the given names of Keras layers, and the names of all layers that they depend on, directly or
    indirectly: to find the layers that the outputs of the model need. layers: all layers of the model.
    """
    feeds = {layer.name: (*layer.inputs, *layer.use.besides) for layer in layers}
    found, pending = set[str](), list(names)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending.extend(feeds.get(name, ()))
    return found


@dataclass
class ModelWiring:
    """The sources of tensors in a Keras model, filled in during the walk over its layers.

    outputs: by the name of a skipped layer or inner model: for each of its calls and outputs, the (layer,
    output) pairs that the output is. "" is the input of the first layer of a chain.
    """

    around: Around
    store: Store
    outputs: dict[str, list[list[Sources]]]

    def resolved(self, tensor: Tensor) -> Sources:
        """Returns the layer outputs that a tensor in a Keras configuration stands for, as (layer, output)
        pairs: one, or several if they differ between the calls of an inner model. An inner model, or a layer
        that returns its input unchanged, is replaced by the layers that compute its outputs.

        tensor: (layer or model, number of its call, number of its output).
        """
        name, call, output = tensor
        self.store.take(OBJECT + len(self.around.prefix), "what feeds its layers")
        if name not in self.outputs:
            return ((self.around.prefix + name, output),)
        calls = self.outputs[name]
        chosen = calls[call : call + 1] or calls  # Keras 2 numbers calls across models
        return union(outputs[output] for outputs in chosen if output < len(outputs))

    def sources_of_calls(self, calls: Sequence[LayerCall]) -> list[tuple[Sources, ...]]:
        """Returns the layer outputs that a Keras layer is called on: for each call, and each argument of the
        call, the (layer, output) pairs that the argument stands for.
        """
        return [tuple(map(self.resolved, call.tensors)) for call in calls]

    def outputs_as_tensors(self, name: str, node: Config) -> tuple[Tensor, ...]:
        """Returns all outputs of the layer `name` as tensors (layer, call, output), to pass them to the next
        layer of a Sequential model. node: the layer's configuration.
        """
        count = len(self.outputs[name][0]) if self.outputs.get(name) else outputs_of(node)
        return tuple((name, 0, output) for output in range(count))


def layers_inside_model(
    model: Config, around: Around, store: Store
) -> tuple[list[ConfiguredLayer], list[Sources]]:
    """Lists the layers of a Keras model in order, with the layers of inner models in place of these. Also
    returns for each output of the model the layer outputs that it stands for, as (layer, output) pairs.
    Raises `FileError` for two layers of one name.

    model: the configuration of the model. around: its context, such as the names of the models that it lies
    in. store: the limit on memory.
    """
    if around.depth > DEEPEST:
        raise FileError(f"its configuration has models in models more than {DEEPEST} deep")
    config, counts, layers = table(model.get("config")), dict[str, int](), list[ConfiguredLayer]()
    chained = "input_layers" not in config
    entrances = {name: output for output, (name, *_) in enumerate(tensors(config.get("input_layers")))}
    wiring = ModelWiring(around, store, {"": [[around.feeds[0] if around.feeds else ()]]})
    below, seen = wiring.outputs_as_tensors("", {}), set[str]()
    for node in nodes_of(model):
        own, class_name = name_of(node), class_of(node)
        if own in seen and given_name(node):
            raise FileError(f"its configuration has two layers called {around.prefix + own!r}")
        seen.add(own)
        calls = [LayerCall(below, more=len(below) > 1)] if chained else calls_of(node)
        fed = wiring.sources_of_calls(calls)
        group = around.group or f"layers/{numbered(snake(str(node.get('class_name'))), counts)}"
        layer = layer_of(node, around, group, calls, fed, store)
        inner_input = class_name == INPUT and around.depth
        if class_name in WRAPPERS or nodes_of(node):
            inner_layers, exits = layers_inside(layer, class_name, around, merged_calls(fed), store)
            layers += [replace(layer, wraps=True)] if class_name not in MODELS else []
            layers += inner_layers
            wiring.outputs |= {} if class_name in WRAPPERS else {own: [exits]}  # of all calls together
        elif inner_input:
            entrance = entrances.get(own, 0)
            wiring.outputs[own] = [list(around.feeds[entrance : entrance + 1])]
            layers += [replace(layer, wraps=True)] if rounding(node) else []
        else:
            layers.append(layer)
            wiring.outputs |= {own: [list(feed) for feed in fed]} if layer.passes else {}
        below = wiring.outputs_as_tensors(own, node) if chained else ()
    ends: Iterable[Tensor] = below if chained else tensors(config.get("output_layers"))
    return layers, [wiring.resolved(tensor) for tensor in ends]


def layer_of(
    node: Config,
    around: Around,
    group: str,
    calls: Sequence[LayerCall],
    fed: Sequence[tuple[Sources, ...]],
    store: Store,
) -> ConfiguredLayer:
    """Makes the `ConfiguredLayer` of a layer in the configuration of a Keras model; raises `FileError` if it
    has too many inputs.

    node: the layer's configuration. around: the context of its model, such as the models that it lies in.
    group: the group (folder of the HDF5 file) of the layer's arrays in files of Keras 3, relative to the
    group of the model. calls: the layer's calls in the model. fed: for each call and argument, the layer
    outputs that the argument stands for, as (layer, output) pairs. store: the limit on memory.
    """
    own, full_group, inputs = name_of(node), f"{around.group_prefix}{group}", layers_in(merged_calls(fed))
    store.take(
        4 * OBJECT + 2 * len(around.prefix) + len(own) + len(full_group) + 8 * len(inputs), "its layers"
    )
    if len(inputs) > MOST_INPUTS:
        raise FileError(f"its configuration has a layer that {len(inputs)} others feed")
    use = replace(use_of(calls, around), besides=layers_in(some for feed in fed for some in feed[1:]))
    passes = class_of(node) in LOOKED_THROUGH and bool(inputs) and not use.training and not rounding(node)
    return ConfiguredLayer(
        around.prefix + own,
        own,
        around.outermost or own,
        class_of(node),
        table(node.get("config")),
        inputs,
        full_group,
        around.timed,
        passes=passes and all(len(some) == 1 for feed in fed for some in feed),
        use=use,
    )


def layers_inside(
    layer: ConfiguredLayer, class_name: str, around: Around, feeds: tuple[Sources, ...], store: Store
) -> tuple[list[ConfiguredLayer], list[Sources]]:
    """Lists the layers inside a Keras layer that is a model or has a layer in it, such as a TimeDistributed.
    Also returns for each output of the layer the outputs of inner layers that it stands for, as (layer,
    output) pairs.

    layer, class_name: the layer and the name of its class. around: the context of the layer: the models
    around it. feeds: for each input of the layer, the layer outputs that it stands for, as (layer, output)
    pairs. store: the limit on memory.
    """
    deeper = Around(
        f"{layer.name}/",
        f"{layer.group}/",
        layer.outermost,
        feeds,
        around.depth + 1,
        around.timed,
        calls=layer.use.calls,
        training=layer.use.training,
    )
    if class_name not in WRAPPERS:
        return layers_inside_model(layer.node, deeper, store)
    wrapper: Config = {"config": {"layers": [layer.config.get("layer")]}}
    timed = around.timed or (layer.name if class_name == TIMED else "")
    inner = replace(deeper, feeds=(((layer.name, 0),),), timed=timed, group="layer")
    return layers_inside_model(wrapper, inner, store)


def use_of(calls: Sequence[LayerCall], around: Around) -> Use:
    """Returns the use of a layer in a Keras model, from the layer's calls: their number, and whether they
    have several arguments, a mask or training. around: the context of the model, whose own calls multiply
    those of the layer.
    """
    return Use(
        around.calls * len(calls),
        more=any(call.more for call in calls),
        masked=any(call.masked for call in calls),
        training=around.training or any(call.training for call in calls),
    )


def merged_calls(calls: Sequence[tuple[Sources, ...]]) -> tuple[Sources, ...]:
    """Merges the arguments of all calls of a Keras layer: returns for each argument the layer outputs that it
    stands for in any of the calls, each once, as (layer, output) pairs. calls: the same pairs for each call
    and argument.
    """
    arguments: list[list[Sources]] = [[] for _ in range(max(map(len, calls), default=0))]
    for call in calls:
        for argument, some in zip(arguments, call, strict=False):
            argument.append(some)
    return tuple(map(union, arguments))


def union(sources: Iterable[Sources]) -> Sources:
    """Merges tuples of (layer, output) pairs to one tuple, which has each pair once, in order."""
    return tuple(dict.fromkeys(source for some in sources for source in some))


def layers_in(sources: Iterable[Sources]) -> Names:
    """Returns the names of the layers in tuples of (layer, output) pairs, each once, in order."""
    return tuple(dict.fromkeys(name for name, _ in union(sources)))
