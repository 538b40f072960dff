// What is seen of the network: its memory as a picture that grows with time, and its scores as bars.

const PLUS = [0, 114, 178];
const MINUS = [213, 94, 0];
const canvas = document.getElementById("picture");
/** The frames that the picture has room for. */
export const COLUMNS = canvas.width;
const drawing = canvas.getContext("2d");
const rows = Array.from({ length: 9 }, (_, i) => bar(`Speaker ${i + 1}`));
document.getElementById("speakers").append(...rows);

/** Clears the picture, for another utterance. */
export function clear() {
  drawing.clearRect(0, 0, canvas.width, canvas.height);
}

/** Draws a frame: its memory as a column of the picture, and its scores. Returns the best speaker and the share. */
export function draw(frame, { y_memory: memory, y_scores: scores }) {
  const column = drawing.createImageData(1, memory.length);
  memory.forEach((value, i) => column.data.set([...(value < 0 ? MINUS : PLUS), 255 * Math.abs(value)], 4 * i));
  drawing.putImageData(column, frame, 0);
  canvas.setAttribute("aria-label", `Memory of ${memory.length} units after each of ${frame + 1} frames`);

  const shares = softmax(scores);
  const best = shares.indexOf(Math.max(...shares));
  rows.forEach((row, i) => {
    const percent = Math.round(100 * shares[i]);
    const bar = row.querySelector(".bar");
    row.classList.toggle("best", i === best);
    bar.setAttribute("aria-valuenow", percent);
    bar.firstChild.style.width = `${percent}%`;
    row.querySelector(".share").textContent = `${percent} %`;
  });
  return { speaker: best + 1, percent: Math.round(100 * shares[best]) };
}

function bar(name) {
  const row = document.createElement("li");
  row.innerHTML = `<span>${name}</span><span class="bar" role="meter" aria-label="${name}" aria-valuenow="0"><i></i></span>
    <span class="share" aria-hidden="true">0 %</span>`;
  return row;
}

function softmax(scores) {
  const top = Math.max(...scores);
  const powers = Array.from(scores, (score) => Math.exp(score - top));
  const sum = powers.reduce((total, power) => total + power);
  return powers.map((power) => power / sum);
}
