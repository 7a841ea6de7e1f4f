"use strict";
// The spans of a timeline that a reader edits: by dragging, with the keyboard, and as numbers in fields.

// What an arrow key moves, and what a drag is rounded to, in seconds. With Shift it is ten times as much.
const grainOf = (length) => (length < 5 ? 0.02 : 0.1);
const FAR = 10;
const SNAP = 6; // pixels: an edge that is dragged so near to another one takes its time

// Seconds as exact as spans are saved.
const exact = (value) => Number(value.toFixed(3));

// Spans inside of a clip of `length` seconds: a model may name seconds that the clip does not have.
function spansWithin(spans, length) {
  const latest = Math.max(0, length - grainOf(length)); // start, so that something is left of the span
  const within = spans.map(({ start, end, number, name }) => ({
    start: exact(start < length ? start : latest),
    end: exact(Math.min(end, length)),
    number,
    name,
  }));
  return within.filter((span) => span.start < span.end); // of less than a millisecond nothing is left
}

// Seconds, mm:ss or hh:mm:ss with a decimal point, as in tables of labels.
const TIME = /^(?:(?:(\d{1,3}):)?(\d{1,3}):)?(\d{1,7}(?:\.\d{0,30})?)$/;

// The seconds that are typed in a field, as exact as spans are saved. NaN: it holds something else, such as 4,5.
function typedSeconds(field) {
  const found = TIME.exec(field.value.trim());
  if (!found) return NaN;
  const [, hours, minutes, last] = found;
  const behindColons = [hours && minutes, minutes && last].filter(Boolean);
  if (behindColons.some((part) => part.split(".")[0].length > 2 || Number(part) >= 60)) return NaN;
  return exact(3600 * Number(hours ?? 0) + 60 * Number(minutes ?? 0) + Number(last));
}

// A number in brackets, alone, or with a sign behind it, and the name. "2nd screw" and "2.5 mm" are names.
const NUMBERED_STEP = /^(?:\(\s*(\d{1,9})\s*\)\s*(.*)|(?:step\s*|#\s*)?(\d{1,9})(?:\s*[.):,-](?!\d)\s*(.*))?)$/i;
// Numbers in a name that training would take for that of the step, or without their sign.
const NUMBERS_IN_NAME = [
  /^(?:step\s*)?#?\s*\d{1,9}\s+\S/i, // 2 bolts
  /^\d{1,9}-[^\s\d]/, // 5-axis mill
  /^-\d/, // -5 V
  /^\d{1,9}\s*,\s*\d/, // 2, 3
  /[^(\s].*\(\s*\d{1,9}\s*\)/, // turn (2) screws
  /^step\s*\d{1,9}(?:\s*[^\s\d.):,-]|[.:,]\d)/i, // step 2* fan, step 1:30
];

// The number and the name of a step that is typed.
function typedStep(text) {
  const found = NUMBERED_STEP.exec(asRewardsRead(text));
  if (!found) return { number: null, name: text };
  const [, inBrackets, nameBehind, bare, nameBehindSign] = found;
  return { number: Number(inBrackets ?? bare), name: nameBehind ?? nameBehindSign ?? "" };
}

const RANGE_IN_NAME = /\d\s*(?:-{1,2}>?|[\u2010-\u2015\u2192\u2212~\u301c]|\.{2,3}|(?:to|until|till)\b)\s*\d/i;
// Behind the times of a span these are their units, "0.0-1.0 frame 3": those that timeline.py knows.
const UNIT_FIRST =
  /^(?:%|(?:s|secs?|seconds?|ms|msecs?|milliseconds?|mins?|minutes?|hrs?|hours?|frames?|percent|per\scent|pct)\b|[mh]\s{0,4}(?:$|[(:])|秒|分|毫秒|小时|小時|時間|帧|幀)/i;

// A text as rewards read it: a full-width （2） is (2), and so is a 2 in a circle.
const asRewardsRead = (text) =>
  text.replace(/[\u2460-\u2473]/g, (sign) => `(${sign.normalize("NFKC")})`).normalize("NFKC");

// Why training would not read the name of a step, or nothing.
function stepProblem(typed) {
  const text = asRewardsRead(typed);
  if (!/[\p{L}\p{N}]/u.test(text)) return "expected the number or the name of a step";
  if (/[;<{}]/.test(text) || RANGE_IN_NAME.test(text)) return "a step can't hold ; < { } or a range such as 2-3";
  if (/^[^\p{L}\p{N}(#[]/u.test(text)) return "a step begins with a letter or a number";
  if (/^(?:to|until|till)\s*\d/i.test(text))
    return "a step can't begin with a range of times: what is it that happens?";
  if (UNIT_FIRST.test(text)) return "a step can't begin with a unit of time: what is it that happens?";
  if (NUMBERS_IN_NAME.some((pattern) => pattern.test(text)))
    return "write (2) in front of the name where 2 is its number, else spell it out: two bolts";
  return "";
}

// Whether spans have steps of the prompt's list, if it has one.
function allListed(steps, spans) {
  return !steps.length || spans.every((span) => steps.some(([number]) => number === span.number));
}

// Whether a field was refused. Browsers alone would refuse every value between two steps of the arrow keys, too.
const refused = (field) => Boolean(field.validity?.customError);

class SpanEditor {
  // spans: to begin with. steps: [number, name] of the prompt's list. player: the clip's video, or null.
  // changed: called after each change.
  constructor({ spans, length, steps, player, changed }) {
    Object.assign(this, {
      length,
      grain: grainOf(length),
      steps,
      player,
      changed,
      spans: [],
      views: new Map(),
      chosen: null,
    });
    this.lanes = h("div", {
      class: "lanes editable",
      role: "group",
      "aria-label": "your timeline",
      onpointerdown: (event) => this.draw(event),
    });
    this.head = h("i", { class: "playhead", hidden: true });
    this.lanes.append(this.head);
    this.rows = h("ul", { class: "span-rows" });
    this.palette = h(
      "div",
      { class: "palette", role: "group", "aria-label": "steps" },
      steps.map(([number, name]) =>
        h(
          "button",
          {
            type: "button",
            class: stepColor({ number }),
            "data-step": number,
            title: "the step of the chosen span, or of a new one",
            onclick: () => this.useStep(number, name),
          },
          h("b", {}, String(number)),
          ` ${name}`,
        ),
      ),
    );
    this.addButton = h("button", { type: "button", id: "add", title: "n", onclick: () => this.add() }, "add a span");
    if (player) {
      const follow = () => this.follow(player.currentTime);
      for (const kind of ["timeupdate", "seeking", "seeked"]) player.addEventListener(kind, follow);
    }
    this.replace(spans, false);
  }

  // Show other spans in the place of these.
  replace(spans, told = true) {
    this.spans = spansWithin(spans, this.length);
    for (const { body, row } of this.views.values()) {
      body.remove();
      row.remove();
    }
    this.views = new Map(this.spans.map((span) => [span, this.viewOf(span)]));
    this.chosen = null;
    this.update();
    if (told) this.changed();
  }

  // The elements of a span: its body and its two edges in the bar, and its row of fields.
  viewOf(span) {
    const edge = (part) =>
      h("i", {
        class: `edge ${part}`,
        tabindex: 0,
        role: "slider",
        "aria-valuemin": 0,
        "aria-valuemax": this.length,
        onpointerdown: (event) => this.drag(event, span, part),
        onkeydown: (event) => this.pressed(event, span, part),
        onfocus: () => this.choose(span),
      });
    const [start, end] = [edge("start"), edge("end")];
    const text = h("span", {});
    const body = h(
      "div",
      {
        tabindex: 0,
        role: "button",
        onpointerdown: (event) => this.drag(event, span, "body"),
        onkeydown: (event) => this.pressed(event, span, "body"),
        onfocus: () => this.choose(span),
      },
      start,
      text,
      end,
    );
    const time = (part) =>
      h("input", {
        // Not of type number: browsers drop the comma of 4,5 and the colon of 1:05, and a wheel changes the number.
        type: "text",
        inputmode: "decimal",
        class: "seconds",
        "aria-label": `${part} in seconds`,
        onchange: (event) => this.typed(span, part, event.target),
        onkeydown: (event) => this.stepTyped(span, part, event),
      });
    const fields = { step: this.stepField(span), start: time("start"), end: time("end") };
    const remove = h(
      "button",
      { type: "button", "aria-label": "remove this span", title: "Delete", onclick: () => this.remove(span) },
      "✕",
    );
    const row = h(
      "li",
      { onfocusin: () => this.choose(span) },
      h("i", {}),
      fields.step,
      h("label", {}, fields.start, " to ", fields.end, " s"),
      remove,
    );
    this.lanes.append(body);
    this.rows.append(row);
    return { body, start, end, text, row, fields };
  }

  // Which step a span has: one of the list, or any text where the prompt has no list.
  stepField(span) {
    if (!this.steps.length) {
      return h("input", {
        "aria-label": "step: number or name",
        onchange: (event) => this.nameStep(span, event.target),
      });
    }
    const options = this.steps.map(([number, name]) => h("option", { value: number }, `(${number}) ${name}`));
    if (!this.listed(span)) options.unshift(h("option", { value: "" }, `${stepText(span)}: not in the list`));
    return h(
      "select",
      {
        "aria-label": "step",
        onchange: (event) => {
          const found = this.steps.find(([number]) => String(number) === event.target.value);
          if (found) this.setStep(span, ...found);
        },
      },
      options,
    );
  }

  // The step of a span in its field.
  shortStep(span) {
    return String(span.number ?? span.name);
  }

  listed(span) {
    return allListed(this.steps, [span]);
  }

  // Bring every element up to date with its span.
  update() {
    const lanes = lanesOf(this.spans);
    this.lanes.style.setProperty("--lanes", Math.max(1, ...lanes.map((lane) => lane + 1)));
    this.spans.forEach((span, n) => {
      const { body, start, end, text, row, fields } = this.views.get(span);
      const chosen = span === this.chosen;
      body.className = `span ${stepColor(span)}${chosen ? " chosen" : ""}`;
      Object.assign(body.style, spanStyle(span, lanes[n], this.length));
      body.title = spanText(span);
      setAttributes(body, { "aria-label": spanText(span), "aria-pressed": String(chosen) });
      text.textContent = span.number ?? span.name;
      for (const [part, element] of [
        ["start", start],
        ["end", end],
      ]) {
        setAttributes(element, {
          "aria-label": `${part} of ${stepText(span)}`,
          "aria-valuenow": span[part],
          "aria-valuetext": `${seconds(span[part])} seconds`,
        });
        if (refused(fields[part])) continue; // it keeps what was typed, until that is mended
        if (fields[part] !== document.activeElement || Number(fields[part].value) !== span[part]) {
          fields[part].value = seconds(span[part]);
        }
      }
      if (!refused(fields.step)) {
        fields.step.value = this.steps.length ? (this.listed(span) ? span.number : "") : this.shortStep(span);
      }
      row.className = chosen ? "chosen" : "";
      row.firstChild.className = `key ${stepColor(span)}`;
    });
    for (const button of this.palette.children) {
      button.setAttribute(
        "aria-pressed",
        String(Boolean(this.chosen) && this.chosen.number === Number(button.dataset.step)),
      );
    }
    this.sortRows();
  }

  // Rows in the order of time. The field that is being edited keeps its focus.
  sortRows() {
    const order = [...this.spans]
      .sort((a, b) => a.start - b.start || a.end - b.end)
      .map((span) => this.views.get(span).row);
    if (order.every((row, n) => this.rows.children[n] === row)) return;
    const active = document.activeElement;
    this.rows.append(...order);
    if (this.rows.contains(active)) active.focus();
  }

  choose(span) {
    if (this.chosen === span) return;
    this.chosen = span;
    this.update();
  }

  change(span, times, seen) {
    Object.assign(span, times);
    const { fields } = this.views.get(span);
    for (const part of ["start", "end"]) {
      if (part in times) fields[part].setCustomValidity(""); // the value is another one
    }
    this.update();
    this.changed();
    if (seen !== undefined) this.seek(seen);
  }

  // Move an edge or the whole span by some seconds from where it was.
  moveBy(span, part, from, by, snap = (time) => time) {
    const [least, most] = [0, this.length];
    const within = (value, low, high) => exact(Math.min(high, Math.max(low, snap(this.rounded(value)))));
    if (part === "start") {
      // A span may be shorter than the grain already.
      const start = within(from.start + by, least, Math.max(from.start, span.end - this.grain));
      this.change(span, { start }, start);
    } else if (part === "end") {
      const end = within(from.end + by, Math.min(from.end, span.start + this.grain), most);
      this.change(span, { end }, end);
    } else {
      const long = from.end - from.start;
      const start = within(from.start + by, least, most - long);
      this.change(span, { start, end: exact(start + long) }, start);
    }
  }

  rounded(value) {
    return Math.round(value / this.grain) * this.grain;
  }

  // The second under the pointer.
  secondAt(event) {
    const box = this.lanes.getBoundingClientRect();
    return Math.min(this.length, Math.max(0, ((event.clientX - box.left) / box.width) * this.length));
  }

  // Rounds a time to the edge of another span that is near enough.
  snapped(span) {
    const reach = (SNAP * this.length) / this.lanes.clientWidth;
    const edges = this.spans.filter((each) => each !== span).flatMap((each) => [each.start, each.end]);
    return (time) => edges.find((each) => Math.abs(each - time) <= reach) ?? time;
  }

  drag(event, span, part) {
    if (event.button !== 0) return;
    event.preventDefault();
    event.stopPropagation();
    const view = this.views.get(span);
    const element = part === "body" ? view.body : view[part];
    element.focus({ preventScroll: true });
    this.choose(span);
    const began = this.secondAt(event);
    const from = { ...span };
    const snap = part === "body" ? undefined : this.snapped(span);
    this.followPointer(element, event, (now) => this.moveBy(span, part, from, this.secondAt(now) - began, snap));
  }

  // Draw a new span on the empty bar.
  draw(event) {
    if (event.button !== 0 || event.target !== this.lanes) return;
    const began = this.rounded(this.secondAt(event));
    let span = null;
    const move = (now) => {
      const other = this.rounded(this.secondAt(now));
      const start = Math.min(began, other);
      const end = Math.max(began, other);
      if (end - start < this.grain) return;
      if (!span) span = this.insert({ start, end });
      this.change(span, { start: exact(start), end: exact(end) }, other);
    };
    this.followPointer(this.lanes, event, move, () => {
      if (span) this.views.get(span).body.focus({ preventScroll: true });
      else this.seek(began);
    });
  }

  followPointer(element, event, move, end = () => {}) {
    element.setPointerCapture(event.pointerId);
    const stop = () => {
      element.removeEventListener("pointermove", move);
      for (const kind of ["pointerup", "pointercancel"]) element.removeEventListener(kind, stop);
      end();
    };
    element.addEventListener("pointermove", move);
    for (const kind of ["pointerup", "pointercancel"]) element.addEventListener(kind, stop);
  }

  pressed(event, span, part) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const removes = event.key === "Delete" || event.key === "Backspace";
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const digit = /^[1-9]$/.test(event.key) ? Number(event.key) : null;
    if (way) this.moveBy(span, part, { ...span }, way * this.grain * (event.shiftKey ? FAR : 1));
    else if (removes && !event.repeat) {
      this.remove(span);
    } // held, it would remove one span after the other
    else if (digit !== null) this.setStep(span, digit, this.nameOf(digit));
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  nameOf(number) {
    return this.steps.find(([each]) => each === number)?.[1] ?? "";
  }

  // Take over seconds that were typed.
  typed(span, part, field) {
    if (this.accepts(span, part, field)) {
      field.setCustomValidity("");
      const value = typedSeconds(field);
      // Fields show fewer digits than a span may have.
      if (field.value === seconds(span[part]) || value === span[part]) return;
      this.change(span, { [part]: value }, value);
      // The other end may have been refused because of this one.
      const otherPart = part === "start" ? "end" : "start";
      const other = this.views.get(span).fields[otherPart];
      if (refused(other) && this.accepts(span, otherPart, other)) this.typed(span, otherPart, other);
    } else {
      field.setCustomValidity(
        `expected seconds from 0 to ${seconds(this.length)}, such as 7.5 or 0:07.5, the start before the end`,
      );
      field.reportValidity();
    }
  }

  // The arrow keys step the seconds of a field.
  stepTyped(span, part, event) {
    const sign = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    const value = typedSeconds(event.target) + sign * this.grain;
    if (!sign || Number.isNaN(value)) return;
    event.preventDefault();
    event.target.value = seconds(Math.min(this.length, Math.max(0, value)));
    this.typed(span, part, event.target);
  }

  // Whether a field has seconds that a span can begin or end at.
  accepts(span, part, field) {
    const value = typedSeconds(field);
    if (Number.isNaN(value) || value > this.length) return false;
    return part === "start" ? value < span.end : value > span.start;
  }

  // Read the field that is being typed in: a field tells of a change only when it loses the focus.
  commit() {
    const field = document.activeElement;
    if (this.rows.contains(field) && field.matches("input")) field.dispatchEvent(new Event("change"));
  }

  // Whether all fields are read. The first one that was refused says why.
  ready() {
    this.commit();
    const field = [...this.rows.querySelectorAll("input")].find(refused);
    field?.reportValidity();
    return !field;
  }

  setStep(span, number, name) {
    if (this.steps.length && !this.steps.some(([each]) => each === number)) return; // a digit beyond the list
    this.change(span, { number, name });
    const view = this.views.get(span);
    const field = this.stepField(span); // without the option that is not in the list
    const active = view.fields.step === document.activeElement;
    view.fields.step.replaceWith(field);
    view.fields.step = field;
    this.update();
    if (active) field.focus();
  }

  nameStep(span, field) {
    const text = field.value.trim();
    field.setCustomValidity(stepProblem(text));
    if (refused(field)) {
      field.reportValidity();
      return;
    }
    if (text === this.shortStep(span)) return;
    this.change(span, typedStep(text));
  }

  // A step's button: for the chosen span, or a new span.
  useStep(number, name) {
    if (this.chosen) this.setStep(this.chosen, number, name);
    else this.add(number);
  }

  // A new span where the clip stands, else in the first gap, else at the end.
  add(number = this.nextStep()) {
    const start = exact(this.rounded(this.freeSecond()));
    const next = Math.min(...this.spans.map((span) => span.start).filter((each) => each > start), this.length);
    const span = this.insert(
      {
        start,
        end: exact(Math.max(start + this.grain, Math.min(next, start + Math.max(FAR * this.grain, this.length / 10)))),
      },
      number,
    );
    this.changed();
    this.views.get(span).body.focus();
    return span;
  }

  freeSecond() {
    const free = (time) => !this.spans.some((span) => span.start <= time && time < span.end - 1e-6);
    const last = this.length - this.grain;
    if (this.player && this.player.currentTime > 0 && free(this.player.currentTime)) {
      return Math.min(last, this.player.currentTime);
    }
    const gap = [0, ...this.spans.map((span) => span.end)]
      .sort((a, b) => a - b)
      .find((time) => time <= last && free(time));
    return gap ?? last;
  }

  // The first step of the list that no span has yet.
  nextStep() {
    const used = new Set(this.spans.map((span) => span.number));
    const free = this.steps.find(([number]) => !used.has(number)) ?? this.steps[0];
    return free ? free[0] : Math.max(0, ...this.spans.map((span) => span.number ?? 0)) + 1;
  }

  insert(times, number = this.nextStep()) {
    const span = { ...times, number, name: this.nameOf(number) };
    this.spans.push(span);
    this.views.set(span, this.viewOf(span));
    this.chosen = span;
    this.update();
    return span;
  }

  remove(span) {
    const { body, row } = this.views.get(span);
    const at = this.spans.indexOf(span);
    this.spans.splice(at, 1);
    this.views.delete(span);
    body.remove();
    row.remove();
    this.chosen = null;
    this.update();
    this.changed();
    const next = this.spans[Math.min(at, this.spans.length - 1)];
    if (next) this.views.get(next).body.focus();
    else this.addButton.focus();
  }

  // Give an edge of the chosen span the second at which the clip stands.
  // An edge that passes the other one takes it along: two keys that are pressed while the clip plays make a span.
  edgeHere(part) {
    if (!this.player || !this.chosen) return;
    const now = this.rounded(this.player.currentTime);
    let { start, end } = this.chosen;
    const long = Math.max(end - start, this.grain);
    if (part === "start") {
      start = Math.min(now, this.length - this.grain);
      if (start >= end) end = Math.min(this.length, start + long);
    } else {
      end = Math.min(this.length, Math.max(now, this.grain));
      if (end <= start) start = Math.max(0, end - long);
    }
    this.change(this.chosen, { start: exact(start), end: exact(end) }, exact(part === "start" ? start : end));
  }

  seek(time) {
    if (this.player && this.player.readyState) this.player.currentTime = Math.min(time, this.player.duration || time);
    this.follow(time);
  }

  follow(time) {
    this.head.hidden = false;
    this.head.style.left = `${(100 * Math.min(time, this.length)) / this.length}%`;
  }
}
