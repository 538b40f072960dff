"use strict";
// What a number is and where it goes stands in its cell; this shows it, marks the cells it is tied to, and finds.
const cells = [...document.querySelectorAll("td.cell")];
const byKey = new Map(cells.map((cell) => [cell.dataset.key, cell]));
const tells = document.getElementById("tells");
const search = document.getElementById("search");
const matches = document.getElementById("matches");
const hint = tells.innerHTML;
let held = null;

function tied(cell) {
  return cell.dataset.to.split(" ").map((key) => byKey.get(key)).filter(Boolean);
}

function show(cell) {
  for (const other of document.querySelectorAll("td.linked, td.held")) other.classList.remove("linked", "held");
  if (!cell) { tells.innerHTML = hint; return; }
  tells.textContent = cell.dataset.tells;
  if (cell === held) cell.classList.add("held");
  for (const other of tied(cell)) other.classList.add("linked");
}

function hold(cell) {
  held = cell;
  show(cell);
  const other = cell && tied(cell)[0];
  if (other) other.scrollIntoView({ block: "nearest", inline: "nearest" });
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
  cell.focus();
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
for (const cell of cells) {
  cell.addEventListener("mouseenter", () => held || show(cell));
  cell.addEventListener("mouseleave", () => held || show(null));
  cell.addEventListener("focus", () => held || show(cell));
  cell.addEventListener("blur", () => held || show(null));
  cell.addEventListener("click", () => hold(held === cell ? null : cell));
}
if (cells[0]) cells[0].tabIndex = 0;

function find() {
  const text = search.value.trim().toLowerCase();
  let count = 0, first = null;
  for (const array of document.querySelectorAll(".array")) {
    const inName = array.dataset.search.toLowerCase().includes(text);
    let inside = false;
    for (const cell of array.querySelectorAll("td.cell")) {
      const found = inName || cell.dataset.what.toLowerCase().startsWith(text);
      cell.classList.toggle("away", text !== "" && !found);
      inside = inside || found;
    }
    array.classList.toggle("away", text !== "" && !inside);
    if (text && inside) { count += 1; first = first || array; }
  }
  matches.textContent = text ? `in ${count} ${count === 1 ? "array" : "arrays"}` : "";
  if (first) first.scrollIntoView({ block: "nearest" });
}
search.addEventListener("input", find);
