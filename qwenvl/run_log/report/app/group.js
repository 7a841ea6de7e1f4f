"use strict";
// One group as the page shows it: the frames once, the question, the completions side by side.

function groupView(index, n, group, go) {
  const { columns } = index;
  const chips = MARKS.filter(([mark]) => columns.marks[n] & mark).map(([, text, title]) =>
    h("span", { class: "chip", title }, text),
  );
  const rows = byAdvantage(together(group.rows));
  const place = [`step ${group.step}`, group.split === "train" ? `epoch ${group.epoch}` : group.split, group.where];
  return h(
    "article",
    {},
    h("h3", { class: "title" }, group.id, h("small", {}, place.filter(Boolean).join(" · "))),
    chips.length ? h("p", {}, chips) : null,
    ...group.suspicions.map((each) => h("p", { class: "warning" }, `${each}.`)),
    group.fitted
      ? h("p", { class: "fine" }, `To fit, the prompt was shown with less: ${JSON.stringify(group.fitted)}`)
      : null,
    group.timeline ? timelineView(group.timeline, group.clips, answersIn(rows)) : null,
    ...group.clips.map((clip) => clipView(clip, group.timeline !== null)),
    group.images.length ? h("div", { class: "frames" }, group.images.map(imageView)) : null,
    questionView(group),
    historyView(index, n, go),
    h(
      "div",
      { class: "completions" },
      rows.map((row) => completionView(row, group)),
    ),
  );
}

// Completions as bars of a timeline, each with what it is worth.
function answersIn(rows, name = "") {
  return rows.map((row) => {
    const worth = row.advantage === null ? "" : `, advantage ${signed(row.advantage)}`;
    const times = row.times > 1 ? `${row.times} × ` : "";
    return { timeline: row.timeline, title: `${name}${times}reward ${brief(row.total)}${worth}` };
  });
}

function signed(value) {
  const text = value.toFixed(2);
  return Number(text) === 0 ? "0.00" : `${value > 0 ? "+" : ""}${text}`;
}

function baseName(path) {
  return path.split(/[\\/]/).pop();
}

// Why a strip has no pictures. Null where it has some.
function missing(key) {
  const strip = report.strips[key];
  return strip ? strip.problem : "no pictures were made of it (another call of the command makes more)";
}

// A clip with its frames, `folded` where a film has shown them already.
function clipView(clip, folded = false) {
  const why = missing(clip.strip);
  const frames = clip.indices.map((index, n) => {
    const segment = clip.segments ? clip.segments[n] : null;
    return frameView(clip.strip, n, `${clip.times[n].toFixed(2)} s`, `frame ${index}`, segment);
  });
  const segments = clip.segments ? [...new Set(clip.segments)].sort((a, b) => a - b) : [];
  const head = [
    h("b", {}, baseName(clip.path)),
    ` ${clip.indices.length} ${clip.indices.length === 1 ? "frame" : "frames"}`,
    why ? h("span", { class: report.strips[clip.strip] ? "bad" : "fine" }, `: ${why}`) : null,
  ];
  if (folded) {
    return h(
      "details",
      { class: "clip" },
      h("summary", { title: clip.path }, head),
      h("div", { class: "frames" }, frames),
    );
  }
  return h(
    "div",
    { class: "clip" },
    h("p", { title: clip.path }, head),
    h("div", { class: "frames" }, frames),
    segments.length
      ? h(
          "p",
          { class: "legend" },
          "segments of the clip: ",
          segments.map((each) =>
            h("span", {}, h("i", { class: "key", style: `background:${segmentColor(each)}` }), String(each)),
          ),
        )
      : null,
  );
}

function imageView(image) {
  const figure = frameView(image.strip, 0, baseName(image.path), "");
  const why = report.strips[image.strip]?.problem;
  if (why) figure.append(h("span", { class: "bad" }, why));
  figure.classList.add("still");
  figure.title = image.path;
  return figure;
}

function segmentColor(segment) {
  return `var(--s${segment % 8})`;
}

// One picture of a strip. Without a file its time and number stand alone.
function frameView(key, n, title, caption, segment = null) {
  const strip = report.strips[key];
  const border = segment === null ? "" : `border-color:${segmentColor(segment)}`;
  let picture = null;
  if (strip && !strip.problem) {
    picture = h("button", {
      type: "button",
      class: "picture",
      "aria-label": `enlarge ${[title, caption].filter(Boolean).join(", ")}`,
      onclick: enlarge,
      style: pictureStyle(key, n),
    });
  }
  return h(
    "figure",
    { style: border, title: segment === null ? caption : `${caption}, segment ${segment}` },
    picture,
    h("figcaption", {}, h("b", {}, title), " ", caption),
  );
}

// The style of an element that shows one picture of a strip.
function pictureStyle(key, n) {
  const strip = report.strips[key];
  const column = n % strip.columns;
  const row = Math.floor(n / strip.columns);
  const share = (place, all) => (all > 1 ? (100 * place) / (all - 1) : 0);
  const size = `${100 * strip.columns}% ${100 * strip.rows}%`;
  const position = `${share(column, strip.columns)}% ${share(row, strip.rows)}%`;
  const image = `url(pictures/${key}.jpg)`;
  const background = `background-image:${image};background-size:${size};background-position:${position}`;
  return `aspect-ratio:${strip.ratio};${background}`;
}

// A frame as large as the window. The arrow keys show its neighbours, Escape closes it.
function enlarge(event) {
  const all = [...event.currentTarget.closest(".frames").querySelectorAll(".picture")];
  let at = all.indexOf(event.currentTarget);
  const large = h("div", { class: "large" });
  const caption = h("p", {});
  const move = (by) => {
    at = Math.min(all.length - 1, Math.max(0, at + by));
    const { aspectRatio, backgroundImage, backgroundSize, backgroundPosition } = all[at].style;
    Object.assign(large.style, { aspectRatio, backgroundImage, backgroundSize, backgroundPosition });
    large.style.setProperty("--ratio", Number(aspectRatio.split("/")[0]) / Number(aspectRatio.split("/")[1] || 1));
    const words = all[at].closest("figure").querySelector("figcaption").textContent;
    caption.textContent = `${words} (${at + 1} of ${all.length})`;
  };
  const button = (text, title, act) => h("button", { type: "button", title, onclick: act }, text);
  const dialog = h(
    "dialog",
    {
      class: "enlarged",
      onclose: () => {
        dialog.remove();
        all[at].focus();
      },
      onclick: (click) => {
        if (click.target === dialog) dialog.close();
      },
      onkeydown: (key) => {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[key.key];
        if (by) move(by);
        if (key.key !== "Escape" && key.key !== "Tab") key.stopPropagation();
      },
    },
    large,
    h(
      "div",
      { class: "moves" },
      button("‹", "previous frame", () => move(-1)),
      caption,
      button("›", "next frame", () => move(1)),
      button("close", "Escape", () => dialog.close()),
    ),
  );
  move(0);
  document.body.append(dialog);
  dialog.showModal();
}

function questionView(group) {
  const turns = group.prompt
    .map((each) => (group.prompt.length > 1 ? `[${each.role}] ${each.text}` : each.text))
    .join("\n\n");
  return h(
    "div",
    { class: "question" },
    h("details", { open: turns.length < 500 }, h("summary", {}, "prompt"), h("pre", {}, turns)),
    h("p", {}, h("b", {}, "solution "), group.solution),
  );
}

// The mean rewards of the same record at all its steps, each a button.
function historyView(index, n, go) {
  const own = historyOf(index, n);
  if (own.length < 2) return null;
  const { columns } = index;
  const shown = own.length > 24 ? [...own.slice(0, 8), ...own.slice(-16)] : own;
  const buttons = shown.map((each) =>
    h(
      "button",
      {
        type: "button",
        class: each === n ? "on" : null,
        onclick: () => go(each),
        title: `step ${columns.step[each]}, epoch ${columns.epoch[each]}`,
      },
      `${columns.step[each]}: ${brief(columns.mean[each])}`,
    ),
  );
  return h(
    "p",
    { class: "history" },
    h("b", {}, "this record, step: mean reward "),
    buttons,
    own.length > shown.length ? ` (${own.length - shown.length} between are left out)` : null,
  );
}

// Completions that are the same in everything are shown once, with how often they were written.
function together(rows) {
  const found = new Map();
  for (const row of rows) {
    const key = JSON.stringify([row.text, row.end, row.rewards, row.total, row.advantage, row.turns]);
    if (found.has(key)) found.get(key).times += 1;
    else found.set(key, { ...row, times: 1 });
  }
  return [...found.values()];
}

function byAdvantage(rows) {
  const key = (row) => row.advantage ?? row.total ?? -Infinity;
  return [...rows].sort((a, b) => key(b) - key(a) || a.sample - b.sample);
}

// Green above the group's mean, red below: deeper where it is farther.
function tint(advantage) {
  if (!advantage) return "transparent";
  const share = Math.round(Math.min(1, Math.abs(advantage) / 2) * 32);
  return `color-mix(in srgb, var(--${advantage > 0 ? "good" : "bad"}) ${share}%, transparent)`;
}

function completionView(row, group) {
  const calls = row.turns.reduce((sum, turn) => sum + turn.calls.length, 0);
  const head = [
    row.times > 1 ? h("b", { class: "often", title: "completions with this text" }, `${row.times} ×`) : null,
    row.advantage === null ? null : h("b", { title: "advantage" }, signed(row.advantage)),
    h("span", { title: "total reward" }, `reward ${brief(row.total)}`),
    h("span", {}, `${row.tokens} tokens`),
    calls ? h("span", {}, calls === 1 ? "1 call" : `${calls} calls`) : null,
    h("span", { class: row.end === "length" ? "bad" : null }, row.end === "length" ? "cut at the limit" : row.end),
  ];
  return h(
    "div",
    { class: "completion", "data-sample": row.sample },
    h("header", { style: `background:${tint(row.advantage)}` }, head),
    h(
      "div",
      { class: "parts" },
      group.rewards.map((name, n) => partView(name, row.rewards[n])),
    ),
    group.timeline && row.timeline && row.answer !== null
      ? spansView(row.timeline, group.timeline)
      : answerView(row, group.truth),
    row.turns.length
      ? h(
          "div",
          { class: "turns" },
          row.turns.map((turn) => turnView(turn, group)),
        )
      : h("pre", {}, marked(row.text)),
  );
}

const CALL = /(<tool_call>[^]*?(?:<\/tool_call>|(?=<tool_call>)|$))/; // as qwenvl/tools/toolbox.py reads it

// What a turn says, with each call in its place. Calls of a turn that was cut stay text.
function turnView(turn, group) {
  const calls = [...turn.calls];
  const said = (text) => (text.trim() ? h("pre", {}, marked(text.trim())) : null);
  return turn.text
    .split(CALL)
    .map((piece, n) => (n % 2 && calls.length ? callView(calls.shift(), said(piece), group) : said(piece)));
}

// A call with its answer: where in the clip it looks, its text, and its frames; or why it was refused.
function callView(call, written, group) {
  const plain = (value) =>
    typeof value === "number"
      ? String(Number(value.toFixed(2)))
      : typeof value === "string"
        ? value
        : JSON.stringify(value);
  const given = Object.entries(call.arguments)
    .map(([name, value]) => `${name} ${plain(value)}`)
    .join(", ");
  const [clip] = call.clips;
  const count = (number, noun) => (number ? counted(number, noun) : null);
  const got = [
    count(clip?.indices.length, "frame"),
    count(call.pictures, "picture"),
    call.tokens ? `${call.tokens} tokens` : null,
  ];
  return h(
    "div",
    { class: "call" },
    h("p", {}, h("b", {}, call.name || "call"), ` ${given} `, h("small", {}, got.filter(Boolean).join(" · "))),
    call.error
      ? [written, h("p", { class: "bad" }, `refused: ${call.error}`)]
      : [
          timeBar(call, group),
          call.text ? h("p", { class: "soft" }, call.text) : null,
          group.pictured === false ? null : call.clips.map(lookView),
        ],
  );
}

function lookView(clip) {
  const why = missing(clip.strip);
  const times = clip.times.map((time) => time.toFixed(2));
  if (why) return h("p", { class: "fine", title: why }, `frames at ${times.join(", ")} s`);
  return h(
    "div",
    { class: "frames" },
    times.map((time, n) => frameView(clip.strip, n, `${time} s`, "")),
  );
}

// The length of the clip, with the span of a call, its frames, those of the prompt as dots, and the record's evidence.
function timeBar(call, group) {
  const [clip] = call.clips;
  const [prompt] = group.clips;
  const { start, end, time } = call.arguments;
  const times = clip?.times || [];
  const known = [start, end].every(Number.isFinite) && times.length;
  const span = known
    ? [start, end]
    : times.length
      ? [times[0], times.at(-1)]
      : Number.isFinite(time)
        ? [time, time]
        : null;
  if (!span || !prompt) return null;
  const length = Math.max(clip?.duration || prompt.duration, prompt.times.at(-1), ...times);
  const part = (value) => 100 * Math.min(1, Math.max(0, value / length));
  const band = ([from, to], name) => h("i", { class: name, style: `left:${part(from)}%;right:${100 - part(to)}%` });
  const marks = (all, name) => all.map((each) => h("i", { class: name, style: `left:${part(each)}%` }));
  const spoken = (spans) =>
    spans.map((each) => each.map((second) => Number(second.toFixed(1))).join(" to ")).join(", ");
  const evidence = group.evidence.length ? `evidence ${spoken(group.evidence)} s` : "";
  const shown = `${spoken([span])} s of ${length.toFixed(1)} s`;
  const label = [shown, evidence, "dots are the frames of the prompt"].filter(Boolean).join("; ");
  return h(
    "div",
    {},
    h(
      "div",
      { class: "times", role: "img", "aria-label": label, title: label },
      band(span, "span"),
      group.evidence.map((each) => band(each, "evidence")),
      marks(times, "frame"),
      marks(prompt.times, "seen"),
    ),
    h(
      "p",
      { class: "ends" },
      h("span", {}, "0 s"),
      h("span", { class: "evidence" }, evidence),
      h("span", {}, `${length.toFixed(1)} s`),
    ),
  );
}

function partView(name, value) {
  const share = value === null ? 0 : Math.max(0, Math.min(1, value));
  return h(
    "div",
    { class: "part", title: value === null ? `${name} does not apply` : `${name} ${value}` },
    h("span", {}, name),
    h("i", {}, h("i", { style: `width:${100 * share}%` })),
    h("b", {}, value === null ? "–" : brief(value)),
  );
}

// The numbers of steps in an answer, such as (2).
const numberMarks = (text) => [...text.matchAll(/\(\s*([0-9]{1,9})\s*\)/g)];

// The parts of an answer: numbered ones such as "(2) insert the fan", else the texts between commas, semicolons and
// lines.
function partsOf(text) {
  const marks = numberMarks(text);
  if (marks.length) {
    const pieces = marks.map((mark, n) =>
      text.slice(mark.index, marks[n + 1]?.index).replace(/^[ ,;\n]+|[ ,;\n]+$/g, ""),
    );
    return pieces.map((piece, n) => ({ text: piece, key: String(Number(marks[n][1])) }));
  }
  const words = text
    .split(/[,;\n]/)
    .map((piece) => piece.trim().split(/\s+/).join(" "))
    .filter(Boolean);
  return words.map((piece) => ({ text: piece, key: piece.toLowerCase().replace(/\.+$/, "") }));
}

// The answer beside the solution, part by part. It is for the eye: each reward has a rule of its own.
function answerView(row, truth) {
  if (row.answer === null) return h("p", { class: "answer bad" }, "no answer was found");
  const given = partsOf(row.answer);
  const wanted = partsOf(truth);
  const has = (parts, part) => parts.some((each) => each.key === part.key);
  const shown = given.map((part) =>
    h(
      "span",
      {
        class: has(wanted, part) ? "right" : "wrong",
        title: has(wanted, part) ? "in the solution" : "not in the solution",
      },
      `${has(wanted, part) ? "✓" : "✗"} ${part.text}`,
    ),
  );
  const missing = wanted
    .filter((part) => !has(given, part))
    .map((part) => h("span", { class: "missing", title: "in the solution alone" }, part.text));
  return h("p", { class: "answer" }, shown.length ? shown : h("span", { class: "wrong" }, "an empty answer"), missing);
}

// The text with its tags pale and its answer bold.
function marked(text) {
  return text.split(/(<\/?(?:think|answer)>)/).map((piece, n, all) => {
    if (n % 2) return h("span", { class: "tag" }, piece);
    return n && all[n - 1] === "<answer>" ? h("b", {}, piece) : piece;
  });
}
