// Runs in the thread of sound: hands on each block that comes from the microphone.

class Recorder extends AudioWorkletProcessor {
  process([[block]]) {
    if (block !== undefined) this.port.postMessage(block.slice());
    return true;
  }
}
registerProcessor("recorder", Recorder);
