// The cluster in a few numbers.

import { bar, byId, element, setText } from "./dom.js";
import { compact, count, percent, plural, seconds, share } from "./format.js";

const tiles = new Map();

export function showOverview(cluster) {
  const used = cluster.shadow.used_tokens;
  const computed = cluster.shadow.computed_tokens;
  const models = Object.entries(cluster.models);
  const ready = models.filter(([, model]) => model.ready);
  tile("Models ready", `${ready.length} of ${models.length}`, waiting(models),
    ready.length < models.length);
  tile("Instances healthy", `${cluster.healthy_instances} of ${cluster.instances}`, "",
    cluster.healthy_instances < cluster.instances);
  tile("Sessions", count(cluster.sessions), "");
  tile("Calls in flight", count(cluster.calls_in_flight), "");
  tile("Shadow work now", count(cluster.shadow.running), "renders, segments, pushes");
  tile("Shadow tokens used", percent(share(used, computed)),
    `${compact(used)} of ${compact(computed)}`);
  setText(byId("about"), `${cluster.version} · profile ${cluster.profile} · controller `
    + `${cluster.controller} · up ${seconds(cluster.uptime_s)}`);
  showTotal(cluster.shadow);
}

function waiting(models) {
  const names = models.filter(([, model]) => !model.ready).map(([name]) => name);
  return names.length ? `waiting for ${names.join(", ")}` : "";
}

function tile(name, value, note, isBad = false) {
  let parts = tiles.get(name);
  if (!parts) {
    parts = { value: element("dd"), note: element("dd", { class: "quiet" }) };
    tiles.set(name, parts);
    byId("tiles").append(element("div", {}, element("dt", {}, name), parts.value, parts.note));
  }
  setText(parts.value, value);
  setText(parts.note, note);
  parts.value.classList.toggle("bad", isBad);
}

// A token that no call has used may still be of use: which ones is said session by session.
function showTotal(shadow) {
  const unused = Math.max(0, shadow.computed_tokens - shadow.used_tokens);
  const text = `Shadow tokens since the start: ${count(shadow.computed_tokens)} spent in `
    + `${plural(shadow.segments, "segment")}, ${count(shadow.used_tokens)} used by calls, `
    + `${count(unused)} not used so far, ${count(shadow.pushed_tokens)} pushed to decode instances.`;
  const host = byId("shadow-total");
  if (host.dataset.text === text) return;
  host.dataset.text = text;
  host.replaceChildren(
    bar([
      { kind: "used-tokens", share: share(shadow.used_tokens, shadow.computed_tokens) },
      { kind: "unused-tokens", share: share(unused, shadow.computed_tokens) },
    ]),
    element("p", {}, text),
  );
}
