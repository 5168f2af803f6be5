// Every engine: whether it is well, what waits there, whose its KV is, what shadow work was given.

import { Table, bar, byId, element } from "./dom.js";
import { bytes, compact, count, percent, plural, seconds, share } from "./format.js";
import { Rates } from "./rates.js";

const rates = new Rates();
let table = null;
let states = new Map();

export function showInstances(cluster, instances, load) {
  table ??= new Table(byId("instances-table"), "instances-title", [
    { title: "Instance", cell: name },
    { title: "State", cell: state },
    { title: "Queue", cell: queue },
    { title: "KV blocks by class", cell: kv },
    { title: "Slack harvested", cell: slack },
    { title: "Inbound link", cell: link },
  ], "No instance is known.");
  const at_s = performance.now() / 1000 - load.age_s;
  const loads = new Map(load.data.map((row) => [row.name, row]));
  const groups = Object.entries(cluster.models).map(([model, summary]) => ({
    key: model,
    title: titleOf(model, summary),
    items: instances.data.filter((row) => row.model === model)
      .map((row) => ({ key: row.name, row, load: loads.get(row.name) ?? null, at_s })),
  }));
  table.update(groups);
}

// What is worth saying aloud: states that are not what they were.
export function changesOf(instances) {
  const changes = [];
  const now = new Map(instances.data.map((row) => [row.name, row]));
  for (const [instance, row] of now) {
    const before = states.get(instance);
    if (before === row.state || (before === undefined && states.size === 0)) continue;
    const why = row.state === "unhealthy" && row.last_error ? `: ${row.last_error}` : "";
    changes.push({ text: `${instance} is ${row.state}${why}`, isBad: row.state === "unhealthy" });
  }
  for (const instance of states.keys()) {
    if (!now.has(instance)) changes.push({ text: `${instance} was removed`, isBad: false });
  }
  states = new Map(instances.data.map((row) => [row.name, row.state]));
  return changes;
}

function titleOf(model, summary) {
  const shape = summary.is_disaggregated ? "prefill and decode apart" : "colocated";
  const target = summary.shadow ? "" : ", no target of shadow jobs";
  return `${model}: ${summary.ready ? "ready" : "not ready"}, ${shape}${target}`;
}

function name({ row }) {
  return [element("strong", {}, row.name), element("span", { class: "quiet" }, row.role)];
}

function state({ row }) {
  const parts = [element("span", { class: `state ${row.state}` }, row.state)];
  if (row.state !== "healthy" && row.last_error) {
    parts.push(element("span", { class: "quiet" }, row.last_error));
  }
  return parts;
}

function queue({ row, load }) {
  const parts = [];
  if (load && load.running_requests !== null) {
    parts.push(`${count(load.running_requests)} running, ${count(load.waiting_requests)} waiting`);
    if (load.queued_jobs > 0) {
      parts.push(`${plural(load.queued_jobs, "shadow job")}, `
        + `${compact(load.missing_tokens)} tokens to go`);
    }
  } else {
    parts.push(`${plural(row.inflight_calls, "call")} from here`);
  }
  if (row.inflight_tokens > 0) parts.push(`${compact(row.inflight_tokens)} tokens to prefill`);
  return lines(parts);
}

function kv({ load }) {
  if (!load || !load.kv) return lines([load ? load.why_not ?? "not told" : "not asked yet"], true);
  const { total_blocks: total, ...blocks } = load.kv;
  const normal = blocks.normal_used_blocks + blocks.normal_cached_blocks;
  const shadow = blocks.shadow_used_blocks + blocks.shadow_cached_blocks;
  return [
    bar([
      { kind: "shadow-used", share: share(blocks.shadow_used_blocks, total) },
      { kind: "shadow-cached", share: share(blocks.shadow_cached_blocks, total) },
      { kind: "normal-used", share: share(blocks.normal_used_blocks, total) },
      { kind: "normal-cached", share: share(blocks.normal_cached_blocks, total) },
    ], share(blocks.shadow_cap_blocks, total)),
    ...lines([
      `normal ${percent(share(normal, total))}, shadow ${percent(share(shadow, total))} of at most `
        + percent(share(blocks.shadow_cap_blocks, total)),
      `${percent(share(blocks.normal_used_blocks, total))} and `
        + `${percent(share(blocks.shadow_used_blocks, total))} in use, of ${compact(total)} blocks`,
    ]),
  ];
}

function slack({ row, load, at_s }) {
  if (!load || !load.slack) {
    return row.role === "decode" ? lines(["pulls only"], true) : lines(["not known"], true);
  }
  const { slack: given } = load;
  const rate = rates.of(`slack ${row.name}`, given.shadow_tokens, at_s);
  const steps_s = given.shadow_iteration_s + given.plain_iteration_s;
  const parts = [
    `${compact(given.shadow_tokens)} tokens`,
    `${rate === null ? "" : `${compact(rate)}/s now, `}in ${percent(share(given.shadow_iteration_s, steps_s))} of the iterations' time`,
  ];
  const refused = mostly(given.plans);
  if (refused) parts.push(`else mostly: ${refused.replaceAll("_", " ")}`);
  return lines(parts);
}

function mostly(plans) {
  const refused = Object.entries(plans).filter(([reason]) => reason !== "granted");
  refused.sort((a, b) => b[1] - a[1]);
  return refused.length && refused[0][1] > 0 ? refused[0][0] : null;
}

function link({ row, load, at_s }) {
  if (!load || !load.link) {
    return lines(load && load.cut_off_from.length ? cutOff(load) : ["none"], true);
  }
  const { normal, shadow, idle_s } = load.link;
  const arrived = normal.arrived_bytes + shadow.arrived_bytes;
  const rate = rates.of(`link ${row.name}`, arrived, at_s);
  const flying = normal.in_flight + shadow.in_flight;
  return lines([
    flying > 0
      ? `${plural(flying, "transfer")}, ${bytes(normal.in_flight_bytes + shadow.in_flight_bytes)}`
      : `idle for ${seconds(idle_s)}`,
    `${bytes(normal.arrived_bytes)} for calls, ${bytes(shadow.arrived_bytes)} for shadows`
      + (rate ? `, ${bytes(rate)}/s now` : ""),
    ...cutOff(load),
  ]);
}

function cutOff(load) {
  return load.cut_off_from.length ? [`cannot pull from ${load.cut_off_from.join(", ")}`] : [];
}

function lines(texts, isQuiet = false) {
  return texts.map((text, at) =>
    element("span", { class: isQuiet || at > 0 ? "line quiet" : "line" }, text));
}
