// The coordinator's control API. The key lives in this tab's sessionStorage and goes nowhere else.

const STORED_KEY = "shadowprefill.key";
const TIMEOUT_MS = 10000;

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function storedKey() {
  return sessionStorage.getItem(STORED_KEY);
}

export function storeKey(key) {
  if (key) sessionStorage.setItem(STORED_KEY, key);
  else sessionStorage.removeItem(STORED_KEY);
}

// Paths are relative to the page, so that a proxy may serve both below a prefix.
export async function get(path) {
  const key = storedKey();
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const reply = await fetch(path, { headers, signal, cache: "no-store", credentials: "omit" });
  if (reply.ok) return reply.json();
  let message = `${path} answered ${reply.status}`;
  try {
    message = (await reply.json()).error.message;
  } catch {
    // Not the coordinator's own answer: a proxy's, perhaps.
  }
  throw new Refused(reply.status, message);
}
