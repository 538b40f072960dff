"""Messages for mistakes: the thing the user named, what was expected, the user's own line."""

import math
import pickle
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from planned import CPU

import stepnet as sn
from stepnet.compiler import targets
from stepnet.compiler.net import CONST, ROWS, STEPS, Builder, Net, Node, Type
from stepnet.compiler.targets import choose
from stepnet.errors import FileError, InputError, NetError, RefusedError, StepError, StepnetError, named

PARAMS = {"W": np.ones((4, 4), np.float32), "v": np.ones(4, np.float32), "E": np.ones((5, 2, 3), np.float32)}
F32 = np.float32
HALF: Any = 0.5  # where a whole number belongs

Step = Callable[[Any], Any]

# ---- inside a step: name -> (what the message says, the line that is at fault) -------------------

MISTAKES: dict[str, tuple[str, Step]] = {
    # rows mixed
    "mean of all": (
        "np.mean over all axes mixes rows: every row is a sequence of its own; give axis=-1",
        lambda o: o.x.mean(),
    ),
    "sum over rows": ("np.sum over axis 0 mixes rows: .*; use a feature axis", lambda o: o.x.sum(axis=0)),
    "max over rows from the end": ("np.max over axis -2 mixes rows", lambda o: np.max(o.x, axis=-2)),
    "var over rows and features": (
        "np.mean over axis 0 mixes rows|np.var over axis 0 mixes rows",
        lambda o: np.var(o.x, axis=(0, 1)),
    ),
    "cumsum of all": ("np.cumsum over all axes mixes rows; give axis=-1", lambda o: np.cumsum(o.x)),
    "cumprod over rows": ("np.cumprod over axis 0 mixes rows", lambda o: o.x.cumprod(axis=0)),
    "argmax of all": ("np.argmax over all axes mixes rows; give axis=-1", lambda o: np.argmax(o.x)),
    "argmax of rows": ("np.argmax over axis 0 mixes rows", lambda o: o.x.argmax(axis=0)),
    "transposed rows": (r"x\.T would move the rows; use np.swapaxes on feature axes", lambda o: o.x.T),
    "first row": (r"the first index selects rows, .*: write x\[:, \.\.\.\]", lambda o: o.x[0]),
    "some rows": ("the first index selects rows", lambda o: o.x[1:]),
    "rows backwards": ("the first index selects rows", lambda o: o.x[::-1]),
    "rows by a mask": (
        r"an index is a condition, .* write np.where\(condition, x, 0\)",
        lambda o: o.x[o.x > 0],
    ),
    "axis before the rows": ("the first index selects rows", lambda o: o.x[None]),
    "x @ x": (r"f32\[4\] @ f32\[4\] would mix rows; .*x\[:, None, :\] @ m", lambda o: o.x @ o.x),
    "einsum over rows": (
        r"sums over the rows \(b\), which mixes them: .*; begin the output with them: ->b",
        lambda o: np.einsum("bk->k", o.x),
    ),
    "einsum over rows implied": (r"'bk,bk' sums over the rows \(b\)", lambda o: np.einsum("bk,bk", o.x, o.x)),
    "einsum of rows moved": (
        r"moves the rows \(b\); begin the output with them: ->b",
        lambda o: np.einsum("bk->kb", o.x),
    ),
    "einsum of rows by two letters": (
        "the rows have the letters b and c, which pairs all rows with all; give them the same first letter",
        lambda o: np.einsum("bk,ck->bc", o.x, o.x),
    ),
    "a branch on any": (
        "np.any over all axes: a step cannot branch on a value; as a value, give axis=-1",
        lambda o: (o.x > 0).any(),
    ),
    "a branch on all": ("np.all over all axes: a step cannot branch on a value", lambda o: np.all(o.x > 0)),
    "math": ("use functions of NumPy, such as np.exp for math.exp", lambda o: math.exp(o.x)),
    "roll of all": ("np.roll over all axes mixes rows", lambda o: np.roll(o.x, 1)),
    "roll by a part": ("np.roll shifts by whole numbers, not 0.5", lambda o: np.roll(o.x, HALF, axis=1)),
    "pad of rows": (r"np.pad would add rows; begin pad_width with \(0, 0\)", lambda o: np.pad(o.x, 1)),
    "pad of edges": ("adds one number: mode='constant'", lambda o: np.pad(o.x, ((0, 0), (1, 1)), "edge")),
    "pad of less": ("whole numbers of features to add", lambda o: np.pad(o.x, ((0, 0), (-1, 0)))),
    "a norm of matrices": ("that of vectors along one axis", lambda o: np.linalg.norm(o.x)),
    "a norm of order 3": ("has ord 1, 2 or np.inf, not 3", lambda o: np.linalg.norm(o.x, 3, axis=1)),
    "einsum of rows as features": (
        "the letter b of the rows is also one of features or of a parameter",
        lambda o: np.einsum("bk,b->bk", o.x, np.ones(3, "f4")),
    ),
    "einsum of two sizes": (
        "the axis k has size 4 in one operand and size 3 in another",
        lambda o: np.einsum("bk,k->bk", o.x, np.ones(3)),
    ),
    "einsum of a diagonal of two sizes": (
        "the axes i of one operand have different sizes",
        lambda o: np.einsum("bii->b", o.x[:, None]),
    ),
    "einsum of too few letters": (
        "'b' has 1 axes, but the operand has 2",
        lambda o: np.einsum("b->b", o.x),
    ),
    "einsum of too few operands": (
        "has subscripts for 2 operands, but 1 were given",
        lambda o: np.einsum("bk,b->b", o.x),
    ),
    "einsum of other letters": (
        "the output 'bj' must consist of letters of the operands",
        lambda o: np.einsum("bk->bj", o.x),
    ),
    "einsum of digits": ("has '1', which is no letter", lambda o: np.einsum("b1->b", o.x)),
    "einsum of dots": (
        r"names every axis: write letters for the \.\.\.",
        lambda o: np.einsum("b...->b", o.x),
    ),
    "einsum of lists": ("takes the subscripts as its first argument", lambda o: np.einsum(o.x, [0, 1], [0])),
    "tensordot of rows": (
        "np.tensordot of two values pairs all rows with all, which mixes them; write np.einsum",
        lambda o: np.tensordot(o.x, o.x, axes=([1], [1])),
    ),
    "tensordot of two sizes": (
        r"sums over axes of sizes \[4\] of the first operand and \[3\] of the second",
        lambda o: np.tensordot(o.x, np.ones((3, 2)), axes=1),
    ),
    "tensordot of more axes": (
        "np.tensordot cannot sum over 3 axes of operands with 2 and 2 axes",
        lambda o: np.tensordot(o.x, np.ones((4, 2)), axes=3),
    ),
    "tensordot of an axis beyond": (
        r"takes some of 2 axes, each once, not \[5\]",
        lambda o: np.tensordot(o.x, np.ones((4, 2)), axes=([5], [0])),
    ),
    "tensordot of uneven axes": (
        "takes the same number of axes of both operands",
        lambda o: np.tensordot(o.x, np.ones((4, 2)), axes=([1], [0, 1])),
    ),
    "outer product": (r"x\.T would move the rows", lambda o: o.x @ o.x.T),
    "np.transpose": ("transpose would move the rows; keep axis 0 first", lambda o: np.transpose(o.x)),
    "np.swapaxes of rows": ("np.swapaxes over axis 0 mixes rows", lambda o: np.swapaxes(o.x, 0, 1)),
    "np.moveaxis of rows": ("np.moveaxis over axis 0 mixes rows", lambda o: np.moveaxis(o.m, 0, 1)),
    "concatenated rows": ("np.concatenate over axis 0 mixes rows", lambda o: np.concatenate([o.x, o.x])),
    "stacked before rows": (
        r"np.stack over axis 0 would move the rows; use axis=1",
        lambda o: np.stack([o.x, o.x]),
    ),
    "split rows": ("np.split over axis 0 mixes rows", lambda o: np.split(o.x, 2)),
    "taken rows": ("np.take over axis 0 mixes rows", lambda o: np.take(o.x, [0], axis=0)),
    "take of all": ("np.take over all axes mixes rows; give axis=-1", lambda o: np.take(o.x, [0])),
    "expand_dims before rows": (
        "np.expand_dims at axis 0 would stand before the rows",
        lambda o: np.expand_dims(o.x, 0),
    ),
    "squeezed rows": ("np.squeeze over axis 0 mixes rows", lambda o: np.squeeze(o.x, axis=0)),
    "reshape over rows": (
        r"reshape keeps the rows first: write x.reshape\(x.shape\[0\], ...\)",
        lambda o: o.x.reshape(4, -1),
    ),
    "flat": ("reshape keeps the rows first", lambda o: o.x.reshape(())),
    "broadcast rows": (
        r"np.broadcast_to keeps the rows first: \(x.shape\[0\], ...\)",
        lambda o: np.broadcast_to(o.x, (2, 3, 4)),
    ),
    "features with rows": (
        r"values with different numbers of feature axes meet \(f32\[4\] and f32\[\]\): .*x\[:, None\]",
        lambda o: o.x + o.s,
    ),
    "parameter against rows": (
        r"a parameter f32\[5, 2, 3\] would be broadcast against the rows of a value with 1 feature axes",
        lambda o: o.x + o.E,
    ),
    "parameter beside rows": (
        r"a parameter f32\[4\] cannot be concatenated with values of 2 feature axes",
        lambda o: np.concatenate([o.m, o.v], axis=1),
    ),
    # shapes
    "W @ x": (
        r"a parameter is multiplied by a step's value from the left, .*; write x @ W, or x @ W.T",
        lambda o: o.W @ o.x,
    ),
    "v @ x": ("a parameter is multiplied", lambda o: np.dot(o.v, o.x)),
    "array @ x": ("a parameter is multiplied", lambda o: np.ones((4, 4), F32) @ o.x),
    "product that does not fit": (
        r"f32\[2, 3\] @ .* f32\[4, 4\] does not fit: the last size of the left",
        lambda o: o.m @ o.W,
    ),
    "sum that does not fit": (
        r"feature shapes do not fit together: f32\[4\] and f32\[3\]",
        lambda o: o.x + o.x[:, :3],
    ),
    "integers in a product": (
        r"`k` has dtype int64 and meets float32 parameters in a product; cast it: .*E\[x\]",
        lambda o: o.k @ o.W,
    ),
    "computed integers in a product": (
        "a value has dtype int64 and meets float32 parameters",
        lambda o: (o.k * 2) @ o.W,
    ),
    "axis beyond": ("np.sum: axis 2 does not exist; the value has 2 axes", lambda o: o.x.sum(axis=2)),
    "axis of a kind": ("np.sum: axis 1.5 does not exist; the value has 2 axes", lambda o: o.x.sum(axis=1.5)),
    "too many indices": ("3 indices for 2 axes", lambda o: o.x[:, 1, 2]),
    "index beyond": ("index 4 is outside 4 features", lambda o: o.x[:, 4]),
    "list beyond": ("a list of features holds integers from -4 to 3", lambda o: o.x[:, [0, 4]]),
    "list of floats": ("a list of features holds integers", lambda o: o.x[:, [0.5]]),
    "index of a kind": ("a step's value cannot be indexed by 'a'", lambda o: o.x[:, "a"]),
    "a bool for an index": ("a step's value cannot be indexed by True", lambda o: o.x[:, True]),
    "features by a value": (
        "features cannot be indexed by a value of the step; use np.where, or stepnet.one_hot",
        lambda o: o.x[:, o.k],
    ),
    "reshape that does not fit": (
        r"f32\[4\] cannot be reshaped to features \(3,\)",
        lambda o: o.x.reshape(o.x.shape[0], 3),
    ),
    "two open sizes": (
        r"f32\[2, 3\] cannot be reshaped to features \(-1, -1\)",
        lambda o: o.m.reshape(o.m.shape[0], -1, -1),
    ),
    "two open sizes, of rows": (
        r"reshape\(-1, -1\) leaves two sizes open, and NumPy takes one: write x.reshape\(x.shape\[0\], -1\)",
        lambda o: o.m.reshape(-1, -1),
    ),
    "another order": ("reshape in a step is in C order", lambda o: np.reshape(o.m, (-1, 6), order="F")),
    "axes of a transpose": (
        r"transpose of 3 axes wants each of them once, not \(0, 1\)",
        lambda o: np.transpose(o.m, (0, 1)),
    ),
    "uneven split": (
        "np.split: 4 features do not divide into 3 equal parts",
        lambda o: np.split(o.x, 3, axis=1),
    ),
    "split in none": (
        "np.split: 4 features do not divide into 0 equal parts",
        lambda o: np.split(o.x, 0, axis=1),
    ),
    "squeeze of more than one": (
        r"np.squeeze of f32\[4\]: an axis to drop is not of size one",
        lambda o: np.squeeze(o.x, axis=1),
    ),
    "broadcast that does not fit": (
        r"f32\[4\] does not broadcast to features \(3,\)",
        lambda o: np.broadcast_to(o.x, (o.x.shape[0], 3)),
    ),
    "take beyond": ("a list of features holds integers from -4 to 3", lambda o: np.take(o.x, [4], axis=1)),
    "take by a value": (
        r"np.take with a step's integers takes rows of a parameter \(axis=0\)",
        lambda o: np.take(o.x, o.k, axis=1),
    ),
    "gather by floats": (
        r"gather takes integer indices, not float32; cast them with .astype\(np.int64\)",
        lambda o: o.E[o.x],
    ),
    "concatenate that does not fit": (
        "all the input array dimensions",
        lambda o: np.concatenate([o.m, o.m[:, :, :1]], axis=1),
    ),
    # what is no operation
    "np.median": (
        r"np.median is not an operation of a step: write np.sort\(x, axis=-1\), and take features",
        lambda o: np.median(o.x, axis=-1),
    ),
    "sort of too many": (
        "np.sort in a step compares each two numbers of an axis, which has at most 256, not 300",
        lambda o: np.sort(np.tile(o.x[:, :1], (1, 300))),
    ),
    "sort of rows": ("np.sort over axis 0 mixes rows", lambda o: np.sort(o.x, axis=0)),
    "sort of all": ("np.argsort over all axes mixes rows; give axis=-1", lambda o: np.argsort(o.x, None)),
    "np.fix": (r"np.fix is not an operation of a step: write np.trunc\(x\)", lambda o: np.fix(o.x)),
    "a count of bits": ("np.bitwise_count is not .*: write it with &, ", lambda o: np.bitwise_count(o.k)),
    "np.linalg.det": (
        "np.linalg.det is not an operation of a step: stepnet has no linear algebra of a step's values",
        lambda o: np.linalg.det(o.x),
    ),
    "np.fft.rfft": (
        "np.fft.rfft is not an operation of a step: .* is a product with a matrix",
        lambda o: np.fft.rfft(o.x),
    ),
    "np.add.reduce": (
        "np.add.reduce is not an operation of a step: write np.sum",
        lambda o: np.add.reduce(o.x, axis=1),
    ),
    "np.exp.outer": (
        "np.subtract.outer is not an operation of a step: stepnet has no such operation",
        lambda o: np.subtract.outer(o.x, o.x),
    ),
    "method": (
        r"array method .sort is not an .*: a value never changes in place; write x = np.sort\(x, axis=-1\)",
        lambda o: o.x.sort(axis=1),
    ),
    "a method of numbers": (
        "array method .item is not an operation of a step: a value has no numbers while it is traced",
        lambda o: o.s.item(),
    ),
    "a method that nobody has": (
        "array method .foo is not an operation of a step: stepnet has no such operation; docs/steps.md lists",
        lambda o: o.x.foo(),
    ),
    "ravel of rows": (
        r"np.ravel over all axes would join the rows: write x.reshape\(x.shape\[0\], -1\)",
        lambda o: o.m.ravel(),
    ),
    "repeat of rows": ("np.repeat over all axes would join the rows", lambda o: o.x.repeat(2)),
    "append to rows": ("np.append over all axes mixes rows; give axis=-1", lambda o: np.append(o.x, o.x)),
    "argmin of all": ("np.argmin over all axes mixes rows; give axis=-1", lambda o: o.x.argmin()),
    "tile of rows": (
        r"np.tile keeps the rows first, and once: write \(1, n\), not \(2, 1\)",
        lambda o: np.tile(o.x, (2, 1)),
    ),
    "tile by a part": ("np.tile takes whole numbers of copies, not 0.5", lambda o: np.tile(o.x, HALF)),
    "diff of less": (
        "np.diff takes differences a number of times from 0, not -1",
        lambda o: np.diff(o.x, n=-1),
    ),
    "select of fewer": (
        "np.select takes a choice for each condition, and 2 conditions meet 1 choices",
        lambda o: np.select([o.x > 0, o.x < 0], [o.x]),
    ),
    "select by numbers": (
        "the conditions of np.select are booleans: write x != 0",
        lambda o: np.select([o.x], [o.x]),
    ),
    "round by a part": (
        "np.round takes a whole number of decimals, not 0.5",
        lambda o: np.round(o.x, HALF),
    ),
    "round of integers": (
        "np.round of integers to less than ones: cast with .astype",
        lambda o: np.round(o.k, -1),
    ),
    "round of booleans": ("np.round of booleans is not .*: cast with .astype", lambda o: np.round(o.x > 0)),
    "Python's round": (r"round\(\) is for numbers: write np.round\(x\)", lambda o: round(o.x)),
    "PyTorch's function": (
        "torch.tanh is PyTorch's: a step of sn.RNN uses NumPy's functions .* stepnet.torch.trace takes",
        lambda o: torch.tanh(o.x),
    ),
    "None": ("None stands where a value or a number is needed", lambda o: o.x * None),
    "a list of values": (
        r"a list of values stands where one value is needed: .* np.stack\(values, axis=-1\)",
        lambda o: np.add(o.x, [o.s, o.s]),
    ),
    "a list of values in a product": (
        r"a list of values stands where one value is needed: .* np.array\(list\)",
        lambda o: o.x @ [[o.v[0]]],
    ),
    "no features": (
        r"`s` is one number in each row, and `W` f32\[4, 4\] multiplies features: .*\[batch, time, f",
        lambda o: o.s @ o.W,
    ),
    "ufunc option": ("np.exp takes no where in a step", lambda o: np.exp(o.x, where=o.x > 0)),
    "function option": (r"np.sum in a step: .*'initial'", lambda o: np.sum(o.x, axis=1, initial=2.0)),
    "clip option": (r"np.clip in a step: .*'out'", lambda o: np.clip(o.x, 0, 1, out=np.zeros(4))),
    "likeness option": (r"np.zeros_like in a step: .*'shape'", lambda o: np.zeros_like(o.x, shape=(3, 4))),
    "a power of integers by a value": (
        r"a power of integers by integers that are values or an array .*: cast one of them",
        lambda o: 2**o.k,
    ),
    "a power by a text": ("the exponent of a power is a number, a value of the step", lambda o: o.x ** "a"),
    "integers to a negative power": (
        r"integers to negative powers are not allowed: write x \*\* -1.0",
        lambda o: o.k**-1,
    ),
    "a whole power of booleans": ("whole powers of booleans .*; cast with .astype", lambda o: (o.x > 0) ** 3),
    "an integer beyond its dtype": (
        "4294967296 does not fit int32; cast the other operand to a larger dtype",
        lambda o: o.k.astype("i4") < 2**32,
    ),
    "a ufunc's dtype": (
        "np.square would compute in dtype int8 here, which steps do not support",
        lambda o: np.square(o.x > 0),
    ),
    "np.dot of two values": ("np.dot of two values mixes their rows", lambda o: np.dot(o.m, o.m)),
    "the largest of none": (
        r"np.max of f32\[0\] over axis \(-1,\): there are no numbers to choose from",
        lambda o: np.max(o.x[:, :0], axis=1),
    ),
    "an axis twice": (r"np.sum: \(1, -1\) names an axis twice", lambda o: np.sum(o.x, axis=(1, -1))),
    "no parts": (
        "np.array_split makes from 1 to 4096 parts",
        lambda o: np.array_split(o.x, 0, axis=1),
    ),
    "clip twice": ("np.clip takes two bounds by place or by the names", lambda o: np.clip(o.x, 0, 1, min=0)),
    "moved to one place": (
        "np.moveaxis wants one place for each axis, each once",
        lambda o: np.moveaxis(o.m, (1, 2), (1, 1)),
    ),
    "expanded twice": ("np.expand_dims to 4 axes wants .*, each once", lambda o: np.expand_dims(o.x, (1, 1))),
    "two ellipses": (r"an index has `\.\.\.` once, not more often", lambda o: o.x[..., ...]),
    "lists around a slice": (
        "on both sides of a slice, and NumPy would move the selected axis to the front; index one axis after",
        lambda o: o.m[:, None][:, [0], :, [0]],
    ),
    "lists that do not pair": (
        r"lists of indices of shapes \(2,\) and \(3,\) do not broadcast",
        lambda o: o.m[:, [0, 1], [0, 1, 2]],
    ),
    "a slice by zero": ("is no slice of 4 features: slice step cannot be zero", lambda o: o.x[:, ::0]),
    "a dtype that is none": (
        "dtype float16 is none of float32, float64, int32, int64, bool",
        lambda o: o.x.astype(np.float16),
    ),
    "a constant that is none": ("a constant of dtype complex128 cannot enter a step", lambda o: o.x * 1j),
    "a constant of text": ("a constant of dtype <U1 cannot enter a step", lambda o: o.x + np.array("a")),
    "subtracted booleans": ("numpy boolean subtract|boolean subtract", lambda o: (o.x > 0) - (o.x > 1)),
    "booleans to float16": (
        "would be of dtype float16, which a net does not support",
        lambda o: np.tanh(o.x > 0),
    ),
    # Python that a trace cannot follow
    "branch": (
        "a step cannot branch on a value: every row may differ; use np.where",
        lambda o: o.x if o.x > 0 else -o.x,
    ),
    "and": ("a step cannot branch on a value", lambda o: (o.x > 0) and (o.x < 1)),
    "a loop over a memory that is a dict": (
        r"the text 'h' stands where a value or a number is needed; .* such as memory\['h'\]",
        lambda o: o.x + next(iter({"h": o.x})),
    ),
    "a memory of two": (r"memory of two arrays give .* memory=\[16, 16\]", lambda o: tuple(o.m)),
    "loop": (r"a step cannot loop over a value; slice its features: x\[:, 0\]", lambda o: list(o.x)),
    "unpacked": ("a step cannot loop over a value", lambda o: [*o.x]),
    "len": (r"len\(\) of a step's value is its rows, .*; use x.shape\[-1\]", lambda o: o.x * len(o.x)),
    "number of rows": (
        "the number of rows is not known in a step; use np.zeros_like",
        lambda o: o.x + np.zeros(o.x.shape),
    ),
    "range of rows": ("the number of rows is not known", lambda o: range(o.x.shape[0])),
    "float": ("a step's value is not a number while it is traced", lambda o: float(o.s)),
    "int": ("a step's value is not a number while it is traced", lambda o: int(o.k)),
    "used as an index": ("a step's value is not a number while it is traced", lambda o: [1, 2][o.k]),
    "np.asarray": ("a step's value is not an array while it is traced", lambda o: np.asarray(o.x)),
    "np.array": (r"place of np.array\(values\) np.stack\(values, axis=-1\)", lambda o: np.array([o.x, o.x])),
    "assignment": (
        "a step's values never change; use np.where or np.concatenate",
        lambda o: o.x.__setitem__(0, 1),
    ),
    "in place": (
        r"a step's values never change in place: write a = a \+ b for a \+= b",
        lambda o: np.add(o.x, 1, out=o.x),
    ),
}


@pytest.mark.parametrize(("message", "mistake"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_in_a_step_is_named_with_its_line(message: str, mistake: Step) -> None:
    inputs = {"x": sn.Spec(4), "m": sn.Spec((2, 3)), "s": sn.Spec(()), "k": sn.Spec((), np.int64)}
    inputs["k"] = sn.Spec(4, np.int64) if "product" in message else inputs["k"]
    with pytest.raises(StepError) as caught:
        sn.RNN(lambda x, h, p: (mistake(SimpleNamespace(**x, **p)), h), PARAMS, memory=1, inputs=inputs)
    said, line = str(caught.value).rsplit("\n", 1)  # the line quotes the table, and so the message looked for
    assert re.search(message, said), said
    first = mistake.__code__.co_firstlineno
    assert any(line.startswith(f"  at {__file__}:{number}: ") for number in (first, first + 1, first + 2))
    assert "lambda o:" in line


def test_the_line_is_the_one_at_fault() -> None:
    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(x + h)
        total = h.mean()
        return total, h

    with pytest.raises(StepError) as caught:
        sn.RNN(step, memory=4, inputs=4)
    expected = f"  at {__file__}:{step.__code__.co_firstlineno + 2}: total = h.mean()"
    assert str(caught.value).splitlines()[-1] == expected


def test_the_line_is_the_users_also_where_stepnet_calls_numpy() -> None:
    with pytest.raises(StepError, match=r"test_errors.py:\d+: sn.RNN\(lambda x, h, p: \(sn.softmax"):
        sn.RNN(lambda x, h, p: (sn.softmax(x, axis=0), h), memory=4, inputs=4)


def test_a_value_kept_from_another_step() -> None:
    kept: list[Any] = []

    def first(x: Any, h: Any, p: Any) -> Any:
        kept.append(x)
        return x, h

    sn.RNN(first, memory=1, inputs=1)
    with pytest.raises(StepError, match="values of two different steps meet; hand the value in as an input"):
        sn.RNN(lambda x, h, p: (x + kept[0], h), memory=1, inputs=1)
    with pytest.raises(StepError, match="the output belongs to another step"):
        sn.RNN(lambda x, h, p: (kept[0], h), memory=1, inputs=1)


# ---- what a step takes and returns ------------------------------------------------------------------


def memory_error(step: Any, memory: Any) -> str:
    with pytest.raises(StepError) as caught:
        sn.RNN(step, memory=memory, inputs=4)
    message, line = str(caught.value).splitlines()
    assert line.startswith(f"  at {__file__}:")
    return message


def test_a_memory_that_changes_is_named() -> None:
    two = {"h": 4, "c": 4}
    shape = memory_error(lambda x, m, p: (x, {"h": m["h"], "c": np.concatenate([m["c"], x], axis=1)}), two)
    assert shape == (
        "the memory `c` enters the step as f32[4] and leaves as f32[8]; "
        "return it with the shape and dtype it came in"
    )
    dtype = memory_error(lambda x, m, p: (x, {"h": m["h"], "c": m["c"].astype(np.float64)}), two)
    assert dtype.startswith("the memory `c` enters the step as f32[4] and leaves as f64[4]")
    assert dtype.endswith("(cast it back with .astype)")
    alone = memory_error(lambda x, h, p: (x, h[:, :2]), 4)
    assert alone.startswith("the memory `h` enters the step as f32[4] and leaves as f32[2]")
    nested = memory_error(lambda x, m, p: (x, ({"a": m[0]["a"][:, :1]}, m[1])), ({"a": 3}, 4))
    assert nested.startswith("the memory `m.0.a` enters the step as f32[3] and leaves as f32[1]")


def test_a_memory_of_another_structure() -> None:
    message = memory_error(lambda x, m, p: (x, (m["h"], m["c"])), {"h": 4, "c": 4})
    assert message == (
        "the memory `m` enters the step as {h: array, c: array} and leaves as (array, array); "
        "return it with the structure it came in"
    )
    assert "leaves as None" in memory_error(lambda x, m, p: (x, None), 4)


INNER = sn.RNN(lambda x, c, p: (x, c + x), memory=4)

OUTER: dict[str, tuple[str, Step]] = {
    "twice as wide": (
        "the memory `h` enters the step as f32[4] and leaves as f32[8]; return it with the shape and dtype",
        lambda o: np.concatenate([o.last, o.h], axis=1),
    ),
    "of another dtype": (
        "the memory `h` enters the step as f32[4] and leaves as f64[4]; return it with the shape and dtype",
        lambda o: o.last.astype(np.float64),
    ),
    "all steps": (
        "the memory `h` leaves the step as an inner sequence: reduce it to one value per row",
        lambda o: o.all,
    ),
    "the input": (
        "the memory `h` leaves the step as an inner sequence: reduce it to one value per row",
        lambda o: o.x,
    ),
    "two": (
        "the memory `h` enters the step as array and leaves as (array, array); return it with the "
        "structure it came in",
        lambda o: (o.last, o.h),
    ),
}


@pytest.mark.parametrize(("message", "after"), OUTER.values(), ids=OUTER.keys())
def test_an_outer_memory_that_changes(message: str, after: Step) -> None:
    def step(x: Any, h: Any, p: Any) -> Any:
        every, last = INNER(x, initial=h)
        return last, after(SimpleNamespace(x=x, h=h, all=every, last=last))

    rnn = sn.RNN(step, memory=4)
    for run in (rnn, rnn.trace_steps):
        with pytest.raises(StepError) as caught:
            run(DEEP)
        said, line = str(caught.value).splitlines()
        assert said.startswith(message)
        assert line.startswith(f"  at {__file__}:")


@pytest.mark.parametrize(
    "found", [lambda x, h, p: h, lambda x, h, p: (h,), lambda x, h, p: [h, h], lambda x, h, p: None]
)
def test_a_step_returns_two(found: Any) -> None:
    with pytest.raises(StepError, match=r"a step returns \(output, memory\), as one tuple of two"):
        sn.RNN(found, memory=4, inputs=4)


def test_an_output_that_is_no_value() -> None:
    with pytest.raises(StepError, match="output `a` is a str, not a value of the step"):
        sn.RNN(lambda x, h, p: ({"a": "text"}, h), memory=4, inputs=4)
    with pytest.raises(StepError, match="the output is a object, not a value of the step"):
        sn.RNN(lambda x, h, p: (object(), h), memory=4, inputs=4)


@pytest.mark.parametrize("inputs", [None, 4])
@pytest.mark.parametrize("read", [lambda statics: statics["mask"], lambda statics: statics, lambda s: s.mask])
def test_statics_that_the_step_needs_and_nobody_gives(read: Callable[[Any], Any], inputs: int | None) -> None:
    with pytest.raises(
        InputError,
        match=r"(?s)the step has a parameter `statics`, and failed without any: .*(None|object).*; give "
        "statics= to the call, .* features to RNN with inputs=, an example of them to quantize, trace and",
    ):
        sn.RNN(lambda x, h, p, statics: (x, h * read(statics)), memory=4, inputs=inputs)(np.ones((1, 2, 4)))
    optional = sn.RNN(lambda x, h, p, statics: (x, h if statics is None else read(statics)), memory=4)
    assert optional(np.ones((1, 2, 4)))[1].tolist() == [[0, 0, 0, 0]]


def test_errors_of_the_users_own_about_none_are_left() -> None:
    def step(x: Any, h: Any, p: Any, statics: Any = None) -> Any:
        raise ValueError("the mode is None")

    with pytest.raises(ValueError, match=r"^the mode is None\n  at ") as caught:
        sn.RNN(step, memory=4, inputs=4)
    assert type(caught.value) is ValueError


def test_errors_of_one_line_have_the_line_of_the_step_below() -> None:
    def step(x: Any, h: Any, p: Any) -> Any:
        return sn.load("a\nb.onnx")

    with pytest.raises(FileError) as caught:
        sn.RNN(step, memory=4, inputs=4)
    message, line = str(caught.value).split("\n")
    assert message == r"a\nb.onnx: there is no such file"
    assert re.fullmatch(r"  at .*test_errors.py:\d+: return sn.load\(.*", line)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(FileError) as again, named("layer 0"):
        raise caught.value
    assert str(again.value) == f"layer 0: {caught.value}"


def test_statics_that_the_step_does_not_take() -> None:
    with pytest.raises(InputError, match="statics were given, but the step has no parameter named `statics`"):
        sn.RNN(lambda x, h, p: (x, h), memory=4, inputs=4, statics=2)


def test_names_that_there_are_not() -> None:
    given = {"W": np.ones((4, 4), F32)}

    def said(step: Any, **options: Any) -> str:
        with pytest.raises(StepnetError) as caught:
            sn.RNN(step, **{"params": given, "memory": 4, "inputs": 4, **options})
        return str(caught.value)

    assert "there is no parameter 'w' in `p`; there are W" in said(lambda x, h, p: (x @ p["w"], h))
    assert "a parameter is read by its name in brackets, p['W'], and not as p.W" in said(
        lambda x, h, p: (x @ p.W, h)
    )
    assert "there is no memory 'z' in `m`; there are h, c" in said(
        lambda x, m, p: (m["z"], m), memory={"h": 4, "c": 4}
    )
    assert "there is no input 'z' in `x`; there are a, b" in said(
        lambda x, h, p: (x["z"], h), inputs={"a": 4, "b": 4}
    )
    message = said(lambda x, h, p: (x @ p["W"], h), params=None)
    assert message.startswith("the step failed, and its recurrence has no parameters: 'NoneType' object")
    assert "give them, as in RNN(step, params, memory=64)" in message
    assert "test_errors.py" in message


def test_structures_that_a_step_returns_as_they_came() -> None:
    """A dict of memories is the user's dict, whatever refuses its missing names."""
    rnn = sn.RNN(lambda x, m, p: (m["h"] + x["a"], m), memory={"h": 4, "c": 4}, inputs={"a": 4})
    assert rnn({"a": np.ones((1, 2, 4), F32)})[1]["c"].shape == (1, 4)
    merged = sn.RNN(lambda x, m, p: (x, m | {"h": x}), memory={"h": 4, "c": 4}, inputs=4)
    assert merged(np.ones((1, 2, 4), F32))[1]["h"].tolist() == [[1, 1, 1, 1]]


def test_an_error_of_the_step_itself_passes_through() -> None:
    tables = dict[str, Any]()
    with pytest.raises(KeyError, match="missing"):
        sn.RNN(lambda x, h, p: (tables["missing"], h), memory=4, inputs=4)


# ---- making an RNN ----------------------------------------------------------------------------------


def test_what_a_recurrence_is_not_made_of() -> None:
    with pytest.raises(InputError, match=r"step is a function step\(x, memory, params\), not a int"):
        sn.RNN(3, memory=4)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="parameter W has dtype object"):
        sn.RNN(identity, {"W": np.array([None])}, memory=4)
    with pytest.raises(InputError, match="parameter p has dtype complex64; use one of float32"):
        sn.RNN(identity, np.ones(2, np.complex64), memory=4)
    with pytest.raises(InputError, match=r"a feature shape is a whole number, .*, not 'h'"):
        sn.RNN(identity, memory="h")
    for nothing in (None, {}, {"h": None}):
        with pytest.raises(
            InputError, match="a recurrence carries a memory from step to step; give its features"
        ):
            sn.RNN(identity, memory=nothing)
    with pytest.raises(InputError, match="a feature shape is made of whole numbers, not -1"):
        sn.RNN(identity, memory=-1)
    with pytest.raises(InputError, match="a feature shape is made of whole numbers, not -3"):
        sn.RNN(identity, memory=4, inputs=-3)
    with pytest.raises(InputError, match="a spec has dtype float8_e5m2; use one of float32, float64"):
        sn.Spec(4, ml_dtypes.float8_e5m2)


def identity(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    return x, h


def test_looking_before_the_inputs_are_known() -> None:
    rnn = sn.RNN(identity, memory=4)
    for look in (lambda: rnn.net, lambda: rnn.plan, rnn.explain):
        with pytest.raises(
            InputError, match="the inputs are not known yet: call the RNN once, or make it with inputs="
        ):
            look()


# ---- calling it ------------------------------------------------------------------

X = np.ones((2, 3, 4), F32)
RAGGED = sn.Ragged.from_list([np.ones((3, 4), F32), np.ones((1, 4), F32)])
OTHER = sn.Ragged.from_list([np.ones((2, 4), F32), np.ones((1, 4), F32)])
DEEP = sn.Ragged(np.ones((3, 4), F32), (np.array([0, 1, 2]), np.array([0, 2, 3])))

CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "lengths beyond the array": (r"lengths\[1\] is 4; the array has 3 steps", (X,), {"lengths": [3, 4]}),
    "negative lengths": (r"lengths\[0\] is -1; the array has 3 steps", (X,), {"lengths": [-1, 3]}),
    "lengths of another batch": (
        r"lengths are 2 whole numbers, one per sequence, not int64\[3\]",
        (X,),
        {"lengths": [1, 2, 3]},
    ),
    "lengths that are no integers": (
        r"lengths are 2 whole numbers, .*, not float64\[2\]",
        (X,),
        {"lengths": [1.0, 2.0]},
    ),
    "lengths with a Ragged": (
        "a Ragged knows its lengths; lengths= goes with an array",
        (RAGGED,),
        {"lengths": [1, 2]},
    ),
    "the last of outputs that are sequences": (
        "last_only is for outputs that there is one of per step; this one is a sequence at each",
        (DEEP,),
        {"last_only": True},
    ),
    "an object array": (
        r"input x is an array of Python objects; sequences of .* lengths go in a Ragged: sn.Ragged.from_list",
        (np.array([np.ones((2, 4)), np.ones((1, 4))], dtype=object),),
        {},
    ),
    "complex inputs": ("input x has dtype complex64; use one of float32", (X * 1j,), {}),
    "inputs of a byte": (
        r"input x has dtype float8_e5m2; use one of float32, .*: cast it, \.astype\(np.float32\)",
        (X.astype(ml_dtypes.float8_e5m2),),
        {},
    ),
    "no time": (
        r"sequences are a Ragged or an array \[batch, time, features\]; this one is \(3,\)",
        (np.ones(3),),
        {},
    ),
    "nothing at all": ("there are no input sequences", (None,), {}),
    "initial of another batch": (
        r"the initial memory `h` is \[3, 4\]; it should be \[2, 4\]",
        (X, np.ones((3, 4), F32)),
        {},
    ),
    "initial of another structure": (
        r"initial is \{h: array\}, the memory `h` is array",
        (X, {"h": np.ones((2, 4), F32)}),
        {},
    ),
    "initial of another kind": (
        "the initial memory `h` has dtype complex128",
        (X, np.ones((2, 4), complex)),
        {},
    ),
    "statics without a use": (
        "statics were given, but the step has no parameter named `statics`",
        (X,),
        {"statics": np.ones((2, 1), F32)},
    ),
    "no such engine": (
        "no engine is called 'tpu'; the engines are llvm, onednn, interpret, cuda",
        (X,),
        {"engine": "tpu"},
    ),
    "no such engine among several": ("no engine is called 'tpu'", (X,), {"engine": ("tpu", "llvm")}),
}


@pytest.mark.parametrize(("message", "given", "options"), CALLS.values(), ids=CALLS.keys())
def test_a_call_that_does_not_fit(message: str, given: tuple[Any, ...], options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=message):
        sn.RNN(identity, memory=4)(*given, **{"engine": "interpret", **options})


def test_inputs_that_do_not_fit_together() -> None:
    rnn = sn.RNN(lambda x, h, p: (x["a"] + x["b"], h), memory=1)
    with pytest.raises(InputError, match="inputs `a` and `b` have sequences of different lengths"):
        rnn({"a": RAGGED, "b": OTHER}, engine="interpret")
    with pytest.raises(InputError, match=r"inputs `a` and `b` have different batch and time: \(2, 3\) and"):
        rnn({"a": X, "b": X[:, :2]}, engine="interpret")
    with pytest.raises(
        InputError,
        match="input b is a Ragged among arrays, unlike input a; give all inputs as Raggeds or all",
    ):
        rnn({"a": X, "b": RAGGED}, engine="interpret")


def test_features_that_do_not_fit_name_the_line_and_both_shapes() -> None:
    rnn = sn.RNN(lambda x, h, p: (None, np.tanh(x @ p["W"] + h)), {"W": PARAMS["W"]}, memory=4)
    with pytest.raises(
        StepError, match=r"(?s)`x` f32\[5\] @ `W` f32\[4, 4\] does not fit.*at .*test_errors.py"
    ):
        rnn(np.ones((2, 3, 5), F32), engine="interpret")


def test_integers_where_floats_are_meant() -> None:
    rnn = sn.RNN(lambda x, h, p: (None, np.tanh(x @ p["W"] + h)), {"W": PARAMS["W"]}, memory=4)
    with pytest.raises(
        StepError, match=r"`x` has dtype int64 and meets float32 parameters in a product; cast it"
    ):
        rnn(np.ones((2, 3, 4), np.int64), engine="interpret")


def test_statics_that_do_not_fit() -> None:
    rnn = sn.RNN(lambda x, h, p, statics: (x + statics["a"], h), memory=1)
    with pytest.raises(InputError, match=r"static a is \[3, 4\]; its first axis should be the 2 sequences"):
        rnn(X, statics={"a": np.ones((3, 4), F32)}, engine="interpret")
    with pytest.raises(InputError, match="static a has dtype complex64"):
        rnn(X, statics={"a": np.ones((2, 4), np.complex64)}, engine="interpret")


# ---- engines ------------------------------------------------------------------


class Unwilling:
    """An engine that refuses everything."""

    name, pipeline, costs = "llvm", CPU.pipeline, CPU.costs

    def refuse(self, schedule: Any) -> str:
        return "it is tired"

    def compile(self, schedule: Any) -> Any:
        raise AssertionError("a refused schedule is not compiled")


def test_every_reason_is_told_and_the_interpreter_is_never_taken_unasked(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    schedule = sn.RNN(identity, memory=4, inputs=4).schedule
    monkeypatch.setitem(targets.ENGINES, "llvm", Unwilling)  # type: ignore[arg-type]
    targets.engine.cache_clear()
    request.addfinalizer(targets.engine.cache_clear)
    with pytest.raises(
        RefusedError, match=r"no engine runs this net; .*'interpret'\) would, slowly\n  llvm: it is tired"
    ):
        choose(schedule)
    chosen, reasons = choose(schedule, ("llvm", "interpret"))
    assert chosen.name == "interpret"
    assert reasons == {"llvm": "it is tired"}


# ---- nets ------------------------------------------------------------------

ROW = Type(ROWS, (4,), "float32")
TABLE = Type(CONST, (4, 4), "float32")


def a(type_: Type) -> Node:
    return Node("input", (), (type_,), (("type", type_),), "a")


NETS: dict[str, tuple[str, Callable[[], Any]]] = {
    "no such operation": (
        "%0: no operation is called 'dance'",
        lambda: Net((Node("dance", (), (ROW,)),), (), (0,)),
    ),
    "reads what comes later": (
        "%0 = tanh reads a node that does not come before it",
        lambda: Net((Node("tanh", (1,), (ROW,)), a(ROW)), (1,), (0,)),
    ),
    "another type than it gives": (
        r"%1 = tanh does not have the result types rows f32\[3\]",
        lambda: Net((a(ROW), Node("tanh", (0,), (Type(ROWS, (3,), "float32"),))), (0,), (1,)),
    ),
    "inputs that are none": (
        "the inputs of a net must be exactly its `input` nodes",
        lambda: Net((a(ROW),), (), (0,)),
    ),
    "a result that is none": (
        "a result of the net is not one of its nodes",
        lambda: Net((a(ROW),), (0,), (1,)),
    ),
    "a dtype": ("dtype uint8 is not supported: use one of float32", lambda: Type(ROWS, (), "uint8")),
    "a size": (r"a shape has no negative size: \(-1,\)", lambda: Type(ROWS, (-1,), "float32")),
    "extents": (
        "values along different axes meet: rows and rows/steps",
        lambda: build("add", ROW, ROW.at(STEPS)),
    ),
    "a view of two extents": (
        "values along different axes meet: rows and rows/steps",
        lambda: build("concatenate", ROW, ROW.at(STEPS), axis=-1),
    ),
    "a view of a value and a parameter": (
        "the operands of an operation within elements must have the same extent",
        lambda: build("concatenate", ROW, ROW.at(CONST), axis=-1),
    ),
    "products of rows": ("the right side of a matmul must be a parameter", lambda: build("matmul", ROW, ROW)),
    "gather of rows": (
        "gather takes rows of a parameter with at least one axis",
        lambda: build("gather", ROW, Type(ROWS, (), "int64")),
    ),
    "expand outward": (
        r"expand goes to a deeper extent, which rows is not for rows f32\[4\]",
        lambda: build("expand", ROW, extent=ROWS),
    ),
    "reduce of one": (
        "reduce takes a value with one entry per row or per step, not a constant",
        lambda: build("reduce", TABLE, how="sum"),
    ),
    "reduce by what": (
        "a reduction is one of sum, mean, max, first, last, not least",
        lambda: build("reduce", ROW, how="least"),
    ),
    "reduce to another dtype": (
        "the mean of int32 would have another dtype; cast the operand first",
        lambda: build("reduce", Type(STEPS, (3,), "int32"), how="mean"),
    ),
    "contract": (
        r"contract takes two values of the same extent and leading feature axes, not rows f32\[4\] and const",
        lambda: build("contract", ROW, TABLE),
    ),
    "contract of each row": (
        r"contract sums over all rows or, with .* of each row, and cannot make rows of rows f32\[4\]",
        lambda: build("contract", ROW, ROW, extent=ROWS),
    ),
    "recur over nothing": ("a recurrence must run over at least one sequence", lambda: recur(ROW, 0, 1)),
    "recur of another shape": (
        r"operand 0 of the recurrence is rows/steps f32\[3\], but its body expects rows f32\[4\]",
        lambda: recur(Type(STEPS, (3,), "float32"), 1, 0),
    ),
    "recur with a changing memory": (
        r"a memory enters the body as f32\[4\] and leaves as bool\[4\]",
        lambda: recur(ROW.at(STEPS), 1, 1),
    ),
    "several results": ("recur has 2 results; read one of them with `result`", lambda: build_two().type),
    "meaning across extents": (
        "an operation that crosses extents has no NumPy meaning of its own",
        lambda: build_two().row.meaning(),
    ),
}


def build(operation: str, *types: Type, **attributes: Any) -> Net:
    builder = Builder()
    operands = [builder.input(type_, f"a{place}") for place, type_ in enumerate(types)]
    return builder.net([builder.add(operation, *operands, **attributes)])


def recur(sequence: Type, sequences: int, memories: int) -> Net:
    body = Builder()
    inputs = [body.input(ROW, "x"), body.input(ROW, "h")]
    builder = Builder()
    operands = [builder.input(sequence, "x"), builder.input(ROW, "h")]
    net = body.net([body.add("less", *inputs)])
    attributes = {"body": net, "sequences": sequences, "memories": memories, "reverse": False}
    return builder.net([builder.add("recur", *operands, **attributes)])


def build_two() -> Node:
    rnn = sn.RNN(identity, memory=4, inputs=4)
    return next(node for node in rnn.net.nodes if node.operation == "recur")


@pytest.mark.parametrize(("message", "make"), NETS.values(), ids=NETS.keys())
def test_an_illegal_net_is_refused(message: str, make: Callable[[], Any]) -> None:
    with pytest.raises(NetError, match=message):
        make()


def test_every_error_is_a_stepnet_error() -> None:
    for kind in (InputError, StepError, NetError, RefusedError):
        assert issubclass(kind, StepnetError)
