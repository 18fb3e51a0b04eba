"use strict";
// Tables of what there is: workers, replicas, buckets; models and tenants; shadow policies.
import { build, bytesOfDigest, count, counted, fails, figureColumns, meter, milliseconds, nameButton, percent, sortable, standingOf, syncRows } from "./parts.js";
import { ratio } from "./traffic.js";

const MAPPED = 16;
const COLLATOR = new Intl.Collator("en", { numeric: true });
const $ = (id) => document.getElementById(id);

const WORKERS = [
  { name: "Worker", head: true, value: (row) => row.worker, fill: (cell, row) => {
    nameButton(cell, row.worker, 8, { "aria-haspopup": "dialog" });
    cell.title = `${row.url} ${row.models.join(", ")}, sidecar ${row.version || "of a version not told"}`; } },
  { name: "Bucket", kind: "p2", value: (row) => row.bucket, fill: (cell, row) => { cell.textContent = row.bucket; } },
  { name: "State", value: (row) => (row.usable && !row.hung ? standingOf(row)[0] : ` ${row.why_not}`), fill: (cell, row) => {
    const [words, kind] = standingOf(row);
    if (cell.textContent !== words) cell.textContent = words;
    cell.className = `state ${kind}${words.length > 16 ? " long" : ""}`;
    if (cell.title !== row.why_not) cell.title = row.why_not;
  } },
  { name: "Failed", first: -1, kind: "num p2", value: (row) => row.failures, fill: (cell, row) => {
    cell.textContent = row.failures ? `${row.failures} of ${row.attempts}` : "–";
    cell.title = row.failures ? "of its last requests" : "";
    cell.classList.toggle("bad", row.failures > 0);
  } },
  { name: "Cache in use", first: -1, value: (row) => ratio(row.used_blocks, row.total_blocks) ?? -1, fill: (cell, row) => {
    const share = ratio(row.used_blocks, row.total_blocks);
    meter(cell, share, share === null ? "not told" : percent(share), { high: share > 0.95, pale: ratio(row.cached_blocks, row.total_blocks),
      title: `${count(row.used_blocks)} of ${count(row.total_blocks)} blocks hold running requests, ${count(row.cached_blocks)} are known to hold prefixes` });
  } },
  ...figureColumns("workers", {
    active_requests: { kind: "", fill: (cell, row, all) => meter(cell, ratio(row.active_requests, Math.max(4, ...all.map((one) => one.active_requests))), count(row.active_requests), { title: `booked here; the engine runs ${row.running_requests}, ${row.waiting_requests} wait` }) },
  }),
];
let workerOrder = null;

// Large fleets as a map first: a cell a worker, coloured as it stands, filled as its cache is in use.
function drawMap(workers) {
  const map = $("map");
  map.hidden = workers.length < MAPPED;
  if (map.hidden) return;
  const cells = new Map([...map.children].map((one) => [one.dataset.key, one]));
  let before = map.firstChild;
  for (const row of workers) {
    const key = `${row.bucket}/${row.worker}`, [words, kind] = standingOf(row), share = ratio(row.used_blocks, row.total_blocks);
    let cell = cells.get(key);
    cells.delete(key);
    if (!cell) {
      cell = build("button", { type: "button" });
      cell.dataset.key = key;
    }
    cell.dataset.worker = row.worker;
    const title = `${row.worker} (${row.bucket}): ${words}${share === null ? "" : `, ${percent(share)} of its cache in use`}, ${counted(row.active_requests, "request")}`;
    if (cell.title !== title) { cell.title = title; cell.setAttribute("aria-label", title); }
    if (cell.className !== kind) cell.className = kind;
    cell.style.setProperty("--share", Math.min(1, share ?? 0));
    if (cell === before) before = before.nextSibling;
    else map.insertBefore(cell, before);
  }
  for (const cell of cells.values()) cell.remove();
}

// Draws the workers that the filter takes; `redraw` is called when they are sorted otherwise. Returns how many.
export function drawWorkers(overview, matches, redraw) {
  workerOrder ??= sortable($("workers"), WORKERS, redraw);
  const rows = workerOrder(overview.workers.filter((row) => matches(row.worker, row.bucket, row.trust, row.why_not, row.stage, row.hung ? "hung" : "", row.url, ...row.models)));
  drawMap([...overview.workers].sort((a, b) => COLLATOR.compare(a.bucket, b.bucket) || COLLATOR.compare(a.worker, b.worker)));
  $("n-workers").textContent = rows.length === overview.workers.length ? `${rows.length}` : `${rows.length} of ${overview.workers.length}`;
  syncRows($("workers"), WORKERS, rows, (row) => `${row.bucket}/${row.worker}`, overview.workers.length ? "No worker matches the filter." : "No worker is known yet.");
  return rows.length;
}

const AGREEMENT = { agrees: ["✓ agrees", "good"], disagrees: ["✗ disagrees", "bad"], unchecked: ["unchecked", "soft"] };
const REPLICAS = [
  { name: "Replica", head: true, fill: (cell, row) => { cell.textContent = row.role === "picker" ? `${row.replica} (picker)` : row.replica; cell.title = `${row.url}, version ${row.version || "not told"}, reads ${row.formats || "formats not told"}`; } },
  { name: "Bucket", kind: "p2", fill: (cell, row) => { cell.textContent = row.bucket; } },
  { name: "State", fill: (cell, row) => {
    cell.textContent = row.draining ? "draining" : row.ready ? "ready" : row.reason;
    cell.className = `state ${row.draining ? "warn" : row.ready ? "good" : "bad"}`;
  } },
  { name: "Sequence", kind: "num p2", fill: (cell, row) => { cell.textContent = row.kv_events ? count(row.applied_sequence) : "–"; } },
  { name: "Behind", kind: "num", fill: (cell, row) => { cell.textContent = row.kv_events ? count(row.lag) : "–"; cell.classList.toggle("warn", row.lag > 1000); } },
  { name: "Index", fill: (cell, row) => {
    const [word, kind] = AGREEMENT[row.agreement];
    cell.textContent = row.kv_events ? `${bytesOfDigest(row.digest)} ${word}` : "by own decisions";
    cell.className = row.kv_events ? kind : "soft";
    cell.title = row.kv_events ? `digest ${row.digest}; ${count(row.digests_compared)} compared with peers, ${row.mismatches} differed` : "";
  } },
  ...figureColumns("replicas"),
];

export function drawReplicas(overview, matches) {
  const rows = overview.replicas.filter((row) => matches(row.replica, row.role || "", row.bucket, row.url, row.ready ? "ready" : row.reason, row.draining ? "draining" : "", row.agreement));
  syncRows($("replicas"), REPLICAS, rows, (row) => `${row.bucket}/${row.replica}`, "No replica.");
  return rows.length;
}

const BUCKETS = [
  { name: "Bucket", head: true, fill: (cell, row) => { cell.textContent = row.bucket; } },
  { name: "Replicas", kind: "num", fill: (cell, row) => { cell.textContent = `${row.ready_replicas}/${row.replicas}`; cell.classList.toggle("bad", !row.ready_replicas); } },
  { name: "Workers", kind: "num", fill: (cell, row) => { cell.textContent = `${row.usable_workers}/${row.workers}`; cell.classList.toggle("bad", !row.usable_workers); } },
  ...figureColumns("buckets"),
  { name: "Cache in use", kind: "num", fill: (cell, row) => { cell.textContent = row.total_blocks ? percent(row.used_blocks / row.total_blocks) : "not told"; } },
];

export function drawBuckets(overview, matches) {
  const rows = overview.buckets.filter((row) => matches(row.bucket));
  syncRows($("buckets"), BUCKETS, rows, (row) => row.bucket, "No bucket.");
  return rows.length;
}

const SHADOWS = [
  { name: "Policy", head: true, fill: (cell, row) => { cell.textContent = row.policy; } },
  { name: "Decisions", kind: "num", fill: (cell, row) => { cell.textContent = count(row.decisions); } },
  { name: "Same worker", kind: "num", fill: (cell, row) => { cell.textContent = percent(ratio(row.agreed, row.decisions)); } },
  { name: "Prompt cached", kind: "num", fill: (cell, row) => { cell.textContent = `${percent(ratio(row.would_be_blocks, row.request_blocks))} for ${percent(ratio(row.achieved_blocks, row.request_blocks))}`; } },
  { name: "Prefill queue", kind: "num", fill: (cell, row) => { cell.textContent = `${milliseconds(ratio(row.would_be_wait_ms, row.decisions))} for ${milliseconds(ratio(row.achieved_wait_ms, row.decisions))}`; } },
  { name: "Requests there", kind: "num p2", fill: (cell, row) => { cell.textContent = `${count(ratio(row.would_be_requests, row.decisions), 1)} for ${count(ratio(row.achieved_requests, row.decisions), 1)}`; } },
];

export function drawShadows(overview) {
  $("shadow-part").hidden = !overview.shadows.length;
  if (overview.shadows.length) syncRows($("shadows"), SHADOWS, overview.shadows, (row) => row.policy, "");
}

// Models and tenants have the same figures.
const sharesOf = (name, key, none) => [
  { name, head: true, fill: (cell, row) => { const words = row[key] || none; cell.textContent = words; cell.title = words; } },
  { name: "Requests/s", kind: "num", fill: (cell, row) => { cell.textContent = count(row.requests_per_s, 1); } },
  { name: "Errors/s", kind: "num", fill: (cell, row) => { cell.textContent = row.errors_per_s ? count(row.errors_per_s, 2) : "–"; cell.classList.toggle("bad", row.errors_per_s > 0); } },
  { name: "First token", kind: "num", fill: (cell, row) => { cell.textContent = milliseconds(row.ttft_ms); } },
  { name: "Tokens/s", kind: "num", fill: (cell, row) => { cell.textContent = count(row.tokens_per_s); } },
];
const MODELS = sharesOf("Model", "model", "not named");
const TENANTS = sharesOf("Tenant", "tenant", "no tenant named");

// Draws who asks for what: nothing where it is not told, no tenants where none is named.
export function drawShares({ models = [], tenants = [] }, matches, ofTenant) {
  const named = tenants.some((one) => one.tenant);
  $("model-part").hidden = !models.length;
  $("tenant-part").hidden = !named;
  $("share-parts").hidden = !models.length && !named;
  $("share-parts").classList.toggle("single", !models.length || !named);
  if (models.length) syncRows($("models"), MODELS, models.filter((row) => matches(row.model)), (row) => row.model, "No model matches the filter.");
  if (named) syncRows($("tenants"), TENANTS, tenants.filter((row) => ofTenant(row.tenant)), (row) => row.tenant, "No tenant matches the filter.");
}
