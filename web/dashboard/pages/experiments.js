// All experiments of this home, by name. #/experiments/NAME shows one experiment.

import { online } from "../app.js";
import { get } from "../api.js";
import { h, replace } from "../dom.js";
import { table } from "../table.js";
import { badge, every, instant } from "../widgets.js";
import { show as showOne } from "./experiment.js";

export const title = "Experiments";

const EVERY_S = 5;
const PAGE = 1000;

export async function show(main, parts, { signal, query }) {
  if (parts[0]) {
    await showOne(main, parts[0], signal);
    return;
  }
  const list = table(
    [
      { name: "Experiment", head: true, value: (one) => one.name, cell: (one) => h("a", { href: link(one.name) }, one.name) },
      { name: "Version", number: true, value: (one) => one.latest },
      { name: "Runs", number: true, value: (one) => one.runs },
      { name: "Schedule", value: (one) => one.schedule || "", cell: (one) => one.schedule || h("span", { class: "quiet" }, "on request") },
      { name: "Next run", value: (one) => one.due || "", cell: (one) => instant(one.due) },
      { name: "Last run", value: (one) => one.last_run || "", cell: (one) => instant(one.last_run) },
      { name: "Finding", value: (one) => one.last_finding || "", cell: (one) => finding(one.last_finding) },
    ],
    { label: "Experiments", key: (one) => one.name, sorted: ["Experiment", "ascending"], empty: "No experiment matches." },
  );
  const none = h("p", { hidden: true }, "No experiments yet. ", h("a", { href: "#/submit" }, "Write a campaign and save it as one"), ", or run: ", h("code", {}, "sark-node experiment save campaign.yaml"));
  const refresh = online(async () => {
    const page = await get(`/api/v1/experiments?limit=${PAGE}`, signal);
    if (signal.aborted) return;
    none.hidden = page.count > 0;
    list.element.hidden = !page.count;
    list.set(page.experiments);
  }, signal);
  await refresh();
  if (signal.aborted) return;
  const about = "Campaigns under a name, with versions, that run again by hand or on a schedule; each result is compared with the last good one.";
  replace(main, h("div", { class: "line" }, h("h1", { class: "grow" }, "Experiments"), h("a", { class: "button", href: "#/submit" }, "New experiment")), h("p", { class: "quiet" }, about), none, list.element);
  await every(EVERY_S, refresh, signal);
}

export function link(name) {
  return `#/experiments/${encodeURIComponent(name)}`;
}

const STATES = { fine: "succeeded", regression: "failed", "not-started": "failed", incomplete: "cancelled", confirming: "running" };

// A run's finding as a badge; nothing while it is unknown.
export function finding(word) {
  return word ? badge(STATES[word] ?? "pending", word) : "";
}
