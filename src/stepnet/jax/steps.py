"""A step in JAX's form, `carry, y = step(carry, x)`, as a step of stepnet.

JAX's trees of any classes become flat dicts of their leaves, by the names that messages have for them.
"""

import os
from collections.abc import Callable
from dataclasses import field
from traceback import walk_tb
from types import TracebackType
from typing import Any, cast

from stepnet.compiler.trace.lines import is_users, line_of, refuse
from stepnet.compiler.trace.reads import Reads, reads_of
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves
from stepnet.errors import StepError
from stepnet.jax.installed import installed

tree: Any = installed("jax.tree_util")
FOLDER = os.path.dirname(installed("jax").__file__) + os.sep
GIVEN_TO_JAX = (
    "a function of JAX is called with a value of the step, which stepnet traces: write the step with NumPy's "
    "functions and operators, np.tanh in place of jnp.tanh"
)


def flat(structure: Any) -> Any:
    """Returns the leaves of a tree of JAX in a dict by name, or in a tuple where names are equal. A tree that
    is one leaf is returned unchanged.
    """
    pairs, form = tree.tree_flatten_with_path(structure)
    if tree.treedef_is_leaf(form):
        return structure
    named = {tree.keystr(path): leaf for path, leaf in pairs}
    return named if len(named) == len(pairs) else tuple(leaf for _, leaf in pairs)


@dataclass(frozen=True, eq=False)
class TreeStep:
    """Step of stepnet that calls a function in JAX's form with trees.

    function: called as function(carry, x), or function(carry, x, params) if there are parameters.
    forms: the forms of the trees carry, x and params.
    has_params: whether the function is given the parameters.
    results: the forms of the trees y that the function returned, the latest last.
    """

    function: Callable[..., Any]
    forms: tuple[Any, ...]
    has_params: bool
    results: list[Any] = field(default_factory=list[Any])

    @computed_once
    def reads(self) -> Reads:
        """The values that the function reads besides its arguments."""
        return reads_of(self.function)

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Calls the user's function for one step on a trace's values; returns the values of y and of the
        carry, flattened from JAX's trees. x, memory, params: the flattened values of the input, the carry and
        the parameters.

        Raises `StepError` for a function that gives the values to JAX, or that returns no (carry, y) of the
        same structure as before.
        """
        parts = zip(self.forms, (memory, x, params), strict=True)
        arguments = [tree.tree_unflatten(form, leaves(part)) for form, part in parts]
        try:
            returned = self.function(*arguments[: 3 if self.has_params else 2])
        except (TypeError, StepError) as error:
            if Traced.__module__ not in str(error) and FOLDER not in str(error):
                raise
            raise refuse(GIVEN_TO_JAX, line_before_jax(error.__traceback__)) from error
        if not isinstance(returned, tuple) or len(pair := cast("tuple[Any, ...]", returned)) != 2:
            raise refuse("a step of stepnet.jax.scan returns (carry, y), as one tuple of two")
        carry, y = pair
        if (form := tree.tree_structure(carry)) != self.forms[0]:
            raise refuse(f"the carry enters the step as {self.forms[0]} and leaves as {form}")
        self.results.append(tree.tree_structure(y))
        return flat(y), flat(carry)


def line_before_jax(trace: TracebackType | None) -> str:
    """Returns the innermost line of the user's code in a traceback, for messages; empty if there is none.
    Code of JAX itself is left out; code of other packages counts as the user's.
    """
    passed = [(frame.f_code, number) for frame, number in walk_tb(trace) if is_users(frame.f_code)]
    own = [(code, number) for code, number in passed if not code.co_filename.startswith(FOLDER)]
    return line_of(*own[-1]) if own else ""
