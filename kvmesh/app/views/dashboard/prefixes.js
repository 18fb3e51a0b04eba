"use strict";
// The hottest prompt beginnings as an icicle: a nested list whose boxes are as wide as their share.
import { build, count, counted, percent } from "./parts.js";

const MIN_SHARE = 0.02;

function label(row, blockSize) {
  const held = row.workers.length ? `held by ${row.workers.join(", ")}` : "held by no worker";
  return `${counted(row.depth, "block")} (${counted(row.depth * blockSize, "token")}), ${percent(row.share)} of requests, `
    + `${percent(row.cached_share)} of it cached, ${held}, key ${row.key}`;
}

function box(row, below, blockSize) {
  const item = build("li");
  item.style.setProperty("--share", Math.max(row.share, MIN_SHARE));
  item.style.setProperty("--cached", row.cached_share);
  const words = build("div", { class: "prefix", tabindex: "0", title: label(row, blockSize) },
    build("b", {}, `${percent(row.share)} `), `${count(row.depth)} blocks `,
    build("span", { class: "fine" }, row.workers.join(", ") || "nowhere"),
    build("span", { class: "unseen" }, label(row, blockSize)));
  item.append(words);
  if (below.length) item.append(list(below, blockSize, row.share));
  return item;
}

function list(nodes, blockSize, whole) {
  const items = nodes.map(({ row, below }) => box(row, below, blockSize));
  // What is not shared further takes its room, so that widths compare across levels.
  const rest = whole - nodes.reduce((all, { row }) => all + Math.max(row.share, MIN_SHARE), 0);
  if (rest > 0.001) {
    const gap = build("li", { class: "gap", "aria-hidden": "true" });
    gap.style.setProperty("--share", rest);
    items.push(gap);
  }
  return build("ul", {}, ...items);
}

function forest(rows) {
  const nodes = new Map(rows.map((row) => [`${row.bucket}/${row.key}`, { row, below: [] }]));
  const roots = [];
  for (const node of nodes.values()) {
    const above = node.row.parent && nodes.get(`${node.row.bucket}/${node.row.parent}`);
    (above ? above.below : roots).push(node);
  }
  const byShare = (a, b) => b.row.share - a.row.share;
  for (const node of nodes.values()) node.below.sort(byShare);
  return roots.sort(byShare);
}

let drawn = "";

// Draws the rows that `wanted` takes (all those above a wanted one stay); returns how many.
export function drawPrefixes(place, rows, blockSize, wanted) {
  const keys = new Set();
  const byKey = new Map(rows.map((row) => [`${row.bucket}/${row.key}`, row]));
  for (const row of rows.filter(wanted)) {
    for (let one = row; one; one = byKey.get(`${one.bucket}/${one.parent}`)) keys.add(one);
  }
  const shown = rows.filter((row) => keys.has(row));
  const text = JSON.stringify(shown);
  if (text === drawn || place.contains(document.activeElement)) return shown.length;
  drawn = text;
  if (!shown.length) {
    place.replaceChildren(build("p", { class: "empty" }, "No beginning is shared by two requests of the last minutes."));
    return 0;
  }
  const parts = [];
  for (const bucket of [...new Set(shown.map((row) => row.bucket))].sort()) {
    const tree = list(forest(shown.filter((row) => row.bucket === bucket)), blockSize, 1);
    tree.setAttribute("aria-label", `Bucket ${bucket}`);
    parts.push(build("h3", {}, bucket), tree);
  }
  place.replaceChildren(...parts);
  return shown.length;
}
