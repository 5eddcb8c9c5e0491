// What the disk holds and how to get some of it back: containers, the map, one claim, queues, windows, runs.

import * as api from "./api.js";
import { button, byId, count, countText, draw, facts, make, problem, size, sizeText, table, time } from "./show.js";

const CLAIMS = 1_000; // on one page of the map
const STEPS = 20; // of a plan, one by one; the totals are of all
const RANGES = 50; // of a claim, one by one; the picture has all
const RUN_MILLIS = 300;
const LEVELS = ["none", "low", "half", "high", "full"];
const LEVEL_TEXTS = ["nothing lives", "below 1/3", "below 2/3", "2/3 and more", "all lives"];

let after = 0;
let nextAfter = null;
let chosen = null;
let run = null;
let changed = () => {};

export function startSpace(refresh) {
  changed = refresh;
  byId("map-legend").append(
    ...LEVELS.map((level, at) => make("li", {}, cask(level, [1, 0.2, 0.5, 0.8, 1][at]), LEVEL_TEXTS[at])),
    make("li", {}, make("span", { class: "cask archived" }), "archive"),
    make("li", {}, make("span", { class: "cask leased" }), "leased"),
  );
  byId("map").addEventListener("click", (event) => open(event.target.closest("[role=option]")));
  byId("map").addEventListener("keydown", move);
  byId("map-first").addEventListener("click", () => turn(0));
  byId("map-next").addEventListener("click", () => turn(nextAfter));
  byId("plan-form").addEventListener("submit", dryRun);
  byId("run-form").addEventListener("submit", reclaim);
  byId("stop").addEventListener("click", () => api.remove(`v1/reclamation/runs/${run}`).catch(showRunProblem));
  for (const id of ["policy", "guards"]) byId(id).addEventListener("change", forget);
}

// ------------------------------------------------------------------ containers

export function showContainers(state) {
  byId("containers").replaceChildren(...state.containers.map(container));
}

function container(each) {
  const middle = Math.max(0, each.dead_bytes - each.dead_tail_bytes - each.unused_bytes);
  const parts = [
    ["live", "Live", each.live_bytes],
    ["middle", "Dead, in the middle", middle],
    ["tail", "Dead tails", each.dead_tail_bytes],
    ["unused", "Dead, whole files", each.unused_bytes],
    ["archive", "Archive", each.archived_bytes],
    ["undelete", "Kept for undelete", each.tombstone_bytes],
  ];
  const total = parts.reduce((sum, [, , bytes]) => sum + bytes, 0);
  const room = Math.max(0, each.total_bytes - each.used_bytes);
  return make(
    "li",
    { class: "container", "data-container": each.name },
    make(
      "div",
      { class: "heading" },
      make("h3", {}, each.name),
      make("p", {}, make("b", {}, `${each.used_percentage} %`), " full, ", size(room), " left of ", size(each.total_bytes)),
    ),
    make("meter", { min: 0, max: 100, high: 80, value: each.used_percentage, "aria-label": `${each.name}: used` }),
    make("p", { class: "quiet" }, size(total), ` of content in ${count(each.resource_claims + each.archived_claims, "resource claim")}:`),
    stack(parts, total, each),
    make(
      "dl",
      { class: "parts" },
      ...[...parts, ["leased", "Leased, of all this", each.leased_bytes]].map(([kind, name, bytes]) =>
        make("div", { "data-kind": kind }, make("dt", {}, make("i", { class: `swatch ${kind}` }), name), make("dd", {}, size(bytes))),
      ),
    ),
  );
}

function stack(parts, total, each) {
  const bar = draw("svg", { class: "stack", viewBox: "0 0 1000 36", preserveAspectRatio: "none", role: "img" });
  const text = parts.filter(([, , bytes]) => bytes).map(([, name, bytes]) => `${name} ${sizeText(bytes)}`);
  bar.append(draw("title", {}, `${each.name}: ${text.join(", ") || "empty"}`));
  bar.append(draw("rect", { class: "nothing", width: 1000, height: 30 }));
  let x = 0;
  for (const [kind, , bytes] of parts) {
    const width = total ? (bytes / total) * 1000 : 0;
    if (width) bar.append(draw("rect", { class: kind, x, width, height: 30 }));
    x += width;
  }
  const leased = total ? Math.min(1000, (each.leased_bytes / total) * 1000) : 0;
  if (leased) bar.append(draw("rect", { class: "leased", y: 31, width: leased, height: 5 }));
  return bar;
}

// ------------------------------------------------------------------ the map

export async function showClaims() {
  const page = await api.get("v1/reclamation/resources", { after, limit: CLAIMS });
  nextAfter = page.next;
  const map = byId("map");
  const old = new Map([...map.children].map((tile) => [tile.id, tile]));
  const focused = document.activeElement;
  const files = page.resources.filter((each) => !each.output);
  const tiles = files.map((each) => tile(old.get(`claim-${each.resource}`), each));
  const wanted = new Set(tiles);
  for (const gone of old.values()) if (!wanted.has(gone)) gone.remove();
  tiles.forEach((each, at) => {
    if (map.children[at] !== each) map.insertBefore(each, map.children[at] ?? null);
  });
  if (tiles.length && !tiles.some((each) => each.tabIndex === 0)) tiles[0].tabIndex = 0;
  if (old.has(focused.id) && !wanted.has(focused)) tiles[0]?.focus();
  map.hidden = !tiles.length;
  byId("map-empty").hidden = tiles.length > 0;
  byId("map-pages").hidden = !after && nextAfter === null;
  byId("map-next").disabled = nextAfter === null;
  byId("map-count").textContent = tiles.length ? `${countText(tiles.length)} shown` : "";
  if (chosen !== null && !wanted.has(byId(`claim-${chosen}`))) close();
}

function fraction(each) {
  // The last block of a file is rarely full: what is missing there is not dead.
  const bytes = Math.min(each.allocated_bytes, each.length);
  return bytes ? Math.min(1, each.live_bytes / bytes) : each.is_free ? 0 : 1;
}

function level(part) {
  return part <= 0 ? "none" : part >= 1 ? "full" : part < 1 / 3 ? "low" : part < 2 / 3 ? "half" : "high";
}

function cask(kind, part) {
  const made = make("span", { class: `cask ${kind}` });
  made.style.setProperty("--level", `${Math.round(part * 100)}%`);
  return made;
}

function tile(known, each) {
  const made = known ?? make("div", { role: "option", id: `claim-${each.resource}`, tabindex: -1 });
  const part = fraction(each);
  const states = [each.is_archived && "archived", each.is_leased && "leased"].filter(Boolean);
  made.className = ["cask", level(part), ...states].join(" ");
  made.style.setProperty("--level", `${Math.round(part * 100)}%`);
  made.setAttribute("aria-selected", String(each.resource === chosen));
  made.dataset.live = part.toFixed(3);
  const text = [`Claim ${each.resource} of ${each.container}`, sizeText(each.allocated_bytes), `${Math.round(part * 100)} % live`, ...states];
  made.setAttribute("aria-label", text.join(", "));
  made.title = text.join(", ");
  return made;
}

function move(event) {
  const from = event.target.closest("[role=option]");
  const tiles = [...byId("map").children];
  const at = tiles.indexOf(from);
  const columns = tiles.filter((each) => each.offsetTop === tiles[0].offsetTop).length;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -at, End: tiles.length - 1 - at };
  if (event.key === "Enter" || event.key === " ") open(from);
  else if (event.key in steps) {
    const to = tiles[Math.max(0, Math.min(tiles.length - 1, at + steps[event.key]))];
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  } else return;
  event.preventDefault();
}

async function turn(to) {
  after = to;
  await showClaims().catch(showClaimProblem);
}

async function open(from) {
  if (!from) return;
  for (const each of byId("map").children) each.setAttribute("aria-selected", String(each === from));
  chosen = Number(from.id.replace("claim-", ""));
  try {
    const found = await api.get(`v1/reclamation/resources/${chosen}`);
    byId("claim").replaceChildren(...claim(found));
  } catch (error) {
    showClaimProblem(error);
  }
  byId("claim").hidden = false;
}

function showClaimProblem(error) {
  byId("claim").replaceChildren(problem(error));
  byId("claim").hidden = false;
}

function close() {
  const from = byId(`claim-${chosen}`);
  chosen = null;
  byId("claim").hidden = true;
  from?.setAttribute("aria-selected", "false");
  return from;
}

function claim({ resource, ranges }) {
  const states = ["sealed", "free", "archived", "leased"].filter((name) => resource[`is_${name}`]);
  return [
    make(
      "div",
      { class: "heading" },
      make("h3", {}, `Claim ${resource.resource} of ${resource.container}`),
      button("Close", () => close()?.focus()),
    ),
    strip(resource, ranges),
    make("ul", { class: "legend" }, ...["live", "dead", "hole"].map((kind) => make("li", {}, make("i", { class: `swatch ${kind}` }), kind))),
    facts([
      ["Length", size(resource.length)],
      ["On disk", size(resource.allocated_bytes)],
      ["Live", size(resource.live_bytes)],
      ["Dead", size(resource.dead_bytes)],
      ["Dead tail", size(resource.dead_tail_bytes)],
      ["Claimants", countText(resource.claimants)],
      ["Generation", String(resource.generation)],
      ["State", states.join(", ") || "being written"],
      ["Made", time(resource.created_millis)],
    ]),
    table(
      "Ranges of the file",
      ["From", "Length", "What"],
      ranges.slice(0, RANGES).map((each) => [countText(each.start), size(each.length), each.kind]),
    ),
    ranges.length > RANGES ? make("p", { class: "quiet" }, `and ${countText(ranges.length - RANGES)} more`) : "",
  ];
}

function strip(resource, ranges) {
  // One path a kind, however many ranges there are.
  const scale = 1000 / Math.max(1, resource.length);
  const paths = ["live", "dead", "hole"].map((kind) => {
    const pieces = ranges.filter((each) => each.kind === kind);
    const d = pieces.map((each) => `M${each.start * scale} 0h${each.length * scale}v40h${-each.length * scale}z`).join("");
    return draw("path", { class: kind, d });
  });
  const title = draw("title", {}, `Claim ${resource.resource} from its first byte to its last: ${count(ranges.length, "range", "ranges")}`);
  return draw("svg", { class: "strip", viewBox: "0 0 1000 40", preserveAspectRatio: "none", role: "img" }, title, ...paths);
}

// ------------------------------------------------------------------ queues and windows

export function showQueues(queues) {
  const rows = queues.map((each) => [
    each.name,
    make("span", {}, countText(each.flow_files), each.count_max ? make("small", {}, ` of ${countText(each.count_max)}`) : ""),
    make("span", {}, size(each.size_bytes), each.bytes_max ? make("small", {}, ` of ${sizeText(each.bytes_max)}`) : ""),
    countText(each.held),
    countText(each.swapped),
    each.is_full ? make("b", { class: "bad" }, "full") : "takes more",
  ]);
  const heads = ["Queue", "FlowFiles", "Content", "Held", "Swapped", "State"];
  byId("queues").replaceChildren(rows.length ? table("Queues", heads, rows) : make("p", { class: "quiet" }, "No queues."));
}

export function showWindows(state, openings) {
  const groups = new Map(); // operations of which the same is to be said
  for (const each of state.windows) {
    const now = each.is_allowed ? (each.may_start ? "allowed" : "no new run") : "closed";
    const row = groups.get(now + each.reason);
    if (row) row[0] += `, ${each.operation}`;
    else groups.set(now + each.reason, [each.operation, now, each.reason]);
  }
  const verdicts = [...groups.values()];
  const rows = openings.map((each) => [
    `${each.window} (${each.kind})`,
    each.problem || (each.last_opened_millis === null ? "never" : span(each)),
    each.next_opens_millis === null ? "never" : time(each.next_opens_millis),
  ]);
  byId("windows").replaceChildren(
    table("What is allowed now", ["Operation", "Now", "Why"], verdicts),
    openings.length ? table("Windows", ["Window", "Last", "Next"], rows) : make("p", { class: "quiet" }, "No windows are set: any time will do."),
    lastRun(state.last_run, "Last run"),
    lastRun(state.last_override, "Last override"),
  );
}

function span(each) {
  const end = each.last_closed_millis === null ? " and open now" : make("span", {}, " to ", time(each.last_closed_millis));
  return make("span", {}, time(each.last_opened_millis), end);
}

function lastRun(found, name) {
  if (!found) return "";
  const end = found.problem || (found.ended_millis ? make("span", {}, "freed ", size(found.freed_bytes)) : "under way");
  return make("p", {}, make("b", {}, `${name}: `), time(found.began_millis), ` by ${found.owner}, `, end);
}

// ------------------------------------------------------------------ plan and run

function forget() {
  // A plan of other settings is no promise for these.
  byId("plan").replaceChildren();
  byId("run-form").hidden = true;
}

export async function showPolicies() {
  // Once: what is installed changes with a restart, and a choice must stay chosen.
  const select = byId("policy");
  if (select.options.length > 1) return;
  const { names, configured } = await api.get("v1/reclamation/policies");
  if (select.options.length > 1) return;
  select.options[0].textContent = `As configured: ${configured}`;
  select.append(...names.map((name) => make("option", {}, name)));
}

function settings() {
  return { policy: byId("policy").value, respects_guards: byId("guards").checked };
}

async function dryRun(event) {
  event.preventDefault();
  try {
    const plan = await api.get("v1/reclamation/plan", settings());
    byId("plan").replaceChildren(...planned(plan));
    byId("run-form").hidden = plan.step_count === 0;
    byId("run").replaceChildren();
  } catch (error) {
    forget();
    byId("plan").replaceChildren(problem(error));
  }
}

function planned(plan) {
  const notes = plan.notes.map((note) => make("p", { class: "quiet" }, note));
  if (!plan.step_count) return [make("p", {}, "There is nothing to do. ", plan.reason), ...notes];
  const frees = make("b", { id: "plan-frees" }, size(plan.frees_bytes));
  const steps = ` in ${count(plan.step_count, "step")}.`;
  const rows = plan.steps
    .slice(0, STEPS)
    .map((step) => [step.action, `${step.resource} of ${step.container}`, size(step.frees_bytes), size(step.copies_bytes)]);
  const shown = table("Steps of the plan", ["Action", "Claim", "Frees", "Copies"], rows);
  const summary = make("summary", {}, plan.step_count > STEPS ? `The first ${STEPS} steps` : "The steps");
  return [
    make("p", { class: "big" }, "Would free ", frees, " and copy ", size(plan.copies_bytes), steps),
    ...notes,
    make("details", {}, summary, shown),
  ];
}

async function reclaim(event) {
  event.preventDefault();
  byId("reclaim").disabled = true;
  try {
    const { policy, ...rest } = settings();
    const wish = { policy: policy || null, ...rest, override: byId("override").checked };
    const begun = await api.post("v1/reclamation/runs", wish);
    run = begun.id;
    byId("stop").hidden = false;
    await follow(begun);
  } catch (error) {
    showRunProblem(error);
  } finally {
    // The button that has the focus stays, so that the keyboard is not sent back to the top.
    byId("reclaim").disabled = false;
    byId("reclaim").focus();
    byId("stop").hidden = true;
    changed();
  }
}

async function follow(found) {
  while (found.ended_millis === null) {
    byId("run").replaceChildren(make("p", {}, `Running: ${count(found.steps_done, "step")} done, `, size(found.freed_bytes), " freed."));
    await new Promise((done) => setTimeout(done, RUN_MILLIS));
    found = await api.get(`v1/reclamation/runs/${found.id}`);
  }
  if (found.problem) throw new Error(found.problem);
  const { report } = found;
  const done = Object.entries(report.done).filter(([, times]) => times);
  const freed = [report.is_stopped ? "Stopped. Freed " : "Done. Freed ", make("b", { id: "run-freed" }, size(report.freed_bytes))];
  byId("plan").replaceChildren();
  byId("run").replaceChildren(
    make("p", { class: "big" }, ...freed, ", copied ", size(report.copied_bytes), ` in ${report.seconds} s.`),
    facts(done.map(([action, times]) => [action, countText(times)])),
    ...report.left.map((each) => make("p", { class: "quiet" }, `${count(each.steps, "step")} not taken: ${each.reason}`)),
    ...report.problems.map((text) => make("p", { class: "problem" }, text)),
  );
}

function showRunProblem(error) {
  byId("run").replaceChildren(problem(error));
}
