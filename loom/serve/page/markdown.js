// What a model says, as Markdown. `marked` reads it without HTML and `DOMPurify` keeps only the tags below, so that nothing
// in it is run or fetched. Links open a new window, and show their address if their text doesn't.

import { html } from "./html.js";
import { visible } from "./text.js";
import { useLayoutEffect, useRef } from "./vendor/hooks.js";
import { Marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/purify.js";

const LONGEST = 50_000; // Longer texts are shown as they are.
const LONGEST_GROWING = 20_000; // So are those that still grow, as each change is read anew.
const LONG_WORD = /\S{1000}/; // It would take long to look for addresses in it.

const parser = new Marked({
  breaks: true,
  tokenizer: { html() {}, tag() {} }, // HTML is text
  renderer: {
    heading({ tokens, depth }) { // below the headings of the page
      const level = Math.min(6, depth + 3);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || "image")}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

const ALLOWED = {
  ALLOWED_TAGS: ["a", "blockquote", "br", "code", "del", "em", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "strong",
    "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ALLOWED_ATTR: ["href", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const escaped = (text) => text.replace(/[&<>"']/g, (one) => `&#${one.charCodeAt(0)};`);

/** Return the elements of a Markdown text, or null if it is shown as it is. */
export function elementsOf(text, longest = LONGEST) {
  if (text.length > longest || LONG_WORD.test(text)) return null;
  try {
    return safeElements(text);
  } catch (error) {
    if (error instanceof RangeError) return null; // it is nested too deeply
    throw error;
  }
}

function safeElements(text) {
  const found = DOMPurify.sanitize(parser.parse(visible(text)), ALLOWED);
  for (const link of found.querySelectorAll("a")) openOutside(link);
  for (const table of found.querySelectorAll("table")) scrollAside(table);
  const texts = document.createTreeWalker(found, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = visible(texts.currentNode.data); // an entity can be a hidden character
  return found;
}

function openOutside(link) {
  const given = link.getAttribute("href");
  if (!given || !URL.canParse(given)) return link.replaceWith(...link.childNodes);
  const { href } = new URL(given); // in ASCII
  link.href = href;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  const text = link.textContent.trim();
  if (![text, `${text}/`, `mailto:${text}`].includes(href)) link.after(` (${href})`);
}

function scrollAside(table) {
  const frame = document.createElement("div");
  frame.className = "aside-scroll";
  frame.tabIndex = 0; // so that the arrow keys scroll it
  table.replaceWith(frame);
  frame.append(table);
}

export function Markdown({ text, isGrowing = false }) {
  const element = useRef();
  useLayoutEffect(() => {
    const elements = elementsOf(text, isGrowing ? LONGEST_GROWING : LONGEST);
    element.current.classList.toggle("markdown", elements !== null);
    element.current.replaceChildren(elements ?? visible(text));
  }, [text, isGrowing]);
  return html`<div class="text" ref=${element}></div>`;
}
