// prefixes.js shows what queries ask for: how much is cached and where, the tree of the prefixes
// that most queries have, which instances hold them, and how old blocks are when they leave.
//
// The tree leaves out a prefix whose only successor has nearly as many queries and as many
// holders: the longer one says the same.

import { $, add, empty, fill, h, loading, mark, problem } from "./dom.js";
import { explainPrefix } from "./explain.js";
import { choices } from "./fleet.js";
import { compact, int, percent, plural, span } from "./format.js";
import { ask, state } from "./live.js";

const every = 5000; // between two requests
const top = 200; // prefixes of a model
const columns = 32, firstRows = 40; // of the heat map
const firstRoots = 20, opened = 3; // of the tree: how many are shown, and how many of them open

let data = null, timer = 0, chosen = "", rows = firstRows, roots = firstRoots;
const flipped = new Map(); // prefixes that were opened (true) or closed
let focused = ""; // the prefix that has the place in the order of tabs

export function show() {
  if (!data) fill($("prefixes-body"), loading("Asking for the prefixes…"));
  clearInterval(timer);
  timer = setInterval(refresh, every);
  refresh();
}
export function hide() { clearInterval(timer); }
export function draw() { /* it has requests of its own */ }

async function refresh() {
  if (document.hidden) return;
  try {
    data = await ask(`admin/prefixes?top=${top}`);
    paint();
  } catch (e) {
    if (!data) fill($("prefixes-body"), problem(e.message, refresh));
  }
}

const idOf = (d) => JSON.stringify([d.tenant_id, d.model_name, d.block_size]);
const nameOf = (d) => `${d.model_name}${d.tenant_id === "default" ? "" : ` · ${d.tenant_id}`} · blocks of ${d.block_size}`;

function paint() {
  const all = data.deployments;
  choices($("deployment"), all.map((d) => [idOf(d), nameOf(d)]));
  $("deployment-label").hidden = all.length < 2;
  chosen = $("deployment").value;
  const d = all.find((x) => idOf(x) === chosen);
  if (!d || d.queries === 0) {
    fill($("prefixes-body"), empty("No queries yet", `One query in ${data.sampled} is looked at. Prefixes appear here once routers ask.`));
    return;
  }
  const body = $("prefixes-body");
  const inTree = body.contains(document.activeElement) && document.activeElement.getAttribute("role") === "treeitem";
  const scroll = body.querySelector(".heatbox")?.scrollLeft ?? 0;
  const keepFocus = !inTree && body.contains(document.activeElement) && document.activeElement.dataset.keep;
  fill(body, summary(d), tree(d), heat(d), lives(d), reports(d));
  body.querySelector(".heatbox").scrollLeft = scroll;
  if (inTree) body.querySelector("[role=treeitem][tabindex='0']")?.focus();
  if (keepFocus) body.querySelector(`[data-keep="${keepFocus}"]`)?.focus();
}

// summary shows what part of the asked tokens is cached, and where.
function summary(d) {
  const part = (n) => (d.asked_tokens ? n / d.asked_tokens : 0);
  const media = Object.entries(d.media_tokens).sort((a, b) => b[1] - a[1]);
  const tints = ["device", "host", "disk"];
  const fresh = d.asked_tokens - d.cached_tokens;
  return h("section", { class: "card" }, h("h2", null, "Where tokens of late were cached"),
    h("p", { class: "lead" }, h("b", null, percent(part(d.cached_tokens))), ` of ${compact(d.asked_tokens)} tokens in ${compact(d.queries)} queries of the last ten minutes or so were cached somewhere. ${compact(fresh)} had to be computed.`),
    h("ul", { class: "bars" }, media.map(([name, n], i) => h("li", null, h("span", null, name), h("span", { class: `meter ${tints[Math.min(i, 2)]}`, vars: { "--part": `${100 * part(n)}%` } }), h("span", { class: "number" }, percent(part(n)))))),
    h("p", { class: "hint" }, "A block on several media counts on each. Numbers are scaled from a sample, and halved every ten minutes."));
}

// nest makes trees of a list of prefixes.
function nest(all) {
  const nodes = new Map(all.map((p) => [p.prefix, { ...p, below: [] }]));
  const roots = [];
  for (const n of nodes.values()) (nodes.get(n.parent)?.below ?? roots).push(n);
  const fold = (n) => {
    while (n.below.length === 1 && n.below[0].queries >= 0.9 * n.queries && n.below[0].held === n.held) n = n.below[0];
    n.below = n.below.map(fold).sort((a, b) => b.queries - a.queries);
    return n;
  };
  return roots.map(fold).sort((a, b) => b.queries - a.queries);
}

function tree(d) {
  const all = nest(d.prefixes);
  const most = Math.max(1, ...all.map((n) => n.queries));
  const shown = [];
  const item = (n, level, open) => {
    shown.push(n.prefix);
    const leaf = n.below.length === 0, isOpen = flipped.get(n.prefix) ?? open;
    const holders = n.held === 0 ? "no instance" : n.holders.slice(0, 3).join(", ") + (n.held > 3 ? ` and ${int(n.held - Math.min(3, n.holders.length))} more` : "");
    const unseen = (text) => h("span", { class: "unseen" }, text); // the words of the headings, for screen readers
    const row = h("div", { class: "node", vars: { "--level": String(level - 1) } },
      h("span", { class: "name" }, h("span", { class: "twist", "aria-hidden": true }, leaf ? "" : isOpen ? "▾" : "▸"), h("code", null, n.prefix.padStart(16, "0").slice(0, 8)),
        n.lora_name && h("span", { class: "tag" }, n.lora_name), n.salted && h("span", { class: "tag" }, "salted")),
      h("span", { class: "number" }, int(n.depth), unseen(" blocks, ")), h("span", { class: "number" }, compact(n.tokens), unseen(" tokens, ")),
      h("span", { class: "heat" }, h("span", { class: "meter", vars: { "--part": `${100 * n.queries / most}%` } }), h("span", { class: "number" }, compact(n.queries), unseen(" queries, held by "))),
      h("span", { class: "holders" }, n.held > 0 && h("b", null, int(n.held)), " ", holders),
      h("button", { type: "button", tabindex: -1, title: "How far each instance holds this prefix, and why no further", onclick: () => explainPrefix(d, n) }, "Explain"));
    return h("li", { role: "treeitem", "aria-level": level, "aria-expanded": leaf ? null : String(isOpen), "data-prefix": n.prefix, tabindex: -1 },
      row, !leaf && isOpen && h("ul", { role: "group" }, n.below.map((b) => item(b, level + 1, open))));
  };
  const list = h("ul", { class: "tree", role: "tree", "aria-label": "Prefixes by queries", onkeydown: keys, onclick: toggle }, all.slice(0, roots).map((n, i) => item(n, 1, i < opened)));
  const first = shown.includes(focused) ? focused : shown[0];
  for (const li of list.querySelectorAll("li")) if (li.dataset.prefix === first) stop(li, 0);
  return h("section", { class: "card" }, h("h2", null, "Hottest prefixes"),
    h("div", { class: "node head", "aria-hidden": true }, h("span", null, "Prefix"), h("span", { class: "number" }, "Blocks"), h("span", { class: "number" }, "Tokens"), h("span", null, "Queries"), h("span", null, "Holders"), h("span")), list,
    all.length > roots && h("button", { type: "button", "data-keep": "roots", onclick: () => { roots += firstRoots; paint(); } }, `Show ${Math.min(firstRoots, all.length - roots)} more`));
}

// stop makes an item of the tree, and its button, stops of Tab or none.
function stop(li, at) {
  li.tabIndex = at;
  li.querySelector("button").tabIndex = at;
}

function flip(li) {
  const prefix = li.dataset.prefix;
  focused = prefix;
  if (li.hasAttribute("aria-expanded")) flipped.set(prefix, li.getAttribute("aria-expanded") === "false");
  paint();
  [...document.querySelectorAll("#prefixes-body [role=treeitem]")].find((x) => x.dataset.prefix === prefix)?.focus();
}
function toggle(e) {
  const li = e.target.closest("[role=treeitem]");
  if (li && !e.target.closest("button")) flip(li);
}

// keys moves in the tree as the pattern of trees says.
function keys(e) {
  if (e.target.closest("button")) return;
  const all = [...e.currentTarget.querySelectorAll("[role=treeitem]")];
  const li = e.target.closest("[role=treeitem]");
  const at = all.indexOf(li), expanded = li.getAttribute("aria-expanded");
  let to = null;
  switch (e.key) {
    case "ArrowDown": to = all[at + 1]; break;
    case "ArrowUp": to = all[at - 1]; break;
    case "Home": to = all[0]; break;
    case "End": to = all.at(-1); break;
    case "ArrowRight":
      if (expanded === "false") flip(li);
      else if (expanded === "true") to = all[at + 1];
      break;
    case "ArrowLeft":
      if (expanded === "true") flip(li);
      else to = li.parentElement.closest("[role=treeitem]");
      break;
    case "Enter": case " ": flip(li); break;
    default: return;
  }
  e.preventDefault();
  if (!to) return;
  for (const x of all) stop(x, -1);
  stop(to, 0);
  focused = to.dataset.prefix;
  to.focus();
}

// heat shows which instances hold the hottest prefixes. It is a table, so that it can be read.
function heat(d) {
  const hot = nest(d.prefixes).flatMap(function all(n) { return [n, ...n.below.flatMap(all)]; }).sort((a, b) => b.queries - a.queries).slice(0, columns);
  const holds = new Map(); // instance to prefixes
  for (const r of state.rows.values()) if (r.tenant_id === d.tenant_id && r.model_name === d.model_name && r.type !== "Mooncake") holds.set(r.instance_id, new Set());
  for (const p of hot) for (const name of p.holders) (holds.get(name) ?? holds.set(name, new Set()).get(name)).add(p.prefix);
  const names = [...holds].sort((a, b) => b[1].size - a[1].size || (a[0] < b[0] ? -1 : 1));
  const most = Math.log1p(hot[0]?.queries ?? 1);
  const partly = hot.some((p) => p.held > p.holders.length);
  const table = h("table", { class: "heatmap" }, h("caption", { class: "unseen" }, "Instances and the prefixes that they hold, hottest first"),
    h("thead", null, h("tr", null, h("td"), hot.map((p, i) => h("th", { scope: "col", title: `${p.prefix.slice(0, 8)}: ${plural(p.depth, "block")}, ${compact(p.queries)} queries, ${plural(p.held, "holder")}` }, String(i + 1))), h("th", { scope: "col", class: "sum" }, "Held"))),
    h("tbody", null, names.slice(0, rows).map(([name, set]) => h("tr", null, h("th", { scope: "row" }, name),
      hot.map((p) => (set.has(p.prefix)
        ? h("td", { class: "held", title: `${name} holds ${p.prefix.slice(0, 8)}: ${compact(p.queries)} queries`, vars: { "--heat": `${Math.round(25 + 75 * Math.log1p(p.queries) / most)}%` } }, h("span", { class: "unseen" }, "held"))
        : h("td", null, h("span", { class: "unseen" }, "no")))),
      h("td", { class: "number" }, int(set.size))))));
  const box = h("div", { class: "heatbox", tabindex: 0, role: "region", "aria-label": "Heat map of instances and prefixes" }, table);
  return h("section", { class: "card" }, h("h2", null, "Who holds them"),
    h("p", { class: "hint" }, "A column is a prefix, the hottest first. The stronger a cell, the more queries ask for it. ", partly && "At most 8 holders of a prefix are named."), box,
    names.length > rows && h("button", { type: "button", "data-keep": "more", onclick: () => { rows += firstRows; paint(); } }, `Show ${Math.min(firstRows, names.length - rows)} more instances`));
}

// lives shows how old blocks are when their engine evicts them.
function lives(d) {
  const all = data.lifetimes.filter((l) => l.tenant_id === d.tenant_id && l.model_name === d.model_name && l.block_size === d.block_size);
  const age = (s) => (s === null ? "–" : span(1000 * s));
  return h("section", { class: "card" }, h("h2", null, "Age of blocks when they are evicted"), all.every((l) => l.evicted === 0)
    ? empty("No evictions seen", "No engine of the model has evicted a block of the sample.")
    : h("table", { class: "small" }, h("thead", null, h("tr", null, h("th", { scope: "col" }, "Medium"), ["Evicted", "10 % before", "Half before", "90 % before"].map((n) => h("th", { scope: "col", class: "number" }, n)))),
      h("tbody", null, all.map((l) => h("tr", null, h("td", null, l.medium), h("td", { class: "number" }, int(l.evicted)), [l.p10_s, l.p50_s, l.p90_s].map((s) => h("td", { class: "number" }, age(s))))))));
}

// reports shows whether answers were right, by what routers and engines reported.
function reports(d) {
  const all = data.feedback.filter((f) => f.tenant_id === d.tenant_id).sort((a, b) => Math.min(a.precision, a.recall) - Math.min(b.precision, b.recall));
  if (all.length === 0) return null;
  return h("section", { class: "card" }, h("h2", null, "Whether answers were right"),
    h("p", { class: "hint" }, "From reports to /feedback, the worst first. Precision is the part of the promised tokens that were there, recall the part of the tokens there that were promised."),
    h("table", { class: "small" }, h("thead", null, h("tr", null, h("th", { scope: "col" }, "Instance"), h("th", { scope: "col" }, "Medium"), ["Reports", "Precision", "Recall"].map((n) => h("th", { scope: "col", class: "number" }, n)))),
      h("tbody", null, all.slice(0, firstRows).map((f) => h("tr", null, h("td", null, f.instance_id), h("td", null, f.medium || "any"), h("td", { class: "number" }, int(f.reports)), h("td", { class: "number" }, percent(f.precision)), h("td", { class: "number" }, percent(f.recall)))))));
}

$("deployment").addEventListener("change", () => data && paint());
