// health.js says in one sentence how the fleet is, and paints severities. The server decides how much anything matters:
// the views take the severity of a source, a finding or an event from it.

import { plural } from "./format.js";
import { state } from "./live.js";

export const severities = ["error", "warning", "info", "ok"]; // the worst first

// levels paint severities: red, amber, neutral, green.
export const levels = { error: "bad", warning: "warn", info: "none", ok: "ok" };

const troubles = ["failed", "stale", "partial", "paused", "connecting", "replaying"]; // the worst first

// summary returns the server's sentence about its sources, its level, and links to what an operator looks at
// next. A banner shows it unless the level is ok.
export function summary() {
  const s = state.stats;
  if (!s?.summary) return { level: "ok", text: "" };
  return { level: levels[s.summary_severity] ?? "none", text: s.summary[0].toUpperCase() + s.summary.slice(1), links: links(s) };
}

function links(s) {
  if (s.totals.sources === 0 && !s.discovery?.targets) return [["How to add one", "#start"]];
  const erring = [...state.rows.values()].filter((r) => r.severity === "error").length;
  const worst = erring ? "error" : troubles.find((name) => s.states[name]);
  return worst ? [[`Show ${(erring || s.states[worst]) === 1 ? "it" : "them"}`, `#fleet?state=${worst}`]] : [];
}

// dead reports whether no source can be relied on, so that figures about answers mean nothing.
export const dead = () => {
  const { totals, states } = state.stats;
  return totals.sources > 0 && !(states.synced || states.approximate || states.partial);
};

// unheard says how many sources are in which state, the worst first.
export const unheard = () => troubles.filter((name) => state.stats.states[name]).map((name) => `${plural(state.stats.states[name], "source")} ${name}`).join(", ");
