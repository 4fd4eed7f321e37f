// All campaigns of this home, newest first, updated every two seconds.

import { online } from "../app.js";
import { get } from "../api.js";
import { h, replace } from "../dom.js";
import { count, duration } from "../format.js";
import { table } from "../table.js";
import { badge, bar, every, instant, simulation } from "../widgets.js";

export const title = "Campaigns";

const EVERY_S = 2;
const PAGE = 50;
const STARTING_MS = 15_000; // how long a scheduler process may take to start
const STATUSES = ["running", "cancelling", "succeeded", "failed", "cancelled", "adopted"];

export async function show(main, parts, { signal, query }) {
  let limit = PAGE;
  let latest = ""; // the latest request: answers to earlier ones are ignored
  const list = table(
    [
      {
        name: "Campaign",
        head: true,
        value: (one) => one.name,
        cell: (one) => [h("a", { href: `#/campaigns/${encodeURIComponent(one.campaign_id)}` }, one.name), " ", one.simulated && [simulation(), " "], h("code", { class: "small quiet" }, one.campaign_id)],
      },
      { name: "Status", value: statusOf, cell: (one) => badge(statusOf(one)) },
      {
        name: "Tasks",
        number: false,
        value: (one) => one.total_tasks,
        sign: (one) => JSON.stringify(one.tasks),
        cell: (one) => h("span", { class: "line tight" }, bar(share(one)), h("span", {}, progressText(one))),
      },
      { name: "Started", value: (one) => one.created, cell: (one) => instant(one.created) },
      { name: "Duration", value: elapsed, cell: (one) => duration(elapsed(one)) },
    ],
    { label: "Campaigns", key: (one) => one.campaign_id, stack: true, empty: "No campaign matches." },
  );
  const name = h("input", { type: "search", name: "name", "aria-label": "Name contains", placeholder: "name", value: query.get("name") || "", autocomplete: "off" });
  const status = h("select", { name: "status", "aria-label": "Status" }, h("option", { value: "" }, "any status"), STATUSES.map((one) => h("option", { value: one, selected: query.get("status") === one }, one)));
  const more = h("button", { class: "plain", type: "button", hidden: true, onclick: () => ((limit = Math.min(1000, limit + 4 * PAGE)), refresh()) }, "Show more");
  const none = h("p", { hidden: true }, "No campaigns yet. ", h("a", { href: "#/submit" }, "Submit one"), ", or run: ", h("code", {}, "sark-node submit campaign.yaml"));
  const form = h("form", { class: "line", role: "search", "aria-label": "Filter campaigns", onsubmit: (event) => event.preventDefault() }, name, status);
  const refresh = online(async () => {
    const search = new URLSearchParams({ limit });
    if (name.value) search.set("name", name.value);
    if (status.value) search.set("status", status.value);
    latest = String(search);
    const page = await get(`/api/v1/campaigns?${search}`, signal);
    if (signal.aborted || latest !== String(search)) return;
    const bare = !page.campaigns.length && !name.value && !status.value;
    none.hidden = !bare;
    form.hidden = list.element.hidden = bare;
    more.hidden = !page.next || limit >= 1000;
    list.set(page.campaigns);
  }, signal);
  name.addEventListener("input", refresh);
  status.addEventListener("change", refresh);

  await refresh();
  if (signal.aborted) return;
  replace(main, h("div", { class: "line" }, h("h1", { class: "grow" }, "Campaigns"), h("a", { class: "button", href: "#/submit" }, "Submit a campaign")), form, none, list.element, more);
  await every(EVERY_S, refresh, signal);
}

// A running campaign without a scheduler process is halted; for a new campaign, the process may still be starting.
export function statusOf(one) {
  if (one.status !== "running" || one.carried_on) return one.status;
  return Date.now() - Date.parse(one.created) < STARTING_MS ? "running" : "halted";
}

function ended(one) {
  return one.tasks.succeeded + one.tasks.failed + one.tasks.cancelled;
}

function share(one) {
  return one.total_tasks ? ended(one) / one.total_tasks : null;
}

function progressText(one) {
  if (!one.total_tasks) return "waiting for devices";
  const failed = one.tasks.failed ? `, ${one.tasks.failed} failed` : "";
  return `${one.tasks.succeeded} of ${count(one.total_tasks, "task")} done${failed}`;
}

function elapsed(one) {
  return ((one.ended ? Date.parse(one.ended) : Date.now()) - Date.parse(one.created)) / 1000;
}
