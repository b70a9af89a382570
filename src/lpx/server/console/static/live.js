// What the engine does now: figures as charts over the last minutes, what is in use, and how near that is to the limit.
import { Chart } from "./chart.js";
import { figures } from "./live-figures.js";
import { preferences } from "./preferences.js";
import { getJson, postJson } from "./server.js";
import { bytes, milliseconds, number, text } from "./texts.js";
import { html, useEffect, useState, useWatched } from "./ui.js";

export function Live({ model }) {
  useWatched(figures);
  useWatched(preferences);
  useEffect(() => {
    figures.want("view", true);
    return () => figures.want("view", false);
  }, []);
  const { newest } = figures;
  const limit = newest?.limit ?? null;
  return html`
    <main class="live" aria-label=${text("live")}>
      ${figures.failed && html`<p class="note" role="status">${text("paused")}</p>`}
      <section class="facts-and-limit">
        <${Roofline} limit=${limit} />
        <${InUse} model=${model} />
      </section>
      <section class="charts" aria-label=${text("lastMinutes")}>
        <${Chart} title=${text("speed")} ...${latest("speed", (value) => number(value, value > 0 && value < 100 ? 1 : 0))}
          lines=${[{ name: "speed", ink: "--line1" }]} mark=${limit?.tokens_per_second} format=${plain} />
        <${Chart} title=${text("timeToFirst")} ...${latest("ttft", milliseconds)}
          lines=${[{ name: "ttft", ink: "--line2" }]} format=${shortMs} />
        <${Chart} title=${text("betweenTokens")} ...${latest("between", milliseconds)}
          lines=${[{ name: "between", ink: "--line2" }]} format=${shortMs} />
        <${Chart} title=${text("requests")} value=${`${latest("running", number).value} / ${latest("waiting", number).value}`}
          lines=${[
            { name: "running", ink: "--line1", label: text("running") },
            { name: "waiting", ink: "--line3", label: text("waiting") },
          ]} most=${2} legend />
        <${Chart} title=${text("kvUse")} ...${latest("kv", percent)}
          lines=${[{ name: "kv", ink: "--line1" }]} format=${percent} />
        <${Chart} title=${text("acceptance")} ...${latest("acceptance", percent)}
          lines=${[{ name: "acceptance", ink: "--line3" }]} most=${90} format=${percent} />
        <${Chart} title=${text("cacheHits")} ...${latest("hits", percent)}
          lines=${[{ name: "hits", ink: "--line3" }]} most=${90} format=${percent} />
        <${Chart} title=${text("readNow")} ...${latest("reading", gigabytes)}
          lines=${[{ name: "reading", ink: "--line1" }]} mark=${limit && limit.bytes_per_second / 1e9} format=${plain} />
        <${Chart} title=${text("memory")} ...${latest("memory", (mib) => bytes(mib * 2 ** 20))}
          lines=${[{ name: "memory", ink: "--line1" }]} format=${(mib) => number(mib)} />
      </section>
      <p class="hint">${text("lastMinutes")}. ${text("meanNote")}</p>
    </main>
  `;
}

/** The newest value there is, and whether it is of an earlier second. */
function latest(name, format) {
  const value = figures.latest(name);
  return { value: value === null ? text("none") : format(value), past: figures.now(name) === null };
}

/** For an axis: as few digits as tell its values apart. */
function shortMs(ms) {
  return ms >= 1000 ? `${number(ms / 1000, ms % 1000 ? 1 : 0)} s` : `${number(ms, Number.isInteger(ms) ? 0 : 1)} ms`;
}

function plain(value) {
  return number(value, Number.isInteger(value) ? 0 : 1);
}

function percent(value) {
  return `${number(value, Number.isInteger(value) || value >= 10 ? 0 : value < 1 ? 2 : 1)} %`;
}

function gigabytes(value) {
  return text("gbPerSecond", number(value, 1));
}

function InUse({ model }) {
  const { kv_cache: kv } = model;
  const tokens = number(kv.block_size * kv.num_blocks);
  const facts = [
    ["model", model.id],
    ["architecture", model.architecture],
    ["precision", model.quantization],
    ["weights", bytes(model.weight_bytes)],
    ["isa", model.isa],
    ["threads", `${model.threads} (${model.device})`],
    ["kvType", text("kvTypeValue", kv.dtype, tokens, bytes(kv.bytes))],
    ["speculationUsed", model.speculation],
    ["context", text("tokens", number(model.max_model_len))],
  ].filter(([, value]) => value);
  return html`
    <div class="card">
      <h2>${text("inUse")}</h2>
      <dl>${facts.map(([name, value]) => html`<div><dt>${text(name)}</dt><dd>${value}</dd></div>`)}</dl>
    </div>
  `;
}

function Roofline({ limit }) {
  const [state, setState] = useState({ busy: false, error: null });
  const reading = figures.latest("reading");
  const share = limit && reading ? (1e11 * reading) / limit.bytes_per_second : null;
  const measure = async () => {
    setState({ busy: true, error: null });
    try {
      await postJson("console/limit", {});
      const found = await getJson("console/live");
      if (figures.newest) figures.newest.limit = found.limit;
      setState({ busy: false, error: null });
    } catch (error) {
      setState({ busy: false, error: error.message || text("unreachable") });
    }
  };
  return html`
    <div class="card roofline">
      <h2>${text("roofline")}</h2>
      <p class="reached">
        <strong>${share === null ? text("none") : percent(Math.round(share))}</strong>
        <span>${text("reached")}</span>
      </p>
      <div class="bar" role="meter" aria-label=${text("roofline")} aria-valuemin="0" aria-valuemax="100"
        aria-valuenow=${Math.min(Math.round(share ?? 0), 100)}><i style=${{ width: `${Math.min(share ?? 0, 100)}%` }}></i></div>
      <dl>
        <div><dt>${text("readNow")}</dt><dd>${reading ? gigabytes(reading) : text("noDecode")}</dd></div>
        <div><dt>${text("readMost")}</dt><dd>${limit ? gigabytes(limit.bytes_per_second / 1e9) : text("notMeasured")}</dd></div>
        ${limit && html`
          <div><dt>${text("streamMost")}</dt><dd>${text("perSecond", number(limit.tokens_per_second))}</dd></div>`}
      </dl>
      ${share > 100 && html`<p class="hint">${text("overLimit")}</p>`}
      <div class="measure">
        <button type="button" disabled=${state.busy} onClick=${measure}>
          ${text(state.busy ? "measuring" : limit ? "measureAgain" : "measure")}
        </button>
        <p class="hint">${text("measureHint")}</p>
      </div>
      ${state.error && html`<p class="error" role="alert">${state.error}</p>`}
      <p class="hint">${text("rooflineWhy")}</p>
    </div>
  `;
}
