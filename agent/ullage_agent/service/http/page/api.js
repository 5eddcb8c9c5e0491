// Requests to the service this page came from. The token lives in this module's memory and nowhere else.

let token = "";

export class Refused extends Error {
  // What the service says: RFC 9457, or a status without a document.
  constructor(status, problem) {
    super(problem.detail || problem.title || `HTTP ${status}`);
    this.status = status;
    this.slug = problem.slug || "";
  }
}

export function remember(text) {
  token = text;
}

export function hasToken() {
  return token !== "";
}

async function ask(path, { method = "GET", body, headers = {} } = {}) {
  const all = { ...headers };
  if (token) all.authorization = `Bearer ${token}`;
  if (body !== undefined) all["content-type"] = "application/json";
  const request = { method, headers: all, body: body === undefined ? undefined : JSON.stringify(body) };
  const answer = await fetch(path, { ...request, cache: "no-store", credentials: "omit", redirect: "error" });
  if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => ({})));
  return answer;
}

export async function get(path, query = {}) {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== null));
  return (await ask(text.size ? `${path}?${text}` : path)).json();
}

export async function post(path, body, headers) {
  return (await ask(path, { method: "POST", body, headers })).json();
}

export async function remove(path) {
  return (await ask(path, { method: "DELETE" })).json();
}

export async function check(path) {
  // A HEAD has no document, so what is wrong is asked for with one byte of a GET. Empty content has no first byte.
  const answer = await ask(path, { headers: { range: "bytes=0-0" } }).catch((error) => {
    if (error.status !== 416) throw error;
  });
  await answer?.body?.cancel();
}

export async function download(path, name) {
  // A link cannot carry a token, so with one the content passes through a blob; without, the browser streams it.
  if (!token) return save(path, name);
  const url = URL.createObjectURL(await (await ask(path)).blob());
  save(url, name);
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // the browser has begun by then
}

function save(url, name) {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
}
