"use strict";
// Numbers as text, and tables whose rows stay the same elements while their figures change.
import { FIGURES } from "./figures.js";

export const count = (value, digits = 0) => (value ?? 0).toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
export const short = (value) => Math.round(value).toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 });
export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
export const percent = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(share < 0.0995 && share > 0 ? 1 : 0)} %`);
export const clock = (unix) => new Date(unix * 1000).toLocaleTimeString([], { hourCycle: "h23" });
export const bytesOfDigest = (digest) => digest.slice(0, 8);

export const about = (blocks) => (blocks === null ? "–" : blocks ? `≈ ${count(blocks)}` : "0");

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 9950) return `${(value / 1000).toFixed(0)} s`;
  if (value >= 995) return `${(value / 1000).toFixed(1)} s`;
  return `${value >= 9.95 || value === 0 ? value.toFixed(0) : value.toFixed(1)} ms`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 100) return milliseconds(seconds * 1000);
  if (seconds < 5940) return `${(seconds / 60).toFixed(0)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(0)} days`;
}

const FORMATS = { count, percent, ms: milliseconds, s: (value) => milliseconds(value * 1000), ms_per_token: (value) => count(value * 1000, 1) };

// The columns of the figures that `kvmesh/app/views` gives such rows; `drawn` are those with a drawing of their own.
export function figureColumns(rows, drawn = {}) {
  return FIGURES[rows].map(({ key, dashboard, format, narrow }) => {
    const value = (row) => row[key] ?? row.figures?.[key] ?? null;
    return { name: dashboard, first: -1, kind: `num ${narrow}`.trim(), value: (row) => value(row) ?? -1,
      fill: (cell, row) => { cell.textContent = value(row) === null ? "–" : FORMATS[format](value(row)); }, ...drawn[key] };
  });
}

// The state of a request in a word, and how it looks.
const STATES = { open: ["running", "soft"], finished: ["done", "good"], client_gone: ["client left", "warn"], failed: ["failed", "bad"], cut: ["cut", "bad"], refused: ["refused", "bad"] };

export function stateOf(row) {
  const [word, kind] = STATES[row.state];
  if (row.state === "open") return [row.ttft_ms === null ? "prefill" : "answering", kind];
  if (row.state === "finished" && row.status >= 400) return [`status ${row.status}`, "bad"];
  return [row.attempts > 1 ? `${word}, try ${row.attempts}` : word, row.attempts > 1 && kind === "good" ? "warn" : kind];
}

// Where a worker stands in words, and how they look: failing, hung and draining are three things.
const FAILING = new Set(["ejected", "down", "suspect"]);
const DOUBTS = { "catching-up": "warn", degraded: "warn" };

export const fails = (row) => row.hung || FAILING.has(row.stage) || row.stage === "trickle";

export function standingOf(row) {
  if (row.hung) return [row.usable ? "hung, used all the same: too many fail" : "hung: does not answer", "bad"];
  if (!row.usable) return [row.why_not, row.why_not === "draining" || row.stage === "overloaded" ? "warn" : "bad"];
  if (FAILING.has(row.stage)) return [`${row.stage}, used all the same: too many fail`, "bad"];
  if (row.stage === "trickle") return ["on trial after failures", "warn"];
  return [row.trust, DOUBTS[row.trust] ?? "good"];
}

export function build(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Puts a long name into a button of two parts: the first gives way, for names differ at their ends.
export function nameButton(cell, name, kept, attributes = {}) {
  const button = cell.firstChild ?? cell.appendChild(build("button", { type: "button", class: "id", ...attributes }));
  if (button.textContent === name) return;
  const cut = Math.max(0, name.length - kept);
  button.replaceChildren(build("span", {}, name.slice(0, cut)), build("span", {}, name.slice(cut)));
}

export function meter(cell, share, text, { at = null, high = false, pale = 0, title = "" } = {}) {
  if (!cell.firstChild) {
    cell.append(build("span", { class: "meter", "aria-hidden": "true" }, build("s"), build("i"), build("u")), build("span"));
  }
  const [bar, words] = cell.children;
  bar.hidden = share === null;
  bar.classList.toggle("high", high);
  bar.style.setProperty("--share", Math.min(1, share ?? 0));
  bar.children[2].hidden = at === null;
  bar.style.setProperty("--pale", Math.min(1, pale ?? 0));
  bar.style.setProperty("--at", Math.min(1, at ?? 0));
  if (words.textContent !== text) words.textContent = text;
  if (cell.title !== title) cell.title = title;
}

function makeHead(table, columns) {
  const line = build("tr");
  for (const column of columns) {
    const cell = build("th", { scope: "col", class: column.kind ?? "" });
    cell.append(column.sort ? build("button", { type: "button" }, column.name) : column.name);
    line.append(cell);
  }
  table.append(build("thead", {}, line), build("tbody"));
}

// Columns are {name, kind: classes, head: is the row's header, fill(cell, item, items)}.
export function syncRows(table, columns, items, keyOf, emptyText) {
  if (!table.tHead) makeHead(table, columns);
  const body = table.tBodies[0], known = new Map();
  for (const row of [...body.rows]) row.dataset.key === undefined ? row.remove() : known.set(row.dataset.key, row);
  if (!items.length) {
    body.replaceChildren(build("tr", {}, build("td", { colspan: columns.length, class: "empty" }, emptyText)));
    return;
  }
  let before = body.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    let row = known.get(key);
    known.delete(key);
    if (!row) {
      row = build("tr");
      row.dataset.key = key;
      for (const column of columns) {
        row.append(column.head ? build("th", { scope: "row", class: column.kind ?? "" }) : build("td", { class: column.kind ?? "" }));
      }
    }
    columns.forEach((column, number) => column.fill(row.cells[number], item, items));
    if (row === before) before = before.nextSibling;
    else body.insertBefore(row, before);
  }
  for (const row of known.values()) row.remove();
}

// Makes the columns that have a `value` sortable by their heads, downwards first where `first` is
// -1; returns how to order rows.
export function sortable(table, columns, onChange) {
  let by = columns.find((column) => column.value), sign = 1;
  for (const column of columns) column.sort = Boolean(column.value);
  makeHead(table, columns);
  const heads = [...table.tHead.rows[0].cells];
  const tell = () => heads.forEach((head, number) => {
    if (columns[number] === by) head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  });
  heads.forEach((head, number) => head.firstChild.addEventListener?.("click", () => {
    const column = columns[number];
    sign = by === column ? -sign : (column.first ?? 1);
    by = column;
    tell();
    onChange();
  }));
  tell();
  const order = new Intl.Collator("en", { numeric: true });
  return (rows) => [...rows].sort((a, b) => {
    const x = by.value(a), y = by.value(b);
    return sign * (typeof x === "string" ? order.compare(x, y) : x - y) || order.compare(columns[0].value(a), columns[0].value(b));
  });
}
