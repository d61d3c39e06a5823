// The reasons for one class: rows that stay where they are while prototypes are switched on and off.

import { breakable, datum, frame, html, number, percent, setDatum, svg, svgImage } from "/static/dom.js";
import { isPinned, pin, point } from "/static/stage.js";

const size = Number(document.body.dataset.size);
const withHeads = Number(document.body.dataset.heads) > 1;

/** `actions`: { onSwitch(prototype), onMark(prototype, note), onUnmark(prototype), noteOf(prototype) } */
export class ClassCard {
  constructor(evidence, photo, actions) {
    this.index = evidence.index;
    this.photo = photo;
    this.logit = datum(evidence.logit, { class: "logit" });
    this.change = html("span", { class: "change" });
    this.probability = html("span");
    this.rows = evidence.rows.map((row) => new Row(row, evidence.index, photo, actions));
    this.rest = datum(evidence.rest.contribution, { class: "rest" });
    this.total = datum(evidence.total, { class: "total" });
    const others = evidence.rest.prototypes;
    this.element = html("section", { class: "card class", dataset: { class: evidence.index }, "aria-labelledby": `class-${evidence.index}` },
      html("div", { class: "title" },
        html("h2", { id: `class-${evidence.index}` }, ...breakable(evidence.name)),
        html("p", { class: "quiet small numbers" }, this.probability, " · logit ", this.logit, this.change)),
      html("ol", { class: "rows" }, ...this.rows.map((row) => row.element)),
      html("dl", { class: "sums numbers" },
        others ? html("dt", {}, `${others} other prototype${others > 1 ? "s" : ""}`) : null,
        others ? html("dd", {}, this.rest) : null,
        html("dt", {}, "sum = logit"), html("dd", {}, this.total)));
    this.update(evidence, strongest([evidence]));
  }

  /** Whether the same rows would be shown. */
  fits(evidence, photo) {
    return this.index === evidence.index && this.photo === photo
      && evidence.rows.map((row) => row.prototype).join() === this.rows.map((row) => row.row.prototype).join();
  }

  update(evidence, most) {
    this.probability.textContent = percent(evidence.probability);
    setDatum(this.logit, evidence.logit);
    setDatum(this.rest, evidence.rest.contribution);
    setDatum(this.total, evidence.total);
    const change = evidence.logit - evidence.before;
    this.change.textContent = change === 0 ? "" : ` (${change > 0 ? "+" : ""}${number(change)})`;
    evidence.rows.forEach((row, place) => this.rows[place].update(row, most));
  }
}

/** The largest |similarity · weight|, which bars are drawn against. */
export function strongest(classes) {
  return Math.max(1e-9, ...classes.flatMap((one) => one.rows.map((row) => Math.abs(row.similarity * row.weight))));
}

class Row {
  constructor(row, label, photo, actions) {
    this.actions = actions;
    const key = `${label}-${row.prototype}`;
    this.look = html("button", { type: "button", class: "look", "aria-pressed": "false", dataset: { key: `look-${key}` },
      "aria-label": `Show where prototype ${row.prototype} looks`, onclick: () => this.pinOrLetGo() },
      svg("svg", { viewBox: `0 0 ${size} ${size}`, "aria-hidden": "true" }, svgImage(photo, size), svgImage(row.heat, size), row.box ? frame(row.box, size) : null));
    this.contribution = datum(row.contribution, { class: "contribution" });
    this.amount = html("b", {}, this.contribution);
    this.bar = html("i");
    this.switch = html("button", { type: "button", role: "switch", class: "switch", "aria-checked": "true", dataset: { key: `switch-${key}` },
      "aria-label": `Prototype ${row.prototype} counts`, title: "Take it out of the sum, or put it back", onclick: () => actions.onSwitch(this.row.prototype) }, html("i"));
    this.flag = html("button", { type: "button", class: "flag", "aria-expanded": "false", "aria-label": `Mark prototype ${row.prototype} as bad`,
      title: "Mark it as bad", dataset: { key: `flag-${key}` }, onclick: () => this.openNote(this.form.hidden) }, "⚑");
    this.mark = html("span", { class: "chip warn", hidden: true });
    this.form = this.noteForm(row);
    this.element = html("li", { class: "row", dataset: { prototype: row.prototype }, onmouseenter: () => point(this.row), onmouseleave: () => point(null),
      onfocusin: () => point(this.row), onfocusout: () => point(null), onkeydown: (event) => this.move(event) },
      this.look, patch(row), html("div", { class: "why" },
        html("div", { class: "sum numbers" }, datum(row.similarity), " × ", datum(row.weight), " = ", this.amount),
        html("div", { class: "track" }, this.bar), chips(row, this.mark)),
      html("div", { class: "actions" }, this.switch, this.flag), this.form);
    this.row = row;
    this.showMark();
  }

  update(row, most) {
    this.row = row;
    setDatum(this.contribution, row.contribution);
    this.element.classList.toggle("off", row.switched_off);
    this.amount.classList.toggle("against", row.similarity * row.weight < 0);
    this.bar.classList.toggle("against", row.similarity * row.weight < 0);
    this.bar.style.width = `${(100 * Math.abs(row.contribution)) / most}%`;
    this.switch.setAttribute("aria-checked", String(!row.switched_off));
  }

  showMark() {
    const note = this.actions.noteOf(this.row.prototype);
    this.mark.hidden = note === undefined;
    this.mark.textContent = note ? `marked: ${note}` : "marked as bad";
    this.element.classList.toggle("marked", note !== undefined);
    this.flag.setAttribute("aria-label", note === undefined ? `Mark prototype ${this.row.prototype} as bad` : `Change the mark of prototype ${this.row.prototype}`);
    this.unmark.hidden = note === undefined;
  }

  openNote(open) {
    this.form.hidden = !open;
    this.flag.setAttribute("aria-expanded", String(open));
    if (!open) return this.flag.focus();
    this.note.value = this.actions.noteOf(this.row.prototype) ?? "";
    this.note.focus();
  }

  noteForm(row) {
    this.note = html("input", { type: "text", maxlength: 500, placeholder: "Why is it bad? (may be left empty)", "aria-label": `Why prototype ${row.prototype} is bad` });
    this.unmark = html("button", { type: "button", class: "plain", hidden: true, onclick: async () => {
      if (await this.actions.onUnmark(this.row.prototype)) this.openNote(false);
    } }, "Take the mark away");
    return html("form", { class: "noting", hidden: true, onsubmit: async (event) => {
      event.preventDefault();
      if (await this.actions.onMark(this.row.prototype, this.note.value)) this.openNote(false);
    }, onkeydown: (event) => {
      if (event.key === "Escape") { event.stopPropagation(); this.openNote(false); }
    } }, this.note, html("button", { type: "submit", class: "button" }, "Mark as bad"), this.unmark);
  }

  pinOrLetGo() {
    const pressed = !isPinned(this.row.prototype);
    document.querySelectorAll(".look[aria-pressed=true]").forEach((button) => button.setAttribute("aria-pressed", "false"));
    this.look.setAttribute("aria-pressed", String(pressed));
    pin(pressed ? this.row : null);
  }

  /** ↑ and ↓ go to the same control of the next row. */
  move(event) {
    if ((event.key !== "ArrowDown" && event.key !== "ArrowUp") || event.target.tagName !== "BUTTON") return;
    const next = event.key === "ArrowDown" ? this.element.nextElementSibling : this.element.previousElementSibling;
    const control = next?.querySelector(`button.${event.target.classList[0]}`);
    if (control) { event.preventDefault(); control.focus(); }
  }
}

function patch(row) {
  if (!row.patch) return html("div", { class: "patch" }, html("span", { class: "quiet small" }, "no image"));
  const { image, width, height, box } = row.patch;
  return html("div", { class: "patch", title: row.source ? `from ${row.source.image}` : null },
    svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `The training patch of prototype ${row.prototype}` },
      svgImage(image, width, height), box ? frame(box, width) : null));
}

function chips(row, mark) {
  const chip = (text, properties = {}) => html("span", { class: "chip", ...properties }, text);
  const where = row.part_from === "image" ? "its region lies on it in this image" : "its training patch shows it";
  return html("div", { class: "chips" },
    chip(`prototype ${row.prototype}`),
    withHeads ? chip(`head ${row.head}`) : null,
    row.part ? chip(row.part, { title: where }) : null,
    row.own ? (row.of.length > 1 ? chip(`shared by ${row.of.length} classes`, { title: row.of.join(", ") }) : null) : chip(`of ${row.of.join(", ")}`),
    row.background ? chip("background", { class: "chip warn", title: "less than half of it lies on the object" }) : null,
    html("span", { class: "chip warn off-chip" }, "switched off"), mark);
}
