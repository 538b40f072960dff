"""A monitor of a motor on a microcontroller: a GRU expects the next values, and C tells faults.

Current, vibration and temperature follow the load, which nobody measures. A GRU learns from a healthy motor,
in PyTorch, to expect the next values of the sensors. The monitor is a step around it: it keeps what it
expected, and smooths how far off that was, beside what is usual for each sensor. An output above 1 is an
alarm. This whole step becomes C99 for a microcontroller, which `motor_monitor.c` runs frame by frame.

Run it from the root of the repository (a few seconds; it needs a C compiler):

    .venv/bin/python examples/motor_monitor.py build/monitor [--epochs N]
"""

import argparse
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress
from torch import nn

import stepnet as sn
import stepnet.torch
from stepnet.build import DeviceBuild, build
from stepnet.cli.demo import gru

Array = np.ndarray
Parameters = dict[str, Array]
SENSORS, HIDDEN, EPOCHS, SEQUENCES, STEPS = 3, 16, 60, 8, 300
SMOOTHED, MOST = 0.95, 20
"""The part of the last output in the next one, and the most that one sensor adds: a new load is no fault."""
NORMAL = 0.6745
"""The median of how far a normal distribution is from its mean, in standard deviations."""
MARGIN = 1.5
"""The limit of an alarm, in the largest output for a healthy motor that was not trained on."""
FAULTS = {"worn bearing": (300, 380), "sticking rotor": (700, 760), "loose thermometer": (1100, 1150)}
"""The frames of each fault in the held-out series."""
FRAMES = 1500
SETTLED, FADING = 20, 60
"""The frames in which a motor's monitor settles, and in which a fault fades from its output."""


def motor(frames: int, seed: int, faults: dict[str, tuple[int, int]] | None = None) -> Array:
    """Simulates current, vibration and temperature [frames, 3] of a motor, one frame a second, from a state
    of its own for each seed. faults: first and last frames of each fault by name, as in `FAULTS`.
    """
    random = np.random.default_rng(seed)
    load, speed, heat, series = random.uniform(), 0.5, 0.3, np.empty((frames, SENSORS), np.float32)
    faulty = {name: range(*span) for name, span in (faults or {}).items()}
    for t in range(frames):
        if random.uniform() < 0.02:
            load = random.uniform()
        stuck = t in faulty.get("sticking rotor", ()) and random.uniform() < 0.3
        blocked = 0.7 if stuck else 0.0
        worn = 0.1 if t in faulty.get("worn bearing", ()) else 0.0
        speed += 0.2 * (0.3 + 0.7 * load - blocked - speed)
        current = 0.2 + 0.6 * load + 0.5 * (load - speed) ** 2 + blocked
        heat += 0.02 * (current**2 - heat)
        resonance = 0.2 * np.exp(-(((speed - 0.6) / 0.08) ** 2))
        vibration = 0.3 * speed**2 + resonance + worn * random.exponential()
        loose = 8 if t in faulty.get("loose thermometer", ()) else 1
        noise = random.normal(size=SENSORS) * (0.02, 0.02, 0.005 * loose)
        series[t] = np.add((current, vibration, heat), noise)
    return series


class Predictor(nn.Module):
    """A GRU that tells how the sensors will change in the next frame."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = stepnet.torch.GRU(SENSORS, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, SENSORS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The values that follow each frame [sequences, frames, 3]."""
        return x + self.head(self.gru(x)[0])


def train(epochs: int = EPOCHS) -> Parameters:
    """Returns the parameters of a predictor trained on a healthy motor, by their names in PyTorch."""
    torch.manual_seed(0)
    series = torch.from_numpy(np.stack([motor(STEPS, seed) for seed in range(SEQUENCES)]))
    deviation = series.std((0, 1))
    model = Predictor()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    with Progress() as progress:
        task = progress.add_task("training", total=epochs)
        for _ in range(epochs):
            away = (model(series[:, :-1]) - series[:, 1:]) / deviation
            loss = away.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            progress.update(task, advance=1, description=f"wrong by {loss.item() ** 0.5:.4f} deviations")
    return {name: value.numpy() for name, value in model.state_dict().items()}


def monitor(x: Array, memory: Parameters, p: Parameters) -> tuple[Array, Parameters]:
    """Computes one frame: the alarm, and what is kept: the GRU's memory, the values expected next, the alarm.

    p: the predictor's parameters by their names, `usual` and `limit`.
    """
    away = (x - memory["expected"]) / p["usual"]
    wrong = np.mean(np.minimum(away * away, MOST), axis=1, keepdims=True) / p["limit"]
    alarm = SMOOTHED * memory["alarm"] + (1 - SMOOTHED) * wrong
    weights = {name.removeprefix("gru."): value for name, value in p.items()}
    _, h = gru(x, memory["h"], weights)
    expected = x + h @ p["head.weight"].T + p["head.bias"]
    return alarm, {"h": h, "expected": expected, "alarm": alarm}


def calibrated(params: Parameters) -> sn.RNN:
    """Returns the monitor with the limits of a healthy motor that was not trained on."""
    healthy = motor(FRAMES, seed=100)
    with torch.inference_mode():
        model = Predictor()
        model.load_state_dict({name: torch.from_numpy(value) for name, value in params.items()})
        expected = model(torch.from_numpy(healthy[None]))[0].numpy()
    usual = np.median(np.abs(expected[:-1] - healthy[1:]), axis=0) / np.float32(NORMAL)
    known = {**params, "usual": usual, "limit": np.ones(1, np.float32)}
    rnn = sn.RNN(monitor, known, memory={"h": HIDDEN, "expected": SENSORS, "alarm": 1})
    alarms, _ = rnn(healthy[None])
    return rnn.with_params({**known, "limit": MARGIN * alarms[0][SETTLED:].max(axis=0)})


@dataclass(frozen=True)
class Judgement:
    """Found faults: the frames from the begin of each to its alarm, by name, and the false alarms."""

    delays: dict[str, int]
    false: int


def judge(alarms: Array) -> Judgement:
    """Compares alarms [frames] with the faults of the held-out series. The frames in which a fault fades from
    the smoothed output do not count as false.
    """
    over = alarms > 1
    delays, quiet = dict[str, int](), np.arange(len(alarms)) >= SETTLED
    for name, (begin, end) in FAULTS.items():
        found = np.flatnonzero(over[begin:end])
        delays |= {name: int(found[0])} if len(found) else {}
        quiet[begin : end + FADING] = False
    return Judgement(delays, int((over & quiet).sum()))


def make(folder: Path, epochs: int = EPOCHS) -> tuple[sn.RNN, DeviceBuild]:
    """Makes the monitor in C99 and the held-out series in a folder. Returns the monitor in Python, and the
    build.
    """
    rnn = calibrated(train(epochs))
    made = build(rnn, folder, name="monitor", target="c", inputs=SENSORS, force=True)
    (folder / "held_out.f32").write_bytes(motor(FRAMES, 200, FAULTS).astype("<f4").tobytes())
    return rnn, made


def run(folder: Path, compiler: str = "cc", flags: tuple[str, ...] = ("-std=c99", "-O2")) -> Array:
    """Compiles the monitor of a folder, runs it on the held-out series, and returns its alarms [frames]."""
    sources = Path(__file__).with_suffix(".c"), folder / "monitor.c"
    subprocess.run([compiler, *flags, *sources, f"-I{folder}", "-o", folder / "run"], check=True)
    with (folder / "held_out.f32").open("rb") as frames:
        done = subprocess.run([folder / "run"], stdin=frames, capture_output=True, text=True, check=True)
    return np.array([float(line.split()[0]) for line in done.stdout.splitlines()], np.float32)


def main(arguments: list[str] | None = None) -> None:
    """Trains, builds and runs the monitor, and prints what it takes and which faults it finds."""
    parser = argparse.ArgumentParser(description="Make a monitor of a motor in C, and run it.")
    parser.add_argument("folder", type=Path, help="the folder for the source code and the program")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args(arguments)
    _, made = make(options.folder, options.epochs)
    print(f"RAM {made.sizes.ram_bytes} bytes, constants {made.sizes.constant_bytes} bytes, ", end="")
    print(f"{made.sizes.multiply_adds} multiply-adds per frame")
    judgement = judge(run(options.folder))
    for name, (begin, _) in FAULTS.items():
        delay = judgement.delays.get(name)
        print(f"{name} at {begin}: {'not found' if delay is None else f'found after {delay} frames'}")
    print(f"false alarms in {FRAMES} frames: {judgement.false}")


if __name__ == "__main__":
    main()
