"use strict";
// What a label is kept as in the browser, and the record that it is saved as.

// Spans are stored as lists without their line, which is made again: a browser has room for 5 million characters, on
// file:// for all pages together.
const spanList = (spans) => spans.map(({ start, end, number, name }) => [start, end, number, name]);
// Earlier pages stored spans as objects.
const spansOfList = (list) =>
  list.map((span) => (Array.isArray(span) ? { start: span[0], end: span[1], number: span[2], name: span[3] } : span));
const CHECKED_FORM = {
  pack: (entry) => (entry.timeline ? { timeline: spanList(entry.timeline), state: entry.state } : entry),
  unpack(entry) {
    if (!entry.timeline) return entry;
    const timeline = spansOfList(entry.timeline);
    return { answer: spansLine(timeline), timeline, state: entry.state };
  },
};
const DRAFT_FORM = {
  pack: (draft) => (typeof draft === "string" ? draft : spanList(draft)),
  unpack: (draft) => (typeof draft === "string" ? draft : spansOfList(draft)),
};

// What is kept of a timeline.
const entryOf = (spans) => ({ answer: spansLine(spans), timeline: sortedSpans(spans) });

// Whether an entry is the answer that the model gave.
function isModels(label, entry) {
  if (!entry.timeline) return entry.answer.trim() === label.answer.trim();
  return JSON.stringify(entry.timeline) === JSON.stringify(sortedSpans(label.timeline.spans));
}

// The record that training reads, as JSON: with a timeline as its field, else with the answer as its last turn.
function recordOf(label, done) {
  const named = done ? done.timeline : label.timeline?.spans;
  // An earlier page kept any seconds.
  const timeline = named && label.timeline ? spansWithin(named, label.timeline.length) : named;
  let own;
  if (timeline) {
    // Without a list in the prompt the number alone would lose the name.
    const step = (span) => (span.name && !label.steps.length ? stepText(span) : (span.number ?? span.name));
    const spans = timeline.map((span) => ({ step: step(span), start: span.start, end: span.end }));
    own = { conversations: label.record.turns, timeline: spans };
  } else {
    const answer = { from: "gpt", value: `<answer>${done ? done.answer : label.answer}</answer>` };
    own = { conversations: [...label.record.turns, answer] };
  }
  // The other fields are copied as text: as numbers, integers above 2^53 would change.
  const others = label.record.others.slice(1, -1);
  const brackets = JSON.stringify(own).slice(1, -1);
  return ` {${others ? `${others},` : ""}${brackets}}`;
}

// A range: "(2)-(4)", "(2) to (4)", and "2-4" alone. It may leave out step 3, or mean it.
const RANGE_SIGN = String.raw`(?:[-\u2010-\u2015~]+|\.{2,3}|\u2026|(?:to|through|until|till|bis)(?!\p{L}))`;
const BETWEEN_MARKS = new RegExp(String.raw`\)[ \t]*${RANGE_SIGN}\s*\(\s*[0-9]`, "u");
const BARE_RANGE = new RegExp(String.raw`^\W*[0-9]+\s*${RANGE_SIGN}\s*[0-9]+\W*$`, "u");

// Whether a text has a name that does not continue a longer word, as "fan" does in "fancy".
function hasWords(text, name) {
  const isInWord = (sign) => sign !== undefined && /[\p{L}\p{N}]/u.test(sign);
  for (let at = text.indexOf(name); at >= 0; at = text.indexOf(name, at + 1)) {
    if (!isInWord(text[at - 1]) && !isInWord(text[at + name.length])) return true;
  }
  return false;
}

// The first listed step that an answer names without its number, "(1) take the lid, insert the fan", if there is one.
function stepWithoutNumber(text, steps) {
  const plain = (words) => words.toLowerCase().split(/\s+/).join(" ");
  const numbers = numberMarks(text).map((mark) => Number(mark[1]));
  const named = steps.map(([number, name]) => [number, plain(asRewardsRead(name))]);
  // The longest name first: a name may hold another one.
  named.sort(([, name], [, other]) => other.length - name.length);
  let rest = plain(text);
  for (const [number, name] of named) {
    if (!numbers.includes(number) && hasWords(rest, name)) return [number, name];
    rest = rest.replaceAll(name, " ");
  }
  return undefined;
}

// An answer by letters: "B", "A, C", and one with its text, "(B) the left one".
const LETTERS_ALONE = /^[(\[]?([A-Z])[)\].:]?(?:\s*[,;]\s*[(\[]?([A-Z])[)\].:]?)*$/;
const LETTER_AND_TEXT = /^[(\[]?([A-Z])[)\].:]+\s+(.*)$/;

// The letters that an answer chooses of options, each [letter, text]. Empty: what it chooses is not plain.
function chosenLetters(text, options) {
  const said = text.trim();
  const withText = LETTER_AND_TEXT.exec(said);
  const plain = (words) => words.trim().replace(/\.$/, "");
  const isWritten = ([letter, own]) => letter === withText[1] && plain(own) === plain(withText[2]);
  if (withText && options.some(isWritten)) return [withText[1]];
  if (!LETTERS_ALONE.test(said)) return [];
  const letters = said.match(/[A-Z]/g);
  return letters.every((each) => options.some(([letter]) => letter === each)) ? letters : [];
}

// Why training would not read an answer to a question, or nothing.
// steps, options: of the question, each [number, name] or [letter, text]. Where there are options, they are the answers.
function answerProblem(written, { steps, options }) {
  const text = asRewardsRead(written);
  if (!text.trim()) return "there is no answer";
  if (options.length) {
    const [[first]] = options;
    const [last] = options.at(-1);
    const expected = `expected the letter of an option, ${first} to ${last}, or several: A, B`;
    return chosenLetters(text, options).length ? "" : expected;
  }
  const first = steps.length ? text.search(/\(\s*[0-9]{1,9}\s*\)/) : -1;
  if (/[\p{L}\p{N}]/u.test(text.slice(0, Math.max(first, 0))))
    return "only numbers in brackets would count: write (2) in front of the name of step 2, for each step";
  const isListed = ([, digits]) => steps.some(([number]) => number === Number(digits));
  const other = numberMarks(text).find((mark) => !isListed(mark));
  if (steps.length && other) return `${other[0]} is not in the list of steps`;
  const lost = first < 0 ? undefined : stepWithoutNumber(text, steps);
  if (lost) return `only numbers in brackets would count: write (${lost[0]}) in front of ${lost[1]}, or leave it out`;
  if (steps.length && /^\s*[0-9]+,[0-9]+\s*$/.test(text)) return "may be one number or two: write 3, 5 with a blank";
  if (steps.length && (BETWEEN_MARKS.test(text) || BARE_RANGE.test(text)))
    return "a range may be two steps or all between them: write each of them";
  return /<\/?(answer|think|video|image)>|<\|\w+\|>/.test(text)
    ? "an answer can't hold tags such as <answer>, <video> and <|im_end|>"
    : "";
}

// Whether training would refuse the answer of the model.
function isRefused(index, n) {
  const list = index.list_of[n]; // null where the answer is a timeline, or missing
  return index.other_step[n] || (list !== null && answerProblem(index.answers[n], index.lists[list]) !== "");
}

// The text without the step, if it names its number, else with it at the end.
function toggledStep(text, number, name) {
  const marks = numberMarks(text);
  const at = marks.findIndex((mark) => Number(mark[1]) === number);
  if (at < 0) return `${text.trim()} (${number}) ${name}`.trim();
  return `${text.slice(0, marks[at].index)}${text.slice(marks[at + 1]?.index ?? text.length)}`.trim();
}

// Spans in the order of time, with what a record says of them.
function sortedSpans(spans) {
  const plain = spans.map(({ start, end, number, name }) => ({ start, end, number, name }));
  return plain.sort((a, b) => a.start - b.start || a.end - b.end);
}

// Spans in a line, for the list. It is for the eye: records keep numbers.
const spansLine = (spans) =>
  sortedSpans(spans)
    .map((span) => `${seconds(span.start)}-${seconds(span.end)} ${stepText(span)}`)
    .join("; ");
