// What every part of the page is written with: Preact, its hooks, and templates instead of a compiler.
import { Fragment, h, render } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact-hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { Fragment, render, useEffect, useLayoutEffect, useMemo, useRef, useState };

/** Something that others watch. Whoever changes it calls `changed`. */
export class Watched {
  #watchers = new Set();

  changed() {
    for (const watcher of this.#watchers) watcher();
  }

  watch(watcher) {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }
}

/** Draw this component again whenever `watched` changes. */
export function useWatched(watched) {
  const [, redraw] = useState(0);
  useEffect(() => watched.watch(() => redraw((count) => count + 1)), [watched]);
  return watched;
}

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${ICONS[name]} /></svg>`;
}

const ICONS = {
  send: "M12 20V5M5.5 11.5 12 5l6.5 6.5",
  stop: "M7 7h10v10H7z",
  plus: "M12 5v14M5 12h14",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  check: "M5 13l4 4L19 7",
  again: "M20 11A8 8 0 1 0 18 17M20 5v6h-6",
  tune: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
  list: "M4 6h16M4 12h16M4 18h16",
  close: "M6 6l12 12M18 6L6 18",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M4.9 4.9l1.4 1.4M17.7 17.7l1.4 1.4M2 12h2M20 12h2M4.9 19.1l1.4-1.4M17.7 6.3l1.4-1.4",
  dark: "M20 14.5A8 8 0 0 1 9.5 4 8 8 0 1 0 20 14.5z",
  tint: "M4 20h16M6 15l8-11 4 3-8 10H6z",
  out: "M10 4H5v16h5M15 8l4 4-4 4M19 12H9",
};
