"""Machine code for a Mac with one of Apple's processors, which is not run, and what `build` answers there.

Prints the first two words of each object file: the number of macOS' format, and that of the processor.

usage: apple.py FOLDER
"""

import json
import platform
import struct
import sys

import llvmlite.binding as llvm
import numpy as np

import stepnet as sn
from stepnet import cells
from stepnet.build import build
from stepnet.compiler.targets.cpu import ARM, LlvmEngine
from stepnet.compiler.targets.cpu.machine import object_code
from stepnet.errors import InputError

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
TARGET = llvm.Target.from_triple("arm64-apple-darwin24.1.0")
GENERATED, emit = list[tuple[int, ...]](), object_code.emit


def generated(text: str, machine: llvm.TargetMachine) -> bytes:
    """Compiles a module, and ends there: the code cannot be loaded here."""
    GENERATED.append(struct.unpack_from("<2I", emit(text, machine)))
    raise RuntimeError("generated")


def machine(processor, thread):
    """The code generator for Apple's processors."""
    return TARGET.create_target_machine(cpu=processor.cpu, features=processor.features, opt=3)


object_code.target_machine, object_code.emit = machine, generated
gru = cells.rnn("gru", cells.CELLS["gru"].parameters(8, 16))
reading = gru.read(np.ones((2, 5, 8), "float32"), None, None, None, False)
try:
    LlvmEngine(ARM).compile(reading.running.schedule_for("llvm"))
except RuntimeError as error:
    if str(error) != "generated":
        raise

sys.platform, platform.machine = "darwin", lambda: "arm64"
refused = ""
try:
    build(gru, sys.argv[1], inputs=sn.Spec(8))
except InputError as error:
    refused = str(error)
print(json.dumps({"generated": GENERATED, "refused": refused}))
