"use strict";
// One worker: what it is, and the way to drain it or to use it again, asked twice.
import { build, count, counted, milliseconds, percent, standingOf } from "./parts.js";
import { ratio } from "./traffic.js";

const dialog = document.getElementById("worker");
const facts = build("dl", { class: "facts" }), words = build("p"), said = build("p", { role: "status", class: "bad" });
const ask = build("button", { type: "button" }), sure = build("button", { type: "button", class: "danger" }), cancel = build("button", { type: "button" }, "Cancel");
const token = build("input", { type: "password", id: "admin-token", autocomplete: "off" });
const question = build("div", { class: "question", role: "group", "aria-labelledby": "drain-question" }, build("p", { id: "drain-question" }),
  build("label", { for: "admin-token" }, "Admin token, where the routers have one"), token, build("div", { class: "buttons" }, sure, cancel));
let shown = null, title = null, row = null, may = false;

const find = (overview) => overview.workers.find((one) => `${one.bucket}/${one.worker}` === shown);
const drains = () => row.why_not === "draining";

// Opens the dialog of a worker; `mayDrain`: whoever looks may change it.
export function showWorker(overview, key, mayDrain) {
  shown = key;
  may = mayDrain;
  row = find(overview);
  if (!row) return;
  title = build("h2", { id: "worker-title" }, `Worker ${row.worker}`);
  const close = build("button", { type: "button" }, "Close");
  close.addEventListener("click", () => dialog.close());
  dialog.replaceChildren(build("div", { class: "bar-title" }, title, close), facts, words, ask, question, said);
  question.hidden = true;
  said.textContent = "";
  refreshWorker(overview);
  dialog.showModal();
}

export function refreshWorker(overview) {
  if (shown === null) return;
  row = find(overview) ?? row;
  const share = ratio(row.used_blocks, row.total_blocks), rest = overview.workers.filter((one) => one.bucket === row.bucket && one.usable && one.worker !== row.worker).length;
  const told = [["State", standingOf(row)[0]], ["Bucket", row.bucket], ["Serves", row.models.join(", ") || "not told"], ["Engine", row.url || "not told"],
    ["Requests", `${count(row.active_requests)} booked, ${count(row.waiting_requests)} wait in the engine`], ["Time to first token", milliseconds(row.ttft_ms)],
    ["Cache in use", share === null ? "not told" : `${percent(share)} of ${counted(row.total_blocks, "block")}`], ["Prefixes held", counted(row.cached_blocks, "block")],
    ["Failed of the last", row.attempts ? `${row.failures} of ${row.attempts}` : "none asked"], ["Sidecar", row.version ? `version ${row.version}` : "version not told"]];
  facts.replaceChildren(...told.map(([name, value]) => build("div", {}, build("dt", {}, name), build("dd", {}, value))));
  ask.hidden = !may || !question.hidden;
  ask.textContent = drains() ? "Use it again …" : "Drain …";
  words.textContent = !may ? "" : drains() ? "It drains: it gets no new requests." : "Drained, it gets no new requests; streams that can be continued go on elsewhere, the others finish.";
  sure.textContent = `${drains() ? "Use" : "Drain"} ${row.worker}`;
  const left = rest ? `${counted(rest, "worker")} of bucket ${row.bucket} ${rest === 1 ? "stays" : "stay"} in use.` : `No worker of bucket ${row.bucket} would be left: requests would be refused.`;
  document.getElementById("drain-question").textContent = drains() ? `Give ${row.worker} requests again?` : `Drain ${row.worker}? ${left}`;
}

function step(asking) {
  question.hidden = !asking;
  ask.hidden = asking;
  (asking ? cancel : ask).focus();
}

async function change() {
  const wish = { worker: row.worker, draining: !drains() }, headers = { "content-type": "application/json" };
  if (token.value) headers["x-kvmesh-admin-token"] = token.value;
  sure.disabled = true;
  said.textContent = "";
  try {
    const answer = await fetch("admin/drain", { method: "POST", headers, body: JSON.stringify(wish) });
    if (answer.ok) {
      said.className = "good";
      said.textContent = wish.draining ? "Told to drain; routers know within some seconds." : "Told to take requests; routers know within some seconds.";
      step(false);
    } else {
      said.className = "bad";
      said.textContent = (await answer.json()).error?.message ?? `refused with ${answer.status}`;
    }
  } catch (error) {
    said.className = "bad";
    said.textContent = `no answer: ${error.message}`;
  }
  sure.disabled = false;
}

ask.addEventListener("click", () => step(true));
cancel.addEventListener("click", () => step(false));
sure.addEventListener("click", change);
dialog.addEventListener("close", () => { shown = null; token.value = ""; });
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
