"use strict";
// The last requests, newest first; what is pointed at stays where it is.
import { about, clock, meter, milliseconds, nameButton, stateOf, syncRows } from "./parts.js";
import { ratio } from "./traffic.js";

const SHOWN_ROWS = 100;
const HOVERS = matchMedia("(hover: hover)");
const $ = (id) => document.getElementById(id);

const REQUESTS = [
  { name: "Time", kind: "p2", fill: (cell, row) => { cell.textContent = clock(row.decided_at); } },
  { name: "Request", head: true, fill: (cell, row) => {
    nameButton(cell, row.request_id, 7);
    if (cell.firstChild.title !== row.request_id) cell.firstChild.title = row.request_id;
  } },
  { name: "Bucket", kind: "p3", fill: (cell, row) => { cell.textContent = row.bucket; } },
  { name: "Tenant", kind: "p3 tenant", fill: (cell, row) => { cell.textContent = row.tenant || "–"; cell.title = row.tenant ?? ""; } },
  { name: "Worker", fill: (cell, row) => { cell.textContent = row.worker; } },
  { name: "Cached, blocks", fill: (cell, row) => meter(cell, ratio(row.overlap_blocks, row.total_blocks), `${row.overlap_blocks}/${row.total_blocks}`,
    { at: row.round_robin_blocks === null ? null : ratio(row.round_robin_blocks, row.total_blocks) }) },
  { name: "Round robin", kind: "num p3", fill: (cell, row) => { cell.textContent = about(row.round_robin_blocks); } },
  { name: "Why there", kind: "wide p2", fill: (cell, row) => { cell.textContent = row.why; } },
  { name: "First token", kind: "num p2", fill: (cell, row) => { cell.textContent = milliseconds(row.ttft_ms); } },
  { name: "State", fill: (cell, row) => { const [word, kind] = stateOf(row); cell.textContent = word; cell.className = `state ${kind}`; } },
];

// Draws the newest of `known` that the filter takes; `anew`: those pointed at may move, too. Returns how many.
export function drawRequests(known, matches, anew) {
  const table = $("requests"), held = (HOVERS.matches && table.matches(":hover")) || table.querySelector(":focus-visible");
  const rows = known
    .filter((row) => matches(row.tenant, row.request_id, row.worker, row.bucket, row.router, row.policy, stateOf(row)[0]))
    .sort((a, b) => b.decided_at - a.decided_at).slice(0, SHOWN_ROWS);
  // What is pointed at stays where it is: new rows wait outside.
  const present = table.tBodies[0] && new Set([...table.tBodies[0].rows].map((row) => row.dataset.key));
  const holds = held && present?.size && !anew;
  const list = holds ? rows.filter((row) => present.has(row.key)) : rows;
  const late = rows.length - list.length;
  $("held").hidden = !late;
  $("held").textContent = late ? `Show ${late} newer` : "";
  syncRows(table, REQUESTS, list, (row) => row.key, $("filter").value ? "No request matches the filter." : "No request yet. Send one to /v1/chat/completions and it appears here at once.");
  return rows.length;
}

