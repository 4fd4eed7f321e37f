// The frame around the pages: routing, titles, errors, and the server's connection state.
//
//   #/ campaigns   #/campaigns/ID   #/tasks/CAMPAIGN/N   #/fleet   #/compare   #/submit   #/experiments/NAME   #/gate   and /docs, which has no #/
//
// A page is a module with `title` and `show(main, parts, { signal, query })`: it draws into `main` and stops at `signal`.

import { Problem, hasToken, setToken, takeToken } from "./api.js";
import { h, replace } from "./dom.js";
import { tokenForm } from "./widgets.js";

const PAGES = {
  "": "campaigns",
  campaigns: "campaign",
  tasks: "task",
  fleet: "fleet",
  compare: "compare",
  submit: "submit",
  experiments: "experiments",
  gate: "gate",
  docs: "docs",
};

const main = document.getElementById("main");
let leaving = new AbortController();

// `moved`: the user navigated, so focus and scrolling start at the top.
async function show(moved = false) {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const docs = location.pathname === "/docs" && !location.hash.startsWith("#/");
  const [path, search] = docs ? ["docs"] : location.hash.replace(/^#\/?/, "").split("?");
  const [first, ...parts] = path.split("/").map(decode);
  if (!Object.hasOwn(PAGES, first)) {
    location.replace("#/");
    return;
  }
  for (const link of document.querySelectorAll("nav a")) {
    const current = link.getAttribute("href") === `#/${first === "campaigns" || first === "tasks" ? "" : first}`;
    if (current) link.setAttribute("aria-current", "page");
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
    if (!signal.aborted) showProblem(error);
  }
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function showProblem(error) {
  const problem = error instanceof Problem ? error : new Problem(0, String(error), "This is a bug: please report it.");
  const signIn = (token) => {
    setToken(token);
    show();
  };
  const wrong = problem.status === 401 && hasToken();
  replace(main, h("div", { class: "problem", role: "alert" }, h("h1", {}, wrong ? "This token is wrong." : problem.message), h("p", {}, problem.status === 401 ? "The command that started the server prints where its token is." : problem.hint), problem.status === 401 && tokenForm(signIn)));
}

// Show in the corner whether the server answers.
export function setOffline(offline) {
  document.getElementById("connection").textContent = offline ? "The server does not answer. Retrying …" : "";
}

// Wraps an action that sends requests. If the server does not answer, the corner shows it; other errors are thrown.
export function online(action, signal) {
  return async () => {
    try {
      await action();
      setOffline(false);
    } catch (error) {
      if (signal.aborted) return;
      if (error.status) throw error;
      setOffline(true);
    }
  };
}

addEventListener("hashchange", () => show(true));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash selects the page
  main.focus();
});
takeToken();
show();
