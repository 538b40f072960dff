"""Recurrences from papers: each is a cell of a few lines that `Recurrence` runs.

    rnn = LayerNormLSTM(inputs, hidden, batch_first=True)        outputs, (h, c) = rnn(x)

Like every `Recurrence`, they take tensors, `PackedSequence`s or jagged nested tensors. Random numbers are
drawn with PyTorch's generator before the steps, in training mode only.
"""

from typing import Any

from stepnet.errors import InputError
from stepnet.torch.pytorch import pytorch
from stepnet.torch.recurrence import Recurrence
from stepnet.torch.sequences import ModuleSequences

torch: Any = pytorch("torch")
nn: Any = torch.nn
sigmoid, tanh = torch.sigmoid, torch.tanh


class Ready(Recurrence):
    """Base class of the recurrences of this module: a `Recurrence` of a given cell."""

    def __init__(
        self,
        cell: Any,
        inputs: int,
        hidden: int,
        *,
        paired: bool,
        extra: int = 0,
        statics: Any = None,
        **options: Any,
    ) -> None:
        """Creates the `Recurrence` of a cell module, with an example call made from the sizes.

        inputs, hidden: numbers of features. paired: whether the state is a pair (h, c).
        extra: the number of features that the cell gets after the inputs, such as a mask.
        statics: an example of its statics (values for all steps). options: other arguments of `Recurrence`.
        """
        state = torch.zeros(1, hidden)
        example = torch.zeros(1, inputs + extra), (state, state) if paired else state
        super().__init__(cell, example, statics=statics, **options)
        self.inputs, self.hidden = inputs, hidden


def checked_probability(value: float, name: str) -> float:
    """Returns the probability `value`; raises `InputError` unless 0 <= value < 1. name: for the message."""
    if not 0 <= value < 1:
        raise InputError(f"{name} is a probability from 0, below 1, not {value}")
    return value


# ---- layer normalisation -----------------------------------------------------------------------------------


class LayerNormLSTMCell(nn.Module):
    """One step of `LayerNormLSTM`."""

    def __init__(self, inputs: int, hidden: int, eps: float) -> None:
        """Creates the matrices and the layer norms of an LSTM cell with layer normalisation. eps: a number
        that is added to variances.
        """
        super().__init__()  # type: ignore[misc]
        self.from_x = nn.Linear(inputs, 4 * hidden, bias=False)
        self.from_h = nn.Linear(hidden, 4 * hidden, bias=False)
        self.norm_x, self.norm_h = (nn.LayerNorm(4 * hidden, eps) for _ in range(2))
        self.norm_c, self.bias = nn.LayerNorm(hidden, eps), nn.Parameter(torch.zeros(4 * hidden))

    def forward(self, x: Any, state: Any) -> Any:
        """Computes a step of the LSTM with layer normalisation: the next (h, c) from x and (h, c)."""
        h, c = state
        gates = self.norm_h(self.from_h(h)) + self.norm_x(self.from_x(x)) + self.bias
        f, i, o, g = gates.chunk(4, -1)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(self.norm_c(c)), c


class LayerNormLSTM(Ready):
    """The LSTM with layer normalisation of both products and of the cell.

    J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer normalization", 2016 (arXiv 1607.06450), equations 20 to
    22: f, i, o, g = LN(R h) + LN(W x) + b;  c' = sigmoid(f) c + sigmoid(i) tanh(g);
    h' = sigmoid(o) tanh(LN(c')).

    The state is (h, c). eps: a number that is added to variances.

    >>> import torch, stepnet.torch.ready
    >>> outputs, (h, c) = stepnet.torch.ready.LayerNormLSTM(3, 4)(torch.ones(5, 2, 3))
    >>> outputs.shape, c.shape
    (torch.Size([5, 2, 4]), torch.Size([2, 4]))
    """

    def __init__(self, inputs: int, hidden: int, eps: float = 1e-5, **options: Any) -> None:
        """Creates the cell and the recurrence. options: arguments of `Recurrence`, such as batch_first."""
        super().__init__(LayerNormLSTMCell(inputs, hidden, eps), inputs, hidden, paired=True, **options)


# ---- zoneout -----------------------------------------------------------------------------------------------


class ZoneoutGRUCell(nn.Module):
    """A step of `ZoneoutGRU`. In training, x has the inputs, then the mask of units that keep their state."""

    def __init__(self, inputs: int, hidden: int, zoneout: float) -> None:
        """Creates a GRU cell with zoneout, the probability that a unit keeps its memory."""
        super().__init__()  # type: ignore[misc]
        self.inputs, self.zoneout = inputs, zoneout
        self.cell = nn.GRUCell(inputs, hidden)

    def forward(self, x: Any, h: Any) -> Any:
        """Computes a step of the GRU with zoneout: the next h, a mix of h and the GRU's. In training, the
        mask in x says where h stays; otherwise `zoneout` is the share of h.
        """
        mask = x[..., self.inputs :] if self.training else self.zoneout
        return mask * h + (1 - mask) * self.cell(x[..., : self.inputs], h)


class ZoneoutGRU(Ready):
    """The GRU with zoneout: at each step, randomly chosen units keep their memory.

    D. Krueger and others, "Zoneout: regularizing RNNs by randomly preserving hidden activations", ICLR 2017
    (arXiv 1606.01305, 2016): h' = d h + (1 - d) GRU(x, h). In training, each d is 1 with probability
    `zoneout`, drawn anew at each step; in evaluation, d = `zoneout`.

    The state is h.

    >>> import torch, stepnet.torch.ready
    >>> outputs, h = stepnet.torch.ready.ZoneoutGRU(3, 4, zoneout=0.1)(torch.ones(5, 2, 3))
    >>> outputs.shape
    torch.Size([5, 2, 4])
    """

    def __init__(self, inputs: int, hidden: int, zoneout: float = 0.1, **options: Any) -> None:
        """Creates a GRU with zoneout: its cell, and the recurrence that runs the cell over sequences.
        zoneout: the probability that a unit keeps its memory. options: arguments of `Recurrence`, such as
        batch_first.
        """
        cell = ZoneoutGRUCell(inputs, hidden, checked_probability(zoneout, "zoneout"))
        super().__init__(cell, inputs, hidden, paired=False, extra=hidden, **options)
        self.zoneout = zoneout

    def forward(self, input: Any, state: Any = None) -> Any:  # type: ignore[override]  # noqa: A002
        """Runs the recurrence over `input` from `state`. In training, draws a zoneout mask for each step,
        which the cell reads beside the input; in evaluation these masks are zeros and not read.

        Returns the outputs, in the form of the sequences, and the last h.
        """
        sequences = ModuleSequences.of(input, self.batch_first)
        mask = sequences.data.new_zeros(*sequences.data.shape[:-1], self.hidden)
        if self.training:
            mask.bernoulli_(self.zoneout)
        return super().forward(sequences.form(torch.cat([sequences.data, mask], -1)), state)


# ---- variational dropout -----------------------------------------------------------------------------------


class VariationalLSTMCell(nn.Module):
    """One step of `VariationalLSTM`, whose statics are the masks of x and h."""

    def __init__(self, inputs: int, hidden: int) -> None:
        """Creates the LSTM cell that is called with masked inputs."""
        super().__init__()  # type: ignore[misc]
        self.cell = nn.LSTMCell(inputs, hidden)

    def forward(self, x: Any, state: Any, statics: Any) -> Any:
        """Computes a step of the LSTM, the next (h, c), with dropout masks of x and h as `statics`."""
        (h, c), (x_mask, h_mask) = state, statics
        return self.cell(x * x_mask, (h * h_mask, c))


class VariationalLSTM(Ready):
    """The LSTM with dropout of its inputs and of h, with the same masks at all steps of a sequence.

    Y. Gal and Z. Ghahramani, "A theoretically grounded application of dropout in recurrent neural networks",
    NIPS 2016 (arXiv 1512.05287): h', c' = LSTM(x m_x, (h m_h, c)). In training, each number of m_x and m_h is
    0 with probability `dropout`, and 1 / (1 - dropout) otherwise; in evaluation, all are 1. The four gates
    share their masks ("tied weights" in the paper).

    The state is (h, c).

    >>> import torch, stepnet.torch.ready
    >>> outputs, (h, c) = stepnet.torch.ready.VariationalLSTM(3, 4, dropout=0.25)(torch.ones(5, 2, 3))
    >>> outputs.shape
    torch.Size([5, 2, 4])
    """

    def __init__(self, inputs: int, hidden: int, dropout: float = 0.25, **options: Any) -> None:
        """Creates an LSTM with variational dropout, which has one mask for all steps of a sequence: its cell,
        and the recurrence that runs it. options: arguments of `Recurrence`, such as batch_first.
        """
        masks = torch.ones(1, inputs), torch.ones(1, hidden)
        known = checked_probability(dropout, "dropout")
        cell = VariationalLSTMCell(inputs, hidden)
        super().__init__(cell, inputs, hidden, paired=True, statics=masks, **options)
        self.dropout = known

    def forward(self, input: Any, state: Any = None) -> Any:  # type: ignore[override]  # noqa: A002
        """Runs the recurrence over `input` from `state`; in training it draws dropout masks for each
        sequence.

        Returns the outputs, in the form of the sequences, and the last (h, c).
        """
        sequences = ModuleSequences.of(input, self.batch_first)
        ones = [sequences.data.new_ones(sequences.rows, size) for size in (self.inputs, self.hidden)]
        masks = tuple(nn.functional.dropout(mask, self.dropout, self.training) for mask in ones)
        return super().forward(input, state, masks)


# ---- other gates -------------------------------------------------------------------------------------------


class MinimalGatedUnitCell(nn.Module):
    """One step of `MinimalGatedUnit`."""

    def __init__(self, inputs: int, hidden: int) -> None:
        """Creates the linear layers of the gate and of the candidate."""
        super().__init__()  # type: ignore[misc]
        self.gate, self.candidate = (nn.Linear(inputs + hidden, hidden) for _ in range(2))

    def forward(self, x: Any, h: Any) -> Any:
        """Computes a step of the minimal gated unit: the next h from the input x and the state h."""
        f = sigmoid(self.gate(torch.cat([h, x], -1)))
        return (1 - f) * h + f * tanh(self.candidate(torch.cat([f * h, x], -1)))


class MinimalGatedUnit(Ready):
    """The minimal gated unit: a GRU whose only gate both resets and updates.

    G.-B. Zhou and others, "Minimal gated unit for recurrent neural networks", International Journal of
    Automation and Computing 13 (2016): f = sigmoid(W_f [h, x] + b_f);  n = tanh(W_n [f h, x] + b_n);
    h' = (1 - f) h + f n.

    The state is h.

    >>> import torch, stepnet.torch.ready
    >>> outputs, h = stepnet.torch.ready.MinimalGatedUnit(3, 4, batch_first=True)(torch.ones(2, 5, 3))
    >>> outputs.shape
    torch.Size([2, 5, 4])
    """

    def __init__(self, inputs: int, hidden: int, **options: Any) -> None:
        """Creates the cell and the recurrence. options: arguments of `Recurrence`, such as batch_first."""
        super().__init__(MinimalGatedUnitCell(inputs, hidden), inputs, hidden, paired=False, **options)


class PeepholeLSTMCell(nn.Module):
    """One step of `PeepholeLSTM`."""

    def __init__(self, inputs: int, hidden: int) -> None:
        """Creates the linear layers of the cell, and the peephole weights of its gates i, f and o."""
        super().__init__()  # type: ignore[misc]
        self.from_x, self.from_h = nn.Linear(inputs, 4 * hidden), nn.Linear(hidden, 4 * hidden, bias=False)
        self.peephole = nn.Parameter(torch.empty(3, hidden).uniform_(-(hidden**-0.5), hidden**-0.5))

    def forward(self, x: Any, state: Any) -> Any:
        """Computes a step of the LSTM with peepholes: the next (h, c) from x and the state (h, c)."""
        h, c = state
        i, f, g, o = (self.from_x(x) + self.from_h(h)).chunk(4, -1)
        p_i, p_f, p_o = self.peephole.unbind(0)
        c = sigmoid(f + p_f * c) * c + sigmoid(i + p_i * c) * tanh(g)
        return sigmoid(o + p_o * c) * tanh(c), c


class PeepholeLSTM(Ready):
    """The LSTM with peepholes: its gates see the cell state.

    F. A. Gers and J. Schmidhuber, "Recurrent nets that time and count", IJCNN 2000:
    i, f, g, o = W x + R h + b;  c' = sigmoid(f + p_f c) c + sigmoid(i + p_i c) tanh(g);
    h' = sigmoid(o + p_o c') tanh(c').

    The state is (h, c).

    >>> import torch, stepnet.torch.ready
    >>> outputs, (h, c) = stepnet.torch.ready.PeepholeLSTM(3, 4, reverse=True)(torch.ones(5, 2, 3))
    >>> outputs.shape
    torch.Size([5, 2, 4])
    """

    def __init__(self, inputs: int, hidden: int, **options: Any) -> None:
        """Creates the cell and the recurrence. options: arguments of `Recurrence`, such as batch_first."""
        super().__init__(PeepholeLSTMCell(inputs, hidden), inputs, hidden, paired=True, **options)
