// The chat: the list of chats, the conversation with its message box, and the settings.
import { answers } from "./answers.js";
import { ChatList } from "./chat-list.js";
import { chats } from "./chats.js";
import { Answer } from "./answer-view.js";
import { figures } from "./live-figures.js";
import { preferences } from "./preferences.js";
import { Settings } from "./settings.js";
import { text } from "./texts.js";
import { Icon, html, useEffect, useLayoutEffect, useRef, useState, useWatched } from "./ui.js";

const NEAR_END = 80; // pixels from the end within which the view follows the text
const WIDE = matchMedia("(min-width: 1100px)");

export function Chat({ model, visible }) {
  useWatched(chats);
  useWatched(answers);
  useWatched(preferences);
  useEffect(() => figures.want("answer", answers.busy), [answers.busy]);
  const [panel, setPanel] = useState(null); // which side panel lies over the page
  const chat = chats.current;
  const close = () => setPanel(null);
  const pinned = useWide();
  return html`
    <div class="chat" data-panel=${panel ?? "none"}>
      ${(pinned || panel === "list") && html`<${ChatList} onClose=${close} pinned=${pinned} />`}
      <main class="middle" aria-label=${text("chat")}>
        ${!pinned && html`
          <div class="tools">
            <button type="button" class="quiet" aria-expanded=${panel === "list"} onClick=${() => setPanel("list")}>
              <${Icon} name="list" /> ${text("chats")}
            </button>
            <button type="button" class="quiet" aria-expanded=${panel === "settings"} onClick=${() => setPanel("settings")}>
              <${Icon} name="tune" /> ${text("settings")}
            </button>
          </div>`}
        <${Thread} chat=${chat} model=${model} visible=${visible} />
        <${Composer} chat=${chat} model=${model} visible=${visible} />
      </main>
      ${(pinned || panel === "settings") && html`<${Settings} chat=${chat} model=${model} onClose=${close} pinned=${pinned} />`}
      ${!pinned && panel && html`<div class="veil" onClick=${close}></div>`}
    </div>
  `;
}

function useWide() {
  const [wide, setWide] = useState(WIDE.matches);
  useEffect(() => {
    const follow = () => setWide(WIDE.matches);
    WIDE.addEventListener("change", follow);
    return () => WIDE.removeEventListener("change", follow);
  }, []);
  return wide;
}

function Thread({ chat, model, visible }) {
  const place = useRef(null);
  const follows = useRef(true);
  useLayoutEffect(() => {
    if (follows.current && visible) place.current.scrollTop = place.current.scrollHeight;
  });
  useLayoutEffect(() => {
    follows.current = true;
    place.current.scrollTop = place.current.scrollHeight;
  }, [chat.id, chat.messages.length]);
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = place.current;
    follows.current = scrollHeight - scrollTop - clientHeight < NEAR_END;
  };
  const busyHere = answers.message !== null && chat.messages.includes(answers.message);
  return html`
    <div class="thread" ref=${place} onScroll=${onScroll} tabindex="0" role="log" aria-live="polite"
      aria-relevant="additions text" aria-busy=${busyHere} aria-label=${text("conversation")}>
      <div class="messages">
        ${!model.chat_template && html`<p class="note">${text("baseNote")}</p>`}
        ${!chat.messages.length && html`<${Empty} chat=${chat} model=${model} />`}
        ${chat.messages.map((message, at) =>
          message.role === "user"
            ? html`<article class="message user" aria-label=${text("you")}><p>${message.content}</p></article>`
            : html`<${Answer} key=${`${chat.id} ${at}`} message=${message} model=${model}
                growing=${message === answers.message} last=${at === chat.messages.length - 1}
                onAgain=${() => answers.again(chat, model.chat_template)} />`,
        )}
        ${chats.isFull && html`<p class="note">${text("notKept")}</p>`}
      </div>
    </div>
    <p class="sr-only" role="status">${answers.busy ? text("answering") : chat.messages.at(-1)?.figures ? text("answered") : ""}</p>
  `;
}

function Empty({ chat, model }) {
  const examples = model.chat_template ? ["example1", "example2", "example3"] : ["continue1", "continue2"];
  const facts = [model.quantization, model.isa, `${model.threads} × ${model.device}`];
  return html`
    <section class="empty">
      <h1>${text("ask", model.id)}</h1>
      <p class="facts">${facts.join(" · ")}</p>
      <p class="hint">${text("emptyHint")}</p>
      <div class="examples">
        ${examples.map(
          (name) => html`
            <button type="button" disabled=${answers.busy}
              onClick=${() => answers.send(chat, text(name), model.chat_template)}>${text(name)}</button>`,
        )}
      </div>
    </section>
  `;
}

function Composer({ chat, model, visible }) {
  const [draft, setDraft] = useState("");
  const box = useRef(null);
  useLayoutEffect(() => {
    box.current.style.height = "auto";
    box.current.style.height = `${Math.min(box.current.scrollHeight, 240)}px`;
  }, [draft, visible]);
  useEffect(() => {
    if (visible) box.current.focus({ preventScroll: true });
  }, [chat.id, visible]);
  const send = () => {
    if (answers.busy || !draft.trim()) return;
    setDraft("");
    answers.send(chat, draft, model.chat_template);
    box.current.focus();
  };
  const onKeyDown = (event) => {
    // While a word is being composed (Chinese, Japanese), Enter ends the word.
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
      event.preventDefault();
      send();
    }
    if (event.key === "Escape" && answers.busy) answers.stop();
  };
  const label = text(model.chat_template ? "message" : "continueText");
  return html`
    <form class="composer" onSubmit=${(event) => (event.preventDefault(), send())}>
      <textarea id="message" ref=${box} rows="1" aria-label=${label} aria-describedby="keys"
        placeholder=${text(model.chat_template ? "write" : "continueText")} value=${draft}
        onInput=${(event) => setDraft(event.target.value)} onKeyDown=${onKeyDown}></textarea>
      ${answers.busy
        ? html`<button type="button" class="main" aria-label=${text("stop")} title=${text("stop")}
            onClick=${() => (answers.stop(), box.current.focus())}><${Icon} name="stop" /></button>`
        : html`<button type="submit" class="main" aria-label=${text("send")} title=${text("send")}
            disabled=${!draft.trim()}><${Icon} name="send" /></button>`}
      <p id="keys">${text("hintKeys")}</p>
    </form>
  `;
}
