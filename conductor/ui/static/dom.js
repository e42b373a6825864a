// dom.js makes and updates elements. Text becomes text nodes, never markup, so that a name of
// an instance cannot become an element.

const svgNames = new Set(["svg", "rect", "line", "title", "path", "g"]);

// h returns an element. attrs may have "class", "on…" functions, booleans and plain attributes;
// "vars" are custom properties of its style. Children are elements, text, or null for none.
export function h(name, attrs, ...children) {
  const el = svgNames.has(name) ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attrs ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "vars") for (const [v, x] of Object.entries(value)) el.style.setProperty(v, x);
    else if (key.startsWith("on")) el.addEventListener(key.slice(2), value);
    else el.setAttribute(key, value === true ? "" : value);
  }
  add(el, children);
  return el;
}

// add appends children to an element.
export function add(el, ...children) {
  el.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return el;
}

// fill replaces the children of an element.
export function fill(el, ...children) {
  el.replaceChildren();
  return add(el, children);
}

// say sets the text of an element, if it differs.
export function say(el, text) {
  if (el.textContent !== text) el.textContent = text;
}

// mark sets or removes an attribute, if it differs.
export function mark(el, name, value) {
  if (value === null || value === undefined || value === false) el.removeAttribute(name);
  else if (el.getAttribute(name) !== String(value)) el.setAttribute(name, value);
}

// $ returns the element with an id.
export const $ = (id) => document.getElementById(id);

// keep makes the children of el those of items, in their order. It calls make for a new key and
// update for every item, and moves only what is out of place: focus stays where it is.
export function keep(el, items, key, make, update) {
  const have = (el.kept ??= new Map());
  const gone = new Set(have.keys());
  let at = el.firstElementChild;
  for (const item of items) {
    const k = key(item);
    let child = have.get(k);
    if (!child) have.set(k, (child = make(item)));
    gone.delete(k);
    update?.(child, item);
    if (child === at) at = at.nextElementSibling;
    else el.insertBefore(child, at);
  }
  for (const k of gone) {
    have.get(k).remove();
    have.delete(k);
  }
}

// empty returns the text that stands where there is nothing to show.
export const empty = (title, text) => h("div", { class: "empty" }, h("strong", null, title), text && h("p", null, text));

// problem returns the text that stands where data could not be had.
export const problem = (text, again) =>
  h("div", { class: "problem", role: "alert" }, h("strong", null, "That did not work"), h("p", null, text), again && h("button", { type: "button", onclick: again }, "Try again"));

// loading returns the text that stands until data is there.
export const loading = (text) => h("div", { class: "loading", role: "status" }, text);

// finding returns the code of a finding as a link to its runbook.
export const finding = (code) => explained("findings", code);

// reason returns the reason of an explanation as a link to what it means.
export const reason = (word) => explained("reading-answers", word);

// explained returns a word as a link to where a page of the documents explains it, in another tab: what this one shows
// stays. The address is relative, as that of the page is behind a proxy with a prefix.
const explained = (page, word) => h("a", { class: "tag explained", target: "_blank", title: "What it means and what to do", href: `docs/${page}#${encodeURIComponent(word)}` }, h("code", null, word.replaceAll("_", " ")));
