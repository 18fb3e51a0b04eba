"use strict";
// Why a request went where it went: the dialog behind a row.
import { about, build, clock, count, counted, milliseconds, percent, syncRows } from "./parts.js";

const dialog = document.getElementById("detail");
let shown = null;

const CANDIDATES = [
  { name: "Worker", head: true, fill: (cell, one) => { cell.textContent = one.worker; } },
  { name: "Cost", kind: "num", fill: (cell, one) => { cell.textContent = count(one.score, Math.abs(one.score) < 10 ? 3 : 1); } },
  { name: "Cached blocks", kind: "num", fill: (cell, one) => { cell.textContent = count(one.overlap_blocks); } },
  { name: "Tokens to prefill", kind: "num", fill: (cell, one) => { cell.textContent = count(one.uncached_tokens); } },
  { name: "Prefill queue", kind: "num", fill: (cell, one) => { cell.textContent = count(one.prefill_tokens); } },
  { name: "Wait", kind: "num", fill: (cell, one) => { cell.textContent = milliseconds(one.wait_ms); } },
  { name: "Requests", kind: "num", fill: (cell, one) => { cell.textContent = count(one.active_requests); } },
  { name: "Decode blocks", kind: "num", fill: (cell, one) => { cell.textContent = count(one.decode_blocks); } },
  { name: "Cache in use", kind: "num", fill: (cell, one) => { cell.textContent = one.capacity_blocks ? percent(one.cache_usage) : "–"; } },
  { name: "ms/1k tokens", kind: "num", fill: (cell, one) => { cell.textContent = count(one.ms_per_token * 1000, 1); } },
];

export async function showDetail(requestId, key = null) {
  shown = { requestId, key };
  const close = build("button", { type: "button" }, "Close");
  close.addEventListener("click", () => dialog.close());
  const title = build("h2", { id: "detail-title" }, `Request ${requestId}`);
  dialog.replaceChildren(build("div", { class: "bar-title" }, title, close), build("div", { id: "detail-body", "aria-live": "polite" }, "asking …"));
  if (!dialog.open) dialog.showModal();
  history.replaceState(null, "", `#${new URLSearchParams({ request: requestId })}`);
  await load(requestId);
}

export function refreshDetail(row) {
  if (shown && row.key === shown.key && dialog.open) load(shown.requestId);
}

dialog.addEventListener("close", () => {
  shown = null;
  history.replaceState(null, "", location.pathname + location.search);
});
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

async function load(requestId) {
  let answer, body;
  try {
    answer = await fetch(`v1/decisions/${encodeURIComponent(requestId)}`);
    body = await answer.json();
  } catch (error) {
    body = { error: { message: `no answer: ${error.message}` } };
  }
  if (shown?.requestId !== requestId) return;
  const place = document.getElementById("detail-body");
  if (body.error) place.replaceChildren(build("p", { class: "note bad" }, body.error.message));
  else if (!body.decision) place.replaceChildren(build("p", {}, `Went to ${body.outcome.worker}: ${body.outcome.state}.`), build("p", { class: "note" }, body.note));
  else place.replaceChildren(...describe(body));
}

function leftOut({ named, count: all }) {
  const list = build("ul", { class: "lines warn" });
  for (const one of named) list.append(build("li", {}, build("b", {}, one.worker), `: ${one.why}`));
  if (all > named.length) list.append(build("li", {}, `and ${count(all - named.length)} more`));
  return list;
}

function describe({ outcome, decision, note }) {
  const facts = build("dl", { class: "facts" });
  const fact = (name, value) => facts.append(build("div", {}, build("dt", {}, name), build("dd", {}, value)));
  fact("Went to", decision.worker);
  fact("Decided by", `${decision.bucket} / ${decision.router}`);
  fact("At", clock(outcome.decided_at));
  fact("State", outcome.status ? `${outcome.state}, status ${outcome.status}` : outcome.state);
  fact("Prompt", `${outcome.estimated ? "about " : ""}${counted(outcome.prompt_tokens, "token")}, ${counted(outcome.total_blocks, "block")}`);
  fact("Predicted cached", counted(outcome.overlap_blocks, "block"));
  fact("Engine reported cached", outcome.cached_tokens === null ? "not reported" : `${count(outcome.cached_tokens)} of ${counted(outcome.reported_tokens, "token")}`);
  fact("Round robin would find", outcome.round_robin_blocks === null ? "not known" : `${about(outcome.round_robin_blocks)} blocks`);
  fact("First token after", milliseconds(outcome.ttft_ms));
  fact("Done after", milliseconds(outcome.duration_ms));
  const table = build("table");
  syncRows(table, CANDIDATES, decision.candidates, (one) => one.worker, "No candidate is kept.");
  for (const row of table.tBodies[0].rows) row.classList.toggle("chosen", row.dataset.key === decision.worker);
  const lines = build("ul", { class: "lines" });
  for (const one of decision.candidates) {
    lines.append(build("li", { class: one.worker === decision.worker ? "chosen" : "" }, build("code", {}, one.formula)));
  }
  const parts = [facts, build("p", {}, `Why: ${decision.why}.`)];
  if (outcome.failures.length) parts.push(build("p", { class: "bad" }, `Tried before: ${outcome.failures.join("; ")}`));
  parts.push(build("h3", {}, "Candidates"), build("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Candidates" }, table));
  if (decision.left_out?.count) parts.push(build("h3", {}, "Left out"), leftOut(decision.left_out));
  parts.push(build("h3", {}, decision.maximise ? "Formula: the largest wins" : "Formula: the smallest wins"), build("p", {}, build("code", {}, decision.formula)), lines);
  parts.push(build("p", { class: "fine" }, note));
  return parts;
}
