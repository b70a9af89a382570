// Every word of the page, in English and in Chinese.
import { preferences } from "./preferences.js";

export const TEXTS = {
  chat: ["Chat", "对话"],
  live: ["Live", "实时"],
  views: ["Views", "视图"],
  skip: ["Skip to the message box", "跳到输入框"],
  theme: ["Theme: {0}", "主题：{0}"],
  system: ["system", "跟随系统"],
  light: ["light", "浅色"],
  dark: ["dark", "深色"],
  otherLanguage: ["中文", "English"],
  switchLanguage: ["切换到中文 (switch to Chinese)", "Switch to English（切换到英文）"],
  signOut: ["Sign out", "退出登录"],

  ask: ["Ask {0}", "向 {0} 提问"],
  emptyHint: ["Runs on this server. What you write goes nowhere else.", "模型运行在本服务器上，输入内容不会发往别处。"],
  example1: ["Explain what a KV cache is, in three sentences.", "用三句话解释什么是 KV 缓存。"],
  example2: ["Write a Python function that finds the longest palindrome in a string.", "写一个 Python 函数，找出字符串中最长的回文。"],
  example3: ["Make a table of three fruits with colour and taste.", "用表格列出三种水果的颜色和味道。"],
  continue1: ["The capital of France is", "法国的首都是"],
  continue2: ["Once upon a time there was a small computer that", "从前有一台小电脑，"],

  message: ["Message", "消息"],
  write: ["Write a message", "输入消息"],
  continueText: ["Text to continue", "要续写的文本"],
  send: ["Send", "发送"],
  stop: ["Stop", "停止"],
  hintKeys: ["Enter sends, Shift+Enter starts a new line, Esc stops", "Enter 发送，Shift+Enter 换行，Esc 停止"],
  you: ["You", "你"],
  conversation: ["Conversation", "对话内容"],
  answering: ["Answering…", "正在回答…"],
  answered: ["The answer is complete.", "回答完毕。"],
  stopped: ["stopped", "已停止"],
  cutLength: ["cut at the token limit", "已达长度上限"],
  timedOut: ["out of time", "超时"],
  copy: ["Copy", "复制"],
  copied: ["Copied", "已复制"],
  copyCode: ["Copy code", "复制代码"],
  code: ["code", "代码"],
  regenerate: ["Regenerate", "重新生成"],
  tint: ["Show drafted tokens", "显示草稿 token"],
  tintNote: ["Tinted tokens were drafted ahead and confirmed by the model.", "着色的 token 由草稿提前给出，并经模型确认。"],
  imageNotLoaded: ["image, not loaded: {0}", "图片（未加载）：{0}"],
  baseNote: [
    "This model has no chat template: it was not trained to chat. Your text is continued as it is.",
    "该模型没有对话模板，未经对话训练：将直接续写你的文本。",
  ],

  perSecond: ["{0} tokens/s", "{0} token/秒"],
  ttft: ["TTFT {0}", "首 token {0}"],
  tokens: ["{0} tokens", "{0} 个 token"],
  draftedOf: ["{0} of {1} drafted accepted", "草稿 {1} 个，采纳 {0} 个"],
  cachedOf: ["{0} of {1} prompt tokens cached", "提示 {1} 个 token，缓存命中 {0} 个"],
  figures: ["Figures of this answer", "本次回答的数据"],

  chats: ["Chats", "会话"],
  newChat: ["New chat", "新会话"],
  untitled: ["New chat", "新会话"],
  deleteChat: ["Delete “{0}”", "删除“{0}”"],
  clearAll: ["Delete all", "全部删除"],
  sureClear: ["Delete all chats in this browser?", "删除此浏览器中的全部会话？"],
  keep: ["Keep chats in this browser", "在此浏览器中保留会话"],
  keepHint: ["If not, they end with this tab. They are never stored on the server.", "如不保留，会话随标签页消失。服务器从不保存会话。"],
  notKept: ["This browser has no room to keep this chat.", "浏览器空间不足，无法保留此会话。"],
  close: ["Close", "关闭"],

  settings: ["Settings", "设置"],
  systemPrompt: ["System prompt", "系统提示词"],
  systemHint: ["How the model should answer, in this chat", "告诉模型在本会话中如何回答"],
  sampling: ["Sampling", "采样"],
  temperature: ["Temperature", "温度"],
  temperatureHint: ["0: always the likeliest", "0：总取最可能的"],
  topP: ["Top-p", "Top-p"],
  topPHint: ["1 is off", "1 为关闭"],
  topK: ["Top-k", "Top-k"],
  topKHint: ["0 is off", "0 为关闭"],
  minP: ["Min-p", "Min-p"],
  minPHint: ["0 is off", "0 为关闭"],
  maxTokens: ["Most tokens", "最多 token 数"],
  maxTokensHint: ["empty: up to the context", "留空：直到上下文上限"],
  seed: ["Seed", "随机种子"],
  seedHint: ["empty: a new one each time", "留空：每次随机"],
  speculation: ["Draft tokens ahead", "提前起草 token（投机解码）"],
  speculationHint: ["Never changes the text, only the speed", "只影响速度，不改变文本"],
  tintAll: ["Tint accepted drafts", "给采纳的草稿着色"],
  reset: ["Back to defaults", "恢复默认值"],

  loading: ["The model is loading: {0} %", "模型加载中：{0} %"],
  warming: ["The model is warming up", "模型预热中"],
  notReady: ["The server is not ready: {0}", "服务器未就绪：{0}"],
  unreachable: ["The server cannot be reached.", "无法连接服务器。"],
  lost: ["The connection ended before the answer did.", "回答未完成，连接已断开。"],
  failed: ["The server answered {0}.", "服务器返回 {0}。"],
  retry: ["Try again", "重试"],

  inUse: ["In use", "运行信息"],
  model: ["Model", "模型"],
  architecture: ["Architecture", "架构"],
  precision: ["Precision", "精度"],
  isa: ["Instruction set", "指令集"],
  threads: ["Threads", "线程"],
  kvType: ["KV cache", "KV 缓存"],
  kvTypeValue: ["{0}, {1} tokens, {2}", "{0}，{1} 个 token，{2}"],
  speculationUsed: ["Speculation", "投机解码"],
  context: ["Context", "上下文"],
  weights: ["Weights", "权重"],

  speed: ["Tokens per second", "每秒 token 数"],
  timeToFirst: ["Time to first token", "首 token 时间"],
  betweenTokens: ["Inter-token time", "token 间隔"],
  requests: ["Running and waiting", "运行与等待"],
  running: ["running", "运行"],
  waiting: ["waiting", "等待"],
  kvUse: ["KV cache in use", "KV 缓存占用"],
  cacheHits: ["Prompt tokens from the cache", "提示 token 缓存命中"],
  acceptance: ["Accepted drafts", "草稿采纳率"],
  memory: ["Memory of the process", "进程内存"],
  none: ["–", "–"],
  before: ["{0}: {1} before", "{0}：之前 {1}"],
  now: ["{0}: {1} now", "{0}：当前 {1}"],
  lastMinutes: ["The last 3 minutes, a point each second", "最近 3 分钟，每秒一点"],
  meanNote: ["TTFT and inter-token time are means over each second's requests.", "首 token 时间与 token 间隔为每秒内的平均值。"],
  paused: ["No answer from the server; trying again", "服务器无响应，正在重试"],

  roofline: ["Distance to the limit", "与内存带宽上限的差距"],
  rooflineWhy: [
    "Decoding reads all weights for every step, so memory sets the limit.",
    "解码每一步都要读取全部权重，因此内存带宽决定上限。",
  ],
  readNow: ["Weights read while decoding", "解码时读取权重"],
  readMost: ["Memory gives at most", "内存最多可提供"],
  reached: ["of the limit", "（占上限的比例）"],
  streamMost: ["One stream, no drafts, at most", "单流无草稿上限"],
  gbPerSecond: ["{0} GB/s", "{0} GB/秒"],
  measure: ["Measure the limit", "测量上限"],
  measureAgain: ["Measure again", "重新测量"],
  measuring: ["Measuring…", "测量中…"],
  measureHint: [
    "Reads memory for about a second. Requests that come meanwhile are slower.",
    "读取内存约一秒，期间到达的请求会变慢。",
  ],
  notMeasured: ["not measured", "未测量"],
  noDecode: ["nothing decoded yet", "尚未解码"],
  overLimit: ["Over 100 %: part of the weights comes from the caches.", "超过 100 %：部分权重来自缓存。"],
};

export function language() {
  if (preferences.language) return preferences.language;
  const first = navigator.languages?.[0] ?? navigator.language ?? "en";
  return first.toLowerCase().startsWith("zh") ? "zh" : "en";
}

/** The text of that name in the page's language; {0}, {1} … are filled in. */
export function text(name, ...values) {
  const found = TEXTS[name][language() === "zh" ? 1 : 0];
  return found.replace(/\{(\d)\}/g, (_, index) => String(values[index]));
}

export function number(value, digits = 0) {
  return value.toLocaleString(language(), { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** Three significant digits at most, and the unit that fits. */
export function milliseconds(ms) {
  if (ms >= 10_000) return `${number(ms / 1000, 1)} s`;
  return `${number(ms, ms < 10 ? 2 : ms < 100 ? 1 : 0)} ms`;
}

export function bytes(count) {
  return count >= 2 ** 30 ? `${number(count / 2 ** 30, 2)} GiB` : `${number(count / 2 ** 20)} MiB`;
}
