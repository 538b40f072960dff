"""The properties of a GPU, as the CUDA driver gives them."""

import ctypes

from stepnet.compiler.targets.cuda.device import DeviceFacts
from stepnet.compiler.targets.cuda.driver.library import INSTEAD, CudaLibrary
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

KNOWN = (
    DeviceFacts("NVIDIA A100", (8, 0), 108, 166912),
    DeviceFacts("NVIDIA GeForce RTX 3090", (8, 6), 82, 101376),
    DeviceFacts("NVIDIA L40", (8, 9), 142, 101376),
    DeviceFacts("NVIDIA H100", (9, 0), 132, 232448, cluster=OF_HOPPER),
    DeviceFacts("NVIDIA B200", (10, 0), 148, 232448, cluster=CLUSTERS),
    DeviceFacts("NVIDIA GeForce RTX 5090", (12, 0), 170, 101376, cluster=CLUSTERS),
)
"""A GPU of each compute capability, the lowest first, to choose kernels without one."""


def known_facts(capability: tuple[int, int]) -> DeviceFacts:
    """Returns the properties of a GPU of a compute capability, from 8.0 on, or of the next lower one that is
    known.

    >>> known_facts((8, 7)).name, [known_facts((major, 0)).cluster for major in (8, 9, 10, 13)]
    ('NVIDIA GeForce RTX 3090', [1, 16, 8, 8])
    """
    return next(facts for facts in reversed(KNOWN) if facts.capability <= capability)


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
