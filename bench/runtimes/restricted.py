"""The instructions that runtimes may use: all of the processor, or with STEPNET_CPU those of a narrower one.

STEPNET_CPU=x86-64-v3, torch --> the variables with which torch's libraries use AVX2 at most

An AVX-512 machine stands for one with AVX2 that way. Its caches and clock stay what they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench.runtimes.runner import OURS, Peer
from stepnet.compiler.targets.cpu.machine.processor import VARIABLE, requested

MKL, ONEDNN = {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}, {"ONEDNN_MAX_CPU_ISA": "AVX2"}

VARIABLES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "x86-64-v3": {
        OURS: {},  # the processes inherit the variable
        "onednn": ONEDNN,
        "torch": {"ATEN_CPU_CAPABILITY": "avx2", **MKL, **ONEDNN},
    },
}
"""Per value of STEPNET_CPU and module of a peer, the environment variables that restrict the peer alike.

The others use what the processor has. With the variables of their libraries a product of JAX still had 225
GFLOP/s (--xla_cpu_max_isa), where AVX2 has 157 in all, and OpenVINO 0.82 to 0.94 of its rate (oneDNN's),
where half is AVX2's; onnxruntime, PaddlePaddle, TensorFlow and the prototype have none.
"""


def restricted(peers: Sequence[Peer]) -> tuple[list[Peer], dict[str, str]]:
    """Returns the peers that run, with their variables, and per name of each other one why it is left out.

    Without STEPNET_CPU all of them run, with no variables.
    """
    name = requested()
    if name in ("", "native"):
        return list(peers), {}
    table = VARIABLES.get(name, {OURS: {}})
    why = f"no variable restricts it to the instructions of {VARIABLE}={name}"
    return (
        [replace(peer, variables=table[peer.module]) for peer in peers if peer.module in table],
        {peer.name: why for peer in peers if peer.module not in table},
    )
