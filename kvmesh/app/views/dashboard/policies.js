"use strict";
// Policies changed while routers run: both arms of one on trial, and what was decided and why.
import { ratio } from "./traffic.js";
import { clock, count, milliseconds, percent, syncRows } from "./parts.js";

const MOST_STEPS = 24;
const PHASES = { running: ["on trial", "warn"], done: ["kept", "good"], returned: ["returned from", "bad"] };

const times = (one) => (one ? `${milliseconds(one.mean_ms)} (p50 ≤ ${milliseconds(one.p50_ms)}, p90 ≤ ${milliseconds(one.p90_ms)})` : "–");

const ARMS = [
  { name: "Arm", head: true, fill: (cell, row) => { cell.textContent = row.arm; } },
  { name: "Bucket", kind: "p2", fill: (cell, row) => { cell.textContent = row.bucket; } },
  { name: "Policy", kind: "wide", fill: (cell, row) => { cell.textContent = row.policy; } },
  { name: "Share", kind: "num", fill: (cell, row) => { cell.textContent = percent(row.share); } },
  { name: "Requests", kind: "num", fill: (cell, row) => { cell.textContent = count(row.requests); } },
  { name: "Failed", kind: "num", fill: (cell, row) => { cell.textContent = row.errors ? percent(ratio(row.errors, row.requests)) : "–"; cell.classList.toggle("bad", row.errors > 0); } },
  { name: "First token", kind: "num", fill: (cell, row) => { cell.textContent = times(row.ttft); } },
  { name: "Time per token", kind: "num p2", fill: (cell, row) => { cell.textContent = times(row.tpot); } },
];

const STEPS = [
  { name: "Time", head: true, fill: (cell, row) => { cell.textContent = clock(row.at); } },
  { name: "Bucket", kind: "p2", fill: (cell, row) => { cell.textContent = row.bucket; } },
  { name: "Policy", kind: "wide", fill: (cell, row) => { cell.textContent = row.policy; } },
  { name: "State", fill: (cell, row) => { const [word, kind] = PHASES[row.phase] ?? [row.phase, "soft"]; cell.textContent = word; cell.className = `state ${kind}`; } },
  { name: "Share", kind: "num", fill: (cell, row) => { cell.textContent = percent(row.share); } },
  { name: "By", kind: "p2", fill: (cell, row) => { cell.textContent = row.by; } },
  { name: "Why", kind: "wide", fill: (cell, row) => { cell.textContent = row.reason; } },
];

// A step came to the change's phase if it is the last one; those before it were on trial.
function stepsOf({ bucket, history }) {
  return history.flatMap((change) => change.steps.map((step, number) => ({
    ...step, bucket, policy: change.policy, key: `${bucket}/${change.at}/${change.by}/${number}`,
    phase: number + 1 === change.steps.length ? change.phase : "running" })));
}

export function drawPolicies(part, policies) {
  part.hidden = !policies.length;
  if (!policies.length) return;
  const [arms, steps] = part.querySelectorAll("table");
  const rows = policies.flatMap(({ bucket, share, arms: both }) => both.map((arm) => ({ ...arm, bucket, share: arm.arm === "candidate" ? share : 1 - share })));
  const said = policies.map((one) => (one.refused ? `${one.bucket}: ${one.refused}` : one.verdict ? `${one.bucket}: window ${one.window} (${one.turn}), ${one.verdict}` : ""));
  part.querySelector("p").textContent = said.filter(Boolean).join("; ");
  arms.hidden = !rows.length;
  if (rows.length) syncRows(arms, ARMS, rows, (row) => `${row.bucket}/${row.arm}`, "");
  const list = policies.flatMap(stepsOf).sort((a, b) => b.at - a.at).slice(0, MOST_STEPS);
  syncRows(steps, STEPS, list, (row) => row.key, "No change.");
}
