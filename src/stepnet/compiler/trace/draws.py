"""Checks for steps that draw random numbers or read the time, which a trace would turn into constants.

    states of generators  -->  the step is traced  -->  their states again, equal

The generators are those of Python, NumPy and PyTorch, and each one that the step reads. If one has moved, the
step is traced again, line by line, to name the line. A step that makes a generator, or asks for the time, is
traced twice too: both nets are to be equal.
"""

import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from random import SystemRandom
from types import CodeType, FrameType
from typing import Any, TypeVar, cast

from stepnet.compiler.net.ir import Net
from stepnet.compiler.trace.lines import PYTHON, is_users, line_of
from stepnet.compiler.trace.read_sources import is_installed, names_in
from stepnet.compiler.trace.reads import Reads, numbers_known, reads_of
from stepnet.compiler.values.arguments import imported
from stepnet.errors import StepError

Result = TypeVar("Result")
State = Callable[[], Any]

ADVICE = "random numbers enter a step as an input (drawn per step) or a static (per sequence)"
NUMPYS = (
    "default_rng",
    "Generator",
    "RandomState",
    "SeedSequence",
    "MT19937",
    "PCG64",
    "PCG64DXSM",
    "Philox",
)
PYTHONS = ("Random", "uuid1")
CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "process_time", "now", "today")
FRESH = frozenset([*NUMPYS, *PYTHONS, *CLOCKS, "SFC64", "monotonic_ns", "utcnow"])
"""Names in the code of a step which show that it may read other numbers each time, although no generator's
state changes, as a clock or a new generator gives.
"""

SYSTEMS = ("SystemRandom", "secrets", "uuid", "uuid4", "urandom", "getrandom", "randbelow", "randbits")
TOKENS = ("token_bytes", "token_hex", "token_urlsafe")
ENTROPY = (
    "the step draws random numbers from the operating system, and a trace would have them as constants: "
    + ADVICE
)
MODES = ("is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled", "get_num_threads")
MODE = (
    "the step calls torch.{}(), whose result in a trace may differ from that in a call: call it "
    "before, and give what depends on it as a static, or make it an attribute of the module"
)
TRIES = 5
"""The most traces of a step in which other threads may draw random numbers, before it is refused for them."""
ASKED: dict[tuple[str, str], tuple[frozenset[str], str]] = {
    ("os", "urandom"): (frozenset([*SYSTEMS, *TOKENS]), ENTROPY),
    ("os", "getrandom"): (frozenset([*SYSTEMS, *TOKENS]), ENTROPY),
    **{("torch", name): (frozenset([name]), MODE.format(name)) for name in MODES},
}
"""Functions in C whose results do not depend on a generator's state. For each (module, name): the names by
which the code of a step may refer to it, and the error message if it does.
"""


def traced_purely(step: Any, trace: Callable[[], Result], net: Callable[[Result], Net]) -> Result:
    """Calls `trace`, which traces a step, and returns its result, after checks for random numbers.

    Raises `StepError` if the step (the user's function of one step) draws random numbers or reads the time,
    as they would be constants of the net.
    net: returns the net of a result of `trace`.
    """
    known: Any = getattr(step, "reads", None)
    reads = known if isinstance(known, Reads) else reads_of(step)
    states = generators(reads)
    before, names = compared(states), known_names(reads)
    with DrawGuard(names):
        result = trace()
    if before != compared(states):
        result = line_by_line(states, trace)
    if not FRESH.isdisjoint(names):
        check_equal(net(result), net(trace()))
    return result


def known_names(reads: Reads) -> frozenset[str]:
    """Returns all names in the code that a step runs, to tell whether it may read the time or create a
    random generator. reads: the functions, classes and modules that the step reads.
    """
    values = reads.values.values()
    codes = [{value.co_name} | names_in(value)[1] for value in values if isinstance(value, CodeType)]
    others = [getattr(value, "__name__", None) for value in values]
    systems = ["SystemRandom" for value in values if isinstance(value, SystemRandom)]
    return frozenset[str]().union(*codes, filter(None, others), systems)


# ---- generators --------------------------------------------------------------------------------------------


GLOBAL = {
    "np.random": ("numpy.random", "get_state"),
    "random": ("random", "getstate"),
    "torch": ("torch.random", "get_rng_state"),
}
"""For each global generator, its module and the module's function that returns the state."""

HELD: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("random", "SystemRandom", ()),  # it has no state
    ("random", "Random", ("getstate",)),
    ("numpy.random", "Generator", ("bit_generator.state", "bit_generator.seed_seq.state")),
    ("numpy.random", "BitGenerator", ("state", "seed_seq.state")),
    ("numpy.random", "SeedSequence", ("state",)),
    ("numpy.random", "RandomState", ("get_state",)),
    ("torch", "Generator", ("get_state",)),
)
"""Classes of generators: module, class, and the attributes or methods that give the state. The state includes
the number of generators spawned from a seed sequence.
"""


def generators(reads: Reads) -> dict[str, State]:
    """Makes a function for each random generator that a step may draw from, which reads the generator's
    state. Keys are names of generators for messages. reads: the values that the step reads.
    """
    states: dict[str, State] = {name: partial(state_in, *owner_path) for name, owner_path in GLOBAL.items()}
    for name, value in reads.values.items():
        for module, kind, attributes in HELD:
            if isinstance(value, getattr(imported(module), kind, ())):
                if attributes:
                    states[f"`{name}`"] = partial(states_of, value, attributes, module)
                break
    return states


def state_in(module: str, function: str) -> Any:
    """Reads the state of a module's global random generator; None if the module is not imported, or is being
    imported. function: the name of the module's function that returns the state.
    """
    loaded = imported(module)
    return None if loaded is None else state_of(loaded, function, module)


def state_of(owner: Any, attribute: str, module: str) -> Any:
    """Reads the state of a random generator.

    owner: the generator, or a module with a global one.
    attribute: the attribute that is the state, or the function that returns it.
    module: the name of the module that defines the generator; PyTorch's state is converted to an array.
    """
    if not module.startswith("torch"):
        found = attrgetter(attribute)(owner)
        return found() if callable(found) else found
    with numbers_known():
        return getattr(owner, attribute)().numpy()


def states_of(owner: Any, attributes: tuple[str, ...], module: str) -> dict[str, Any]:
    """Reads the values of several attributes that together are the state of a random generator.

    owner: the generator.
    attributes: paths of attributes, such as "bit_generator.seed_seq.state". A path into an object without the
        attribute `state` is left out, as a seed sequence not of NumPy has none.
    module: the name of the module that defines the generator.
    """
    state = dict[str, Any]()
    for attribute in attributes:
        owner_path, _, _ = attribute.rpartition(".")
        holder = attrgetter(owner_path)(owner) if owner_path else owner
        if hasattr(holder, "state") or not owner_path:
            state[attribute] = state_of(owner, attribute, module)
    return state


def compared(states: Mapping[str, State]) -> dict[str, Any]:
    """Reads the states of random generators, in a form that shows later whether one of them was used."""
    return {name: comparable(state()) for name, state in states.items()}


def comparable(state: Any) -> Any:
    """Converts the state of a random generator to a value that can be compared: arrays become bytes."""
    if isinstance(state, dict):
        return {key: comparable(item) for key, item in cast("dict[str, Any]", state).items()}
    if isinstance(state, tuple):  # Python's holds a tuple of 625 numbers, which is compared as it is
        items = cast("tuple[Any, ...]", state)
        return tuple(bytes(item) if hasattr(item, "__array__") else item for item in items)
    return bytes(state) if hasattr(state, "__array__") else state


def line_by_line(states: Mapping[str, State], trace: Callable[[], Result]) -> Result:
    """Traces a step (calls it on placeholders and records its operations) again, with a check of the
    generators after each line, to find the line that draws. Raises `StepError` with this line.

    Returns the result of the first trace in which no line draws: then another thread had drawn during those
    before. While there are other threads, it tries several times.
    """
    drawn, line = "", ""
    for tried in range(TRIES):
        if tried and threading.active_count() == 1:
            break
        watch = Watch(states)
        outside = sys.gettrace()
        sys.settrace(watch.enter)
        try:
            result = trace()
        finally:
            sys.settrace(outside)
        watch.compare()
        # The lines of a step from an installed package are not followed.
        others = watch.drawn() if watch.line is None else []
        if not watch.found and not others:
            return result
        drawn, line = watch.found or (others[0], "")
    raise StepError(
        f"the step draws random numbers from {drawn}, and a trace would have the same ones at every "
        f"step: {ADVICE}" + (f"\n  at {line}" if line else "")
    )


class Watch:
    """Tracing function that looks, after each of the user's lines, for random generators that have changed.

    found: the name of the first such generator, and the line; None so far.
    """

    def __init__(self, states: Mapping[str, State]) -> None:
        """Keeps the states of generators before a step runs. states: by name, functions that read a state."""
        self.states, self.known = states, compared(states)
        self.line: tuple[CodeType, int] | None = None
        self.found: tuple[str, str] | None = None

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Called by Python at each call: returns the follower of its lines; None if not the user's."""
        return self.follow if not self.found and is_followed(frame.f_code) else None

    def follow(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Called by Python before each line and when a call returns: looks for random generators that the
        line before has changed, and notes the line that runs next, after a return the line of the caller.
        """
        self.compare()
        at = frame
        if event == "return":
            at = frame.f_back if frame.f_back is not None and is_followed(frame.f_back.f_code) else frame
        self.line = at.f_code, at.f_lineno
        return None if self.found else self.follow

    def compare(self) -> None:
        """Notes the first random generator whose state changed since the line before, and that line."""
        if self.found or self.line is None:
            return
        if drawn := self.drawn():
            self.found = drawn[0], line_of(*self.line)

    def drawn(self) -> list[str]:
        """Lists the random generators whose state has changed since before the step, by name."""
        now = compared(self.states)
        return [name for name, state in now.items() if state is not None and state != self.known[name]]


def is_followed(code: CodeType) -> bool:
    """Tells whether `Watch` follows the lines of code: it is the user's own, of no installed package."""
    return is_users(code) and not is_installed(code.co_filename)


# ---- functions that have no state --------------------------------------------------------------------------


class DrawGuard:
    """Context that raises `StepError` with the user's line if a function whose result a trace cannot
    hold, one of the table `ASKED` such as os.urandom, is called.

    names: the names in the step's code; functions that it cannot reach by them are not watched.
    """

    def __init__(self, names: frozenset[str]) -> None:
        """Chooses the functions of `ASKED` to watch: those that a step can reach by `names` in its code."""
        self.messages = dict[int, str]()
        for (module, name), (ways, message) in ASKED.items():
            function = getattr(imported(module), name, None)
            if function is not None and not ways.isdisjoint(names):
                self.messages[id(function)] = message
        self.found, self.outside = "", sys.getprofile()

    def __enter__(self) -> None:
        """Starts to watch the calls of functions that a trace may not make, if there are any to watch."""
        if self.messages:
            sys.setprofile(self.follow)

    def __exit__(self, kind: Any, *_: Any) -> None:
        """Stops watching calls; raises `StepError` if a function was called whose result a trace cannot hold,
        unless another error ended the block.
        """
        if self.messages:
            sys.setprofile(self.outside)
        if kind is None and self.found:
            raise StepError(self.found)

    def follow(self, frame: FrameType | None, event: str, argument: Any) -> None:
        """Called by Python at each call: notes the message for the first function of `ASKED` that the user's
        code calls, itself or through Python's library, but not through an installed package.
        """
        if event != "c_call" or self.found or id(argument) not in self.messages:
            return
        while frame is not None and not is_users(frame.f_code):
            file = frame.f_code.co_filename
            if is_installed(file) or not file.startswith((PYTHON, "<frozen")):
                return
            frame = frame.f_back
        if frame is not None and not is_installed(frame.f_code.co_filename):
            self.found = f"{self.messages[id(argument)]}\n  at {line_of(frame.f_code, frame.f_lineno)}"


# ---- comparison of two traces ------------------------------------------------------------------------------


def check_equal(first: Net, second: Net) -> None:
    """Raises `StepError` if two traces of one step differ, because it reads the time or random numbers. The
    message names the user's line of the first node that differs, or of a node that reads it.
    """
    if first == second:
        return
    pairs = zip(first.nodes, second.nodes, strict=False)
    node = next(
        (first_node for first_node, second_node in pairs if first_node != second_node), first.nodes[-1]
    )
    users = [user for user in first.nodes if user.source and first.nodes.index(node) in user.inputs]
    line = node.source or (users[0].source if users else "")
    raise StepError(
        "the step reads different numbers each time that it is traced, such as those of a new "
        f"generator without a seed, or the time, and a trace would have them as constants: {ADVICE}"
        + (f"\n  at {line}" if line else "")
    )
