// Elements from plain values. Text is only inserted as text, so that no name of a device or model can become markup.

// h("a", { href: "#/", class: "x", onclick: f }, "text", node, [more]) -> Element. null, undefined and false are left out.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
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

// Control and bidirectional characters are shown as codes, so that a name cannot pretend to be another.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

export function visible(text) {
  return text.replace(HIDDEN, (letter) => "\\u" + letter.charCodeAt(0).toString(16).padStart(4, "0"));
}

export function replace(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

// Replaces the children only if `sign` differs from the last time. Returns whether it did.
export function replaceChanged(element, sign, ...children) {
  if (element.dataset.sign === sign) return false;
  element.dataset.sign = sign;
  replace(element, ...children);
  return true;
}
