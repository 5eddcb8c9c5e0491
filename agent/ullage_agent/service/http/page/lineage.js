// A lineage as a log: one row an event, oldest first, one lane a FlowFile, and a line for what led to what.

import { button, draw, make, sizeText } from "./show.js";

const ROW = 48;
const LANE = 20;
const LANES_WIDTH = 140; // however many there are: a phone has no more to give

export function lineageGraph(graph, choose) {
  const events = [...graph.events].sort((a, b) => a.sequence - b.sequence);
  const lanes = lanesOf(events, graph.links);
  const step = Math.min(LANE, LANES_WIDTH / Math.max(1, lanes.count));
  const places = new Map(
    events.map((event, row) => [event.sequence, [step * (lanes.of.get(event.flow_file) + 0.5) + 4, ROW * (row + 0.5)]]),
  );
  const width = step * lanes.count + 8;
  const title = draw("title", {}, `${events.length} events of ${lanes.of.size} FlowFiles and what led to what`);
  const picture = draw(
    "svg",
    { role: "img", width, height: ROW * events.length, viewBox: `0 0 ${width} ${ROW * events.length}` },
    title,
    ...graph.links.map(([from, to]) => link(places.get(from), places.get(to))),
    ...events.map((event) => dot(event, places.get(event.sequence))),
  );
  const rows = events.map((event) => make("li", {}, button(label(event), () => choose(event), { class: "event-row" })));
  return make("div", { class: "graph" }, picture, make("ol", {}, ...rows));
}

function lanesOf(events, links) {
  // A lane belongs to a FlowFile from the first event that led to it until its own last one, so that no line passes
  // through somebody else's events.
  const rows = new Map(events.map((event, row) => [event.sequence, row]));
  const last = new Map(events.map((event, row) => [event.flow_file, row]));
  const first = new Map();
  const begin = (file, row) => first.set(file, Math.min(row, first.get(file) ?? row));
  events.forEach((event, row) => begin(event.flow_file, row));
  for (const [from, to] of links) if (rows.has(from) && rows.has(to)) begin(events[rows.get(to)].flow_file, rows.get(from));
  const of = new Map();
  const taken = [];
  for (const [file, row] of [...first].sort(([, a], [, b]) => a - b)) {
    const free = taken.findIndex((until) => until < row);
    const lane = free < 0 ? taken.length : free;
    of.set(file, lane);
    taken[lane] = last.get(file);
  }
  return { of, count: taken.length };
}

function link(from, to) {
  // Over to the other lane within one row, then down along it.
  if (!from || !to) return null;
  const [x1, y1] = from;
  const [x2, y2] = to;
  return draw("path", { class: "link", d: `M${x1} ${y1}C${x1} ${y1 + ROW * 0.6} ${x2} ${y1 + ROW * 0.4} ${x2} ${y1 + ROW}V${y2}` });
}

function dot(event, [cx, cy]) {
  return draw("circle", { class: `dot ${event.type.toLowerCase()}`, cx, cy, r: 6 });
}

function label(event) {
  const name = event.attributes.filename || event.previous_attributes.filename || event.flow_file.slice(0, 8);
  const rest = [event.component, event.queue && `to ${event.queue}`, sizeText(event.size)].filter(Boolean).join(" · ");
  return make("span", {}, make("b", {}, event.type), ` ${name}`, make("small", {}, rest));
}
