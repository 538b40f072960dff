"""Plans and schedules of nets for the engine llvm."""

from stepnet.compiler.net import Net
from stepnet.compiler.plan import Plan, Schedule, planned
from stepnet.compiler.targets import planning_of
from stepnet.compiler.targets.cpu import LlvmEngine

CPU = planning_of(LlvmEngine())


def plan(net: Net) -> Plan:
    return planned(net, CPU)


def schedule(net: Net) -> Schedule:
    return Schedule(net, CPU)
