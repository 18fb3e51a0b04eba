"use strict";
// What happened in each second, and sums over some of them.

const GAMMA = 1.05;
const seconds = new Map();

export const forgetSeconds = () => seconds.clear();
export const ratio = (part, whole) => (whole ? part / whole : null);

export function takeSeconds(news, oldest) {
  for (const second of news) seconds.set(second.second, second);
  for (const time of seconds.keys()) if (time < oldest) seconds.delete(time);
}

export function oldestSecond() {
  let least = Infinity;
  for (const time of seconds.keys()) least = Math.min(least, time);
  return least;
}

// Adds up the seconds from `from` up to, not with, `to`; sketches bin by bin.
export function sum(from, to) {
  const total = { ttft: {}, round_robin_ttft: {} };
  for (const second of seconds.values()) {
    if (second.second < from || second.second >= to) continue;
    for (const [key, value] of Object.entries(second)) {
      if (key === "ttft" || key === "round_robin_ttft") {
        for (const [bin, n] of Object.entries(value)) total[key][bin] = (total[key][bin] ?? 0) + n;
      } else total[key] = (total[key] ?? 0) + value;
    }
  }
  return total;
}

function quantile(bins, share) {
  const numbers = Object.keys(bins).map(Number).sort((a, b) => a - b);
  const rank = share * (numbers.reduce((all, one) => all + bins[one], 0) - 1);
  let seen = 0;
  for (const number of numbers) {
    seen += bins[number];
    if (seen > rank) return (2 * GAMMA ** number) / (1 + GAMMA);
  }
  return null;
}

export const figures = (total) => ({
  saved: ratio(total.saved_tokens, total.answered_tokens),
  cached: ratio(total.cached_tokens, total.reported_tokens),
  predicted: ratio(total.predicted_tokens, total.foreseen_tokens),
  robin: ratio(total.round_robin_tokens, total.shadowed_tokens),
  shadowed: ratio(total.shadowed_tokens, total.prompt_tokens),
  p50: quantile(total.ttft, 0.5),
  p90: quantile(total.ttft, 0.9),
  p99: quantile(total.ttft, 0.99),
  errors: total.requests ? Math.min(1, ((total.failed ?? 0) + (total.refused ?? 0)) / total.requests) : null,
  robin50: quantile(total.round_robin_ttft, 0.5),
});
