"use strict";
// The figures of now, one tile each. What a router of an older version does not tell is not shown.
import { build, count, fails, milliseconds, percent, short } from "./parts.js";
import { figures, ratio, sum } from "./traffic.js";

const SAMPLED = 0.9; // With a smaller part of the tokens round robin is said to be of a sample.
const FAILURES = ["cut", "unserved", "refused", "crashed", "errors_passed_on"];
const place = document.getElementById("tiles");
const tiles = new Map();

function tile(key, name, value, more, kind = "") {
  if (!tiles.has(key)) tiles.set(key, place.appendChild(build("div", {}, build("dt"), build("dd"), build("dd"))));
  const [title, figure, words] = tiles.get(key).children;
  title.textContent = name;
  figure.textContent = value;
  figure.className = kind;
  words.textContent = more;
}

const few = (value) => count(value ?? 0, !value || value >= 100 ? 0 : value < 0.095 ? 2 : 1);

const ERRORS = [["5xx", "5xx"], ["cut", "cut"], ["429", "429"], ["4xx", "4xx"]];

// A client that leaves is told beside the errors, not among them.
function tileOfErrors({ errors_per_s: errors, requests_per_s: requests }, failed) {
  const found = ERRORS.filter(([key]) => errors[key] > 0), left = errors["499"] ?? 0;
  const all = found.reduce((sum, [key]) => sum + errors[key], 0);
  const share = requests > 0 ? percent(Math.min(1, all / requests)) : all > 0 ? percent(1) : "–";
  const words = found.map(([key, name]) => `${few(errors[key])} ${name} a second`).join(", ") || (requests > 0 ? "of the last 15 s" : "no request ended in 15 s");
  tile("errors", "Requests failed", share, `${words}${left ? `; ${few(left)} clients left a second` : ""}; ${count(failed)} so far`,
    errors["5xx"] > 0 || errors.cut > 0 ? "bad" : all > 0 ? "warn" : "");
}

// What caches have saved since the routers started; predicted is what no engine has confirmed.
function tileOfSaved({ saved_tokens: saved, saved_ms: worth, cached_tokens: told, prompt_tokens: all }) {
  const predicted = ratio(saved - told, saved);
  const words = predicted === 1 ? ", predicted" : predicted > 0 ? `, ${percent(predicted)} of it predicted` : "";
  tile("saved", "Prefill tokens saved", short(saved), `${percent(ratio(saved, all))} of prompts so far, worth ${few(worth / 1000)} engine-seconds${words}`);
}

export function drawTiles(overview) {
  const now = overview.now, minute = figures(sum(now - 60, now + 1)), last = sum(now - 10, now);
  const { workers, replicas, counters, traffic } = overview;
  const usable = workers.filter((one) => one.usable).length, ready = replicas.filter((one) => one.ready).length;
  const estimated = workers.filter((one) => one.trust === "estimated").length;
  const guessed = workers.filter((one) => one.trust === "approx").length;
  const doubtful = workers.filter((one) => one.trust === "catching-up" || one.trust === "degraded").length;
  const failing = workers.filter(fails).length, leaving = workers.filter((one) => one.why_not === "draining").length;
  const add = (rows, key) => rows.reduce((all, one) => all + (one[key] ?? 0), 0);
  const held = traffic?.held ?? add(replicas, "queued"), waiting = traffic?.queued ?? add(workers, "waiting_requests");
  const best = minute.saved ?? minute.cached ?? minute.predicted;
  const sample = minute.robin !== null && minute.shadowed < SAMPLED ? `, of a sample of ${percent(minute.shadowed)}` : "";
  const failed = FAILURES.reduce((all, name) => all + (counters[name] ?? 0), 0);
  if (counters.saved_tokens !== undefined) tileOfSaved(counters);
  tile("rate", "Requests a second", count((last.requests ?? 0) / 10, 1), `${count(counters.requests ?? 0)} so far, ${count(failed)} failed`,
    !traffic && (last.failed ?? 0) + (last.refused ?? 0) ? "bad" : "");
  if (traffic) tileOfErrors(traffic, failed);
  tile("ttft", "Time to first token", milliseconds(minute.p50), `p90 ${milliseconds(minute.p90)}, p99 ${milliseconds(minute.p99)}; round robin p50 ${milliseconds(minute.robin50)}`);
  if (traffic) tile("tpot", "Time per token", milliseconds(traffic.tpot_ms ?? null), "mean, after the first");
  if (traffic) tile("tokens", "Tokens a second", count(traffic.output_tokens_per_s), `written; ${short(traffic.prompt_tokens_per_s)} of prompts`);
  tile("cached", minute.cached === null ? "Prompt cached (predicted)" : "Prompt cached", percent(best),
    minute.robin === null ? "round robin: –" : `round robin: ${percent(minute.robin)}${best !== null && minute.robin > 0 ? ` (×${(best / minute.robin).toFixed(1)})` : ""}${sample}`);
  tile("flight", "In flight", count(add(workers, "active_requests")), `${count(add(workers, "prefill_tokens"))} prompt tokens to prefill`);
  tile("queue", "Waiting", count(held + waiting), held || waiting ? `${count(held)} held by routers, ${count(waiting)} in engines` : "no request waits", held ? "warn" : "");
  const used = ratio(add(workers, "used_blocks"), add(workers, "total_blocks"));
  tile("blocks", "Cache in use", percent(used), used === null ? "engines do not report it" : `of ${short(add(workers, "total_blocks"))} blocks, by running requests`, used > 0.95 ? "warn" : "");
  const programs = overview.buckets.reduce((all, one) => all + (one.figures?.programs ?? 0), 0);
  const turns = overview.buckets.reduce((all, one) => all + (one.figures?.programs_waiting ?? 0), 0);
  tile("programs", "Programs", count(programs), turns ? `${count(turns)} wait for a turn` : programs ? "none waits for a turn" : "no agent’s session", turns ? "warn" : "");
  tile("workers", "Workers usable", `${usable} of ${workers.length}`, failing ? `${failing} failing` : leaving ? `${leaving} ${leaving === 1 ? "drains" : "drain"}` : doubtful ? `${doubtful} in doubt` : guessed ? `${guessed} by guesses, without KV events` : estimated ? `${estimated} estimated: caches change faster than requests start` : "all trusted",
    usable < workers.length || failing ? (usable ? "warn" : "bad") : "");
  const disagree = replicas.some((one) => one.agreement === "disagrees"), agree = replicas.some((one) => one.agreement === "agrees");
  tile("replicas", "Replicas ready", `${ready} of ${replicas.length}`,
    disagree ? "indexes disagree" : agree ? "indexes agree" : "nothing to compare", disagree ? "bad" : ready < replicas.length ? "warn" : "");
}
