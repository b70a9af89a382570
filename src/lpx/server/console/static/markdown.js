// Text of people and models as formatted text. It becomes HTML in two steps, each of which alone would do: Markdown that
// turns HTML into plain text and pictures into links, then a sanitizer that lets a short list of elements through.
import DOMPurify from "./vendor/purify.js";
import { Marked } from "./vendor/marked.js";
import { text } from "./texts.js";
import { tint, untint } from "./tint.js";
import { html, useEffect, useLayoutEffect, useRef } from "./ui.js";

const ALLOWED = {
  ALLOWED_TAGS: [
    ..."a b blockquote br code del em h1 h2 h3 h4 h5 h6 hr i li ol p pre s strong sub sup".split(" "),
    ..."table tbody td th thead tr ul".split(" "),
  ],
  ALLOWED_ATTR: ["href", "start", "align", "class"],
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const purify = DOMPurify(window);
purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.nodeName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  }
  const kind = node.nodeName === "CODE" ? /^language-[\w+#.-]{1,30}$/.exec(node.className)?.[0] : null;
  if (node.hasAttribute?.("class") && !kind) node.removeAttribute("class");
});

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: (token) => escaped(token.raw ?? token.text),
    image: (token) => escaped(text("imageNotLoaded", token.text || token.href)),
    checkbox: (token) => (token.checked ? "☑ " : "☐ "),
  },
});

function escaped(raw) {
  return raw.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

/**
 * Formatted text; `drafted` are the parts of `source` to tint. While it grows, only the blocks that changed are made again,
 * so that a selection above them stays.
 */
export function Markdown({ source, drafted = null }) {
  const place = useRef(null);
  useLayoutEffect(() => {
    show(place.current, source);
    if (drafted) tint(place.current, drafted);
    else untint(place.current);
  }, [source, drafted]);
  useEffect(() => {
    const own = place.current;
    return () => untint(own);
  }, []);
  return html`<div class="markdown" ref=${place}></div>`;
}

/** HTML as a fragment of elements that can do no harm. */
export function sanitized(dirty) {
  return purify.sanitize(dirty, ALLOWED);
}

/** Format `source` into `place`, a block of it to a child. */
export function show(place, source) {
  const blocks = marked.lexer(source);
  const shown = [...place.children];
  blocks.forEach((block, at) => {
    const old = shown[at];
    if (old?.source === block.raw) return;
    const made = document.createElement("div");
    made.className = "block";
    made.source = block.raw;
    made.append(sanitized(marked.parser([block])));
    made.querySelectorAll("pre").forEach(frame);
    made.querySelectorAll("table").forEach(scroll);
    if (old) old.replaceWith(made);
    else place.append(made);
  });
  shown.slice(blocks.length).forEach((each) => each.remove());
}

/** A code block gets a head with its language and a button that copies it. */
function frame(pre) {
  const code = pre.querySelector("code") ?? pre;
  const kind = /language-(\S+)/.exec(code.className)?.[1] ?? "";
  const box = document.createElement("div");
  box.className = "code";
  const head = document.createElement("div");
  head.className = "code-head";
  const label = document.createElement("span");
  label.textContent = kind || text("code");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet";
  button.textContent = text("copyCode");
  button.addEventListener("click", async () => {
    await copy(code.textContent.replace(/\n$/, ""));
    button.textContent = text("copied");
    setTimeout(() => (button.textContent = text("copyCode")), 1500);
  });
  head.append(label, button);
  pre.tabIndex = 0; // it may scroll, with the arrow keys too
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", kind || text("code"));
  pre.replaceWith(box);
  box.append(head, pre);
}

function scroll(table) {
  const box = document.createElement("div");
  box.className = "table";
  box.tabIndex = 0;
  table.replaceWith(box);
  box.append(table);
}

/** Into the clipboard, which browsers give to pages from this machine or over TLS only; elsewhere the old way. */
export async function copy(value) {
  try {
    await navigator.clipboard.writeText(value);
  } catch {
    const area = document.createElement("textarea");
    area.value = value;
    area.className = "sr-only";
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
