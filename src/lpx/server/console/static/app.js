// The page: its head, the two views, and what is shown while there is no model yet.
import { Chat } from "./chat.js";
import { Live } from "./live.js";
import { preferences } from "./preferences.js";
import { ServerError, getJson, health, signOut, signedIn } from "./server.js";
import { language, number, text } from "./texts.js";
import { Icon, html, render, useEffect, useState, useWatched } from "./ui.js";

const THEMES = ["system", "light", "dark"];
const RETRY_MS = 1000;

function App() {
  useWatched(preferences);
  const view = useView();
  const { model, state } = useModel();
  const session = useSession();
  document.documentElement.lang = language() === "zh" ? "zh-CN" : "en";
  document.title = model ? `${model.id} · LPX` : "LPX";
  return html`
    <a class="skip" href="#message" onClick=${focusMessage}>${text("skip")}</a>
    <header class="top">
      <span class="brand">LPX</span>
      ${model && html`<span class="model" title=${model.id}>${model.id}</span>`}
      <nav aria-label=${text("views")}>
        ${["chat", "live"].map(
          (name) => html`<a href="#${name}" aria-current=${view === name ? "page" : null}>${text(name)}</a>`,
        )}
      </nav>
      <span class="spring"></span>
      <${HeadButtons} session=${session} />
    </header>
    ${model
      ? html`<div class="view" hidden=${view !== "chat"}><${Chat} model=${model} visible=${view === "chat"} /></div>
          ${view === "live" && html`<${Live} model=${model} />`}`
      : html`<main class="not-ready"><${Waiting} state=${state} /></main>`}
  `;
}

function HeadButtons({ session }) {
  const next = THEMES[(THEMES.indexOf(preferences.theme) + 1) % THEMES.length];
  const other = language() === "zh" ? "en" : "zh";
  const theme = text("theme", text(preferences.theme));
  return html`
    <button type="button" class="quiet" lang=${other === "zh" ? "zh-CN" : "en"} title=${text("switchLanguage")}
      aria-label=${text("switchLanguage")} onClick=${() => preferences.set({ language: other })}>
      ${text("otherLanguage")}
    </button>
    <button type="button" class="quiet round" title=${theme} aria-label=${theme}
      onClick=${() => preferences.set({ theme: next })}>
      <${Icon} name=${preferences.theme} />
    </button>
    ${session?.key_required && session.signed_in && html`
      <button type="button" class="quiet round" title=${text("signOut")} aria-label=${text("signOut")} onClick=${signOut}>
        <${Icon} name="out" />
      </button>`}
  `;
}

function Waiting({ state }) {
  if (!state) return null;
  if (state.status !== "loading") return html`<p role="status">${text(...state.told)}</p>`;
  const percent = Math.round(100 * state.progress);
  return html`
    <p role="status">${state.phase === "loading" ? text("loading", number(percent)) : text("warming")}</p>
    <progress max="100" value=${percent} aria-label=${text("loading", percent)}></progress>
  `;
}

function focusMessage(event) {
  event.preventDefault();
  location.hash = "chat";
  setTimeout(() => document.getElementById("message")?.focus());
}

function useView() {
  const shown = () => (location.hash === "#live" ? "live" : "chat");
  const [view, setView] = useState(shown);
  useEffect(() => {
    const follow = () => setView(shown());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return view;
}

/** The model that is served, once it answers: asked for each second until then, while somebody looks. */
function useModel() {
  const [found, setFound] = useState({ model: null, state: null });
  useEffect(() => {
    let timer = 0;
    const look = async () => {
      try {
        const { data } = await getJson("v1/models");
        setFound({ model: data[0], state: null });
        return;
      } catch (error) {
        setFound({ model: null, state: await told(error) });
      }
      timer = setTimeout(whenVisible, RETRY_MS);
    };
    const whenVisible = () => {
      if (document.visibilityState === "visible") look();
      else document.addEventListener("visibilitychange", whenVisible, { once: true });
    };
    look();
    return () => clearTimeout(timer);
  }, []);
  return found;
}

async function told(error) {
  if (!(error instanceof ServerError)) return { status: "away", told: ["unreachable"] };
  const state = await health().catch(() => null);
  if (state?.status === "loading") return state;
  return { status: "failed", told: ["notReady", error.message || error.status] };
}

function useSession() {
  const [session, setSession] = useState(null);
  useEffect(() => {
    signedIn().then(setSession);
  }, []);
  return session;
}

render(html`<${App} />`, document.getElementById("app"));
