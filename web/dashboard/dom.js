// Elements from plain values. Text only ever goes in as text: nothing that a device or a model says can become markup.

const SVG = "http://www.w3.org/2000/svg";

// h("a", { href: "#/", class: "x", onclick: f }, "text", node, [more]) -> Element. null, undefined and false are left out.
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// The same for pictures.
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" && "value" in element) element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(visible(String(child))));
  }
}

// What turns writing round, hides itself or ends a line is shown as its code: a name cannot pretend to be another.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

export function visible(text) {
  return text.replace(HIDDEN, (letter) => "\\u" + letter.charCodeAt(0).toString(16).padStart(4, "0"));
}

export function replace(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}
