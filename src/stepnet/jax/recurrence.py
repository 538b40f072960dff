"""`scan`: a recurrence as a function of JAX, in the place of `jax.lax.scan`."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.compiler.targets import Order, checked_engine
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.arguments import check_signature, function
from stepnet.compiler.values.once import entry_of
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, named_leaves, transform
from stepnet.errors import InputError
from stepnet.jax.function import JaxFunction, positioned
from stepnet.jax.installed import installed
from stepnet.jax.steps import TreeStep, flat
from stepnet.model.gradients.differentiable import ModelNets
from stepnet.model.program import Asked
from stepnet.model.recurrence import RNN

jax: Any = installed("jax")
tree: Any = installed("jax.tree_util")
jnp: Any = installed("jax.numpy")

KEPT = OrderedDict[Any, "Scanned"]()
"""The latest recurrences: by the step, the values that it reads, its trees and the options."""


def scan(
    f: Callable[..., tuple[Any, Any]],
    init: Any,
    xs: Any,
    *,
    params: Any = None,
    lengths: Any = None,
    reverse: bool = False,
    unroll: int = 1,
    engine: Asked = "auto",
) -> tuple[Any, Any]:
    """Runs a step over sequences as `jax.lax.scan` does, in machine code; returns (carry, ys).

    It is a function of JAX, with gradients of any order with respect to `init`, `xs` and `params`. It runs
    under `jax.jit`, `grad`, `value_and_grad` and `vmap`, on the CPU. Forward-mode derivatives are refused by
    JAX.

    Args:
        f: f(carry, x) -> (carry, y), or f(carry, x, params) where `params` is given, written with NumPy's
            functions as every step of stepnet. Its values are [batch, features...]. It is traced once for
            each kind of arguments. Arrays that it captures are constants; one that JAX traces is refused.
        init: The carry before the first step: arrays [batch, features...] in any tree of JAX.
        xs: The sequences: arrays [time, batch, features...] in any tree of JAX.
        params: The parameters of the step, arrays in any tree of JAX.
        lengths: The number of steps of each sequence, whole numbers [batch], where they differ. The carry is
            that after a sequence's own last step, and ys are zeros behind it.
        reverse: Whether each sequence runs from its own last step to its first.
        unroll: The number of steps in one pass of the compiled loop. Results do not depend on it.
        engine: An engine, or several in order of preference.

    Returns:
        The carry after the last step, in the tree of `init`, and what the steps returned besides,
        [time, batch, ...].

    Raises:
        InputError: For arrays that do not fit one another, for dtypes that JAX has not switched on, and where
            JAX does not run on the CPU.
        StepError: For a step that cannot be traced, or that captures an array that JAX traces.
        RefusedError: If no engine of `engine` runs the recurrence.

    >>> import jax, jax.numpy as jnp, numpy as np
    >>> from stepnet.jax import scan
    >>> def step(h, x, params):
    ...     h = np.tanh(x @ params["W"] + h @ params["R"])
    ...     return h, h
    >>> params = {"W": jnp.ones((3, 4)), "R": jnp.eye(4)}
    >>> xs, init = jnp.ones((7, 2, 3)), jnp.zeros((2, 4))
    >>> carry, ys = scan(step, init, xs, params=params)
    >>> ys.shape
    (7, 2, 4)
    >>> loss = lambda params: scan(step, init, xs, params=params, lengths=jnp.array([7, 5]))[1].sum()
    >>> jax.jit(jax.grad(loss))(params)["W"].shape
    (3, 4)
    """
    names = ("carry", "x") if params is None else ("carry", "x", "params")
    check_signature(function(f, "f is a function f(carry, x) -> (carry, y)"), names)
    if (backend := jax.default_backend()) != "cpu":
        raise InputError(f"JAX runs on {backend}, and machine code is for the CPU: set JAX_PLATFORMS=cpu")
    init, xs, params = (tree.tree_map(jnp.asarray, part) for part in (init, xs, params))
    step = TreeStep(f, tuple(map(tree.tree_structure, (init, xs, params))), params is not None)
    init, xs, params = map(flat, (init, xs, params))
    time, batch = checked_sizes(init, xs)
    if lengths is not None:
        lengths = jnp.asarray(lengths)
        if not isinstance(lengths, jax.core.Tracer):
            positioned(time, batch, np.asarray(lengths))
    options = reverse, unroll, checked_engine(engine)
    kinds = [
        (leaf.shape[axes:], leaf.dtype)
        for part, axes in ((init, 1), (xs, 2), (params, 0))
        for leaf in leaves(part)
    ]
    key = step.reads, step.forms, tuple(kinds), options
    scanned = entry_of(KEPT, key, lambda: Scanned.of(step, init, xs, params, *options))
    return scanned(init, xs, params, lengths)


@dataclass(frozen=True, eq=False)
class Scanned:
    """A recurrence for arguments of some kinds, as a function of JAX.

    function: its net, of the sequences, the carry and the parameters. Its results are the ys and then the
        last carry.
    carried, given: the dtypes of the carry in the net, and in the caller's arrays.
    forms: the forms of the trees carry and y.
    """

    function: JaxFunction
    carried: list[str]
    given: list[str]
    forms: tuple[Any, Any]

    @classmethod
    def of(
        cls, step: TreeStep, init: Any, xs: Any, params: Any, reverse: bool, unroll: int, engine: Order
    ) -> "Scanned":
        """Traces a step for arrays of these shapes and dtypes, while JAX traces: their numbers may not be
        known. It takes the arguments of stepnet's `scan`.
        """
        rnn = RNN(
            step,
            transform(lambda array: np.zeros(array.shape, array.dtype), params),
            memory=transform(lambda array: Spec(array.shape[1:], array.dtype), init),
            reverse=reverse,
            unroll=unroll,
        )
        nothing = transform(lambda array: np.zeros((0, 0, *array.shape[2:]), array.dtype), xs)
        net = ModelNets(rnn).read(nothing, None, None, None, time_major=True).net
        carried, given = (
            [str(spec.dtype) for spec in leaves(specs)] for specs in (net.program.memory, rnn.memory)
        )
        for type_ in net.results[: net.outputs]:
            check_dtype(type_.dtype)
        return cls(JaxFunction(net, engine), carried, given, (step.forms[0], step.results[-1]))

    def __call__(self, init: Any, xs: Any, params: Any, lengths: Any) -> tuple[Any, Any]:
        """Runs the recurrence; returns (carry after the last step, outputs ys of all steps), in the trees of
        the user's step. init: the carry before the first step. xs: the sequences. lengths: the lengths of the
        sequences, or None.
        """
        carry = [array.astype(dtype) for array, dtype in zip(leaves(init), self.carried, strict=True)]
        made = self.function.plain(lengths, (*leaves(xs), *carry, *leaves(params)), ())
        ys, last = made[: -len(carry)], made[-len(carry) :]
        last = [array.astype(dtype) for array, dtype in zip(last, self.given, strict=True)]
        return tree.tree_unflatten(self.forms[0], last), tree.tree_unflatten(self.forms[1], ys)


def check_dtype(dtype: str) -> None:
    """Raises `InputError` for a dtype of a result that JAX would not have, as its 64 bits are off."""
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise InputError(
            f"y is {dtype}, which JAX has with jax.config.update('jax_enable_x64', True) alone: switch it "
            f"on, or cast it in the step, .astype(np.{jax.dtypes.canonicalize_dtype(dtype)})"
        )


def checked_sizes(init: Any, xs: Any) -> tuple[int, int]:
    """Returns (time, batch) of the arrays of a call; raises `InputError` for arrays that do not agree.

    init, xs: the arrays of the carry, which has one entry for each sequence, and of the sequences.
    """
    if not leaves(init) or not leaves(xs):
        part, like = ("init", "(batch, 0)") if leaves(xs) else ("xs", "(time, batch, 0)")
        raise InputError(f"{part} has no array: give one without features, jnp.zeros({like})")
    sizes = leaves(xs)[0].shape[:2]
    for name, array in named_leaves(xs):
        if array.ndim < 2:
            raise InputError(
                f"xs{name} is {list(array.shape)}; xs are [time, batch, features...], and one sequence is a "
                "batch of one: xs[:, None]"
            )
        if array.shape[:2] != sizes:
            raise InputError(
                f"xs{name} is {list(array.shape)}, and other sequences are [{sizes[0]}, {sizes[1]}, ...]"
            )
    for name, array in named_leaves(init):
        if array.shape[:1] != sizes[1:]:
            raise InputError(
                f"init{name} is {list(array.shape)}; its first axis should be the {sizes[1]} sequences"
            )
    return sizes
