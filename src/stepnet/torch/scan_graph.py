"""`Scan` in graphs of PyTorch: its net as the operator `recurrence`, named by a key of this process.

    x, initial, statics  -->  their structures, with texts as leaves  -->  key of the net, and its facts
    tensors of the graph --operator-->  outputs, last memories

torch.compile does not trace how a net is found. It takes the key and the facts as constants, which follow
from the structures, dtypes and features of the arguments.
"""

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.net.types import ROWS
from stepnet.compiler.values.structure import arranged, leaves, rebuild, transform
from stepnet.model.program import Asked
from stepnet.torch.arrays import HALVES, in_dtypes
from stepnet.torch.bound import DifferentiableLayers
from stepnet.torch.keys import MODULES, NETS
from stepnet.torch.operator import operator_results
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recording import constant_in_graphs
from stepnet.torch.sequences import DEVICES, SequencePlaces, is_autocast, runs_on

torch: Any = pytorch("torch")
IN_GRAPHS = "_in_graphs"
"""Attribute in which a `Scan` keeps the nets that graphs name, by the arguments that they were made for."""


class NetFacts(NamedTuple):
    """Facts of a net that a graph of PyTorch needs, as numbers and texts.

    key: names the net. output, memory: the structures of its results, with zeros as leaves.
    levels: for each output whether it has an entry for each step.
    starts: the features and the dtype of each initial memory.
    rounded: the dtypes of the final memories.
    """

    key: str
    output: Any
    memory: Any
    levels: tuple[bool, ...]
    starts: tuple[tuple[tuple[int, ...], str], ...]
    rounded: tuple[str, ...]


def has_plain_tensors(x: Any, initial: Any, statics: Any, engine: Asked) -> bool:
    """Tells whether a graph takes the arguments of a `Scan`, tensors; for others a call raises errors.

    engine: the engines of the module, which must take the tensors where they lie.
    """
    pairs = [(tensor, 2) for tensor in leaves(x)] + [(tensor, 1) for tensor in leaves((initial, statics))]
    return bool(leaves(x)) and all(
        isinstance(tensor, torch.Tensor)
        and not tensor.is_nested
        and tensor.dim() >= axes
        and tensor.device.type in DEVICES
        and runs_on(tensor.device, engine)
        for tensor, axes in pairs
    )


def kind_of(tensor: Any, lead: int) -> str:
    """Describes a tensor by its dtype and its features. lead: the number of axes before these.

    >>> import torch
    >>> kind_of(torch.ones(5, 2, 3), 2)
    'float32 3'
    """
    # torch.compile makes a number of a symbolic size by `range`, and not by `int`.
    sizes = [str(len(range(size))) for size in tensor.shape[lead:]]
    return " ".join([str(tensor.dtype)[6:], *sizes])


def blank_of_kind(kind: str, lead: int) -> Any:
    """Makes an uninitialised array of a kind, with axes of size 1 before its features."""
    dtype, *sizes = kind.split()
    return np.empty([1] * lead + [int(size) for size in sizes], dtype)


@constant_in_graphs
def net_facts(name: str, x: Any, initial: Any, statics: Any) -> tuple[Any, ...]:
    """Returns the fields of `NetFacts`, for the net of a `Scan` with arguments of these kinds.

    name: the name of the module. x, initial, statics: the arguments, with the kind of each tensor as leaf.
    """
    module = MODULES[name]
    tensors = module.tensors
    key = repr((x, initial, statics, [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]))
    kept = module.__dict__.setdefault(IN_GRAPHS, OrderedDict[str, tuple[Any, ...]]())
    if key not in kept:
        blank_x = transform(lambda kind: blank_of_kind(kind, 2), x)
        once = (transform(lambda kind: blank_of_kind(kind, 1), each) for each in (initial, statics))
        net, _, _ = module.nets_for(tensors).read(blank_x, *once, None)
        layers, program = DifferentiableLayers(net), net.program
        named = f"{name}#{layers.number}"
        NETS[named] = layers
        starts = [type_ for type_ in net.inputs if type_.extent == ROWS][: net.memories]
        facts = NetFacts(
            named,
            transform(lambda _: 0, program.output),
            transform(lambda _: 0, program.memory),
            tuple(map(bool, program.levels)),
            tuple((type_.shape, type_.dtype) for type_ in starts),
            tuple(map(str, program.rounded or [spec.dtype for spec in leaves(program.memory)])),
        )
        kept[key] = layers, tuple(facts)
    return kept[key][1]


def run_in_graph(module: Any, name: str, x: Any, initial: Any, statics: Any, lengths: Any) -> tuple[Any, Any]:
    """Adds the operator of a `Scan` to the graph that PyTorch makes; returns the outputs and the last
    memories in the structures of the step. name: the name of the module in `MODULES`. The other arguments are
    as in a call of the module.
    """
    x, initial, statics = (transform(in_float, value) for value in (x, initial, statics))
    once = (transform(lambda tensor: kind_of(tensor, 1), value) for value in (initial, statics))
    facts = NetFacts(*net_facts(name, transform(lambda tensor: kind_of(tensor, 2), x), *once))
    sequences = leaves(module.as_declared(x))
    data = sequences[0]
    rows = data.shape[0 if module.batch_first else 1]
    if initial is None:
        starts = [data.new_zeros(rows, *shape, dtype=getattr(torch, kind)) for shape, kind in facts.starts]
    else:
        given = leaves(arranged(initial, facts.memory))
        starts = in_dtypes(given, [kind for _, kind in facts.starts])
    form = "batch" if module.batch_first else "time"
    place = SequencePlaces(form)
    if lengths is not None:
        place = SequencePlaces(f"{form} lengths", (torch.as_tensor(lengths),))
    inputs = [*sequences, *starts, *leaves(statics), *module.tensors]
    results = operator_results(facts.key, place, inputs, module.checkpoint, module.engine)
    lead = data.shape[:2]
    outputs = [
        tensor.reshape(*lead, *tensor.shape[1:]) if has_steps else tensor
        for tensor, has_steps in zip(results, facts.levels, strict=False)
    ]
    first = len(facts.levels)
    last = in_dtypes(results[first : first + len(facts.rounded)], facts.rounded)
    return rebuild(facts.output, outputs), rebuild(facts.memory, last)


def in_float(tensor: Any) -> Any:
    """Casts a tensor of half precision to float32 under autocast; returns others as they are."""
    return tensor.float() if tensor.dtype in HALVES and is_autocast(tensor.device) else tensor
