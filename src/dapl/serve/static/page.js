// The page: an image comes in, an answer goes up; what is switched off is asked about again.

import * as api from "/static/api.js";
import { breakable, byId, html, percent } from "/static/dom.js";
import { ClassCard, strongest } from "/static/evidence.js";
import { startExamples } from "/static/examples.js";
import { listMarks } from "/static/marks.js";
import { isPinned, pin, point, showFile, showImage } from "/static/stage.js";

const LARGEST = 10 * 2 ** 20;
const state = { about: null, classes: [], off: new Set(), marks: new Map(), answer: null };
let cards = [];
let names = [];
let asking = null;

const actions = {
  onSwitch: (prototype) => {
    if (!state.off.delete(prototype)) state.off.add(prototype);
    ask();
  },
  onMark: (prototype, note) => changeMarks(() => api.putMark(prototype, note)),
  onUnmark: (prototype) => changeMarks(() => api.removeMark(prototype)),
  noteOf: (prototype) => state.marks.get(prototype),
  point, pin, isPinned,
};
const facts = { size: Number(document.body.dataset.size), heads: Number(document.body.dataset.heads) };

// --- asking -------------------------------------------------------------------------------------------------------

function begin(about) {
  Object.assign(state, { about, classes: [], off: new Set() });
  pin(null);
  return ask();
}

function beginFile(file) {
  if (file.size > LARGEST) return say("The file is larger than 10 MB; choose a smaller one.");
  if (file.size === 0) return say("The file is empty; choose another one.");
  history.replaceState(null, "", location.pathname);
  mark(null);
  showFile(URL.createObjectURL(file));
  return begin({ file });
}

async function ask() {
  asking?.abort();
  const mine = (asking = new AbortController());
  byId("answer").setAttribute("aria-busy", "true");
  try {
    const answer = await api.explain(state.about, state.classes, state.off, mine.signal);
    if (mine !== asking) return;
    state.about.id = answer.image.id;
    state.classes = answer.classes.map((one) => one.index);
    state.answer = answer;
    say(null);
    show(answer);
  } catch (error) {
    if (error.name !== "AbortError") say(error.message);
  } finally {
    if (mine === asking) byId("answer").removeAttribute("aria-busy");
  }
}

// --- showing ------------------------------------------------------------------------------------------------------

function show(answer) {
  showImage(answer);
  byId("result").hidden = false;
  const changed = answer.predicted !== answer.predicted_before;
  byId("predicted").replaceChildren(...breakable(names[answer.predicted]));
  byId("predicted").dataset.class = answer.predicted;
  byId("asked").textContent = answer.switched_off.length ? "Without what is switched off, the model says" : "The model says";
  const label = answer.image.label;
  byId("truth").textContent = label === null ? "" : label === answer.predicted ? "✓ as it is labelled" : `✗ labelled ${names[label]}`;
  byId("truth").className = label === null ? "small" : label === answer.predicted ? "small right" : "small wrong";
  byId("seen").textContent = answer.image.seen;
  byId("seen").hidden = !answer.image.seen;
  const warning = answer.classes.find((one) => one.index === answer.predicted)?.warning;
  byId("warning").hidden = !warning;
  byId("warning").textContent = warning ? `${warning[0].toUpperCase()}${warning.slice(1)}.` : "";
  byId("switches").classList.toggle("active", answer.switched_off.length > 0);
  byId("reset").disabled = answer.switched_off.length === 0;
  byId("switched").textContent = switchedText(answer, changed);
  byId("ranking").replaceChildren(...answer.ranking.map(rankedLine));
  showClasses(answer);
  byId("first").value = answer.classes[0].index;
  byId("second").value = answer.classes[1]?.index ?? "";
  byId("status").textContent = `${names[answer.predicted]}, ${percent(answer.ranking[0].probability)}. ${byId("switched").textContent}`;
}

function switchedText(answer, changed) {
  const count = answer.switched_off.length;
  if (count === 0) return "Switch a prototype off to see what the model would say without it.";
  const which = count === 1 ? `Prototype ${answer.switched_off[0]} is` : `${count} prototypes are`;
  return `${which} switched off; ${changed ? `the prediction was ${names[answer.predicted_before]}.` : "the prediction stays the same."}`;
}

function rankedLine(ranked) {
  const now = html("i");
  const before = html("u");
  now.style.width = `${100 * ranked.probability}%`;
  before.style.width = `${100 * ranked.before}%`;
  return html("li", {}, html("span", { title: ranked.name }, ranked.name), html("span", { class: "track" }, before, now),
    html("span", { class: "numbers" }, percent(ranked.probability)));
}

function showClasses(answer) {
  const most = strongest(answer.classes);
  const photo = answer.image.url;
  if (cards.length !== answer.classes.length || !cards.every((card, place) => card.fits(answer.classes[place], photo))) {
    cards = answer.classes.map((evidence) => new ClassCard(evidence, photo, actions, facts));
    byId("classes").replaceChildren(...cards.map((card) => card.element));
  }
  cards.forEach((card, place) => card.update(answer.classes[place], most));
}

function say(problem) {
  byId("problem").hidden = problem === null;
  byId("problem").textContent = problem ?? "";
}

// --- marks --------------------------------------------------------------------------------------------------------

async function changeMarks(change) {
  try {
    showMarks(await change());
    say(null);
    return true;
  } catch (error) {
    say(error.message);
    return false;
  }
}

function showMarks({ marks }) {
  state.marks = new Map(marks.map((one) => [one.prototype, one.note]));
  cards.forEach((card) => card.rows.forEach((row) => row.showMark()));
  listMarks(marks, actions.onUnmark);
}

// --- ways in ------------------------------------------------------------------------------------------------------

const { mark, first } = startExamples(Number(document.body.dataset.examples), (index) => {
  history.replaceState(null, "", `#example=${index}`);
  begin({ example: index });
});

byId("file").addEventListener("change", (event) => {
  if (event.target.files.length) beginFile(event.target.files[0]);
  event.target.value = "";
});
document.addEventListener("paste", (event) => {
  const file = [...(event.clipboardData?.files ?? [])][0];
  if (file) beginFile(file);
});
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  byId("dropping").hidden = false;
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) byId("dropping").hidden = true;
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  byId("dropping").hidden = true;
  const file = event.dataTransfer?.files[0];
  if (file) beginFile(file);
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  document.querySelectorAll(".look[aria-pressed=true]").forEach((button) => button.setAttribute("aria-pressed", "false"));
  pin(null);
});
byId("reset").addEventListener("click", () => {
  state.off.clear();
  byId("classes").querySelector("button.switch")?.focus();  // the button is about to be disabled, and focus with it
  ask();
});
for (const id of ["first", "second"]) {
  byId(id).addEventListener("change", () => {
    const chosen = [byId("first").value, byId("second").value].filter((value) => value !== "").map(Number);
    state.classes = [...new Set(chosen)];
    ask();
  });
}

async function start() {
  const [classes, marks] = await Promise.all([api.get("/api/classes"), api.get("/api/marks")]);
  names = classes.map((one) => one.name);
  const options = () => names.map((name, index) => html("option", { value: index }, name));
  byId("first").replaceChildren(...options());
  byId("second").replaceChildren(html("option", { value: "" }, "nothing"), ...options());
  byId("example-class")?.append(...options());
  showMarks(marks);
  const wanted = /^#example=(\d+)$/.exec(location.hash);
  const example = wanted ? Number(wanted[1]) : await first();
  if (example !== null && state.about === null) { mark(example); await begin({ example }); }
  document.body.dataset.ready = "true";
}

start().catch((error) => say(error.message));
