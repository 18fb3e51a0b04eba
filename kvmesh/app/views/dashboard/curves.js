"use strict";
// Curves: of the last minutes from the stream's seconds, of hours from /v1/history.
import { Chart } from "./charts.js";
import { count, milliseconds, percent } from "./parts.js";
import { figures, oldestSecond, sum } from "./traffic.js";

const RECENT_S = 600; // What the stream has second by second.
const ASK_MS = 10000;
const place = document.getElementById("charts");
const more = document.getElementById("more-charts");
const buttons = document.getElementById("ranges");
const rate = (value) => count(value, value < 10 ? 1 : 0);
let range = 300, past = null, asked = 0, told = true;

// `of` names the series of /v1/history. A `live` chart is drawn second by second while the stream has
// all of its time; the others always from there. A series without `of` has no longer past.
const CHARTS = [
  { title: "Share of prompt tokens cached", top: 1, format: (v) => percent(v), live: true, series: [
    { key: "cached", of: "cached_share", label: "engines report", kind: "ours" },
    { key: "predicted", label: "predicted", kind: "guess" },
    { key: "robin", label: "round robin", kind: "robin" }] },
  { title: "Time to first token", format: (v) => milliseconds(v), live: true, series: [
    { key: "p50", label: "p50", kind: "ours" },
    { key: "mean", of: "ttft_ms", label: "mean", kind: "ours" },
    { key: "p90", label: "p90", kind: "tail" },
    { key: "robin50", label: "round robin p50", kind: "robin" }] },
  { title: "Requests a second", format: rate, live: true, series: [
    { key: "rate", of: "requests_per_s", label: "decided", kind: "ours" },
    { key: "failed", label: "failed or refused", kind: "wrong" }] },
  { title: "Errors a second", format: rate, series: [
    { key: "5xx", of: "errors_per_s.5xx", label: "5xx", kind: "wrong" },
    { key: "cut", of: "errors_per_s.cut", label: "cut", kind: "torn" },
    { key: "429", of: "errors_per_s.429", label: "429", kind: "robin" },
    { key: "4xx", of: "errors_per_s.4xx", label: "other 4xx", kind: "tail" },
    { key: "499", of: "errors_per_s.499", label: "clients left", kind: "guess" }] },
  { title: "Tokens written a second", format: (v) => count(v), series: [{ key: "out", of: "output_tokens_per_s", label: "of answers", kind: "ours" }] },
  { title: "Time per token", format: (v) => milliseconds(v), series: [{ key: "tpot", of: "tpot_ms", label: "mean", kind: "ours" }] },
  { title: "Prompt tokens a second", more: true, format: (v) => count(v), series: [{ key: "in", of: "prompt_tokens_per_s", label: "of prompts", kind: "ours" }] },
  { title: "Waiting", more: true, format: rate, series: [
    { key: "queued", of: "queued", label: "in engines", kind: "ours" },
    { key: "held", of: "held", label: "held by routers", kind: "wrong" },
    { key: "programs", of: "programs_waiting", label: "programs", kind: "robin" }] },
  { title: "Workers and requests in flight", more: true, format: rate, series: [
    { key: "active", of: "active_requests", label: "in flight", kind: "ours" },
    { key: "usable", of: "usable_workers", label: "usable workers", kind: "guess" },
    { key: "workers", of: "workers", label: "workers", kind: "robin" }] },
];
const charts = [];

function recent(end, step) {
  const points = [];
  for (let t = end - range; t <= end; t += step) {
    // Points are three steps wide, so that a few requests make a line and not a comb.
    const own = sum(t - step, t), known = t > oldestSecond();
    points.push({ t, ...figures(sum(t - 3 * step, t)), rate: known ? (own.requests ?? 0) / step : null,
      failed: known ? ((own.failed ?? 0) + (own.refused ?? 0)) / step : null });
  }
  return points;
}

function readPast(answer, now) {
  const names = Object.keys(answer.series), lengths = names.map((name) => answer.series[name].length);
  const points = [];
  for (let at = 0; at < Math.max(0, ...lengths); at++) {
    const point = { t: now - answer.start_s_ago + at * answer.step_s };
    for (const name of names) point[name] = answer.series[name][at] ?? null;
    points.push(point);
  }
  return { points, span: range };
}

// Asks for the past when what is known of it is old; `redraw` is called when it came.
async function ask(now, redraw) {
  if (!told || Date.now() - asked < ASK_MS) return;
  asked = Date.now();
  const wanted = range;
  let answer;
  try {
    answer = await fetch(`v1/history?span_s=${Math.max(RECENT_S, wanted)}`);
    if (answer.status === 404) forgo();
    if (!answer.ok) return;
    const found = await answer.json();
    if (wanted !== range) return;
    past = readPast(found, now);
  } catch {
    return; // The stream says when nobody answers; the curve of before stays.
  }
  redraw();
}

// An older router keeps no past: then there is nothing to choose beyond what the stream has.
function forgo() {
  if (!told) return;
  told = false;
  past = null;
  for (const button of buttons.children) button.hidden = Number(button.dataset.range) > RECENT_S;
  if (range > RECENT_S) chooseRange(RECENT_S);
}

export function drawCurves(overview, redraw) {
  if (!charts.length) charts.push(...CHARTS.map((one) => new Chart(one.more ? more.lastElementChild : place, one)));
  if (!overview.traffic) forgo();
  ask(overview.now, redraw);
  const long = range > RECENT_S, step = Math.max(1, Math.round(range / 60));
  const end = long ? overview.now : Math.floor(overview.now / step) * step, live = long ? [] : recent(end, step);
  const points = (past?.points ?? []).filter((one) => one.t >= end - range && one.t <= end);
  more.hidden = !told;
  CHARTS.forEach((one, number) => {
    const chart = charts[number];
    chart.draw(end - range, end, one.live && !long ? live : points.map((point) => renamed(point, one.series)));
    chart.figure.hidden = !one.live && !told;
    if (!one.live) chart.describe(chart.words());
  });
  const minute = figures(sum(overview.now - 60, overview.now + 1));
  charts[0].describe(`last minute ${percent(minute.cached ?? minute.predicted)}, round robin ${percent(minute.robin)}`);
  charts[1].describe(`last minute median ${milliseconds(minute.p50)}, 90th percentile ${milliseconds(minute.p90)}, round robin median ${milliseconds(minute.robin50)}`);
  charts[2].describe(`${count((sum(overview.now - 10, overview.now).requests ?? 0) / 10, 1)} now`);
}

const renamed = (point, series) => ({ t: point.t, ...Object.fromEntries(series.map((one) => [one.key, point[one.of] ?? null])) });

export function chooseRange(seconds) {
  if (range > RECENT_S || seconds > RECENT_S) { past = seconds === range ? past : null; asked = 0; }
  range = seconds;
  for (const button of buttons.children) button.setAttribute("aria-pressed", String(Number(button.dataset.range) === seconds));
}
