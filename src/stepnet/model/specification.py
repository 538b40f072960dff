"""A call of a model as values, for inputs of fixed features: what it takes and gives, holds, and computes.

specification_of   its schedule, parameters and arrays, from which a target builds a library
bytes_between      the memory that it takes between its parts
digest_of          what identifies the function that it computes
"""

from collections.abc import Iterable, Sequence
from math import ceil

import numpy as np

from stepnet.compiler.net.digest import digest
from stepnet.compiler.net.pairs import keys_of
from stepnet.compiler.net.types import is_pairs
from stepnet.compiler.net.windows import most_per_step
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets.library import ArrayArgument, CallSpecification
from stepnet.compiler.values.hashing import blake2b
from stepnet.compiler.values.structure import named_leaves
from stepnet.model.program import Program

Array = np.ndarray
PAIRS = -1
"""The level of values at pairs of two steps of a sequence."""


def specification_of(program: Program, schedule: Schedule) -> CallSpecification:
    """Returns the specification of a call: the schedule (parts of a net in order) that runs it, its
    parameters, and its arrays.

    The arrays are in the order sequences, initial memories, statics (one value per sequence), outputs, final
    memories. They have the names of the values, with the prefixes "initial", "y" and "final". Initial
    memories may be left out if the model has memories of its own.

    program: the program of the model for these inputs. schedule: the parts of its net, planned for an engine.
    """
    net, ends = schedule.net, program.ends
    memories = [name for name, _ in named_leaves(program.memory)] if program.memories else []
    has_named_memories = program.memories > 0
    arguments = list[ArrayArgument]()

    def add(kind: str, indices: Sequence[int], names: Iterable[str], optional: bool) -> None:
        """Adds an array of a kind for each index in `indices` among the net's inputs, or its results for
        "output" and "final". names: the names of the arrays. optional: they may be left out.
        """
        numbers = net.results if kind in ("output", "final") else net.inputs
        for index, name in zip(indices, names, strict=True):
            arguments.append(ArrayArgument(name, kind, index, net.type_of(numbers[index]), optional))

    def name_of(index: int) -> str:
        """Returns the name of an input of the net, by its index."""
        return net.nodes[net.inputs[index]].name or "value"

    add("sequence", ends.sequences, program.sequence_names, False)
    initial_names = (
        [joined_name("initial", name) for name in memories]
        if has_named_memories
        else list(map(name_of, ends.memories))
    )
    initial_names += [f"initial_{name_of(index)}" for index in ends.memories[len(initial_names) :]]
    add("initial", ends.memories, initial_names, has_named_memories)
    add("static", ends.statics, map(name_of, ends.statics), False)
    outputs = len(net.results) - program.memories
    names = [joined_name("y", name) for name, _ in named_leaves(program.output)]
    add("output", range(outputs), names, True)
    final = [joined_name("final", name) for name in memories]
    add("final", range(outputs, len(net.results)), final, True)
    return CallSpecification(schedule, tuple(map(np.asarray, program.params)), tuple(arguments))


def joined_name(first: str, name: str) -> str:
    """Joins a prefix, `first`, and a value's name to "final_h"; an empty name leaves the prefix."""
    return f"{first}_{name}" if name else first


def digest_of(schedules: Iterable[Schedule], params: Iterable[Array]) -> str:
    """Returns a digest of the nets and the parameters of a model, which identifies the function it computes.
    schedules: the parts of its call. params: the arrays of its parameters.
    """
    arrays = map(np.ascontiguousarray, params)
    bits = ((array.dtype.name, array.shape, bits_of(array)) for array in arrays)
    return digest(*(schedule.net for schedule in schedules), *bits)


def bits_of(array: Array) -> str:
    """Returns a digest of the bytes of an array, to tell models with other parameters apart."""
    return blake2b(array.tobytes(), digest_size=16).hexdigest()


def bytes_between(schedule: Schedule) -> list[tuple[int, int]]:
    """Returns a pair (level, bytes per entry) for each value that a part of a schedule leaves to later parts,
    to bound the memory of a call. Level 0 has an entry per sequence, level 1 per step, level -1 per pair of
    two steps of a sequence. Values without rows do not count, nor do final results, unless they have more
    entries than there are steps. A schedule (parts of a model in the order they run) of one part leaves none:
    values before its loop are computed in blocks of a fixed size.
    """
    if schedule.single_plan is not None:
        return []
    net = schedule.net
    left = {number for part in schedule.parts for number in part.results if number >= 0} - {*net.results}
    paired = [net.type_of(number) for number in left if is_pairs(net.type_of(number).extent)]
    entries = [(net.type_of(number), 0) for number in left if not is_pairs(net.type_of(number).extent)]
    entries += [(net.type_of(number), 1) for number in net.results]  # one for each step counts already
    at_pairs = [
        (
            PAIRS,
            ceil(
                type_.size
                * type_.itemsize
                * most_per_step(type_.extent[1])
                * most_per_step(keys_of(type_.extent)[1])
            ),
        )
        for type_ in paired
    ]
    return at_pairs + [
        (
            len(type_.extent) - 1,
            ceil(type_.size * type_.itemsize * (most_per_step(type_.extent[-1]) - counted)),
        )
        for type_, counted in entries
        if type_.extent and most_per_step(type_.extent[-1]) > counted
    ]
