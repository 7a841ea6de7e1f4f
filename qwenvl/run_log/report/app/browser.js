"use strict";
// The browser of groups: the list of the groups of a run.

class Groups extends List {
  constructor() {
    super({
      filters: NO_FILTERS,
      jumps: Object.entries(JUMPS),
      columns: COLUMNS,
      kind: "group",
      nothing: "The run has written no completions yet.",
      moving: ["[", "]"],
    });
    const { runs } = report.data;
    const run = this.choice(
      "run",
      "run",
      runs.map((name, n) => [n, name]),
      (value) => this.openRun(Number(value)),
    );
    this.place(
      [
        runs.length > 1 ? run : null,
        this.choice("split", "split"),
        this.field("step", "step", 7, "100-200"),
        this.choice("data", "data set"),
        this.field("record", "record", 9, "id"),
        this.field("q", "text", 12, "/"),
        this.choice("part", "reward"),
        this.field("min", "from", 4, "0"),
        this.field("max", "to", 4, "1"),
        h("button", { type: "button", id: "clear", onclick: () => this.change({ ...NO_FILTERS }) }, "clear"),
      ],
      [
        ["[", "]", " the same record before and after"],
        ["/", " search"],
        ["x", " clear the filters"],
      ],
    );
    this.opened(true);
  }

  // Show a run, and of it the group that an address names, if one is given.
  async openRun(run, address = null) {
    const { parts, filters } = this;
    this.run = run;
    this.index = null;
    let index;
    try {
      index = await indexOf(run);
    } catch (error) {
      parts.count.replaceChildren(
        h(
          "span",
          { class: "bad" },
          error.message === WRITTEN_AGAIN ? error.message : `${error.message}: is the whole folder of the report here?`,
        ),
      );
      return false;
    }
    this.index = index;
    const options = (element, first, names) =>
      element.replaceChildren(
        h("option", { value: "" }, first),
        ...names.map((name) => h("option", { value: name }, name)),
      );
    const known = { split: index.splits, data: index.datasets, part: index.rewards };
    for (const [name, values] of Object.entries(known)) {
      if (!values.includes(filters[name])) filters[name] = "";
      options(parts[name], name === "part" ? "total" : "all", values);
    }
    parts.run.value = String(run);
    this.chosen = address && (address.has("id") || address.has("step")) ? groupAt(index, address) : null;
    const missed =
      address && address.has("id") && this.chosen === null ? `${location.hash} names no group of this run. ` : "";
    await this.apply();
    parts.count.prepend(missed);
    return true;
  }

  filtered() {
    return filtered(this.index, this.filters);
  }

  says(group, text) {
    return says(group, text);
  }

  row(n) {
    const { columns, records, splits } = this.index;
    const id = records[columns.record[n]][0];
    const signs = MARKS.filter(([mark]) => columns.marks[n] & mark);
    return [
      h("span", { class: "at" }, `${columns.step[n]}`, isTrain(this.index, n) ? "" : ` ${splits[columns.split[n]]}`),
      h("span", { class: "id", title: id }, shortName(id)),
      h("b", { title: `from ${brief(columns.low[n])} to ${brief(columns.high[n])}` }, brief(columns.mean[n])),
      signs.length
        ? h(
            "span",
            { class: "signs" },
            signs.map(([, text, title]) => h("i", { title }, text)),
          )
        : null,
    ].filter(Boolean);
  }

  view(n, group) {
    return groupView(this.index, n, group, (each) => this.choose(each, true));
  }

  // The address names the run, the group and the filters: #step=120&id=17.
  words() {
    const words = new URLSearchParams();
    const { index, chosen } = this;
    if (report.data.runs.length > 1) words.set("run", this.run);
    if (chosen !== null) {
      const { columns, records } = index;
      words.set("step", columns.step[chosen]);
      words.set("id", records[columns.record[chosen]][0]);
      if (!isTrain(index, chosen)) words.set("split", index.splits[columns.split[chosen]]);
    }
    for (const [name, value] of Object.entries(this.filters)) if (value) words.set(`f_${name}`, value);
    return words;
  }

  async opened(first = false) {
    const words = new URLSearchParams(location.hash.slice(1));
    const linked = location.hash.includes("=");
    if (!first && !linked) return; // a link to a section
    this.quiet = !linked;
    for (const name of Object.keys(NO_FILTERS)) this.filters[name] = words.get(`f_${name}`) || "";
    if (!linked) this.filters.split = "train"; // what most readers come for
    const run = Math.min(report.data.runs.length - 1, Math.max(0, Number(words.get("run")) || 0));
    const again = first && performance.getEntriesByType("navigation")[0]?.type === "reload"; // keeps its place
    if ((await this.openRun(run, words)) && linked && !again) document.querySelector("#groups").scrollIntoView();
  }

  keys() {
    const own = () => historyOf(this.index, this.chosen);
    const along = this.chosen !== null;
    return {
      ...(along ? { "]": () => this.step(own(), 1), "[": () => this.step(own(), -1) } : {}),
      x: () => this.change({ ...NO_FILTERS }),
    };
  }
}

// The first group with the step, record and split of an address. Those that it does not name may be any.
function groupAt(index, words) {
  const { columns, records, splits } = index;
  const order = columns.step.map((_, n) => n).sort((a, b) => columns.step[a] - columns.step[b] || a - b);
  const wants = (name, value) => !words.has(name) || words.get(name) === String(value);
  const fits = (n, split) =>
    wants("step", columns.step[n]) &&
    wants("id", records[columns.record[n]][0]) &&
    (!split || splits[columns.split[n]] === split);
  const split = words.get("split");
  return order.find((n) => fits(n, split || "train")) ?? order.find((n) => fits(n, split)) ?? null;
}
