"""Packages for browsers and node: a WebAssembly module, an ES module that runs it, and its types."""

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from importlib.resources import files
from typing import Any

from stepnet.compiler.targets.frame.c99 import FUNCTIONS, STATUS
from stepnet.compiler.targets.frame.machine.code import compiled_text, module_of
from stepnet.compiler.targets.frame.machine.interface import MachineProgram
from stepnet.compiler.targets.frame.machine.platforms import DEVICES
from stepnet.compiler.targets.frame.machine.wasm_modules import wasm_module
from stepnet.compiler.targets.frame.program import FrameBuffer
from stepnet.compiler.targets.frame.weight_layouts import packed_constants

TYPES = {
    "float32": "Float32Array",
    "float64": "Float64Array",
    "int32": "Int32Array",
    "int64": "BigInt64Array",
    "int16": "Int16Array",
    "int8": "Int8Array",
    "bool": "Uint8Array",
}
"""The class of arrays of each dtype in JavaScript."""


def npm_package(declared: MachineProgram, beside: bool) -> dict[str, bytes]:
    """Makes the files of an npm package, by name: without dependencies, for bundlers, pages and node.

    declared: the program; if its platform has vectors, the module without them is there too, which machines
    without take. beside: the weights are a file of their own, for both modules.
    """
    name, plain = declared.name, declared.platform.plain
    modules = {f"{name}.wasm": declared}
    if plain is not None:
        modules[f"{name}.plain.wasm"] = replace(declared, platform=DEVICES[plain])
    contents = {file: module_bytes(each, beside) for file, each in modules.items()}
    weights = None
    if beside:
        _, data = packed_constants(declared.program, declared.platform.layout)
        contents[f"{name}.weights"] = data
        weights = {"file": f"{name}.weights", "bytes": len(data), "digest": sha256(data).hexdigest()}
    return {
        "package.json": (json.dumps(package(name, list(contents)), indent=2) + "\n").encode(),
        f"{name}.js": script(declared, weights).encode(),
        f"{name}.d.ts": declarations(declared).encode(),
        **contents,
    }


def module_bytes(declared: MachineProgram, beside: bool) -> bytes:
    """Compiles and links the WebAssembly module of a program."""
    exports = [f"{declared.name}_{what}" for what in FUNCTIONS]
    exports += [f"{declared.name}_weights"] if beside else []
    return wasm_module(compiled_text(str(module_of(declared, beside)), declared.platform), exports)


def package(name: str, others: list[str]) -> Mapping[str, Any]:
    """Returns the contents of package.json. others: the files besides the script and its types."""
    listed = [f"{name}.js", f"{name}.d.ts", *others]
    entry = {"types": f"./{name}.d.ts", "default": f"./{name}.js"}
    return {
        "name": name.lower().replace("_", "-"),
        "version": "1.0.0",
        "type": "module",
        "exports": {".": entry, **{f"./{other}": f"./{other}" for other in others}},
        "types": f"./{name}.d.ts",
        "files": listed,
        "sideEffects": False,
    }


def script(declared: MachineProgram, weights: Mapping[str, Any] | None) -> str:
    """Returns the text of the ES module: what is known of the model, and the part that all models share."""
    program = declared.program
    about = {
        "name": declared.name,
        "inputs": [described(each) for each in program.of("input")],
        "outputs": [described(each) for each in program.of("output")],
        "context": declared.ram_bytes,
        "saved": declared.saved_bytes,
        "mark": declared.mark,
        "weights": weights,
        "plain": declared.platform.plain is not None,
        "errors": list(STATUS.values()),
        "otherModel": [*STATUS].index("OTHER_MODEL"),
    }
    shared = (files("stepnet.compiler.targets.frame.packages") / "npm_files" / "model.js").read_text("utf-8")
    head = f"// {declared.name}: one frame of {declared.about}, by stepnet."
    return f"{head}\nconst MODEL = {json.dumps(about, indent=2)};\n\n{shared}"


def described(buffer: FrameBuffer) -> Mapping[str, Any]:
    """Returns the facts on an input or output in the ES module."""
    return {"name": buffer.name, "type": buffer.dtype, "size": buffer.size}


def declarations(declared: MachineProgram) -> str:
    """Returns the types of the ES module, for TypeScript."""
    program = declared.program
    given = type_of_ends(program.of("input"))
    result = type_of_ends(program.of("output"))
    return TYPES_TEXT.format(name=declared.name, about=declared.about, given=given, result=result)


def type_of_ends(buffers: list[FrameBuffer]) -> str:
    """Returns the type of the inputs or outputs of a step: one array, or an object of several."""
    if len(buffers) == 1:
        return TYPES[buffers[0].dtype]
    return "{ " + " ".join(f"{each.name}: {TYPES[each.dtype]};" for each in buffers) + " }"


TYPES_TEXT = """\
/** {name}: one frame of {about}. */

type Source = string | URL | ArrayBuffer | Uint8Array;

/** Whether this machine has the instructions of the faster module. */
export const hasSimd: boolean;

/**
 * Loads the model: from the files beside this one, or from a URL or the bytes of a module and of its weights.
 */
export function load(source?: Source, weights?: Source): Promise<Model>;

/** A loaded model, of which any number of streams run. */
export interface Model {{
  /** Begins a stream. */
  stream(): Stream;
}}

/** A stream: what the model keeps of the frames so far. */
export interface Stream {{
  /** Runs one frame, or several that lie one after the other; returns the outputs of all. */
  step(given: {given}): {result};
  /** Begins anew. */
  reset(): void;
  /** Returns what the stream keeps, for `restore`, also in another process or on another device. */
  save(): Uint8Array;
  /** Goes on where a stream of the same model was saved. */
  restore(saved: Uint8Array): void;
  /** Gives the stream's memory back to the model, for another stream. */
  close(): void;
}}
"""
