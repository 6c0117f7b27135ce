// A chart: lines over steps, seconds or tokens, with a cursor that all charts share.

const SVG = "http://www.w3.org/2000/svg";
const draw = (parent, name, attributes = {}, text) => {
  const node = parent.appendChild(document.createElementNS(SVG, name));
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  return node;
};
const make = (parent, name, className, text) => {
  const node = parent.appendChild(document.createElement(name));
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};

// The index of the point whose step is nearest; points are in rising order.
const nearest = (points, step) => {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle].step < step) low = middle; else high = middle;
  }
  return points.length > 1 && Math.abs(points[high].step - step) < Math.abs(points[low].step - step) ? high : low;
};

// A weighted mean over some neighbours: it shows the way, and runs neither ahead nor behind.
const smooth = (points) => {
  const sigma = points.length / 120;
  if (sigma < 0.5) return points;
  const reach = Math.ceil(2.5 * sigma);
  return points.map((point, index) => {
    // At the steep beginning the mean stays centred; at the end there is only one side.
    const room = Math.min(reach, index);
    let sum = 0, weights = 0;
    for (let other = index - room; other <= Math.min(index + room, points.length - 1); other++) {
      const weight = Math.exp(-(((other - index) / sigma) ** 2) / 2);
      sum += weight * points[other].y;
      weights += weight;
    }
    return { ...point, y: sum / weights };
  });
};

const quantile = (values, share) => {
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.round(share * (sorted.length - 1))];
};

const pathOf = (points, x, y) => points.map((point, index) => `${index ? "L" : "M"}${x(point).toFixed(1)},${y(point).toFixed(1)}`).join("");

class Chart {
  // spec: {title, unit, series: [{name, kind, points, smoothed}], height, log, domain, format}
  constructor(parent, spec, view) {
    this.spec = spec;
    this.view = view;
    this.series = spec.series.filter((one) => one.points.length);
    for (const one of this.series) one.line = one.smoothed ? smooth(one.points) : one.points;
    this.host = make(parent, "figure", `card${spec.wide ? " wide" : ""}`);
    this.caption = make(this.host, "figcaption", "caption");
    make(this.caption, "h2", "", spec.title);
    make(this.caption, "span", "unit", spec.unit);
    if (!spec.wide) this.now = make(this.caption, "span", "now");
    this.plot = make(this.host, "div", "plot");
    this.plot.tabIndex = 0;
    this.plot.setAttribute("role", "group");
    this.plot.setAttribute("aria-label", `${this.summary()} Left and right arrow keys read values.`);
    this.tip = make(this.plot, "div", "tip");
    this.tip.hidden = true;
    this.tip.setAttribute("role", "status");
    if (spec.wide) this.legend();
    this.listen();
  }

  summary() {
    const parts = this.series.map(({ name, line }) =>
      `${name} from ${value(line[0].y)} to ${value(line[line.length - 1].y)}`);
    return `${this.spec.title}, ${this.spec.unit}: ${parts.join("; ")}.`;
  }

  legend() {
    const list = make(this.host, "ul", "legend");
    const entry = (kind, text, shape, attributes) => {
      const item = make(list, "li", kind);
      draw(draw(item, "svg", { viewBox: "0 0 18 10", "aria-hidden": "true" }), shape, attributes);
      make(item, "span", "", text);
    };
    for (const { kind, name, smoothed, points } of this.series) {
      entry(kind, smoothed ? `${name}, smoothed` : name, "path", { class: "line", d: "M1,5H17" });
      const most = points.reduce((a, b) => Math.max(a, b.count), 1);
      if (smoothed && most > 1) entry(kind, `lowest and highest of ${grouped(most)} steps`, "rect", { class: "band", x: 0, y: 0, width: 18, height: 10 });
      else if (smoothed) entry(kind, "each step", "path", { class: "raw", d: "M1,8L5,3L9,7L13,2L17,6" });
    }
    if (this.spec.best) entry("", "best", "circle", { class: "mark", cx: 9, cy: 5, r: 4 });
    if (this.spec.events?.length) entry("", "skipped or outlying step", "path", { class: "event", d: "M9,0V10" });
    if (this.spec.sessions?.length) entry("", "resumed", "path", { class: "session", d: "M9,0V10" });
  }

  range() {
    if (this.spec.domain) return this.spec.domain;
    // Of what a band holds the rarest are left out, so that one spike does not flatten the rest.
    const ends = [];
    for (const { line, points } of this.series) {
      for (const point of line) ends.push(point.y);
      ends.push(quantile(points.map((point) => point.low), 0.01), quantile(points.map((point) => point.high), 0.99));
    }
    let low = Math.min(...ends), high = Math.max(...ends);
    const isLog = this.isLog();
    if (this.spec.fromZero && !isLog) low = Math.min(low, 0);
    if (low === high) [low, high] = isLog ? [low / 2, low * 2] : [low - Math.abs(low || 1) / 2, high + Math.abs(high || 1) / 2];
    if (isLog) {
      const room = (high / low) ** 0.04;
      return [low / room, high * room];
    }
    const room = (high - low) * 0.05;
    return [this.spec.fromZero && low === 0 ? 0 : low - room, high + room];
  }

  isLog() {
    return Boolean(this.spec.canBeLog && this.view.log && this.series.every(({ points }) => points.every((point) => point.low > 0)));
  }

  render() {
    const width = Math.max(this.plot.clientWidth, 160);
    if (this.svg) this.svg.remove();
    const height = this.spec.wide ? Math.round(Math.min(Math.max(width * 0.34, 230), 380)) : 190;
    const [low, high] = this.range();
    const isLog = this.isLog();
    const divide = isLog ? logTicks : linearTicks;
    let ticks = divide(low, high, this.spec.wide ? 6 : 4);
    if (ticks.length < 3) ticks = divide(low, high, 6);
    const step = ticks.length > 1 ? ticks[1] - ticks[0] : high - low;
    const largest = ticks.reduce((most, tick) => Math.max(most, Math.abs(tick)), 0);
    const labels = ticks.map((tick) => tickText(tick, isLog ? Math.min(step, tick) : step, largest));
    const box = { left: 14 + 7 * Math.max(...labels.map((label) => label.length), 1), right: width - 10, top: 10, bottom: height - 40 };
    this.box = box;
    const x = this.x = makeScale(this.view.at(this.view.from), this.view.at(this.view.to), box.left, box.right, false);
    const y = this.y = makeScale(low, high, box.bottom, box.top, isLog);
    const px = (point) => x(this.view.at(point.step)), py = (point) => y(point.y);
    const svg = this.svg = draw(this.plot, "svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });

    ticks.forEach((tick, index) => {
      draw(svg, "path", { class: "grid", d: `M${box.left},${y(tick).toFixed(1)}H${box.right}` });
      draw(svg, "text", { x: box.left - 8, y: (y(tick) + 4).toFixed(1), "text-anchor": "end" }, labels[index]);
    });
    draw(svg, "path", { class: "axis", d: `M${box.left},${box.bottom}H${box.right}` });
    const axis = this.view.axis;
    for (const tick of axis.ticks(x.invert(box.left), x.invert(box.right), Math.max(2, Math.floor((box.right - box.left) / 75)))) {
      const at = x(tick).toFixed(1);
      draw(svg, "path", { class: "axis", d: `M${at},${box.bottom}v4` });
      const text = axis.text(tick);
      const anchor = x(tick) + 4 * text.length > width ? "end" : "middle";
      draw(svg, "text", { x: anchor === "end" ? width - 2 : at, y: box.bottom + 18, "text-anchor": anchor }, text);
    }
    draw(svg, "text", { x: box.right, y: height - 5, "text-anchor": "end" }, axis.name);

    const id = `clip-${this.spec.id}`;
    draw(draw(svg, "clipPath", { id }), "rect", { x: box.left - 1, y: box.top - 4, width: box.right - box.left + 6, height: box.bottom - box.top + 8 });
    for (const step of this.spec.sessions ?? []) draw(svg, "path", { class: "session", d: `M${x(this.view.at(step)).toFixed(1)},${box.top}V${box.bottom}` });
    for (const { kind, points, line, smoothed, dots } of this.series) {
      const group = draw(svg, "g", { class: kind, "clip-path": `url(#${id})` });
      if (smoothed) this.spread(group, points, px, y);
      draw(group, "path", { class: "line", d: pathOf(line, px, py) });
      if (line.length === 1 || (dots && line.length <= width / 18)) {
        for (const point of line) draw(group, "circle", { class: "point", cx: px(point).toFixed(1), cy: py(point).toFixed(1), r: 3 });
      }
    }
    for (const step of this.spec.events ?? []) draw(svg, "path", { class: "event", d: `M${x(this.view.at(step)).toFixed(1)},${box.top - 4}v8` });
    if (this.spec.best) draw(svg, "circle", { class: "mark", cx: px(this.spec.best).toFixed(1), cy: py(this.spec.best).toFixed(1), r: 6 });
    this.chosen = draw(svg, "path", { class: "chosen" });
    this.cursor = draw(svg, "path", { class: "cursor" });
    this.knobs = this.series.map(({ kind }) => draw(draw(svg, "g", { class: kind }), "circle", { class: "knob", r: 4.5, visibility: "hidden" }));
    this.show(this.view.step);
    this.choose(this.view.chosen);
  }

  // What the smooth line hides: single steps, or the lowest and highest of each bucket.
  spread(group, points, px, y) {
    if (points.some((point) => point.high > point.low)) {
      const upper = pathOf(points, px, (point) => y(point.high));
      const lower = pathOf([...points].reverse(), px, (point) => y(point.low));
      draw(group, "path", { class: "band", d: `${upper}L${lower.slice(1)}Z` });
    } else {
      draw(group, "path", { class: "raw", d: pathOf(points, px, (point) => y(point.y)) });
    }
  }

  // Points at the step of the sample that is shown.
  choose(step) {
    if (!this.chosen) return;
    const at = step === null ? null : this.x(this.view.at(step)).toFixed(1);
    this.chosen.setAttribute("d", at === null ? "" : `M${at},${this.box.bottom}l-5,8h10Z`);
  }

  // Shows the values at a step, or the newest where there is no cursor.
  show(step, isHere = false) {
    const format = this.spec.format ?? value;
    if (this.now) {
      const { points } = this.series[0];
      this.now.textContent = format(points[step === null ? points.length - 1 : nearest(points, step)].y);
    }
    this.tip.hidden = step === null || !isHere;
    if (step === null) {
      this.cursor.setAttribute("d", "");
      for (const knob of this.knobs) knob.setAttribute("visibility", "hidden");
      return;
    }
    const at = this.x(this.view.at(step));
    this.cursor.setAttribute("d", `M${at.toFixed(1)},${this.box.top}V${this.box.bottom}`);
    const rows = this.series.map(({ points, line }, index) => {
      const point = points[nearest(points, step)], drawn = line[nearest(line, step)];
      const height = Math.min(Math.max(this.y(drawn.y), this.box.top), this.box.bottom);
      this.knobs[index].setAttribute("cx", this.x(this.view.at(drawn.step)).toFixed(1));
      this.knobs[index].setAttribute("cy", height.toFixed(1));
      this.knobs[index].setAttribute("visibility", "visible");
      return point;
    });
    if (isHere) this.tell(step, at, rows, format);
  }

  tell(step, at, rows, format) {
    this.tip.replaceChildren();
    make(this.tip, "b", "", `step ${grouped(step)}`);
    const more = this.view.describe(step);
    if (more) make(make(this.tip, "div"), "small", "", more);
    rows.forEach((point, index) => {
      const { kind, name } = this.series[index];
      const row = make(this.tip, "div", kind);
      make(row, "i", "", name);
      make(row, "span", "", format(point.y));
      if (point.high > point.low) make(make(this.tip, "div"), "small", "", `${format(point.low)} to ${format(point.high)} in ${point.count} steps`);
      else if (Math.abs(point.step - step) > 0.5 && index) make(make(this.tip, "div"), "small", "", `at step ${grouped(point.step)}`);
    });
    const scale = this.plot.clientWidth / this.svg.viewBox.baseVal.width;
    const room = this.plot.clientWidth - this.tip.offsetWidth;
    const right = at * scale + 14;
    this.tip.style.left = `${Math.max(0, Math.min(right <= room ? right : at * scale - 14 - this.tip.offsetWidth, room))}px`;
  }

  listen() {
    const move = (event) => {
      const area = this.plot.getBoundingClientRect();
      const pixel = (event.clientX - area.left) * (this.svg.viewBox.baseVal.width / area.width);
      this.view.point(this.view.stepAt(this.x.invert(Math.min(Math.max(pixel, this.box.left), this.box.right))), this);
    };
    this.plot.addEventListener("pointermove", move);
    this.plot.addEventListener("pointerdown", move);
    this.plot.addEventListener("pointerleave", () => this.view.point(null, this));
    this.plot.addEventListener("blur", () => this.view.point(null, this));
    this.plot.addEventListener("keydown", (event) => {
      const { points } = this.series[0];
      const jump = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Escape") this.view.point(null, this);
      if (jump === undefined) return;
      event.preventDefault();
      const index = this.view.step === null ? (jump < 0 ? points.length : -1) : nearest(points, this.view.step);
      this.view.point(points[Math.min(Math.max(index + jump, 0), points.length - 1)].step, this);
    });
  }
}
