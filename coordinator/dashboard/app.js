// The page: asks the control API every two seconds while it is visible, and shows what it says.
//
// An operator sees the cluster and every tenant; any other key sees its own sessions and usage.

import { Refused, get } from "./api.js";
import { byId, element, setText, show } from "./dom.js";
import { changesOf, showInstances } from "./instances.js";
import { showOverview } from "./overview.js";
import { forgetSession, redraw, showSession } from "./session.js";
import { PAGE, keyOf, showSessions } from "./sessions.js";
import { askForKey, showKeyState, startKey, startTheme } from "./settings.js";
import { namesOf, showUsage } from "./usage.js";

const INTERVAL_MS = 2000;
const KEPT_EVENTS = 8;

const view = { isOperator: null, offset: 0, selected: null };
let timer = null;
let round = 0;

async function refresh() {
  clearTimeout(timer);
  const mine = ++round;
  try {
    await showAll(() => mine === round);
    if (mine !== round) return;
    connected(true, "Live");
  } catch (error) {
    if (mine !== round) return;
    failed(error);
  }
  if (document.visibilityState === "visible" && byId("key-form").hidden) {
    timer = setTimeout(refresh, INTERVAL_MS);
  }
}

// `isCurrent`: false once a newer round has begun, whose answers must not be overwritten.
async function showAll(isCurrent) {
  if (view.isOperator !== false) await asOperator(isCurrent);
  const everybody = view.isOperator ? "&all_tenants=true" : "";
  const [list, usage, detail] = await Promise.all([
    get(`v1/sessions?limit=${PAGE}&offset=${view.offset}${everybody}`),
    get(view.isOperator ? "v1/usage?all_tenants=true" : "v1/usage"),
    selectedSession(),
  ]);
  if (!isCurrent()) return;
  showKeyState();
  showSessions(list, { ...view, names: namesOf(usage), onSelect: select });
  showUsage(usage);
  for (const id of ["sessions", "usage"]) show(id, true);
  show("session", detail !== null);  // first: the timeline is drawn as wide as it is
  if (detail) showSession(detail);
}

async function asOperator(isCurrent) {
  let answers;
  try {
    // The first alone: who is no operator is refused once, and never asked for the rest.
    const cluster = await get("v1/cluster");
    answers = [cluster, ...await Promise.all([get("v1/instances"), get("v1/cluster/load")])];
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== 403) throw error;
    view.isOperator = false;
    return;
  }
  if (!isCurrent()) return;
  const [cluster, instances, load] = answers;
  view.isOperator = true;
  for (const id of ["overview", "instances"]) show(id, true);
  showOverview(cluster);
  showInstances(cluster, instances, load);
  changesOf(instances).forEach(told);
}

async function selectedSession() {
  if (!view.selected) return null;
  const { session_id: id, tenant } = view.selected;
  const whose = view.isOperator ? `?tenant=${encodeURIComponent(tenant)}` : "";
  try {
    return await get(`v1/sessions/${encodeURIComponent(id)}${whose}`);
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== 404) throw error;
    told({ text: `Session ${id} is over`, isBad: false });
    view.selected = null;
    forgetSession();
    return null;
  }
}

function failed(error) {
  if (error instanceof Refused && error.status === 401) {
    connected(false, "No key");
    for (const id of ["overview", "instances", "events", "sessions", "session", "usage"]) {
      show(id, false);
    }
    setText(byId("about"), "");
    askForKey();
    return;
  }
  connected(false, error instanceof Refused ? error.message
    : "The coordinator does not answer; what is shown is old. Trying again.");
}

function connected(isLive, text) {
  const node = byId("connection");
  node.classList.toggle("bad", !isLive);
  setText(node, text);
}

function told({ text, isBad }) {
  const now = new Date();
  const time = element("time", { datetime: now.toISOString() }, now.toLocaleTimeString("en-GB"));
  const list = byId("event-list");
  list.prepend(element("li", { class: isBad ? "bad" : null }, time, ` ${text}`));
  while (list.children.length > KEPT_EVENTS) list.lastElementChild.remove();
  show("events", true);
}

async function select(row) {
  const isSame = view.selected !== null && keyOf(view.selected) === keyOf(row);
  view.selected = isSame ? null : row;
  if (isSame) forgetSession();
  await refresh();
  if (!isSame && !byId("session").hidden) byId("session-title").focus();
}

function turnPage(by) {
  view.offset = Math.max(0, view.offset + by);
  refresh();
}

function start() {
  startTheme();
  startKey(() => {
    Object.assign(view, { isOperator: null, offset: 0, selected: null });
    show("key-form", false);
    refresh();
  });
  byId("newer").addEventListener("click", () => turnPage(-PAGE));
  byId("older").addEventListener("click", () => turnPage(PAGE));
  byId("window").addEventListener("change", redraw);
  byId("close-session").addEventListener("click", () => {
    view.selected = null;
    forgetSession();
    refresh();
    byId("sessions-title").focus();
  });
  window.addEventListener("resize", redraw);
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible") refresh();
    else clearTimeout(timer);
  });
  refresh();
}

start();
