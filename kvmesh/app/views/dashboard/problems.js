"use strict";
// What is wrong now, worst first: who, why, since when, and the page of the runbook that says what to do.
import { build, clock, count, span, syncRows } from "./parts.js";

const DOCUMENTS = "https://github.com/kvmesh/kvmesh/blob/main/docs/operate/";
const PAGE = /^([a-z0-9-]+)(#[A-Za-z0-9_-]+)?$/;
const FOLDED = 3; // More of one kind are one line that opens.
const NAMED = 3;
const SHORT = { hung: "hung", down: "down", failing: "failing", overloaded: "overloaded", "not-ready": "not ready", replica: "not ready" };
const WORDED = "warning"; // The kind of a process's warnings.
const BADGES = { critical: ["critical", "bad"], warning: ["warning", "warn"] };
const $ = (id) => document.getElementById(id);
const open = new Set();
let said = "";

// The kind first where the reason alone does not begin with it.
function wordsOf({ kind, why }) {
  const short = SHORT[kind];
  return short && !why.toLowerCase().startsWith(short) ? `${short}: ${why}` : why;
}

const badgeOf = (row) => BADGES[row.severity] ?? BADGES.warning;
const worse = (a, b) => (b.severity === "critical") - (a.severity === "critical") || b.since_s - a.since_s;

function linkOf(page) {
  const [, name, anchor = ""] = PAGE.exec(page ?? "") ?? [];
  return name ? `${DOCUMENTS}${name}.md${anchor}` : "";
}

const COLUMNS = [
  { name: "Severity", fill: (cell, row) => {
    const [word, kind] = badgeOf(row), badge = cell.firstChild ?? cell.appendChild(build("span"));
    if (badge.textContent !== word) badge.textContent = word;
    badge.className = `badge ${kind}`;
  } },
  { name: "Who", head: true, fill: (cell, row) => {
    if (!row.members) {
      const name = row.who === row.bucket ? `bucket ${row.who}` : row.who;
      if (cell.textContent !== name || cell.firstElementChild) cell.textContent = name;
      cell.title = row.bucket ? `bucket ${row.bucket}` : "";
      return;
    }
    const button = cell.querySelector("button") ?? build("button", { type: "button", class: "id" });
    if (button.parentNode !== cell) {
      cell.replaceChildren(button);
      button.addEventListener("click", () => {
        open.has(row.key) ? open.delete(row.key) : open.add(row.key);
        cell.dispatchEvent(new CustomEvent("unfold", { bubbles: true }));
      });
    }
    const words = `${row.members.slice(0, NAMED).map((one) => one.who).join(", ")} and ${count(row.members.length - NAMED)} more`;
    if (button.textContent !== words) button.textContent = words;
    button.setAttribute("aria-expanded", String(open.has(row.key)));
  } },
  { name: "What is wrong", kind: "why", fill: (cell, row) => { const words = wordsOf(row); if (cell.textContent !== words) cell.textContent = words; } },
  { name: "For", kind: "num", fill: (cell, row) => {
    cell.textContent = row.since_s < 1 ? "now" : span(row.since_s);
    cell.title = `since ${clock(Date.now() / 1000 - row.since_s)}`;
  } },
  { name: "Runbook", fill: (cell, row) => {
    const address = linkOf(row.page);
    if (!address) return cell.replaceChildren();
    const link = cell.firstChild ?? cell.appendChild(build("a", { target: "_blank", rel: "noopener noreferrer" }, "what to do"));
    if (link.href !== address) {
      link.href = address;
      link.title = `docs/operate/${row.page.replace(/#|$/, ".md$&")}`;
      link.setAttribute("aria-label", `what to do about ${row.who}: ${row.kind}`);
    }
  } },
];

// Many of one kind become one row with `members`, which follow it when it is open. Warnings are told
// apart by their words alone, so that they stay apart.
function fold(problems) {
  const kinds = new Map();
  for (const one of [...problems].sort(worse)) {
    const whole = `${one.bucket ?? ""}/${one.who}/${one.kind}/${one.kind === WORDED ? one.why : ""}`;
    const kind = one.kind === WORDED ? whole : `${one.severity}/${one.kind}`;
    kinds.set(kind, [...(kinds.get(kind) ?? []), { ...one, key: whole }]);
  }
  const rows = [...kinds].flatMap(([kind, all]) => (all.length <= FOLDED ? all : [{ ...all[0], key: kind, members: all }]));
  return rows.sort(worse).flatMap((row) => (row.members && open.has(row.key) ? [row, ...row.members.map((one) => ({ ...one, inner: true }))] : [row]));
}

function headline(problems) {
  const critical = problems.filter((one) => one.severity === "critical").length, other = problems.length - critical;
  return [critical && `${count(critical)} critical`, other && `${count(other)} ${other === 1 ? "warning" : "warnings"}`].filter(Boolean).join(", ");
}

// Draws the strip; `fine` is what it says while nothing is wrong. Returns the worst severity, "" for none.
export function drawProblems(problems, fine) {
  const part = $("problems"), worst = problems.length ? (problems.some((one) => one.severity === "critical") ? "critical" : "warning") : "";
  part.className = worst || "fine";
  $("n-problems").textContent = problems.length ? headline(problems) : fine;
  const table = part.querySelector("table");
  table.parentNode.hidden = !problems.length;
  if (problems.length) {
    const rows = fold(problems);
    syncRows(table, COLUMNS, rows, (row) => row.key, "");
    rows.forEach((row, number) => table.tBodies[0].rows[number].classList.toggle("inner", Boolean(row.inner)));
  } else table.tBodies[0]?.replaceChildren();
  // Read aloud when the set changes, not each second.
  const words = problems.map((one) => `${one.who}: ${one.kind}`).sort().join("; ");
  if (words !== said) {
    said = words;
    $("said").textContent = words ? `Wrong now: ${words.slice(0, 400)}` : "Nothing is wrong any more";
  }
  return worst;
}
