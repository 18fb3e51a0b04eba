"use strict";
// Other sites: a map by their round trip, how busy they are, and the last requests that were served there.
import { shape } from "./charts.js";
import { clock, count, counted, milliseconds, span, syncRows } from "./parts.js";

const MOST_TRIPS = 8, WIDE = 640, LEAST_HIGH = 110, EACH_HIGH = 66, HOME = 60, NEAR = 150, FAR = 550;

const COLUMNS = [
  { name: "Site", head: true, fill: (cell, row) => { cell.textContent = row.site; cell.title = row.door; } },
  { name: "State", fill: (cell, row) => { cell.textContent = row.why_not || "takes requests"; cell.className = `state ${row.why_not ? "bad" : "good"}`; } },
  { name: "Round trip", kind: "num", fill: (cell, row) => { cell.textContent = milliseconds(row.rtt_ms); } },
  { name: "Backlog", kind: "num", fill: (cell, row) => { cell.textContent = milliseconds(row.backlog_ms); } },
  { name: "Workers", kind: "num p2", fill: (cell, row) => { cell.textContent = count(row.workers); } },
  { name: "Sent there", kind: "num", fill: (cell, row) => { cell.textContent = count(row.sent); } },
  { name: "Last digest", kind: "num p2", fill: (cell, row) => { cell.textContent = row.heard_s === null ? "never" : `${span(row.heard_s)} ago`; } },
];

const TRIPS = [
  { name: "Time", head: true, fill: (cell, row) => { cell.textContent = clock(row.at); } },
  { name: "Request", kind: "p2", fill: (cell, row) => { cell.textContent = row.request; } },
  { name: "Served at", fill: (cell, row) => { cell.textContent = row.site; } },
  { name: "Why", kind: "wide", fill: (cell, row) => { cell.textContent = row.why; } },
];

// Sites stand as far to the right as their round trip is long: the square root, so that near ones are told apart.
function drawMap(svg, { site, sites }) {
  const most = Math.max(1, ...sites.map((one) => one.rtt_ms ?? 0));
  const high = Math.max(LEAST_HIGH, EACH_HIGH * sites.length), middle = high / 2;
  const marks = sites.map((one, number) => {
    const x = NEAR + (FAR - NEAR) * Math.sqrt((one.rtt_ms ?? most) / most), y = (high * (number + 0.5)) / sites.length;
    const size = 7 + Math.min(9, Math.sqrt(one.workers));
    return [
      shape("line", { x1: HOME, y1: middle, x2: x, y2: y, class: one.why_not ? "gone" : "way" }),
      shape("circle", { cx: x, cy: y, r: size, class: one.why_not ? "lost" : "away" }),
      shape("text", { x, y: y + size + 17, "text-anchor": "middle" }, `${one.site}, ${milliseconds(one.rtt_ms)}`),
    ];
  });
  svg.setAttribute("viewBox", `0 0 ${WIDE} ${high}`);
  svg.setAttribute("aria-label", `${site} and ${counted(sites.length, "other site")}: ${sites.map((one) => `${one.site} ${one.why_not || `${milliseconds(one.rtt_ms)} away`}`).join(", ")}`);
  svg.replaceChildren(...marks.flat(), shape("circle", { cx: HOME, cy: middle, r: 14, class: "home" }), shape("text", { x: HOME, y: middle + 34, "text-anchor": "middle" }, `${site}, here`));
}

export function drawSites(part, sites) {
  part.hidden = !sites;
  if (!sites) return;
  const sent = sites.sites.reduce((all, one) => all + one.sent, 0);
  part.querySelector("p").textContent = `${counted(sites.stayed, "request")} served here, ${count(sent)} at other sites`;
  drawMap(part.querySelector("svg"), sites);
  const [table, trips] = part.querySelectorAll("table");
  syncRows(table, COLUMNS, sites.sites, (row) => row.site, "No other site is named.");
  syncRows(trips, TRIPS, sites.trips.slice(-MOST_TRIPS).reverse(), (row) => `${row.at}/${row.request}`, "No request was served elsewhere.");
}
