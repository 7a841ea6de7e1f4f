"use strict";
// The browser of groups: filters and jumps above, the list, and the group that is chosen. Its state is the address.

const state = { run: 0, filters: { ...NO_FILTERS }, found: [], chosen: null, shown: 0, search: 0 };
const parts = {}; // the elements of the page that change
const LIST = 100; // rows that are added to the list at a time

function startBrowser() {
  const box = document.querySelector("#browser");
  const field = (name, title, width, hint) => {
    parts[name] = h("input", { id: `filter-${name}`, placeholder: hint, size: width, autocomplete: "off", oninput: () => changed({ [name]: parts[name].value }) });
    return h("label", {}, title, parts[name]);
  };
  const choice = (name, title) => {
    parts[name] = h("select", { id: `filter-${name}`, onchange: () => changed({ [name]: parts[name].value }) });
    return h("label", {}, title, parts[name]);
  };
  parts.run = h("select", { id: "filter-run", onchange: () => openRun(Number(parts.run.value)) }, report.data.runs.map((name, n) => h("option", { value: n }, name)));
  parts.jumps = h("p", { class: "jumps" }, "jump to ", Object.entries(JUMPS).map(([name, jump]) => h("button", { type: "button", "data-jump": name, onclick: () => changed({ jump: state.filters.jump === name ? "" : name }) }, jump.title)));
  parts.count = h("p", { class: "fine", id: "count" });
  parts.list = h("ol", { id: "list" });
  parts.more = h("button", { type: "button", onclick: () => addRows() }, "more");
  parts.group = h("div", { id: "group", tabindex: -1 });
  box.replaceChildren(
    h("div", { class: "filters" },
      report.data.runs.length > 1 ? h("label", {}, "run", parts.run) : null,
      choice("split", "split"), field("step", "step", 7, "100-200"), choice("data", "data set"), field("record", "record", 9, "id"),
      field("q", "text", 12, "/"), choice("part", "reward"), field("min", "from", 4, "0"), field("max", "to", 4, "1"),
      h("button", { type: "button", id: "clear", onclick: () => changed({ ...NO_FILTERS }) }, "clear")),
    parts.jumps, parts.count,
    h("div", { class: "panes" }, h("div", { class: "left" }, parts.list, parts.more), parts.group),
    h("p", { class: "fine keys" }, "Keys: ", h("kbd", {}, "j"), " ", h("kbd", {}, "k"), " next and previous group, ", h("kbd", {}, "["), " ", h("kbd", {}, "]"), " the same record before and after, ", h("kbd", {}, "/"), " search, ", h("kbd", {}, "x"), " clear the filters."));
  document.addEventListener("keydown", pressed);
  addEventListener("hashchange", () => { if (location.hash !== state.hash) fromAddress(); });
  fromAddress(true);
}

// Show a run, and of it the group that an address names, if one is given.
async function openRun(run, address = null) {
  state.run = run;
  state.index = null;
  let index;
  try {
    index = await indexOf(run);
  } catch (error) {
    parts.count.replaceChildren(h("span", { class: "bad" }, `${error.message}: is the whole folder of the report here?`));
    return false;
  }
  state.index = index;
  const options = (element, first, names) => element.replaceChildren(h("option", { value: "" }, first), ...names.map((name) => h("option", { value: name }, name)));
  const known = { split: index.splits, data: index.datasets, part: index.rewards };
  for (const [name, values] of Object.entries(known)) if (!values.includes(state.filters[name])) state.filters[name] = "";
  options(parts.split, "all", index.splits);
  options(parts.data, "all", index.datasets);
  options(parts.part, "total", index.rewards);
  parts.run.value = String(run);
  state.chosen = address && (address.has("id") || address.has("step")) ? groupAt(address) : null;
  const missed = address && address.has("id") && state.chosen === null ? `${location.hash} names no group of this run. ` : "";
  await apply();
  parts.count.prepend(missed);
  return true;
}

function changed(filters) {
  Object.assign(state.filters, filters);
  state.chosen = null;
  clearTimeout(state.wait);
  state.wait = setTimeout(() => apply(), "q" in filters ? 250 : 0);
}

// Show what the filters leave, and choose its first group if none is chosen.
async function apply() {
  if (!state.index) return; // another run is being opened, which applies them
  const search = ++state.search;
  for (const name of Object.keys(NO_FILTERS)) if (parts[name] && parts[name].value !== state.filters[name]) parts[name].value = state.filters[name];
  for (const button of parts.jumps.querySelectorAll("button")) button.classList.toggle("on", button.dataset.jump === state.filters.jump);
  let found = filtered(state.index, state.filters);
  try {
    if (state.filters.q.trim()) found = await withText(found, state.filters.q.trim(), search);
  } catch (error) {
    parts.count.replaceChildren(h("span", { class: "bad" }, error.message));
    return;
  }
  if (search !== state.search) return;
  state.found = found;
  parts.list.replaceChildren();
  state.shown = 0;
  addRows();
  const all = state.index.columns.step.length;
  parts.count.textContent = all ? `${found.length.toLocaleString("en")} of ${all.toLocaleString("en")} groups` : "The run has written no completions yet.";
  await choose(state.chosen ?? found[0] ?? null);
}

// The groups that say a text. Pages are loaded one after the other, and a newer search ends this one.
async function withText(found, text, search) {
  const { page, place } = state.index.columns, run = state.run;
  const byPage = new Map();
  for (const n of found) byPage.set(page[n], [...(byPage.get(page[n]) || []), n]);
  const kept = new Set();
  let done = 0;
  for (const [number, groups] of byPage) {
    const texts = await pageOf(run, number);
    if (search !== state.search) return [];
    for (const n of groups) if (says(texts[place[n]], text)) kept.add(n);
    done += 1;
    if (done % 5 === 0) parts.count.textContent = `searching: ${Math.round((100 * done) / byPage.size)} %, ${kept.size} found`;
  }
  return found.filter((n) => kept.has(n));
}

function addRows(until = 0) {
  do {
    const rows = state.found.slice(state.shown, state.shown + LIST);
    parts.list.append(...rows.map(rowView));
    state.shown += rows.length;
    if (!rows.length) break;
  } while (state.shown <= until);
  parts.more.hidden = state.shown >= state.found.length;
}

function rowView(n) {
  const { columns, records } = state.index;
  const mean = columns.mean[n], signs = MARKS.filter(([mark]) => columns.marks[n] & mark);
  return h("li", { "data-group": n, onclick: () => choose(n, true) },
    h("span", { class: "at" }, `${columns.step[n]}`, isTrain(state.index, n) ? "" : ` ${state.index.splits[columns.split[n]]}`),
    h("span", { class: "id" }, records[columns.record[n]][0]),
    h("span", { class: "signs", title: signs.map((each) => each[2]).join(", ") }, signs.slice(0, 2).map((each) => each[1]).join(" ")),
    h("b", { title: `mean reward, from ${brief(columns.low[n])} to ${brief(columns.high[n])}` }, brief(mean)));
}

// Show a group of the list, or any other of this run.
async function choose(n, scroll = false) {
  state.chosen = n;
  for (const old of parts.list.querySelectorAll(".on")) old.classList.remove("on");
  if (n === null) {
    parts.group.replaceChildren(h("p", { class: "fine" }, "No group passes the filters."));
    toAddress();
    return;
  }
  const at = state.found.indexOf(n);
  if (at >= state.shown) addRows(at);
  const row = parts.list.children[at];
  if (row) {
    row.classList.add("on");
    const { offsetTop, offsetHeight } = row, { scrollTop, clientHeight } = parts.list;
    if (offsetTop < scrollTop || offsetTop + offsetHeight > scrollTop + clientHeight) parts.list.scrollTop = offsetTop - clientHeight / 3;
  }
  toAddress();
  try {
    const groups = await pageOf(state.run, state.index.columns.page[n]);
    if (state.chosen !== n) return;
    parts.group.replaceChildren(groupView(state.index, n, groups[state.index.columns.place[n]], (each) => choose(each, true)));
    if (scroll && parts.group.getBoundingClientRect().top < 0) parts.group.scrollIntoView();
  } catch (error) {
    parts.group.replaceChildren(h("p", { class: "bad" }, error.message));
  }
}

// The address names the run, the group and the filters: #step=120&id=17.
function toAddress() {
  const words = new URLSearchParams();
  const { index, chosen } = state;
  if (report.data.runs.length > 1) words.set("run", state.run);
  if (chosen !== null) {
    const { columns, records } = index;
    words.set("step", columns.step[chosen]);
    words.set("id", records[columns.record[chosen]][0]);
    if (!isTrain(index, chosen)) words.set("split", index.splits[columns.split[chosen]]);
  }
  for (const [name, value] of Object.entries(state.filters)) if (value) words.set(`f_${name}`, value);
  state.hash = `#${words}`;
  if (state.quiet) state.quiet = false; // a page that was just opened keeps its plain address
  else history.replaceState(null, "", state.hash);
}

async function fromAddress(first = false) {
  const words = new URLSearchParams(location.hash.slice(1));
  const linked = location.hash.includes("=");
  if (!first && !linked) return; // a link to a section
  state.quiet = !linked;
  for (const name of Object.keys(NO_FILTERS)) state.filters[name] = words.get(`f_${name}`) || "";
  if (!linked) state.filters.split = "train"; // what most readers come for
  const run = Math.min(report.data.runs.length - 1, Math.max(0, Number(words.get("run")) || 0));
  const again = first && performance.getEntriesByType("navigation")[0]?.type === "reload"; // keeps its place
  if (await openRun(run, words) && linked && !again) document.querySelector("#groups").scrollIntoView();
}

// The first group with the step, record and split of an address. Those that it does not name may be any.
function groupAt(words) {
  const { columns, records, splits } = state.index;
  const order = columns.step.map((_, n) => n).sort((a, b) => columns.step[a] - columns.step[b] || a - b);
  const wants = (name, value) => !words.has(name) || words.get(name) === String(value);
  const fits = (n, split) => wants("step", columns.step[n]) && wants("id", records[columns.record[n]][0]) && (!split || splits[columns.split[n]] === split);
  const split = words.get("split");
  return order.find((n) => fits(n, split || "train")) ?? order.find((n) => fits(n, split)) ?? null;
}

function pressed(event) {
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || !state.index) return;
  const at = state.found.indexOf(state.chosen);
  const step = (list, now, by) => { const next = list[now + by]; if (next !== undefined) choose(next, true); };
  const own = () => historyOf(state.index, state.chosen);
  const keys = {
    j: () => step(state.found, at, 1),
    k: () => step(state.found, at, -1),
    "]": () => step(own(), own().indexOf(state.chosen), 1),
    "[": () => step(own(), own().indexOf(state.chosen), -1),
    "/": () => parts.q.focus(),
    x: () => changed({ ...NO_FILTERS }),
  };
  if (!keys[event.key] || (state.chosen === null && "[]".includes(event.key))) return;
  event.preventDefault();
  keys[event.key]();
}
