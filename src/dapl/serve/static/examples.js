// Test images to choose from, a few at a time.

import { get } from "/static/api.js";
import { byId, html } from "/static/dom.js";

const COUNT = 8;

export function startExamples(total, choose) {
  let first = 0;
  let chosen = null;
  const list = byId("examples");
  if (!total) return { mark() {}, first: async () => null };

  function mark(index) {
    chosen = index;
    for (const button of list.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.index) === chosen));
    }
  }

  async function load() {
    const of = byId("example-class").value;
    const found = await get(`/api/examples?start=${first}&count=${COUNT}${of === "" ? "" : `&of=${of}`}`);
    list.replaceChildren(...found.examples.map((example) => html("li", {},
      html("button", { type: "button", "aria-pressed": String(example.index === chosen), dataset: { index: example.index }, title: example.class_name,
        onclick: () => { mark(example.index); choose(example.index); } },
        html("img", { src: example.image, alt: example.class_name, width: 96, height: 96, loading: "lazy" })))));
    byId("earlier").disabled = first === 0;
    byId("later").disabled = first + COUNT >= found.total;
    byId("which").textContent = found.total ? `${first + 1}–${Math.min(first + COUNT, found.total)} of ${found.total}` : "none";
  }

  byId("example-class").addEventListener("change", () => { first = 0; load(); });
  byId("earlier").addEventListener("click", () => { first = Math.max(0, first - COUNT); load(); });
  byId("later").addEventListener("click", () => { first += COUNT; load(); });
  load();
  /** The image that the page opens with. */
  async function firstOne() {
    const found = await get("/api/examples?count=1");
    return found.examples.length ? found.examples[0].index : null;
  }
  return { mark, first: firstOne };
}
