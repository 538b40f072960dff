"""The files of a library: the machine code of its plans, its public functions, and its weights, linked."""

from hashlib import sha256

from llvmlite import ir

from stepnet.compiler.targets.cpu.library.archive import archive
from stepnet.compiler.targets.cpu.library.context_code import ContextCode, public_names, weights_file
from stepnet.compiler.targets.cpu.library.counts_code import counted_outputs
from stepnet.compiler.targets.cpu.library.driver_code import RunCode
from stepnet.compiler.targets.cpu.library.object_writer import object_file
from stepnet.compiler.targets.cpu.library.objects import OWN, object_of
from stepnet.compiler.targets.cpu.library.platforms import MACHINES, Platform, platform_named
from stepnet.compiler.targets.cpu.library.processor_code import INSTRUCTIONS
from stepnet.compiler.targets.cpu.library.recipe import recipe_of
from stepnet.compiler.targets.cpu.library.shared import Shared
from stepnet.compiler.targets.cpu.machine.elf import ObjectFile
from stepnet.compiler.targets.library import ArrayText, BuiltLibrary, CallSpecification, Description
from stepnet.compiler.values.version import __version__
from stepnet.errors import InputError

MOST_INSIDE = 2**31 - 2**24
"""The most bytes of weights that a library may hold: addresses in code are signed 32-bit numbers."""


def built_library(model: CallSpecification, name: str, target: str, beside: bool) -> BuiltLibrary:
    """Generates a C library for a model. Its objects are name.o (the public functions), name.plans.o (the
    machine code of the model's parts) and name.data.o (weights, and code that LLVM cannot express).

    name: the prefix of its functions. target: the name of the platform. beside: the weights go into a file of
    their own. Raises `InputError` for an unknown platform, and for weights that are too large to be inside;
    `RefusedError` for a model that cannot be built.
    """
    platform = platform_named(target)
    public = frozenset(public_names(name, beside, counted_outputs(model, name)))
    plans, own = ir.Module("plans"), ir.Module("library")
    for module in (plans, own):
        module.triple = platform.triple
    recipe = recipe_of(model, platform, plans, name)
    recipe.add(b"")  # pads the weights to whole cache lines
    code = object_of(str(plans), platform, platform.code, public)
    weights = bytes(recipe.weights)
    if not beside and len(weights) > MOST_INSIDE:
        raise InputError(
            f"the weights take {len(weights)} bytes, and code reaches {MOST_INSIDE} of them in one library: "
            "store them in a file of their own with --weights beside (Python: weights='beside')"
        )
    digest = sha256(code)
    digest.update(repr(recipe.layout).encode())
    identity = int.from_bytes(digest.digest()[:8], "little")
    digest.update(weights)
    about = description(model, platform, name, beside, digest.hexdigest())
    run = RunCode(own, platform.base, name, model, recipe)
    run.write()
    ContextCode(own, platform, name, recipe, run.block, identity, beside, about.text()).write()
    texts = INSTRUCTIONS if platform.needs else {}
    data = object_file(
        MACHINES[platform.machine],
        {f"{name}{OWN}{symbol}": bytes.fromhex(text) for symbol, text in texts.items()},
        {} if beside else {f"{name}{OWN}weights": weights},
    )
    library = object_of(str(own), platform, platform.base, public)
    objects = {f"{name}.o": library, f"{name}.plans.o": code, f"{name}.data.o": data}
    shared = Shared(
        MACHINES[platform.machine],
        [ObjectFile.of(data) for data in objects.values()],
        public,
        f"lib{name}.so",
    ).data()
    symbols = {
        file: [
            symbol.name for symbol in ObjectFile.of(each).symbols if symbol.is_global and symbol.is_defined
        ]
        for file, each in objects.items()
    }
    return BuiltLibrary(
        about, archive(objects, symbols), shared, weights_file(weights, identity) if beside else b""
    )


def description(
    model: CallSpecification, platform: Platform, name: str, beside: bool, digest: str
) -> Description:
    """Describes a C library that is being built, for its header: its version, arrays and processor.

    name: the prefix of its functions. beside: the weights are in a file name.weights. digest: SHA-256 of code
    and weights.
    """
    arrays = tuple(map(ArrayText.of, model.arguments))
    weights = f"{name}.weights" if beside else None
    return Description(
        __version__, name, platform.name, platform.machine, platform.needs, weights, digest, arrays
    )
