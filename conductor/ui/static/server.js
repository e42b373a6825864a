// server.js shows readiness, the process, who may ask what, snapshots, replicas, the store, the shards and the settings in use.

import { $, add, empty, fill, h, problem } from "./dom.js";
import { ago, bytes, int, plural } from "./format.js";
import { ask, now, state } from "./live.js";

export function draw() {
  const s = state.stats;
  if (!s) return;
  const fact = (name, value, level) => [h("dt", null, name), h("dd", { "data-level": level }, value)];
  const since = (time) => (time ? ago(Math.max(0, now() - Date.parse(time))) : "never");
  const r = s.ready;
  const cards = [h("section", { class: "card" }, h("h2", null, "Readiness"), h("dl", { class: "facts" },
    fact("Ready", r.ready ? "yes" : "no", r.ready ? "ok" : "warn"),
    r.draining && fact("Draining", "it is about to leave", "warn"), r.recovering && fact("Recovering", "from a snapshot or a peer", "warn"),
    fact("Synced", plural(r.synced, "source")), fact("Waiting for", plural(r.waiting, "source"), r.waiting ? "warn" : null),
    fact("Given up", plural(r.given_up, "source"), r.given_up ? "warn" : null),
    fact("Version", s.version ?? "–"), fact("Started", since(s.started))))];
  if (s.process) cards.push(...processCards(s.process, fact));
  const media = (s.tiers ?? []).flatMap((t) => Object.entries(t.media ?? {}).map(([medium, n]) => [t.tier, medium, n])).filter(([, , n]) => n > 0);
  cards.push(h("section", { class: "card" }, h("h2", null, "Blocks by medium"), media.length === 0 ? empty("No blocks yet", "Engines announce them.")
    : h("table", { class: "small" }, h("thead", null, h("tr", null, h("th", { scope: "col" }, "Medium"), h("th", { scope: "col" }, "Tier"), h("th", { scope: "col", class: "number" }, "Blocks"))),
      h("tbody", null, media.map(([tier, medium, n]) => h("tr", null, h("td", null, medium), h("td", null, tier), h("td", { class: "number" }, int(n))))))));
  if (s.snapshots) {
    const x = s.snapshots;
    cards.push(h("section", { class: "card" }, h("h2", null, "Snapshots"), !x.enabled
      ? empty("Off", "With snapshot.dir a restarted server has its blocks back within seconds.")
      : h("dl", { class: "facts" }, fact("Last", x.last ? since(x.last) : "none yet"), fact("Size", bytes(x.bytes)), x.error && fact("Error", x.error, "bad"))));
  }
  if (s.replicas) {
    cards.push(h("section", { class: "card wide" }, h("h2", null, "Replicas"), s.replicas.length === 0
      ? empty("None", "Peers of dynamo.peers appear here, with what differs.")
      : h("table", { class: "small" }, h("thead", null, h("tr", null, ["Peer", "State", "Compared", "Differences", "Batches behind"].map((n) => h("th", { scope: "col" }, n)))),
        h("tbody", null, s.replicas.map((p) => h("tr", null, h("td", null, p.peer), h("td", null, p.state, p.error && h("small", null, p.error)), h("td", null, since(p.compared)),
          h("td", { "data-level": p.differences ? "bad" : null }, int(p.differences)), h("td", { "data-level": p.behind ? "bad" : null }, int(p.behind))))))));
  }
  if (s.store) cards.push(storeCard(s.store, fact, since), shardsCard());
  const holder = $("server-body");
  if (!holder.firstChild) add(holder, h("div", { class: "cards" }), settings);
  fill(holder.firstChild, cards);
  if (s.snapshots) settle(); // else the client may not see the server as a whole
}

// processCards show what the process takes, its clients, and who may ask what.
function processCards(p, fact) {
  const of = (n, limit, write) => (limit ? `${write(n)} of ${write(limit)}` : write(n));
  const { auth } = p;
  const counts = (all) => Object.entries(all).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  const roles = (names) => (names.length ? names.join(", ") : "nothing");
  return [h("section", { class: "card", id: "process" }, h("h2", null, "Process"), h("dl", { class: "facts" },
    fact("CPU", `${p.cpu.toFixed(p.cpu < 10 ? 2 : 0)} of ${plural(p.cpus, "CPU")}`),
    p.memory_bytes > 0 && fact("Memory", of(p.memory_bytes, p.memory_limit_bytes, bytes)),
    fact("Connections", `${of(p.connections, p.connections_limit, int)}, from ${plural(p.addresses, "address", "addresses")}`),
    fact("Pages open", int(p.viewers)))),
  h("section", { class: "card", id: "auth" }, h("h2", null, "Who may ask what"), h("dl", { class: "facts" },
    fact("auth.file", auth.file ? h("code", null, auth.file) : "not set"),
    auth.file && [fact("Credentials", [auth.certificates ? `${plural(auth.tokens, "token")}, ${plural(auth.certificates, "certificate")}` : plural(auth.tokens, "token")]),
      fact("by role", counts(auth.roles).map(([role, n]) => `${role}: ${int(n)}`).join(", ") || "–"),
      fact("by tenant", [counts(auth.tenants).map(([tenant, n]) => `${tenant === "*" ? "every tenant" : tenant}: ${int(n)}`).join(", ") || "–", auth.others > 0 && `, and ${plural(auth.others, "more tenant")}`])],
    fact("No credentials", roles(auth.anonymous)), fact("None, on this machine", roles(auth.loopback))),
  !auth.file && h("p", { class: "hint" }, "Anybody who reaches the server has the roles of clients without credentials. ", h("a", { href: "docs/security" }, "Security"), " says how to set auth.file."))];
}

// storeCard shows the store that replicas share, and the replicas.
function storeCard(x, fact, since) {
  const columns = ["Replica", "URL", "Lease left", "Weight", "Version", "Started"];
  return h("section", { class: "card wide", id: "store" }, h("h2", null, "Store"), h("dl", { class: "facts" },
    fact("Address", x.address), fact(x.up ? "Up since" : "Down since", since(x.since), x.up ? "ok" : "bad"),
    x.error && fact("Error", x.error, "bad"), fact("Losses", int(x.lost), x.lost ? "warn" : null),
    x.unproven > 0 && fact("Without a proof", int(x.unproven), "bad")),
  h("table", { class: "small" }, h("thead", null, h("tr", null, columns.map((n) => h("th", { scope: "col" }, n)))),
    h("tbody", null, x.replicas.map((r) => h("tr", null, h("td", null, r.id, r.self && h("small", null, "this server")), h("td", null, r.url), h("td", null, `${r.lease_s.toFixed(1)} s`),
      h("td", { class: "number" }, int(r.weight)), h("td", null, r.version), h("td", null, since(r.started)))))));
}

const settings = h("section", { class: "card", id: "settings", hidden: true }, h("h2", null, "Settings in use"), h("div"));
let settled = 0; // when the settings were asked for

// settle shows the settings in use: what differs from the defaults, and the rest folded.
async function settle() {
  if (now() - settled < 30_000) return;
  settled = now();
  const body = settings.lastChild;
  settings.hidden = false;
  let answer;
  try {
    answer = await ask("admin/settings");
  } catch (e) {
    fill(body, problem(e.message, () => { settled = 0; settle(); }));
    return;
  }
  const folded = body.querySelector("details");
  const table = (rows) => h("table", { class: "small settings" }, h("thead", null, h("tr", null, ["Setting", "Value", "Default"].map((n) => h("th", { scope: "col" }, n)))),
    h("tbody", null, rows.map((x) => h("tr", null, h("th", { scope: "row" }, h("code", null, x.name), h("small", null, x.help)), h("td", { "data-name": "Value" }, h("code", null, x.value || "–")), h("td", { "data-name": "Default" }, h("code", null, x.default || "–"))))));
  const changed = answer.settings.filter((x) => x.changed), rest = answer.settings.filter((x) => !x.changed);
  fill(body, h("p", { class: "hint" }, answer.file ? ["Read from ", h("code", null, answer.file), ", environment and flags."] : "There is no settings file; environment and flags count.", " Secrets are ***."),
    changed.length ? table(changed) : empty("Every setting has its default"),
    h("details", { open: folded?.open }, h("summary", null, `${plural(rest.length, "setting")} at the default`), table(rest)));
}

let cluster = null; // the last answer of /admin/cluster
let asking = 0; // when it was asked for

// shardsCard shows which replica serves which shards; nothing if every replica follows every source.
function shardsCard() {
  if (now() - asking > 2000) {
    asking = now();
    ask("admin/cluster").then((answer) => { cluster = answer; }, () => {});
  }
  if (cluster?.mode !== "shards") return null;
  const columns = ["Tenant", "Model", "Sources", "Queries/s", "Owners", "Served by"];
  const part = (r, sources) => h("div", { "data-level": r.phase === "serving" ? null : "warn" }, r.id, h("small", null, `${r.phase}, ${r.synced} of ${plural(sources, "source")} synced`));
  return h("section", { class: "card wide", id: "shards" }, h("h2", null, "Shards"), cluster.shards.length === 0
    ? empty("None", "Models appear here once their sources are registered.")
    : h("table", { class: "small" }, h("thead", null, h("tr", null, columns.map((n) => h("th", { scope: "col" }, n)))),
      h("tbody", null, cluster.shards.map((x) => h("tr", null, h("td", null, x.tenant_id), h("td", null, x.model_name), h("td", { class: "number" }, int(x.sources)),
        h("td", { class: "number" }, x.queries_per_s.toFixed(1)), h("td", null, x.owners.join(" "), x.moving && h("small", null, "moving")),
        h("td", { "data-level": x.replicas.some((r) => r.phase === "serving") ? null : "bad" }, x.replicas.length === 0 ? "no replica" : x.replicas.map((r) => part(r, x.sources))))))));
}
