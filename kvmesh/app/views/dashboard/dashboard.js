"use strict";
// State comes over one event stream; everything shown is drawn from it. Names and ids are strangers'
// words: they only ever become text nodes.
import { Chart } from "./charts.js";
import { showDetail, refreshDetail } from "./detail.js";
import { drawPolicies } from "./policies.js";
import { drawPrefixes } from "./prefixes.js";
import { drawPrograms } from "./programs.js";
import { drawTuning } from "./tuning.js";
import { figures, forgetSeconds, oldestSecond, ratio, sum, takeSeconds } from "./traffic.js";
import { about, build, bytesOfDigest, clock, count, fails, figureColumns, meter, milliseconds, percent, sortable, standingOf, stateOf, syncRows } from "./parts.js";

const KEPT_S = 610, KEPT_ROWS = 300, SHOWN_ROWS = 100, STALLED_MS = 6000, HIDDEN_MS = 60000;
const OPEN_WARNINGS = 4;
const SAMPLED = 0.9; // With a smaller part of the tokens round robin is said to be of a sample.
const HOVERS = matchMedia("(hover: hover)");
const $ = (id) => document.getElementById(id);
const state = { overview: null, rows: new Map(), paused: false, range: 300, words: [], heard: 0, skew: 0 };
let source = null, retry = null, drawing = false, hiding = null;

// The stream

function connect() {
  clearTimeout(retry);
  source?.close();
  state.heard = Date.now();
  source = new EventSource("v1/events");
  source.addEventListener("hello", (event) => {
    forgetSeconds();
    take(JSON.parse(event.data), true);
  });
  source.addEventListener("overview", (event) => take(JSON.parse(event.data), false));
  source.addEventListener("decisions", (event) => {
    state.heard = Date.now();
    takeRows(JSON.parse(event.data));
    draw();
  });
  source.onerror = () => {
    link("reconnecting …", "warn");
    // The browser tries again by itself, except after an answer that is not a stream.
    if (source.readyState === EventSource.CLOSED) retry = setTimeout(connect, 2000);
  };
}

function take(overview, whole) {
  state.heard = Date.now();
  state.skew = Date.now() / 1000 - overview.now;
  state.overview = overview;
  takeSeconds(overview.seconds, overview.now - KEPT_S);
  if (whole || overview.decisions.length) state.rows.clear();
  takeRows(overview.decisions);
  link(state.paused ? "paused" : "live", state.paused ? "warn" : "good");
  draw();
}

function takeRows(rows) {
  for (const row of rows) {
    state.rows.set(row.key, row);
    refreshDetail(row);
  }
  if (state.rows.size > KEPT_ROWS) {
    const oldest = [...state.rows.values()].sort((a, b) => a.decided_at - b.decided_at);
    for (const row of oldest.slice(0, state.rows.size - KEPT_ROWS)) state.rows.delete(row.key);
  }
}

function link(text, kind) {
  const pill = $("link");
  if (pill.textContent !== text) pill.textContent = text;
  pill.className = `pill ${kind}`;
}

setInterval(() => {
  if (source && source.readyState === EventSource.OPEN && Date.now() - state.heard > STALLED_MS) {
    link("stalled, connecting anew …", "warn");
    connect();
  }
}, 1000);

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) {
    hiding = setTimeout(() => { source?.close(); source = null; }, HIDDEN_MS);
  } else if (!source) connect();
});

// Drawing

function draw() {
  if (drawing || state.paused || !state.overview) return;
  drawing = true;
  requestAnimationFrame(() => { drawing = false; if (!state.paused) render(); });
}

function matches(...texts) {
  const text = texts.join(" ").toLowerCase();
  return state.words.every((word) => text.includes(word));
}

function render() {
  const { overview } = state;
  $("name").textContent = overview.role === overview.name ? overview.role : `${overview.role} ${overview.name}`;
  document.title = `kvmesh · ${overview.name}`;
  const ready = $("ready");
  ready.hidden = false;
  ready.textContent = overview.ready ? "ready" : `not ready: ${overview.reason}`;
  ready.className = `pill ${overview.ready ? "good" : "bad"}`;
  $("about").textContent = `kvmesh ${overview.version} · ${overview.policy || "no replica answers"} · blocks of ${overview.block_size} tokens`;
  renderWarnings(overview.warnings ?? []);
  renderTiles(overview);
  renderCharts(overview);
  const shown = [renderRequests(), renderWorkers(overview), renderReplicas(overview), renderBuckets(overview)];
  renderShadows(overview);
  drawPolicies($("policy-part"), overview.policies ?? []);
  drawTuning($("tuning-part"), overview.tuning ?? []);
  drawPrograms($("program-part"), overview.programs ?? [], overview.buckets, (row) => matches(row.program, row.bucket, row.client, row.state, row.tenant, ...row.workers));
  drawPrefixes($("prefixes"), overview.prefixes, overview.block_size, (row) => matches(row.bucket, row.key, ...row.workers));
  const found = state.words.length ? `${shown[1]} workers, ${shown[0]} requests, ${shown[2]} replicas found` : "";
  if ($("found").textContent !== found) $("found").textContent = found;
}

let warned = "";
function renderWarnings(lines) {
  const told = lines.join("\n"), box = $("warnings").firstElementChild;
  if (told === warned) return;
  if (!warned) box.open = lines.length <= OPEN_WARNINGS;
  warned = told;
  box.hidden = !lines.length;
  box.querySelector("summary").textContent = lines.length === 1 ? "1 warning" : `${lines.length} warnings`;
  box.querySelector("ul").replaceChildren(...lines.map((line) => build("li", {}, line)));
}

const tiles = new Map();
function tile(key, name, value, more, kind = "") {
  if (!tiles.has(key)) tiles.set(key, $("tiles").appendChild(build("div", {}, build("dt"), build("dd"), build("dd"))));
  const [title, figure, words] = tiles.get(key).children;
  title.textContent = name;
  figure.textContent = value;
  figure.className = kind;
  words.textContent = more;
}

function renderTiles(overview) {
  const now = overview.now, minute = figures(sum(now - 60, now + 1)), last = sum(now - 10, now);
  const { workers, replicas, counters } = overview;
  const usable = workers.filter((one) => one.usable).length, ready = replicas.filter((one) => one.ready).length;
  const guessed = workers.filter((one) => one.trust === "approx").length;
  const doubtful = workers.filter((one) => one.trust === "catching-up" || one.trust === "degraded").length;
  const failing = workers.filter(fails).length;
  const waiting = workers.reduce((all, one) => all + one.prefill_tokens, 0);
  const queued = replicas.reduce((all, one) => all + one.queued, 0);
  const best = minute.cached ?? minute.predicted;
  const sample = minute.robin !== null && minute.shadowed < SAMPLED ? `, of a sample of ${percent(minute.shadowed)}` : "";
  tile("rate", "Requests a second", count((last.requests ?? 0) / 10, 1),
    `${count(counters.requests ?? 0)} so far, ${count(["cut", "unserved", "refused", "crashed", "errors_passed_on"].reduce((all, name) => all + (counters[name] ?? 0), 0))} failed`,
    (last.failed ?? 0) + (last.refused ?? 0) ? "bad" : "");
  tile("cached", minute.cached === null ? "Prompt cached (predicted)" : "Prompt cached", percent(best),
    minute.robin === null ? "round robin: –" : `round robin: ${percent(minute.robin)}${best !== null && minute.robin > 0 ? ` (×${(best / minute.robin).toFixed(1)})` : ""}${sample}`);
  tile("ttft", "Time to first token", milliseconds(minute.p50),
    `p90 ${milliseconds(minute.p90)}; round robin p50 ${milliseconds(minute.robin50)}`);
  tile("flight", "In flight", count(workers.reduce((all, one) => all + one.active_requests, 0)), `${count(waiting)} prompt tokens to prefill${queued ? `, ${count(queued)} requests held` : ""}`, queued ? "warn" : "");
  tile("workers", "Workers usable", `${usable} of ${workers.length}`, failing ? `${failing} failing` : doubtful ? `${doubtful} in doubt` : guessed ? `${guessed} by guesses, without KV events` : "all trusted",
    usable < workers.length || failing ? (usable ? "warn" : "bad") : "");
  const disagree = replicas.some((one) => one.agreement === "disagrees"), agree = replicas.some((one) => one.agreement === "agrees");
  tile("replicas", "Replicas ready", `${ready} of ${replicas.length}`,
    disagree ? "indexes disagree" : agree ? "indexes agree" : "nothing to compare", disagree ? "bad" : ready < replicas.length ? "warn" : "");
}

const charts = {};
function renderCharts(overview) {
  if (!charts.hits) {
    const where = $("charts");
    charts.hits = new Chart(where, { title: "Share of prompt tokens cached", top: 1, format: (v) => percent(v), series: [
      { key: "cached", label: "engines report", kind: "ours" }, { key: "predicted", label: "predicted", kind: "guess" },
      { key: "robin", label: "round robin", kind: "robin" }] });
    charts.ttft = new Chart(where, { title: "Time to first token", format: (v) => milliseconds(v), series: [
      { key: "p50", label: "p50", kind: "ours" }, { key: "p90", label: "p90", kind: "tail" },
      { key: "robin50", label: "round robin p50", kind: "robin" }] });
    charts.rate = new Chart(where, { title: "Requests a second", format: (v) => count(v, v < 10 ? 1 : 0), series: [
      { key: "rate", label: "decided", kind: "ours" }, { key: "failed", label: "failed or refused", kind: "wrong" }] });
  }
  // Points are three steps wide, so that a few requests make a line and not a comb.
  const step = Math.max(1, Math.round(state.range / 60)), end = Math.floor(overview.now / step) * step, points = [];
  for (let t = end - state.range; t <= end; t += step) {
    const wide = sum(t - 3 * step, t), own = sum(t - step, t), known = t > oldestSecond();
    points.push({ t, ...figures(wide), rate: known ? (own.requests ?? 0) / step : null,
      failed: known ? ((own.failed ?? 0) + (own.refused ?? 0)) / step : null });
  }
  for (const chart of Object.values(charts)) chart.draw(end - state.range, end, points);
  const minute = figures(sum(overview.now - 60, overview.now + 1));
  charts.hits.describe(`last minute ${percent(minute.cached ?? minute.predicted)}, round robin ${percent(minute.robin)}`);
  charts.ttft.describe(`last minute median ${milliseconds(minute.p50)}, 90th percentile ${milliseconds(minute.p90)}, round robin median ${milliseconds(minute.robin50)}`);
  charts.rate.describe(`${count((sum(overview.now - 10, overview.now).requests ?? 0) / 10, 1)} now`);
}

const REQUESTS = [
  { name: "Time", kind: "p2", fill: (cell, row) => { cell.textContent = clock(row.decided_at); } },
  { name: "Request", head: true, fill: (cell, row) => {
    const button = cell.firstChild ?? cell.appendChild(build("button", { type: "button", class: "id" }));
    if (button.title === row.request_id) return;
    button.title = row.request_id;
    const cut = Math.max(0, row.request_id.length - 7);
    button.replaceChildren(build("span", {}, row.request_id.slice(0, cut)), build("span", {}, row.request_id.slice(cut)));
  } },
  { name: "Bucket", kind: "p3", fill: (cell, row) => { cell.textContent = row.bucket; } },
  { name: "Worker", fill: (cell, row) => { cell.textContent = row.worker; } },
  { name: "Cached, blocks", fill: (cell, row) => meter(cell, ratio(row.overlap_blocks, row.total_blocks), `${row.overlap_blocks}/${row.total_blocks}`,
    { at: row.round_robin_blocks === null ? null : ratio(row.round_robin_blocks, row.total_blocks) }) },
  { name: "Round robin", kind: "num p3", fill: (cell, row) => { cell.textContent = about(row.round_robin_blocks); } },
  { name: "Why there", kind: "wide p2", fill: (cell, row) => { cell.textContent = row.why; } },
  { name: "First token", kind: "num p2", fill: (cell, row) => { cell.textContent = milliseconds(row.ttft_ms); } },
  { name: "State", fill: (cell, row) => { const [word, kind] = stateOf(row); cell.textContent = word; cell.className = `state ${kind}`; } },
];

function renderRequests() {
  const table = $("requests"), held = (HOVERS.matches && table.matches(":hover")) || table.querySelector(":focus-visible");
  const rows = [...state.rows.values()]
    .filter((row) => matches(row.request_id, row.worker, row.bucket, row.router, row.policy, stateOf(row)[0]))
    .sort((a, b) => b.decided_at - a.decided_at).slice(0, SHOWN_ROWS);
  // What is pointed at stays where it is: new rows wait outside.
  const present = table.tBodies[0] && new Set([...table.tBodies[0].rows].map((row) => row.dataset.key));
  const holds = held && present?.size && !state.refiltered;
  const list = holds ? rows.filter((row) => present.has(row.key)) : rows;
  state.refiltered = false;
  const late = rows.length - list.length;
  $("held").hidden = !late;
  $("held").textContent = late ? `Show ${late} newer` : "";
  syncRows(table, REQUESTS, list, (row) => row.key, "No request yet. Send one to /v1/chat/completions and it appears here at once.");
  return rows.length;
}

const WORKERS = [
  { name: "Worker", head: true, value: (row) => row.worker, fill: (cell, row) => { cell.textContent = row.worker; cell.title = `${row.url} ${row.models.join(", ")}, sidecar ${row.version || "of a version not told"}`; } },
  { name: "Bucket", kind: "p2", value: (row) => row.bucket, fill: (cell, row) => { cell.textContent = row.bucket; } },
  { name: "State", value: (row) => (row.usable ? standingOf(row)[0] : ` ${row.why_not}`), fill: (cell, row) => {
    const [words, kind] = standingOf(row);
    if (cell.textContent !== words) cell.textContent = words;
    cell.className = `state ${kind}${words.length > 24 ? " long" : ""}`;
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
const workerOrder = sortable($("workers"), WORKERS, draw);

function renderWorkers(overview) {
  const rows = workerOrder(overview.workers.filter((row) => matches(row.worker, row.bucket, row.trust, row.why_not, row.stage, row.url, ...row.models)));
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

function renderReplicas(overview) {
  const rows = overview.replicas.filter((row) => matches(row.replica, row.role || "", row.bucket, row.url, row.ready ? "ready" : row.reason, row.draining ? "draining" : "", row.agreement));
  syncRows($("replicas"), REPLICAS, rows, (row) => `${row.bucket}/${row.replica}`, "No replica.");
  return rows.length;
}

const BUCKETS = [
  { name: "Bucket", head: true, fill: (cell, row) => { cell.textContent = row.bucket; } },
  { name: "Replicas", kind: "num", fill: (cell, row) => { cell.textContent = `${row.ready_replicas}/${row.replicas}`; cell.classList.toggle("bad", !row.ready_replicas); } },
  { name: "Workers", kind: "num", fill: (cell, row) => { cell.textContent = `${row.usable_workers}/${row.workers}`; cell.classList.toggle("bad", !row.usable_workers); } },
  ...figureColumns("buckets"),
  { name: "Cache in use", fill: (cell, row) => meter(cell, ratio(row.used_blocks, row.total_blocks), row.total_blocks ? percent(row.used_blocks / row.total_blocks) : "not told") },
];

function renderBuckets(overview) {
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

function renderShadows(overview) {
  $("shadow-part").hidden = !overview.shadows.length;
  if (overview.shadows.length) syncRows($("shadows"), SHADOWS, overview.shadows, (row) => row.policy, "");
}

// Controls

$("filter").addEventListener("input", (event) => {
  state.words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  state.refiltered = true;
  if (state.overview) render();
});
$("tools").addEventListener("submit", (event) => event.preventDefault());
$("pause").addEventListener("click", (event) => {
  state.paused = !state.paused;
  event.target.setAttribute("aria-pressed", String(state.paused));
  event.target.textContent = state.paused ? "Go on" : "Pause";
  link(state.paused ? "paused" : "live", state.paused ? "warn" : "good");
  draw();
});
$("ranges").addEventListener("click", (event) => {
  const range = Number(event.target.dataset.range);
  if (!range) return;
  state.range = range;
  for (const button of $("ranges").children) button.setAttribute("aria-pressed", String(button === event.target));
  draw();
});
$("held").addEventListener("click", () => {
  state.refiltered = true;
  render();
});
$("requests").addEventListener("click", (event) => {
  const row = state.rows.get(event.target.closest("tr")?.dataset.key);
  if (row) showDetail(row.request_id, row.key);
});
const wanted = new URLSearchParams(location.hash.slice(1)).get("request");
if (wanted) showDetail(wanted);
connect();
