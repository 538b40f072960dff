"""Makes orbax_training.tar.xz: an Orbax checkpoint of a Flax model with the state of its optimiser.

Needs Flax, Optax and Orbax, which the tests do not: python make_orbax_training.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import linen as nn
from packing import pack

with TemporaryDirectory() as folder:
    model, inputs = nn.RNN(nn.GRUCell(3)), jnp.ones((2, 5, 2))
    params = model.init(jax.random.key(0), inputs)["params"]
    adam = optax.adam(0.1)
    gradients = jax.grad(lambda params: (model.apply({"params": params}, inputs) ** 2).mean())(params)
    _, state = adam.update(gradients, adam.init(params))
    with ocp.StandardCheckpointer() as writer:
        writer.save(Path(folder) / "training", {"weights": params, "adam": state, "step": 1})
    pack("orbax_training", Path(folder))
