// A panel beside the conversation: a part of the page where there is room, a dialog over it where there is not.
import { text } from "./texts.js";
import { Icon, html, useLayoutEffect, useRef } from "./ui.js";

export function SidePanel({ side, title, pinned, onClose, children }) {
  const place = useRef(null);
  useLayoutEffect(() => {
    if (pinned) return undefined;
    const before = document.activeElement;
    place.current.querySelector("button, input, textarea")?.focus();
    return () => before?.focus?.();
  }, [pinned]);
  const onKeyDown = (event) => {
    if (pinned) return;
    if (event.key === "Escape") onClose();
    if (event.key === "Tab") stayWithin(place.current, event);
  };
  return html`
    <aside class=${`panel ${side} ${pinned ? "pinned" : "over"}`} ref=${place} aria-label=${title}
      role=${pinned ? null : "dialog"} aria-modal=${pinned ? null : "true"} onKeyDown=${onKeyDown}>
      <div class="panel-head">
        <h2>${title}</h2>
        ${!pinned && html`
          <button type="button" class="quiet round" aria-label=${text("close")} title=${text("close")} onClick=${onClose}>
            <${Icon} name="close" />
          </button>`}
      </div>
      ${children}
    </aside>
  `;
}

function stayWithin(place, event) {
  const stops = [...place.querySelectorAll("button, input, textarea, select, a[href]")].filter((each) => !each.disabled);
  const edge = event.shiftKey ? stops[0] : stops.at(-1);
  if (document.activeElement === edge) {
    event.preventDefault();
    (event.shiftKey ? stops.at(-1) : stops[0]).focus();
  }
}
