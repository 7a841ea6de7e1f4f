"use strict";
// Timelines: the film of a clip, and under it bars of named spans, all over one axis of seconds.

const FILM_HEIGHT = 56; // pixels
const STEP_COLORS = 8;
const MOST_BARS = 16; // of the answers of one group

const seconds = (value) => `${Number(value.toFixed(3))}`;
const rounded = (value) => `${Number(value.toFixed(2))}`;

// "(2) insert the fan", or the name alone where a step has no number.
function stepText(span) {
  return span.number === null ? span.name : `(${span.number}) ${span.name}`.trim();
}

function spanText(span) {
  return `${seconds(span.start)} to ${seconds(span.end)} s ${stepText(span)}`;
}

// What identifies a step, and a class with its colour: by its number, so that a step has one colour on all pages.
const stepKey = (span) => span.number ?? span.name;

function stepColor(span) {
  if (span.number !== null) return `step-${(span.number + STEP_COLORS - 1) % STEP_COLORS}`;
  let sum = 0;
  for (const letter of span.name) sum += letter.codePointAt(0);
  return `step-${sum % STEP_COLORS}`;
}

// The row of each span: spans that overlap lie below each other.
function lanesOf(spans) {
  const ends = []; // the last end in each row
  const order = spans.map((_, n) => n).sort((a, b) => spans[a].start - spans[b].start || spans[a].end - spans[b].end);
  const lanes = [];
  for (const n of order) {
    const free = ends.findIndex((end) => end <= spans[n].start);
    const lane = free < 0 ? ends.length : free;
    ends[lane] = spans[n].end;
    lanes[n] = lane;
  }
  return lanes;
}

// Where a span lies on an axis of `length` seconds, as a style.
function spanStyle(span, lane, length) {
  const part = (value) => 100 * Math.min(1, Math.max(0, value / length));
  return {
    left: `${part(span.start)}%`,
    width: `${part(span.end) - part(span.start)}%`,
    top: `calc(${lane} * var(--lane))`,
  };
}

// One bar: each span with the number of its step. Spans that find none of the solution are hatched.
function barView(spans, length) {
  const lanes = lanesOf(spans);
  const drawn = spans.map((span, n) => {
    const lost = span.found === false;
    const overlap = span.iou === undefined ? "" : `, IoU ${rounded(span.iou)}`;
    const element = h(
      "span",
      { class: `span ${stepColor(span)}${lost ? " lost" : ""}`, title: spanText(span) + overlap },
      span.number === null ? span.name : String(span.number),
    );
    Object.assign(element.style, spanStyle(span, lanes[n], length));
    return element;
  });
  const label = spans.map(spanText).join("; ") || "no span";
  return h(
    "div",
    {
      class: "lanes",
      role: "img",
      "aria-label": label,
      style: `--lanes:${Math.max(1, ...lanes.map((lane) => lane + 1))}`,
    },
    drawn,
  );
}

// The frames that the model saw, each where it is nearest to its time, and the seconds below them.
function filmView(clip, length) {
  const film = h("div", { class: "film" });
  const axis = h("div", { class: "axis-of-seconds", "aria-hidden": "true" });
  const strip = clip && report.strips[clip.strip];
  const pictured = Boolean(strip && !strip.problem);
  const draw = (width) => {
    const ticks = niceTicks(0, length, Math.max(2, width / 70)).filter((tick) => tick >= 0 && tick <= length);
    axis.replaceChildren(
      ...ticks.map((tick) => h("span", { style: placeOnAxis(tick / length) }, `${seconds(tick)} s`)),
    );
    if (!pictured) return;
    const count = Math.max(1, Math.round(width / (FILM_HEIGHT * strip.ratio)));
    const middles = Array.from({ length: count }, (_, cell) => ((cell + 0.5) * length) / count);
    film.replaceChildren(
      ...middles.map((time) => {
        const n = nearestTo(clip.times, time);
        return h("i", { title: `${clip.times[n].toFixed(2)} s`, style: pictureStyle(clip.strip, n) });
      }),
    );
  };
  let width = 0;
  new ResizeObserver(() => {
    if (axis.clientWidth === width) return;
    width = axis.clientWidth;
    if (width) draw(width);
  }).observe(axis);
  return [pictured ? film : null, axis];
}

// Texts at both ends of the axis stay inside of it.
function placeOnAxis(share) {
  const shift = share < 0.03 ? 0 : share > 0.95 ? -100 : -50;
  return `left:${100 * share}%;transform:translateX(${shift}%)`;
}

// The steps that spans name, each once, with their colours.
function stepsLegend(spans) {
  const steps = new Map();
  for (const span of spans) {
    const known = steps.get(stepKey(span));
    if (!known || (!known.name && span.name)) steps.set(stepKey(span), span);
  }
  const order = [...steps.values()].sort((a, b) => (a.number === null) - (b.number === null) || a.number - b.number);
  return h(
    "p",
    { class: "legend" },
    order.slice(0, 40).map((span) => h("span", {}, h("i", { class: `key ${stepColor(span)}` }), stepText(span))),
  );
}

// Film, the bar of the solution and a bar for each answer. answers: [{title, timeline}], in the order they are shown.
function timelineView(timeline, clips, answers) {
  const { length } = timeline;
  const bar = (title, spans) => h("div", { class: "bar-of-spans" }, h("p", {}, title), barView(spans, length));
  const named = answers.flatMap((each) => each.timeline.spans);
  const lost = named.some((span) => !span.found);
  return h(
    "div",
    { class: "timeline" },
    filmView(clips.length === 1 ? clips[0] : null, length),
    bar("solution", timeline.spans),
    answers.slice(0, MOST_BARS).map((each) => bar(each.title, each.timeline.spans)),
    answers.length > MOST_BARS
      ? h("p", { class: "fine" }, `The spans of ${answers.length - MOST_BARS} more stand with their texts below.`)
      : null,
    stepsLegend([...timeline.spans, ...named]),
    lost
      ? h("p", { class: "fine" }, "Hatched: it overlaps no span of the same step in the solution by at least half.")
      : null,
  );
}

// The spans of an answer in words, each with its overlap, and those of the solution that it does not find.
function spansView(answered, timeline) {
  const given = answered.spans.map((span) =>
    h(
      "span",
      { class: span.found ? "right" : "wrong", title: `intersection over union ${span.iou}` },
      `${span.found ? "✓" : "✗"} ${spanText(span)}, IoU ${rounded(span.iou)}`,
    ),
  );
  const missed = answered.missed.map((place) =>
    h("span", { class: "missing", title: "no span of the answer finds it" }, spanText(timeline.spans[place])),
  );
  const more = answered.more ? h("span", { class: "soft" }, `and ${answered.more.toLocaleString("en")} more`) : null;
  return h(
    "p",
    { class: "answer spans" },
    given.length ? given : h("span", { class: "wrong" }, "no span was found in the answer"),
    more,
    missed,
  );
}
