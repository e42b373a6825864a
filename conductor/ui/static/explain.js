// explain.js asks how far each source holds a prompt, and why no further.

import { $, empty, fill, finding, h, loading, problem, reason } from "./dom.js";
import { explainNext, took } from "./feed.js";
import { choices } from "./fleet.js";
import * as health from "./health.js";
import { ago, int, plural } from "./format.js";
import { ask, now, on, state } from "./live.js";

const recentMost = 64; // queries that the server keeps
const firstInstances = 3, moreInstances = 12; // of an answer
const cells = 256; // blocks that a strip shows one by one

let recent = []; // newest first
let sizes = ""; // of the models, to see a change
let prefix = null; // one that was chosen among the prefixes
let pending = false; // whether it is to be explained once the view is there

// explainPrefix opens the view with a prefix of a deployment, as /admin/prefixes has both.
export function explainPrefix(d, p) {
  prefix = { value: `prefix ${p.prefix}`, text: `Prefix ${p.prefix.padStart(16, "0").slice(0, 8)}: the first ${plural(p.tokens, "token")} of recent queries`,
    model_name: d.model_name, block_size: d.block_size, tenant_id: d.tenant_id, lora_name: p.lora_name };
  pending = true;
  location.hash = "#explain";
}

export function show() {
  listRecent();
  if (pending) {
    pending = false;
    $("explain-recent").value = prefix.value;
    pick();
    submit();
  }
  ask("admin/queries").then((a) => {
    recent = a.queries.filter((q) => q.kept);
    listRecent();
    if (explainNext) {
      $("explain-recent").value = explainNext;
      took();
      pick();
      submit();
    }
  }, () => { /* those of the stream come */ });
  listModels();
  if (!$("explain-answer").firstChild) fill($("explain-answer"), empty("Ask about a prompt", "Pick a recent query, or paste token ids. The answer says for each source how far each tier reaches, and why it ends there."));
}

export function draw() { listModels(); }

on("query", (q) => {
  if (!q.kept) return; // nor a count of those that were skipped
  recent = [q, ...recent.filter((r) => r.id !== q.id)].slice(0, recentMost);
  if (!$("view-explain").hidden && document.activeElement !== $("explain-recent")) listRecent();
});

function listRecent() {
  const line = (q) => `${ago(Math.max(0, now() - Date.parse(q.time)))}: ${plural(q.tokens, "token")} to ${q.model_name}, ${int(q.matched_tokens)} matched${q.best ? ` at ${q.best}` : ""}`;
  choices($("explain-recent"), [["", recent.length ? "None: token ids below" : "None seen yet: token ids below"], ...(prefix ? [[prefix.value, prefix.text]] : []), ...recent.map((q) => [q.id, line(q)])]);
}

// models returns a source of each model, one of the default tenant if there is one.
function models() {
  const all = new Map();
  for (const r of state.rows.values()) if (!all.has(r.model_name) || r.tenant_id === "default") all.set(r.model_name, r);
  return all;
}

function listModels() {
  const all = models();
  const text = [...all.keys()].join("\n");
  if (text === sizes) return;
  sizes = text;
  fill($("explain-models"), [...all.keys()].sort().map((m) => h("option", { value: m })));
  if (!$("explain-model").value && all.size > 0) {
    $("explain-model").value = [...all.keys()][0];
    modelChosen();
  }
}

function modelChosen() {
  const r = models().get($("explain-model").value);
  if (!r) return;
  $("explain-size").value = r.block_size;
  $("explain-tenant").value = r.tenant_id === "default" ? "" : r.tenant_id;
}

// pick takes the fields of a recent query over.
function pick() {
  const value = $("explain-recent").value;
  const q = value === prefix?.value ? prefix : recent.find((r) => r.id === value);
  $("explain-tokens").disabled = Boolean(q);
  $("explain-tokens").placeholder = q ? "The token ids stay on the server." : "[101, 15, 100, 55] or 101 15 100 55";
  if (!q) return;
  $("explain-tokens").value = "";
  $("explain-model").value = q.model_name;
  $("explain-size").value = q.block_size;
  $("explain-tenant").value = q.tenant_id === "default" ? "" : q.tenant_id;
  $("explain-lora").value = q.lora_name ?? "";
  $("explain-salt").value = ""; // that of the query, which the page does not know
}

// tokensOf reads numbers, as JSON or separated by anything that is no digit.
function tokensOf(text) {
  const bad = text.match(/[^\s\d,;[\]]+/);
  if (bad) throw new Error(`"${bad[0].slice(0, 20)}" is no token id.`);
  const ids = (text.match(/\d+/g) ?? []).map(Number);
  if (ids.length === 0) throw new Error("There is no token id.");
  const big = ids.find((id) => id > 0xffffffff);
  if (big !== undefined) throw new Error(`${big} is more than a token id can be.`);
  return ids;
}

function question() {
  const value = (id) => $(`explain-${id}`).value.trim();
  const q = { model: value("model"), block_size: Number(value("size")) };
  if (value("tenant")) q.tenant_id = value("tenant");
  if (value("lora")) q.lora_name = value("lora");
  if (value("salt")) q.cache_salt = value("salt");
  if (!q.model) throw new Error("Name a model.");
  if (!q.block_size) throw new Error("Give a block size.");
  if (prefix && value("recent") === prefix.value) q.prefix = prefix.value.slice("prefix ".length);
  else if (value("recent")) q.recent = value("recent"); // its salt counts unless another is given
  else q.token_ids = tokensOf(value("tokens"));
  return q;
}

let last = 0; // numbers the questions: a late answer to an old one is dropped
async function submit() {
  const answer = $("explain-answer"), mine = ++last;
  try {
    const q = question();
    fill(answer, loading("Asking each source…"));
    const x = await ask("admin/explain", q);
    if (mine === last) fill(answer, explanation(x));
  } catch (e) {
    if (mine === last) fill(answer, problem(e.message, $("explain-recent").value && submit));
  }
}

// levels of verdicts.
const levels = { whole: "ok", part: "ok", none: "warn", too_short: "warn", no_instance: "bad" };

// explanation shows an answer: the verdict, then the instances, the longest first.
function explanation(x) {
  const verdict = h("section", { class: "card verdict", "data-level": levels[x.verdict.kind] }, h("h2", null, x.verdict.text),
    x.blocks > 0 ? h("p", null, `${plural(x.blocks, "block")} of ${plural(x.block_size, "token")} in a prompt of ${plural(x.tokens, "token")}.`)
      : h("p", null, "Engines cache whole blocks only, so no instance can hold any of it."),
    reasons(x.reasons), x.warnings?.length ? h("ul", { class: "plain" }, x.warnings.map((w) => h("li", null, w))) : null);
  if (x.blocks === 0) return verdict;
  const list = h("div", { class: "answers" });
  let shown = 0;
  const more = h("button", { type: "button", onclick: () => reveal(moreInstances) });
  function reveal(n) {
    for (const i of x.instances.slice(shown, shown + n)) list.append(instanceOf(x, i));
    shown = Math.min(x.instances.length, shown + n);
    more.hidden = shown === x.instances.length;
    more.textContent = `Show ${plural(Math.min(moreInstances, x.instances.length - shown), "more instance")}`;
  }
  reveal(firstInstances);
  return [verdict, x.instances.length + x.pools.length > 0 && legend(), list, more,
    x.pools.map((p) => h("section", { class: "card answer" }, h("h3", null, "Pool"), holder(x, p))), elsewhere(x)];
}

const legend = () => h("p", { class: "legend" }, [["device", "device"], ["host", "host"], ["disk", "disk"], ["missing", "missing"]].map(([c, name]) => h("span", { class: `key ${c}` }, name)));

// instanceOf shows the rank that holds most of the prompt, and the others on request.
function instanceOf(x, i) {
  const [best, ...others] = [...i.ranks].sort((a, b) => b.matched - a.matched || a.dp_rank - b.dp_rank);
  const pooled = i.longest_matched > (best?.matched ?? 0) ? ", those of pools included" : "";
  return h("section", { class: "card answer" },
    h("h3", null, i.instance, h("small", null, `${int(i.longest_matched)} of ${plural(x.blocks, "block")}${pooled}`)),
    !i.serves && h("p", { class: "hint" }, "A query has no row of it: it is not registered for the adapter."),
    best ? holder(x, best) : h("p", { class: "hint" }, "No rank of it holds anything."),
    others.length > 0 && h("details", { class: "ranks" }, h("summary", null, `${plural(others.length, "more rank")}: ${span(others)}`), others.map((r) => holder(x, r))));
}

// span says how much ranks hold, the most first.
function span(ranks) {
  const most = ranks[0].matched, least = ranks.at(-1).matched;
  return most === 0 ? "no block" : most === least ? plural(most, "block") + (ranks.length > 1 ? " each" : "") : `${int(most)} to ${plural(least, "block")}`;
}

// holder shows what one source holds as one rank, where that ends and why.
function holder(x, r) {
  return h("div", { class: "holder" }, h("div", null,
    h("p", { class: "who" }, h("span", { class: "dot", "data-level": health.levels[state.rows.get(r.source)?.severity] ?? "none" }), `Rank ${r.dp_rank}`, h("small", null, `${r.source} · ${r.state}${r.state_reason ? `, ${r.state_reason.replaceAll("_", " ")}` : ""}`)),
    r.media.length === 0 ? strip(x, "nothing", "none", [], r.matched) : r.media.map((m) => strip(x, m.medium, tierOf(m.tier), m.runs, r.matched))),
    h("div", null,
      r.end ? h("div", { class: "end" }, h("p", null, "Ends before ", h("b", null, `block ${int(r.end.block)}`), `, tokens ${int(r.end.tokens[0])} to ${int(r.end.tokens[1] - 1)}:`), reasons(r.end.reasons))
        : h("p", { class: "end whole" }, "Holds the whole prompt."),
      r.findings.length > 0 && h("details", { class: "aside" }, h("summary", null, plural(r.findings.length, "finding")),
        h("ul", { class: "reasons" }, r.findings.map((f) => h("li", null, finding(f.code), " ", f.message))))));
}

const tierOf = (t) => (["device", "host", "disk"].includes(t) ? t : "disk");

// strip shows the blocks of a prompt that lie on one medium, one cell a block if they fit.
function strip(x, name, tier, runs, matched) {
  const n = Math.max(1, x.blocks), single = n <= cells;
  const held = runs.reduce((sum, [from, to]) => sum + to - from, 0);
  const gap = single ? 0.14 : 0;
  const rect = (from, to, kind) => h("rect", { class: kind, x: from + gap / 2, y: 0, width: to - from - gap, height: 1 });
  const blocks = (from, to, kind) => (single ? Array.from({ length: to - from }, (_, i) => rect(from + i, from + i + 1, kind)) : [rect(from, to, kind)]);
  const says = `${name}: ${held === 0 ? "no block" : `blocks ${runs.map(([a, b]) => (b - a === 1 ? a : `${a} to ${b - 1}`)).join(", ")}`} of ${int(x.blocks)}`;
  const drawn = h("svg", { viewBox: `0 0 ${n} 1`, preserveAspectRatio: "none", role: "img", "aria-label": says }, h("title", null, says), blocks(0, n, "missing"), runs.map(([a, b]) => blocks(a, b, tier)),
    matched > 0 && matched < n && h("rect", { class: "stop", x: matched - n / 800, y: -0.2, width: n / 400, height: 1.4 }));
  return h("div", { class: "strip" }, h("span", null, name), drawn, h("span", { class: "number" }, int(held)));
}

function reasons(all) {
  return all.length > 0 && h("ul", { class: "reasons" }, all.map((r) => h("li", null, reason(r.reason), !r.certain && h("small", null, " possibly"), " ", r.text)));
}

// elsewhere shows other contexts that hold a beginning of the prompt.
function elsewhere(x) {
  if (x.elsewhere.length === 0) return null;
  const where = (w) => [w.model !== x.model && `model ${w.model}`, w.tenant !== x.tenant && `tenant ${w.tenant}`, w.block_size !== x.block_size && `block size ${w.block_size}`,
    w.lora_name !== x.lora_name && (w.lora_name ? `adapter ${w.lora_name}` : "no adapter"), w.salt && "a salt"].filter(Boolean).join(", ") || "another context";
  return h("section", { class: "card" }, h("h2", null, "Held elsewhere"), h("ul", { class: "reasons" }, x.elsewhere.map((w) => h("li", null, reason(w.reason),
    ` ${plural(w.tokens, "token")} under ${where(w)}, at ${w.instances.map((i) => i.instance).slice(0, 5).join(", ")}.`))));
}

$("explain").addEventListener("submit", (e) => {
  e.preventDefault();
  submit();
});
$("explain-recent").addEventListener("change", pick);
$("explain-model").addEventListener("change", modelChosen);
$("explain-sample").addEventListener("click", () => {
  $("explain-recent").value = recent[0]?.id ?? "";
  pick();
  if (!recent[0]) $("explain-tokens").value = Array.from({ length: 64 }, (_, i) => i + 1).join(" ");
  submit();
});
