// The chat page: what a person does, and what follows from it. The state is one list of conversations, the one that is
// open, and at most one answer that is being written.

import { ApiError, chat, models as fetchModels } from "./api.js";
import { loadSettings, openStore, saveSettings } from "./store.js";
import { $, MessageView, grow, showContext, showConversations, showModels, showNotice } from "./view.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

let store;
let ready;
let settings = loadSettings();
let models = [];
let conversations = [];
let current = null;
let views = new Map();
let running = null;

const isNarrow = () => matchMedia("(max-width: 760px)").matches;

// Conversations

function newConversation() {
  stop();
  current = null;
  showCurrent();
  openSidebar(false);
  $("input").focus();
}

function startConversation(text) {
  const now = Date.now();
  const title = text.split("\n")[0].slice(0, 60) || "Chat";
  // Not randomUUID: browsers have it on secure origins only, and a server in the local network is none.
  const id = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  current = { id, title, created: now, updated: now, messages: [], used: 0 };
  conversations.unshift(current);
}

async function keep(conversation) {
  // It may have been deleted while an answer was being written.
  if (!conversations.includes(conversation)) return;
  conversation.updated = Date.now();
  conversations.sort((a, b) => b.updated - a.updated);
  showList();
  try {
    await store.put(conversation);
  } catch {
    showNotice("This chat cannot be kept: the browser has no room left. Delete old chats in the settings.");
  }
}

function openConversation(id) {
  stop();
  current = conversations.find((conversation) => conversation.id === id) ?? null;
  showCurrent();
  openSidebar(false);
}

async function removeConversation(id) {
  if (current?.id === id) {
    stop();
    current = null;
    showCurrent();
  }
  conversations = conversations.filter((conversation) => conversation.id !== id);
  showList();
  await store.remove(id);
}

function showList() {
  showConversations(conversations, current?.id, { open: openConversation, remove: removeConversation });
}

function showCurrent() {
  views = new Map();
  $("messages").replaceChildren();
  for (const message of current?.messages ?? []) addView(message);
  $("empty").hidden = Boolean(current?.messages.length);
  showTitle();
  updateContext();
  showList();
  scrollToEnd(true);
}

function showTitle() {
  document.title = current ? `${current.title} – mlxcel` : "mlxcel";
}

function addView(message) {
  const view = new MessageView(message, { copy: copyText, again: answerAgain, edit: editMessage });
  views.set(message, view);
  $("messages").append(view.root);
  $("empty").hidden = true;
  return view;
}

function updateContext() {
  showContext(current?.used ?? 0, models.find((model) => model.id === $("model").value)?.context);
}

// Asking

async function send(text) {
  await ready;
  if (running) return;
  if (!current) startConversation(text);
  showTitle();
  const message = { role: "user", content: text };
  current.messages.push(message);
  addView(message);
  await answer();
}

function cutAfter(message, keepIt) {
  const index = current.messages.indexOf(message);
  if (index < 0) return;
  for (const gone of current.messages.splice(keepIt ? index + 1 : index)) {
    views.get(gone)?.root.remove();
    views.delete(gone);
  }
}

async function answerAgain(message) {
  if (running) return;
  cutAfter(message, false);
  await answer();
}

async function editMessage(message, text) {
  if (running) return;
  message.content = text;
  cutAfter(message, true);
  views.get(message).update({ isRunning: false });
  await answer();
}

function requestOf(conversation) {
  // Before the models are known, the server takes its own.
  const request = { model: $("model").value || undefined, messages: [] };
  if (settings.system.trim()) request.messages.push({ role: "system", content: settings.system });
  for (const { role, content } of conversation.messages) {
    const last = request.messages.at(-1);
    // After an answer that failed, two questions meet; templates want turns to alternate.
    if (content && last?.role === role) last.content += `\n\n${content}`;
    else if (content) request.messages.push({ role, content });
  }
  for (const name of NUMBERS) {
    if (settings[name] !== null) request[name] = settings[name];
  }
  return request;
}

async function answer() {
  const conversation = current;
  const request = requestOf(conversation);
  keep(conversation);
  const message = { role: "assistant", content: "", reasoning: "" };
  conversation.messages.push(message);
  const view = addView(message);
  const abort = new AbortController();
  running = { abort, message };
  showRunning(true);
  showNotice(null);
  scrollToEnd(true);
  const draw = painter(view);
  const clock = { started: performance.now(), first: null, chunks: 0 };
  try {
    for await (const part of chat({ request, key: settings.key, signal: abort.signal })) {
      take(part, message, conversation, clock);
      draw();
    }
  } catch (error) {
    failed(error, message);
  }
  finish(message, clock);
  running = null;
  draw.end();
  view.update({ isRunning: false });
  showRunning(false);
  // A model that was loaded for this answer tells its context now.
  if (!message.error && !models.find((model) => model.id === request.model)?.context) await loadModels();
  if (current === conversation) updateContext();
  $("live").textContent = message.error ? "" : message.content.slice(0, 500);
  await keep(conversation);
}

function take(part, message, conversation, clock) {
  if (part.content || part.reasoning) {
    clock.first ??= performance.now();
    clock.last = performance.now();
    clock.chunks += 1;
  }
  message.content += part.content ?? "";
  message.reasoning += part.reasoning ?? "";
  if (part.finish) message.finish = part.finish;
  if (part.usage) {
    clock.tokens = part.usage.completion_tokens;
    conversation.used = part.usage.total_tokens ?? 0;
  }
  if (part.timings?.predicted_per_second) clock.perSecond = part.timings.predicted_per_second;
}

/** What the server measured counts; else the time between the first and the last portion. */
function finish(message, clock) {
  if (clock.first === null) return;
  const seconds = (clock.last - clock.first) / 1000;
  const tokens = clock.tokens ?? clock.chunks;
  const perSecond = clock.perSecond ?? (seconds > 0.05 && tokens > 1 ? (tokens - 1) / seconds : null);
  message.stats = { tokens, perSecond, firstMs: clock.first - clock.started };
}

function failed(error, message) {
  if (error.name === "AbortError") {
    message.stopped = true;
    return;
  }
  message.error = error instanceof ApiError ? error.message : `Something went wrong: ${error.message}`;
  if (error.status === 401 || error.status === 403) askForKey();
}

function askForKey() {
  showNotice("The server asks for an API key.", { label: "Enter it", run: () => openSettings("set-key") });
}

function stop() {
  running?.abort.abort();
}

function showRunning(isRunning) {
  $("send").hidden = isRunning;
  $("stop").hidden = !isRunning;
}

/** Draws a message at most once a frame, and follows it if the end was in sight. */
function painter(view) {
  let frame = 0;
  const paint = () => {
    frame = 0;
    view.update({ isRunning: true });
    scrollToEnd(false);
  };
  const draw = () => {
    frame ||= requestAnimationFrame(paint);
  };
  draw.end = () => {
    cancelAnimationFrame(frame);
    requestAnimationFrame(() => scrollToEnd(false));
  };
  paint();
  return draw;
}

let follows = true;
let scrolled = 0;

/** The page follows until a person scrolls up. That the text grew is no reason to stop. */
function onScroll() {
  const area = $("scroll");
  if (area.scrollHeight - area.scrollTop - area.clientHeight < 60) follows = true;
  else if (area.scrollTop < scrolled - 2) follows = false;
  scrolled = area.scrollTop;
}

function scrollToEnd(force) {
  if (force) follows = true;
  const area = $("scroll");
  if (follows) area.scrollTop = area.scrollHeight;
}

// Copying

async function copyText(text, origin) {
  const label = origin.textContent;
  origin.textContent = (await writeClipboard(text)) ? "Copied" : "Not copied";
  setTimeout(() => { origin.textContent = label; }, 1500);
}

/** Over plain HTTP browsers have no clipboard API; a hidden text area still works. */
async function writeClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "sr";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// Settings, models, layout

function applyTheme() {
  if (settings.theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = settings.theme;
}

function openSettings(focus) {
  $("set-system").value = settings.system;
  $("set-key").value = settings.key;
  $("set-theme").value = settings.theme;
  for (const name of NUMBERS) $(`set-${name}`).value = settings[name] ?? "";
  openSidebar(false);
  $("settings").showModal();
  if (typeof focus === "string") $(focus).focus();
}

function readSettings() {
  const key = $("set-key").value.trim();
  const keyChanged = key !== settings.key;
  settings = { ...settings, system: $("set-system").value, key, theme: $("set-theme").value };
  for (const name of NUMBERS) {
    const field = $(`set-${name}`);
    settings[name] = field.value === "" || !field.validity.valid ? null : field.valueAsNumber;
  }
  saveSettings(settings);
  applyTheme();
  if (keyChanged) loadModels();
}

async function loadModels() {
  try {
    models = await fetchModels(settings.key);
    if (!models.length) showNotice("The server has no model.");
    else if (!running) showNotice(null);
  } catch (error) {
    models = [];
    if (error.status === 401 || error.status === 403) askForKey();
    else showNotice(error.message, { label: "Try again", run: loadModels });
  }
  showModels(models, settings.model);
  updateContext();
}

function openSidebar(isOpen) {
  document.body.classList.toggle("sidebar-open", isOpen);
  $("scrim").hidden = !isOpen;
  $("sidebar").inert = isNarrow() && !isOpen;
}

function submit() {
  const input = $("input");
  const text = input.value.trim();
  if (!text || running) return;
  input.value = "";
  grow(input);
  send(text);
}

function onKey(event) {
  const isModified = event.ctrlKey || event.metaKey;
  if (event.key === "Escape" && !$("settings").open) {
    if (document.body.classList.contains("sidebar-open")) openSidebar(false);
    else stop();
  } else if (isModified && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    newConversation();
  } else if (event.key === "/" && !event.target.closest("input, textarea, select")) {
    event.preventDefault();
    $("input").focus();
  }
}

function listen() {
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  $("input").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  });
  $("input").addEventListener("input", () => grow($("input")));
  $("stop").addEventListener("click", stop);
  $("new-chat").addEventListener("click", newConversation);
  $("open-settings").addEventListener("click", openSettings);
  $("settings").addEventListener("close", readSettings);
  $("open-sidebar").addEventListener("click", () => openSidebar(true));
  $("close-sidebar").addEventListener("click", () => openSidebar(false));
  $("scrim").addEventListener("click", () => openSidebar(false));
  $("delete-all").addEventListener("click", deleteAll);
  $("model").addEventListener("change", () => {
    settings.model = $("model").value;
    saveSettings(settings);
    updateContext();
  });
  $("scroll").addEventListener("scroll", onScroll);
  $("messages").addEventListener("click", (event) => {
    const copy = event.target.closest("[data-copy=code]");
    if (copy) copyText(copy.closest("figure").querySelector("code").textContent, copy);
  });
  matchMedia("(max-width: 760px)").addEventListener("change", () => openSidebar(false));
  document.addEventListener("keydown", onKey);
}

async function deleteAll() {
  if (!confirm("Delete all chats in this browser?")) return;
  conversations = [];
  await store.clear();
  newConversation();
}

async function loadConversations() {
  store = await openStore();
  conversations = (await store.list()).sort((a, b) => b.updated - a.updated);
  showCurrent();
}

async function main() {
  applyTheme();
  ready = loadConversations();
  listen();
  openSidebar(false);
  await ready;
  if (!isNarrow()) $("input").focus();
  await loadModels();
}

main();
