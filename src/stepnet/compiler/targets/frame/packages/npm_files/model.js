// The rest of this file is the same for all models.

const ARRAYS = {
  float32: Float32Array,
  float64: Float64Array,
  int32: Int32Array,
  int64: BigInt64Array,
  int16: Int16Array,
  int8: Int8Array,
  bool: Uint8Array,
};
const PAGE = 65536;
const OTHER_MODULE = `this WebAssembly module is not that of the model ${MODEL.name}, or of another build`;
// A module with one instruction of 128-bit SIMD, which a browser without it finds invalid.
const SIMD = Uint8Array.of(
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11,
);

/** Whether this machine has the instructions of the faster module. */
export const hasSimd = WebAssembly.validate(SIMD);

/**
 * Loads the model: from the files beside this one, or from a URL or the bytes of a module.
 * @param {string | URL | ArrayBuffer | Uint8Array} [source] the module, instead of the one that fits this machine
 * @param {string | URL | ArrayBuffer | Uint8Array} [weights] the file of weights, for a model that has one
 */
export async function load(source, weights) {
  const file = hasSimd || !MODEL.plain ? `${MODEL.name}.wasm` : `${MODEL.name}.plain.wasm`;
  const code = await bytesOf(source ?? new URL(file, import.meta.url));
  const { instance } = await WebAssembly.instantiate(code);
  const { exports } = instance;
  const place = exports[`${MODEL.name}_weights`];
  if (exports[`${MODEL.name}_step`] === undefined || (MODEL.weights !== null && place === undefined)) {
    throw new Error(OTHER_MODULE);
  }
  const model = new Model(exports);
  if (MODEL.weights !== null) {
    const data = await bytesOf(weights ?? new URL(MODEL.weights.file, import.meta.url));
    if (data.length !== MODEL.weights.bytes) {
      throw new Error(`the file of weights has ${data.length} bytes, not ${MODEL.weights.bytes}: copy or build it again`);
    }
    if (sha256(data) !== MODEL.weights.digest) {
      throw new Error("the file of weights is damaged, or of another model: copy or build it again");
    }
    new Uint8Array(exports.memory.buffer).set(data, place.value);
  }
  return model;
}

async function bytesOf(source) {
  if (source instanceof Uint8Array) return source;
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (typeof source !== "string" && !(source instanceof URL)) {
    throw new TypeError("a module, and a file of weights, is a URL, an ArrayBuffer or a Uint8Array");
  }
  const url = new URL(source, globalThis.location?.href ?? import.meta.url);
  if (url.protocol === "file:" && globalThis.process?.versions?.node) {
    const { readFile } = await import(/* webpackIgnore: true */ /* @vite-ignore */ "node:fs/promises");
    return readFile(url);
  }
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}

/** A loaded model, of which any number of streams run. */
class Model {
  #exports;
  #end;
  #free = [];
  #places;

  constructor(exports) {
    this.#exports = exports;
    this.#end = exports.heap.value;
    const place = (array) => ({ ...array, Type: ARRAYS[array.type], address: 0 });
    this.#places = { inputs: MODEL.inputs.map(place), outputs: MODEL.outputs.map(place), saved: 0 };
    this.#places.saved = this.#take(MODEL.saved);
    for (const each of [...this.#places.inputs, ...this.#places.outputs]) {
      each.address = this.#take(each.size * each.Type.BYTES_PER_ELEMENT);
    }
    // A saved state with the mark of this model and a wrong checksum: a module of another model refuses the mark.
    const { saved } = this.#places;
    new DataView(exports.memory.buffer).setUint32(saved, MODEL.mark, true);
    if (exports[`${MODEL.name}_restore`](saved, saved) === MODEL.otherModel) throw new Error(OTHER_MODULE);
  }

  /** Begins a stream. */
  stream() {
    const context = this.#free.pop() ?? this.#take(MODEL.context);
    return new Stream(this.#exports, this.#places, context, (address) => this.#free.push(address));
  }

  /** Takes bytes of the module's memory, which grows. */
  #take(bytes) {
    const { memory } = this.#exports;
    const begin = this.#end;
    this.#end += Math.ceil(bytes / 16) * 16;
    const missing = this.#end - memory.buffer.byteLength;
    if (missing > 0) memory.grow(Math.ceil(missing / PAGE));
    return begin;
  }
}

/** A stream: what the model keeps of the frames so far. */
class Stream {
  #exports;
  #places;
  #context;
  #give;

  constructor(exports, places, context, give) {
    this.#exports = exports;
    this.#places = places;
    this.#context = context;
    this.#give = give;
    this.reset();
  }

  /** Runs one frame, or several that lie one after the other; returns the outputs of all. An error changes nothing. */
  step(given) {
    const { inputs, outputs } = this.#places;
    const arrays = inputs.length === 1 && ArrayBuffer.isView(given) ? [given] : inputs.map((each) => given?.[each.name]);
    const count = this.#frames(arrays);
    const results = outputs.map((each) => new each.Type(count * each.size));
    const addresses = [...inputs, ...outputs].map((each) => each.address);
    const { buffer } = this.#exports.memory;
    const before = count > 1 ? this.save() : undefined;
    for (let number = 0; number < count; number++) {
      inputs.forEach((each, i) => {
        const values = arrays[i].subarray(number * each.size, (number + 1) * each.size);
        new each.Type(buffer, each.address, each.size).set(values);
      });
      try {
        this.#call("step", this.#address, ...addresses);
      } catch (error) {
        if (before) this.restore(before);
        throw error;
      }
      outputs.forEach((each, i) => {
        results[i].set(new each.Type(buffer, each.address, each.size), number * each.size);
      });
    }
    return results.length === 1 ? results[0] : Object.fromEntries(outputs.map((each, i) => [each.name, results[i]]));
  }

  /** Begins anew. */
  reset() {
    this.#call("reset", this.#address);
  }

  /** Returns what the stream keeps, for `restore`, also in another process or on another device. */
  save() {
    this.#call("save", this.#address, this.#places.saved);
    return new Uint8Array(this.#exports.memory.buffer).slice(this.#places.saved, this.#places.saved + MODEL.saved);
  }

  /** Goes on where a stream of the same model was saved. */
  restore(saved) {
    if (!(saved instanceof Uint8Array) || saved.length !== MODEL.saved) {
      throw new RangeError(`what was saved is a Uint8Array of ${MODEL.saved} bytes`);
    }
    new Uint8Array(this.#exports.memory.buffer).set(saved, this.#places.saved);
    this.#call("restore", this.#address, this.#places.saved);
  }

  /** Gives the stream's memory back to the model, for another stream. */
  close() {
    this.#give(this.#address);
    this.#context = undefined;
  }

  get #address() {
    if (this.#context === undefined) throw new Error("the stream is closed");
    return this.#context;
  }

  /** Calls a function of the module; throws an error for a code other than 0. */
  #call(what, ...addresses) {
    const code = this.#exports[`${MODEL.name}_${what}`](...addresses);
    if (code !== 0) throw new RangeError(MODEL.errors[code]);
  }

  #frames(arrays) {
    let frames;
    this.#places.inputs.forEach((each, i) => {
      const array = arrays[i];
      if (!(array instanceof each.Type)) {
        throw new TypeError(`${each.name} is a ${each.Type.name}, of ${each.size} numbers per frame`);
      }
      const count = array.length / each.size;
      if (!Number.isInteger(count) || (frames !== undefined && count !== frames)) {
        throw new RangeError(`${each.name} has ${array.length} numbers, and a frame has ${each.size}`);
      }
      frames = count;
    });
    return frames ?? 1;
  }
}

/** Returns the SHA-256 of bytes as text: browsers offer theirs to pages from secure addresses alone. */
function sha256(data) {
  const primes = [];
  for (let n = 2; primes.length < 64; n++) if (primes.every((prime) => n % prime)) primes.push(n);
  const fraction = (x) => ((x - Math.floor(x)) * 2 ** 32) | 0;
  const constants = primes.map((prime) => fraction(Math.cbrt(prime)));
  const hash = Int32Array.from(primes.slice(0, 8), (prime) => fraction(Math.sqrt(prime)));
  const padded = new Uint8Array(Math.ceil((data.length + 9) / 64) * 64);
  padded.set(data);
  padded[data.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 8, Math.floor(data.length / 2 ** 29));
  view.setUint32(padded.length - 4, (data.length * 8) >>> 0);
  const words = new Int32Array(64);
  const turn = (x, count) => (x >>> count) | (x << (32 - count));
  for (let begin = 0; begin < padded.length; begin += 64) {
    for (let i = 0; i < 64; i++) {
      if (i < 16) {
        words[i] = view.getInt32(begin + 4 * i);
        continue;
      }
      const [far, near] = [words[i - 15], words[i - 2]];
      const s0 = turn(far, 7) ^ turn(far, 18) ^ (far >>> 3);
      const s1 = turn(near, 17) ^ turn(near, 19) ^ (near >>> 10);
      words[i] = words[i - 16] + s0 + words[i - 7] + s1;
    }
    let [a, b, c, d, e, f, g, h] = hash;
    for (let i = 0; i < 64; i++) {
      const s1 = turn(e, 6) ^ turn(e, 11) ^ turn(e, 25);
      const first = (h + s1 + ((e & f) ^ (~e & g)) + constants[i] + words[i]) | 0;
      const second = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) | 0, c, b, a, (first + second) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((value, i) => (hash[i] += value));
  }
  return Array.from(hash, (word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
}
