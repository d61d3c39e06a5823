"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const entries = data.prototypes;
  const classes = data.classes;
  const meaning = Object.fromEntries(data.flags.map((flag) => [flag.name, flag.text]));
  const warnings = new Set(["background", "duplicate", "ungrounded", "not projected", "removed"]);
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
  const percent = (value) => (value === null || value === undefined ? "–" : `${Math.round(100 * value)} %`);
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
    const { file, columns, side, guard, width, height, number } = layer.tile;
    const url = imageUrl(file);
    if (!url) return false;
    const pitch = side + 2 * guard;
    const x = (number % columns) * pitch + guard;
    const y = Math.floor(number / columns) * pitch + guard;
    const place = (offset, whole) => (whole > side ? (100 * offset) / (whole - side) : 0);
    layer.style.backgroundImage = `url("${url}")`;
    layer.style.backgroundSize = `${(100 * width) / side}% ${(100 * height) / side}%`;
    layer.style.backgroundPosition = `${place(x, width)}% ${place(y, height)}%`;
    return true;
  }

  const late = new Set();
  const near = new IntersectionObserver((seen) => {
    for (const one of seen) {
      if (!one.isIntersecting) continue;
      near.unobserve(one.target);
      for (const layer of one.target.querySelectorAll("i")) if (layer.tile && !paint(layer)) late.add(layer);
    }
  }, { rootMargin: "500px" });
  document.addEventListener("DOMContentLoaded", () => {
    late.forEach(paint);
    late.clear();
  });

  function layer(kind, sheet, number) {
    const made = element("i", { className: kind });
    made.tile = { ...sheet, number };
    return made;
  }

  /** One image with heat and box. which: "source" or the number of a test image. */
  function tile(entry, which) {
    const look = which === "source" ? entry.source : entry.tests[which];
    const where = which === "source" ? "the training image that it came from" : `${tests} image ${which + 1}`;
    const frame = element("span", { className: "tile", role: "img", "aria-label": `${title(entry)} on ${where}` });
    if (!look || look.tile === null) {
      frame.classList.add("empty");
      return frame;
    }
    const { photos, heat } = classes[entry.class];
    frame.append(layer("photo", photos, look.tile), layer("heat", heat, look.heat));
    if (look.box) {
      const [left, top, right, bottom] = look.box.map((share) => 100 * share);
      const box = element("i", { className: "box" });
      Object.assign(box.style, { left: `${left}%`, top: `${top}%`, width: `${right - left}%`, height: `${bottom - top}%` });
      frame.append(box);
    }
    near.observe(frame);
    return frame;
  }

  const onObject = (entry) => {
    const { test, validation, patch } = entry.foreground;
    return test ?? validation ?? patch;
  };

  function chips(entry) {
    const made = [];
    if (entry.head !== null) made.push(element("span", { className: "chip" }, `head ${entry.head}`));
    if (entry.part) made.push(element("span", { className: "chip", title: "The part that its training patch lies on" }, entry.part));
    for (const flag of entry.flags) {
      const text = flag === "shared" ? `shared by ${entry.classes.length} classes` : flag;
      const about = flag === "shared" ? entry.classes.map((index) => classes[index].name).join(", ") : meaning[flag] ?? flag;
      made.push(element("span", { className: warnings.has(flag) || !(flag in meaning) ? "chip warn" : "chip", title: about }, text));
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
          value("on the object", percent(onObject(entry)), `Share of its region that lies on the object, mean over the ${tests} images of the class`),
          value("patch", percent(entry.foreground.patch), "Share of its training patch that lies on the object"),
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
    `#${entry.prototype}`, ...entry.classes.map((index) => classes[index].name), entry.source?.image ?? "", entry.part ?? "",
    ...entry.flags, entry.reason ?? ""].join(" ").toLowerCase().replaceAll("_", " "));
  let found = [];
  let drawn = 0;

  const chosen = (name) => form.elements[name]?.value ?? "";
  function matches(entry, number) {
    const [label, part, head, flag] = ["class", "part", "head", "flag"].map(chosen);
    if (label !== "" && entry.class !== Number(label)) return false;
    if (part !== "" && (part === "-" ? entry.part : entry.part !== part)) return false;
    if (head !== "" && entry.head !== Number(head)) return false;
    if (flag !== "" && (flag === "-" ? entry.flags.length : !entry.flags.includes(flag))) return false;
    const asked = chosen("q").toLowerCase().replaceAll("_", " ").split(/\s+/).filter(Boolean);
    return asked.every((word) => (/^#\d+$/.test(word) ? word === `#${entry.prototype}` : words[number].includes(word)));
  }

  const orders = {
    foreground: (entry) => onObject(entry) ?? 2,
    overlap: (entry) => -(entry.overlap?.iou ?? -1),
    weight: (entry) => -(entry.weight ?? -Infinity),
  };

  function refresh() {
    const key = orders[chosen("sort")];
    found = entries.filter(matches);
    if (key) found = found.filter((entry) => entry.kept).sort((a, b) => key(a) - key(b));
    const all = new Set(entries.map((entry) => entry.prototype)).size;
    const shown = new Set(found.map((entry) => entry.prototype)).size;
    form.querySelector("output").textContent = `${shown.toLocaleString("en")} of ${all.toLocaleString("en")} prototypes`;
    wall.replaceChildren();
    drawn = 0;
    if (found.length) draw();
    else wall.append(element("p", { className: "quiet" }, "No prototype is like this."));
    more.hidden = drawn >= found.length;
  }

  const atTheEnd = new IntersectionObserver((seen) => {
    if (seen.at(-1).isIntersecting && !more.hidden) draw();
  }, { rootMargin: "600px" });

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
    more.hidden = drawn >= found.length;
    // An observer speaks up on a change only: asked anew, it also says that the end is still near.
    atTheEnd.unobserve(more.parentElement);
    atTheEnd.observe(more.parentElement);
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
      const right = test.predicted === entry.class;
      caption.append(element("b", {}, `${digits(look.score, 3)}${entry.weight === null ? "" : ` × ${digits(entry.weight, 3)} = ${digits(look.score * entry.weight, 3)}`}`),
        ` similarity${entry.weight === null ? "" : " × weight"}${look.part ? `; ${look.part}` : ""}; ${right ? "taken right" : `taken for ${classes[test.predicted].name}`}, ${last(test.image)}`);
    }
    return element("figure", { className: which === "source" ? "source" : "tests" }, tile(entry, which), caption);
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
      fact("part of its patch", entry.part ?? "none, or not known"),
      entry.parts.length ? fact(`parts on ${tests} images`, entry.parts.map(([name, share]) => `${name} ${percent(share)}`).join(", ")) : "",
      fact("on the object", `patch ${percent(patch)}, ${tests} images ${percent(test)}${validation === null ? "" : `, validation ${percent(validation)}`}`),
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
      if (kind === "duplicate") list.classList.add("pairs");
      for (const one of data.offenders[kind]) {
        const entry = entries[one.entry];
        const both = one.other === undefined ? [entry] : [entry, entries[one.other]];
        const what = kind === "duplicate" ? `IoU ${digits(one.value)}` : percent(one.value);
        const where = kind !== "ungrounded" && entry.tests.length ? 0 : "source";
        const numbers = `#${both.map((each) => each.prototype).join(", #")}`;
        const name = classes[entry.class].name;
        list.append(element("li", {}, element("button", { type: "button", className: where === 0 ? "thumb tests" : "thumb source", title: `${numbers} ${name}`, on: { click: () => open(entry) } },
          element("span", {}, ...both.map((each) => tile(each, where))), element("span", {}, element("b", {}, what), ` ${numbers}`), element("span", {}, name))));
      }
    }
  }

  function start() {
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => {
      const { name, checked } = event.target;
      if (name === "heat" || name === "boxes") document.body.classList.toggle(`no-${name}`, !checked);
      else if (FIELDS.includes(name)) { refresh(); remember(); }
    });
    const select = (flag) => {
      form.reset();
      form.elements.flag.value = flag;
      document.body.classList.remove("no-heat", "no-boxes");
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
    const linked = recall();
    refresh();
    offenders();
    if (linked) document.getElementById("prototypes").scrollIntoView();
  }

  window.dapl = { data, entries, classes, card, open, refresh, tile, element, current: () => current };
  if (form) start();
  performance.mark("dapl-ready");
  document.dispatchEvent(new CustomEvent("dapl:ready"));
})();
