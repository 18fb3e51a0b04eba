"use strict";
// Curves of the last minutes, from the stream's seconds.
import { Chart } from "./charts.js";
import { build, clock, count, milliseconds, percent } from "./parts.js";
import { figures, oldestSecond, sum } from "./traffic.js";

const place = document.getElementById("charts");
const buttons = document.getElementById("ranges");
let range = 300;

const CHARTS = [
  { title: "Share of prompt tokens cached", top: 1, format: (v) => percent(v), series: [
    { key: "cached", label: "engines report", kind: "ours" },
    { key: "predicted", label: "predicted", kind: "guess" },
    { key: "robin", label: "round robin", kind: "robin" }] },
  { title: "Time to first token", format: (v) => milliseconds(v), series: [
    { key: "p50", label: "p50", kind: "ours" },
    { key: "p90", label: "p90", kind: "tail" },
    { key: "p99", label: "p99", kind: "worst" },
    { key: "robin50", label: "round robin p50", kind: "robin" }] },
  { title: "Requests a second", format: (v) => count(v, v < 10 ? 1 : 0), series: [
    { key: "rate", label: "decided", kind: "ours" },
    { key: "failed", label: "failed or refused", kind: "wrong" }] },
  { title: "Share of requests failed", format: (v) => percent(v), least: 0.01, series: [
    { key: "errors", label: "failed or refused", kind: "wrong" }] },
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

// What changed in the time shown, as a list and as flags of the curves.
let listed = "";
function drawMarks(marks, from, buckets) {
  const shown = marks.filter((one) => one.at >= from).map((one, index) => ({ ...one, number: index + 1,
    words: `${clock(one.at)} ${one.who}${one.bucket && buckets > 1 ? ` (${one.bucket})` : ""}: ${one.text}` }));
  const text = JSON.stringify(shown);
  if (text === listed) return shown;
  listed = text;
  const part = document.getElementById("marks");
  part.hidden = !shown.length;
  part.querySelector("ol").replaceChildren(...shown.map((one) => build("li", { class: one.kind }, one.words)));
  return shown;
}

export function drawCurves(overview) {
  if (!charts.length) charts.push(...CHARTS.map((one) => new Chart(place, one)));
  const step = Math.max(1, Math.round(range / 60)), end = Math.floor(overview.now / step) * step;
  const points = recent(end, step);
  const marks = drawMarks(overview.marks ?? [], end - range, overview.buckets.length);
  for (const chart of charts) chart.draw(end - range, end, points, marks);
  const minute = figures(sum(overview.now - 60, overview.now + 1));
  charts[0].describe(`last minute ${percent(minute.saved ?? minute.cached ?? minute.predicted)}, round robin ${percent(minute.robin)}`);
  charts[1].describe(`last minute median ${milliseconds(minute.p50)}, 90th percentile ${milliseconds(minute.p90)}, 99th ${milliseconds(minute.p99)}, round robin median ${milliseconds(minute.robin50)}`);
  charts[2].describe(`${count((sum(overview.now - 10, overview.now).requests ?? 0) / 10, 1)} now`);
  charts[3].describe(`last minute ${percent(minute.errors)}`);
}

export function chooseRange(seconds) {
  range = seconds;
  for (const button of buttons.children) button.setAttribute("aria-pressed", String(Number(button.dataset.range) === seconds));
}
