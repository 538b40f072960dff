"""The program of layers without a call: traced for a batch of no sequences with the declared inputs."""

from typing import Any

from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.structure import leaves, transform
from stepnet.errors import named
from stepnet.model.layers import Layer, LayerPrograms, LayersProgram
from stepnet.model.recurrence import RNN
from stepnet.model.specs import no_sequences, no_static


def blank_program(run: LayerPrograms[Any]) -> LayersProgram:
    """Returns the program of layers outside a call, such as for `explain`, with all outputs of each step.

    It is traced for a batch of no sequences, with inputs and statics (values that each sequence has once) as
    declared or last seen; raises `InputError` if they are unknown.

    run: the programs of the layers.
    """
    first: Layer = run.layer
    still = statics_of(first)
    while not isinstance(first, RNN):
        first = first.layers[0]
    inputs = first.program.traced.inputs
    nested = any(spec.levels for spec in leaves(inputs))

    def blank(spec: Spec) -> Any:
        """Returns an input without sequences, to trace with: a Ragged for inner sequences, else an array."""
        nothing = no_sequences(spec)
        return nothing if nested else nothing.values[None][:0]

    return run.read(transform(blank, inputs), None, still, None, False).program


def statics_of(layer: Layer) -> Any:
    """Returns statics (values that each sequence has once) for a batch of no sequences, in the structure that
    a layer takes.

    With them the layer can be traced without a call.
    """
    if not isinstance(layer, RNN):
        parts: list[Any] = []
        for name, part in zip(layer.part_names, layer.layers, strict=True):
            with named(name):
                parts.append(statics_of(part))
        return layer.joined(parts)
    return transform(no_static, layer.program.traced.statics)
