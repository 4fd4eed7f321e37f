// All campaigns of this home, the latest first.

import { get } from "../api.js";
import { h, replace } from "../dom.js";

export const title = "Campaigns";

export async function show(main, parts, { signal }) {
  const { campaigns } = await get("/api/v1/campaigns", signal);
  if (!campaigns.length) {
    replace(main, h("h1", {}, "Campaigns"), h("p", {}, "None yet. ", h("a", { href: "#/submit" }, "Submit the first one.")));
    return;
  }
  const head = h("tr", {}, ["campaign", "name", "status", "tasks", "done", "failed", "begun"].map((name) => h("th", { scope: "col" }, name)));
  const rows = campaigns.map((one) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("a", { href: `#/campaigns/${one.campaign_id}` }, one.campaign_id)),
      h("td", {}, one.name),
      h("td", {}, h("span", { class: `state ${one.status}` }, one.status)),
      h("td", { class: "number" }, one.total_tasks),
      h("td", { class: "number" }, one.tasks.succeeded),
      h("td", { class: "number" }, one.tasks.failed),
      h("td", {}, h("time", { datetime: one.created }, new Date(one.created).toLocaleString())),
    ),
  );
  replace(main, h("h1", {}, "Campaigns"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Campaigns" }, h("table", {}, h("thead", {}, head), h("tbody", {}, rows))));
}
