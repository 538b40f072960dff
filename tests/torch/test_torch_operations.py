"""Operations in modules, one line each: what a module gives of each sequence alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import stepnet as sn
import stepnet.torch
from stepnet.compiler.values import leaves


class Written(nn.Module):
    """A module whose forward is a function of it, its frames [batch, time, 6] and their lengths."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 4, batch_first=True)
        self.lstm = nn.LSTM(6, 4, bidirectional=True, batch_first=True)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.cell = nn.GRUCell(6, 4)
        self.weight = nn.Parameter(torch.randn(3, 6))
        self.function = function

    def forward(self, x: Any, lengths: Any) -> Any:
        return self.function(self, x, lengths)


def in_place(m: Any, x: Any, n: Any) -> Any:
    y = x.clone()
    y[:, :, 0] = 2
    y[:, 0] = 1
    y[:, -1, 2:4] = 3
    y += 1
    return y


def sines(m: Any, x: Any, n: Any) -> Any:
    place = torch.arange(x.size(1), dtype=x.dtype).unsqueeze(1)
    angle = place * torch.exp(torch.arange(0, 6, 2, dtype=x.dtype) * -0.3)
    return x + torch.stack([torch.sin(angle), torch.cos(angle)], -1).flatten(1)


def again(m: Any, x: Any, n: Any) -> Any:
    _, h = m.gru(x)
    return m.gru(x, h)


def decoded(m: Any, x: Any, n: Any) -> Any:
    state, states = m.gru(x)[1][0], []
    for _ in range(3):
        state = m.cell(x[:, -1], state)
        states.append(state)
    return torch.stack(states, 1)


def causal(m: Any, x: Any, n: Any) -> Any:
    q, k = (y.unflatten(-1, (-1, 2)).transpose(1, 2) for y in (x, x[..., :2]))
    y = functional.scaled_dot_product_attention(q, k, k, is_causal=True, scale=0.4, enable_gqa=True)
    return y.transpose(1, 2).flatten(2)


def masked_attention(m: Any, x: Any, n: Any) -> Any:
    last = torch.arange(x.size(1))[None] == n[:, None] - 1
    first = torch.where(torch.arange(x.size(1)) == 0, 0.0, -torch.inf).to(x.dtype)
    y = m.attention(x, x, x, key_padding_mask=last & (n[:, None] > 1), need_weights=False)[0]
    return y, functional.scaled_dot_product_attention(x, x, x, first[None, None].expand(x.size(0), -1, -1))


def packed(m: Any, x: Any, n: Any) -> Any:
    outputs, (h, c) = m.lstm(pack_padded_sequence(x, n, True, enforce_sorted=False))
    outputs = outputs._replace(data=torch.tanh(outputs.data) * 2)
    padded, lengths = pad_packed_sequence(outputs, True, total_length=x.size(1))
    return padded, h.permute(1, 0, 2), c.transpose(0, 1).flatten(1), lengths


def whole(pool: Any) -> Any:
    return lambda m, x, n: pool(m.gru(x)[0].permute(0, 2, 1), x.size(1)).squeeze(2)


def adaptive(pool: Any) -> Any:
    return lambda m, x, n: pool(1)(m.gru(x)[0].permute(0, 2, 1)).squeeze(2)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "pooled with a kernel": whole(functional.max_pool1d),
    "averaged with a kernel": whole(functional.avg_pool1d),
    "pooled": adaptive(nn.AdaptiveMaxPool1d),
    "averaged": adaptive(nn.AdaptiveAvgPool1d),
    "reductions": lambda m, x, n: (
        x.min(1)[0],
        x.amin(1, keepdim=True),
        (x > 0).any(1),
        (x > 0).all(1),
        x.sum((1, 2)),
        x.mean((1, 2)),
        x.amax((2, 1)),
        torch.logsumexp(x, 1),
        x.norm(dim=1),
        (x > 0).sum(1),
    ),
    "a deviation": lambda m, x, n: torch.cat([x, x + 1], 2).var(1, correction=0),
    "a softmax of features": lambda m, x, n: (x.softmax(2), x.log_softmax(1), x.mT.softmax(2).mT),
    "a distance to the mean": lambda m, x, n: x - x.mean(1, keepdim=True),
    "a cosine": lambda m, x, n: functional.cosine_similarity(x, x.mean(1, keepdim=True), dim=-1),
    "attention by a query": lambda m, x, n: m.attention(x[:, -1:], x, x, need_weights=False)[0],
    "attention by a parameter": lambda m, x, n: functional.scaled_dot_product_attention(
        m.weight.expand(x.size(0), -1, -1), x, x
    ),
    "attention between steps": lambda m, x, n: m.attention(x, x + 1, x)[0],
    "attention between steps without weights": lambda m, x, n: (
        m.attention(x, x, x, need_weights=False)[0] + functional.scaled_dot_product_attention(x, x, x)
    ),
    "causal attention": causal,
    "attention with a mask": masked_attention,
    "attention by sums": lambda m, x, n: (
        torch.tanh(x.unsqueeze(1) + m.gru(x)[0].unsqueeze(2).sum(-1, keepdim=True)).sum(-1).softmax(-1) @ x
    ),
    "a matrix for each of several": lambda m, x, n: torch.bmm(
        m.gru(x)[0].mean(1)[None].expand(3, -1, -1), torch.stack([m.weight[:, :4].T + i for i in range(3)])
    ).transpose(0, 1),
    "features with features": lambda m, x, n: torch.bmm(x.transpose(1, 2), x),
    "einsums": lambda m, x, n: (
        torch.einsum("bth,bh->bt", m.gru(x)[0], m.gru(x)[1][0]),
        torch.einsum("bth,kh->btk", x, m.weight),
        torch.einsum("kh,bth->bkt", m.weight, x).sum(2),
        torch.einsum("bt,bth->bh", x[..., 0], x),
    ),
    "products from the left": lambda m, x, n: torch.matmul(m.weight, x.transpose(1, 2)).transpose(1, 2),
    "gates": lambda m, x, n: (
        functional.glu(m.lstm(x)[0], -1) + functional.silu(functional.softplus(x[..., :4]))
    ),
    "norms": lambda m, x, n: (
        functional.group_norm(x.mean(1), 2),
        functional.layer_norm(x, (6,)),
        functional.normalize(x, dim=1),
    ),
    "chunks": lambda m, x, n: torch.cat(torch.chunk(m.lstm(x)[0], 2, -1)[::-1], -1),
    "split directions": lambda m, x, n: torch.cat([m.lstm(x)[0][:, -1, :4], m.lstm(x)[0][:, 0, 4:]], 1),
    "views": lambda m, x, n: (
        m.lstm(x)[0].view(x.size(0), x.size(1), 2, 4).sum(2),
        m.lstm(x)[1][0].view(1, 2, x.size(0), 4)[-1].permute(1, 0, 2).reshape(x.size(0), -1),
        x.reshape(-1, 6).view(x.size(0), x.size(1), 3, 2).flatten(2),
        x.transpose(0, 1).reshape(-1, 6).tanh().view(x.size(1), -1, 6).transpose(0, 1),
    ),
    "features repeated": lambda m, x, n: x.mean(1).repeat(1, 3),
    "in place": in_place,
    "sines of places": sines,
    "again from the end": again,
    "decoded": decoded,
    "packed": packed,
    "numbers of steps": lambda m, x, n: (x * x.size(1), x / (x.size(1) + 1), x.sum(1) / n[:, None]),
    "places": lambda m, x, n: torch.arange(x.size(1)).float()[None, :, None] * x,
    "masks": lambda m, x, n: (
        x.masked_fill((torch.arange(x.size(1)) == x.size(1) - 1)[:, None], 0),
        torch.where(torch.arange(x.size(1))[None] < n[:, None] - 1, x[..., 0], 5.0),
    ),
    "a mean of places": lambda m, x, n: x * torch.arange(x.size(1)).to(x.dtype).mean(0),
    "a window of rows": lambda m, x, n: (x.sum(1)[:], x[:, :].mean(1), x.narrow(2, 1, 3)),
    "attention with states": lambda m, x, n: (
        torch.bmm(
            m.lstm(x)[0].view(x.size(0), x.size(1), 2, 4).transpose(1, 2).reshape(-1, x.size(1), 4),
            m.lstm(x)[1][0].transpose(0, 1).reshape(-1, 4).unsqueeze(2),
        )
        .view(x.size(0), 2, x.size(1))
        .transpose(1, 2)
    ),
    "states of zeros": lambda m, x, n: m.gru(x, x.new_zeros(1, x.shape[0], 4))[0],
    "a sum so far": lambda m, x, n: x.cumsum(1),
    "argmax": lambda m, x, n: m.gru(x)[0].argmax(-1),
}


@pytest.mark.long(every=3)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name: str) -> None:
    torch.manual_seed(0)
    module = Written(OPERATIONS[name]).double().eval()
    random = np.random.default_rng(0)
    rows = [random.normal(size=(length, 6)) for length in (4, 1, 3)]
    graph = stepnet.torch.graph(module, (torch.zeros(2, 5, 6, dtype=torch.float64), torch.tensor([5, 5])))
    outputs = leaves(graph(sn.Ragged.from_list(rows), engine="interpret"))
    own = [output.to_list() if isinstance(output, sn.Ragged) else list(output) for output in outputs]
    for place, row in enumerate(rows):
        with torch.no_grad():
            right = leaves(module(torch.from_numpy(row)[None], torch.tensor([len(row)])))
        for output, wanted in zip(own, right, strict=True):
            assert_close(output[place], wanted[0].numpy(), len(row), 200)


def test_attention_multiplies_parameters_and_stores_no_pairs():
    """PyTorch repeats the weights of a projection for each step; a graph has the product with a parameter."""
    width = 12
    module = nn.TransformerEncoderLayer(width, 2, 20, batch_first=True).eval()
    schedule = stepnet.torch.graph(module, torch.randn(2, 5, width)).schedule
    steps = [node for node in schedule.net.nodes if node.types[0].extent == ("rows", "steps")]
    assert max(node.type.size for node in steps) == 3 * width
    assert [part.body is not None for part in schedule.parts].count(True) == 1
    assert not any(
        type_.extent[2:] for part in schedule.parts for type_ in map(schedule.net.type_of, part.results)
    )
