"""Targets: engines, which compile schedules and run them, and the choice among them.

Each part of a schedule runs on the first engine, in the requested order, that does not refuse that part.
"""

from typing import TYPE_CHECKING

from stepnet.compiler.values.fork_guard import late_names

if TYPE_CHECKING:
    from stepnet.compiler.targets.base import LAYOUTS as LAYOUTS
    from stepnet.compiler.targets.base import AtTensors as AtTensors
    from stepnet.compiler.targets.base import Bound as Bound
    from stepnet.compiler.targets.base import Call as Call
    from stepnet.compiler.targets.base import CalledKernel as CalledKernel
    from stepnet.compiler.targets.base import EarlyEnds as EarlyEnds
    from stepnet.compiler.targets.base import Engine as Engine
    from stepnet.compiler.targets.base import FreezingBound as FreezingBound
    from stepnet.compiler.targets.base import Kernel as Kernel
    from stepnet.compiler.targets.base import Places as Places
    from stepnet.compiler.targets.base import PreparedCall as PreparedCall
    from stepnet.compiler.targets.base import Results as Results
    from stepnet.compiler.targets.base import RunOn as RunOn
    from stepnet.compiler.targets.base import Steps as Steps
    from stepnet.compiler.targets.base import TableLayout as TableLayout
    from stepnet.compiler.targets.base import planning_of as planning_of
    from stepnet.compiler.targets.capabilities import AddressEngine as AddressEngine
    from stepnet.compiler.targets.capabilities import DeviceEngine as DeviceEngine
    from stepnet.compiler.targets.engines import AUTO as AUTO
    from stepnet.compiler.targets.engines import ENGINES as ENGINES
    from stepnet.compiler.targets.engines import REFERENCE as REFERENCE
    from stepnet.compiler.targets.engines import VARIANTS as VARIANTS
    from stepnet.compiler.targets.engines import Order as Order
    from stepnet.compiler.targets.engines import checked_engine as checked_engine
    from stepnet.compiler.targets.engines import choose as choose
    from stepnet.compiler.targets.engines import chunks_of as chunks_of
    from stepnet.compiler.targets.engines import compiled as compiled
    from stepnet.compiler.targets.engines import devices_of as devices_of
    from stepnet.compiler.targets.engines import engine as engine
    from stepnet.compiler.targets.engines import engine_at as engine_at
    from stepnet.compiler.targets.engines import engine_named as engine_named
    from stepnet.compiler.targets.engines import engine_names as engine_names
    from stepnet.compiler.targets.engines import engines_of as engines_of
    from stepnet.compiler.targets.engines import gradient_order as gradient_order
    from stepnet.compiler.targets.engines import is_engine as is_engine
    from stepnet.compiler.targets.engines import library_engine as library_engine
    from stepnet.compiler.targets.engines import order_of as order_of
    from stepnet.compiler.targets.engines import planning_for as planning_for

__getattr__ = late_names(
    __name__,
    (
        "base",
        "LAYOUTS AtTensors Bound Call CalledKernel EarlyEnds Engine FreezingBound Kernel Places PreparedCall",
    ),
    ("base", "Results RunOn Steps TableLayout planning_of"),
    ("capabilities", "AddressEngine DeviceEngine"),
    ("engines", "AUTO ENGINES REFERENCE VARIANTS Order checked_engine choose chunks_of compiled devices_of"),
    (
        "engines",
        "engine engine_at engine_named engine_names engines_of gradient_order is_engine library_engine",
    ),
    ("engines", "order_of planning_for"),
)
