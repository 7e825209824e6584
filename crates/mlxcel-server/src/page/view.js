// The elements of the page: messages, the list of chats, notices. Decides nothing; calls back what a person does.

import { MarkdownView } from "./markdown.js";

export const $ = (id) => document.getElementById(id);

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function button(label, title, onclick) {
  const made = element("button", "plain", label);
  made.type = "button";
  made.title = title;
  made.addEventListener("click", onclick);
  return made;
}

/** One message on the page. */
export class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.root = element("li", `message ${message.role}`);
    this.root.setAttribute("aria-label", message.role === "user" ? "You" : "Answer");
    this.body = element("div", "body");
    this.foot = element("div", "foot");
    this.root.append(this.body, this.foot);
    if (message.role === "assistant") {
      this.markdown = new MarkdownView(this.body);
      this.#reasoningElements();
    }
    this.update({ isRunning: false });
  }

  #reasoningElements() {
    this.summary = element("summary", "");
    this.thoughts = element("div", "thoughts");
    this.thinking = new MarkdownView(this.thoughts);
    this.details = element("details", "reasoning", this.summary, this.thoughts);
    this.details.hidden = true;
    this.root.prepend(this.details);
  }

  update({ isRunning }) {
    const { message } = this;
    if (message.role === "user") {
      this.body.textContent = message.content;
    } else {
      this.#updateAnswer(isRunning);
    }
    this.root.classList.toggle("running", isRunning);
    this.root.setAttribute("aria-busy", String(isRunning));
    this.#updateFoot(isRunning);
  }

  #updateAnswer(isRunning) {
    const { message } = this;
    this.markdown.update(message.content);
    const isThinking = isRunning && !message.content;
    this.details.hidden = !message.reasoning;
    if (message.reasoning) {
      this.thinking.update(message.reasoning);
      this.summary.textContent = isThinking ? "Thinking …" : "Thoughts";
    }
    this.root.classList.toggle("waiting", isThinking && !message.reasoning);
    this.error?.remove();
    if (message.error) {
      this.error = element("p", "error", message.error);
      this.error.setAttribute("role", "alert");
      this.body.after(this.error);
    }
  }

  #updateFoot(isRunning) {
    const { message, actions } = this;
    this.foot.replaceChildren();
    if (isRunning) return;
    if (message.content) {
      const copy = button("Copy", "Copy the message", () => actions.copy(message.content, copy));
      this.foot.append(copy);
    }
    if (message.role === "user") this.foot.append(button("Edit", "Change it and ask again", () => this.edit()));
    else this.foot.append(button("Again", "Let the answer be written again", () => actions.again(message)));
    const stats = statistics(message);
    if (stats) this.foot.append(element("span", "quiet stats", stats));
  }

  edit() {
    const area = element("textarea", "edit");
    area.value = this.message.content;
    area.setAttribute("aria-label", "Change the message");
    const close = () => this.update({ isRunning: false });
    const send = () => {
      const text = area.value.trim();
      if (text) this.actions.edit(this.message, text);
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
      event.stopPropagation();
    });
    this.body.replaceChildren(area);
    this.foot.replaceChildren(button("Send", "Ask again with this text", send), button("Cancel", "Leave it", close));
    grow(area);
    area.addEventListener("input", () => grow(area));
    area.focus();
  }
}

const ENDS = { length: "cut at the longest answer", stop: null, tool_calls: "calls a tool", content_filter: "filtered" };

function statistics({ stats, finish, stopped }) {
  const parts = [];
  if (stats?.tokens) parts.push(`${stats.tokens} tokens`);
  if (stats?.perSecond) parts.push(`${stats.perSecond.toFixed(1)} tok/s`);
  if (stats?.firstMs) parts.push(`first after ${(stats.firstMs / 1000).toFixed(2)} s`);
  if (stopped) parts.push("stopped");
  else if (ENDS[finish]) parts.push(ENDS[finish]);
  return parts.join(" · ");
}

/** Makes a text area as high as its text, up to what the style allows. */
export function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

const DAY_MS = 24 * 3600 * 1000;

function ageOf(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time >= midnight) return "Today";
  if (time >= midnight - DAY_MS) return "Yesterday";
  return time >= midnight - 6 * DAY_MS ? "This week" : "Earlier";
}

/** The list of chats, newest first, under the days. */
export function showConversations(conversations, current, actions) {
  const nav = $("conversations");
  nav.replaceChildren();
  let age = null;
  for (const conversation of conversations) {
    if (ageOf(conversation.updated) !== age) {
      age = ageOf(conversation.updated);
      nav.append(element("h2", "quiet", age));
    }
    const open = element("button", "title", conversation.title);
    open.type = "button";
    open.title = conversation.title;
    if (conversation.id === current) open.setAttribute("aria-current", "true");
    open.addEventListener("click", () => actions.open(conversation.id));
    const remove = button("✕", "Delete this chat", () => actions.remove(conversation.id));
    remove.classList.add("icon");
    remove.setAttribute("aria-label", `Delete ${conversation.title}`);
    nav.append(element("div", "entry", open, remove));
  }
}

export function showModels(models, chosen) {
  const select = $("model");
  const options = models.map((model) => {
    const option = element("option", "", model.id);
    option.value = model.id;
    return option;
  });
  select.replaceChildren(...options);
  select.value = models.some((model) => model.id === chosen) ? chosen : (models[0]?.id ?? "");
  select.disabled = models.length === 0;
}

export function showNotice(text, action) {
  const notice = $("notice");
  notice.hidden = !text;
  notice.replaceChildren(text ?? "");
  if (text && action) notice.append(" ", button(action.label, "", action.run));
}

/** How much of the model's context the chat fills. */
export function showContext(used, size) {
  const label = $("context");
  const number = (value) => value.toLocaleString("en");
  const numbers = size ? `${number(used)} / ${number(size)}` : number(used);
  label.replaceChildren(...(used ? [numbers, element("span", "unit", " tokens")] : []));
  label.classList.toggle("full", Boolean(size && used > 0.9 * size));
}
