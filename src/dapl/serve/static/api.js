// The server's answers. What goes wrong is an Error whose message is for the person at the page.

const RETRIES = 20;
const BASE = document.body.dataset.base ?? "";  // of the addresses of a run, where several are served

export async function get(path) {
  return answered(await fetch(BASE + path));
}

export async function putMark(prototype, note) {
  const body = JSON.stringify({ note });
  return answered(await fetch(`${BASE}/api/marks/${prototype}`, { method: "PUT", headers: { "Content-Type": "application/json" }, body }));
}

export async function removeMark(prototype) {
  return answered(await fetch(`${BASE}/api/marks/${prototype}`, { method: "DELETE" }));
}

/** Ask about an image. `about`: { example } or { file }, and { id } once the server knows it. */
export async function explain(about, classes, off, signal, base = BASE) {
  const question = new URLSearchParams();
  classes.forEach((index) => question.append("class", index));
  off.forEach((prototype) => question.append("switched_off", prototype));
  if (about.id !== undefined) question.set("image", about.id);
  else if (about.example !== undefined) question.set("example", about.example);
  const body = about.id === undefined && about.file ? about.file : undefined;
  for (let attempt = 0; ; attempt++) {
    const response = await fetch(`${base}/api/explain?${question}`, { method: "POST", body, signal });
    if (response.status === 503 && attempt < RETRIES) {
      await pause(1000 * Number(response.headers.get("Retry-After") || 1));
      continue;
    }
    if (response.status === 404 && about.id !== undefined) {  // forgotten: tell it again
      return explain({ ...about, id: undefined }, classes, off, signal, base);
    }
    return answered(response);
  }
}

async function answered(response) {
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(content.detail || `The server answered with ${response.status}.`);
  return content;
}

function pause(milliseconds) {
  return new Promise((done) => setTimeout(done, milliseconds));
}
