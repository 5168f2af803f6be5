// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-GB", { notation: "compact", maximumFractionDigits: 1 });
const MISSING = "–";

export function count(value) {
  return value === null || value === undefined ? MISSING : whole.format(value);
}

export function compact(value) {
  return value === null || value === undefined ? MISSING : short.format(value);
}

export function percent(share) {
  if (share === null || !Number.isFinite(share)) return MISSING;
  return share > 0 && share < 0.01 ? "<1%" : `${Math.round(share * 100)}%`;
}

export function seconds(value) {
  if (value === null || value === undefined) return MISSING;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} days`;
}

export function milliseconds(value) {
  return value === null || value === undefined ? MISSING : `${whole.format(value)} ms`;
}

export function bytes(value) {
  if (value === null || value === undefined) return MISSING;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) {
    value /= 1000;
    at += 1;
  }
  return `${value >= 10 || at === 0 ? whole.format(value) : value.toFixed(1)} ${units[at]}`;
}

export function share(part, all) {
  return all > 0 ? part / all : 0;
}

export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}
