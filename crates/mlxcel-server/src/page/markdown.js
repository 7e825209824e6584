// Markdown as models write it, to elements. Text only ever becomes text nodes and addresses are checked, so nothing a
// model writes can run or load anything. Covers what CommonMark and GitHub's tables have in daily use, without HTML.

import { highlight } from "./highlight.js";

/** Shows a growing text in an element; blocks that did not change are left alone. */
export class MarkdownView {
  #element;
  #shown = [];

  constructor(element) {
    this.#element = element;
  }

  update(text) {
    const blocks = splitBlocks(text);
    let same = 0;
    while (same < blocks.length && blocks[same] === this.#shown[same]) same += 1;
    while (this.#element.childNodes.length > same) this.#element.lastChild.remove();
    for (const block of blocks.slice(same)) this.#element.append(renderBlock(block.split("\n")));
    this.#shown = blocks;
  }
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-{1,}:?\s*(\|\s*:?-{1,}:?\s*)*\|?\s*$/;

/** The source of each top-level block. */
function splitBlocks(text) {
  const blocks = [];
  let lines = [];
  let fence = null;
  const end = () => {
    if (lines.length) blocks.push(lines.join("\n"));
    lines = [];
  };
  for (const line of text.replaceAll("\r\n", "\n").split("\n")) {
    if (fence) {
      lines.push(line);
      if (closes(line, fence)) {
        fence = null;
        if (!isList(lines)) end();
      }
      continue;
    }
    const opens = FENCE.exec(line.trimStart());
    if (opens) {
      if (!isList(lines) || !line.startsWith(" ")) end();
      fence = opens[1];
      lines.push(line);
    } else if (!line.trim()) {
      // A list goes on after an empty line if the next line belongs to it.
      if (isList(lines)) lines.push("");
      else end();
    } else {
      if (startsBlock(line, lines)) end();
      lines.push(line);
      if (HEADING.test(line) || (RULE.test(line) && lines.length === 1)) end();
    }
  }
  end();
  return blocks.map((block) => block.replace(/\n+$/, ""));
}

const isList = (lines) => lines.length > 0 && ITEM.test(lines[0]);
const closes = (line, fence) => line.trim().startsWith(fence) && /^[`~]+$/.test(line.trim());

function startsBlock(line, lines) {
  if (!lines.length) return false;
  if (HEADING.test(line) || RULE.test(line)) return true;
  if (isList(lines)) return endsList(line, lines);
  const isQuote = line.trimStart().startsWith(">");
  if (isQuote !== lines[0].trimStart().startsWith(">")) return true;
  return ITEM.test(line) && /^\s{0,3}([-*+]|1[.)])\s/.test(line);
}

/** Whether a line is no part of a list: other marks, or text without indentation after an empty line. */
function endsList(line, lines) {
  const [, indent, mark] = ITEM.exec(lines[0]);
  const item = ITEM.exec(line);
  if (!item) return !/^\s/.test(line) && lines.at(-1) === "";
  return item[1].length <= indent.length && /\d/.test(item[2]) !== /\d/.test(mark);
}

function renderBlock(lines) {
  const fence = FENCE.exec(lines[0]);
  if (fence) return codeBlock(lines, fence);
  const heading = HEADING.exec(lines[0]);
  if (heading) return inlineElement(`h${Math.min(heading[1].length + 1, 6)}`, heading[2]);
  if (RULE.test(lines[0])) return document.createElement("hr");
  if (lines[0].trimStart().startsWith(">")) return quote(lines);
  if (ITEM.test(lines[0])) return list(lines);
  if (lines.length > 1 && lines[0].includes("|") && TABLE_RULE.test(lines[1])) return table(lines);
  return inlineElement("p", lines.map((line) => line.trimStart()).join("\n"));
}

function renderAll(text) {
  const fragment = document.createDocumentFragment();
  for (const block of splitBlocks(text)) fragment.append(renderBlock(block.split("\n")));
  return fragment;
}

function codeBlock(lines, [, mark, name]) {
  const isClosed = lines.length > 1 && closes(lines.at(-1), mark);
  const code = lines.slice(1, isClosed ? -1 : undefined).join("\n");
  const figure = document.createElement("figure");
  figure.className = "code";
  const caption = document.createElement("figcaption");
  const label = document.createElement("span");
  label.textContent = name || "text";
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "plain copy";
  copy.dataset.copy = "code";
  copy.textContent = "Copy";
  caption.append(label, copy);
  const pre = document.createElement("pre");
  pre.tabIndex = 0;
  const inner = document.createElement("code");
  inner.append(highlight(code, name.toLowerCase()));
  pre.append(inner);
  figure.append(caption, pre);
  return figure;
}

function quote(lines) {
  const element = document.createElement("blockquote");
  element.append(renderAll(lines.map((line) => line.replace(/^\s*> ?/, "")).join("\n")));
  return element;
}

function list(lines) {
  const [, , mark] = ITEM.exec(lines[0]);
  const isOrdered = /\d/.test(mark);
  const element = document.createElement(isOrdered ? "ol" : "ul");
  const first = parseInt(mark, 10);
  if (isOrdered && first !== 1) element.start = first;
  for (const item of items(lines)) element.append(listItem(item));
  return element;
}

/** The lines of each item, without its mark and indentation. */
function items(lines) {
  const all = [];
  const base = ITEM.exec(lines[0])[1].length;
  let indent = 0;
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length < base + 2) {
      indent = line.length - found[3].length;
      all.push([found[3]]);
    } else {
      const blanks = line.length - line.trimStart().length;
      all.at(-1).push(line.slice(Math.min(indent, blanks)));
    }
  }
  return all;
}

function listItem(lines) {
  const element = document.createElement("li");
  const task = /^\[([ xX])\]\s+(.*)$/.exec(lines[0]);
  const text = task ? [task[2], ...lines.slice(1)] : lines;
  const content = renderAll(text.join("\n"));
  // A single paragraph is the item itself.
  const first = content.firstElementChild;
  if (first?.tagName === "P" && !text.includes("")) first.replaceWith(...first.childNodes);
  if (task) {
    const box = document.createElement("input");
    box.type = "checkbox";
    box.disabled = true;
    box.checked = task[1] !== " ";
    element.className = "task";
    element.append(box, " ");
  }
  element.append(content);
  return element;
}

function cells(line) {
  const trimmed = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return trimmed.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function table(lines) {
  const sides = cells(lines[1]).map((rule) => {
    if (rule.endsWith(":")) return rule.startsWith(":") ? "center" : "right";
    return "left";
  });
  const row = (line, tag) => {
    const element = document.createElement("tr");
    cells(line).slice(0, sides.length).forEach((cell, index) => {
      const child = inlineElement(tag, cell);
      child.className = `to-${sides[index]}`;
      element.append(child);
    });
    return element;
  };
  const head = document.createElement("thead");
  head.append(row(lines[0], "th"));
  const body = document.createElement("tbody");
  for (const line of lines.slice(2)) body.append(row(line, "td"));
  const element = document.createElement("table");
  element.append(head, body);
  const frame = document.createElement("div");
  frame.className = "table";
  frame.append(element);
  return frame;
}

function inlineElement(tag, text) {
  const element = document.createElement(tag);
  inline(text, element);
  return element;
}

// The first of these that matches at the earliest place is taken.
const INLINE = [
  [/\\([\\`*_{}[\]()#+\-.!|~>$])/, (found) => found[1]],
  [/(`+)(?!`)([\s\S]*?[^`])\1(?!`)/, (found) => plainElement("code", found[2].replace(/^ (.*) $/, "$1"))],
  [/!?\[([^\]\n]*)\]\(\s*<?([^()\s<>]*(?:\([^()\s]*\)[^()\s<>]*)*)>?(?:\s+"[^"]*")?\s*\)/, (found) => link(found[1], found[2])],
  [/\*\*\*(?=\S)([\s\S]+?\S?)\*\*\*/, (found) => nested("strong", nested("em", found[1]))],
  [/\*\*(?=\S)([\s\S]*?\S)\*\*(?!\*)/, (found) => nested("strong", found[1])],
  [/(?<![\p{L}\p{N}_])__(?=\S)([\s\S]*?\S)__(?![\p{L}\p{N}_])/u, (found) => nested("strong", found[1])],
  [/\*(?=[^\s*])([^*]*[^\s*])\*(?!\*)/, (found) => nested("em", found[1])],
  [/(?<![\p{L}\p{N}_])_(?=[^\s_])([^_]*[^\s_])_(?![\p{L}\p{N}_])/u, (found) => nested("em", found[1])],
  [/~~(?=\S)([\s\S]*?\S)~~/, (found) => nested("del", found[1])],
  [/https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]}]/, (found) => link(found[0], found[0])],
  [/(?: {2,}|\\)\n/, () => document.createElement("br")],
];

// A paragraph longer than any person's is shown as it is, so that no text can keep the page busy.
const INLINE_MAX = 30_000;

function inline(text, into) {
  if (text.length > INLINE_MAX) {
    into.append(text);
    return;
  }
  let rest = text;
  while (rest) {
    let best = null;
    for (const [pattern, make] of INLINE) {
      const found = pattern.exec(rest);
      if (found && (!best || found.index < best.found.index)) best = { found, make };
      if (best?.found.index === 0) break;
    }
    if (!best) {
      into.append(rest);
      return;
    }
    if (best.found.index) into.append(rest.slice(0, best.found.index));
    into.append(best.make(best.found));
    rest = rest.slice(best.found.index + best.found[0].length);
  }
}

function plainElement(tag, text) {
  const element = document.createElement(tag);
  element.textContent = text;
  return element;
}

function nested(tag, content) {
  const element = document.createElement(tag);
  if (typeof content === "string") inline(content, element);
  else element.append(content);
  return element;
}

/** Only addresses a person can follow; a picture is a link, for the page loads nothing from elsewhere. */
function link(label, address) {
  const span = plainElement("span", label || address);
  let url;
  try {
    url = new URL(address);
  } catch {
    return span;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return span;
  const element = document.createElement("a");
  element.href = url.href;
  element.target = "_blank";
  element.rel = "noopener noreferrer";
  if (label === address || !label) element.textContent = address;
  else inline(label.replaceAll("](", "] ("), element);
  return element;
}
