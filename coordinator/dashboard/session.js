// One session: its timeline, its calls and the shadow work done for it.

import { Table, byId, setText } from "./dom.js";
import { count, milliseconds, plural, seconds } from "./format.js";
import { drawTimeline } from "./timeline.js";

let calls = null;
let work = null;
let shown = null;

export function showSession(detail) {
  shown = detail;
  const { summary } = detail;
  setText(byId("session-title"), `Session ${detail.session_id}`);
  setText(byId("session-summary"), `${plural(summary.calls, "call")}, `
    + `${plural(summary.switches, "switch", "switches")}, now on ${detail.model ?? "no model"}. `
    + `Shadow tokens: ${count(detail.shadow_tokens_computed)} spent, `
    + `${count(detail.shadow_tokens_used)} used, ${count(detail.shadow_tokens_wasted)} wasted.`);
  redraw();
  showCalls(detail);
  showWork(detail);
}

// Also when the page's width or the chosen time changes.
export function redraw() {
  if (shown) drawTimeline(byId("timeline"), shown, Number(byId("window").value));
}

export function forgetSession() {
  shown = null;
}

function showCalls(detail) {
  calls ??= new Table(byId("calls-table"), "calls-title", [
    { title: "Call", cell: ({ row }) => `${count(row.call)}${row.is_switch ? " switch" : ""}` },
    { title: "Model", cell: ({ row }) => row.model },
    { title: "Prompt", numeric: true, cell: ({ row }) => count(row.prompt_tokens) },
    { title: "Cached", numeric: true, cell: ({ row }) => count(row.cached_tokens) },
    { title: "From a shadow", numeric: true, cell: ({ row }) => count(row.shadow_tokens) },
    { title: "Output", numeric: true, cell: ({ row }) => count(row.output_tokens) },
    { title: "First token", numeric: true, cell: ({ row }) => milliseconds(row.ttft_ms) },
    { title: "Whole", numeric: true, cell: ({ row }) => milliseconds(row.e2el_ms) },
    { title: "Where", cell: ({ row }) => where(row) },
    { title: "End", cell: ({ row }) => row.error ?? row.finish_reason ?? endOf(row) },
  ], "No call is kept.");
  const newestFirst = [...detail.calls].reverse();
  calls.update([{
    key: "calls",
    title: null,
    items: newestFirst.map((row) => ({ key: `${detail.session_id} ${row.call}`, row })),
  }]);
}

function where({ p_instance: p, d_instance: d }) {
  if (p === null && d === null) return "–";
  return p === d || p === null ? d : `${p} → ${d}`;
}

function endOf(row) {
  return row.e2el_ms === null ? "runs" : "done";
}

function showWork(detail) {
  work ??= new Table(byId("work-table"), "work-title", [
    { title: "Work", cell: ({ row }) => row.kind },
    { title: "Model", cell: ({ row }) => row.model },
    { title: "Up to token", numeric: true, cell: ({ row }) => count(row.end_tokens) },
    { title: "Tokens", numeric: true, cell: ({ row }) => count(row.tokens) },
    { title: "Took", numeric: true, cell: ({ row }) => seconds(row.took_s) },
    { title: "Began", numeric: true, cell: ({ row }) => `${seconds(row.age_s)} ago` },
    { title: "Outcome", cell: ({ row }) => row.outcome.replaceAll("_", " ") },
  ], "No shadow work was done for it.");
  const newestFirst = [...detail.shadow_work].reverse();
  work.update([{
    key: "work",
    title: null,
    items: newestFirst.map((row, at) => ({ key: `${detail.session_id} ${at}`, row })),
  }]);
}
