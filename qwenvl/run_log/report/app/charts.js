"use strict";
// Curves, drawn to the width they have. Pale: the values. Bold: their exponential mean.

const HEIGHT = 200;
const LEFT = 50;
const RIGHT = 12;
const TOP = 20;
const BOTTOM = 38;

// What the controls above the curves set: smoothing in percent of a curve, the horizontal axis, and hidden runs.
const view = { smoothing: 3, axis: "step", hidden: new Set(), draw: new Set() };

function drawCharts() {
  document.querySelector("#controls").append(...controls());
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

function controls() {
  const { runs, clocks } = report.data;
  const redraw = (change) => {
    Object.assign(view, change);
    for (const draw of view.draw) draw();
  };
  const toggle = (run) => (event) => {
    view.hidden[view.hidden.has(run) ? "delete" : "add"](run);
    event.currentTarget.setAttribute("aria-pressed", !view.hidden.has(run));
    redraw({});
  };
  const keys = runs.map((name, run) =>
    h(
      "button",
      { type: "button", class: "toggle", "aria-pressed": "true", title: `show or hide ${name}`, onclick: toggle(run) },
      h("i", { class: `key run-${run % 8}` }),
      shortName(name, 40),
    ),
  );
  const said = h("output", {}, `${view.smoothing} %`);
  const slider = h("input", {
    type: "range",
    id: "smoothing",
    min: 0,
    max: 20,
    value: view.smoothing,
    oninput: (event) => {
      said.textContent = `${event.target.value} %`;
      redraw({ smoothing: Number(event.target.value) });
    },
  });
  const axis = h(
    "select",
    { id: "axis", onchange: (event) => redraw({ axis: event.target.value }) },
    h("option", { value: "step" }, "step"),
    h("option", { value: "hours" }, "hours of training"),
  );
  return [
    runs.length > 1 ? h("span", { class: "runs-shown" }, keys) : null,
    h("label", { title: "half-life of the exponential mean, in percent of the curve" }, "smoothing", slider, said),
    clocks.some(Boolean) ? h("label", { title: "hours: the sum of the phases of the steps" }, "over", axis) : null,
  ].filter(Boolean);
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
  const title =
    report.data.runs.length > 1
      ? `phases of a step: ${shortName(report.data.runs[phases.run], 40)}`
      : "phases of a step";
  return {
    ...phases,
    metric: `time/${phases.run}`,
    title,
    unit: "seconds per step",
    help: "stacked: the upper edge is their sum",
  };
}

// A chart with its title, drawn again whenever its width or a control changes.
function card(chart, draw) {
  const plot = h("div", { class: "plot" });
  const readout = h("div", { class: "told", "aria-live": "polite" });
  const save = h(
    "button",
    { type: "button", class: "csv", title: `save ${chart.metric} as a table`, onclick: () => saveTable(chart) },
    "CSV",
  );
  const figure = h(
    "figure",
    { class: "chart", "data-metric": chart.metric },
    h("figcaption", {}, save, h("b", {}, chart.title), h("br"), chart.help || "\u00a0"),
    plot,
    readout,
  );
  const redraw = () => {
    if (plot.clientWidth) plot.replaceChildren(draw(chart, Math.floor(plot.clientWidth), readout));
  };
  let width = 0;
  new ResizeObserver(() => {
    if (plot.clientWidth === width) return;
    width = plot.clientWidth;
    redraw();
  }).observe(plot);
  view.draw.add(redraw);
  return figure;
}

// The values of a chart as a CSV file.
function saveTable(chart) {
  const name = (run) => `"${report.data.runs[run].replaceAll('"', '""')}"`;
  const rows = chart.names
    ? [
        ["run", "step", ...chart.names],
        ...chart.steps.map((step, at) => [name(chart.run), step, ...chart.values.map((values) => values[at])]),
      ]
    : [
        ["run", "step", "value", "ci95"],
        ...chart.curves.flatMap((curve) =>
          curve.steps.map((step, n) => [name(curve.run), step, curve.values[n], curve.ci95 ? curve.ci95[n] : null]),
        ),
      ];
  const lines = rows.map((row) => row.map((each) => each ?? "").join(","));
  download(`${chart.metric.replaceAll("/", "-")}.csv`, `${lines.join("\n")}\n`, "text/csv");
}

// The exponential mean of the values so far. The weights are divided by their sum, so that it has no bias to the first.
function smoothed(values, halfLife) {
  if (halfLife < 0.5) return values;
  const keep = 0.5 ** (1 / halfLife);
  let total = 0;
  let weight = 0;
  return values.map((value) => {
    if (value !== null) [total, weight] = [keep * total + value, keep * weight + 1];
    return weight ? total / weight : null;
  });
}

// Where the points of a run lie on the horizontal axis.
function placesOf(run, steps) {
  const clock = report.data.clocks[run];
  if (view.axis === "step") return steps;
  return clock ? steps.map((step) => hoursAt(clock, step)) : null;
}

function hoursAt({ steps, hours }, step) {
  const after = steps.findIndex((each) => each >= step);
  if (after < 0) return hours.at(-1);
  if (after === 0) return hours[0];
  const share = (step - steps[after - 1]) / (steps[after] - steps[after - 1]);
  return hours[after - 1] + share * (hours[after] - hours[after - 1]);
}

// From values to places on the picture, and back.
function scales(places, values, width) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low > 0 && low < 0.4 * high) low = 0;
  if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high))) {
    [low, high] = [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  }
  const ticks = niceTicks(low, high, 4);
  [low, high] = [Math.min(low, ticks[0]), Math.max(high, ticks.at(-1))];
  const [first, last] = [Math.min(...places), Math.max(...places)];
  const span = last - first || 1;
  const along = niceTicks(first, last, Math.max(2, Math.floor(width / 90))).filter(
    (each) => each >= first && each <= last,
  );
  return {
    ticks,
    along: view.axis === "step" ? along.filter(Number.isInteger) : along,
    x: (place) => LEFT + ((place - first) / span) * (width - LEFT - RIGHT),
    y: (value) => TOP + (1 - (value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM),
    place: (x) => first + ((x - LEFT) / (width - LEFT - RIGHT)) * span,
  };
}

function frame(scale, width, label, unit) {
  const picture = svg("svg", {
    width,
    height: HEIGHT,
    viewBox: `0 0 ${width} ${HEIGHT}`,
    role: "img",
    tabindex: 0,
    "aria-label": label,
  });
  picture.append(svg("text", { class: "axis", x: 0, y: 10 }, unit));
  for (const tick of scale.ticks) {
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: scale.y(tick), y2: scale.y(tick) }));
    picture.append(
      svg(
        "text",
        { class: "tick", x: LEFT - 6, y: scale.y(tick) + 4, "text-anchor": "end" },
        tickText(tick, scale.ticks),
      ),
    );
  }
  for (const tick of scale.along) {
    picture.append(
      svg(
        "text",
        { class: "tick", x: scale.x(tick), y: HEIGHT - 22, "text-anchor": "middle" },
        tickText(tick, scale.along),
      ),
    );
  }
  picture.append(
    svg(
      "text",
      { class: "axis", x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 5, "text-anchor": "middle" },
      view.axis === "step" ? "step" : "hours of training",
    ),
  );
  return picture;
}

// As many digits as it takes to tell neighbours apart.
function tickText(tick, ticks) {
  if (ticks.length < 2) return brief(tick);
  const size = ticks[1] - ticks[0];
  const largest = Math.max(...ticks.map(Math.abs));
  if (largest >= 1e6 || size < 1e-5) return tick === 0 ? "0" : tick.toExponential(1);
  return tick.toLocaleString("en", { maximumFractionDigits: Math.max(0, -Math.floor(Math.log10(size))) });
}

// A line through the values. One that is null leaves a gap.
function linePath(places, values, scale) {
  let path = "";
  let pen = "M";
  places.forEach((place, n) => {
    if (values[n] === null) {
      pen = "M";
      return;
    }
    path += `${pen}${scale.x(place).toFixed(1)} ${scale.y(values[n]).toFixed(1)}`;
    pen = "L";
  });
  return path;
}

function lineChart(chart, width, readout) {
  const exact = chart.unit === "learning rate"; // a schedule has no noise that could be smoothed away
  const curves = chart.curves
    .filter((each) => !view.hidden.has(each.run))
    .map((each) => ({
      ...each,
      places: placesOf(each.run, each.steps),
      smooth: each.ci95 || exact ? each.values : smoothed(each.values, (each.values.length * view.smoothing) / 100),
    }))
    .filter((each) => each.places);
  const values = curves
    .flatMap((each) => (each.ci95 ? ends(each) : [...each.values, ...each.smooth]))
    .filter((each) => each !== null);
  if (!values.length) {
    return h("p", { class: "fine" }, chart.curves.length > curves.length ? "Its runs are hidden." : "No finite value.");
  }
  const scale = scales(
    curves.flatMap((each) => each.places),
    values,
    width,
  );
  const picture = frame(
    scale,
    width,
    `${chart.title}, last ${curves.map((each) => brief(each.smooth.at(-1))).join(" and ")}`,
    chart.unit,
  );
  for (const curve of curves) picture.append(...(curve.ci95 ? drawPoints(curve, scale) : drawCurve(curve, scale)));
  const places = [...new Set(curves.flatMap((each) => each.places))].sort((a, b) => a - b);
  hover(picture, places, scale, readout, (place) => curves.map((curve) => readoutOf(curve, place)));
  return picture;
}

function ends({ values, ci95 }) {
  return values.flatMap((mean, n) => (ci95[n] === null ? [mean] : [mean - ci95[n], mean + ci95[n]]));
}

function drawCurve(curve, scale) {
  const kind = `run-${curve.run % 8}`;
  const lines = [
    svg("path", { class: `raw ${kind}`, d: linePath(curve.places, curve.values, scale) }),
    svg("path", { class: `smooth ${kind}`, d: linePath(curve.places, curve.smooth, scale) }),
  ];
  if (curve.steps.length === 1 && curve.values[0] !== null) {
    lines.push(
      svg("circle", { class: `dot ${kind}`, cx: scale.x(curve.places[0]), cy: scale.y(curve.values[0]), r: 3 }),
    );
  }
  return lines;
}

function drawPoints(curve, scale) {
  const { places, values, ci95 } = curve;
  const kind = `run-${curve.run % 8}`;
  const shift = (curve.run % 4) * 3; // intervals of runs at the same step are side by side
  const drawn = [
    svg("path", {
      class: `smooth ${kind}`,
      d: linePath(places, values, { x: (place) => scale.x(place) + shift, y: scale.y }),
    }),
  ];
  places.forEach((place, n) => {
    if (values[n] === null) return;
    const x = scale.x(place) + shift;
    if (ci95[n] !== null) {
      const [top, bottom] = [scale.y(values[n] + ci95[n]), scale.y(values[n] - ci95[n])];
      drawn.push(
        svg("path", { class: `interval ${kind}`, d: `M${x} ${top}V${bottom}M${x - 4} ${top}h8M${x - 4} ${bottom}h8` }),
      );
    }
    drawn.push(svg("circle", { class: `dot ${kind}`, cx: x, cy: scale.y(values[n]), r: 3.5 }));
  });
  return drawn;
}

function readoutOf(curve, place) {
  const n = nearestTo(curve.places, place);
  const trend = curve.smooth === curve.values ? "" : `, smoothed ${brief(curve.smooth[n])}`;
  const spread = curve.ci95 ? (curve.ci95[n] === null ? "" : ` ± ${brief(curve.ci95[n])}`) : trend;
  const many = curve.each > 1 ? ` (mean of ${curve.each} rows)` : "";
  const name = report.data.runs.length > 1 ? `${report.data.runs[curve.run]}: ` : "";
  return {
    kind: `run-${curve.run % 8}`,
    step: curve.steps[n],
    text: `${name}${brief(curve.values[n])}${spread}${many}`,
  };
}

// A line under the pointer, also moved by the arrow keys, and the values there in words.
function hover(picture, places, scale, readout, words) {
  const line = svg("line", { class: "pointer", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  let at = places.length;
  const show = (n) => {
    at = Math.min(places.length - 1, Math.max(0, n));
    const all = words(places[at]);
    setAttributes(line, { x1: scale.x(places[at]), x2: scale.x(places[at]), visibility: "visible" });
    const head = view.axis === "step" ? `step ${places[at]}` : `${brief(places[at])} h, step ${all[0].step ?? ""}`;
    readout.replaceChildren(
      h("b", {}, head),
      ...all.map((each) => h("span", {}, h("i", { class: `key ${each.kind}` }), each.text)),
    );
  };
  const hide = () => {
    line.setAttribute("visibility", "hidden");
    readout.replaceChildren();
  };
  picture.append(line);
  picture.addEventListener("pointermove", (event) =>
    show(nearestTo(places, scale.place(event.clientX - picture.getBoundingClientRect().left))),
  );
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("blur", hide);
  picture.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) {
      event.preventDefault();
      show(at + by);
    }
  });
}

function phaseChart(phases, width, readout) {
  const places = placesOf(phases.run, phases.steps);
  if (view.hidden.has(phases.run) || !places) return h("p", { class: "fine" }, "This run is hidden.");
  const sums = [phases.steps.map(() => 0)];
  phases.values.forEach((values, n) => sums.push(values.map((value, at) => sums[n][at] + (value || 0))));
  const scale = scales(places, [0, ...sums.at(-1)], width);
  const picture = frame(scale, width, `seconds of a step: ${phases.names.join(", ")}`, phases.unit);
  phases.names.forEach((name, n) => {
    const edge = (values) =>
      places.map((place, at) => `${scale.x(place).toFixed(1)} ${scale.y(values[at]).toFixed(1)}`);
    picture.append(
      svg("path", {
        class: `area phase-${n % 8}`,
        d: `M${edge(sums[n + 1]).join("L")}L${edge(sums[n]).reverse().join("L")}Z`,
      }),
    );
  });
  hover(picture, places, scale, readout, (place) => {
    const at = nearestTo(places, place);
    return phases.names.map((name, n) => ({
      kind: `phase-${n % 8}`,
      step: phases.steps[at],
      text: `${name} ${brief(phases.values[n][at])} s`,
    }));
  });
  const all = phases.means.reduce((sum, each) => sum + each, 0) || 1;
  const legend = phases.names.map((name, n) =>
    h("span", {}, h("i", { class: `key phase-${n % 8}` }), `${name} ${Math.round((100 * phases.means[n]) / all)} %`),
  );
  return h("div", {}, picture, h("div", { class: "legend" }, legend));
}
