"""Costs of machine code for the CPU: as measured on one processor, and the rates of the processor at hand.

The sizes of caches are those that Linux reports. The rates scale with the size of a vector.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from stepnet.compiler.net.ir import Net
from stepnet.compiler.plan.load import BlockCosts, CostModel, FiberCosts, Machine
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.rates import stored_rates
from stepnet.compiler.values.fork_guard import run_without_fork

if TYPE_CHECKING:
    from stepnet.compiler.plan.groups import PairsGroup

CACHES = "sys/devices/system/cpu/cpu0/cache"
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
LANES = 64
"""The largest number of sequences that a thread runs at the same time."""
COSTS = CostModel(
    Machine(
        caches=(48 * 2**10, 2**20, 32 * 2**20),
        reads=(700e9, 170e9, 86e9, 25e9),
        rate=450e9,
        flops=90e9,
        cycle=0.25e-9,
        step=0.12e-6,
        sequence=0.12e-6,
        barrier=0.14e-6,
        handover=1.2e-6,
        exchange=6e9,
        uneven=0.005,
        block=0.3e-6,
        room=0.5,
        lost=0.75,
        kept=0.5,
        common=0.5,
        overlap=4,
        lanes=LANES,
        worth=0.95,
        block_sizes=(4, 8, 16, 32, 64),
    ),
    FiberCosts(fewest_units=8, long=16, larger=2, large=1024),
    BlockCosts(sizes=(2, 4, 8), operation=1.0, small=9.0, byte=2.5, stream=1.7, streams=10, worth=0.9),
)
"""Costs measured on a Zen 5 with vectors of 512 bits: those of the machine by `bench/partition.py`, those of
blocks for outputs and gradients (docs/measurements.md, "Steps in blocks"). What a sequence takes and what
threads exchange was not measured there; with these rates the choices stay the best. How uneven threads are,
and what they have in common of the last cache, is that of a Zen 4. Threads of a virtual machine on an Intel
of family 6.207 exchange 3.3 GB/s, and wait for 0.02 to 0.13 of a call by rows. The estimate of blocks is
imprecise: blocks of two steps of a matrix of 16 x 16 take 1.25 times as long where it is 0.97.
"""
MEASURED_BYTES = 64
"""The vector size in bytes of that processor."""
MESH_BYTES, MESH_READ, MESH_EXCHANGE, MESH_UNEVEN = 96 * 2**20, 30e9, 3.3e9, 0.06
"""A cache of the third level of more than MESH_BYTES is one of all cores of a server, behind a mesh (AMD's of
up to eight cores have 96 MB at most). A thread reads parameters there at MESH_READ bytes a second, and what
another thread has just written at MESH_EXCHANGE, and threads are as uneven as MESH_UNEVEN: measured in a
virtual machine on an Intel of family 6.207.
"""
HALVES, HALF_BYTES = ("znver4",), 32
"""Processors, by LLVM's names, whose units are of HALF_BYTES: they compute and load longer vectors in halves.
Zen 4 multiplies and loads as many bytes a cycle by instructions of AVX-512 as by those of AVX2.
"""


def find_pairs(net: Net) -> "Mapping[int, PairsGroup]":
    """Finds the groups of operations at pairs of steps, such as attention, that the llvm engine runs as one
    part; returns each by the node of its result. The module that finds them is imported only if the net has
    such operations.
    """
    if all(node.operation != "mix" for node in net.nodes):
        return {}
    found: Mapping[int, PairsGroup] = run_without_fork(
        lambda: import_module("stepnet.compiler.plan.pairs")
    ).pairs_groups(net)
    return found


LLVM_COSTS = replace(COSTS, find_pairs=find_pairs)
"""The costs of the llvm engine, which runs operations at pairs of steps as one part."""


@cache
def machine_for(processor: Processor) -> Machine:
    """Returns this machine's rates and caches, which estimate the time of code for an instruction set: those
    that were measured on it (`stepnet tune`), or else those of the table.
    """
    return stored_rates(processor) or table_machine(processor)


def table_machine(processor: Processor) -> Machine:
    """Returns the rates of the table and the caches of this machine, for an instruction set."""
    in_halves = processor.cpu in HALVES
    unit_bytes = min(processor.vector_bytes, HALF_BYTES) if in_halves else processor.vector_bytes
    return adapt_machine(COSTS.machine, caches("/"), unit_bytes)


def adapt_machine(machine: Machine, sizes: dict[int, int], vector_bytes: int) -> Machine:
    """Adapts a description of a processor to cache sizes and to the size of vectors, with which rates scale.
    A missing cache level counts as large as the level below; a third one of all cores of a server is slower.

    sizes: the cache sizes in bytes, by level from 1; empty to keep those of `machine`.
    vector_bytes: the bytes of a vector that its units compute at once.

    >>> adapt_machine(COSTS.machine, {1: 2**15, 2: 2**19, 3: 2**23}, 32).caches
    (32768, 524288, 8388608)
    >>> adapt_machine(COSTS.machine, {1: 2**16, 2: 2**22}, 16).caches
    (65536, 4194304, 4194304)
    """
    first = sizes.get(1, machine.caches[0])
    second = max(first, sizes.get(2, first if sizes else machine.caches[1]))
    third = max(second, sizes.get(3, second if sizes else machine.caches[2]))
    scale = vector_bytes / MEASURED_BYTES
    if sizes.get(3, 0) > MESH_BYTES:
        far = min(machine.reads[3], MESH_READ)
        reads = *machine.reads[:2], min(machine.reads[2], MESH_READ), far
        machine = replace(machine, reads=reads, exchange=MESH_EXCHANGE, uneven=MESH_UNEVEN)
    reads = machine.reads[0] * scale, *machine.reads[1:]
    return replace(
        machine,
        caches=(first, second, third),
        reads=reads,
        rate=machine.rate * scale,
        flops=machine.flops * scale,
    )


def caches(root: str) -> dict[int, int]:
    """Reads the sizes in bytes of this processor's data caches, by level, from Linux. Levels that the system
    does not report are missing. root: the folder that holds `sys`: "/", or a test's.
    """
    sizes: dict[int, int] = {}
    place = os.path.join(root, *CACHES.split("/"))
    names = sorted(os.listdir(place)) if os.path.isdir(place) else []
    for folder in (os.path.join(place, name) for name in names if name.startswith("index")):
        try:
            kind, level, size = (read_line(os.path.join(folder, name)) for name in ("type", "level", "size"))
        except OSError:
            continue
        number, unit = (size[:-1], size[-1:]) if size[-1:] in UNITS else (size, "")
        if kind != "Instruction" and level.isdecimal() and number.isdecimal():
            sizes[int(level)] = int(number) * UNITS[unit]
    return sizes


def read_line(path: str) -> str:
    """Reads a system file of one line; raises `OSError`."""
    with open(path) as file:
        return file.read().strip()
