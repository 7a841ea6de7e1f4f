"use strict";
// The records of an evaluation: filters and jumps above, the list, and the record that is chosen, with all models.

const NO_ANSWER = 1, CUT = 2; // as qwenvl/report/evaluation.py has them
const AS_IT_IS = "none";
const TAKEN = {
  blank: "Every frame and image was grey.", shuffled: "The frames stood in another order.",
  single_frame: "The middle frame stood in the place of all.", other_clip: "The clip of another record was shown.",
  text_only: "Nothing was shown.",
};
const seen = { filters: { data: "", record: "", q: "", control: AS_IT_IS, jump: "" }, found: [], chosen: null, shown: 0, search: 0 };
const box = {}; // the elements of the page that change
const ROWS = 100; // rows that are added to the list at a time

// Each jump: its title, which records it keeps, and how it orders them (a smaller key comes first). The last model is
// the one that is asked about, the first the one that it is compared with.
const first = (index) => index.means[AS_IT_IS][index.models[0]];
const last = (index, control = AS_IT_IS) => index.means[control][index.models.at(-1)];
const without = (index) => index.controls.filter((each) => each !== AS_IT_IS);
const VIEWS = {
  worst: { title: "worst", order: (index, n) => last(index)[n] },
  best: { title: "best", order: (index, n) => -last(index)[n] },
  gained: { title: "gained most", needs: (index) => index.models.length > 1, keep: (index, n) => last(index)[n] > first(index)[n], order: (index, n) => first(index)[n] - last(index)[n] },
  lost: { title: "lost most", needs: (index) => index.models.length > 1, keep: (index, n) => last(index)[n] < first(index)[n], order: (index, n) => last(index)[n] - first(index)[n] },
  blind: { title: "as good without the evidence", needs: (index) => without(index).length, keep: (index, n) => without(index).some((each) => last(index, each)[n] !== null && last(index, each)[n] >= last(index)[n]), order: (index, n) => -last(index)[n] },
  unread: { title: "no answer", keep: (index, n) => index.columns.marks[n] & NO_ANSWER },
  cut: { title: "cut off", keep: (index, n) => index.columns.marks[n] & CUT },
};

async function startRecords() {
  const place = document.querySelector("#browser");
  try {
    seen.index = await indexOf(0);
  } catch (error) {
    place.replaceChildren(h("p", { class: "bad" }, `${error.message}: is the whole folder of the report here?`));
    return;
  }
  const { index } = seen;
  const field = (name, title, size, hint) => {
    box[name] = h("input", { id: `filter-${name}`, placeholder: hint, size, autocomplete: "off", oninput: () => narrow({ [name]: box[name].value }) });
    return h("label", {}, title, box[name]);
  };
  const choice = (name, title, options, act) => {
    box[name] = h("select", { id: `filter-${name}`, onchange: () => act(box[name].value) }, options.map(([value, text]) => h("option", { value }, text)));
    return h("label", {}, title, box[name]);
  };
  const jumps = Object.entries(VIEWS).filter(([, jump]) => !jump.needs || jump.needs(index));
  box.jumps = h("p", { class: "jumps" }, "jump to ", jumps.map(([name, jump]) => h("button", { type: "button", "data-jump": name, onclick: () => narrow({ jump: seen.filters.jump === name ? "" : name }) }, jump.title)));
  box.count = h("p", { class: "fine", id: "count" });
  box.list = h("ol", { id: "list" });
  box.more = h("button", { type: "button", onclick: () => longer() }, "more");
  box.group = h("div", { id: "group", tabindex: -1 });
  place.replaceChildren(
    h("div", { class: "filters" },
      choice("data", "data set", [["", "all"], ...index.datasets.map((each, n) => [n, each])], (value) => narrow({ data: value })),
      field("record", "record", 9, "id"), field("q", "text", 12, "/"),
      index.controls.length > 1 ? choice("control", "evidence", index.controls.map((each) => [each, each === AS_IT_IS ? "as it is" : each.replace("_", " ")]), (value) => { seen.filters.control = value; pick(seen.chosen); }) : null),
    box.jumps, box.count,
    h("div", { class: "panes" }, h("div", { class: "left" }, box.list, box.more), box.group),
    h("p", { class: "fine keys" }, "Keys: ", h("kbd", {}, "j"), " ", h("kbd", {}, "k"), " next and previous record, ", h("kbd", {}, "c"), " the next control, ", h("kbd", {}, "/"), " search."));
  document.addEventListener("keydown", keyed);
  addEventListener("hashchange", () => { if (location.hash !== seen.hash) linked(); });
  linked();
}

function narrow(filters) {
  Object.assign(seen.filters, filters);
  seen.chosen = null;
  clearTimeout(seen.wait);
  seen.wait = setTimeout(() => show(), "q" in filters ? 250 : 0);
}

// The numbers of the records that pass all filters but the text, in the order of the jump, else in their own.
function passing(index, filters) {
  const record = filters.record.trim().toLowerCase(), jump = VIEWS[filters.jump] || {};
  const kept = index.ids.map((_, n) => n).filter((n) => {
    if (filters.data !== "" && index.columns.data[n] !== Number(filters.data)) return false;
    if (record && !index.ids[n].toLowerCase().includes(record)) return false;
    if (jump.order && last(index)[n] === null) return false;
    return !jump.keep || jump.keep(index, n);
  });
  return jump.order ? kept.sort((a, b) => jump.order(index, a) - jump.order(index, b) || a - b) : kept;
}

async function show() {
  const { index, filters } = seen, search = ++seen.search;
  for (const name of Object.keys(filters)) if (box[name] && box[name].value !== filters[name]) box[name].value = filters[name];
  for (const button of box.jumps.querySelectorAll("button")) button.classList.toggle("on", button.dataset.jump === filters.jump);
  let found = passing(index, filters);
  const wanted = filters.q.trim().toLowerCase();
  if (wanted) {
    const kept = [];
    for (const n of found) {
      const record = await recordAt(n);
      if (search !== seen.search) return;
      const texts = [record.solution, ...record.prompt.map((each) => each.text), ...record.views.flatMap((view) => view.models.flatMap(([, rows]) => rows.map((row) => row.text)))];
      if (texts.some((each) => each.toLowerCase().includes(wanted))) kept.push(n);
    }
    found = kept;
  }
  seen.found = found;
  box.list.replaceChildren();
  seen.shown = 0;
  longer();
  box.count.textContent = `${found.length.toLocaleString("en")} of ${index.ids.length.toLocaleString("en")} records`;
  await pick(seen.chosen ?? found[0] ?? null);
}

async function recordAt(n) {
  const { page, place } = seen.index.columns;
  return (await pageOf(0, page[n]))[place[n]];
}

function longer(until = 0) {
  do {
    const rows = seen.found.slice(seen.shown, seen.shown + ROWS);
    box.list.append(...rows.map(lineOf));
    seen.shown += rows.length;
    if (!rows.length) break;
  } while (seen.shown <= until);
  box.more.hidden = seen.shown >= seen.found.length;
}

function lineOf(n) {
  const { index } = seen, means = index.models.map((model) => index.means[AS_IT_IS][model][n]);
  const signs = [[NO_ANSWER, "no answer"], [CUT, "cut"]].filter(([mark]) => index.columns.marks[n] & mark).map(([, text]) => text);
  return h("li", { "data-record": n, onclick: () => pick(n, true) },
    h("span", { class: "at" }, String(n)), h("span", { class: "id" }, index.ids[n]), h("span", { class: "signs" }, signs.join(" ")),
    h("b", { title: index.models.map((model, k) => `${model}: ${brief(means[k])}`).join(", ") }, brief(means.at(-1))));
}

async function pick(n, scroll = false) {
  seen.chosen = n;
  for (const old of box.list.querySelectorAll(".on")) old.classList.remove("on");
  address();
  if (n === null) {
    box.group.replaceChildren(h("p", { class: "fine" }, "No record passes the filters."));
    return;
  }
  const at = seen.found.indexOf(n);
  if (at >= seen.shown) longer(at);
  const row = box.list.children[at];
  if (row) {
    row.classList.add("on");
    const { offsetTop, offsetHeight } = row, { scrollTop, clientHeight } = box.list;
    if (offsetTop < scrollTop || offsetTop + offsetHeight > scrollTop + clientHeight) box.list.scrollTop = offsetTop - clientHeight / 3;
  }
  try {
    const record = await recordAt(n);
    if (seen.chosen !== n) return;
    box.group.replaceChildren(recordView(n, record));
    if (scroll && box.group.getBoundingClientRect().top < 0) box.group.scrollIntoView();
  } catch (error) {
    box.group.replaceChildren(h("p", { class: "bad" }, error.message));
  }
}

// One record: what was shown once, and under it a column for each model.
function recordView(n, record) {
  const view = record.views.find((each) => each.control === seen.filters.control) || record.views[0];
  const { index } = seen;
  const pictured = !["blank", "text_only"].includes(view.control);
  const asked = view.control === seen.filters.control;
  const note = asked ? TAKEN[view.control] : `This record was not asked about with this control (${seen.filters.control.replace("_", " ")}): here it is as it is.`;
  return h("article", {},
    h("h3", { class: "title" }, record.id, h("small", {}, record.where)),
    note ? h("p", { class: "warning" }, note) : null,
    record.fitted ? h("p", { class: "fine" }, `To fit, the prompt was shown with less: ${JSON.stringify(record.fitted)}`) : null,
    ...(pictured ? view.clips.map(clipView) : []),
    pictured && view.images.length ? h("div", { class: "frames" }, view.images.map(imageView)) : null,
    questionView(record),
    h("div", { class: "models" }, view.models.map(([model, rows]) => h("div", { "data-model": model },
      h("h4", {}, model, h("small", {}, ` ${brief(index.means[view.control][model][n])}`)),
      h("div", { class: "completions" }, together(rows).map((row) => completionView(row, record)))))));
}

// The address names the record, the control and the filters: #id=17&control=blank.
function address() {
  const words = new URLSearchParams();
  if (seen.chosen !== null) words.set("id", seen.index.ids[seen.chosen]);
  for (const [name, value] of Object.entries(seen.filters)) if (value && !(name === "control" && value === AS_IT_IS)) words.set(name, value);
  seen.hash = `#${words}`;
  if (seen.quiet) seen.quiet = false; // a page that was just opened keeps its plain address
  else history.replaceState(null, "", seen.hash);
}

async function linked() {
  const words = new URLSearchParams(location.hash.slice(1)), named = location.hash.includes("=");
  if (seen.hash && !named) return; // a link to a section
  seen.quiet = !named;
  for (const name of Object.keys(seen.filters)) seen.filters[name] = words.get(name) || (name === "control" ? AS_IT_IS : "");
  if (!seen.index.controls.includes(seen.filters.control)) seen.filters.control = AS_IT_IS;
  const at = seen.index.ids.indexOf(words.get("id"));
  seen.chosen = at < 0 ? null : at;
  await show();
  if (words.has("id") && at < 0) box.count.prepend(`No record of this evaluation is called ${words.get("id")}. `);
  else if (named) document.querySelector("#records").scrollIntoView();
}

function keyed(event) {
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const step = (by) => { const next = seen.found[seen.found.indexOf(seen.chosen) + by]; if (next !== undefined) pick(next, true); };
  const { controls } = seen.index;
  const keys = {
    j: () => step(1), k: () => step(-1), "/": () => box.q.focus(),
    c: () => { seen.filters.control = controls[(controls.indexOf(seen.filters.control) + 1) % controls.length]; if (box.control) box.control.value = seen.filters.control; pick(seen.chosen); },
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
}
