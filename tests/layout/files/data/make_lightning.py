"""Makes lightning.ckpt: what Lightning 2.6.6 saves of a model that it trains and averages.

python make_lightning.py    (in an environment with torch==2.13.0 and lightning==2.6.6)
"""

import tempfile
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from torch import nn

HERE = Path(__file__).parent
INPUTS, HIDDEN = 3, 4


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.ModuleDict({"rnn": nn.GRU(INPUTS, HIDDEN), "head": nn.Linear(HIDDEN, 1)})

    def training_step(self, batch, _):
        return self.model["head"](self.model["rnn"](batch[0])[0]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


if __name__ == "__main__":
    torch.manual_seed(0)
    x = torch.utils.data.TensorDataset(torch.randn(8, 5, INPUTS))
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=1,
            logger=False,
            accelerator="cpu",
            callbacks=[ModelCheckpoint(folder), EMAWeightAveraging()],
        )
        trainer.fit(Net(), torch.utils.data.DataLoader(x, batch_size=4))
        trainer.save_checkpoint(HERE / "lightning.ckpt")
