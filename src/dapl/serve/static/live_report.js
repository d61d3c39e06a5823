// Marks on the report: the same as on the page, kept in the run.

import { get, putMark, removeMark } from "/static/api.js";

const notes = new Map();
const buttons = new Map();  // by prototype: every button that shows its mark

function show(prototype) {
  const note = notes.get(prototype);
  for (const button of buttons.get(prototype) ?? []) {
    button.setAttribute("aria-pressed", String(note !== undefined));
    button.textContent = note === undefined ? "⚑ mark as bad" : note ? `⚑ marked: ${note}` : "⚑ marked as bad";
    button.setAttribute("aria-label", note === undefined ? `Mark prototype ${prototype} as bad` : `Take the mark of prototype ${prototype} away`);
  }
}

function replace({ marks }) {
  const changed = new Set([...notes.keys(), ...marks.map((mark) => mark.prototype)]);
  notes.clear();
  marks.forEach((mark) => notes.set(mark.prototype, mark.note));
  changed.forEach(show);
}

async function toggle(prototype, button) {
  try {
    replace(await (notes.has(prototype) ? removeMark(prototype) : putMark(prototype, "")));
  } catch (error) {
    button.textContent = error.message;
  }
}

function add({ detail: { entry, actions } }) {
  if (!entry.kept || actions.querySelector(".mark")) return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "mark";
  button.addEventListener("click", (event) => {
    event.stopPropagation();
    toggle(entry.prototype, button);
  });
  if (!buttons.has(entry.prototype)) buttons.set(entry.prototype, new Set());
  const known = buttons.get(entry.prototype);
  known.forEach((other) => { if (!other.isConnected) known.delete(other); });
  known.add(button);
  actions.append(button);
  show(entry.prototype);
}

document.addEventListener("dapl:card", add);
document.addEventListener("dapl:details", add);
get("/api/marks").then(replace).then(() => {
  window.dapl.refresh();  // cards that were built before this script came
  document.body.dataset.ready = "true";
});
