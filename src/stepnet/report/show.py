"""What a model file holds of recurrent layers, in the terminal, as plain values, and as a page."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from stepnet.compose import named
from stepnet.errors import LayoutError
from stepnet.files.formats import read
from stepnet.files.interchange import Choice, converted
from stepnet.files.model import Module
from stepnet.files.paths import new_file
from stepnet.layout.convert import Conversion, convert
from stepnet.report.picture import picture
from stepnet.report.weights import weights_text

MOST_SHOWN = 8


def shown(
    file: Path, choice: Choice, target: str | None, html: Path | None, force: bool, quiet: bool
) -> dict[str, Any]:
    """The recurrent modules of a file as plain values, after they were printed, unless `quiet`.

    target: where their numbers go in this layout too. html: writes a page with the picture of the one module.
    A module of which something is left open is listed with what is asked for.
    """
    model = read(file, choice.layout)
    found: list[dict[str, Any]] = []
    console = Console(highlight=False)
    with named(str(file)):
        modules = choice.modules(model)
        if html is not None and len(modules) != 1:
            model.chosen(choice.module)
        for module in modules:
            with named(module.name or "the weights"):
                if target is None and html is None:
                    found.append(described(module, console, quiet))
                else:
                    conversion = converted(module, target, exact=False) if target else itself(module)
                    found.append(described(module, console, quiet, conversion if target else None))
                    if html is not None:
                        page = picture(module.arrays, module.record, conversion)
                        with new_file(html, force) as partial:
                            partial.write_text(page, encoding="utf-8")
                        if not quiet:
                            console.print(f"{html}: the picture", markup=False)
    if not quiet and model.rest:
        some = ", ".join(list(model.rest)[:MOST_SHOWN]) + (", ..." if len(model.rest) > MOST_SHOWN else "")
        console.print(f"{len(model.rest)} other arrays: {some}", markup=False)
    return {"file": str(file), "modules": found, "rest": list(model.rest)}


def itself(module: Module) -> Conversion:
    """A module as it is: each number stays where it lies."""
    asked = {"target": dict(module.semantics)} if module.semantics else {}
    return convert(
        module.arrays,
        module.record,
        module.record,
        sizes=module.sizes,
        semantics={**module.semantics, **asked},
    )


def described(
    module: Module, console: Console, quiet: bool, conversion: Conversion | None = None
) -> dict[str, Any]:
    """A module as plain values, after it was printed."""
    plain: dict[str, Any] = {
        "name": module.name,
        "layouts": list(module.layouts),
        "arrays": {
            name: {
                "name": module.names.get(name, name),
                "shape": list(array.shape),
                "dtype": array.dtype.name,
            }
            for name, array in module.arrays.items()
        },
        "notes": list(module.notes),
    }
    try:
        sizes = module.told()
        semantics = module.record.settled(module.semantics)
    except LayoutError as error:  # said, and the arrays are shown all the same: this is how one finds out
        plain["open"] = str(error)
        if not quiet:
            console.print(f"{module.name or 'the weights'}: {error}", style="yellow", markup=False)
        return plain
    plain |= {"sizes": vars(sizes), "semantics": semantics.shown()}
    if not quiet:
        console.rule(Text(module.name or "the weights"), align="left")  # a str would be markup
        console.print(weights_text(module.arrays, module.record, sizes, semantics, console.width))
    if conversion is not None:
        plain["report"] = conversion.report.as_json()
        if not quiet:
            console.print(str(conversion.report), markup=False)
    return plain
