// The page of lingvo-moe-serve. All text of users and models goes through textContent.
"use strict";

const byId = (id) => document.getElementById(id);
let models = [];

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) Object.assign(element, { textContent: text, dir: "auto" });
  return element;
}

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, text]) => {
    const option = make("option", "", text);
    option.value = value;
    return option;
  }));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}

async function ask(path, question) {
  const options = question && {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(question),
  };
  const response = await fetch(path, options);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

function showModel() {
  const model = models.find(({ name }) => name === byId("model").value);
  // An imported model has no list of pairs: it translates between all of its languages.
  const known = model.pairs.length ? model.pairs.map((pair) => pair.split("-")[0]) : model.languages;
  const sources = [...new Set(known)].sort();
  const any = model.needs_source_language ? [] : [["", "any language"]];
  fill(byId("source"), [...any, ...sources.map((s) => [s, s])], byId("source").value);
  fill(byId("to"), model.languages.map((to) => [to, to]), byId("to").value || "en");
  byId("n-best").max = model.n_best;
}

function common() {
  const source = byId("source").value;
  return { model: byId("model").value, to: byId("to").value, source_language: source || null };
}

function fail(error) {
  byId("error").textContent = error.message;
  byId("error").hidden = false;
}

async function translate(event) {
  event.preventDefault();
  const sentences = byId("text").value.split(/\r?\n/);
  while (sentences.length > 1 && !sentences.at(-1).trim()) sentences.pop();
  byId("error").hidden = true;
  byId("go").disabled = true;
  byId("status").textContent = "…";
  const start = performance.now();
  try {
    const settings = common();
    const question = { ...settings, sentences, n_best: byId("n-best").valueAsNumber };
    const answer = await ask("v1/translate", question);
    byId("results").replaceChildren(...sentences.map((sentence, i) =>
      result(sentence, answer.translations[i], answer.left_out[i], settings)));
    byId("status").textContent = `${((performance.now() - start) / 1000).toFixed(2)} s`;
  } catch (error) {
    byId("status").textContent = "";
    fail(error);
  }
  byId("go").disabled = false;
}

function result(sentence, translations, leftOut, settings) {
  const item = make("li");
  item.append(make("div", "source", sentence));
  if (leftOut) item.append(make("div", "warning", `too long: the last ${leftOut} tokens were not read`));
  for (const { text, score } of translations) {
    if (score === null) continue;
    const line = make("div", "translation");
    line.append(make("span", "text", text), make("span", "score", score.toFixed(3)));
    const details = make("div", "tokens");
    const { explains } = models.find(({ name }) => name === settings.model);
    if (text) {
      const button = make("button", "", "tokens");
      button.type = "button";
      const question = { ...settings, sources: [sentence], targets: [text], experts: explains };
      button.onclick = () => toggle(details, question);
      line.append(button);
    }
    item.append(line, details);
  }
  return item;
}

async function toggle(details, question) {
  if (details.childElementCount) return details.replaceChildren();
  try {
    const { scores: [{ tokens, source }] } = await ask("v1/score", question);
    const pieces = make("div", "pieces");
    pieces.append(...tokens.map(colored));
    const tables = make("div", "tables");
    tables.append(table("target", tokens), ...(source ? [table("source", source)] : []));
    details.replaceChildren(pieces, tables);
  } catch (error) {
    fail(error);
  }
}

// Green where the model is sure of a token, red where it is not.
function colored({ text, log_prob }) {
  const probability = Math.exp(log_prob);
  const piece = make("span", "piece", text);
  piece.style.backgroundColor = `hsl(${Math.round(120 * probability)} 70% 50% / .35)`;
  piece.title = `${(100 * probability).toFixed(1)} %`;
  return piece;
}

// A row a token: its probability if it is of the target, and its experts with their weights.
function table(name, tokens) {
  const element = make("table");
  const layers = Object.keys(tokens[0].experts || {});
  const sure = name === "target";
  element.append(make("caption", "", layers.length ? `${name} tokens, and the experts of each` : `${name} tokens`));
  const head = element.createTHead().insertRow();
  for (const title of ["token", ...(sure ? ["probability"] : []), ...layers]) head.append(make("th", "", title));
  const body = element.createTBody();
  for (const { text, log_prob, experts } of tokens) {
    const row = body.insertRow();
    row.append(make("td", "", text));
    if (sure) row.append(make("td", "", `${(100 * Math.exp(log_prob)).toFixed(1)} %`));
    for (const layer of layers) {
      const used = experts[layer].map(([expert, weight]) => `${expert} (${weight.toFixed(2)})`);
      row.append(make("td", "", used.join(", ")));
    }
  }
  return element;
}

async function start() {
  ({ models } = await ask("v1/languages"));
  fill(byId("model"), models.map(({ name }) => [name, name]));
  byId("model-label").hidden = models.length < 2;
  byId("model").onchange = showModel;
  byId("form").onsubmit = translate;
  byId("text").onkeydown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
  };
  showModel();
}

start().catch(fail);
