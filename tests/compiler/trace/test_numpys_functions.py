"""Every function of NumPy's that a step may use, indexing and products give what NumPy gives, in value and in
dtype: for all dtypes, features of size 0 and 1, and arguments that NumPy raises for.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.lib import NumpyVersion
from numpys_values import EDGES, Array, Case, Function, Values, check, check_refused
from turns import in_turns

from stepnet.compiler.trace import FUNCTIONS

REFUSED = {
    "sum all*": "all axes are the rows too, and every row is a sequence of its own",
    "cumsum all*": "all axes are the rows too, and every row is a sequence of its own",
    "method sum dtype*": "a dtype is said by astype",
    "cumsum dtype*": "a dtype is said by astype",
    "norm of rows*": "every row is a sequence of its own",
    "norm of all*": "all axes are the rows too, and every row is a sequence of its own",
    "norm 3*": "ord is 1, 2 or infinity",
    "sort all*": "all axes are the rows too, and every row is a sequence of its own",
    "sort of rows*": "every row is a sequence of its own",
    "prod all*": "all axes are the rows too, and every row is a sequence of its own",
    "all rows*": "every row is a sequence of its own",
    "diff of rows*": "every row is a sequence of its own",
    "matrix_transpose of rows*": "every row is a sequence of its own",
    "hstack of rows*": "every row is a sequence of its own",
    "append all*": "all axes are the rows too, and every row is a sequence of its own",
    "repeat of rows*": "every row is a sequence of its own",
    "repeat all*": "all axes are the rows too, and every row is a sequence of its own",
    "tile rows*": "every row is a sequence of its own",
    "tile ahead*": "the rows stay first",
    "ravel of rows*": "all axes are the rows too, and every row is a sequence of its own",
    "round tens of these: int32": "it is no operation of floats: astype says so",
    "round tens of these: int64": "it is no operation of floats: astype says so",
    "tile half*": "a number of copies is a whole number",
    "flip of rows*": "every row is a sequence of its own",
    "roll of rows*": "every row is a sequence of its own",
    "roll all*": "all axes are the rows too, and every row is a sequence of its own",
    "roll half*": "a shift is a whole number",
    "pad rows*": "it adds rows",
    "pad edge*": "it repeats features: concatenate them",
    "dot of rows*": "it pairs all rows with all",
    "dot of a number*": "it is no product of matrices: * is",
    "apart*": "NumPy moves what it picks to the front, where the rows are",
    "take a fraction*": "a place is a whole number",
    "where large: int32": "NumPy wraps it round",
    "einsum all rows*": "every row is a sequence of its own",
    "einsum pairs rows*": "every row is a sequence of its own",
    "einsum of rows moved*": "the rows stay first",
    "einsum of the dots*": "every axis has a letter",
    "einsum of lists*": "every axis has a letter",
    "tensordot of rows*": "it pairs all rows with all",
    "tensordot over rows*": "every row is a sequence of its own",
    "tensordot before rows*": "the rows stay first",
    "ints and floats*": "token ids in a product are a mistake more often than not: astype says it is none",
}
"""Functions of NumPy that stepnet refuses, by the names of cases, with the reasons."""

DTYPES = tuple(EDGES)
FRACTION: Any = 1.0  # where a whole number belongs


def whole(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    """Whole numbers: their sums and products are exact, so their bits do not depend on the order."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


def values(dtype: str) -> tuple[Values, Values]:
    """Rows of one dtype, ids k, j and none, and conditions c; parameters of the dtype."""
    shapes = {"a": (4,), "b": (4,), "m": (2, 4), "n": (4, 2), "t": (2, 3, 4), "s": (), "one": (1,)}
    shapes |= {"u": (0,), "w": (2, 0), "g": (0, 4)}
    rows = {name: whole(dtype, (3, *shape), seed) for seed, (name, shape) in enumerate(shapes.items())}
    random = np.random.default_rng(0)
    rows |= {"k": random.integers(-5, 5, 3), "j": random.integers(0, 5, (3, 2)).astype("i4")}
    rows |= {"none": np.zeros((3, 0), "i8"), "c": random.integers(0, 2, (3, 4)).astype(bool)}
    shapes = {"v": (4,), "W": (4, 3), "E": (5, 3), "z": (0, 3), "q": (2, 3, 4), "d": (), "e": (12,)}
    return rows, {name: whole(dtype, shape, 50 + seed) for seed, (name, shape) in enumerate(shapes.items())}


def edges(x: Any) -> Any:
    """The numbers 0, 1 and others as NaN, infinity and minus infinity, for floats."""
    if x.dtype.kind != "f":
        return x
    none, high, low = (x.dtype.type(number) for number in (np.nan, np.inf, -np.inf))
    return np.where(x > 2, high, np.where(x < -2, low, np.where(x == 0, none, x)))


REDUCTIONS: dict[str, Function] = {
    "sum": lambda o: np.sum(o.m, axis=-1),
    "sum first": lambda o: np.sum(o.m, axis=1),
    "sum two": lambda o: np.sum(o.t, axis=(1, -1)),
    "sum none": lambda o: np.sum(o.m, axis=()),
    "sum all": lambda o: np.sum(o.m),
    "sum param": lambda o: o.a + np.sum(o.v),
    "sum of no numbers": lambda o: np.sum(o.w, axis=-1),
    "sum no result": lambda o: np.sum(o.w, axis=1),
    "sum of no numbers keepdims": lambda o: np.sum(o.u, axis=1, keepdims=True),
    "sum twice": lambda o: np.sum(o.m, axis=(1, -2)),
    "sum list": lambda o: np.sum(o.m, axis=[1, 2]),
    "sum out of range": lambda o: np.sum(o.m, axis=3),
    "sum True": lambda o: np.sum(o.m, axis=True),
    "sum 1.0": lambda o: np.sum(o.m, axis=FRACTION),
    "method sum": lambda o: o.t.sum(axis=2, keepdims=True),
    "method sum dtype": lambda o: o.t.sum(axis=2, dtype=np.float64),
    "max": lambda o: np.max(o.m, axis=-1),
    "max first": lambda o: np.max(o.m, axis=1),
    "max two": lambda o: np.max(o.t, axis=(1, 3), keepdims=True),
    "max of no numbers": lambda o: np.max(o.w, axis=2),
    "max no result": lambda o: np.max(o.w, axis=1),
    "max of one": lambda o: np.max(o.one, axis=1),
    "max of a parameter": lambda o: o.a + np.max(o.v) + np.max(o.q, axis=(0, 1)),
    "max of an empty parameter": lambda o: o.a[:, :3] + np.max(o.z, axis=0),
    "max twice": lambda o: np.max(o.m, axis=(1, 1)),
    "amax": lambda o: np.amax(o.a, axis=1),
    "min": lambda o: np.min(o.m, axis=-1),
    "min first": lambda o: np.min(o.t, axis=1),
    "min of no numbers": lambda o: np.min(o.u, axis=-1),
    "amin": lambda o: np.amin(o.a, axis=1),
    "method min": lambda o: o.a.min(axis=1, keepdims=True),
    "argmax": lambda o: np.argmax(o.m, axis=-1),
    "argmax first": lambda o: np.argmax(o.m, axis=1, keepdims=True),
    "argmax of no numbers": lambda o: np.argmax(o.w, axis=-1),
    "argmax no result": lambda o: np.argmax(o.w, axis=1),
    "argmax of a parameter": lambda o: o.k + np.argmax(o.v, axis=0),
    "argmax out of range": lambda o: np.argmax(o.a, axis=2),
    "method argmax": lambda o: o.a.argmax(axis=1, keepdims=True),
    "argmin": lambda o: np.argmin(o.m, axis=-1),
    "argmin first": lambda o: np.argmin(o.m, axis=1, keepdims=True),
    "argmin no result": lambda o: np.argmin(o.w, axis=1),
    "method argmin": lambda o: o.a.argmin(axis=1),
    "sort": lambda o: np.sort(edges(o.m)),
    "sort first": lambda o: np.sort(edges(o.t), axis=1),
    "sort all": lambda o: np.sort(o.m, axis=None),
    "sort of rows": lambda o: np.sort(o.m, axis=0),
    "sort out of range": lambda o: np.sort(o.a, axis=2),
    "sort of no numbers": lambda o: np.sort(o.w, axis=-1),
    "sort no result": lambda o: np.sort(o.w, axis=1),
    "sort of one": lambda o: np.sort(o.one, kind="stable"),
    "sort of a parameter": lambda o: o.a[:, :3] + np.sort(o.W, axis=0)[1],
    "sort of conditions": lambda o: np.sort(o.c, axis=-1),
    "argsort": lambda o: np.argsort(edges(o.m), kind="stable"),
    "argsort first": lambda o: np.argsort(o.t, axis=1, stable=True),
    "argsort no result": lambda o: np.argsort(o.w, axis=1),
    "argsort of a parameter": lambda o: o.k[:, None] + np.argsort(o.v, kind="stable"),
    "method argsort": lambda o: o.a.argsort(axis=1, kind="stable"),
    "prod": lambda o: np.prod(o.m, axis=-1),
    "prod two": lambda o: np.prod(o.t % 3 + 1, axis=(1, -1)),
    "prod none": lambda o: np.prod(o.m, axis=()),
    "prod all": lambda o: np.prod(o.m),
    "prod of no numbers": lambda o: np.prod(o.w, axis=-1),
    "prod no result": lambda o: np.prod(o.w, axis=1, keepdims=True),
    "prod of a parameter": lambda o: o.a + np.prod(o.W, axis=0)[0],
    "method prod": lambda o: o.a.prod(axis=1, keepdims=True),
    "all": lambda o: np.all(o.m, axis=-1),
    "all two": lambda o: np.all(o.t > 0, axis=(1, 2), keepdims=True),
    "all rows": lambda o: np.all(o.a > 0, axis=0),
    "all of no numbers": lambda o: np.all(o.u, axis=1),
    "method all": lambda o: (o.a > 0).all(axis=1),
    "any": lambda o: np.any(o.m, axis=-1),
    "any of no numbers": lambda o: np.any(o.w > 0, axis=2),
    "any of a parameter": lambda o: o.a > np.any(o.v > 0),
    "method any": lambda o: (o.a > 3).any(axis=1, keepdims=True),
    "count_nonzero": lambda o: np.count_nonzero(o.m, axis=-1),
    "count_nonzero two": lambda o: np.count_nonzero(o.t > 0, axis=(1, 2), keepdims=True),
    "diff": lambda o: np.diff(o.m, axis=-1),
    "diff first": lambda o: np.diff(o.m, axis=1),
    "diff twice": lambda o: np.diff(o.a, n=2),
    "diff never": lambda o: np.diff(o.a, n=0),
    "diff more": lambda o: np.diff(o.a, n=7),
    "diff less": lambda o: np.diff(o.a, n=-1),
    "diff of rows": lambda o: np.diff(o.a, axis=0),
    "diff of no numbers": lambda o: np.diff(o.u),
    "diff of a parameter": lambda o: o.a[:, :3] + np.diff(o.v),
    "diff of bools": lambda o: np.diff(o.c),
    "cumsum": lambda o: np.cumsum(o.m, axis=-1),
    "cumsum first": lambda o: np.cumsum(o.t, axis=1),
    "cumsum middle": lambda o: np.cumsum(o.t, axis=2),
    "cumsum of a view": lambda o: np.cumsum(o.t.swapaxes(1, 3)[:, ::-1], axis=-2) * 2,
    "cumsum wide": lambda o: np.cumsum(np.stack([o.a, o.b] * 9, axis=-1), axis=1),
    "cumsum of no numbers": lambda o: np.cumsum(o.w, axis=-1),
    "cumsum no lines": lambda o: np.cumsum(o.w, axis=1),
    "cumsum of one": lambda o: np.cumsum(o.one, axis=1),
    "cumsum of a parameter": lambda o: o.a + np.cumsum(o.W, axis=0)[:, 0] + np.cumsum(o.q)[3:7],
    "cumsum out of range": lambda o: np.cumsum(o.m, axis=3),
    "cumsum two": lambda o: np.cumsum(o.t, axis=(1, 2)),  # pyright: ignore[reportArgumentType, reportCallIssue]
    "cumsum True": lambda o: np.cumsum(o.m, axis=True),
    "cumsum all": lambda o: np.cumsum(o.m),
    "cumsum dtype": lambda o: np.cumsum(o.m, axis=1, dtype=np.float64),
    "method cumsum": lambda o: o.t.cumsum(axis=-1),
    "cumprod": lambda o: np.cumprod(o.m, axis=-1),
    "cumprod first": lambda o: np.cumprod(o.m, axis=1),
    "cumprod of no numbers": lambda o: np.cumprod(o.u, axis=-1),
    "cumprod of a parameter": lambda o: o.a + np.cumprod(o.v),
    "method cumprod": lambda o: o.t.cumprod(axis=2),
    "mean": lambda o: np.mean(o.m, axis=-1),
    "mean first": lambda o: np.mean(o.m, axis=1),
    "mean of no numbers": lambda o: np.mean(o.w, axis=-1),
    "mean none": lambda o: np.mean(o.m, axis=()),
    "var": lambda o: np.var(o.m, axis=-1),
    "var ddof": lambda o: np.var(o.m, axis=1, ddof=1),
    "var ddof the count": lambda o: np.var(o.m, axis=1, ddof=2),
    "var ddof more": lambda o: np.var(o.m, axis=1, ddof=3),
    "var ddof a fraction": lambda o: np.var(o.m, axis=1, ddof=1.5),
    "var of one": lambda o: np.var(o.one, axis=1, ddof=1),
    "var of no numbers": lambda o: np.var(o.w, axis=-1),
    "std": lambda o: np.std(o.m, axis=-1),
    "std ddof the count": lambda o: np.std(o.m, axis=-1, ddof=4, keepdims=True),
    "method var": lambda o: o.m.var(axis=1, ddof=1),
    "method std": lambda o: o.m.std(axis=1, ddof=2),
    "norm": lambda o: np.linalg.norm(o.m.astype("f8"), axis=-1),
    "norm 1": lambda o: np.linalg.norm(o.a.astype("f4"), 1, axis=1, keepdims=True),
    "norm inf": lambda o: np.linalg.norm(o.t.astype("f8"), np.inf, axis=2),
    "norm of no numbers": lambda o: np.linalg.norm(o.w.astype("f8"), axis=-1),
    "norm of integers": lambda o: np.linalg.norm(o.k[:, None], axis=1),
    "norm of rows": lambda o: np.linalg.norm(o.a, axis=0),
    "norm of all": lambda o: np.linalg.norm(o.a),
    "norm 3": lambda o: np.linalg.norm(o.a, 3, axis=1),
    "method mean": lambda o: o.m.mean(axis=1, keepdims=True),
}

CHOICES: dict[str, Function] = {
    "where": lambda o: np.where(o.c, o.a, o.b),
    "where of numbers": lambda o: np.where(o.a, o.a, o.b),
    "where weak": lambda o: np.where(o.c, o.a, 2),
    "where weak float": lambda o: np.where(o.c, 0.5, o.a),
    "where two weak": lambda o: np.where(o.c, 1, 2.5),
    "where float64": lambda o: np.where(o.c, o.a, np.float64(0.1)),
    "where int64": lambda o: np.where(o.c, o.a, np.int64(3)),
    "where True": lambda o: np.where(o.c, o.a, True),
    "where list": lambda o: np.where(o.c, o.a, [1, 2, 3, 4]),
    "where large": lambda o: np.where(o.c, o.a, 2**40),
    "where too large": lambda o: np.where(o.c, o.a, 2**70),
    "where by a list": lambda o: np.where([True, False, True, True], o.a, o.b),
    "where param": lambda o: np.where(o.c, o.v, o.a),
    "where misfit": lambda o: np.where(o.c, o.a, o.m[:, 0, :3]),
    "clip": lambda o: np.clip(o.a, -2, 3),
    "clip below": lambda o: np.clip(o.a, 1, None),
    "clip above": lambda o: np.clip(o.a, None, 1),
    "clip crossed": lambda o: np.clip(o.a, 3, -3),
    "clip weak float": lambda o: np.clip(o.a, 0.5, 2.5),
    "clip float64": lambda o: np.clip(o.a, np.float64(-0.1), np.float64(0.1)),
    "clip half float64": lambda o: np.clip(o.a, 0, np.float64(0.1)),
    "clip large": lambda o: np.clip(o.a, 0, 2**40),
    "clip far": lambda o: np.clip(o.a, -(2**70), 2**70),
    "clip nan": lambda o: np.clip(o.a, np.nan, 1.0),
    "clip bools": lambda o: np.clip(o.a, False, True),
    "clip param": lambda o: np.clip(o.a, -abs(o.v.astype("i4")), 3),
    "clip values": lambda o: np.clip(o.a, o.b, o.v),
    "clip by keyword": lambda o: np.clip(o.a, min=-1, max=1),
    "clip by both": lambda o: np.clip(o.a, 0, 1, min=0),
    "clip nothing": lambda o: np.clip(o.a, None, None),
    "method clip": lambda o: o.a.clip(-1, max=1),
    "zeros_like": lambda o: np.zeros_like(o.m),
    "zeros_like dtype": lambda o: np.zeros_like(o.m, dtype=np.float32),
    "ones_like": lambda o: np.ones_like(o.m),
    "ones_like empty": lambda o: np.ones_like(o.w),
    "full_like": lambda o: np.full_like(o.m, 3),
    "full_like fraction": lambda o: np.full_like(o.m, -1.5),
    "full_like nan": lambda o: np.full_like(o.m, np.nan),
    "full_like inf": lambda o: np.full_like(o.m, -np.inf),
    "full_like large": lambda o: np.full_like(o.m, 2**40),
    "full_like float64 large": lambda o: np.full_like(o.m, 1e300),
    "full_like dtype": lambda o: np.full_like(o.m, 2.5, dtype="i4"),
    "full_like list": lambda o: np.full_like(o.a, [1, 2, 3, 4]),
    "full_like misfit": lambda o: np.full_like(o.a, [1, 2, 3]),
    "select": lambda o: np.select([o.a > 2, o.a < 0], [o.a, o.b], 1),
    "select default": lambda o: np.select([o.c], [o.a]),
    "select floats": lambda o: np.select([o.c, o.a > 0], [o.a, 0.5], o.v),
    "select numbers": lambda o: np.select([o.a], [o.b]),
    "select fewer": lambda o: np.select([o.c, o.c], [o.b]),
    "nan_to_num": lambda o: np.nan_to_num(o.a),
    "nan_to_num of these": lambda o: np.nan_to_num(edges(o.a), nan=1.0, posinf=2.0, neginf=-2.0),
    "nan_to_num of infinities": lambda o: np.nan_to_num(edges(o.a)),
    "round": lambda o: np.round(o.a),
    "round places": lambda o: np.round(o.a.astype("f8") / 7, 2),
    "round places of float32": lambda o: np.round(o.a.astype("f4") / np.float32(7), 3),
    "round tens": lambda o: np.round(o.a.astype("f8") * 7, -1),
    "round tens of these": lambda o: np.round(o.a, -1),
    "round half a place": lambda o: np.round(o.a, FRACTION),
    "method round": lambda o: o.a.astype("f8").round(1),
    "around": lambda o: np.around(o.a.astype("f8") / 3, 1),
    "result_type": lambda o: np.ones(3, np.result_type(o.a, np.float32)),
    "copy": lambda o: np.copy(o.m),
    "ndim": lambda o: o.a + np.ndim(o.t),
    "shape": lambda o: o.a + np.shape(o.t)[-1],
}

if NumpyVersion(np.__version__) < "2.1.0":  # which has no such keywords, and another result
    del (
        CHOICES["clip by keyword"],
        CHOICES["clip by both"],
        CHOICES["clip nothing"],
        CHOICES["where large"],
        REFUSED["where large: int32"],
    )

SHAPES: dict[str, Function] = {
    "flip": lambda o: np.flip(o.m, axis=-1),
    "flip two": lambda o: np.flip(o.t, axis=(1, -1)),
    "flip of a parameter": lambda o: o.a + np.flip(o.v),
    "flip of rows": lambda o: np.flip(o.a, axis=0),
    "roll": lambda o: np.roll(o.m, 1, axis=-1),
    "roll back": lambda o: np.roll(o.m, -6, axis=2),
    "roll nothing": lambda o: np.roll(o.a, 4, axis=1),
    "roll two": lambda o: np.roll(o.t, (1, 2), axis=(1, 3)),
    "roll both": lambda o: np.roll(o.t, 1, axis=(1, 2)),
    "roll empty": lambda o: np.roll(o.u, 1, axis=1),
    "roll of a parameter": lambda o: o.a + np.roll(o.v, 1, axis=0),
    "roll of rows": lambda o: np.roll(o.a, 1, axis=0),
    "roll all": lambda o: np.roll(o.a, 1),
    "roll half": lambda o: np.roll(o.a, FRACTION, axis=1),
    "fliplr": lambda o: np.fliplr(o.m),
    "fliplr of one axis": lambda o: np.fliplr(o.s),
    "matrix_transpose": lambda o: np.matrix_transpose(o.t),
    "matrix_transpose of rows": lambda o: np.matrix_transpose(o.a),
    "hstack": lambda o: np.hstack([o.a, o.b]),
    "hstack of two axes": lambda o: np.hstack([o.m, o.m[:, :1]]),
    "hstack of dtypes": lambda o: np.hstack([o.a, o.c]),
    "hstack of rows": lambda o: np.hstack([o.s, o.s]),
    "hstack of parameters": lambda o: o.a + np.hstack([o.v[:2], o.v[2:]]),
    "append": lambda o: np.append(o.m, o.m[:, :1], axis=1),
    "append a parameter": lambda o: np.append(o.a, o.a[:, :1], axis=-1),
    "append all": lambda o: np.append(o.a, o.b),
    "repeat": lambda o: np.repeat(o.m, 2, axis=-1),
    "repeat first": lambda o: np.repeat(o.m, 3, axis=1),
    "repeat each": lambda o: np.repeat(o.a, [0, 2, 1, 3], axis=1),
    "repeat never": lambda o: np.repeat(o.a, 0, axis=1),
    "repeat misfit": lambda o: np.repeat(o.a, [1, 2], axis=1),
    "repeat less": lambda o: np.repeat(o.a, -1, axis=1),
    "repeat of rows": lambda o: np.repeat(o.a, 2, axis=0),
    "repeat all": lambda o: np.repeat(o.a, 2),
    "repeat of a parameter": lambda o: o.a + np.repeat(o.v[:2], 2),
    "method repeat": lambda o: o.a.repeat(2, axis=1),
    "tile": lambda o: np.tile(o.a, (1, 3)),
    "tile one": lambda o: np.tile(o.m, 2),
    "tile two": lambda o: np.tile(o.m, (1, 2, 2)),
    "tile never": lambda o: np.tile(o.a, (1, 0)),
    "tile rows": lambda o: np.tile(o.a, (2, 1)),
    "tile ahead": lambda o: np.tile(o.a, (2, 1, 1)),
    "tile of a parameter": lambda o: o.e[:4] + np.tile(o.v, (3, 1))[1] + o.a,
    "tile half": lambda o: np.tile(o.a, (1, FRACTION)),
    "ravel": lambda o: o.a + np.ravel(o.e)[:4],
    "ravel of rows": lambda o: np.ravel(o.a),
    "method ravel": lambda o: o.a + o.W.ravel()[:4],
    "method squeeze": lambda o: o.one.squeeze(axis=1),
    "method take": lambda o: o.a.take([2, 0], axis=1),
    "pad": lambda o: np.pad(o.m, ((0, 0), (1, 0), (0, 2))),
    "pad with a number": lambda o: np.pad(o.a, ((0, 0), (2, 1)), constant_values=3),
    "pad nothing": lambda o: np.pad(o.a, ((0, 0), (0, 0))),
    "pad empty": lambda o: np.pad(o.u, ((0, 0), (1, 2))),
    "pad of a parameter": lambda o: np.pad(o.a, [(0, 0), (1, 1)]) + np.pad(o.v, 1),
    "pad rows": lambda o: np.pad(o.a, 1),
    "pad edge": lambda o: np.pad(o.a, ((0, 0), (1, 1)), mode="edge"),
    "pad less": lambda o: np.pad(o.a, ((0, 0), (-1, 0))),
    "reshape": lambda o: np.reshape(o.m, (-1, 4, 2)),
    "reshape open": lambda o: o.t.reshape(o.t.shape[0], -1, 2),
    "reshape empty": lambda o: o.w.reshape(o.w.shape[0], 0, 7),
    "reshape empty open": lambda o: o.w.reshape(o.w.shape[0], 0, -1),
    "reshape empty open elsewhere": lambda o: o.w.reshape(o.w.shape[0], 5, -1),
    "reshape misfit": lambda o: o.m.reshape(o.m.shape[0], 3, 3),
    "reshape two open": lambda o: o.m.reshape(o.m.shape[0], -1, -1),
    "reshape below": lambda o: o.m.reshape(o.m.shape[0], -2, -4),
    "reshape param": lambda o: o.a + o.e.reshape(3, 4)[1],
    "transpose": lambda o: np.transpose(o.t, (0, 3, 1, 2)),
    "transpose from the end": lambda o: o.t.transpose(0, -1, -2, -3),
    "transpose twice": lambda o: np.transpose(o.t, (0, 1, 1, 2)),
    "transpose beyond": lambda o: np.transpose(o.t, (0, 1, 2, 7)),
    "transpose far below": lambda o: np.transpose(o.t, (0, 1, 2, -5)),
    "transpose too few": lambda o: np.transpose(o.t, (0, 1)),
    "transpose one": lambda o: np.transpose(o.t, 0),
    "transpose param": lambda o: o.a + np.transpose(o.q, (1, 0, 2))[2, 1] + o.W.T[0],
    "swapaxes": lambda o: np.swapaxes(o.t, 1, 3),
    "swapaxes beyond": lambda o: np.swapaxes(o.t, 1, 4),
    "moveaxis": lambda o: np.moveaxis(o.t, 3, 1),
    "moveaxis of two": lambda o: np.moveaxis(o.t, (3, 1), (1, 2)),
    "moveaxis beyond": lambda o: np.moveaxis(o.t, 4, 1),
    "concatenate": lambda o: np.concatenate([o.m, o.m[:, :1], o.g], axis=1),
    "concatenate dtypes": lambda o: np.concatenate([o.a, o.c, o.k[:, None]], axis=1),
    "concatenate floats": lambda o: np.concatenate([o.a, o.b.astype("f4")], axis=-1),
    "concatenate empty": lambda o: np.concatenate([o.u, o.u], axis=1),
    "concatenate misfit": lambda o: np.concatenate([o.m, o.n], axis=1),
    "concatenate ranks": lambda o: np.concatenate([o.a, o.m], axis=1),
    "concatenate number": lambda o: np.concatenate([o.a, 1], axis=1),
    "concatenate one": lambda o: np.concatenate([o.a], axis=1),
    "concatenate nothing": lambda o: np.concatenate(o.a[:, :0], axis=5),
    "concatenate params": lambda o: o.a[:, :2] + np.concatenate([o.v, o.d[None], [1, 2]])[3:5],
    "stack": lambda o: np.stack([o.a, o.b], axis=-1),
    "stack dtypes": lambda o: np.stack([o.a, o.c], axis=1),
    "stack misfit": lambda o: np.stack([o.a, o.one], axis=1),
    "stack beyond": lambda o: np.stack([o.a, o.b], axis=4),
    "expand_dims": lambda o: np.expand_dims(o.m, 2),
    "expand_dims of two": lambda o: np.expand_dims(o.m, (1, -1)),
    "expand_dims twice": lambda o: np.expand_dims(o.m, (1, 1)),
    "expand_dims beyond": lambda o: np.expand_dims(o.m, 4),
    "squeeze": lambda o: np.squeeze(o.one, axis=1),
    "squeeze all": lambda o: np.squeeze(o.one[:, None]),
    "squeeze misfit": lambda o: np.squeeze(o.m, axis=1),
    "split": lambda o: np.split(o.m, 2, axis=2),
    "split at": lambda o: np.split(o.a, [1, 1, 3], axis=1),
    "split from the end": lambda o: np.split(o.a, [-1], axis=1),
    "split misfit": lambda o: np.split(o.a, 3, axis=1),
    "split none": lambda o: np.split(o.a, 0, axis=1),
    "split empty": lambda o: np.split(o.u, 2, axis=1),
    "array_split": lambda o: np.array_split(o.a, 3, axis=1),
    "array_split more": lambda o: np.array_split(o.a, 6, axis=1),
    "array_split none": lambda o: np.array_split(o.a, 0, axis=1),
    "broadcast_to": lambda o: np.broadcast_to(o.a[:, None], (o.a.shape[0], 3, 4)),
    "broadcast_to empty": lambda o: np.broadcast_to(o.one, (o.a.shape[0], 0)),
    "broadcast_to misfit": lambda o: np.broadcast_to(o.a, (o.a.shape[0], 3)),
    "take": lambda o: np.take(o.m, [0, -1, 2], axis=2),
    "take one": lambda o: np.take(o.m, 1, axis=1),
    "take matrix": lambda o: np.take(o.m, [[0, 1], [3, 2]], axis=2),
    "take tuple": lambda o: np.take(o.m, (1, -1), axis=2),
    "take nothing": lambda o: np.take(o.m, np.zeros(0, int), axis=2),
    "take an empty list": lambda o: np.take(o.m, [], axis=2),
    "take beyond": lambda o: np.take(o.m, [4], axis=2),
    "take a fraction": lambda o: np.take(o.m, [FRACTION], axis=2),
    "take of no numbers": lambda o: np.take(o.u, [0], axis=1),
    "take by values": lambda o: np.take(o.E, o.k, axis=0),
    "take by values flat": lambda o: np.take(o.v, o.k % 4),
    "take by values flattened": lambda o: np.take(o.E, o.k),
    "take param flattened": lambda o: o.a + np.take(o.q, [1, -3, 5, 0]),
    "take param": lambda o: o.a + np.take(o.q, 1, axis=0)[0],
}

INDICES: dict[str, Function] = {
    "pair": lambda o: o.t[:, [0, 1, 1], [2, 0, 1]],
    "pair of the last": lambda o: o.t[:, :, [0, 2], [3, -1]],
    "pair of all": lambda o: o.t[:, [0, 1], [1, 1], [2, 3]],
    "pair with one": lambda o: o.t[:, [0, 1, 0], [2]],
    "pair outer": lambda o: o.t[:, [[0], [1]], [0, 2]],
    "pair with a place": lambda o: o.t[:, [0, 1], 1],
    "pair with a place before": lambda o: o.t[:, 1, [0, 2, -1]],
    "pair with a place and slice": lambda o: o.t[:, 1, [0, 2], ::-2],
    "pair misfit": lambda o: o.t[:, [0, 1], [0, 1, 2]],
    "pair beyond": lambda o: o.t[:, [0, 2], [0, 1]],
    "pair with a new axis": lambda o: o.t[:, [0, 1], [1, 0], None, :2],
    "pair after a new axis": lambda o: o.t[:, None, [0, 1], [1, 0]],
    "apart": lambda o: o.t[:, [0, 1], :, [1, 0]],
    "apart by a place": lambda o: o.t[:, 0, :, [1, 0]],
    "apart by a new axis": lambda o: o.t[:, [0, 1], None, [1, 0]],
    "list": lambda o: o.m[:, :, [3, 3, -4]],
    "tuple": lambda o: o.m[:, :, (3, 3, -4)],
    "range": lambda o: o.t[:, range(2), (1, 3)],
    "matrix": lambda o: o.a[:, [[0, 1], [2, -1]]],
    "no places": lambda o: o.a[:, []],
    "no places of an array": lambda o: o.a[:, np.zeros(0)],
    "no places paired": lambda o: o.t[:, [], []],
    "places of no numbers": lambda o: o.u[:, [0]],
    "array of one place": lambda o: o.a[:, np.array(2)],
    "unsigned": lambda o: o.a[:, np.array([1, 2], np.uint8)],
    "fractions": lambda o: o.a[:, [1.0]],
    "ragged list": lambda o: o.a[:, [[1], [1, 2]]],
    "text": lambda o: o.a[:, "x"],
    "fraction": lambda o: o.a[:, 1.0],
    "slice of fractions": lambda o: o.a[:, 0.5:2],
    "slice by zero": lambda o: o.a[:, ::0],
    "two ellipses": lambda o: o.a[..., ...],
    "ellipsis": lambda o: o.t[:, ..., 1],
    "empty ellipsis": lambda o: o.a[:, ..., 1],
    "too many": lambda o: o.a[:, 0, 0],
    "backwards": lambda o: o.e[-18:-8:-2][:0] + o.one[:, :0],
    "backwards from beyond": lambda o: o.a[:, 9:0:-2],
    "backwards to beyond": lambda o: o.a[:, 2:-9:-1],
    "backwards of nothing": lambda o: o.a[:, -18:-8:-2],
    "backwards of a parameter": lambda o: o.one + o.e[-2:-30:-3],
    "beyond": lambda o: o.a[:, 7:9],
    "nothing of two axes": lambda o: o.m[:, :0, 1:3],
    "rows of a parameter": lambda o: o.E[o.k],
    "rows of a parameter by int32": lambda o: o.E[o.j],
    "rows by no ids": lambda o: o.E[o.none],
    "numbers by no ids": lambda o: o.v[o.none],
    "rows of no width": lambda o: o.z.T[o.j % 3],
    "pair of a parameter": lambda o: o.one + o.q[[0, 1], [2, 1], [3, 3]],
    "apart of a parameter": lambda o: o.s[:, None, None] + o.q[[0, 1], :, [3, 3]],
}

PRODUCTS: dict[str, Function] = {
    "vector": lambda o: o.a @ o.W.astype(o.a.dtype),
    "matrix": lambda o: o.m @ o.W,
    "to a vector": lambda o: o.m @ o.v,
    "of a vector": lambda o: o.a @ o.v,
    "of no numbers": lambda o: o.w @ o.z,
    "of no numbers to a vector": lambda o: o.u @ o.z,
    "no rows of a matrix": lambda o: o.g @ o.W,
    "no results": lambda o: o.a @ o.W[:, :0],
    "misfit": lambda o: o.m @ o.E,
    "rows": lambda o: o.a[:, None, :] @ o.n,
    "rows of matrices": lambda o: o.m @ o.n,
    "rows of no numbers": lambda o: o.w @ o.g,
    "rows misfit": lambda o: o.m @ o.m,
    "dot": lambda o: np.dot(o.m, o.W),
    "method dot": lambda o: o.a.dot(o.W),
    "dot of rows": lambda o: np.dot(o.m, o.n),
    "dot of a number": lambda o: np.dot(o.a, 2.0),
    "matmul of a number": lambda o: np.matmul(o.a, 2),
    "matmul of a list": lambda o: np.matmul(o.a, [1, 2, 3, 4]),
    "params": lambda o: o.s[:, None] + o.v @ o.W,
    "bools": lambda o: o.c @ (o.W > 0),
    "bools of rows": lambda o: o.c[:, None, :] @ (o.n > 0),
    "bool and int": lambda o: o.c @ o.W.astype("i8"),
    "int32 and int64": lambda o: o.a.astype("i4") @ o.W.astype("i8"),
    "float32 and int": lambda o: o.a.astype("f4") @ o.W.astype("i4"),
    "float32 and float64": lambda o: o.a.astype("f4") @ o.W.astype("f8"),
    "ints and floats": lambda o: o.a.astype("i4") @ o.W.astype("f8"),
    "concatenated": lambda o: np.concatenate([o.u, o.a], axis=1) @ o.W,
}

EINSUMS: dict[str, Function] = {
    "einsum": lambda o: np.einsum("bk,bkn->bn", o.a, o.n),
    "einsum of heads": lambda o: np.einsum("bhk,bhkn->bhn", o.m[..., :3], o.t),
    "einsum of heads by a parameter": lambda o: np.einsum("bhn,hkn->bhk", o.m, o.q),
    "einsum of heads by a parameter summed": lambda o: np.einsum("bhn,hkn->bk", o.m, o.q),
    "einsum of matrices by a parameter": lambda o: np.einsum("bhkn,hjn->bkjh", o.t, o.q),
    "einsum of a parameter first": lambda o: np.einsum("hkn,bhn->bkh", o.q, o.m),
    "einsum by a vector": lambda o: np.einsum("bhkn,n->bhk", o.t, o.v),
    "einsum by one vector": lambda o: np.einsum("bn,n->b", o.a, o.v),
    "einsum outer": lambda o: np.einsum("bk,bn->bkn", o.a, o.b),
    "einsum outer of heads": lambda o: np.einsum("bhk,bhn->bnhk", o.m, o.m),
    "einsum outer with a parameter": lambda o: np.einsum("bk,n->bnk", o.a, o.v),
    "einsum inner": lambda o: np.einsum("bk,bk->b", o.a, o.b),
    "einsum all": lambda o: np.einsum("bhk,bkh->b", o.m, o.n),
    "einsum weighted": lambda o: np.einsum("b,bk->bk", o.s, o.a),
    "einsum of three": lambda o: np.einsum("bk,kj,bkh->bjh", o.a, o.W, o.n),
    "einsum of four": lambda o: np.einsum("bk,kj,bkh,hjk->bhk", o.a, o.W, o.n, o.q),
    "einsum of one": lambda o: np.einsum("bhkn->bnk", o.t),
    "einsum of the diagonal": lambda o: np.einsum("bhii->bih", o.t[..., :3]),
    "einsum of the trace": lambda o: np.einsum("bhii->bh", o.t[..., :3]),
    "einsum of two diagonals": lambda o: np.einsum(
        "bii,ijij->bj", o.t[:, :, 0, :2], o.q[:, :2, :2, None] * o.q[:, :2, None, :2]
    ),
    "einsum of ones": lambda o: np.einsum("bk,bk->bk", o.one, o.a),
    "einsum over ones": lambda o: np.einsum("bk,bk->b", o.one, o.a),
    "einsum of no numbers": lambda o: np.einsum("bhk,bkn->bhn", o.w, o.g),
    "einsum of no numbers by a parameter": lambda o: np.einsum("bhk,kn->bhn", o.w, o.z),
    "einsum of no heads": lambda o: np.einsum("bhk,kn->bhn", o.g, o.W),
    "einsum implied": lambda o: np.einsum("ak,kn", o.a, o.W),
    "einsum implied of one": lambda o: np.einsum("akn", o.m),
    "einsum of spaces": lambda o: np.einsum(" bk, kn -> bn ", o.a, o.W),
    "einsum of a list": lambda o: np.einsum("bk,k->b", o.a, [1, 2, 3, 4]),
    "einsum of a number": lambda o: np.einsum("bk,->bk", o.a, 2),
    "einsum of parameters": lambda o: o.a[:, :3] + np.einsum("k,kn->n", o.v, o.W),
    "einsum of dtypes": lambda o: (
        np.einsum("bk,kn->bn", o.c, o.W) + np.einsum("bk,bk->b", o.k[:, None], o.a)[:, None]
    ),
    "einsum optimized": lambda o: np.einsum("bk,kn->bn", o.a, o.W, optimize=True),
    "einsum misfit": lambda o: np.einsum("bk,bn->bkk", o.a, o.b),
    "einsum of sizes that differ": lambda o: np.einsum("bkn,bkj->bnj", o.m, o.n),
    "einsum of too few axes": lambda o: np.einsum("bkn->bk", o.a),
    "einsum of too few operands": lambda o: np.einsum("bk,kn->bn", o.a),
    "einsum of other letters": lambda o: np.einsum("bk->bj", o.a),
    "einsum of no letters": lambda o: np.einsum("b1->b", o.a),
    "einsum all rows": lambda o: np.einsum("bk->k", o.a),
    "einsum all rows implied": lambda o: np.einsum("bk,bk", o.a, o.b),
    "einsum pairs rows": lambda o: np.einsum("bk,ck->bc", o.a, o.b),
    "einsum of rows moved": lambda o: np.einsum("bk->kb", o.a),
    "einsum of the dots": lambda o: np.einsum("b...,...->b...", o.a, o.v),
    "einsum of lists": lambda o: np.einsum(o.a, [0, 1], [0, 1]),
    "matmul of heads": lambda o: o.m[:, :, None, :3] @ o.t,
    "matmul of heads beside one": lambda o: o.m[:, :1, None, :3] @ o.t,
    "matmul of heads by a parameter": lambda o: o.m[:, :, None, :3] @ o.q,
    "matmul of one by a parameter's heads": lambda o: o.m[:, :1, None, :3] @ o.q,
    "matmul of matrices by a parameter": lambda o: o.m[..., :3] @ o.q[0][None],
    "matmul of heads misfit": lambda o: o.t[:, :, :2] @ o.q[:, :2],
    "matmul against rows": lambda o: o.m[..., :3] @ o.q,
    "matmul of ranks": lambda o: o.m @ o.t,
    "matmul of params": lambda o: (
        o.s[:, None, None] + (o.q[:, None, :, :] @ o.q[:, None].swapaxes(-1, -2))[0, 0]
    ),
    "tensordot": lambda o: np.tensordot(o.a, o.W, axes=1),
    "tensordot of two axes": lambda o: np.tensordot(o.t, o.q, axes=([3, 1], [2, 0])),
    "tensordot from the end": lambda o: np.tensordot(o.t, o.q, axes=((-1, -2), (-1, 1))),
    "tensordot of an axis": lambda o: np.tensordot(o.m, o.W, axes=(2, 0)),
    "tensordot outer": lambda o: np.tensordot(o.a, o.v, axes=0),
    "tensordot all": lambda o: np.tensordot(o.q, o.t, axes=([0, 1, 2], [1, 2, 3])),
    "tensordot misfit": lambda o: np.tensordot(o.a, o.E, axes=1),
    "tensordot of one": lambda o: np.tensordot(o.one, o.W, axes=1),
    "tensordot beyond": lambda o: np.tensordot(o.a, o.W, axes=([5], [0])),
    "tensordot of rows": lambda o: np.tensordot(o.a, o.n, axes=([1], [1])),
    "tensordot over rows": lambda o: np.tensordot(o.a, o.W[:3], axes=([0], [0])),
    "tensordot before rows": lambda o: np.tensordot(o.E, o.a[:, :3], axes=([1], [1])),
}

TABLES = {
    "reductions": REDUCTIONS,
    "choices": CHOICES,
    "shapes": SHAPES,
    "indices": INDICES,
    "products": PRODUCTS,
    "einsums": EINSUMS,
}


@pytest.mark.long(every=len(DTYPES))
@pytest.mark.parametrize(("table", "dtype"), in_turns(TABLES, DTYPES))
def test_functions(table: str, dtype: str) -> None:
    zeros = table != "einsums"  # of two zeros NumPy's einsum gives either, as its code goes
    cases = {f"{name}: {dtype}": Case(one, zeros=zeros) for name, one in TABLES[table].items()}
    check(cases, REFUSED, *values(dtype))


def edge_cases() -> Iterator[tuple[str, Case]]:
    """Reductions and choices of the edges of each dtype; a sum of two, for one of three has an order."""
    for dtype, operand in product(DTYPES, ("{}", "p_{}")):
        name = operand.format(dtype)

        def of(o: Any, name: str = name) -> Any:
            return getattr(o, name)

        yield f"max {name}", Case(lambda o, f=of: np.max(f(o)[..., None, ::3], axis=-1), zeros=False)
        yield f"min {name}", Case(lambda o, f=of: np.min(f(o)[..., None, 1::2], axis=-1), zeros=False)
        yield f"max of one {name}", Case(lambda o, f=of: np.max(f(o)[..., None], axis=-1))
        yield f"argmax {name}", Case(lambda o, f=of: np.argmax(f(o)[..., None, 1:], axis=-1))
        yield f"argmax along {name}", Case(lambda o, f=of: np.argmax(f(o)[..., None], axis=-2))
        yield f"sum {name}", Case(lambda o, f=of: np.sum(np.stack([f(o), f(o)[..., ::-1]], axis=-1), axis=-1))
        yield f"sum of one {name}", Case(lambda o, f=of: np.sum(f(o)[..., None], axis=-1))
        yield f"cumsum {name}", Case(lambda o, f=of: np.cumsum(f(o), axis=-1))
        yield f"cumprod {name}", Case(lambda o, f=of: np.cumprod(f(o), axis=-1))
        yield (
            f"cumsum along {name}",
            Case(lambda o, f=of: np.cumsum(np.stack([f(o), f(o)[..., ::-1]] * 2, axis=-2), axis=-2)),
        )
        yield f"mean of one {name}", Case(lambda o, f=of: np.mean(f(o)[..., None], axis=-1))
        yield f"where {name}", Case(lambda o, f=of: np.where(f(o), f(o)[..., ::-1], 1))
        yield f"clip {name}", Case(lambda o, f=of: np.clip(f(o), f(o)[..., ::-1], 3), zeros=False)


def test_edges() -> None:
    check(dict(edge_cases()), REFUSED)


def test_every_function_is_here() -> None:
    """The first word of a case's name is the function."""
    words = {name.split()[0] for table in TABLES.values() for name in table}
    assert {one.__name__ for one in FUNCTIONS} <= words | {"amax", "amin"}


def test_what_is_listed_is_refused() -> None:
    for pattern, reason in REFUSED.items():
        dtype = pattern.partition(": ")[2] or "float64"
        table = {f"{name}: {dtype}": Case(one) for table in TABLES.values() for name, one in table.items()}
        check_refused(table, {pattern: reason}, *values(dtype))
