// Several runs, one image: each is asked, and their reasons stand side by side.

import * as api from "/static/api.js";
import { breakable, byId, html, percent } from "/static/dom.js";
import { ClassCard, overview, nameList } from "/static/evidence.js";
import { startExamples } from "/static/examples.js";

const LARGEST = 10 * 2 ** 20;
const runs = [...document.querySelectorAll(".run")].map((element) => ({
  element, base: element.dataset.base, facts: { size: Number(element.dataset.size), heads: Number(element.dataset.heads) },
}));
const same = document.body.dataset.same === "true";
let asking = null;
let names = [];

/** `about`: { example } or { file }. */
async function begin(about) {
  asking?.abort();
  const mine = (asking = new AbortController());
  say(null);
  try {
    const answers = await Promise.all(runs.map(async (run, place) => api.explain(await known(about, place), [], [], mine.signal, run.base)));
    // Classes are compared by name: another run may know the image as a file only, or number its classes otherwise.
    const truth = names[answers[0].image.label] ?? null;
    runs.forEach((run, place) => show(run, answers[place], truth));
    document.body.dataset.answered = about.example ?? "file";
  } catch (error) {
    if (error.name !== "AbortError") say(error.message);
  }
}

/** An example of the first run is sent as a file to a run that has other images. */
async function known(about, place) {
  if (about.example === undefined || place === 0 || same) return { ...about };
  const response = await fetch(`${runs[0].base}/api/examples/${about.example}/image.jpg`);
  return { file: await response.blob() };
}

function show({ element, facts }, answer, truth) {
  const evidence = answer.classes[0];
  element.querySelector(".answered").replaceChildren(
    html("p", { class: "said" }, html("b", {}, ...breakable(evidence.name)), ` ${percent(evidence.probability)} `,
      truth === null ? null : html("span", { class: evidence.name === truth ? "right" : "wrong" }, evidence.name === truth ? "✓ as it is labelled" : `✗ labelled ${truth}`),
      answer.image.seen ? html("span", { class: "quiet small seen" }, ` ${answer.image.seen}`) : null),
    // Without a warning something empty stands in its row, so that the images of all runs are side by side.
    evidence.warning ? html("p", { class: "note warning", role: "alert" }, `${evidence.warning[0].toUpperCase()}${evidence.warning.slice(1)}.`) : html("span"),
    overview(evidence, answer.image.url, facts),
    nameList(evidence),
    new ClassCard(evidence, answer.image.url, null, facts).element,
  );
}

function say(problem) {
  byId("problem").hidden = problem === null;
  byId("problem").textContent = problem ?? "";
}

const examples = startExamples(Number(document.body.dataset.examples), (index) => {
  history.replaceState(null, "", `#example=${index}`);
  begin({ example: index });
});

byId("file").addEventListener("change", (event) => {
  const [file] = event.target.files;
  event.target.value = "";
  if (!file) return;
  if (file.size > LARGEST) return say("The file is larger than 10 MB; choose a smaller one.");
  examples.mark(null);
  begin({ file });
});

async function start() {
  const classes = await api.get("/api/classes");
  names = classes.map((one) => one.name);
  byId("example-class")?.append(...classes.map((one) => html("option", { value: one.index }, one.name)));
  const wanted = /^#example=(\d+)$/.exec(location.hash);
  const first = wanted ? Number(wanted[1]) : await examples.first();
  if (first !== null) { examples.mark(first); await begin({ example: first }); }
  document.body.dataset.ready = "true";
}

start().catch((error) => say(error.message));
