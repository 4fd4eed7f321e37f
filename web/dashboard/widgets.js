// Parts that several pages share: badges, facts, tables, charts, dialogs, and repeated work.

import { text as fetchText } from "./api.js";
import { h, replace, visible } from "./dom.js";

export const SIMULATED = "Simulation: these figures come from a script. Nothing was measured, and they are never compared with results.";

// A state with its mark and colour.
export function badge(state, text = state) {
  const known = /^[a-z-]+$/.test(state || "") ? state : "unknown";
  return h("span", { class: `state ${known}` }, text);
}

// Marks figures that are no measurements, with a word and not by colour alone.
export function simulation() {
  return h("span", { class: "simulated" }, "simulation");
}

// An instant (ISO, or null) in the reader's time zone.
export function instant(iso) {
  if (!iso) return "";
  return h("time", { datetime: iso, title: iso }, new Date(iso).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }));
}

// The end of a long id, with the full id as a tooltip.
export function shortId(id) {
  return h("code", { title: id, class: "id" }, id ? `…${id.slice(-8)}` : "");
}

// A part that scrolls sideways on its own, also by keyboard.
export function region(label, ...children) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, children);
}

// Preformatted text; long lines scroll.
export function lines(label, text, more = "") {
  return h("pre", { tabindex: "0", role: "region", "aria-label": label, class: more || null }, text);
}

// [["name", value], …] as a list; empty values are left out.
export function facts(pairs, style = "facts") {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  return h("dl", { class: style }, shown.map(([name, value, kind]) => h("div", {}, h("dt", {}, name), h("dd", { class: kind }, value))));
}

// `heads`: a head that ends in "#" is for a column of numbers. The first cell of a row is its head.
export function plainTable(label, heads, rows) {
  const numeric = heads.map((head) => (head.endsWith("#") ? "number" : null));
  const cell = (content, at) => h(at ? "td" : "th", { scope: at ? null : "row", class: numeric[at] }, content ?? "");
  return region(
    label,
    h(
      "table",
      { "aria-label": label },
      h("thead", {}, h("tr", {}, heads.map((head, at) => h("th", { scope: "col", class: numeric[at] }, head.replace(/#$/, ""))))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell)))),
    ),
  );
}

let charts = 0;

// A chart drawn by the server. Its marks take their colours from the style sheet. If there is nothing to draw (204), the figure is removed.
export function chart(path, caption, signal) {
  const figure = h("figure", { class: "chart" }, h("figcaption", {}, caption));
  const load = async () => {
    try {
      const drawing = await fetchText(`${path}&theme=page`, signal);
      if (!drawing) {
        figure.remove();
        return;
      }
      const svg = new DOMParser().parseFromString(drawing, "image/svg+xml").documentElement;
      charts += 1;
      const parts = [...svg.querySelectorAll(":scope > title, :scope > desc")];
      for (const part of parts) part.id = `chart-${charts}-${part.localName}`;
      svg.setAttribute("aria-labelledby", parts.map((part) => part.id).join(" "));
      figure.append(region(caption, document.importNode(svg, true)));
    } catch (error) {
      if (!signal.aborted) figure.append(problem(error));
    }
  };
  load();
  return figure;
}

// A bar for a share from 0 to 1; null hides it. Text next to the bar states the same share.
export function bar(share) {
  const element = h("span", { class: "bar", "aria-hidden": "true" }, h("span", { class: "full" }));
  setBar(element, share);
  return element;
}

export function setBar(element, share) {
  element.hidden = share === null || share === undefined;
  if (!element.hidden) element.firstChild.style.transform = `scaleX(${Math.max(0, Math.min(1, share))})`;
}

// An error within a page that otherwise keeps working.
export function problem(error) {
  return h("div", { class: "problem", role: "alert" }, h("p", {}, h("strong", {}, error.message)), error.hint && h("p", { class: "hint" }, error.hint));
}

// Announce a text to screen readers. The delay makes them notice the change.
export function announce(text) {
  const place = document.getElementById("announcement");
  place.textContent = "";
  requestAnimationFrame(() => (place.textContent = visible(text)));
}

// Change an element's text only if it differs.
export function setText(element, text) {
  const shown = visible(String(text));
  if (element.textContent !== shown) element.textContent = shown;
}

// -- actions ----------------------------------------------------------------------------------------------------------

// A dialog; true if confirmed with `action`. Escape and "Back" cancel. `more`: elements above the buttons, such as checkboxes.
export function confirm({ title, text, action, danger = false, more = [] }) {
  return new Promise((answer) => {
    const dialog = h("dialog", { "aria-labelledby": "dialog-title", "aria-describedby": "dialog-text" });
    let confirmed = false;
    const close = (yes) => () => {
      confirmed = yes;
      dialog.close();
    };
    const back = h("button", { class: "plain", type: "button", onclick: close(false) }, "Back");
    const go = h("button", { class: danger ? "danger" : "", type: "button", onclick: close(true) }, action);
    dialog.append(h("h2", { id: "dialog-title" }, title), h("p", { id: "dialog-text" }, text), ...more, h("div", { class: "buttons" }, back, go));
    dialog.addEventListener("close", () => {
      dialog.remove();
      answer(confirmed);
    });
    document.body.append(dialog);
    dialog.showModal();
    (danger ? back : go).focus();
  });
}

// Run a button's action: the button is disabled meanwhile, and an error is shown after it.
export async function act(button, action) {
  const before = button.nextElementSibling;
  if (before?.classList.contains("problem")) before.remove();
  button.disabled = true;
  try {
    return await action();
  } catch (error) {
    button.after(problem(error));
    return undefined;
  } finally {
    button.disabled = false;
    if (document.activeElement === document.body) button.focus();
  }
}

// A button that copies text(). Browsers give no clipboard to pages loaded over plain HTTP from another machine.
export function copyButton(label, text) {
  if (!navigator.clipboard) return null;
  const button = h("button", { class: "plain", type: "button" }, label);
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

// A field for the token, for problems with status 401; then(token) is called on submit.
export function tokenForm(then) {
  const submit = (event) => {
    event.preventDefault();
    then(new FormData(event.target).get("token"));
  };
  return h("form", { onsubmit: submit }, h("label", {}, "Token ", h("input", { name: "token", type: "password", autocomplete: "off", required: true })), h("button", {}, "Continue"));
}

// -- time -------------------------------------------------------------------------------------------------------------

// Repeat until the signal, but not while the page is hidden.
export async function every(seconds, action, signal) {
  while (!signal.aborted) {
    if (!document.hidden) await action();
    await new Promise((go) => {
      const timer = setTimeout(done, seconds * 1000);
      signal.addEventListener("abort", done);
      document.addEventListener("visibilitychange", shown);
      function shown() {
        if (!document.hidden) done();
      }
      function done() {
        clearTimeout(timer);
        signal.removeEventListener("abort", done);
        document.removeEventListener("visibilitychange", shown);
        go();
      }
    });
  }
}

const SLICE = 60;
const FRAME_MS = 8; // half of a frame; the other half is for layout

// Collects items by key and passes them to take(items, last) once per frame, in slices, so that the page stays responsive.
export function batch(key, take) {
  const waiting = new Map();
  let scheduled = false;
  function schedule() {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      const began = performance.now();
      do {
        const items = [];
        for (const [name, item] of waiting) {
          items.push(item);
          waiting.delete(name);
          if (items.length === SLICE) break;
        }
        take(items, waiting.size === 0);
      } while (waiting.size && performance.now() - began < FRAME_MS);
      if (waiting.size) schedule();
    });
  }
  return (item) => {
    waiting.set(key(item), item);
    schedule();
  };
}
