// The sessions, most recently used first, and how warm each model is for each of them.

import { Table, bar, byId, element, setText } from "./dom.js";
import { compact, count, plural, seconds, share } from "./format.js";
import { shortened } from "./usage.js";

export const PAGE = 25;
let table = null;

export function showSessions(list, { isOperator, names, selected, onSelect }) {
  const models = [...new Set(list.data.flatMap((row) => Object.keys(row.models)))].sort();
  table ??= new Table(byId("sessions-table"), "sessions-title", [
    { title: "Session", cell: (item) => named(item, onSelect) },
    { title: "Calls", cell: calls },
    { title: "Warm of the history, by model", cell: warmth },
    { title: "Shadow tokens", cell: shadows },
    { title: "Idle", cell: ({ row }) => row.active_calls > 0 ? "busy" : seconds(row.idle_s) },
  ], "No session yet: each call makes or extends one.");
  table.update([{
    key: "all",
    title: null,
    items: list.data.map((row) => ({
      key: keyOf(row),
      row,
      models,
      tenant: isOperator ? shortened(names.get(row.tenant) ?? row.tenant) : null,
      selected: selected !== null && keyOf(row) === keyOf(selected),
    })),
  }]);
  const last = list.offset + list.data.length;
  setText(byId("page"), list.total > list.data.length
    ? `${count(list.offset + 1)} to ${count(last)} of ${count(list.total)}`
    : plural(list.total, "session"));
  byId("newer").disabled = list.offset === 0;
  byId("older").disabled = last >= list.total;
}

// JSON, because a session's id may hold any character.
export function keyOf(row) {
  return JSON.stringify([row.tenant, row.session_id]);
}

function named({ row, tenant, selected }, onSelect) {
  const parts = [
    element("button", {
      type: "button",
      class: "name",
      "aria-expanded": String(selected),
      "aria-controls": "session",
      title: row.session_id,
      onclick: () => onSelect(row),
    }, row.session_id),
  ];
  if (!row.is_named) parts.push(element("span", { class: "quiet" }, "found by its history"));
  if (tenant) parts.push(element("span", { class: "quiet" }, `tenant ${tenant}`));
  return parts;
}

function calls({ row }) {
  return [
    element("span", { class: "line" }, plural(row.calls, "call")),
    element("span", { class: "line quiet" }, plural(row.switches, "switch", "switches")),
  ];
}

function warmth({ row, models }) {
  const shown = models.filter((model) => model in row.models);
  if (!shown.length) return "nothing yet";
  return element("ul", { class: "warmth" }, ...shown.map((model) => {
    const isCurrent = model === row.model;
    return element("li", {},
      element("span", { class: "model" }, isCurrent ? element("strong", {}, model) : model),
      warmBars(row.models[model]),
      element("span", { class: "quiet" }, warmText(row.models[model], isCurrent)));
  }));
}

export function warmBars(warm) {
  const history = warm.history_tokens;
  const pending = Math.min(warm.shadow_tokens_pending, warm.p_warm_tokens);
  const own = warm.p_warm_tokens - pending;
  const bars = [bar([
    { kind: "normal-used", share: share(own, history) },
    { kind: "shadow-used", share: share(pending, history) },
  ])];
  if (warm.p_instance !== warm.d_instance) {
    const held = bar([{ kind: "decode", share: share(warm.d_warm_tokens, history) }]);
    held.classList.add("thin");
    bars.push(held);
  }
  return element("span", { class: "bars" }, ...bars);
}

function warmText(warm, isCurrent) {
  const about = warm.history_exact ? "" : "about ";
  const parts = [`${compact(warm.p_warm_tokens)} of ${about}${compact(warm.history_tokens)}`];
  if (warm.p_instance !== warm.d_instance) parts.push(`${compact(warm.d_warm_tokens)} on D`);
  if (isCurrent) parts.push("current");
  else if (warm.shadow_state !== "idle") parts.push(warm.shadow_state);
  return parts.join(", ");
}

function shadows({ row }) {
  const sum = (field) => Object.values(row.models).reduce((all, warm) => all + warm[field], 0);
  const spent = sum("shadow_tokens_computed");
  if (spent === 0) return [element("span", { class: "line quiet" }, "none")];
  const parts = {
    used: sum("shadow_tokens_used"),
    pending: sum("shadow_tokens_pending"),
    wasted: sum("shadow_tokens_wasted"),
  };
  return [
    bar(Object.entries(parts).map(([kind, tokens]) => (
      { kind: `${kind}-tokens`, share: share(tokens, spent) }))),
    element("span", { class: "line" }, `${compact(spent)} spent`),
    element("span", { class: "line quiet" },
      Object.entries(parts).map(([kind, tokens]) => `${compact(tokens)} ${kind}`).join(", ")),
  ];
}
