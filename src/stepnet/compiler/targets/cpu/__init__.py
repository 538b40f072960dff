"""Machine code for the CPU, by LLVM.

Names are imported when they are first used: code that is on disk is loaded without LLVM, and
other targets that take a part of this one do without the rest.
"""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import late_names

if TYPE_CHECKING:
    from stepnet.compiler.targets.cpu.costs import adapt_machine as adapt_machine
    from stepnet.compiler.targets.cpu.costs import caches as caches
    from stepnet.compiler.targets.cpu.costs import machine_for as machine_for
    from stepnet.compiler.targets.cpu.costs import table_machine as table_machine
    from stepnet.compiler.targets.cpu.emit.claims import Claims as Claims
    from stepnet.compiler.targets.cpu.emit.thread_code import ThreadCode as ThreadCode
    from stepnet.compiler.targets.cpu.engine import LlvmEngine as LlvmEngine
    from stepnet.compiler.targets.cpu.machine.machine_code import MachineCode as MachineCode
    from stepnet.compiler.targets.cpu.machine.processor import ARM as ARM
    from stepnet.compiler.targets.cpu.machine.processor import NAMED as NAMED
    from stepnet.compiler.targets.cpu.machine.processor import VARIABLE as VARIABLE
    from stepnet.compiler.targets.cpu.machine.processor import Processor as Processor
    from stepnet.compiler.targets.cpu.machine.processor import available_processors as available_processors
    from stepnet.compiler.targets.cpu.machine.processor import baseline as baseline
    from stepnet.compiler.targets.cpu.machine.processor import beyond_neon as beyond_neon
    from stepnet.compiler.targets.cpu.machine.processor import chosen_processor as chosen_processor
    from stepnet.compiler.targets.cpu.machine.processor import host_processor as host_processor
    from stepnet.compiler.targets.cpu.machine.processor import permitted as permitted
    from stepnet.compiler.targets.cpu.machine.processor import supported_processors as supported_processors
    from stepnet.compiler.targets.cpu.machine.processor import up_to as up_to
    from stepnet.compiler.targets.cpu.machine.processor import without_amx as without_amx
    from stepnet.compiler.targets.cpu.products.arithmetic import PAIRS as PAIRS
    from stepnet.compiler.targets.cpu.products.arithmetic import WIDENED_PAIRS as WIDENED_PAIRS
    from stepnet.compiler.targets.cpu.products.arithmetic import arithmetic as arithmetic
    from stepnet.compiler.targets.cpu.products.matrix import TILE_WRITERS as TILE_WRITERS
    from stepnet.compiler.targets.cpu.products.matrix import MatrixTiles as MatrixTiles
    from stepnet.compiler.targets.cpu.products.reads import FarReads as FarReads
    from stepnet.compiler.targets.cpu.products.reads import cycle_seconds as cycle_seconds
    from stepnet.compiler.targets.cpu.products.tile import FetchList as FetchList
    from stepnet.compiler.targets.cpu.products.tile import LeftOperand as LeftOperand
    from stepnet.compiler.targets.cpu.products.tile import accumulate as accumulate
    from stepnet.compiler.targets.cpu.products.tiles import LARGE_BYTES as LARGE_BYTES
    from stepnet.compiler.targets.cpu.products.tiles import Tile as Tile
    from stepnet.compiler.targets.cpu.products.tiles import cheapest as cheapest
    from stepnet.compiler.targets.cpu.products.tiles import cover as cover
    from stepnet.compiler.targets.cpu.products.tiles import cycles as cycles
    from stepnet.compiler.targets.cpu.products.tiles import tiles as tiles
    from stepnet.compiler.targets.cpu.rates import NAMES as NAMES
    from stepnet.compiler.targets.cpu.rates import key_of as key_of
    from stepnet.compiler.targets.cpu.rates import store_rates as store_rates
    from stepnet.compiler.targets.cpu.rates import stored_rates as stored_rates
    from stepnet.compiler.targets.cpu.threads.exchanges import ExchangeRates as ExchangeRates
    from stepnet.compiler.targets.cpu.threads.exchanges import Rounds as Rounds
    from stepnet.compiler.targets.cpu.writing.code import I8 as I8
    from stepnet.compiler.targets.cpu.writing.code import I16 as I16
    from stepnet.compiler.targets.cpu.writing.code import I32 as I32
    from stepnet.compiler.targets.cpu.writing.code import I64 as I64
    from stepnet.compiler.targets.cpu.writing.code import POINTER as POINTER
    from stepnet.compiler.targets.cpu.writing.code import Code as Code
    from stepnet.compiler.targets.cpu.writing.elementary import ELEMENTARY as ELEMENTARY

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
