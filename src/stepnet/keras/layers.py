"""Keras' recurrent layers as subclasses whose loop over the steps is compiled."""

from typing import Any

from stepnet.keras.installed import installed
from stepnet.keras.overrides import compiled

keras: Any = installed()


@compiled
class SimpleRNN(keras.layers.SimpleRNN):
    """`keras.layers.SimpleRNN`, run by stepnet. See `LSTM`.

    >>> import numpy as np, stepnet.keras
    >>> stepnet.keras.SimpleRNN(4)(np.ones((2, 5, 3))).shape
    torch.Size([2, 4])
    """


@compiled
class LSTM(keras.layers.LSTM):
    """`keras.layers.LSTM`, run by stepnet: the same arguments, variables, config and results.

    Masks of any shape, both dropouts, states that are kept or given, and `go_backwards` run in machine code,
    with gradients. Masked steps are left out. Dropout masks are drawn by Keras, so a seed gives the same
    numbers. `unroll=True` unrolls the generated loop.

    What cannot be run so is run by Keras' own loop: on other devices than the CPU, in exported models, and
    where the step has an operation that none has. `stepnet.keras.report` says where, and why.

    Raises:
        ValueError: As Keras' layer does.

    >>> import keras, numpy as np, stepnet.keras
    >>> theirs, ours = keras.layers.LSTM(4), stepnet.keras.LSTM(4)
    >>> x = np.ones((2, 5, 3), "float32")
    >>> theirs.build(x.shape), ours.build(x.shape)
    (None, None)
    >>> ours.set_weights(theirs.get_weights())
    >>> bool(np.allclose(ours(x).detach(), theirs(x).detach(), atol=1e-6))
    True
    """


@compiled
class GRU(keras.layers.GRU):
    """`keras.layers.GRU`, run by stepnet, with its reset before or after the recurrent product. See `LSTM`.

    >>> import numpy as np, stepnet.keras
    >>> outputs, h = stepnet.keras.GRU(4, return_sequences=True, return_state=True)(np.ones((2, 5, 3)))
    >>> outputs.shape, h.shape
    (torch.Size([2, 5, 4]), torch.Size([2, 4]))
    """


@compiled
class RNN(keras.layers.RNN):
    """`keras.layers.RNN`, run by stepnet: over any cell, also one of your own, or `StackedRNNCells`.

    The step of the cell is traced: as it is written, it becomes machine code. Attributes of the cell may be
    set to other values at any time; the step is then traced again. Sequences may be a structure of several
    tensors, as the cell takes them.

    >>> import keras, numpy as np, stepnet.keras
    >>> cells = [keras.layers.LSTMCell(4), keras.layers.GRUCell(3)]
    >>> stepnet.keras.RNN(keras.layers.StackedRNNCells(cells))(np.ones((2, 5, 3))).shape
    torch.Size([2, 3])
    """


@compiled
class Bidirectional(keras.layers.Bidirectional):
    """`keras.layers.Bidirectional`. Its layers are stepnet's if it is given one of stepnet's.

    >>> import numpy as np, stepnet.keras
    >>> stepnet.keras.Bidirectional(stepnet.keras.GRU(4))(np.ones((2, 5, 3))).shape
    torch.Size([2, 8])
    """


@compiled
class TimeDistributed(keras.layers.TimeDistributed):
    """`keras.layers.TimeDistributed`, by one call of a layer that works row by row.

    Keras calls the layer once for each step. Where it is known to work row by row, by its class and settings,
    the steps stand among the rows here. Layers that are trained with dropout or batch normalisation, work
    along the rows, or have functions of the user's own are called as by Keras.

    >>> import keras, numpy as np, stepnet.keras
    >>> stepnet.keras.TimeDistributed(keras.layers.Dense(4))(np.ones((2, 5, 3))).shape
    torch.Size([2, 5, 4])
    """
