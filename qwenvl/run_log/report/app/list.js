"use strict";
// A list to choose from: filters and jumps above it, what is chosen beside it, keys, and an address that keeps all
// that.
// A page extends it by `filtered`, `says`, `row`, `view`, `words`, `opened`, `keys` and the texts of `own`.

const ROWS = 100; // that are added to the list at a time
const PAGE = 10; // rows that PageDown moves by

class List {
  // own: {filters: of a page without any, jumps, columns: with a head each, kind: the noun of a row, nothing: to say of
  // none, moving: keys of the page that move, and so repeat while they are held}
  constructor(own) {
    this.moving = new Set(["j", "k", ...(own.moving ?? [])]);
    Object.assign(this, {
      own,
      filters: { ...own.filters },
      found: [],
      chosen: null,
      shown: 0,
      search: 0,
      index: null,
    });
    const jump = ([name, each]) =>
      h(
        "button",
        {
          type: "button",
          "data-jump": name,
          onclick: () => this.change({ jump: this.filters.jump === name ? "" : name }),
        },
        each.title,
      );
    this.parts = {
      // the elements of the page that change
      jumps: h(
        "p",
        { class: "jumps" },
        "show ",
        own.jumps.map((each, n) => [
          each[1].label && each[1].label !== own.jumps[n - 1]?.[1].label ? `${each[1].label} ` : null,
          jump(each),
        ]),
      ),
      count: h("span", { id: "count" }),
      heads: h(
        "div",
        { class: "heads" },
        own.columns.map(([name, title]) =>
          h(
            "button",
            { type: "button", "data-sort": name, title: `sort by ${title}`, onclick: () => this.sort(name) },
            title,
          ),
        ),
      ),
      list: h("ol", {
        id: "list",
        role: "listbox",
        tabindex: 0,
        "aria-label": `the ${own.kind}s`,
        onkeydown: (event) => this.moved(event),
      }),
      more: h("button", { type: "button", onclick: () => this.addRows() }, "more"),
      group: h("div", { id: "group", tabindex: -1 }),
    };
  }

  field(name, title, size, hint) {
    const input = (this.parts[name] = h("input", {
      id: `filter-${name}`,
      placeholder: hint,
      size,
      autocomplete: "off",
      oninput: () => this.change({ [name]: input.value }),
    }));
    return h("label", {}, title, input);
  }

  // A field with options, each a value and its text. `act` is asked to do what a filter would.
  choice(name, title, options = [], act = (value) => this.change({ [name]: value })) {
    const select = (this.parts[name] = h(
      "select",
      { id: `filter-${name}`, onchange: () => act(select.value) },
      options.map(([value, text]) => h("option", { value }, text)),
    ));
    return h("label", {}, title, select);
  }

  // Puts all of it into the page. keys: [key, key, what they do], of the page alone.
  place(filters, keys) {
    const { jumps, count, heads, list, more, group } = this.parts;
    const all = [["j", "k", ` next and previous ${this.own.kind}`], ...keys];
    const told = all.flatMap((each) => [
      ...each
        .slice(0, -1)
        .flatMap((key) => [h("kbd", {}, key), " "])
        .slice(0, -1),
      each.at(-1),
      ", ",
    ]);
    const bar = h(
      "details",
      { class: "bar", open: innerWidth > 760 },
      h("summary", {}, h("b", {}, "Filters "), count),
      h("div", { class: "filters" }, filters),
      jumps,
    );
    const browser = document.querySelector("#browser");
    this.parts.bar = bar;
    browser.replaceChildren(
      bar,
      h("div", { class: "panes" }, h("div", { class: "left" }, heads, list, more), group),
      h("p", { class: "fine keys" }, "Keys: ", told.slice(0, -1), "."),
    );
    new ResizeObserver(() => browser.style.setProperty("--bar", `${bar.offsetHeight}px`)).observe(bar);
    document.addEventListener("keydown", (event) => this.pressed(event));
    addEventListener("hashchange", () => {
      if (location.hash !== this.hash) this.opened();
    });
  }

  change(filters) {
    Object.assign(this.filters, filters);
    this.chosen = null;
    clearTimeout(this.wait);
    this.wait = setTimeout(() => this.apply(), "q" in filters ? 250 : 0);
  }

  // Sort by a column: first its own way, then the other way round, then no more.
  sort(name) {
    const now = this.filters.sort;
    this.change({ sort: now === name ? `-${name}` : now === `-${name}` ? "" : name });
  }

  // Show what the filters leave, and choose the first of it if nothing is chosen. A newer search ends this one.
  async apply() {
    if (!this.index) return; // it is being loaded by one who applies the filters then
    const { parts, filters, own } = this;
    const search = ++this.search;
    for (const name of Object.keys(own.filters)) {
      if (parts[name] && parts[name].value !== filters[name]) parts[name].value = filters[name];
    }
    for (const button of parts.jumps.querySelectorAll("button")) {
      button.classList.toggle("on", button.dataset.jump === filters.jump);
    }
    for (const head of parts.heads.children) {
      const [up, down] = [filters.sort === head.dataset.sort, filters.sort === `-${head.dataset.sort}`];
      head.dataset.way = up ? "▲" : down ? "▼" : "";
      head.setAttribute("aria-pressed", up || down);
    }
    let found = this.filtered();
    try {
      if (filters.q.trim()) found = await this.withText(found, filters.q.trim(), () => search !== this.search);
    } catch (error) {
      parts.count.replaceChildren(h("span", { class: "bad" }, error.message));
      return;
    }
    if (search !== this.search) return;
    this.found = found;
    parts.list.replaceChildren();
    this.shown = 0;
    this.addRows();
    const all = this.index.columns.page.length;
    document.querySelector("#browser").classList.toggle("nothing", !all); // no filters over nothing
    parts.count.textContent = all
      ? `${found.length.toLocaleString("en")} of ${all.toLocaleString("en")} ${own.kind}s`
      : own.nothing;
    await this.choose(this.chosen ?? found[0] ?? null);
  }

  // Those of `found` that say a text. Pages are loaded one after the other.
  async withText(found, text, ended) {
    const { page } = this.index.columns;
    const byPage = new Map();
    const kept = new Set();
    for (const n of found) byPage.set(page[n], [...(byPage.get(page[n]) || []), n]);
    let done = 0;
    for (const [number, some] of byPage) {
      const texts = await pageOf(this.run || 0, number);
      const { index } = this;
      if (ended()) return [];
      for (const n of some) if (this.says(groupIn(texts, index, n), text)) kept.add(n);
      done += 1;
      if (done % 5 === 0) {
        this.parts.count.textContent = `searching: ${Math.round((100 * done) / byPage.size)} %, ${kept.size} found`;
      }
    }
    return found.filter((n) => kept.has(n));
  }

  addRows(until = 0) {
    do {
      const rows = this.found.slice(this.shown, this.shown + ROWS);
      this.parts.list.append(
        ...rows.map((n) =>
          h(
            "li",
            {
              [`data-${this.own.kind}`]: n,
              id: `${this.own.kind}-${n}`,
              role: "option",
              "aria-selected": "false",
              onclick: () => this.choose(n, true),
            },
            this.row(n),
          ),
        ),
      );
      this.shown += rows.length;
      if (!rows.length) break;
    } while (this.shown <= until);
    this.parts.more.hidden = this.shown >= this.found.length;
  }

  // Show one of the list, or any other.
  async choose(n, scroll = false) {
    const { list, group } = this.parts;
    this.chosen = n;
    for (const old of list.querySelectorAll(".on")) {
      old.classList.remove("on");
      old.setAttribute("aria-selected", "false");
    }
    list.removeAttribute("aria-activedescendant");
    if (n === null) {
      group.replaceChildren(h("p", { class: "fine" }, `No ${this.own.kind} passes the filters.`));
      this.address();
      return;
    }
    const at = this.found.indexOf(n);
    if (at >= this.shown) this.addRows(at);
    const row = list.children[at];
    if (row) {
      row.classList.add("on");
      row.setAttribute("aria-selected", "true");
      list.setAttribute("aria-activedescendant", row.id);
      const { offsetTop, offsetHeight } = row;
      const { scrollTop, clientHeight } = list;
      if (offsetTop < scrollTop || offsetTop + offsetHeight > scrollTop + clientHeight) {
        list.scrollTop = offsetTop - clientHeight / 3;
      }
    }
    this.address();
    try {
      const one = await this.one(n);
      if (this.chosen !== n) return;
      const inside = group.contains(document.activeElement); // what has the focus is replaced
      group.replaceChildren(this.view(n, one));
      if (inside) (group.querySelector(".history .on") ?? group).focus({ preventScroll: true });
      if (scroll && group.getBoundingClientRect().top < 0) group.scrollIntoView();
    } catch (error) {
      group.replaceChildren(h("p", { class: "bad" }, error.message));
    }
  }

  // The texts of one of the list.
  async one(n) {
    const { index } = this;
    return groupIn(await pageOf(this.run || 0, index.columns.page[n]), index, n);
  }

  address() {
    this.hash = `#${this.words()}`;
    if (this.quiet) {
      this.quiet = false;
    } // a page that was just opened keeps its plain address
    else history.replaceState(null, "", this.hash);
  }

  // `by` further in a list of numbers, from the one that is chosen.
  step(numbers, by) {
    const next = numbers[numbers.indexOf(this.chosen) + by];
    if (next !== undefined) this.choose(next, true);
  }

  // The keys of a list that has the focus.
  moved(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: PAGE, PageUp: -PAGE, Home: -Infinity, End: Infinity }[event.key];
    if (by) {
      const last = this.found.length - 1;
      const at = this.found.indexOf(this.chosen) + by;
      if (last >= 0) this.choose(this.found[Math.max(0, Math.min(last, at))]);
    } else if (event.key === "Enter") {
      this.parts.group.focus();
    } else {
      return;
    }
    event.preventDefault();
  }

  toSearch() {
    this.parts.bar.open = true; // a field that is folded can't have the focus
    this.parts.q.focus();
  }

  pressed(event) {
    if (event.target.closest("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    // On German keyboards [ and ] are typed with AltGr or Option, which browsers call Alt, with or without Ctrl.
    const isBracket = event.altKey && ["[", "]"].includes(event.key);
    if (event.metaKey || ((event.ctrlKey || event.altKey) && !isBracket) || !this.index) return;
    if (event.repeat && event.key === "Enter" && event.target.closest("button")) {
      event.preventDefault(); // Enter that is held would press the button again and again
      return;
    }
    const keys = {
      j: () => this.step(this.found, 1),
      k: () => this.step(this.found, -1),
      "/": () => this.toSearch(),
      ...this.keys(),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    // A key that is held decides once: its next repeats come before the reader has seen what is shown then.
    if (!event.repeat || this.moving.has(event.key)) keys[event.key]();
  }
}

// Numbers sorted by a column, "-" before its name for the other way round. What has no value comes last.
function sortedBy(found, sort, columns, index) {
  const column = columns.find(([name]) => name === sort.replace("-", ""));
  if (!column) return found;
  const sign = sort.startsWith("-") ? -1 : 1;
  const value = (n) => column[2](index, n);
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  return found.sort((a, b) => (value(a) === null) - (value(b) === null) || sign * compare(value(a), value(b)));
}
