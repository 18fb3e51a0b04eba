"use strict";
// Line charts in plain SVG. All text goes in as text nodes.

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 54, RIGHT = 10, TOP = 18, BOTTOM = 22, APART = 36;

export function shape(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function niceTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 8, 10].find((step) => step * power >= value * 1.001) * power;
}

export class Chart {
  // `series`: [{key, label, kind}], kinds are classes of the style sheet. `points`, given to
  // `draw`, are {t, <key>: number or null} by time; null leaves a gap.
  constructor(parent, { title, series, format, top, least = 0 }) {
    this.title = title;
    this.series = series;
    this.format = format;
    this.top = top;
    this.least = least;
    this.points = [];
    this.marks = [];
    this.at = null;
    this.figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    caption.append(title);
    this.moment = caption.appendChild(document.createElement("span"));
    this.svg = shape("svg", { role: "img" });
    this.legend = document.createElement("ul");
    this.legend.className = "legend";
    this.values = new Map();
    for (const one of series) {
      const item = this.legend.appendChild(document.createElement("li"));
      const swatch = shape("svg", { "aria-hidden": "true" });
      swatch.append(shape("line", { x1: 1, x2: 25, y1: 4, y2: 4, class: `line ${one.kind}` }));
      const value = document.createElement("b");
      item.append(swatch, `${one.label} `, value);
      this.values.set(one.key, value);
    }
    this.figure.append(caption, this.svg, this.legend);
    parent.append(this.figure);
    new ResizeObserver(() => this.render()).observe(this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => { this.at = null; this.render(); });
  }

  // `marks` are {at, number, kind, words} by time: vertical lines, numbered as their list is.
  draw(from, to, points, marks = []) {
    this.from = from;
    this.to = to;
    this.points = points;
    this.marks = marks;
    this.render();
  }

  worded(value) {
    return value === null || value === undefined ? "–" : this.format(value);
  }

  // The first series always has its line in the legend; others when there is something to see.
  drawn(one) {
    if (!this.points.some((point) => point[one.key])) return one === this.series[0] && !this.series.some((other) => other !== one && this.drawn(other));
    return true;
  }

  describe(text) {
    this.svg.setAttribute("aria-label", `${this.title}: ${text}`);
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    this.at = this.from + Math.min(1, Math.max(0, share)) * (this.to - this.from);
    this.render();
  }

  nearest(time) {
    let best = null;
    for (const one of this.points) {
      if (best === null || Math.abs(one.t - time) < Math.abs(best.t - time)) best = one;
    }
    return best;
  }

  render() {
    const width = this.svg.clientWidth, height = this.svg.clientHeight;
    if (!width || this.from === undefined) return;
    const x = (t) => LEFT + ((t - this.from) / (this.to - this.from)) * (width - LEFT - RIGHT);
    const highest = Math.max(this.least, ...this.points.flatMap((p) => this.series.map((s) => p[s.key] ?? 0)));
    const top = this.top ?? niceTop(highest);
    const y = (value) => TOP + (1 - Math.min(value, top) / top) * (height - TOP - BOTTOM);
    const parts = [];
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      const line = Math.round(y(top * share)) + 0.5;
      parts.push(shape("line", { x1: LEFT, x2: width - RIGHT, y1: line, y2: line, class: "grid" }));
      if (share * 4 % 2 === 0) {
        parts.push(shape("text", { x: LEFT - 6, y: line + 4, "text-anchor": "end" }, this.format(top * share, true)));
      }
    }
    const span = this.to - this.from;
    for (const [share, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
      const ago = Math.round(span * (1 - share));
      const text = ago === 0 ? "now" : ago < 60 ? `${ago} s ago` : `${ago / 60} min ago`;
      parts.push(shape("text", { x: x(this.from + span * share), y: height - 6, "text-anchor": anchor }, text));
    }
    for (const one of this.series) if (this.drawn(one)) parts.push(...this.lines(one, x, y));
    parts.push(...this.flags(x, height));
    const shown = this.at === null ? this.last() : this.nearest(this.at);
    if (this.at !== null && shown) {
      const place = Math.round(x(shown.t)) + 0.5;
      parts.push(shape("line", { x1: place, x2: place, y1: TOP, y2: height - BOTTOM, class: "cross" }));
    }
    this.moment.textContent = this.at === null || !shown ? "" : new Date(shown.t * 1000).toLocaleTimeString();
    for (const one of this.series) {
      const value = this.values.get(one.key);
      value.textContent = this.worded(shown?.[one.key]);
      value.parentNode.hidden = !this.drawn(one);
    }
    this.svg.replaceChildren(...parts);
  }

  // Marks that would cover each other share a number: "2–4".
  flags(x, height) {
    const groups = [];
    for (const mark of this.marks) {
      const place = Math.round(x(mark.at)) + 0.5, last = groups.at(-1);
      if (last && place - last.place < APART) last.marks.push(mark);
      else groups.push({ place, marks: [mark] });
    }
    return groups.map(({ place, marks }) => {
      const flag = shape("g", { class: `flag ${marks[0].kind}` }), numbers = marks.map((mark) => mark.number);
      flag.append(shape("title", {}, marks.map((mark) => mark.words).join("\n")),
        shape("line", { x1: place, x2: place, y1: TOP - 4, y2: height - BOTTOM }),
        shape("text", { x: place, y: TOP - 7, "text-anchor": "middle" }, numbers.length > 1 ? `${numbers[0]}–${numbers.at(-1)}` : numbers[0]));
      return flag;
    });
  }

  last() {
    return this.points.findLast((point) => this.series.some((one) => point[one.key] !== null)) ?? null;
  }

  lines(one, x, y) {
    const runs = [];
    let run = null;
    for (const point of this.points) {
      const value = point[one.key];
      if (value === null || value === undefined) { run = null; continue; }
      if (run === null) runs.push(run = []);
      run.push([x(point.t).toFixed(1), y(value).toFixed(1)]);
    }
    const parts = [];
    for (const places of runs) {
      const path = "M" + places.map((place) => place.join(" ")).join("L");
      if (one.kind === "ours" && places.length > 1) {
        const floor = y(0).toFixed(1);
        parts.push(shape("path", { class: "area", d: `${path}L${places.at(-1)[0]} ${floor}L${places[0][0]} ${floor}Z` }));
      }
      // A run of one point is a line of no length: its round cap shows as a dot.
      parts.push(shape("path", { class: `line ${one.kind}`, d: places.length > 1 ? path : `${path}h0.01` }));
    }
    return parts;
  }
}
