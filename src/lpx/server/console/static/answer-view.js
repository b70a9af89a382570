// One answer as it is shown: its text, on request with the accepted drafts tinted; its figures and buttons.
import { answers } from "./answers.js";
import { Markdown, copy } from "./markdown.js";
import { preferences } from "./preferences.js";
import { milliseconds, number, text } from "./texts.js";
import { canTint, draftedParts } from "./tint.js";
import { Icon, html, useState } from "./ui.js";

export function Answer({ message, model, growing, last, onAgain }) {
  const [own, setOwn] = useState(null); // this answer's choice; null: as the settings say
  const hasPieces = message.pieces?.length > 0;
  const tinted = hasPieces && (own ?? preferences.tints);
  const isPlain = !model.chat_template || (tinted && !canTint);
  return html`
    <article class=${`message answer ${growing ? "growing" : ""}`} aria-label=${model.id} aria-busy=${growing}>
      ${isPlain
        ? html`<p class="plain">${tinted ? spans(message.pieces) : message.content}</p>`
        : html`<${Markdown} source=${message.content} drafted=${tinted ? draftedParts(message.pieces) : null} />`}
      ${growing && !message.content && html`<p class="dots" aria-hidden="true"><i></i><i></i><i></i></p>`}
      ${message.error && html`<p class="error" role="alert">${message.error}</p>`}
      ${!growing && html`
        <footer>
          <${Figures} message=${message} />
          <span class="buttons">
            ${hasPieces && html`
              <${Small} icon="tint" label=${text("tint")} pressed=${tinted}
                onClick=${() => setOwn(tinted === preferences.tints ? !tinted : null)} />`}
            ${message.content && html`<${CopyButton} value=${message.content} />`}
            ${last && !answers.busy && html`
              <${Small} icon="again" label=${text(message.error ? "retry" : "regenerate")} onClick=${onAgain} />`}
          </span>
        </footer>`}
    </article>
  `;
}

/** Neighbours of a kind share an element: an answer may have thousands of tokens. */
function spans(pieces) {
  const runs = [];
  for (const [piece, drafted] of pieces) {
    const previous = runs.at(-1);
    if (previous?.drafted === drafted && !drafted) previous.pieces.push(piece);
    else runs.push({ drafted, pieces: [piece] });
  }
  return runs.map(({ drafted, pieces: all }) => (drafted ? html`<mark>${all[0]}</mark>` : all.join("")));
}

const ENDINGS = { length: "cutLength", stopped: "stopped", timeout: "timedOut" };

function Figures({ message }) {
  const figures = message.figures;
  const shown = [];
  if (figures?.tokens_per_second) {
    const speed = figures.tokens_per_second;
    shown.push(html`<strong>${text("perSecond", number(speed, speed < 100 ? 1 : 0))}</strong>`);
  }
  if (figures?.ttft_ms !== undefined) shown.push(text("ttft", milliseconds(figures.ttft_ms)));
  if (figures?.tokens) shown.push(text("tokens", number(figures.tokens)));
  if (figures?.drafted) shown.push(text("draftedOf", number(figures.accepted), number(figures.drafted)));
  if (figures?.cached_tokens) shown.push(text("cachedOf", number(figures.cached_tokens), number(figures.prompt_tokens)));
  if (ENDINGS[message.ending]) shown.push(text(ENDINGS[message.ending]));
  return html`<ul class="figures" aria-label=${text("figures")}>${shown.map((each) => html`<li>${each}</li>`)}</ul>`;
}

function CopyButton({ value }) {
  const [done, setDone] = useState(false);
  const onClick = async () => {
    await copy(value);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<${Small} icon=${done ? "check" : "copy"} label=${text(done ? "copied" : "copy")} onClick=${onClick} />`;
}

function Small({ icon, label, pressed, onClick }) {
  return html`
    <button type="button" class="quiet round" title=${label} aria-label=${label} aria-pressed=${pressed} onClick=${onClick}>
      <${Icon} name=${icon} />
    </button>
  `;
}
