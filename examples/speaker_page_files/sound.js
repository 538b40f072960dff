// Sound as frames like those of the recordings: at 10 kHz, 12 LPC cepstrum coefficients of 25.6 ms, every 6.4 ms.
// How these were windowed is not published; here it is a Hamming window, without pre-emphasis.

const RATE = 10000;
const LENGTH = 256;
const SHIFT = 64;
const ORDER = 12;
const WIDTH = 8; // of the filter to each side, in samples at 10 kHz
const PASSED = 0.9; // of the frequencies up to 5 kHz
const WINDOW = Float64Array.from({ length: LENGTH }, (_, i) => 0.54 - 0.46 * Math.cos((2 * Math.PI * i) / (LENGTH - 1)));

/** Returns the 12 LPC cepstrum coefficients of 256 samples. */
export function cepstrum(samples) {
  const x = WINDOW.map((weight, i) => weight * samples[i]);
  const correlation = (lag) => x.subarray(lag).reduce((sum, value, i) => sum + value * x[i], 0);
  const a = predictor(Float64Array.from({ length: ORDER + 1 }, (_, lag) => correlation(lag)));
  const c = new Float64Array(ORDER + 1);
  for (let n = 1; n <= ORDER; n++) {
    c[n] = a[n];
    for (let k = 1; k < n; k++) c[n] += (k / n) * c[k] * a[n - k];
  }
  return Float32Array.from(c.subarray(1));
}

/** Returns the coefficients a[1] to a[12] that predict a sample from those before it: Levinson's recursion. */
function predictor(r) {
  let a = new Float64Array(ORDER + 1);
  let error = r[0] * (1 + 1e-9) + Number.MIN_VALUE;
  for (let n = 1; n <= ORDER; n++) {
    let rest = r[n];
    for (let k = 1; k < n; k++) rest -= a[k] * r[n - k];
    const reflection = rest / error;
    const longer = a.slice();
    longer[n] = reflection;
    for (let k = 1; k < n; k++) longer[k] = a[k] - reflection * a[n - k];
    a = longer;
    error *= 1 - reflection ** 2;
  }
  return a;
}

/** Returns how loud samples are: the root of their mean square. */
export function loudness(samples) {
  return Math.sqrt(samples.reduce((sum, value) => sum + value * value, 0) / samples.length);
}

/** Frames of sound that comes in blocks at any rate of at least 10 kHz. */
export class Frames {
  #step; // samples of the sound for one at 10 kHz
  #half; // of the filter
  #sound;
  #next; // where in #sound the next sample at 10 kHz is
  #samples = [];

  constructor(rate) {
    this.#step = rate / RATE;
    this.#half = WIDTH * this.#step;
    this.#sound = [];
    this.#next = 0;
  }

  /** Takes a block of sound; returns the frames, of 256 samples at 10 kHz, that it completes. */
  push(block) {
    this.#sound.push(...block);
    while (this.#next + this.#half < this.#sound.length) {
      this.#samples.push(this.#at(this.#next));
      this.#next += this.#step;
    }
    const done = Math.max(0, Math.floor(this.#next - this.#half));
    this.#sound.splice(0, done);
    this.#next -= done;

    const frames = [];
    for (; this.#samples.length >= LENGTH; this.#samples.splice(0, SHIFT)) {
      frames.push(Float64Array.from(this.#samples.slice(0, LENGTH)));
    }
    return frames;
  }

  /** Returns the sound at a time, without what is above 4.5 kHz: a sinc in a Hann window. */
  #at(time) {
    let sum = 0;
    for (let i = Math.max(0, Math.ceil(time - this.#half)); i <= time + this.#half; i++) {
      const t = ((i - time) / this.#step) * Math.PI;
      const sinc = t === 0 ? PASSED : Math.sin(PASSED * t) / t;
      sum += this.#sound[i] * sinc * (0.5 + 0.5 * Math.cos(t / WIDTH));
    }
    return sum / this.#step;
  }
}
