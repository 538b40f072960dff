"""The modules of a file in the order in which its program calls them.

modules by their arrays: a., b., c.     the program: b. over x, a. over b.     ->     b., a. after b.
"""

from collections.abc import Mapping
from dataclasses import replace

from stepnet.errors import LayoutError
from stepnet.layout.files.model import Array, FileContents, Module, bare
from stepnet.layout.files.pickles.program import OperatorCall, RecurrentProgram
from stepnet.layout.options import OPTIONS


def wired(model: FileContents, program: RecurrentProgram, arrays: Mapping[str, Array]) -> FileContents:
    """Gives the recurrent modules of a model the order in which a torch.export program calls them, and each
    the input that the program gives it; returns the changed model.

    model: the model. program: the recurrent operators of the program. arrays: all arrays of the file by name.
    A module whose weights the program does not use is removed, and its arrays are added to those of no
    module. One whose weights are used by other operators than PyTorch's recurrent ones keeps an input that is
    not specified.
    """
    by_weights = {frozenset(module.stored): module for module in model.modules}
    unusual_calls, calls = list[str](), dict[str, OperatorCall]()
    for call in program.calls:
        module = by_weights.get(frozenset(call.weights))
        if module is None:
            unusual_calls.append(call.weights_text)
        else:
            calls.setdefault(module.name, call)
    first_uses = {module.name: first_use(module, program) for module in model.modules}
    used = [module for module in model.modules if first_uses[module.name] is not None]
    modules = tuple(
        called(module, calls[module.name], model.path) if module.name in calls else module
        for module in sorted(used, key=lambda module: first_uses[module.name] or 0)
    )
    stored = {name for module in modules for name in module.stored}
    removed = {name for module in model.modules for name in module.stored} - stored
    rest = {name: array for name, array in arrays.items() if name in model.rest or name in removed}
    other_operators = tuple(dict.fromkeys((*program.around, *unusual_calls)))
    return replace(model, modules=modules, rest=rest, layers=other_operators, entrances=program.inputs)


def first_use(module: Module, program: RecurrentProgram) -> int | None:
    """Returns the index of a program's first operator that takes a module's array, to sort by; else None."""
    return min((program.uses[name] for name in module.stored if name in program.uses), default=None)


def called(module: Module, call: OperatorCall, path: str) -> Module:
    """Returns a module (recurrent layer) as a call in a torch.export program uses it: with the layouts
    (arrangements of weights), semantics and input of the call. Raises `LayoutError` if the user has stated a
    layout that is not the call's.
    """
    layouts = tuple(name for name in module.layouts if name in call.layouts)
    if not layouts:
        by_program, stated = " or ".join(call.layouts), " or ".join(module.layouts)
        raise LayoutError(
            f"{path}: {bare(module.name) or 'the layer'} is {by_program} by the file's program, "
            f"and not {stated} as {OPTIONS['layout'].name} says"
        )
    return replace(
        module, layouts=layouts, semantics={**module.semantics, **call.semantics}, follows=call.follows
    )
