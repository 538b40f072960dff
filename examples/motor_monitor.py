"""A monitor of a motor on a microcontroller: a GRU expects the next values, and C tells faults.

Current, vibration and temperature follow the load, which nobody measures. A GRU learns from a healthy motor,
in PyTorch, to expect the next values of the sensors. The monitor is a step around it: it keeps what it
expected, and smooths how far off that was, beside what is usual for each sensor. An output above 1 is an
alarm. This whole step becomes C99 for a microcontroller, which `motor_monitor.c` runs frame by frame.

Run it from the root of the repository (a few seconds; it needs a C compiler):

    .venv/bin/python examples/motor_monitor.py build/monitor [--epochs N]
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from on_devices import Array, Example, Network, Parameters, fitted, made, main
from torch import nn

import stepnet as sn
from stepnet.cli.demo import gru

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


def expected(network: nn.Module, series: torch.Tensor) -> torch.Tensor:
    """Returns the values that follow each frame [sequences, frames, 3]."""
    return series + network(series)


def train(epochs: int = EPOCHS) -> tuple[nn.Module, Parameters]:
    """Trains a network on a healthy motor: how will the sensors change? Returns it and its parameters."""
    torch.manual_seed(0)
    series = torch.from_numpy(np.stack([motor(STEPS, seed) for seed in range(SEQUENCES)]))
    deviation = series.std((0, 1))
    network = Network(SENSORS, HIDDEN, SENSORS)

    def loss(chosen: torch.Tensor) -> torch.Tensor:
        """The mean square of what is expected wrongly, in deviations."""
        rows = series[chosen]
        return ((expected(network, rows[:, :-1]) - rows[:, 1:]) / deviation).square().mean()

    return network, fitted(network, loss, SEQUENCES, SEQUENCES, epochs, 1e-2)


def monitor(x: Array, memory: Parameters, p: Parameters) -> tuple[Array, Parameters]:
    """Computes one frame: the alarm, and what is kept: the GRU's memory, the values expected next, the alarm.

    p: the predictor's parameters by their names, `usual` and `limit`.
    """
    away = (x - memory["expected"]) / p["usual"]
    wrong = np.mean(np.minimum(away * away, MOST), axis=1, keepdims=True) / p["limit"]
    alarm = SMOOTHED * memory["alarm"] + (1 - SMOOTHED) * wrong
    weights = {name.removeprefix("gru."): value for name, value in p.items()}
    _, h = gru(x, memory["h"], weights)
    return alarm, {"h": h, "expected": x + h @ p["head.weight"].T + p["head.bias"], "alarm": alarm}


def calibrated(network: nn.Module, params: Parameters) -> sn.RNN:
    """Returns the monitor with the limits of a healthy motor that was not trained on."""
    healthy = motor(FRAMES, seed=100)
    with torch.inference_mode():
        next_ones = expected(network, torch.from_numpy(healthy[None]))[0].numpy()
    usual = np.median(np.abs(next_ones[:-1] - healthy[1:]), axis=0) / np.float32(NORMAL)
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


def make(folder: Path, epochs: int = EPOCHS) -> Example:
    """Makes the monitor in C99 and the held-out series in a folder."""
    rnn = calibrated(*train(epochs))
    return made(folder, "monitor", Path(__file__), rnn, motor(FRAMES, 200, FAULTS))


def report(example: Example, alarms: Array) -> None:
    """Prints which faults were found, and how soon."""
    judgement = judge(alarms[:, 0])
    for name, (begin, _) in FAULTS.items():
        delay = judgement.delays.get(name)
        print(f"{name} at {begin}: {'not found' if delay is None else f'found after {delay} frames'}")
    print(f"false alarms in {len(alarms)} frames: {judgement.false}")


if __name__ == "__main__":
    main(__doc__, make, report, EPOCHS)
