// What keys have used and what shadow work saved them: an operator sees every tenant.

import { Table, byId } from "./dom.js";
import { count, percent, seconds, share } from "./format.js";

let keys = null;
let tenants = null;

export function showUsage(usage) {
  keys ??= new Table(byId("usage-table"), "usage-title", [
    { title: "Tenant", cell: ({ row }) => shortened(row.tenant_name) },
    { title: "Key", cell: ({ row }) => shortened(row.key) },
    { title: "Calls", numeric: true, cell: ({ row }) => count(row.calls) },
    { title: "Unfinished", numeric: true, cell: ({ row }) => count(row.unfinished_calls) },
    { title: "Prompt tokens", numeric: true, cell: ({ row }) => count(row.prompt_tokens) },
    { title: "Cached", numeric: true, cell: ({ row }) => percent(share(row.cached_tokens, row.prompt_tokens)) },
    { title: "Output tokens", numeric: true, cell: ({ row }) => count(row.output_tokens) },
    { title: "Shadow tokens used", numeric: true, cell: ({ row }) => count(row.shadow_tokens_used) },
    { title: "Prefill saved", numeric: true, cell: ({ row }) => seconds(row.saved_prefill_s) },
  ], "No call has ended yet.");
  keys.update([{
    key: "keys",
    title: null,
    items: usage.keys.map((row) => ({ key: `${row.tenant} ${row.key}`, row })),
  }]);
  const names = namesOf(usage);
  tenants ??= new Table(byId("tenants-table"), "tenants-title", [
    { title: "Tenant", cell: ({ name }) => shortened(name) },
    { title: "Computed", numeric: true, cell: ({ row }) => count(row.computed_tokens) },
    { title: "Used", numeric: true, cell: ({ row }) => count(row.used_tokens) },
    { title: "Used share", numeric: true, cell: ({ row }) => percent(share(row.used_tokens, row.computed_tokens)) },
    { title: "Left of the quota", numeric: true, cell: ({ row }) => row.quota_left_tokens === null ? "no quota" : count(row.quota_left_tokens) },
  ], "No shadow work yet.");
  tenants.update([{
    key: "tenants",
    title: null,
    items: Object.entries(usage.shadow_by_tenant)
      .filter(([tenant, row]) => names.has(tenant) || row.computed_tokens > 0)
      .map(([tenant, row]) => ({ key: tenant, name: names.get(tenant) ?? tenant, row })),
  }]);
}

export function namesOf(usage) {
  return new Map(usage.keys.map((row) => [row.tenant, row.tenant_name]));
}

// Without configured keys a tenant is named by the digest of its token.
export function shortened(name) {
  return name.length > 24 ? `${name.slice(0, 12)}…` : name;
}
