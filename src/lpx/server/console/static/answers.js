// One answer: what is asked of the API, what its stream brings, and how fast that came.
import { chats } from "./chats.js";
import { preferences } from "./preferences.js";
import { ServerError, streamed } from "./server.js";
import { text } from "./texts.js";
import { Watched } from "./ui.js";

/** Owns the answer that is being written, if there is one. Watchers are told at most once a frame. */
class Answers extends Watched {
  message = null; // the one that grows
  #control = null;
  #frame = 0;

  get busy() {
    return this.message !== null;
  }

  stop() {
    this.#control?.abort();
  }

  /** Put the user's text into the chat and answer it. */
  async send(chat, content, isChat) {
    chat.messages.push({ role: "user", content });
    await this.answer(chat, isChat);
  }

  /** Answer the last message of the user again. */
  async again(chat, isChat) {
    while (chat.messages.at(-1)?.role === "assistant") chat.messages.pop();
    await this.answer(chat, isChat);
  }

  async answer(chat, isChat) {
    const body = isChat ? chatBody(chat) : completionBody(chat);
    const message = { role: "assistant", content: "", pieces: [], figures: null, ending: null, error: null };
    chat.messages.push(message);
    this.message = message;
    this.#control = new AbortController();
    chats.keep(chat);
    const watch = { sent: performance.now(), first: 0, last: 0 };
    try {
      const path = isChat ? "v1/chat/completions" : "v1/completions";
      for await (const news of streamed(path, body, this.#control.signal)) {
        this.#take(message, news, watch);
      }
    } catch (error) {
      if (this.#control.signal.aborted) message.ending = "stopped";
      else message.error = describe(error);
    } finally {
      message.figures ??= ownFigures(message, watch);
      this.message = null;
      this.#control = null;
      cancelAnimationFrame(this.#frame);
      this.#frame = 0;
      chats.keep(chat);
      this.changed();
    }
  }

  #take(message, news, watch) {
    const choice = news.choices?.[0];
    const added = choice?.delta?.content ?? choice?.text ?? "";
    if (added) {
      watch.last = performance.now();
      watch.first ||= watch.last;
      message.content += added;
      for (const { text: piece, drafted } of choice.pieces ?? []) message.pieces.push([piece, drafted]);
    }
    if (choice?.finish_reason) message.ending = choice.finish_reason;
    if (news.usage) message.figures = figures(news, message, watch);
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.changed();
    });
  }
}

function sampling() {
  const { temperature, top_p, top_k, min_p, max_tokens, seed, speculative } = preferences.sampling;
  return { temperature, top_p, top_k, min_p, max_tokens, seed, speculative, return_drafts: true };
}

function chatBody(chat) {
  const messages = chat.messages.map(({ role, content }) => ({ role, content }));
  if (chat.system.trim()) messages.unshift({ role: "system", content: chat.system });
  return { messages, ...sampling() };
}

/** All there is so far, for the model to go on with. */
function completionBody(chat) {
  return { prompt: chat.messages.map((message) => message.content).join(""), ...sampling() };
}

/** The server's own figures where it gives them, else what this page saw. */
function figures(news, message, watch) {
  const timings = news.timings;
  if (!timings) return { ...ownFigures(message, watch), tokens: news.usage.completion_tokens };
  return {
    ttft_ms: timings.ttft_ms,
    tokens_per_second: timings.decode_tokens_per_second,
    tokens: news.usage.completion_tokens,
    prompt_tokens: news.usage.prompt_tokens,
    cached_tokens: news.usage.prompt_tokens_details?.cached_tokens ?? 0,
    drafted: timings.drafted_tokens ?? 0,
    accepted: timings.accepted_tokens ?? 0,
  };
}

function ownFigures(message, watch) {
  if (!watch.first) return null;
  const tokens = message.pieces.length;
  const seconds = (watch.last - watch.first) / 1000;
  return {
    ttft_ms: watch.first - watch.sent,
    tokens_per_second: seconds > 0 && tokens > 1 ? (tokens - 1) / seconds : 0,
    tokens,
    accepted: message.pieces.filter(([, drafted]) => drafted).length,
  };
}

function describe(error) {
  if (!(error instanceof ServerError)) return error instanceof TypeError ? text("unreachable") : text("lost");
  return error.message || text("failed", error.status);
}

export const answers = new Answers();
