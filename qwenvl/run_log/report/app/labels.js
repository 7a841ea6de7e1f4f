"use strict";
// The labels of clips: a list, the doubtful ones first, and the label that is chosen, to confirm, to correct and to save.

const SHOWN = { // each jump: its title, and which labels it keeps
  open: { title: "not looked at", keep: (labels, n) => !labels.done(n) && labels.index.answers[n] !== null },
  right: { title: "confirmed", keep: (labels, n) => labels.done(n)?.state === "confirmed" },
  corrected: { title: "corrected", keep: (labels, n) => labels.done(n)?.state === "corrected" },
  unread: { title: "no answer", keep: (labels, n) => labels.index.answers[n] === "" },
  failed: { title: "errors", keep: (labels, n) => labels.index.answers[n] === null },
};
const NO_CHOICE = { q: "", jump: "", sort: "" };
const STORE = `qwenvl labels ${location.pathname}`;

class Labels extends List {
  constructor(index) {
    const columns = [["number", "#", (_, n) => n], ["id", "clip", (_, n) => index.ids[n]], ["agreement", "agree", (_, n) => index.columns.agreement[n]], ["logprob", "log-prob", (_, n) => index.columns.logprob[n]]];
    super({ filters: NO_CHOICE, jumps: Object.entries(SHOWN), columns, kind: "label", nothing: "No clip was labelled." });
    this.index = index;
    this.checked = new Map(); // number -> {answer, state: confirmed | corrected}
    const numbers = new Map(index.ids.map((id, n) => [id, n]));
    try {
      for (const [id, each] of Object.entries(JSON.parse(localStorage.getItem(STORE) || "{}"))) if (numbers.has(id)) this.checked.set(numbers.get(id), each);
    } catch { /* a browser that keeps nothing: the labels are those of this visit */ }
    for (const part of [this.parts.list, this.parts.heads]) part.style.setProperty("--models", 2);
    this.place([this.field("q", "text", 14, "/")], [["y", " the answer is right"], ["e", " correct it"], ["/", " search"]]);
    for (const id of ["save", "unchecked"]) document.querySelector(`#${id}`).addEventListener(id === "save" ? "click" : "change", () => (id === "save" ? this.save() : this.count()));
    this.count();
    this.opened();
  }

  done(n) { return this.checked.get(n); }

  filtered() {
    const { index, filters } = this, jump = SHOWN[filters.jump];
    const kept = index.ids.map((_, n) => n).filter((n) => !jump || jump.keep(this, n));
    return sortedBy(kept, filters.sort, this.own.columns, index);
  }

  says(label, text) {
    const wanted = text.toLowerCase();
    return [label.id, label.error, label.text, ...label.prompt.map((each) => each.text)].some((each) => each && each.toLowerCase().includes(wanted));
  }

  row(n) {
    const { index } = this, { agreement, logprob } = index.columns, done = this.done(n), answer = done ? done.answer : index.answers[n];
    return [
      h("span", { class: "at" }, `${done ? "✓ " : ""}${n + 1}`), h("span", { class: "id", title: index.ids[n] }, baseName(index.ids[n]) || "–"),
      h("b", {}, agreement[n] === null || agreement[n] === undefined ? "" : `${Math.round(100 * agreement[n])} %`), h("b", {}, logprob[n] === null || logprob[n] === undefined ? "" : logprob[n].toFixed(2)),
      h("span", { class: "signs" }, answer === null ? h("i", { class: "bad" }, "error") : h("i", { class: "clamped", title: answer }, answer || "no answer"), done ? h("i", {}, done.state) : null),
    ];
  }

  view(n, label) {
    const head = h("h3", { class: "title", title: label.id }, baseName(label.id) || "a row that can't be read");
    if (label.error !== null) return h("article", {}, head, h("p", { class: "bad" }, label.error));
    const done = this.done(n);
    const box = h("textarea", { id: "answer", rows: 3, "aria-label": "the answer", onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.check(n, box.value); } });
    box.value = done ? done.answer : label.answer;
    const button = (id, text, title, act) => h("button", { type: "button", id, title, onclick: act }, text);
    const facts = [label.agreement === null ? null : `${Math.round(100 * label.agreement)} % of ${label.texts.length} completions agree`, `mean log-prob ${brief(label.logprob)}`, `${label.frames} frames`, label.finish_reason === "length" ? "cut at the limit" : null];
    const prompt = label.prompt.map((each) => (label.prompt.length > 1 ? `[${each.role}] ${each.text}` : each.text)).join("\n\n");
    return h("article", {}, head,
      ...label.clips.map(clipView),
      label.images.length ? h("div", { class: "frames" }, label.images.map(imageView)) : null,
      h("p", { class: "fine" }, facts.filter(Boolean).join(" · ")),
      h("div", { class: "label" }, box, h("p", {},
        label.answer ? button("confirm", "right", "y", () => this.check(n, label.answer)) : null, button("correct", "save correction", "Ctrl+Enter in the field", () => this.check(n, box.value)),
        done ? button("undo", `${done.state}: undo`, "", () => this.check(n, null)) : null)),
      label.votes.length > 1 ? h("ul", { class: "votes" }, label.votes.map(([answer, count]) => h("li", {}, h("button", { type: "button", onclick: () => { box.value = answer; box.focus(); } }, `${count} ×`), ` ${answer || "no answer"}`))) : null,
      h("details", {}, h("summary", {}, "what it wrote"), h("pre", {}, marked(label.text))),
      h("details", { open: prompt.length < 200 }, h("summary", {}, "prompt"), h("pre", {}, prompt)));
  }

  // Note an answer as right or corrected, and go to the next label. None takes the note back.
  check(n, answer) {
    if (answer === null) this.checked.delete(n);
    else if (!answer.trim()) return;
    else this.checked.set(n, { answer: answer.trim(), state: answer.trim() === this.index.answers[n].trim() ? "confirmed" : "corrected" });
    try {
      localStorage.setItem(STORE, JSON.stringify(Object.fromEntries([...this.checked].map(([each, value]) => [this.index.ids[each], value]))));
    } catch { /* as above */ }
    const at = this.found.indexOf(n), row = this.parts.list.children[at];
    if (row) row.replaceChildren(...this.row(n).filter(Boolean));
    this.count();
    const next = this.found[at + 1];
    this.choose(answer === null || next === undefined ? n : next, true);
  }

  // The numbers of the labels that would be saved.
  saved() {
    const all = document.querySelector("#unchecked").checked;
    return this.index.ids.map((_, n) => n).filter((n) => this.done(n) || (all && this.index.answers[n]));
  }

  count() {
    const button = document.querySelector("#save"), count = this.saved().length;
    button.textContent = `save ${count.toLocaleString("en")} ${count === 1 ? "record" : "records"}`;
    button.disabled = !count;
    document.querySelector("#done").textContent = `${this.checked.size.toLocaleString("en")} of ${this.index.ids.length.toLocaleString("en")} done`;
  }

  async save() {
    const { page, place } = this.index.columns, rows = [];
    for (const n of this.saved()) {
      const label = (await pageOf(0, page[n]))[place[n]], answer = this.done(n)?.answer ?? label.answer;
      rows.push({ ...label.record, conversations: [...label.record.conversations, { from: "gpt", value: `<answer>${answer}</answer>` }] });
    }
    const link = h("a", { href: URL.createObjectURL(new Blob([JSON.stringify(rows, null, 1) + "\n"], { type: "application/json" })), download: "labels.json" });
    link.click();
    URL.revokeObjectURL(link.href);
    document.querySelector("#saved").textContent = `saved ${rows.length.toLocaleString("en")} as labels.json`;
  }

  words() {
    const words = new URLSearchParams();
    if (this.chosen !== null) words.set("id", this.index.ids[this.chosen]);
    for (const [name, value] of Object.entries(this.filters)) if (value) words.set(name, value);
    return words;
  }

  async opened() {
    const words = new URLSearchParams(location.hash.slice(1));
    this.quiet = !location.hash.includes("=");
    for (const [name, plain] of Object.entries(NO_CHOICE)) this.filters[name] = words.get(name) || plain;
    const at = words.has("id") ? this.index.ids.indexOf(words.get("id")) : -1;
    this.chosen = at < 0 ? null : at;
    await this.apply();
  }

  keys() {
    return { y: () => document.querySelector("#confirm")?.click(), e: () => document.querySelector("#answer")?.focus() };
  }
}

async function startLabels() {
  try {
    report.list = new Labels(await indexOf(0));
  } catch (error) {
    document.querySelector("#browser").replaceChildren(h("p", { class: "bad" }, `${error.message}: is the whole folder of the page here?`));
  }
}
