"use strict";
// The hottest prompt beginnings: what they say where that is kept, how large, who holds them, what they save.
import { build, count, counted, meter, percent, short, span, syncRows } from "./parts.js";

const NARROW = matchMedia("(max-width: 720px)");
const FEW = 10, FEW_NARROW = 5, NAMED = 2;
const $ = (id) => document.getElementById(id);
let all = false, redraw = () => {};

const heldBy = ({ workers }) => (workers.length > NAMED + 1 ? `${workers.slice(0, NAMED).join(", ")} and ${workers.length - NAMED} more` : workers.join(", ") || "no worker");

const COLUMNS = [
  { name: "Prefix", head: true, kind: "begins", fill: (cell, row) => {
    cell.style.setProperty("--level", row.level);
    const words = row.text && row.text !== row.textAbove ? row.text : "";
    const element = cell.firstChild?.nodeName === (words ? "Q" : "CODE") ? cell.firstChild : build(words ? "q" : "code");
    const text = words || `${row.text ? "… " : ""}${row.key.slice(0, 8)}`;
    if (element.textContent !== text) element.textContent = text;
    if (element.parentNode !== cell) cell.replaceChildren(element);
    const title = `${words ? `${words}\n` : ""}key ${row.key}${row.parent ? `, goes on from ${row.parent.slice(0, 8)}` : ""}`;
    if (cell.title !== title) cell.title = title;
  } },
  { name: "Bucket", kind: "p3", fill: (cell, row) => { cell.textContent = row.bucket; } },
  { name: "Of requests", kind: "share", fill: (cell, row) => meter(cell, row.share, percent(row.share), { title: `of the requests of bucket ${row.bucket}` }) },
  { name: "Size, tokens", kind: "num size", fill: (cell, row) => { cell.textContent = count(row.depth * row.blockSize); cell.title = counted(row.depth, "block"); } },
  { name: "Cached", kind: "num p2", fill: (cell, row) => { cell.textContent = percent(row.cached_share); } },
  { name: "Tokens saved", kind: "num saves", fill: (cell, row) => { cell.textContent = short(row.saved); cell.title = row.worth_s === null ? "of the last minutes" : `of the last minutes, worth ${span(row.worth_s)} of prefill`; } },
  { name: "Held by", kind: "held", fill: (cell, row) => { cell.textContent = heldBy(row); cell.title = row.workers.join(", "); } },
];

// Rows in the order of the tree they make, each with its level in it.
function inOrder(rows) {
  const nodes = new Map(rows.map((row) => [`${row.bucket}/${row.key}`, { row, below: [] }]));
  const roots = [];
  for (const node of nodes.values()) {
    const above = node.row.parent && nodes.get(`${node.row.bucket}/${node.row.parent}`);
    (above ? above.below : roots).push(node);
  }
  const walk = (list, level, textAbove) => list.sort((a, b) => a.row.bucket.localeCompare(b.row.bucket) || b.row.share - a.row.share)
    .flatMap(({ row, below }) => [{ ...row, level, textAbove }, ...walk(below, level + 1, row.text)]);
  return walk(roots, 0, "");
}

// What a prefix saves: of each request that began with it, the tokens that were cached.
function worthOf(row, blockSize, workers) {
  const saved = row.requests * row.cached_share * row.depth * blockSize;
  const speeds = workers.filter((one) => one.bucket === row.bucket && one.ms_per_token > 0 && row.workers.includes(one.worker)).map((one) => one.ms_per_token);
  const mean = speeds.reduce((sum, one) => sum + one, 0) / speeds.length;
  return { ...row, blockSize, saved, worth_s: speeds.length ? (saved * mean) / 1000 : null };
}

// Draws those that `wanted` takes, the hottest of them; returns how many there are.
export function drawPrefixes(overview, wanted, onChange) {
  redraw = onChange;
  const found = overview.prefixes.filter(wanted).map((row) => worthOf(row, overview.block_size, overview.workers));
  const few = NARROW.matches ? FEW_NARROW : FEW, hottest = [...found].sort((a, b) => b.saved - a.saved || b.share - a.share);
  syncRows($("prefixes"), COLUMNS, inOrder(all ? hottest : hottest.slice(0, few)), (row) => `${row.bucket}/${row.key}`,
    overview.prefixes.length ? "No prefix matches the filter." : "No beginning is shared by two requests of the last minutes.");
  const button = $("all-prefixes");
  button.hidden = found.length <= few;
  button.textContent = all ? "Show fewer" : `Show all ${found.length}`;
  button.setAttribute("aria-expanded", String(all));
  return found.length;
}

$("all-prefixes").addEventListener("click", () => {
  all = !all;
  redraw();
});
