// Utterances from the microphone: each begins after a pause, and ends when the picture is full.

import { Frames, cepstrum, loudness } from "./sound.js";

const LOUD = 0.01; // of full scale
const PAUSE = 30; // quiet frames before another utterance
const AS_IT_IS = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };

/** Whether there may be a microphone: browsers give it to pages from https and from localhost. */
export const hasMicrophone = navigator.mediaDevices !== undefined && globalThis.AudioWorkletNode !== undefined;

/**
 * Opens the microphone.
 * @param {number} longest how many frames of an utterance are heard
 * @param {() => void} begin called where an utterance begins
 * @param {(frame: Float32Array) => void} hear called with each of its frames
 * @returns {Promise<() => void>} what closes the microphone
 */
export async function listen(longest, begin, hear) {
  const context = new AudioContext(); // before anything is waited for: it plays by right of the click
  let stream;
  try {
    await context.audioWorklet.addModule("recorder.js");
    stream = await navigator.mediaDevices.getUserMedia({ audio: AS_IT_IS });
  } catch (error) {
    await context.close();
    throw error;
  }
  const recorder = new AudioWorkletNode(context, "recorder", { numberOfOutputs: 0 });
  const frames = new Frames(context.sampleRate);
  let heard = longest;
  let quiet = PAUSE;
  recorder.port.onmessage = ({ data }) => {
    for (const samples of frames.push(data)) {
      if (loudness(samples) < LOUD) {
        quiet += 1;
        continue;
      }
      if (quiet >= PAUSE) {
        begin();
        heard = 0;
      }
      quiet = 0;
      if (heard++ < longest) hear(cepstrum(samples));
    }
  };
  context.createMediaStreamSource(stream).connect(recorder);
  return () => {
    recorder.port.onmessage = null;
    stream.getTracks().forEach((track) => track.stop());
    return context.close();
  };
}
