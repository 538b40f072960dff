"""What stands in for transformers' functions of state spaces: Mamba's and Mamba-2's.

The arguments are those of transformers, by name and meaning.
"""

from typing import Any

from stepnet.torch.pytorch import pytorch
from stepnet.torch.seams.adjoints import Decayed, in_one_dtype, is_for
from stepnet.torch.seams.scan import scan
from stepnet.torch.seams.steps import StateSpace, StepSize

torch: Any = pytorch("torch")
NO_LIMIT = (0.0, float("inf"))


def present(**tensors: Any) -> dict[str, Any]:
    """Drops the tensors that are None, and returns the others by name."""
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
        return_last_state: Whether the last state is given, too.
        use_mambapy: Another way of transformers to the same result.
        use_associative_scan: And another.
    """
    x = present(x=hidden_states, dt=dt, B=B, C=C, z=z)
    step = StateSpace(StepSize(delta_softplus), heads=False)
    outputs, (last,) = scan(
        step,
        {name: tensor.transpose(1, 2) for name, tensor in x.items()},
        [None],
        [tuple(A.shape)],
        present(A=A, D=D, dt_bias=delta_bias),
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
        chunk_size: How transformers cuts time into pieces.
        D: [heads] or none.
        dt_bias: [heads] or none.
        initial_states: The state to begin with, or none.
        dt_softplus: Whether dt goes through a softplus.
        dt_limit: Between which numbers it is after that.
        return_final_states: Whether the last state is given, too.
    """
    heads, features = hidden_states.shape[2:]
    x, params = {"x": hidden_states, "dt": dt, "B": B, "C": C}, present(A=A, D=D, dt_bias=dt_bias)
    rate, shape = StepSize(dt_softplus, *map(float, dt_limit)), (heads, features, B.shape[-1])
    if is_for(*x.values(), *params.values(), initial_states):
        outputs, last = with_gradients(rate, x, initial_states, shape, params)
    else:
        step = StateSpace(rate, heads=True)
        outputs, (last,) = scan(step, x, [initial_states], [shape], params)
    return (outputs, last) if return_final_states else outputs


def with_gradients(
    rate: StepSize, x: dict[str, Any], state: Any, shape: tuple[int, ...], params: dict[str, Any]
) -> tuple[Any, Any]:
    """Computes Mamba-2's scan with the gradients of `Decayed`; PyTorch makes the step sizes and their
    gradients.

    Returns the outputs and the last state. state: the first one; None for zeros.
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
    x = present(x=hidden_states, dt=dt[..., 0] if heads else dt, B=B, C=C, z=z)
    params = present(A=A, D=D, dt_bias=dt_bias)
    if heads:
        params = {name: tensor[:, *[0] * (tensor.dim() - 1)] for name, tensor in params.items()}
    outputs, (last,) = scan(
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
    """Tells whether a step of Mamba-2 has one number of dt, A, D and dt_bias per head, as stepnet's cell
    does.

    Such numbers are expanded to all features of a head; kernels take one for each feature.
    """
    along = ((dt, 2), (A, 1), (A, 2), (D, 1), (dt_bias, 1))
    return all(
        tensor is None or tensor.stride(axis) == 0 or tensor.shape[axis] == 1 for tensor, axis in along
    )
