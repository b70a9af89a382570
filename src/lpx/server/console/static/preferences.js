// How this browser likes the page: theme, language, sampling. No text of a conversation is kept here.
import { Watched } from "./ui.js";

const KEY = "lpx.preferences";
export const SAMPLING = {
  temperature: 0.7,
  top_p: 0.95,
  top_k: 0,
  min_p: 0,
  max_tokens: 1024,
  seed: null,
  speculative: "auto",
};

class Preferences extends Watched {
  constructor() {
    super();
    this.theme = "system";
    this.language = null; // null: the browser's
    this.keepsChats = false; // beyond this tab
    this.tints = false;
    this.sampling = { ...SAMPLING };
    const kept = read(localStorageOrNull(), KEY) ?? {};
    if (["light", "dark"].includes(kept.theme)) this.theme = kept.theme;
    if (["en", "zh"].includes(kept.language)) this.language = kept.language;
    this.keepsChats = kept.keepsChats === true;
    this.tints = kept.tints === true;
    for (const name of Object.keys(SAMPLING)) {
      const value = kept.sampling?.[name];
      if (value === null || typeof value === "number" || ["auto", "off"].includes(value)) this.sampling[name] = value;
    }
  }

  set(changes) {
    Object.assign(this, changes);
    document.documentElement.dataset.theme = this.theme;
    const { theme, language, keepsChats, tints, sampling } = this;
    write(localStorageOrNull(), KEY, { theme, language, keepsChats, tints, sampling });
    this.changed();
  }
}

/** Storage may be switched off or full: then the page works, and forgets. */
export function localStorageOrNull() {
  try {
    return window.localStorage;
  } catch {
    return null;
  }
}

export function read(storage, key) {
  try {
    return JSON.parse(storage?.getItem(key) ?? "null");
  } catch {
    return null;
  }
}

export function write(storage, key, value) {
  try {
    storage?.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export const preferences = new Preferences();
