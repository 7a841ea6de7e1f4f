"use strict";
// What the browser keeps under one name: a value for each label. And what it could not keep, which the page has to say.

const FULL = "its storage is full";
const ASIS = { pack: (value) => value, unpack: (value) => value };

class Kept {
  // name: in the browser's storage. keys: of the labels, by their numbers; they are made of question and clip, so
  // another question has other keys. pack and unpack: a value as it is stored, and back.
  constructor(name, keys, { pack, unpack } = ASIS) {
    Object.assign(this, { name, keys, pack, unpack });
    this.problem = null; // why the browser keeps nothing, or nothing more
    this.unkept = new Set(); // numbers of labels whose value is not stored as it is here
    this.unsaved = new Set(); // those of them that no saved file has either
    this.values = new Map(); // by the numbers of the labels
    try {
      this.values = this.stored();
    } catch (error) {
      // the values are those of this visit
      this.problem = reasonOf(error);
    }
  }

  get size() {
    return this.values.size;
  }
  get(n) {
    return this.values.get(n);
  }

  // All that is stored under a name: also labels of other tabs, and of clips that the page was written for before.
  all(name = this.name) {
    return JSON.parse(localStorage.getItem(name) || "{}");
  }

  // What is stored of the labels of this page, under its name or that of another page.
  stored(name = this.name) {
    const numbers = new Map(this.keys.map((key, n) => [key, n]));
    const own = Object.entries(this.all(name)).filter(([key]) => numbers.has(key));
    return new Map(own.map(([key, value]) => [numbers.get(key), this.unpack(value)]));
  }

  // Take over values for the labels that have none here: what was noted on this page is newer.
  take(values) {
    for (const [n, value] of values) {
      if (this.values.has(n)) continue;
      this.values.set(n, value);
      this.notStored(n);
    }
    this.retry();
  }

  // Note the value of a label. Undefined: it has none any more.
  set(n, value) {
    if (value === undefined) this.values.delete(n);
    else this.values.set(n, value);
    this.unkept.add(n);
    if (value === undefined) {
      this.unsaved.delete(n);
    } // there is nothing to lose
    else this.unsaved.add(n);
    this.retry(n);
  }

  // The value of a label is neither stored nor in a file.
  notStored(n) {
    this.unkept.add(n);
    this.unsaved.add(n);
  }

  // Store what is not stored yet. Where it is too much, the label `n` alone: one that lost its value needs no room.
  retry(n = null) {
    if (this.unkept.size && !this.store([...this.unkept]) && n !== null) this.store([n]);
  }

  // Store the values of some labels. Whether that worked.
  store(numbers) {
    try {
      const all = this.all();
      for (const n of numbers) {
        if (this.values.has(n)) all[this.keys[n]] = this.pack(this.values.get(n));
        else delete all[this.keys[n]];
      }
      localStorage.setItem(this.name, JSON.stringify(all));
    } catch (error) {
      this.problem = reasonOf(error);
      return false;
    }
    for (const n of numbers) {
      this.unkept.delete(n);
      this.unsaved.delete(n);
    }
    if (!this.unkept.size) this.problem = null;
    return true;
  }

  // Another tab has changed what is stored. What this one could not store stays as it is here, and so do the values of
  // `edited` labels, which are stored again where the other tab has removed them.
  follow(edited = new Set()) {
    if (localStorage.getItem(this.name) === null) {
      // Another page or the browser has removed all. This page is open and has it still.
      this.storeAgain(this.values.keys());
      return;
    }
    const own = new Map([...this.unkept, ...edited].map((n) => [n, this.values.get(n)]));
    this.values = this.stored();
    const removed = [...edited].filter((n) => own.get(n) !== undefined && !this.values.has(n));
    for (const [n, value] of own) {
      if (value === undefined) this.values.delete(n);
      else this.values.set(n, value);
    }
    this.storeAgain(removed);
  }

  storeAgain(numbers) {
    for (const n of numbers) this.notStored(n);
    this.retry();
  }

  // A file was saved with the values of `written`. Values that have changed since are in no file.
  inFile(written) {
    for (const n of this.unsaved) if (this.values.get(n) === written.get(n)) this.unsaved.delete(n);
  }
}

function reasonOf(error) {
  return /quota/i.test(error.name) ? FULL : error.message;
}

// How many values a stored text has.
function countIn(text) {
  try {
    return Object.keys(JSON.parse(text)).length;
  } catch {
    // no page of ours has written it
    return 0;
  }
}

// What the browser keeps of other pages whose names begin with `prefix`: for each its path, its names in the storage,
// how many answers, and how many characters. The largest comes first.
function otherPages(prefix, path) {
  const pages = new Map();
  for (const name of Object.keys(localStorage).filter((each) => each.startsWith(prefix))) {
    const page = name.slice(prefix.length).replace(/ drafts$/, "");
    if (page === path) continue;
    const text = localStorage.getItem(name);
    const found = pages.get(page) ?? { path: page, names: [], answers: 0, characters: 0 };
    found.names.push(name);
    found.answers += countIn(text);
    found.characters += name.length + text.length;
    pages.set(page, found);
  }
  return [...pages.values()].sort((a, b) => b.characters - a.characters);
}
