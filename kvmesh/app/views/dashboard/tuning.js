"use strict";
// What routers with --auto-tune did to the weights of their formula, and why.
import { clock, syncRows } from "./parts.js";

const MOST_STEPS = 12;

const STEPS = [
  { name: "Time", head: true, fill: (cell, row) => { cell.textContent = row.at ? clock(row.at) : "now"; } },
  { name: "Replica", kind: "p2", fill: (cell, row) => { cell.textContent = row.router; } },
  { name: "Step", fill: (cell, row) => { cell.textContent = row.kind; cell.className = `state ${row.kind === "proposes" ? "good" : row.kind === "dropped" ? "bad" : "soft"}`; } },
  { name: "Why", kind: "wide", fill: (cell, row) => { cell.textContent = row.text; } },
];

function stepsOf({ router, tuner }) {
  return [
    { key: `${router} now`, router, kind: tuner.stage, at: 0, text: tuner.words },
    ...tuner.steps.toReversed().slice(0, MOST_STEPS).map((step) => ({ key: `${router} ${step.number}`, router, kind: step.kind, at: step.at_s, text: step.text })),
  ];
}

export function drawTuning(part, tuning) {
  part.hidden = !tuning.length;
  if (tuning.length) syncRows(part.querySelector("table"), STEPS, tuning.flatMap(stepsOf), (row) => row.key, "");
}
