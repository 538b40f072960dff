// The page: it hears a recorded utterance or the microphone, and draws what the network makes of each frame.

import { hasMicrophone, listen } from "./microphone.js";
import { COLUMNS, clear, draw } from "./picture.js";
import { load } from "./speakers.js";

const FEATURES = 12;
const PACE = 60; // milliseconds of a recorded frame on the screen
const still = matchMedia("(prefers-reduced-motion: reduce)");
const buttons = [...document.querySelectorAll("[data-begin]")];
const microphone = document.getElementById("microphone");
const status = document.getElementById("status");
let turn; // what is heard now: the timer of a recording
let close; // closes the microphone, while it is open

/** What the network gave for each frame that was heard of the present utterance. */
export const heard = [];

try {
  const model = await load();
  const sound = await fetch("utterances.f32");
  if (!sound.ok) throw new Error(`utterances.f32: ${sound.status} ${sound.statusText}`);
  start(model.stream(), new Float32Array(await sound.arrayBuffer()));
} catch (error) {
  status.textContent = `The network could not be loaded: ${error.message}`;
}

function start(stream, utterances) {
  const begin = () => {
    stream.reset();
    heard.length = 0;
    clear();
  };
  const hear = (frame) => {
    heard.push(stream.step(frame));
    return draw(heard.length - 1, heard.at(-1));
  };

  /** Hears a recorded utterance, frame by frame; all of it at once where movement is unwanted. */
  const play = (button) => {
    const { speaker, frames, begin: first } = button.dataset;
    const count = Number(frames);
    const next = () => {
      const t = heard.length;
      const guess = hear(utterances.subarray((Number(first) + t) * FEATURES, (Number(first) + t + 1) * FEATURES));
      if (t + 1 === count) {
        const verdict = guess.speaker === Number(speaker) ? "right" : `wrong, it is speaker ${speaker}`;
        status.textContent = `After ${count} frames: speaker ${guess.speaker}, ${guess.percent} % sure (${verdict}).`;
      } else if (still.matches) next();
      else turn = setTimeout(next, PACE);
    };
    clearTimeout(turn);
    hush();
    begin();
    status.textContent = `Hearing speaker ${speaker} …`;
    next();
  };

  const open = async () => {
    const told = (frame) => {
      const guess = hear(frame);
      const ended = heard.length === COLUMNS ? " Pause, then say it again." : "";
      status.textContent = `You sound like speaker ${guess.speaker}, ${guess.percent} % sure.${ended}`;
    };
    microphone.disabled = true;
    try {
      close = await listen(COLUMNS, begin, told);
      clearTimeout(turn);
      microphone.setAttribute("aria-pressed", "true");
      status.textContent = "Listening: say “ah-eh”.";
    } catch (error) {
      status.textContent = `There is no sound from a microphone (${error.message}): choose a recorded speaker.`;
    }
    microphone.disabled = false;
  };

  buttons.forEach((button) => button.addEventListener("click", () => play(button)));
  microphone.addEventListener("click", () => (close === undefined ? open() : hush()));
  microphone.disabled = !hasMicrophone;
  status.textContent = "Ready: choose a speaker.";
}

/** Closes the microphone, if it is open. */
function hush() {
  close?.();
  close = undefined;
  microphone.setAttribute("aria-pressed", "false");
}
