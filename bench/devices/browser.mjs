// Times frames of the same model by stepnet and by onnxruntime-web in this process, which take turns.
// node browser.mjs '{"module", "onnxruntime", "model", "threads", "inputs", "hidden", "rounds", "frames"}'
import { readFileSync } from "node:fs";

const given = JSON.parse(process.argv[2]);
const ort = await import(given.onnxruntime);
ort.env.wasm.numThreads = given.threads;
const { load } = await import(given.module);

const random = (() => {
  let state = 1;
  return () => (state = (state * 48271) % 2147483647) / 2147483647 - 0.5;
})();
const frames = Array.from({ length: given.frames }, () => Float32Array.from({ length: given.inputs }, random));

const session = await ort.InferenceSession.create(readFileSync(given.model), {
  executionProviders: ["wasm"],
  graphOptimizationLevel: "all",
});
const x = new ort.Tensor("float32", new Float32Array(given.inputs), [1, 1, given.inputs]);
const stream = (await load()).stream();

/** The memory after all frames, which each call takes from the one before. */
async function theirs() {
  let h = new ort.Tensor("float32", new Float32Array(given.hidden), [1, 1, given.hidden]);
  for (const frame of frames) {
    x.data.set(frame);
    ({ h_next: h } = await session.run({ x, h }));
  }
  return h.data;
}

function ours() {
  stream.reset();
  let y;
  for (const frame of frames) y = stream.step(frame);
  return y;
}

const sides = { stepnet: ours, onnxruntime: theirs };
const microseconds = { stepnet: [], onnxruntime: [] };
const last = {};
for (let round = -1; round < given.rounds; round++) {
  for (const [side, run] of Object.entries(sides)) {
    const begun = performance.now();
    last[side] = await run();
    const taken = ((performance.now() - begun) * 1e3) / given.frames;
    if (round >= 0) microseconds[side].push(taken); // the first round compiles
  }
}
const away = Math.max(...last.stepnet.map((value, i) => Math.abs(value - last.onnxruntime[i])));
console.log(JSON.stringify({ microseconds, away, node: process.version, onnxruntime: ort.env.versions.common }));
process.exit(0); // threads of onnxruntime-web wait for more
