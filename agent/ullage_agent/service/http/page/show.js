// Elements, and how figures and times are written. Text only ever becomes text: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export const byId = (id) => document.getElementById(id);

export function make(name, properties = {}, ...children) {
  return fill(document.createElement(name), properties, children);
}

export function draw(name, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, name), properties, children);
}

function fill(element, properties, children) {
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

export function sizeText(bytes) {
  const unit = bytes < 1024 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log2(bytes) / 10));
  const value = bytes / 1024 ** unit;
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function size(bytes) {
  // For people, with the exact bytes for whoever wants them.
  return make("data", { value: bytes, title: `${countText(bytes)} bytes` }, sizeText(bytes));
}

export const countText = (number) => number.toLocaleString("en");

export function count(number, one, many = `${one}s`) {
  return `${countText(number)} ${number === 1 ? one : many}`;
}

export function time(millis) {
  const moment = new Date(millis);
  const text = moment.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
  return make("time", { datetime: moment.toISOString(), title: moment.toISOString() }, text);
}

export function facts(pairs) {
  const rows = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return make("dl", { class: "facts" }, ...rows.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

export function table(caption, heads, rows) {
  // A table that becomes a list of cards where there is no room: each cell knows its column's name.
  const cells = (row) => row.map((cell, at) => make(at ? "td" : "th", { "data-head": heads[at], scope: at ? null : "row" }, cell));
  return make(
    "table",
    {},
    make("caption", { class: "hidden" }, caption),
    make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row)))),
  );
}

export function button(text, action, properties = {}) {
  return make("button", { type: "button", ...properties, onclick: action }, text);
}

export function problem(error) {
  return make("p", { class: "problem" }, error.message);
}
