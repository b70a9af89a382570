// The conversations: in this tab, or in this browser if its user wants that, never on the server. Each is stored under its
// own key, so that two tabs do not undo each other's work. Bounded: the oldest go first.
import { localStorageOrNull, preferences, read, write } from "./preferences.js";
import { Watched } from "./ui.js";

const PREFIX = "lpx.chat.";
const MOST_CHATS = 50;
const MOST_CHARACTERS = 2_000_000; // of all chats; browsers give about 5 million

class Chats extends Watched {
  constructor() {
    super();
    this.list = []; // newest first
    this.isFull = false; // the browser did not take the last change
    for (const storage of [localStorageOrNull(), sessionStorageOrNull()]) {
      for (const key of keys(storage)) {
        const chat = checked(read(storage, key));
        if (chat && !this.list.some((each) => each.id === chat.id)) this.list.push(chat);
      }
    }
    this.list.sort((a, b) => b.changed - a.changed);
    this.current = this.list[0] ?? null;
    if (!this.current) this.begin();
  }

  /** An empty chat, with the system prompt of the one before. */
  begin() {
    if (this.current && !this.current.messages.length) return;
    const empty = this.list.find((chat) => !chat.messages.length);
    if (empty) {
      this.current = empty;
    } else {
      const system = this.current?.system ?? "";
      this.current = { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", system, changed: Date.now(), messages: [] };
      this.list.unshift(this.current);
    }
    this.changed();
  }

  open(chat) {
    this.current = chat;
    this.changed();
  }

  remove(chat) {
    this.list = this.list.filter((each) => each !== chat);
    for (const storage of [localStorageOrNull(), sessionStorageOrNull()]) storage?.removeItem(PREFIX + chat.id);
    if (this.current === chat) this.current = this.list[0] ?? null;
    if (!this.current) this.begin();
    this.changed();
  }

  clear() {
    for (const storage of [localStorageOrNull(), sessionStorageOrNull()]) {
      for (const key of keys(storage)) storage.removeItem(key);
    }
    this.list = [];
    this.current = null;
    this.begin();
  }

  /** Store a chat after a change; when there is too much, the oldest others go. */
  keep(chat) {
    chat.changed = Date.now();
    chat.title = titleOf(chat);
    this.list.sort((a, b) => b.changed - a.changed);
    while (this.list.length > 1 && (this.list.length > MOST_CHATS || sizeOf(this.list) > MOST_CHARACTERS)) {
      const oldest = this.list.at(-1) === this.current ? this.list.at(-2) : this.list.at(-1);
      this.remove(oldest);
    }
    this.isFull = !write(this.#storage(), PREFIX + chat.id, stored(chat));
    this.changed();
  }

  /** Move everything to where the preference says. */
  move() {
    const [from, to] = [localStorageOrNull(), sessionStorageOrNull()];
    if (preferences.keepsChats) {
      for (const chat of this.list) if (chat.messages.length) this.isFull = !write(from, PREFIX + chat.id, stored(chat));
    } else {
      for (const key of keys(from)) from.removeItem(key);
      for (const chat of this.list) if (chat.messages.length) write(to, PREFIX + chat.id, stored(chat));
    }
    this.changed();
  }

  #storage() {
    return preferences.keepsChats ? localStorageOrNull() : sessionStorageOrNull();
  }
}

function sessionStorageOrNull() {
  try {
    return window.sessionStorage;
  } catch {
    return null;
  }
}

function keys(storage) {
  return Object.keys(storage ?? {}).filter((key) => key.startsWith(PREFIX));
}

function stored(chat) {
  const messages = chat.messages.map(({ role, content, figures, ending }) => ({ role, content, figures, ending }));
  return { ...chat, messages };
}

/** A chat as it was stored, or null when it is not one: anybody may have written there. */
function checked(chat) {
  if (typeof chat?.id !== "string" || !Array.isArray(chat.messages)) return null;
  const messages = chat.messages
    .filter((each) => ["user", "assistant"].includes(each?.role) && typeof each.content === "string")
    .map(({ role, content, figures, ending }) => ({ role, content, figures: figures ?? null, ending: ending ?? null }));
  const system = typeof chat.system === "string" ? chat.system : "";
  return { id: chat.id, title: String(chat.title ?? ""), system, changed: Number(chat.changed) || 0, messages };
}

function titleOf(chat) {
  const first = chat.messages[0]?.content.trim().split("\n")[0] ?? "";
  return first.length > 60 ? `${first.slice(0, 59)}…` : first;
}

function sizeOf(list) {
  let size = 0;
  for (const chat of list) {
    size += chat.system.length;
    for (const message of chat.messages) size += message.content.length;
  }
  return size;
}

export const chats = new Chats();
