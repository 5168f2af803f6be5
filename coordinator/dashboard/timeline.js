// A session over time: a lane per model with its calls above and the shadow work below.
//
// Drawn for the eye; the tables under it say the same in words.

import { count, milliseconds, seconds } from "./format.js";

const NAMESPACE = "http://www.w3.org/2000/svg";
const LANE = { height: 58, call: 22, segment: 14, push: 6, gap: 3, top: 8 };
const AXIS = 24;
const SMALLEST = 3;
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400];

export function drawTimeline(host, detail, window_s) {
  const width = Math.max(280, host.clientWidth);
  const lanes = lanesOf(detail);
  const spans = spansOf(detail).filter((span) => !window_s || span.from_s < window_s);
  if (!spans.length) {
    host.replaceChildren("Nothing happened in this time.");
    return;
  }
  const labels = Math.min(140, Math.max(60, ...lanes.map((model) => model.length * 8 + 16)));
  const begin_s = Math.max(...spans.map((span) => span.from_s));
  const end_s = Math.max(0, Math.min(...spans.map((span) => span.to_s)));
  const length_s = Math.max(0.001, begin_s - end_s);
  const scale = (width - labels - 8) / length_s;
  const x = (age_s) => labels + (begin_s - Math.min(age_s, begin_s)) * scale;
  const height = lanes.length * LANE.height + AXIS;
  const svg = node("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "img", class: "timeline",
    "aria-label": `Timeline of ${seconds(length_s)}: ${count(detail.calls.length)} calls on `
      + `${lanes.join(" and ")}, ${count(detail.shadow_work.length)} pieces of shadow work. `
      + "The tables below say the same.",
  });
  drawGrid(svg, { lanes, labels, width, height, begin_s, length_s, x });
  const top = (model) => lanes.indexOf(model) * LANE.height + LANE.top;
  drawSwitches(svg, detail.calls, x, top, window_s);
  for (const span of spans) drawSpan(svg, span, x, top(span.model), scale);
  host.replaceChildren(svg);
}

function lanesOf(detail) {
  const models = [...detail.calls, ...detail.shadow_work].map((row) => row.model);
  return [...new Set([...models, ...Object.keys(detail.summary.models)])].sort();
}

// Times are ages: seconds before now.
function spansOf(detail) {
  const calls = detail.calls.filter((call) => call.age_s !== null).map((call) => ({
    kind: "call",
    model: call.model,
    from_s: call.age_s,
    to_s: call.e2el_ms === null ? 0 : call.age_s - call.e2el_ms / 1000,
    ttft_s: call.ttft_ms === null ? null : call.ttft_ms / 1000,
    isLost: call.error !== null,
    text: `Call ${call.call} on ${call.model}${call.is_switch ? " (switch)" : ""}: `
      + `${count(call.cached_tokens)} of ${count(call.prompt_tokens)} tokens cached, `
      + `${count(call.shadow_tokens)} from a shadow, first token after `
      + milliseconds(call.ttft_ms),
  }));
  const work = detail.shadow_work.map((piece) => ({
    kind: piece.kind,
    model: piece.model,
    from_s: piece.age_s,
    to_s: piece.took_s === null ? 0 : piece.age_s - piece.took_s,
    ttft_s: null,
    isLost: !["done", "running"].includes(piece.outcome),
    text: `${piece.kind} on ${piece.model} up to token ${count(piece.end_tokens)}: `
      + `${piece.outcome}, ${count(piece.tokens)} tokens in ${seconds(piece.took_s)}`,
  }));
  return [...calls, ...work];
}

function drawGrid(svg, { lanes, labels, width, height, begin_s, length_s, x }) {
  lanes.forEach((model, at) => {
    const y = at * LANE.height;
    svg.append(
      node("rect", { x: 0, y, width, height: LANE.height, class: at % 2 ? "lane odd" : "lane" }),
      text(8, y + LANE.height / 2 + 4, model, "lane-name"),
    );
  });
  const step_s = STEPS_S.find((step) => length_s / step <= width / 130) ?? STEPS_S.at(-1);
  for (let age_s = Math.ceil((begin_s - length_s) / step_s) * step_s; age_s <= begin_s; age_s += step_s) {
    const at = x(age_s);
    svg.append(node("line", { x1: at, x2: at, y1: 0, y2: height - AXIS, class: "tick" }));
    const label = age_s === 0 ? "now" : `${seconds(age_s)} ago`;
    const anchor = at > width - 40 ? "end" : at < labels + 30 ? "start" : "middle";
    svg.append(text(at, height - 8, label, `tick-name ${anchor}`));
  }
}

function drawSwitches(svg, calls, x, top, window_s) {
  calls.forEach((call, at) => {
    const before = calls[at - 1];
    if (!call.is_switch || !before || call.age_s === null) return;
    if (window_s && call.age_s > window_s) return;
    const place = x(call.age_s);
    const from = top(before.model) + LANE.call / 2;
    const to = top(call.model) + LANE.call / 2;
    svg.append(node("line", { x1: place, x2: place, y1: from, y2: to, class: "switch-line" }));
    svg.append(node("circle", { cx: place, cy: from, r: 3.5, class: "switch-dot" }));
  });
}

function drawSpan(svg, span, x, top, scale) {
  const left = x(span.from_s);
  const whole = Math.max(SMALLEST, x(span.to_s) - left);
  const group = node("g", { class: span.isLost ? `span ${span.kind} lost` : `span ${span.kind}` });
  group.append(node("title", {}, span.text));
  if (span.kind === "call") {
    const first = span.ttft_s === null ? 0 : Math.min(whole, Math.max(2, span.ttft_s * scale));
    group.append(
      node("rect", { x: left, y: top, width: whole, height: LANE.call, rx: 2, class: "answer" }),
      node("rect", { x: left, y: top, width: first, height: LANE.call, rx: 2, class: "ttft" }),
    );
  } else {
    const segmentTop = top + LANE.call + LANE.gap;
    const y = span.kind === "push" ? segmentTop + LANE.segment + 1 : segmentTop;
    const height = span.kind === "push" ? LANE.push : LANE.segment;
    group.append(node("rect", { x: left, y, width: whole, height, rx: 1 }));
  }
  svg.append(group);
}

function text(x, y, words, kind) {
  return node("text", { x, y, class: kind }, words);
}

function node(tag, attributes, ...children) {
  const made = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
