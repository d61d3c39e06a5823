// The reasons for one class: rows that stay where they are while prototypes are switched on and off.

import { breakable, datum, html, key, number, outlined, percent, plain, setDatum, svg, svgImage } from "/static/dom.js";

/** The image with the outlines of all reasons. `facts`: { size, heads } of the run. */
export function overview(evidence, photo, { size }) {
  const named = evidence.labels.map((one) => `${one.title} ${one.text}`).join("; ");
  return svg("svg", { class: "overview", viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": `The image with the outlines of its reasons: ${named}` },
    svgImage(photo, size), ...evidence.rows.filter((row) => row.outline).map((row) => outlined(row.outline, row.colour, row.dashed)));
}

/** The names of what is outlined; reasons that look at the same spot share one. */
export function nameList(evidence, properties = {}) {
  return html("ul", { class: "names", "aria-label": "What is outlined", ...properties }, ...nameItems(evidence));
}

export function nameItems(evidence) {
  return evidence.labels.map((one) => html("li", { dataset: { prototype: one.prototypes[0] } }, key(one), html("b", {}, one.title), ` ${one.text.replaceAll(" %", "\u00a0%")}`,
    one.background ? html("span", { class: "chip warn" }, "background") : null));
}

/** `actions`: { onSwitch(prototype), onMark(prototype, note), onUnmark(prototype), noteOf(prototype), point(row), pin(row), isPinned(prototype) },
 *  or null where nothing can be done with a row; `facts`: { size, heads } of the run. */
export class ClassCard {
  constructor(evidence, photo, actions, facts) {
    this.index = evidence.index;
    this.photo = photo;
    this.logit = datum(evidence.logit, { class: "logit" });
    this.change = html("span", { class: "change" });
    this.probability = html("span");
    this.rows = evidence.rows.map((row) => new Row(row, evidence.index, photo, actions, facts));
    this.rest = datum(evidence.rest.contribution, { class: "rest" });
    this.total = datum(evidence.total, { class: "total" });
    const others = evidence.rest.prototypes;
    this.element = html("section", { class: "card class", dataset: { class: evidence.index }, "aria-labelledby": `class-${evidence.index}` },
      html("div", { class: "title" },
        html("h2", { id: `class-${evidence.index}` }, ...breakable(evidence.name)),
        html("p", { class: "quiet small numbers" }, this.probability, " · logit ", this.logit, this.change)),
      ...evidence.notes.map((note) => html("p", { class: "amber small" }, `${note[0].toUpperCase()}${note.slice(1)}.`)),
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
  constructor(row, label, photo, actions, facts) {
    this.actions = actions;
    const key = `${label}-${row.prototype}`;
    const near = here(row, photo, facts.size);
    this.look = actions === null ? html("div", { class: "look" }, near)
      : html("button", { type: "button", class: "look", "aria-pressed": "false", dataset: { key: `look-${key}` },
        "aria-label": `Show where prototype ${row.prototype} looks`, onclick: () => this.pinOrLetGo() }, near);
    this.contribution = datum(row.contribution, { class: "contribution" });
    this.amount = html("b", {}, this.contribution);
    this.bar = html("i");
    if (actions === null) {
      this.element = html("li", { class: "row plain-row", dataset: { prototype: row.prototype } }, this.look, patch(row), html("div", { class: "why" },
        html("div", { class: "sum numbers" }, datum(row.similarity), " × ", datum(row.weight), " = ", this.amount),
        html("div", { class: "track" }, this.bar), chips(row, null, facts)));
      this.row = row;
      return;
    }
    this.switch = html("button", { type: "button", role: "switch", class: "switch", "aria-checked": "true", dataset: { key: `switch-${key}` },
      "aria-label": `Prototype ${row.prototype} counts`, title: "Take it out of the sum, or put it back", onclick: () => actions.onSwitch(this.row.prototype) }, html("i"));
    this.flag = html("button", { type: "button", class: "flag", "aria-expanded": "false", "aria-label": `Mark prototype ${row.prototype} as bad`,
      title: "Mark it as bad", dataset: { key: `flag-${key}` }, onclick: () => this.openNote(this.form.hidden) }, "⚑");
    this.mark = html("span", { class: "chip warn", hidden: true });
    this.form = this.noteForm(row);
    this.element = html("li", { class: "row", dataset: { prototype: row.prototype }, onmouseenter: () => actions.point(this.row), onmouseleave: () => actions.point(null),
      onfocusin: () => actions.point(this.row), onfocusout: () => actions.point(null), onkeydown: (event) => this.move(event) },
      this.look, patch(row), html("div", { class: "why" },
        html("div", { class: "sum numbers" }, datum(row.similarity), " × ", datum(row.weight), " = ", this.amount),
        html("div", { class: "track" }, this.bar), chips(row, this.mark, facts)),
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
    this.switch?.setAttribute("aria-checked", String(!row.switched_off));
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
    const pressed = !this.actions.isPinned(this.row.prototype);
    document.querySelectorAll(".look[aria-pressed=true]").forEach((button) => button.setAttribute("aria-pressed", "false"));
    this.look.setAttribute("aria-pressed", String(pressed));
    this.actions.pin(pressed ? this.row : null);
  }

  /** ↑ and ↓ go to the same control of the next row. */
  move(event) {
    if ((event.key !== "ArrowDown" && event.key !== "ArrowUp") || event.target.tagName !== "BUTTON") return;
    const next = event.key === "ArrowDown" ? this.element.nextElementSibling : this.element.previousElementSibling;
    const control = next?.querySelector(`button.${event.target.classList[0]}`);
    if (control) { event.preventDefault(); control.focus(); }
  }
}

/** The part of this image, enlarged. */
function here(row, photo, size) {
  const [left, top, right, bottom] = row.view;
  const heat = svgImage(row.heat, size);
  heat.setAttribute("class", "heat");
  return svg("svg", { viewBox: `${left} ${top} ${right - left} ${bottom - top}`, "aria-hidden": "true" },
    svgImage(photo, size), heat, row.outline ? outlined(row.outline, row.colour, row.dashed) : null);
}

/** The part of a training image that it looks like, enlarged. */
function patch(row) {
  if (!row.patch) return html("div", { class: "patch" }, html("span", { class: "quiet small" }, "no image"));
  const { image, width, height, outline } = row.patch;
  return html("div", { class: "patch", title: row.source ? `from ${row.source.image}` : null },
    svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `The training patch of prototype ${row.prototype}` },
      svgImage(image, width, height), outline ? outlined(outline, row.colour, row.dashed) : null));
}

function chips(row, mark, { heads }) {
  const chip = (properties, ...content) => html("span", { class: "chip", ...properties }, ...content);
  const whole = (share) => `${Math.floor(100 * share + 1e-9)} %`;
  return html("div", { class: "chips" },
    chip({}, key(row), heads > 1 ? `head ${row.head} · ` : "", `prototype ${row.prototype}`),
    row.part ? chip({ title: "the parts that it is on, with the share of the measured images in which it is" }, row.part) : null,
    row.outline ? null : chip({ title: "its similarity is the same at every place" }, "nothing here stands out"),
    row.here ? chip({ title: "the part that most of its region lies on in this image" }, `here ${plain(row.here)}`) : null,
    row.foreground !== null ? chip({ title: "share of the outlined region that lies on the object" }, `${whole(row.foreground)} on the object here`) : null,
    row.own ? (row.of.length > 1 ? chip({ title: row.of.join(", ") }, `shared by ${row.of.length} classes`) : null) : chip({}, `of ${row.of.join(", ")}`),
    row.background ? chip({ class: "chip warn", title: "mean over the measured images" }, `background: ${whole(row.on_object)} on the object`) : null,
    html("span", { class: "chip warn off-chip" }, "switched off"), mark);
}
