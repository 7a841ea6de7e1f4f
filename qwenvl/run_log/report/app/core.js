"use strict";
// The page's one global. Data files call it with what they hold, and the other scripts add what they draw.

const report = {
  data: null, // curves of all runs
  indices: new Map(), // run -> what index.js gave
  pages: new Map(), // "run/page" -> its groups and their versions, the newest last
  strips: {}, // key of a strip -> its picture file
  mostPages: 40, // kept in memory
  list: null, // of groups or of records

  curves(data) {
    this.data = data;
  },
  index(run, data) {
    this.indices.set(run, data);
  },
  page(run, number, versions, groups) {
    this.pages.set(`${run}/${number}`, { versions: versions.split(" "), groups });
  },
  pictures(all) {
    this.strips = all;
  },

  start() {
    if (!this.data) {
      document
        .querySelector("#browser")
        .replaceChildren(
          h("p", { class: "bad" }, "data/curves.js can't be loaded: is the whole folder of the report here?"),
        );
      return;
    }
    drawCharts();
    this.list = new Groups();
  },
};

// An element: h("p", {class: "x", onclick: f}, "text", other, null).
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  setAttributes(element, attributes);
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined));
  return element;
}

// The same for pictures of lines.
function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAttributes(element, attributes);
  element.append(...children.flat(Infinity).filter(Boolean));
  return element;
}

function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
}

// Three digits of a number: 0.0123, 1.50, 12,300.
function brief(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(1);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(3)));
}

// "1 answer", "2,000 answers".
const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

// The place of the value that is nearest to one that is wanted.
function nearestTo(values, wanted) {
  let best = 0;
  values.forEach((value, n) => {
    if (Math.abs(value - wanted) < Math.abs(values[best] - wanted)) best = n;
  });
  return best;
}

const fixed = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));

// A long name with its middle left out: names of a set often differ in their ends.
function shortName(name, most = 24) {
  if (name.length <= most) return name;
  const tail = Math.ceil(most * 0.6);
  return `${name.slice(0, most - tail - 1)}…${name.slice(-tail)}`;
}

// Round numbers from `low` or a little below to `high` or a little above, about `most` of them.
function niceTicks(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const ticks = [];
  for (let n = Math.floor(low / size); n <= Math.ceil(high / size); n++) ticks.push(Number((n * size).toPrecision(12)));
  return ticks;
}

// Have the browser save a text as a file.
function download(name, text, type) {
  const link = h("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000); // some browsers read it after the click
}

const loading = new Map();

// Load a script once. A later call for the same file waits for the first.
function load(url) {
  if (!loading.has(url)) {
    loading.set(
      url,
      new Promise((resolve, reject) => {
        const script = h("script", { src: url });
        script.onload = () => {
          loading.delete(url);
          script.remove();
          resolve();
        };
        script.onerror = () => {
          loading.delete(url);
          script.remove();
          reject(new Error(`${url} can't be loaded`));
        };
        document.head.append(script);
      }),
    );
  }
  return loading.get(url);
}

// The files of a report are written again while its page is open. What is loaded then may be about something else.
const WRITTEN_AGAIN = "the files of this page were written again: load it again";

async function indexOf(run) {
  if (!report.indices.has(run)) await load(`data/run-${run}/index.js`);
  const index = report.indices.get(run);
  if (!index) throw new Error(WRITTEN_AGAIN); // its key is that of another page
  if (report.data && index.name !== report.data.runs[run]) throw new Error(WRITTEN_AGAIN);
  return index;
}

async function pageOf(run, number) {
  const key = `${run}/${number}`;
  let page = report.pages.get(key);
  if (!page) {
    await load(`data/run-${run}/page-${number}.js`);
    page = report.pages.get(key);
    if (!page) throw new Error(WRITTEN_AGAIN);
  }
  report.pages.delete(key); // to the end: the first are dropped first
  report.pages.set(key, page);
  for (const old of report.pages.keys()) {
    if (report.pages.size <= report.mostPages) break;
    report.pages.delete(old);
  }
  return page;
}

// What a page has of number `n` of an index.
function groupIn(page, index, n) {
  const { version, place } = index.columns;
  if (page.versions[place[n]] !== version[n]) throw new Error(WRITTEN_AGAIN);
  return page.groups[place[n]];
}
