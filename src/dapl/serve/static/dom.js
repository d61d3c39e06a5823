// Elements of HTML and SVG. Text is always set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export function html(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A name that may be broken after its underscores. */
export function breakable(name) {
  return name.split(/(?<=_)/).flatMap((part, place) => (place ? [document.createElement("wbr"), part] : [part]));
}

export const byId = (id) => document.getElementById(id);

export function number(value) {
  return value.toFixed(3).replace("-", "−");
}

export function percent(share) {
  const shown = (100 * share).toFixed(1);
  return `${share > 0 && shown === "0.0" ? "< 0.1" : share < 1 && shown === "100.0" ? "> 99.9" : shown} %`;
}

/** A number as text with its exact value beside it. */
export function datum(value, properties = {}) {
  return html("data", { value, ...properties }, number(value));
}

export function setDatum(element, value) {
  element.value = value;
  element.textContent = number(value);
}

/** The name of a part as people write it. */
export const plain = (part) => part.replaceAll("_", " ");

/** The outline of a region in the colour of its head, dark below, so that it shows on any image. */
export function outlined(path, colour, dashed) {
  return svg("g", { class: "outline" }, svg("path", { d: path, class: "case" }),
    svg("path", { d: path, class: dashed ? "edge dashed" : "edge", stroke: colour }));
}

/** A small square in the colour of a head, striped where its lines are dashed. */
export function key({ colour, dashed }) {
  const made = html("i", { class: dashed ? "key dashed" : "key" });
  made.style.backgroundColor = colour;
  return made;
}

export function ring([x, y], side) {
  const place = { cx: x, cy: y, r: side / 28, fill: "none" };
  return svg("g", { class: "ring" },
    svg("circle", { ...place, stroke: "#000", "stroke-opacity": 0.55, "stroke-width": side / 45 }),
    svg("circle", { ...place, stroke: "#fff", "stroke-width": side / 90 }));
}

export function svgImage(href, width, height = width) {
  return svg("image", { href, width, height, preserveAspectRatio: "none" });
}
