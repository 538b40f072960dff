"""Makes orbax.tar.xz: checkpoints of a Flax model in every form that Orbax has, and what Flax computes.

Needs Flax and Orbax, which the tests do not: python make_orbax.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import linen as nn
from packing import pack


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.RNN(nn.GRUCell(3, name="gru"))(x)
        return nn.RNN(nn.OptimizedLSTMCell(3, name="lstm"))(y)


FORMS = {
    "ocdbt": {"use_ocdbt": True, "use_zarr3": False},
    "ocdbt_zarr3": {"use_ocdbt": True, "use_zarr3": True},
    "zarr2": {"use_ocdbt": False, "use_zarr3": False},
    "zarr3": {"use_ocdbt": False, "use_zarr3": True},
}
with TemporaryDirectory() as folder:
    inputs = jax.random.normal(jax.random.key(1), (2, 5, 2))
    variables = Net().init(jax.random.key(0), inputs)
    tree = {**variables["params"], "halves": jnp.arange(6, dtype="bfloat16").reshape(2, 3), "step": 7}
    for name, options in FORMS.items():
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as writer:
            writer.save(Path(folder) / name, tree)
    with ocp.CheckpointManager(Path(folder) / "manager") as manager:
        manager.save(3, args=ocp.args.Composite(state=ocp.args.StandardSave(variables)))
        manager.wait_until_finished()
    wide = jax.random.normal(jax.random.key(2), (40, 30))
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True)) as writer:
        small = ocp.SaveArgs(chunk_byte_size=1024)
        writer.save(
            Path(folder) / "chunks", {"wide": wide}, ocp.args.PyTreeSave({"wide": wide}, {"wide": small})
        )
    outputs = Net().apply(variables, inputs)
    np.savez(f"{folder}/outputs.npz", inputs=inputs, outputs=np.asarray(outputs), wide=wide)
    pack("orbax", Path(folder))
