// What the next answers are asked for with: the system prompt of this chat, and how tokens are sampled.
import { chats } from "./chats.js";
import { SAMPLING, preferences } from "./preferences.js";
import { SidePanel } from "./side-panel.js";
import { text } from "./texts.js";
import { html } from "./ui.js";

export function Settings({ chat, model, pinned, onClose }) {
  const set = (name, value) => preferences.set({ sampling: { ...preferences.sampling, [name]: value } });
  const onSystem = (event) => {
    chat.system = event.target.value;
    if (chat.messages.length) chats.keep(chat);
  };
  const drafts = model.speculation !== "off";
  return html`
    <${SidePanel} side="right" title=${text("settings")} pinned=${pinned} onClose=${onClose}>
      ${model.chat_template && html`
        <label class="field">
          <span>${text("systemPrompt")}</span>
          <textarea key=${chat.id} rows="4" placeholder=${text("systemHint")} value=${chat.system}
            onChange=${onSystem}></textarea>
        </label>`}
      <fieldset>
        <legend>${text("sampling")}</legend>
        <${Slider} name="temperature" most=${2} step=${0.05} set=${set} />
        <${Slider} name="top_p" label="topP" least=${0.05} most=${1} step=${0.05} set=${set} />
        <${Slider} name="min_p" label="minP" most=${1} step=${0.01} set=${set} />
        <${Whole} name="top_k" label="topK" least=${0} most=${model.vocab_size} set=${set} />
        <${Whole} name="max_tokens" label="maxTokens" least=${1} most=${model.max_model_len} optional set=${set} />
        <${Whole} name="seed" least=${0} most=${Number.MAX_SAFE_INTEGER} optional set=${set} />
      </fieldset>
      ${drafts && html`
        <label class="check">
          <input type="checkbox" checked=${preferences.sampling.speculative === "auto"}
            onChange=${(event) => set("speculative", event.target.checked ? "auto" : "off")} />
          ${text("speculation")}
        </label>
        <p class="hint">${text("speculationHint")}</p>
        <label class="check">
          <input type="checkbox" checked=${preferences.tints}
            onChange=${(event) => preferences.set({ tints: event.target.checked })} />
          ${text("tintAll")}
        </label>
        <p class="hint">${text("tintNote")}</p>`}
      <button type="button" class="quiet" onClick=${() => preferences.set({ sampling: { ...SAMPLING } })}>
        ${text("reset")}
      </button>
    <//>
  `;
}

function Label({ id, label }) {
  return html`
    <div class="label">
      <label for=${id}>${text(label)}</label>
      <span class="hint" id=${`${id}-hint`}>${text(`${label}Hint`)}</span>
    </div>
  `;
}

/** A number within bounds, by a slider or typed. */
function Slider({ name, label = name, least = 0, most, step, set }) {
  const value = preferences.sampling[name];
  const onInput = (event) => {
    const typed = event.target.valueAsNumber;
    if (Number.isFinite(typed)) set(name, Math.min(Math.max(typed, least), most));
  };
  const id = `set-${name}`;
  return html`
    <div class="field">
      <${Label} id=${id} label=${label} />
      <div class="slider">
        <input id=${id} type="range" min=${least} max=${most} step=${step} value=${value} onInput=${onInput}
          aria-describedby=${`${id}-hint`} />
        <input type="number" min=${least} max=${most} step="any" value=${value} onChange=${onInput}
          aria-label=${text(label)} />
      </div>
    </div>
  `;
}

/** A whole number; where it is optional, nothing typed means null. */
function Whole({ name, label = name, least, most, optional = false, set }) {
  const value = preferences.sampling[name];
  const onChange = (event) => {
    const typed = Math.round(event.target.valueAsNumber);
    if (Number.isFinite(typed)) set(name, Math.min(Math.max(typed, least), most));
    else if (optional) set(name, null);
    event.target.value = preferences.sampling[name] ?? "";
  };
  const id = `set-${name}`;
  return html`
    <div class="field">
      <${Label} id=${id} label=${label} />
      <input id=${id} type="number" inputmode="numeric" min=${least} max=${most} step="1" value=${value ?? ""}
        onChange=${onChange} aria-describedby=${`${id}-hint`} />
    </div>
  `;
}
