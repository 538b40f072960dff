"""Runs recurrent layers of a model that is read as recurrences.

    x [time, batch, inputs]   -->   outputs [time, directions, batch, hidden],
                                    final states [directions, batch, hidden] of each memory

The steps have any elementwise operators as activations, a bound on their arguments, peepholes, an input gate
that is one minus the forget gate, and a reset before or after the product.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.trace.traced import Traced, apply
from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers.axes import ONE, TIME, AxesError, axis_names, time_of
from stepnet.importers.facts import LENGTH, ArrayInPadding
from stepnet.importers.placed import LENGTHS, Placed, Unusable
from stepnet.importers.pointwise import OPERATORS
from stepnet.importers.shaping import expand, squeeze, unsqueeze
from stepnet.importers.sizes import SEQUENCES, Size
from stepnet.importers.values import reshaped
from stepnet.model.recurrence import RNN

Array = np.ndarray
Activation = tuple[str, tuple[float, ...]]
"""The name of an elementwise operator, and the numbers behind its operand."""
Shape = tuple[int | None, ...]
PADDED = (
    "it runs into the padding, in a model where other recurrences read the lengths: stepnet has no padding"
)
GATES = {"rnn": "n", "gru": "zrn", "lstm": "iofg"}
"""For each cell, the order of the gates in its weights."""
SLOTS = {"rnn": ("h",), "gru": ("h",), "lstm": ("h", "c")}
"""For each cell, its memories."""


@dataclass(frozen=True)
class PlacedCellStep:
    """Step function of a recurrent layer in one direction. Its memory is {"h": ...}, of an LSTM {"h": ...,
    "c": ...}.

    cell: "rnn", "gru" or "lstm".
    activations: the activations of the gates, of the candidate, and of an LSTM's output, as far as the cell
        has them.
    bound: the bound on the arguments of activations; None for none.
    reset_after: whether a GRU resets after the product.
    coupled: whether an LSTM's forget gate is 1 - i.
    product: multiplies an LSTM's memory by its weights.
    """

    cell: str
    activations: tuple[Activation, ...]
    bound: float | None = None
    reset_after: bool = False
    coupled: bool = False
    product: Callable[[Any, Any], Any] = np.matmul

    @property
    def __name__(self) -> str:
        """Name of the step, which messages about the recurrence show."""
        return self.cell

    def activated(self, index: int, x: Any) -> Any:
        """Applies the cell's activation at index `index` to x, which is clipped to -bound..bound first."""
        return self.function(index, x if self.bound is None else np.clip(x, -self.bound, self.bound))

    def function(self, index: int, x: Any) -> Any:
        """Applies the cell's activation at index `index` to x, without clipping, as for an LSTM's output."""
        name, numbers = self.activations[index]
        return OPERATORS[name].function(x, *numbers)

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Computes a step of the cell; returns (output, memory after the step).

        x: inputs [rows, inputs]. memory: the state h, and c of an LSTM, by name. params: the weights W and R,
        the biases b and d, and an LSTM's peepholes p; without W for inputs that are projected already.
        """
        steps = {"rnn": self.rnn, "gru": self.gru, "lstm": self.lstm}
        projected = x @ params["W"] if "W" in params else x
        after = steps[self.cell](projected + params["b"], memory, params)
        return after["h"], after

    def rnn(self, x: Any, memory: Any, params: Any) -> Any:
        """Computes the memory {"h": H'} after a step of a simple RNN: H' = f(x + H R + d). x: the projected
        inputs. memory: H, likewise. params: the recurrent weights R and the bias d.
        """
        return {"h": self.activated(0, x + memory["h"] @ params["R"] + params["d"])}

    def gru(self, x: Any, memory: Any, params: Any) -> Any:
        """Computes the memory after a step of a GRU: H' = (1 - z) n + z H. x: the projected inputs of the
        gates z, r, n, one after the other. params: the recurrent weights R and the bias d, in the same order.
        """
        h, R, d, size = memory["h"], params["R"], params["d"], memory["h"].shape[-1]
        gates, last = slice(0, 2 * size), slice(2 * size, None)
        from_h = h @ R[:, gates] + d[gates]
        z = self.activated(0, x[:, :size] + from_h[:, :size])
        r = self.activated(0, x[:, size : 2 * size] + from_h[:, size:])
        inside = r * (h @ R[:, last] + d[last]) if self.reset_after else (r * h) @ R[:, last] + d[last]
        n = self.activated(1, x[:, last] + inside)
        return {"h": (1 - z) * n + z * h}

    def lstm(self, x: Any, memory: Any, params: Any) -> Any:
        """Computes the memory after a step of an LSTM: C' = f C + i g, H' = o h(C'). x: the projected inputs
        of the gates i, o, f, g, one after the other. params: R and d in the same order, and perhaps peepholes
        p of i, o, f.
        """
        h, c = memory["h"], memory["c"]
        i, o, f, g = np.split(x + self.product(h, params["R"]) + params["d"], 4, axis=-1)
        p_i, p_o, p_f = params.get("p", (0, 0, 0))
        i = self.activated(0, i + p_i * c)
        f = 1 - i if self.coupled else self.activated(0, f + p_f * c)
        c = f * c + i * self.activated(1, g)
        return {"h": self.activated(0, o + p_o * c) * self.function(2, c), "c": c}


# ---- weights -----------------------------------------------------------------------------------------------


def weight_shapes(cell: str, directions: int, hidden: int) -> dict[str, Shape]:
    """Returns the shape of each weight of a recurrent layer by its name, with None for the number of
    inputs: W, R, both biases B and an LSTM's peepholes P, gate by gate.

    cell: "rnn", "gru" or "lstm". hidden: the number of units.
    """
    wide = len(GATES[cell]) * hidden
    shapes: dict[str, Shape] = {
        "W": (directions, wide, None),
        "R": (directions, wide, hidden),
        "B": (directions, 2 * wide),
    }
    return shapes | ({"P": (directions, 3 * hidden)} if cell == "lstm" else {})


def wrong_shape(arrays: Mapping[str, Array], expected: Mapping[str, Shape], units: str) -> str | None:
    """Describes the first array that has another shape than it should have, or is neither float32 nor
    float64, for an error; None if all fit.

    expected: the shapes by name, with None for any size. units: the directions and units that the shapes are
    of, for messages.
    """
    for name, array in arrays.items():
        sizes = expected[name]
        fits = len(sizes) == array.ndim and all(
            size in (None, actual) for size, actual in zip(sizes, array.shape, strict=True)
        )
        if not fits or 0 in sizes:
            text = ", ".join("any" if size is None else str(size) for size in sizes)
            return f"its {name} is of {array.shape}, and with {units} it would be of ({text})"
        if array.dtype.name not in ("float32", "float64"):
            return f"its {name} holds {array.dtype}, and not float32 or float64"
    return None


@dataclass(frozen=True)
class PlacedLayer:
    """Recurrent layer of one or two directions.

    arrays: the weights by the names of `weight_shapes`. steps: the step function of each direction. reverse:
    for each direction, whether it runs from the last step to the first.
    """

    arrays: Mapping[str, Array]
    steps: tuple[PlacedCellStep, ...]
    reverse: tuple[bool, ...]

    @property
    def cell(self) -> str:
        """The kind of cell of the recurrent layer: "rnn", "gru" or "lstm"."""
        return self.steps[0].cell

    @property
    def hidden(self) -> int:
        """Number of units per direction."""
        return self.arrays["R"].shape[-1]

    def inputs(self, number: int, x: Placed, padded: bool) -> Traced:
        """Returns the inputs that direction `number` reads, a value per step: here the same for both
        directions. padded: whether the model has padding.
        """
        return x.value

    def recurrence(self, number: int) -> RNN:
        """Makes the recurrence of the direction with index `number`."""
        memory = dict.fromkeys(SLOTS[self.cell], self.hidden)
        return RNN(self.steps[number], self.params(number), memory=memory, reverse=self.reverse[number])

    def params(self, number: int) -> dict[str, Any]:
        """Returns the weights of the direction with index `number` by name: W, R, the biases b and d (zeros
        if missing), and the peepholes p if there are any.
        """
        wide, W = len(GATES[self.cell]) * self.hidden, self.arrays["W"]
        biases = self.arrays["B"][number] if "B" in self.arrays else np.zeros(2 * wide, W.dtype)
        params: dict[str, Any] = {
            "W": W[number].T,
            "R": self.arrays["R"][number].T,
            "b": biases[:wide],
            "d": biases[wide:],
        }
        if "P" in self.arrays:
            params["p"] = tuple(self.arrays["P"][number].reshape(3, self.hidden))
        return params


# ---- layers over values ------------------------------------------------------------------------------------


def run_layer(
    layer: PlacedLayer,
    x: Placed,
    initial: Sequence[Placed | None] = (),
    lengths: Placed | None = None,
    batch_first: bool = False,
    padded: bool = False,
) -> list[Placed]:
    """Runs a recurrent layer; returns its outputs, followed by the final state of each memory. In a model
    with padding (steps after sequences' ends), outputs there are known to be zero if the layer is given the
    lengths; else final states become placeholders, which no operator may read. For inputs with a single step
    (an axis of size one in place of the steps) one step of the cell is run.

    initial: the initial state of each memory; None, and a missing one, for zeros. lengths: the lengths of the
    sequences, or the number of all steps; None if it runs over all steps. batch_first: whether the first axis
    is the sequences. padded: whether the model has padding.
    """
    if x.letters == ("N__" if batch_first else "_N_") and x.axes[int(batch_first)] == ONE:
        return run_step(layer, x, initial, lengths, batch_first, padded)
    x = as_sequences(x, batch_first)
    has_lengths = reads_lengths(lengths, x)
    initial_states = [initial_state(value, batch_first) for value in initial]
    all_states = [*initial_states, *[None] * (len(SLOTS[layer.cell]) - len(initial_states))]
    directions = [
        run_direction(
            layer, number, layer.inputs(number, x, padded), [state_for(value, number) for value in all_states]
        )
        for number in range(len(layer.steps))
    ]
    results = outputs(layer.cell, x, directions, batch_first)
    if not padded:
        return results
    if has_lengths:  # with lengths the outputs at padding steps are zero
        return [replace(results[0], fact=ArrayInPadding(np.zeros((), x.value.dtype))), *results[1:]]
    return [results[0], *padded_ends(results[1:], any(layer.reverse))]


def run_step(
    layer: PlacedLayer,
    x: Placed,
    initial: Sequence[Placed | None],
    lengths: Placed | None,
    batch_first: bool,
    padded: bool,
) -> list[Placed]:
    """Runs one step of a recurrent layer; returns its outputs and the state of each memory. x: the inputs,
    with an axis of size one in place of the steps. initial: the initial states; None for zeros. lengths:
    refused unless None. batch_first: whether the first axis of x is the sequences. padded: whether the model
    has padding.
    """
    if lengths is not None or x.is_constant:
        raise ModelError("it runs over one step, of a constant or with lengths")
    one = squeeze(x, [int(batch_first)])
    states = [initial_state(value, batch_first) for value in initial]
    states += [None] * (len(SLOTS[layer.cell]) - len(states))
    directions = list[tuple[Any, dict[str, Any]]]()
    for number, step in enumerate(layer.steps):
        memory = memory_of(layer, x.value, [state_for(value, number) for value in states])
        directions.append(step(layer.inputs(number, one, padded), memory, layer.params(number)))
    last = outputs(layer.cell, x, directions, batch_first)[1:]
    return [unsqueeze(last[0], [int(batch_first)]), *last]


def as_sequences(x: Placed, batch_first: bool) -> Placed:
    """Checks that a recurrence's input has one axis each of steps, sequences and features, and returns it.

    batch_first: whether the sequences come before the steps.

    Raises `AxesError` for other axes, and `ModelError` for a constant.
    """
    letters = "NT_" if batch_first else "TN_"
    if x.letters != letters:
        raise AxesError(f"its input is [{axis_names(x.letters)}], and it runs over [{axis_names(letters)}]")
    if x.is_constant:
        raise ModelError("its input is a constant")
    return x


def reads_lengths(lengths: Placed | None, x: Placed) -> bool:
    """Tells whether the operand sequence_lens of a recurrence is the model's input of lengths.

    It may also be left out or be the number of all steps; raises `ModelError` for anything else.
    """
    if lengths is None or lengths.value is LENGTHS or lengths.fact == LENGTH:
        return lengths is not None
    (steps,) = time_of(x.axes) or TIME
    all_steps = Size((str(steps),), stated=dict(x.stated).get(str(steps)))
    if not lengths.is_constant or any(all_steps != size for size in np.ravel(lengths.value)):
        raise ModelError("its lengths are neither an input of the model nor all steps")
    return False


def padded_ends(states: Sequence[Placed], reverse: bool) -> list[Placed]:
    """Makes placeholders for final states that a recurrence without lengths has after the padding, which
    stepnet does not compute; no operator may read them.

    Raises `ModelError` for a reverse recurrence, which would begin in the padding.
    """
    if reverse:
        raise ModelError(PADDED)
    return [state.with_value(Unusable(PADDED)) for state in states]


def initial_state(value: Placed | None, batch_first: bool) -> Placed | None:
    """Returns an initial state with features [directions, hidden] per sequence; None for zeros. Raises
    `AxesError` for other axes.

    batch_first: whether the sequences come before the directions.
    """
    if value is None or (value.is_constant and not np.any(value.value)):
        return None
    letters = "N__" if batch_first else "_N_"
    if value.letters == "___":
        value = expand(value, [Size((SEQUENCES,)) if letter == "N" else 1 for letter in letters])
    if value.letters != letters:
        raise AxesError(
            f"an initial state is [{axis_names(value.letters)}], and should be [{axis_names(letters)}]"
        )
    return value


def state_for(value: Placed | None, number: int) -> Any:
    """Returns the initial state of direction `number` from the states of all directions; None for zeros."""
    if value is None:
        return None
    return value.value[:, number] if isinstance(value.value, Traced) else value.value[number]


def run_direction(
    layer: PlacedLayer, number: int, x: Traced, initial: Sequence[Any]
) -> tuple[Any, dict[str, Any]]:
    """Runs a recurrent layer in one direction; returns (outputs per step, final memory by name).

    number: the index of the direction. x: the inputs, a value per step. initial: the initial state of each
    memory; None for zeros.
    """
    has_initial = any(value is not None for value in initial)
    return layer.recurrence(number)(x, initial=memory_of(layer, x, initial) if has_initial else None)


def memory_of(layer: PlacedLayer, x: Traced, initial: Sequence[Any]) -> dict[str, Traced]:
    """Returns the memory of a recurrent layer by name, for each sequence of the input x. initial: the state
    of each memory: a value per sequence, an array, or None for zeros.
    """
    return {
        slot: value if isinstance(value, Traced) else rows_of(x, value, layer.hidden)
        for slot, value in zip(SLOTS[layer.cell], initial, strict=True)
    }


def rows_of(x: Traced, value: Array | None, hidden: int) -> Traced:
    """Repeats a constant state of size `hidden`, zeros for None, for each sequence of the input x."""
    array = np.zeros(hidden, x.dtype) if value is None else value
    literal = Traced(x.builder, x.builder.constant(np.asarray(array, x.dtype)))
    return apply("expand", literal, extent=("rows",))


def outputs(
    cell: str, x: Placed, directions: list[tuple[Any, dict[str, Any]]], batch_first: bool
) -> list[Placed]:
    """Joins the results of all directions to the outputs of a recurrent operator: the outputs per step (Y),
    then the final state of each memory (Y_h, and Y_c of an LSTM).

    directions: for each direction, (outputs per step, final memory by name). x: the input. batch_first:
    whether outputs have the sequences as their first axis.
    """

    def joined(values: list[Any], letters: str) -> Placed:
        """Joins the values of all directions along a new first feature; letters: the result's axes."""
        wide = [reshaped(value, (1, *value.type.shape)) for value in values]
        return x.lettered(wide[0] if len(wide) == 1 else np.concatenate(wide, axis=-2), letters)

    step_axes, state_axes = ("NT__", "N__") if batch_first else ("T_N_", "_N_")
    results: list[Placed] = [joined([output for output, _ in directions], step_axes)]
    results += [joined([memory[slot] for _, memory in directions], state_axes) for slot in SLOTS[cell]]
    return results
