"""Shows the model of a file, and its recurrent layers: in the terminal, as plain values, and as a page."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from stepnet.compiler.values.records import dataclass
from stepnet.errors import LayoutError, ModelError, named
from stepnet.explain.page import PageModule, UndrawnModule, picture
from stepnet.explain.summary import as_table, summary_of
from stepnet.explain.ties import ConversionSide, Ties
from stepnet.explain.weights import legend, signs, weights_text
from stepnet.layout.convert import Conversion, convert
from stepnet.layout.files import account
from stepnet.layout.files.choice import LayoutChoice
from stepnet.layout.files.contents import is_paddle_program
from stepnet.layout.files.formats import read
from stepnet.layout.files.interchange import converted
from stepnet.layout.files.model import FileContents, Module
from stepnet.layout.files.paths import new_file
from stepnet.layout.places import ParameterBlock
from stepnet.layout.report import assumed_text
from stepnet.model.file import read_model
from stepnet.model.model import Model
from stepnet.model.stored import ENDING

MOST_SHOWN = 8


@dataclass(frozen=True)
class ShownFile:
    """A model file that is shown on a console, and as plain values for --json.

    choice: the user's statements about the file: its layout, and the modules to show. target: a layout to
    show the converted arrays in; None shows the arrays as they are. dtype: the dtype of the conversion; None
    for that of the arrays. html: the path of a page to write with drawings of all modules; None for none.
    force: whether to replace an existing page. console: where the text goes; nothing is drawn for a quiet
    one.
    """

    file: Path
    choice: LayoutChoice
    target: str | None
    dtype: str | None
    html: Path | None
    force: bool
    console: Console

    def show(self) -> dict[str, Any]:
        """Prints the summary of the model of the file, and its recurrent modules; returns both as plain
        values: the dict that `show_modules` returns, and the "summary".

        A .stepnet file and a program of PaddlePaddle have no modules; `html` is then a drawing of the model,
        as it is for other whole models without recurrent layers. A file that is not read whole has no
        summary, and neither has one for which the user states layouts or modules.
        """
        stated = self.choice != LayoutChoice() or self.target is not None or self.dtype is not None
        if self.file.suffix == ENDING or (is_paddle_program(self.file) and not stated):
            if stated:
                raise LayoutError(f"{self.file}: a saved model has no layouts, and is shown whole")
            return self.show_whole(read_model(self.file).model)
        whole = None if stated else whole_model(self.file)
        contents = read(self.file, self.choice.layout, self.choice.layouts)
        if whole is None:
            return self.show_modules(contents) | {"summary": None}
        if not contents.modules and not contents.problems:
            return self.show_whole(whole) | {"modules": []}
        summary = print_summary(whole, self.console)
        return self.show_modules(contents) | {"summary": summary}

    def show_whole(self, model: Model) -> dict[str, Any]:
        """Prints the summary of a model without recurrent modules, and draws it on the page if there is to be
        one; returns the "file" and the "summary" as plain values.
        """
        summary = print_summary(model, self.console)
        if self.html is not None:
            model.draw(self.html, force=self.force)
            self.console.print(f"{self.html}: the picture", markup=False)
        return {"file": str(self.file), "summary": summary}

    def show_modules(self, model: FileContents) -> dict[str, Any]:
        """Prints the recurrent modules of the file; returns them as plain values: the "file", its "modules",
        the names of other arrays ("rest"), and arrays that are not needed ("spare"). A module with a missing
        setting is listed with the message that asks for it.

        model: the contents of the file.
        """
        console = self.console
        plain: list[dict[str, Any]] = []
        parts: list[PageModule | UndrawnModule] = []
        explained: dict[str, str] = {}
        with named(str(self.file)):
            for module in self.choice.modules(model):
                with named(title(module)):
                    if self.target is None and (reason := unsettled(module)):
                        console.print(f"{title(module)}: {reason}", style="yellow", markup=False)
                        plain.append(module_facts(module) | {"open": reason})
                        parts.append(UndrawnModule(title(module), reason))
                        continue
                    conversion = converted(module, self.target, False, self.dtype) if self.target else None
                    if not console.quiet:
                        explained |= print_module(module, conversion, console)
                    plain.append(module_facts(module) | settings_facts(module, conversion))
                    if self.html is not None:
                        drawn = conversion or identity_conversion(module)
                        parts.append(PageModule(title(module), module.arrays, module.record, drawn))
        if explained:
            console.print(legend(explained))
        if self.html is not None:
            write_page(parts, self.file, self.html, self.force)
            console.print(f"{self.html}: the picture", markup=False)
        if model.rest:
            more = ", ..." if len(model.rest) > MOST_SHOWN else ""
            some = ", ".join(list(model.rest)[:MOST_SHOWN]) + more
            console.print(f"{len(model.rest)} other arrays: {some}", markup=False)
        if model.spare:
            console.print(
                f"{len(model.spare)} arrays that are not needed: {account.listed(model.spare)}", markup=False
            )
        return {
            "file": str(self.file),
            "modules": plain,
            "rest": list(model.rest),
            "spare": dict(model.spare),
        }


def whole_model(file: Path) -> Model | None:
    """Returns the model of a file; None for a file that does not specify a model, or one that is not read
    whole. Then `ShownFile.show_modules` says what the file has.
    """
    try:
        return read_model(file).model
    except (LayoutError, ModelError):
        return None


def print_summary(model: Model, console: Console) -> dict[str, Any]:
    """Prints the summary of a model, a table of its layers, to a console; returns it as plain values."""
    summary = summary_of(model)
    for item in as_table(summary):
        console.print(item, markup=False) if isinstance(item, str) else console.print(item)
    return asdict(summary)


def write_page(parts: list[PageModule | UndrawnModule], file: Path, html: Path, force: bool) -> None:
    """Writes the HTML page with drawings of the recurrent layers (modules) of a
    file of weights; raises `LayoutError` if none of them can be
    drawn.

    parts: the modules. html: the path of the page. force: whether to replace it.
    """
    reasons = [part.reason for part in parts if isinstance(part, UndrawnModule)]
    if len(reasons) == len(parts):
        raise LayoutError(f"{file}: there is nothing to draw: {reasons[0]}")
    page = picture(parts, file.name)
    with new_file(html, force) as partial:
        partial.write_text(page, encoding="utf-8")


def title(module: Module) -> str:
    """Returns the name of a module without the separator at its end, or "the weights" if it has none."""
    return module.name.rstrip("./") or "the weights"


def unsettled(module: Module) -> str:
    """Returns the message that asks for a missing size or setting of a module; "" if nothing is missing."""
    try:
        module.solved_sizes()
        module.record.settled(module.semantics)
    except LayoutError as error:  # shown with the arrays, in which the user may find the answer
        return str(error)
    return ""


def identity_conversion(module: Module) -> Conversion:
    """Converts a module (a recurrent layer in a file) to its own layout (arrangement of weights) with its own
    settings, so that a page can draw a module which the user does not convert.
    """
    asked = {"target": dict(module.semantics)} if module.semantics else {}
    return convert(
        module.arrays,
        module.record,
        module.record,
        sizes=module.sizes,
        semantics={**module.semantics, **asked},
    )


def module_facts(module: Module) -> dict[str, Any]:
    """Returns the facts of a module (recurrent layer in a file) as plain values for --json: its name, the
    layouts that fit, its arrays ("made": those that were computed) and notes.
    """
    return {
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
        "made": [asdict(computed) for computed in module.made],
        "notes": [*module.notes, *([f"it {module.alone}"] if module.alone else [])],
    }


def settings_facts(module: Module, conversion: Conversion | None) -> dict[str, Any]:
    """Returns sizes, semantics, assumed settings and conversion report of a module, for --json."""
    semantics = module.record.settled(module.semantics)
    plain: dict[str, Any] = {"sizes": vars(module.solved_sizes()), "semantics": semantics.shown()}
    plain["assumed"] = {name: str(value) for name, value in assumed(module).items()}
    return plain | {"report": conversion.report.as_json()} if conversion else plain


def assumed(module: Module) -> dict[str, Any]:
    """Returns a module's settings that nobody stated, with the usual values assumed for them."""
    return module.record.assumed(module.semantics)


def print_module(module: Module, conversion: Conversion | None, console: Console) -> dict[str, str]:
    """Prints a module (a recurrent layer in a file) on the console: its arrays in its own layout (arrangement
    of weights), or with a conversion the arrays of both layouts and the report of the conversion. Returns the
    signs that it printed, with explanations for a legend.
    """
    console.rule(Text(title(module)), align="left")
    if conversion is None:
        for computed in module.made:
            console.print(str(computed), markup=False)
    semantics = module.record.settled(module.semantics)
    side = ConversionSide("source", module.arrays, module.record, module.solved_sizes(), semantics)
    drawn: list[tuple[ConversionSide, dict[ParameterBlock, str]]] = [(side, {})]
    if conversion is None:
        for line in assumed_text(assumed(module)):
            console.print(line, markup=False)
    for note in (*module.notes, *([f"it {module.alone}"] if module.alone else [])):
        console.print(f"note: {note}", markup=False)
    if conversion is not None:
        ties = Ties(module.arrays, module.record, conversion)
        drawn = [(side, ties.kinds(side)) for side in ties.sides]
        console.print(str(conversion.report), markup=False)
    explained: dict[str, str] = {}
    for side, kinds in drawn:
        console.print(weights_text(side, console.width, kinds))
        explained |= signs(side, kinds)
    return explained
