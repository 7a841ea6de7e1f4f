"use strict";
// The labels of clips: a list, the doubtful ones first, and the label that is chosen, to confirm, correct and save.

const SHOWN = {
  // each jump: its title, and which labels it keeps
  open: { title: "not looked at", keep: (labels, n) => !labels.done(n) && labels.index.answers[n] !== null },
  right: { title: "confirmed", keep: (labels, n) => labels.done(n)?.state === "confirmed" },
  corrected: { title: "corrected", keep: (labels, n) => labels.done(n)?.state === "corrected" },
  unread: { title: "no answer", keep: (labels, n) => labels.index.answers[n] === "" },
  failed: { title: "errors", keep: (labels, n) => labels.index.answers[n] === null },
};
const NO_CHOICE = { q: "", jump: "", sort: "" };
const STORES = "qwenvl labels ";
const STORE = `${STORES}${location.pathname}`;
const DRAFTS = `${STORE} drafts`;
const NAME = 18; // letters of a clip's name that fit into the list
const MILLION = 1e6;

class Labels extends List {
  constructor(index) {
    const voted = index.columns.agreement.some((each) => each !== null); // else each clip has one completion
    const columns = [
      ["number", "#", (_, n) => n],
      ["id", "clip", (_, n) => index.ids[n]],
      voted ? ["agreement", "agree", (_, n) => index.columns.agreement[n]] : null,
      ["logprob", "log-prob", (_, n) => index.columns.logprob[n]],
    ].filter(Boolean);
    super({
      filters: NO_CHOICE,
      jumps: Object.entries(SHOWN),
      columns,
      kind: "label",
      nothing: "No clip was labelled.",
    });
    Object.assign(this, { index, voted, saves: 0 }); // saves: files that this visit has downloaded
    this.refused = index.ids.map((_, n) => isRefused(index, n));
    // number -> {answer, timeline: spans of one, state: confirmed | corrected}
    this.checked = new Kept(STORE, index.keys, CHECKED_FORM);
    // number -> what was edited and not saved: a text, or spans
    this.drafts = new Kept(DRAFTS, index.keys, DRAFT_FORM);
    this.edited = new Set(); // numbers of the labels whose draft was made here, and not in another tab
    this.folders = foldersOf(index.ids);
    for (const part of [this.parts.list, this.parts.heads]) part.style.setProperty("--models", voted ? 2 : 1);
    const ofSpans = index.timed
      ? [
          ["n", " a new span"],
          ["[", "]", " begin and end the span where the clip stands"],
        ]
      : [];
    this.place(
      [this.field("q", "text", 14, "/")],
      [["y", " what is shown is right"], ["e", " correct it"], ["p", " play"], ...ofSpans, ["/", " search"]],
    );
    for (const button of document.querySelectorAll("#save, #save-now")) {
      button.addEventListener("click", () => this.save());
    }
    document.querySelector("#unchecked").addEventListener("change", () => this.count());
    addEventListener("storage", (event) => this.followed(event));
    addEventListener("beforeunload", (event) => {
      this.editor?.commit();
      if (!this.unsaved()) return;
      event.preventDefault();
      event.returnValue = true; // for browsers that do not read the line above
    });
    this.count();
    this.offer();
    this.opened();
  }

  // Offer the answers to these questions that the browser keeps of another page: most often of this one, before its
  // folder was moved.
  offer() {
    if (this.checked.problem || this.checked.size || this.drafts.size) return;
    const found = [];
    for (const { path } of otherPages(STORES, location.pathname)) {
      try {
        const checked = this.checked.stored(`${STORES}${path}`);
        const drafts = this.drafts.stored(`${STORES}${path} drafts`);
        if (checked.size + drafts.size) found.push({ path, checked, drafts });
      } catch {
        // no page of ours has written it
      }
    }
    const place = document.querySelector("#elsewhere");
    const take =
      ({ checked, drafts }) =>
      () => {
        this.checked.take(checked);
        this.drafts.take(drafts);
        place.replaceChildren();
        this.drawRows();
        this.count();
        if (this.chosen !== null) this.choose(this.chosen);
      };
    const item = (page) => {
      const answers = counted(page.checked.size + page.drafts.size, "answer");
      return h(
        "p",
        {},
        `This browser keeps ${answers} to these questions of another page, ${page.path}: `,
        h("button", { type: "button", onclick: take(page) }, "take over"),
      );
    };
    place.replaceChildren(...found.map(item));
  }

  drawRows() {
    [...this.parts.list.children].forEach((row, at) => row.replaceChildren(...this.row(this.found[at])));
  }

  // Another tab has changed what the browser keeps. What was edited here stays as it is.
  followed(event) {
    const concerns = (name) => event.key === name || event.key === null; // null: everything was removed
    this.editor?.commit();
    const shown = this.chosen;
    const kept = () => JSON.stringify([this.done(shown), this.drafts.get(shown)]);
    const before = kept();
    if (concerns(STORE)) {
      this.checked.follow();
      this.drawRows();
    }
    if (concerns(DRAFTS)) this.drafts.follow(this.edited);
    // Else "right" would take over the answer that the other tab has corrected.
    const isOld = shown !== null && kept() !== before;
    if (isOld && !this.edited.has(shown)) this.choose(shown);
    this.retry();
  }

  // Store what could not be stored: there may be room now.
  retry() {
    for (const kept of [this.checked, this.drafts]) kept.retry();
    this.count();
  }

  // Keep an edited answer until it is saved. One that is as it was before is no draft.
  draft(n, value, before) {
    const same = JSON.stringify(value) === JSON.stringify(before);
    this.drafts.set(n, same ? undefined : value);
    if (same) this.edited.delete(n);
    else this.edited.add(n);
    this.count();
  }

  done(n) {
    return this.checked.get(n);
  }

  // What is being typed is a draft before another label takes its place.
  choose(n, scroll) {
    this.editor?.commit();
    this.editor = this.player = null;
    return super.choose(n, scroll);
  }

  filtered() {
    const { index, filters } = this;
    const jump = SHOWN[filters.jump];
    const kept = index.ids.map((_, n) => n).filter((n) => !jump || jump.keep(this, n));
    return sortedBy(kept, filters.sort, this.own.columns, index);
  }

  says(label, text) {
    const wanted = text.toLowerCase();
    return [label.id, label.error, label.text, ...label.prompt.map((each) => each.text)].some(
      (each) => each && each.toLowerCase().includes(wanted),
    );
  }

  row(n) {
    const { index } = this;
    const { agreement, logprob } = index.columns;
    const done = this.done(n);
    const answer = done ? done.answer : index.answers[n];
    const folder = this.folders[n];
    return [
      h("span", { class: "at" }, `${done ? "✓ " : ""}${n + 1}`),
      h("span", { class: "id", title: index.ids[n] }, shortName(baseName(index.ids[n]), NAME) || "–"),
      this.voted ? h("b", {}, agreement[n] === null ? "" : `${Math.round(100 * agreement[n])} %`) : null,
      h("b", {}, logprob[n] === null || logprob[n] === undefined ? "" : logprob[n].toFixed(2)),
      h(
        "span",
        { class: "signs" },
        folder ? h("i", { class: "folder" }, folder) : null,
        answer === null
          ? h("i", { class: "bad" }, "error")
          : h("i", { class: "clamped", title: answer }, answer || "no answer"),
        done ? h("i", {}, done.state) : null,
      ),
    ].filter(Boolean);
  }

  view(n, label) {
    const head = h(
      "h3",
      { class: "title", title: label.id },
      baseName(label.id),
      folderOf(label.id) ? h("small", {}, folderOf(label.id)) : null,
    );
    if (label.error !== null) return h("article", {}, head, h("p", { class: "bad" }, label.error));
    const facts = [
      label.agreement === null
        ? null
        : `${Math.round(100 * label.agreement)} % of ${label.texts.length} completions agree`,
      `mean log-prob ${brief(label.logprob)}`,
      label.clips.length === 1 ? null : `${label.frames} frames`,
      label.finish_reason === "length" ? "cut at the limit" : null,
    ];
    const prompt = label.prompt
      .map((each) => (label.prompt.length > 1 ? `[${each.role}] ${each.text}` : each.text))
      .join("\n\n");
    const players = label.files
      .map((file, place) => (file ? playerView(file, label.clips[place]?.path ?? file) : null))
      .filter(Boolean);
    this.player = players.length === 1 ? players[0].querySelector("video") : null;
    return h(
      "article",
      {},
      head,
      players,
      ...label.clips.map((clip) => clipView(clip, label.timeline !== null)),
      label.images.length ? h("div", { class: "frames" }, label.images.map(imageView)) : null,
      h("p", { class: "fine" }, facts.filter(Boolean).join(" · ")),
      this.isOfSpans(n, label) ? this.spansPart(n, label) : this.textPart(n, label),
      h("details", {}, h("summary", {}, "what it wrote"), h("pre", {}, marked(label.text))),
      h("details", { open: prompt.length < 200 }, h("summary", {}, "prompt"), h("pre", {}, prompt)),
    );
  }

  // Whether a label is edited as spans. What the reader has noted as a text stays one: the model may have written spans
  // only when it was asked again.
  isOfSpans(n, label) {
    const done = this.done(n);
    return Boolean(label.timeline) && typeof this.drafts.get(n) !== "string" && !(done && !done.timeline);
  }

  // The field of an answer in words, with a button for each step of the prompt's list, or for each option.
  textPart(n, label) {
    const done = this.done(n);
    const box = h("textarea", {
      id: "answer",
      rows: 3,
      "aria-label": "the answer",
      oninput: () => changed(),
      onkeydown: (event) => {
        if (savesNow(event)) buttons.correct.click();
      },
    });
    const hasOptions = label.options.length > 0;
    const offered = hasOptions ? label.options : label.steps; // [letter, text], or [number, name]
    const take = (mark, name) => {
      box.value = hasOptions ? mark : toggledStep(box.value, mark, name);
      changed();
    };
    const palette = h(
      "div",
      { class: "palette", role: "group", "aria-label": hasOptions ? "options" : "steps" },
      offered.map(([mark, name]) =>
        h(
          "button",
          { type: "button", "data-mark": mark, onclick: () => take(mark, name) },
          h("b", {}, String(mark)),
          ` ${name}`,
        ),
      ),
    );
    const press = () => {
      const named = hasOptions ? chosenLetters(box.value, offered) : partsOf(box.value).map((part) => part.key);
      for (const button of palette.children) {
        button.setAttribute("aria-pressed", String(named.includes(button.dataset.mark)));
      }
    };
    const before = done ? done.answer : label.answer;
    box.value = before;
    const plain = box.value; // a field has other ends of lines than an answer may have
    const draft = this.drafts.get(n);
    box.value = Array.isArray(draft) ? spansLine(draft) : (draft ?? before);
    const shown = () => ({ answer: box.value === plain ? before : box.value });
    const buttons = this.buttons(n, label, { shown, problem: () => answerProblem(box.value, label) });
    const changed = () => {
      this.draft(n, shown().answer, before);
      press();
      buttons.update();
    };
    press();
    const votes = label.votes.map(([answer, count]) => ({
      answer,
      count,
      use: () => {
        box.value = answer;
        changed();
        box.focus();
      },
    }));
    return h("div", { class: "label" }, offered.length ? palette : null, box, buttons.element, votesView(votes));
  }

  // The bar of the model's timeline, and below it the one that is edited.
  spansPart(n, label) {
    const done = this.done(n);
    const { length, spans, cut, unread } = label.timeline;
    const before = spansWithin(done?.timeline ?? spans, length);
    const editor = (this.editor = new SpanEditor({
      spans: this.drafts.get(n) ?? before,
      length,
      steps: label.steps,
      player: this.player,
      changed: () => changed(),
    }));
    const problem = () => {
      if (!editor.spans.length) return "there is no span";
      return editor.spans.every((span) => editor.listed(span)) ? "" : "a span's step is not in the list";
    };
    const buttons = this.buttons(n, label, {
      shown: () => entryOf(editor.spans),
      problem,
      ready: () => editor.ready(),
    });
    const changed = () => {
      this.draft(n, sortedSpans(editor.spans), sortedSpans(before));
      buttons.update();
    };
    const saveNow = () => {
      editor.commit(); // the button may be enabled by what is typed
      buttons.correct.click();
    };
    const steps = `${editor.grain} s, with Shift by ${seconds(FAR * editor.grain)} s`;
    const help =
      "Drag an edge or a span, or draw a new one. Tab goes to spans and edges: " +
      `← → move them by ${steps}; 1 to 9 set the step, Delete removes.`;
    const notes = [];
    if (cut) notes.push("cut at the end of the clip");
    if (unread) notes.push(`without what is no span: ${unread}`);
    const bar = (title, element) => h("div", { class: "bar-of-spans" }, h("p", {}, title), element);
    const votes = label.votes.map(([answer, count], vote) => ({
      answer: spansLine(label.vote_spans[vote]),
      count,
      use: () => editor.replace(label.vote_spans[vote]),
    }));
    return h(
      "div",
      {
        class: "label editor",
        onkeydown: (event) => {
          if (savesNow(event)) saveNow();
        },
      },
      filmView(label.clips.length === 1 ? label.clips[0] : null, length),
      bar(["the model's answer", ...notes].join(", "), barView(spans, length)),
      bar("your timeline", editor.lanes),
      editor.palette,
      editor.rows,
      h("p", {}, editor.addButton, h("span", { class: "fine keys" }, help)),
      buttons.element,
      votesView(votes),
    );
  }

  // The buttons under an answer, and `update` for when it has changed. Both of them save what is shown.
  // shown: the entry of what is shown. problem: why it can't be saved, or "". ready: asked before, false where a field
  // is refused.
  buttons(n, label, { shown, problem, ready = () => true }) {
    const done = this.done(n);
    const button = (id, text, act) => h("button", { type: "button", id, onclick: act }, text);
    const save = () => {
      if (ready() && !problem()) this.check(n, shown());
    };
    const confirm = button("confirm", "right", save);
    const correct = button("correct", "save correction", save);
    const words = () => {
      if (isModels(label, shown())) return "right";
      return this.drafts.get(n) === undefined ? "right, as corrected" : "right, as edited";
    };
    const update = () => {
      const why = problem();
      confirm.disabled = correct.disabled = Boolean(why);
      confirm.textContent = words();
      confirm.title = why || "y";
      correct.title = why || "Ctrl+Enter";
    };
    update();
    return {
      confirm,
      correct,
      update,
      element: h(
        "p",
        {},
        confirm,
        correct,
        done ? button("undo", `${done.state}: undo`, () => this.check(n, null)) : null,
      ),
    };
  }

  // Note an answer as right or corrected, and go to the next label. None takes the note back.
  async check(n, entry) {
    if (entry !== null && !entry.answer.trim()) return;
    if (entry === null) {
      this.checked.set(n, undefined);
    } else {
      let label;
      try {
        label = await this.one(n);
      } catch (error) {
        // a draft of it stays
        this.parts.group.replaceChildren(h("p", { class: "bad" }, error.message));
        return;
      }
      const state = isModels(label, entry) ? "confirmed" : "corrected";
      this.checked.set(n, { ...entry, answer: entry.answer.trim(), state });
    }
    this.drafts.set(n, undefined);
    this.edited.delete(n);
    this.checked.retry(); // the draft has left room
    const at = this.found.indexOf(n);
    const row = this.parts.list.children[at];
    if (row) row.replaceChildren(...this.row(n));
    this.count();
    const next = this.found[at + 1];
    this.choose(entry === null || next === undefined ? n : next, true);
  }

  // The label with its spans as they are shown, and so saved: inside of the clip.
  async one(n) {
    const label = await super.one(n);
    if (!label.timeline) return label;
    const length = label.timeline.length || 1;
    const { spans, unread } = label.timeline;
    const cut = spans.some((span) => span.end > length);
    const timeline = { length, spans: spansWithin(spans, length), cut, unread };
    return { ...label, timeline, vote_spans: label.vote_spans.map((vote) => spansWithin(vote, length)) };
  }

  // How many answers are neither kept by the browser nor in a file.
  unsaved() {
    return this.checked.unsaved.size + this.drafts.unsaved.size;
  }

  // Whether nobody has looked at an answer. One that was edited was not right as it is.
  isUnseen(n) {
    return this.index.answered[n] && !this.done(n) && this.drafts.get(n) === undefined;
  }

  // The numbers of the labels that would be saved.
  toSave() {
    const all = document.querySelector("#unchecked").checked;
    return this.index.ids.map((_, n) => n).filter((n) => this.done(n) || (all && this.isUnseen(n) && !this.refused[n]));
  }

  // How many answers are left out of what is saved: nobody has looked at them, and training would refuse them.
  leftOut() {
    if (!document.querySelector("#unchecked").checked) return 0;
    return this.refused.filter((refused, n) => refused && this.isUnseen(n)).length;
  }

  count() {
    const button = document.querySelector("#save");
    const count = this.toSave().length;
    button.textContent = `save ${counted(count, "record")}`;
    button.disabled = document.querySelector("#save-now").disabled = !count;
    // Of the others there is nothing to check.
    const answered = this.index.answers.filter((answer) => answer !== null).length;
    const notes = [`${this.checked.size.toLocaleString("en")} of ${answered.toLocaleString("en")} done`];
    const note = (size, words) => {
      if (size) notes.push(`${size.toLocaleString("en")} ${words}`);
    };
    note(this.drafts.size, "edited and not saved as a correction");
    note(this.unsaved(), "neither kept nor saved");
    note(this.leftOut(), "left out: a step or option that is not listed, a range, or tags in the answer");
    document.querySelector("#done").textContent = notes.join(", ");
    this.warn();
  }

  // Say that the browser keeps no more answers, for as long as that is so. A text that stays is not read out again.
  warn() {
    const problem = this.checked.problem ?? this.drafts.problem;
    const when = this.unsaved()
      ? "Save the records as a file now"
      : "Save the records as a file before you leave this page";
    const drafts = this.drafts.unsaved.size ? ", edited answers as corrections first" : "";
    const lost = "answers that it does not keep are gone when the page is closed or loaded again";
    const text = problem ? `This browser keeps no more answers: ${problem}. ${when}${drafts}: ${lost}.` : "";
    const shown = document.querySelector("#unkept");
    if (shown.textContent === text) return;
    shown.textContent = text;
    document.querySelector("#stays").hidden = Boolean(problem);
    document.querySelector("#save-now").hidden = !problem;
    this.showOthers(problem === FULL);
  }

  // What other pages take up of a full storage, to be forgotten one by one. Never without a word: nobody knows whether
  // it was saved as a file.
  showOthers(full) {
    const pages = full ? otherPages(STORES, location.pathname) : [];
    const forget = (page) => () => {
      const what = `the ${counted(page.answers, "answer")} that this browser keeps of ${page.path}`;
      if (!confirm(`Forget ${what}? Those that were never saved as a file are gone.`)) return;
      for (const name of page.names) localStorage.removeItem(name);
      this.retry();
      this.showOthers(this.checked.problem === FULL);
    };
    const item = (page) =>
      h(
        "li",
        {},
        `${page.path}: ${counted(page.answers, "answer")}, ${brief(page.characters / MILLION)} million characters `,
        h("button", { type: "button", onclick: forget(page) }, "forget"),
      );
    const others = document.querySelector("#others");
    others.hidden = !pages.length;
    others.replaceChildren(h("summary", {}, "other pages of labels in this storage"), h("ul", {}, pages.map(item)));
  }

  async save() {
    const written = new Map(this.checked.values);
    const rows = []; // what is noted while the file is made is not in it
    let refused = 0; // earlier pages confirmed steps that are not in the list
    try {
      for (const n of this.toSave()) {
        const label = await this.one(n);
        const done = written.get(n);
        if (done?.timeline && !allListed(label.steps, done.timeline)) {
          written.delete(n);
          refused += 1;
        } else {
          rows.push(recordOf(label, done));
        }
      }
    } catch (error) {
      document
        .querySelector("#saved")
        .replaceChildren(h("span", { class: "bad" }, `Nothing was saved: ${error.message}`));
      return;
    }
    if (rows.length) download("labels.json", `[\n${rows.join(",\n")}\n]\n`, "application/json");
    this.checked.inFile(written);
    const left = refused ? `, without ${refused.toLocaleString("en")} whose step is not in the list` : "";
    // A browser that has a file of this name keeps both, and the command of the page names the first.
    const again = this.saves > 0 ? ", which the browser may have named labels (1).json: train on that file" : "";
    const saved = rows.length ? `saved ${rows.length.toLocaleString("en")} as labels.json${again}` : "saved nothing";
    if (rows.length) this.saves += 1;
    document.querySelector("#saved").textContent = `${saved}${left}`;
    this.count();
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
    const { editor, player } = this;
    const edge = (part) => () => editor?.edgeHere(part);
    return {
      y: () => document.querySelector("#confirm")?.click(),
      e: () => document.querySelector("#answer, .editable .span, #add")?.focus(),
      p: () => {
        if (player) player[player.paused ? "play" : "pause"]();
      },
      n: () => editor?.add(),
      "[": edge("start"),
      "]": edge("end"),
    };
  }
}

const savesNow = (event) => event.key === "Enter" && !event.repeat && (event.ctrlKey || event.metaKey);

async function startLabels() {
  try {
    report.list = new Labels(await indexOf(0));
  } catch (error) {
    document
      .querySelector("#browser")
      .replaceChildren(h("p", { class: "bad" }, `${error.message}: is the whole folder of the page here?`));
  }
}
