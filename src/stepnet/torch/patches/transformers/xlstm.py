"""xLSTM: the recurrence of the mLSTM, `xLSTMBackend.forward` of transformers.

With gradients it is a linear recurrence of a longer value: the sum of keys n is one more row of the state.

    C = f C + i v k                        [C]         [C]       [v]
    n = f n + i k               ->         [n]  =  f   [n]  + i  [1]  k
"""

from collections.abc import Sequence
from typing import Any

from stepnet.cells.xlstm import output_fraction
from stepnet.compiler.values.records import dataclass
from stepnet.torch.patches.transformers.adjoints import Decayed, in_one_dtype, needs_gradients
from stepnet.torch.patches.transformers.records import FunctionPatch
from stepnet.torch.patches.transformers.scan import scan
from stepnet.torch.pytorch import pytorch

torch: Any = pytorch("torch")
NEAR = 32.0
"""The largest difference of two exponents. float32 holds exp(-87); half of that leaves room for digits."""


@dataclass(frozen=True)
class MatrixLSTM:
    """Step of the mLSTM, whose memory is (C, n, m). eps: added to the divisor of outputs."""

    eps: float

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Computes a step of the mLSTM; returns the output and the next memory.

        x: a dict of the query q, the key k, the value v, and the arguments i and f of the input and forget
        gates. memory: (C, n, m), the matrix, the sum of keys, and the exponent by which both are scaled.
        params: not read.
        """
        query = x["q"] * x["q"].shape[-1] ** -0.5
        output, over, after = output_fraction({**x, "q": query}, dict(zip("Cnm", memory, strict=True)))
        return output / (over + self.eps)[..., None], tuple(after.values())


def mlstm(
    self: Any,
    query: Any,
    key: Any,
    value: Any,
    igate: Any,
    fgate: Any,
    c_initial: Any = None,
    n_initial: Any = None,
    m_initial: Any = None,
    return_last_states: Any = None,
    mode: Any = None,
) -> Any:
    """Computes the mLSTM in place of `xLSTMBackend.forward`.

    Returns the outputs [batch, heads, time, value] and the last states; in a mode "train" without
    `return_last_states` only the outputs.

    Args:
        self: The layer, whose configuration is read.
        query: [batch, heads, time, key].
        key: As query.
        value: [batch, heads, time, value].
        igate: The argument of the input gate's exp [batch, heads, time].
        fgate: The argument of the forget gate's sigmoid, as igate.
        c_initial: The initial state [batch, heads, key, value], or none.
        n_initial: The initial sum of the keys [batch, heads, key], or none.
        m_initial: The initial exponent that both are divided by [batch, heads, 1], or none.
        return_last_states: Of a mode "train"; None is the configuration's.
        mode: "inference" or one of "train"; None is the configuration's.
    """
    named = {"q": query, "k": key, "v": value, "i": igate, "f": fgate}
    x = {name: tensor.transpose(1, 2) for name, tensor in named.items()}
    states = c_initial, n_initial, None if m_initial is None else m_initial[..., 0]
    heads, size = key.shape[1], key.shape[3]
    shapes = (heads, size, value.shape[3]), (heads, size), (heads,)
    if needs_gradients(*x.values(), *states):
        outputs, *last = with_gradients(x, states, shapes, self.config.eps)
    else:
        outputs, *last = scan(MatrixLSTM(self.config.eps), x, states, shapes, {})
    outputs = outputs.transpose(1, 2).to(query.dtype)
    if "train" in (self.config.mode if mode is None else mode):
        wanted = self.config.return_last_states if return_last_states is None else return_last_states
        if not wanted:
            return outputs
    return outputs, (last[0], last[1], last[2][..., None])


def with_gradients(
    x: dict[str, Any], states: Sequence[Any], shapes: Sequence[tuple[int, ...]], eps: float
) -> tuple[Any, ...]:
    """Computes the mLSTM by the autograd function `Decayed`, whose gradients take little memory.

    Returns the outputs and the last C, n and m. x: the inputs q, k, v, i and f. states: the initial C, n and
    m; None for zeros. shapes: of one row of each. eps: added to the divisor of outputs.

    The exponents m[t] = max(m[t - 1] + log f[t], i[t]) are b + max(m[-1], i - b), where b is the sum of log f
    so far. All is divided by exp(m); this cancels in the outputs, except for eps, and not in the last states.
    So exp(`over`) is the divisor instead, the last i that determined m, as long as m is near it: it stays the
    same for many steps, in which m[t - 1] - m[t] would have rounding errors.
    """
    x, (C, n, m) = in_one_dtype(x, states, shapes)
    forget = torch.nn.functional.logsigmoid(x["f"])
    sums = forget.cumsum(1)
    largest, places = torch.cat([m[:, None], x["i"] - sums], 1).cummax(1)
    most = sums + largest[:, 1:]
    over = torch.cat([m[:, None], x["i"]], 1).gather(1, places[:, 1:])
    over = over - NEAR * torch.trunc((over - most).detach() / NEAR)
    scale = torch.exp(most - over)
    before = torch.cat([m[:, None], over[:, :-1]], 1) - over
    ones = x["v"].new_ones(*x["v"].shape[:-1], 1)
    new = torch.exp(x["i"] - over)[..., None] * torch.cat([x["v"], ones], -1)
    first = torch.cat([C.mT, n[..., None, :]], -2)
    query = x["q"] * x["q"].shape[-1] ** -0.5
    y, last = Decayed.apply(before + forget, new, x["k"], query, first)
    divisor = torch.maximum(y[..., -1:].abs(), torch.exp(-over)[..., None]) + eps * scale[..., None]
    last = last / scale[:, -1, :, None, None]
    states = last[..., :-1, :].mT, last[..., -1, :], most[:, -1].clone()
    return y[..., :-1] / divisor, *states


METHODS = {
    "xLSTMBackend.forward": FunctionPatch(
        mlstm,
        "query:bhtk key:bhtk value:bhtv igate:bht fgate:bht c_initial:bhkv n_initial:bhk m_initial:bh1",
        config=(("chunk_size", 2), ("eps", 0.5)),
        is_half_refused=True,
    ),
}
