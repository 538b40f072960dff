"""A time series forecast: a recurrence learns the Mackey-Glass equation, and goes on by itself.

The equation (M. C. Mackey and L. Glass, "Oscillation and chaos in physiological control systems", Science
197, 1977) is chaotic for a delay of 17: x' = 0.2 x(t - 17) / (1 + x(t - 17)^10) - 0.1 x. A gated step sees
one value at a time and tells the next. After training it is warmed up on values that it has not seen, and
then gets its own answers as inputs. Training and forecast use NumPy and stepnet alone.

Run it from the root of the repository (some ten seconds on two processors):

    .venv/bin/python examples/mackey_glass.py [--epochs N] [--plot FILE]

`--plot` draws the forecast, and needs matplotlib.
"""

import argparse
from pathlib import Path

import numpy as np
from rich.progress import Progress

import stepnet as sn

Array = np.ndarray
Parameters = dict[str, Array]
HIDDEN, EPOCHS, LEARNING_RATE = 32, 400, 5e-3
LENGTHS = (400, 300, 200, 100)
"""The numbers of steps of the pieces to train on, of which none is padded."""
WARM, AHEAD, DELAY, FINE = 200, 80, 17, 10


def series(steps: int, seed: int) -> Array:
    """Returns the solution of the equation at times 0, 1, 2 ..., behind a start of its own for each seed."""
    random, behind = np.random.default_rng(seed), 200
    x = list(1.2 + 0.2 * random.normal(size=DELAY * FINE))
    for _ in range((steps + behind) * FINE):
        delayed = x[-DELAY * FINE]
        x.append(x[-1] + (0.2 * delayed / (1 + delayed**10) - 0.1 * x[-1]) / FINE)
    return np.array(x[-steps * FINE :: FINE], "float32")[:, None]


def step(x: Array, h: Array, p: Parameters) -> tuple[Array, Array]:
    """A GRU whose output is how much the series changes in this step."""
    z = sn.sigmoid(x @ p["Wz"] + h @ p["Rz"] + p["bz"])
    r = sn.sigmoid(x @ p["Wr"] + h @ p["Rr"] + p["br"])
    n = np.tanh(x @ p["Wn"] + (r * h) @ p["Rn"] + p["bn"])
    h = z * h + (1 - z) * n
    return h @ p["out"] + p["b"], h


def parameters(seed: int = 0) -> Parameters:
    """Returns random parameters of the step."""
    random = np.random.default_rng(seed)
    shapes = {f"{kind}{gate}": size for gate in "zrn" for kind, size in (("W", 1), ("R", HIDDEN))}
    found = {name: random.normal(0, size**-0.5, (size, HIDDEN)) for name, size in shapes.items()}
    found |= {f"b{gate}": np.full(HIDDEN, float(gate == "z")) for gate in "zrn"}
    found |= {"out": random.normal(0, 0.1 * HIDDEN**-0.5, (HIDDEN, 1)), "b": np.zeros(1)}
    return {name: array.astype("float32") for name, array in found.items()}


def loss(change: Array, target: Array) -> Array:
    """The squared error of the change."""
    return np.sum((change - target) ** 2, axis=-1)


def train(epochs: int = EPOCHS) -> tuple[sn.RNN, list[float]]:
    """Returns a trained recurrence and the error of each epoch; by Adam (Kingma and Ba, 2015)."""
    pieces = [series(length + 1, seed) for seed, length in enumerate(LENGTHS)]
    x = sn.Ragged.from_list([piece[:-1] for piece in pieces])
    changes = sn.Ragged.from_list([np.diff(piece, axis=0) for piece in pieces])
    rnn, params, losses = sn.RNN(step, parameters(), memory=HIDDEN), parameters(), list[float]()
    gradients_of = sn.value_and_grad(loss, rnn)
    mean = {name: np.zeros_like(array) for name, array in params.items()}
    square = {name: np.zeros_like(array) for name, array in params.items()}
    with Progress() as progress:
        task = progress.add_task("training", total=epochs)
        for epoch in range(1, epochs + 1):
            value, gradients = gradients_of(x, changes, params=params)
            for name, slope in gradients.params.items():
                mean[name] = 0.9 * mean[name] + 0.1 * slope
                square[name] = 0.999 * square[name] + 0.001 * slope**2
                size = np.sqrt(square[name] / (1 - 0.999**epoch)) + 1e-8
                scaled = mean[name] / (1 - 0.9**epoch) / size
                params[name] = (params[name] - LEARNING_RATE * scaled).astype("float32")
            losses.append(float(value))
            progress.update(task, advance=1, description=f"wrong by {losses[-1]:.6f}")
    return rnn.with_params(params), losses


def forecast(rnn: sn.RNN, known: Array, steps: int) -> Array:
    """Returns `steps` values after those of `known` [time, 1]: each answer is the input of the next step."""
    changes, h = rnn(known[None])
    value, found = known[-1:] + changes[:, -1], list[Array]()
    stream = rnn.stream(rows=1, initial=h)
    for _ in range(steps):
        found.append(value)
        value = value + stream.step(value)
    return np.concatenate(found)


def plot(truth: Array, found: Array, file: Path) -> None:
    """Draws the series, and the forecast behind the values that were given."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(-WARM, AHEAD), truth, label="Mackey-Glass")
    axes.plot(range(AHEAD), found, label="forecast", linestyle="--")
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set(xlabel="steps after the last value that was given", xlim=(-80, AHEAD))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def main(arguments: list[str] | None = None) -> None:
    """Trains, and prints how wrong the forecast is beside one that repeats the last value."""
    parser = argparse.ArgumentParser(description="Forecast the Mackey-Glass series with a gated recurrence.")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--plot", type=Path, help="a picture of the forecast; needs matplotlib")
    options = parser.parse_args(arguments)
    rnn, losses = train(options.epochs)
    truth = series(WARM + AHEAD, seed=100)
    found = forecast(rnn, truth[:WARM], AHEAD)
    wrong = float(np.sqrt(np.mean((found - truth[WARM:]) ** 2)))
    repeated = float(np.sqrt(np.mean((truth[WARM - 1] - truth[WARM:]) ** 2)))
    print(f"one step ahead: wrong by {losses[-1] ** 0.5:.4f} (root mean square) after {len(losses)} epochs")
    print(f"{AHEAD} steps ahead: wrong by {wrong:.3f}; repeating the last value is wrong by {repeated:.3f}")
    if options.plot:
        plot(truth, found, options.plot)


if __name__ == "__main__":
    main()
