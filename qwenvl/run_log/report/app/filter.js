"use strict";
// Which groups are shown, and in which order. Functions of the index and of the filters alone.

const EQUAL = 1;
const TRUNCATED = 2;
const REPEATED = 4;
const SUSPECT = 8;
const UNSCORED = 16;
const DROPPED = 32; // as qwenvl/run_log/report/pages.py has them

const MARKS = [
  [SUSPECT, "suspected hacking", "many completions have the form and nothing right, or repeat a wrong text"],
  [EQUAL, "equal rewards", "all rewards are equal: the group teaches nothing"],
  [TRUNCATED, "cut off", "a completion was truncated at the limit"],
  [REPEATED, "same text", "half or more of the completions are the same text"],
  [UNSCORED, "no reward", "a completion has no reward"],
  [DROPPED, "dropped", "sampled and not trained on (--filter_groups)"],
];

// Each jump: its title, which groups it keeps, and how it orders them (a smaller key comes first).
const JUMPS = {
  equal: { title: "equal rewards", keep: (index, n) => index.columns.marks[n] & EQUAL },
  truncated: { title: "cut off", keep: (index, n) => index.columns.marks[n] & TRUNCATED },
  improved: {
    title: "most improved record",
    keep: (index, n) => isTrain(index, n) && gains(index)[index.columns.record[n]] > 0,
    order: (index, n) => [-gains(index)[index.columns.record[n]], index.columns.record[n], index.columns.step[n]],
  },
  dropped: { title: "dropped", keep: (index, n) => index.columns.marks[n] & DROPPED },
  suspect: { title: "suspected hacking", keep: (index, n) => index.columns.marks[n] & SUSPECT },
};

const NO_FILTERS = { split: "", step: "", data: "", record: "", q: "", part: "", min: "", max: "", jump: "", sort: "" };

// The columns of the list: name, title, and what a group is sorted by.
const COLUMNS = [
  ["step", "step", (index, n) => index.columns.step[n]],
  ["record", "record", (index, n) => index.records[index.columns.record[n]][0]],
  ["reward", "mean reward", (index, n) => index.columns.mean[n]],
];

// The gain of each record: the mean reward of its last training group minus that of its first.
function gains(index) {
  if (index.gains) return index.gains;
  const { step, record, mean } = index.columns;
  const ends = new Map();
  for (let n = 0; n < step.length; n++) {
    if (!isTrain(index, n) || mean[n] === null) continue;
    const [first, last] = ends.get(record[n]) || [n, n];
    ends.set(record[n], [step[n] < step[first] ? n : first, step[n] >= step[last] ? n : last]);
  }
  index.gains = index.records.map((_, each) =>
    ends.has(each) ? mean[ends.get(each)[1]] - mean[ends.get(each)[0]] : 0,
  );
  return index.gains;
}

function isTrain(index, n) {
  return index.splits[index.columns.split[n]] === "train";
}

// "120", "100-200", "100-" and "-50" as the first and the last step.
function stepsOf(text) {
  const found = /^\s*(\d*)\s*(-?)\s*(\d*)\s*$/.exec(text);
  if (!found || !text.trim()) return [-Infinity, Infinity];
  const [, first, dash, last] = found;
  if (!dash) return [Number(first), Number(first)];
  return [first ? Number(first) : -Infinity, last ? Number(last) : Infinity];
}

// The numbers of the groups that pass all filters but the text: by the sorted column, else in the order of the jump,
// else the newest first.
function filtered(index, filters) {
  const { columns } = index;
  const split = index.splits.indexOf(filters.split);
  const data = index.datasets.indexOf(filters.data);
  const [first, last] = stepsOf(filters.step);
  const record = filters.record.trim().toLowerCase();
  const exact = index.records.some((each) => each[0].toLowerCase() === record);
  const values = filters.part ? index.parts[filters.part] || [] : columns.mean;
  const low = filters.min === "" ? -Infinity : Number(filters.min);
  const high = filters.max === "" ? Infinity : Number(filters.max);
  const bounded = filters.min !== "" || filters.max !== "" || Boolean(filters.part);
  const jump = JUMPS[filters.jump] || {};
  const found = [];
  for (let n = 0; n < columns.step.length; n++) {
    if (filters.split && columns.split[n] !== split) continue;
    if (filters.data && index.records[columns.record[n]][2] !== data) continue;
    if (columns.step[n] < first || columns.step[n] > last) continue;
    const id = index.records[columns.record[n]][0].toLowerCase();
    if (record && (exact ? id !== record : !id.includes(record))) continue;
    if (bounded && (values[n] === null || values[n] === undefined || values[n] < low || values[n] > high)) continue;
    if (jump.keep && !jump.keep(index, n)) continue;
    if (jump.order && columns.mean[n] === null) continue;
    found.push(n);
  }
  const keys = new Map(
    found.map((n) => [n, [...(jump.order ? [jump.order(index, n)].flat() : []), -columns.step[n], n]]),
  );
  found.sort((a, b) => compareKeys(keys.get(a), keys.get(b)));
  return sortedBy(found, filters.sort, COLUMNS, index);
}

function compareKeys(a, b) {
  for (let n = 0; n < Math.min(a.length, b.length); n++) if (a[n] !== b[n]) return a[n] < b[n] ? -1 : 1;
  return 0;
}

// Whether a group says a text somewhere, letter case aside.
function says(group, text) {
  const wanted = text.toLowerCase();
  const texts = [group.solution, ...group.prompt.map((each) => each.text), ...group.rows.map((each) => each.text)];
  return texts.some((each) => each.toLowerCase().includes(wanted));
}

// All groups of a record, by step.
function historyOf(index, n) {
  const { columns } = index;
  const own = [];
  for (let each = 0; each < columns.step.length; each++) {
    if (columns.record[each] === columns.record[n] && columns.split[each] === columns.split[n]) own.push(each);
  }
  return own.sort((a, b) => columns.step[a] - columns.step[b] || a - b);
}
