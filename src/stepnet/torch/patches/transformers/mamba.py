"""State spaces: the functions of Mamba and Mamba-2. Functions take the arguments of transformers' own, by
name and meaning.
"""

from typing import Any

import numpy as np

from stepnet.cells.state_space import mamba, mamba2
from stepnet.compiler.trace.functions import silu, softplus
from stepnet.compiler.values.records import dataclass
from stepnet.torch.patches.transformers.adjoints import Decayed, in_one_dtype, needs_gradients
from stepnet.torch.patches.transformers.records import FunctionPatch
from stepnet.torch.patches.transformers.scan import scan
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
NO_LIMIT = (0.0, float("inf"))


# ---- the steps ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepSize:
    """Computes the step size from dt: adds the parameter dt_bias if there is one, then limits the sum.

    positive: whether softplus makes the sum positive. low, high: the limits.
    """

    positive: bool
    low: float = 0.0
    high: float = float("inf")

    def __call__(self, dt: Any, params: Any) -> Any:
        """Computes the step size of a state space from dt: adds the bias `dt_bias` if `params` has it, makes
        it positive by a softplus if `self.positive`, and limits it to `self.low` and `self.high`.
        """
        dt = dt + params["dt_bias"] if "dt_bias" in params else dt
        dt = softplus(dt) if self.positive else dt
        dt = np.maximum(dt, self.low) if self.low > 0 or not self.positive else dt
        return np.minimum(dt, self.high) if self.high < float("inf") else dt


@dataclass(frozen=True)
class StateSpace:
    """Step of Mamba, or with `heads` of Mamba-2. Its output is gated by the input z if there is one.

    rate: computes the step size from the input dt.
    """

    rate: StepSize
    heads: bool

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Computes a step of Mamba, or of Mamba-2 if `self.heads`; returns (y, memory).

        x: a dict of the inputs x, dt (from which the step size follows), B and C, and perhaps the gate z.
        memory: the state. params: A, and perhaps D and dt_bias.
        """
        cell = mamba2 if self.heads else mamba
        inputs = {name: x[name] for name in ("x", "B", "C")} | {"dt": self.rate(x["dt"], params)}
        y, memory = cell(inputs, memory, {name: params[name] for name in ("A", "D") if name in params})
        return (y * silu(x["z"]) if "z" in x else y), memory


# ---- the functions -----------------------------------------------------------------------------------------


def given_tensors(**tensors: Any) -> dict[str, Any]:
    """Returns the tensors that are not None, by name: optional arguments that were given."""
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def mamba_selective_scan(
    hidden_states: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    delta_bias: Any = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    use_mambapy: bool = False,
    use_associative_scan: bool = False,
) -> Any:
    """Computes Mamba's selective scan from a state of zeros, in place of transformers' function.

    Returns the outputs [batch, channels, time], and with `return_last_state` the last state [batch, channels,
    states].

    Args:
        hidden_states: [batch, channels, time].
        dt: As hidden_states.
        A: [channels, states].
        B: [batch, states, time].
        C: As B.
        D: [channels] or none.
        z: As hidden_states, or none.
        delta_bias: [channels] or none.
        delta_softplus: Whether dt goes through a softplus.
        return_last_state: Whether the last state is returned, too.
        use_mambapy: Ignored; in transformers another algorithm for these results.
        use_associative_scan: Ignored, as use_mambapy.
    """
    x = given_tensors(x=hidden_states, dt=dt, B=B, C=C, z=z)
    step = StateSpace(StepSize(delta_softplus), heads=False)
    outputs, last = scan(
        step,
        {name: tensor.transpose(1, 2) for name, tensor in x.items()},
        [None],
        [tuple(A.shape)],
        given_tensors(A=A, D=D, dt_bias=delta_bias),
    )
    outputs = outputs.transpose(1, 2).to(hidden_states.dtype)
    return (outputs, last) if return_last_state else outputs


def mamba2_chunk_scan(
    hidden_states: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    chunk_size: int,
    D: Any = None,
    dt_bias: Any = None,
    initial_states: Any = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = NO_LIMIT,
    return_final_states: bool = False,
) -> Any:
    """Computes Mamba-2's scan in place of transformers' function.

    Returns the outputs [batch, time, heads, features], and with `return_final_states` the last state [batch,
    heads, features, states].

    Args:
        hidden_states: [batch, time, heads, features].
        dt: [batch, time, heads].
        A: [heads].
        B: [batch, time, groups, states].
        C: As B.
        chunk_size: Ignored; in transformers the number of steps of a chunk.
        D: [heads] or none.
        dt_bias: [heads] or none.
        initial_states: The initial state, or none.
        dt_softplus: Whether dt goes through a softplus.
        dt_limit: The limits of dt after that.
        return_final_states: Whether the last state is returned, too.
    """
    heads, features = hidden_states.shape[2:]
    x, params = {"x": hidden_states, "dt": dt, "B": B, "C": C}, given_tensors(A=A, D=D, dt_bias=dt_bias)
    rate, shape = StepSize(dt_softplus, *map(float, dt_limit)), (heads, features, B.shape[-1])
    if needs_gradients(*x.values(), *params.values(), initial_states):
        outputs, last = with_gradients(rate, x, initial_states, shape, params)
    else:
        step = StateSpace(rate, heads=True)
        outputs, last = scan(step, x, [initial_states], [shape], params)
    return (outputs, last) if return_final_states else outputs


def with_gradients(
    rate: StepSize, x: dict[str, Any], state: Any, shape: tuple[int, ...], params: dict[str, Any]
) -> tuple[Any, Any]:
    """Computes Mamba-2's scan by the autograd function `Decayed`, whose gradients take little memory.

    Returns the outputs and the last state. rate: limits the step sizes, and says if softplus makes them
    positive. x: the inputs x, dt, B and C. state: the first state; None for zeros. shape: of one row's state.
    params: A, and D and dt_bias if there are any.
    """
    x, (first,) = in_one_dtype(x, [state], [shape])
    dt = x["dt"] + params["dt_bias"] if "dt_bias" in params else x["dt"]
    dt = torch.nn.functional.softplus(dt) if rate.positive else dt
    dt = torch.clamp(dt, rate.low, rate.high)
    B, C = (x[name].repeat_interleave(shape[0] // x[name].shape[2], 2) for name in ("B", "C"))
    y, last = Decayed.apply(dt * params["A"], dt[..., None] * x["x"], B, C, first)
    return y + params["D"][:, None] * x["x"] if "D" in params else y, last


def selective_state_update(
    state: Any,
    hidden_states: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    dt_bias: Any = None,
    dt_softplus: bool = False,
    z: Any = None,
) -> Any:
    """Computes one step of Mamba or Mamba-2 in place of transformers' function; changes the state in place.

    Returns the output, in the shape of hidden_states.

    Args:
        state: [batch, channels, states]; of Mamba-2 [batch, heads, features, states].
        hidden_states: As state, without states.
        dt: As hidden_states.
        A: As state, without batch.
        B: [batch, states]; of Mamba-2 [batch, groups, states].
        C: As B.
        D: As hidden_states, without batch; or none.
        dt_bias: As D.
        dt_softplus: Whether dt goes through a softplus.
        z: As hidden_states, or none.

    Of Mamba-2, dt, A, D and dt_bias have the same number for all of a head (`is_per_head`).
    """
    heads = state.dim() == 4
    x = given_tensors(x=hidden_states, dt=dt[..., 0] if heads else dt, B=B, C=C, z=z)
    params = given_tensors(A=A, D=D, dt_bias=dt_bias)
    if heads:
        params = {name: tensor[:, *[0] * (tensor.dim() - 1)] for name, tensor in params.items()}
    outputs, last = scan(
        StateSpace(StepSize(dt_softplus), heads),
        {name: tensor[:, None] for name, tensor in x.items()},
        [state],
        [tuple(state.shape[1:])],
        params,
    )
    state.copy_(last)
    return outputs[:, 0].to(hidden_states.dtype)


def is_per_head(
    state: Any,
    hidden_states: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    dt_bias: Any = None,
    *_: Any,
    **__: Any,
) -> bool:
    """Tells whether stepnet can run a step of Mamba-2: dt, A, D and dt_bias have one number per head.

    It takes the arguments of `selective_state_update`. Such numbers are expanded to all features of a head,
    so that the stride of these axes is 0; kernels take one for each feature.
    """
    along = ((dt, 2), (A, 1), (A, 2), (D, 1), (dt_bias, 1))
    return all(
        tensor is None or tensor.stride(axis) == 0 or tensor.shape[axis] == 1 for tensor, axis in along
    )


# ---- the rows ----------------------------------------------------------------------------------------------

FUNCTIONS = {
    "mamba_selective_scan": FunctionPatch(
        mamba_selective_scan,
        "hidden_states:bct dt:bct A:cn B:bnt C:bnt D:c z:bct delta_bias:c",
        (("delta_softplus", True), ("return_last_state", True)),
    ),
    "mamba_selective_state_update": FunctionPatch(
        selective_state_update,
        "state:bcn hidden_states:bc dt:bc A:cn B:bn C:bn D:c z:bc dt_bias:c",
        (("dt_softplus", True),),
        is_token=True,
    ),
    "mamba2_chunk_scan": FunctionPatch(
        mamba2_chunk_scan,
        "hidden_states:bthp dt:bth A:h B:btgn C:btgn D:h dt_bias:h initial_states:bhpn",
        (("chunk_size", 2), ("dt_softplus", True), ("return_final_states", True)),
    ),
    "mamba2_selective_state_update": FunctionPatch(
        selective_state_update,
        "state:bhpn hidden_states:bhp dt:bhP A:hPN B:bgn C:bgn D:hP dt_bias:hP",
        (("dt_softplus", True),),
        is_per_head,
        is_token=True,
    ),
}
