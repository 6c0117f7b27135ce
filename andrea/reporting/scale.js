// Numbers and scales: what an axis is divided into, and how its values are written.

const niceStep = (rough) => {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
};

const linearTicks = (low, high, count) => {
  const step = niceStep((high - low) / count);
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) ticks.push(n * step);
  return ticks;
};

const logTicks = (low, high, count) => {
  const ticks = [];
  for (let decade = Math.floor(Math.log10(low)); decade <= Math.ceil(Math.log10(high)); decade++) {
    for (const factor of [1, 2, 5]) {
      const tick = factor * 10 ** decade;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  if (ticks.length < 3) return linearTicks(low, high, count);
  if (ticks.length <= 2 * count) return ticks;
  return ticks.filter((tick) => Math.abs(Math.log10(tick) % 1) < 1e-9);
};

const timeSteps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
const timeTicks = (low, high, count) => {
  const rough = (high - low) / count;
  const step = timeSteps.find((one) => one >= rough) ?? 86400 * niceStep(rough / 86400);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(tick);
  return ticks;
};

const grouped = (number) => Math.round(number).toLocaleString("en-US");

const count = (number) => {
  for (const [size, unit] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (number >= size) return `${Number((number / size).toPrecision(3))}${unit}`;
  }
  return String(Number(number.toPrecision(3)));
};

const time = (seconds) => {
  const parts = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  const first = parts.findIndex(([size]) => seconds >= size);
  if (first < 0) return seconds > 0 ? `${seconds.toFixed(1)}s` : "0";
  const [size, unit] = parts[first];
  let whole = Math.floor(seconds / size), rest = "";
  if (first < 3) {
    const [small, name] = parts[first + 1];
    const left = Math.round((seconds - whole * size) / small);
    if (left > 0 && left * small < size) rest = ` ${left}${name}`;
    else if (left > 0) whole += 1;
  }
  return `${whole}${unit}${rest}`;
};

// A value with as many digits as tell it apart from its neighbours.
const value = (number) => {
  const size = Math.abs(number);
  if (size === 0) return "0";
  if (size >= 1e5) return count(number);
  if (size < 1e-3) return number.toExponential(2).replace("e-", "e\u2212").replace(/\.?0+e/, "e");
  return size >= 1000 ? grouped(number) : number.toPrecision(4);
};

// largest: of the axis; all of its ticks have the one form, 5k beside 10k.
const tickText = (tick, step, largest = Math.abs(tick)) => {
  if (Math.abs(tick) < step * 1e-6) return "0";
  if (largest >= 1e4) return count(tick);
  if (Math.abs(tick) < 1e-3) return Number(tick.toPrecision(3)).toExponential().replace("-", "\u2212");
  return tick.toFixed(Math.max(0, Math.min(6, Math.ceil(-Math.log10(step) - 1e-9))));
};

const makeScale = (low, high, from, to, isLog) => {
  const map = isLog ? Math.log : (number) => number;
  const start = map(low), slope = (to - from) / (map(high) - start || 1);
  const scale = (number) => from + (map(number) - start) * slope;
  scale.invert = (pixel) => {
    const at = start + (pixel - from) / slope;
    return isLog ? Math.exp(at) : at;
  };
  return scale;
};
