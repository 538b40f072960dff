"""Random steps, as the Python text that a person would write, and the loop over NumPy arrays that says what
is right.

Every value of a step stays within about [-1, 1], and no operation stretches a small difference much, so that
results in float32 can be compared with those in float64. Comparisons, rounding and argmax read inputs as they
came, which are the same numbers in both.
"""

import linecache
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import hypothesis.strategies as st
import numpy as np

import stepnet as sn
from stepnet.compiler.values import leaves, rebuild, transform

Array = np.ndarray
Shape = tuple[int, ...]
SIZES = (1, 2, 3, 5, 7, 16)


@dataclass(frozen=True, repr=False)
class RandomStep:
    """A step as text, and the shapes around it. `inputs`, `memory` and `statics` are dicts of `Spec`s."""

    source: str
    params: dict[str, Array]
    inputs: dict[str, sn.Spec]
    memory: dict[str, sn.Spec]
    statics: dict[str, sn.Spec] | None

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The step itself."""
        file = f"<random step {abs(hash(self.source))}>"
        linecache.cache[file] = (len(self.source), None, self.source.splitlines(True), file)
        scope: dict[str, Any] = {"np": np, "sn": sn}
        exec(compile(self.source, file, "exec"), scope)
        return scope["step"]

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in self.params.items())
        return (
            f"\n{self.source}# inputs {self.inputs}\n# memory {self.memory}\n# statics {self.statics}\n"
            f"# params {shapes}\n"
        )

    def rnn(self, dtype: Any, reverse: bool = False) -> sn.RNN:
        """The recurrence, with inputs and parameters of a dtype."""
        params = {name: array.astype(dtype) for name, array in self.params.items()}
        inputs, statics = (
            transform(lambda spec: sn.Spec(spec.shape, dtype), part) for part in (self.inputs, self.statics)
        )
        return sn.RNN(
            self.function, params, memory=self.memory, inputs=inputs, statics=statics, reverse=reverse
        )


@dataclass(frozen=True, repr=False)
class Sequences:
    """The arguments of one call of a step: per input the sequences, and per memory and static an array."""

    inputs: dict[str, sn.Ragged]
    initial: dict[str, Array] | None
    statics: dict[str, Array] | None

    @property
    def lengths(self) -> Array:
        """The steps of each sequence."""
        return next(iter(self.inputs.values())).lengths

    def __repr__(self) -> str:
        given = "zeros" if self.initial is None else "numbers"
        return f"Sequences(lengths {self.lengths.tolist()}, initial memories {given})"

    def __getitem__(self, chosen: slice) -> "Sequences":
        def cut(structure: Any) -> Any:
            return transform(lambda leaf: leaf[chosen], structure)

        return Sequences(cut(self.inputs), cut(self.initial), cut(self.statics))


# ---- what is right ------------------------------------------------------------------


def looped(
    step: Callable[..., Any],
    params: Any,
    sequences: Sequence[Any],
    memories: Sequence[Any],
    statics: Sequence[Any] | None = None,
    reverse: bool = False,
    extras: tuple[str, ...] = (),
) -> tuple[list[list[Any]], list[Any]]:
    """Per sequence the output of each step, and the last memory: the step on arrays of one row, in a loop.

    sequences: per sequence a structure of arrays [time, features...]; memories, statics: of arrays
    [1, features...].
    """
    outputs: list[list[Any]] = []
    finals: list[Any] = []
    for place, (sequence, memory) in enumerate(zip(sequences, memories, strict=True)):
        time = len(leaves(sequence)[0])
        found: list[Any] = [None] * time
        for count in range(time):
            at = time - 1 - count if reverse else count
            x = transform(lambda array, at=at: array[at : at + 1], sequence)
            given = {"statics": statics[place] if statics else None, "index": np.array([count])}
            found[at], memory = step(x, memory, params, **{name: given[name] for name in extras})
        outputs.append(found)
        finals.append(memory)
    return outputs, finals


def right(
    step: RandomStep, given: Sequences, reverse: bool = False
) -> tuple[list[list[Array]], dict[str, Array]]:
    """Per output its value for each sequence, [time, features...], and each memory's last, in float64."""
    count = len(given.lengths)
    start = given.initial or {name: np.zeros((count, *s.shape), s.dtype) for name, s in step.memory.items()}

    def row(place: int, arrays: Any) -> Any:
        return transform(lambda array: wide(array[place : place + 1]), arrays)

    outputs, finals = looped(
        step.function,
        transform(wide, step.params),
        [transform(lambda ragged, i=i: wide(ragged[i]), given.inputs) for i in range(count)],
        [row(i, start) for i in range(count)],
        None if given.statics is None else [row(i, given.statics) for i in range(count)],
        reverse,
        ("statics", "index"),
    )
    places = len(step.rnn("float64").program.traced.names)
    per_output = [
        [np.concatenate([leaves(out)[place] for out in steps]) if steps else np.zeros(0) for steps in outputs]
        for place in range(places)
    ]
    last = {name: [final[name] for final in finals] for name in step.memory}
    return per_output, {name: np.concatenate(rows) if rows else start[name] for name, rows in last.items()}


def wide(array: Array) -> Array:
    """The array in float64, if it holds floats."""
    return array.astype(np.float64) if array.dtype.kind == "f" else array


# ---- drawing a step ------------------------------------------------------------------

UNARY = (
    "np.tanh({a})",
    "np.sin(3 * {a})",
    "np.arctan({a})",
    "sn.sigmoid({a})",
    "0.3 * np.exp({a})",
    "0.5 * np.expm1({a})",
    "np.log(1.5 + 0.5 * {a})",
    "np.log1p(0.9 * abs({a}))",
    "0.7 * np.sqrt(1.1 + 0.5 * {a})",
    "-{a}",
    "np.abs({a})",
    "1 - {a}",
    "1 / (2 + {a})",
    "np.reciprocal(2.5 - {a})",
    "{a} ** 2",
    "0.3 * {a} ** 3",
    "0.6 * np.abs({a}) ** 1.5",
    "0.8 * sn.erf({a})",
    "np.clip({a}, -0.5, 0.75)",
    "sn.relu({a})",
    "sn.leaky_relu({a})",
    "sn.elu({a})",
    "0.5 * sn.selu({a})",
    "0.5 * sn.softplus({a})",
    "sn.softsign({a})",
    "sn.silu({a})",
    "sn.gelu({a})",
    "sn.gelu({a}, approximate=True)",
    "sn.hard_sigmoid({a})",
    "np.square({a})",
    "np.where({a} > 0.25, {a} - 0.25, 0)",
    "np.ones_like({a}) - {a}",
)
BINARY = (
    "0.5 * ({a} + {b})",
    "0.5 * ({a} - {b})",
    "0.7 * {a} * {b}",
    "{a} / (1.5 + {b} ** 2)",
    "np.maximum({a}, {b})",
    "np.minimum({a}, {b})",
    "np.where({a} < {b}, {b} - {a}, 0) / 2",
    "({a} + {b} + {a} * {b}) / 3",
)
REDUCING = (
    "np.mean({a}, axis={axis})",
    "{a}.max(axis={axis})",
    "np.min({a}, axis={axis})",
    "np.var({a}, axis={axis})",
    "{a}.sum(axis={axis}) / {size}.0",
    "{a}.mean(axis={axis}, keepdims=True)",
    "sn.softmax({a}, axis={axis})",
    "0.3 * sn.layer_norm({a}, epsilon=0.1, axis={axis})",
    "np.max({a}, axis={axis}, keepdims=True)",
)
EXACT = (
    "({a} > 0.25)",
    "(({a} <= 0.5) & ({a} != 0))",
    "((np.floor(4 * {a}) % 3) == 1)",
    "~({a} >= -0.125)",
    "np.logical_or({a} < -0.5, np.rint(4 * {a}) == 1)",
    "(np.sign({a}) > np.ceil({a}))",
    "((4 * {a}).astype(np.int32) % 2 == 0)",
    "((8 * {a}).astype(np.int64) // 3 == 1)",
)
OUTPUTS = (("None",), ("{0}", "{{'y': {0}}}", "({0},)"), ("({0}, {1})", "{{'y': {0}, 'z': ({1}, None)}}"))


@dataclass
class Draft:
    """A step on its way: its lines, its parameters, and the values so far with their feature shapes."""

    draw: Any
    sizes: tuple[int, ...]
    lines: list[str] = field(default_factory=list[str])
    params: dict[str, Array] = field(default_factory=dict[str, Array])
    values: list[tuple[str, Shape]] = field(default_factory=list[tuple[str, Shape]])
    raw: list[tuple[str, Shape]] = field(default_factory=list[tuple[str, Shape]])
    conditions: list[str] = field(default_factory=list[str])

    def one_of(self, choices: Any) -> Any:
        """One of several things."""
        return self.draw(st.sampled_from(list(choices)))

    def value(self, fits: Callable[[Shape], bool] = lambda _: True) -> tuple[str, Shape]:
        """A value whose feature shape fits; a made-up one where there is none."""
        return self.one_of([one for one in (*self.values, *self.values[-3:]) if fits(one[1])] or self.values)

    def vector(self) -> tuple[str, Shape]:
        """A value with one feature axis; any other is laid flat."""
        name, shape = self.value()
        return self.flat(name, shape), (math.prod(shape),)

    def flat(self, name: str, shape: Shape) -> str:
        """The text of a value laid flat."""
        return name if len(shape) == 1 else f"{name}.reshape(-1, {math.prod(shape)})"

    @property
    def read(self) -> set[str]:
        """The names that a later line reads."""
        return {word for line in self.lines for word in re.findall(r"\w+", line.split(" = ", 1)[1])}

    def add(self, text: str) -> None:
        """A new value. Its shape is what NumPy gives on two rows of ones."""
        name = f"v{len(self.lines)}"
        scope = {"np": np, "sn": sn, "params": self.params}
        scope |= {one: np.ones((2, *shape)) for one, shape in self.values}
        scope |= {"index": np.zeros(2, np.int64), "memory": {"count": np.zeros(2, np.int64)}}
        with np.errstate(all="ignore"):
            shape = np.shape(eval(text, scope))[1:]
        self.lines.append(f"{name} = {text}")
        self.values.append((name, shape))

    def weight(self, *shape: int) -> str:
        """A new parameter that keeps a vector within its bounds."""
        name = f"{'W' if len(shape) == 2 else 'b'}{len(self.params)}"
        numbers = np.random.default_rng(len(self.params) + 31 * sum(shape)).uniform(-1, 1, shape)
        bound = max(1.0, math.sqrt(shape[0]) / 1.2) if len(shape) == 2 else 2.0
        self.params[name] = (numbers / bound).astype(np.float32).astype(np.float64)
        return f"params['{name}']"

    # ---- the forms a line can have

    def unary(self) -> None:
        """A function of one value."""
        self.add(self.one_of(UNARY).format(a=self.value()[0]))

    def binary(self) -> None:
        """An operation on two values whose shapes broadcast."""
        name, shape = self.value()
        other, _ = self.value(lambda b: len(b) == len(shape) and broadcast(b, shape))
        if not broadcast(dict(self.values)[other], shape) or len(dict(self.values)[other]) != len(shape):
            other = name
        self.add(self.one_of(BINARY).format(a=name, b=other))

    def scaled(self) -> None:
        """A value with a parameter beside it."""
        name, shape = self.vector()
        self.add(f"0.5 * ({name} {self.one_of('+-*')} {self.weight(*shape)})")

    def product(self) -> None:
        """A product with a parameter."""
        (name, shape), width = self.vector(), self.one_of(self.sizes)
        written = self.one_of(["{a} @ {w}", "{a} @ {t}.T", "np.matmul({a}, {w})", "{a} @ {w} + {b}"])
        weight = self.weight(width, shape[0]) if "{t}" in written else self.weight(shape[0], width)
        shift = self.weight(width) if "{b}" in written else ""
        self.add(f"np.tanh({written.format(a=name, w=weight, t=weight, b=shift)})")

    def product_of_matrix(self) -> None:
        """A product of each of several vectors of a value."""
        name, shape = self.value(lambda a: len(a) == 2)
        if len(shape) == 2:
            self.add(f"{name} @ {self.weight(shape[1], self.one_of(self.sizes[:3]))}")

    def product_of_row(self) -> None:
        """Each row's own vector with its own matrix."""
        name, shape = self.value(lambda a: len(a) == 2)
        if len(shape) == 2:
            self.add(f"({name}[:, :1] @ np.swapaxes({name}, 1, 2))[:, 0] / {shape[1]}")

    def gates(self) -> None:
        """Products joined into gates, taken apart in one of the ways people do."""
        (a, k), (b, m), size = self.vector(), self.vector(), self.one_of(self.sizes)
        count, joined = self.one_of([2, 3, 4]), f"g{len(self.lines)}"
        width = count * size
        if self.draw(st.booleans()):
            text = f"np.concatenate([{a}, {b}], axis=-1) @ {self.weight(k[0] + m[0], width)}"
        else:
            text = (
                f"{a} @ {self.weight(k[0], width)} + {b} @ {self.weight(m[0], width)} + {self.weight(width)}"
            )
        way = self.one_of(["slice", "split", "reshape", "every", "transpose"])
        if way == "split":
            self.lines.append(f"{joined} = np.split({text}, {count}, axis=-1)")
            parts = [f"{joined}[{place}]" for place in range(count)]
        else:
            laid = {
                "reshape": f".reshape(-1, {count}, {size})",
                "transpose": f".reshape(-1, {size}, {count}).transpose(0, 2, 1)",
            }
            self.lines.append(f"{joined} = ({text}){laid.get(way, '')}")
            one = {
                "slice": lambda i: f"{joined}[:, {i * size}:{(i + 1) * size}]",
                "every": lambda i: f"{joined}[:, {i}::{count}]",
            }.get(way, lambda i: f"{joined}[:, {i}]")
            parts = [one(place) for place in range(count)]
        text = f"sn.sigmoid({parts[0]}) * np.tanh({parts[1]})"
        for part in parts[2:]:
            text += f" * sn.sigmoid({part})"
        self.values.append((f"v{len(self.lines)}", (size,)))
        self.lines.append(f"v{len(self.lines)} = {text}")

    def reduced(self) -> None:
        """A reduction over a feature axis, or one that keeps its shape."""
        name, shape = self.value(lambda a: len(a) > 0)
        if shape:
            axis = self.one_of(range(1, len(shape) + 1))
            self.add(self.one_of(REDUCING).format(a=name, axis=axis, size=shape[axis - 1]))

    def part(self) -> None:
        """Some of the features, or all of them in another order."""
        name, shape = self.value(lambda a: len(a) > 0)
        if not shape:
            return
        size = shape[-1]
        start = self.draw(st.integers(0, size - 1))
        stop = self.draw(st.integers(start + 1, size))
        ways = [
            f"[..., {start}:{stop}]",
            "[..., ::-1]",
            f"[..., {start}::2]",
            f"[..., [{start}, {stop - 1}]]",
        ]
        ways += (
            [f"[..., {start}]"]
            if len(shape) == 1
            else [f"[:, {shape[0] - 1}]", ".swapaxes(1, 2)", "[:, ::-1]"]
        )
        ways += [f".reshape(-1, {math.prod(shape)}, 1)", f".reshape(-1, {math.prod(shape)})"]
        ways += ["[:, None]"] if len(shape) == 1 else []
        self.add(name + self.one_of(ways))

    def joined(self) -> None:
        """Features side by side."""
        (a, _), (b, _) = self.vector(), self.vector()
        self.add(f"np.concatenate([{a}, {b}], axis={self.one_of([1, -1])})")

    def stacked(self) -> None:
        """Values of one shape side by side on a new axis."""
        name, shape = self.value(lambda a: len(a) == 1)
        other = self.one_of([one for one in self.values if one[1] == shape])[0]
        if len(shape) == 1:
            self.add(f"np.stack([{name}, {other}], axis={self.one_of([1, -1])})")

    def scalar(self) -> None:
        """A value of no feature axes, beside others."""
        name, shape = self.value(lambda a: a == ())
        if shape == ():
            self.add(f"{name}[:, None]")

    def chosen(self) -> None:
        """One of two values, by a condition on numbers that are the same in any precision."""
        name, shape = self.value(lambda a: len(a) > 0)
        raw, of = self.one_of(self.raw)
        flat = f"{raw}.reshape(-1, {math.prod(of)})" if len(of) != 1 else raw
        column = (
            f"{flat}[:, {self.draw(st.integers(0, math.prod(of) - 1))}, {', '.join(['None'] * len(shape))}]"
        )
        condition = self.one_of([*(text.format(a=column) for text in EXACT), *self.conditions])
        if shape and (condition not in self.conditions or len(shape) == 1):
            self.add(
                f"np.where({condition}, {name}, {self.one_of([f'0.5 * {name}', '0.25', f'sn.silu({name})'])})"
            )

    def embedded(self) -> None:
        """A row of a parameter, or a one-hot vector, at an integer."""
        raw, shape = self.one_of(self.raw)
        if len(shape) == 1:
            place = f"np.argmax({raw}, axis=-1)"
            table = f"{self.weight(shape[0], self.one_of(self.sizes))}[{place}]"
            self.add(self.one_of([table, f"sn.one_hot({place}, {shape[0]}, np.float32).astype({raw}.dtype)"]))


def broadcast(one: Shape, other: Shape) -> bool:
    """True if two shapes can be broadcast."""
    return all(a == b or 1 in (a, b) for a, b in zip(one, other, strict=False))


FORMS = (
    Draft.unary,
    Draft.unary,
    Draft.binary,
    Draft.binary,
    Draft.scaled,
    Draft.product,
    Draft.product,
    Draft.gates,
    Draft.gates,
    Draft.product_of_matrix,
    Draft.product_of_row,
    Draft.reduced,
    Draft.part,
    Draft.part,
    Draft.joined,
    Draft.stacked,
    Draft.scalar,
    Draft.chosen,
    Draft.chosen,
    Draft.embedded,
)


@st.composite
def random_steps(draw: st.DrawFn, sizes: tuple[int, ...] = SIZES, most: int = 9) -> RandomStep:
    """A step of up to `most` lines over one or two inputs, memories and perhaps a static and a counter."""
    draft = Draft(draw, sizes)
    shapes = st.sampled_from(sizes).map(lambda n: (n,)) | st.sampled_from([(), (2, 3), (1, 2), (3, 1)])
    inputs = {name: sn.Spec(draw(shapes)) for name in ("a", "b")[: draw(st.integers(1, 2))]}
    memory = {name: sn.Spec(draw(shapes)) for name in ("h", "c")[: draw(st.integers(1, 2))]}
    statics = {"s": sn.Spec(draw(shapes))} if draw(st.booleans()) else None
    for group, specs in (("x", inputs), ("memory", memory), ("statics", statics or {})):
        draft.values += [(f"{group}['{name}']", spec.shape) for name, spec in specs.items()]
        draft.raw += draft.values[-len(specs) :] if group != "memory" and specs else []
    for place, (text, shape) in enumerate(draft.values):
        draft.lines.append(f"v{place} = {text}")
        draft.raw = [(f"v{place}", shape) if name == text else (name, shape) for name, shape in draft.raw]
        draft.values[place] = (f"v{place}", shape)
    draft.conditions.append("(index[:, None] % 3 == 1)")
    counted = draw(st.booleans())
    if counted:
        draft.conditions.append("(memory['count'][:, None] > 1)")
    for _ in range(draw(st.integers(1, most))):
        draw(st.sampled_from(FORMS))(draft)
    idle = [one for one in draft.values if one[0] not in draft.read]
    shown = [one[0] for one in idle if draw(st.booleans())][:2]
    idle = [one for one in idle if one[0] not in shown]
    following = [
        f"'{name}': {next_memory(draft, name, spec.shape, idle[place :: len(memory)])}"
        for place, (name, spec) in enumerate(memory.items())
    ]
    following += ["'count': memory['count'] + 1"] if counted else []
    output = draw(st.sampled_from(OUTPUTS[len(shown)])).format(*shown)
    lines = [*draft.lines, f"return {output}, {{{', '.join(following)}}}"]
    head = "def step(x, memory, params, index, statics=None):\n"
    source = head + "".join(f"    {line}\n" for line in lines)
    specs = memory | ({"count": sn.Spec((), np.int64)} if counted else {})
    return RandomStep(source, draft.params, inputs, specs, statics)


def next_memory(draft: Draft, name: str, shape: Shape, idle: list[tuple[str, Shape]]) -> str:
    """The text of a memory's next value, of its shape: a value as it is, or products of all `idle` ones."""
    old, (value, found) = f"memory['{name}']", draft.value(lambda a: a == shape)
    if found != shape or idle:
        terms = [
            f"{draft.flat(*one)} @ {draft.weight(math.prod(one[1]), math.prod(shape))}"
            for one in idle or draft.values[:1]
        ]
        laid = ", ".join(["-1", *map(str, shape)])
        value = f"np.tanh({' + '.join(terms)}).reshape({laid})"
    draft.lines.append(f"new_{name} = {value}")
    value = f"new_{name}"
    return draft.one_of(
        [value, f"0.5 * ({old} + {value})", f"{old} + sn.sigmoid({value}) * ({value} - {old})"]
    )


@st.composite
def sequences_for(draw: st.DrawFn, step: RandomStep, dtype: Any, longest: int = 5) -> Sequences:
    """Sequences for a step, of lengths from 0 on, with numbers that are the same in float32 and float64."""
    lengths = draw(st.lists(st.sampled_from([0, 1, 2, longest]), max_size=4))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    return sequences_of(step, lengths, random, dtype, initial=draw(st.booleans()))


def sequences_of(
    step: RandomStep, lengths: Sequence[int], random: np.random.Generator, dtype: Any, initial: bool
) -> Sequences:
    """Sequences of these lengths, with initial memories or none."""
    offsets = (np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),)

    def numbers(count: int, spec: sn.Spec) -> Array:
        if spec.dtype is not None:
            return random.integers(0, 4, (count, *spec.shape)).astype(spec.dtype)
        return random.uniform(-1, 1, (count, *spec.shape)).astype(np.float32).astype(dtype)

    inputs = {
        name: sn.Ragged(numbers(int(offsets[0][-1]), spec), offsets) for name, spec in step.inputs.items()
    }
    memory = {name: numbers(len(lengths), spec) for name, spec in step.memory.items()} if initial else None
    statics = rebuild(step.statics, [numbers(len(lengths), spec) for spec in leaves(step.statics)])
    return Sequences(inputs, memory, statics)
