// Making elements. Text gets in as text only; the server's policy refuses markup from strings.

export const $ = (selector) => document.querySelector(selector);

// el makes an element: el("li", {class: "box", "data-n": 3, hidden: true}, child, "text", ...).
export function el(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    e.setAttribute(key, value === true ? "" : String(value));
  }
  e.append(...children.filter((c) => c !== null && c !== undefined && c !== ""));
  return e;
}

// sign is a mark that only eyes need; the word is always beside it.
export const sign = (text) => el("span", { class: "sign", "aria-hidden": "true" }, text);

// setText touches the document only when something changes, so that a screen reader hears only news.
export function setText(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

// put replaces the children of e.
export const put = (e, ...children) => e.replaceChildren(...children.filter((c) => c !== null && c !== undefined));

// clock is the time of day of an RFC 3339 time, to the millisecond, in the reader's zone.
export function clock(time) {
  const d = new Date(time);
  if (Number.isNaN(d.getTime())) return String(time ?? "");
  const two = (n) => String(n).padStart(2, "0");
  return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}.${String(d.getMilliseconds()).padStart(3, "0")}`;
}
