"use strict";
// What a number is and where it goes stands in its cell; this shows it, marks the cells it is tied to and scrolls
// them into view, and finds.
const cells = [...document.querySelectorAll("td.cell")];
const byKey = new Map([...document.querySelectorAll(".module")].map((module) => [
  module, new Map([...module.querySelectorAll("td.cell")].map((cell) => [cell.dataset.key, cell])),
]));
const tells = document.getElementById("tells");
const search = document.getElementById("search");
const matches = document.getElementById("matches");
const hint = tells.innerHTML;
const LABELS = 30; // what the numbers of rows cover at the left
const MARGIN = 38; // what the cue of a box covers along its edge
let held = null;

function tied(cell) {
  const keys = byKey.get(cell.closest(".module"));
  return cell.dataset.to.split(" ").map((key) => keys.get(key)).filter(Boolean);
}

function show(cell) {
  for (const other of document.querySelectorAll("td.linked, td.shown")) other.classList.remove("linked", "shown", "held");
  if (!cell) { tells.innerHTML = hint; return; }
  tells.textContent = cell.dataset.tells;
  cell.classList.add("shown");
  cell.classList.toggle("held", cell === held);
  for (const other of tied(cell)) other.classList.add("linked");
  if (tied(cell)[0]) { frame(cell); reveal(tied(cell)[0]); }
}

// ---- into view -------------------------------------------------------------------------------------------------

// Both sides fit into the window: once they are there it does not move any more, and what is pointed at stays under
// the pointer.
function frame(cell) {
  cell.closest(".sides").scrollIntoView({ block: "nearest" });
}

// Scrolls the boxes that a cell is in.
function reveal(cell) {
  const scroll = cell.closest(".scroll"), pane = cell.closest(".pane");
  const box = scroll.getBoundingClientRect(), view = pane.getBoundingClientRect();
  scroll.scrollLeft += missing(cell, "left", "right", box.left + MARGIN + LABELS, box.right - MARGIN);
  pane.scrollTop += missing(cell, "top", "bottom", view.top + MARGIN, view.bottom - MARGIN);
}

function missing(cell, start, end, from, to) {
  const box = cell.getBoundingClientRect();
  if (box[start] < from) return box[start] - from;
  return box[end] > to ? Math.min(box[end] - to, box[start] - from) : 0;
}

function cue(box) {
  const classes = box.parentElement.classList;
  classes.toggle("before", box.scrollLeft > 1);
  classes.toggle("behind", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  classes.toggle("above", box.scrollTop > 1);
  classes.toggle("below", box.scrollTop + box.clientHeight < box.scrollHeight - 1);
}

const boxes = [...document.querySelectorAll(".scroll, .pane")];
function fit() {
  for (const sides of document.querySelectorAll(".sides")) {
    sides.classList.remove("stacked");
    const [first, last] = [sides.firstElementChild, sides.lastElementChild];
    sides.classList.toggle("stacked", last.offsetTop > first.offsetTop);
  }
  for (const box of boxes) cue(box);
}
for (const box of boxes) box.addEventListener("scroll", () => cue(box), { passive: true });
for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", fit);
window.addEventListener("resize", fit);
fit();

// ---- pointing and keys -----------------------------------------------------------------------------------------

function hold(cell) {
  held = cell;
  show(cell);
  if (cell) { frame(cell); reveal(cell); }
}

function step(cell, across, down) {
  const row = cell.parentElement;
  const place = [...row.children].indexOf(cell);
  if (across) {
    let next = row.children[place + across];
    while (next && !next.matches("td.cell")) next = row.children[next.cellIndex + across];
    return next;
  }
  const rows = [...document.querySelectorAll("tbody tr")].filter((one) => one.querySelector("td.cell"));
  const next = rows[rows.indexOf(row) + down];
  if (!next) return null;
  const under = next.children[Math.min(place, next.children.length - 1)];
  return under.matches("td.cell") ? under : next.querySelector("td.cell");
}

function enter(cell) {
  for (const other of cells) if (other.tabIndex === 0) other.tabIndex = -1;
  cell.tabIndex = 0;
  cell.focus({ preventScroll: true });
}

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
document.addEventListener("keydown", (event) => {
  const cell = event.target.closest("td.cell");
  if (event.key === "/" && event.target !== search) { event.preventDefault(); search.focus(); return; }
  if (event.key === "Escape") { held = null; show(null); if (event.target === search) { search.value = ""; find(); } return; }
  if (!cell) return;
  if (event.key === "Enter") { event.preventDefault(); hold(held === cell ? null : cell); return; }
  if (!STEPS[event.key]) return;
  event.preventDefault();
  const next = step(cell, ...STEPS[event.key]);
  if (next) enter(next);
});
// Only a pointer that moves points at something: what scrolls below one that rests does not.
let at = "", pointed = null;
document.addEventListener("pointermove", (event) => {
  const place = `${event.clientX} ${event.clientY}`;
  if (event.pointerType === "touch" || place === at) return;
  at = place;
  const cell = event.target.closest("td.cell");
  if (cell === pointed) return;
  pointed = cell;
  if (!held) show(cell);
});
for (const cell of cells) {
  cell.addEventListener("focus", () => {
    if (!cell.matches(":focus-visible")) return;
    frame(cell);
    reveal(cell);
    if (!held) show(cell);
  });
  cell.addEventListener("blur", () => held || show(null));
  cell.addEventListener("click", () => hold(held === cell ? null : cell));
}
if (cells[0]) cells[0].tabIndex = 0;

// ---- finding ---------------------------------------------------------------------------------------------------

function find() {
  const text = search.value.trim().toLowerCase();
  let count = 0, first = null;
  for (const array of document.querySelectorAll(".array")) {
    const inName = array.dataset.search.toLowerCase().includes(text);
    let inside = null;
    for (const cell of array.querySelectorAll("td.cell")) {
      const matching = inName || cell.dataset.what.toLowerCase().startsWith(text);
      cell.classList.toggle("away", text !== "" && !matching);
      inside = inside || (matching ? cell : null);
    }
    array.classList.toggle("away", text !== "" && !inside);
    if (text && inside) { count += 1; first = first || inside; }
  }
  matches.textContent = text ? `in ${count} ${count === 1 ? "array" : "arrays"}` : "";
  if (first) { frame(first); reveal(first); }
}
search.addEventListener("input", find);
