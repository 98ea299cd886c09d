// The page of a Palmette server's API: reads openapi.json and shows what is there. Nothing comes from another site, and
// text reaches the document only as text nodes.
"use strict";

const THEME = "palmette-theme", DEEPEST = 6;
let api = null;

function make(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null));
  return made;
}

function button(text, className, act) {
  const made = make("button", className, text);
  made.type = "button";
  made.onclick = act;
  return made;
}

/** Paragraphs of text in which `names` are code. */
function prose(text) {
  return (text ?? "").split(/\n\s*\n/).filter((part) => part.trim()).map((part) =>
    make("p", "", ...part.split(/`([^`]+)`/).map((piece, place) => (place % 2 ? make("code", "", piece) : piece))));
}

// -- asking --------------------------------------------------------------------------------------------------------

async function load() {
  for (;;) {
    const answer = await fetch("openapi.json", { headers: keyed(), cache: "no-store" });
    if (answer.ok) return answer.json();
    if (answer.status !== 401) throw new Error(`the server answered ${answer.status}`);
    await askForKey();
  }
}

// -- schemas -------------------------------------------------------------------------------------------------------

function resolved(schema) {
  let found = schema ?? {};
  for (let steps = 0; found.$ref && steps < 20; steps++) {
    const target = found.$ref.replace(/^#\//, "").split("/").reduce((at, step) => at?.[step], api) ?? {};
    found = { ...target, ...(found.description ? { description: found.description } : {}) };
  }
  return found;
}

const unions = (schema) => schema.anyOf ?? schema.oneOf ?? null;

function typeOf(given, depth = 0) {
  const schema = resolved(given);
  if (depth > DEEPEST) return "...";
  if (unions(schema)) return [...new Set(unions(schema).map((each) => typeOf(each, depth + 1)))].join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  if (schema.type === "array") return schema.prefixItems
    ? `[${schema.prefixItems.map((each) => typeOf(each, depth + 1)).join(", ")}]`
    : `list of ${schema.items ? typeOf(schema.items, depth + 1) : "anything"}`;
  if (Array.isArray(schema.type)) return schema.type.join(" | ");
  if (schema.type === "object" && schema.title && schema.properties) return schema.title;
  return schema.type ?? (schema.properties ? "object" : "anything");
}

/** A number as it was meant: powers of two beyond what JavaScript counts exactly are written as such. */
function exact(value) {
  const power = Math.log2(Math.abs(value));
  return power >= 53 && Number.isInteger(power) ? `${value < 0 ? "-" : ""}2^${power}` : `${value}`;
}

function limits(given) {
  const schema = resolved(given), parts = [];
  const all = [schema, ...(unions(schema) ?? []).map(resolved)];
  const first = (name) => all.map((each) => each[name]).find((value) => value !== undefined);
  const say = (name, text) => { const value = first(name); if (value !== undefined) parts.push(text(value)); };
  say("minimum", (value) => `at least ${exact(value)}`);
  say("exclusiveMinimum", (value) => `above ${exact(value)}`);
  say("maximum", (value) => `at most ${exact(value)}`);
  say("exclusiveMaximum", (value) => `below ${exact(value)}`);
  say("maxLength", (value) => `at most ${value} characters`);
  say("maxItems", (value) => `at most ${value} of them`);
  if (schema.default !== undefined && schema.default !== null) parts.push(`default ${JSON.stringify(schema.default)}`);
  return parts.join(", ");
}

/** The objects that a schema may stand for: itself, its elements, the members of its unions. */
function objects(given, depth = 0) {
  const schema = resolved(given);
  if (depth > DEEPEST) return [];
  if (schema.properties) return [schema];
  return [schema.items, ...(schema.prefixItems ?? []), ...(unions(schema) ?? [])]
    .filter(Boolean).flatMap((each) => objects(each, depth + 1));
}

function fieldOf(name, schema, isRequired, depth) {
  const said = resolved(schema), inner = depth < DEEPEST ? objects(schema) : [], bounds = limits(schema);
  const line = make("div", "field", make("span", "name", name), make("span", "type", typeOf(schema)),
    isRequired ? make("span", "must", "required") : null, ...prose(said.description));
  if (bounds) line.append(make("p", "", bounds));
  if (inner.length) {
    const more = make("details", "", make("summary", "", "its fields"));
    more.ontoggle = () => {  // made when they are looked at: schemas may hold themselves
      if (more.open && more.children.length === 1) more.append(...inner.map((each) => fieldsOf(each, depth + 1)));
    };
    line.append(more);
  }
  return line;
}

function fieldsOf(schema, depth = 0) {
  const required = new Set(schema.required ?? []);
  const isIdle = (name) => (schema.properties[name].description ?? "").startsWith("Accepted");
  const place = (name) => (required.has(name) ? 0 : isIdle(name) ? 2 : 1);
  const names = Object.keys(schema.properties ?? {}).sort((one, other) => place(one) - place(other));
  return make("div", "fields", ...names.map((name) => fieldOf(name, schema.properties[name], required.has(name), depth)));
}

// -- operations ----------------------------------------------------------------------------------------------------

const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

/** The examples of a request's body, by their names; one that is empty where there are none. */
function examplesOf(operation) {
  const content = operation.requestBody?.content?.["application/json"];
  if (!content) return [];
  const named = Object.entries(content.examples ?? {}).map(([name, example]) => [name, example.value]);
  const listed = (resolved(content.schema).examples ?? []).map((value, place) => [`example ${place + 1}`, value]);
  return named.length || listed.length ? [...named, ...listed] : [["empty", {}]];
}

function curlOf(method, path, body) {
  const base = new URL(".", location.href).href.replace(/\/$/, "");
  const parts = [`curl ${method === "GET" ? "" : `-X ${method} `}${base}${path}`];
  if (api.components?.securitySchemes) parts.push('-H "Authorization: Bearer $PALMETTE_API_KEY"');
  if (body !== null) parts.push('-H "Content-Type: application/json"', `-d '${body.replaceAll("'", "'\\''")}'`);
  return parts.join(" \\\n  ");
}

function parametersOf(operation) {
  const given = (operation.parameters ?? []).map((each) => [each, fieldOf(each.name, each.schema, each.required, DEEPEST)]);
  for (const [each, line] of given) {
    line.querySelector(".type").append(` in the ${each.in}`);
    line.append(...prose(each.description));
  }
  return given.length ? make("div", "", make("h3", "", "Parameters"), make("div", "fields", ...given.map(([, line]) => line))) : null;
}

function answersOf(operation) {
  const lines = Object.entries(operation.responses ?? {}).map(([status, answer]) => {
    const head = [make("b", status >= "400" ? "bad" : "", status), make("span", "", answer.description ?? "")];
    const examples = Object.entries(answer.content ?? {}).filter(([, content]) => content.example !== undefined);
    if (!examples.length) return make("div", "answer plain", ...head);
    const shown = examples.map(([kind, content]) => make("div", "", make("span", "", kind), make("pre", "", pretty(content.example))));
    return make("details", "answer", make("summary", "", ...head), ...shown);
  });
  return make("div", "", make("h3", "", "Answers"), ...lines);
}

/** The examples with their curl lines, and a form that sends what stands in it. */
function requestOf(method, path, operation) {
  const examples = examplesOf(operation), curl = make("pre", "curl"), tabs = make("div", "tabs");
  const body = examples.length ? make("textarea", "") : null;
  const parameters = (operation.parameters ?? []).filter((each) => each.in === "path" || each.in === "query");
  const inputs = parameters.map((each) => [each, make("input", "")]);
  const target = () => {
    let filled = path;
    const query = new URLSearchParams();
    for (const [each, input] of inputs) {
      if (each.in === "path") filled = filled.replace(`{${each.name}}`, input.value ? encodeURIComponent(input.value) : `{${each.name}}`);
      else if (input.value) query.set(each.name, input.value);
    }
    return filled + (query.size ? `?${query}` : "");
  };
  const update = () => { curl.textContent = curlOf(method, target(), body?.value ?? null); };
  const choose = (place) => {
    body.value = JSON.stringify(examples[place][1], null, 2);
    [...tabs.children].forEach((tab, index) => tab.setAttribute("aria-pressed", String(index === place)));
    update();
  };
  examples.forEach(([name], place) => tabs.append(button(name, "", () => choose(place))));
  if (body) { body.setAttribute("aria-label", "Body of the request"); body.spellcheck = false; body.oninput = update; choose(0); }
  for (const [, input] of inputs) input.oninput = update;
  update();
  const labels = inputs.map(([each, input]) => make("label", "", make("span", "path", each.name), input));
  const { send, shown } = sender(method, target, body);
  return make("div", "try", make("h3", "", "Request"), examples.length > 1 ? tabs : null, ...labels, body, curl, send, shown);
}

function sender(method, target, body) {
  const shown = make("pre", "result");
  shown.hidden = true;
  let sending = null;
  const send = button("Send", "send", async () => {
    if (sending) { sending.abort(); return; }
    sending = new AbortController();
    send.textContent = "Stop";
    shown.hidden = false;
    shown.textContent = "...";
    try {
      const headers = { ...keyed(), ...(body ? { "content-type": "application/json" } : {}) };
      const answer = await fetch(target().slice(1), { method, headers, body: body?.value, signal: sending.signal });
      shown.textContent = `${answer.status} ${answer.statusText}\n\n`;
      await read(answer, shown);
    } catch (error) {
      shown.append(error.name === "AbortError" ? "\n(stopped)" : `\n${error.message}`);
    }
    sending = null;
    send.textContent = "Send";
  });
  return { send, shown };
}

async function read(answer, shown) {
  if ((answer.headers.get("content-type") ?? "").startsWith("application/json")) {
    shown.append(pretty(await answer.json()));
    return;
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) shown.append(part.value);
}

function operationOf(method, path, operation) {
  const badge = make("span", `method ${method.toLowerCase()}`, method);
  const line = make("summary", "", badge, make("span", "path", path), make("span", "what", operation.summary ?? ""));
  const shown = make("details", "operation", line);
  shown.id = `${method} ${path}`;
  shown.ontoggle = () => {
    if (!shown.open || shown.children.length > 1) return;
    const schema = operation.requestBody?.content?.["application/json"]?.schema;
    const fields = schema ? make("div", "", make("h3", "", "Body"), ...objects(schema).map((each) => fieldsOf(each))) : null;
    shown.append(make("div", "body", make("div", "", ...prose(operation.description)), parametersOf(operation),
      requestOf(method, path, operation), fields, answersOf(operation)));
  };
  return shown;
}

// -- the page ------------------------------------------------------------------------------------------------------

function draw() {
  $("version").textContent = `version ${api.info.version}`;
  $("main").append(make("div", "about", ...prose(api.info.description)));
  for (const tag of api.tags ?? []) {
    const section = make("section", "", make("h2", "", tag.name), ...prose(tag.description));
    const links = make("div", "", make("h2", "", tag.name));
    for (const [path, operations] of Object.entries(api.paths)) {
      for (const [verb, operation] of Object.entries(operations)) {
        if (!operation.tags?.includes(tag.name)) continue;
        const method = verb.toUpperCase(), shown = operationOf(method, path, operation);
        shown.searched = `${method} ${path} ${operation.summary} ${JSON.stringify(operation)} ${bodyFields(operation)}`.toLowerCase();
        const link = make("a", "", make("span", `method ${verb}`, method), make("span", "path", path));
        link.href = `#${encodeURIComponent(shown.id)}`;
        link.onclick = () => { shown.open = true; };
        shown.link = link;
        section.append(shown);
        links.append(link);
      }
    }
    $("main").append(section);
    $("contents").append(links);
  }
  $("filter").oninput = filter;
  const named = $(decodeURIComponent(location.hash.slice(1)));
  if (named) { named.open = true; }
  $("page").hidden = false;
  if (named) named.scrollIntoView();
}

function bodyFields(operation) {
  const schema = operation.requestBody?.content?.["application/json"]?.schema;
  return schema ? objects(schema).flatMap((each) => Object.keys(each.properties ?? {})).join(" ") : "";
}

function filter() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const shown of document.querySelectorAll("details.operation")) {
    const hidden = !words.every((word) => shown.searched.includes(word));
    shown.hidden = shown.link.hidden = hidden;
  }
  for (const group of [...$("contents").children, ...document.querySelectorAll("main section")]) {
    group.hidden = !group.querySelector("a:not([hidden]), details.operation:not([hidden])");
  }
}

function theme() {
  const root = document.documentElement;
  const isDark = (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem(THEME, root.dataset.theme);
}

const kept = localStorage.getItem(THEME);
if (kept) document.documentElement.dataset.theme = kept;
$("theme").onclick = theme;
load().then((found) => { api = found; draw(); }).catch((error) => {
  $("problem").hidden = false;
  $("problem").textContent = `The description of the API did not come: ${error.message}.`;
});
