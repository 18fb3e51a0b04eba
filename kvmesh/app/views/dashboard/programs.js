"use strict";
// Agents' programs: who takes turns, who waits and why, where the caches are, when the next turn comes.
import { ratio } from "./traffic.js";
import { count, meter, span, syncRows } from "./parts.js";

const STATES = { waiting: ["waits", "warn"], running: ["runs", "good"], paused: ["pauses", "soft"], ended: ["ended", "soft"] };
const STOPS = { tool: "tool", end: "answered", length: "cut" };

const pauseOf = (row) => (row.tool ? `${STOPS[row.stop] ?? "tool"}: ${row.tool}` : STOPS[row.stop] ?? "");

const COLUMNS = [
  { name: "Program", head: true, fill: (cell, row) => { cell.textContent = row.program; cell.title = `${row.client || "client not known"}${row.tenant ? `, tenant ${row.tenant}` : ""}, known for ${span(row.age_s)}`; } },
  { name: "Bucket", kind: "p3", fill: (cell, row) => { cell.textContent = row.bucket; } },
  { name: "Client", kind: "p2", fill: (cell, row) => { cell.textContent = row.client || "–"; } },
  { name: "State", fill: (cell, row) => { const [word, kind] = STATES[row.state] ?? [row.state, "soft"]; cell.textContent = `${word} ${span(row.since_s)}`; cell.className = `state ${kind}`; } },
  { name: "Agents", kind: "num p2", fill: (cell, row) => { cell.textContent = count(row.agents); } },
  { name: "Turns", kind: "num p2", fill: (cell, row) => { cell.textContent = count(row.turns); cell.title = `about ${count(Math.round(row.turns_left ?? 0))} more are expected`; } },
  { name: "Cache at", fill: (cell, row) => { cell.textContent = row.workers.join(", ") || "nowhere"; } },
  { name: "Context, tokens", fill: (cell, row) => meter(cell, ratio(row.reserved_tokens, row.tokens) ?? 0, count(row.tokens), { title: `room is kept for ${count(row.reserved_tokens)} of ${count(row.tokens)} tokens` }) },
  { name: "Computed", kind: "num p3", fill: (cell, row) => { cell.textContent = count(row.served_tokens); } },
  { name: "Next turn", kind: "num p2", fill: (cell, row) => { cell.textContent = row.back_s === null ? "–" : `${span(row.back_s)} – ${span(row.back_late_s)}`; cell.title = pauseOf(row); } },
  { name: "Why", kind: "wide p2", fill: (cell, row) => { cell.textContent = row.why || (row.state === "paused" ? pauseOf(row) : ""); } },
];

// Draws the rows that `wanted` takes; returns how many.
export function drawPrograms(part, programs, buckets, wanted) {
  part.hidden = !programs.length;
  if (!programs.length) return 0;
  const sum = (key) => buckets.reduce((all, one) => all + (one.figures?.[key] ?? 0), 0);
  part.querySelector("p").textContent = `${count(sum("programs"))} live, ${count(sum("programs_waiting"))} of them wait for a turn`;
  const rows = programs.filter(wanted);
  syncRows(part.querySelector("table"), COLUMNS, rows, (row) => `${row.bucket}/${row.program}`, "No program matches the filter.");
  return rows.length;
}
