// fleet.js shows the totals, the findings and the table of sources.
//
// The ranks of an instance are one row that opens. The table shows 100 rows, and more on request up
// to 400, so that thousands of sources cost no more than they show. Rows keep their place while the
// pointer or the focus is in the table.

import { $, empty, fill, finding, h, keep, loading, mark, say } from "./dom.js";
import { ago, bytes, compact, int, percent, plural, rate, span } from "./format.js";
import { ageOf, fetchHistory, now, state } from "./live.js";
import { answers, cachedNow, choose, hits, rates, tiers } from "./chart.js";
import * as health from "./health.js";
import { close, follow, open, snapshotOf } from "./detail.js";
import * as start from "./start.js";
import * as ways from "./ways.js";

const page = 100, limit = 4 * page;
const states = ["failed", "stale", "partial", "paused", "replaying", "connecting", "approximate", "synced"];

const { severities, levels } = health;
const worse = (a, b) => severities.indexOf(a) - severities.indexOf(b); // orders severities

// A column has a name, what it is sorted by, and a function that writes a cell.
const columns = [
  { id: "instance", name: "Instance", of: placeOf, up: true },
  { id: "state", name: "State", of: (r) => states.length * severities.indexOf(r.severity) + states.indexOf(r.state), up: true },
  { id: "blocks", name: "Blocks", of: (r) => r.blocks, number: true },
  { id: "events", name: "Events/s", of: (r) => r.events_per_s, number: true },
  { id: "lag", name: "Lag", of: (r) => r.lag_ms, number: true },
  { id: "age", name: "Last batch", of: (r) => -(r.last ?? -Infinity), number: true },
  { id: "gaps", name: "Gaps", of: (r) => r.gaps, number: true },
  { id: "findings", name: "Findings", of: (r) => r.findings.length },
];
let sorted = columns[0], up = true, most = page;

const answerChart = answers($("answers-chart"), $("answers-legend"));
const hitChart = hits($("hits-chart"), $("hits-legend"));
const tierChart = tiers($("tiers-chart"), $("tiers-legend"));
const rateChart = rates($("rates-chart"), $("rates-legend"));

// show applies the parameters of the address: #fleet?state=stale&text=llama filters, and #fleet?source=KEY shows one
// source.
let asked = null;
export function show(parameters) {
  const source = parameters.get("source");
  if (source === null) close();
  asked = parameters.size ? parameters : null;
  if (state.history.length === 0) fetchHistory().catch(() => { /* the chart begins with what the stream brings */ });
}

export function draw() {
  if (!state.stats) {
    if (state.link === "loading") fill($("sources-empty"), loading("Waiting for the server…"));
    return;
  }
  if (state.history.length === 0 && !fetched) {
    fetched = true;
    fetchHistory().catch(() => { /* as in show */ });
  }
  start.draw();
  totals();
  findings();
  options();
  if (asked) go();
  table();
  ways.draw(filterBy);
  answerChart();
  hitChart();
  tierChart();
  rateChart();
  say($("charts-since"), now() - Date.parse(state.stats.started) < 1000 * $("charts-range").value ? `The server started ${ago(now() - Date.parse(state.stats.started))}.` : "");
  follow();
}
let fetched = false;

// go follows the address once there is something to go to.
function go() {
  const to = asked;
  asked = null;
  if (to.has("source")) open(to.get("source"), true);
  else if ((to.get("text") ?? "") !== $("filter-text").value || (to.get("state") ?? "") !== $("filter-state").value) filterBy(to.get("text") ?? "", to.get("state") ?? "");
}

function totals() {
  const { totals: t, states: by } = state.stats;
  const found = severities.filter((s) => t.findings[s]), dead = health.dead();
  const part = cachedNow(), pools = t.sources - t.ranks, synced = (by.synced ?? 0) + (by.approximate ?? 0);
  const tiles = [
    { name: "Instances", value: int(t.instances), more: [plural(t.ranks, "rank"), pools && plural(pools, "pool")].filter(Boolean).join(", ") },
    { name: "Synced", value: synced === t.sources ? "all" : int(synced), more: `of ${plural(t.sources, "source")}`, why: "Each rank of an instance, and each pool, is a source." },
    { name: "Blocks", value: compact(t.blocks), more: `held ${compact(t.memberships)} times` },
    { name: "Duplication", value: t.blocks ? `${t.duplication.toFixed(2)}×` : "–", more: "holders of a block" },
    { name: "Events/s", value: rate(t.events_per_s), more: "from all engines" },
    { name: "Queries/s", value: rate(t.queries_per_s), more: t.asked_tokens ? `${compact(t.asked_tokens)} tokens since the start` : "none yet" },
    { name: "Cached", value: part === null ? "–" : percent(part), ...(dead ? { more: "no source is synced", dim: true, why: `${health.unheard()}. What queries find now is old or nothing, and this figure is of the time before.` } : { more: `of asked tokens, ${$("charts-range").selectedOptions[0].text.toLowerCase()}${state.model && `, ${state.model}`}` }) },
  ];
  if (t.bytes !== undefined) {
    tiles.push({ name: "Index", value: bytes(t.bytes), more: t.bytes_limit ? `of ${bytes(t.bytes_limit)}` : "no limit", part: t.bytes_limit ? t.bytes / t.bytes_limit : undefined });
  }
  const words = { error: ["error", "errors"], warning: ["warning", "warnings"], info: ["for information", "for information"] };
  const counted = found.map((s) => `${found.length > 1 ? `${int(t.findings[s])} ` : ""}${words[s][t.findings[s] === 1 ? 0 : 1]}`);
  tiles.push({ name: "Findings", value: int(found.reduce((n, s) => n + t.findings[s], 0)), more: counted.join(", ") || "nothing to mend", level: levels[found[0] ?? "ok"] });
  keep($("totals"), tiles, (x) => x.name, (x) => h("div", { class: "tile" }, h("dt", null, x.name), h("dd", null, h("b"), h("small"), h("span", { class: "meter" }))), (el, x) => {
    const [value, more, meter] = el.lastChild.children;
    say(value, x.value);
    say(more, x.more);
    meter.hidden = x.part === undefined;
    meter.style.setProperty("--part", `${Math.min(100, 100 * (x.part ?? 0))}%`);
    mark(el, "data-level", x.level);
    mark(el, "title", x.why);
    el.classList.toggle("dim", Boolean(x.dim));
  });
}

const shownSentences = 3; // under one code

// findings groups the findings of all sources by code and sentence, among those of what leads to sources, the worst first.
function findings() {
  const codes = new Map(); // sentences by code, sources by sentence
  for (const row of state.rows.values()) {
    for (const f of row.findings) {
      const texts = codes.get(f.code) ?? codes.set(f.code, new Map()).get(f.code);
      const g = texts.get(f.text) ?? texts.set(f.text, { code: f.code, severity: f.severity, text: f.text, key: `${f.code} ${f.text}`, rows: [] }).get(f.text);
      g.rows.push(row);
    }
  }
  const all = [...codes.values()].flatMap(sentences)
    .map((g) => ({ ...g, count: g.rows.length, noun: "source", go: () => filterBy(g.code) }))
    .concat(ways.findings()).sort((a, b) => worse(a.severity, b.severity) || (a.code < b.code ? -1 : a.code > b.code ? 1 : (a.rest ? 1 : 0) - (b.rest ? 1 : 0) || b.count - a.count));
  $("findings").hidden = all.length === 0;
  keep($("findings-list"), all, (g) => g.key ?? g.code, (g) => h("li", null,
    h("small", { class: "severity" }), finding(g.code), h("span", { class: "grow" }), h("button", { type: "button", onclick: g.go })),
  (li, g) => {
    const only = g.count === 1;
    mark(li, "data-level", levels[g.severity]);
    say(li.firstChild, g.severity);
    say(li.children[2], only && g.rows && !g.rest ? `${g.rows[0].instance_id}, rank ${g.rows[0].dp_rank}: ${g.text}` : g.text);
    say(li.children[3], only ? "Show" : `Show ${plural(g.count, g.noun)}`);
    mark(li.children[3], "aria-label", `Show ${plural(g.count, g.noun)} with the finding ${g.code}`);
  });
}

// sentences returns the sentences that most sources have under one code, and one entry for the others: no source is under a
// sentence that is not its own.
function sentences(texts) {
  const all = [...texts.values()].sort((a, b) => b.rows.length - a.rows.length);
  if (all.length <= shownSentences) return all;
  const rest = all.slice(shownSentences).flatMap((g) => g.rows);
  return [...all.slice(0, shownSentences), { ...all[0], key: `${all[0].code} and others`, rest: true, rows: rest, text: `${plural(rest.length, "more source")}, with other sentences: open one to read its own.` }];
}

function filterBy(text, inState = "") {
  $("filter-text").value = text;
  $("filter-state").value = inState;
  $("filter-tenant").value = "";
  most = page;
  table();
  $("filter-text").scrollIntoView({ block: "nearest" });
  $("filter-text").focus();
}

// options keeps the lists of states and tenants.
function options() {
  const count = new Map();
  const tenants = new Set();
  for (const r of state.rows.values()) {
    for (const name of [r.state, r.severity]) count.set(name, (count.get(name) ?? 0) + 1);
    tenants.add(r.tenant_id);
  }
  const some = (names, words = {}) => names.filter((s) => count.has(s)).map((s) => [s, `${words[s] ?? s} (${int(count.get(s))})`]);
  choices($("filter-state"), [["", "All states"], ...some(["error", "warning"], { error: "with an error", warning: "with a warning" }), ...some(states)]);
  choices($("filter-tenant"), [["", "All tenants"], ...[...tenants].sort().map((t) => [t, t])]);
  $("filter-tenant-label").hidden = tenants.size < 2;
  const models = [...new Set([...state.rows.values()].map((r) => r.model_name))].sort();
  if (state.model && !models.includes(state.model)) models.push(state.model); // its last source has gone
  choices($("charts-model"), [["", "All models"], ...models.map((m) => [m, m])]);
  $("charts-model-label").hidden = models.length < 2;
}

// choices makes the options of a select, and keeps what was chosen.
export function choices(select, all) {
  const was = select.value;
  keep(select, all, (c) => c[0], (c) => h("option", { value: c[0] }), (el, c) => say(el, c[1]));
  if (select.value !== was) select.value = all.some((c) => c[0] === was) ? was : (all[0]?.[0] ?? "");
}

// placeOf returns the place of a row in the order of names.
function placeOf(r) { return r.ranks ? places.get(r.ranks[0].source) : places.get(r.source); }

// wanted returns the rows that pass the filters in order: the ranks of an instance as one row, with those that are
// open behind it.
function wanted() {
  const words = $("filter-text").value.toLowerCase().split(/\s+/).filter(Boolean);
  const inState = $("filter-state").value, tenant = $("filter-tenant").value;
  const passes = (r) => {
    if (inState && r.state !== inState && r.severity !== inState || tenant && r.tenant_id !== tenant) return false;
    if (words.length === 0) return true;
    const text = [r.source, r.model_name, r.type, r.state, r.reason, snapshotOf(r, true), ...r.findings.map((f) => f.code)].join(" ").toLowerCase();
    return words.every((w) => text.includes(w));
  };
  place();
  const groups = new Map();
  const compare = (a, b) => {
    const x = sorted.of(a), y = sorted.of(b);
    const order = x < y ? -1 : x > y ? 1 : 0;
    return (up ? order : -order) || placeOf(a) - placeOf(b);
  };
  for (const r of state.rows.values()) {
    if (!passes(r)) continue;
    const name = `${r.instance_id}|${r.tenant_id}`;
    (groups.get(name) ?? groups.set(name, []).get(name)).push(r);
  }
  return [...groups].map(([name, rows]) => (rows.length === 1 ? rows[0] : together(name, rows)))
    .sort(compare).flatMap((r) => (r.ranks && opened.has(r.source) ? [r, ...r.ranks.sort(compare)] : [r]));
}

const opened = new Set(); // instances whose ranks are shown

// together returns the row of an instance with several ranks. Its source is its name without a rank.
function together(name, ranks) {
  ranks.sort((a, b) => a.dp_rank - b.dp_rank);
  const first = ranks[0];
  const sum = (of) => ranks.reduce((n, r) => n + of(r), 0);
  const same = (of) => (ranks.every((r) => of(r) === of(first)) ? of(first) : "");
  const worst = ranks.reduce((w, r) => (states.indexOf(r.state) < states.indexOf(w) ? r.state : w), first.state);
  const among = sum((r) => r.state === worst);
  const findings = new Map();
  for (const r of ranks) for (const f of r.findings) findings.set(f.code, { ...f, count: (findings.get(f.code)?.count ?? 0) + 1 });
  return {
    source: name, ranks, instance_id: first.instance_id, tenant_id: first.tenant_id, model_name: same((r) => r.model_name) || "several models", type: same((r) => r.type),
    state: worst, severity: ranks.map((r) => r.severity).sort(worse)[0], among: among < ranks.length ? `${int(among)} of ${int(ranks.length)} ` : "", reason: same((r) => r.reason),
    blocks: sum((r) => r.blocks), tiers: Object.fromEntries(["device", "host", "disk"].map((t) => [t, sum((r) => r.tiers[t] ?? 0)])),
    events_per_s: sum((r) => r.events_per_s), lag_ms: Math.max(...ranks.map((r) => r.lag_ms)), last: ranks.reduce((last, r) => (r.last === null ? last : Math.max(last ?? r.last, r.last)), null),
    gaps: sum((r) => r.gaps), restarts: sum((r) => r.restarts), findings: [...findings.values()],
  };
}

function toggle(name) {
  if (!opened.delete(name)) opened.add(name);
  order = [];
  table();
}

// places are the numbers of the sources in the order of their names. Names are compared only when
// sources come or go.
let places = new Map();
const names = new Intl.Collator("en", { numeric: true });
function place() {
  if (places.size === state.rows.size && [...state.rows.keys()].every((k) => places.has(k))) return;
  const rows = [...state.rows.values()].map((r) => [`${r.instance_id} ${r.dp_rank} ${r.tenant_id}`, r.source]).sort((a, b) => names.compare(a[0], b[0]));
  places = new Map(rows.map(([, source], i) => [source, i]));
}

let nested = new Set(); // ranks in sight behind the row of their instance
let order = []; // keys of the rows in sight, while they keep their place
const resting = () => $("sources-body").matches(":hover, :focus-within");

function table() {
  let rows = wanted();
  const total = rows.length, sources = new Set(rows.flatMap((r) => r.ranks ?? [r])).size;
  if (resting()) {
    const had = new Map(order.map((k, i) => [k, i]));
    rows.sort((a, b) => (had.get(a.source) ?? order.length) - (had.get(b.source) ?? order.length));
  }
  rows = rows.slice(0, most);
  order = rows.map((r) => r.source);
  nested = new Set(rows.flatMap((r) => (r.ranks && opened.has(r.source) ? r.ranks.map((rank) => rank.source) : [])));
  keep($("sources-body"), rows, (r) => r.source, makeRow, updateRow);
  say($("sources-count"), sources === state.rows.size ? plural(sources, "source") : `${int(sources)} of ${plural(state.rows.size, "source")}`);
  if (total > limit && most >= limit) $("sources-count").append(`; ${int(limit)} are shown, filter to see others`);
  $("sources-more").hidden = total <= most || most >= limit;
  say($("sources-more"), `Show ${Math.min(page, total - most)} more`);
  if (total > 0) fill($("sources-empty"));
  else if (!$("sources-empty").querySelector(".empty")) fill($("sources-empty"), state.rows.size
    ? empty("No source fits the filters", "Remove a filter to see more.")
    : empty("No source is registered", "What has been heard of, and may become one, is listed below."));
  $("sources").hidden = total === 0;
}

function makeRow(r) {
  const cell = (name, ...children) => h("td", { role: "cell", "data-name": name }, ...children);
  const bar = h("span", { class: "tierbar", "aria-hidden": true }, h("i", { class: "device" }), h("i", { class: "host" }), h("i", { class: "disk" }));
  const act = () => (r.ranks ? toggle(r.source) : open(r.source));
  return h("tr", { role: "row", onclick: (e) => e.target.closest("button") || getSelection().toString() || act() },
    h("th", { scope: "row", role: "rowheader" }, h("button", { type: "button", class: "link", onclick: act }), h("small")),
    cell("State", h("span", { class: "dot" }), h("span"), h("small")),
    cell("Blocks", bar, h("span")),
    cell("Events/s"), cell("Lag"), cell("Last batch"), cell("Gaps", h("span"), h("small")), cell("Findings"));
}

function updateRow(tr, r) {
  const [name, inState, blocks, events, lag, age, gaps, found] = tr.children;
  say(age, ago(ageOf(r)));
  mark(tr, "data-rank", nested.has(r.source));
  if (tr.row === r) return;
  tr.row = r;
  const isOpen = opened.has(`${r.instance_id}|${r.tenant_id}`);
  say(name.children[0], r.ranks ? r.instance_id : `${r.instance_id} / ${r.dp_rank}`);
  mark(name.children[0], "aria-label", r.ranks ? `${r.instance_id}: ${plural(r.ranks.length, "rank")}` : `${r.instance_id} / ${r.dp_rank}: details`);
  mark(name.children[0], "aria-expanded", r.ranks && String(isOpen));
  say(name.children[1], [r.ranks && plural(r.ranks.length, "rank"), r.tenant_id === "default" ? "" : r.tenant_id, r.model_name, r.type].filter(Boolean).join(" · "));
  mark(inState.children[0], "data-level", levels[r.severity]);
  say(inState.children[1], `${r.among ?? ""}${r.state}`);
  say(inState.children[2], [r.reason.replaceAll("_", " "), snapshotOf(r, true)].filter(Boolean).join(" · "));
  const { device = 0, host = 0, disk = 0 } = r.tiers;
  const sum = Math.max(1, device + host + disk);
  [device, host, disk].forEach((n, i) => blocks.children[0].children[i].style.setProperty("--part", `${100 * n / sum}%`));
  mark(blocks, "title", `device ${int(device)}, host ${int(host)}, disk ${int(disk)}`);
  say(blocks.children[1], int(r.blocks));
  say(events, rate(r.events_per_s));
  say(lag, r.lag_ms > 0 ? span(r.lag_ms) : "–");
  mark(lag, "data-level", r.lag_ms > 1000 ? "warn" : null);
  say(gaps.children[0], r.gaps ? int(r.gaps) : "–");
  say(gaps.children[1], r.restarts ? plural(r.restarts, "restart") : "");
  mark(gaps, "data-level", r.gaps ? "warn" : null);
  mark(tr, "data-findings", r.findings.length || null);
  keep(found, r.findings, (f) => f.code, (f) => h("code", { class: "tag" }, f.code.replaceAll("_", " ")), (el, f) => {
    say(el, f.code.replaceAll("_", " ") + (f.count > 1 ? ` ×${int(f.count)}` : ""));
    mark(el, "data-level", levels[f.severity]);
    mark(el, "title", f.text);
  });
}

// The head: a button for each column.
for (const c of columns) {
  const button = h("button", { type: "button", class: "sort", onclick: () => sortBy(c, sorted === c ? !up : Boolean(c.up)) }, c.name);
  c.head = h("th", { scope: "col", role: "columnheader", class: c.number && "number" }, button);
  $("sources-head").append(c.head);
  $("sort").append(h("option", { value: c.id }, `Sort: ${c.name}`));
}
function sortBy(column, ascending) {
  sorted = column;
  up = ascending;
  order = [];
  $("sort").value = column.id;
  for (const c of columns) mark(c.head, "aria-sort", c === sorted && (up ? "ascending" : "descending"));
  if (state.stats) table();
}
sortBy(columns[0], true);
$("sort").addEventListener("change", () => {
  const c = columns.find((c) => c.id === $("sort").value);
  sortBy(c, Boolean(c.up));
});
for (const id of ["filter-text", "filter-state", "filter-tenant"]) {
  $(id).addEventListener("input", () => {
    most = page;
    table();
  });
}
$("charts-range").addEventListener("input", () => {
  choose(Number($("charts-range").value));
  draw();
});
$("charts-model").addEventListener("input", () => {
  state.model = $("charts-model").value;
  state.history = [];
  fetchHistory().catch(() => { /* as in show */ });
});
$("filters").addEventListener("submit", (e) => e.preventDefault());
$("sources-more").addEventListener("click", () => {
  most = Math.min(limit, most + page);
  table();
});
