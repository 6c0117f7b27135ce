// The page: draws the charts of this run, and reads itself again while the run goes on.

const run = JSON.parse(document.getElementById("run").textContent);
const recall = (name) => {
  try {
    return JSON.parse(sessionStorage.getItem(`andrea ${run.id} ${name}`));
  } catch {
    return null;
  }
};
const remember = (name, what) => {
  try {
    sessionStorage.setItem(`andrea ${run.id} ${name}`, JSON.stringify(what));
  } catch {
    // Storage is closed to some local files: then a reload begins afresh.
  }
};

const curve = (name) => {
  const { step, mean, low, high, count } = run.curves[name];
  return step.map((at, index) => ({ step: at, y: mean[index], low: low[index], high: high[index], count: count[index] }));
};
const elapsed = curve("seconds");
// Seconds of training until a step, and the step after so many seconds: between points a line.
const between = (at, from, to) => {
  if (elapsed.length < 2) return elapsed.length ? elapsed[0][to] : 0;
  let low = 0, high = elapsed.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (elapsed[middle][from] < at) low = middle; else high = middle;
  }
  const before = elapsed[low], after = elapsed[high];
  const share = (at - before[from]) / (after[from] - before[from] || 1);
  return before[to] + Math.min(Math.max(share, 0), 1) * (after[to] - before[to]);
};

const axes = {
  steps: { name: "step", at: (step) => step, step: (x) => x, ticks: linearTicks, text: count },
  time: { name: "time in training", at: (step) => between(step, "step", "y"), step: (x) => between(x, "y", "step"), ticks: timeTicks, text: time },
  tokens: { name: "tokens seen", at: (step) => step * run.tokensPerStep, step: (x) => x / run.tokensPerStep, ticks: linearTicks, text: count },
};
const charts = [];
const steps = Object.keys(run.curves).flatMap((name) => run.curves[name].step);
const view = {
  from: steps.length ? steps.reduce((a, b) => Math.min(a, b)) : 0,
  to: Math.max(steps.reduce((a, b) => Math.max(a, b), 1), 1),
  axis: axes[recall("x")] ?? axes.steps,
  log: recall("y") === "log",
  step: null,
  chosen: null,
  at: (step) => view.axis.at(step),
  stepAt: (x) => Math.round(view.axis.step(x)),
  describe: (step) => {
    const parts = [];
    if (elapsed.length > 1) parts.push(time(between(step, "step", "y")));
    if (run.tokensPerStep) parts.push(`${count(step * run.tokensPerStep)} tokens`);
    return parts.join(", ");
  },
  point: (step, here) => {
    view.step = step;
    for (const chart of charts) chart.show(step, chart === here);
  },
};

const makeSwitch = (parent, title, names, chosen, onChange) => {
  const group = make(parent, "fieldset", "switch");
  make(group, "legend", "hidden", title);
  for (const name of names) {
    const label = make(group, "label");
    const input = make(label, "input");
    Object.assign(input, { type: "radio", name: title, value: name, checked: name === chosen });
    make(label, "span", "", name);
    input.addEventListener("change", () => onChange(name));
  }
};
const drawAll = () => {
  for (const chart of charts) chart.render();
};

const host = document.getElementById("curves");
const single = (id, title, unit, lineIs = {}, more = {}) => {
  const points = curve(id);
  const series = [{ name: title.toLowerCase(), kind: "other", points, ...lineIs }];
  if (points.length) charts.push(new Chart(host, { id, title, unit, series, ...more }, view));
};
if (run.curves.loss.step.length || run.curves.validation.step.length) {
  charts.push(new Chart(host, {
    id: "loss",
    title: "Loss",
    unit: "nats per token",
    wide: true,
    canBeLog: true,
    best: run.best,
    events: run.events,
    sessions: run.sessions,
    series: [
      { name: "training", kind: "training", points: curve("loss"), smoothed: true },
      { name: "validation", kind: "validation", points: curve("validation"), dots: true },
    ],
  }, view));
  const controls = make(charts[0].caption, "div", "controls");
  const names = Object.keys(axes).filter((name) => (name !== "tokens" || run.tokensPerStep) && (name !== "time" || elapsed.length > 1));
  makeSwitch(controls, "horizontal axis", names, names.find((name) => axes[name] === view.axis), (name) => {
    view.axis = axes[name];
    remember("x", name);
    drawAll();
  });
  makeSwitch(controls, "vertical axis", ["linear", "log"], view.log ? "log" : "linear", (name) => {
    view.log = name === "log";
    remember("y", name);
    drawAll();
  });
}
single("bits_per_byte", "Bits per byte", "of validation text", { kind: "validation", dots: true });
single("gradient_norm", "Gradient norm", "before clipping", { smoothed: true }, { canBeLog: true });
single("learning_rate", "Learning rate", "of the optimizer", {}, { fromZero: true, format: (number) => String(Number(number.toPrecision(3))) });
single("tokens_per_second", "Speed", "tokens per second", { smoothed: true }, { fromZero: true, format: count });
single("coherence", "Coherence of samples", "0 to 100", { dots: true }, { domain: [0, 100], format: (number) => String(Math.round(number)) });

// The last of an odd number of small charts is as wide as two.
if (charts.length > 1 && charts.length % 2 === 0) charts[charts.length - 1].host.classList.add("wide");

const isPlaying = showSamples(run.samples, (step) => {
  view.chosen = step;
  for (const chart of charts) chart.choose(step);
});
drawAll();

let width = host.clientWidth;
new ResizeObserver(() => {
  if (host.clientWidth !== width) {
    width = host.clientWidth;
    requestAnimationFrame(drawAll);
  }
}).observe(host);

if (run.live) {
  const status = document.getElementById("status"), said = status.textContent;
  const look = () => {
    const silent = Date.now() / 1000 - run.generated;
    // A run that was killed cannot say so.
    if (silent > Math.max(600, 10 * run.reload)) {
      status.textContent = `${said}; no news for ${time(silent)}`;
      status.parentElement.classList.add("silent");
    }
  };
  const reload = () => {
    look();
    const isBusy = view.step !== null || isPlaying?.() || String(getSelection()) !== "" || document.hidden;
    if (isBusy) setTimeout(reload, 2000);
    else location.reload();
  };
  look();
  setTimeout(reload, 1000 * run.reload);
}
document.documentElement.dataset.drawn = charts.length;
