// Building and updating elements. Text is only ever set as text: names come from clients.
//
// Rows are kept and updated in place, so that a refresh moves neither focus nor selection.

export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") node.addEventListener("click", value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function byId(id) {
  return document.getElementById(id);
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function show(id, isShown) {
  byId(id).hidden = !isShown;
}

// A bar of parts, each {kind, share}; the text beside it says the same, so it is hidden from
// screen readers.
export function bar(parts, limitShare = null) {
  const node = element("span", { class: "bar", "aria-hidden": "true" });
  for (const { kind, share } of parts) {
    if (!(share > 0)) continue;
    const part = element("span", { class: `part ${kind}` });
    part.style.inlineSize = `${Math.min(100, share * 100)}%`;
    node.append(part);
  }
  if (limitShare !== null) {
    const mark = element("span", { class: "limit" });
    mark.style.insetInlineStart = `${Math.min(100, limitShare * 100)}%`;
    node.append(mark);
  }
  return node;
}

// A table whose roles are written out: on narrow screens its rows are laid out as cards, and
// browsers drop the roles of a table that is not displayed as one.
//
// columns: [{title, cell(item) -> string or nodes, numeric}]; the first cell heads its row.
export class Table {
  constructor(host, labelledBy, columns, emptyText) {
    this.columns = columns;
    this.rows = new Map();
    this.groups = new Map();
    this.emptyText = emptyText;
    const heads = columns.map((column) =>
      element("th", { scope: "col", role: "columnheader", class: kindOf(column) }, column.title));
    this.table = element("table", { role: "table", "aria-labelledby": labelledBy },
      element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...heads)));
    this.empty = element("p", { class: "quiet" });
    host.replaceChildren(this.table, this.empty);
  }

  // groups: [{key, title (or null), items: [{key, ...}]}]
  update(groups) {
    const seen = new Set();
    for (const group of groups) {
      const body = this.#body(group);
      group.items.forEach((item, at) => {
        seen.add(item.key);
        const row = this.#row(item);
        // Past the heading of the group. Only what is out of place moves: moving loses focus.
        const place = body.rows[at + (group.title ? 1 : 0)];
        if (place !== row) body.insertBefore(row, place ?? null);
      });
    }
    for (const [key, row] of this.rows) {
      if (!seen.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    }
    for (const [key, body] of this.groups) {
      if (!groups.some((group) => group.key === key)) {
        body.remove();
        this.groups.delete(key);
      }
    }
    this.table.hidden = seen.size === 0;
    setText(this.empty, seen.size === 0 ? this.emptyText : "");
  }

  #body(group) {
    let body = this.groups.get(group.key);
    if (!body) {
      body = element("tbody", { role: "rowgroup" });
      if (group.title) {
        const span = { colspan: this.columns.length, scope: "rowgroup", role: "rowheader" };
        body.append(element("tr", { role: "row", class: "group" }, element("th", span)));
      }
      this.groups.set(group.key, body);
      this.table.append(body);
    }
    if (group.title) setText(body.rows[0].cells[0], group.title);
    return body;
  }

  #row(item) {
    let row = this.rows.get(item.key);
    if (!row) {
      row = element("tr", { role: "row" }, ...this.columns.map((column, at) => at === 0
        ? element("th", { scope: "row", role: "rowheader" })
        : element("td", { role: "cell", class: kindOf(column), "data-label": column.title })));
      this.rows.set(item.key, row);
    }
    this.columns.forEach((column, at) => fill(row.cells[at], column.cell(item)));
    row.classList.toggle("selected", Boolean(item.selected));
    return row;
  }
}

function kindOf(column) {
  return column.numeric ? "number" : null;
}

function fill(cell, content) {
  if (typeof content === "string") {
    setText(cell, content);
    return;
  }
  const fresh = element("div", {}, ...[content].flat());
  const now = cell.firstElementChild;
  if (now && now === cell.lastChild && now.contains(document.activeElement)) {
    refresh(now, fresh);
  } else if (!now || now.outerHTML !== fresh.outerHTML) {
    cell.replaceChildren(fresh);
  }
}

// What has the focus stays; only its words and state change.
function refresh(now, fresh) {
  const focused = document.activeElement;
  const next = fresh.querySelector(focused.tagName);
  if (!next) return;
  setText(focused, next.textContent);
  for (const { name, value } of next.attributes) focused.setAttribute(name, value);
}
