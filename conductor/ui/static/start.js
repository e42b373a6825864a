// start.js shows how to register the first engine: commands with the address of this server.

import { $, h } from "./dom.js";
import { hasToken, state } from "./live.js";

// address is where this browser reaches the server, with the prefix of a proxy before it.
const address = new URL(".", location.href).href.replace(/\/$/, "");

// tenant returns the tenant that commands have to name: the first one of a token that is not for the default tenant, else "".
function tenant() {
  const { tenants } = state.stats;
  return !tenants || tenants.includes("default") ? "" : tenants[0] ?? "";
}

// quoted returns a text as one word of a shell.
const quoted = (text) => (/^[\w.,:@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", String.raw`'\''`)}'`);

// commands returns the ways to register an engine of a tenant, "" for the default one, each with a text to copy.
function commands(named) {
  const token = hasToken() ? ' -H "Authorization: Bearer $TOKEN"' : "";
  const inJSON = named && `, "tenant_id": ${JSON.stringify(named)}`;
  const curl = (fields) => `curl ${address}/conductor/v1/register${token} -H 'Content-Type: application/json' ` +
    `-d '${`{${fields}${inJSON}}`.replaceAll("'", String.raw`\u0027`)}'`;
  return [
    ["With the command line", "The server asks the engine for its model and for where its ranks publish.",
      `conductor register http://ENGINE:8000 --instance engine-1${named && ` --tenant ${quoted(named)}`} --wait --server ${address}` +
      (hasToken() ? " --token-file FILE" : "")],
    ["With curl", "The same as a request, such as a script sends when it has started an engine.",
      curl('"discover": "http://ENGINE:8000", "instance_id": "engine-1"')],
    ["With curl, for an engine that does not tell", "You name the model, the tokens of a block, and the ports that you gave the engine.",
      curl('"type": "vLLM", "instance_id": "engine-1", "dp_rank": 0, "modelname": "MODEL", "block_size": 16, "endpoint": "tcp://ENGINE:5557", "replay_endpoint": "tcp://ENGINE:6557"')],
    ["In the settings file", "The server knows the engine when it starts. POST /admin/reload takes changes of the file over.",
      `sources:\n  - {instance_id: engine-1${named && `, tenant_id: ${JSON.stringify(named)}`}, discover: "http://ENGINE:8000"}`],
  ];
}

function way([name, about, text]) {
  const button = h("button", { type: "button", "aria-label": `Copy: ${name}`, onclick: async () => {
    button.textContent = (await copy(text)) ? "Copied" : "Select it and copy";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  } }, "Copy");
  return h("li", null, h("div", { class: "bar" }, h("h3", null, name), button), h("p", { class: "hint" }, about), h("pre", { tabindex: 0, "aria-label": name }, text));
}

// copy puts a text on the clipboard. Browsers have navigator.clipboard only where the page came over HTTPS or from this
// machine; elsewhere a selection can be copied.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { class: "unseen", "aria-hidden": true });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// isEmpty reports whether there is no source, and nothing that leads to one.
export function isEmpty() {
  const { totals: t, discovery: d, lmcache: l, unclaimed: u } = state.stats;
  return t.sources + (d?.targets ?? 0) + (l?.instances ?? 0) + (u?.topics ?? 0) === 0;
}

let made = ""; // for whom the commands were made

// draw shows the commands in place of the fleet while that is empty.
export function draw() {
  const none = isEmpty();
  $("start").hidden = !none;
  for (const part of document.querySelectorAll("#totals, #charts, #sources-card")) part.hidden = none;
  const named = tenant(), who = JSON.stringify([hasToken(), named]);
  if (!none || made === who) return;
  made = who;
  $("start-ways").replaceChildren(...commands(named).map(way));
}
