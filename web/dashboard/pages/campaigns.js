// All campaigns of this home, the latest first, kept up to date.

import { down } from "../app.js";
import { get } from "../api.js";
import { h, replace } from "../dom.js";
import { badge, bar, count, duration, every, instant, simulation, table } from "../widgets.js";

export const title = "Campaigns";

const EVERY_S = 2;
const PAGE = 50;
const STATUSES = ["running", "cancelling", "succeeded", "failed", "cancelled", "adopted"];

export async function show(main, parts, { signal, query }) {
  let limit = PAGE;
  let asked = ""; // what the answer that is shown was an answer to
  const list = table(
    [
      {
        name: "Campaign",
        head: true,
        value: (one) => one.name,
        cell: (one) => [h("a", { href: `#/campaigns/${encodeURIComponent(one.campaign_id)}` }, one.name), " ", one.simulated && [simulation(), " "], h("code", { class: "small quiet" }, one.campaign_id)],
      },
      { name: "Status", value: stands, cell: (one) => badge(stands(one)) },
      {
        name: "Tasks",
        number: false,
        value: (one) => one.total_tasks,
        sign: (one) => JSON.stringify(one.tasks),
        cell: (one) => h("span", { class: "line tight" }, bar(share(one)), h("span", {}, words(one))),
      },
      { name: "Begun", value: (one) => one.created, cell: (one) => instant(one.created) },
      { name: "Took", value: took, cell: (one) => duration(took(one)) },
    ],
    { label: "Campaigns", key: (one) => one.campaign_id, stack: true, empty: "No campaign is like that." },
  );
  const name = h("input", { type: "search", name: "name", "aria-label": "Name holds", placeholder: "name", value: query.get("name") || "", autocomplete: "off" });
  const status = h("select", { name: "status", "aria-label": "Status" }, h("option", { value: "" }, "any status"), STATUSES.map((one) => h("option", { value: one, selected: query.get("status") === one }, one)));
  const more = h("button", { class: "plain", type: "button", hidden: true, onclick: () => ((limit = Math.min(1000, limit + 4 * PAGE)), refresh()) }, "Show more");
  const none = h("p", { hidden: true }, "None yet. ", h("a", { href: "#/submit" }, "Submit the first one"), ", or type: ", h("code", {}, "sark-node submit campaign.yaml"));
  const form = h("form", { class: "line", role: "search", "aria-label": "Which campaigns", onsubmit: (event) => event.preventDefault() }, name, status);
  name.addEventListener("input", refresh);
  status.addEventListener("change", refresh);

  async function refresh() {
    const search = new URLSearchParams({ limit });
    if (name.value) search.set("name", name.value);
    if (status.value) search.set("status", status.value);
    asked = String(search);
    let told;
    try {
      told = await get(`/api/v1/campaigns?${search}`, signal);
      down(false);
    } catch (error) {
      if (signal.aborted) return;
      if (error.status) throw error;
      down(true);
      return;
    }
    if (signal.aborted || asked !== String(search)) return;
    const bare = !told.campaigns.length && !name.value && !status.value;
    none.hidden = !bare;
    form.hidden = list.element.hidden = bare;
    more.hidden = !told.next || limit >= 1000;
    list.set(told.campaigns);
  }

  await refresh();
  if (signal.aborted) return;
  replace(main, h("div", { class: "line" }, h("h1", { class: "grow" }, "Campaigns"), h("a", { class: "button", href: "#/submit" }, "Submit a campaign")), form, none, list.element, more);
  await every(EVERY_S, refresh, signal);
}

// A campaign that nobody carries on stands still.
export function stands(one) {
  return one.status === "running" && !one.carried_on ? "halted" : one.status;
}

function ended(one) {
  return one.tasks.succeeded + one.tasks.failed + one.tasks.cancelled;
}

function share(one) {
  return one.total_tasks ? ended(one) / one.total_tasks : null;
}

function words(one) {
  if (!one.total_tasks) return "waiting for devices";
  const failed = one.tasks.failed ? `, ${one.tasks.failed} failed` : "";
  return `${one.tasks.succeeded} of ${count(one.total_tasks, "task")} done${failed}`;
}

function took(one) {
  return ((one.ended ? Date.parse(one.ended) : Date.now()) - Date.parse(one.created)) / 1000;
}
