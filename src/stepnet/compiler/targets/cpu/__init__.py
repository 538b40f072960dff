"""Machine code for the CPU, by LLVM.

Names are imported when they are first used: code that is on disk is loaded without LLVM, and
other targets that take a part of this one do without the rest.
"""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import late_names

if TYPE_CHECKING:
    from stepnet.compiler.targets.cpu.costs import adapt_machine, caches, machine_for, table_machine
    from stepnet.compiler.targets.cpu.emit.claims import Claims
    from stepnet.compiler.targets.cpu.emit.thread_code import ThreadCode
    from stepnet.compiler.targets.cpu.engine import LlvmEngine
    from stepnet.compiler.targets.cpu.machine.machine_code import MachineCode
    from stepnet.compiler.targets.cpu.machine.processor import (
        ARM,
        NAMED,
        VARIABLE,
        Processor,
        available_processors,
        baseline,
        beyond_neon,
        chosen_processor,
        host_processor,
        permitted,
        supported_processors,
        up_to,
        without_amx,
    )
    from stepnet.compiler.targets.cpu.products.arithmetic import PAIRS, WIDENED_PAIRS, arithmetic
    from stepnet.compiler.targets.cpu.products.matrix import TILE_WRITERS, MatrixTiles
    from stepnet.compiler.targets.cpu.products.reads import FarReads, cycle_seconds
    from stepnet.compiler.targets.cpu.products.tile import FetchList, LeftOperand, accumulate
    from stepnet.compiler.targets.cpu.products.tiles import LARGE_BYTES, Tile, cheapest, cover, cycles, tiles
    from stepnet.compiler.targets.cpu.rates import NAMES, key_of, store_rates, stored_rates
    from stepnet.compiler.targets.cpu.threads.exchanges import ExchangeRates, Rounds
    from stepnet.compiler.targets.cpu.writing.code import I8, I16, I32, I64, POINTER, Code
    from stepnet.compiler.targets.cpu.writing.elementary import ELEMENTARY

__all__ = [
    "ARM",
    "ELEMENTARY",
    "I8",
    "I16",
    "I32",
    "I64",
    "LARGE_BYTES",
    "NAMED",
    "NAMES",
    "PAIRS",
    "POINTER",
    "TILE_WRITERS",
    "VARIABLE",
    "WIDENED_PAIRS",
    "Claims",
    "Code",
    "ExchangeRates",
    "FarReads",
    "FetchList",
    "LeftOperand",
    "LlvmEngine",
    "MachineCode",
    "MatrixTiles",
    "Processor",
    "Rounds",
    "ThreadCode",
    "Tile",
    "accumulate",
    "adapt_machine",
    "arithmetic",
    "available_processors",
    "baseline",
    "beyond_neon",
    "caches",
    "cheapest",
    "chosen_processor",
    "cover",
    "cycle_seconds",
    "cycles",
    "host_processor",
    "key_of",
    "machine_for",
    "permitted",
    "store_rates",
    "stored_rates",
    "supported_processors",
    "table_machine",
    "tiles",
    "up_to",
    "without_amx",
]

__getattr__ = late_names(
    __name__,
    ("costs", "adapt_machine caches machine_for table_machine"),
    ("emit.claims", "Claims"),
    ("emit.thread_code", "ThreadCode"),
    ("engine", "LlvmEngine"),
    ("machine.machine_code", "MachineCode"),
    ("machine.processor", "ARM NAMED VARIABLE Processor available_processors baseline beyond_neon"),
    ("machine.processor", "chosen_processor host_processor permitted supported_processors up_to without_amx"),
    ("products.arithmetic", "PAIRS WIDENED_PAIRS arithmetic"),
    ("products.matrix", "TILE_WRITERS MatrixTiles"),
    ("products.reads", "FarReads cycle_seconds"),
    ("products.tile", "FetchList LeftOperand accumulate"),
    ("products.tiles", "LARGE_BYTES Tile cheapest cover cycles tiles"),
    ("rates", "NAMES key_of store_rates stored_rates"),
    ("threads.exchanges", "ExchangeRates Rounds"),
    ("writing.code", "I16 I32 I64 I8 POINTER Code"),
    ("writing.elementary", "ELEMENTARY"),
)
