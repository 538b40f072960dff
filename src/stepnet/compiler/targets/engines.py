"""The engines, and the choice among them: the first, in the requested order, that does not refuse.

Each part of a schedule runs on the first engine that does not refuse that part.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from stepnet.compiler.plan.load import FitsChunks
from stepnet.compiler.plan.plan import Planning
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets.assignment import common_engine
from stepnet.compiler.targets.base import Engine, Kernel, planning_of
from stepnet.compiler.targets.capabilities import AddressEngine, DeviceEngine
from stepnet.compiler.values.arguments import short_repr
from stepnet.compiler.values.entry_points import installed, load_object
from stepnet.compiler.values.fork_guard import run_without_fork
from stepnet.errors import InputError, RefusedError

if TYPE_CHECKING:
    from stepnet.compiler.targets.cpu.engine import LlvmEngine
    from stepnet.compiler.targets.library import LibraryEngine

# The order of engine="auto". The interpreter is not in it, as it is slow and must be requested by name. Nor
# is onednn, which pads sequences of different lengths.
AUTO = ("llvm",)
REFERENCE = "interpret"
"""The engine that runs every net. Results of the others are compared with its own."""

Order = str | tuple[str, ...]


def llvm() -> "LlvmEngine":
    """Makes the engine that generates machine code for the processor."""
    from stepnet.compiler.targets.cpu.engine import LlvmEngine

    return LlvmEngine()


def onednn() -> Engine:
    """Makes the engine that runs cells on oneDNN."""
    from stepnet.compiler.targets.onednn.engine import OneDnnEngine

    return OneDnnEngine(llvm())


def interpreter() -> Engine:
    """Makes the engine that interprets nets with NumPy."""
    from stepnet.compiler.targets.interpreter import Interpreter

    return Interpreter()


def cuda(*words: str) -> Engine:
    """Makes the engine that runs kernels on a GPU. words: the number of the GPU, from 0 on, and options."""
    from stepnet.compiler.targets.cuda.options import read_words

    number, options = read_words("cuda", words)
    return cuda_module().on_gpu(number, options)


def emulated_cuda(*words: str) -> Engine:
    """Makes the engine that runs a GPU's kernels in an emulation on the CPU. words: its options."""
    from stepnet.compiler.targets.cuda.options import read_words

    _, options = read_words("cuda-emulated", words)
    return cuda_module().in_emulation(options)


def cuda_module() -> ModuleType:
    """Imports the module of the engines for GPUs, once the version of LLVM is checked."""
    from stepnet.compiler.targets.cpu.machine.room import check_llvmlite

    check_llvmlite()
    from stepnet.compiler.targets.cuda import engine as engines

    return engines


ENGINES: Mapping[str, Callable[[], Engine]] = {
    "llvm": llvm,
    "onednn": onednn,
    "interpret": interpreter,
    "cuda": cuda,
    "cuda-emulated": emulated_cuda,
}
"""For each engine, the function that makes it. An engine is imported when it is first used, which takes a
fifth off the time of `import stepnet`. The LLVM library is imported at the first compilation.
"""
VARIANTS: Mapping[str, Callable[..., Engine]] = {"cuda": cuda, "cuda-emulated": emulated_cuda}
"""Engines that have variants, by words after their names: "cuda" is the first GPU, "cuda:1:tf32" the second
one with an option.
"""
GROUP = "stepnet.targets"
"""The entry points by which other packages add engines: a name, and a function that makes the engine."""


@cache
def engine(name: str) -> Engine:
    """Makes an engine of stepnet or of an installed package, by its name; once per process."""
    if is_variant(name):
        kind, *words = name.split(":")
        return run_without_fork(lambda: VARIANTS[kind](*words))
    return run_without_fork(ENGINES.get(name) or load_object(installed(GROUP)[name], "engine"))


def is_variant(name: str) -> bool:
    """Tells whether a name is that of an engine with variants, and has words after it, known or not."""
    kind, *words = name.split(":")
    return bool(words) and kind in VARIANTS


def engine_names() -> tuple[str, ...]:
    """Returns the engines' names for the argument `engine=`: stepnet's, then installed packages'."""
    return tuple(dict.fromkeys((*ENGINES, *installed(GROUP))))


def is_engine(name: str) -> bool:
    """Tells whether a name is that of one engine, and not of several joined ones.

    >>> is_engine("cuda:tf32"), is_engine("onednn, llvm")
    (True, False)
    """
    return name in ENGINES or name in installed(GROUP) or is_variant(name)


def engine_named(name: str) -> Engine:
    """Returns the engine, which compiles and runs nets, called `name`; raises `InputError`, with the known
    names, for any other.

    >>> engine_named("cuda-emulated:tf32").name
    'cuda-emulated:tf32'
    """
    if not is_engine(name):
        kind, colon, _ = name.partition(":")
        if colon and kind in engine_names():
            takers = " and ".join(VARIANTS)
            raise InputError(f"no engine is called {name!r}: {kind} takes no options; {takers} do")
        names = ", ".join(engine_names())
        raise InputError(f"no engine is called {name!r}; the engines are {names}, or 'auto'")
    return engine(name)


def checked_engine(asked: Any) -> Order:
    """Checks the user's argument `engine=`, a name, "auto" or a list of names; returns it as a name or a
    tuple, which can be hashed. Raises `InputError` for anything else.
    """
    if isinstance(asked, str):
        if asked != "auto":
            engine_named(asked)
        return asked
    names = tuple(cast("Sequence[Any]", asked)) if isinstance(asked, list | tuple) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(
            "engine is a name, or several in the order in which to try them, of "
            f"{', '.join(engine_names())} and 'auto', not {short_repr(asked)}"
        )
    for name in names:
        checked_engine(name)
    return names


def order_of(asked: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the names of engines in the order to try them; "auto" stands for the default order."""
    names = (asked,) if isinstance(asked, str) else asked
    return tuple(engine for name in names for engine in (AUTO if name == "auto" else (name,)))


def gradient_order(asked: Any) -> Order:
    """Returns the engines for gradients: those requested (as `engine=`) that run gradients; those of "auto"
    if none of them does.

    >>> gradient_order("onednn"), gradient_order(("onednn", "interpret")), gradient_order("auto")
    (('llvm',), ('interpret',), 'auto')
    """
    order = checked_engine(asked)
    names = order_of(order)
    fit = tuple(name for name in names if engine_named(name).runs_gradients)
    return order if fit == names else fit or AUTO


def library_engine() -> "LibraryEngine":
    """Returns the engine whose code libraries for C contain.

    >>> library_engine().name
    'llvm'
    """
    from stepnet.compiler.targets.library import LibraryEngine

    return next(made for made in map(engine, ENGINES) if isinstance(made, LibraryEngine))


def engines_of(asked: str | Sequence[str]) -> tuple[Engine, ...]:
    """Returns the engines that the user's argument `engine=` names, in the order to try them; raises
    `InputError` for unknown names. asked: a name, "auto" or several names.
    """
    return tuple(map(engine_named, order_of(checked_engine(asked))))


def planning_for(asked: str | Sequence[str]) -> Planning:
    """Returns the passes and costs of the first of the engines that the user's argument `engine=` names."""
    return planning_of(engines_of(asked)[0])


def chunks_of(asked: str | Sequence[str]) -> FitsChunks | None:
    """Returns the matrices that the first of the engines trains in chunks of steps; None for an engine that
    has no kernels for that. All gradients ask this function, or read the same of its costs.
    """
    return planning_for(asked).costs.blocks.chunks


def compiled(schedule: Schedule, asked: str | Sequence[str]) -> Kernel:
    """Compiles a schedule by the engine that `choose` chooses, planned for that engine."""
    engine, _ = choose(schedule, asked)
    return engine.compile(schedule.planned(planning_of(engine)))


def devices_of(asked: str | Sequence[str]) -> frozenset[str]:
    """Returns the types of devices, by PyTorch's names, on which engines take tensors where they lie: "cpu",
    which all take, and those of any `DeviceEngine` among them.

    asked: the argument `engine=`: a name, "auto", or several in order of preference.

    >>> devices_of("auto")
    frozenset({'cpu'})
    """
    own = (engine.devices for engine in engines_of(asked) if isinstance(engine, DeviceEngine))
    return frozenset({"cpu"}).union(*own)


def engine_at(asked: str | Sequence[str], device: str, number: int = 0) -> AddressEngine | None:
    """Returns the engine that takes arrays on a device where they lie: the first of those asked for that
    does; for "auto", that of the device, unless it cannot be used here. None if there is none.

    asked: the argument `engine=`. device: the type of the device by PyTorch's name. number: of the device
        among those of the type.

    >>> engine_at("auto", "cpu") is None
    True
    """
    order = checked_engine(asked)
    for name in (order,) if isinstance(order, str) else order:
        kind, *words = (device if name == "auto" and device in VARIANTS else name).split(":")
        if kind == device and kind in VARIANTS and number and not (words and words[0].isdecimal()):
            words = [str(number), *words]
        found = ":".join([kind, *words])
        made = None if found == "auto" else engine_named(found)
        if takes_addresses(made) and device in made.devices and made.number == number:
            return made
    return None


def takes_addresses(engine: Engine | None) -> TypeGuard[AddressEngine]:
    """Tells whether an engine is an `AddressEngine`, in a hundredth of the time of `isinstance`."""
    return hasattr(engine, "array_of")


def choose(schedule: Schedule, asked: str | Sequence[str] = "auto") -> tuple[Engine, dict[str, str]]:
    """Chooses the first requested engine that does not refuse a schedule (the parts of a model) as planned
    for the engine; several are joined into one engine if the schedule's parts need different ones.

    asked: the argument `engine=`: a name, "auto", or several in order of preference.

    Returns the engine, and by name the refusals of those before it. Raises `RefusedError` if all refuse.
    """
    reasons: dict[str, str] = {}
    engines = engines_of(asked)
    if (
        len(engines) > 1
        and schedule.single_plan is None
        and (several := common_engine(schedule, engines)) is not None
    ):
        return several, reasons
    for engine in engines:
        reason = engine.refuse(schedule.planned(planning_of(engine)))
        if reason is None:
            return engine, reasons
        reasons[engine.name] = reason
    lines = "".join(f"\n  {name}: {reason}" for name, reason in reasons.items())
    raise RefusedError(f"no engine runs this net; engine=(..., {REFERENCE!r}) would, slowly{lines}")
