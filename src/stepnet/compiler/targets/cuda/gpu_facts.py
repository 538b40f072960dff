"""The properties of a GPU, as the CUDA driver gives them."""

import ctypes

from stepnet.compiler.targets.cuda.device import DeviceFacts
from stepnet.compiler.targets.cuda.library import INSTEAD, CudaLibrary
from stepnet.errors import DeviceError

ATTRIBUTES = {
    "multiprocessors": 16,
    "major": 75,
    "minor": 76,
    "registers": 82,
    "shared": 97,
    "pools": 115,
    "clusters": 120,
}
"""The numbers that the driver gives to attributes of a device."""
LOWEST = (8, 0)
"""The lowest compute capability: the first with products of bfloat16 and tf32."""
CLUSTERS, OF_HOPPER = 8, 16
"""The most blocks of a cluster, on every GPU that has clusters and on one of capability 9.0."""


def device_of(library: CudaLibrary, number: int) -> int:
    """Returns the driver's device for the number of a GPU. Raises `DeviceError` if there is none."""
    count = library.number("cuDeviceGetCount")
    if not 0 <= number < count:
        raise DeviceError(f"there is no GPU {number} here: the CUDA driver finds {count}, from 0 on")
    return library.number("cuDeviceGet", number)


def attribute_of(library: CudaLibrary, device: int, name: str) -> int:
    """Returns an attribute of a device, by its name in `ATTRIBUTES`."""
    return library.number("cuDeviceGetAttribute", ATTRIBUTES[name], device)


def facts_of(library: CudaLibrary, device: int) -> DeviceFacts:
    """Returns the properties of a device. Raises `DeviceError` if its compute capability is below 8.0."""
    buffer = ctypes.create_string_buffer(256)
    library.call("cuDeviceGetName", buffer, 256, device)
    values = {name: attribute_of(library, device, name) for name in ATTRIBUTES}
    name, capability = buffer.value.decode(), (values["major"], values["minor"])
    if capability < LOWEST:
        raise DeviceError(
            f"{name} has compute capability {capability[0]}.{capability[1]}, and stepnet needs "
            f"{LOWEST[0]}.{LOWEST[1]} or later; {INSTEAD}"
        )
    clusters = OF_HOPPER if capability == (9, 0) else CLUSTERS
    return DeviceFacts(
        name,
        capability,
        values["multiprocessors"],
        values["shared"],
        values["registers"],
        clusters if values["clusters"] else 1,
    )
