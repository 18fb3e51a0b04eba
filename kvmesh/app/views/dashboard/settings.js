"use strict";
// What the processes run with: first what differs from the defaults, all of it on demand.
import { build, syncRows } from "./parts.js";

const part = document.getElementById("settings-part"), place = document.getElementById("settings"), all = document.getElementById("all-settings");
const SOURCES = { default: ["default", "soft"], set: ["set at the start", "good"], changed: ["changed while it runs", "warn"] };
let processes = [];

const COLUMNS = [
  { name: "Setting", head: true, fill: (cell, row) => { cell.replaceChildren(build("code", {}, row.name)); cell.title = row.title; } },
  { name: "In force", kind: "value", fill: (cell, row) => { cell.textContent = row.value || "–"; } },
  { name: "Default", kind: "value soft p2", fill: (cell, row) => { cell.textContent = row.default || "–"; } },
  { name: "From", fill: (cell, row) => { const [word, kind] = SOURCES[row.source] ?? [row.source, "soft"]; cell.textContent = word; cell.className = kind; } },
];

function draw() {
  const whole = all.getAttribute("aria-pressed") === "true";
  place.replaceChildren(...processes.flatMap((one, number) => {
    const table = build("table"), id = `h-settings-${number}`;
    syncRows(table, COLUMNS, one.settings.filter((row) => whole || row.source !== "default"), (row) => row.name, "All settings are at their defaults.");
    return [build("h3", { id }, one.role === one.name ? one.name : `${one.role} ${one.name}`), build("div", { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": id }, table)];
  }));
}

async function load() {
  try {
    const answer = await fetch("admin/settings"), body = await answer.json();
    if (!answer.ok) throw new Error(body.error?.message ?? `refused with ${answer.status}`);
    ({ processes } = body);
    draw();
  } catch (error) {
    place.replaceChildren(build("p", { class: "bad" }, error.message));
  }
}

all.addEventListener("click", () => {
  all.setAttribute("aria-pressed", String(all.getAttribute("aria-pressed") !== "true"));
  draw();
});
part.addEventListener("toggle", () => { if (part.open) load(); });
if (part.open) load();
