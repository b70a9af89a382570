// The chats of this browser: open, begin, delete, and whether they outlive the tab.
import { answers } from "./answers.js";
import { chats } from "./chats.js";
import { preferences } from "./preferences.js";
import { SidePanel } from "./side-panel.js";
import { text } from "./texts.js";
import { Icon, html } from "./ui.js";

export function ChatList({ pinned, onClose }) {
  const filled = chats.list.filter((chat) => chat.messages.length || chat === chats.current);
  const open = (chat) => {
    chats.open(chat);
    onClose();
  };
  const begin = () => {
    chats.begin();
    onClose();
  };
  const clear = () => {
    if (!confirm(text("sureClear"))) return;
    answers.stop();
    chats.clear();
  };
  const remove = (chat) => {
    if (chat.messages.includes(answers.message)) answers.stop();
    chats.remove(chat);
  };
  const keep = (event) => {
    preferences.set({ keepsChats: event.target.checked });
    chats.move();
  };
  return html`
    <${SidePanel} side="left" title=${text("chats")} pinned=${pinned} onClose=${onClose}>
      <button type="button" class="wide" onClick=${begin}><${Icon} name="plus" /> ${text("newChat")}</button>
      <ul class="chat-list">
        ${filled.map((chat) => {
          const title = chat.title || text("untitled");
          return html`
            <li key=${chat.id}>
              <button type="button" class="quiet" aria-current=${chat === chats.current ? "true" : null} title=${title}
                onClick=${() => open(chat)}>${title}</button>
              ${chat.messages.length > 0 && html`
                <button type="button" class="quiet round" aria-label=${text("deleteChat", title)}
                  title=${text("deleteChat", title)} onClick=${() => remove(chat)}><${Icon} name="trash" /></button>`}
            </li>`;
        })}
      </ul>
      <div class="panel-foot">
        <label class="check">
          <input type="checkbox" checked=${preferences.keepsChats} onChange=${keep} /> ${text("keep")}
        </label>
        <p class="hint">${text("keepHint")}</p>
        <button type="button" class="quiet danger" onClick=${clear}>${text("clearAll")}</button>
      </div>
    <//>
  `;
}
