// The image, with the region of the prototype that is pointed at, focused or pinned.

import { byId, outlined, percent, plain, ring, svgImage } from "/static/dom.js";
import { nameItems } from "/static/evidence.js";

const size = Number(document.body.dataset.size);
const view = byId("view");
let answer = null;
let pointed = null;
let pinned = null;

export function showImage(next) {
  if (answer === null || next.image.url !== answer.image.url) pinned = pointed = null;
  answer = next;
  byId("hint").hidden = true;
  byId("attention-layer").hidden = !answer.classes.some((one) => one.rows.some((row) => row.attention));
  const evidence = answer.classes[0];
  byId("names").replaceChildren(...nameItems(evidence));
  for (const item of byId("names").children) {
    const row = evidence.rows.find((one) => one.prototype === Number(item.dataset.prototype));
    item.addEventListener("mouseenter", () => point(row));
    item.addEventListener("mouseleave", () => point(null));
  }
  draw();
}

/** A file that is still on its way to the model, so that something is there at once. */
export function showFile(url) {
  answer = pointed = pinned = null;
  byId("hint").hidden = true;
  byId("names").replaceChildren();
  const image = svgImage(url, size);
  image.setAttribute("preserveAspectRatio", "xMidYMid slice");
  view.replaceChildren(image);
}

export function point(row) {
  pointed = row;
  draw();
}

export function isPinned(prototype) {
  return pinned !== null && pinned.prototype === prototype;
}

export function pin(row) {
  pinned = row;
  draw();
}

function draw() {
  if (answer === null) return;
  const row = pointed ?? pinned;
  const layer = document.querySelector("input[name=layer]:checked").value;
  const shown = [svgImage(answer.image.url, size)];
  if (row) {
    const overlay = layer === "attention" && row.attention ? row.attention : layer === "heat" ? row.heat : null;
    if (overlay) shown.push(svgImage(overlay, size));
    if (row.outline && !(layer === "attention" && row.attention)) shown.push(outlined(row.outline, row.colour, row.dashed));
    if (layer !== "outline" || !row.outline) shown.push(ring(row.place, size / 1.4));
  } else {
    for (const one of answer.classes[0].rows) if (one.outline) shown.push(outlined(one.outline, one.colour, one.dashed));
  }
  document.body.dataset.layer = layer;
  view.replaceChildren(...shown);
  view.dataset.prototype = row ? row.prototype : "";
  view.setAttribute("aria-label", row ? `The image with the region of prototype ${row.prototype}` : "The image as the model sees it");
  byId("caption").textContent = row ? described(row, layer) : answer.image.name ?? "Your image, as the model sees it";
}

function described(row, layer) {
  const words = [`Prototype ${row.prototype} of ${row.of.join(", ")}`];
  if (layer === "attention" && row.attention) words.push("bright: where the ringed place took its values");
  if (row.part) words.push(row.part);
  if (row.here) words.push(`here ${plain(row.here)}`);
  if (row.foreground !== null) words.push(`${percent(row.foreground)} of the region on the object here`);
  return words.join(" · ");
}

document.querySelectorAll("input[name=layer]").forEach((input) => input.addEventListener("change", draw));
