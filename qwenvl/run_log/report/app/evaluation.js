"use strict";
// The records of an evaluation: a list, and the record that is chosen, with the answers of all models.

const NO_ANSWER = 1;
const CUT = 2; // as qwenvl/run_log/report/evaluation.py has them
const AS_IT_IS = "none";
// Each jump: its title, which records it keeps, and how it orders them (a smaller key comes first). The last model is
// the one that is asked about, the first the one that it is compared with.
const first = (index) => index.means[AS_IT_IS][index.models[0]];
const last = (index, control = AS_IT_IS) => index.means[control][index.models.at(-1)];
const without = (index) =>
  index.silent.includes(index.models.at(-1))
    ? []
    : index.controls.filter((each) => each !== AS_IT_IS && each !== "evidence");
const VIEWS = {
  gained: {
    title: "gained most",
    needs: (index) => index.models.length > 1,
    keep: (index, n) => last(index)[n] > first(index)[n],
    order: (index, n) => first(index)[n] - last(index)[n],
  },
  lost: {
    title: "lost most",
    needs: (index) => index.models.length > 1,
    keep: (index, n) => last(index)[n] < first(index)[n],
    order: (index, n) => last(index)[n] - first(index)[n],
  },
  unread: { title: "no answer", keep: (index, n) => index.columns.marks[n] & NO_ANSWER },
  cut: { title: "cut off", keep: (index, n) => index.columns.marks[n] & CUT },
};

// Whether the last model has a reward under a control that is as high as with the evidence.
const asGood = (index, control, n) =>
  last(index, control)[n] !== null && last(index)[n] !== null && last(index, control)[n] >= last(index)[n];
const blindView = (index, control) => ({
  label: "as good with",
  title: index.shown[control][0],
  keep: (_, n) => asGood(index, control, n),
  order: (_, n) => -last(index)[n],
});

const NO_CHOICE = { data: "", record: "", q: "", control: AS_IT_IS, jump: "", sort: "" };
const COLUMNS_SHOWN = 3; // models with a column of their own in the list, the last of them

class Records extends List {
  constructor(index) {
    const blind = without(index).map((control) => [`blind_${control}`, blindView(index, control)]);
    const jumps = [...Object.entries(VIEWS).filter(([, jump]) => !jump.needs || jump.needs(index)), ...blind];
    const models = index.models.slice(-COLUMNS_SHOWN);
    const columns = [
      ["number", "#", (_, n) => n],
      ["record", "record", (_, n) => index.ids[n]],
      ...models.map((model) => [model, model, (_, n) => index.means[AS_IT_IS][model][n]]),
    ];
    super({ filters: NO_CHOICE, jumps, columns, kind: "record", nothing: "No record was evaluated.", moving: ["c"] });
    this.index = index;
    this.models = models;
    this.jumps = Object.fromEntries(jumps);
    this.parts.list.style.setProperty("--models", models.length);
    this.parts.heads.style.setProperty("--models", models.length);
    const controls = index.controls.map((each) => [each, index.shown[each][0]]);
    this.place(
      [
        this.choice("data", "data set", [["", "all"], ...index.datasets.map((each, n) => [n, each])]),
        this.field("record", "record", 9, "id"),
        this.field("q", "text", 12, "/"),
        controls.length > 1 ? this.choice("control", "evidence", controls, (value) => this.ask(value)) : null,
      ],
      [
        ["c", " the next control"],
        ["/", " search"],
      ],
    );
    this.opened();
  }

  // Show the record as it was asked about under a control.
  ask(control) {
    this.filters.control = control;
    if (this.parts.control) this.parts.control.value = control;
    this.choose(this.chosen);
  }

  // The numbers of the records that pass all filters but the text, in the order of the jump, else in their own.
  filtered() {
    const { index, filters } = this;
    const record = filters.record.trim().toLowerCase();
    const jump = this.jumps[filters.jump] || {};
    const kept = index.ids
      .map((_, n) => n)
      .filter((n) => {
        if (filters.data !== "" && index.columns.data[n] !== Number(filters.data)) return false;
        if (record && !index.ids[n].toLowerCase().includes(record)) return false;
        if (jump.order && last(index)[n] === null) return false;
        return !jump.keep || jump.keep(index, n);
      });
    if (jump.order) kept.sort((a, b) => jump.order(index, a) - jump.order(index, b) || a - b);
    return sortedBy(kept, filters.sort, this.own.columns, index);
  }

  says(record, text) {
    const wanted = text.toLowerCase();
    const answers = record.views.flatMap((view) => view.models.flatMap(([, rows]) => rows.map((row) => row.text)));
    return [record.solution, ...record.prompt.map((each) => each.text), ...answers].some((each) =>
      each.toLowerCase().includes(wanted),
    );
  }

  row(n) {
    const { index } = this;
    const signs = [
      [NO_ANSWER, "no answer"],
      [CUT, "cut off"],
    ]
      .filter(([mark]) => index.columns.marks[n] & mark)
      .map(([, text]) => text);
    const blind = without(index)
      .filter((each) => asGood(index, each, n))
      .map((each) => index.shown[each][0]);
    if (blind.length) signs.push(`as good with ${blind.join(", ")}`);
    return [
      h("span", { class: "at" }, String(n)),
      h("span", { class: "id", title: index.ids[n] }, shortName(index.ids[n])),
      ...this.models.map((model) => h("b", { title: model }, fixed(index.means[AS_IT_IS][model][n]))),
      signs.length
        ? h(
            "span",
            { class: "signs" },
            signs.map((text) => h("i", {}, text)),
          )
        : null,
    ].filter(Boolean);
  }

  // One record: what was shown once, and under it a column for each model.
  view(n, record) {
    const { index, filters } = this;
    const view = record.views.find((each) => each.control === filters.control) || record.views[0];
    const pictured = !["blank", "text_only"].includes(view.control);
    const asked = view.control === filters.control;
    const note = asked
      ? index.shown[view.control][1]
      : `This record was not evaluated with ${index.shown[filters.control][0]}: here it is as it is.`;
    return h(
      "article",
      {},
      h("h3", { class: "title" }, record.id, h("small", {}, record.where)),
      note ? h("p", { class: "warning" }, note) : null,
      record.fitted
        ? h("p", { class: "fine" }, `To fit, the prompt was shown with less: ${JSON.stringify(record.fitted)}`)
        : null,
      view.timeline
        ? timelineView(
            view.timeline,
            pictured ? view.clips : [],
            view.models.flatMap(([model, rows]) => answersIn(together(rows), `${model}: `)),
          )
        : null,
      ...(pictured ? view.clips.map((clip) => clipView(clip, view.timeline !== null)) : []),
      pictured && view.images.length ? h("div", { class: "frames" }, view.images.map(imageView)) : null,
      questionView(record),
      h(
        "div",
        { class: "models" },
        view.models.map(([model, rows]) =>
          h(
            "div",
            { "data-model": model },
            h("h4", {}, model, h("small", {}, ` ${fixed(index.means[view.control][model][n])}`)),
            h(
              "div",
              { class: "completions" },
              together(rows).map((row) => completionView(row, { ...record, ...view, pictured })),
            ),
          ),
        ),
      ),
    );
  }

  // The address names the record, the control and the filters: #id=17&control=blank.
  words() {
    const words = new URLSearchParams();
    if (this.chosen !== null) words.set("id", this.index.ids[this.chosen]);
    for (const [name, value] of Object.entries(this.filters)) {
      if (value && !(name === "control" && value === AS_IT_IS)) words.set(name, value);
    }
    return words;
  }

  async opened() {
    const words = new URLSearchParams(location.hash.slice(1));
    const named = location.hash.includes("=");
    if (this.hash && !named) return; // a link to a section
    const { index, filters } = this;
    this.quiet = !named;
    for (const [name, plain] of Object.entries(NO_CHOICE)) filters[name] = words.get(name) || plain;
    if (!index.controls.includes(filters.control)) filters.control = AS_IT_IS;
    const at = index.ids.indexOf(words.get("id"));
    this.chosen = at < 0 ? null : at;
    await this.apply();
    if (words.has("id") && at < 0) {
      this.parts.count.prepend(`No record of this evaluation is called ${words.get("id")}. `);
    } else if (named) document.querySelector("#records").scrollIntoView();
  }

  keys() {
    const { controls } = this.index;
    return { c: () => this.ask(controls[(controls.indexOf(this.filters.control) + 1) % controls.length]) };
  }
}

async function startRecords() {
  let index;
  try {
    index = await indexOf(0);
  } catch (error) {
    document
      .querySelector("#browser")
      .replaceChildren(h("p", { class: "bad" }, `${error.message}: is the whole folder of the report here?`));
    return;
  }
  report.list = new Records(index);
}
