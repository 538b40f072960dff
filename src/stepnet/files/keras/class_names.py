"""The names that Keras makes of classes, for layers that have none."""

import re


def snake(class_name: str) -> str:
    """The name of a class in snake case, as Keras writes it in files.

    >>> snake("SimpleRNN"), snake("CuDNNLSTM"), snake("Conv1D")
    ('simple_rnn', 'cu_dnnlstm', 'conv1d')
    """
    words = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", class_name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower()


def numbered(name: str, counts: dict[str, int]) -> str:
    """A name: unchanged at its first use, with a number appended at later ones.

    >>> counts = {}
    >>> numbered("lstm", counts), numbered("lstm", counts), numbered("gru", counts)
    ('lstm', 'lstm_1', 'gru')
    """
    counts[name] = counts.get(name, -1) + 1
    return f"{name}_{counts[name]}" if counts[name] else name
