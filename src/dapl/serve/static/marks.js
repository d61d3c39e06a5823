// The list of prototypes that are marked as bad.

import { byId, html } from "/static/dom.js";

export function listMarks(marks, unmark) {
  byId("marked").hidden = marks.length === 0;
  byId("marked-title").textContent = `Marked as bad: ${marks.length}`;
  byId("marks").replaceChildren(...marks.map((mark) => html("li", { dataset: { prototype: mark.prototype } },
    html("img", { src: `${document.body.dataset.base ?? ""}/api/prototypes/${mark.prototype}/patch.jpg`, alt: `The training patch of prototype ${mark.prototype}`, width: 64, height: 64, loading: "lazy",
      onerror: (event) => event.target.classList.add("missing") }),
    html("div", {}, html("p", {}, `Prototype ${mark.prototype} of ${mark.of.join(", ")}`), html("p", { class: "quiet small" }, mark.note || "no note", " · ", mark.at.slice(0, 10))),
    html("button", { type: "button", class: "plain", "aria-label": `Take the mark of prototype ${mark.prototype} away`, onclick: () => unmark(mark.prototype) }, "Take away"))));
}
