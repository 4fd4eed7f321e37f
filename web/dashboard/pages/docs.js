// The HTTP API for people, from /openapi.json: endpoints, parameters, responses, and curl commands.

import { get } from "../api.js";
import { h, replace } from "../dom.js";
import { count } from "../format.js";

export const title = "HTTP API";

const DEPTH = 4;

export async function show(main, parts, { signal }) {
  const document_ = await get("/openapi.json", signal);
  const summary = h("p", { class: "quiet", role: "status" });
  const sections = document_.tags.map((tag) => section(document_, tag));
  const search = h("input", { type: "search", id: "search", autocomplete: "off" });
  const narrow = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const { element, items } of sections) {
      let some = 0;
      for (const item of items) {
        const good = words.every((word) => item.text.includes(word));
        item.element.hidden = !good;
        some += good;
      }
      element.hidden = !some;
      left += some;
    }
    summary.textContent = count(left, "operation");
  };
  search.addEventListener("input", narrow);
  replace(
    main,
    h("h1", {}, `HTTP API, version ${document_.info.version}`),
    prose(document_.info.description),
    h("p", {}, h("a", { href: "/openapi.json" }, "openapi.json")),
    h("div", { class: "docs-search" }, h("label", { for: "search" }, "Search "), search, summary),
    sections.map(({ element }) => element),
  );
  narrow();
}

// Text with code in `backticks`.
function marked(text) {
  return (text || "").replace(/\s+/g, " ").split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
}

// Paragraphs of wrapped text.
function prose(text) {
  return (text || "").split(/\n\s*\n/).map((part) => h("p", { class: "lead" }, marked(part)));
}

function section(document_, tag) {
  const items = Object.entries(document_.paths).flatMap(([path, methods]) =>
    Object.entries(methods)
      .filter(([, operation]) => operation.tags[0] === tag.name)
      .map(([method, operation]) => ({
        element: operationView(document_, path, method, operation),
        text: [method, path, operation.operationId, operation.summary, operation.description].join(" ").toLowerCase(),
      })),
  );
  return { element: h("section", {}, h("h2", {}, tag.name), h("p", {}, marked(tag.description)), items.map(({ element }) => element)), items };
}

function operationView(document_, path, method, operation) {
  const heading = [h("span", { class: "method" }, method.toUpperCase()), " ", h("code", {}, path), h("span", { class: "what" }, marked(operation.summary))];
  const details = h("details", { class: "operation", id: operation.operationId }, h("summary", {}, heading));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(...body(document_, path, method, operation));
  });
  return details;
}

function body(document_, path, method, operation) {
  const parts = [...prose(operation.description), h("pre", { tabindex: "0" }, curl(path, method, operation))];
  if (operation.parameters?.length) {
    const each = operation.parameters.map((one) => [
      h("dt", {}, h("code", {}, one.name), ` (${one.in}${one.required ? ", required" : ""}): ${shape(document_, one.schema, 0)}`),
      h("dd", {}, marked(one.description)),
    ]);
    parts.push(h("h3", {}, "Parameters"), h("dl", {}, each));
  }
  for (const [type, content] of Object.entries(operation.requestBody?.content || {})) {
    parts.push(h("h3", {}, `Body: ${type}`), h("pre", { tabindex: "0" }, shape(document_, content.schema, 0)));
  }
  for (const [status, answer] of Object.entries(operation.responses)) {
    parts.push(h("h3", {}, status === "default" ? "Other" : status, ": ", answer.description));
    for (const [type, content] of Object.entries(answer.content || {})) {
      const simple = type === "application/problem+json" ? "Problem: title, status, detail, hint" : shape(document_, content.schema, 0);
      parts.push(h("p", {}, h("code", {}, type)), h("pre", { tabindex: "0" }, simple));
    }
  }
  return parts;
}

// A curl command; parts in braces are to be filled in.
function curl(path, method, operation) {
  const needed = (operation.parameters || []).filter((one) => one.in === "query" && one.required);
  const query = needed.length ? `?${needed.map((one) => `${one.name}=…`).join("&")}` : "";
  const lines = [`curl ${method === "get" ? "" : `-X ${method.toUpperCase()} `}'${location.origin}${path}${query}'`];
  const type = Object.keys(operation.requestBody?.content || {})[0];
  if (type) {
    const example = operation.requestBody.content[type].example;
    lines.push(`-H 'Content-Type: ${type}'`, type === "application/octet-stream" ? "--data-binary @FILE" : `-d '${JSON.stringify(example ?? {})}'`);
  }
  if (sessionStorage.getItem("sark-token")) lines.push("-H \"Authorization: Bearer $TOKEN\"");
  return lines.join(" \\\n  ");
}

// A schema as JSON, with each field's description as a comment.
function shape(document_, schema, depth) {
  if (!schema) return "anything";
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return depth > DEPTH ? name : shape(document_, document_.components.schemas[name], depth);
  }
  const several = !schema.properties && (schema.anyOf || schema.oneOf || schema.allOf);
  if (several) return several.map((one) => shape(document_, one, depth)).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.type === "array") return `[${shape(document_, schema.items, depth + 1)}, …]`;
  if (schema.properties) {
    const inner = "  ".repeat(depth + 1);
    const fields = Object.entries(schema.properties).map(([name, field]) => {
      const says = (field.description || "").replace(/\s+/g, " ");
      return `${inner}${JSON.stringify(name)}: ${shape(document_, field, depth + 1)}${says ? `   // ${says}` : ""}`;
    });
    return `{\n${fields.join("\n")}\n${"  ".repeat(depth)}}`;
  }
  if (schema.type === "object") {
    const value = typeof schema.additionalProperties === "object" ? shape(document_, schema.additionalProperties, depth + 1) : "…";
    return `{name: ${value}}`;
  }
  return schema.format ? `${schema.type} (${schema.format})` : String(schema.type ?? "anything");
}
