// Figures of the last minutes: counters asked for once a second while somebody looks at them or an answer is written here,
// and what they tell by their differences. Nothing is asked for while the page is hidden.
import { getJson } from "./server.js";
import { Watched } from "./ui.js";

const EVERY_MS = 1000;
const LONGEST_S = 5; // between two looks that are compared
export const KEPT = 180; // points

/** What a second tells: name, and its value from the counters before and after (null: nothing to tell). */
const FIGURES = {
  speed: (was, is) => per(was, is, (each) => each.generation_tokens_total, (each) => each.time_s),
  ttft: (was, is) => 1000 * per(was, is, (each) => each.first_token.seconds_total, (each) => each.first_token.count_total),
  between: (was, is) =>
    1000 * per(was, is, (each) => each.between_tokens.seconds_total, (each) => each.between_tokens.count_total),
  acceptance: (was, is) => 100 * per(was, is, (each) => each.accepted_tokens_total, (each) => each.drafted_tokens_total),
  hits: (was, is) =>
    100 * per(was, is, (each) => each.prefix_cache_hits_total, (each) => each.prefix_cache_queries_total),
  reading: (was, is) => // GB of weights a second, while steps decode
    1e-9 * is.bytes_per_token * per(was, is, (each) => each.decode_step.count_total, (each) => each.decode_step.seconds_total),
  running: (_, is) => is.running,
  waiting: (_, is) => is.waiting,
  kv: (_, is) => 100 * is.kv_usage,
  memory: (_, is) => (is.memory_bytes === null ? NaN : is.memory_bytes / 2 ** 20),
};

function per(was, is, amount, of) {
  const divisor = of(is) - of(was);
  return divisor > 0 ? (amount(is) - amount(was)) / divisor : NaN;
}

class LiveFigures extends Watched {
  times = []; // unix seconds
  series = Object.fromEntries(Object.keys(FIGURES).map((name) => [name, []]));
  newest = null; // as the server sent it
  failed = false;
  #timer = 0;
  #reasons = new Set();

  constructor() {
    super();
    document.addEventListener("visibilitychange", () => this.#follow());
  }

  /** Keep asking as long as there is a reason. */
  want(reason, wanted) {
    const had = this.#reasons.size > 0;
    if (wanted) this.#reasons.add(reason);
    else this.#reasons.delete(reason);
    if (had !== this.#reasons.size > 0) this.#follow();
  }

  /** The newest value of a series, or null. */
  now(name) {
    return this.series[name].at(-1) ?? null;
  }

  /** The newest value that there is. */
  latest(name) {
    return this.series[name].findLast((value) => value !== null) ?? null;
  }

  #follow() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    if (this.#reasons.size && document.visibilityState === "visible") this.#look();
  }

  async #look() {
    const timer = (this.#timer = setTimeout(() => {}, 0)); // names this look: a later one replaces it
    try {
      const found = await getJson("console/live");
      if (this.#timer !== timer) return;
      this.#add(found);
      this.failed = false;
    } catch {
      if (this.#timer !== timer) return;
      this.failed = true;
    }
    this.changed();
    this.#timer = setTimeout(() => this.#look(), EVERY_MS);
  }

  #add(found) {
    const was = this.newest;
    this.newest = found;
    // After a restart counters begin again; after a pause the difference would be a mean over all of it.
    const goesOn =
      was && found.time_s > was.time_s && found.time_s - was.time_s < LONGEST_S &&
      found.generation_tokens_total >= was.generation_tokens_total;
    if (was && !goesOn) this.#push(Date.now() / 1000 - 0.001, () => null);
    this.#push(Date.now() / 1000, (figure) => {
      const value = figure(goesOn ? was : found, found);
      return Number.isFinite(value) ? value : null;
    });
  }

  #push(time, value) {
    this.times.push(time);
    for (const [name, figure] of Object.entries(FIGURES)) this.series[name].push(value(figure));
    if (this.times.length > KEPT) {
      this.times.shift();
      for (const series of Object.values(this.series)) series.shift();
    }
  }
}

export const figures = new LiveFigures();
