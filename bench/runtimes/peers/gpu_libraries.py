"""Libraries of recurrent kernels for GPUs: FlashRNN, flash-linear-attention and mamba_ssm.

FlashRNN runs GRUs and LSTMs, and multiplies float32 as TF32. The others run the diagonal cell: as the gated
recurrence of HGRN, and as a selective scan of one state per unit.
"""

from collections.abc import Callable
from typing import Any

from .equations import CELLS
from .torch import device_of, functions, steps_of, waited
from .worker import Array, Missing, Prepared, Refused, Work, imported

DEVICES = ("cuda",)
MODULES = {
    "flashrnn": ("flashrnn", "pip install flashrnn"),
    "fla": ("fla.ops.hgrn", "pip install flash-linear-attention"),
    "mamba_ssm": ("mamba_ssm.ops.selective_scan_interface", "pip install mamba-ssm"),
}
"""For each library its module, and how it is installed."""
Forward = Callable[[Any], Any]


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """Returns PyTorch's version; raises `Missing` without a GPU or the library."""
    torch = imported("torch", "pip install stepnet[torch]")
    if not torch.cuda.is_available():
        raise Missing("PyTorch finds no GPU here")
    imported(*MODULES[options["library"]])
    torch.set_num_threads(threads)
    return {"torch": torch.__version__}


def prepare(work: Work) -> Prepared:
    """Makes the case by the library that the options name: returns the timed call."""
    torch = imported("torch", "")
    module = imported(*MODULES[work.options["library"]])
    if not work.is_one or work.ragged:
        raise Refused("it runs one layer in one direction, on sequences of one length")
    there = device_of(torch, work)
    p = {name: torch.from_numpy(array).to(there) for name, array in work.weights.items()}
    inputs = steps_of(torch, work, "values", packed=False).transpose(0, 1).contiguous()
    forward = LIBRARIES[work.options["library"]](torch, module, work, p)

    def run() -> Any:
        """Runs the products over inputs and the recurrence, to be timed."""
        with torch.inference_mode():
            return forward(inputs)

    def outputs(result: Any) -> Array:
        """Converts outputs [batch, time, hidden] to an array with sequences end to end."""
        return work.end_to_end(result.cpu().numpy(), time_major=False)

    return Prepared(waited(torch, work, run), outputs)


def ahead(torch: Any, work: Work, p: dict[str, Any], inputs: Any) -> Any:
    """Computes what depends on inputs [batch, time, inputs] alone: [batch, time, gates hidden]."""
    batch, time, features = inputs.shape
    computed = CELLS[work.cell].ahead(inputs.reshape(batch * time, features), p, functions(torch))
    return computed.reshape(batch, time, -1)


def flashrnn(torch: Any, module: Any, work: Work, p: dict[str, Any]) -> Forward:
    """Returns FlashRNN's function for a GRU or an LSTM of one head: its fused kernels for the LSTM, and those
    for each step for the GRU, as it chooses itself.
    """
    work.needs(("gru", "lstm"), "FlashRNN")
    gates, H = {"gru": 3, "lstm": 4}[work.cell], work.hidden
    recurrent = p["R"].reshape(H, gates, H).permute(1, 2, 0)
    if work.cell == "gru":  # b is with the inputs; of the gates n, r, z, n the first has the recurrent bias
        d = p["d"].reshape(3, H)
        recurrent, b = recurrent[[2, 0, 1]], torch.stack([d[2], d[0], d[1], torch.zeros_like(d[0])])
    else:
        b = torch.zeros(gates, H, device=recurrent.device)
    recurrent, b = recurrent[:, None].contiguous(), b[:, None].contiguous()

    options = {"function": work.cell, "backend": "cuda_fused", "dtype": "float32"}

    def forward(inputs: Any) -> Any:
        """Runs all steps."""
        Wx = ahead(torch, work, p, inputs).reshape(*inputs.shape[:2], gates, 1, H)
        states, _ = module.flashrnn(Wx, recurrent, b, **options)
        return states[0, :, :, 0]

    return forward


def hgrn(torch: Any, module: Any, work: Work, p: dict[str, Any]) -> Forward:
    """Returns flash-linear-attention's function for the diagonal cell, by logarithms of what is kept."""
    work.needs(("diagonal",), "flash-linear-attention")

    def forward(inputs: Any) -> Any:
        """Runs all steps."""
        x = ahead(torch, work, p, inputs)
        return module.fused_recurrent_hgrn(x, torch.log(p["a"]).expand_as(x).contiguous())[0]

    return forward


def selective_scan(torch: Any, module: Any, work: Work, p: dict[str, Any]) -> Forward:
    """Returns mamba_ssm's function for the diagonal cell: a scan of one state per unit, of steps of one."""
    work.needs(("diagonal",), "mamba_ssm")
    ones, A = torch.ones(work.hidden, 1, device=p["a"].device), torch.log(p["a"])[:, None]

    def forward(inputs: Any) -> Any:
        """Runs all steps."""
        u = ahead(torch, work, p, inputs).transpose(1, 2).contiguous()
        return module.selective_scan_fn(u, torch.ones_like(u), A, ones, ones).transpose(1, 2)

    return forward


LIBRARIES = {"flashrnn": flashrnn, "fla": hgrn, "mamba_ssm": selective_scan}
"""For each library what makes its function: from inputs [batch, time, inputs] to outputs."""
