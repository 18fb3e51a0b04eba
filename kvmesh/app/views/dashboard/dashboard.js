"use strict";
// State comes over one event stream; everything shown is drawn from it. Names and ids are strangers'
// words: they only ever become text nodes.
import { chooseRange, drawCurves } from "./curves.js";
import { showDetail, refreshDetail } from "./detail.js";
import { drawBuckets, drawReplicas, drawShadows, drawShares, drawWorkers } from "./fleet.js";
import { build, clock, counted } from "./parts.js";
import { drawPolicies } from "./policies.js";
import { drawPrefixes } from "./prefixes.js";
import { drawProblems } from "./problems.js";
import { drawPrograms } from "./programs.js";
import { drawSites } from "./sites.js";
import { drawRequests } from "./requests.js";
import { leaveIfOver, mayOperate, showSession } from "./session.js";
import "./settings.js";
import { drawTiles } from "./tiles.js";
import { forgetSeconds, takeSeconds } from "./traffic.js";
import { drawTuning } from "./tuning.js";
import { refreshWorker, showWorker } from "./workers.js";

const KEPT_S = 610, KEPT_ROWS = 300, SEARCH_MS = 300, SEARCHED = 100, TENANT = "tenant:", STALLED_MS = 6000, GONE_MS = 3000, HIDDEN_MS = 60000;
const OPEN_WARNINGS = 4;
const $ = (id) => document.getElementById(id);
const state = { overview: null, rows: new Map(), found: new Map(), paused: false, words: [], tenants: [], heard: 0, told: 0, anew: false };
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
    if (source.readyState !== EventSource.CLOSED) return;
    retry = setTimeout(connect, 2000);
    leaveIfOver();
  };
}

function take(overview, whole) {
  state.heard = state.told = Date.now();
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
  if (state.overview && silence()) draw();
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

const ofTenant = (tenant, ...texts) => state.tenants.every((one) => (tenant ?? "").toLowerCase().includes(one)) && matches(tenant ?? "", ...texts);

// Figures that nobody renews are the first thing that is wrong.
function silence() {
  const age_s = (Date.now() - state.told) / 1000, gone = source?.readyState !== EventSource.OPEN;
  if (age_s * 1000 <= (gone ? GONE_MS : STALLED_MS) || document.hidden) return null;
  return { kind: "silent", severity: "critical", who: state.overview.name, since_s: age_s, page: "",
    why: `does not answer this page; everything below is of ${clock(state.told / 1000)}` };
}

function render() {
  const { overview } = state, silent = silence();
  $("name").textContent = overview.role === overview.name ? overview.role : `${overview.role} ${overview.name}`;
  const ready = $("ready");
  ready.hidden = false;
  ready.textContent = overview.ready ? "ready" : `not ready: ${overview.reason}`;
  ready.className = `pill ${overview.ready ? "good" : "bad"}`;
  $("about").textContent = `kvmesh ${overview.version} · ${overview.policy || "no replica answers"} · blocks of ${overview.block_size} tokens`;
  renderProblems(overview, silent);
  $("main").classList.toggle("stale", Boolean(silent));
  renderLimits(overview);
  drawTiles(overview);
  drawCurves(overview);
  const rows = drawRequests([...new Map([...state.found, ...state.rows]).values()], ofTenant, state.anew), workers = drawWorkers(overview, matches, draw);
  state.anew = false;
  refreshWorker(overview);
  const replicas = drawReplicas(overview, matches);
  drawBuckets(overview, matches);
  drawShares(overview, matches, ofTenant);
  drawShadows(overview);
  drawSites($("site-part"), overview.sites);
  drawPolicies($("policy-part"), overview.policies ?? []);
  drawTuning($("tuning-part"), overview.tuning ?? []);
  drawPrograms($("program-part"), overview.programs ?? [], overview.buckets, (row) => ofTenant(row.tenant, row.program, row.bucket, row.client, row.state, ...row.workers));
  drawPrefixes(overview, (row) => matches(row.bucket, row.key, row.text ?? "", ...row.workers), draw);
  const found = state.words.length || state.tenants.length ? `${counted(workers, "worker")}, ${counted(rows, "request")}, ${counted(replicas, "replica")} found` : "";
  if ($("found").textContent !== found) $("found").textContent = found;
}

function renderProblems(overview, silent) {
  const problems = [...(silent ? [silent] : []), ...(overview.problems ?? [])];
  const usable = overview.workers.filter((one) => one.usable).length;
  const worst = drawProblems(problems, overview.ready ? `Nothing is wrong: ${usable} of ${counted(overview.workers.length, "worker")} taking requests` : `Not ready: ${overview.reason}`);
  const count = problems.length ? `${worst === "critical" ? "✖" : "⚠"} ${problems.length} · ` : "";
  document.title = `${count}kvmesh · ${overview.name}`;
  // Problems have the warnings among them; a router of an older version has no more than these.
  renderWarnings(overview.problems ? [] : overview.warnings ?? []);
}

// A tenant's key is shown its own requests; what counts everybody's has no figures for it.
function renderLimits(overview) {
  const limited = !overview.traffic && !overview.replicas.length && overview.buckets.length > 0;
  $("limited").hidden = !limited;
  $("main").classList.toggle("limited", limited);
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

// Controls

// What the stream has not told, or no more, is asked of the routers.
let searching = null;
async function search(value) {
  const words = value.split(/\s+/).filter(Boolean), tenant = words.findLast((word) => word.startsWith(TENANT));
  const query = new URLSearchParams({ limit: SEARCHED, find: words.filter((word) => !word.startsWith(TENANT)).join(" ") });
  if (tenant) query.set("tenant", tenant.slice(TENANT.length));
  try {
    const answer = await fetch(`v1/decisions?${query}`);
    if (!answer.ok || $("filter").value !== value) return;
    state.found = new Map((await answer.json()).decisions.map((row) => [row.key, row]));
    state.anew = true;
    draw();
  } catch { /* Nobody answers: the stream says so. */ }
}

$("filter").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  state.tenants = words.filter((word) => word.startsWith(TENANT)).map((word) => word.slice(TENANT.length));
  state.words = words.filter((word) => !word.startsWith(TENANT));
  state.anew = true;
  state.found.clear();
  clearTimeout(searching);
  if (words.length) searching = setTimeout(search, SEARCH_MS, event.target.value);
  if (state.overview) render();
});
$("map").addEventListener("click", (event) => {
  const cell = event.target.closest("button");
  if (!cell) return;
  $("filter").value = $("filter").value === cell.dataset.worker ? "" : cell.dataset.worker;
  $("filter").dispatchEvent(new Event("input"));
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
  chooseRange(range);
  draw();
});
$("problems").addEventListener("unfold", draw);
$("held").addEventListener("click", () => {
  state.anew = true;
  render();
});
$("requests").addEventListener("click", (event) => {
  const key = event.target.closest("tr")?.dataset.key, row = state.rows.get(key) ?? state.found.get(key);
  if (row) showDetail(row.request_id, row.key);
});
$("workers").addEventListener("click", (event) => {
  const row = event.target.closest(".id")?.closest("tr");
  if (row) showWorker(state.overview, row.dataset.key, mayOperate() && !$("main").classList.contains("limited"));
});
const wanted = new URLSearchParams(location.hash.slice(1)).get("request");
if (wanted) showDetail(wanted);
connect();
showSession();
