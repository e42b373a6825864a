// live.js keeps the state of the fleet: one stream of the server, and requests for the rest.
//
//   GET /admin/live --stats--> state.stats, state.rows --listeners--> views
//                   --feed, query--> listeners
//
// A lost stream is opened again after 1, 2, 4, … at most 30 seconds. A page that is not in view
// for half a minute closes it: the server then collects nothing for it.

const tokenKey = "conductor.token";
const longestWait = 30_000;
const silence = 40_000; // the server sends something every second, and a comment every 15 s
const unseen = 30_000;
const hour = 3600;

// Problem is an answer that is an error.
export class Problem extends Error {
  constructor(status, reason, text) {
    super(text);
    this.status = status;
    this.reason = reason;
  }
}

// state is what the views show. history is that of a model, of all if it is "". link is loading, live, lost, token, refused or paused.
export const state = { link: "loading", why: "", retryAt: 0, stats: null, rows: new Map(), history: [], model: "", skew: 0 };

const listeners = { change: new Set(), feed: new Set(), query: new Set() };

// on calls f at each event of a kind: change, feed or query.
export const on = (kind, f) => listeners[kind].add(f);
const emit = (kind, value) => listeners[kind].forEach((f) => f(value));

// now is the server's time in milliseconds.
export const now = () => Date.now() + state.skew;

// ageOf returns how long ago the last batch of a source was, -1 before the first.
export const ageOf = (row) => (row.last === null ? -1 : Math.max(0, now() - row.last));

// setToken keeps a token for this tab, and tries it.
export function setToken(token) {
  try { sessionStorage.setItem(tokenKey, token); } catch { memory = token; }
  reopen();
}
let memory = null;

function tokenOf() {
  try { return sessionStorage.getItem(tokenKey) ?? memory; } catch { return memory; } // storage is off
}

// hasToken reports whether requests have a token.
export const hasToken = () => Boolean(tokenOf());

function headers(more) {
  const token = tokenOf();
  return token ? { ...more, Authorization: `Bearer ${token}` } : { ...more };
}

// call makes a request and returns the response, or throws a Problem.
async function call(path, { body, signal, accept } = {}) {
  const more = body ? { "Content-Type": "application/json" } : {};
  if (accept) more.Accept = accept;
  const response = await fetch(path, { method: body ? "POST" : "GET", headers: headers(more), body: body && JSON.stringify(body), signal, cache: "no-store" });
  if (response.ok) return response;
  let said = {};
  try { said = await response.json(); } catch { /* not an answer of Conductor */ }
  const field = said.field ? ` (${said.field}${said.index === undefined ? "" : ` ${said.index}`})` : "";
  throw new Problem(response.status, said.reason ?? "", (said.error ?? `the server answers ${response.status}`) + field);
}

// ask returns the JSON of a path. With a body it posts that.
export async function ask(path, body) {
  try {
    return await (await call(path, { body })).json();
  } catch (e) {
    if (e instanceof Problem && e.status === 401) set("token", e.message);
    throw e instanceof Problem ? e : new Problem(0, "unreachable", "The server does not answer.");
  }
}

function set(link, why = "", retryAt = 0) {
  Object.assign(state, { link, why, retryAt });
  emit("change");
}

let feed = false;
let stream = null; // an AbortController
let attempts = 0;
let timer = 0;

// watch opens the stream. withFeed asks for batches and queries too.
export function watch(withFeed) {
  if (stream && feed === withFeed) return;
  feed = withFeed;
  if (state.link !== "token" && state.link !== "refused") reopen();
}

// reopen drops the stream and opens it again at once.
export function reopen() {
  attempts = 0;
  clearTimeout(timer);
  stream?.abort();
  open();
}

async function open() {
  const mine = (stream = new AbortController());
  let watchdog = 0;
  const alive = () => {
    clearTimeout(watchdog);
    watchdog = setTimeout(() => mine.abort(), silence);
  };
  let why = "The server ended the stream.";
  try {
    alive();
    const response = await call(`admin/live?feed=${feed ? 1 : 0}`, { signal: mine.signal, accept: "text/event-stream" });
    await read(response.body, alive);
  } catch (e) {
    if (stream !== mine) return;
    if (e instanceof Problem && e.status === 401) return set("token", e.message);
    if (e instanceof Problem && e.status !== 503 && e.status !== 429 && e.status < 500) return set("refused", e.message);
    why = e instanceof Problem ? `${e.message}.` : "The server does not answer.";
  } finally {
    clearTimeout(watchdog);
    if (stream === mine) stream = null;
  }
  if (stream) return;
  const wait = Math.min(longestWait, 1000 * 2 ** attempts++) * (0.85 + 0.3 * Math.random());
  set("lost", why, Date.now() + wait);
  timer = setTimeout(open, wait);
}

// read takes events out of a stream until it ends.
async function read(body, alive) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let kind = "", data = "", rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    alive();
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("event:")) kind = line.slice(6).trim();
      else if (line.startsWith("data:")) data += line.slice(5);
      else if (line === "" || line === "\r") {
        if (data) take(kind, JSON.parse(data));
        kind = data = "";
      }
    }
  }
}

// take applies one event.
function take(kind, value) {
  if (kind !== "stats") {
    emit(kind, value);
    return;
  }
  attempts = 0;
  if (value.version !== undefined) state.rows = new Map(); // the first of a stream is complete
  for (const row of value.sources ?? []) {
    row.last = row.age_ms < 0 ? null : Date.parse(value.time) - row.age_ms; // an unchanged row does not come again
    state.rows.set(row.source, row);
  }
  for (const source of value.gone ?? []) state.rows.delete(source);
  if (value.version !== undefined && state.history.length || value.point && state.model) fetchHistory().catch(() => { /* with the next point */ });
  else if (value.point) state.history.push(value.point);
  const first = state.history.findIndex((p) => p[0] > Date.parse(value.time) / 1000 - hour);
  if (first > 0) state.history.splice(0, first);
  const { sources, gone, point, ...rest } = value;
  state.stats = value.version === undefined ? { ...state.stats, ...rest } : rest; // fields of another token are not kept
  state.skew = Date.parse(value.time) - Date.now();
  set("live");
}

// fetchHistory fetches the last hour, which the stream leaves out.
export async function fetchHistory() {
  const model = state.model;
  const all = await ask(`admin/stats?top=1${model && `&model=${encodeURIComponent(model)}`}`);
  if (model !== state.model) return; // another one was chosen meanwhile
  state.history = all.history?.points ?? [];
  emit("change");
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) {
    hiding = setTimeout(() => {
      clearTimeout(timer);
      const old = stream;
      stream = null;
      old?.abort();
      if (state.link === "live" || state.link === "lost") set("paused");
    }, unseen);
  } else if (state.link === "paused" || state.link === "lost") {
    reopen();
  }
});
let hiding = 0;
