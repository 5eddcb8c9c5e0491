// What happened: search, one event with its attributes and content before and after, replay, lineage.

import * as api from "./api.js";
import { lineageGraph } from "./lineage.js";
import { button, byId, count, facts, make, problem, size, sizeText, table, time } from "./show.js";

const EVENTS = 20; // on one page

let query = {};

export function startPast() {
  byId("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    query = asked();
    search(null);
  });
}

function asked() {
  const since = byId("search-since").value;
  return {
    related: byId("search-flow-file").value.trim(),
    type: byId("search-type").value,
    component: byId("search-component").value.trim(),
    filename: byId("search-filename").value.trim(),
    attribute: byId("search-attribute").value,
    since_millis: since ? new Date(since).getTime() : "",
    limit: EVENTS,
    newest_first: true,
  };
}

async function search(before) {
  byId("event").hidden = true;
  byId("lineage").hidden = true;
  try {
    const page = await api.get("v1/provenance/events", { ...query, before });
    byId("found").textContent = page.events.length ? `${count(page.events.length, "event")}, newest first` : "No such events.";
    const rows = page.events.map((each) => make("li", {}, button(line(each), () => show(each), { class: "event-row" })));
    const older = page.next === null ? "" : button("Older events", () => search(page.next));
    const lost = page.lost.map(([first, events]) =>
      make("p", { class: "quiet" }, `${count(events, "event")} from number ${first} on found no room or were set aside.`),
    );
    const unreadable = page.unreadable.map((each) => make("p", { class: "quiet" }, `Passed over: ${each.problem}`));
    byId("events").replaceChildren(make("ol", { class: "events" }, ...rows), older, ...lost, ...unreadable);
  } catch (error) {
    byId("found").textContent = "";
    byId("events").replaceChildren(problem(error));
  }
}

function line(event) {
  const name = event.attributes.filename || event.previous_attributes.filename || event.flow_file;
  const rest = [event.component, event.queue && `queue ${event.queue}`, sizeText(event.size)].filter(Boolean).join(" · ");
  return make("span", {}, make("b", {}, event.type), ` ${name}`, make("small", {}, time(event.time_millis), ` · ${rest}`));
}

function show(event) {
  const said = make("div", { role: "status", id: "replay-answer" });
  const place = byId("event");
  place.replaceChildren(
    make("div", { class: "heading" }, make("h3", {}, `${event.type}, event ${event.id}`), button("Close", () => (place.hidden = true))),
    make(
      "div",
      { class: "row" },
      button("Show lineage", () => lineage(event.flow_file), { id: "show-lineage" }),
      button("Replay", (pressed) => replay(event, pressed.currentTarget, said), { id: "replay", class: "primary" }),
    ),
    said,
    facts([
      ["When", time(event.time_millis)],
      ["FlowFile", event.flow_file],
      ["Component", [event.component, event.component_type && `(${event.component_type})`].filter(Boolean).join(" ")],
      ["Queue", event.queue],
      ["Relationship", event.relationship],
      ["Transit URI", event.transit_uri],
      ["Alternate identifier", event.alternate_identifier],
      ["Took", event.duration_millis === null ? "" : `${event.duration_millis} ms`],
      ["Details", event.details],
      ["Parents", event.parents.join(", ")],
      ["Children", event.children.join(", ")],
    ]),
    make("h4", {}, "Attributes before and after"),
    attributes(event),
    make("h4", {}, "Content"),
    make("div", { class: "contents" }, content(event, "before", event.previous_content), content(event, "after", event.content)),
  );
  place.hidden = false;
  place.focus();
}

function attributes(event) {
  const before = event.previous_attributes;
  const after = event.attributes;
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])].sort();
  if (!names.length) return make("p", { class: "quiet" }, "None.");
  const rows = names.map((name) => {
    const what = change(before[name], after[name]);
    return [name, before[name] ?? "–", after[name] ?? "–", make("span", { class: what }, what)];
  });
  return table("Attributes before and after", ["Name", "Before", "After", "What"], rows);
}

function change(before, after) {
  if (before === undefined) return "added";
  if (after === undefined) return "removed";
  return before === after ? "same" : "changed";
}

function content(event, when, place) {
  const title = make("h5", {}, when === "before" ? "Before" : "After");
  if (!place) return make("div", {}, title, make("p", { class: "quiet" }, "None."));
  const where = place.resource === null ? "no bytes" : `claim ${place.resource}, from byte ${place.offset + place.start}`;
  const said = make("div", { role: "status" });
  const path = `v1/provenance/events/${event.id}/content${when === "before" ? "?previous=true" : ""}`;
  const name = `${event.id}-${when}-${(event.attributes.filename || "content").replaceAll("/", "_")}`;
  const save = () => fetchContent(path, name, said);
  return make("div", {}, title, make("p", {}, size(place.size), `, ${where}`), button(`Download ${when}`, save), said);
}

async function fetchContent(path, name, said) {
  said.replaceChildren();
  try {
    await api.check(path);
    await api.download(path, name);
  } catch (error) {
    said.replaceChildren(problem(error));
  }
}

async function replay(event, pressed, said) {
  // One key for one press: should the answer get lost, pressing again is another replay, and meant so.
  pressed.disabled = true;
  try {
    const made = await api.post(`v1/provenance/events/${event.id}/replay`, {}, { "idempotency-key": crypto.randomUUID() });
    said.replaceChildren(make("p", { class: "good" }, `Replayed as ${made.id} into queue ${made.queue}.`));
  } catch (error) {
    said.replaceChildren(problem(error));
  } finally {
    pressed.disabled = false;
    pressed.focus();
  }
}

async function lineage(flowFile) {
  const place = byId("lineage");
  try {
    const graph = await api.get(`v1/provenance/lineage/${flowFile}`);
    const cut = graph.is_cut || graph.unexpanded.length;
    place.replaceChildren(
      make("div", { class: "heading" }, make("h3", {}, `Lineage: ${count(graph.events.length, "event")}`), button("Close", () => (place.hidden = true))),
      lineageGraph(graph, show),
      cut ? make("p", { class: "quiet" }, "There is more to it than is shown.") : "",
      ...graph.unreadable.map((each) => make("p", { class: "quiet" }, `Passed over: ${each.problem}`)),
    );
  } catch (error) {
    place.replaceChildren(problem(error));
  }
  place.hidden = false;
  place.focus();
}
