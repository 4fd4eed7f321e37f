// The frame around the pages: which one is shown, what it is called, and what is told when something is wrong.
//
//   #/ campaigns   #/campaigns/ID   #/tasks/CAMPAIGN/N   #/fleet   #/compare   #/submit   #/gate
//
// A page is a module with `title` and `show(main, parts, { signal, query })`: it draws into `main` and stops at `signal`.

import { Problem, setToken, takeToken } from "./api.js";
import { h, replace } from "./dom.js";

const PAGES = {
  "": "campaigns",
  campaigns: "campaign",
  tasks: "task",
  fleet: "fleet",
  compare: "compare",
  submit: "submit",
  gate: "gate",
};

const main = document.getElementById("main");
let leaving = new AbortController();

// `moved`: the reader went there: the focus and the view begin at the top of the page.
async function show(moved = false) {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const [first, ...parts] = path.split("/").map(decode);
  if (!(first in PAGES) || !Object.hasOwn(PAGES, first)) {
    location.replace("#/");
    return;
  }
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === `#/${first === "campaigns" || first === "tasks" ? "" : first}`;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    const page = await import(`./pages/${PAGES[first]}.js`);
    if (signal.aborted) return;
    document.title = `${page.title} · Sark`;
    replace(main, h("p", { class: "quiet" }, "Loading …"));
    if (moved) {
      main.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
    await page.show(main, parts, { signal, query: new URLSearchParams(search || "") });
  } catch (error) {
    if (!signal.aborted) failed(error);
  }
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// What went wrong in place of the page; and a field for the token where that is what is missing.
export function failed(error) {
  const told = error instanceof Problem ? error : new Problem(0, String(error), "this is a mistake of ours");
  const form =
    told.status === 401 &&
    h(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          setToken(new FormData(event.target).get("token"));
          show();
        },
      },
      h("label", {}, "Token ", h("input", { name: "token", type: "password", autocomplete: "off", required: true })),
      h("button", {}, "Go on"),
    );
  replace(main, h("div", { class: "problem", role: "alert" }, h("h1", {}, told.message), h("p", {}, told.hint), form));
}

// Whether what is shown is live, told quietly in the corner.
export function down(is) {
  document.getElementById("link").textContent = is ? "The server does not answer; trying again …" : "";
}

addEventListener("hashchange", () => show(true));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part of the address behind # says which page is shown
  main.focus();
});
takeToken();
show();
