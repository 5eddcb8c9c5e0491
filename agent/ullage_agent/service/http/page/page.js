// Puts the page together: asks the service every few seconds, and asks the person for a token where there must be one.

import * as api from "./api.js";
import { startPast } from "./past.js";
import { byId, count } from "./show.js";
import { showClaims, showContainers, showPolicies, showQueues, showWindows, startSpace } from "./space.js";

const EVERY_MILLIS = 5_000;

let isAsking = false;

async function refresh() {
  if (isAsking) return;
  isAsking = true;
  byId("board").setAttribute("aria-busy", "true");
  try {
    const [state, queues, openings] = await Promise.all([
      api.get("v1/state"),
      api.get("v1/queues"),
      api.get("v1/reclamation/openings"),
    ]);
    await Promise.all([showClaims(), showPolicies()]);
    showContainers(state);
    showQueues(queues);
    showWindows(state, openings);
    showIdentity(state);
    trouble("");
    signIn(false);
  } catch (error) {
    failed(error);
  } finally {
    isAsking = false;
    byId("board").setAttribute("aria-busy", "false");
  }
}

function showIdentity(state) {
  byId("identity").textContent = `${state.name} on ${state.node}`;
  byId("version").textContent = `Ullage ${state.version}`;
  const troubles = [
    ...state.poisoned.map((name) => `container ${name} takes no writes until a restart`),
    ...state.failures,
  ];
  const health = byId("health");
  const text = state.is_stopping ? "Stopping" : !state.is_ready ? "Not ready" : troubles.length ? troubles.join("; ") : "Ready";
  if (health.textContent !== text) health.textContent = text; // what is said again is read out again
  health.className = text === "Ready" ? "good" : "bad";
  document.title = `${count(state.flow_files, "FlowFile")} · ${state.name} · Ullage`;
}

function failed(error) {
  if (error instanceof api.Refused && error.status === 401) {
    trouble(api.hasToken() ? error.message : "");
    signIn(true);
  } else if (error instanceof api.Refused) {
    trouble(error.message);
  } else {
    trouble("The service does not answer. This page goes on asking.");
  }
}

function trouble(text) {
  const place = byId("trouble");
  if (place.textContent !== text) place.textContent = text;
  place.hidden = !text;
}

function signIn(isAsked) {
  const form = byId("sign-in");
  const appears = isAsked && form.hidden;
  form.hidden = !isAsked;
  byId("board").hidden = isAsked;
  byId("sign-out").hidden = isAsked || !api.hasToken();
  if (appears) byId("token").focus();
}

byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  api.remember(byId("token").value.trim());
  byId("token").value = "";
  refresh();
});
byId("sign-out").addEventListener("click", () => location.reload()); // with it goes everything that was shown
byId("refresh").addEventListener("click", refresh);

startSpace(refresh);
startPast();
refresh();
setInterval(() => {
  const isAsked = !byId("sign-in").hidden;
  if (byId("follow").checked && !document.hidden && !isAsked) refresh();
}, EVERY_MILLIS);
