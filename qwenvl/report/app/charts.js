"use strict";
// Curves as pictures of lines, drawn to the width they have. Pale: the values. Bold: smoothed.

const HEIGHT = 170, LEFT = 46, RIGHT = 10, TOP = 8, BOTTOM = 22;

function drawCharts() {
  for (const box of document.querySelectorAll(".charts")) {
    const charts = report.data.sections[box.dataset.section] || [];
    const phases = box.dataset.section === "fast" ? report.data.phases : [];
    const first = phases.map((each) => card(phaseCard(each), phaseChart));
    first.push(...charts.filter((each) => each.main).map((each) => card(each, lineChart)));
    box.append(...first);
    const rest = charts.filter((each) => !each.main);
    if (rest.length) box.after(moreCharts(rest));
    if (!charts.length && !first.length) box.append(h("p", { class: "fine" }, "Nothing was logged yet."));
  }
}

function moreCharts(charts) {
  const box = h("div", { class: "charts" });
  const more = h("details", {}, h("summary", {}, `${charts.length} more`), box);
  more.addEventListener("toggle", () => {
    if (more.open && !box.children.length) box.append(...charts.map((each) => card(each, lineChart)));
  });
  return more;
}

function phaseCard(phases) {
  const title = report.data.runs.length > 1 ? `seconds of a step: ${report.data.runs[phases.run]}` : "seconds of a step, by phase";
  return { ...phases, metric: `time/${phases.run}`, title, help: "stacked: the upper edge is their sum" };
}

// A chart with its title, drawn again whenever its width changes.
function card(chart, draw) {
  const plot = h("div", { class: "plot" });
  const told = h("div", { class: "told", "aria-live": "polite" });
  const figure = h("figure", { class: "chart", "data-metric": chart.metric }, h("figcaption", {}, h("b", {}, chart.title), h("br"), chart.help || "\u00a0"), plot, told);
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.floor(plot.clientWidth);
    if (now && now !== width) {
      width = now;
      plot.replaceChildren(draw(chart, width, told));
    }
  }).observe(plot);
  return figure;
}

// From values to places on the picture, and back.
function axes(steps, values, width) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low > 0 && low < 0.4 * high) low = 0;
  if (high === low) [low, high] = [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  const ticks = niceTicks(low, high, 4);
  [low, high] = [Math.min(low, ticks[0]), Math.max(high, ticks[ticks.length - 1])];
  const [first, last] = [steps[0], steps[steps.length - 1]];
  const span = Math.max(1, last - first);
  return {
    ticks,
    stepTicks: niceTicks(first, last, Math.max(2, Math.floor(width / 90))).filter((each) => Number.isInteger(each) && each >= first && each <= last),
    x: (step) => LEFT + ((step - first) / span) * (width - LEFT - RIGHT),
    y: (value) => TOP + (1 - (value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM),
    step: (x) => first + ((x - LEFT) / (width - LEFT - RIGHT)) * span,
  };
}

function niceTicks(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const ticks = [];
  for (let n = Math.floor(low / size); n <= Math.ceil(high / size); n++) ticks.push(Number((n * size).toPrecision(12)));
  return ticks;
}

function frame(scale, width, label) {
  const picture = svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const tick of scale.ticks) {
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: scale.y(tick), y2: scale.y(tick) }));
    picture.append(svg("text", { class: "tick", x: LEFT - 6, y: scale.y(tick) + 4, "text-anchor": "end" }, tickText(tick, scale.ticks)));
  }
  for (const tick of scale.stepTicks) picture.append(svg("text", { class: "tick", x: scale.x(tick), y: HEIGHT - 6, "text-anchor": "middle" }, String(tick)));
  return picture;
}

// As many digits as it takes to tell neighbours apart.
function tickText(tick, ticks) {
  const size = ticks[1] - ticks[0], largest = Math.max(...ticks.map(Math.abs));
  if (largest >= 1e6 || size < 1e-5) return tick === 0 ? "0" : tick.toExponential(1);
  return tick.toLocaleString("en", { maximumFractionDigits: Math.max(0, -Math.floor(Math.log10(size))) });
}

// Lines of what is there: a value that is null leaves a gap.
function linePath(steps, values, scale) {
  let path = "", pen = "M";
  steps.forEach((step, n) => {
    if (values[n] === null) { pen = "M"; return; }
    path += `${pen}${scale.x(step).toFixed(1)} ${scale.y(values[n]).toFixed(1)}`;
    pen = "L";
  });
  return path;
}

function lineChart(chart, width, told) {
  const steps = [...new Set(chart.curves.flatMap((each) => each.steps))].sort((a, b) => a - b);
  const values = chart.curves.flatMap((each) => (each.points ? around(each.points) : [...each.raw, ...each.smooth])).filter((each) => each !== null);
  if (!values.length) return h("p", { class: "fine" }, "No finite value.");
  const scale = axes(steps, values, width);
  const picture = frame(scale, width, `${chart.title}, last ${chart.curves.map((each) => brief(lastOf(each))).join(" and ")}`);
  for (const curve of chart.curves) picture.append(...(curve.points ? drawPoints(curve, scale) : drawCurve(curve, scale)));
  hover(picture, steps, scale, width, told, (step) => chart.curves.map((curve) => toldOf(curve, step)));
  return picture;
}

function around(points) {
  return points.mean.flatMap((mean, n) => (points.ci95[n] === null ? [mean] : [mean - points.ci95[n], mean + points.ci95[n]]));
}

function lastOf(curve) {
  const values = curve.points ? curve.points.mean : curve.smooth;
  return values[values.length - 1];
}

function drawCurve(curve, scale) {
  const kind = `run-${curve.run % 8}`;
  const lines = [svg("path", { class: `raw ${kind}`, d: linePath(curve.steps, curve.raw, scale) }), svg("path", { class: `smooth ${kind}`, d: linePath(curve.steps, curve.smooth, scale) })];
  if (curve.steps.length === 1 && curve.raw[0] !== null) lines.push(svg("circle", { class: `dot ${kind}`, cx: scale.x(curve.steps[0]), cy: scale.y(curve.raw[0]), r: 3 }));
  return lines;
}

function drawPoints(curve, scale) {
  const { mean, ci95 } = curve.points, kind = `run-${curve.run % 8}`;
  const shift = (curve.run % 4) * 3; // intervals of runs at the same step stand side by side
  const drawn = [svg("path", { class: `smooth ${kind}`, d: linePath(curve.steps, mean, { x: (step) => scale.x(step) + shift, y: scale.y }) })];
  curve.steps.forEach((step, n) => {
    if (mean[n] === null) return;
    const x = scale.x(step) + shift;
    if (ci95[n] !== null) {
      const [top, bottom] = [scale.y(mean[n] + ci95[n]), scale.y(mean[n] - ci95[n])];
      drawn.push(svg("path", { class: `interval ${kind}`, d: `M${x} ${top}V${bottom}M${x - 4} ${top}h8M${x - 4} ${bottom}h8` }));
    }
    drawn.push(svg("circle", { class: `dot ${kind}`, cx: x, cy: scale.y(mean[n]), r: 3.5 }));
  });
  return drawn;
}

function nearest(steps, step) {
  let best = 0;
  steps.forEach((each, n) => { if (Math.abs(each - step) < Math.abs(steps[best] - step)) best = n; });
  return best;
}

function toldOf(curve, step) {
  const n = nearest(curve.steps, step);
  const value = curve.points
    ? `${brief(curve.points.mean[n])}${curve.points.ci95[n] === null ? "" : ` ± ${brief(curve.points.ci95[n])}`}`
    : `${brief(curve.raw[n])}, smoothed ${brief(curve.smooth[n])}${curve.each > 1 ? ` (mean of ${curve.each} rows)` : ""}`;
  const at = curve.steps[n] === step ? "" : ` at ${curve.steps[n]}`;
  return { kind: `run-${curve.run % 8}`, text: `${report.data.runs.length > 1 ? `${report.data.runs[curve.run]}: ` : ""}${value}${at}` };
}

// A line under the pointer, and in words what stands there.
function hover(picture, steps, scale, width, told, words) {
  const line = svg("line", { class: "pointer", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  picture.append(line);
  picture.addEventListener("pointermove", (event) => {
    const x = event.clientX - picture.getBoundingClientRect().left;
    const step = steps[nearest(steps, scale.step(x))];
    setAttributes(line, { x1: scale.x(step), x2: scale.x(step), visibility: "visible" });
    told.replaceChildren(h("b", {}, `step ${step}`), ...words(step).map((each) => h("span", {}, h("i", { class: `key ${each.kind}` }), each.text)));
  });
  picture.addEventListener("pointerleave", () => {
    line.setAttribute("visibility", "hidden");
    told.replaceChildren();
  });
}

function phaseChart(phases, width, told) {
  const sums = [phases.steps.map(() => 0)];
  phases.values.forEach((values, n) => sums.push(values.map((value, at) => sums[n][at] + (value || 0))));
  const scale = axes(phases.steps, [0, ...sums[sums.length - 1]], width);
  const picture = frame(scale, width, `seconds of a step: ${phases.names.join(", ")}`);
  phases.names.forEach((name, n) => {
    const upper = phases.steps.map((step, at) => `${scale.x(step).toFixed(1)} ${scale.y(sums[n + 1][at]).toFixed(1)}`);
    const lower = phases.steps.map((step, at) => `${scale.x(step).toFixed(1)} ${scale.y(sums[n][at]).toFixed(1)}`);
    picture.append(svg("path", { class: `area phase-${n % 8}`, d: `M${upper.join("L")}L${lower.reverse().join("L")}Z` }));
  });
  hover(picture, phases.steps, scale, width, told, (step) => {
    const at = phases.steps.indexOf(step);
    return phases.names.map((name, n) => ({ kind: `phase-${n % 8}`, text: `${name} ${brief(phases.values[n][at])} s` }));
  });
  const all = phases.means.reduce((sum, each) => sum + each, 0) || 1;
  const legend = phases.names.map((name, n) => h("span", {}, h("i", { class: `key phase-${n % 8}` }), `${name} ${Math.round((100 * phases.means[n]) / all)} %`));
  return h("div", {}, picture, h("div", { class: "legend" }, legend));
}
