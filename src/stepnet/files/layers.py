"""The recurrent layers of a model file, as layers that run."""

from pathlib import Path

from stepnet.errors import named
from stepnet.files.account import check_merges, check_stack
from stepnet.files.choice import Choice
from stepnet.files.formats import read
from stepnet.files.stacks import stacked
from stepnet.files.verified import weights
from stepnet.rnn.compose import Layer, Stack


def layers_of(file: Path, choice: Choice | None = None) -> tuple[Layer, dict[str, list[str]]]:
    """The recurrent layers of a file, ready to run, and notes by module."""
    choice = choice or Choice()
    model = read(file, choice.layout, choice.layouts)
    selected = choice.checked_modules(model)
    with named(str(file)):
        modules = stacked(selected, choice.stack)
        if choice.module is None:
            check_stack(modules, file, choice.stack)
        check_merges(modules)
        layers = [weights(module).layers() for module in modules]
    notes = {
        module.name: [*module.notes, *([f"it {module.alone}"] if module.alone else [])] for module in modules
    }
    return layers[0] if len(layers) == 1 else Stack(layers), {
        name: notes[name] for name in notes if notes[name]
    }
