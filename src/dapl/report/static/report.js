"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const entries = data.prototypes;
  const classes = data.classes;
  const meaning = Object.fromEntries(data.flags.map((flag) => [flag.name, flag.text]));
  const warnings = new Set(["background", "ungrounded", "not projected", "removed"]);
  const SAME = "same spot";
  const size = data.size;
  const imagesAt = document.body.dataset.images;
  const STEP = 36; // cards drawn at once
  const tests = data.split;

  /** An element with properties and children; text is only ever set as text. */
  function element(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "on") for (const [event, call] of Object.entries(value)) made.addEventListener(event, call);
      else if (name in made) made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return made;
  }

  const digits = (value, places = 2) => (value === null || value === undefined ? "–" : value.toFixed(places).replace("-", "−"));
  const percent = (value) => (value === null || value === undefined ? "–" : `${Math.floor(100 * value + 1e-9)}\u00a0%`);
  /** A number stays with its percent sign, a name of a part is written as people write. */
  const together = (text) => text.replaceAll(" %", "\u00a0%");
  const plain = (name) => name.replaceAll("_", " ");
  /** A name that may be broken after each underscore. */
  const soft = (text) => text.split("_").flatMap((piece, number) => (number ? ["_", element("wbr"), piece] : [piece]));
  const title = (entry) => `Prototype ${entry.prototype}`;

  // Images: a tile of a sheet, fetched when it comes near the screen.
  const urls = new Map();
  function imageUrl(name) {
    if (!urls.has(name)) {
      const inside = document.querySelector(`script[data-image="${name}"]`);
      if (!inside && !imagesAt) return null; // still on its way: the page is read from top to bottom
      const kind = name.endsWith(".png") ? "png" : "jpeg";
      urls.set(name, inside ? `data:image/${kind};base64,${inside.textContent}` : imagesAt + encodeURIComponent(name));
    }
    return urls.get(name);
  }

  function paint(layer) {
    const { file, columns, side, guard, width, height, number, view } = layer.tile;
    const url = imageUrl(file);
    if (!url) return false;
    const pitch = side + 2 * guard;
    const [left, top, right] = view ?? [0, 0, size];
    const shown = (side * (right - left)) / size; // pixels of the sheet: of the whole tile, or of a close-up
    const x = (number % columns) * pitch + guard + (side * left) / size;
    const y = Math.floor(number / columns) * pitch + guard + (side * top) / size;
    const place = (offset, whole) => (whole > shown ? (100 * offset) / (whole - shown) : 0);
    layer.style.backgroundImage = `url("${url}")`;
    layer.style.backgroundSize = `${(100 * width) / shown}% ${(100 * height) / shown}%`;
    layer.style.backgroundPosition = `${place(x, width)}% ${place(y, height)}%`;
    return true;
  }

  const late = new Set();
  const observer = new IntersectionObserver((seen) => {
    for (const one of seen) {
      if (!one.isIntersecting) continue;
      observer.unobserve(one.target);
      for (const layer of one.target.querySelectorAll("i")) if (layer.tile && !paint(layer)) late.add(layer);
    }
  }, { rootMargin: "500px" });
  document.addEventListener("DOMContentLoaded", () => {
    late.forEach(paint);
    late.clear();
  });

  function layer(kind, sheet, number, view) {
    const made = element("i", { className: kind });
    made.tile = { ...sheet, number, view };
    return made;
  }

  /** The outline of a region, dark below its colour, so that it shows on any image. */
  function outlined(entry, path, view) {
    const svg = (tag, attributes) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
      return made;
    };
    const [left, top, right, bottom] = view ?? [0, 0, size, size];
    const made = svg("svg", { viewBox: `${left} ${top} ${right - left} ${bottom - top}`, class: "outline", "aria-hidden": "true" });
    made.append(svg("path", { d: path, class: "case" }), svg("path", { d: path, class: entry.dashed ? "edge dashed" : "edge", stroke: entry.colour }));
    return made;
  }

  /** One image, outlined. which: "source" or the number of a test image; near: the region enlarged, else the whole image. */
  function tile(entry, which, near = true) {
    const look = which === "source" ? entry.source : entry.tests[which];
    const where = which === "source" ? "the training image that it came from" : `${tests} image ${which + 1}`;
    const frame = element("span", { className: "tile", role: "img", "aria-label": `${title(entry)} on ${where}` });
    if (!look || look.tile === null) {
      frame.classList.add("empty");
      return frame;
    }
    const { photos, heat } = classes[entry.class];
    const view = near ? look.view : null;
    frame.append(layer("photo", photos, look.tile, view), layer("heat", heat, look.heat, view));
    if (look.outline) frame.append(outlined(entry, look.outline, view));
    else frame.classList.add("alike-nowhere");
    observer.observe(frame);
    return frame;
  }

  /** A small square in the colour of a head, striped where its lines are dashed. */
  function keyOf(one) {
    const made = element("i", { className: one.dashed ? "key dashed" : "key" });
    made.style.backgroundColor = one.colour;
    return made;
  }

  function chips(entry) {
    const made = [];
    if (entry.head !== null) made.push(element("span", { className: "chip" }, keyOf(entry), `head ${entry.head}`));
    if (entry.part) made.push(element("span", { className: "chip", title: `Parts that it is on, with the share of the ${tests} images in which it is` }, together(entry.part)));
    for (const flag of entry.flags) {
      const text = flag === "shared" ? `shared by ${entry.classes.length} classes` : flag === SAME ? `same spot as ${entry.same_spot.join(", ")}` : flag;
      const about = flag === "shared" ? entry.classes.map((index) => classes[index].name).join(", ") : meaning[flag] ?? flag;
      made.push(element("span", { className: warnings.has(flag) || !(flag in meaning) ? "chip warn" : flag === SAME ? "chip soft" : "chip", title: about }, text));
    }
    return made;
  }

  function value(name, text, about) {
    return element("span", { title: about }, `${name} `, element("b", {}, text));
  }

  function card(entry) {
    const others = element("span", { className: "tiles tests" }, ...entry.tests.map((_, number) => tile(entry, number)));
    others.style.gridColumn = `span ${Math.max(1, entry.tests.length)}`;
    const actions = element("div", { className: "actions" });
    const made = element(
      "article", { className: entry.kept ? "card" : "card removed", "aria-label": `${title(entry)} of ${classes[entry.class].name}` },
      element("div", { className: "tiles" }, element("span", { className: "tiles source" }, tile(entry, "source")), others),
      element("div", { className: "text" },
        element("div", { className: "line1" },
          element("h4", {}, element("button", { type: "button", className: "link", on: { click: () => open(entry) } }, title(entry))), ...chips(entry)),
        element("div", { className: "values" },
          value("on the object", percent(entry.on_object), entry.foreground.test === null ? "Share of its training patch that lies on the object" : `Share of its region that lies on the object, mean over the ${tests} images of its class`),
          value("weight", digits(entry.weight), "What one unit of similarity adds to the class")),
        entry.reason ? element("p", { className: "reason" }, `Removed: ${entry.reason}.`) : ""),
      actions);
    made.entry = entry;
    document.dispatchEvent(new CustomEvent("dapl:card", { detail: { entry, element: made, actions } }));
    return made;
  }

  // Filters.
  const form = document.querySelector("form.tools");
  const wall = document.getElementById("wall");
  const more = document.getElementById("more");
  const words = entries.map((entry) => [
    `#${entry.prototype}`, ...entry.classes.map((index) => classes[index].name), entry.source?.image ?? "", ...entry.names,
    ...entry.flags, entry.reason ?? ""].join(" ").toLowerCase().replaceAll("_", " "));
  let found = [];
  let drawn = 0;

  const chosen = (name) => form.elements[name]?.value ?? "";
  function matches(entry, number) {
    const [label, part, head, flag] = ["class", "part", "head", "flag"].map(chosen);
    if (label !== "" && entry.class !== Number(label)) return false;
    if (part !== "" && (part === "-" ? entry.names.length : !entry.names.includes(part))) return false;
    if (head !== "" && entry.head !== Number(head)) return false;
    if (flag !== "" && (flag === "-" ? entry.flags.length : !entry.flags.includes(flag))) return false;
    const asked = chosen("q").toLowerCase().replaceAll("_", " ").split(/\s+/).filter(Boolean);
    return asked.every((word) => (/^#\d+$/.test(word) ? word === `#${entry.prototype}` : words[number].includes(word)));
  }

  const orders = {
    foreground: (entry) => entry.on_object ?? 2,
    overlap: (entry) => -(entry.overlap?.iou ?? -1),
    weight: (entry) => -(entry.weight ?? -Infinity),
  };

  function refresh() {
    const key = orders[chosen("sort")];
    found = entries.filter(matches);
    if (key) found = found.filter((entry) => entry.kept).sort((a, b) => key(a) - key(b));
    const all = new Set(entries.map((entry) => entry.prototype)).size;
    const shown = new Set(found.map((entry) => entry.prototype)).size;
    const removed = all - data.kept;
    form.querySelector("output").textContent = `${shown.toLocaleString("en")} of ${all.toLocaleString("en")} prototypes${removed ? `, of which ${removed.toLocaleString("en")} were removed` : ""}`;
    wall.replaceChildren();
    drawn = 0;
    if (found.length) draw();
    else wall.append(element("p", { className: "quiet" }, "No prototype is like this."));
    showMore();
  }

  function showMore() {
    more.hidden = drawn >= found.length;
    more.textContent = `Show ${Math.min(STEP, found.length - drawn)} more of ${(found.length - drawn).toLocaleString("en")}`;
  }

  function draw() {
    const byClass = !chosen("sort");
    const next = found.slice(drawn, drawn + STEP);
    const made = [];
    next.forEach((entry, number) => {
      const before = found[drawn + number - 1];
      if (byClass && (!before || before.class !== entry.class)) made.push(heading(classes[entry.class]));
      const one = card(entry);
      if (!byClass) one.querySelector(".line1").append(element("span", { className: "chip" }, classes[entry.class].name));
      made.push(one);
    });
    wall.append(...made);
    drawn += next.length;
    showMore();
  }

  function heading(one) {
    const known = [["right", one.accuracy], ["Coverage", one.coverage], ["Diversity", one.diversity]].filter((pair) => pair[1] !== null);
    const text = known.map(([name, share]) => (name === "right" ? `${percent(share)} of ${one.images} right` : `${name} ${digits(share)}`)).join(" · ");
    return element("h3", {}, ...soft(one.name), element("small", {}, text));
  }

  const FIELDS = ["q", "class", "part", "head", "flag", "sort"];
  function remember() {
    const state = new URLSearchParams(FIELDS.filter(chosen).map((name) => [name, chosen(name)])).toString();
    try {
      history.replaceState(null, "", state ? `#?${state}` : location.pathname + location.search);
    } catch { /* a browser may refuse that for pages from disk */ }
  }
  function recall() {
    if (!location.hash.startsWith("#?")) return false;
    const state = new URLSearchParams(location.hash.slice(2));
    for (const name of FIELDS) if (form.elements[name]) form.elements[name].value = state.get(name) ?? "";
    return true;
  }

  // Details of one prototype.
  const dialog = document.getElementById("details");
  let current = null;

  function fact(name, text) {
    return element("div", {}, element("dt", {}, name), element("dd", {}, text));
  }

  function figure(entry, which) {
    const look = which === "source" ? entry.source : entry.tests[which];
    const last = (path) => path.split("/").pop();
    const caption = element("figcaption", { title: look && (which === "source" ? look.image : classes[entry.class].tests[which].image) });
    if (which === "source") caption.append(look ? `from ${last(look.image)}` : "not projected: it is no training patch");
    else {
      const test = classes[entry.class].tests[which];
      const where = [look.here && plain(look.here), look.foreground !== null && `${percent(look.foreground)} on the object`].filter(Boolean).join(", ");
      const sum = entry.weight === null ? digits(look.score, 3) : `${digits(look.score, 3)} × ${digits(entry.weight, 3)} = ${digits(look.score * entry.weight, 3)}`;
      caption.append(element("b", {}, sum), entry.weight === null ? " similarity" : " similarity × weight");
      const lines = [look.outline ? where : "no place resembles it more than others, so that nothing is outlined",
        test.predicted === entry.class ? "taken right" : `taken for ${classes[test.predicted].name}`, last(test.image)];
      for (const line of lines) if (line) caption.append(element("br"), line);
    }
    return element("figure", { className: which === "source" ? "source" : "tests" }, tile(entry, which, false), caption);
  }

  function open(entry) {
    current = entry;
    const near = found.indexOf(entry);
    const go = (step) => found[near + step] && open(found[near + step]);
    const button = (text, label, call, off) => element("button", { type: "button", disabled: off, "aria-label": label, on: { click: call } }, text);
    const { patch, validation, test } = entry.foreground;
    const actions = element("div", { className: "actions" });
    const facts = element("dl", { className: "facts" },
      fact(entry.classes.length > 1 ? "classes" : "class", entry.classes.map((index) => classes[index].name).join(", ")),
      entry.reason ? fact("removed", entry.reason) : "",
      fact("name", entry.part ? together(entry.part) : data.named ? "none: no part is clear" : "none: the data names no parts"),
      entry.parts.length ? fact(`parts on ${tests} images`, entry.parts.map(([name, share]) => `${plain(name)} ${percent(share)}`).join(", ")) : "",
      fact("on the object", test === null ? `training patch ${percent(patch)}` : `${percent(test)}, mean over the ${tests} images of its class`),
      test !== null && patch !== null ? fact("the same elsewhere", `${percent(patch)} of its training patch${validation === null ? "" : `, ${percent(validation)} on validation images`}`) : "",
      fact("weight", digits(entry.weight, 3)),
      entry.overlap ? fact("overlaps most with", `prototype ${entry.overlap.with}, mean IoU ${digits(entry.overlap.iou)}`) : "",
      entry.distance === null ? "" : fact("moved by projection", `squared distance ${digits(entry.distance, 4)}`));
    dialog.replaceChildren(
      element("div", { className: "bar" },
        element("h2", { id: "details-title" }, title(entry), " ", element("span", {}, ...soft(classes[entry.class].name))),
        button("←", "Previous prototype", () => go(-1), near <= 0),
        button("→", "Next prototype", () => go(1), near < 0 || near >= found.length - 1),
        button("Close", "Close", () => dialog.close())),
      element("div", { className: "line1" }, ...chips(entry)),
      element("div", { className: entry.kept ? "large" : "large removed" }, figure(entry, "source"), ...entry.tests.map((_, number) => figure(entry, number))),
      facts, actions);
    dialog.step = go;
    document.dispatchEvent(new CustomEvent("dapl:details", { detail: { entry, element: dialog, actions } }));
    if (!dialog.open) dialog.showModal();
  }

  function offenders() {
    for (const list of document.querySelectorAll("[data-offenders]")) {
      const kind = list.dataset.offenders;
      for (const one of data.offenders[kind]) {
        const entry = entries[one.entry];
        const what = `${percent(one.value)} on the object`;
        const where = kind !== "ungrounded" && entry.tests.length ? leastOnObject(entry) : "source";
        const numbers = `#${entry.prototype}`;
        const name = classes[entry.class].name;
        list.append(element("li", {}, element("button", { type: "button", className: where === "source" ? "thumb source" : "thumb tests", title: `${numbers} ${name}`, on: { click: () => open(entry) } },
          element("span", {}, tile(entry, where, false)), element("span", {}, element("b", {}, what)), element("span", {}, `${numbers} `, ...soft(name)))));
      }
    }
  }

  /** The image shown on which it lies least on the object: what makes it an offender. */
  function leastOnObject(entry) {
    const shares = entry.tests.map((look) => look.foreground ?? 2);
    return shares.indexOf(Math.min(...shares));
  }

  /** One row per head: its name, and the part of a training image that it is for some classes. */
  function strip() {
    const place = document.getElementById("strip");
    for (const one of data.strip) {
      const name = element("p", {}, keyOf(one), element("b", {}, `head ${one.head}`), element("span", { className: "name" }, together(one.text)),
        one.background ? element("span", { className: "chip warn" }, "background") : "");
      const row = element("div", { className: "head" }, name);
      for (const number of one.entries) {
        const entry = entries[number];
        row.append(element("button", { type: "button", className: "thumb source", title: classes[entry.class].name, "aria-label": `${title(entry)} of ${classes[entry.class].name}`, on: { click: () => open(entry) } }, tile(entry, "source")));
      }
      place.append(row);
    }
  }

  function start() {
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => {
      const { name, checked } = event.target;
      if (name === "heat" || name === "outlines") document.body.classList.toggle(`with-${name}`, checked);
      else if (FIELDS.includes(name)) {
        refresh();
        remember();
        // Fewer cards: what is found must not end up above the screen.
        if (wall.getBoundingClientRect().bottom < 200) document.getElementById("prototypes").scrollIntoView();
      }
    });
    const select = (flag) => {
      form.reset();
      form.elements.flag.value = flag;
      document.body.classList.remove("with-heat");
      document.body.classList.add("with-outlines");
      refresh();
      remember();
    };
    document.getElementById("clear").addEventListener("click", () => select(""));
    more.addEventListener("click", () => {
      const before = wall.lastElementChild;
      draw();
      before?.nextElementSibling?.querySelector("button")?.focus({ preventScroll: true });
    });
    for (const button of document.querySelectorAll("[data-show-flag]")) {
      button.addEventListener("click", () => {
        select(button.dataset.showFlag);
        document.getElementById("prototypes").scrollIntoView();
      });
    }
    document.addEventListener("keydown", (event) => {
      if (dialog.open) {
        if (event.key === "ArrowLeft") dialog.step(-1);
        if (event.key === "ArrowRight") dialog.step(1);
      } else if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) {
        event.preventDefault();
        form.elements.q.focus();
      }
    });
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    document.body.classList.add("with-outlines");
    const linked = recall();
    refresh();
    offenders();
    strip();
    if (linked) document.getElementById("prototypes").scrollIntoView();
  }

  window.dapl = { data, entries, classes, card, open, refresh, tile, element, current: () => current };
  if (form) start();
  performance.mark("dapl-ready");
  document.dispatchEvent(new CustomEvent("dapl:ready"));
})();
