// Which parts of formatted text came from accepted drafts. Formatting drops characters of the source and never moves any,
// so each character that is shown is looked for in the source from where the one before was found. The browser's own
// highlights then colour the text without a change to the document.

export const canTint = typeof Highlight === "function" && "highlights" in CSS;
const LOOKAHEAD = 400; // characters of the source that formatting may drop at one place, such as the address of a link
const SYNTAX = ["*", "_", "`", "~", "[", "]", "(", ")", "\\"];
const shown = canTint ? new Highlight() : null;
if (canTint) CSS.highlights.set("drafted", shown);

/** [start, end) in the text of all pieces, of those that were drafted. */
export function draftedParts(pieces) {
  const parts = [];
  let at = 0;
  for (const [piece, drafted] of pieces) {
    if (drafted && parts.at(-1)?.[1] === at) parts.at(-1)[1] = at + piece.length;
    else if (drafted) parts.push([at, at + piece.length]);
    at += piece.length;
  }
  return parts;
}

/** Colour `parts` of the source in `place`, whose children are blocks that know their part of it (`source`). */
export function tint(place, parts) {
  untint(place);
  place.tinted = [];
  let start = 0;
  for (const block of place.children) {
    const here = parts.filter(([from, to]) => to > start && from < start + block.source.length);
    if (here.length) tintBlock(place, block, here, start);
    start += block.source.length;
  }
}

export function untint(place) {
  for (const range of place?.tinted ?? []) shown?.delete(range);
  if (place) place.tinted = [];
}

function tintBlock(place, block, parts, start) {
  const source = block.source;
  const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
  let at = /^ {0,3}(```|~~~)/.test(source) ? source.indexOf("\n") + 1 : 0; // the language's name is not text
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.parentElement.closest(".code-head")) continue;
    let open = -1;
    const data = node.data;
    for (let i = 0; i <= data.length; i++) {
      const found = i < data.length ? find(source, data[i], at) : -1;
      if (found >= 0) at = found + 1;
      const drafted = found >= 0 && parts.some(([from, to]) => start + found >= from && start + found < to);
      if (drafted && open < 0) open = i;
      if (!drafted && open >= 0 && (i === data.length || found >= 0)) {
        mark(place, node, open, i);
        open = -1;
      }
    }
  }
}

function find(source, character, from) {
  if (/\s/.test(character)) {
    // Markup has spaces and line ends of its own: only one that stands right here counts.
    let at = from;
    while (SYNTAX.includes(source[at])) at++;
    return /\s/.test(source[at] ?? "") ? at : -1;
  }
  const found = source.indexOf(character, from);
  return found >= 0 && found - from < LOOKAHEAD ? found : -1;
}

function mark(place, node, from, to) {
  const range = new StaticRange({ startContainer: node, startOffset: from, endContainer: node, endOffset: to });
  shown.add(range);
  place.tinted.push(range);
}
