"""The object files of a library: the machine code of its plans, its public functions, and its weights."""

from dataclasses import dataclass
from hashlib import sha256

from llvmlite import ir

from stepnet.build.context_code import ContextCode, public_names, weights_file
from stepnet.build.description import Description
from stepnet.build.driver_code import RunCode
from stepnet.build.model import BuiltModel
from stepnet.build.object_writer import object_file
from stepnet.build.objects import OWN, object_of
from stepnet.build.platforms import MACHINES, Platform
from stepnet.build.processor_code import INSTRUCTIONS
from stepnet.build.recipe import recipe_of
from stepnet.errors import InputError

MOST_INSIDE = 2**31 - 2**24
"""The most bytes of weights that a library may hold: addresses in code are signed 32-bit numbers."""


@dataclass(frozen=True)
class LibraryParts:
    """The contents of a library. objects: object files by name. public: the names of functions that users
    call. weights: the bytes of the weights file; empty if the library holds the weights. about: its
    description.
    """

    objects: dict[str, bytes]
    weights: bytes
    public: frozenset[str]
    about: Description


def generate_library(model: BuiltModel, platform: Platform, name: str, beside: bool) -> LibraryParts:
    """Generates the object files and the weights of a C library for a model. name: the prefix of its
    functions. beside: the weights go into a file of their own. Raises `RefusedError` for a model that cannot
    be built, and `InputError` if the weights are too large to be inside. The objects are name.o (the public
    functions), name.plans.o (the compiled plans) and name.data.o (weights, and code that LLVM cannot
    express).
    """
    public = frozenset(public_names(name, beside))
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
    about = Description.of(model, platform, name, beside, digest.hexdigest())
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
    return LibraryParts(objects, weights_file(weights, identity) if beside else b"", public, about)
