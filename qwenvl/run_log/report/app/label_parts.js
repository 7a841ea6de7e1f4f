"use strict";
// Parts of the view of a label: the votes, the player, and the folder of its clip.

// The answers that several completions gave, each to be taken over by a click.
function votesView(votes) {
  if (votes.length < 2) return null;
  return h(
    "ul",
    { class: "votes" },
    votes.map(({ answer, count, use }) =>
      h(
        "li",
        {},
        h("button", { type: "button", title: "take this answer over", onclick: use }, `${count} ×`),
        ` ${answer || "no answer"}`,
      ),
    ),
  );
}

// The clip, played from its file or from a copy beside the page.
function playerView(file, path) {
  const video = h("video", {
    src: file,
    controls: true,
    preload: "metadata",
    playsinline: true,
    "aria-label": baseName(path),
  });
  const box = h("div", { class: "player" }, video);
  video.addEventListener("error", () => {
    const why = "the file has moved, or the browser has no decoder for it";
    box.replaceChildren(h("p", { class: "fine" }, `This browser can't play ${path}: ${why}. Its frames are below.`));
  });
  return box;
}

const folderOf = (path) => path.split(/[\\/]/).slice(0, -1).join("/");

// The folder of each label below the one that all have in common.
function foldersOf(ids) {
  const all = ids.map((id) => folderOf(id).split("/").filter(Boolean));
  let shared = 0;
  while (all.length && all.every((parts) => parts.length > shared && parts[shared] === all[0][shared])) shared += 1;
  return all.map((parts) => parts.slice(shared).join("/"));
}
